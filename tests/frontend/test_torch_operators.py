"""ATen converters against torch itself, at extents 1, primes and around a vector; a group is one program."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.export import Dim  # noqa: E402

import tvm_dyn  # noqa: E402

SHAPES = [(1, 1), (2, 3), (3, 7), (5, 16), (1, 17)]


def _floats(n, m):
    return torch.randn(n, m, 8), torch.randn(n, m, 8).abs() + 0.5


def _mixed(n, m):
    return torch.randint(-9, 9, (n, m)), torch.randint(1, 5, (n, m)), torch.rand(n, m) > 0.5


def _image(n, m):
    return (torch.randn(n, 4, m + 6, 9),)


def _unary(function, *, positive=False):
    return lambda x, y: function(y if positive else x)


ANYWHERE = """abs atan ceil cos erf exp floor neg relu round sigmoid sign
    sin sinh cosh tan tanh trunc expm1 exp2 asinh"""
POSITIVE = "log log1p log2 log10 sqrt rsqrt reciprocal"
UNARY = {name: _unary(getattr(torch, name)) for name in ANYWHERE.split()}
UNARY |= {name: _unary(getattr(torch, name), positive=True) for name in POSITIVE.split()}

ACTIVATIONS = {
    "gelu": lambda x, y: F.gelu(x),
    "gelu_tanh": lambda x, y: F.gelu(x, approximate="tanh"),
    "silu": lambda x, y: F.silu(x),
    "elu": lambda x, y: F.elu(x),
    "selu": lambda x, y: F.selu(x),
    "leaky": lambda x, y: F.leaky_relu(x, 0.2),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x * 4),
    "hardswish": lambda x, y: F.hardswish(x * 4),
    "hardtanh": lambda x, y: F.hardtanh(x, -0.3, 0.4),
    "relu6": lambda x, y: F.relu6(x * 9),
    "softplus": lambda x, y: F.softplus(x * 30, 0.7, 15.0),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x, y: x.clamp(min=0.1),
    "clamp_max": lambda x, y: x.clamp(max=y),
    "mish": lambda x, y: F.mish(x),
    "isnan": lambda x, y: (x * float("inf") - y * float("inf")).isnan(),
    "isinf": lambda x, y: (y * float("inf") * x).isinf(),
    "isfinite": lambda x, y: (y * float("inf") * x).isfinite(),
    "glu": lambda x, y: F.glu(x),
}

BINARY = {
    "add": lambda x, y: x + y,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "scalars": lambda x, y: (2 - x) * 3 / 4 + 1,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: torch.remainder(x, -y),
    "fmod": lambda x, y: torch.fmod(x, y),
    "pow": lambda x, y: y**x + x**2 + x**3 + y**-1 + y**0.5 + 2**x,
    "maximum": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y),
    "atan2": lambda x, y: torch.atan2(x, y),
    "compare": lambda x, y: torch.stack([x < y, x <= y, x > y, x >= y, x == y, x != y, x > 0.5]),
    "where": lambda x, y: torch.where(x > 0, y, 0.25) + torch.where(x > 1, 2.0, y),
    "masked_fill": lambda x, y: x.masked_fill(x > 0.2, -7.0),
    "broadcast": lambda x, y: x[:, :1] * y + y[:1],
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "full": lambda x, y: torch.full_like(x, 3) + torch.zeros(x.shape[0], 1, 1) + x.new_ones(x.shape[1], 8),
}

INTEGERS = {
    "arithmetic": lambda i, j, b: i * 3 + j - 1,
    "divide": lambda i, j, b: i / j,
    "floor": lambda i, j, b: i // j,
    "trunc": lambda i, j, b: torch.div(i, j, rounding_mode="trunc"),
    "remainder": lambda i, j, b: i % j,
    "fmod": lambda i, j, b: torch.fmod(i, j),
    "promote": lambda i, j, b: (i + 0.5) * b,
    "compare": lambda i, j, b: (i > 1.5) & (i < 7) | b,
    "bits": lambda i, j, b: (i & 3) | (j ^ 5),
    "invert": lambda i, j, b: (~i).float() + (~b),
    "sine": lambda i, j, b: i.sin(),
    "logical": lambda i, j, b: i.logical_and(b).logical_or(j == 2).logical_xor(b).logical_not(),
    "sum": lambda i, j, b: i.sum(1) + b.sum() + b.sum(1),
    "any": lambda i, j, b: torch.stack([b.any(1), b.all(1), i.bool().any(1)]),
    "cumsum": lambda i, j, b: b.cumsum(1) + i.cumsum(0),
    "sort": lambda i, j, b: i.sort(dim=1).values,
    "cast": lambda i, j, b: i.to(torch.int32).to(torch.float64) + b.to(torch.float32),
    "arange": lambda i, j, b: (
        torch.arange(i.shape[1], dtype=torch.float32) + torch.arange(1, 2 * i.shape[1], 2)
    ),
}

REDUCTIONS = {
    "sum": lambda x, y: x.sum() + x.sum((0, 2), keepdim=True),
    "mean": lambda x, y: x.mean() + x.mean(-1),
    "prod": lambda x, y: y.prod(2),
    "amax": lambda x, y: x.amax((0, 1)) - x.amin((0, 1)),
    "max": lambda x, y: x.max() - x.min(),
    "max_dim": lambda x, y: x.max(1).values + x.max(1).indices,
    "min_dim": lambda x, y: x.min(2).values + x.min(2).indices,
    "argmax": lambda x, y: x.argmax(1) + x.argmin(1),
    "argmax_all": lambda x, y: x.argmax(),
    "var": lambda x, y: x.var(2) + x.std(2, correction=0),
    "var_mean": lambda x, y: sum(torch.var_mean(x, 2)),
    "norm": lambda x, y: torch.linalg.vector_norm(x, dim=1) + x.norm(p=1, dim=1),
    "logsumexp": lambda x, y: torch.logsumexp(x, 2),
    "softmax": lambda x, y: x.softmax(1) + x.log_softmax(-1),
    "cumsum": lambda x, y: x.cumsum(1),
    "topk": lambda x, y: x.topk(3, dim=2).values,
    "topk_small": lambda x, y: x.topk(2, dim=2, largest=False).indices,
    "argsort": lambda x, y: x.argsort(2, descending=True),
}

SHAPING = {
    "view": lambda x, y: x.view(x.shape[0] * x.shape[1], 2, 4),
    "rest": lambda x, y: x.reshape(x.shape[1], -1),
    "flatten": lambda x, y: x.flatten(1),
    "squeeze": lambda x, y: x.unsqueeze(1).unsqueeze(-1).squeeze(1).squeeze(-1),
    "permute": lambda x, y: x.permute(2, 0, 1).transpose(0, 1),
    "expand": lambda x, y: x[:, None].expand(-1, 3, -1, 8),
    "repeat": lambda x, y: x.repeat(2, 1, 1, 3),
    "interleave": lambda x, y: x.repeat_interleave(3, dim=1),
    "cat": lambda x, y: torch.cat([x, y, x], 1),
    "stack": lambda x, y: torch.stack([x, y], -1),
    "chunk": lambda x, y: x.chunk(2, -1)[1] * x.split([3, 5], 2)[0][..., :1],
    "unbind": lambda x, y: x.unbind(2)[3],
    "slice": lambda x, y: torch.cat([x[:, -1:], x[:, :1], x[:, 1:], x[..., ::3].repeat(1, 1, 3)[..., :8]], 1),
    "select": lambda x, y: x[:, -1] + x[:, 0],
    "narrow": lambda x, y: x.narrow(2, 1, 5),
    "flip": lambda x, y: x.flip(1, 2),
    "roll": lambda x, y: x.roll(2, 2),
    "pad": lambda x, y: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad_cut": lambda x, y: F.pad(x, (-1, -2)),
    "tril": lambda x, y: x.tril() + x.triu(1) + y.triu(-2),
    "index": lambda x, y: x[:, torch.tensor([0, -1])] + x[torch.tensor([[0]]), 0],
    "index_apart": lambda x, y: x[torch.tensor([0]), :, torch.tensor([1])],
    "index_select": lambda x, y: x.index_select(2, torch.tensor([3, 1, 1])),
    "gather": lambda x, y: x.gather(2, (y * 3).long() % 8),
    "index_add": lambda x, y: x.index_add(2, torch.tensor([3, 0, 3]), y[..., :3], alpha=2),
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 0]),), y[:1], accumulate=True),
    "index_put_mask": lambda x, y: x.index_put((x > 0,), torch.tensor(2.0)),
    "scatter": lambda x, y: x.scatter(2, (y * 3).long()[..., :1] % 8, 9.0),
    "movedim": lambda x, y: x.movedim(0, 2).mT,
    "diff": lambda x, y: x.diff(dim=2),
    "meshgrid": lambda x, y: sum(torch.meshgrid(x[:, 0, 0], y[0, :, 0], indexing="ij")),
    "einsum": lambda x, y: torch.einsum("abc,abd->acd", x, y),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[..., :2], 2, 1, 3),
}

PRODUCTS = {
    "matmul": lambda x, y: x @ y.transpose(1, 2),
    "linear": lambda x, y: F.linear(x, y[0, :1], y[0, 0, :1]),
    "bmm": lambda x, y: torch.bmm(x, y.mT),
    "baddbmm": lambda x, y: torch.baddbmm(x @ x.mT, x, y.mT, beta=0.5, alpha=2),
    "addmm": lambda x, y: torch.addmm(x[0] @ x[0].T, x[0], y[0].T),
    "vector": lambda x, y: x @ y[0, 0] + torch.dot(x[0, 0], y[0, 0]),
    "layer_norm": lambda x, y: F.layer_norm(x, (8,)) + F.layer_norm(x, (8,), y[0, 0], x[0, 0]),
    "rms_norm": lambda x, y: F.rms_norm(x, (8,), y[0, 0], 1e-6),
    "group_norm": lambda x, y: F.group_norm(x.transpose(1, 2), 2, y[0, 0], x[0, 0]),
    "sdpa": lambda x, y: F.scaled_dot_product_attention(x[:, None], y[:, None], x[:, None]),
    "sdpa_causal": lambda x, y: F.scaled_dot_product_attention(x, y, y, is_causal=True, scale=0.3),
    "sdpa_mask": lambda x, y: F.scaled_dot_product_attention(x, y, y, attn_mask=x @ x.mT > 0),
    "sdpa_none": lambda x, y: F.scaled_dot_product_attention(x, y, y, attn_mask=x @ x.mT > 1e9),
    "sdpa_float": lambda x, y: F.scaled_dot_product_attention(x, y, y, attn_mask=x @ x.mT),
    "sdpa_groups": lambda x, y: F.scaled_dot_product_attention(
        torch.stack([x] * 4, 1),
        torch.stack([y, x], 1),
        torch.stack([x, y], 1),
        is_causal=True,
        enable_gqa=True,
    ),
}

IMAGES = {
    "conv": lambda x: F.conv2d(x, torch.ones(5, 4, 3, 2), torch.ones(5), (2, 1), (1, 0), (1, 2)),
    "conv_groups": lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3), groups=4, padding="same"),
    "conv1d": lambda x: F.conv1d(x[..., 0], torch.ones(3, 4, 3), stride=2),
    "conv_single": lambda x: F.conv2d(x[0], torch.ones(3, 4, 3, 3)),
    "conv_transpose": lambda x: F.conv_transpose2d(
        x, torch.ones(4, 3, 3, 3), stride=2, padding=1, output_padding=1
    ),
    "batch_norm": lambda x: F.batch_norm(
        x, torch.ones(4), torch.full((4,), 2.0), torch.ones(4), torch.zeros(4)
    ),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool_ceil": lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool_exclude": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_3": lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 3),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bilinear": lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True),
    "bilinear_half": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(5, 11), mode="bicubic"),
    "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "edge": lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"),
    "instance_norm": lambda x: F.instance_norm(x),
}

GROUPS = {
    "unary": (UNARY, _floats),
    "activations": (ACTIVATIONS, _floats),
    "binary": (BINARY, _floats),
    "integers": (INTEGERS, _mixed),
    "reductions": (REDUCTIONS, _floats),
    "shaping": (SHAPING, _floats),
    "products": (PRODUCTS, _floats),
    "images": (IMAGES, _image),
}


class Group(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *inputs):
        return {name: function(*inputs) for name, function in self.functions.items()}


def export(module, make):
    inputs = make(3, 5)
    return torch.export.export(module, inputs, dynamic_shapes={"inputs": tuple(_dims(i) for i in inputs)})


def _dims(tensor):
    return {0: Dim.DYNAMIC, (2 if tensor.ndim == 4 else 1): Dim.DYNAMIC}


@pytest.mark.parametrize("group", GROUPS)
def test_operators(group):
    functions, make = GROUPS[group]
    module = Group(functions)
    library = tvm_dyn.compile(export(module, make))
    torch.manual_seed(1)
    for shape in SHAPES:
        inputs = make(*shape)
        found = dict(zip([o.name for o in library.outputs], library(*inputs), strict=True))
        for name, expected in module(*inputs).items():
            torch.testing.assert_close(
                found[name],
                expected,
                rtol=2e-5,
                atol=2e-5,
                equal_nan=True,
                msg=lambda m, n=name, s=shape: f"{n} at {s}: {m}",
            )
