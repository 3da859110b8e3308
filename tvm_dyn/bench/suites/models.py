"""Whole models with random weights, exported by torch to ONNX: batch and sequence, or height and width, are dynamic."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tvm_dyn.bench.case import Case, Feed, Shape, normal
from tvm_dyn.errors import BenchError

_CACHE = Path.home() / ".cache/tvm_dyn/bench"
_TOKENS = [(1, 5), (1, 24), (1, 37), (1, 64), (1, 128), (1, 256), (2, 100), (4, 16), (4, 37), (4, 128)]
_PASTS = [(1, 1, 5), (1, 1, 37), (1, 1, 128), (1, 1, 511), (2, 1, 100), (4, 1, 64), (8, 1, 31), (1, 4, 200)]
_IMAGES = [(1, 224, 224), (1, 160, 160), (1, 192, 256), (1, 256, 320)]
_IMAGES += [(2, 224, 224), (1, 231, 189), (3, 128, 96), (1, 320, 320)]
_PATCHED = [(1, 224, 224), (1, 160, 160), (1, 192, 256), (1, 256, 320)]
_PATCHED += [(2, 224, 224), (1, 240, 176), (3, 128, 96), (1, 320, 320)]
_LAYERS, _HEADS, _WIDTH = 12, 12, 64  # of GPT-2, whose keys and values are inputs


@dataclass(frozen=True)
class Model:
    """How to export and feed a model of `architectures`.

    inputs: fresh inputs at a shape. dims: of each input, symbolic dims by position. shapes: extents of the symbolic
    dims, in the order in which they come up. example: the extents to export with, above 1, as torch takes 0 and 1
    for constants. divisor: what heights and widths are multiples of.
    """

    name: str
    inputs: Callable[[Shape, np.random.Generator], Feed]
    dims: dict[str, dict[int, str]]
    shapes: Sequence[tuple[int, ...]]
    example: tuple[int, ...]
    divisor: int = 1
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = dict.fromkeys(name for dims in self.dims.values() for name in dims.values())
        object.__setattr__(self, "names", tuple(names))

    def shape(self, extents: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self.names, extents, strict=True))


def _bert_inputs(vocabulary: int) -> Callable[[Shape, np.random.Generator], Feed]:
    def inputs(shape: Shape, generator: np.random.Generator) -> Feed:
        batch, seq = shape["batch"], shape["seq"]
        mask = np.ones((batch, seq), "int64")
        mask[-1, seq - seq // 8 :] = 0
        ids = generator.integers(0, vocabulary, (batch, seq))
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

    return inputs


def _past_names() -> list[str]:
    return [f"past_{kind}_{layer}" for layer in range(_LAYERS) for kind in ("key", "value")]


def _decode_inputs(shape: Shape, generator: np.random.Generator) -> Feed:
    batch = shape["batch"]
    states = {name: normal(generator, batch, _HEADS, shape["past"], _WIDTH) for name in _past_names()}
    return {"input_ids": generator.integers(0, 50257, (batch, shape["seq"])), **states}


def _token_inputs(shape: Shape, generator: np.random.Generator) -> Feed:
    return {"input_ids": generator.integers(0, 8000, (shape["batch"], shape["seq"]))}


def _image_inputs(shape: Shape, generator: np.random.Generator) -> Feed:
    return {"pixel_values": normal(generator, shape["batch"], 3, shape["height"], shape["width"])}


_SENTENCE, _PAST = {0: "batch", 1: "seq"}, {0: "batch", 2: "past"}
_BERT = {"input_ids": _SENTENCE, "attention_mask": _SENTENCE, "token_type_ids": _SENTENCE}
_DECODE = {"input_ids": _SENTENCE, **dict.fromkeys(_past_names(), _PAST)}
_IMAGE = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}

MODELS = [
    Model("bert_base", _bert_inputs(30522), _BERT, _TOKENS, (2, 8)),
    Model("minilm", _bert_inputs(30522), _BERT, _TOKENS, (2, 8)),
    Model("gpt2_decode", _decode_inputs, _DECODE, _PASTS, (2, 3, 6)),
    Model("llama", _token_inputs, {"input_ids": _SENTENCE}, _TOKENS, (2, 8)),
    Model("resnet50", _image_inputs, _IMAGE, _IMAGES, (2, 64, 96)),
    Model("vit_base", _image_inputs, _IMAGE, _PATCHED, (2, 64, 96), divisor=16),
]


def cases() -> list[Case]:
    return [_case(model) for model in MODELS]


def _case(model: Model) -> Case:
    return Case(
        "models",
        model.name,
        [model.shape(extents) for extents in model.shapes],
        lambda: _exported(model),
        model.inputs,
        lambda: _module(model.name),
        flops=lambda shape: _count_flops(model, shape),
        tolerance=1e-3,
        seconds=15.0,
    )


@functools.lru_cache(maxsize=1)
def _module(name: str) -> Any:
    return _architectures().build(name)


def _architectures() -> Any:
    try:
        from tvm_dyn.bench.suites import architectures
    except ImportError as error:
        raise BenchError(f"{error}: pip install 'tvm-dyn[bench]' brings what the models are built with") from error
    return architectures


def _count_flops(model: Model, shape: Shape) -> float:
    return _architectures().count_flops(_module(model.name), _tensors(model, shape))


def _tensors(model: Model, shape: Shape) -> tuple[Any, ...]:
    import torch

    feed = model.inputs(shape, np.random.default_rng(0))
    return tuple(torch.from_numpy(array) for array in feed.values())


def _exported(model: Model) -> Path:
    """The ONNX file, made on first use; another file for other versions or other code."""
    source = Path(_architectures().__file__).read_bytes() + Path(__file__).read_bytes()
    key = f"torch{version('torch')}-transformers{version('transformers')}-{hashlib.sha256(source).hexdigest()[:8]}"
    path = _CACHE / f"{model.name}-{key}.onnx"
    if not path.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            unfinished = Path(folder) / path.name
            _export(model, unfinished)
            os.replace(unfinished, path)
    return path


def _export(model: Model, path: Path) -> None:
    import torch

    dims = {name: torch.export.Dim(name) for name in model.names}
    if model.divisor > 1:
        dims.update({name: model.divisor * dims[name] for name in ("height", "width")})
    spec = tuple({axis: dims[name] for axis, name in axes.items()} for axes in model.dims.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which no model needs
        torch.onnx.export(
            _module(model.name),
            _tensors(model, model.shape(model.example)),
            str(path),
            dynamo=True,
            dynamic_shapes=(spec,),
            input_names=list(model.dims),
            opset_version=18,
            external_data=False,
            verbose=False,
        )
