"""Whatever array comes in, the compiled code must see its values, or the caller a clear error."""

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from modules import aligned, compile_outputs, param
from tvm import relax

from tvm_dyn.errors import InvalidInputError
from tvm_dyn.runtime.inputs import make_taker
from tvm_dyn.runtime.signature import TensorInfo


def read_only(array):
    array.flags.writeable = False
    return array


LAYOUTS = {
    "aligned": lambda: aligned((6, 16)),
    "misaligned by 4": lambda: aligned((6, 16), offset=4),
    "misaligned by 16": lambda: aligned((6, 16), offset=16),
    "read-only": lambda: read_only(aligned((6, 16))),
    "byte-swapped": lambda: aligned((6, 16)).astype(">f4"),
    "negative strides": lambda: aligned((6, 16))[::-1, ::-1],
    "transposed": lambda: aligned((16, 6)).T,
    "every other row": lambda: aligned((12, 16))[::2],
    "broadcast": lambda: np.broadcast_to(aligned((1, 16)), (6, 16)),
    "empty": lambda: np.zeros((0, 16), "float32"),
    "empty torch": lambda: torch.zeros(0, 16),
    "one row of a wider array": lambda: aligned((4, 64))[:1, :16],
    "subclass": lambda: aligned((6, 16)).view(np.recarray),
    "torch": lambda: torch.randn(6, 16),
    "torch with gradient": lambda: torch.randn(6, 16, requires_grad=True),
    "torch transposed": lambda: torch.randn(16, 6).T,
    "torch misaligned": lambda: torch.randn(97)[1:].reshape(6, 16),
    "tvm": lambda: tvm.runtime.tensor(aligned((6, 16))),
    "tvm view of misaligned": lambda: tvm_ffi.from_dlpack(aligned((6, 16), offset=8)),
}


def to_numpy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    return value.numpy() if isinstance(value, tvm.runtime.Tensor) else np.asarray(value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_right_values(pair, layout):
    value = LAYOUTS[layout]()
    before = to_numpy(value).copy()
    total, power = pair(value, value)
    np.testing.assert_allclose(to_numpy(total), 2 * before, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(power), np.exp(2 * before.astype("float64")), rtol=1e-5)
    np.testing.assert_array_equal(to_numpy(value), before)


@pytest.mark.parametrize(
    "make", [lambda: aligned((5, 16)), lambda: torch.zeros(5, 16)], ids=["numpy", "torch"]
)
def test_a_usable_array_is_not_copied(make):
    value = make()
    address = value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data
    tensor = make_taker(TensorInfo("x", "float32", ("n", 16)))(value)
    assert tensor.data_ptr() == address


def test_a_misaligned_array_is_copied_to_an_aligned_address():
    tensor = make_taker(TensorInfo("x", "float32", ("n", 16)))(aligned((5, 16), offset=4))
    assert tensor.data_ptr() % 64 == 0


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float64"])
@pytest.mark.parametrize("offset", [0, 1])
def test_every_dtype_passes_through_unchanged(dtype, offset):
    library = compile_outputs(lambda x: [relax.op.reshape(x, (-1,))], param("x", dtype, "n", 3))
    buffer = np.random.default_rng(1).integers(0, 2, 4096).astype(dtype).tobytes()
    value = (
        np.frombuffer(buffer, np.uint8)[offset : offset + 6 * np.dtype(dtype).itemsize]
        .view(dtype)
        .reshape(2, 3)
    )
    (output,) = library(value)
    assert output.dtype == value.dtype
    np.testing.assert_array_equal(output, value.reshape(-1))


@pytest.mark.parametrize("rows", [2, 3000])
def test_bfloat16_travels_as_ml_dtypes_and_as_torch(rows):
    library = compile_outputs(lambda x: [relax.op.add(x, x)], param("x", "bfloat16", "n", 3))
    value = np.arange(rows * 3).reshape(rows, 3).astype(ml_dtypes.bfloat16)
    (output,) = library(value)
    assert output.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(output, value + value)
    (output,) = library(value[::-1])
    np.testing.assert_array_equal(output, (value + value)[::-1])
    tensor = torch.arange(rows * 3).reshape(rows, 3).bfloat16()
    (output,) = library(tensor)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, tensor + tensor)


@pytest.fixture(scope="module")
def scaled():
    """x * s over x: float32(n,), s: float32()."""
    return compile_outputs(lambda x, s: [x * s], param("x", "float32", "n"), param("s", "float32"))


@pytest.mark.parametrize("scalar", [3, 3.0, np.float32(3), np.array(3, "float32"), torch.tensor(3.0)])
def test_a_scalar_stands_for_a_0d_tensor(scaled, scalar):
    (output,) = scaled(np.ones(4, "float32"), scalar)
    np.testing.assert_array_equal(output, np.full(4, 3, "float32"))


def test_a_scalar_of_another_kind_is_refused():
    library = compile_outputs(lambda x, k: [x + k], param("x", "int8", "n"), param("k", "int8"))
    x = np.zeros(2, "int8")
    np.testing.assert_array_equal(library(x, 5)[0], [5, 5])
    for scalar, message in (
        (2.5, "dtype float"),
        (300, "300 does not fit int8"),
        ("5", "a str is no tensor"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            library(x, scalar)


def test_arguments_by_name_and_mixed(pair):
    x, y = aligned((3, 16)), aligned((3, 16), offset=4)
    expected = x + y
    for total, _ in (pair(x, y), pair(x, y=y), pair(y=y, x=x)):
        np.testing.assert_array_equal(total, expected)


def test_an_input_may_be_called_self():
    library = compile_outputs(lambda x: [x + x], param("self", "float32", "n"))
    np.testing.assert_array_equal(library(self=np.ones(2, "float32"))[0], [2, 2])


X = np.zeros((3, 16), "float32")
MISUSES = {
    "missing": (
        lambda f: f(X),
        r"missing input 'y'; the inputs are x: float32\(n, 16\), y: float32\(n, 16\)",
    ),
    "none": (lambda f: f(), "missing input 'x', 'y'"),
    "too many": (lambda f: f(X, X, X), "3 arguments, but the model has 2 inputs"),
    "unknown name": (lambda f: f(X, z=X), "no input is named 'z'; the inputs are x"),
    "twice": (lambda f: f(X, X, x=X), "input 'x' is given by position and by name"),
    "dtype": (
        lambda f: f(X, X.astype("float64")),
        "input 'y' has dtype float64, but the model takes float32",
    ),
    "torch dtype": (lambda f: f(torch.zeros(3, 16).long(), X), "input 'x' has dtype int64"),
    "rank": (lambda f: f(X[0], X), r"input 'x' has rank 1, shape \(16,\), but must have rank 2"),
    "fixed extent": (lambda f: f(X[:, :15], X), "input 'x', axis 1 is 15, but the model fixes it to 16"),
    "unequal": (
        lambda f: f(X, X[:2]),
        "input 'y', axis 0 is 2, but input 'x', axis 0 is 3: both are dim 'n'",
    ),
    "list": (lambda f: f([1.0], X), "input 'x': a list is no tensor"),
    "None": (lambda f: f(None, X), "input 'x': a NoneType is no tensor"),
    "object array": (lambda f: f(np.array([[None]]), X), "input 'x' has dtype object"),
    "string array": (lambda f: f(np.array([["a"]]), X), "input 'x' has dtype <U1"),
    "above max": (
        lambda f: f(*[np.zeros((2049, 16), "float32")] * 2),
        "input 'x', axis 0: dim 'n' is 2049, above its maximum 2048; pass at most 2048",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_named(pair, misuse):
    call, message = MISUSES[misuse]
    with pytest.raises(InvalidInputError, match=message) as caught:
        call(pair)
    assert caught.value.stage == "call"
    np.testing.assert_array_equal(pair(X, X)[0], X)
