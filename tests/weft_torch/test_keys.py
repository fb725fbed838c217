"""Keys of plans: whatever changes the result of a call has its own plan, one field at a time, and equal calls
share one. There are two kinds of keys: Python's, and those of calls that run in libweft_torch."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402
from weft.torch import calls, plans  # noqa: E402

weft = torch.ops.weft


class Plain(torch.Tensor):
    """A tensor subclass."""


class Other(Plain):
    """A second tensor subclass."""


def tensor(shape=(2, 3, 4), dtype=torch.float32, order=(0, 1, 2), step=1, device=None):
    """A tensor with permuted dimensions and elements `step` positions from one another."""
    lies = [shape[i] for i in order]
    there = torch.zeros([*lies[:-1], lies[-1] * step], dtype=dtype, device=device)
    return there[..., ::step].permute([order.index(i) for i in range(len(order))])


ONE_FIELD = {
    "its first extent": lambda: tensor((3, 3, 4)),
    "its middle extent": lambda: tensor((2, 5, 4)),
    "its last extent": lambda: tensor((2, 3, 5)),
    "its rank": lambda: tensor().unsqueeze(0),
    "one dimension less": lambda: tensor()[0],
    "its order": lambda: tensor(order=(0, 2, 1)),
    "its order of batches": lambda: tensor(order=(1, 0, 2)),
    "its last stride": lambda: tensor(step=2),
    "a stride of 0": lambda: tensor((2, 3, 1)).expand(2, 3, 4),
    "another stride of 0": lambda: tensor((1, 3, 4)).expand(2, 3, 4),
    "the stride of an extent of 1": lambda: torch.empty_strided((2, 3, 4), (12, 4, 1)).unsqueeze(1),
    "another stride of an extent of 1": lambda: torch.empty_strided((2, 1, 3, 4), (12, 1, 4, 1)),
    "float64": lambda: tensor(dtype=torch.float64),
    "float16": lambda: tensor(dtype=torch.float16),
    "bfloat16": lambda: tensor(dtype=torch.bfloat16),
    "int32": lambda: tensor(dtype=torch.int32),
    "bool": lambda: tensor(dtype=torch.bool),
    "its device": lambda: tensor(device="meta"),
    "none": lambda: None,
    "a number": lambda: 1.5,
}
"""Tensors that differ from tensor() in one field, each from all others."""

NUMBERS = {
    "number": [0, 1, 2, -1, 2**40, 0.5, 1e-5, 1.1e-5, float("inf"), -float("inf"), None],
    "text": [None, "none", "relu", "gelu", "", "relu\0", "relu\0\0\0\0\0", "of nine."],
    "list": [[], [0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0], [2**40, 1]],
    "flags": [[True], [False], [True, False], [False, True], [True, True, False]],
    "type": [torch.float32, torch.float16, torch.bfloat16, torch.float64, None],
}
"""Values that one argument of an operator may have."""


def in_python(*arguments):
    """Returns Python's key of a call."""
    return plans.key_of("name", tensor(), arguments)


def check_in_libweft(different, again) -> None:
    """Calls with different keys miss in libweft_torch the first time and hit the next time. The second call
    follows at once, because other entries may evict it later."""
    asked: list[int] = []
    found = lambda *_: asked.append(1) or (lambda *_: None)  # noqa: E731
    operator = calls.FUNCTIONS.operator(found, lambda *_: asked.append(2))
    for number, (one, other) in enumerate(zip(different, again, strict=True)):
        operator(*one)
        assert asked == [1] * (number + 1), f"call {number} has the key of an earlier one, or none"
        operator(*other)
        assert asked == [1] * (number + 1), f"call {number} is not known again"


@pytest.mark.parametrize("place", range(3))
def test_tensors_that_differ_in_one_field_have_keys_of_their_own(place: int) -> None:
    made = {"itself": tensor, **ONE_FIELD}

    def arguments():
        return [[*(tensor() for _ in range(place)), make()] for make in made.values()]

    first, again = arguments(), arguments()
    keys = [in_python(*each) for each in first]
    for (a, i), (b, j) in itertools.combinations(zip(made, keys, strict=True), 2):
        assert i != j, f"{a} and {b} share a key"
    assert keys == [in_python(*each) for each in again]
    check_in_libweft(first, again)


@pytest.mark.parametrize("kind", NUMBERS)
def test_values_have_keys_of_their_own(kind: str) -> None:
    values = NUMBERS[kind]
    keys = [in_python(tensor(), each, 7) for each in values]
    for (a, i), (b, j) in itertools.combinations(zip(values, keys, strict=True), 2):
        assert i != j, f"{a!r} and {b!r} share a key"
    first, again = ([(tensor(), each, 7) for each in values] for _ in range(2))
    check_in_libweft(first, again)


def test_arguments_that_change_places_have_keys_of_their_own() -> None:
    x, y = tensor(), tensor((3, 4, 5))
    calls_ = [(x, y), (y, x), (x, x), (y, y), (x,), (x, None, y), (x, y, None)]
    calls_ += [([1, 2], 3), (1, [2, 3]), ([1], [2, 3]), ([1, 2, 3],), (1, 2, 3), ([], 1, 2, 3)]
    assert len({in_python(*each) for each in calls_}) == len(calls_)
    check_in_libweft(calls_, calls_)


def test_names_are_part_of_a_key() -> None:
    x = tensor()
    assert plans.key_of("softmax", x, (x, 1)) != plans.key_of("log_softmax", x, (x, 1))


CLASSES = (torch.Tensor, torch.nn.Parameter, Plain, Other)


@pytest.mark.parametrize("field", ["shape", "stride", "dtype"])
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_subclass_is_in_the_key(kind, field: str) -> None:
    changed = {"shape": (2, 3, 5), "stride": (0, 2, 1), "dtype": torch.float64}
    name = {"stride": "order"}.get(field, field)
    x, y = (as_class(tensor(**how), kind) for how in ({}, {name: changed[field]}))
    assert in_python(x) != in_python(y)
    assert in_python(x) == in_python(as_class(tensor(), kind))


def as_class(x, kind):
    """Converts a tensor to a subclass."""
    return torch.nn.Parameter(x) if kind is torch.nn.Parameter else x.as_subclass(kind)


def test_classes_have_keys_of_their_own() -> None:
    assert len({in_python(as_class(tensor(), kind)) for kind in (torch.Tensor, Plain, Other)}) == 3


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_layouts_of_one_shape_are_distinguished_in_calls(kind) -> None:
    """Three layouts of a square, one after the other and again: a plan of another one would be off."""
    base = torch.randn(8, 8, generator=torch.Generator("cpu").manual_seed(1), device="cpu")
    base = base.to(torch.get_default_device())
    wide = torch.cat([base, -base], 1)
    weft_torch.clear_cache()
    before = weft_torch.cache_info()["misses"]
    for _ in range(2):
        for x in (base, base.t(), wide[:, :8], wide[:, ::2], base[:1].expand(8, 8), base.flip(0)):
            torch.testing.assert_close(weft.softmax(as_class(x, kind), 1, False), torch.softmax(x, 1))
    assert weft_torch.cache_info()["misses"] - before == 5  # flipped tensors are packed again


class OnGpu:
    """A stand-in for a leading tensor: flags matter only on a GPU."""

    is_cuda = True


def set_tf32_of_products(value: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = value


def set_tf32_of_convolutions(value: bool) -> None:
    with torch.backends.__allow_nonbracketed_mutation():  # torch's own test helpers freeze these flags
        torch.backends.cudnn.allow_tf32 = value


def set_order_of_convolutions(value: bool) -> None:
    with torch.backends.__allow_nonbracketed_mutation():
        torch.backends.cudnn.deterministic = value


FLAGS = {
    "TF32 of products": (set_tf32_of_products, lambda: torch.backends.cuda.matmul.allow_tf32),
    "TF32 of convolutions": (set_tf32_of_convolutions, lambda: torch.backends.cudnn.allow_tf32),
    "order of convolutions": (set_order_of_convolutions, lambda: torch.backends.cudnn.deterministic),
    "order": (torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_torch_are_part_of_a_key_on_a_gpu(flag: str) -> None:
    assign, get = FLAGS[flag]
    x, before, keys = tensor(device="cpu"), get(), []
    try:
        for value in (False, True):
            assign(value)
            keys.append((plans.key_of("mm", OnGpu(), (x,)), plans.key_of("mm", x, (x,))))
    finally:
        assign(before)
    (one, on_cpu), (other, on_cpu_again) = keys
    assert one != other
    assert on_cpu == on_cpu_again
