"""The contestants, each in the form its makers recommend: made once per model, warm, told the number of threads."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import tvm_dyn
from tvm_dyn.bench.case import Case, Feed
from tvm_dyn.errors import BenchError

Call = Callable[[], Any]
OURS = "tvm_dyn"
PEERS = ("onnxruntime", "onnxruntime_fused", "openvino", "torch")


class Contestant(Protocol):
    """One compiled model."""

    def bind(self, feed: Feed) -> Call:
        """A call on these inputs, with everything done beforehand that a user would do once."""
        ...

    def arrays(self, result: Any) -> list[np.ndarray]:
        """What a call returned, as numpy arrays in the order of the model's outputs."""
        ...


def contestants(case: Case, threads: int, progress: Callable[[str], None]) -> dict[str, Contestant]:
    """Everybody who can run the case, by name, ours first; raises `BenchError` where a peer is not installed."""
    for package in ("onnxruntime", "openvino", "torch"):
        _require(package)
    progress(OURS)
    made: dict[str, Contestant] = {OURS: TvmDyn(case.model(), threads)}
    progress("the peers")
    made["onnxruntime"] = OnnxRuntime(case.model(), threads)
    if case.fused is not None:
        made["onnxruntime_fused"] = OnnxRuntime(case.fused(), threads)
    made["openvino"] = OpenVino(case.model(), threads)
    made["torch"] = Torch(case.torch(), threads)
    return made


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise BenchError(f"{package} is not installed: pip install 'tvm-dyn[bench]' brings every peer") from error


class TvmDyn:
    """Ours; inputs by position."""

    def __init__(self, model: Any, threads: int):
        self.library = tvm_dyn.compile(model, num_threads=threads)

    def bind(self, feed: Feed) -> Call:
        library, arguments = self.library, [feed[info.name] for info in self.library.inputs]
        return lambda: library(*arguments)

    def arrays(self, result: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(result)


class OnnxRuntime:
    """A session with all graph optimisations."""

    def __init__(self, model: Any, threads: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        self.session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def bind(self, feed: Feed) -> Call:
        run = self.session.run
        return lambda: run(None, feed)

    def arrays(self, result: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(result)


class OpenVino:
    """A request that lives on, sharing inputs and outputs; in float32, as the others (its default may be less)."""

    def __init__(self, model: Any, threads: int):
        import openvino  # pyright: ignore[reportMissingImports]

        core = openvino.Core()
        read = core.read_model(str(model) if isinstance(model, Path) else io.BytesIO(model.SerializeToString()))
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        self.request = core.compile_model(read, "CPU", settings).create_infer_request()

    def bind(self, feed: Feed) -> Call:
        infer = self.request.infer
        return lambda: infer(feed, share_inputs=True, share_outputs=True)

    def arrays(self, result: Any) -> list[np.ndarray]:
        return [np.array(result[index]) for index in range(len(result))]


class Torch:
    """Eager, in inference mode."""

    def __init__(self, function: Callable[..., Any], threads: int):
        import torch

        torch.set_num_threads(threads)
        self.function = function

    def bind(self, feed: Feed) -> Call:
        import torch

        function, arguments = self.function, [torch.from_numpy(array) for array in feed.values()]

        def call() -> Any:
            with torch.inference_mode():
                return function(*arguments)

        return call

    def arrays(self, result: Any) -> list[np.ndarray]:
        values = result if isinstance(result, tuple | list) else [result]
        return [value.numpy() for value in values]
