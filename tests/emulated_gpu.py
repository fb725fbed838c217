"""A GPU in software, for machines without one: the fake CUDA driver, which runs kernels on the CPU, and NVRTC
with a wrapper library that makes it compile to PTX.

    python tests/emulated_gpu.py python tests/small_cases.py
    python tests/emulated_gpu.py python -m pytest tests/ops/test_softmax.py
    EMULATOR_SEED=7 python tests/emulated_gpu.py ...     # another schedule of warps and copies
    FAKE_CUDA_LARGE=16 python tests/emulated_gpu.py ...  # 16 multiprocessors, not 132: more tiles for each
    FAKE_CUDA_SHARED=64 python tests/emulated_gpu.py ... # 64 KiB of shared memory per block: less fits
    FAKE_CUDA_ARCH=80 python tests/emulated_gpu.py ...   # the kernels of another chip

It looks like an H200. A kernel that breaks a rule of the chip (memory, alignment, barriers, operands that a
product or a copy still reads, unordered accesses to shared memory, a missing fence) fails with a message that
names the block, the warp and the line of PTX. CI runs tests on it; times on it mean nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
FOLDER = ROOT / "build/emulator"
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-g1", "-flto=auto", "-fno-strict-aliasing", "-ffp-contract=off"]
if platform.machine() == "x86_64":  # half-precision and FMA instructions take a tenth of the time
    FLAGS.append("-march=native")
DRIVER = [*(TESTS / "emulator").glob("*.c"), TESTS / "fake_cuda/fake_cuda.c"]
LIBRARIES = {
    "libcuda.so.1": [path for path in DRIVER if path.stem != "nvrtc_to_ptx"],
    "fake/libnvrtc.so.13": [TESTS / "fake_cuda/fake_nvrtc.c"],
    "ptx/libnvrtc.so.13": [TESTS / "emulator/nvrtc_to_ptx.c"],
}


def compiler() -> list[str]:
    """The C compiler, as make knows it."""
    return os.environ.get("CC", "cc").split()


def compile_one(source: Path, folder: str) -> str:
    """Compiles an object file."""
    made = f"{folder}/{source.stem}.o"
    level = ["-O3"] if source.stem == "matrix" else []
    subprocess.run([*compiler(), *FLAGS, *level, "-c", str(source), "-o", made], check=True)
    return made


def build() -> Path:
    """Returns the folder of the libraries, rebuilt if a source is newer."""
    sources_of = [*(TESTS / "emulator").iterdir(), *(TESTS / "fake_cuda").iterdir()]
    newest = max(path.stat().st_mtime for path in sources_of)
    for name, sources in LIBRARIES.items():
        made = FOLDER / name
        if made.exists() and made.stat().st_mtime >= newest:
            continue
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sources, [folder] * len(sources)))
            linked = ["-shared", *objects, "-o", f"{folder}/new", "-lm", "-lpthread", "-ldl"]
            subprocess.run([*compiler(), *FLAGS, *linked], check=True)
            os.replace(f"{folder}/new", made)  # a process may have the old one mapped
    return FOLDER


def find_nvrtc() -> Path:
    """The newest NVRTC of the wheels that this Python has."""
    places = ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    paths = [Path(folder) / place for place in places for folder in sys.path]
    found = [path for path in paths if path.exists()]
    if not found:
        sys.exit("no NVRTC wheel is installed: make build installs it into .venv")
    return found[0]


def environment() -> dict[str, str]:
    """Returns the environment variables that make a process use the emulated GPU."""
    folder = build()
    cache = folder / "kernels"
    cache.mkdir(mode=0o700, exist_ok=True)
    return {
        "WEFT_LIBCUDA": str(folder / "libcuda.so.1"),
        "WEFT_NVRTC": str(folder / "ptx/libnvrtc.so.13"),
        "WEFT_CACHE_DIR": str(cache),
        "EMULATOR_NVRTC": os.environ.get("EMULATOR_NVRTC", str(find_nvrtc())),
        "FAKE_CUDA_VERSION": "13050",
        "FAKE_CUDA_DEVICES": "1",
        "FAKE_CUDA_LARGE": os.environ.get("FAKE_CUDA_LARGE", "132"),
        "WEFT_TEST_DEVICE": "cuda",
        "WEFT_DEVICE": "cuda",
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    os.environ.update(environment())
    command = [sys.executable if word == "python" else word for word in sys.argv[1:]]
    sys.exit(subprocess.run(command).returncode)
