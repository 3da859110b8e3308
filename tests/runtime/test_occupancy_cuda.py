"""The occupancy of CUDA kernels, compared with NVIDIA's own calculator."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tvm.target import Target

from tvm_dyn.runtime.occupancy import Machine, estimate
from tvm_dyn.runtime.occupancy_cuda import MULTIPROCESSORS, GpuMachine, residency
from tvm_dyn.runtime.variants import Variant

TABLE = Path(__file__).parent / "cuda_occupancy.json"
"""Answers of NVIDIA's header for a few hundred kernels: [architecture, threads, registers, shared bytes, blocks]."""

_ORACLE = r"""
#include <cstdio>
#include <cstring>
#include "cuda_occupancy.h"
int main() {
  int major, minor, warps, threads, registers;
  size_t per_sm, optin, reserved, shared;
  while (std::scanf("%d %d %d %zu %zu %zu %d %d %zu", &major, &minor, &warps, &per_sm, &optin, &reserved, &threads,
                    &registers, &shared) == 9) {
    cudaOccDeviceProp device;
    device.computeMajor = major; device.computeMinor = minor; device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = warps * 32; device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32; device.sharedMemPerBlock = 49152; device.sharedMemPerMultiprocessor = per_sm;
    device.numSms = 1; device.sharedMemPerBlockOptin = optin; device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel; cudaOccDeviceState state; cudaOccResult result;
    kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.sharedSizeBytes = 0;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = shared;
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
    std::printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
  }
}
"""


def _header() -> Path | None:
    import site

    roots = [*Path("/usr/local").glob("cuda*/include"), Path("/usr/include")]
    roots += [p for s in site.getsitepackages() for p in Path(s).glob("nvidia/**/include")]
    return next((root for root in roots if (root / "cuda_occupancy.h").exists()), None)


def _grid() -> list[tuple[str, int, int, int]]:
    shared = [0, 1, 127, 128, 129, 6912, 13568, 24 << 10, 48 << 10, (48 << 10) + 1, 64 << 10, 96 << 10, 99 << 10]
    shared += [(99 << 10) + 1, 163 << 10, 227 << 10, (227 << 10) + 1, 228 << 10]
    registers = [0, 1, 8, 9, 16, 24, 31, 32, 33, 40, 42, 43, 56, 63, 64, 65, 72, 80, 96, 102, 114, 128, 129, 160, 168]
    registers += [192, 254, 255, 256, 257]
    threads = [1, 31, 32, 33, 63, 64, 65, 96, 128, 160, 192, 224, 256, 288, 320, 384, 512, 544, 640, 768, 1024, 1025]
    return [(arch, t, r, s) for arch in MULTIPROCESSORS for t in threads for r in registers for s in shared]


def _ours(case: tuple[str, int, int, int]) -> int:
    arch, *kernel = case
    return residency(MULTIPROCESSORS[arch], *kernel).blocks


def _oracle(folder: Path, cases: list[tuple[str, int, int, int]]) -> list[int]:
    source, binary = folder / "oracle.cc", folder / "oracle"
    source.write_text(_ORACLE)
    subprocess.run(["g++", "-O1", f"-I{_header()}", str(source), "-o", str(binary)], check=True)
    lines = []
    for arch, threads, registers, shared in cases:
        sm = MULTIPROCESSORS[arch]
        numbers = (arch[3], arch[4], sm.warps, sm.shared, sm.largest_block, sm.reserved, threads, registers, shared)
        lines.append(" ".join(map(str, numbers)))
    out = subprocess.run([str(binary)], input="\n".join(lines), text=True, capture_output=True, check=True).stdout
    return [int(line) for line in out.split()]


@pytest.mark.skipif(_header() is None or shutil.which("g++") is None, reason="needs cuda_occupancy.h and g++")
def test_equals_the_calculator_on_a_grid(tmp_path):
    cases = _grid()
    expected = _oracle(tmp_path, cases)
    assert len(expected) == len(cases) > 90_000
    assert [case for case, blocks in zip(cases, expected, strict=True) if _ours(case) != blocks] == []


def test_equals_the_stored_answers_of_the_calculator():
    rows = json.loads(TABLE.read_text())
    assert len(rows) > 300 and {row[0] for row in rows} == set(MULTIPROCESSORS)
    assert [row for row in rows if _ours(tuple(row[:4])) != row[4]] == []


def test_what_runs_out_is_named():
    sm = MULTIPROCESSORS["sm_90"]
    assert residency(sm, 128, 72, 6912).limited_by == "registers"  # 7 blocks, as the profiler says
    assert residency(sm, 128, 72, 6912).blocks == 7
    assert residency(sm, 128, 16, 100 << 10).limited_by == "shared memory"
    assert residency(sm, 1024, 16, 0).limited_by == "warps"
    assert residency(sm, 32, 16, 0).limited_by == "blocks"


def test_bad_kernels_are_refused():
    sm = MULTIPROCESSORS["sm_80"]
    for kernel in ((0, 32, 0), (32, -1, 0), (32, 32, -1)):
        with pytest.raises(ValueError, match="no kernel has"):
            residency(sm, *kernel)


KERNEL = {
    "block_rows": 64,
    "block_columns": 64,
    "block_depth": 16,
    "threads": 128,
    "registers": 64,
    "shared_bytes": 8192,
    "element_bytes": 4,
    "tensor_cores": 0,
}


def _at(rows: int, machine: Machine, **changes):
    extents = {"batch": 1, "rows": rows, "columns": 1024, "depth": 1024}
    return estimate(Variant("CudaTile", {**KERNEL, **changes}), extents, machine)


def test_waves_and_tails():
    machine = Machine.for_target(Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"))
    assert isinstance(machine.device, GpuMachine)
    seconds = [_at(rows, machine).seconds for rows in range(1, 9000, 64)]
    assert np.all(np.diff(seconds) > -1e-9)  # more work never takes less time
    # 132 multiprocessors: blocks beyond a multiple of that leave most of them idle at the end
    even, one_more = _at(2112, machine), _at(2112 + 64, machine)  # 528 blocks of 64 x 64, and 16 more
    assert even.terms["tail"] == pytest.approx(0)
    assert one_more.terms["tail"] > even.terms["tail"]
    for found in (even, one_more):
        assert found.seconds == pytest.approx(sum(found.terms.values())) and min(found.terms.values()) >= -1e-15
    assert _at(1, machine).terms["padding"] > _at(64, machine).terms["padding"]
    few_warps = _at(8192, machine, threads=32, shared_bytes=60_000)
    assert few_warps.bound_by == "occupancy" and _at(8192, machine).terms["occupancy"] == 0


def test_a_kernel_that_fits_no_multiprocessor_is_refused():
    machine = Machine.for_target(Target({"kind": "cuda", "arch": "sm_86"}, host="llvm"))
    with pytest.raises(ValueError, match="shared memory allows none"):
        _at(64, machine, shared_bytes=128 << 10)


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match="sm_50"):
        Machine.for_target(Target({"kind": "cuda", "arch": "sm_50"}, host="llvm"))
