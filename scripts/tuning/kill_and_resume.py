"""Kill the tuner at random instants and start it again: python scripts/tuning/kill_and_resume.py [TIMES].

After each kill everything that the tuner reported as committed must be there, every line of every file must be whole,
and stock MetaSchedule must open the database.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tvm.s_tir.meta_schedule.database import JSONDatabase

from tvm_dyn.tuning.database import FILES, TuningDatabase

CHILD = """
import sys
import numpy as np
from tvm import relax, tirx
import tvm_dyn

rows = tirx.Var("rows", "int64")
value = relax.Var("x", relax.TensorType([rows, 256], "float32"))
params, widths = [value], [256, 384, 320, 448, 192, 512]
builder = relax.BlockBuilder()
with builder.function("main", params):
    with builder.dataflow():
        for depth, columns in zip(widths, widths[1:]):
            weight = np.random.default_rng(0).standard_normal((depth, columns)).astype("float32")
            value = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(value, relax.const(weight)))))
        result = builder.emit_output(value)
    builder.emit_func_output(result)


def told(status):
    print(sum(search.trials for search in status.searches), flush=True)


tvm_dyn.tune(builder.get(), dims={"rows": tvm_dyn.Dim(1, 64)}, database=sys.argv[1], progress=told)
"""


def main(times: int = 20) -> None:
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        known, started = 0, time.perf_counter()
        for turn in range(times):
            told = run_and_kill(folder, generator.uniform(0.0, 1.5))
            found = check(folder)
            assert found >= max(told, known), f"{told} candidates were committed, {known} before; {found} are there"
            print(f"kill {turn + 1}: told of {told} candidates, {found} in the database", flush=True)
            known = found
        torn = sum((Path(folder) / f"{name}.damaged").exists() for name in FILES)
        print(f"{times} kills in {time.perf_counter() - started:.0f} s: no record lost, {torn} files had torn tails")


def run_and_kill(folder: str, delay: float) -> int:
    """The number of candidates that the tuner told of; it is killed so many seconds after its first one."""
    command = [sys.executable, "-c", CHILD, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
    return max((int(line) for line in lines if line.strip().isdigit()), default=0)


def check(folder: str) -> int:
    """The number of records; raises where a file is not whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = TuningDatabase(folder).records()
    for name in FILES:
        path = Path(folder) / name
        for line in path.read_text().splitlines() if path.exists() else ():
            json.loads(line)
    stock = JSONDatabase(work_dir=folder)
    assert len(stock.get_all_tuning_records()) >= sum(bool(record.runs) for record in records)
    return len(records)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
