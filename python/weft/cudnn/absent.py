"""Functions of cuDNN's frontend that are individual kernels rather than graphs and that Weft does not
implement. Calling one raises an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import NotSupportedError

NAMES = (
    "b2b_causal_conv1d_backward",
    "b2b_causal_conv1d_forward",
    "gnn_agg_simple_backward",
    "gnn_agg_simple_forward",
    "gnn_mha_gat_backward",
    "gnn_mha_gat_forward",
    "gnn_mha_gat_v2_backward",
    "gnn_mha_gat_v2_forward",
)


def _refusing(name: str, module: str = "cudnn") -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotSupportedError(f"{module}.{name}: Weft has no such function.")

    refuse.__name__, refuse.__doc__ = name, "Not implemented: raises an error."
    return refuse


FUNCTIONS = {name: _refusing(name) for name in NAMES}

_INDIVIDUAL_KERNELS = """
    AlignedHCABackward BSA BlockScaledTensor CSA CSACompressorBackward CSACompressorForward
    CausalConv3dWithCacheSm100 CompactGqaBackward Conv3dBiasResidualPadSm100 Conv3dRawSm100
    Conv3dRmsNormSiluPadSm100 Conv3dRmsNormSiluSm100 DSA DiscreteGroupedGemmDswigluSm100
    DiscreteGroupedGemmSwigluSm100 EngramGateSavedBackward EngramGateSavedForward FlexAttentionBwd
    FlexAttentionFwd GatedAttentionBlockBwd GatedAttentionBlockFwd GemmAmaxSm100 GemmDsreluSm100
    GemmProjRopeMxfp8Bf16InSm100 GemmProjRopeMxfp8Mxfp8InSm100 GemmSreluSm100 GemmSwigluSm100
    GroupedGemmDgluSm100 GroupedGemmDsreluSm100 GroupedGemmDswigluSm100 GroupedGemmGluHadamardQuantSm100
    GroupedGemmGluHadamardSm100 GroupedGemmGluSm100 GroupedGemmQuantSm100 GroupedGemmSm100
    GroupedGemmSreluSm100 GroupedGemmSwigluSm100 GroupedGemmWgradSm100 MhcProjectionBackward MoeEp
    MoeEpAutotuneCandidateResult MoeEpAutotuneResult MoeEpBackwardWeightStaging MoeEpBackwardWeights
    MoeEpConfig MoeEpDataPathConfig MoeEpFc1WeightLayout MoeEpForwardWeightStaging MoeEpForwardWeights
    MoeEpModelConfig MoeEpNativeBackwardWeights MoeEpNativeDiscreteBackwardWeights
    MoeEpNativeDiscreteForwardWeights MoeEpNativeDiscreteWeight MoeEpNativeForwardWeights
    MoeEpNativeWeight MoeEpNativeWeightLayout MoeEpNativeWeightStorageMode MoeEpParallelConfig
    MoeEpTrainingBackwardOutputs MoeEpTrainingForwardOutputs MoeEpTrainingWgradOperands
    MoeEpTuningConfig MoeFormat MoeTensor NSA Nvfp4AttentionQatBackward RmsNormRhtAmaxSm100
    RmsNormSiluPadSm100 RopeQDQInplace TailRoPEForward TriangleAttentionFwd
    TriangleMultiplicativeUpdateFwd VisionRoPEBackward aligned_hca_backward_wrapper
    block_sparse_attention_backward block_sparse_attention_forward block_sparse_attention_fp8_forward
    causal_conv3d_with_cache_wrapper_sm100 compact_gqa_backward conv3d_bias_residual_pad_wrapper_sm100
    conv3d_raw_wrapper_sm100 conv3d_rmsnorm_silu_pad_wrapper_sm100 conv3d_rmsnorm_silu_wrapper_sm100
    create_mask_plan csa_compressor_backward_wrapper csa_compressor_forward_wrapper
    discrete_grouped_gemm discrete_grouped_gemm_dswiglu_jax_sm100
    discrete_grouped_gemm_dswiglu_wrapper_sm100 discrete_grouped_gemm_swiglu_jax_sm100
    discrete_grouped_gemm_swiglu_wrapper_sm100 engram_gate_saved_backward engram_gate_saved_forward
    flex_attn_func gated_attention_block gated_attention_block_backward gated_attention_block_forward
    gemm_amax_jax_sm100 gemm_amax_wrapper_sm100 gemm_dsrelu_jax_sm100 gemm_dsrelu_wrapper_sm100
    gemm_proj_rope_mxfp8_jax_sm100 gemm_proj_rope_mxfp8_wrapper_sm100 gemm_srelu_jax_sm100
    gemm_srelu_wrapper_sm100 gemm_swiglu_jax_sm100 gemm_swiglu_wrapper_sm100
    get_grouped_gemm_wgrad_workspace_size_sm100 gnn grouped_gemm grouped_gemm_dglu_jax_sm100
    grouped_gemm_dglu_wrapper_sm100 grouped_gemm_dsrelu_jax_sm100 grouped_gemm_dsrelu_wrapper_sm100
    grouped_gemm_dswiglu_wrapper_sm100 grouped_gemm_glu_hadamard_jax_forward
    grouped_gemm_glu_hadamard_quant_jax_forward grouped_gemm_glu_hadamard_quant_wrapper_sm100
    grouped_gemm_glu_hadamard_wrapper_sm100 grouped_gemm_glu_jax_sm100 grouped_gemm_glu_wrapper_sm100
    grouped_gemm_jax_sm100 grouped_gemm_quant_jax_forward grouped_gemm_quant_wrapper_sm100
    grouped_gemm_srelu_jax_forward grouped_gemm_srelu_wrapper_sm100 grouped_gemm_swiglu_wrapper_sm100
    grouped_gemm_wgrad_jax_sm100 grouped_gemm_wgrad_wrapper_sm100 grouped_gemm_wrapper_sm100
    hstu_attention_backward hstu_attention_forward hstu_lmsd_backward hstu_lmsd_forward
    mask_to_kv_lengths mhc_projection_backward moe_ep nvfp4_attention_qat_backward pack_backward_weights
    pack_causal_conv3d_weight_sm100 pack_conv3d_weight_sm100 pack_forward_weights
    prefix_mask_to_kv_lengths rmsnorm_rht_amax_wrapper_sm100 rmsnorm_silu_pad_wrapper_sm100
    rope_qdq_inplace sdpa_torch tail_rope triangle_attention triangle_multiplicative_update
    vision_rope_backward_wrapper
"""
INDIVIDUAL_KERNELS = tuple(_INDIVIDUAL_KERNELS.split())
"""Kernels that cuDNN's package loads on demand. They are not part of the graph API."""


def attribute_of(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """A __getattr__ for a module whose functions all raise when they are called."""

    def attribute(name: str) -> Any:
        if name in names:
            return _refusing(name, module)
        raise AttributeError(f"module 'weft.{module}' has no attribute {name!r}")

    return attribute
