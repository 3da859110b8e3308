"""`torch.compile(model, backend="tvm_dyn", dynamic=True)`: each graph that torch captures is compiled once.

    captured graph (weights, s0, x: [s0, 8])  ->  exported program of x, weights constant, s0 = x.size(0)  ->  library

For inference: call the model under `torch.no_grad()` or `torch.inference_mode()`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import register_backend
from torch._guards import tracing

from . import api
from .errors import UnsupportedOperatorError

_MODULE_TENSORS = ("_parameters[", "_buffers[")


@register_backend(name="tvm_dyn")
def tvm_dyn(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph that torch captured; what is returned runs it.

    Sizes that torch made symbolic are symbolic dims. Weights become constants, and so do plain numbers that are no
    size: a call with others, or with weights that were written to, compiles once more.
    Raises `UnsupportedOperatorError` where gradients are asked for, and the errors of `tvm_dyn.compile`.
    """
    return _Compiled(graph, example_inputs)


@dataclass(frozen=True)
class _Size:
    """An integer input that is an extent of a tensor input: the tensor's position among the tensors, and the axis."""

    tensor: int
    axis: int


class _Compiled:
    """The libraries of one captured graph: one, as long as weights and integers stay what they are."""

    def __init__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]):
        self._graph = graph
        self._nodes = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._floats = [k for k, node in enumerate(self._nodes) if getattr(_origin(node), "pass_arg_as_tensor", False)]
        self._tensors = [k for k, (n, v) in enumerate(zip(self._nodes, example_inputs, strict=True)) if _is_data(n, v)]
        self._sizes = self._find_sizes()
        self._results = _results(graph)
        self._libraries: dict[Any, Any] = {}
        self._library(example_inputs)

    def __call__(self, *inputs: Any) -> list[Any]:
        library = self._library(inputs)
        found = iter(library(*(inputs[k].detach() for k in self._tensors)))
        return [self._result(result, found) for result in self._results]

    def _result(self, result: Any, found: Any) -> Any:
        """A tensor, an integer that torch knows as a symbol, or what is constant."""
        if not isinstance(result, fx.Node):
            return result
        value = next(found)
        return value if isinstance(result.meta.get("example_value"), torch.Tensor) else value.item()

    def _library(self, inputs: Sequence[Any]) -> Any:
        if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in inputs):
            raise UnsupportedOperatorError(
                "gradients are not supported: call the compiled model under torch.no_grad() or torch.inference_mode()"
            )
        fixed = self._fixed(inputs)
        key = tuple((id(v), _version(v)) if isinstance(v, torch.Tensor) else v for v in fixed.values())
        if key not in self._libraries:
            self._libraries[key] = fixed, api.compile(self._export(inputs, fixed))  # keeps what the ids are of
        return self._libraries[key][1]

    def _fixed(self, inputs: Sequence[Any]) -> dict[int, Any]:
        """Weights and plain numbers, by position; torch wraps numbers with a fraction in tensors."""
        rest = {k: v for k, v in enumerate(inputs) if k not in self._tensors and k not in self._sizes}
        return {k: float(v) if k in self._floats else _plain(v) for k, v in rest.items()}

    def _find_sizes(self) -> dict[int, _Size]:
        where: dict[Any, _Size] = {}
        for position, k in enumerate(self._tensors):
            for axis, extent in enumerate(self._nodes[k].meta["example_value"].shape):
                if isinstance(extent, torch.SymInt):
                    where.setdefault(extent.node.expr, _Size(position, axis))
        integers = {k: n.meta.get("example_value") for k, n in enumerate(self._nodes)}
        return {
            k: where[v.node.expr]
            for k, v in integers.items()
            if isinstance(v, torch.SymInt) and v.node.expr in where
        }

    def _export(self, inputs: Sequence[Any], fixed: dict[int, Any]) -> torch.export.ExportedProgram:
        graph = _with_numbers(self._graph, {k: fixed[k] for k in self._floats})
        module = _OfTensors(graph, len(inputs), self._tensors, self._sizes, fixed)
        examples = tuple(inputs[k].detach() for k in self._tensors)
        with tracing(None), torch.no_grad():
            return torch.export.export(module, examples, dynamic_shapes=(tuple(map(self._dims, self._tensors)),))

    def _dims(self, position: int) -> dict[int, Any]:
        shape = self._nodes[position].meta["example_value"].shape
        return {axis: torch.export.Dim.AUTO for axis, extent in enumerate(shape) if isinstance(extent, torch.SymInt)}


class _OfTensors(torch.nn.Module):
    """The graph as a function of its tensors alone."""

    def __init__(
        self, graph: fx.GraphModule, count: int, tensors: list[int], sizes: dict[int, _Size], given: dict[int, Any]
    ):
        super().__init__()
        self._graph, self._count, self._positions, self._sizes = graph, count, tensors, sizes
        self._numbers = {k: v for k, v in given.items() if not isinstance(v, torch.Tensor)}
        self._weights = {k: f"weight_{k}" for k, v in given.items() if isinstance(v, torch.Tensor)}
        for k, name in self._weights.items():
            self.register_buffer(name, given[k].detach())

    def forward(self, *tensors: torch.Tensor) -> Any:
        arguments: list[Any] = [None] * self._count
        for k, tensor in zip(self._positions, tensors, strict=True):
            arguments[k] = tensor
        for k, size in self._sizes.items():
            arguments[k] = tensors[size.tensor].size(size.axis)
        for k, name in self._weights.items():
            arguments[k] = getattr(self, name)
        for k, value in self._numbers.items():
            arguments[k] = value
        return self._graph(*arguments)


def _is_data(node: fx.Node, value: Any) -> bool:
    """Whether an input is a tensor that calls bring: neither one of the modules nor a number."""
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return False
    origin = _origin(node)
    if origin is None:
        return True
    name = str(origin.source.name)
    return not origin.pass_arg_as_tensor and not any(part in name for part in _MODULE_TENSORS)


def _plain(value: Any) -> Any:
    """What torch saw for an integer, without a guard that would make it compile for every other one."""
    return value.node.hint if isinstance(value, torch.SymInt) else value


def _origin(node: fx.Node) -> Any:
    """Torch's description of an input, None where it made the input itself."""
    return node.meta.get("grapharg")


def _with_numbers(graph: fx.GraphModule, numbers: dict[int, float]) -> fx.GraphModule:
    """A copy of the graph that has numbers where it takes the items of inputs."""
    if not numbers:
        return graph
    copied = copy.deepcopy(graph)
    inputs = [n for n in copied.graph.nodes if n.op == "placeholder"]
    for position, number in numbers.items():
        for user in list(inputs[position].users):
            if user.target == "item":
                for reader in list(user.users):
                    reader.replace_input_with(user, number)
                copied.graph.erase_node(user)
    copied.recompile()
    return copied


def _results(graph: fx.GraphModule) -> list[Any]:
    (output,) = [n for n in graph.graph.nodes if n.op == "output"]
    return list(output.args[0])


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; torch does not count that for tensors made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version
