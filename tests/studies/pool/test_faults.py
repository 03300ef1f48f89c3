"""Twenty disturbances of one sweep: workers are killed and one of two machines is lost, at random moments, sometimes
with the command itself.

Machines are Ray nodes of their own on this one. It takes minutes: `pytest -m faults`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import secateur
from secateur.studies.pool import ray_pool
from tests.support.slow_sweeps import slow_sweep
from tests.support.sweeping import assert_same_weights

pytest.importorskip("ray")

pytestmark = pytest.mark.faults

DISTURBANCES = 20
EVERY = 5
"""How often it is the machine, and how often the desk."""


def test_a_sweep_survives_twenty_kills_and_ends_where_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    local = {"node_ip_address": "127.0.0.1"}
    chance = random.Random(os.environ.get("SECATEUR_SEED", "0"))
    with ray_pool._on_loopback():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **local})
        second = cluster.add_node(num_cpus=2, **local)
    done: Counter[str] = Counter()
    starts = 0
    try:
        while True:
            starts += 1
            assert starts <= DISTURBANCES, "the command does not get anywhere"
            command = [sys.executable, "-m", "tests.support.slow_sweeps", cluster.address, str(tmp_path / "sweep")]
            running = subprocess.Popen(command, cwd=Path(__file__).parents[3])
            while running.poll() is None:
                time.sleep(chance.uniform(1, 8))
                turn = sum(done.values())
                victim = _worker(chance, desk=turn % EVERY == 1)
                if turn >= DISTURBANCES or victim is None:
                    continue
                if turn % EVERY == EVERY - 1:
                    cluster.remove_node(second, allow_graceful=False)
                    with ray_pool._on_loopback():
                        second = cluster.add_node(num_cpus=2, **local)
                    done["machine lost"] += 1
                else:
                    victim.kill()
                    done["desk killed" if turn % EVERY == 1 else "worker killed"] += 1
            if running.returncode:  # its own node was the one that was lost: the same command goes on
                done["command lost"] += 1
            elif sum(done.values()) >= DISTURBANCES:
                break
            else:  # it ended before it was disturbed often enough
                _forget_some(tmp_path / "sweep", chance)
    finally:
        cluster.shutdown()
    found = secateur.Sweep.load(tmp_path / "sweep")
    print(f"{dict(done)} in {starts} starts")
    assert not found.missing, str(found)
    assert_same_weights(found, slow_sweep(tmp_path / "calm", at_once=1, progress=False))


def _worker(chance: random.Random, desk: bool) -> psutil.Process | None:
    """One that works on a run, or the desk that all of them report to; not Ray's own agents, with which a node ends.

    Of the nodes that this test has started: there may be other sweeps on the machine.
    """
    names = ("ray::Desk",) if desk else ("ray::zeros", "ray::channels", "ray::macs")
    ours = psutil.Process().children(recursive=True)
    busy = [each for each in ours if _title(each).startswith(names)]
    return chance.choice(busy) if busy else None


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # it has just ended
        return (process.cmdline() or [""])[0]
    return ""


def _forget_some(folder: Path, chance: random.Random) -> None:
    """Half of the runs are to be made again."""
    import shutil

    names = sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name != "dense")
    for name in chance.sample(names, len(names) // 2):
        shutil.rmtree(folder / name)
