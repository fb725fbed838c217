/* SPDX-License-Identifier: Apache-2.0 */
/* sdpa_bwd on CUDA: delta (dO O) of each row, followed by the gradients of K and V, of Q, of the bias and of the sink,
   each by its own kernels, which sum in a fixed order. */
#include "base/number.h"
#include "engines/cuda/attention/attention.h"
#include "engines/cuda/attention/backward_geometry.h"

#include <stdio.h>

/* Tiles, best first, for results, and rows in registers, of up to `max_columns` columns in total. is_lean: registers
   suffice only without the features of attention_is_rich. */
static const struct {
    bool is_mma, is_lean;
    int max_columns;
    struct attention_tile tile;
} tiles[] = {
    {true, true, 96, {4, 2, 32, 2, false}},    {true, true, 128, {4, 1, 64, 2, true}},
    {true, true, 128, {4, 1, 64, 2, false}},   {true, false, 128, {4, 1, 32, 2, false}},
    {true, true, 256, {4, 1, 32, 2, false}},   {true, false, 256, {4, 1, 16, 2, false}},
    {true, false, 256, {2, 1, 16, 2, false}},  {true, false, 256, {1, 1, 16, 1, false}},
    {false, true, 128, {4, 1, 32, 1, false}},  {false, false, 256, {4, 1, 16, 1, false}},
    {false, false, 256, {2, 1, 16, 1, false}}, {false, false, 256, {1, 1, 16, 1, false}},
    {false, false, 256, {1, 1, 8, 1, false}},
};

/* Warps per block of the small kernels. */
enum { ROW_WARPS = 4, SINK_WARPS = 8 };

/* One launch of attention_bwd or attention_bwd_bias. kv_resident: whether K and V are resident while the other side is
   streamed. dqk: dK or dQ, as wide as the depth; dv: dV, as wide as the values. */
struct pass {
    bool kv_resident, has_dqk, has_dv, is_bias, is_sliced;
    int64_t operand; /* is_bias: index of the score modifier operand whose gradient is computed; -1: the bias */
    const struct tensor *dqk, *dv;
    bool tracks_ds;                            /* computes the amax of the gradient of Q K^T */
    struct attention_depth depth, value_depth; /* with the chunks in which results are computed and slices are loaded */
    const struct attention_tile *tile;
    int64_t shared_bytes;
    int parts;
};

/* Columns of a depth that are in shared memory at once. */
static int64_t columns_in_smem(const struct pass *p, const struct attention_depth *depth) {
    return p->is_sliced ? depth->chunk : depth->padded;
}

static int64_t shared_bytes(const struct cuda_attention *c, const struct pass *p, const struct attention_tile *t) {
    struct backward_shape shape = {
        .element = c->arithmetic->bytes,
        .sum = c->arithmetic->sum_bytes,
        .needs_scratch = !c->arithmetic->is_mma,
        .kv_resident = p->kv_resident,
        .has_dqk = p->has_dqk,
        .is_sliced = p->is_sliced,
        .rows = t->warps * t->m_tiles * 16,
        .columns = t->columns,
        .stages = t->stages,
        .depth = columns_in_smem(p, &p->depth),
        .value_depth = columns_in_smem(p, &p->value_depth),
    };
    struct backward_memory memory = backward_memory_of(shape);
    return p->is_bias ? memory.bias_bytes : memory.bytes;
}

/* True for a FLOAT result of 16-bit MMAs: its operands have two parts, the second of which is the rounding error of the
   first. */
static bool is_wide(const struct cuda_attention *c, const struct tensor *tensor) {
    return c->arithmetic->is_mma && tensor && tensor->type == WEFT_DATA_FLOAT;
}

/* is_sliced: rows are loaded in slices. An unsliced tile that leaves room for only one warp would always be bound by
   memory latency. Columns that a block accumulates in registers must fit the tile; other columns may be whole in shared
   memory. */
static bool choose_tile(struct pass *p, const struct cuda_attention *c, bool is_sliced) {
    int limit = attention_max_columns(c, p->parts), widest = is_sliced ? c->arithmetic->max_columns : INT32_MAX;
    bool sums_first = p->has_dqk && !p->is_bias;
    p->is_sliced = is_sliced;
    p->depth = attention_depth_of(c->depth, sums_first ? limit : widest);
    p->value_depth = attention_depth_of(c->value_depth, p->has_dv ? limit : widest);
    int64_t columns = (sums_first ? p->depth.chunk : 0) + (p->has_dv ? p->value_depth.chunk : 0);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const struct attention_tile *t = &tiles[i].tile;
        bool has_no_registers = tiles[i].is_lean && (p->is_bias || attention_is_rich(c, p->parts));
        int64_t held = t->in_registers ? p->depth.padded + p->value_depth.padded : 0;
        if (tiles[i].is_mma != c->arithmetic->is_mma || has_no_registers || max64(columns, held) > tiles[i].max_columns)
            continue;
        /* slices cannot stay in registers; whole rows require more than one warp, see above */
        if (is_sliced ? t->in_registers : t->warps == 1)
            continue;
        p->tile = t;
        p->shared_bytes = shared_bytes(c, p, p->tile);
        if (p->shared_bytes <= c->device->cuda.shared_per_block)
            return true;
    }
    return false;
}

/* True if operands of gradients are given separately from those of the scores; then both are loaded in slices. */
static bool has_copies(const struct cuda_attention *c) {
    return c->backward->q_t || c->backward->k_t || c->backward->do_t;
}

/* Separate copies only fit next to the operands of the scores in slices. */
static weftStatus_t plan_pass(struct pass *p, const struct cuda_attention *c) {
    p->parts = !p->is_bias && (is_wide(c, p->dqk) || is_wide(c, p->dv)) ? 2 : 1;
    bool has_tile = ((p->is_bias || !has_copies(c)) && choose_tile(p, c, false)) || choose_tile(p, c, true);
    return has_tile ? WEFT_STATUS_SUCCESS : attention_decline_shared_memory(c, p->shared_bytes);
}

enum { PASSES_MAX = 4 + SCORE_MODIFIER_GRADIENTS_MAX };

/* Adds the passes for gradients of the bias and of the score modifier's operands. */
static void add_biases(struct pass passes[PASSES_MAX], int *count, const struct cuda_attention *c) {
    if (attention_wants(c, c->backward->dbias))
        passes[(*count)++] = (struct pass){.has_dqk = true, .is_bias = true, .operand = -1, .dqk = c->backward->dbias};
    for (int64_t i = 0; i < c->a->modifier.gradients.count; i++)
        if (attention_wants(c, c->a->modifier.gradients.tensors[i]))
            passes[(*count)++] = (struct pass){
                .has_dqk = true, .is_bias = true, .operand = i, .dqk = c->a->modifier.gradients.tensors[i]};
}

/* The first pass that computes the gradient of Q K^T also computes its amax. */
static weftStatus_t track_ds(struct pass *passes, int count, const struct cuda_attention *c) {
    for (int i = 0; i < count; i++)
        if (passes[i].has_dqk) {
            passes[i].tracks_ds = true;
            return WEFT_STATUS_SUCCESS;
        }
    FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: amax_dP is requested without dQ and dK; the reference family handles it.",
         descriptor_label(region_node(c->region, 0)->op));
}

/* Plans the passes of an operation, in launch order: dK and dV together if one block can accumulate both. Each pass
   recomputes the scores, so memory stays linear in the sequences. */
static weftStatus_t plan_backward(struct pass passes[PASSES_MAX], int *count, const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    bool wants_k = attention_wants(c, op->dk), wants_v = attention_wants(c, op->dv);
    int64_t both = round_up(max64(c->depth, 1), 16) + round_up(max64(c->value_depth, 1), 16);
    int parts = is_wide(c, op->dk) || is_wide(c, op->dv) ? 2 : 1;
    bool is_together = wants_k && wants_v && c->key_heads == c->value_heads && both <= attention_max_columns(c, parts);
    *count = 0;
    if (wants_k)
        passes[(*count)++] = (struct pass){.kv_resident = true,
                                           .has_dqk = true,
                                           .has_dv = is_together,
                                           .dqk = op->dk,
                                           .dv = is_together ? op->dv : NULL};
    if (wants_v && !is_together)
        passes[(*count)++] = (struct pass){.kv_resident = true, .has_dv = true, .dv = op->dv};
    if (attention_wants(c, op->dq))
        passes[(*count)++] = (struct pass){.has_dqk = true, .dqk = op->dq};
    if (attention_wants(c, op->amax_dp))
        TRY(track_ds(passes, *count, c));
    add_biases(passes, count, c);
    for (int i = 0; i < *count; i++)
        TRY(plan_pass(&passes[i], c));
    return WEFT_STATUS_SUCCESS;
}

/* Planning decides whether every pass has a tile. */
weftStatus_t attention_backward_accepts(const struct cuda_attention *c) {
    struct pass passes[PASSES_MAX];
    int count;
    return plan_backward(passes, &count, c);
}

/* ---- Emitting ---- */

/* True if an operand has a single scale, which multiplies its products. */
static bool is_one(const struct tensor *scales) { return scales && tensor_elements(scales) == 1; }

/* Emits NAME(arguments): the product of those scalars that are present; each has a field. */
struct numbers {
    const struct tensor *tensor;
    const char *field;
};
static void emit_product(struct kernel_source *source, const char *name, const struct numbers *numbers, int count) {
    text_add(&source->code, "template <class P> DEVICE sum_t %s(const P &a) {\n    return 1", name);
    for (int i = 0; i < count; i++)
        if (is_one(numbers[i].tensor))
            text_add(&source->code, " * as<sum_t>::of(*a.%s)", numbers[i].field);
    text_add(&source->code, ";\n}\n\n");
}

/* Emits one field per scalar. */
static void emit_numbers(struct kernel_source *source, const struct cuda_attention *c, const struct numbers *numbers,
                         int count) {
    for (int i = 0; i < count; i++)
        if (is_one(numbers[i].tensor))
            emit_pointer(source, (weftDataType_t)numbers[i].tensor->type, graph_find_value(c->graph, numbers[i].tensor),
                         0, numbers[i].field);
}

/* Emits the scales of an operand that multiply its elements as they are loaded. */
static void emit_element_scales(struct kernel_source *source, const struct cuda_attention *c,
                                const struct tensor *scales, const struct tensor *operand, const char *name) {
    attention_emit_element_scales(source, c, is_one(scales) ? NULL : scales, operand, name);
}

/* shifts: the statistics around which exponentials are taken, per row; dots: delta, the sum of dO O. backward_rows
   writes both. */
static int64_t emit_rows(struct kernel_source *source, const struct cuda_attention *c) {
    int64_t bytes = round_up(c->lines * c->arithmetic->sum_bytes, 64);
    emit_scratch(source, c->arithmetic->sum_name, c->rows_at, "shifts");
    emit_scratch(source, c->arithmetic->sum_name, c->rows_at + bytes, "dots");
    return 2 * bytes;
}

/* One warp per query. Its results are at the start of the workspace, after rows_at. */
static weftStatus_t build_rows(struct step *step, const struct cuda_attention *c, struct cuda_kernel *kernel,
                               struct arena *arena) {
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    attention_emit_scores(&source, c);
    emit_constant(&source, "WARPS", ROW_WARPS);
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *d_o = op->do_f16 ? op->do_f16 : op->d_o, *descale_do = op->do_f16 ? NULL : op->descale_do;
    const struct numbers scales[] = {{op->descale_o, "descale_o"}, {descale_do, "descale_d_o"}};
    attention_emit_tensor(&source, c, op->o, "o", NULL);
    attention_emit_tensor(&source, c, d_o, "d_o", NULL);
    attention_emit_tensor(&source, c, op->stats, "stats", NULL);
    emit_numbers(&source, c, scales, 2);
    emit_product(&source, "dot_descale", scales, 2);
    emit_element_scales(&source, c, op->descale_o, op->o, "o");
    emit_element_scales(&source, c, descale_do, d_o, "d_o");
    step->workspace_bytes = c->rows_at + emit_rows(&source, c);
    TRY(kernel_finish(&source, kernel, "attention/backward_rows.cuh", "attention_bwd_rows", arena));
    return attention_grid(kernel, c, divide_up(c->lines, ROW_WARPS), ROW_WARPS);
}

/* Emits the operands of the scores and of dP, with their scales. */
static void emit_operands(struct kernel_source *source, const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct numbers scales[] = {{c->a->descale_q, "descale_q"},
                                     {c->a->descale_k, "descale_k"},
                                     {c->a->descale_v, "descale_v"},
                                     {op->descale_do, "descale_d_o"}};
    attention_emit_operand(source, c, c->a->q, "q", "Q_RUN");
    attention_emit_operand(source, c, c->a->k, "k", "K_RUN");
    attention_emit_operand(source, c, c->a->v, "v", "V_RUN");
    attention_emit_operand(source, c, op->d_o, "d_o", "D_O_RUN");
    emit_numbers(source, c, scales, 4);
    emit_constant(source, "HAS_DP_DESCALE", is_one(c->a->descale_v) || is_one(op->descale_do));
    emit_product(source, "score_descale", scales, 2);
    emit_product(source, "dp_descale", scales + 2, 2);
    emit_element_scales(source, c, c->a->descale_q, c->a->q, "q");
    emit_element_scales(source, c, c->a->descale_k, c->a->k, "k");
    emit_element_scales(source, c, c->a->descale_v, c->a->v, "v");
    emit_element_scales(source, c, op->descale_do, op->d_o, "d_o");
}

/* Emits the operands that are given a second time for the gradients; absent ones are never referenced. */
static void emit_copies(struct kernel_source *source, const struct cuda_attention *c) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct {
        const struct tensor *tensor, *scales, *original;
        const char *name, *flag, *run;
    } copies[] = {{op->q_t, op->descale_q_t, c->a->q, "q_t", "HAS_Q_T", "Q_T_RUN"},
                  {op->k_t, op->descale_k_t, c->a->k, "k_t", "HAS_K_T", "K_T_RUN"},
                  {op->do_t, op->descale_do_t, op->d_o, "d_o_t", "HAS_D_O_T", "D_O_T_RUN"}};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        emit_constant(source, copies[i].flag, copies[i].tensor != NULL);
        if (!copies[i].tensor) {
            emit_constant(source, copies[i].run, attention_run(copies[i].original));
            continue;
        }
        attention_emit_operand(source, c, copies[i].tensor, copies[i].name, copies[i].run);
        emit_element_scales(source, c, copies[i].scales, copies[i].tensor, copies[i].name);
    }
}

/* Emits what passes of gradients and of biases have in common. */
static void emit_pass(struct kernel_source *source, const struct cuda_attention *c, const struct pass *p) {
    attention_emit_scores(source, c);
    attention_emit_tile(source, p->tile, "COLUMNS", p->shared_bytes);
    emit_constant(source, "KV_RESIDENT", p->kv_resident);
    emit_constant(source, "IS_SLICED", p->is_sliced);
    emit_constant(source, "DEPTH", columns_in_smem(p, &p->depth));
    emit_constant(source, "VALUE_DEPTH", columns_in_smem(p, &p->value_depth));
    emit_constant(source, "DQK", p->depth.chunk);
    emit_constant(source, "DV", p->value_depth.chunk);
    emit_constant(source, "PARTS", p->parts);
    emit_operands(source, c);
    emit_copies(source, c);
    emit_number(source, c->heads / max64(c->key_heads, 1), "k_group_size");
    emit_number(source, c->heads / max64(c->value_heads, 1), "v_group_size");
    emit_rows(source, c);
}

/* Emits the storage type NAME of an operand of gradients; sum_t if it is not rounded. */
static void emit_operand_type(struct kernel_source *source, const struct tensor *scale, const struct tensor *like,
                              const char *name) {
    int32_t type = attention_factor_type(scale, like);
    if (type == TENSOR_NO_TYPE)
        text_add(&source->constants, "using %s = sum_t;\n", name);
    else
        emit_type(source, name, (weftDataType_t)type);
}

/* Returns the scales of an operand of a gradient: those of the copy if there is one, otherwise those of the
   original. */
static struct numbers scales_of_operand(const struct tensor *copy, struct numbers of_copy, struct numbers of_original) {
    return copy ? of_copy : of_original;
}

/* Emits the factors of a pass's results: each scale that is a single number. */
static void emit_result_descales(struct kernel_source *source, const struct cuda_attention *c, const struct pass *p) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *qk_copy = p->kv_resident ? op->q_t : op->k_t;
    struct numbers dqk = p->kv_resident ? scales_of_operand(op->q_t, (struct numbers){op->descale_q_t, "descale_q_t"},
                                                            (struct numbers){c->a->descale_q, "descale_q"})
                                        : scales_of_operand(op->k_t, (struct numbers){op->descale_k_t, "descale_k_t"},
                                                            (struct numbers){c->a->descale_k, "descale_k"});
    struct numbers dv = scales_of_operand(op->do_t, (struct numbers){op->descale_do_t, "descale_d_o_t"},
                                          (struct numbers){op->descale_do, "descale_d_o"});
    const struct numbers descales[] = {{op->descale_dp, "descale_dp"}, {op->descale_s, "descale_s"}};
    emit_numbers(source, c, descales, 2);
    emit_numbers(source, c, &dqk, qk_copy != NULL); /* those of the original operand already have fields */
    emit_numbers(source, c, &dv, op->do_t != NULL);
    emit_product(source, "dqk_descale", (const struct numbers[]){dqk, descales[0]}, 2);
    emit_product(source, "dv_descale", (const struct numbers[]){dv, descales[1]}, 2);
}

/* Emits the scales of P and dS as operands, and of the stored results. */
static void emit_result_scales(struct kernel_source *source, const struct cuda_attention *c, const struct pass *p) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct numbers scales[] = {{op->scale_s, "scale_s"},
                                     {op->scale_dp, "scale_dp"},
                                     {p->kv_resident ? op->scale_dk : op->scale_dq, "scale_dqk"},
                                     {op->scale_dv, "scale_dv"}};
    emit_numbers(source, c, scales, 4);
    emit_product(source, "p_scale", &scales[0], 1);
    emit_product(source, "ds_scale", &scales[1], 1);
    emit_product(source, "dqk_scale", &scales[2], 1);
    emit_product(source, "dv_scale", &scales[3], 1);
    emit_constant(source, "HAS_P_SCALE", op->scale_s != NULL);
    emit_constant(source, "HAS_DS_SCALE", op->scale_dp != NULL);
    emit_operand_type(source, op->scale_s, c->a->q, "p_operand_t");
    emit_operand_type(source, op->scale_dp, op->d_o, "ds_operand_t");
}

/* Emits the amax outputs of a pass. */
static void emit_amax(struct kernel_source *source, const struct cuda_attention *c, const struct pass *p) {
    const struct sdpa_bwd_op *op = c->backward;
    const struct tensor *dqk = p->kv_resident ? op->amax_dk : op->amax_dq;
    bool has_amax_dqk = p->has_dqk && attention_wants(c, dqk);
    bool has_amax_dv = p->has_dv && attention_wants(c, op->amax_dv);
    attention_emit_scale(source, c, has_amax_dqk ? dqk : NULL, "amax_dqk", "HAS_AMAX_DQK");
    attention_emit_scale(source, c, has_amax_dv ? op->amax_dv : NULL, "amax_dv", "HAS_AMAX_DV");
    attention_emit_scale(source, c, p->tracks_ds ? op->amax_dp : NULL, "amax_ds", "HAS_AMAX_DS");
}

/* chunks: blocks that share rows and compute different columns of the gradients. */
static weftStatus_t build_pass(const struct cuda_attention *c, const struct pass *p, struct cuda_step *state,
                               struct arena *arena) {
    int64_t resident_heads = !p->kv_resident ? c->heads : p->has_dqk ? c->key_heads : c->value_heads;
    int64_t extent = p->kv_resident ? c->keys : c->queries, rows = p->tile->warps * p->tile->m_tiles * 16;
    int64_t chunks = p->has_dqk ? p->depth.chunks : p->value_depth.chunks;
    if (p->has_dv && p->value_depth.chunks > chunks)
        chunks = p->value_depth.chunks;
    int64_t blocks = c->batches * resident_heads * divide_up(extent, rows) * chunks;
    if (!blocks)
        return WEFT_STATUS_SUCCESS;
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_pass(&source, c, p);
    emit_result_descales(&source, c, p);
    emit_result_scales(&source, c, p);
    emit_amax(&source, c, p);
    attention_emit_modifier_gradient(&source, c);
    attention_emit_wanted(&source, c, p->dqk, "dqk", "HAS_DQK");
    attention_emit_wanted(&source, c, p->dv, "dv", "HAS_DV");
    emit_constant(&source, "DQK_IS_PAIR", p->dqk && attention_run(p->dqk) % 2 == 0);
    emit_constant(&source, "DV_IS_PAIR", p->dv && attention_run(p->dv) % 2 == 0);
    emit_number(&source, resident_heads, "resident_heads");
    emit_number(&source, c->heads / max64(resident_heads, 1), "resident_group_size");
    emit_number(&source, divide_up(extent, rows), "tiles");
    emit_number(&source, chunks, "chunks");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "attention/backward.cuh", "attention_bwd", arena));
    kernel->shared_bytes = (uint32_t)p->shared_bytes;
    return attention_grid(kernel, c, blocks, p->tile->warps);
}

/* A gradient of one element may have any rank; its extents are all 1 then. */
static struct tensor as_scores(const struct tensor *tensor) {
    struct tensor padded = tensor_mirror(tensor);
    while (padded.dims.count < 4) {
        padded.dims.at[padded.dims.count++] = 1;
        padded.strides.at[padded.strides.count++] = 1;
    }
    return padded;
}

/* ONE_QUERY, ONE_KEY: dimensions that are reduced in registers; batch entries and heads are reduced by the block's
   loop. */
static void emit_bias(struct kernel_source *source, const struct cuda_attention *c, const struct pass *p) {
    static const char *const axes[] = {"batch", "head", "query", "key"};
    struct tensor bias = as_scores(p->dqk);
    emit_type(source, "dbias_t", (weftDataType_t)bias.type);
    emit_pointer(source, (weftDataType_t)bias.type, graph_find_value(c->graph, p->dqk), 0, "dbias");
    for (int i = 0; i < 4; i++) {
        char field[32];
        snprintf(field, sizeof field, "dbias_%s", axes[i]);
        emit_number(source, bias.dims.at[i] == 1 ? 0 : bias.strides.at[i], field);
    }
    emit_constant(source, "HAS_DQK", 1);
    emit_constant(source, "HAS_DV", 0);
    emit_constant(source, "IS_OPERAND", p->operand >= 0);
    emit_constant(source, "ONE_QUERY", bias.dims.at[2] == 1);
    emit_constant(source, "ONE_KEY", bias.dims.at[3] == 1);
    emit_number(source, bias.dims.at[0], "bias_batches");
    emit_number(source, bias.dims.at[1], "bias_heads");
    if (p->operand >= 0)
        attention_emit_operand_gradient(source, c, p->operand);
}

/* One block per tile of the bias. It iterates over all batch entries and heads that share the tile, in order, so no
   atomics are needed. */
static weftStatus_t build_bias(const struct cuda_attention *c, const struct pass *p, struct cuda_step *state,
                               struct arena *arena) {
    struct tensor bias = as_scores(p->dqk);
    int64_t rows = p->tile->warps * p->tile->m_tiles * 16;
    int64_t query_tiles = divide_up(bias.dims.at[2], rows), key_tiles = divide_up(bias.dims.at[3], p->tile->columns);
    int64_t blocks = bias.dims.at[0] * bias.dims.at[1] * query_tiles * key_tiles;
    if (!blocks)
        return WEFT_STATUS_SUCCESS;
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    emit_pass(&source, c, p);
    emit_bias(&source, c, p);
    emit_number(&source, query_tiles, "query_tiles");
    emit_number(&source, key_tiles, "key_tiles");
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "attention/backward_bias.cuh", "attention_bwd_bias", arena));
    kernel->shared_bytes = (uint32_t)p->shared_bytes;
    return attention_grid(kernel, c, blocks, p->tile->warps);
}

/* One block per head sums over the queries of all batch entries. */
static weftStatus_t build_sink(const struct cuda_attention *c, struct cuda_step *state, struct arena *arena) {
    const struct tensor *dsink = c->backward->dsink;
    if (!c->heads)
        return WEFT_STATUS_SUCCESS;
    struct kernel_source source;
    kernel_source_init(&source, c->region);
    attention_emit_scores(&source, c);
    emit_constant(&source, "WARPS", SINK_WARPS);
    emit_type(&source, "dsink_t", (weftDataType_t)dsink->type);
    emit_pointer(&source, (weftDataType_t)dsink->type, graph_find_value(c->graph, dsink), 0, "dsink");
    emit_number(&source, dsink->dims.at[1] == 1 ? 0 : dsink->strides.at[1], "dsink_step");
    emit_rows(&source, c);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "attention/backward_sink.cuh", "attention_bwd_sink", arena));
    return attention_grid(kernel, c, c->heads, SINK_WARPS);
}

weftStatus_t attention_backward_build(struct step *step, const struct cuda_attention *c, struct cuda_step *state,
                                      struct arena *arena) {
    struct pass passes[PASSES_MAX];
    int count;
    TRY(plan_backward(passes, &count, c));
    TRY(attention_build_amax_clear(c, state, arena));
    /* needed by each pass and by the sink */
    if (c->lines && (count || attention_wants(c, c->backward->dsink)))
        TRY(build_rows(step, c, &state->kernels[state->count++], arena));
    for (int i = 0; i < count; i++)
        TRY(passes[i].is_bias ? build_bias(c, &passes[i], state, arena) : build_pass(c, &passes[i], state, arena));
    if (attention_wants(c, c->backward->dsink))
        TRY(build_sink(c, state, arena));
    if (!count)
        return arena_print(arena, &step->detail, "%s", c->arithmetic->doc);
    return arena_print(arena, &step->detail, "%s, %d x %d tiles%s, %d in flight, %d %s", c->arithmetic->doc,
                       passes[0].tile->warps * passes[0].tile->m_tiles * 16, passes[0].tile->columns,
                       passes[0].is_sliced ? " in slices" : "", passes[0].tile->stages, count,
                       count == 1 ? "pass" : "passes");
}

/* ---- For families that compute the other gradients differently ---- */

/* Counts the passes that plan_backward adds after the others. */
bool attention_backward_wants_biases(const struct cuda_attention *c) {
    struct pass passes[PASSES_MAX];
    int count = 0;
    add_biases(passes, &count, c);
    return count > 0;
}

/* 2/5: scores and dP are two of the five matmuls of a backward pass. */
double attention_backward_predict_biases(const struct cuda_attention *c) {
    struct pass passes[PASSES_MAX];
    int count = 0;
    add_biases(passes, &count, c);
    return count * attention_predict_flops(c, op_flops(region_node(c->region, 0)->op) * 2 / 5);
}

/* Uses a copy of the analysis, whose statistics follow the caller's part of the workspace. */
weftStatus_t attention_backward_build_biases(struct step *step, const struct cuda_attention *c, int64_t workspace_at,
                                             struct cuda_step *state, struct arena *arena) {
    struct cuda_attention after = *c;
    struct pass passes[PASSES_MAX];
    int count = 0;
    after.rows_at = workspace_at;
    add_biases(passes, &count, &after);
    TRY(build_rows(step, &after, &state->kernels[state->count++], arena));
    for (int i = 0; i < count; i++) {
        TRY(plan_pass(&passes[i], &after));
        TRY(build_bias(&after, &passes[i], state, arena));
    }
    return WEFT_STATUS_SUCCESS;
}
