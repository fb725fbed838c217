"""Operators: what one is, and how it becomes one of torch.library's. The operators themselves are in
operators/, a file for each family."""

from __future__ import annotations

import functools
import operator as operator_module
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad

from weft.errors import NotSupportedError, WeftError
from weft.torch import calls
from weft.torch.plans import PLANS, Draw, Prepared, Ready, key_of, prepare, untraced
from weft.torch.result_rules import Rule

PLACES = ("cpu", "cuda")
NOTHING: Mapping[str, Any] = MappingProxyType({})
INDICES = (torch.int64, torch.int32)
"""Of classes, of maxima and of rows."""


_TENSOR = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def refusal(arguments: Sequence[Any], others: Sequence[torch.dtype]) -> str:
    """Why these arguments are torch's to compute; empty if they are not. others: types beside floats, of
    tensors behind the first."""
    for i, each in enumerate(arguments):
        kind = type(each)
        if kind is _TENSOR or isinstance(each, _TENSOR):
            if each.dtype not in FLOATS and not (i and each.dtype in others):
                return f"type {each.dtype}"
            if kind is not _TENSOR and kind.__torch_dispatch__ is not _TENSOR.__torch_dispatch__:
                return f"a tensor of class {kind.__name__}, which computes by itself. Leave it to torch."
    return ""


def mixed_types(name: str, arguments: Sequence[Any]) -> str:
    """Why torch refuses operands of several types; empty if it does not. Parameters of norms may be float
    next to an input of 16 bits; those of rms_norm may have any type."""
    floats = [e.dtype for e in arguments if isinstance(e, _TENSOR) and e.is_floating_point()]
    if len(set(floats)) < 2:
        return ""
    first, *others = floats
    if "norm" in name and first in (torch.bfloat16, torch.float16) and set(others) == {torch.float32}:
        return ""
    return f"operands of types {', '.join(map(str, floats))}. Leave it to torch."


def _plain_keys() -> int:
    kinds = ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA", "ADInplaceOrView")
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, kind)) for kind in kinds)
    return int(functools.reduce(operator_module.or_, (each.raw_repr() for each in sets)))


NOT_PLAIN = ~_plain_keys()
"""All but what torch's dispatcher knows of tensors that are memory and nothing else: of no class that
computes by itself, under no mode that looks on, in no transform."""


# Each call asks these.
_watchers, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_keys_of, _needs_grad = torch._C._dispatch_keys, torch._C._any_requires_grad
_is_grad_enabled = torch.is_grad_enabled


def is_transformed() -> bool:
    """True within a transform of torch.func and within a level of dual numbers. There a derivative may be
    asked for that a Function with a gradient alone does not have, so that kernels must not be called past
    torch's dispatcher."""
    return bool(_transforms() or forward_ad._current_level >= 0)


def is_watched(value: torch.Tensor) -> bool:
    """Whether torch has to see operators on a tensor: it traces or counts them, or transforms the tensor."""
    return bool(_watchers() or is_transformed() or _keys_of(value).raw_repr() & NOT_PLAIN)


def _has_tangent(arguments: Sequence[Any]) -> bool:
    """True if one of the arguments is a dual number."""
    if forward_ad._current_level < 0:
        return False
    tensors = (each for each in arguments if isinstance(each, _TENSOR) and each.is_floating_point())
    return any(forward_ad.unpack_dual(each).tangent is not None for each in tensors)


Reference = Callable[..., Any] | None
"""A function of an operator's arguments, all by position, with the operator's results. It is composed of
operators that torch can differentiate in both modes and any number of times."""

def like_images(x: torch.Tensor) -> torch.Tensor:
    """A fake result in the layout that torch gives images: channels last if x has it, else contiguous."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def with_torchs_types(results: Sequence[Any], x: torch.Tensor, *parameters: Any) -> tuple[Any, ...]:
    """The fake results of a norm, whose statistics are results 1 and 2, with the types of torch's kernels:
    statistics of 16-bit inputs are float where a parameter is. Some of torch's fake kernels, those for the
    CPU among them, give the statistics the type of the input."""
    is_wide = any(each is not None and each.dtype == torch.float32 for each in parameters)
    if x.dtype not in (torch.bfloat16, torch.float16) or not is_wide:
        return tuple(results)
    return results[0], *(each.float() for each in results[1:3]), *results[3:]


Left = Callable[[WeftError], Callable[..., Any] | None]
"""Of a refusal, what is called for all such arguments; None: what raises it again each time."""


def _no_other(_: WeftError) -> None:
    """Where nothing else computes what Weft refuses."""


class Operator:
    """One operator: torch.ops.weft.NAME, and what may stand for torch's own."""

    def __init__(
        self, name: str, draw: Draw, twin: Any, places: Sequence[str], schema: str = "", fake: Any = None,
        rule: Rule | None = None,
    ) -> None:  # fmt: skip
        self.name, self.twin, self.draw = name, twin, draw
        """twin: the torch operator that computes the same; None where torch has none."""
        self.places, self.keys = places, ("",)
        """Where it may stand for torch's own: devices, and what is before their names in torch's keys."""
        self.stand_ins: list[Operator | StandIn] = []
        """What else it serves of torch's."""
        self.schema = name + (schema or _by_position(str(twin._schema)))
        self._fake, self.rule = fake, rule
        parsed = torch._C.parse_schema(f"weft::{self.schema}")
        self._is_single = len(parsed.returns) == 1
        self._defaults = [(each.name, each.default_value) for each in parsed.arguments]
        self._count = len(self._defaults)
        self._named = [] if twin is None else [a.name for a in twin._schema.arguments if a.kwarg_only]
        self.function: Callable[..., Any] | None = None
        """The operator with its gradient, of plain tensors; None without one."""
        self.reference: Reference = None if twin is None else self._call_twin
        """The same results from differentiable operators of torch's; see `differentiable`."""
        self.transformed: Any = None
        """The same as a torch.autograd.Function that torch.func takes apart; None without one."""
        self.call: Callable[..., Any] = self.standing_for(self)
        """The operator, in libweft where that can."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The results on real tensors; raises WeftError where Weft refuses."""
        arguments = self.filled(arguments, named)
        results = self._ready(arguments)(arguments)
        return results[0] if self._is_single else results

    def in_torchs_place(self, *arguments: Any, **named: Any) -> Any:
        """The results; raises WeftError where Weft refuses and where torch refuses operands of several
        types."""
        self.check(*arguments, **named)
        return self(*arguments, **named)

    def check(self, *arguments: Any, **named: Any) -> None:
        """Refuses operands of several types where torch does. Gradients have those that torch gives them."""
        if not self.name.endswith("_backward") and (reason := mixed_types(self.name, arguments)):
            raise NotSupportedError(reason)

    def standing_for(
        self, slow: Callable[..., Any], left: Left = _no_other, check: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        """What is called in place of a function of the operator's arguments: runs the plan where libweft
        can, and calls the function where it can't. left: what is called where Weft, or check, refuses."""

        def find(*arguments: Any, **named: Any) -> Any:
            try:
                if check is not None:
                    check(*arguments, **named)
                ready = self._ready(self.filled(arguments, named))
            except WeftError as error:
                return left(error)
            return ready.in_c if isinstance(ready, Prepared) else None

        return calls.FUNCTIONS.operator(find, slow) if calls.FUNCTIONS else slow

    def _ready(self, arguments: tuple[Any, ...]) -> Ready:
        with untraced():
            return PLANS.find(key_of(self.name, arguments[0], arguments), lambda: self._prepare(arguments))

    def apply(self, *arguments: Any) -> Any:
        """torch.ops.weft.NAME(*arguments), past torch's dispatcher where nobody looks on there."""
        needs_grad = _is_grad_enabled() and _needs_grad(*arguments)
        if is_watched(arguments[0]) or (needs_grad and self.function is None):
            return self.overload(*arguments)
        if self.function and needs_grad:
            return self.function(*self.filled(arguments))
        return self.call(*arguments)

    @functools.cached_property
    def overload(self) -> Any:
        """torch.ops.weft.NAME."""
        return getattr(torch.ops.weft, self.name).default

    def forward_mode(self, *arguments: Any) -> Any:
        """The results on dual numbers, computed by torch."""
        if self.reference is None:
            raise NotSupportedError(
                f"{self.name}: no derivative in forward mode: expected arguments without tangents, got a "
                "dual number. Detach it."
            )
        return self.reference(*self.filled(arguments))

    def filled(self, arguments: tuple[Any, ...], named: Mapping[str, Any] = NOTHING) -> tuple[Any, ...]:
        """All arguments: torch leaves out what has its default value."""
        if len(arguments) == self._count:
            return arguments
        rest = self._defaults[len(arguments) :]
        return (*arguments, *[named.get(name, default) for name, default in rest])

    def _prepare(self, arguments: Sequence[Any]) -> Ready:
        if self.twin is not None and (reason := refusal(arguments, INDICES)):
            raise NotSupportedError(reason)
        return prepare(self.name, self.fake, self.rule, self.draw, arguments)

    def fake(self, *arguments: Any, **named: Any) -> Any:
        """The results on fake tensors."""
        return (self._fake or self._call_twin)(*arguments, **named)

    def _call_twin(self, *arguments: Any, **named: Any) -> Any:
        plain = self._count - len(self._named)
        named |= dict(zip(self._named, arguments[plain:], strict=False))
        return self.twin(*arguments[:plain], **named)


def _by_position(schema: str) -> str:
    """The arguments and results of a schema, all by position, as gradients are."""
    return schema[schema.index("(") :].replace("*, ", "")


def _outside_transforms(serve: Callable[..., Any]) -> Callable[..., Any]:
    """For composite operators of torch's, which torch differentiates in all ways: by their parts."""

    def guarded(*arguments: Any, **named: Any) -> Any:
        if is_transformed():
            raise NotSupportedError("a transform of torch.func, or dual numbers. Leave it to torch.")
        return serve(*arguments, **named)

    return guarded


class StandIn:
    """What an operator of Weft's serves of torch's beside its twin: any function of the same arguments."""

    def __init__(
        self, twin: Any, serve: Callable[..., Any], places: Sequence[str], is_composite: bool,
        others: Sequence[torch.dtype] | None, check: Callable[..., None] | None,
    ) -> None:  # fmt: skip
        self.twin, self.places, self.others = twin, places, others
        self.serve = _outside_transforms(serve) if is_composite else serve
        self._check = check
        # What torch composes of operators is served before autograd, which knows its parts alone.
        self.keys = ("Autograd", "") if is_composite else ("",)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The results; raises WeftError where Weft refuses."""
        self.check(*arguments, **named)
        return self.serve(*arguments, **named)

    def check(self, *arguments: Any, **named: Any) -> None:
        """Refuses what is torch's to compute, by types and shapes."""
        given = (*arguments, *named.values()) if named else arguments
        if self.others is not None and (reason := refusal(given, self.others)):
            raise NotSupportedError(reason)
        if self._check is not None:
            self._check(*arguments, **named)

    def standing_for(
        self, slow: Callable[..., Any], left: Left, checked: Callable[..., Any]
    ) -> Callable[..., Any]:
        """What is called in place of a function of the operator's arguments: checks each kind of them once,
        and then calls a function that does not. left: what is called where Weft refuses."""

        def find(*arguments: Any, **named: Any) -> Any:
            try:
                self.check(*arguments, **named)
            except WeftError as error:
                return left(error)
            return checked

        return calls.FUNCTIONS.operator(find, slow) if calls.FUNCTIONS else slow


OPERATORS: dict[str, Operator] = {}
"""All operators by name."""

_library = torch.library.Library("weft", "DEF")


def operator(
    name: str, twin: Any = None, places: Sequence[str] = PLACES, schema: str = "", fake: Any = None,
    rule: Rule | None = None,
) -> Callable[[Draw], Draw]:  # fmt: skip
    """Makes a function that draws a graph the operator torch.ops.weft.NAME.

    Args:
        twin: the torch operator that computes the same.
        places: where it stands for its twin under enable().
        schema: arguments and results; default those of the twin.
        fake: the results on fake tensors; default the twin.
        rule: the same for usual tensors, at less cost.
    """

    def add(draw: Draw) -> Draw:
        made = OPERATORS[name] = Operator(name, draw, twin, places if twin else (), schema, fake, rule)
        _library.define(made.schema, tags=[torch.Tag.pt2_compliant_tag])
        for key in ("CPU", "CUDA"):
            _library.impl(name, made.call, key)
        torch.library.register_fake(f"weft::{name}", made.fake, lib=_library)
        return draw

    return add


def stands_for(
    name: str, twin: Any, places: Sequence[str] = PLACES, is_composite: bool = False,
    others: Sequence[torch.dtype] | None = INDICES, check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Makes a function of a torch operator's arguments stand for it where operator NAME is enabled.
    is_composite: torch composes it of other operators. others: types of its tensors beside floats;
    None where it calls operators of torch's alone, which ask for themselves. check: raises WeftError where
    Weft refuses arguments for their types and shapes."""

    def add(serve: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name].stand_ins.append(StandIn(twin, serve, places, is_composite, others, check))
        return serve

    return add


def differentiable(
    name: str, keep: Callable[..., Any], grad: Callable[..., Any], reference: Reference = None,
    backward_reference: Reference = None,
) -> None:  # fmt: skip
    """Gives an operator and the operator of its gradient their derivatives.

    The operator's gradient is computed by Weft, as the operator NAME_backward. Other derivatives, which are
    those in forward mode and those of a gradient, are torch's, of what `reference` computes.

    Args:
        keep: notes what grad needs.
        grad: the gradients of the operator's arguments.
        reference: stands for the operator in forward mode; default its twin.
        backward_reference: the same for NAME_backward, whose gradient is that of the reference. Default its
            twin, or None if there is no such operator, as for a linear operator that is its own gradient.
    """
    operator = OPERATORS[name]
    operator.reference = reference or operator.reference
    _add_gradient(operator, keep, grad)
    backward = OPERATORS.get(f"{name}_backward")
    if backward is not None:
        backward.reference = backward_reference or backward.reference
        _add_gradient(backward, _keep_arguments, functools.partial(_grad_of_reference, backward))


def _add_gradient(operator: Operator, keep: Callable[..., Any], grad: Callable[..., Any]) -> None:
    torch.library.register_autograd(f"weft::{operator.name}", grad, setup_context=keep, lib=_library)
    operator.function = _function(operator, keep, grad)
    _shorten(operator)
    operator.transformed = _transformed(operator, keep, grad)


def _keep_arguments(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.others = [None if isinstance(each, _TENSOR) else each for each in inputs]
    ctx.save_for_backward(*(each if isinstance(each, _TENSOR) else None for each in inputs))


def _grad_of_reference(operator: Operator, ctx: Any, *losses: Any) -> Any:
    """The gradients of an operator that is itself a gradient: those of its reference. torch.func computes
    them, so that they have derivatives, too."""
    pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
    arguments = [other if tensor is None else tensor for tensor, other in pairs]
    at = [i for i, needs_grad in enumerate(ctx.needs_input_grad) if needs_grad]
    given = [i for i, loss in enumerate(losses) if loss is not None]
    grads: list[Any] = [None] * len(arguments)
    if given:

        def compute(*leaves: Any) -> tuple[Any, ...]:
            whole = list(arguments)
            for i, leaf in zip(at, leaves, strict=True):
                whole[i] = leaf
            results = operator.reference(*whole) if operator.reference else ()
            results = results if isinstance(results, tuple) else (results,)
            return tuple(results[i] for i in given)

        _, pull = torch.func.vjp(compute, *(arguments[i] for i in at))
        for i, grad in zip(at, pull(tuple(losses[i] for i in given)), strict=True):
            grads[i] = grad
    return tuple(grads)


def gradients(
    function: Callable[..., Any], arguments: Sequence[Any], loss: Any, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """The gradients of a differentiable function of some tensors, for references of gradients. wanted: which
    of the arguments have one; the others, which may be None, get None."""
    at = [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def compute(*leaves: Any) -> Any:
        whole = list(arguments)
        for i, leaf in zip(at, leaves, strict=True):
            whole[i] = leaf
        return function(*whole)

    _, pull = torch.func.vjp(compute, *(arguments[i] for i in at))
    found = dict(zip(at, pull(loss), strict=True))
    return tuple(found.get(i) for i in range(len(wanted)))


# ---- The short way: what torch.library does of plain tensors, at a third of its cost ----


def _function(operator: Operator, keep: Callable[..., Any], grad: Callable[..., Any]) -> Callable[..., Any]:
    def forward(ctx: Any, *arguments: Any) -> Any:
        output = operator.call(*arguments)
        keep(ctx, arguments, output)
        return output

    ways = {"forward": staticmethod(forward), "backward": staticmethod(grad)}
    made: Any = type(f"weft_{operator.name}", (torch.autograd.Function,), ways)
    # Beyond torch.autograd.Function's own, which looks whether a transform is under way.
    apply: Callable[..., Any] = super(torch.autograd.Function, made).apply
    return apply


def _shorten(operator: Operator) -> None:
    """Puts the short way under the operator where torch's autograd is called; others go torch's."""
    for place in PLACES:
        key = f"Autograd{place.upper()}"
        whole = torch.library.get_kernel(f"weft::{operator.name}", key)
        _library.impl(operator.name, _short(operator, whole), key, with_keyset=True)


def _short(operator: Operator, whole: Any) -> Callable[..., Any]:
    def compute(keys: Any, *arguments: Any) -> Any:
        if _has_tangent(arguments):
            return operator.forward_mode(*arguments)
        needs_grad = _is_grad_enabled() and _needs_grad(*arguments)
        if keys.raw_repr() & NOT_PLAIN or (needs_grad and operator.function is None):
            return whole.call_boxed(keys, *arguments)
        if operator.function and needs_grad:
            return operator.function(*operator.filled(arguments))
        return operator.call(*arguments)

    return compute


class _Context:
    """A Function's context whose tensors are plain again once their level of torch.func has ended, as vjp's
    has."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved."""
        plain = torch._C._functorch.unwrap_if_dead
        return tuple(None if each is None else plain(each) for each in self._ctx.saved_tensors)


def _transformed(operator: Operator, keep: Callable[..., Any], grad: Callable[..., Any]) -> Any:
    def forward(*arguments: Any) -> Any:
        return operator.overload(*arguments)

    def backward(ctx: Any, *losses: Any) -> Any:
        return grad(_Context(ctx), *losses)

    ways = {"forward": forward, "setup_context": keep, "backward": backward}
    statics = {name: staticmethod(way) for name, way in ways.items()}
    return type(f"weft_{operator.name}", (torch.autograd.Function,), statics)
