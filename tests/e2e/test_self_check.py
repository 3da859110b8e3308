"""The self-check finds nothing in the small models."""

import pytest

torch = pytest.importorskip("torch")

import tvm_dyn  # noqa: E402

from .models import CASES  # noqa: E402


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_small_models(name):
    case = CASES[name]
    program = torch.export.export(case.module(), case.inputs(*case.example), dynamic_shapes=case.dims())
    summary = tvm_dyn.compile(program, self_check=True).self_check
    assert len(summary.runs) >= 10
    assert min(summary.runs.values()) >= 4
    assert not summary.skipped
