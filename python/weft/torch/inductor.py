"""What Weft leaves of a graph, compiled by Inductor. Weft's regions stand in that graph as calls of one
operator, into which Inductor does not look."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx

from weft.errors import NotSupportedError
from weft.torch.ops import PLACES, _library
from weft.torch.regions import Region

# ---- A region as a function, and as an operator ----


class Standing:
    """A region as a function that a graph calls."""

    __name__ = "region"  # torch.fx writes it into the code of graphs
    _made = itertools.count()

    def __init__(self, region: Region) -> None:
        self.region, self.number = region, next(self._made)
        self._call = region.quick()
        _STANDING[self.number] = self

    def __call__(self, *arguments: Any) -> Any:
        """What the region computes, one tensor or several."""
        return self._call(*arguments)

    def as_operator(self, arguments: Sequence[Any]) -> Any:
        """The same by the operator that stands for all regions."""
        given: tuple[list[Any], list[Any]] = [], []
        for each, is_number in zip(arguments, self.region.numbers, strict=True):
            given[is_number].append(each)
        results = torch.ops.weft.region(*given, self.number)
        return results[0] if len(results) == 1 else results


_STANDING: weakref.WeakValueDictionary[int, Standing] = weakref.WeakValueDictionary()
"""By number, as long as a graph calls them."""


def _arguments(region: Region, tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    given = iter(tensors), iter(numbers)
    return [next(given[is_number]) for is_number in region.numbers]


def _compute(tensors: Sequence[Any], numbers: Sequence[Any], which: int) -> Sequence[Any]:
    stands = _STANDING[which]
    results = stands(*_arguments(stands.region, tensors, numbers))
    return results if isinstance(results, (tuple, list)) else (results,)


def _expected(tensors: Sequence[Any], numbers: Sequence[Any], which: int) -> Sequence[Any]:
    region = _STANDING[which].region
    results = region.expected(*_arguments(region, tensors, numbers))
    if any(each is None for each in results):
        raise NotSupportedError("a region gives what is no tensor.")
    return results


_AS_TRACED = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
"""That a plan's results lie as the graph has it is known of the arguments' strides there alone."""

_library.define(
    "region(Tensor[] tensors, SymInt[] numbers, int which) -> Tensor[]",
    tags=[torch.Tag.pt2_compliant_tag, _AS_TRACED],
)
for _place in PLACES:
    _library.impl("region", _compute, _place.upper())
torch.library.register_fake("weft::region", _expected, lib=_library)


# ---- Compiling ----


class _AsOperators(torch.fx.Interpreter):  # type: ignore[misc]
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, Standing):
            return target.as_operator(args)
        return super().call_function(target, args, kwargs)


class _Compiled:
    """Inductor's code, and the regions that it calls by number."""

    def __init__(self, code: Callable[[list[Any]], Any], module: torch.fx.GraphModule) -> None:
        self._code = code
        self._boxed_call = True  # for torch: it takes a list, and empties it
        self._called = [each.target for each in module.graph.nodes if isinstance(each.target, Standing)]

    def __call__(self, arguments: list[Any]) -> Any:
        return self._code(arguments)


@contextmanager
def _with_constants(mode: Any) -> Iterator[None]:
    """Constants of a graph are no fake tensors."""
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


_HOW = {
    "fallback_random": True,  # random numbers are torch's own, as where Inductor does not compile
    "fx_graph_cache": False,  # a region's number is another one's in the next process
    "triton.cudagraphs": False,
}


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Of torch.compile."""


def compile(
    module: torch.fx.GraphModule, given: Sequence[Any], mode: str | None = None
) -> Callable[[list[Any]], Any]:
    """A graph of ATen's operators and of regions as a function of a list of arguments. given: such arguments,
    fake. Raises what Inductor raises, and what importing it does."""
    from torch._inductor import config, list_mode_options
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    fake_mode: Any = detect_fake_mode(given)
    trace = make_fx(_AsOperators(module).run, select_decomp_table(), _allow_non_fake_inputs=True)
    with fake_mode, _with_constants(fake_mode), torch.no_grad(), enable_python_dispatcher():
        traced = trace(*given)
    output = next(each for each in traced.graph.nodes if each.op == "output")
    # All results lie as torch says, whoever reads them.
    nodes = [i for i, each in enumerate(output.args[0]) if isinstance(each, torch.fx.Node)]
    output.meta["user_visible_output_idxs"] = nodes
    settings = list_mode_options(mode) if mode not in (None, "default") else {}
    with config.patch({**settings, **_HOW}):
        return _Compiled(compile_fx_inner(traced, given), module)
