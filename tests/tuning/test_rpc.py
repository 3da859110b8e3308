"""Candidates on servers of a real RPC tracker on loopback, one of which dies while it measures."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
from tuning_cases import TARGET, product, trace_of

from tvm_dyn.errors import TuningError
from tvm_dyn.tuning.pool import TrackedPool
from tvm_dyn.tuning.records import StoredWorkload, trace_json

pytest.importorskip("tornado", reason="the tracker needs it: pip install 'tvm-dyn[rpc]'")

KEY = "loopback"


def start(module: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", f"tvm.exec.{module}", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "TVM_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def tracked():
    """(address of a tracker, its two servers)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start("rpc_tracker", "--host", "127.0.0.1", "--port", port, "--port-end", port + 1)]
    time.sleep(3)
    for number in range(2):
        ports = ["--port", port + 10 + 10 * number, "--port-end", port + 19 + 10 * number]
        processes.append(start("rpc_server", "--tracker", f"127.0.0.1:{port}", "--key", KEY, *ports))
    try:
        wait_for_servers(f"127.0.0.1:{port}", 2)
        yield f"127.0.0.1:{port}", processes[1:]
    finally:
        for process in processes:
            kill(process)


def wait_for_servers(tracker: str, count: int) -> None:
    for _ in range(60):
        try:
            if TrackedPool(TARGET, tracker, KEY)._at_once >= count:
                return
        except TuningError:
            pass  # not up yet
        time.sleep(0.5)
    raise AssertionError("the servers do not come up")


def kill(process: subprocess.Popen) -> None:
    """The process and all that it started."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    for child in [process, *started]:
        child.kill()
    process.wait()


def test_two_servers_measure_and_one_may_die(tracked):
    tracker, servers = tracked
    backbone = product(48, 40)
    traces = [trace_json(trace_of(backbone, vectors=1 + n % 3, block_rows=16 * (n + 1))) for n in range(8)]
    with TrackedPool(TARGET, tracker, KEY) as pool:
        assert pool._at_once == 2
        pool.measure_seconds = 8
        outcomes = {}
        for position, outcome in pool.evaluate(StoredWorkload.of(backbone), traces, [[(1,), (37,)]] * 8):
            outcomes[position] = outcome
            if len(outcomes) == 2:
                kill(servers[0])
    assert sorted(outcomes) == [*range(8)]
    assert all(not isinstance(o, str) and len(o) == 2 and min(o) > 0 for o in outcomes.values()), outcomes


def test_trackers_that_are_not_there_are_told():
    with pytest.raises(TuningError, match="host:port"):
        TrackedPool(TARGET, "nowhere", KEY)
    with pytest.raises(TuningError, match="does not answer"):
        TrackedPool(TARGET, "127.0.0.1:1", KEY)
