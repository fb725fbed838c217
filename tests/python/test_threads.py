# SPDX-License-Identifier: Apache-2.0
"""How many threads the CPU's engine uses, and that unused threads sleep."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COUNT = """
import json, weft
from weft import devices
print(json.loads(devices.DeviceProperties(handle=weft.create_handle("cpu")).serialize())["threads"])
"""
IDLE = """
import time
import numpy as np
import weft

g = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
a, b = g.tensor([256, 256], name="a"), g.tensor([256, 256], name="b")
g.matmul(a, b, name="c").set_output(True)
ones = np.ones((256, 256), np.float32)
g.build()
for _ in range(3):
    assert (g.plan(a=ones, b=ones) == 256).all()
time.sleep(0.01)  # workers look for another job no longer than this
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before)
"""


def run(program: str, cpus: set[int], **environment: str) -> str:
    """Returns the output of a program that is restricted to these CPUs."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ALL = os.sched_getaffinity(0)


def test_threads_are_those_of_the_affinity_mask() -> None:
    assert int(run(COUNT, {min(ALL)}, WEFT_THREADS="")) == 1
    assert 1 <= int(run(COUNT, ALL, WEFT_THREADS="")) <= len(ALL)


@pytest.mark.skipif(len(ALL) < 2, reason="this process may use one CPU alone")
def test_a_variable_lowers_their_number_and_does_not_raise_it() -> None:
    assert int(run(COUNT, ALL, WEFT_THREADS="1")) == 1
    assert int(run(COUNT, {min(ALL)}, WEFT_THREADS="64")) == 1
    two = set(sorted(ALL)[:2])
    assert int(run(COUNT, two, WEFT_THREADS="64")) == int(run(COUNT, two, WEFT_THREADS=""))


def test_workers_sleep_between_calls() -> None:
    """A worker that waits awake takes all of that half second; other libraries' threads need the cores."""
    assert json.loads(run(IDLE, ALL)) < 0.1
