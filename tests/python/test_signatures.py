"""Operation methods have the names, arguments and order of cuDNN's Python frontend, which scripts are written
for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import weft

CONV = "pre_padding post_padding stride dilation convolution_mode"
UNARY = "sqrt erf identity exp log neg abs ceil floor rsqrt reciprocal sin cos tan logical_not tanh elu gelu"
UNARY += " sigmoid softplus gelu_approx_tanh"
BACKWARD = "tanh sigmoid elu gelu softplus gelu_approx_tanh"

# Method: its positional arguments in order; compute_data_type and name are last where they are not named.
METHODS = {
    "conv_fprop": f"image weight {CONV}",
    "conv_dgrad": f"loss filter {CONV}",
    "conv_wgrad": f"image loss {CONV}",
    "matmul": "A B compute_data_type padding name",
    "moe_grouped_matmul": "token weight first_token_offset token_index token_ks mode compute_data_type top_k "
    "name",
    "moe_grouped_matmul_bwd": "doutput token first_token_offset",
    "reduction": "input mode",
    "genstats": "input",
    "slice": "input slices",
    "reshape": "input name reshape_mode compute_data_type",
    "transpose": "input permutation",
    "concatenate": "inputs axis in_place_index",
    "block_scale_quantize": "input block_size axis transpose",
    "block_scale_dequantize": "input descale block_size is_negative_scale",
    "batchnorm": "input scale bias in_running_mean in_running_var epsilon momentum peer_stats",
    "batchnorm_inference": "input mean inv_variance scale bias",
    "batchnorm_backward": "grad input scale mean inv_variance peer_stats",
    "layernorm": "norm_forward_phase input scale bias epsilon",
    "instancenorm": "norm_forward_phase input scale bias epsilon",
    "adalayernorm": "norm_forward_phase input scale bias epsilon",
    "rmsnorm": "norm_forward_phase input scale bias epsilon",
    "layernorm_backward": "grad input scale mean inv_variance",
    "adalayernorm_backward": "grad input scale mean inv_variance",
    "instancenorm_backward": "grad input scale mean inv_variance",
    "rmsnorm_backward": "grad input scale inv_variance has_dbias",
    **dict.fromkeys(["add", "mul", "sub", "div", "add_square", "logical_and", "logical_or"], "a b"),
    "bias": "input bias",
    "scale": "input scale",
    **dict.fromkeys(["max", "min", "mod", "pow"], "input0 input1"),
    **{f"cmp_{name}": "input comparison" for name in ["eq", "neq", "gt", "ge", "lt", "le"]},
    "binary_select": "input0 input1 mask",
    "gen_index": "input axis",
    **dict.fromkeys(UNARY.split(), "input"),
    "relu": "input negative_slope lower_clip upper_clip",
    "leaky_relu": "input negative_slope",
    "swish": "input swish_beta",
    "relu_backward": "loss input negative_slope lower_clip upper_clip",
    "leaky_relu_backward": "loss input negative_slope",
    "swish_backward": "loss input compute_data_type swish_beta name",
    **{f"{name}_backward": "loss input" for name in BACKWARD.split()},
}

# Where compute_data_type and name stand among the others.
WHOLE = {
    "sdpa": "q k v is_inference attn_scale bias block_mask use_alibi_mask use_padding_mask seq_len_q "
    "seq_len_kv use_causal_mask use_causal_mask_bottom_right sliding_window_length diagonal_alignment "
    "diagonal_band_left_bound diagonal_band_right_bound dropout rng_dump paged_attention_k_table "
    "paged_attention_v_table paged_attention_max_seq_len_kv compute_data_type name score_mod generate_stats "
    "implementation score_max score_sum_exp sink_token unfuse_fma",
    "sdpa_fp8": "q k v descale_q descale_k descale_v descale_s scale_s scale_o is_inference attn_scale bias "
    "use_alibi_mask use_padding_mask seq_len_q seq_len_kv use_causal_mask use_causal_mask_bottom_right "
    "sliding_window diagonal_alignment left_bound right_bound dropout rng_dump paged_attention_k_table "
    "paged_attention_v_table paged_attention_max_seq_len_kv compute_data_type name fn generate_stats "
    "score_max score_sum_exp sink_token",
    "sdpa_backward": "q k v o dO stats attn_scale bias dBias use_alibi_mask use_padding_mask seq_len_q "
    "seq_len_kv max_total_seq_len_q max_total_seq_len_kv use_causal_mask use_causal_mask_bottom_right "
    "sliding_window_length diagonal_alignment diagonal_band_left_bound diagonal_band_right_bound dropout "
    "rng_dump use_deterministic_algorithm compute_data_type name score_mod score_mod_bprop sink_token "
    "dSink_token",
    "sdpa_mxfp8": "q k v descale_q descale_k descale_v attn_scale use_causal_mask "
    "use_causal_mask_bottom_right diagonal_alignment diagonal_band_left_bound diagonal_band_right_bound "
    "compute_data_type name generate_stats sink_token unfuse_fma",
    "sdpa_mxfp8_backward": "q q_T k k_T v o_f16 dO_f16 dO dO_T stats descale_q descale_q_T descale_k "
    "descale_k_T descale_v descale_dO descale_dO_T attn_scale use_padding_mask seq_len_q seq_len_kv "
    "use_causal_mask use_causal_mask_bottom_right diagonal_alignment left_bound right_bound "
    "use_deterministic_algorithm dropout compute_data_type name sink_token dSink_token",
    "sdpa_fp8_backward": "q k v o dO stats descale_q descale_k descale_v descale_o descale_dO descale_s "
    "descale_dP scale_s scale_dQ scale_dK scale_dV scale_dP attn_scale use_padding_mask seq_len_q seq_len_kv "
    "use_causal_mask use_causal_mask_bottom_right diagonal_alignment left_bound right_bound "
    "use_deterministic_algorithm dropout compute_data_type name sink_token dSink_token",
    "tensor": "dim stride data_type is_virtual is_pass_by_value ragged_offset reordering_type name uid",
    "tensor_like": "tensor name",
    "tensor_scalar": "value scalar_type",
    "execute": "variant_pack workspace handle override_uids override_shapes override_strides",
    "execute_plan_at_index": "variant_pack workspace index handle override_uids override_shapes "
    "override_strides",
    "create_execution_plan": "engine_id knobs",
    "__init__": "name io_data_type intermediate_data_type compute_data_type handle sm_count sm_version "
    "kernel_cache device_property is_dynamic_shape_enabled is_override_shape_enabled",
}

# Not in cuDNN's Python frontend: Weft's own methods may grow, but each is listed here.
OURS = """
affine_grid affine_grid_backward argmax argmin atan2 bn_finalize causal_conv1d
causal_conv1d_backward ctc_loss ctc_loss_backward cummax cummin cumprod cumprod_backward cumsum
dbn_weight diagonal_band_mask floor_mod gather grid_sample grid_sample_backward groupnorm
groupnorm_backward logsumexp paged_cache_load recurrence recurrence_backward resample
resample_backward rng rotary_embedding rotary_embedding_backward scaled_dot_product_flash_attention
scaled_dot_product_flash_attention_backward scatter_add softmax top_k
"""


def arguments(method: str) -> list[str]:
    return list(inspect.signature(getattr(weft.Graph, method)).parameters)[1:]


@pytest.mark.parametrize("method", METHODS)
def test_operation(method: str) -> None:
    expected = METHODS[method].split()
    expected += [word for word in ("compute_data_type", "name") if word not in expected]
    parameters = inspect.signature(getattr(weft.Graph, method)).parameters.values()
    positional = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional[1:] == expected
    for extra in parameters:
        if extra.kind is inspect.Parameter.KEYWORD_ONLY:
            assert extra.default is not inspect.Parameter.empty, f"{method}: {extra.name} is required"


def test_arguments_by_position() -> None:
    g = weft.Graph(io_data_type="f32")
    x, float_ = g.tensor([1, 2, 2]), weft.data_type.FLOAT
    g.elu(x, float_, "a")
    g.matmul(x, x, float_, 0.0, "b")
    g.reduction(x, weft.reduction_mode.ADD, float_, "c").set_dim([1, 1, 1])
    g.reshape(x, "d", weft.reshape_mode.LOGICAL).set_dim([4])
    g.swish_backward(x, x, float_, 0.5, "e")
    g.softplus_backward(x, x, float_, "f")
    g.validate()
    assert [operation.name for operation in g._operations] == list("abcdef")
    types = [operation.compute_data_type for operation in g._operations]
    assert types == [float_, float_, float_, None, float_, float_]
    assert g._operations[4].values["swish_beta"] == 0.5


def test_arguments_that_cudnn_lacks_are_keyword_only() -> None:
    g = weft.Graph(io_data_type="f32")
    x = g.tensor([2, 2])
    with pytest.raises(TypeError):
        g.reduction(x, "ADD", None, "r", [1])  # type: ignore[misc]
    g.reduction(x, "ADD", None, "r", dims=[1])
    g.validate()


def test_wrapped_methods_are_not_public() -> None:
    from weft.ops import WRAPPED

    for inner, outer in WRAPPED.items():
        assert hasattr(weft.Graph, outer)
        assert hasattr(weft.Graph, f"_{inner}")
        assert not hasattr(weft.Graph, inner)


@pytest.mark.parametrize("method", WHOLE)
def test_whole_signature(method: str) -> None:
    expected = WHOLE[method].split()
    assert arguments(method)[: len(expected)] == expected


def test_aliases() -> None:
    assert weft.pygraph is weft.Graph
    assert weft.cudnnGraphNotSupportedError is weft.NotSupportedError
    assert weft.Graph.scaled_dot_product_flash_attention is weft.Graph.sdpa
    assert weft.Graph.scaled_dot_product_flash_attention_backward is weft.Graph.sdpa_backward


def test_every_operation_method_is_listed() -> None:
    from weft.composite_ops import CompositeOps
    from weft.ops import Ops

    methods = {name for each in (Ops, CompositeOps) for name in vars(each) if not name.startswith("_")}
    assert methods == {name for name in {*METHODS, *WHOLE} if name in methods} | set(OURS.split())


def test_every_method_has_types_and_a_docstring() -> None:
    for name, method in inspect.getmembers(weft.Graph, inspect.isfunction):
        if name.startswith("_"):
            continue
        assert method.__doc__, name
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, name
        annotations = [p.annotation for key, p in signature.parameters.items() if key != "self"]
        assert inspect.Parameter.empty not in annotations, name
        if "Args:" in method.__doc__ and name in METHODS:
            for argument in arguments(name):
                assert f"{argument}: " in method.__doc__, f"{name} does not explain {argument}"


def test_defaults_are_those_of_cudnn() -> None:
    parameters = inspect.signature(weft.Graph.conv_fprop).parameters
    assert parameters["convolution_mode"].default is weft.convolution_mode.CROSS_CORRELATION
    assert inspect.signature(weft.Graph.matmul).parameters["padding"].default == 0.0
    assert (
        inspect.signature(weft.Graph.reshape).parameters["reshape_mode"].default
        is weft.reshape_mode.VIEW_ONLY
    )


# ---- Arguments reach the operation -------------------------------------------------------------------------

OPERANDS = {"Operand", "Operand | None", "Tensor | None"}
OTHERS = {
    "axis": 0,
    "block_size": 2,
    "comparison_mode": "CMP_GE",
    "distribution": "UNIFORM",
    "inputs": [],
    "k": 2,
    "mode": "ADD",
    "negative_slope": 0.5,
    "norm_forward_phase": "TRAINING",
    "permutation": [3, 2, 1, 0],
    "slices": [slice(0, 1)],
}
"""Arguments that methods require besides operands."""
REFUSED = {"sdpa_backward": {"rng_dump"}, "scaled_dot_product_flash_attention_backward": {"rng_dump"}}
"""Operands that a method refuses, with a message that other tests check."""
NOT_RECORDED = {"use_padding_mask"}
"""Options that only check others."""


def operation_methods() -> list[str]:
    from weft.composite_ops import CompositeOps
    from weft.ops import Ops

    return sorted({name for each in (Ops, CompositeOps) for name in vars(each) if not name.startswith("_")})


@pytest.mark.parametrize("method", operation_methods())
def test_each_argument_is_recorded(method: str) -> None:
    """Operands once, under no other operand's key; each option and the compute type change the operation."""
    g = weft.Graph(io_data_type="f32")
    parameters = inspect.signature(getattr(weft.Graph, method)).parameters
    operands = {
        name: g.tensor([2, 2, 2, 2], name=name)
        for name, p in parameters.items()
        if p.annotation in OPERANDS and name not in REFUSED.get(method, ())
    }
    is_required = {name for name, p in parameters.items() if p.default is inspect.Parameter.empty}
    required = {name: x for name, x in (OTHERS | operands).items() if name in is_required}

    def recorded(**given: Any) -> Any:
        getattr(g, method)(**(required | given))
        return g._operations[-1]

    keys = {id(x): key for key, x in recorded(**operands).values.items() if isinstance(x, weft.Tensor)}
    for name, x in operands.items():
        key = keys.pop(id(x))
        assert key == name or key not in operands, f"{name} is recorded as {key}"
    assert not keys
    plain = recorded()
    for name, p in parameters.items():
        options = {"bool": not p.default, "int | None": 3}
        if name == "compute_data_type":
            assert recorded(compute_data_type="f64").compute_data_type == weft.data_type.DOUBLE
        elif p.annotation in options and name not in NOT_RECORDED:
            given = recorded(**{name: options[p.annotation]})
            assert (given.values, given.results.keys()) != (plain.values, plain.results.keys()), name
