"""A program of NVIDIA's Python frontend: graphs on host memory, compared with NumPy. test_frontend.py runs it
with Weft's libcudnn.so.9. It prints the names of its cases and the frontend's version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cudnn
import numpy as np

T = cudnn.data_type
HANDLE = cudnn.create_handle()
RANDOM = np.random.default_rng(0)
TYPES = {np.dtype("f4"): T.FLOAT, np.dtype("f2"): T.HALF, np.dtype("i4"): T.INT32}


def normal(*shape: int, dtype: str = "f2") -> Any:
    return RANDOM.standard_normal(shape).astype(dtype)


def channels_last(array: Any) -> Any:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


class Graph:
    """A graph with the arrays of its tensors."""

    def __init__(self, io: Any = T.HALF) -> None:
        types = {"intermediate_data_type": T.FLOAT, "compute_data_type": T.FLOAT}
        self.graph = cudnn.pygraph(handle=HANDLE, io_data_type=io, **types)
        self.arrays: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.graph, name)

    def input(self, array: Any) -> Any:
        strides = [step // array.itemsize for step in array.strides]
        t = self.graph.tensor(dim=[*array.shape], stride=strides, data_type=TYPES[array.dtype])
        self.arrays[t] = array
        return t

    def number(self, value: float) -> Any:
        one = [1, 1, 1, 1]
        t = self.graph.tensor(dim=one, stride=one, is_pass_by_value=True, data_type=T.FLOAT)
        self.arrays[t] = np.full(one, value, "f4")
        return t

    def output(self, t: Any, like: Any) -> Any:
        """An array for a result: with the shape, type and layout of another array."""
        array = np.full_like(like, np.nan)
        strides = [step // array.itemsize for step in array.strides]
        t.set_output(True).set_data_type(TYPES[array.dtype]).set_dim([*array.shape]).set_stride(strides)
        self.arrays[t] = array
        return array

    def run(self) -> None:
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans()
        self.execute(self.graph)

    def execute(self, graph: Any) -> None:
        workspace = np.empty(graph.get_workspace_size() + 256, np.uint8)
        addresses = {t: array.ctypes.data for t, array in self.arrays.items()}
        graph.execute(addresses, workspace.ctypes.data + 16 - workspace.ctypes.data % 16, handle=HANDLE)


def close(found: Any, expected: Any, tolerance: float) -> None:
    error = np.abs(found.astype(float) - expected).max() / np.abs(expected).max()
    assert error < tolerance, f"error {error}"


def convolution(x: Any, w: Any) -> Any:
    """3x3 with padding 1."""
    padded = np.pad(x.astype(float), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(float))


WINDOW = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}


def conv_bias_relu() -> None:
    x, w = channels_last(normal(2, 16, 8, 8)), channels_last(normal(32, 16, 3, 3))
    b = normal(1, 32, 1, 1)
    g = Graph()
    conv = g.conv_fprop(image=g.input(x), weight=g.input(w), **WINDOW)
    expected = np.maximum(convolution(x, w) + b, 0)
    y = g.output(g.relu(input=g.bias(input=conv, bias=g.input(b))), channels_last(expected.astype("f2")))
    g.run()
    close(y, expected, 2e-3)


def conv_dgrad_as_transposed_forward() -> None:
    dy, w = channels_last(normal(2, 32, 8, 8)), channels_last(normal(32, 16, 3, 3))
    flipped = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    g = Graph()
    expected = convolution(dy, flipped)
    t = g.conv_dgrad(loss=g.input(dy), filter=g.input(w), **WINDOW)
    dx = g.output(t, channels_last(expected.astype("f2")))
    g.run()
    close(dx, expected, 2e-3)


def matmul_bias_tanh() -> None:
    a, b, bias = normal(2, 32, 48), normal(2, 48, 64) / 8, normal(1, 1, 64)
    g = Graph()
    sums = g.bias(input=g.matmul(A=g.input(a), B=g.input(b)), bias=g.input(bias))
    expected = np.tanh(a.astype(float) @ b.astype(float) + bias)
    y = g.output(g.tanh(input=sums), expected.astype("f2"))
    g.run()
    close(y, expected, 2e-3)


def layernorm() -> None:
    x, scale, bias = (normal(rows, 64, 1, 1, dtype="f4") for rows in (8, 1, 1))
    g = Graph(T.FLOAT)
    training = cudnn.norm_forward_phase.TRAINING
    operands = {"scale": g.input(scale), "bias": g.input(bias), "epsilon": g.number(1e-5)}
    results = g.layernorm(norm_forward_phase=training, input=g.input(x), **operands)
    mu, var = x.mean(1, keepdims=True, dtype=float), x.var(1, keepdims=True, dtype=float)
    y, mean, inverse = map(g.output, results, (x, mu.astype("f4"), mu.astype("f4")))
    g.run()
    close(y, (x - mu) / np.sqrt(var + 1e-5) * scale + bias, 1e-5)
    close(mean, mu, 1e-5)
    close(inverse, 1 / np.sqrt(var + 1e-5), 1e-5)


def attention(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Causal attention: weights, result, logarithm of the sums."""
    scores = q.astype(float) @ k.astype(float).swapaxes(2, 3) / 8
    scores = np.where(np.tril(np.ones(scores.shape[2:], bool)), scores, -np.inf)
    sums = np.log(np.exp(scores).sum(-1, keepdims=True))
    weights = np.exp(scores - sums)
    return weights, weights @ v.astype(float), sums


def sdpa() -> None:
    q, k, v = (normal(2, 4, 40, 64) for _ in range(3))
    _, expected, sums = attention(q, k, v)
    g = Graph()
    inputs = map(g.input, (q, k, v))
    names = dict(zip("qkv", inputs, strict=True))
    o, stats = g.sdpa(name="sdpa", **names, attn_scale=0.125, use_causal_mask=True, is_inference=False)
    out, found = g.output(o, q), g.output(stats, sums.astype("f4"))
    g.run()
    close(out, expected, 2e-3)
    close(found, sums, 1e-4)


def sdpa_paged() -> None:
    """Causal attention to 40 and 25 keys in pages of 16. The frontend loads the pages by operations
    of their own, unless it chooses the one operation for attention."""
    q, k, v = normal(2, 4, 8, 64), normal(9, 4, 16, 64), normal(9, 4, 16, 64)
    table, keys = np.int32([3, 8, 1, 0, 5, 99]).reshape(2, 1, 3, 1), np.int32([40, 25]).reshape(2, 1, 1, 1)
    g = Graph()
    tables = {f"paged_attention_{name}_table": g.input(table) for name in "kv"}
    lengths = {"seq_len_q": g.input(np.full((2, 1, 1, 1), 8, "i4")), "seq_len_kv": g.input(keys)}
    options = {"use_padding_mask": True, "use_causal_mask": True, "is_inference": True, "attn_scale": 0.125}
    names = dict(zip("qkv", map(g.input, (q, k, v)), strict=True))
    o, _ = g.sdpa(name="paged", **names, **tables, **lengths, paged_attention_max_seq_len_kv=40, **options)
    out = g.output(o, q)
    g.run()
    for b, count in enumerate(keys.ravel()):
        pages = table[b, 0, : -(-count // 16), 0]
        rows = [x[pages].swapaxes(0, 1).reshape(1, 4, -1, 64)[:, :, :count] for x in (k, v)]
        close(out[b : b + 1], attention(q[b : b + 1], *rows)[1], 2e-3)


def sdpa_backward() -> None:
    q, k, v, do = (normal(2, 4, 40, 64) for _ in range(4))
    p, o, sums = attention(q, k, v)
    dp = do.astype(float) @ v.astype(float).swapaxes(2, 3)
    ds = p * (dp - (do * o).sum(-1, keepdims=True)) / 8
    g = Graph()
    arrays = {"q": q, "k": k, "v": v, "o": o.astype("f2"), "dO": do, "stats": sums.astype("f4")}
    names = {name: g.input(array) for name, array in arrays.items()}
    results = g.sdpa_backward(name="backward", **names, attn_scale=0.125, use_causal_mask=True)
    dq, dk, dv = (g.output(t, q) for t in results)
    g.run()
    close(dq, ds @ k.astype(float), 5e-3)
    close(dk, ds.swapaxes(2, 3) @ q.astype(float), 5e-3)
    close(dv, p.swapaxes(2, 3) @ do.astype(float), 5e-3)


CASES: list[Callable[[], None]] = [
    *(
        conv_bias_relu,
        conv_dgrad_as_transposed_forward,
        matmul_bias_tanh,
        layernorm,
        sdpa,
        sdpa_paged,
        sdpa_backward,
    )
]
for case in CASES:
    case()
    print(case.__name__)
print(f"frontend {cudnn.__version__}, backend {cudnn.backend_version()}")
