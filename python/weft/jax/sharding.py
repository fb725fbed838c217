"""Operators on arrays that are sharded over a mesh with explicit axes: each device computes its shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

Spec = jax.sharding.PartitionSpec


class Labels(NamedTuple):
    """A label for each dimension of each array and of the result. Dimensions with the same label are sharded
    alike; those labelled None are whole on each device."""

    arrays: Sequence[Sequence[Hashable] | None]
    result: Sequence[Hashable]


def run(function: Callable[..., Any], labels: Labels, arrays: Sequence[Any]) -> Any:
    """Calls a function of arrays, under shard_map if one of them is sharded over explicit axes. Labelled
    dimensions stay sharded, as in the first array that shards one; all others are gathered."""
    sharded = [s for s in map(_sharding, arrays) if s is not None]
    if not sharded:
        return function(*arrays)
    mesh = sharded[0].mesh
    axes = _axes_of_labels(labels, arrays, dict(mesh.shape))
    specs = [
        None if x is None else _spec(labels_of, x.shape, axes)
        for labels_of, x in zip(labels.arrays, arrays, strict=True)
    ]
    given = [i for i, x in enumerate(arrays) if x is not None]

    def on_shard(*shards: Any) -> Any:
        gathered: list[Any] = [None] * len(arrays)
        for i, x in zip(given, shards, strict=True):
            gathered[i] = x
        return function(*gathered)

    placed = [_reshard(arrays[i], jax.sharding.NamedSharding(mesh, specs[i])) for i in given]
    result = Spec(*(axes.get(label) for label in labels.result))
    in_specs = tuple(specs[i] for i in given)
    return jax.shard_map(on_shard, mesh=mesh, in_specs=in_specs, out_specs=result)(*placed)


def _sharding(x: Any) -> Any:
    """Returns the sharding of an array over explicit mesh axes, or None."""
    found = None if x is None else getattr(jax.typeof(x), "sharding", None)
    return found if found is not None and any(axes is not None for axes in found.spec) else None


def _axes_of_labels(labels: Labels, arrays: Sequence[Any], sizes: dict[str, int]) -> dict[Hashable, Any]:
    """Returns the mesh axes over which the dimensions of each label are sharded."""
    shapes: dict[Hashable, list[int]] = {}
    for names, x in zip(labels.arrays, arrays, strict=True):
        for label, n in zip(names or (), () if x is None else x.shape, strict=x is not None):
            shapes.setdefault(label, []).append(n)
    found: dict[Hashable, Any] = {}
    used: set[str] = set()
    for names, x in zip(labels.arrays, arrays, strict=True):
        place = _sharding(x)
        for label, axes in zip(names or (), () if place is None else place.spec, strict=False):
            each = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
            count = math.prod(sizes[axis] for axis in each)
            divides = all(n == 1 or n % count == 0 for n in shapes.get(label, ()))
            if each and label is not None and label not in found and divides and not used.intersection(each):
                found[label] = axes
                used.update(each)
    return found


def _spec(labels: Sequence[Hashable] | None, shape: Sequence[int], axes: dict[Hashable, Any]) -> Any:
    """Returns the part of an array that each device needs; dimensions of extent 1 are replicated along a
    label."""
    pairs = zip(labels or (), shape, strict=True)
    return Spec(*(None if n == 1 else axes.get(label) for label, n in pairs))


def _reshard(x: Any, sharding: Any) -> Any:
    if hasattr(jax.sharding, "reshard"):
        return jax.sharding.reshard(x, sharding)
    from jax.experimental.shard import reshard  # its location before JAX moved it to jax.sharding

    return reshard(x, sharding)
