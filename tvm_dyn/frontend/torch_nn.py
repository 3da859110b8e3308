"""ATen operators of neural networks: products, attention, normalisation, convolution, pooling, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_dyn.frontend.ops.matmul import emit_matmul
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.torch_reductions import reduce
from tvm_dyn.frontend.torch_registry import TorchContext, aten
from tvm_dyn.frontend.value import Value, constant

# -- products ------------------------------------------------------------------------------------------------


@aten("linear")
def linear(t: TorchContext, input: Value, weight: Value, bias: Value | None = None) -> Value:
    result = emit_matmul(t.ctx, input, _swap_last(t, weight) if t.ctx.rank(weight) > 1 else weight)
    return result if bias is None else t.onnx("Add", result, bias)


def _swap_last(t: TorchContext, value: Value) -> Value:
    if value.const is not None:
        return Value(const=np.ascontiguousarray(np.swapaxes(value.const, -1, -2)))
    order = list(range(t.ctx.rank(value)))
    return t.onnx("Transpose", value, perm=[*order[:-2], order[-1], order[-2]])


@aten("matmul", "mm", "bmm", "mv", "dot")
def matmul(t: TorchContext, self: Value, other: Value) -> Value:
    return emit_matmul(t.ctx, self, other)


@aten("addmm", "baddbmm", "addbmm")
def addmm(t: TorchContext, self: Value, a: Value, b: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    if "addbmm" in str(t.node.target) and "baddbmm" not in str(t.node.target):
        return NotImplemented
    result, bias = emit_matmul(t.ctx, a, b), self
    result = result if alpha == 1 else t.onnx("Mul", result, t.value(alpha, t.dtype))
    bias = bias if beta == 1 else t.onnx("Mul", bias, t.value(beta, t.dtype))
    return t.onnx("Add", result, bias)


# -- attention -----------------------------------------------------------------------------------------------


@aten("scaled_dot_product_attention")
def attention(
    t: TorchContext,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(Q K^T scale + mask) V; the query heads of a group share K and V through a broadcast axis."""
    own = t.shape(query)
    if enable_gqa:
        heads, groups = own[-3], t.shape(key)[-3]
        query = reshape(t.ctx, query, [*own[:-3], groups, heads // groups, *own[-2:]])
        key, value = (t.onnx("Unsqueeze", v, t.ints([-3])) for v in (key, value))
        if attn_mask is not None and t.ctx.rank(attn_mask) > 2:
            attn_mask = _group_mask(t, attn_mask, heads, groups)
    factor = own[-1] ** -0.5 if scale is None else scale
    query = t.onnx("Mul", query, t.value(factor, t.dtype))
    scores = emit_matmul(t.ctx, query, _swap_last(t, key))
    weights = _masked_softmax(t, _causal(t, scores) if is_causal else scores, attn_mask)
    result = emit_matmul(t.ctx, weights, value)
    return reshape(t.ctx, result, [*own[:-1], t.shape(value)[-1]]) if enable_gqa else result


def _group_mask(t: TorchContext, mask: Value, heads: int, groups: int) -> Value:
    dims = t.shape(mask)
    inner = [1, 1] if isinstance(dims[-3], int) and dims[-3] == 1 else [groups, heads // groups]
    return reshape(t.ctx, mask, [*dims[:-3], *inner, *dims[-2:]])


def _causal(t: TorchContext, scores: Value) -> Value:
    """A query sees the keys up to its own position, both counted from the front."""

    def causal(x: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            return tirx.Select(index[-1] <= index[-2], x(*index), tirx.const(-np.inf, x.dtype))

        return te.compute(x.shape, at, name="causal")

    return t.ctx.emit_te(causal, t.tensor(scores))


def _masked_softmax(t: TorchContext, scores: Value, mask: Value | None) -> Value:
    """Softmax over keys; a query that may see no key at all gets zeros, as torch gives."""
    if mask is None:
        return t.onnx("Softmax", scores, axis=-1)
    hidden = t.value(-np.inf, t.dtype)
    masked = t.onnx("Where", mask, scores, hidden) if mask.dtype == "bool" else t.onnx("Add", scores, mask)

    def unseen(weight: Any, score: Any) -> Any:
        nothing = tirx.all(tirx.isnan(weight), score == tirx.const(-np.inf, t.dtype))
        return tirx.Select(nothing, tirx.const(0, t.dtype), weight)

    return t.ctx.elementwise("unseen", unseen, t.onnx("Softmax", masked, axis=-1), masked)


# -- normalisation -------------------------------------------------------------------------------------------


def _ones(t: TorchContext, shape: Sequence[int]) -> Value:
    return constant(np.ones(shape), t.dtype)


@aten("layer_norm", "native_layer_norm")
def layer_norm(
    t: TorchContext,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> list[Value | None]:
    scale = _ones(t, normalized_shape) if weight is None else weight
    result = t.onnx("LayerNormalization", input, scale, bias, axis=-len(normalized_shape), epsilon=float(eps))
    return [result, None, None]


@aten("rms_norm")
def rms_norm(
    t: TorchContext,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    floor = float(np.finfo(t.dtype).eps) if eps is None else eps
    axes = list(range(-len(normalized_shape), 0))
    mean = reduce(t, "ReduceMean", t.onnx("Mul", input, input), axes, True)
    root = t.onnx("Sqrt", t.onnx("Add", mean, t.value(floor, t.dtype)))
    result = t.onnx("Div", input, root)
    return result if weight is None else t.onnx("Mul", result, weight)


@aten("_native_batch_norm_legit_no_training")
def batch_norm(
    t: TorchContext,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    channels = t.shape(running_mean)
    scale = _ones(t, channels) if weight is None else weight
    shift = constant(np.zeros(channels), t.dtype) if bias is None else bias
    statistics = running_mean, running_var
    result = t.onnx("BatchNormalization", input, scale, shift, *statistics, epsilon=float(eps))
    return [result, None, None]


@aten("_native_batch_norm_legit.no_stats")
def normalize_per_channel(
    t: TorchContext,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    """Batch norm by the batch's own statistics, into which torch turns instance norm."""
    axes = [axis for axis in range(t.ctx.rank(input)) if axis != 1]
    result = _scaled_and_shifted(t, _standardized(t, input, axes, eps), weight, bias)
    return [result, None, None]


def _standardized(t: TorchContext, value: Value, axes: list[int], eps: float) -> Value:
    """(x - mean) / sqrt(variance + eps) over some axes."""
    centred = t.onnx("Sub", value, reduce(t, "ReduceMean", value, axes, True))
    variance = reduce(t, "ReduceMean", t.onnx("Mul", centred, centred), axes, True)
    return t.onnx("Div", centred, t.onnx("Sqrt", t.onnx("Add", variance, t.value(eps, t.dtype))))


def _scaled_and_shifted(t: TorchContext, value: Value, weight: Value | None, bias: Value | None) -> Value:
    """Apply (C,) -> (C, 1, ...), which broadcasts over (N, C, ...)."""
    for op_type, factor in (("Mul", weight), ("Add", bias)):
        if factor is not None:
            column = t.onnx("Reshape", factor, t.ints([-1, *[1] * (t.ctx.rank(value) - 2)]))
            value = t.onnx(op_type, value, column)
    return value


@aten("group_norm", "native_group_norm")
def group_norm(t: TorchContext, input: Value, *arguments: Any) -> list[Value | None]:
    """Arguments: groups, weight, bias, eps; natively weight, bias, N, C, HxW, groups, eps."""
    if "native" in str(t.node.target):
        weight, bias, _, _, _, groups, eps = arguments
    else:
        groups, weight, bias, eps = ([*arguments, *[None, None, 1e-5][len(arguments) - 1 :]])[:4]
    dims = t.shape(input)
    rows = reshape(t.ctx, input, [dims[0], groups, product([dims[1] // groups, *dims[2:]])])
    result = reshape(t.ctx, _standardized(t, rows, [-1], eps), dims)
    return [_scaled_and_shifted(t, result, weight, bias), None, None]


# -- convolution and pooling ---------------------------------------------------------------------------------


def _spread(items: Any, count: int) -> list[int]:
    listed = [items] if isinstance(items, int) else list(items)
    return listed * count if len(listed) == 1 else listed


@aten("conv1d", "conv2d", "conv3d")
def conv(
    t: TorchContext,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    return convolution(t, input, weight, bias, stride, padding, dilation, False, 0, groups)


@aten("convolution")
def convolution(
    t: TorchContext,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    count = t.ctx.rank(weight) - 2
    single = t.ctx.rank(input) == count + 1
    source = t.onnx("Unsqueeze", input, t.ints([0])) if single else input
    result = t.onnx(
        "ConvTranspose" if transposed else "Conv",
        source,
        weight,
        bias,
        strides=_spread(stride, count),
        pads=_spread(padding, count) * 2,
        dilations=_spread(dilation, count),
        group=groups,
        output_padding=_spread(output_padding, count) if transposed else None,
    )
    return t.onnx("Squeeze", result, t.ints([0])) if single else result


def _pool(t: TorchContext, op_type: str, input: Value, count: int, **attrs: Any) -> Value:
    """Pooling, also of one image without a batch axis."""
    single = t.ctx.rank(input) == count + 1
    source = t.onnx("Unsqueeze", input, t.ints([0])) if single else input
    result = t.onnx(op_type, source, **attrs)
    return t.onnx("Squeeze", result, t.ints([0])) if single else result


@aten("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    t: TorchContext,
    self: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Indices are left out: nobody but the backward pass reads them."""
    count = int(str(t.node.target).split("pool")[1][0])
    if "with_indices" in str(t.node.target) and any(u.args[1] == 1 for u in t.node.users if len(u.args) > 1):
        return NotImplemented
    kernel = _spread(kernel_size, count)
    result = _pool(
        t,
        "MaxPool",
        self,
        count,
        kernel_shape=kernel,
        strides=_spread(stride or kernel, count),
        pads=_spread(padding, count) * 2,
        dilations=_spread(dilation, count),
        ceil_mode=int(ceil_mode),
    )
    return [result, None]


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    t: TorchContext,
    self: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    count = int(str(t.node.target).split("pool")[1][0])
    if divisor_override is not None:
        return NotImplemented
    kernel = _spread(kernel_size, count)
    return _pool(
        t,
        "AveragePool",
        self,
        count,
        kernel_shape=kernel,
        strides=_spread(stride or kernel, count),
        pads=_spread(padding, count) * 2,
        ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(t: TorchContext, self: Value, output_size: Any) -> Any:
    count = int(str(t.node.target).split("pool")[1][0])
    sizes = _spread(output_size, count)
    extents = t.shape(self)[-count:]
    if all(s == 1 for s in sizes):
        return reduce(t, "ReduceMean", self, list(range(-count, 0)), True)
    if any(not isinstance(e, int) or e % s for e, s in zip(extents, sizes, strict=True)):
        return NotImplemented
    window = [e // s for e, s in zip(extents, sizes, strict=True)]
    return _pool(t, "AveragePool", self, count, kernel_shape=window, strides=window)


# -- resizing ------------------------------------------------------------------------------------------------


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def upsample_nearest(t: TorchContext, input: Value, output_size: Any, scale_factors: Any) -> Value:
    return _resize(
        t,
        input,
        output_size,
        scale_factors,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec")
def upsample_smooth(
    t: TorchContext, input: Value, output_size: Any, align_corners: bool, scale_factors: Any = None
) -> Value:
    cubic = "bicubic" in str(t.node.target)
    return _resize(
        t,
        input,
        output_size,
        scale_factors,
        mode="cubic" if cubic else "linear",
        coordinate_transformation_mode="align_corners" if align_corners else "half_pixel",
        cubic_coeff_a=-0.75 if cubic else None,
    )


def _resize(t: TorchContext, input: Value, output_size: Any, scale_factors: Any, **attrs: Any) -> Value:
    leading = t.shape(input)[:2]
    if output_size is not None:
        return t.onnx("Resize", input, None, None, t.ints([*leading, *output_size]), **attrs)
    return t.onnx("Resize", input, None, constant([1.0, 1.0, *scale_factors], "float32"), **attrs)


@aten("pixel_shuffle")
def pixel_shuffle(t: TorchContext, self: Value, upscale_factor: int) -> Value:
    return t.onnx("DepthToSpace", self, blocksize=upscale_factor, mode="CRD")
