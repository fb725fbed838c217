"""Calls that torch refuses raise torch's own errors under enable(), without a logged traceback. Results and
gradients have torch's strides."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F = torch.nn.functional
NARROW, WIDE = torch.bfloat16, torch.float64


def normal(*shape: int, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def sdpa(*shapes, **how):
    return F.scaled_dot_product_attention(*(normal(1, 2, *shape) for shape in shapes), **how)


def cross_entropy(target=(1, 2, 0), dtype=torch.int64, **how):
    return F.cross_entropy(normal(3, 4), torch.tensor(target).to(dtype), **how)


def batch_norm(weight):
    return F.batch_norm(normal(3, 4, 5), None, None, weight, None, True)


REFUSED = {
    "mm": lambda: normal(3, 4) @ normal(5, 6),
    "mm_types": lambda: normal(3, 4) @ normal(4, 5, dtype=NARROW),
    "bmm": lambda: torch.bmm(normal(2, 3, 4), normal(2, 5, 6)),
    "bmm_types": lambda: torch.bmm(normal(2, 3, 4), normal(2, 4, 5, dtype=WIDE)),
    "addmm": lambda: torch.addmm(normal(7), normal(3, 4), normal(4, 5)),
    "addmm_types": lambda: torch.addmm(normal(5, dtype=NARROW), normal(3, 4), normal(4, 5)),
    "linear": lambda: F.linear(normal(3, 4), normal(5, 6)),
    "linear_types": lambda: F.linear(normal(3, 4), normal(5, 4, dtype=NARROW)),
    "linear_bias_types": lambda: F.linear(normal(3, 4), normal(5, 4), normal(5, dtype=NARROW)),
    "conv": lambda: F.conv2d(normal(1, 3, 5, 5), normal(2, 4, 3, 3)),
    "conv_small": lambda: F.conv2d(normal(1, 3, 2, 2), normal(2, 3, 3, 3)),
    "conv_types": lambda: F.conv2d(normal(1, 3, 5, 5), normal(2, 3, 3, 3, dtype=NARROW)),
    "layer_norm": lambda: F.layer_norm(normal(3, 4), (5,)),
    "layer_norm_weight": lambda: F.layer_norm(normal(3, 4), (4,), normal(5)),
    "layer_norm_types": lambda: F.layer_norm(normal(3, 4), (4,), normal(4, dtype=NARROW)),
    "layer_norm_of_16_bits": lambda: F.layer_norm(normal(3, 4, dtype=NARROW), (4,), normal(4).half()),
    "group_norm": lambda: F.group_norm(normal(3, 4, 5), 3),
    "group_norm_types": lambda: F.group_norm(normal(3, 4, 5), 2, normal(4, dtype=WIDE)),
    "batch_norm": lambda: batch_norm(normal(3)),
    "batch_norm_types": lambda: batch_norm(normal(4, dtype=NARROW)),
    "rms_norm": lambda: F.rms_norm(normal(3, 4), (5,)),
    "rms_norm_weight": lambda: F.rms_norm(normal(3, 4), (4,), normal(3)),
    "softmax": lambda: F.softmax(normal(3, 4), 2),
    "softmax_integers": lambda: F.softmax(torch.ones(3, dtype=torch.int64), 0),
    "softmax_to_float": lambda: torch.ops.aten._softmax(normal(3, 4), 1, True),
    "softmax_to_float_on_the_cpu": lambda: torch.ops.aten._softmax(normal(3, 4).half().cpu(), 1, True),
    "log_softmax": lambda: F.log_softmax(normal(3, 4), -3),
    "cross_entropy": lambda: cross_entropy((1, 2)),
    "cross_entropy_labels": lambda: cross_entropy(dtype=torch.int32),
    "cross_entropy_weights": lambda: cross_entropy(weight=normal(3)),
    "cross_entropy_types": lambda: cross_entropy(weight=normal(4, dtype=NARROW)),
    "cross_entropy_smoothing": lambda: cross_entropy(label_smoothing=2.0),
    "max_pool": lambda: F.max_pool2d(normal(1, 3, 2, 2), 3),
    "max_pool_rank": lambda: F.max_pool2d(normal(3, 3), 2),
    "max_pool3d": lambda: F.max_pool3d(normal(1, 1, 3, 2, 2), 3),
    "avg_pool": lambda: F.avg_pool2d(normal(1, 3, 5, 5), 2, padding=2),
    "sdpa": lambda: sdpa((3, 4), (3, 5), (3, 4)),
    "sdpa_mask": lambda: sdpa((3, 4), (5, 4), (5, 4), attn_mask=normal(3, 4)),
    "dropout": lambda: torch.dropout(normal(3), 1.5, True),
}


def refusal(call) -> tuple[type, str]:
    with pytest.raises((RuntimeError, IndexError, ValueError, NotImplementedError)) as raised:
        call()
    return raised.type, str(raised.value)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_get_the_words_of_torch(name: str, caplog) -> None:
    expected = refusal(REFUSED[name])
    with weft_torch.enable(), caplog.at_level(logging.DEBUG):
        assert refusal(REFUSED[name]) == expected
        assert refusal(REFUSED[name]) == expected  # also where a refusal is cached
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ---- Forward mode ----


@pytest.mark.parametrize("transform", ["jvp", "jacfwd", "hessian"])
def test_forward_mode_of_attention_is_torchs(transform: str) -> None:
    """torch has none for its attention on the CPU; its error is the same with Weft."""
    q, k, v = (normal(1, 2, 3, 4) for _ in range(3))

    def attend(q):
        return F.scaled_dot_product_attention(q, k, v)

    def outcome():
        try:
            if transform == "jvp":
                return torch.func.jvp(attend, (q,), (k,))
            function = attend if transform == "jacfwd" else lambda q: attend(q).sum()
            return getattr(torch.func, transform)(function)(q)
        except NotImplementedError as error:
            return str(error)

    expected = outcome()
    with weft_torch.enable():
        found = outcome()
    assert isinstance(found, str) == isinstance(expected, str)
    if isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


# ---- Labels ----

LABELS = {
    "above": torch.tensor([0, 3, 5, 1]), "below": torch.tensor([0, -1, 2, 1]),
    "far": torch.tensor([0, 2**40, 1, -100]), "least": torch.tensor([0, -(2**63), 1, -100]),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_label_that_names_no_class_is_refused_as_torch_does(
    labels: str, reduction: str, dtype: torch.dtype
) -> None:
    """The same shapes are served before and after. A loss that is NaN for another reason is no error."""
    x, target = torch.randn(4, 5, dtype=dtype), LABELS[labels]
    broken, legal = torch.full((4, 5), torch.nan, dtype=dtype), torch.tensor([0, 4, -100, 1])
    if x.is_cuda:
        pytest.skip("torch ends the process's use of the GPU")

    def call(x, target):
        return F.cross_entropy(x, target, reduction=reduction)

    expected = refusal(lambda: call(x, target))
    assert expected[0] is IndexError
    with weft_torch.enable() as enabled:
        assert not call(x, legal).isnan().any()
        assert refusal(lambda: call(x, target)) == expected
        assert call(broken, legal).isnan().any()
        assert not call(x, legal).isnan().any()
    served = enabled.report()["aten::cross_entropy_loss"]
    assert served == {"served": 3, "cross_entropy: a label is out of range. Leave it to torch.": 1}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_label_that_names_no_class_has_a_loss_and_a_gradient_of_nan(
    weighted: bool, smoothing: float
) -> None:
    """Where nothing looks at the labels, as on a GPU."""
    x, weight = torch.randn(4, 5, requires_grad=True), torch.rand(5) if weighted else None
    target = torch.tensor([0, 5, -100, -1])
    loss = torch.ops.weft.cross_entropy(x, target, weight, 0, -100, smoothing)[0]
    assert loss.isnan().tolist() == [False, True, False, True]
    (dx,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    assert dx.isnan().all(1).tolist() == [False, True, False, True] == dx.isnan().any(1).tolist()
    assert not dx[2].any()


def test_a_compiled_loss_of_a_label_that_names_no_class_is_nan() -> None:
    run = torch.compile(F.cross_entropy, backend=weft_torch.backend)
    assert run(torch.randn(4, 5), torch.tensor([0, 1, 5, 2])).isnan()


# ---- Strides ----


def packed(*shape: int):
    return torch.randn(*shape)


def channels_last(*shape: int):
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def columns_first(*shape: int):
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT


def heads_last(*shape: int):
    return torch.randn(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def packed_copy(x):
    return x.detach().contiguous()


LAYOUTS = (packed, channels_last, columns_first, heads_last)
ATTENTION = {
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x.clone(), x.clone()),
    "sdpa_keys": lambda x: F.scaled_dot_product_attention(packed_copy(x), x, packed_copy(x)),
    "sdpa_values": lambda x: F.scaled_dot_product_attention(packed_copy(x), packed_copy(x), x),
}
IMAGES = {
    "batch_norm": lambda x: F.batch_norm(x, None, None, None, None, True),
    "batch_norm_in_use": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "max_pool_indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "rms_norm_weight": lambda x: F.rms_norm(x, x.shape[-2:], torch.ones(x.shape[-2:])),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "log_softmax_last": lambda x: F.log_softmax(x, -1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.ones(2, 6, 8, dtype=torch.int64)).expand(x.shape),
    "cross_entropy_rows": lambda x: F.cross_entropy(
        x, torch.ones(2, 6, 8, dtype=torch.int64), reduction="none", label_smoothing=0.1
    )[:, None].expand(x.shape),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "conv": lambda x: F.conv2d(x, torch.ones(3, 4, 2, 2)),
}


def strides(function, x, layout):
    x = x.detach().requires_grad_()
    y = function(x)
    loss = torch.ones(()).expand(y.shape) if layout is None else layout(*y.shape)
    return y.stride(), torch.autograd.grad(y, x, loss)[0].stride()


@pytest.mark.parametrize("of_loss", [*LAYOUTS, None])
@pytest.mark.parametrize("of_input", LAYOUTS)
@pytest.mark.parametrize("name", [*IMAGES, *ATTENTION])
def test_results_and_gradients_have_the_strides_of_torch(name: str, of_input, of_loss) -> None:
    function, x = {**IMAGES, **ATTENTION}[name], of_input(2, 4, 6, 8)
    if x.is_cuda:
        pytest.skip("each kernel of torch has strides of its own on a GPU")
    expected = strides(function, x, of_loss)
    with weft_torch.enable() as enabled:
        found = strides(function, x, of_loss)
    assert any("served" in outcomes for outcomes in enabled.report().values())
    assert found == expected
