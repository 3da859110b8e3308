"""Architectures from torch.export, compiled once, against torch itself at every shape."""

import functools

import pytest

torch = pytest.importorskip("torch")

from torch.export import Dim  # noqa: E402

import tvm_dyn  # noqa: E402
from tvm_dyn.frontend.torch_recurrent import whole_recurrent  # noqa: E402

from . import architectures  # noqa: E402


def images(*shape):
    return (torch.randn(*shape),)


def tokens(batch, length):
    return (torch.randint(0, 50, (batch, length)),)


def graph(nodes, edges):
    return torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges))


IMAGE = ({0: Dim("batch"), 2: Dim.AUTO, 3: Dim.AUTO},)
FLAT = ({0: Dim("batch"), 1: Dim.AUTO},)

# name -> (inputs of extents, dynamic shapes, extents)
CASES = {
    "UNet": (images, IMAGE, [(2, 3, 16, 24), (1, 3, 7, 9), (3, 3, 33, 16)]),
    "MobileNet": (images, IMAGE, [(2, 3, 16, 24), (1, 3, 5, 9), (3, 3, 32, 17)]),
    "LstmTagger": (tokens, FLAT, [(2, 5), (1, 1), (3, 17)]),
    "MlpMixer": (images, ({0: Dim("batch")},), [(2, 3, 16, 16), (1, 3, 16, 16), (5, 3, 16, 16)]),
    "DetectionHead": (images, IMAGE, [(2, 16, 6, 8), (1, 16, 2, 2), (3, 16, 9, 7)]),
    "AudioNet": (images, FLAT, [(2, 160), (1, 57), (3, 1001)]),
    "GraphNet": (graph, ({0: Dim("nodes")}, {1: Dim("edges")}), [(7, 12), (2, 3), (40, 17)]),
}


@functools.cache
def model(name):
    torch.manual_seed(0)
    return getattr(architectures, name)().eval()


@pytest.mark.parametrize("name", CASES)
def test_right_at_every_shape(name):
    make, dims, shapes = CASES[name]
    torch.manual_seed(1)
    with whole_recurrent():
        program = torch.export.export(model(name), make(*shapes[0]), dynamic_shapes=dims)
    library = tvm_dyn.compile(program)
    for extents in shapes:
        inputs = make(*extents)
        expected = model(name)(*inputs)
        for a, b in zip(library(*inputs), expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, msg=lambda m, e=extents: f"at {e}: {m}")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}])
def test_recurrent_modules_of_any_length(kind, options):
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(5, 8, **options).eval()
    with whole_recurrent():
        dims = ({0: Dim("time"), 1: Dim("batch")},)
        program = torch.export.export(module, (torch.randn(4, 3, 5),), dynamic_shapes=dims)
    library = tvm_dyn.compile(program)
    for time, batch in ((1, 1), (7, 2)):
        x = torch.randn(time, batch, 5)
        output, last = module(x)
        expected = [output, *(last if isinstance(last, tuple) else (last,))]
        for a, b in zip(library(x), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
