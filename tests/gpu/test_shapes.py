"""Shapes and addresses at the limits of grids and vector accesses: more than 65535 batches and heads, and
tensors that start one element after an aligned address."""

from __future__ import annotations

from typing import Any

import checks
import poison
import pytest
import weft

torch = checks.need_gpu()
MANY = 70001
F32 = torch.float32


def normal(*shape: int, dtype: Any = F32) -> Any:
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul_of_many_batches(dtype: Any) -> None:
    a, b = normal(MANY, 3, 5, dtype=dtype), normal(MANY, 5, 4, dtype=dtype)
    c = checks.on_gpu(lambda g, a, b: g.matmul(a, b), a, b, out=["f32"])
    torch.testing.assert_close(c, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batches", "heads"), [(MANY, 1), (1, MANY), (35001, 2)])
def test_attention_of_many_heads(batches: int, heads: int) -> None:
    q, d_o = (normal(batches, heads, 5, 8).requires_grad_() for _ in range(2))
    k, v = (normal(batches, heads, 6, 8).requires_grad_() for _ in range(2))
    given = [each.detach() for each in (q, k, v)]
    o, stats = checks.on_gpu(lambda g, *t: g._sdpa_fwd(*t), *given)
    grads = checks.on_gpu(lambda g, *t: g._sdpa_bwd(*t), *given, o, d_o.detach(), stats)
    want = torch.softmax(q @ k.mT, -1) @ v
    torch.testing.assert_close(o, want.detach(), rtol=1e-4, atol=1e-4)
    for got, expected in zip(grads, torch.autograd.grad(want, (q, k, v), d_o), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_normalisation_of_many_channels() -> None:
    x = normal(4, MANY, 3, 1)
    scale, bias = normal(1, MANY, 1, 1), normal(1, MANY, 1, 1)
    y, mean, _ = checks.on_gpu(lambda g, *t: g.batchnorm(*t, epsilon=1e-3)[:3], x, scale, bias)
    want = torch.nn.functional.batch_norm(x, None, None, scale.flatten(), bias.flatten(), True, eps=1e-3)
    torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(mean, x.mean((0, 2, 3), keepdim=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", [0, 10, 29])
def test_data_gradient_of_pixels_outside_all_filters(tile: int) -> None:
    """Three pixels in four get 0: a multiprocessor runs many tiles without a k-step in a row."""
    images = {"dtype": torch.bfloat16, "device": "cuda", "memory_format": torch.channels_last}
    dy, w = (normal(*dims).to(**images) for dims in ((32, 128, 28, 28), (128, 256, 1, 1)))
    dx = torch.full((32, 256, 56, 56), torch.nan, device="cuda").to(**images)
    g = weft.Graph(io_data_type="bf16", compute_data_type="f32")
    given = [g.tensor_like(each) for each in (dy, w)]
    made = g.conv_dgrad(*given, padding=[0, 0], stride=[2, 2], dilation=[1, 1])
    made.set_dim(list(dx.shape)).set_stride(list(dx.stride())).set_output(True)
    g.build()
    if tile:
        g.create_execution_plan(0, {weft.knob_type.TILE_SIZE: tile})
        g.build_plan_at_index(g.get_execution_plan_count() - 1)
    workspace = poison.in_torch(max(g.get_workspace_size(), 1), "cuda")
    g.execute(dict(zip((*given, made), (dy, w, dx), strict=True)), workspace)
    want = torch.zeros(dx.shape, dtype=torch.float64, device="cuda")
    want[:, :, ::2, ::2] = torch.einsum("nkhw,kc->nchw", dy.double(), w[:, :, 0, 0].double())
    torch.testing.assert_close(dx.double(), want, rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize(("rows", "columns"), [(3, 12296), (301, 16384), (133, 40000), (9, 262144)])
def test_normalisation_of_long_rows(rows: int, columns: int) -> None:
    """Rows that a block reads ahead, and rows that several blocks share."""
    x, d_y, weight, shift = (normal(n, columns, dtype=torch.bfloat16) for n in (rows, rows, 1, 1))
    wide, scale, bias = (each.double().requires_grad_() for each in (x, weight, shift))
    mean = wide.detach().mean(1, keepdim=True).float()
    inv = (wide.detach().var(1, unbiased=False, keepdim=True) + 1e-3).rsqrt().float()

    def forward(g: Any, x: Any, scale: Any, bias: Any) -> Any:
        return g.layernorm("TRAINING", x, scale, bias, 1e-3)

    def backward(g: Any, d_y: Any, x: Any, scale: Any, mean: Any, inv: Any) -> Any:
        return g.layernorm_backward(d_y, x, scale, mean, inv)

    made = checks.on_gpu(forward, x, weight, shift, out=["bf16", "f32", "f32"])
    grads, again = (
        checks.on_gpu(backward, d_y, x, weight, mean, inv, out=["bf16", "f32", "f32"]) for _ in range(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(grads, again, strict=True))
    want = torch.nn.functional.layer_norm(wide, (columns,), scale[0], bias[0], 1e-3)
    wanted = torch.autograd.grad(want, (wide, scale, bias), d_y.double())
    for got, expected in zip((*made, *grads), (want.detach(), mean, inv, *wanted), strict=True):
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("rows", "columns"), [(3, 40000), (301, 65536), (9, 262144)])
def test_softmax_of_long_rows(rows: int, columns: int) -> None:
    x = 3 * normal(rows, columns)
    x[0, 7], x[1, 8], x[2, :] = torch.inf, torch.nan, -torch.inf
    for dtype, name, tolerance in ((torch.float32, "f32", 2e-5), (torch.bfloat16, "bf16", 1e-2)):
        y = checks.on_gpu(lambda g, x: g.softmax(x, axis=1), x.to(dtype), out=[name])
        want = torch.softmax(x.to(dtype).double(), 1)
        want[0], want[2] = torch.arange(columns, device="cuda") == 7, 0
        torch.testing.assert_close(y.double(), want, rtol=tolerance, atol=1e-9, equal_nan=True)


# ---- Poisoned memory ---------------------------------------------------------------------------------------


def run_on_poison(g: weft.Graph, inputs: dict[Any, Any], outputs: list[Any]) -> list[Any]:
    """The outputs of a graph. Outputs and workspace hold NaN before the run."""
    for output in outputs:
        output.set_output(True)
    g.build()
    device = next(iter(inputs.values())).device
    results = [poison.tensor_of(each.dims, each.strides, TORCH_TYPES[each.dtype], device) for each in outputs]
    workspace = poison.in_torch(max(g.get_workspace_size(), 1), device)
    g.execute(inputs | dict(zip(outputs, results, strict=True)), workspace)
    return results


TORCH_TYPES = {weft.data_type.BFLOAT16: torch.bfloat16, weft.data_type.FLOAT: torch.float32}
HEAD_SIZES = [*((size, size) for size in range(8, 257, 8)), (192, 128), (64, 192)]


@pytest.mark.parametrize("heads", [(2, 2), (4, 1), (9, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("depth", "value_depth"), HEAD_SIZES)
def test_attention_of_any_head_size_writes_all_rows(
    depth: int, value_depth: int, is_causal: bool, heads: tuple[int, int]
) -> None:
    """Grouped queries and enough keys that several blocks share the gradient of a key."""
    (of_q, of_k), rows, scale = heads, 707, depth**-0.5
    shapes = ((of_q, depth), (of_k, depth), (of_k, value_depth), (of_q, value_depth))
    q, k, v, d_o = (normal(1, n, rows, size, dtype=torch.bfloat16) for n, size in shapes)
    wide = [each.double().requires_grad_() for each in (q, k, v)]
    shared = [each.repeat_interleave(of_q // of_k, 1) for each in wide[1:]]
    scores = scale * wide[0] @ shared[0].mT
    if is_causal:
        scores = scores.masked_fill(scores.new_ones(rows, rows).triu(1).bool(), -torch.inf)
    want = scores.softmax(-1) @ shared[1]
    gradients = torch.autograd.grad(want, wide, d_o.double())
    options: dict[str, Any] = {"attn_scale_value": scale}
    options |= {"diagonal_band_right_bound": 0} if is_causal else {}

    def draw(*given: Any) -> tuple[weft.Graph, dict[Any, Any]]:
        g = weft.Graph(io_data_type="bf16", intermediate_data_type="f32", compute_data_type="f32")
        return g, {g.tensor_like(each, is_pass_by_value=False): each for each in given}

    g, inputs = draw(q, k, v)
    o, stats = g._sdpa_fwd(*inputs, **options)
    o, stats = run_on_poison(g, inputs, [o, stats.set_data_type("f32")])
    g, inputs = draw(q, k, v, o, d_o, stats)
    found = run_on_poison(g, inputs, list(g._sdpa_bwd(*inputs, **options))[:3])
    for got, expected in zip((o, *found), (want.detach(), *gradients), strict=True):
        error = (got.double() - expected).norm() / expected.norm()
        assert error < 1e-2, f"{error}, {int(got.isnan().sum())} elements are NaN"


# ---- Unaligned addresses -----------------------------------------------------------------------------------


def behind(tensor: Any) -> Any:
    """Returns a copy with the same strides that starts one element after an aligned address."""
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
    return memory.as_strided(tensor.shape, tensor.stride(), 1).copy_(tensor)


def run(build: Any, inputs: list[Any], is_behind: bool) -> list[Any]:
    """Returns the outputs, in poisoned memory that is aligned or one element after an aligned address."""
    g = weft.Graph()
    tensors = [g.tensor_like(each, is_pass_by_value=False) for each in inputs]
    made = build(g, *tensors)
    outputs = made if isinstance(made, tuple) else (made,)
    for output in outputs:
        output.set_output(True).set_data_type(inputs[0].dtype)
        if is_behind:
            output.set_alignment(inputs[0].element_size())
    g.build()
    results = [poison.tensor_of(each.dims, each.strides, inputs[0].dtype, "cuda") for each in outputs]
    results = [behind(each) for each in results] if is_behind else results
    g.execute(dict(zip((*tensors, *outputs), (*inputs, *results), strict=True)))
    return results


def attend(g: weft.Graph, q: Any, k: Any, v: Any, d_o: Any) -> Any:
    o, stats = g._sdpa_fwd(q, k, v, attn_scale_value=0.2)
    return o, *g._sdpa_bwd(q, k, v, o, d_o, stats, attn_scale_value=0.2)


def turn(g: weft.Graph, x: Any) -> Any:
    return g.transpose(x, [0, 2, 1]).set_dim([3, 64, 40]).set_stride([2560, 40, 1])


# Operations that move or compare elements must return the same bits; sums may use another order.
MOVES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "map": (lambda g, x, b: g.relu(g.max(x, b)), [(6, 40, 64), (1, 1, 64)]),
    "transpose": (lambda g, x: turn(g, x), [(3, 40, 64)]),
    "concatenation": (lambda g, x, z: g.concatenate([x, z], 2), [(3, 40, 64), (3, 40, 24)]),
    "pooling": (
        lambda g, x: g.resample(x, mode="MAXPOOL", window=[2, 2], stride=[2, 2])[0],
        [(2, 16, 12, 16)],
    ),
}
SUMS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "softmax": (lambda g, x: g.softmax(x, axis=2), [(3, 40, 1024)]),
    "sum": (lambda g, x: g.reduction(x, "ADD", dims=[1]), [(3, 40, 64)]),
    "normalisation": (
        lambda g, x, scale, bias: g.layernorm("INFERENCE", x, scale, bias, 1e-3)[0],
        [(40, 512), (1, 512), (1, 512)],
    ),
    "matmul": (lambda g, a, b: g.matmul(a, b), [(2, 72, 64), (2, 64, 96)]),
    "convolution": (lambda g, x, w: g.conv_fprop(x, w, padding=[1, 1]), [(2, 16, 12, 16), (24, 16, 3, 3)]),
    "attention": (attend, [(2, 3, 40, 64)] * 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("name", MOVES)
def test_unaligned_moves(name: str, dtype: Any) -> None:
    build, shapes = MOVES[name]
    inputs = [(20 * normal(*shape)).to(dtype) for shape in shapes]
    (want,) = run(build, inputs, False)
    (got,) = run(build, [behind(each) for each in inputs], True)
    assert (want != -77).any()
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_unaligned_sums(name: str, dtype: Any) -> None:
    build, shapes = SUMS[name]
    inputs = [normal(*shape, dtype=dtype) for shape in shapes]
    wanted = run(build, inputs, False)
    found = run(build, [behind(each) for each in inputs], True)
    tolerance = 1e-4 if dtype is F32 else 2e-2
    for got, want in zip(found, wanted, strict=True):
        assert (want != -77).any()
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
