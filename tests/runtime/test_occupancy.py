"""The closed forms of CPU kernels: sums of their terms, which way they go, and what they say binds."""

from __future__ import annotations

import dataclasses

import pytest
from tvm.target import Target

from tvm_dyn.runtime.estimate import Estimate, overlapped
from tvm_dyn.runtime.occupancy import Machine, estimate, has_form
from tvm_dyn.runtime.occupancy_cpu import CpuMachine
from tvm_dyn.runtime.variants import Variant

CPU = CpuMachine(vector_bytes=64, registers=32, cores=8, cache_bytes=(48 << 10, 1 << 20, 32 << 20))
MACHINE = Machine(CPU)


def packed(vectors: int = 4, highest: int = 6, block_rows: int = 170, tasks: int = 1, major: int = 0) -> Variant:
    heights = tuple(range(1, highest + 1))
    decisions = {"lanes": 16, "vectors": vectors, "heights": heights, "block_rows": block_rows, "tasks": tasks}
    return Variant("PackedTile", {**decisions, "panel_major": major})


PLAIN = Variant(
    "MatmulTile",
    {
        "lanes": 16,
        "vectors": 4,
        "single_row_vectors": (16, 4),
        "rows": (6, 4, 2, 1),
        "narrow_rows": (12, 1),
        "pack_rows": 48,
        "block_rows": 192,
    },
)
PANEL = Variant("PanelTile", {"rows": 6, "vectors": 4, "lanes": 16})
FIRST = Variant("Tile", {"rows": 6, "vectors": 4, "lanes": 16})
SLIDING = Variant("SlidingTile", {"pixels": 4, "lanes": 16})


def product(rows: int, columns: int = 768, depth: int = 768, batch: int = 1) -> dict[str, int]:
    return {"batch": batch, "rows": rows, "columns": columns, "depth": depth}


def image(side: int, taps: int = 9, images: int = 1) -> dict[str, int]:
    return {
        "images": images, "height": side, "width": side, "pixels": side * side, "filters": 64, "channels": 64,
        "taps": taps,
    }  # fmt: skip


def winograd(side: int) -> dict[str, int]:
    return {**image(side), "winograd": 1}


EVERY = [(PANEL, winograd), (packed(), product), (PLAIN, product), (PANEL, image), (FIRST, image), (SLIDING, image)]


@pytest.mark.parametrize(("variant", "extents"), EVERY)
@pytest.mark.parametrize("size", [0, 1, 5, 6, 7, 13, 16, 37, 128])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_terms_add_up(variant, extents, size, threads):
    found = estimate(variant, extents(size), MACHINE, threads)
    assert found.seconds == pytest.approx(sum(found.terms.values()))
    assert min(found.terms.values()) >= 0 and found.bound_by in found.terms
    assert (found.seconds > 0) == (size > 0)


@pytest.mark.parametrize(("variant", "extents"), EVERY[1:])
def test_time_is_near_the_peak_for_large_extents_and_never_below(variant, extents):
    for size in (1, 37, 256):
        given = extents(size)
        sums = 1
        for name in ("batch", "rows", "columns", "depth") if extents is product else ("pixels", "taps", "channels"):
            sums *= given[name]
        if extents is image and variant is not SLIDING:
            sums *= given["filters"]
        peak = sums / (16 * CPU.multiply_adds * CPU.clock_hz)
        found = estimate(variant, given, MACHINE)
        assert found.terms["compute"] == pytest.approx(peak)
        assert found.seconds >= peak
        if size == 256 and variant is not SLIDING:
            assert found.seconds < 1.35 * peak


def test_winograd_multiplies_a_quarter_as_often():
    direct, less = (estimate(PANEL, extents(57), MACHINE) for extents in (image, winograd))
    assert less.terms["compute"] == pytest.approx(direct.terms["compute"] * 36 / 9 * 15**2 / 57**2)
    assert 0.3 < less.seconds / direct.seconds < 0.8
    # too few results fill its tiles, or there is too little to do
    for side in (1, 5):
        assert estimate(PANEL, winograd(side), MACHINE) == estimate(PANEL, image(side), MACHINE)


def test_a_tail_costs_what_its_rows_would():
    whole = Variant("PackedTile", {**packed().decisions, "heights": (6,)})
    full, one_more = (estimate(whole, product(rows), MACHINE) for rows in (6, 7))
    assert full.terms["tail"] == 0
    assert one_more.terms["tail"] == pytest.approx(one_more.terms["compute"] * 5 / 7)  # 7 rows are computed as 12
    assert estimate(packed(), product(7), MACHINE).terms["tail"] == 0  # as 4 and 3
    columns = estimate(packed(), product(6, columns=100), MACHINE)
    assert columns.terms["tail"] == pytest.approx(columns.terms["compute"] * 0.28)  # 100 columns as two panels of 64


def test_a_single_row_streams_its_weights_from_the_level_that_holds_them():
    for size, rate in ((1024, CPU.third_level_bytes), (8192, CPU.memory_bytes)):
        found = estimate(packed(), product(1, size, size), MACHINE)
        floor = size * size * 4 / rate / CPU.clock_hz
        assert found.bound_by == "bandwidth" and floor <= found.seconds < 1.4 * floor
    assert estimate(packed(), product(1, 64, 64), MACHINE).terms["bandwidth"] == 0


def test_many_rows_are_bound_by_arithmetic():
    assert estimate(packed(), product(510), MACHINE).bound_by == "compute"


def test_sums_beyond_the_registers_are_dear():
    fits, spills = (estimate(packed(4, highest), product(42), MACHINE) for highest in (6, 7))
    assert spills.seconds > 2 * fits.seconds and spills.bound_by == "registers"


def test_cores_share_tasks_and_wait_for_the_last():
    alone = estimate(packed(tasks=1), product(600), MACHINE, 8)
    assert alone == estimate(packed(tasks=1), product(600), MACHINE, 1)
    split = estimate(packed(tasks=32), product(600), MACHINE, 8)
    assert alone.seconds / 8 < split.seconds < alone.seconds / 6
    assert split.terms["launch"] == CPU.fork_join_seconds
    # 12 panels for 8 cores: four of them work twice as long
    uneven = estimate(packed(tasks=12), product(6), MACHINE, 8)
    assert uneven.terms["imbalance"] == pytest.approx(
        (uneven.seconds - uneven.terms["launch"]) * (1 - 12 / 16), rel=1e-6
    )
    # waking others for a microsecond of work does not pay
    assert estimate(packed(tasks=8), product(1, 512, 64), MACHINE, 8).bound_by == "launch"


def test_no_more_threads_than_cores():
    assert estimate(packed(tasks=32), product(600), MACHINE, 64) == estimate(packed(tasks=32), product(600), MACHINE, 8)


def test_packing_pays_from_some_rows_on():
    direct = Variant("MatmulTile", {**PLAIN.decisions, "pack_rows": 1 << 20})
    few, many = (estimate(PLAIN, product(rows), MACHINE) for rows in (48, 960))
    assert "packing" not in estimate(direct, product(960), MACHINE).terms
    assert few.terms["packing"] / few.seconds > many.terms["packing"] / many.seconds > 0


def test_batches_take_as_long_as_their_products():
    one, ten = (estimate(PLAIN, product(37, 64, 64, batch), MACHINE) for batch in (1, 10))
    assert 9 * one.seconds < ten.seconds < 14 * one.seconds


def test_what_has_no_form_is_refused():
    stranger = Variant("OtherTile", {"rows": 6})
    assert not has_form(stranger, MACHINE) and has_form(packed(), MACHINE)
    with pytest.raises(ValueError, match="no closed form for a OtherTile: there is one for PackedTile"):
        estimate(stranger, product(6), MACHINE)
    with pytest.raises(KeyError, match="depth"):
        estimate(packed(), {"batch": 1, "rows": 6, "columns": 64}, MACHINE)
    with pytest.raises(ValueError, match="no cost model for opencl"):
        Machine.for_target(Target({"kind": "opencl"}, host="llvm"))


def test_the_numbers_of_a_target():
    cpu = Machine.for_target(Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 3})).device
    assert isinstance(cpu, CpuMachine)
    assert (cpu.vector_bytes, cpu.registers, cpu.cores) == (32, 16, 3)
    faster = cpu.with_rates({"clock_hz": 2 * cpu.clock_hz})
    assert faster == dataclasses.replace(cpu, clock_hz=2 * cpu.clock_hz)
    assert faster.rates()["clock_hz"] == 2 * cpu.clock_hz


def test_estimates():
    found = Estimate.of({"compute": 3.0, "tail": 5.0})
    assert (found.seconds, found.bound_by) == (8.0, "tail")
    assert overlapped((2.0, 0.0)) == pytest.approx(2.0)
    assert 3.0 < overlapped((3.0, 3.0)) < 3.5
    assert overlapped((3.0, 1.0)) < 3.01
