"""Small torch models in the styles of BERT, GPT-2, ViT, ResNet and Llama, and the shapes to run them at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

HIDDEN, HEADS, LAYERS, VOCABULARY, POSITIONS = 64, 4, 2, 101, 256
PATCH = 8


class Attention(nn.Module):
    """Multi-head attention; fewer key heads than query heads make it grouped-query attention."""

    def __init__(self, key_heads: int = HEADS, bias: bool = True):
        super().__init__()
        self.key_heads, self.width = key_heads, HIDDEN // HEADS
        self.query = nn.Linear(HIDDEN, HIDDEN, bias)
        self.key = nn.Linear(HIDDEN, key_heads * self.width, bias)
        self.value = nn.Linear(HIDDEN, key_heads * self.width, bias)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias)

    def heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], count, self.width).transpose(1, 2)

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.heads(self.query(x), HEADS),
            self.heads(self.key(x), self.key_heads),
            self.heads(self.value(x), self.key_heads),
        )

    def merge(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(1, 2).reshape(x.shape[0], x.shape[2], HIDDEN))


class Mlp(nn.Module):
    def __init__(self, approximate: str = "none"):
        super().__init__()
        self.up, self.down, self.act = (
            nn.Linear(HIDDEN, 4 * HIDDEN),
            nn.Linear(4 * HIDDEN, HIDDEN),
            nn.GELU(approximate),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


# -- BERT ----------------------------------------------------------------------------------------------------


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()
        self.first, self.second = nn.LayerNorm(HIDDEN, 1e-12), nn.LayerNorm(HIDDEN, 1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.attention.projections(x)
        x = self.first(x + self.attention.merge(F.scaled_dot_product_attention(q, k, v, mask)))
        return self.second(x + self.mlp(x))


class Bert(nn.Module):
    """Encoder with padding mask: hidden states and the pooled first token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(2, HIDDEN)
        self.positions = nn.Embedding(POSITIONS, HIDDEN)
        self.register_buffer("position_ids", torch.arange(POSITIONS)[None], persistent=False)
        self.norm, self.pool = nn.LayerNorm(HIDDEN, 1e-12), nn.Linear(HIDDEN, HIDDEN)
        self.layers = nn.ModuleList(BertLayer() for _ in range(LAYERS))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        places = self.position_ids[:, : input_ids.shape[1]]
        x = self.norm(self.words(input_ids) + self.positions(places) + self.types(token_type_ids))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


# -- GPT-2 ---------------------------------------------------------------------------------------------------


class GptLayer(nn.Module):
    """Pre-norm block with attention written out, fused projections split by extents."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp("tanh")
        self.fused = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(
        self, x: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (
            self.attention.heads(part, HEADS) for part in self.fused(self.first(x)).split(HIDDEN, dim=2)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.attention.width**0.5
        scores = torch.where(mask, scores, torch.full([], torch.finfo(x.dtype).min, dtype=x.dtype))
        x = x + self.attention.merge(torch.matmul(torch.softmax(scores, -1), v))
        return x + self.mlp(self.second(x)), (k, v)


class Gpt2(nn.Module):
    """Decoder: logits of every position and the keys and values of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.layers, self.norm = nn.ModuleList(GptLayer() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)
        self.register_buffer(
            "causal", torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril(), persistent=False
        )

    def forward(
        self, input_ids: Tensor, past: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, list[Any]]:
        seen = 0 if past is None else past[0][0].shape[2]
        total = seen + input_ids.shape[1]
        x = self.words(input_ids) + self.positions(torch.arange(seen, total))
        mask, present = self.causal[seen:total, :total], []
        for number, layer in enumerate(self.layers):
            x, state = layer(x, mask, None if past is None else past[number])
            present.append(state)
        return torch.matmul(self.norm(x), self.words.weight.t()), present


# -- ViT -----------------------------------------------------------------------------------------------------


class VitLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention.merge(
            F.scaled_dot_product_attention(*self.attention.projections(self.first(x)))
        )
        return x + self.mlp(self.second(x))


class Vit(nn.Module):
    """Image classifier; any number of patches, position embeddings interpolated from a 4 x 4 grid."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.positions = nn.Parameter(torch.randn(1, HIDDEN, 4, 4))
        self.layers, self.norm = nn.ModuleList(VitLayer() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values)
        x = x + F.interpolate(self.positions, size=x.shape[2:], mode="bilinear", align_corners=False)
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


# -- ResNet --------------------------------------------------------------------------------------------------


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, middle: int, stride: int):
        super().__init__()
        self.reduce, self.spatial = convolution(inputs, middle, 1, 1), convolution(middle, middle, 3, stride)
        self.expand, self.shortcut = (
            convolution(middle, 4 * middle, 1, 1),
            convolution(inputs, 4 * middle, 1, stride),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.expand(F.relu(self.spatial(F.relu(self.reduce(x))))) + self.shortcut(x))


class ResNet(nn.Module):
    """Image classifier over any height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = convolution(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Bottleneck(16, 8, 1), Bottleneck(32, 16, 2))
        self.average, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(
            torch.flatten(self.average(self.blocks(self.pool(F.relu(self.stem(pixel_values))))), 1)
        )


# -- Llama ---------------------------------------------------------------------------------------------------


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(key_heads=2, bias=False)
        self.first, self.second = RmsNorm(), RmsNorm()
        self.gate, self.up = (nn.Linear(HIDDEN, 2 * HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.attention.projections(self.first(x))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // 2, dim=1) for t in (k, v))
        x = x + self.attention.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Decoder with RMSNorm, rotary positions and grouped-query attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers, self.norm = nn.ModuleList(LlamaLayer() for _ in range(LAYERS)), RmsNorm()
        width = HIDDEN // HEADS
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        angles = torch.arange(input_ids.shape[1]).float()[:, None] * self.frequencies
        angles = torch.cat([angles, angles], -1)
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return F.linear(self.norm(x), self.words.weight)


# -- what to run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One model with its dynamic dims: `inputs(*extents)` gives fresh arguments, `dims` their export spec.

    `example` are extents for the export, `shapes` the eight to run at: 1, primes and sizes around a vector.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Any, ...]]
    dims: Callable[[], tuple[Any, ...]]
    example: tuple[int, ...]
    shapes: Sequence[tuple[int, ...]]

    def module(self) -> nn.Module:
        """The model, the same at every call."""
        torch.manual_seed(0)
        return self.build().eval().requires_grad_(False)


def token_ids(batch: int, seq: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, seq))


def bert_inputs(batch: int, seq: int) -> tuple[Tensor, ...]:
    mask = (torch.arange(seq) <= torch.randint(0, seq, (batch, 1))).long()
    return token_ids(batch, seq), mask, torch.randint(0, 2, (batch, seq))


def past_inputs(batch: int, seq: int, past: int) -> tuple[Any, ...]:
    def state() -> Tensor:
        return torch.randn(batch, HEADS, past, HIDDEN // HEADS)

    return token_ids(batch, seq), [(state(), state()) for _ in range(LAYERS)]


def past_dims() -> tuple[Any, ...]:
    batch, seq, past = Dim("batch"), Dim("seq", max=64), Dim("past", max=127)
    return {0: batch, 1: seq}, [({0: batch, 2: past}, {0: batch, 2: past}) for _ in range(LAYERS)]


def token_dims() -> dict[int, Any]:
    return {0: Dim("batch"), 1: Dim("seq", max=POSITIONS - 1)}


TOKENS = [(1, 1), (1, 7), (2, 16), (3, 17), (1, 64), (5, 13), (7, 31), (2, 127)]
IMAGES = [
    (1, 32, 32),
    (1, 33, 47),
    (2, 64, 48),
    (3, 31, 29),
    (1, 9, 10),
    (5, 17, 64),
    (2, 97, 65),
    (7, 16, 15),
]
PATCHES = [
    (1, 8, 8),
    (1, 32, 32),
    (2, 8, 40),
    (3, 24, 56),
    (1, 88, 104),
    (5, 32, 24),
    (2, 64, 136),
    (7, 16, 8),
]
PASTS = [(1, 1, 1), (1, 1, 7), (2, 1, 16), (3, 2, 17), (1, 5, 64), (5, 1, 13), (2, 3, 31), (1, 1, 127)]

CASES: dict[str, Case] = {
    "bert": Case(Bert, bert_inputs, lambda: (token_dims(),) * 3, (2, 8), TOKENS),
    "gpt2": Case(Gpt2, lambda b, s: (token_ids(b, s),), lambda: (token_dims(),), (2, 8), TOKENS),
    "gpt2_past": Case(Gpt2, past_inputs, past_dims, (2, 3, 6), PASTS),
    "vit": Case(
        Vit,
        lambda b, h, w: (torch.randn(b, 3, h, w),),
        lambda: ({0: Dim("batch"), 2: PATCH * Dim("rows"), 3: PATCH * Dim("columns")},),
        (2, 24, 40),
        PATCHES,
    ),
    "resnet": Case(
        ResNet,
        lambda b, h, w: (torch.randn(b, 3, h, w),),
        lambda: ({0: Dim("batch"), 2: Dim("height", min=9), 3: Dim("width", min=9)},),
        (2, 32, 40),
        IMAGES,
    ),
    "llama": Case(Llama, lambda b, s: (token_ids(b, s),), lambda: (token_dims(),), (2, 8), TOKENS),
}
