"""The rules that give operators' results agree with torch's own fake kernels, or leave arguments to these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import tiers
import torch
from weft.errors import WeftError
from weft.torch.ops import OPERATORS, Operator
from weft.torch.plans import _META, _depends_on_device, expected_of

CPU = torch.device("cpu")
LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}


def form(results: Any) -> Any:
    """Shapes, strides and types; strides of dimensions of one element are of no account."""
    return [
        None
        if r is None
        else (tuple(r.shape), [s for n, s in zip(r.shape, r.stride(), strict=True) if n > 1], r.dtype)
        for r in results
    ]


def agrees(operator: Operator, arguments: Sequence[Any]) -> bool:
    """Whether the rule serves the arguments; fails where torch's fake kernel has other results."""
    assert operator.rule is not None
    ruled = operator.rule(*arguments)
    if ruled is None:
        return False
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    device = CPU if _depends_on_device(operator.name, tensors) else _META
    expected = expected_of(operator.fake, arguments, device)
    if operator.name.endswith("_backward"):  # of some that are not wanted torch has fakes
        expected = [each if wanted else None for each, wanted in zip(expected, arguments[-1], strict=True)]
    assert form(ruled) == form(expected), arguments
    return True


def images(shape: Sequence[int]) -> Iterator[torch.Tensor]:
    x = torch.empty(tuple(shape))
    yield x
    if x.ndim > 3:
        yield x.contiguous(memory_format=LAST[x.ndim])
    yield x.transpose(0, 1).contiguous().transpose(0, 1)
    yield torch.empty(*shape[:-1], shape[-1] + 1)[..., 1:]
    yield x.double()
    yield x.bfloat16()


def optional(*values: Any) -> Iterator[Sequence[Any]]:
    for is_given in itertools.product((True, False), repeat=len(values)):
        yield [value if given else None for value, given in zip(values, is_given, strict=True)]


MASKS = [True, True, True], [False, True, False], [True, False, True]


def rows() -> Iterator[tuple[str, Sequence[Any]]]:
    for x, shape in itertools.product(images([2, 3, 4]), ([4], [3, 4], [2, 3, 4], [3], [])):
        parameter, statistic = (
            torch.empty(shape, dtype=x.dtype),
            torch.empty([*x.shape[: 3 - len(shape)], *[1] * len(shape)]),
        )
        for weight, bias in optional(parameter, parameter):
            yield "layer_norm", [x, shape, weight, bias, 1e-5]
            for wanted in MASKS:
                saved = statistic.to(x.dtype)
                yield "layer_norm_backward", [x, x, shape, saved, saved, weight, bias, wanted]
            yield "rms_norm", [x, shape, weight, None]
    x = torch.empty(2, 4)
    yield "layer_norm", [x, [4], torch.empty(3), None, 1e-5]
    yield "layer_norm", [x, [4], torch.empty(4).double(), None, 1e-5]
    yield "layer_norm", [torch.empty(0, 4), [4], None, None, 1e-5]


def groups() -> Iterator[tuple[str, Sequence[Any]]]:
    for shape in ([2, 4, 3], [2, 4, 3, 2], [2, 4, 1, 1], [2, 4], [2, 4, 3, 2, 2]):
        for x in images(shape):
            sizes = [2, 4, x.numel() // 8]
            for (weight, bias), count in itertools.product(
                optional(x.new_empty(4), x.new_empty(4)), (1, 2, 3)
            ):
                yield "group_norm", [x, weight, bias, *sizes, count, 1e-5]
                saved = x.new_empty(2, count)
                for dy, wanted in zip(images(shape), MASKS, strict=False):
                    dy = dy.to(x.dtype)
                    yield "group_norm_backward", [dy, x, saved, saved, weight, *sizes, count, wanted]


def batches() -> Iterator[tuple[str, Sequence[Any]]]:
    for shape in ([2, 4], [2, 4, 3], [2, 4, 3, 2], [2, 1, 3, 3], [2, 4, 1, 1], [2, 4, 3, 2, 2]):
        for x in images(shape):
            p = x.new_empty(shape[1])
            for (weight, bias, mean), training in itertools.product(optional(p, p, p), (True, False)):
                if training or mean is not None:
                    yield "batch_norm", [x, weight, bias, mean, mean, training, 0.1, 1e-5]
                given = [x, weight, mean, mean, p, p, training, 1e-5]
                for dy, wanted in zip(images(shape), MASKS, strict=False):
                    if training or mean is not None:
                        yield "batch_norm_backward", [dy.to(x.dtype), *given, wanted]


def convolutions() -> Iterator[tuple[str, Sequence[Any]]]:
    shapes: Sequence[tuple[list[int], list[int], int]] = [
        ([2, 4, 7], [6, 4, 3], 1), ([2, 4, 7, 6], [6, 4, 3, 2], 1), ([2, 4, 7, 6], [6, 2, 3, 2], 2),
        ([2, 4, 5, 5], [4, 1, 3, 3], 4), ([2, 1, 5, 5], [4, 1, 3, 3], 1), ([2, 4, 1, 1], [6, 4, 1, 1], 1),
        ([1, 4, 5, 5], [1, 4, 3, 3], 1), ([2, 4, 5, 5, 4], [6, 4, 3, 2, 2], 1), ([2, 4, 7], [6, 3, 3], 1),
    ]  # fmt: skip
    for x_shape, w_shape, count in shapes:
        n = len(x_shape) - 2
        geometries = (
            ([1], [0], [1], [0]),
            ([2] * n, [1] * n, [1] * n, [1] * n),
            ([1] * n, [2] * n, [2] * n, [0] * n),
        )
        for x, w, (stride, padding, dilation, more) in itertools.product(
            images(x_shape), itertools.islice(images(w_shape), 3), geometries
        ):
            for transposed in (False, True):
                w_ = w.transpose(0, 1) if transposed and count == 1 else w
                outputs = w_.shape[1] * count if transposed else w_.shape[0]
                how = stride, padding, dilation, transposed, more if transposed else [0], count
                for (bias,) in optional(x.new_empty(outputs)):
                    yield "conv", [x, w_, bias, *how]
                rule = OPERATORS["conv"].rule
                result = rule(x, w_, None, *how) if rule else None
                dy = torch.empty(result[0].shape, dtype=x.dtype) if result else x
                for wanted in MASKS:
                    yield "conv_backward", [dy, x, w_, [outputs] if wanted[2] else None, *how, wanted]


def products() -> Iterator[tuple[str, Sequence[Any]]]:
    a, b = torch.empty(3, 4), torch.empty(4, 5)
    for bias in ([5], [1], [], [3, 1], [3, 5], [4], [2, 5]):
        for left, right in itertools.product(
            (a, torch.empty(4, 3).t()), (b, torch.empty(5, 4).t(), torch.empty(3, 5))
        ):
            yield "addmm", [torch.empty(bias), left, right, 1, 1]


@pytest.mark.parametrize("cases", [rows, groups, batches, convolutions, products])
def test_rules_agree_with_torchs_fake_kernels(
    cases: Callable[[], Iterator[tuple[str, Sequence[Any]]]],
) -> None:
    served: dict[str, int] = {}
    for name, arguments in tiers.of_today(list(cases()), 5):
        try:
            served[name] = served.get(name, 0) + agrees(OPERATORS[name], arguments)
        except WeftError as error:
            raise AssertionError(f"torch refuses what the rule of {name} serves: {arguments}") from error
    assert all(served.values()), served


def test_rules_leave_wrong_arguments_to_torch() -> None:
    x, w = torch.empty(2, 4, 5, 5), torch.empty(6, 3, 3, 3)
    how = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    wrong: Sequence[tuple[str, Sequence[Any]]] = [
        ("conv", [x, w, None, *how]), ("conv", [x, torch.empty(6, 4, 9, 9), None, *how]),
        ("conv", [x, torch.empty(6, 4, 3, 3).double(), None, *how]),
        ("addmm", [torch.empty(4), torch.empty(3, 4), torch.empty(4, 5), 1, 1]),
        ("layer_norm", [x, [4], None, None, 1e-5]), ("group_norm", [x, None, None, 2, 4, 25, 3, 1e-5]),
        ("batch_norm", [x, torch.empty(3), None, None, None, True, 0.1, 1e-5]),
    ]  # fmt: skip
    for name, arguments in wrong:
        rule = OPERATORS[name].rule
        assert rule is not None
        assert rule(*arguments) is None, (name, arguments)
