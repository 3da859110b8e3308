"""The library that most runtime tests call."""

import pytest
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_dyn
from tvm_dyn import Dim


@I.ir_module
class Pair:
    @R.function
    def main(x: R.Tensor(("n", 16), "float32"), y: R.Tensor(("n", 16), "float32")):
        n = T.int64()  # noqa: F841
        with R.dataflow():
            total = R.add(x, y)
            power = R.exp(total)
            R.output(total, power)
        return total, power


@pytest.fixture(scope="session")
def pair():
    """`(x + y, exp(x + y))` over x, y: float32(n, 16), n in 0..2048."""
    return tvm_dyn.compile(Pair, dims={"n": Dim(0, 2048)}, num_threads=1)
