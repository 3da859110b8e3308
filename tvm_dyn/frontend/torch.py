"""Walk a torch ExportedProgram and build the Relax function `main` with symbolic dims.

    ExportedProgram            main(ids: R.Tensor((batch, seq), "int64")) -> R.Tensor((batch, seq, 768))
    + range constraints  ->        R.assert_op(...)      one per unproved assumption
    + Dim facts                    with R.dataflow(): ...

Operators that have a converter here stay whole; the others are decomposed to core ATen first. Converters use
the importer of ONNX nodes, so that shape arithmetic, unification and checks are one for both. TVM's own ATen
converters are not used: they lose symbolic shapes, and some arguments without a word (the scale of `elu`).
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import onnx
import torch
import tvm
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from tvm import relax

from tvm_dyn.dims import Dim
from tvm_dyn.errors import ModelImportError, TvmDynError, UnsupportedOperatorError
from tvm_dyn.frontend import ops, signature, torch_integers
from tvm_dyn.frontend.context import Context, Unified
from tvm_dyn.frontend.importer import GraphImporter, first_line
from tvm_dyn.frontend.main_function import build_main
from tvm_dyn.frontend.symbols import SymbolTable
from tvm_dyn.frontend.torch_registry import CONVERTERS, OPSET, TorchContext, dtype_name
from tvm_dyn.frontend.torch_symbols import ProgramDims
from tvm_dyn.frontend.value import Value, symbols

for _family in ("elementwise", "nn", "recurrent", "reductions", "scatter", "shape"):
    importlib.import_module(f"tvm_dyn.frontend.torch_{_family}")

# Where tensors live and how they lie in memory is the compiler's business.
_IGNORED_ARGUMENTS = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}


def import_program(program: torch.export.ExportedProgram, dims: Mapping[str, Dim | int] | None = None) -> tvm.IRModule:
    """Turn an exported program into an IRModule with one public function `main`.

    The parameters are the program's tensor inputs in order, flattened; weights are constants; the outputs are
    the program's outputs in order, flattened. dims: facts about dims, by the name of their torch `Dim` (or of
    torch's symbol, where the program no longer knows it). Extents below 2, torch's tracing minimum, pass.
    Raises ModelImportError (UnsupportedOperatorError), each naming the node.
    """
    ops.load()
    program = _decomposed(program)
    table = SymbolTable(dims)
    while True:
        try:
            return ProgramImporter(program, table).run()
        except Unified:
            continue


def _decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Functional, in operators that have a converter, or in core ATen."""
    table = torch.export.default_decompositions()
    for name in CONVERTERS:
        base, _, overload = name.partition(".")
        kept = getattr(getattr(torch.ops.aten, base, None), overload, None)
        if kept is not None:
            table.pop(kept, None)
    try:
        return program.run_decompositions(table)
    except Exception as error:
        raise ModelImportError(f"torch cannot decompose the program: {first_line(error)}") from error


class ProgramImporter:
    """One pass over the program with a given set of symbols."""

    def __init__(self, program: torch.export.ExportedProgram, table: SymbolTable):
        self._program, self._table = program, table
        self._weights = {**program.state_dict, **program.constants}
        self._env: dict[fx.Node, Any] = {}
        self._modules = [program.graph_module]

    def run(self) -> tvm.IRModule:
        placeholders = {n.name: n for n in self._program.graph.nodes if n.op == "placeholder"}
        inputs = [
            (spec.arg.name, placeholders[spec.arg.name].meta["val"])
            for spec in self._program.graph_signature.input_specs
            if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        ]
        self._dims = ProgramDims(self._program, inputs, self._table)
        params = [
            relax.Var(
                signature.identifier(name),
                relax.TensorType(list(map(self._dims.dim, t.shape)), dtype_name(t.dtype)),
            )
            for name, t in inputs
        ]
        self._table.check_user_names()
        engine = GraphImporter(onnx.helper.make_model(onnx.GraphProto(), opset_imports=[]), self._table)
        ctx = engine.ctx = Context(self._table, {"": OPSET})
        self._t = TorchContext(engine)
        self._given = {name: Value(expr=p) for (name, _), p in zip(inputs, params, strict=True)}
        self._kinds = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs}
        return build_main(ctx, params, [name for name, _ in inputs], self._body)

    def _body(self) -> list[tuple[str, Value]]:
        self._dims.check(self._t.ctx)
        results = self._walk(self._program.graph, None)
        outputs = list(zip(self._program.graph_signature.output_specs, results, strict=True))
        changed = [str(s.target or s.arg.name) for s, _ in outputs if s.kind is not OutputKind.USER_OUTPUT]
        if changed:
            raise UnsupportedOperatorError(
                f"the program writes to {', '.join(changed)}: only programs without state are supported"
            )
        names = _output_names(self._program)
        kept = [(name, value) for name, (spec, value) in zip(names, outputs, strict=True) if not _is_none(spec.arg)]
        return [(name, self._output(value)) for name, value in kept]

    def _output(self, value: Any) -> Value:
        return value if isinstance(value, Value) else symbols([value], ())

    # -- nodes ----------------------------------------------------------------------------------------------

    def _walk(self, graph: fx.Graph, arguments: list[Any] | None) -> Any:
        """Convert the nodes in order; gives what the graph returns. A nested graph has `arguments`."""
        remaining = iter(arguments or [])
        for node in graph.nodes:
            if node.op == "placeholder":
                self._env[node] = self._placeholder(node) if arguments is None else next(remaining)
            elif node.op == "get_attr":
                self._env[node] = self._attribute(node)
            elif node.op == "call_function":
                self._convert(node)
            elif node.op == "output":
                return fx.map_arg(node.args[0], self._env.__getitem__)
        return ()

    def _placeholder(self, node: fx.Node) -> Any:
        if node.name in self._given:
            return self._given[node.name]
        spec = self._kinds[node.name]
        if spec.target is not None and spec.target in self._weights:
            return Value(const=_to_numpy(self._weights[spec.target]))
        if isinstance(spec.arg, ConstantArgument):
            return spec.arg.value
        raise UnsupportedOperatorError(
            f"input '{node.name}' is not a tensor: symbolic integers are read off tensors' shapes"
        )

    def _attribute(self, node: fx.Node) -> Any:
        item: Any = self._modules[-1]
        for part in str(node.target).split("."):
            item = getattr(item, part)
        return Value(const=_to_numpy(item)) if isinstance(item, torch.Tensor) else item

    def _convert(self, node: fx.Node) -> None:
        self._t.enter(node)
        args, kwargs = (fx.map_arg(a, self._env.__getitem__) for a in (node.args, node.kwargs))
        kwargs = {k: v for k, v in kwargs.items() if k not in _IGNORED_ARGUMENTS}
        try:
            self._env[node] = self._dispatch(node, args, kwargs)
        except (TvmDynError, Unified):
            raise
        except Exception as error:
            raise ModelImportError(f"{self._t.ctx.label} cannot be imported: {first_line(error)}") from error

    def _dispatch(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.target is operator.getitem:
            return args[0][args[1]]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._inline(node, args)
        done, result = torch_integers.evaluate(self._t, node.target, args)
        if done:
            return result
        name = str(node.target).removeprefix("aten.")
        own = CONVERTERS.get(name)
        result = own(self._t, *args, **kwargs) if own else NotImplemented
        if result is NotImplemented:
            form = "this form of " if own else ""
            what = f"{form}operator {node.target}"
            raise UnsupportedOperatorError(f"{self._t.ctx.label}: {what} is not supported")
        return self._checked(node, result)

    def _inline(self, node: fx.Node, args: Any) -> Any:
        """Regions that only switch autograd or autocast are part of the graph around them."""
        if not str(node.target).startswith("wrap_with_"):
            raise UnsupportedOperatorError(f"{self._t.ctx.label}: the higher-order operator is not supported")
        position = next(k for k, a in enumerate(args) if isinstance(a, fx.GraphModule))
        self._modules.append(args[position])
        try:
            return self._walk(args[position].graph, list(args[position + 1 :]))
        finally:
            self._modules.pop()

    def _checked(self, node: fx.Node, result: Any) -> Any:
        """The result in the form that torch states: one tensor or several, of torch's type and rank."""
        several = isinstance(node.meta.get("val"), tuple | list)
        results = result if isinstance(result, list | tuple) else [result]
        for value, meta in zip(results, self._t.results, strict=False):
            if value is None or not isinstance(meta, torch.Tensor):
                continue
            shape = self._t.shape(value)
            if value.dtype != dtype_name(meta.dtype) or len(shape) != meta.ndim:
                got = f"{value.dtype} of rank {len(shape)}"
                raise ModelImportError(
                    f"{self._t.ctx.label}: torch gives {meta.dtype} of rank {meta.ndim}, the import {got}"
                )
            for own, dim in zip(shape, meta.shape, strict=True):
                self._dims.bind(dim, own)
        return results if several else results[0]


def _is_none(argument: Any) -> bool:
    return isinstance(argument, ConstantArgument) and argument.value is None


def _output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Names from the keys of the output structure, output_0, output_1, ... where it has none."""
    from torch.utils import _pytree as pytree

    count = len(program.graph_signature.output_specs)
    spec = program.call_spec.out_spec
    if spec is None or spec.num_leaves != count:
        return [f"output_{k}" for k in range(count)]
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), spec))
    names = []
    for path, position in paths:
        keys = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", "")))) for k in path]
        text = "_".join(keys)
        names.append(text if keys and not keys[0].isdigit() else f"output_{text}" if text else f"output_{position}")
    return names


def _to_numpy(tensor: torch.Tensor) -> Any:
    data = tensor.detach().cpu().contiguous()
    if data.dtype == torch.bfloat16:
        return data.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return data.numpy()
