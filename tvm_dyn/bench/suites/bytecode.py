"""The virtual machine beside compiled kernels, eager torch and numpy: latency of compilation, throughput, stacking.

Unlike the other suites it measures programs, not models: `measure` gives rows of our seconds and a rival's.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console

import tvm_dyn
from tvm_dyn import lazy
from tvm_dyn.bench import report
from tvm_dyn.bench.case import aligned, normal, parse_graph
from tvm_dyn.bench.machine import machine, versions
from tvm_dyn.bench.timing import take_turns
from tvm_dyn.lazy import run as lazy_run
from tvm_dyn.lazy.fuse import pending
from tvm_dyn.lazy.run import plan_of
from tvm_dyn.runtime import threads as thread_count
from tvm_dyn.runtime.bytecode.encode import encode
from tvm_dyn.runtime.bytecode.machine import Launch
from tvm_dyn.runtime.bytecode.program import Program, Space, Steps

Call = Callable[[], Any]

_ROUNDS, _SECONDS = 12, 1.5
_CHAINS, _CHAIN_ELEMENTS = 16, 2000
_ENCODED = 8


@dataclass(frozen=True)
class Row:
    """Our seconds beside a rival's for the same result."""

    name: str
    rival: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def run_bytecode(threads: int, pattern: str, json_file: Path | None, out: Console) -> list[Row]:
    """Measure, print each figure as it is there, and write ``json_file``; ``pattern`` is part of the names wanted."""
    rows = []
    for row in measure(threads, pattern):
        times = f"{row.ours * 1e6:12.2f} us   {row.rival:16} {row.theirs * 1e6:12.2f} us"
        out.print(f"{row.name:28} {times}   {row.ratio:.3g}")
        rows.append(row)
    if rows and json_file:
        report.write_json(json_file, machine(), versions(), rows)
    return rows


def measure(threads: int, pattern: str = "") -> Iterator[Row]:
    """Every figure in turn, of names that contain ``pattern``.

    Raises `AssertionError` where two contestants do not agree.
    """
    thread_count.use_threads(threads)
    makers: dict[str, Callable[[], Iterator[Row]]] = {"latency": _latency}
    for name, make in _WORK.items():
        for elements in _ELEMENTS:
            makers[f"{name} {elements:.0e}"] = partial(_throughput, make, elements, threads)
    makers["stacking"] = partial(_stacking, threads)
    for script in _SHAPES:
        makers[_name(script)] = partial(_script, script, threads)
    for name, make in makers.items():
        if pattern in name:
            yield from make()


# ---- latency

def _latency() -> Iterator[Row]:
    """A group of eight operations: the time to code, and to a new shape, beside a compilation of the same group."""
    x = lazy.asarray(np.zeros((4, 64), "float32"))
    y = lazy.gelu(x + 1.5)
    y = lazy.relu(lazy.exp(lazy.tanh(y * 2.0 - x)) + x)
    plan, _ = plan_of(pending([y._node]), [y._node])
    recipe = plan.programs[0].code.recipe
    steps = [Steps((4,), 4) if layout.name == "TILE" else Steps((0,), 0) for layout in _layouts(recipe)]
    code = encode(recipe)
    ours = take_turns(
        {
            "plan": [lambda: _planned_anew(y._node)],
            "encode": [lambda: encode.__wrapped__(recipe)],
            "shape": [lambda: Program(code, Space((4096,), 1), steps)],
        },
        1, 200, 1.0,
    )  # fmt: skip
    module = tvm_dyn.api.import_model(
        parse_graph(
            "(float[n, 64] x) => (float[n, 64] y) { a = Add(x, k) b = Gelu(a) c = Mul(b, two) d = Sub(c, x) "
            "e = Tanh(d) f = Exp(e) g = Add(f, x) y = Relu(g) }",
            {"k": np.float32(1.5), "two": np.float32(2)}, opset=20,
        )
    )  # fmt: skip
    theirs = min(_seconds(lambda: tvm.compile(module, tvm_dyn.hardware.host_target())) for _ in range(3))
    yield Row(f"plan and encode {_ENCODED} operations", "tvm.compile", ours["plan"], theirs)
    yield Row(f"encode {_ENCODED} operations", "tvm.compile", ours["encode"], theirs)
    yield Row(f"new shape of {_ENCODED} operations", "tvm.compile", ours["shape"], theirs)


def _planned_anew(node: Any) -> None:
    """From the graph to a plan, with nothing that is known."""
    lazy_run._PLANS.clear()
    encode.cache_clear()
    plan_of(pending([node]), [node])


def _seconds(call: Call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _layouts(recipe: Any) -> list[Any]:
    return [operand.layout for operand in recipe.inputs] + [recipe.layout(value) for value in recipe.outputs]


# ---- throughput

@dataclass(frozen=True)
class _Work:
    """The same function in three languages."""

    name: str
    inputs: list[np.ndarray]
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    graph: str


def _relu_chain(n: int) -> _Work:
    return _chain(n, "relu", "c = Relu(a)")


def _gelu_chain(n: int) -> _Work:
    return _chain(n, "gelu", "c = Gelu(a)")


def _chain(n: int, function: str, node: str) -> _Work:
    import torch

    generator = np.random.default_rng(n)
    inputs = [normal(generator, n), normal(generator, n)]
    ours, theirs = getattr(lazy, function), getattr(torch.nn.functional, function)
    graph = "(float[n] x, float[n] r) => (float[n] y) { a = Add(x, b) " + node + " d = Mul(c, s) y = Add(d, r) }"
    return _Work(
        f"{function} chain", inputs, lambda x, r: ours(x + 0.5) * 1.5 + r, lambda x, r: theirs(x + 0.5) * 1.5 + r, graph
    )


def _softmax(n: int) -> _Work:
    import torch

    graph = "(float[n, c] x) => (float[n, c] y) { y = Softmax<axis = -1>(x) }"
    x = normal(np.random.default_rng(n), n // 1000, 1000)
    return _Work("softmax", [x], lazy.softmax, lambda x: torch.softmax(x, -1), graph)


def _layer_norm(n: int) -> _Work:
    import torch

    generator = np.random.default_rng(n)
    inputs = [normal(generator, n // 1000, 1000), normal(generator, 1000), normal(generator, 1000)]
    graph = (
        "(float[n, 1000] x, float[1000] g, float[1000] h) => (float[n, 1000] y) { "
        "y = LayerNormalization<axis = -1, epsilon = 1e-5>(x, g, h) }"
    )

    return _Work("layer norm", inputs, lazy.layer_norm, lambda x, g, h: torch.layer_norm(x, (1000,), g, h, 1e-5), graph)


_WORK = {"relu chain": _relu_chain, "gelu chain": _gelu_chain, "softmax": _softmax, "layer norm": _layer_norm}
_ELEMENTS = (10**4, 10**5, 10**6, 10**7)


def _throughput(make: Callable[[int], _Work], elements: int, threads: int) -> Iterator[Row]:
    import torch

    torch.set_num_threads(threads)
    work = make(elements)
    inputs = [aligned(array) for array in work.inputs]
    node = work.ours(*[lazy.asarray(array) for array in inputs])._node
    plan, leaves = plan_of(pending([node]), [node])
    (output,) = plan.run(leaves)
    library = tvm_dyn.compile(
        parse_graph(work.graph, {"b": np.float32(0.5), "s": np.float32(1.5)}, opset=20), num_threads=threads
    )
    compiled, tensors = library._main(), [tvm.runtime.from_dlpack(array) for array in inputs]
    torch_inputs = [torch.from_numpy(array) for array in inputs]
    np.testing.assert_allclose(compiled(*tensors).numpy(), output, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(work.torch(*torch_inputs).numpy(), output, rtol=2e-5, atol=2e-5)
    calls: dict[str, list[Call]] = {
        "ours": [lambda: plan.run(leaves)],  # into a new array, as the others do
        "compiled": [lambda: compiled(*tensors)],
        "torch": [lambda: work.torch(*torch_inputs)],
    }
    with torch.inference_mode():
        seconds = take_turns(calls, threads, _ROUNDS, _SECONDS)
    for rival in ("compiled", "torch"):
        yield Row(f"{work.name} {elements:.0e}", rival, seconds["ours"], seconds[rival])


def _bound(result: lazy.Array) -> tuple[Launch, array[int], np.ndarray, list[Any]]:
    """The launch of an array, bound to addresses: it, they, the result, and what the addresses are in."""
    node = result._node
    plan, leaves = plan_of(pending([node]), [node])
    bases = plan.bases[:]
    for place, number, _ in plan.leaves:
        bases[place] = leaves[number].address
    outputs = [aligned(np.empty(shape, dtype)) for shape, dtype in plan.allocated]
    for place, number in plan.results:
        bases[place] = outputs[number].ctypes.data
    return plan.launch, bases, outputs[-1], [leaves, outputs]


# ---- stacking

def _stacking(threads: int) -> Iterator[Row]:
    """Independent small chains in one launch, and in as many as there are."""
    generator = np.random.default_rng(0)
    pairs = [[lazy.asarray(normal(generator, _CHAIN_ELEMENTS)) for _ in range(2)] for _ in range(_CHAINS)]
    results = [lazy.relu(x + 0.5) * 1.5 + r for x, r in pairs]
    singles = [_bound(result) for result in results]
    programs = [launch._programs[0] for launch, *_ in singles]
    bases = array("q", [address for _, own, *_ in singles for address in own])
    stacked = Launch([programs])

    def one_by_one() -> None:
        for launch, own, *_ in singles:
            launch.run(own)

    one_by_one()
    expected = [output.copy() for _, _, output, _ in singles]
    for _, _, output, _ in singles:
        output[:] = np.nan
    stacked.run(bases)
    for (_, _, output, _), single in zip(singles, expected, strict=True):
        np.testing.assert_array_equal(output, single)
    seconds = take_turns(
        {"stacked": [lambda: stacked.run(bases)], "one by one": [one_by_one]}, threads, 4 * _ROUNDS, _SECONDS
    )
    yield Row(f"{_CHAINS} chains of {_CHAIN_ELEMENTS}", "as many launches", seconds["stacked"], seconds["one by one"])


# ---- scripts

def _k_means(xp: Any, points: Any, centres: Any) -> list[Any]:
    """The nearest of eight centres for each point, and its distance."""
    distances = xp.sum((points[:, None, :] - centres[None, :, :]) ** 2, axis=-1)
    return [xp.argmin(distances, axis=1), xp.min(distances, axis=1)]


def _stencil(xp: Any, grid: Any, _unused: Any) -> list[Any]:
    """Relaxation of a grid until it changes little."""
    for _ in range(20):
        inner = (grid[1:-1, :-2] + grid[1:-1, 2:] + grid[:-2, 1:-1] + grid[2:, 1:-1]) * np.float32(0.25)
        change = xp.max(xp.abs(inner - grid[1:-1, 1:-1]))
        grid = inner
        if float(change) < 0.3:
            break
    return [grid]


def _beam_scores(xp: Any, logits: Any, scores: Any) -> list[Any]:
    """The best continuation of every beam by its log-probability."""
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    total = shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True)) + scores
    total = xp.where(scores < -1, np.float32(-1e9), total)
    return [xp.max(total, axis=-1), xp.argmax(total, axis=-1)]


_SHAPES = {_k_means: ((125_000, 8), (8, 8)), _stencil: ((1000, 1000), (1, 1)), _beam_scores: ((128, 8000), (128, 1))}


def _script(script: Callable[..., list[Any]], threads: int) -> Iterator[Row]:
    """A numeric program on a million elements, in numpy and with the module of its functions exchanged."""
    generator = np.random.default_rng(0)
    inputs = [normal(generator, *shape) for shape in _SHAPES[script]]

    def ours() -> list[lazy.Array]:
        results = script(lazy, *[lazy.asarray(array) for array in inputs])
        lazy.sync(*results)
        return results

    for found, expected in zip(ours(), script(np, *inputs), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    calls: dict[str, list[Call]] = {"ours": [ours], "numpy": [lambda: script(np, *inputs)]}
    seconds = take_turns(calls, threads, _ROUNDS, 2 * _SECONDS)
    yield Row(_name(script), "numpy", seconds["ours"], seconds["numpy"])


def _name(script: Callable[..., list[Any]]) -> str:
    return script.__name__.strip("_").replace("_", " ")
