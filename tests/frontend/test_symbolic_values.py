"""Shape subgraphs leave no trace: targets are symbol expressions in the imported function."""

import numpy as np
import pytest
from graphs import parse
from tvm import relax

from tvm_dyn.frontend import import_onnx

INITIALIZERS = {
    **{
        name: np.array(value, "int64")
        for name, value in {"zero": [0], "one": [1], "two": [2], "four": [4], "end": [-1]}.items()
    },
    "nothing": np.array([-3, -3, -3], "int64"),
    "ones": np.array([1, 1, 1], "int64"),
    "zero0": np.array(0, "int64"),
    "one0": np.array(1, "int64"),
    "half": np.array(0.5, "float32"),
}

CASES = {
    "slice of shape": (
        "s = Shape(x) t = Slice(s, zero, one) u = Concat<axis=0>(t, end) y = Reshape(x, u)",
        "[b, n * 4]",
    ),
    "product": (
        "s = Shape<start=0, end=2>(x) p = ReduceProd(s) u = Concat<axis=0>(p, four) y = Reshape(x, u)",
        "[b * n, 4]",
    ),
    "quotient": ("s = Shape<start=1, end=2>(x) q = Div(s, two) y = ConstantOfShape(q)", "[n // 2]"),
    "float ratio": (
        "s = Shape<start=0, end=1>(x) f = Cast<to=1>(s) h = Mul(f, half) "
        "g = Floor(h) i = Cast<to=7>(g) y = ConstantOfShape(i)",
        "[b // 2]",
    ),
    "decided comparison": (
        "s = Shape(x) e = Equal(s, nothing) w = Where(e, ones, s) y = Expand(x, w)",
        "[b, n, 4]",
    ),
    "constant end": ("y = Slice(x, zero, end, two)", "[b, n, 3]"),
    "symbolic end": ("s = Shape<start=0, end=1>(x) y = Slice(x, zero, s, zero)", "[b, n, 4]"),
    "split": ("y, z = Split<axis=2, num_outputs=2>(x)", "[b, n, 2]"),
    "range": ("s = Shape(x) d = Gather(s, one0) r = Range(zero0, d, one0) y = Unsqueeze(r, zero)", "[1, n]"),
    "tile": ("s = Shape<start=1, end=2>(x) r = Concat<axis=0>(one, s, two) y = Tile(x, r)", "[b, n * n, 8]"),
}


@pytest.mark.parametrize("name", CASES)
def test_shape_arithmetic_is_done_at_import(name):
    body, expected = CASES[name]
    body = body.replace(") ", ")\n")
    mod = import_onnx(parse(f"g (float[b,n,4] x) => (float[o] y) {{ {body} }}", **INITIALIZERS))
    assert str(mod["main"].ret_ty.shape).splitlines()[-1] == f"R.shape({expected})"
    assert not {"relax.tensor_to_shape", "relax.shape_of", "relax.assert_op"} & operators(mod)


def operators(mod) -> set[str]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return {
        b.value.op.name for b in bindings if isinstance(b.value, relax.Call) and hasattr(b.value.op, "name")
    }


def test_a_value_only_the_run_knows_becomes_a_symbol():
    mod = import_onnx(parse("g (float[b,n,4] x, int64[2] s) => (float[o] y) { y = Reshape(x, s) }"))
    assert mod["main"].ret_ty.ndim == 2
    assert {"relax.tensor_to_shape", "relax.assert_op"} <= operators(mod)
