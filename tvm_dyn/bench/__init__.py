"""Benchmarks beside the peers: the same model, the same inputs, in turns in one process."""

from tvm_dyn.bench.runner import run_suite
from tvm_dyn.bench.stream import run_stream
from tvm_dyn.bench.suites import SUITES
from tvm_dyn.bench.suites.bytecode import run_bytecode

__all__ = ["SUITES", "run_bytecode", "run_stream", "run_suite"]
