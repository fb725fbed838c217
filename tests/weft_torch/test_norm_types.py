"""Norms of 16-bit inputs with parameters of float or 16 bits: the types of the statistics that they store are
torch's, and gradients are as close to double precision as torch's, under enable() and backend="weft"."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F, aten = torch.nn.functional, torch.ops.aten
CHANNELS = 32


def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, True)


def batch_norm_with_running_statistics(x, w, b):
    return F.batch_norm(x, torch.zeros(CHANNELS), torch.ones(CHANNELS), w, b, True)


NORMS = {
    "batch_norm": (batch_norm, (16, CHANNELS, 4, 4)),
    "batch_norm_running": (batch_norm_with_running_statistics, (16, CHANNELS, 4, 4)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (CHANNELS,), w, b), (256, CHANNELS)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 8, w, b), (8, CHANNELS, 8, 8)),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (8, CHANNELS, 8, 8)),
    "rms_norm": (lambda x, w, b: F.rms_norm(x, (CHANNELS,), w) + b.to(x.dtype), (256, CHANNELS)),
}
OPERATORS = {
    "native_batch_norm": lambda x, w, b: (x, w, b, None, None, True, 0.1, 1e-5),
    "_native_batch_norm_legit": lambda x, w, b: (x, w, b, True, 0.1, 1e-5),
    "native_layer_norm": lambda x, w, b: (x, [CHANNELS], w, b, 1e-5),
    "native_group_norm": lambda x, w, b: (x, w, b, 8, CHANNELS, 1, 4, 1e-5),
}


def refuses(call, *given) -> bool:
    """True if torch's own kernel refuses the arguments. Those of layer and group norm for GPUs require
    parameters of the input's type; those for the CPU also accept float parameters with 16-bit inputs."""
    try:
        call(*given)
    except RuntimeError as error:
        if "type" not in str(error):
            raise
        return True
    return False


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_statistics_have_the_types_of_torch(name: str, parameters) -> None:
    x, w, b = torch.randn(8, CHANNELS).bfloat16(), torch.ones(CHANNELS), torch.zeros(CHANNELS)
    packet = getattr(aten, name)
    call = packet.no_stats if name == "_native_batch_norm_legit" else packet.default
    given = OPERATORS[name](x, w.to(parameters), b.to(parameters))
    if refuses(call, *given):
        given = OPERATORS[name](x, w.to(x.dtype), b.to(x.dtype))
    expected = [each.dtype for each in call(*given)]
    with weft_torch.enable() as enabled:
        assert [each.dtype for each in call(*given)] == expected
    assert enabled.report() == {f"aten::{name}": {"served": 1}}


def gradients(function, given, loss):
    return torch.autograd.grad(function(*given), given, loss)


@pytest.mark.parametrize("face", ["enable", "backend"])
@pytest.mark.parametrize("mean", [0, 10, 50])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_are_as_close_as_those_of_torch(name: str, dtype, mean: float, face: str) -> None:
    """With parameters of float where torch's kernels take these; mean: of the input, in its deviations."""
    function, shape = NORMS[name]
    torch.manual_seed(3)
    x, loss = (torch.randn(shape) + mean).to(dtype), (torch.randn(shape) + 0.5).to(dtype)
    w, b = torch.ones(CHANNELS), torch.zeros(CHANNELS)
    if refuses(function, x, w, b):
        w, b = w.to(dtype), b.to(dtype)

    def leaves(*values):
        return [each.clone().requires_grad_() for each in values]

    exact_norm = batch_norm if name == "batch_norm_running" else function
    exact = gradients(exact_norm, leaves(x.double(), w.double(), b.double()), loss.double())
    torchs = gradients(function, leaves(x, w, b), loss)
    torch._dynamo.reset()
    if face == "backend":
        function = torch.compile(function, backend=weft_torch.backend)
    with weft_torch.enable() if face == "enable" else contextlib.nullcontext():
        found = gradients(function, leaves(x, w, b), loss)
    assert [each.dtype for each in found] == [each.dtype for each in torchs]
    for mine, own, best in zip(found, torchs, exact, strict=True):
        errors = [float((each.double() - best).abs().max() / best.abs().max()) for each in (mine, own)]
        assert errors[0] <= 1.5 * errors[1] + 2e-5
