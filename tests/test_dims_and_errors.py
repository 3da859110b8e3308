"""Facts about dims, the errors' stages, and the check of the installed TVM."""

from pathlib import Path

import pytest

import tvm_dyn
from tvm_dyn import Dim, environment, errors
from tvm_dyn.dims import parse_dim_options


@pytest.mark.parametrize(
    "option, name, dim",
    [
        ("seq=1..512", "seq", Dim(1, 512)),
        ("w=32..1024/32", "w", Dim(32, 1024, 32)),
        ("n=7", "n", Dim(7, 7)),
        ("n=4..", "n", Dim(4)),
        ("n=..9", "n", Dim(0, 9)),
        ("n=../8", "n", Dim(0, None, 8)),
        ("p2o.DynamicDimension.0=1..4", "p2o.DynamicDimension.0", Dim(1, 4)),
        ("floor(h/2)=1..4", "floor(h/2)", Dim(1, 4)),
        ("a=b=3", "a=b", Dim(3, 3)),
    ],
)
def test_dim_options(option, name, dim):
    assert parse_dim_options([option]) == {name: dim}


@pytest.mark.parametrize(
    "option",
    [
        "",
        "seq",
        "=3",
        "seq=",
        "seq=x",
        "seq=-1",
        "seq=1...3",
        "seq=3/2",
        "seq=1..3/",
        "seq=/8",
        "seq=1..2..3",
    ],
)
def test_dim_options_that_say_nothing(option):
    with pytest.raises(errors.InvalidDimError, match="cannot read the dim option"):
        parse_dim_options([option])


def test_dims_that_contradict_themselves():
    for arguments, message in (
        ({"min": -1}, "never negative"),
        ({"divisor": 0}, "at least 1"),
        ({"min": 5, "max": 4}, "no extent fits 5..4: .* is 5"),
        ({"min": 33, "max": 63, "divisor": 32}, "smallest multiple of 32 that is at least 33 is 64"),
    ):
        with pytest.raises(errors.InvalidDimError, match=message):
            Dim(**arguments)
    with pytest.raises(errors.InvalidDimError, match="'n' is given twice"):
        parse_dim_options(["n=1..2", "n=3"])


def test_every_error_has_a_stage_and_the_common_base():
    exceptions = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    classes = [cls for cls in exceptions if not issubclass(cls, Warning)]
    assert len(classes) >= 9
    for cls in classes:
        assert issubclass(cls, errors.TvmDynError)
        assert cls.stage in ("import", "compile", "call", "bench", "tune")
    assert tvm_dyn.errors.InvalidInputError("x").stage == "call"


def installed(monkeypatch, versions):
    monkeypatch.setattr(environment, "_installed", versions.get)


@pytest.mark.parametrize("ffi", ["0.1.14.post0", "0.1.14.post1"])
def test_the_pair_that_works(monkeypatch, ffi):
    installed(monkeypatch, {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": ffi})
    environment.check_environment()


@pytest.mark.parametrize(
    "tvm, ffi, found",
    [
        ("0.27.0.post1", "0.1.15.post2", "found apache-tvm 0.27.0.post1 and apache-tvm-ffi 0.1.15.post2"),
        ("0.28.0", "0.1.14.post1", "found apache-tvm 0.28.0 and"),
        ("0.26.0", "0.1.14.post1", "found apache-tvm 0.26.0 and"),
        (None, None, "found no apache-tvm and no apache-tvm-ffi"),
    ],
)
def test_other_pairs_are_named_with_the_cure(monkeypatch, tvm, ffi, found):
    installed(monkeypatch, {"apache-tvm": tvm, "apache-tvm-ffi": ffi})
    with pytest.raises(errors.EnvironmentMismatchError, match=found) as caught:
        environment.check_environment()
    cure = "pip install 'apache-tvm>=0.27.0.post1,<0.28' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
    assert str(caught.value).endswith(cure)
    assert caught.value.stage == "import"


def test_setup_pins_the_same_pair():
    text = (Path(__file__).parent.parent / "setup.py").read_text()
    for package, versions in environment.REQUIRED.items():
        assert f'"{package}{versions}"' in text
