"""Configures JAX with two host devices, unless it is already initialized, and full float precision."""

from __future__ import annotations

import contextlib

import poison
import pytest

with contextlib.suppress(ImportError, RuntimeError):
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _double():
    poison.gpu_memory_of_frameworks()
    settings = {"jax_enable_x64": True, "jax_default_matmul_precision": "highest"}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
