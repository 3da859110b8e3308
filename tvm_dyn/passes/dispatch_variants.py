"""Turn calls of kernels that have several variants into calls that pick one by a decision table.

R.call_tir(cls.fused_matmul_add, (x, p, b), ...)               # its backbone lists two variants and a tree
--->
R.call_tir(cls.fused_matmul_add, (x, p, b, table), ...)        # `ScheduleGroups` emits both and the walk of the table
def tvm_dyn_tables(): return (table, ...)                      # the library's own: what is written there counts
def tvm_dyn_groups(): return R.str("[{...}, ...]")             # what there is to know of every group, as JSON
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.passes.rewriting import CALL_TIR, rewrite_functions
from tvm_dyn.passes.shape_types import dims_of
from tvm_dyn.runtime.groups import GROUPS_FUNCTION, TABLES_FUNCTION, Group, to_json
from tvm_dyn.runtime.table import Table
from tvm_dyn.runtime.variants import pruned
from tvm_dyn.schedules import dispatch, space_of
from tvm_dyn.schedules.backbone import kind_of, operators
from tvm_dyn.schedules.common import collect, substitute
from tvm_dyn.schedules.walk import table_buffer
from tvm_dyn.symbolic import to_text


@tvm.transform.module_pass(opt_level=0, name="DispatchVariants")
class DispatchVariants:
    """Comes between `ReplayBackboneSchedule` and `ScheduleGroups`.

    target: the device; by default the target in scope.
    """

    def __init__(self, target: Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=False)
        mod = _decided_where_static(mod, target)
        groups: dict[ir.GlobalVar, Group] = {}
        tables: dict[ir.GlobalVar, relax.Expr] = {}
        for gv, sites in _calls(mod).items():
            groups[gv], table = _group(mod[gv], gv.name_hint, sites, len(tables), target)
            if table is not None:
                tables[gv] = relax.const(table.words, "int64")
        rewriting = _Dispatched(mod, tables)
        result = rewrite_functions(mod, rewriting)
        for gv in tables:
            del result[gv]
        named = [replace(group, name=rewriting.kernels.get(gv, gv).name_hint) for gv, group in groups.items()]
        return _with_functions(result, named, [*tables.values()])


def _decided_where_static(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Kernels whose extents are all constant take their variant now."""
    result = mod.clone()
    for gv, func in mod.functions_items():
        space = space_of(func, target) if isinstance(func, PrimFunc) and dispatch.variants_of(func) else None
        if space and not space.symbolic:
            result.update_func(gv, dispatch.with_one_of(func, space.constant))
    return result


def _calls(mod: tvm.IRModule) -> dict[ir.GlobalVar, list[relax.Call]]:
    """The calls of each kernel, in the order of the model."""
    found: dict[ir.GlobalVar, list[relax.Call]] = {}
    for function in mod.functions.values():
        for call in collect(function, ir.Call) if isinstance(function, relax.Function) else ():
            if call.op == CALL_TIR:
                found.setdefault(call.args[0], []).append(call)
    return found


def _group(
    func: PrimFunc, name: str, sites: list[relax.Call], number: int, target: Target
) -> tuple[Group, Table | None]:
    """What there is to know of a kernel, and its table; ``number`` of tables come before it."""
    first, kind, ops = dispatch.variant_of(func), kind_of(func).value, operators(func)
    space = space_of(func, target) if first else None
    if first is None or space is None:
        return Group(name, ops, kind), None
    variants = tuple(dispatch.variants_of(func)) or (first,)
    calls = tuple(_texts(call, func, space.extents) for call in sites)
    source = str(dispatch.decisions_on(func)[dispatch.SOURCE])
    group = Group(name, ops, kind, variants, source, None, tuple(space.symbolic), calls)
    if len(variants) == 1:
        return group, None
    tree = pruned(dispatch.tree_of(func), space.constant)
    table = Table.create(tree, group.extents, dispatch.code_rows(variants), number)
    return replace(group, table=number), table


def _texts(call: relax.Call, func: PrimFunc, extents: Mapping[str, ir.Expr]) -> dict[str, str]:
    """The extents of a call, in the dims of the caller."""
    results = call.ty_args[0].fields if isinstance(call.ty_args[0], ir.TupleType) else [call.ty_args[0]]
    scalars = list(call.args[2].values) if len(call.args) > 2 else []
    known: dict[tirx.Var, ir.Expr] = {}
    for param, given in zip(func.params, [*call.args[1], *results, *scalars], strict=True):
        if not isinstance(param.ty, tirx.BufferType):
            known[param] = given
            continue
        dims = dims_of(given if isinstance(given, ir.Type) else given.ty) or []
        known |= {own: dim for own, dim in zip(param.ty.shape, dims, strict=False) if isinstance(own, tirx.Var)}
    return {name: to_text(substitute(extent, known)) for name, extent in extents.items()}


@mutator
class _Dispatched(PyExprMutator):
    """Gives kernels that choose their tables; the kernels take them between their inputs and their outputs."""

    def __init__(self, mod: tvm.IRModule, tables: Mapping[ir.GlobalVar, relax.Expr]):
        super().__init__(mod)
        self.tables = tables
        self.inputs: dict[ir.GlobalVar, int] = {}
        self.kernels: dict[ir.GlobalVar, ir.GlobalVar] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        gv = call.args[0] if call.op.same_as(CALL_TIR) else None
        if gv not in self.tables:
            return call
        operands = [*call.args[1].fields, self.tables[gv]]
        args = [self._kernel(gv, len(operands) - 1), relax.Tuple(operands), *call.args[2:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _kernel(self, gv: ir.GlobalVar, inputs: int) -> ir.GlobalVar:
        """The kernel with a parameter for its table behind its inputs."""
        if gv not in self.kernels:
            func = self.builder_.get()[gv]
            params = list(func.params)
            params.insert(inputs, table_buffer(self.tables[gv].value.numpy()))
            taking = PrimFunc(params, func.body, func.ret_type, func.attrs).with_attr(dispatch.TABLE, inputs)
            self.kernels[gv] = self.builder_.add_func(taking, gv.name_hint)
        return self.kernels[gv]


def _with_functions(mod: tvm.IRModule, groups: list[Group], tables: list[relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder(mod)
    with builder.function(GROUPS_FUNCTION, []):
        builder.emit_func_output(ir.StringImm(to_json(groups)))
    with builder.function(TABLES_FUNCTION, []):
        builder.emit_func_output(relax.Tuple(tables))
    return builder.get()
