"""Tuning from a wrong model of the hardware beside tuning from the right one: python scripts/tuning/wrong_hardware.py.

The wrong one has half of the registers and caches, and vectors of half the width: the tiles that it thinks of leave
half of this machine idle. Prints how much slower each is than the right one's result, at shapes of the profile.
"""

from __future__ import annotations

import contextlib
import tempfile
from unittest import mock

import numpy as np
from dense_layer import dense
from tvm import tirx

from tvm_dyn import hardware
from tvm_dyn.tuning.database import TuningDatabase
from tvm_dyn.tuning.pool import LocalPool
from tvm_dyn.tuning.profile import ShapeProfile
from tvm_dyn.tuning.tasks import extract_backbone_tasks
from tvm_dyn.tuning.tuner import Tuner

SHAPES = [1, 3, 6, 13, 24, 37, 64, 100, 128, 192, 256]
DEPTH, COLUMNS = 768, 3072


def tuned(title: str) -> tuple[np.ndarray, np.ndarray]:
    """Best and untuned seconds at each shape."""
    target = hardware.host_target()
    profile = ShapeProfile.of_counts(({"rows": n}, 1) for n in SHAPES)
    rows = tirx.Var("rows", "int64")
    tasks = extract_backbone_tasks(dense(rows, DEPTH, COLUMNS), target, profile)
    with tempfile.TemporaryDirectory() as folder, LocalPool(target) as pool:
        tuner = Tuner(tasks, target, TuningDatabase(folder), trials=64)
        tuner.run(pool)
    (search,) = tuner.searches
    best = min(search.measured, key=lambda c: float((c.seconds_known / search.best).sum()))
    print(f"{title}: {search.trials} candidates; untuned {search.task.space.untuned[-1]}; best {best.tile}")
    order = np.argsort([p.extents["rows"] for p in search.task.points])
    return search.best[order], search.candidates[0].seconds_known[order]


def main() -> None:
    right, _ = tuned("right hardware model")
    with contextlib.ExitStack() as patches:
        for name in ("registers", "vector_bytes", "cache_bytes"):
            patches.enter_context(mock.patch.object(hardware, name, _halved(getattr(hardware, name))))
        wrong, untuned = tuned("wrong hardware model")
    for rows, r, w, u in zip(SHAPES, right, wrong, untuned, strict=True):
        print(f"rows {rows:4}: right {r * 1e6:9.1f} us, from the wrong model tuned {w / r:.3f}x, untuned {u / r:.3f}x")
    mean = [float(np.exp(np.mean(np.log(t / right)))) for t in (wrong, untuned)]
    print(f"geometric mean of the time over the right model's: tuned {mean[0]:.3f}x, untuned {mean[1]:.3f}x")


def _halved(function):
    return lambda *arguments: function(*arguments) // 2


if __name__ == "__main__":
    main()
