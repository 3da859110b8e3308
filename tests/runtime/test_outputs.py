"""Outputs come in the caller's kind, and writing to one never changes anything else."""

import gc

import numpy as np
import pytest
import torch
import tvm
from modules import aligned, compile_outputs, param
from tvm import relax

BIG = (2048, 4)


def test_the_kind_follows_the_first_array(pair):
    x = aligned((3, 16))
    assert all(type(out) is np.ndarray for out in pair(x, torch.from_numpy(x)))
    assert all(type(out) is torch.Tensor for out in pair(torch.from_numpy(x), x))
    assert all(type(out) is tvm.runtime.Tensor for out in pair(tvm.runtime.tensor(x), x))


def test_a_large_output_is_not_copied_and_outlives_the_library():
    library = compile_outputs(lambda x: [x + x], param("x", "float32", "n", 4))
    x = aligned(BIG)
    (output,) = library(x)
    assert not output.flags.owndata
    assert output.flags.writeable
    del library
    gc.collect()
    np.testing.assert_array_equal(output, x + x)


def test_a_kept_output_is_not_overwritten_by_later_calls(pair):
    first = pair(aligned((1024, 16)), aligned((1024, 16)))
    copies = [output.copy() for output in first]
    for rows in (1024, 1023, 1024):
        pair(np.zeros((rows, 16), "float32"), np.ones((rows, 16), "float32"))
    for output, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(output, copy)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, tvm.runtime.tensor])
def test_an_output_never_shares_memory(convert):
    """An identity, its reshape, a constant, its reshape, and the same value twice."""
    value = np.arange(BIG[0] * BIG[1], dtype="float32").reshape(BIG)
    constant = relax.const(value)
    library = compile_outputs(
        lambda x: [x, relax.op.reshape(x, (-1,)), constant, relax.op.reshape(constant, (-1,)), x + x],
        param("x", "float32", "n", 4),
    )
    x = convert(aligned(BIG))
    before = aligned(BIG)
    for _ in range(2):
        outputs = library(x)
        expected = [
            before,
            before.ravel(),
            value,
            value.ravel(),
            before + before,
        ]
        for output, wanted in zip(outputs, expected, strict=True):
            array = np.from_dlpack(output)
            np.testing.assert_array_equal(array, wanted)
            array[...] = -1
    np.testing.assert_array_equal(np.from_dlpack(x), before)


def test_the_same_value_twice_is_two_arrays():
    builder = relax.BlockBuilder()
    x = param("x", "float32", "n", 4)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(x + x)
        builder.emit_func_output(relax.Tuple([y, y]))
    import tvm_dyn

    first, second = tvm_dyn.compile(builder.get(), num_threads=1)(aligned(BIG))
    first[...] = 0
    assert second.any()


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_empty_and_tiny_outputs(pair, rows):
    total, power = pair(np.ones((rows, 16), "float32"), np.ones((rows, 16), "float32"))
    assert total.shape == power.shape == (rows, 16)
    assert total.flags.owndata and (total == 2).all()


def test_an_array_of_the_array_api_comes_back_as_one():
    class Namespace:
        @staticmethod
        def from_dlpack(tensor):
            return "made by the namespace", np.from_dlpack(tensor)

    class Array:
        def __init__(self, data):
            self.data = data

        def __array_namespace__(self):
            return Namespace

        def __dlpack__(self, **options):
            return self.data.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.data.__dlpack_device__()

    library = compile_outputs(lambda x: [x + x], param("x", "float32", "n"))
    ((origin, values),) = library(Array(np.ones(3, "float32")))
    assert origin == "made by the namespace"
    np.testing.assert_array_equal(values, [2, 2, 2])
