"""What one new shape costs: stock static tuning and building against selecting a variant here.

    python scripts/tuning/five_orders.py SECONDS        of stock tuning of one shape (see against_metaschedule.py)

A call of a compiled library at a shape that it has never seen selects and runs; the first such call counts.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import tvm
from dense_layer import dense
from tvm import tirx

import tvm_dyn

DEPTH, COLUMNS = 768, 768


def main(tuning_seconds: float) -> None:
    library = tvm_dyn.compile(dense(tirx.Var("rows", "int64"), DEPTH, COLUMNS), num_threads=1)
    library(np.zeros((2, DEPTH), "float32"))
    start = time.perf_counter()
    tvm.compile(dense(37, DEPTH, COLUMNS), tvm_dyn.api.host_target())
    static = tuning_seconds + time.perf_counter() - start
    first = []
    for rows in range(33, 44):
        x = np.random.default_rng(0).standard_normal((rows, DEPTH)).astype("float32")
        start = time.perf_counter()
        library(x)
        first.append(time.perf_counter() - start)
    here = statistics.median(first)
    print(f"stock: {static:.1f} s to tune and build one shape")
    print(f"here: {here * 1e6:.0f} us for the first call at a new shape (median of {len(first)} shapes)")
    print(f"ratio {static / here:.1e}")


if __name__ == "__main__":
    main(float(sys.argv[1]))
