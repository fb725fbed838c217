"""Operators of weft.torch: schema, fakes and gradients as torch.library checks them."""

from __future__ import annotations

import contextlib
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from weft.graphs import Graph  # noqa: E402
from weft.torch import plans  # noqa: E402
from weft.torch.operators import pooling  # noqa: E402

F, weft = torch.nn.functional, torch.ops.weft
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")


def normal(*shape: int, grad: bool = True, dtype=torch.float64):
    seed = torch.Generator("cpu").manual_seed(len(shape) + sum(shape))
    made = torch.randn(*shape, generator=seed, dtype=dtype, device="cpu")
    return made.to(torch.get_default_device()).requires_grad_(grad)


def distinct(*shape: int):
    """Numbers that are far from one another, so that differences do not change which one is largest."""
    seed = torch.Generator().manual_seed(sum(shape))
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=seed).double()
    return (order / count).reshape(shape).requires_grad_()


def transposed(*shape: int):
    """A tensor with its first two dimensions swapped, so that rows are not adjacent."""
    return normal(*shape).detach().transpose(0, 1).requires_grad_()


def channels_last(*shape: int):
    """[B, D, L] with adjacent channels."""
    return normal(shape[0], shape[2], shape[1]).detach().transpose(1, 2).requires_grad_()


LABELS, LABELS_2D = torch.tensor([0, 3, 1, 1, 2]), torch.tensor([[0, 2, 1], [3, 3, 2]])
WEIGHTS = normal(4, grad=False).abs()
BATCH_NORM = (normal(4), normal(4), normal(4, grad=False) / 3, WEIGHTS + 0.5)
CODES = torch.arange(-16, 16, dtype=torch.int8).flip(0).reshape(4, 8) * 7
SEED = torch.tensor(7)
CONV = [[2, 1], [1, 0], [1, 2], False, [0, 0], 2]
CASES = {
    "conv": (weft.conv, (normal(2, 4, 7, 6), normal(6, 2, 3, 2), normal(6), *CONV)),
    "conv_without_bias": (
        weft.conv, (normal(1, 2, 9), normal(3, 2, 4), None, [1], [2], [1], False, [0], 1),
    ),
    "conv_channels_last": (
        weft.conv,
        (
            normal(2, 4, 5, 5).detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
            normal(3, 4, 3, 3), normal(3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
        ),
    ),
    "conv_transposed": (
        weft.conv,
        (normal(1, 4, 4, 3), normal(4, 1, 3, 2), normal(2), [2, 1], [1, 0], [1, 1], True, [1, 0], 2),
    ),
    "conv3d": (
        weft.conv, (normal(1, 2, 3, 4, 3), normal(2, 2, 2, 3, 1), normal(2), [1], [1], [1], False, [0], 1),
    ),
    "layer_norm": (weft.layer_norm, (normal(3, 2, 5), [2, 5], normal(2, 5), normal(2, 5), 1e-5)),
    "layer_norm_plain": (weft.layer_norm, (normal(7, 5), [5], None, None, 1e-3)),
    "group_norm": (weft.group_norm, (normal(2, 4, 3), normal(4), normal(4), 2, 4, 3, 2, 1e-5)),
    "group_norm_channels_last": (
        weft.group_norm,
        (
            normal(2, 4, 3, 2).detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
            normal(4), normal(4), 2, 4, 6, 2, 1e-5,
        ),
    ),
    "group_norm_channels_last_3d": (
        weft.group_norm,
        (
            normal(2, 6, 2, 3, 2).detach().to(memory_format=torch.channels_last_3d).requires_grad_(),
            normal(6), None, 2, 6, 12, 3, 1e-5,
        ),
    ),
    "layer_norm_transposed": (weft.layer_norm, (transposed(4, 3, 5), [5], normal(5), None, 1e-5)),
    "layer_norm_strided": (
        weft.layer_norm, (normal(3, 8).detach()[:, :5].requires_grad_(), [5], None, None, 1e-5),
    ),
    "batch_norm": (weft.batch_norm, (normal(3, 4, 5), *BATCH_NORM, True, 0.3, 1e-5)),
    "batch_norm_rows": (weft.batch_norm, (normal(6, 4), None, None, None, None, True, 0.1, 1e-3)),
    "batch_norm_in_use": (weft.batch_norm, (normal(3, 4, 2, 3), *BATCH_NORM, False, 0.3, 1e-5)),
    "batch_norm_channels_last": (
        weft.batch_norm,
        (
            normal(2, 4, 3, 2).detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
            normal(4), None, None, None, True, 0.1, 1e-5,
        ),
    ),
    "linear": (weft.linear, (normal(2, 3, 5), normal(4, 5), normal(4), "gelu", normal(2, 3, 4))),
    "linear_alone": (weft.linear, (transposed(4, 3, 5), normal(2, 5))),
    "linear_relu": (weft.linear, (normal(6, 5), normal(3, 5), normal(3), "relu")),
    "linear_gelu_tanh": (weft.linear, (normal(5), normal(3, 5), None, "gelu_tanh")),
    "linear_silu": (weft.linear, (normal(4, 5), normal(3, 5), normal(3), "silu")),
    "mm": (weft.mm, (normal(3, 5), normal(4, 5).detach().t().requires_grad_())),
    "bmm": (weft.bmm, (normal(2, 3, 5), normal(2, 5, 4))),
    "addmm": (weft.addmm, (normal(4), normal(3, 5), normal(5, 4))),
    "addmm_scaled": (weft.addmm, (normal(4), normal(3, 5), normal(5, 4), 0.5, 2)),
    "addmm_column": (weft.addmm, (normal(3, 1), normal(3, 5), normal(5, 4))),
    "swiglu": (weft.swiglu, (normal(3, 5), transposed(5, 3))),
    "geglu": (weft.geglu, (normal(2, 3, 5), normal(2, 3, 5).detach().neg().requires_grad_())),
    "geglu_tanh": (weft.geglu, (normal(7), normal(7).detach().neg().requires_grad_(), "tanh")),
    "causal_conv1d": (weft.causal_conv1d, (normal(2, 3, 7), normal(3, 4), normal(3), "silu")),
    "causal_conv1d_channels_last": (weft.causal_conv1d, (channels_last(2, 5, 4), normal(5, 2))),
    "grid_sampler_2d": (weft.grid_sampler_2d, (normal(2, 3, 4, 5), normal(2, 3, 2, 2), 0, 0, False)),
    "grid_sampler_2d_cubic": (weft.grid_sampler_2d, (normal(1, 2, 4, 3), normal(1, 2, 4, 2), 2, 2, True)),
    "grid_sampler_2d_nearest": (
        weft.grid_sampler_2d,
        (
            normal(2, 4, 5, 3).detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
            normal(2, 3, 3, 2, grad=False), 1, 1, False,
        ),
    ),
    "grid_sampler_3d": (weft.grid_sampler_3d, (normal(1, 2, 3, 4, 2), normal(1, 2, 3, 2, 3), 0, 1, True)),
    "affine_grid_generator": (weft.affine_grid_generator, (normal(2, 2, 3), [2, 3, 4, 5], False)),
    "affine_grid_generator_3d": (weft.affine_grid_generator, (normal(2, 3, 4), [2, 1, 3, 4, 5], True)),
    "rope": (weft.rope, (normal(2, 3, 5, 6), normal(5, 3, grad=False), normal(5, 3, grad=False).flip(0))),
    "rope_interleaved": (
        weft.rope, (transposed(3, 2, 5, 4), normal(2, 1, 5, 2, grad=False), normal(5, 2, grad=False), True),
    ),
    "grouped_mm": (weft.grouped_mm, (normal(7, 5), normal(3, 5, 4), torch.tensor([0, 2, 2]).int())),
    "quantized_linear": (
        weft.quantized_linear, (normal(2, 3, 8), CODES, normal(4, 2, grad=False).abs(), normal(4)),
    ),
    "quantized_linear_4_bits": (
        weft.quantized_linear, (normal(3, 16), CODES.view(torch.uint8), normal(4, 1, grad=False)),
    ),
    "quantized_linear_fp8": (
        weft.quantized_linear,
        (normal(3, 8), normal(4, 8, grad=False).to(torch.float8_e4m3fn), normal(4, 4, grad=False)),
    ),
    "dropout_nothing": (weft.dropout, (normal(3, 5), 0.0, SEED)),
    "dropout_everything": (weft.dropout, (normal(3, 5), 1.0, SEED)),
    "rms_norm": (weft.rms_norm, (normal(3, 2, 5), [5], normal(5), 1e-5)),
    "log_softmax": (weft.log_softmax, (normal(3, 4, 5), 1, False)),
    "avg_pool": (weft.avg_pool, (normal(2, 3, 7, 6), [3, 2], [2, 2], [1, 0], False, False, None)),
    "avg_pool_whole": (weft.avg_pool, (normal(1, 3, 5, 5), [3, 3], [], [1, 1], False, True, None)),
    "avg_pool_ceil": (weft.avg_pool, (normal(2, 6, 7), [3, 3], [2, 2], [1, 1], True, False, None)),
    "avg_pool_divisor": (weft.avg_pool, (normal(1, 2, 7, 6), [3], [2], [1], True, True, 5)),
    "avg_pool3d": (weft.avg_pool3d, (normal(1, 2, 4, 5, 6), [2], [2, 1, 2], [1], False, True, None)),
    "max_pool": (weft.max_pool, (distinct(2, 3, 7, 6), [3, 2], [2, 2], [1, 0], [1, 1], False)),
    "max_pool_gaps": (weft.max_pool, (distinct(2, 3, 9, 8), [3, 2], [2, 1], [1, 1], [2, 3], True)),
    "max_pool_ceil": (weft.max_pool, (distinct(3, 6, 7), [3], [], [1], [1], True)),
    "max_pool_channels_last": (
        weft.max_pool,
        (
            distinct(2, 4, 5, 5).detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
            [3, 3], [2, 2], [1, 1], [1, 1], False,
        ),
    ),
    "max_pool_values": (weft.max_pool_values, (distinct(2, 3, 7, 6), [3, 2], [2, 2], [1, 0], [1, 1], False)),
    "max_pool_values3d": (weft.max_pool_values3d, (distinct(1, 2, 4, 5, 6), [2], [], [1], [2], True)),
    "max_pool3d": (weft.max_pool3d, (distinct(1, 2, 4, 5, 6), [2], [2, 1, 2], [1], [1], False)),
    "max_pool3d_gaps": (weft.max_pool3d, (distinct(1, 2, 4, 5, 6), [2], [1], [1], [2, 1, 3], False)),
    "cross_entropy": (weft.cross_entropy, (normal(5, 4), LABELS)),
    "cross_entropy_2d": (weft.cross_entropy, (normal(2, 4, 3), LABELS_2D, WEIGHTS, 1, 2, 0.3)),
    "cross_entropy_rows": (weft.cross_entropy, (normal(5, 4), LABELS, None, 0, 1, 0.2)),
    "cross_entropy_sum": (weft.cross_entropy, (normal(5, 4), LABELS, WEIGHTS, 2)),
    "cross_entropy_one": (weft.cross_entropy, (normal(4), torch.tensor(2), WEIGHTS)),
    "nll_loss": (weft.nll_loss, (normal(5, 4), LABELS, WEIGHTS, 1, 1)),
    "nll_loss_one": (weft.nll_loss, (normal(4), torch.tensor(3), None, 0, -100)),
    "nll_loss2d": (weft.nll_loss2d, (normal(2, 4, 3, 1), LABELS_2D[..., None], WEIGHTS, 2, 1)),
    "sdpa": (weft.sdpa, (normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), None, 0.0, True)),
    "sdpa_bias": (
        weft.sdpa,
        (normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 3), normal(4, 1, 6), 0.0, False, 0.3, True),
    ),
    "sdpa_mask": (
        weft.sdpa, (normal(3, 5, 4), normal(3, 7, 4), normal(3, 7, 4), normal(5, 7, grad=False) > -0.5),
    ),
    "softmax": (weft.softmax, (normal(3, 4, 5), 1, False)),
    "softmax_strided": (weft.softmax, (normal(5, 3).detach().t().requires_grad_(), -1, False)),
}  # fmt: skip


def torch_cross_entropy(x, target, weight=None, reduction=1, ignored=-100, smoothing=0.0):
    reduction = ("none", "mean", "sum")[reduction]
    return F.cross_entropy(x, target, weight, None, ignored, None, reduction, smoothing)


def torch_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon):
    mean, variance = (None if each is None else each.clone() for each in (mean, variance))
    return F.batch_norm(x, mean, variance, weight, bias, training, momentum, epsilon), mean, variance


ACTIVATIONS = {
    "none": lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


def torch_linear(x, weight, bias=None, activation="none", residual=None):
    y = ACTIVATIONS[activation](F.linear(x, weight, bias))
    return y if residual is None else y + residual


def torch_rope(x, cos, sin, interleaved=False, inverse=False):
    pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).transpose(-2, -1)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, -sin if inverse else sin)
    turned = torch.view_as_real(turned)
    return (turned if interleaved else turned.transpose(-2, -1)).flatten(-2)


def torch_grouped(tokens, weight, first):
    ends = [*first[1:], len(tokens)]
    parts = [tokens[a:b] @ w for a, b, w in zip(first, ends, weight, strict=True)]
    return torch.cat(parts)


def numbers_of(codes):
    """Decodes numbers; two 4-bit codes share a byte, the lower bits first."""
    if codes.dtype != torch.uint8:
        return codes.double()
    pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).double()
    return torch.where(pairs > 7, pairs - 16, pairs)


def torch_quantized(x, codes, scale, bias=None):
    numbers = numbers_of(codes)
    weight = numbers * scale.double().repeat_interleave(numbers.shape[1] // scale.shape[1], 1)
    return F.linear(x, weight, bias)


def torch_sdpa(q, k, v, mask, dropout=0.0, causal=False, scale=None, enable_gqa=False):
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)


def torch_causal_conv1d(x, weight, bias=None, activation="identity"):
    padded = F.pad(x, (weight.shape[1] - 1, 0))
    y = F.conv1d(padded, weight[:, None], bias, groups=len(weight))
    return F.silu(y) if activation == "silu" else y


ORACLES = {
    "addmm": lambda bias, a, b, beta=1, alpha=1: torch.addmm(bias, a, b, beta=beta, alpha=alpha),
    "batch_norm": torch_batch_norm,
    "causal_conv1d": torch_causal_conv1d,
    "cross_entropy": torch_cross_entropy,
    "dropout": lambda x, p, _: x * (1 - p),
    "geglu": lambda gate, up, approximate="none": F.gelu(gate, approximate=approximate) * up,
    "grouped_mm": torch_grouped,
    "linear": torch_linear,
    "max_pool_values": lambda *given: torch.ops.aten.max_pool2d_with_indices(*given)[0],
    "max_pool_values3d": lambda *given: torch.ops.aten.max_pool3d_with_indices(*given)[0],
    "quantized_linear": torch_quantized,
    "rope": torch_rope,
    "sdpa": torch_sdpa,
    "swiglu": lambda gate, up: F.silu(gate) * up,
}
"""torch's results where it has no operator of the same arguments."""


def case_of(name: str):
    """An operator and its arguments, on the device under test."""
    operator, arguments = CASES[name]
    if DEVICE == "cpu":
        return operator, arguments
    return operator, [moved(each) if isinstance(each, torch.Tensor) else each for each in arguments]


def moved(value):
    return value.detach().to(DEVICE).requires_grad_(value.requires_grad)


def is_float(value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() > 1


def on_cpu(value):
    """An argument for an oracle: numbers in double precision."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.cpu().double() if is_float(value) else value.cpu()


def first(results):
    return results[0] if isinstance(results, tuple) else results


@pytest.mark.parametrize("case", CASES)
def test_library_checks_schema_fakes_and_dispatch(case: str) -> None:
    operator, arguments = case_of(case)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    # torch's check of schemas calculates with the arguments, which its 8-bit floats cannot.
    torch.library.opcheck(operator.default, arguments, test_utils=checks[case.endswith("fp8") :])


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_differences(case: str) -> None:
    operator, arguments = case_of(case)
    assert torch.autograd.gradcheck(lambda *a: differentiable(operator(*a)), arguments)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_results_are_those_of_torch(case: str, dtype) -> None:
    operator, arguments = case_of(case)
    given = [a.detach().to(dtype) if is_float(a) else a for a in arguments]
    name = operator.default._schema.name.removeprefix("weft::")
    torchs = ORACLES.get(name) or weft_torch.OPERATORS[name].twin
    exact = first(torchs(*map(on_cpu, given)))
    result = first(operator(*given))
    assert result.dtype == dtype
    relative = 1.6e-2 if dtype == torch.bfloat16 else 1e-5
    # Where a GPU needs several kernels, what is between them is rounded, too.
    absolute = 1.6e-2 if dtype == torch.bfloat16 and DEVICE == "cuda" else 1e-5
    torch.testing.assert_close(result.cpu(), exact.to(dtype), rtol=relative, atol=absolute)


@pytest.mark.parametrize("case", [name for name in CASES if re.match("max_pool(?!_values)", name)])
def test_positions_of_maxima_are_those_of_torch(case: str) -> None:
    operator, (x, *how) = case_of(case)
    twin = weft_torch.OPERATORS[operator.default._schema.name.removeprefix("weft::")].twin
    for values in (x.detach(), torch.zeros_like(x), torch.full_like(x, -torch.inf)):  # ties: the first one
        torch.testing.assert_close(operator(values, *how)[1].cpu(), twin(values.cpu(), *how)[1])


PLANES = {(4096, 4096): "FLOAT", (4096, 4097): "DOUBLE", (4100, 4100): "DOUBLE", (256, 256, 257): "DOUBLE"}


@pytest.mark.parametrize("shape", PLANES)
def test_positions_are_counted_in_a_type_that_holds_them(shape) -> None:
    """Floats represent integers up to 2^24. Next to INT64 a CPU computes in double, a GPU in the declared
    type."""
    rank = len(shape)
    window, none, one = [2] * rank, [0] * rank, [1] * rank
    x = torch.empty(1, 1, *shape, device="meta")
    outputs = getattr(torch.nn.functional, f"max_pool{rank}d")(x, window, return_indices=True)
    graph = Graph("max_pool", device="sm_90", compute_data_type=torch.float32)
    pooling._max_pool(rank, plans.GraphBuilder(graph, [x], outputs), x, window, window, none, one, False)
    types = {each.compute_data_type for each in graph._operations if each.kind == "pointwise"}
    assert {each.name for each in types} == {PLANES[shape]}


def test_positions_beyond_what_a_float_counts_to() -> None:
    """The last positions of a plane of more than 2^24 elements are odd."""
    shape = 2, 2**23 + 2
    x = torch.zeros(1, 1, *shape)
    x[..., 1::2] = 1
    torchs = torch.nn.functional.max_pool2d(x[..., -6:, -8:].cpu(), (2, 2), return_indices=True)[0]
    values, index = weft.max_pool(x, [2, 2], [2, 2], [0, 0], [1, 1], False)
    assert torch.equal(values[..., -3:, -4:].cpu(), torchs)
    rows, columns = shape
    last = (rows - 2) * columns + columns - 1
    assert index.flatten()[-3:].tolist() == [last - 4, last - 2, last]


def test_dropout_keeps_its_share_and_its_gradient_the_same() -> None:
    x, y = torch.ones(2, 8, 40, 30, requires_grad=True), torch.ones(2, 8, 40, 30)
    torch.manual_seed(3)
    kept = weft_torch.dropout(x, 0.25)
    torch.manual_seed(3)
    again = weft_torch.dropout(y.to(memory_format=torch.channels_last), 0.25)
    torch.testing.assert_close(kept, again)
    assert set(kept.unique().tolist()) == {0, y.new_tensor(1 / 0.75).item()}
    assert kept.count_nonzero().item() / kept.numel() == pytest.approx(0.75, abs=0.02)  # 6 deviations
    (dx,) = torch.autograd.grad(kept.sum(), x)
    torch.testing.assert_close(dx, kept.detach())
    assert not torch.equal(weft_torch.dropout(y, 0.25), again)
    assert weft_torch.dropout(y, 0.25, training=False) is y


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_running_statistics_are_those_of_torch(dtype) -> None:
    given = normal(3, 4, 5, grad=False).to(dtype), *(each.detach().to(DEVICE) for each in BATCH_NORM)
    after = weft.batch_norm(*given, True, 0.3, 1e-5)[3:]
    exact = torch_batch_norm(*(each.double() for each in given), True, 0.3, 1e-5)[1:]
    torch.testing.assert_close(after, exact)
    assert not weft.batch_norm(*given, False, 0.3, 1e-5)[3].numel()


def test_compile_makes_no_graph_break() -> None:
    def block(x, w, scale):
        y = weft.conv(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        y = weft.layer_norm(y, [5, 5], scale, None, 1e-5)[0]
        return weft.softmax(y, 1, False).square().sum()

    given = [normal(2, 3, 5, 5), normal(4, 3, 3, 3), normal(5, 5)]
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(block(*given), given)
    torch.testing.assert_close(torch.autograd.grad(compiled(*given), given), expected)


def test_plans_are_found_again_and_the_cache_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(plans.PLANS, "capacity", 2)
    weft_torch.clear_cache()
    before = weft_torch.cache_info()
    for length in (3, 4, 5, 5, 5):
        weft.softmax(normal(2, length, grad=False), 1, False)
    after = weft_torch.cache_info()
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"], after["size"]) == (2, 3, 2)


def test_a_plan_of_one_tensor_given_twice_serves_others() -> None:
    weft_torch.clear_cache()
    x, y = (normal(1, 2, 4, 4, grad=False) * i for i in (1, 3))
    weft.sdpa(x, x, x)
    q, k, v = x, y, y.flip(2)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(weft.sdpa(q, k, v)[0], attended)
    wanted = [True, True, False]
    sizes = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    loss = torch.nn.functional.conv2d(x, x, padding=1)
    weft.conv_backward(loss, x, x, None, *sizes, wanted)
    expected = torch.ops.aten.convolution_backward(loss, x, y, None, *sizes, wanted)[:2]
    torch.testing.assert_close(weft.conv_backward(loss, x, y, None, *sizes, wanted)[:2], expected)


def stream_of_its_own():
    """A context in which work goes to a stream that no other thread has."""
    if DEVICE == "cpu":
        return contextlib.nullcontext()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    return torch.cuda.stream(stream)


def in_threads(work, count: int) -> None:
    """Runs work(i) in as many threads, on a stream each; the first error of any is this one's."""

    def one(i: int) -> None:
        with torch.device(DEVICE), stream_of_its_own():
            work(i)

    with ThreadPoolExecutor(count) as pool:
        for each in [pool.submit(one, i) for i in range(count)]:
            each.result()


def test_threads_share_a_plan() -> None:
    given = [normal(8, 33, grad=False) * i for i in range(4)]

    def work(i: int) -> None:
        expected = torch.softmax(given[i], 1)
        for _ in range(50):
            torch.testing.assert_close(weft.softmax(given[i], 1, False), expected)

    in_threads(work, 4)


@pytest.mark.parametrize("capacity", [4096, 2])
def test_threads_have_shapes_and_streams_of_their_own(monkeypatch, capacity: int) -> None:
    """With room for 2 plans threads drop one another's, also while these run."""
    monkeypatch.setattr(plans.PLANS, "capacity", capacity)
    weft_torch.clear_cache()
    given = [(normal(3 + i, 4, 5, grad=False), normal(6, 5, grad=False)) for i in range(8)]

    def work(i: int) -> None:
        x, weight = given[i]
        expected = torch_linear(x, weight, None, "gelu", None)
        for _ in range(8):
            leaf = x.clone().requires_grad_()
            y = weft.linear(leaf, weight, None, "gelu")
            torch.testing.assert_close(y, expected)
            (dx,) = torch.autograd.grad(y.square().sum(), leaf)
            leaf = x.clone().requires_grad_()
            loss = torch_linear(leaf, weight, None, "gelu").square().sum()
            torch.testing.assert_close(dx, torch.autograd.grad(loss, leaf)[0])

    in_threads(work, 8)
    assert weft_torch.cache_info()["size"] == min(capacity, 16)


def test_without_elements_nothing_is_computed() -> None:
    x, w = normal(0, 3, 5, 5), normal(4, 3, 3, 3)
    y = weft.conv(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert y.shape == (0, 4, 3, 3)
    dx, dw = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert dx.shape == x.shape
    assert not dw.any()


def test_flags_of_torch_say_which_products_are_narrowed() -> None:
    def unwanted(**products: bool) -> list[str]:
        return [each.name for each in plans.unwanted(plans.flags(), **products)]

    conv, product = {"convolves": True, "multiplies": False}, {"convolves": False, "multiplies": True}
    narrowed, unordered = "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC"
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert (unwanted(**conv), unwanted(**product)) == ([], [narrowed])
        assert unwanted(convolves=True, multiplies=True) == [narrowed]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True):
        assert unwanted(**conv) == [narrowed, unordered]
        assert unwanted(convolves=False, multiplies=False) == [unordered]


@pytest.mark.parametrize("case", [name for name in CASES if "pool" in name])
def test_gradients_that_are_one_number_everywhere(case: str) -> None:
    operator, arguments = case_of(case)
    y = first(operator(*arguments))
    one = y.new_ones(()).expand(y.shape)
    found = torch.autograd.grad(y, arguments[0], one, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(y, arguments[0], one.contiguous()))


class Seen(TorchDispatchMode):
    """Notes the operators that torch's dispatcher meets."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def test_who_looks_on_sees_operators_and_their_gradients() -> None:
    x = normal(2, 3)
    expected = torch.autograd.grad(torch.softmax(x, 1)[0, 0], x)
    with Seen() as seen:
        found = torch.autograd.grad(weft.softmax(x, 1, False)[0, 0], x)
    torch.testing.assert_close(found, expected)
    assert {"weft.softmax.default", "weft.softmax_backward.default"} < set(seen.names)


def differentiable(results):
    results = results if isinstance(results, tuple) else (results,)
    return tuple(each for each in results if each.requires_grad)


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_are_those_of_differences(case: str) -> None:
    """All results that have gradients, including statistics."""
    operator, arguments = case_of(case)
    assert torch.autograd.gradgradcheck(
        lambda *a: differentiable(operator(*a)), arguments, fast_mode=True, nondet_tol=1e-10
    )


TORCHS_LACK = re.compile("grid_sampler|ctc_loss")
"""Operators whose twins in torch have no derivative in forward mode, so that Weft's have none either."""
DUALS = [case for case in CASES if not TORCHS_LACK.match(case)]


@pytest.mark.parametrize("case", [case for case in CASES if TORCHS_LACK.match(case)])
def test_forward_mode_that_torch_lacks_is_refused_by_torch(case: str) -> None:
    operator, arguments = case_of(case)
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(arguments[0].detach(), torch.ones_like(arguments[0]))
        with pytest.raises(NotImplementedError, match="forward AD"):
            operator(x, *arguments[1:])


@pytest.mark.parametrize("case", DUALS)
def test_forward_mode_is_that_of_differences(case: str) -> None:
    operator, arguments = case_of(case)
    assert torch.autograd.gradcheck(
        lambda *a: first(operator(*a)), arguments,
        fast_mode=True, check_forward_ad=True, check_backward_ad=False, check_undefined_grad=False,
    )  # fmt: skip


@pytest.mark.parametrize("case", DUALS)
def test_func_has_forward_mode(case: str) -> None:
    """The dot product of the result's tangent with a loss is that of the loss's gradients with tangents."""
    run, arguments = case_of(case)
    call, given = of_floats(run, arguments)
    if not given:
        return
    tangents = tuple(torch.cos(torch.arange(x.numel())).reshape(x.shape).to(x) for x in given)
    y, dy = torch.func.jvp(call, tuple(given), tangents)
    loss = torch.sin(torch.arange(y.numel())).reshape(y.shape).to(y)
    torch.testing.assert_close(y, call(*given))
    grads = torch.func.vjp(call, *given)[1](loss)
    along = sum((grad * tangent).sum() for grad, tangent in zip(grads, tangents, strict=True))
    torch.testing.assert_close((dy * loss).sum(), along)


def test_what_has_no_derivative_refuses_dual_numbers() -> None:
    q, pages = normal(1, 2, 3, 4, grad=False), normal(2, 2, 4, 4, grad=False)
    rest = pages, pages, torch.tensor([[0, 1]]).int(), torch.tensor([5]).int()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(Exception, match=r"sdpa_paged: no derivative in forward mode: .* Detach it\."):
            weft.sdpa_paged(dual, *rest)


def test_a_refusal_is_reported() -> None:
    x = normal(1, 2, 5, 5, grad=False)
    with pytest.raises(Exception, match="avg_pool: windows of ceil_mode end beyond the padding"):
        weft.avg_pool(x, [2], [2], [0], True, True, None)
    x, weight = normal(3, 5, grad=False), normal(4, 5, grad=False)
    with pytest.raises(Exception, match=r"activation 'tanh'\. Use one of none, relu, gelu, gelu_tanh, silu"):
        weft.linear(x, weight, None, "tanh")
    with pytest.raises(Exception, match=r"weight does not fit the input: expected \[N, 5\], got \[5, 4\]"):
        weft.linear(x, weight.t())
    with pytest.raises(Exception, match=r"residual does not fit the result: expected \[3, 4\], got \[4\]"):
        weft.linear(x, weight, None, "none", x.new_ones(4))


def of_floats(run, arguments):
    """A function of those tensors among the arguments that have gradients, and these."""
    at = [i for i, each in enumerate(arguments) if torch.is_tensor(each) and each.requires_grad]

    def call(*given):
        whole = list(arguments)
        for i, each in zip(at, given, strict=True):
            whole[i] = each
        results = run(*whole)
        return results[0] if isinstance(results, tuple) else results

    return call, [arguments[i].detach() for i in at]


@pytest.mark.parametrize("case", CASES)
def test_func_has_the_gradients_of_autograd(case: str) -> None:
    run, arguments = case_of(case)
    call, given = of_floats(run, arguments)
    leaves = [each.clone().requires_grad_() for each in given]
    y = call(*leaves)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape)
    expected = torch.autograd.grad(y, leaves, dy) if y.requires_grad else ()
    same, backward = torch.func.vjp(call, *given)
    torch.testing.assert_close(same, y)
    if expected:
        torch.testing.assert_close(backward(dy), expected)
