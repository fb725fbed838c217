/* SPDX-License-Identifier: Apache-2.0 */
/* The list of operations. To add one, add its file to ops/ and its line here. */
#include "graph/ops.h"
#include "graph/graph.h"
#include "graph/ops/affine_grid.h"
#include "graph/ops/attention.h"
#include "graph/ops/block_scale.h"
#include "graph/ops/bn_bwd_weights.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/causal_conv.h"
#include "graph/ops/concat.h"
#include "graph/ops/convolution.h"
#include "graph/ops/ctc_loss.h"
#include "graph/ops/cumprod_backward.h"
#include "graph/ops/diagonal_band_mask.h"
#include "graph/ops/gather.h"
#include "graph/ops/genstats.h"
#include "graph/ops/grid_sample.h"
#include "graph/ops/logsumexp.h"
#include "graph/ops/matmul.h"
#include "graph/ops/moe.h"
#include "graph/ops/norm.h"
#include "graph/ops/paged_cache_load.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/recurrence.h"
#include "graph/ops/reduction.h"
#include "graph/ops/resample.h"
#include "graph/ops/reshape.h"
#include "graph/ops/rng.h"
#include "graph/ops/rope.h"
#include "graph/ops/scan.h"
#include "graph/ops/slice.h"
#include "graph/ops/softmax.h"
#include "graph/ops/top_k.h"
#include "graph/ops/transpose.h"

/* In the order of the documentation; kinds are looked up by number. */
const struct op *const ops[] = {
    &pointwise_op,
    &matmul_op,
    &conv_fprop_op,
    &conv_dgrad_op,
    &conv_wgrad_op,
    &causal_conv_op,
    &causal_conv_bwd_op,
    &recurrence_op,
    &recurrence_bwd_op,
    &resample_op,
    &resample_backward_op,
    &grid_sample_op,
    &grid_sample_bwd_op,
    &affine_grid_op,
    &affine_grid_bwd_op,
    &ctc_loss_op,
    &ctc_loss_bwd_op,
    &norm_forward_op,
    &norm_backward_op,
    &genstats_op,
    &bn_finalize_op,
    &bn_bwd_weights_op,
    &softmax_op,
    &diagonal_band_mask_op,
    &reduction_op,
    &logsumexp_op,
    &scan_op,
    &cumprod_backward_op,
    &top_k_op,
    &gather_op,
    &scatter_add_op,
    &reshape_op,
    &transpose_op,
    &slice_op,
    &concat_op,
    &paged_cache_load_op,
    &rng_op,
    &block_scale_quantize_op,
    &block_scale_dequantize_op,
    &rope_op,
    &rope_backward_op,
    &sdpa_fwd_op,
    &sdpa_bwd_op,
    &moe_op,
    &moe_bwd_op,
    NULL,
};

/* The schema of a kind: tensors and graphs, operations, and their parameter descriptors. NULL for unknown kinds and for
   those of plan/, which this layer does not know. */
const struct schema *ops_find_schema(weftBackendDescriptorType_t kind) {
    if (kind == tensor_schema.kind)
        return &tensor_schema;
    if (kind == graph_schema.kind)
        return &graph_schema;
    for (int i = 0; ops[i]; i++) {
        if (ops[i]->schema.kind == kind)
            return &ops[i]->schema;
        /* If several operations share parameters, any of them will do. */
        if (ops[i]->parameters && ops[i]->parameters->kind == kind)
            return ops[i]->parameters;
    }
    return NULL;
}
