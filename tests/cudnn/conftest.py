"""Where the catalogue's scripts run: NumPy arrays on the CPU, memory of a GPU with WEFT_TEST_DEVICE=cuda."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import poison
import pytest
import weft
import weft.cudnn as cudnn
from weft import dtypes

TOLERANCE = {"f64": 1e-12, "f32": 3e-5, "tf32": 3e-3, "f16": 4e-3, "bf16": 2e-2, "e4m3": 0.13, "e5m2": 0.26}


class Place:
    """A device with its handle: arrays go there, results come back in double precision."""

    def __init__(self, device: str) -> None:
        self.is_gpu = device == "cuda"
        self.handle = cudnn.create_handle(device)  # cuDNN's takes none and opens the GPU

    def put(self, values: Any, kind: str = "") -> Any:
        """Values rounded to a type, in the layout that they have."""
        array = np.asarray(values)
        array = array.astype(dtypes.numpy_dtype(dtypes.data_type_of(kind))) if kind else array
        if not self.is_gpu:
            return array
        strides = [step // array.itemsize for step in array.strides]
        return weft.DeviceArray(array.shape, array.dtype, strides, self.handle).copy_from(array)

    def random(self, shape: Sequence[int], kind: str = "f32", seed: int = 0, scale: float = 1) -> Any:
        """Draws normally distributed numbers, rounded to a type."""
        return self.put(scale * np.random.default_rng([seed, *shape]).standard_normal(shape), kind)

    def channels_last(self, shape: Sequence[int], kind: str = "f32", seed: int = 0, scale: float = 1) -> Any:
        """The same with dims NC.. and the channels side by side in memory."""
        n, c, *spatial = shape
        values = scale * np.random.default_rng([seed, *shape]).standard_normal((n, *spatial, c))
        array = values.astype(dtypes.numpy_dtype(dtypes.data_type_of(kind)))
        return self.put(np.moveaxis(array, -1, 1))

    def empty(self, dims: Sequence[int], kind: str = "f32", strides: Sequence[int] | None = None) -> Any:
        """Allocates memory for a result, filled with poison."""
        type_ = dtypes.numpy_dtype(dtypes.data_type_of(kind))
        if strides is None:
            return self.put(
                np.frombuffer(b"\xff" * int(np.prod(dims)) * type_.itemsize, type_).reshape(dims).copy()
            )
        span = 1 + sum((extent - 1) * step for extent, step in zip(dims, strides, strict=True))
        memory = poison.array(span * type_.itemsize)
        steps = [step * type_.itemsize for step in strides]
        return self.put(np.ndarray(dims, type_, memory.data, strides=steps))

    def like(self, tensor: Any) -> Any:
        """Memory for a result of the graph."""
        kind = dtypes.of(tensor.dtype).name
        return self.empty(tensor.get_dim(), kind, tensor.get_stride())

    def get(self, array: Any) -> Any:
        """An array in double precision, on the host."""
        if hasattr(array, "detach"):  # a torch tensor
            return array.double().cpu().numpy()
        host = array.numpy() if isinstance(array, weft.DeviceArray) else np.asarray(array)
        return host.astype(np.float64)

    def run(self, graph: Any, pack: dict[Any, Any], **more: Any) -> None:
        """Executes a graph with the workspace size that it reports."""
        workspace = self.empty([max(graph.get_workspace_size(), 1)], "u8")
        graph.execute(pack, workspace, handle=self.handle, **more)

    def close(self, got: Any, want: Any, kind: str = "f32") -> None:
        """Checks a result against the formula, with the precision of its type; GPU float products use
        TF32."""
        tolerance = TOLERANCE["tf32" if self.is_gpu and kind == "f32" else kind]
        scale = max(1.0, float(np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0)))
        np.testing.assert_allclose(self.get(got), want, rtol=tolerance, atol=tolerance * scale)


@pytest.fixture(scope="session")
def place() -> Place:
    return Place(os.environ.get("WEFT_TEST_DEVICE", "cpu"))


@pytest.fixture(autouse=True)
def version() -> Iterator[None]:
    """Every test begins with cuDNN 9.28."""
    cudnn.set_backend_version()
    yield
    cudnn.set_backend_version()
