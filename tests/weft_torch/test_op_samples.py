"""torch's own operator samples, forward and gradient, through weft.torch.enable(), compared with torch's
results. A sample that Weft leaves to torch does not test Weft: each operator must serve some."""

from __future__ import annotations

import os
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch's own tests import
import weft.torch as weft_torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

NAMES = (
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm",
    "softmax", "log_softmax", "cross_entropy", "linear", "mm", "addmm", "bmm",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
    "scaled_dot_product_attention",
)  # fmt: skip
INFOS = {
    (info.name.removeprefix("nn.functional."), info.variant_test_name): info
    for info in op_db
    if info.name.removeprefix("nn.functional.") in NAMES
}
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
MOST = 40
"""Samples of one operator; of more, these many at random."""
EPSILON = {torch.float32: 1e-5, torch.bfloat16: 2**-7}


def doubled(value):
    """A tensor of floats in double precision, others as they are."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def check(found, torchs, exact, epsilon: float) -> None:
    """Weft's error is at most twice that of torch, which rounds as often, and a rounding."""
    assert found.dtype == torchs.dtype
    assert found.shape == torchs.shape
    torch.testing.assert_close(found.isnan(), torchs.isnan())
    if not found.numel():
        return
    found, torchs, exact = (each.double().nan_to_num() for each in (found, torchs, exact))
    bound = 2 * (torchs - exact).abs().max() + epsilon * (1 + exact.abs().max())
    assert (found - exact).abs().max() <= bound


def results(call, sample):
    """The operator's result and the gradients of what can have any."""
    torch.manual_seed(0)
    out = call(sample.input, *sample.args, **sample.kwargs)
    out, *others = out if isinstance(out, tuple) else (out,)
    every = (sample.input, *sample.args, *sample.kwargs.values())
    given = [each for each in every if isinstance(each, torch.Tensor) and each.requires_grad]
    if not given or not out.requires_grad:
        return [out.detach(), *others]
    gradient = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out.detach(), *others, *torch.autograd.grad(out, given, gradient, allow_unused=True)]


def flash(q, k, v, *rest, **how):
    """Attention by torch's kernel of four dimensions, whose gradients read a rounded o, as Weft's do."""
    if how.get("enable_gqa"):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, *rest, **how)
    batch = torch.broadcast_shapes(*(each.shape[:-2] for each in (q, k, v)))
    four = (1,) * (2 - len(batch)) + batch
    ends = (each.expand(*batch, -1, -1).reshape(*four, *each.shape[-2:]) for each in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(*ends, *rest, **how)
    return o.reshape(*batch, *o.shape[-2:])


TORCHS = {"scaled_dot_product_attention": flash}
"""The function whose error is torch's own, if it is not the operator that is called."""


def is_random(sample) -> bool:
    return bool(sample.kwargs.get("dropout_p"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("key", INFOS, ids="-".join)
def test_samples(key, dtype, record_property) -> None:
    info = INFOS[key]
    if dtype not in info.supported_dtypes(DEVICE):
        pytest.skip(f"torch has no {key[0]} of {dtype}")
    torch.manual_seed(7)
    samples = list(info.sample_inputs(DEVICE, dtype, requires_grad=True))
    samples = random.Random(7).sample(samples, MOST) if len(samples) > MOST else samples
    served = 0
    for sample in samples:
        if is_random(sample):
            continue
        exact = results(info, sample.transform(doubled))
        expected = results(TORCHS.get(key[0], info), sample)
        with weft_torch.enable() as enabled:
            found = results(info, sample)
        for each in zip(found, expected, exact, strict=True):
            if each[0] is not None:
                check(*each, EPSILON[dtype])
        served += any("served" in outcome for outcome in enabled.report().values())
    record_property("served", f"{served}/{len(samples)}")
    assert served, f"Weft served none of {len(samples)} samples"
