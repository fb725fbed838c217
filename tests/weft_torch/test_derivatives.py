"""Derivatives of torch's own operators under enable(): gradients of gradients, forward mode and the
transforms of torch.func, for every operator that enable() replaces. The oracle is torch without enable(), or
differences."""

from __future__ import annotations

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

F, aten = torch.nn.functional, torch.ops.aten


def normal(*shape: int):
    seed = torch.Generator("cpu").manual_seed(sum(shape))
    made = torch.randn(*shape, generator=seed, dtype=torch.float64, device="cpu")
    return made.to(torch.get_default_device())


LABELS = torch.tensor([0, 3, 1, 1, 2], device="cpu")


def labels():
    return LABELS.to(torch.get_default_device())


def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, True)


def batch_norm_in_use(x, w, b):
    return F.batch_norm(x, x.new_zeros(4), x.new_ones(4), w, b)


def dropout(x):
    """The dropout mask does not depend on the arguments."""
    torch.manual_seed(5)
    return F.dropout(x, 0.4)


def attention_with_dropout(q, k, v):
    torch.manual_seed(5)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q, k, v, mask):
    """With a gradient of the mask, and query heads that share keys."""
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


HEADS = (1, 2, 3, 4)
STEPS, STATE = (3, 2, 4), (1, 2, 3)
LAYER = (False, 1, 0.0, False, False, False)
"""Arguments of recurrent networks: no biases, one layer, no dropout, inference, one way, steps first."""
CASES = {
    "conv": (F.conv2d, ((2, 3, 5, 4), (2, 3, 3, 2), (2,))),
    "conv_transposed": (F.conv_transpose1d, ((2, 3, 5), (3, 2, 3), (2,))),
    "mm": (torch.mm, ((3, 5), (5, 2))),
    "affine_grid": (lambda theta: F.affine_grid(theta, [2, 1, 3, 4], False), ((2, 2, 3),)),
    "addmm": (F.linear, ((3, 5), (2, 5), (2,))),
    "bmm": (torch.bmm, ((2, 3, 5), (2, 5, 2))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), ((3, 5), (5,), (5,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 3), (4,), (4,))),
    "instance_norm": (lambda x: F.instance_norm(x), ((2, 4, 3),)),
    "batch_norm": (batch_norm, ((5, 4, 2), (4,), (4,))),
    "batch_norm_in_use": (batch_norm_in_use, ((5, 4, 2), (4,), (4,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w), ((3, 5), (5,))),
    "softmax": (lambda x: F.softmax(x, 1), ((3, 5),)),
    "log_softmax": (lambda x: F.log_softmax(x, 1), ((3, 5),)),
    "cross_entropy": (lambda x: F.cross_entropy(x, labels(), label_smoothing=0.2), ((5, 4),)),
    "cross_entropy_rows": (
        lambda x: F.cross_entropy(x, labels(), ignore_index=3, reduction="none"),
        ((5, 4),),
    ),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), ((2, 3, 6, 4),)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), ((2, 4, 4, 2),)),
    "max_pool": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], ((2, 3, 6, 4),)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2, return_indices=True)[0], ((2, 4, 4, 2),)),
    "max_pool_values": (lambda x: F.max_pool2d(x, 2), ((2, 3, 6, 4),)),
    "max_pool_values3d": (lambda x: F.max_pool3d(x, 2), ((2, 4, 4, 2),)),
    "sdpa": (F.scaled_dot_product_attention, (HEADS, (1, 2, 5, 4), (1, 2, 5, 4))),
    "sdpa_causal": (causal, (HEADS, HEADS, HEADS)),
    "sdpa_mask": (masked, ((1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (4, 3, 5))),
    "dropout": (dropout, ((4, 5),)),
    "lstm": (lambda x, h, w, r: torch.lstm(x, [h, h], [w, r], *LAYER)[0], (STEPS, STATE, (12, 4), (12, 3))),
    "gru": (lambda x, h, w, r: torch.gru(x, h, [w, r], *LAYER)[0], (STEPS, STATE, (9, 4), (9, 3))),
    "rnn_tanh": (lambda x, h, w, r: torch.rnn_tanh(x, h, [w, r], *LAYER)[0], (STEPS, STATE, (3, 4), (3, 3))),
    "rnn_relu": (lambda x, h, w, r: torch.rnn_relu(x, h, [w, r], *LAYER)[0], (STEPS, STATE, (3, 4), (3, 3))),
    "sdpa_dropout": (attention_with_dropout, (HEADS, HEADS, HEADS)),
}
RANDOM = [name for name in CASES if "dropout" in name]
"""torch draws other random numbers, so that it is no oracle."""
DETERMINED = [name for name in CASES if name not in RANDOM]


def case_of(name: str):
    function, shapes = CASES[name]
    return function, [normal(*shape) for shape in shapes]


def leaves(given):
    return [each.clone().requires_grad_() for each in given]


def both(run):
    """Returns the results of run() under enable() and without it; error types in place of results that
    raise."""
    results = []
    for context in (weft_torch.enable(), contextlib.nullcontext()):
        with context:
            try:
                results.append(run())
            except (NotImplementedError, RuntimeError) as error:
                results.append(type(error))
    return results


def check(run) -> None:
    """Checks that Weft's result is torch's. If torch has none, such as for derivatives of its attention
    kernels, Weft lets torch refuse."""
    found, expected = both(run)
    if isinstance(expected, type):
        assert found is expected
    else:
        torch.testing.assert_close(found, expected)


def served(report) -> set[str]:
    return {name for name, outcomes in report.items() if "served" in outcomes}


def test_cases_cover_all_operators_that_are_replaced() -> None:
    found: set[str] = set()
    for name in CASES:
        function, given = case_of(name)
        with weft_torch.enable() as enabled:
            y = function(*leaves(given))
            y.backward(torch.ones_like(y))
        found |= served(enabled.report())
    sources = [source for each in weft_torch.OPERATORS.values() for source in (each, *each.stand_ins)]
    twins = {each.twin._schema.name for each in sources if "cpu" in each.places}
    # Experts are served in 16 bits only, torch differentiates through its own legacy name of batch norm, and
    # it has no second derivatives of samples of grids and of CTC.
    once = {f"aten::grid_sampler_{rank}d{ending}" for rank in (2, 3) for ending in ("", "_backward")}
    once |= {"aten::_ctc_loss", "aten::_ctc_loss_backward"}
    assert twins - found <= {"aten::_grouped_mm", "aten::_native_batch_norm_legit", *once}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients_are_those_of_differences(name: str) -> None:
    function, given = case_of(name)
    with weft_torch.enable() as enabled:
        assert torch.autograd.gradgradcheck(function, leaves(given), fast_mode=True, nondet_tol=1e-10)
    assert served(enabled.report())


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_penalty_has_gradients_in_bfloat16(name: str) -> None:
    function, given = case_of(name)

    def penalty():
        inputs = [each.bfloat16().requires_grad_() for each in given]
        y = function(*inputs)
        grads = torch.autograd.grad(y.float().pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(each.float().square().sum() for each in grads), inputs)

    found, expected = both(penalty)
    if isinstance(expected, type) or name in RANDOM:
        assert all(each.isfinite().all() for each in found)
    else:
        scale = max(each.abs().max().item() for each in expected)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 * scale)


@pytest.mark.parametrize("name", DETERMINED)
def test_dual_numbers_keep_their_tangents(name: str) -> None:
    function, given = case_of(name)

    def tangent():
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(each, torch.cos(each)) for each in given]
            return tuple(forward_ad.unpack_dual(function(*duals)))

    check(tangent)


def test_tangents_of_dropout_are_dropped_as_values_are() -> None:
    x = torch.ones(40, 50)
    with weft_torch.enable(), forward_ad.dual_level():
        y = F.dropout(forward_ad.make_dual(x, x * 3), 0.4)
        primal, tangent = forward_ad.unpack_dual(y)
    assert 0 < primal.count_nonzero() < x.numel()
    torch.testing.assert_close(tangent, primal * 3)


@pytest.mark.parametrize("name", DETERMINED)
@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap_grad", "jacfwd", "hessian"])
def test_transforms_are_those_of_torch(name: str, transform: str) -> None:
    function, given = case_of(name)

    def loss(*inputs):
        return function(*inputs).pow(3).sum()

    def first(x):
        return function(x, *given[1:])

    several = torch.stack([given[0], given[0].cos()])
    runs = {
        "jvp": lambda: torch.func.jvp(function, tuple(given), tuple(map(torch.cos, given))),
        "grad": lambda: torch.func.grad(loss, tuple(range(len(given))))(*given),
        "vmap_grad": lambda: torch.vmap(torch.func.grad(lambda x: first(x).pow(3).sum()))(several),
        "jacfwd": lambda: torch.func.jacfwd(first)(given[0]),
        "hessian": lambda: torch.func.hessian(lambda x: first(x).pow(3).sum())(given[0]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of operators that vmap runs one by one
        check(runs[transform])


def test_transforms_are_named_in_the_report() -> None:
    x = normal(3, 5)
    with weft_torch.enable(["rms_norm"]) as enabled:
        torch.func.jvp(lambda x: F.rms_norm(x, (5,)), (x,), (x,))
        F.rms_norm(x, (5,))
    reason = "a transform of torch.func, or dual numbers. Leave it to torch."
    assert enabled.report() == {"aten::rms_norm": {"served": 1, reason: 1}}
