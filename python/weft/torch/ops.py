"""The class Operator and its registration with torch.library. The operators themselves are in operators/, one
file per family."""

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
from weft.torch.plans import PLANS, BuildFunction, Prepared, Ready, key_of, prepare, untraced
from weft.torch.result_rules import Rule

PLACES = ("cpu", "cuda")
NOTHING: Mapping[str, Any] = MappingProxyType({})
INDICES = (torch.int64, torch.int32)
"""Data types of class indices, of positions of maxima and of row indices."""


_TENSOR = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def refusal(arguments: Sequence[Any], others: Sequence[torch.dtype]) -> str:
    """Returns why torch must compute a call with these arguments, or an empty string. others: data types that
    the tensors after the first may have in addition to floats."""
    for i, each in enumerate(arguments):
        kind = type(each)
        if kind is _TENSOR or isinstance(each, _TENSOR):
            if each.dtype not in FLOATS and not (i and each.dtype in others):
                return f"type {each.dtype}"
            if kind is not _TENSOR and kind.__torch_dispatch__ is not _TENSOR.__torch_dispatch__:
                return f"a tensor of subclass {kind.__name__}, which overrides operators. Leave it to torch."
    return ""


def mixed_types(name: str, arguments: Sequence[Any]) -> str:
    """Returns why torch refuses operands of different types, or an empty string. Parameters of norms may be
    float next to a 16-bit input; those of rms_norm may have any type."""
    floats = [e.dtype for e in arguments if isinstance(e, _TENSOR) and e.is_floating_point()]
    if len(set(floats)) < 2:
        return ""
    first, *others = floats
    if "norm" in name and first in (torch.bfloat16, torch.float16) and set(others) == {torch.float32}:
        return ""
    return f"operands of different types: {', '.join(map(str, floats))}. Leave it to torch."


def _plain_keys() -> int:
    kinds = ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA", "ADInplaceOrView")
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, kind)) for kind in kinds)
    return int(functools.reduce(operator_module.or_, (each.raw_repr() for each in sets)))


NOT_PLAIN = ~_plain_keys()
"""All dispatch keys except those of plain tensors: tensors that are neither a subclass with its own dispatch
nor seen by a dispatch mode or a transform."""


# These are called on every operator call.
_watchers, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_keys_of, _needs_grad = torch._C._dispatch_keys, torch._C._any_requires_grad
_is_grad_enabled = torch.is_grad_enabled


def is_transformed() -> bool:
    """True within a transform of torch.func or a forward-mode AD level. These may request a derivative that a
    Function with only a gradient does not have, so calls must go through torch's dispatcher."""
    return bool(_transforms() or forward_ad._current_level >= 0)


def is_watched(value: torch.Tensor) -> bool:
    """True if torch must see the operators on a tensor because it traces, counts or transforms them."""
    return bool(_watchers() or is_transformed() or _keys_of(value).raw_repr() & NOT_PLAIN)


def _has_tangent(arguments: Sequence[Any]) -> bool:
    """True if one of the arguments is a dual number."""
    if forward_ad._current_level < 0:
        return False
    tensors = (each for each in arguments if isinstance(each, _TENSOR) and each.is_floating_point())
    return any(forward_ad.unpack_dual(each).tangent is not None for each in tensors)


Reference = Callable[..., Any] | None
"""A function with the arguments (all positional) and results of an operator. It is composed of operators that
torch can differentiate in both modes and any number of times."""


def like_images(x: torch.Tensor) -> torch.Tensor:
    """Returns a fake result in torch's layout for images: channels last if x has it, else contiguous."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def with_torchs_types(results: Sequence[Any], x: torch.Tensor, *parameters: Any) -> tuple[Any, ...]:
    """Gives the fake results of a norm, whose statistics are results 1 and 2, the types that torch's kernels
    return: the statistics of 16-bit inputs are float if a parameter is float. Some of torch's fake kernels,
    including those for the CPU, give the statistics the type of the input."""
    is_wide = any(each is not None and each.dtype == torch.float32 for each in parameters)
    if x.dtype not in (torch.bfloat16, torch.float16) or not is_wide:
        return tuple(results)
    return results[0], *(each.float() for each in results[1:3]), *results[3:]


Left = Callable[[WeftError], Callable[..., Any] | None]
"""Maps a refusal to the function to call for all such arguments, or to None to raise it again each time."""


def _no_other(_: WeftError) -> None:
    """Used where no other implementation exists for arguments that Weft refuses."""


class Operator:
    """One operator: torch.ops.weft.NAME, and the torch operators that it may replace."""

    def __init__(
        self, name: str, build: BuildFunction, twin: Any, places: Sequence[str], schema: str = "",
        fake: Any = None, rule: Rule | None = None,
    ) -> None:  # fmt: skip
        self.name, self.twin, self.build = name, twin, build
        """twin: the torch operator that computes the same, or None."""
        self.places, self.keys = places, ("",)
        """The devices on which it may replace torch's operator, and the prefixes of their dispatch keys."""
        self.stand_ins: list[Operator | StandIn] = []
        """Further torch operators that it serves."""
        self.schema = name + (schema or _by_position(str(twin._schema)))
        self._fake, self.rule = fake, rule
        parsed = torch._C.parse_schema(f"weft::{self.schema}")
        self._is_single = len(parsed.returns) == 1
        self._defaults = [(each.name, each.default_value) for each in parsed.arguments]
        self._count = len(self._defaults)
        self._named = [] if twin is None else [a.name for a in twin._schema.arguments if a.kwarg_only]
        self.function: Callable[..., Any] | None = None
        """The operator with its gradient, for plain tensors; None if it has no gradient."""
        self.reference: Reference = None if twin is None else self._call_twin
        """The same results from differentiable torch operators; see `differentiable`."""
        self.transformed: Any = None
        """The operator as a torch.autograd.Function that torch.func can transform; None if it has no
        gradient."""
        self.call: Callable[..., Any] = self.wrap(self)
        """Calls the operator, in libweft_torch if possible."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the results on real tensors. Raises WeftError if Weft refuses the arguments."""
        arguments = self.filled(arguments, named)
        results = self._ready(arguments)(arguments)
        return results[0] if self._is_single else results

    def call_checked(self, *arguments: Any, **named: Any) -> Any:
        """Returns the results. Raises WeftError if Weft refuses the arguments, or if torch refuses operands
        of different types."""
        self.check(*arguments, **named)
        return self(*arguments, **named)

    def check(self, *arguments: Any, **named: Any) -> None:
        """Refuses operands of different types as torch does. Gradients accept the types that torch passes
        them."""
        if not self.name.endswith("_backward") and (reason := mixed_types(self.name, arguments)):
            raise NotSupportedError(reason)

    def wrap(
        self, slow: Callable[..., Any], left: Left = _no_other, check: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        """Returns a function to call instead of `slow`: it runs the plan in libweft_torch if possible, and
        calls `slow` otherwise. left: called if Weft or `check` refuses the arguments."""

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
        """Calls torch.ops.weft.NAME(*arguments), bypassing torch's dispatcher if nothing observes it."""
        needs_grad = _is_grad_enabled() and _needs_grad(*arguments)
        if is_watched(arguments[0]) or (needs_grad and self.function is None):
            return self.overload(*arguments)
        if self.function and needs_grad:
            return self.function(*self.filled(arguments))
        return self.call(*arguments)

    @functools.cached_property
    def overload(self) -> Any:
        """The overload torch.ops.weft.NAME.default."""
        return getattr(torch.ops.weft, self.name).default

    def forward_mode(self, *arguments: Any) -> Any:
        """Computes the results on dual numbers with torch."""
        if self.reference is None:
            raise NotSupportedError(
                f"{self.name}: no derivative in forward mode: expected arguments without tangents, got a "
                "dual number. Detach it."
            )
        return self.reference(*self.filled(arguments))

    def filled(self, arguments: tuple[Any, ...], named: Mapping[str, Any] = NOTHING) -> tuple[Any, ...]:
        """Fills in the defaults of arguments that torch omitted."""
        if len(arguments) == self._count:
            return arguments
        rest = self._defaults[len(arguments) :]
        return (*arguments, *[named.get(name, default) for name, default in rest])

    def _prepare(self, arguments: Sequence[Any]) -> Ready:
        if self.twin is not None and (reason := refusal(arguments, INDICES)):
            raise NotSupportedError(reason)
        return prepare(self.name, self.fake, self.rule, self.build, arguments)

    def fake(self, *arguments: Any, **named: Any) -> Any:
        """Computes the results on fake tensors."""
        return (self._fake or self._call_twin)(*arguments, **named)

    def _call_twin(self, *arguments: Any, **named: Any) -> Any:
        plain = self._count - len(self._named)
        named |= dict(zip(self._named, arguments[plain:], strict=False))
        return self.twin(*arguments[:plain], **named)


def _by_position(schema: str) -> str:
    """Returns the arguments and results of a schema, all positional, as gradients need them."""
    return schema[schema.index("(") :].replace("*, ", "")


def _outside_transforms(serve: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses composite torch operators under a transform: torch differentiates their parts instead."""

    def guarded(*arguments: Any, **named: Any) -> Any:
        if is_transformed():
            raise NotSupportedError("a transform of torch.func, or dual numbers. Leave it to torch.")
        return serve(*arguments, **named)

    return guarded


class StandIn:
    """A further torch operator that one of Weft's operators serves, through any function with the same
    arguments."""

    def __init__(
        self, twin: Any, serve: Callable[..., Any], places: Sequence[str], is_composite: bool,
        others: Sequence[torch.dtype] | None, check: Callable[..., None] | None,
    ) -> None:  # fmt: skip
        self.twin, self.places, self.others = twin, places, others
        self.serve = _outside_transforms(serve) if is_composite else serve
        self._check = check
        # Composite operators are replaced before autograd, which sees only their parts.
        self.keys = ("Autograd", "") if is_composite else ("",)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the results. Raises WeftError if Weft refuses the arguments."""
        self.check(*arguments, **named)
        return self.serve(*arguments, **named)

    def check(self, *arguments: Any, **named: Any) -> None:
        """Refuses arguments that torch must compute, by their types and shapes."""
        given = (*arguments, *named.values()) if named else arguments
        if self.others is not None and (reason := refusal(given, self.others)):
            raise NotSupportedError(reason)
        if self._check is not None:
            self._check(*arguments, **named)

    def wrap(self, slow: Callable[..., Any], left: Left, checked: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function to call instead of `slow`: it checks each kind of arguments once, and then calls
        `checked`, which does not check them. left: called if Weft refuses the arguments."""

        def find(*arguments: Any, **named: Any) -> Any:
            try:
                self.check(*arguments, **named)
            except WeftError as error:
                return left(error)
            return checked

        return calls.FUNCTIONS.operator(find, slow) if calls.FUNCTIONS else slow


OPERATORS: dict[str, Operator] = {}
"""All operators, by name."""

_library = torch.library.Library("weft", "DEF")


def operator(
    name: str, twin: Any = None, places: Sequence[str] = PLACES, schema: str = "", fake: Any = None,
    rule: Rule | None = None,
) -> Callable[[BuildFunction], BuildFunction]:  # fmt: skip
    """Registers a function that builds the graph of the operator torch.ops.weft.NAME.

    Args:
        twin: the torch operator that computes the same.
        places: the devices on which it replaces its twin under enable().
        schema: arguments and results; default those of the twin.
        fake: computes the results on fake tensors; default the twin.
        rule: computes them faster for common tensors.
    """

    def add(build: BuildFunction) -> BuildFunction:
        made = OPERATORS[name] = Operator(name, build, twin, places if twin else (), schema, fake, rule)
        _library.define(made.schema, tags=[torch.Tag.pt2_compliant_tag])
        for key in ("CPU", "CUDA"):
            _library.impl(name, made.call, key)
        torch.library.register_fake(f"weft::{name}", made.fake, lib=_library)
        return build

    return add


def stands_for(
    name: str, twin: Any, places: Sequence[str] = PLACES, is_composite: bool = False,
    others: Sequence[torch.dtype] | None = INDICES, check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Registers a function as the replacement of a torch operator when operator NAME is enabled.
    is_composite: torch composes it of other operators. others: data types of its tensors in addition to
    floats; None if it only calls torch operators, which check their own arguments. check: raises WeftError if
    Weft refuses the types or shapes of the arguments."""

    def add(serve: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name].stand_ins.append(StandIn(twin, serve, places, is_composite, others, check))
        return serve

    return add


def differentiable(
    name: str, keep: Callable[..., Any], grad: Callable[..., Any], reference: Reference = None,
    backward_reference: Reference = None,
) -> None:  # fmt: skip
    """Registers the derivatives of an operator and of its gradient operator.

    Weft computes the gradient as the operator NAME_backward. torch computes the other derivatives, those in
    forward mode and those of the gradient, from `reference`.

    Args:
        keep: saves what grad needs.
        grad: computes the gradients of the operator's arguments.
        reference: replaces the operator in forward mode; default its twin.
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
    _install_fast_path(operator)
    operator.transformed = _transformed(operator, keep, grad)


def _keep_arguments(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.others = [None if isinstance(each, _TENSOR) else each for each in inputs]
    ctx.save_for_backward(*(each if isinstance(each, _TENSOR) else None for each in inputs))


def _grad_of_reference(operator: Operator, ctx: Any, *losses: Any) -> Any:
    """Computes the gradients of an operator that is itself a gradient, from its reference. It uses torch.func
    so that they can be differentiated again."""
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
    """Computes the gradients of a differentiable function of some tensors, for references of gradients.
    wanted: which of the arguments need a gradient; the others, which may be None, get None."""
    at = [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def compute(*leaves: Any) -> Any:
        whole = list(arguments)
        for i, leaf in zip(at, leaves, strict=True):
            whole[i] = leaf
        return function(*whole)

    _, pull = torch.func.vjp(compute, *(arguments[i] for i in at))
    found = dict(zip(at, pull(loss), strict=True))
    return tuple(found.get(i) for i in range(len(wanted)))


# ---- Fast path: what torch.library does for plain tensors, at a third of its cost ----


def _function(operator: Operator, keep: Callable[..., Any], grad: Callable[..., Any]) -> Callable[..., Any]:
    def forward(ctx: Any, *arguments: Any) -> Any:
        output = operator.call(*arguments)
        keep(ctx, arguments, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(grad)}
    made: Any = type(f"weft_{operator.name}", (torch.autograd.Function,), methods)
    # Skips the apply of torch.autograd.Function, which checks whether a transform is active.
    apply: Callable[..., Any] = super(torch.autograd.Function, made).apply
    return apply


def _install_fast_path(operator: Operator) -> None:
    """Installs the fast path at the operator's autograd keys; calls that it cannot handle take torch's
    path."""
    for place in PLACES:
        key = f"Autograd{place.upper()}"
        whole = torch.library.get_kernel(f"weft::{operator.name}", key)
        _library.impl(operator.name, _fast_path(operator, whole), key, with_keyset=True)


def _fast_path(operator: Operator, whole: Any) -> Callable[..., Any]:
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
    """A Function's context that unwraps saved tensors whose torch.func level has ended, such as that of
    vjp."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The saved tensors, unwrapped."""
        plain = torch._C._functorch.unwrap_if_dead
        return tuple(None if each is None else plain(each) for each in self._ctx.saved_tensors)


def _transformed(operator: Operator, keep: Callable[..., Any], grad: Callable[..., Any]) -> Any:
    def forward(*arguments: Any) -> Any:
        return operator.overload(*arguments)

    def backward(ctx: Any, *losses: Any) -> Any:
        return grad(_Context(ctx), *losses)

    methods = {"forward": forward, "setup_context": keep, "backward": backward}
    statics = {name: staticmethod(method) for name, method in methods.items()}
    return type(f"weft_{operator.name}", (torch.autograd.Function,), statics)
