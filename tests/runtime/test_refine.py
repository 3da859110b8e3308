"""Refinement: what pairs show is what counts, calls stay right, and what was learned survives."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx.parser
import pytest

import tvm_dyn
from tvm_dyn.hardware import host_target
from tvm_dyn.runtime import refine
from tvm_dyn.runtime.distill import measured
from tvm_dyn.runtime.evidence import PAIRS, Evidence, Point
from tvm_dyn.runtime.refine import FILE, Budget
from tvm_dyn.runtime.variants import Leaf, Split, decide

K, N = 64, 96


@pytest.fixture
def library():
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[M, {K}] x) => (float[M, {N}] y)'
        " { z = MatMul(x, w)  y = Relu(z) }"
    )
    weights = np.random.default_rng(1).standard_normal((K, N), "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    found = tvm_dyn.compile(model, host_target(num_cores=2), num_threads=1)
    found.weights = weights
    (found.group,) = [group for group in found.selection.groups if group.name in found.selection.tables]
    return found


def check(library, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, K), "float32")
    np.testing.assert_allclose(library(x)[0], np.maximum(x @ library.weights, 0), rtol=1e-4, atol=1e-4)


@pytest.fixture
def seconds(monkeypatch):
    """Kernels take the seconds that this says of the variant of a table, instead of those that pass."""
    known = {}

    def paired(calls, _deadline):
        for call in calls:
            call()  # it has to run all the same
        return known["base"], known["other"]

    monkeypatch.setattr(refine, "_paired", paired)
    return known


def learned_table(library, seconds, folder):
    """The table after calls have shown that the other variant than the one it took is better."""
    table = library.selection.tables[library.group.name]
    table.exchange(Leaf(1))
    seconds.update(base=2e-5, other=1e-5)
    library.refine(folder, every=1)
    for rows in (1, 5, 37) * PAIRS:
        check(library, rows)
    library.stop_refining()
    return table


def test_a_table_that_loses_is_exchanged(library, seconds):
    table = library.selection.tables[library.group.name]
    table.exchange(Leaf(1))
    seconds.update(base=2e-5, other=1e-5)
    progress = library.refine(every=1).progress
    for rows in (1, 5, 37) * (PAIRS + 1):
        check(library, rows)
    assert progress.calls_measured > 0 and progress.pairs == 3 * PAIRS
    library.stop_refining()
    assert progress.exchanges == 1
    assert all(table.decide({"rows": rows}) == 0 for rows in (1, 5, 37))
    check(library, 5)


def test_a_table_that_wins_stays(library, seconds):
    table = library.selection.tables[library.group.name]
    table.exchange(Leaf(1))
    seconds.update(base=1e-5, other=1.2e-5)
    progress = library.refine(every=1).progress
    for rows in (1, 5, 37) * (PAIRS + 1):
        check(library, rows)
    library.stop_refining()
    assert progress.pairs > 0 and progress.exchanges == 0 and table.tree() == Leaf(1)


def test_only_a_share_of_the_calls_is_measured(library, seconds):
    seconds.update(base=1e-5, other=1e-5)
    progress = library.refine(every=10).progress
    for _ in range(100):
        check(library, 7)
    library.stop_refining()
    # one in ten, and fewer once there is nothing left to find out
    assert PAIRS <= progress.calls_measured < 10 and progress.pairs == PAIRS


def test_times_are_real_where_nothing_is_made_up(library):
    progress = library.refine(every=1, budget_ms=50.0).progress
    for rows in (1, 5, 37, 200) * (PAIRS + 1):
        check(library, rows)
    (known,) = [e["measured_us"] for e in library.explain(M=37)["groups"] if e["variant"] is not None]
    assert 0.1 < known < 1e5
    library.stop_refining()
    assert progress.pairs > 0


def test_without_time_nothing_is_measured(library):
    progress = library.refine(every=1, budget_ms=1e-6).progress
    check(library, 37)
    library.stop_refining()
    assert progress.calls_measured == 1 and progress.pairs == 0


def test_measurements_survive_the_process(library, seconds, tmp_path):
    table = learned_table(library, seconds, tmp_path)
    learned = table.tree()
    table.exchange(Leaf(1))  # as a new process finds it
    progress = library.refine(tmp_path, every=1).progress
    assert table.tree() == learned and progress.exchanges == 1 and progress.calls_measured == 0
    library.stop_refining()


def test_measurements_of_other_hardware_are_left_alone(library, seconds, tmp_path):
    table = learned_table(library, seconds, tmp_path)
    plain = json.loads((tmp_path / FILE).read_text())
    plain["hardware"] = {"another CPU": next(iter(plain["hardware"].values()))}
    (tmp_path / FILE).write_text(json.dumps(plain))
    table.exchange(Leaf(1))
    library.refine(tmp_path)
    assert table.tree() == Leaf(1)
    library.stop_refining()
    assert "another CPU" in json.loads((tmp_path / FILE).read_text())["hardware"]


def test_a_damaged_file_is_begun_anew(library, tmp_path):
    (tmp_path / FILE).write_text("{")
    with pytest.warns(RuntimeWarning, match="begun anew"):
        library.refine(tmp_path)
        library.stop_refining()
    assert json.loads((tmp_path / FILE).read_text())["format"] == 1


def test_threads_call_while_it_measures(library):
    progress = library.refine(every=2, budget_ms=1.0).progress

    def calls(seed: int) -> None:
        for rows in np.random.default_rng(seed).integers(1, 60, 60):
            check(library, int(rows))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(calls, range(4)))  # raises what they raise
    library.stop_refining()
    assert progress.calls_measured > 0


def test_a_fault_ends_measurements_but_no_call(library, monkeypatch):
    def broken(*_):
        raise RuntimeError("no clock")

    monkeypatch.setattr(refine, "_paired", broken)
    library.refine(every=1)
    with pytest.warns(RuntimeWarning, match="refinement stops"):
        check(library, 5)
    check(library, 6)
    with pytest.raises(RuntimeError, match="no clock"):
        library.stop_refining()
    check(library, 7)


def test_budgets_are_checked():
    for arguments in ({"every": 0}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(ValueError, match="measure one call in 1 or more"):
            Budget(**arguments)


def test_pairs_add_up_along_chains():
    point = Point({"rows": 1})
    for _ in range(PAIRS):
        point.add(0, 1, np.log(2.0))
        point.add(2, 1, np.log(0.5))
    point.add(0, 3, -1.0)  # one pair is none
    assert point.relative(0) == pytest.approx({0: 1.0, 1: 2.0, 2: 4.0})
    assert point.relative(2) == pytest.approx({2: 1.0, 1: 0.5, 0: 0.25})
    assert point.relative(3) == {3: 1.0}


def test_a_variant_without_pairs_never_wins():
    evidence = Evidence(3)
    point = evidence.point({"rows": 5})
    point.calls = 100
    for _ in range(PAIRS):
        point.add(0, 1, 0.3)
    assert evidence.better(Leaf(0), 16) is None
    found = evidence.better(Leaf(1), 16)
    assert found is not None and decide(found, {"rows": 5}) == 0


def test_what_was_not_seen_keeps_its_variant():
    evidence = Evidence(2)
    tree = Split("rows", 64, Leaf(0), Leaf(1))
    for rows in (8, 16, 32):
        point = evidence.point({"rows": rows})
        point.calls = 10
        for _ in range(PAIRS):
            point.add(0, 1, np.log(0.5))
    found = evidence.better(tree, 16)
    assert found is not None and [decide(found, {"rows": rows}) for rows in (8, 16, 32)] == [1, 1, 1]
    other = Split("rows", 64, Leaf(0), Leaf(2))  # what was never measured stays with 2
    many = Evidence(3)
    many.points = evidence.points
    found = many.better(other, 16)
    assert found is not None and decide(found, {"rows": 512}) == 2


def test_memory_is_bounded():
    evidence = Evidence(2)
    known = [evidence.point({"a": a, "b": b}) for a in range(1, 200, 3) for b in range(1, 200, 3)]
    assert len(evidence.points) <= 256 and None in known
    point = evidence.point({"a": 1, "b": 1})
    for n in range(100):
        point.add(0, 1, float(n))
    assert point.pairs(0, 1)[-1] == 99 and len(point.pairs(0, 1)) <= 15
    again = Evidence.from_plain(json.loads(json.dumps(evidence.to_plain())), 2)
    assert again.to_plain() == evidence.to_plain()
    with pytest.raises(ValueError, match="no variants"):
        Evidence.from_plain([{"extents": {"a": 1}, "calls": 1, "ratios": [[0, 5, [1.0]]]}], 2)


@pytest.mark.parametrize("seed", range(4))
def test_from_a_model_that_is_wrong_to_a_table_that_is_right(seed):
    """10,000 calls, one in 16 measured with 2 % of noise and a few accidents, from the worst table there is."""
    generator = np.random.default_rng(seed)
    points = [{"rows": rows} for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 37, 64, 100, 128, 256, 512)]
    truth = np.exp(generator.normal(0, 0.3, (1, 6)) + generator.normal(0, 0.08, (len(points), 6)))
    wrong = 1 / truth
    worst = int(np.log(truth).sum(axis=0).argmax())
    evidence, tree = Evidence(6), Leaf(worst)
    history = [measured(tree, points, truth).expected]
    for call in range(10_000 // 16):
        n = int(generator.integers(len(points)))
        point = evidence.point(points[n])
        point.calls += 16
        challenger = evidence.challenger(point, tree, lambda n=n: wrong[n])
        if challenger is not None:
            base = decide(tree, points[n])
            accident = generator.normal(0, 1.0) if generator.random() < 0.03 else 0.0
            point.add(
                base, challenger, np.log(truth[n, challenger] / truth[n, base]) + generator.normal(0, 0.02) + accident
            )
        if call % 48 == 47:
            tree = evidence.better(tree, 16) or tree
            history.append(measured(tree, points, truth).expected)
    assert max(history) <= history[0] + 1e-9
    assert history[-1] <= 0.05 < history[0]
