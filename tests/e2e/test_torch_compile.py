"""torch.compile(backend="tvm_dyn"): right results, one library for all sizes, gradients refused."""

import pytest

torch = pytest.importorskip("torch")

import tvm_dyn.torch_backend as backend  # noqa: E402
from tvm_dyn.errors import UnsupportedOperatorError  # noqa: E402


@pytest.fixture
def compilations(monkeypatch):
    """The programs that were compiled."""
    torch._dynamo.reset()
    seen, compile_program = [], backend.api.compile
    monkeypatch.setattr(backend.api, "compile", lambda program: seen.append(program) or compile_program(program))
    yield seen
    torch._dynamo.reset()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x, times=2):
        y = self.norm(torch.relu(self.linear(x))) + self.shift
        return y.reshape(x.shape[0] * x.shape[1], 16) * times, x.shape[1]


@torch.no_grad()
def test_no_size_compiles_again(compilations):
    model = Block().eval()
    compiled = torch.compile(model, backend="tvm_dyn", dynamic=True)
    for batch, seq in ((2, 3), (5, 2), (7, 33)):
        x = torch.randn(batch, seq, 8)
        found, expected = compiled(x), model(x)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
        assert found[1] == seq
    assert len(compilations) == 1


@torch.no_grad()
def test_new_weights_and_new_integers_count(compilations):
    model = Block().eval()
    compiled, x = torch.compile(model, backend="tvm_dyn", dynamic=True), torch.randn(2, 3, 8)
    for times in (2, 3):
        torch.testing.assert_close(compiled(x, times)[0], model(x, times)[0], rtol=1e-4, atol=1e-5)
    model.linear.weight.mul_(2)
    torch.testing.assert_close(compiled(x, 3)[0], model(x, 3)[0], rtol=1e-4, atol=1e-5)


def test_gradients_are_refused(compilations):
    compiled = torch.compile(Block(), backend="tvm_dyn", dynamic=True)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"torch\.no_grad") as caught:
        compiled(torch.randn(2, 3, 8))
    assert isinstance(caught.value.inner_exception, UnsupportedOperatorError)
    assert not compilations
