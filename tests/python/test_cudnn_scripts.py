"""Programs written for cuDNN's Python frontend, run with `import weft as cudnn`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import weft as cudnn


def test_convolution_bias_relu() -> None:
    handle = cudnn.create_handle("cpu")
    cudnn.set_stream(handle=handle, stream=0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 5, 3)).astype("f4").transpose(0, 3, 1, 2)
    w = rng.standard_normal((4, 3, 3, 3)).astype("f4").transpose(0, 3, 1, 2)
    b = rng.standard_normal((1, 4, 1, 1)).astype("f4")

    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.FLOAT,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    X = graph.tensor(
        name="X", dim=x.shape, stride=[s // 4 for s in x.strides], data_type=cudnn.data_type.FLOAT
    )
    W = graph.tensor_like(w)
    B = graph.tensor_like(b)
    conv = graph.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    bias = graph.bias(name="bias", input=conv, bias=B)
    Y = graph.relu(name="relu", input=bias)
    Y.set_output(True)

    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()

    assert Y.get_dim() == [2, 4, 5, 5]
    y = np.empty((2, 5, 5, 4), "f4").transpose(0, 3, 1, 2)
    assert Y.get_stride() == [s // 4 for s in y.strides]
    workspace = np.empty(graph.get_workspace_size(), np.uint8)
    graph.execute({X: x, W: w, B: b, Y: y}, workspace, handle=handle)

    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    want = np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows, w) + b, 0)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    cudnn.destroy_handle(handle)


def test_layernorm_training_with_an_epsilon_tensor() -> None:
    handle = cudnn.create_handle("cpu")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 16, 1, 1)).astype(ml_dtypes.bfloat16)
    scale, bias = (rng.standard_normal((1, 16, 1, 1)).astype(ml_dtypes.bfloat16) for _ in range(2))
    eps = np.full((1, 1, 1, 1), 1e-3, "f4")

    g = cudnn.pygraph(
        handle=handle, io_data_type=cudnn.data_type.BFLOAT16, compute_data_type=cudnn.data_type.FLOAT
    )
    X, S, B = g.tensor_like(x), g.tensor_like(scale), g.tensor_like(bias)
    E = g.tensor(
        name="eps",
        dim=[1, 1, 1, 1],
        stride=[1, 1, 1, 1],
        is_pass_by_value=True,
        data_type=cudnn.data_type.FLOAT,
    )
    Y, mean, inv = g.layernorm(
        name="LN",
        norm_forward_phase=cudnn.norm_forward_phase.TRAINING,
        input=X,
        scale=S,
        bias=B,
        epsilon=E,
    )
    Y.set_output(True).set_data_type(cudnn.data_type.BFLOAT16)
    mean.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    inv.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])

    y, m, i = np.empty_like(x), np.empty((8, 1, 1, 1), "f4"), np.empty((8, 1, 1, 1), "f4")
    g.execute({X: x, S: scale, B: bias, E: eps, Y: y, mean: m, inv: i}, None, handle=handle)
    wide = x.astype(float)
    center = wide.mean((1, 2, 3), keepdims=True)
    spread = 1 / np.sqrt(wide.var((1, 2, 3), keepdims=True) + 1e-3)
    np.testing.assert_allclose(m, center, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(i, spread, rtol=1e-6)
    want = scale.astype(float) * (wide - center) * spread + bias.astype(float)
    np.testing.assert_allclose(y.astype(float), want, rtol=2**-8, atol=1e-2)


def test_plans_by_uid_and_not_supported_errors() -> None:
    with cudnn.graph(cudnn.create_handle("cpu"), io_data_type=cudnn.data_type.FLOAT) as (g, _):
        a = g.tensor(dim=[1, 2, 3], stride=[6, 3, 1]).set_uid(100)
        b = g.tensor(dim=[1, 3, 2], stride=[6, 1, 3]).set_uid(101)
        c = (
            g.matmul(A=a, B=b, compute_data_type=cudnn.data_type.FLOAT, name="C")
            .set_output(True)
            .set_uid(102)
        )
    try:
        g.build([cudnn.heur_mode.A])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise AssertionError("a matmul is supported") from error
    x, w, y = np.ones((1, 2, 3), "f4"), np.ones((1, 2, 3), "f4"), np.empty((1, 2, 2), "f4")
    g.execute({100: x, 101: w, 102: y}, 0)
    np.testing.assert_array_equal(y, np.full((1, 2, 2), 3.0))
    assert g.query_tensor_attributes_of_uid(102) is c


def test_reductions_and_comparisons() -> None:
    g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
    values = np.arange(12, dtype="f4").reshape(3, 4)
    x = g.tensor_like(values)
    total = g.reduction(input=x, mode=cudnn.reduction_mode.ADD)
    total.set_output(True).set_data_type(cudnn.data_type.FLOAT).set_dim([3, 1]).set_stride([1, 1])
    above = g.cmp_gt(input=x, comparison=g.tensor_scalar(5.0), compute_data_type=cudnn.data_type.FLOAT)
    kept = g.binary_select(input0=x, input1=g.neg(x), mask=above).set_output(True)
    g.build()
    sums, selected = np.empty((3, 1), "f4"), np.empty((3, 4), "f4")
    pack: dict[Any, Any] = {x: values, total: sums, kept: selected}
    g.execute(pack, None)
    np.testing.assert_array_equal(sums[:, 0], values.sum(1))
    np.testing.assert_array_equal(selected, np.where(values > 5, values, -values))
