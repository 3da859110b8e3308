"""Tuned beside untuned at shapes that were not measured: python scripts/tuning/unseen_shapes.py MODEL.onnx DATABASE.

Both libraries take turns on one thread; the fastest of their turns counts, in processor time.
"""

from __future__ import annotations

import math
import random
import sys

import tvm_dyn
from tvm_dyn.bench.timing import take_turns
from tvm_dyn.random_inputs import random_inputs

SHAPES = 20
LIMITS = {"batch": 4, "seq": 256}


def main(model: str, database: str) -> None:
    dims = {name: tvm_dyn.Dim(1, limit) for name, limit in LIMITS.items()}
    untuned = tvm_dyn.compile(model, dims=dims, num_threads=1)
    tuned = tvm_dyn.compile(model, dims=dims, num_threads=1, database=database)
    for reuse in tuned.reused:
        print(reuse)
    generator = random.Random(7)
    ratios = []
    for _ in range(SHAPES):
        shape = {name: round(math.exp(generator.uniform(0, math.log(limit)))) for name, limit in LIMITS.items()}
        inputs = random_inputs(untuned, shape)
        calls = {"untuned": [lambda inputs=inputs: untuned(**inputs)], "tuned": [lambda inputs=inputs: tuned(**inputs)]}
        best = take_turns(calls, threads=1, rounds=9, seconds=6.0)
        ratios.append(best["untuned"] / best["tuned"])
        untuned_ms, tuned_ms = best["untuned"] * 1e3, best["tuned"] * 1e3
        print(f"{shape}: {untuned_ms:9.3f} ms untuned, {tuned_ms:9.3f} ms tuned, {ratios[-1]:.3f}x")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    extremes = f"least {min(ratios):.3f}x, greatest {max(ratios):.3f}x"
    print(f"geometric mean {mean:.3f}x, {extremes} over {SHAPES} unseen shapes")


if __name__ == "__main__":
    main(*sys.argv[1:])
