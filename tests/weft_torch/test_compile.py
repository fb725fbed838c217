"""torch.compile with Weft as its backend: results and gradients compared with eager torch, and what is
covered."""

from __future__ import annotations

import copy
import operator
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import weft  # noqa: E402
import weft.torch as weft_torch  # noqa: E402
from weft.torch import compile as weft_compile  # noqa: E402
from weft.torch import regions  # noqa: E402
from weft.torch.operators import norms  # noqa: E402
from weft.torch.regions import Cover, Region  # noqa: E402
from weft.torch.rewrites import rewrite  # noqa: E402

FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode

F = torch.nn.functional
EPSILON = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-6}


class Transformer(torch.nn.Module):
    """A GPT-2 block: norm, attention, norm, two layers with GELU."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Residual(torch.nn.Module):
    """Convolutions with batch norm, a residual, and a classifier over the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm1, self.norm2 = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        return self.head(torch.relu(x + self.norm2(self.conv2(x))).mean((2, 3)))


class Volumes(torch.nn.Module):
    """A 3-D U-Net with one level: convolutions, instance norms, max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (torch.nn.Conv3d(n, 2 * n + 2, 3, padding=1) for n in (1, 4))
        self.norm1, self.norm2 = (torch.nn.InstanceNorm3d(n, affine=True) for n in (4, 10))
        self.up, self.head = torch.nn.ConvTranspose3d(10, 4, 2, 2), torch.nn.Conv3d(8, 2, 1)

    def forward(self, x):
        above = F.leaky_relu(self.norm1(self.conv1(x)))
        below = F.leaky_relu(self.norm2(self.conv2(F.max_pool3d(above, 2))))
        return self.head(torch.cat([self.up(below), above], 1))


class Pieces(torch.nn.Module):
    """Views, concatenations, comparisons, broadcasts and reductions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 2, 6))

    def forward(self, x):
        a, b = x.split([2, 4], dim=1)
        joined = torch.cat([b * 2, a.tanh(), torch.stack([a[:, 0], b[:, 1]], 1)[:, :1]], 1)
        shifted = joined - joined.amax(1, keepdim=True)
        weights = shifted.exp() / shifted.exp().sum(1, keepdim=True)
        kept = torch.where(weights > 0.1, weights, weights / 3).unsqueeze(1).expand(-1, 2, -1)
        return (kept.sigmoid() * F.silu(x[:, None]).pow(2).mean(2, keepdim=True)).sum(1)[:, :6] * self.scale


class Gated(torch.nn.Module):
    """A feed-forward layer of Weft's own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Parameter(torch.randn(6, 6) / 2) for _ in range(3))

    def forward(self, x):
        weft = torch.ops.weft
        y = weft.rms_norm(x, [6], None, 1e-5)[0]
        y = weft.swiglu(weft.linear(y, self.gate), weft.linear(y * 2, self.up * 3))
        return weft.linear(y, self.down + self.gate, None, "gelu", x)


CASES = {
    "gated": (Gated, (3, 4, 6)),
    "transformer": (Transformer, (2, 5, 16)),
    "residual": (Residual, (2, 3, 7, 6)),
    "volumes": (Volumes, (2, 1, 4, 6, 4)),
    "pieces": (Pieces, (4, 6)),
}


def made(name: str, dtype=torch.float32):
    model, shape = CASES[name]
    torch.manual_seed(5)
    return model().to(dtype), torch.randn(shape, dtype=torch.float64).to(dtype)


def everything(run, model, x):
    """Returns the result, the gradients, and the updated buffers."""
    x = x.clone().requires_grad_()
    y = run(x)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype))
    return [y, x.grad, *(each.grad for each in model.parameters()), *model.buffers()]


def compiled(model, cover, inductor=False, **how):
    """inductor: whether it compiles the remaining operators, which takes seconds."""
    torch._dynamo.reset()
    options = {"inductor": inductor}
    return torch.compile(model, backend=lambda m, e: weft_compile.backend(m, e, cover, options), **how)


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, dtype) -> None:
    model, x = made(name, dtype)
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    cover = Cover()
    found = everything(compiled(model, cover, fullgraph=True), model, x)
    torchs, exact = everything(eager, eager, x), everything(exact, exact, x.double())
    for own, other, truth in zip(found, torchs, exact, strict=True):
        assert own.dtype == other.dtype
        bound = 2 * (other - truth).abs().max() + EPSILON[dtype] * (1 + truth.abs().max())
        assert (own - truth).abs().max() <= bound
    assert cover.refused == []
    assert len(cover.graphs) == len(cover.regions)


def test_a_block_is_one_graph_each_way() -> None:
    model, x = made("transformer")
    cover = weft_torch.explain(model, x.requires_grad_())
    assert [len(each.operators()) for each in cover.regions] == [10, 19]
    assert not cover.left
    text = str(cover)
    assert text.startswith("29 operators in 2 regions, 2 graphs built\n  0: native_layer_norm.default, addmm")
    assert text.count("graph 'compiled' on ") == 2
    assert cover.graphs[0].plot().count("layernorm") >= 2


def test_a_unet_of_volumes_is_one_graph_each_way() -> None:
    model, x = made("volumes")
    cover = weft_torch.explain(model, x)
    assert [len(each.operators()) for each in cover.regions] == [14, 14]
    assert not cover.left
    assert not cover.refused


def test_channels_last() -> None:
    """The remaining operators split the model into regions; some read values that no result of theirs depends
    on."""
    layout = {"memory_format": torch.channels_last}
    torch.manual_seed(5)
    layers = torch.nn.GroupNorm(2, 8), torch.nn.ReLU(), torch.nn.ELU(), torch.nn.Conv2d(8, 4, 3)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *layers)
    model, x = model.to(**layout), torch.randn(2, 3, 9, 8).contiguous(**layout)
    eager, cover = copy.deepcopy(model), Cover()
    found = everything(compiled(model, cover), model, x)
    torch.testing.assert_close(found, everything(eager, eager, x), rtol=1e-4, atol=1e-5)
    assert cover.refused == []
    assert {name for name, _ in cover.left} == {"elu.default", "elu_backward.default"}


def region_of(target, results: int, *arguments):
    """A region of one operator, whose tensors stand as ...: its cover, and what computes its results."""
    graph, cover = torch.fx.Graph(), Cover()
    given = [graph.placeholder(f"x{i}") if each is ... else each for i, each in enumerate(arguments)]
    called = graph.call_function(target, tuple(given))
    graph.output(tuple(graph.call_function(operator.getitem, (called, i)) for i in range(results)))
    return cover, Region(torch.fx.GraphModule(torch.nn.Module(), graph), cover)


@pytest.mark.parametrize("rows", [5, 32, 33])
def test_statistics_are_padded_as_torchs_attention_of_a_gpu_has_them(rows: int) -> None:
    torch.manual_seed(5)
    attend, backward = (
        getattr(torch.ops.aten, f"_scaled_dot_product_efficient_attention{ending}").default
        for ending in ("", "_backward")
    )
    q, k, v, do = (torch.randn(2, 3, rows, 8, requires_grad=True) for _ in range(4))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
    cover, run = region_of(attend, 2, *[...] * 3, None, True, 0.0, True)
    with torch.no_grad():
        o, lse = run(q, k, v)
        torch.testing.assert_close(o, expected)
        assert lse.shape == (2, 3, -(-rows // 32) * 32)
        torch.testing.assert_close(lse[:, :, :rows], scores.logsumexp(-1))
        assert (lse[:, :, rows:] == torch.inf).all()
        cover_alone, alone = region_of(attend, 1, *[...] * 3, None, False, 0.0, True)
        torch.testing.assert_close(alone(q, k, v), o)
        how = 0.0, [True, True, True, False], True
        cover_back, back = region_of(backward, 3, *[...] * 4, None, *[...] * 4, *how)
        seed = torch.zeros((), dtype=torch.int64)
        found = back(do, q, k, v, o, lse, seed, seed)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (q, k, v), do))
    assert not cover.refused + cover_alone.refused + cover_back.refused


def test_copies_have_the_layout_that_torch_expects() -> None:
    """By default Weft's results have the layout of their sources."""

    def model(x):
        return x.clone(memory_format=torch.contiguous_format), torch.relu(x.flip(0) * 2), torch.tanh(x)

    x = torch.randn(2, 5, 3).permute(0, 2, 1)
    found, expected = compiled(model, Cover())(x), model(x)
    torch.testing.assert_close(found, expected)
    assert [each.stride() for each in found] == [each.stride() for each in expected]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_sum_of_permuted_products_is_fused_into_the_product(is_last: bool) -> None:
    """Fused twice, if the first sum is permuted back; with channels first each sum stays a separate step."""

    def model(x, w):
        for _ in range(2):
            x = x + (F.relu(x).permute(0, 2, 3, 1) @ w).permute(0, -1, 1, 2)
        return x

    form = torch.channels_last if is_last else torch.contiguous_format
    x, w, cover = torch.randn(2, 8, 3, 5).to(memory_format=form), torch.randn(8, 8), Cover()
    with torch.no_grad():
        found, expected = compiled(model, cover)(x, w), model(x, w)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    steps = [step["family"].split(".")[1] for step in cover.graphs[0].plan.report["steps"]]
    assert (steps == ["map", "contraction"] * 2) == is_last


def test_other_lengths_are_graphs_of_their_own() -> None:
    model, _ = made("transformer")
    cover = Cover()
    run = compiled(model, cover, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5, 3):
            x = torch.randn(batch, 4, 16)
            torch.testing.assert_close(run(x), model(x))
    assert len(cover.graphs) == 3


def test_a_region_distinguishes_other_tensors_from_its_first() -> None:
    x, other = torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)
    cover, region = region_of(torch.ops.aten.native_layer_norm.default, 3, ..., [6], None, None, 1e-5)
    kinds = [x, x.T.contiguous().T, x.double(), torch.randn(3, 6), x[::2]]  # a graph each
    for each in (*kinds, *kinds, other, torch.nn.Parameter(other)):
        expected = torch.native_layer_norm(each.detach(), [6], None, None, 1e-5)
        torch.testing.assert_close(region(each), expected)
    assert len(cover.graphs) >= len(kinds)
    graphs = len(cover.graphs)
    region(other + 1)
    assert len(cover.graphs) == graphs


def parts_of_one(x):
    q, k, v = x.view(2, 6, 3, 4, 5).permute(2, 0, 3, 1, 4)
    return q * k + v


def slices(x):
    return x[:, :2] * x[:, 2:4] + x[:, 4:]


WHOLE = {
    "repetitions": (
        lambda x: x.repeat(2, 1, 3, 2, 1) * 2,
        (4, 3, 2),
        ["mul.Tensor", *["sum.dim_IntList"] * 3],
    ),
    "leaky relu": (
        lambda x: F.leaky_relu(x * 2, -0.5),
        (2, 4, 7, 6),
        ["leaky_relu_backward.default", "mul.Tensor"],
    ),
    "selects": (parts_of_one, (2, 6, 60), ["mul.Tensor", "mul.Tensor", "cat.default"]),
    "slices": (slices, (2, 6, 60), ["mul.Tensor", "mul.Tensor", "cat.default"]),
    "upsampling": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest").sigmoid() * 2,
        (2, 4, 5, 3),
        ["mul.Tensor", "sigmoid_backward.default", "sum.dim_IntList"],
    ),
    "upsampling to a size": (
        lambda x: F.interpolate(x, size=(4, 2, 9), mode="nearest") * 2,
        (1, 2, 2, 2, 3),
        ["mul.Tensor", "sum.dim_IntList"],
    ),
    "a mean of each channel": (
        lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1) * 2),
        (2, 4, 5, 3),
        [
            *("mul.Tensor", "mul.Tensor", "sum.dim_IntList", "sigmoid_backward.default"),
            *("mul.Tensor", "div.Scalar", "add.Tensor"),
        ],
    ),
    "maxima": (
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True) * 2,
        (2, 4, 7, 6),
        ["mul.Tensor", "weft.max_pool_values_backward.default"],
    ),
    "maxima of volumes": (
        lambda x: F.max_pool3d(x * 3, 2),
        (2, 4, 4, 7, 6),
        ["weft.max_pool_values3d_backward.default", "mul.Tensor"],
    ),
    "maxima of windows with gaps": (
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (2, 3), ceil_mode=True) * 2,
        (2, 4, 8, 7),
        ["mul.Tensor", "weft.max_pool_values_backward.default"],
    ),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_decomposed_operators_form_one_region_per_direction(name: str, last: bool) -> None:
    model, shape, backward = WHOLE[name]
    x, cover = torch.randn(shape), Cover()
    if last and x.ndim > 3:
        x = x.to(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    found, expected = compiled(model, cover)(inputs[0]), model(inputs[1])
    dy = torch.randn_like(expected)
    found.backward(dy)
    expected.backward(dy)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    if not (x.is_cuda and name == "upsampling to a size"):  # torch's fake tensors have another order there
        assert found.stride() == expected.stride()
    assert not cover.left
    assert not cover.refused
    assert [each.operators() for each in cover.regions][1:] == [backward]
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, cover)(x), expected)
    assert not cover.left


PIECES = {
    "one part": (lambda x: x[:, 1] * 2, "select_backward.default"),
    "overlapping slices": (lambda x: x[:, :4] * x[:, 2:], "slice_backward.default"),
    "uneven upsampling": (lambda x: F.interpolate(x, size=(7, 5)) * 2, "_unsafe_index.Tensor"),
    "places of maxima": (lambda x: torch.mul(*F.max_pool2d(x, 2, return_indices=True)), "mul.Tensor"),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_is_not_whole_stays_torchs(name: str) -> None:
    model, left = PIECES[name]
    cover, x = Cover(), torch.randn(2, 6, 5, 4)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    found, expected = compiled(model, cover)(inputs[0]), model(inputs[1])
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    assert left in {each for each, _ in cover.left}


def norm_graph(shape):
    """A group norm of channels last, after which channels stand first, as on a GPU; seen in a shape."""
    aten, graph = torch.ops.aten, torch.fx.Graph()
    with FakeTensorMode() as mode:
        x = torch.empty(2, 4, 3, 5).to(memory_format=torch.channels_last)
        made = torch.empty(2, 4, 3, 5), torch.empty(2, 2), torch.empty(2, 2)
    node = graph.placeholder("x")
    norm = graph.call_function(aten.native_group_norm.default, (node, None, None, 2, 4, 15, 2, 1e-5))
    first = graph.call_function(operator.getitem, (norm, 0))
    shown = graph.call_function(aten.view.default, (first, shape))
    with mode:
        values = x, made, made[0], made[0].view(shape)
    for each, value in zip((node, norm, first, shown), values, strict=True):
        each.meta["val"] = value
    graph.output((shown,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("shape", [[2, 2, 2, 15], [2, 60]])
def test_norms_keep_channels_last_up_to_a_view_that_wants_them_first(shape) -> None:
    """A copy is inserted before a view that those strides do not support, and before a result with another
    layout."""
    graph = rewrite(norm_graph(shape))
    aten, targets = torch.ops.aten, [each.target for each in graph.graph.nodes]
    assert torch.ops.weft.group_norm.default in targets
    place = targets.index(aten.clone.default) - targets.index(aten.view.default)
    assert place == (-1 if shape == [2, 60] else 2)
    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    found, expected = graph(x)[0], F.group_norm(x, 2).reshape(shape)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous()


class Level(torch.nn.Module):
    """A level of a U-Net, of whose images a GPU's group norm puts the channels first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(8, n) for n in (width, width, 2 * width))
        self.convs = torch.nn.ModuleList(
            torch.nn.Conv2d(n, width, 3, padding=1) for n in (width, width, width, 2 * width)
        )

    def forward(self, x):
        y = x
        for norm, conv in zip(self.norms[:2], self.convs, strict=False):
            y = conv(F.silu(norm(y.contiguous())))
        y = self.convs[2](F.interpolate(x + y, scale_factor=2.0, mode="nearest"))
        joined = torch.cat([y, F.interpolate(x, scale_factor=2.0, mode="nearest").sigmoid()], 1)
        return self.convs[3](F.silu(self.norms[2](joined.contiguous())))


@pytest.mark.filterwarnings("ignore:torch.compile")
def test_a_unet_with_channels_last_moves_nothing_on_a_gpu(monkeypatch) -> None:
    """Planned for an H200; torch computes the values."""
    planned = []

    class Elsewhere(weft.Graph):
        def build(self):
            self.build_operation_graph()
            answer = next(each for each in self.support() if each["supported"])
            planned.append([family.partition(".")[2] for family in answer["families"]])
            raise weft.NotSupportedError("planned alone.")

    types = {"device": "sm_90", "io_data_type": "bf16", "compute_data_type": "f32"}
    monkeypatch.setattr(norms, "_is_apart_on_the_cpu", lambda _: False, raising=False)
    monkeypatch.setattr(regions, "_graph_of", lambda *_: Elsewhere(**types))
    monkeypatch.setattr(regions._SeparateInterpreter, "run", lambda *_: None)  # plan only whole regions
    torch.manual_seed(5)
    layout = {"memory_format": torch.channels_last, "dtype": torch.bfloat16}
    with torch.device("cpu"):  # everywhere: what is asked for is the plan
        model, x = Level(64).to(**layout), torch.randn(2, 64, 16, 16).to(**layout)
        eager, cover = copy.deepcopy(model), Cover()
        found, expected = everything(compiled(model, cover), model, x), everything(eager, eager, x)
    for one, other in zip(found, expected, strict=True):  # torch rounds to bf16 elsewhere on other CPUs
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.dist(one.double(), other.double()) < 2**-7 * other.double().norm()
    assert not cover.left
    assert [why for _, why in cover.refused] == ["planned alone."] * 2
    forward, backward = map(Counter, planned)
    # What is upsampled is read at once by one map, and written by another; one map sums pairs of gradients.
    assert (forward["map"], forward["move"], forward["packed"]) == (2, 1, 0)
    assert (backward["map"], backward["move"], backward["packed"]) == (1, 0, 0)


def test_dropout_keeps_a_seed_for_its_gradient() -> None:
    """No mask is stored: the gradient recomputes it."""
    cover, x = Cover(), torch.ones(40, 50, requires_grad=True)
    run = compiled(lambda x: F.dropout(x * 2, 0.25), cover)
    y = run(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert set(y.unique().tolist()) == {0, y.new_tensor(2 / 0.75).item()}
    assert y.count_nonzero().item() / y.numel() == pytest.approx(0.75, abs=0.05)  # 5 deviations
    assert not torch.equal(run(x), y)
    assert [each.operators() for each in cover.regions] == [
        ["mul.Tensor", "weft.dropout.default"],
        ["weft.dropout.default", "mul.Tensor"],
    ]
    assert {each for each, _ in cover.left} == {"randint.default"}


def test_heads_that_are_repeated_in_a_region() -> None:
    """In eager torch the repeated heads are one in memory, in the region they need not be."""

    def model(q, k):
        keys = (k * 2)[:, :, None].expand(2, 1, 2, 5, 8).reshape(2, 2, 5, 8)
        return F.scaled_dot_product_attention(q, keys, keys.sin())

    torch.manual_seed(5)
    tensors, cover = (torch.randn(2, 2, 5, 8), torch.randn(2, 1, 5, 8)), Cover()
    given, other = ([each.clone().requires_grad_() for each in tensors] for _ in range(2))
    found, expected = compiled(model, cover)(*given), model(*other)
    for each in (found, expected):
        each.square().sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close([e.grad for e in given], [e.grad for e in other])
    assert not cover.refused


LOSSES = {
    "mean": {},
    "sum of weighted": {"reduction": "sum", "weight": True},
    "each, ignoring": {"reduction": "none", "ignore_index": 3},
    "images": {},
    "one row": {},
}


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_computed_from_its_logits(name: str, dtype) -> None:
    """Between forward and backward there are two numbers per row in float32, and no copy of the logits."""
    torch.manual_seed(5)
    weight = torch.linspace(0.5, 2, 7) if "weight" in LOSSES[name] else None
    shape = {"images": (2, 7, 3, 4), "one row": (7,)}.get(name, (6, 7))
    labels = torch.randint(0, 7, (shape[:1] + shape[2:]) if len(shape) > 1 else ())
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def loss(y):
        how = {**LOSSES[name], "weight": None if weight is None else weight.to(y.dtype)}
        return F.cross_entropy(y, labels, **how)

    def model(x):
        y = x * 2
        return loss(y.to(wide)).sum(), y

    x, cover = torch.randn(shape, dtype=torch.float64), Cover()
    given, exact = x.to(dtype).requires_grad_(), x.to(dtype).double().requires_grad_()
    found = compiled(model, cover)(given)[0]
    found.backward()
    truth = loss(exact * 2).sum()
    truth.backward()
    assert found.dtype == wide
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    assert abs(found - truth) <= (bound if dtype != torch.bfloat16 else 1e-5) * (1 + abs(truth))
    assert (given.grad - exact.grad).abs().max() <= bound * exact.grad.abs().max()
    stored = [each.meta["val"] for each in cover.regions[0].bases]
    large = [each.dtype for each in stored if each.numel() == x.numel()]
    assert large == [dtype]
    assert not cover.left
    assert not cover.refused


def test_losses_of_batches_of_any_size_store_no_probabilities() -> None:
    def model(x, labels):
        return F.cross_entropy(x * 2, labels)

    cover = Cover()
    run = compiled(model, cover, dynamic=True)
    for n in (4, 6):
        x, labels = torch.randn(n, 5), torch.randint(0, 5, (n,))
        given, other = (x.clone().requires_grad_() for _ in range(2))
        found, expected = run(given, labels), model(other, labels)
        found.backward()
        expected.backward()
        torch.testing.assert_close([found, given.grad], [expected, other.grad])
    operators = [[each for each in region.operators() if "entropy" in each] for region in cover.regions]
    assert operators == [["weft.cross_entropy.default"], ["weft.cross_entropy_backward.default"]]


def test_log_probabilities_that_are_read_stay() -> None:
    def model(x, labels):
        scores = F.log_softmax(x, 1)
        return F.nll_loss(scores, labels) + F.cross_entropy(x * 3, labels, label_smoothing=0.1), scores

    x, labels, cover = torch.randn(4, 5), torch.tensor([1, 0, 4, 2]), Cover()
    given, other = (x.clone().requires_grad_() for _ in range(2))
    for run, each in ((compiled(model, cover), given), (model, other)):
        loss, scores = run(each, labels)
        (loss + scores.square().sum()).backward()
    torch.testing.assert_close(given.grad, other.grad)


def test_copies_in_a_wider_type_are_read_narrow() -> None:
    """Also of views, by products, which require one type, as results, and next to wider operands."""

    def model(x, y, w):
        wide = (x * 2).float()
        shown = wide.view(3, 2, 4)
        return shown.square().mean(1), wide + y, wide @ w, wide, shown.transpose(0, 1).softmax(-1) * 2

    cover = Cover()
    x, y, w = torch.randn(6, 4).bfloat16(), torch.randn(6, 4), torch.randn(4, 5)
    tensors = [[each.clone().requires_grad_() for each in (x, y, w)] for _ in range(2)]
    found, expected = compiled(model, cover)(*tensors[0]), model(*tensors[1])
    for results in (found, expected):
        sum(each.square().sum() for each in results).backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(*tensors, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2**-6, atol=2**-6)
    assert not cover.left
    assert not cover.refused


def test_reductions_and_expansions_of_one_number() -> None:
    def model(x):
        y = (x * 2).sum()
        return y.sum(), y.mean(), y.expand([]), y.amax() + x

    x, cover = torch.randn(3), Cover()
    given, other = (x.clone().requires_grad_() for _ in range(2))
    found, expected = compiled(model, cover)(given), model(other)
    torch.testing.assert_close(found, expected)
    for results in (found, expected):
        sum(each.sum() for each in results[:3]).backward()
    torch.testing.assert_close(given.grad, other.grad)
    assert not cover.refused


def grouped(x, weight, ends):
    return F.silu(F.grouped_mm(x * 2, weight, offs=ends))


def twice_grouped(x, weight, ends):
    """Weights are permuted views, like those of transformers' experts."""
    y = F.grouped_mm(x, weight.transpose(-2, -1), offs=ends)
    return F.grouped_mm(F.silu(y), weight.relu().transpose(-2, -1), offs=ends)


def grouped_by_weft(x, weight, ends):
    """Both operands are computed in the graph, and so is the gradient of each."""
    return torch.ops.weft.grouped_mm(x * 2, weight * 0.5, ends[:-1])


def grouped_by_torch(x, weight, ends):
    return F.grouped_mm(x * 2, weight * 0.5, offs=ends)


EXPERTS = {
    "grouped": (grouped, 32, ["_grouped_mm.default"], ["_grouped_mm.default"] * 2),
    "twice grouped": (twice_grouped, 16, ["_grouped_mm.default"] * 2, ["_grouped_mm.default"] * 4),
    "grouped by Weft": (
        grouped_by_weft, 16, ["weft.grouped_mm.default"], ["weft.grouped_mm_backward.default"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_in_regions_both_ways(name: str) -> None:
    """Both products, the gradient of weights too; empty groups."""
    model, columns, *products = EXPERTS[name]
    torch.manual_seed(5)
    ends = torch.tensor([3, 3, 12], dtype=torch.int32)
    tensors = torch.randn(12, 16).bfloat16(), torch.randn(3, 16, columns).bfloat16()
    given, other = ([each.clone().requires_grad_() for each in tensors] for _ in range(2))
    cover = Cover()
    found = compiled(lambda *operands: model(*operands, ends), cover)(*given)
    in_torch = grouped_by_torch if model is grouped_by_weft else model
    expected = in_torch(*other, ends)
    loss = torch.randn_like(expected)
    found.backward(loss)
    expected.backward(loss)
    near = {"rtol": 2**-6, "atol": 2**-6}
    torch.testing.assert_close(found, expected, **near)
    for own, truth in zip(given, other, strict=True):
        near["atol"] = 2**-6 * truth.grad.abs().max().item()
        torch.testing.assert_close(own.grad, truth.grad, **near)
    regions = [[each for each in region.operators() if "grouped" in each] for region in cover.regions]
    assert regions == products
    assert {name for name, _ in cover.left} <= {"slice.Tensor"}  # of the ends of groups
    assert not cover.refused


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.as_strided(x * 2, (3, 4), (2, 3)) + 1,  # some elements twice
        lambda x: torch.as_strided(x * 2, (4, 5), (1, 4)) + 1,  # in another order
        lambda x: torch.as_strided(x * 2, (2, 3), (3, 1), 5) + 1,  # a part
        lambda x: torch.as_strided_scatter(x * 2, torch.ones(2, 3), (2, 3), (3, 1), 4) + 1,
        lambda x: torch.as_strided_scatter(x * 2, torch.ones(5, 4).T, (4, 5), (1, 4)) + 1,
        lambda x: torch.as_strided_scatter(x * 2, torch.ones(4, 5).double(), (4, 5), (5, 1)) + 1,
        lambda x: torch.ops.aten.copy(x * 2, torch.ones(5)) + 1,
        lambda x: torch.ops.aten.copy(x * 2, torch.full((4, 5), 1.5, dtype=torch.float64)) + 1,
    ],
)
def test_other_strides_are_torchs(model: Callable[[Any], Any]) -> None:
    x, cover = torch.randn(4, 5), Cover()
    torch.testing.assert_close(compiled(model, cover)(x), model(x))
    names = {name for name, _ in cover.left}
    assert names & {"as_strided.default", "as_strided_scatter.default", "copy.default"}, names


def test_as_strided_with_unchanged_layout_is_a_view() -> None:
    aten, x = torch.ops.aten, torch.randn(2, 6)

    def pieces(x):
        y = aten.as_strided(x * 2, [2, 3, 2, 1], [6, 2, 1, 7])
        zeros = aten.new_zeros(x, [12])
        part = aten.copy(aten.as_strided(zeros, [2, 6], [6, 1]), x)
        return y + 1, aten.as_strided_scatter(zeros, part, [2, 6], [6, 1], 0) + 1

    graph = rewrite(torch.fx.experimental.proxy_tensor.make_fx(pieces, tracing_mode="fake")(x))
    targets = {each.target for each in graph.graph.nodes}
    assert not targets & {aten.as_strided.default, aten.as_strided_scatter.default, aten.copy.default}
    torch.testing.assert_close(graph(x), pieces(x))


def test_silus_gradient_is_one_operation() -> None:
    """torch decomposes it if tensors are on another device."""
    aten, (dy, x) = torch.ops.aten, torch.randn(2, 2, 3, dtype=torch.float64)

    def pieces(dy, x):
        gate = torch.sigmoid(x)
        ones = aten.fill.Scalar(torch.empty_like(gate), 1)
        slope = x * (ones - gate)
        return dy * (gate * aten.add.Scalar(slope, 1)), dy * (gate * aten.add.Scalar(slope, 2))

    graph = rewrite(torch.fx.experimental.proxy_tensor.make_fx(pieces, tracing_mode="fake")(dy, x))
    targets = Counter(each.target for each in graph.graph.nodes)
    assert (targets[aten.silu_backward.default], targets[aten.sigmoid.default]) == (1, 1)
    torch.testing.assert_close(graph(dy, x), pieces(dy, x))


def test_what_weft_leaves_is_torchs_with_a_reason() -> None:
    def model(x):
        return (x * 2).cumsum(0).relu() + torch.arange(3, device=x.device).float()

    cover, x = Cover(), torch.randn(4, 3)
    torch.testing.assert_close(compiled(model, cover)(x), model(x))
    assert cover.left["cumsum.default", "not supported by Weft"] == 1
    assert "torch computes 1 x cumsum.default: not supported by Weft" in str(cover)


class Left(torch.nn.Module):
    """Regions around operators that Weft does not support, an updated buffer, a view of the input, a
    constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 6) / 2)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        y = torch.softmax(x @ self.weight, -1)
        self.seen.add_(y.detach().sum(0).cumsum(0))
        added = y.cumsum(1).flip(1) + torch.tensor([0.5, 1, 2, 3, 4, 5], device=x.device)
        return torch.relu(added.sort(1).values @ self.weight) * 2, x[:, 1:], y.argmax(1)


def test_inductor_compiles_unsupported_operators() -> None:
    """Compiled once for all batch sizes."""
    torch.manual_seed(5)
    model, cover = Left(), Cover()
    eager, run = copy.deepcopy(model), compiled(model, cover, inductor=True, dynamic=True)
    for batch in (4, 3, 7):
        given, other = (torch.linspace(-2, 3, batch * 6).view(batch, 6).requires_grad_() for _ in range(2))
        found, expected = run(given), eager(other)
        torch.testing.assert_close(found, expected)
        assert found[1].data_ptr() == given[:, 1:].data_ptr()
        (found[0].square().sum() + found[1].sum()).backward()
        (expected[0].square().sum() + expected[1].sum()).backward()
        torch.testing.assert_close(given.grad, other.grad)
        torch.testing.assert_close([*model.buffers()], [*eager.buffers()])
        torch.testing.assert_close(model.weight.grad, eager.weight.grad, rtol=1e-5, atol=1e-5)
    assert (cover.compiled, cover.eager_reasons) == (2, [])
    assert "\nInductor compiles the other operators of 2 graphs\n" in str(cover)
    assert len(cover.graphs) == 3 * len(cover.regions)
    assert not cover.refused


def test_without_inductor_what_weft_leaves_runs_one_by_one(monkeypatch) -> None:
    def refuse(*_):
        raise RuntimeError("no compiler here.")

    monkeypatch.setattr(weft_compile.inductor, "compile", refuse)
    model, x, cover = Left(), torch.randn(4, 6), Cover()
    with torch.no_grad():
        eager = copy.deepcopy(model)
        torch.testing.assert_close(compiled(model, cover, inductor=True)(x), eager(x))
        torch.testing.assert_close(model.seen, eager.seen)
    told = "\ntorch runs the operators of a graph one by one: RuntimeError: no compiler here.\n"
    assert told in str(cover)


def test_a_single_remaining_operator_is_not_compiled() -> None:
    """There is no other operator to fuse it with."""
    x, alone = torch.randn(4, 6), Cover()
    run = compiled(lambda x: x.relu().cumsum(0), alone, inductor=True)
    torch.testing.assert_close(run(x), x.relu().cumsum(0))
    assert (alone.compiled, alone.eager_reasons) == (0, [])
    assert sum(alone.left.values()) == 1


@pytest.mark.parametrize("mode", weft_compile.inductor.MODES)
def test_modes_of_torch_compile_are_accepted(mode: str) -> None:
    def model(x):
        return torch.softmax(x @ x.t(), -1)

    x = torch.randn(4, 6)
    run = torch.compile(model, backend=weft_torch.backend, mode=mode)
    torch.testing.assert_close(run(x), model(x))


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Exception, match=r"unknown mode: expected one of 'default', .*, got 'fast'"):
        torch.compile(torch.sin, backend=weft_torch.backend, mode="fast")(torch.ones(2))


class Outputs(OrderedDict):
    """As ModelOutput of transformers: a mapping whose results have names."""


def test_explain_takes_named_arguments_and_results_in_mappings() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x, *, scale):
            y = self.layer(x) * scale
            return Outputs(hidden=(y, None), loss=torch.softmax(y, -1).square().sum())

    x, scale = torch.randn(3, 4), torch.tensor(2.0)
    assert len(weft_torch.explain(Model(), x, scale=scale).graphs) == 2  # one each way
    assert len(weft_torch.explain(Model(), x, scale=scale, backward=False).graphs) == 1


def test_options_that_are_none() -> None:
    run = torch.compile(torch.relu, backend=weft_torch.backend, options={"fuse": True})
    with pytest.raises(Exception, match=r"unknown option: expected \"inductor\", got 'fuse'\. Remove it\."):
        run(torch.ones(3))


def test_operators_on_no_elements_are_torchs() -> None:
    def model(x):
        return torch.relu(x) * 2

    cover, x = Cover(), torch.randn(0, 3)
    assert compiled(model, cover)(x).shape == (0, 3)
    why = "a tensor without elements."
    assert cover.left == {("relu.default", why): 1, ("mul.Tensor", why): 1}
    assert cover.regions == []


def test_empty_parts_of_a_concatenation_add_nothing() -> None:
    """A cache of keys begins with a vector of no elements, next to tensors of four dimensions."""

    def model(x, y):
        nothing, whole = torch.tensor([], dtype=x.dtype), torch.cat([y[:, :0], y], 1)
        return torch.cat([nothing, x * 2], -2), torch.cat([y[:0], x, nothing, whole * 3], 0)

    torch.manual_seed(5)
    tensors, cover = [torch.randn(2, 3, 4, 5) for _ in range(2)], Cover()
    given, other = ([each.clone().requires_grad_() for each in tensors] for _ in range(2))
    found, expected = compiled(model, cover)(*given), model(*other)
    torch.testing.assert_close(found, expected)
    sum(each.square().sum() for each in found).backward()
    sum(each.square().sum() for each in expected).backward()
    torch.testing.assert_close([e.grad for e in given], [e.grad for e in other])
    assert "cat.default" not in {name for name, _ in cover.left}
    assert not cover.refused


def refusing(model, cover, *tensors) -> list[str]:
    """Runs a compiled model with an unsupported operator twice; returns the warnings."""
    regions._warn.cache_clear()
    given, other = ([each.clone().requires_grad_() for each in tensors] for _ in range(2))
    run = compiled(model, cover, dynamic=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            found, expected = run(*given), model(*other)
            torch.testing.assert_close(found, expected)
            for each in (found, expected):
                sum(result.square().sum() for result in each).backward()
            torch.testing.assert_close([e.grad for e in given], [e.grad for e in other])
    return [str(each.message) for each in caught if "weft" in str(each.message)]


def test_an_operator_on_no_elements_is_cut_out_of_its_region() -> None:
    """Sizes are symbols until it runs, so that the region contains the operator."""

    def model(x, y):
        z = (x * 2).softmax(-1) @ x.mT + 1
        return z.tanh(), torch.cat([y.relu(), x]) * 3

    cover = Cover()
    warned = refusing(model, cover, torch.randn(5, 4), torch.randn(0, 4))
    why = "a tensor without elements."
    assert cover.refused[0] == (["relu.default"], why)
    operators = {"relu.default", "threshold_backward.default"}
    assert {name for names, _ in cover.refused for name in names} <= operators
    assert warned[0] == (
        f'torch.compile(backend="weft"): torch computes relu.default: {why} weft.torch.explain() lists all '
        "operators that it computes."
    )
    assert len(warned) == len(cover.refused)
    assert len(cover.graphs) >= 2


def test_what_weft_does_not_build_is_cut_out_of_its_region(monkeypatch) -> None:
    class Refusing(weft.Graph):
        has_tan = False

        def tan(self, *arguments, **named):
            self.has_tan = True
            return super().tan(*arguments, **named)

        def build(self):
            if self.has_tan:
                raise weft.NotSupportedError("no tangents.")
            return super().build()

    monkeypatch.setattr(regions, "Graph", Refusing)

    def model(x):
        y = torch.sigmoid(x * 2)
        return torch.relu(torch.tan(y) + y).softmax(-1), y @ y.mT

    cover = Cover()
    warned = refusing(model, cover, torch.randn(5, 4))
    assert (["tan.default"], "no tangents.") in cover.refused
    assert {name for names, _ in cover.refused for name in names} == {"tan.default"}
    assert len(warned) == 1
    assert len(cover.graphs) > len(cover.regions)  # of the parts


def test_a_softmax_of_masked_rows_gives_zeros() -> None:
    aten, x, cover = torch.ops.aten, torch.randn(3, 4), Cover()
    x[1], x[2, 1] = -torch.inf, -torch.inf
    given, other = (x.clone().requires_grad_() for _ in range(2))

    def model(x):
        return aten._safe_softmax(x * 2, -1)

    found, expected = compiled(model, cover)(given), model(other)
    torch.testing.assert_close(found, expected)
    for each in (found, expected):
        each.square().sum().backward()
    torch.testing.assert_close(given.grad, other.grad)
    assert not cover.left


def test_a_block_trains_as_it_does_in_eager_torch() -> None:
    losses = []
    for run_as in ("eager", "weft"):
        model, x = made("transformer")
        run = model if run_as == "eager" else compiled(model, Cover())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(5):
            optimiser.zero_grad()
            loss = (run(x) - x.flip(1)).square().mean()
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_the_package_registers_the_backend() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.torch_dynamo_backends]\nweft = "weft.torch.compile:backend"' in text
    assert weft_torch.backend is weft_compile.backend
