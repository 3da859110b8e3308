"""torch.export programs in, right answers at every shape out, through the public interface."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")

from torch.export import Dim  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tvm_dyn  # noqa: E402
from tvm_dyn.errors import InvalidInputError, ModelImportError, UnsupportedOperatorError  # noqa: E402
from tvm_dyn.frontend import import_exported_program  # noqa: E402

from .models import CASES, token_dims, token_ids  # noqa: E402


@functools.cache
def export(name):
    case = CASES[name]
    return torch.export.export(case.module(), case.inputs(*case.example), dynamic_shapes=case.dims())


@functools.cache
def compiled(name):
    return tvm_dyn.compile(export(name))


def check(library, name):
    """Compare with the model in float64 at every shape of the case."""
    case = CASES[name]
    exact = copy.deepcopy(case.module()).double()
    for extents in case.shapes:
        inputs = case.inputs(*extents)
        doubled = pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, inputs)
        found, expected = library(*pytree.tree_leaves(inputs)), pytree.tree_leaves(exact(*doubled))
        for a, b in zip(found, expected, strict=True):
            assert isinstance(a, torch.Tensor)
            torch.testing.assert_close(
                a.double(), b, rtol=2e-5, atol=2e-5, msg=lambda m, e=extents: f"at {e}: {m}"
            )


@pytest.mark.parametrize("name", CASES)
def test_right_at_every_shape(name):
    check(compiled(name), name)


@pytest.mark.parametrize("name", CASES)
def test_import_leaves_nothing_open(name):
    """No run-time check, no cast and no case distinction is left: torch proved all of it at export."""
    text = import_exported_program(export(name))["main"].script(show_meta=False)
    for word in ("assert_op", "match_cast", "Select", "T.min", "T.max", "ndim="):
        assert word not in text


def facts(program, **options):
    module = import_exported_program(program, **options)
    signature = tvm_dyn.runtime.signature.Signature.from_json(str(module["main"].attrs["tvm_dyn.signature"]))
    return signature, {name: (d.min, d.max, d.divisor) for name, d in signature.dims.items()}


def test_dims_keep_names_and_ranges():
    signature, dims = facts(export("gpt2_past"))
    assert dims == {"batch": (0, None, 1), "seq": (0, 64, 1), "past": (0, 127, 1)}
    assert [i.name for i in signature.inputs] == ["input_ids", "past_0_0", "past_0_1", "past_1_0", "past_1_1"]
    assert signature.outputs[1].shape == ("batch", 4, "past + seq", 16)


def test_a_multiple_is_a_dim_with_a_divisor():
    _, dims = facts(export("vit"))
    assert dims == {"batch": (0, None, 1), "dim_8_rows": (0, None, 8), "dim_8_columns": (0, None, 8)}
    library = compiled("vit")
    with pytest.raises(InvalidInputError, match="multiple"):
        library(torch.randn(1, 3, 20, 16))


def test_facts_of_the_user():
    _, dims = facts(export("llama"), dims={"seq": tvm_dyn.Dim(1, 32), "batch": 1})
    assert dims == {"seq": (1, 32, 1)}
    with pytest.raises(
        ModelImportError, match="no symbolic dim is named 'length'; the model has: 'batch', 'seq'"
    ):
        import_exported_program(export("llama"), {"length": 3})


def test_unequal_dims_are_refused_at_the_call():
    library = compiled("bert")
    with pytest.raises(InvalidInputError):
        library(token_ids(2, 5), torch.ones(2, 6, dtype=torch.int64), token_ids(2, 5) % 2)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_sum_of_dims():
    """A mask over past and present: its extent is told by two others."""

    def masked(ids, past, mask):
        return torch.cat([past, ids.float()], 1) * mask

    example = (token_ids(2, 3), torch.randn(2, 5), torch.ones(2, 8))
    dims = (token_dims(), {0: Dim.AUTO, 1: Dim("past")}, {0: Dim.AUTO, 1: Dim.AUTO})
    program = torch.export.export(Function(masked), example, dynamic_shapes=dims)
    library = tvm_dyn.compile(program)
    for batch, seq, past in ((1, 1, 1), (3, 7, 2)):
        inputs = token_ids(batch, seq), torch.randn(batch, past), torch.rand(batch, past + seq)
        torch.testing.assert_close(library(*inputs)[0], masked(*inputs))


def test_dict_outputs_give_names_and_constants_pass():
    def named(ids):
        return {"double": ids * 2, "pair": (ids, torch.ones(3)), "none": None}

    program = torch.export.export(Function(named), (token_ids(2, 3),), dynamic_shapes=(token_dims(),))
    library = tvm_dyn.compile(program)
    assert [o.name for o in library.outputs] == ["double", "pair_0", "pair_1"]
    ids = token_ids(3, 1)
    for found, expected in zip(library(ids), pytree.tree_leaves({**named(ids), "none": ()}), strict=True):
        torch.testing.assert_close(found, expected)


def test_autograd_regions_are_part_of_the_graph():
    def region(x):
        with torch.no_grad():
            y = x.sin()
        return y + x

    program = torch.export.export(Function(region), (torch.randn(2, 3),), dynamic_shapes=({0: Dim("n")},))
    x = torch.randn(5, 3)
    torch.testing.assert_close(tvm_dyn.compile(program)(x)[0], region(x))


def test_saved_programs_import(tmp_path):
    torch.export.save(export("llama"), tmp_path / "llama.pt2")
    check(tvm_dyn.compile(torch.export.load(tmp_path / "llama.pt2")), "llama")


def test_unsupported_operators_are_named():
    def transform(x):
        return torch.fft.fft(x).real

    program = torch.export.export(Function(transform), (torch.randn(2, 8),), dynamic_shapes=({0: Dim("n")},))
    with pytest.raises(ModelImportError, match="fft") as caught:
        import_exported_program(program)
    assert caught.value.stage == "import"


def test_programs_with_state_are_refused():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    program = torch.export.export(Counter(), (torch.randn(2),), dynamic_shapes=({0: Dim("n")},))
    with pytest.raises(UnsupportedOperatorError, match="writes to count"):
        import_exported_program(program)
