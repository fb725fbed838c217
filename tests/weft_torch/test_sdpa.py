"""torch's scaled_dot_product_attention through weft.torch.enable(): masks, shared heads, dropout, gradients,
including those of masks and statistics, compared with products and a softmax in double precision.
WEFT_TEST_DEVICE=cuda runs it on a GPU."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F, weft = torch.nn.functional, torch.ops.weft
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
NAME = "aten::scaled_dot_product_attention"


def normal(*shape: int, dtype=torch.float32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    made = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return made.to(DEVICE, dtype).requires_grad_()


def composed(q, k, v, mask=None, causal=False, scale=None, weights_kept=None):
    """o and statistics by definition, in double precision."""
    q, k, v = (each.double() for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask.double()
    lse = scores.logsumexp(-1)
    p = torch.where(scores == -torch.inf, 0.0, torch.exp(scores - lse.clamp(min=-1e300)[..., None]))
    return (p if weights_kept is None else p * weights_kept) @ v, lse


def close(found, expected, dtype=torch.float32) -> None:
    near = {torch.float64: 1e-9, torch.float32: 2e-4}.get(dtype, 4e-2)
    pairs = ([each.double() for each in values] for values in (found, expected))
    torch.testing.assert_close(*pairs, rtol=near, atol=near)


SIZES = {"all": (2, 4, 5, 9), "row": (2, 1, 1, 9), "heads": (4, 5, 9), "matrix": (5, 9), "keys": (9,)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_bool", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_masks_of_any_broadcast(size: str, is_bool: bool, dtype) -> None:
    q, k, v = (normal(2, 4, rows, 16, dtype=dtype, seed=i) for i, rows in enumerate((5, 9, 9)))
    mask = normal(*SIZES[size], dtype=dtype, seed=3)
    if is_bool:
        mask = mask.detach() > -0.7
        mask = mask | (torch.arange(9, device=DEVICE) == 2)  # a row that sees no key has its own test
    given = (q, k, v) if is_bool else (q, k, v, mask)
    do = normal(2, 4, 5, 16, dtype=dtype, seed=5).detach()
    expected, _ = composed(q, k, v, mask)
    with weft_torch.enable(["sdpa"]) as enabled:
        found = F.scaled_dot_product_attention(q, k, v, mask)
        gradients = torch.autograd.grad(found, given, do)
    assert enabled.report() == {NAME: {"served": 1}}
    close([found, *gradients], [expected, *torch.autograd.grad(expected, given, do.double())], dtype)


EXPANDED = {"all": (1, 1, 1, 1), "heads": (2, 1, 5, 9), "rows": (2, 4, 1, 9), "keys": (2, 4, 5, 1)}
EXPANDED |= {"none": (2, 4, 5, 9)}


@pytest.mark.parametrize("size", EXPANDED)
@pytest.mark.parametrize("is_turned", [False, True])
def test_gradients_of_masks_that_a_caller_expanded(size: str, is_turned: bool) -> None:
    """Elements of the gradient have memory of their own, where those of the mask share it."""
    q, k, v = (normal(2, 4, rows, 16, seed=i) for i, rows in enumerate((5, 9, 9)))
    base = normal(*EXPANDED[size], seed=3)
    mask = base.expand(2, 4, 5, 9)
    if is_turned:
        mask = mask.transpose(2, 3).flip(0).transpose(2, 3)
    do = normal(2, 4, 5, 16, seed=5).detach()
    expected, _ = composed(q, k, v, mask)
    with weft_torch.enable(["sdpa"]) as enabled:
        found = F.scaled_dot_product_attention(q, k, v, mask)
        gradients = torch.autograd.grad(found, (q, k, v, mask, base), do)
    assert enabled.report() == {NAME: {"served": 1}}
    close([found, *gradients], [expected, *torch.autograd.grad(expected, (q, k, v, mask, base), do.double())])


@pytest.mark.parametrize(
    ("heads", "rows", "keys", "size", "value_size"),
    [(1, 3, 3, 8, 8), (2, 33, 65, 17, 9), (4, 1, 40, 64, 64), (2, 130, 70, 80, 96), (4, 12, 12, 3, 1)],
)
@pytest.mark.parametrize("causal", [True, False])
def test_shapes(heads: int, rows: int, keys: int, size: int, value_size: int, causal: bool) -> None:
    shared = max(heads // 2, 1)
    q, k, v = normal(2, heads, rows, size), normal(2, shared, keys, size), normal(2, 1, keys, value_size)
    do = normal(2, heads, rows, value_size, seed=5).detach()
    how = {"is_causal": causal, "scale": 0.3, "enable_gqa": True}
    expected, _ = composed(q, k, v, None, causal, 0.3)
    with weft_torch.enable() as enabled:
        found = F.scaled_dot_product_attention(q, k, v, **how)
        gradients = torch.autograd.grad(found, (q, k, v), do)
        with torch.no_grad():
            close([F.scaled_dot_product_attention(q, k, v, **how)], [expected])
    assert enabled.report()[NAME] == {"served": 2}
    close([found, *gradients], [expected, *torch.autograd.grad(expected, (q, k, v), do.double())])


def test_ranks_layouts_and_views() -> None:
    packed = normal(2, 6, 3, 4, 8)  # rows of q, k, v interleaved, the output of one projection
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    wide = normal(2, 1, 6, 8).expand(2, 4, 6, 8)
    cases = [(q, k, v), (q, wide, v), (q, k, wide), (q[0], k[0], v[0]), (q[0, 0], k[0, 0], v[0, 0])]
    cases.append((q[0], k, v[:, :1]))
    for case in cases:
        expected = F.scaled_dot_product_attention(*case)
        with weft_torch.enable() as enabled:
            found = F.scaled_dot_product_attention(*case)
            gradient = torch.autograd.grad(found.sum(), packed)
        assert enabled.report()[NAME] == {"served": 1}
        assert found.shape == expected.shape
        close([found, *gradient], [expected, *torch.autograd.grad(expected.sum(), packed)])
    with weft_torch.enable():
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    assert out.is_contiguous(), "heads side by side cost no copy"


def test_rows_that_see_no_key_are_zero() -> None:
    q, k, v = (normal(1, 2, 3, 8, seed=i) for i in range(3))
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3], device=DEVICE)
    with weft_torch.enable():
        found = F.scaled_dot_product_attention(q, k, v, mask)
        gradients = torch.autograd.grad(found.square().sum(), (q, k, v))
    assert not found[:, :, 1].any()
    assert not gradients[0][:, :, 1].any()
    assert all(each.isfinite().all() for each in gradients)


def test_dropout_probability_and_gradients() -> None:
    p, keys = 0.25, 64
    q, k = normal(2, 4, 48, 16), normal(2, 4, keys, 16)
    v = torch.eye(keys, device=DEVICE).repeat(2, 4, 1, 1).requires_grad_()  # so that o is the weights
    with weft_torch.enable() as enabled:
        torch.manual_seed(5)
        first = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        gradients = torch.autograd.grad(first.square().sum(), (q, k, v))
        other = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        torch.manual_seed(5)
        again = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    assert enabled.report()[NAME] == {"served": 3}
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    kept = (first.detach() != 0).double()
    count = kept.numel()
    assert abs(kept.mean() - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    expected, _ = composed(q, k, v, weights_kept=kept / (1 - p))
    close([first, *gradients], [expected, *torch.autograd.grad(expected.square().sum(), (q, k, v))])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_statistics_have_a_gradient(dtype) -> None:
    sizes = (1, 4, 6, 8), (1, 2, 7, 8), (1, 2, 7, 8)
    q, k, v = (normal(*size, dtype=dtype, seed=i) for i, size in enumerate(sizes))
    expected = composed(q, k, v)
    found = weft.sdpa(q, k, v, enable_gqa=True)
    do, dlse = (normal(*size, dtype=dtype, seed=7).detach() for size in ((1, 4, 6, 8), (1, 4, 6)))
    both = torch.autograd.grad(found, (q, k, v), (do, dlse.to(found[1].dtype)), retain_graph=True)
    exact = torch.autograd.grad(expected, (q, k, v), (do.double(), dlse.double()), retain_graph=True)
    close(both, exact, dtype)
    alone = torch.autograd.grad(found[1].sum(), (q, k))
    close(alone, torch.autograd.grad(expected[1].sum(), (q, k)), dtype)


def test_the_gradient_of_statistics_is_not_dropped() -> None:
    q, k, v = (normal(1, 2, 6, 8, dtype=torch.float64, seed=i) for i in range(3))
    seed = torch.tensor([5], device=DEVICE)
    found = weft.sdpa(q, k, v, None, 0.4, dropout_seed=seed)[1]
    expected = composed(q, k, v)[1]
    weights = torch.linspace(-1, 1, expected.numel(), device=DEVICE).view_as(expected)
    grads = ((each * weights).sum() for each in (found, expected))
    close(*(torch.autograd.grad(each, (q, k)) for each in grads), torch.float64)


def test_calls_left_to_torch_report_the_reason() -> None:
    q = normal(1, 2, 4, 8)
    square = torch.ones(4, 4, dtype=torch.bool, device=DEVICE)
    with weft_torch.enable(["sdpa"]) as enabled:
        F.scaled_dot_product_attention(*[q[None]] * 3)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            F.scaled_dot_product_attention(q, q, q)
        for arguments in ((q, q[:, :1], q[:, :1].expand(1, 3, 4, 8)), (q, q, q.double())):
            with pytest.raises(RuntimeError):
                F.scaled_dot_product_attention(*arguments)
        if DEVICE == "cpu":  # elsewhere torch refuses it
            F.scaled_dot_product_attention(q, q, q, square, is_causal=True)
    reasons = " ".join(enabled.report()[NAME])
    assert "served" not in reasons
    for part in ("more than 4 dimensions", "MATH backend is enabled", "do not broadcast", "different types"):
        assert part in reasons
    with pytest.raises(Exception, match="dropout needs dropout_seed"):
        weft.sdpa(q, q, q, None, 0.5)
    with pytest.raises(Exception, match="gradients need the statistics"):
        weft.sdpa(q, q, q, compute_logsumexp=False)


def test_autocast_and_deterministic_flags() -> None:
    q = normal(1, 2, 40, 16)
    expected, _ = composed(q.bfloat16(), q.bfloat16(), q.bfloat16(), causal=True)
    torch.use_deterministic_algorithms(True)
    try:
        with weft_torch.enable(["sdpa"]) as enabled, torch.autocast(DEVICE, torch.bfloat16):
            found = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            first, second = (torch.autograd.grad(found.sum(), q, retain_graph=True)[0] for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert enabled.report() == {NAME: {"served": 1}}
    assert found.dtype == torch.bfloat16
    close([found], [expected], torch.bfloat16)
    assert torch.equal(first, second)
