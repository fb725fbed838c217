"""Operators under torch's transforms: autocast types, and vmap compared with a loop."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

weft = torch.ops.weft
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
SIZES = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]


def normal(*shape: int):
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(sum(shape)))


def causal(q, k, v):
    return weft.sdpa(q, k, v, None, 0.0, True)


PRODUCTS = {
    "conv": lambda: weft.conv(normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3), *SIZES),
    "linear": lambda: weft.linear(normal(3, 4), normal(5, 4), normal(5), "silu"),
    "addmm": lambda: weft.addmm(normal(5), normal(3, 4), normal(4, 5)),
    "sdpa": lambda: causal(normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4))[0],
    "quantized_linear": lambda: weft.quantized_linear(
        normal(3, 4), torch.ones(5, 4, dtype=torch.int8), normal(5, 1)
    ),
}
SUMS = {
    "softmax": lambda x: weft.softmax(x, 1, False),
    "layer_norm": lambda x: weft.layer_norm(x, [4], normal(4), None, 1e-5)[0],
    "rms_norm": lambda x: weft.rms_norm(x, [4], None, 1e-5)[0],
    "cross_entropy": lambda x: weft.cross_entropy(x, torch.tensor([1, 3]))[0],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_type_of_autocast(name: str, dtype) -> None:
    exact = PRODUCTS[name]()
    with torch.autocast(DEVICE, dtype):
        result = PRODUCTS[name]()
    assert (exact.dtype, result.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(result.float(), exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("name", SUMS)
def test_norms_and_losses_are_in_float(name: str) -> None:
    x = normal(2, 4).bfloat16()
    assert SUMS[name](x.double()).dtype == torch.float64
    with torch.autocast(DEVICE, torch.bfloat16):
        result = SUMS[name](x)
        assert SUMS[name](x.double()).dtype == torch.float64
    torch.testing.assert_close(result, SUMS[name](x.float()))


def test_autocast_differentiates_and_compiles() -> None:
    x, weight = normal(3, 4).requires_grad_(), normal(5, 4).requires_grad_()

    def model(x, weight):
        with torch.autocast(DEVICE, torch.bfloat16):
            return weft.softmax(weft.linear(x, weight, None, "gelu"), 1, False)

    y = model(x, weight)
    assert y.dtype == torch.float32
    loss = normal(3, 5)
    expected = torch.autograd.grad(y, (x, weight), loss)
    assert [each.dtype for each in expected] == [torch.float32] * 2
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, weight), (x, weight), loss)
    torch.testing.assert_close(found, expected)


MAPPED = {
    "conv": (lambda x, w: weft.conv(x, w, None, *SIZES), ((4, 2, 2, 5, 5), (3, 2, 3, 3)), (0, None)),
    "conv_filters": (lambda x, w: weft.conv(x, w, None, *SIZES), ((2, 2, 5, 5), (4, 3, 2, 3, 3)), (None, 0)),
    "linear": (lambda x, w: weft.linear(x, w, None, "relu"), ((3, 4, 5), (2, 5)), (1, None)),
    "linear_vector": (lambda x, w: weft.linear(x, w), ((4, 5), (2, 5)), (0, None)),
    "linear_weights": (lambda x, w: weft.linear(x, w), ((3, 5), (4, 2, 5)), (None, 0)),
    "mm": (weft.mm, ((4, 3, 5), (5, 2)), (0, None)),
    "mm_both": (weft.mm, ((3, 5, 4), (4, 5, 2)), (2, 0)),
    "mm_second": (weft.mm, ((3, 5), (4, 5, 2)), (None, 0)),
    "layer_norm": (lambda x, w: weft.layer_norm(x, [5], w, None, 1e-5), ((4, 3, 5), (5,)), (0, None)),
    "group_norm": (
        lambda x, w: weft.group_norm(x, w, None, 2, 4, 3, 2, 1e-5), ((5, 2, 4, 3), (4,)), (0, None),
    ),
    "softmax": (lambda x: weft.softmax(x, -1, False), ((3, 4, 5),), (2,)),
    "log_softmax_vector": (lambda x: weft.log_softmax(x, 0, False), ((3, 4),), (1,)),
    "swiglu": (weft.swiglu, ((4, 3, 5), (3, 4, 5)), (0, 1)),
    "causal_conv1d": (weft.causal_conv1d, ((4, 2, 3, 6), (3, 2)), (0, None)),
    "causal_conv1d_filters": (weft.causal_conv1d, ((2, 3, 6), (4, 3, 2)), (None, 0)),
    "rope": (weft.rope, ((4, 3, 6), (3, 3), (3, 3)), (0, None, None)),
    "max_pool": (lambda x: weft.max_pool(x, [2], [], [0], [1], False), ((4, 2, 3, 6, 6),), (0,)),
    "avg_pool_image": (lambda x: weft.avg_pool(x, [2], [], [0], False, True, None), ((4, 3, 6, 6),), (0,)),
    "sdpa": (causal, ((4, 1, 2, 3, 4),) * 3, (0, 0, 0)),
    "sdpa_keys": (causal, ((1, 2, 3, 4), (4, 1, 2, 3, 4), (4, 1, 2, 3, 4)), (None, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_dimension_is_a_loop(name: str) -> None:
    run, shapes, in_dims = MAPPED[name]
    given = [normal(*shape) for shape in shapes]
    found = torch.vmap(run, in_dims)(*given)
    size = next(x.shape[d] for x, d in zip(given, in_dims, strict=True) if d is not None)
    loop = [
        run(*(x if d is None else x.select(d, i) for x, d in zip(given, in_dims, strict=True)))
        for i in range(size)
    ]
    if torch.is_tensor(found):
        found, loop = (found,), [(each,) for each in loop]
    torch.testing.assert_close(found, tuple(torch.stack(each) for each in zip(*loop, strict=True)))


def test_many_gradients_at_once() -> None:
    x, weight, losses = normal(3, 5).requires_grad_(), normal(2, 5).requires_grad_(), normal(4, 3, 2)
    y = weft.layer_norm(weft.linear(x, weight, None, "gelu"), [2], normal(2), None, 1e-5)[0]
    found = torch.autograd.grad(y, (x, weight), losses, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(y, (x, weight), loss, retain_graph=True) for loss in losses]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*each, strict=True))))


def test_every_operator_has_a_rule() -> None:
    for name in weft_torch.OPERATORS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"weft::{name}", "FuncTorchBatched"), name


# ---- torch.func ----


def test_func_maps_gradients_and_derives_rows() -> None:
    x, weight = normal(3, 2, 5), normal(4, 5)

    def model(x, weight):
        return weft.softmax(weft.linear(x, weight, None, "gelu"), 1, False)

    def loss(x, weight):
        return model(x, weight).square().sum()

    found = torch.vmap(torch.func.grad(loss, (0, 1)), (0, None))(x, weight)
    loop = [torch.func.grad(loss, (0, 1))(each, weight) for each in x]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*loop, strict=True))))
    leaf = x[0].clone().requires_grad_()
    expected = torch.autograd.functional.jacobian(lambda x: model(x, weight), leaf)
    torch.testing.assert_close(torch.func.jacrev(model)(x[0], weight), expected)


def test_func_casts_as_autocast_does() -> None:
    x, weight = normal(3, 5).requires_grad_(), normal(4, 5).requires_grad_()

    def loss(x, weight):
        with torch.autocast(DEVICE, torch.bfloat16):
            return weft.softmax(weft.linear(x, weight, None, "gelu"), 1, False).square().sum()

    expected = torch.autograd.grad(loss(x, weight), (x, weight))
    found = torch.func.grad(loss, (0, 1))(x.detach(), weight.detach())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("outer", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("inner", [torch.func.jacrev, torch.func.jacfwd])
def test_func_has_second_derivatives(outer, inner) -> None:
    def loss(x, softmax):
        return softmax(x).pow(3).sum()

    x = normal(2, 3).double()
    found = outer(inner(loss))(x, lambda x: weft.softmax(x, 1, False))
    torch.testing.assert_close(found, outer(inner(loss))(x, lambda x: torch.softmax(x, 1)))
