"""Packaging: `pip install .`, the console script `tvm-dyn`, and the extras test, bench, torch and report."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
(VERSION,) = re.findall(r'__version__ = "(.+)"', (ROOT / "tvm_dyn/__init__.py").read_text())

TORCH = ["torch==2.13.0", "onnxscript>=0.7", "transformers>=5.0,<6"]
BENCH = ["onnxruntime>=1.20", "openvino>=2025.0", *TORCH]
REPORT = ["matplotlib>=3.8"]
RPC = ["tornado>=6.0"]
TEST = [
    *RPC,
    *REPORT,
    "pytest>=8.0",
    "pytest-xdist>=3.5",
    "pytest-timeout>=2.3",
    "hypothesis>=6.100",
    "onnxruntime>=1.20",
    "ruff>=0.9",
    "pyright>=1.1.390",
    *TORCH,
]

setup(
    name="tvm-dyn",
    version=VERSION,
    description="Compile a dynamic-shape model once with Apache TVM; every shape then runs at library speed",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    packages=find_packages(include=["tvm_dyn", "tvm_dyn.*"]),
    package_data={"tvm_dyn": ["py.typed"]},
    python_requires=">=3.10",
    install_requires=[
        # Keep these two in step with tvm_dyn/environment.py; it says why ffi is capped.
        "apache-tvm>=0.27.0.post1,<0.28",
        "apache-tvm-ffi>=0.1.14.post0,<0.1.15",
        "numpy>=1.26",
        "ml_dtypes>=0.5",
        "onnx>=1.17",
        "packaging>=23.0",
        # MetaSchedule: cost model, worker pool.
        "xgboost>=2.0",
        # The runtime's cost model: calibration.
        "scipy>=1.11",
        "psutil>=5.9",
        "cloudpickle>=3.0",
        # Tuning databases, and the interpreter's file: one process at a time.
        "filelock>=3.12",
        # The command line.
        "click>=8.1",
        "rich>=13.7",
    ],
    extras_require={"test": TEST, "bench": BENCH, "torch": TORCH, "report": REPORT, "rpc": RPC},
    entry_points={
        "console_scripts": ["tvm-dyn = tvm_dyn.cli:main"],
        # where torch looks for the names that torch.compile(backend=...) takes
        "torch_dynamo_backends": ["tvm_dyn = tvm_dyn.torch_backend:tvm_dyn"],
    },
)
