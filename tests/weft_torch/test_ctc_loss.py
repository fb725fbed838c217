"""CTC losses under enable() and as an operator: torch's results, gradients and errors."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F = torch.nn.functional
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
STEPS, COUNTS = (9, 4, 9, 2), (3, 1, 4, 3)


def case(is_joined: bool = False, dtype=torch.float64):
    seed = torch.Generator().manual_seed(4)
    logits = torch.randn(9, 4, 6, generator=seed, dtype=dtype).to(DEVICE).requires_grad_()
    targets = torch.randint(1, 6, (4, 5), generator=seed).to(DEVICE)
    if is_joined:
        targets = torch.cat([row[:count] for row, count in zip(targets, COUNTS, strict=True)])
    return logits, targets


def loss_of(logits, targets, lengths, **how):
    loss = F.ctc_loss(logits.log_softmax(-1), targets, *lengths, **how)
    return loss, torch.autograd.grad(loss.sum(), logits)[0]


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize(
    "how", [{"reduction": "none", "zero_infinity": True}, {"blank": 0, "zero_infinity": True}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_those_of_torch(as_tensors, is_joined, how, dtype) -> None:
    """The last sequence has fewer steps than its labels need."""
    logits, targets = case(is_joined, dtype)
    lengths = [torch.tensor(each) if as_tensors else each for each in (STEPS, COUNTS)]
    expected = loss_of(logits, targets, lengths, **how)
    with weft_torch.enable(["ctc_loss", "ctc_loss_backward"]) as enabled:
        found = loss_of(logits, targets, lengths, **how)
    torch.testing.assert_close(found, expected)
    assert sum(sum(each.values()) for each in enabled.report().values()) == 2
    assert all(set(each) == {"served"} for each in enabled.report().values())


def test_infinite_losses_stay_infinite() -> None:
    logits, targets = case()
    with weft_torch.enable(["ctc_loss", "ctc_loss_backward"]):
        loss, gradient = loss_of(logits, targets, (STEPS, COUNTS), reduction="none")
    assert loss.isinf().tolist() == [False, False, False, True]
    assert gradient[:2, 3].isnan().all()
    assert gradient[:, :3].isfinite().all()


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (3, 1, 4)])
def test_what_torch_must_compute_or_refuse_is_left_to_it(counts) -> None:
    logits, targets = case()

    def attempt():
        try:
            return F.ctc_loss(logits.log_softmax(-1), targets, STEPS, counts).detach()
        except RuntimeError as error:
            return str(error)

    expected = attempt()
    with weft_torch.enable(["ctc_loss"]) as enabled:
        found = attempt()
    assert found == expected
    assert set(enabled.report()["aten::_ctc_loss"]) == {
        "ctc_loss: lengths that do not fit, or no labels. Leave it to torch."
    }


def test_the_operator_has_a_schema_fakes_and_a_gradient() -> None:
    logits, targets = case()
    given = logits.log_softmax(-1).detach().requires_grad_()
    lengths = [torch.tensor(each, device=DEVICE) for each in (STEPS, COUNTS)]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    operator = torch.ops.weft.ctc_loss
    torch.library.opcheck(operator.default, (given, targets, *lengths, 5, 0, True), test_utils=checks)
    loss, _ = operator(given, targets, *lengths, 5, 0, True)
    (gradient,) = torch.autograd.grad(loss.sum(), given)
    expected = F.ctc_loss(given, targets, *lengths, reduction="sum", zero_infinity=True)
    torch.testing.assert_close(loss.sum(), expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, given)[0])
