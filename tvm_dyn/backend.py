"""The ONNX backend interface: `onnx.backend.test.BackendTest(tvm_dyn.backend, __name__)` drives it.

`prepare` compiles a model once; the `BackendRep` it returns runs every shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from . import api
from .errors import InvalidInputError
from .runtime.executable import Library


class TvmDynRep(BackendRep):
    """A compiled model behind the ONNX backend interface."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Outputs as numpy arrays in graph order.

        inputs: arrays in graph order, arrays by name, or the one array of a model with one input.
        """
        if isinstance(inputs, Mapping):
            return tuple(self.library(**inputs))
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        return tuple(self.library(*inputs))


class TvmDynBackend(Backend):
    """Compiles for the CPU this process runs on."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> TvmDynRep:
        """Compile a model; options are those of `tvm_dyn.compile`, and its errors pass through."""
        _check_device(device)
        return TvmDynRep(api.compile(model, **options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """Compile and run a model once."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """Compile and run one node of the operator set `opset_version` (an option), by default the newest."""
        opset = options.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        arrays = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(arrays) != len(names):
            raise InvalidInputError(f"node {node.op_type} has {len(names)} inputs, but {len(arrays)} are given")
        arrays = [np.asarray(array) for array in arrays]
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [
                onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in zip(names, arrays, strict=True)
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, opset)])
        return cls.run_model(model, arrays, device, **options)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on the device: "CPU" or "CPU:0"."""
        return Device(device).type == DeviceType.CPU


def _check_device(device: str) -> None:
    if not TvmDynBackend.supports_device(device):
        raise ValueError(f"cannot compile for {device!r}: only the CPU is supported")


is_compatible = TvmDynBackend.is_compatible
prepare = TvmDynBackend.prepare
run_model = TvmDynBackend.run_model
run_node = TvmDynBackend.run_node
supports_device = TvmDynBackend.supports_device
