"""The module-level functions of cuDNN's Python frontend."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from weft import backend
from weft.devices import DeviceProperties, KernelCache, device_of
from weft.enums import heur_mode
from weft.graphs import Graph

if TYPE_CHECKING:
    from weft.dtypes import DataTypeLike

_Function = TypeVar("_Function", bound=Callable[..., Any])


def backend_version() -> int:
    """The version of the loaded library: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL."""
    return backend.get_version()


def backend_version_string() -> str:
    """The version of the loaded library, such as "0.1.0"."""
    version = backend.get_version()
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def get_last_error_string() -> str:
    """The message of the calling thread's last failed call; empty if it succeeded."""
    return backend.get_last_error_string()


def create_handle(device: int | str | None = None, ordinal: int = 0) -> backend.Handle:
    """Opens a device: "cpu", "cuda", "cuda:1", or the default device, which is the first usable GPU or
    otherwise the CPU."""
    if isinstance(device, str) and ":" in device:
        named = device_of(device)
        assert isinstance(named, backend.Handle)
        return backend.Handle(named.device, named.ordinal)
    return backend.Handle(device, ordinal)


def destroy_handle(handle: backend.Handle) -> None:
    """Closes a handle; objects created with it stay valid."""
    handle.close()


def set_stream(handle: backend.Handle, stream: int | None) -> None:
    """Sets the stream on which execute enqueues work, a CUstream or cudaStream_t as an integer."""
    handle.set_stream(stream)


def get_stream(handle: backend.Handle) -> int:
    """The stream set by set_stream; 0 is the default stream."""
    return handle.stream


def create_kernel_cache() -> KernelCache:
    """A cache of kernels that plans share."""
    return KernelCache()


def create_device_properties(device: int | str) -> DeviceProperties:
    """The device to plan for: the ordinal of a CUDA device, or JSON returned by serialize() on another
    machine."""
    return DeviceProperties(device)


@contextmanager
def graph(
    handle: backend.Handle | None = None,
    name: str = "",
    io_data_type: DataTypeLike = "f16",
    intermediate_data_type: DataTypeLike = "f32",
    compute_data_type: DataTypeLike = "f32",
) -> Iterator[tuple[Graph, list[Any]]]:
    """A graph to be defined in a with block: `with graph(handle) as (g, _)`. It is not built when the block
    ends; see jit."""
    yield Graph(name, io_data_type, intermediate_data_type, compute_data_type, handle), []


def jit(heur_modes: Sequence[heur_mode] = (heur_mode.A,)) -> Callable[[_Function], _Function]:
    """Decorates a function that returns a graph, either by itself or first in a tuple: the returned graph is
    built."""

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def build(*arguments: Any, **named: Any) -> Any:
            returned = function(*arguments, **named)
            g = returned[0] if isinstance(returned, tuple) else returned
            g.build(heur_modes)
            return returned

        return build  # type: ignore[return-value]

    return decorate


def graph_cache(key_fn: Callable[..., Hashable], maxsize: int = 256) -> Callable[[_Function], _Function]:
    """Decorates a function so that it runs once for each key_fn(arguments). If there are more than maxsize
    results, the least recently used are evicted."""

    def decorate(function: _Function) -> _Function:
        cache: OrderedDict[Hashable, Any] = OrderedDict()

        @wraps(function)
        def look_up(*arguments: Any, **named: Any) -> Any:
            key = key_fn(*arguments, **named)
            if key not in cache:
                cache[key] = function(*arguments, **named)
            cache.move_to_end(key)
            if len(cache) > maxsize:
                cache.popitem(last=False)
            return cache[key]

        return look_up  # type: ignore[return-value]

    return decorate
