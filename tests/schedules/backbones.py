"""Small kernels around a backbone."""

from tvm import te, tirx, topi

from tvm_dyn.schedules.backbone import normal_form


def dense(rows: str = "m", width: int = 8, epilogue=None, prologue=None) -> tirx.PrimFunc:
    m = te.var(rows, dtype="int64")
    a, w = te.placeholder((m, 16), name="A"), te.placeholder((16, width), name="W")
    k = te.reduce_axis((0, 16), name="k")
    left = prologue(a) if prologue else a
    product = te.compute((m, width), lambda i, j: te.sum(left[i, k] * w[k, j], axis=k), name="matmul")
    return te.create_prim_func([a, w, epilogue(product) if epilogue else product])


def conv(dtype: str = "float32") -> tirx.PrimFunc:
    h = te.var("h", dtype="int64")
    x, w = te.placeholder((1, 3, h, 9), name="x", dtype=dtype), te.placeholder((4, 3, 3, 3), name="w", dtype=dtype)
    return te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))])


def backbone(func: tirx.PrimFunc) -> tirx.PrimFunc:
    found = normal_form(func)
    assert found is not None
    return found[1]
