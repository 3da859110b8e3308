"""What the package knows about machines, for the host and for targets it cannot run."""

from __future__ import annotations

import os

import pytest
from tvm.target import Target

from tvm_dyn import hardware

AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
AVX512 = Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 3})
NEON = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})


def test_host_target_has_the_real_cpu_and_the_cores_of_this_process():
    target = hardware.host_target()
    assert target.attrs["mcpu"] == hardware.host_cpu()
    assert hardware.cores(target) == len(os.sched_getaffinity(0))
    assert hardware.cores(hardware.host_target(num_cores=1)) == 1


@pytest.mark.parametrize(("target", "width", "count"), [(AVX2, 32, 16), (AVX512, 64, 32), (NEON, 16, 32)])
def test_vectors(target, width, count):
    assert hardware.vector_bytes(target) == width
    assert hardware.registers(target) == count
    assert hardware.lanes(target, "float32") == width // 4
    assert hardware.lanes(target, "float64") == width // 8
    assert hardware.lanes(target, "int8") == width


def test_cores_default_to_one():
    assert hardware.cores(AVX2) == 1
    assert hardware.cores(AVX512) == 3


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("bool", 1), ("bfloat16", 2), ("float8_e4m3fn", 1), ("int64", 8)]
)
def test_dtype_bytes(dtype, size):
    assert hardware.dtype_bytes(dtype) == size


def test_caches_grow_outwards():
    for target in (hardware.host_target(), NEON):
        sizes = [hardware.cache_bytes(target, level) for level in (1, 2, 3)]
        assert sizes == sorted(sizes) and sizes[0] >= 8 << 10
