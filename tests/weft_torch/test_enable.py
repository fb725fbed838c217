"""Weft in place of torch's operators: which calls are served, which fall through and why, and that disable()
restores torch."""

from __future__ import annotations

import copy
import re

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F = torch.nn.functional


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.LayerNorm([6, 6])

    def forward(self, x):
        return torch.softmax(self.norm(self.conv(x)), 1)


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [each.grad.clone() for each in model.parameters()]


def test_a_model_trains_on_weft_and_reports_it() -> None:
    torch.manual_seed(1)
    model, x = Small(), torch.randn(2, 3, 6, 6)
    expected = gradients(model, x)
    with weft_torch.enable() as enabled:
        served = gradients(model, x)
    torch.testing.assert_close(served, expected)
    forward = ("convolution", "native_layer_norm", "_softmax")
    backward = ("convolution_backward", "native_layer_norm_backward", "_softmax_backward_data")
    assert {f"aten::{name}" for name in (*forward, *backward)} == set(enabled.report())
    assert all(outcome == {"served": 1} for outcome in enabled.report().values())


def test_torch_comes_back() -> None:
    x = torch.randn(2, 3)
    with weft_torch.enable(["softmax"]) as enabled:
        torch.softmax(x, 1)
    torch.softmax(x, 1)
    assert enabled.report() == {"aten::_softmax": {"served": 1}}
    enabled.disable()  # once more does no harm


def test_what_weft_leaves_falls_through_with_a_reason() -> None:
    x = torch.randn(1, 2, 5, 5)
    expected = F.avg_pool2d(x, 2, ceil_mode=True)
    with weft_torch.enable(["avg_pool", "softmax"]) as enabled:
        for _ in range(3):
            torch.testing.assert_close(F.avg_pool2d(x, 2, ceil_mode=True), expected)
        assert torch.softmax(torch.empty(0, 3), 1).shape == (0, 3)
    reason = "avg_pool: windows of ceil_mode end beyond the padding. Leave it to torch."
    assert enabled.report() == {"aten::avg_pool2d": {reason: 3}, "aten::_softmax": {"served": 1}}


def test_rows_with_gaps_are_served() -> None:
    x, weight = torch.randn(4, 3, 5).transpose(0, 1).requires_grad_(), torch.randn(2, 5)
    expected = torch.autograd.grad(F.linear(F.layer_norm(x, [5]), weight).square().sum(), x)
    with weft_torch.enable() as enabled:
        found = torch.autograd.grad(F.linear(F.layer_norm(x, [5]), weight).square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-5)
    assert all(outcome.keys() == {"served"} for outcome in enabled.report().values())
    assert {"aten::mm", "aten::native_layer_norm_backward"} < enabled.report().keys()


@pytest.mark.parametrize("how", [(2,), (3, 2, 1, (2, 1), True)])
def test_max_pooling_is_served_both_ways(how) -> None:
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    expected = torch.autograd.grad(F.max_pool2d(x, *how).square().sum(), x)
    with weft_torch.enable(["max_pool", "max_pool_backward"]) as enabled:
        found = torch.autograd.grad(F.max_pool2d(x, *how).square().sum(), x)
    torch.testing.assert_close(found, expected)
    twin = "aten::max_pool2d_with_indices"
    assert enabled.report() == {twin: {"served": 1}, f"{twin}_backward": {"served": 1}}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_norms_of_channels_train_and_are_used(layout) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    )
    model, x = model.to(memory_format=layout), torch.randn(2, 4, 5, 3).contiguous(memory_format=layout)
    other = copy.deepcopy(model)
    expected, used = gradients(other, x), other.eval()(x)
    with weft_torch.enable() as enabled:
        served = gradients(model, x)
        y = model.eval()(x)
    torch.testing.assert_close(served, expected)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))
    torch.testing.assert_close(y, used)
    assert y.stride() == used.stride()
    counts = {"native_batch_norm": 4, "native_batch_norm_backward": 2}
    counts |= {"native_group_norm": 2, "native_group_norm_backward": 1}
    counts |= {"batch_norm": 4} if x.is_cuda else {}
    assert enabled.report() == {f"aten::{name}": {"served": n} for name, n in counts.items()}


@pytest.mark.parametrize("training", [True, False])
def test_parameters_with_gaps_between_elements(training: bool) -> None:
    x, (scale, shift) = torch.randn(4, 3, 5), torch.randn(3, 2).unbind(1)
    after = torch.randn(3), torch.rand(3) + 1
    apart = [torch.stack([each, each], 1)[:, 0] for each in after]
    expected = F.batch_norm(x, *after, scale, shift, training)
    with weft_torch.enable(["batch_norm", "layer_norm"]) as enabled:
        torch.testing.assert_close(F.batch_norm(x, *apart, scale, shift, training), expected)
        rows = F.layer_norm(x.mT, [3], scale, shift)
    torch.testing.assert_close(apart, [*after])
    torch.testing.assert_close(rows, F.layer_norm(x.mT, [3], scale, shift))
    assert all(outcome == {"served": 1} for outcome in enabled.report().values())


def test_batch_norm_of_other_channels_is_refused_in_torchs_words() -> None:
    x, few = torch.randn(4, 3, 5), torch.zeros(2)
    refused = pytest.raises(RuntimeError, match="running_mean should contain 3 elements not 2")
    with weft_torch.enable(["batch_norm"]) as enabled, refused:
        F.batch_norm(x, few, few, training=True)
    assert not any("served" in outcome for outcome in enabled.report().values())


def test_tensors_of_a_class_that_computes_are_torchs() -> None:
    class Counting(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
            with torch._C._DisableTorchDispatch():
                return operator(*args, **(kwargs or {}))

    x = torch.randn(2, 3)
    with weft_torch.enable(["softmax"]) as enabled:
        torch.softmax(x, 1)  # of the same shape, whose plan does not serve the other
        torch.softmax(x.as_subclass(Counting), 1)
        torch.softmax(x.as_subclass(type("Plain", (torch.Tensor,), {})), 1)
    refused = "a tensor of subclass Counting, which overrides operators. Leave it to torch."
    assert enabled.report() == {"aten::_softmax": {"served": 2, refused: 1}}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("offset", [0.0, -300.0, 1e5, 1e7])
def test_cross_entropy_of_logits_far_from_zero(offset: float, smoothing: float) -> None:
    """Loss and gradient are as exact as they are around 0: the maximum is subtracted first."""
    x, labels = torch.randn(8, 300) + offset, torch.arange(8) * 37
    exact, logits = x.double().requires_grad_(), x.requires_grad_()
    expected = F.cross_entropy(exact, labels, reduction="none", label_smoothing=smoothing)
    expected.sum().backward()
    with weft_torch.enable(["cross_entropy"]) as enabled:
        found = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        found.sum().backward()
    assert enabled.report() == {"aten::cross_entropy_loss": {"served": 1}}
    torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=3e-6)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


def test_cross_entropy_is_one_operator() -> None:
    x, labels = torch.randn(5, 4, requires_grad=True), torch.tensor([0, 3, 1, 1, 2])
    expected = torch.autograd.grad(F.cross_entropy(x, labels, label_smoothing=0.1), x)
    with weft_torch.enable(["cross_entropy", "log_softmax"]) as enabled:
        found = torch.autograd.grad(F.cross_entropy(x, labels, label_smoothing=0.1), x)
        with torch.inference_mode():
            F.cross_entropy(x, labels)
        F.cross_entropy(x, torch.softmax(x.detach(), 1))
    torch.testing.assert_close(found, expected)
    refused = "cross_entropy: targets are probabilities. Leave it to torch."
    assert enabled.report() == {
        "aten::cross_entropy_loss": {"served": 2, refused: 1},
        "aten::_log_softmax": {"served": 1},
    }


def test_dropout_is_one_operator() -> None:
    x = torch.ones(50, 40, requires_grad=True)
    with weft_torch.enable(["dropout"]) as enabled:
        y = F.dropout(x, 0.5)
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert F.dropout(x, 0.5, training=False) is x
    assert set(y.unique().tolist()) == {0, 2}
    torch.testing.assert_close(dx, y.detach())
    assert enabled.report() == {"aten::dropout": {"served": 2}}


@pytest.mark.parametrize("columns", [8, 6])  # rows of six begin at multiples of eight
@pytest.mark.parametrize("ends", [[3, 3, 8], [8]])
def test_groups_that_end_begin_where_others_do(ends, columns) -> None:
    """The product, and the gradient of its weights."""
    tokens, weight = torch.randn(8, 16).bfloat16(), torch.randn(len(ends), columns, 16).bfloat16().mT
    dy, offs = torch.randn(8, 8).bfloat16()[:, :columns], torch.tensor(ends, dtype=torch.int32)
    rows = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    product = torch.cat([tokens[each] @ matrix for each, matrix in zip(rows, weight, strict=True)])
    gradient = torch.stack([tokens[each].t() @ dy[each] for each in rows])
    given = (tokens, weight), (tokens.t(), dy)
    with weft_torch.enable(["grouped_mm"]) as enabled:
        found = [torch._grouped_mm(*each, offs=offs) for each in given]
    torch.testing.assert_close(found, [product, gradient])
    torchs = [torch._grouped_mm(*each, offs=offs) for each in given]
    assert [each.stride() for each in found] == [each.stride() for each in torchs]
    assert enabled.report() == {"aten::_grouped_mm": {"served": 2}}


def test_other_operators_are_unchanged() -> None:
    with weft_torch.enable(["conv"]) as enabled:
        torch.softmax(torch.randn(2, 3), 1)
    assert enabled.report() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rms_norm_without_epsilon_adds_that_of_the_type_it_computes_in(dtype) -> None:
    """Small activations show it: that of bfloat16 would be 0.0078."""
    x = (torch.randn(16, 64) * 0.01).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + torch.finfo(wide).eps).sqrt()
    with weft_torch.enable(["rms_norm"]) as enabled:
        found = F.rms_norm(x, (64,))
    torch.testing.assert_close(found, exact.to(dtype))
    assert enabled.report() == {"aten::rms_norm": {"served": 1}}
    torch.testing.assert_close(torch.ops.weft.rms_norm(x, [64], None, None)[0], exact.to(dtype))


def test_each_overload_has_its_own_function() -> None:
    """All overloads of an operator share the packet's name but take different arguments."""
    x, ones = torch.randn(4, 3, 5), torch.ones(3)
    operators = torch.ops.aten._native_batch_norm_legit
    expected = operators.no_stats(x, ones, ones, True, 0.1, 1e-5)
    mean, variance, *running = torch.zeros(3), torch.ones(3), torch.zeros(3), torch.ones(3)
    operators.default(x, ones, ones, *running, True, 0.1, 1e-5)
    with weft_torch.enable(["batch_norm"]) as enabled:
        torch.testing.assert_close(operators.no_stats(x, ones, ones, True, 0.1, 1e-5), expected)
        found = operators.default(x, ones, ones, mean, variance, True, 0.1, 1e-5)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close([mean, variance], running)
    assert enabled.report() == {"aten::_native_batch_norm_legit": {"served": 2}}


def test_flops_of_a_model_with_batch_norm_are_counted_and_it_is_exported() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.BatchNorm1d(4)), torch.randn(4, 3, 5)
    with FlopCounterMode(display=False) as expected:
        model(x).sum().backward()
    with weft_torch.enable():
        with FlopCounterMode(display=False) as found:
            model(x).sum().backward()
        exported = torch.export.export(model, (x,)).run_decompositions().module()
        torch.testing.assert_close(exported(x), model(x))
    assert found.get_total_flops() == expected.get_total_flops()


TRACED = {
    "conv": (F.conv2d, ((1, 2, 7, 6), (3, 2, 3, 3))),
    "linear": (F.linear, ((3, 4), (2, 4), (2,))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "layer_norm": (lambda x: F.layer_norm(x, (11,)), ((3, 11),)),
    "group_norm": (lambda x: F.group_norm(x, 2), ((3, 4, 11),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), ((3, 4, 11),)),
    "rms_norm": (lambda x: F.rms_norm(x, (9,)), ((3, 9),)),
    "softmax": (lambda x: F.softmax(x, -1), ((3, 13),)),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y.softmax(-1).argmax(-1)), ((3, 13), (3, 13))),
    "max_pool": (lambda x: F.max_pool2d(x, 2), ((1, 2, 12, 8),)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), ((1, 2, 12, 18),)),
    "sdpa": (F.scaled_dot_product_attention, ((1, 2, 13, 8),) * 3),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("has_plan", [False, True])
@pytest.mark.parametrize("name", TRACED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_models_are_traced(name: str, has_plan: bool, requires_grad: bool) -> None:
    function, shapes = TRACED[name]
    given = tuple(torch.randn(*shape).requires_grad_(requires_grad) for shape in shapes)
    expected = function(*given)
    weft_torch.clear_cache()
    with weft_torch.enable() as enabled:
        if has_plan:
            function(*given)
        traced = torch.jit.trace(function, given)
        torch.testing.assert_close(traced(*given), expected)
    # torch.jit.trace records what a convolution calls, which Weft does not replace.
    assert name == "conv" or any("served" in outcomes for outcomes in enabled.report().values())


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown operator 'convolution'\. Use names from .*conv, "):
        weft_torch.enable(["convolution"])
    with pytest.raises(ValueError, match=r"unknown device 'tpu' in where\. Use 'cpu' and 'cuda'\."):
        weft_torch.enable(where=["tpu"])
    with pytest.raises(ValueError, match=r"'swiglu' replaces none of .*\. Call torch\.ops\.weft\.swiglu\."):
        weft_torch.enable(["swiglu"])


def test_one_name_needs_no_list() -> None:
    x = torch.randn(2, 3)
    with weft_torch.enable("softmax", x.device.type) as enabled:
        torch.softmax(torch.log_softmax(x, 1), 1)
    assert enabled.report() == {"aten::_softmax": {"served": 1}}


def test_linear_enables_the_products_that_torch_computes_it_of() -> None:
    x, weight, bias = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3), torch.randn(4)
    with weft_torch.enable(["linear", "linear_backward"]) as enabled:
        F.linear(x, weight, bias).softmax(1).sum().backward()
    assert enabled.report() == {"aten::addmm": {"served": 1}, "aten::mm": {"served": 1}}


@pytest.mark.parametrize(
    ("stride", "dilation", "padding", "output_padding"),
    [(1, 2, 0, 1), (2, 3, 1, 2), (1, 3, 2, 2), (2, 4, 0, 3)],
)
def test_output_padding_may_be_between_stride_and_dilation(
    stride: int, dilation: int, padding: int, output_padding: int
) -> None:
    shapes = (2, 3, 5, 4), (3, 2, 3, 2), (2,)
    x, weight, bias = (torch.randn(*each, dtype=torch.float64, requires_grad=True) for each in shapes)

    def run():
        y = F.conv_transpose2d(x, weight, bias, stride, padding, output_padding, 1, dilation)
        loss = torch.arange(y.numel()).sin().view_as(y).to(y)
        return y, *torch.autograd.grad(y, (x, weight, bias), loss)

    expected = run()
    with weft_torch.enable() as enabled:
        torch.testing.assert_close(run(), expected)
    assert all(outcomes == {"served": 1} for outcomes in enabled.report().values())


def test_the_report_states_the_share_of_all_operators() -> None:
    """Weft serves five of about ten compute operators, forward and backward; views are not counted."""
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)

    def step():
        torch.softmax((x @ w).T.exp(), -1).sum().backward()

    with weft_torch.enable(["softmax", "softmax_backward", "mm"]) as enabled:
        step()
        line = str(enabled.report())
        assert line.startswith("Weft served 5 of 5 calls of the operators that it replaces. Run a step under")
        with enabled.measure():
            step()
    pattern = r"Weft served 5 of (\d+) compute operators \((\d+)%\) and (\d+)% of their time\."
    found = re.fullmatch(pattern, str(enabled.report()))
    assert found is not None, str(enabled.report())
    count, share, part = map(int, found.groups())
    assert 8 <= count <= 12
    assert share == round(500 / count)
    assert 0 < part < 100
