"""The kernel cache on disk: what one process compiled, the next one loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import checks

torch = checks.need_gpu()
PROGRAM = """
import json, torch, weft
from weft.backend import ffi, library
x = torch.arange(12.0, device="cuda").reshape(3, 4)
g = weft.Graph()
y = g.softmax(g.relu(g.tensor_like(x)), axis=1)
b = g.matmul(y, g.tensor_like(x.t()))
b.set_output(True)
g.build()
assert torch.allclose(g.plan(x, x.t()), torch.softmax(x, 1) @ x.t(), atol=1e-4)
text = ffi.new("char[]", 1 << 20)
library().weftDescribeMachine(text, 1 << 20, ffi.NULL)
print(json.dumps(json.loads(ffi.string(text))["cache"]))
"""


def run(folder: Path) -> dict[str, int]:
    """The cache's counts after a process that builds a graph."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"WEFT_CACHE": "rw", "WEFT_CACHE_DIR": str(folder), "NVIDIA_TF32_OVERRIDE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first["compiled"] > 0
    assert len(list(tmp_path.iterdir())) >= first["compiled"]
    second = run(tmp_path)
    assert second["compiled"] == 0


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    compiled = run(tmp_path)["compiled"]
    for entry in tmp_path.glob("*.weft"):
        data = bytearray(entry.read_bytes())
        data[-1] ^= 1
        entry.write_bytes(data)
    assert run(tmp_path)["compiled"] == compiled
    assert run(tmp_path)["compiled"] == 0
