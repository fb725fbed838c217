"""A process that forks while its threads are busy: its children execute plans, build, save and load."""

from __future__ import annotations

import subprocess
import sys

BUSY = """
import os, threading
import numpy as np
import weft

SIZE, FORKS, THREADS, SECONDS = 64, 100, 3, 300

def build():
    graph = weft.Graph(handle=weft.create_handle("cpu"), io_data_type="f32")
    a, b = graph.tensor([SIZE, SIZE], name="a"), graph.tensor([SIZE, SIZE], name="b")
    graph.matmul(a, b, name="c").set_output(True)
    graph.build()
    return graph

def run(graph, number):
    ones = np.ones((SIZE, SIZE), np.float32)
    assert (graph.plan(a=ones, b=number * ones) == SIZE * number).all(), number

def everything(number):
    run(shared, number)
    loaded = weft.Graph()
    loaded.deserialize(weft.create_handle("cpu"), build().serialize())
    run(loaded, number + 1)

def be_busy(number):
    while not over.is_set():
        everything(number)

shared, over = build(), threading.Event()
threads = [threading.Thread(target=be_busy, args=(number + 1,), daemon=True) for number in range(THREADS)]
for thread in threads:
    thread.start()
for number in range(FORKS):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(SECONDS)
        try:
            everything(number)
        except BaseException as error:
            print("child", number, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, number
over.set()
for thread in threads:
    thread.join()
everything(3)
print("done")
"""


def test_forked_children_build_and_execute() -> None:
    command = [sys.executable, "-c", BUSY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr
