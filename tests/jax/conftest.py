"""Two devices of the host, unless JAX has counted them before, and double precision."""

from __future__ import annotations

import contextlib

import pytest

with contextlib.suppress(ImportError, RuntimeError):
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
