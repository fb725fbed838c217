/* SPDX-License-Identifier: Apache-2.0 */
/* Source and arguments that all attention kernels share. */
#include "base/number.h"
#include "base/philox.h"
#include "engines/cuda/attention/attention.h"

#include <stdio.h>
#include <string.h>

/* In elements, at most 16 bytes; a power of two because gcd64(alignment, 16) is. Every row must start at a multiple of
   it. */
int attention_run(const struct tensor *tensor) {
    int64_t bytes = dtype_bytes((weftDataType_t)tensor->type, 1);
    if (tensor->strides.at[3] != 1 || tensor->is_by_value || tensor->is_constant)
        return 1;
    int64_t length = gcd64(tensor->alignment, 16) / bytes;
    length = gcd64(length > 1 ? length : 1, tensor->dims.at[3]);
    /* Ragged offsets, which replace the batch stride, are multiples of the run: see emit_fit. */
    for (int i = tensor->ragged_offset ? 1 : 0; i < 3; i++)
        if (tensor->dims.at[i] > 1)
            length = gcd64(length, tensor->strides.at[i]);
    return length < 0 ? (int)-length : (int)length;
}

/* A dimension of extent 1 always gets stride 0, because indices may exceed it. */
void attention_emit_tensor(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                           const char *name, const char *const axes[4]) {
    static const char *const usual[] = {"batch", "head", "row", "column"};
    char field[48];
    snprintf(field, sizeof field, "%s_t", name);
    emit_type(source, field, (weftDataType_t)tensor->type);
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(c->graph, tensor), 0, name);
    for (int i = 0; i < 4; i++) {
        /* ragged batch entries start at their own offsets: a stride that is looked up */
        const struct tensor *offsets = i == 0 ? tensor->ragged_offset : NULL;
        snprintf(field, sizeof field, "%s_%s", name, (axes ? axes : usual)[i]);
        if (offsets)
            emit_ragged(source, (weftDataType_t)offsets->type, graph_find_value(c->graph, offsets),
                        offsets->strides.at[0], tensor->ragged_multiplier, field);
        else
            emit_number(source, tensor->dims.at[i] == 1 ? 0 : tensor->strides.at[i], field);
    }
}

/* run_name: name of the constant, such as Q_RUN. */
void attention_emit_operand(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                            const char *name, const char *run_name) {
    attention_emit_tensor(source, c, tensor, name, NULL);
    emit_constant(source, run_name, attention_run(tensor));
}

void attention_emit_pages(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *table,
                          const struct tensor *container, const char *name, const char *page_name) {
    static const char *const axes[] = {"batch", "head", "step", "column"};
    char field[48];
    emit_constant(source, page_name, table ? container->dims.at[2] : 0);
    if (!table) {
        text_add(&source->constants, "using %s_table_t = i32;\n", name); /* the kernel refers to the type */
        return;
    }
    snprintf(field, sizeof field, "%s_pages", name);
    /* kernels clamp page table entries, which are device data, to the number of pages */
    emit_number(source, container->dims.at[0], field);
    snprintf(field, sizeof field, "%s_table", name);
    attention_emit_tensor(source, c, table, field, axes);
}

void attention_emit_wanted(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                           const char *name, const char *flag) {
    emit_constant(source, flag, attention_wants(c, tensor));
    if (attention_wants(c, tensor))
        attention_emit_tensor(source, c, tensor, name, NULL);
    else
        text_add(&source->constants, "using %s_t = float;\n", name); /* the kernel refers to the type */
}

/* columns_name: columns of the streamed side, which are keys forward, queries or keys backward. */
void attention_emit_tile(struct kernel_source *source, const struct attention_tile *tile, const char *columns_name,
                         int64_t shared_bytes) {
    emit_constant(source, "WARPS", tile->warps);
    emit_constant(source, "M_TILES", tile->m_tiles);
    emit_constant(source, columns_name, tile->columns);
    emit_constant(source, "STAGES", tile->stages);
    emit_constant(source, "ROWS_IN_REGISTERS", tile->in_registers);
    emit_constant(source, "SHARED_BYTES", shared_bytes);
}

/* Arguments are integers: kernels reinterpret the bits as a double. */
void attention_emit_real(struct kernel_source *source, double number, const char *name) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    emit_number(source, bits, name);
}

/* A scalar, or one element per batch or head: its pointer, and the stride NAME_step if there are several. flag:
   constant that is 1 if the tensor is present; step_name: NULL for a scalar. */
static void emit_list(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *tensor,
                      const char *name, const char *step_name, int dim, const char *flag) {
    emit_constant(source, flag, tensor != NULL);
    if (!tensor)
        return;
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(c->graph, tensor), 0, name);
    if (step_name)
        emit_number(source, tensor->dims.at[dim] == 1 ? 0 : tensor->strides.at[dim], step_name);
}

/* Types of staged elements and accumulators, and capabilities of the device. */
static void emit_arithmetic(struct kernel_source *source, const struct cuda_attention *c) {
    text_add(&source->constants, "using staged_t = %s;\nusing sum_t = %s;\n", c->arithmetic->staged_name,
             c->arithmetic->sum_name);
    emit_constant(source, "HAS_K16", c->has_k16);
    emit_constant(source, "HAS_ASYNC", c->has_async);
}

void attention_emit_scale(struct kernel_source *source, const struct cuda_attention *c, const struct tensor *scale,
                          const char *name, const char *flag) {
    emit_constant(source, flag, scale != NULL);
    if (scale)
        emit_pointer(source, (weftDataType_t)scale->type, graph_find_value(c->graph, scale), 0, name);
}

/* Emits the amax outputs of the forward pass, and constants that tell which are requested. Backward passes emit their
   own. */
static void emit_amax(struct kernel_source *source, const struct cuda_attention *c) {
    const struct sdpa_fwd_op *op = c->forward;
    attention_emit_scale(source, c, attention_wants(c, op->amax_s) ? op->amax_s : NULL, "amax_s", "HAS_AMAX_S");
    attention_emit_scale(source, c, attention_wants(c, op->amax_o) ? op->amax_o : NULL, "amax_o", "HAS_AMAX_O");
}

/* Strides of scales: 0 along broadcast dimensions; for tiled scales, the number of tiles in a row. */
static void emit_scale_steps(struct kernel_source *source, const struct tensor *scales,
                             const struct attention_blocks *blocks, const char *name) {
    static const char *const axes[] = {"batch", "head", "row", "column"};
    for (int i = 0; i < 4; i++) {
        char field[48];
        int64_t step = scales->dims.at[i] == 1 ? 0 : scales->strides.at[i];
        snprintf(field, sizeof field, "descale_%s_%s", name, axes[i]);
        emit_number(source, blocks->are_tiled && i == 2 ? blocks->tiles : step, field);
    }
}

/* Emits the function even without scales; it then returns no_scales. */
void attention_emit_element_scales(struct kernel_source *source, const struct cuda_attention *c,
                                   const struct tensor *scales, const struct tensor *operand, const char *name) {
    static const char SIGNATURE[] = "template <class P> DEVICE auto %s_scales(const P &a, i64 batch, i64 head) {\n";
    if (!scales) {
        text_add(&source->code, SIGNATURE, name);
        text_add(&source->code, "    return scales_at(a);\n}\n\n");
        return;
    }
    /* the block size is compiled in; strides are arguments */
    struct attention_blocks blocks = attention_blocks_of(scales, operand);
    char field[48];
    snprintf(field, sizeof field, "descale_%s", name);
    emit_pointer(source, (weftDataType_t)scales->type, graph_find_value(c->graph, scales), 0, field);
    emit_scale_steps(source, scales, &blocks, name);
    text_add(&source->code,
             "struct %s_scale_form {\n    static constexpr int ROWS = %lld, COLUMNS = %lld;\n    static constexpr bool "
             "IS_TILED = %d;\n};\n",
             name, (long long)blocks.rows, (long long)blocks.columns, blocks.are_tiled);
    text_add(&source->code, SIGNATURE, name);
    text_add(&source->code,
             "    return scales_at(%s_scale_form{}, a.%s + (batch * a.%s_batch + head * a.%s_head), a.%s_row, "
             "a.%s_column);\n}\n\n",
             name, field, field, field, field, field);
}

/* kind: ATTENTION_SCALES_.. Operands without scales need no arguments: their kind is a constant. */
static void emit_operand_scales(struct kernel_source *source, const struct cuda_attention *c,
                                const struct tensor *scales, const struct tensor *operand, int kind, const char *name) {
    char field[24];
    snprintf(field, sizeof field, "descale_%s", name);
    if (kind == ATTENTION_SCALES_BLOCKS)
        attention_emit_element_scales(source, c, scales, operand, name);
    else if (kind != ATTENTION_SCALES_NONE)
        attention_emit_tensor(source, c, scales, field, NULL);
}

/* Returns the scales that are left after the conversion, because the converted operands already include block scales.
   kind: the kind before the conversion. */
static int scales_left(const struct cuda_attention *c, int kind) {
    return c->widened && kind == ATTENTION_SCALES_BLOCKS ? ATTENTION_SCALES_NONE : kind;
}

void attention_emit_scales(struct kernel_source *source, const struct cuda_attention *c, bool is_packed) {
    const struct attention *a = c->a;
    const struct sdpa_fwd_op *op = c->forward;
    int q_scales = scales_left(c, attention_query_scales(c, is_packed));
    int k_scales = scales_left(c, attention_key_scales(a->descale_k, a->k_table));
    int v_scales = scales_left(c, attention_key_scales(a->descale_v, a->v_table));
    /* kinds select code; ATTENTION_SCALES_HEAD is one value for all rows of a block */
    emit_constant(source, "Q_SCALES", q_scales);
    emit_constant(source, "K_SCALES", k_scales);
    emit_constant(source, "V_SCALES", v_scales);
    emit_operand_scales(source, c, a->descale_q, a->q, q_scales, "q");
    emit_operand_scales(source, c, a->descale_k, a->k, k_scales, "k");
    emit_operand_scales(source, c, a->descale_v, a->v, v_scales, "v");
    attention_emit_scale(source, c, op->scale_s, "scale_s", "HAS_SCALE_S");
    attention_emit_scale(source, c, op->descale_s, "descale_s", "HAS_DESCALE_S");
    attention_emit_scale(source, c, op->scale_o, "scale_o", "HAS_SCALE_O");
    emit_amax(source, c);
    /* query heads that share a head of K, and of V */
    emit_number(source, c->heads / max64(c->key_heads, 1), "k_group_size");
    emit_number(source, c->heads / max64(c->value_heads, 1), "v_group_size");
}

/* The mask's type, address and strides. DROPOUT_MASK_IN_WORDS: the bytes of four adjacent keys are an aligned word. */
static void emit_dropout_mask(struct kernel_source *source, const struct cuda_attention *c) {
    static const char *const axes[] = {"batch", "head", "query", "key"};
    const struct tensor *mask = c->a->dropout_mask;
    emit_constant(source, "HAS_DROPOUT_MASK", mask != NULL);
    emit_constant(source, "DROPOUT_MASK_IN_WORDS",
                  mask && mask->type == WEFT_DATA_BYTE_BOOLEAN && mask->dims.at[3] == c->keys &&
                      attention_run(mask) % 4 == 0);
    if (mask)
        attention_emit_tensor(source, c, mask, "dropout_mask", axes);
    else
        text_add(&source->constants, "using dropout_mask_t = float;\n"); /* the kernel refers to the type */
}

/* threshold: random words below it keep the element. */
void attention_emit_dropout(struct kernel_source *source, const struct cuda_attention *c) {
    const struct attention *a = c->a;
    emit_constant(source, "HAS_DROPOUT", attention_drops(a));
    emit_constant(source, "HAS_DROPOUT_OFFSET", attention_draws(a) && a->dropout_offset);
    attention_emit_scale(source, c, a->dropout_scale, "dropout_scale", "HAS_DROPOUT_SCALE");
    emit_dropout_mask(source, c);
    if (attention_drops(a) && !a->dropout_scale)
        attention_emit_real(source, attention_keep_scale(a), "keep_scale");
    if (!attention_draws(a))
        return;
    emit_pointer(source, (weftDataType_t)a->dropout_seed->type, graph_find_value(c->graph, a->dropout_seed), 0,
                 "dropout_seed");
    if (a->dropout_offset)
        emit_pointer(source, (weftDataType_t)a->dropout_offset->type, graph_find_value(c->graph, a->dropout_offset), 0,
                     "dropout_offset");
    emit_number(source, philox_threshold(1 - a->dropout_probability), "threshold");
}

static bool same_limit(const struct ragged_limit *a, const struct ragged_limit *b) {
    return a->value == b->value && a->multiplier == b->multiplier && a->most == b->most && a->latest == b->latest &&
           a->row == b->row && a->width == b->width && a->unit == b->unit;
}

static struct ragged_limit limit_of(const struct cuda_attention *c, const struct tensor *tensor) {
    const struct tensor *offsets = tensor->ragged_offset;
    struct ragged_entries entries = tensor_ragged_entries(tensor);
    return (struct ragged_limit){.type = (weftDataType_t)offsets->type,
                                 .value = graph_find_value(c->graph, offsets),
                                 .step = offsets->strides.at[0],
                                 .entries = tensor->ragged_offset->dims.at[0] - 1,
                                 .multiplier = tensor->ragged_multiplier,
                                 .most = entries.most,
                                 .latest = entries.latest,
                                 .row = entries.row,
                                 .width = entries.width,
                                 .unit = attention_run(tensor)};
}

/* Emits the function NAME of (arguments, batch, rows), which returns true if that number of queries, or keys, of a
   batch entry is within all ragged tensors of the operation. Tensors with equal offsets and layout share the limit. */
static void emit_fit(struct kernel_source *source, const struct cuda_attention *c, bool has_keys, const char *name) {
    struct attention_ragged list[ATTENTION_RAGGED_MAX];
    struct ragged_limit limits[ATTENTION_RAGGED_MAX];
    int count = attention_ragged_operands(region_node(c->region, 0)->op, list);
    text_add(&source->code, "template <class P> DEVICE bool %s(const P &a, i64 batch, i64 rows) {\n    return true",
             name);
    for (int i = 0; i < count; i++) {
        char field[32];
        limits[i] = limit_of(c, list[i].tensor);
        bool is_new = list[i].has_keys == has_keys;
        for (int j = 0; j < i; j++)
            is_new = is_new && !(list[j].has_keys == has_keys && list[j].page == list[i].page &&
                                 same_limit(&limits[i], &limits[j]));
        if (!is_new)
            continue;
        snprintf(field, sizeof field, "%s_%d", name, i);
        emit_ragged_limit(source, &limits[i], field);
        if (list[i].page == 1)
            text_add(&source->code, " && a.%s.has(batch, rows)", field);
        else
            text_add(&source->code, " && a.%s.has(batch, (rows + %lld) / %lld)", field, (long long)list[i].page - 1,
                     (long long)list[i].page);
    }
    text_add(&source->code, ";\n}\n\n");
}

/* Cumulative sums replace lengths: entry b has sums[b + 1] - sums[b]. */
void attention_emit_lengths(struct kernel_source *source, const struct cuda_attention *c) {
    const struct attention *a = c->a;
    emit_constant(source, "SEQ_LEN_Q_ARE_SUMS", a->cu_seq_len_q != NULL);
    emit_constant(source, "SEQ_LEN_KV_ARE_SUMS", a->cu_seq_len_kv != NULL);
    emit_list(source, c, a->cu_seq_len_q ? a->cu_seq_len_q : a->seq_len_q, "seq_len_q", "seq_len_q_step", 0,
              "HAS_SEQ_LEN_Q");
    emit_list(source, c, a->cu_seq_len_kv ? a->cu_seq_len_kv : a->seq_len_kv, "seq_len_kv", "seq_len_kv_step", 0,
              "HAS_SEQ_LEN_KV");
    emit_fit(source, c, false, "queries_fit");
    emit_fit(source, c, true, "keys_fit");
}

/* One bit or byte per tile of scores; the kernel skips tiles that are 0. */
void attention_emit_block_mask(struct kernel_source *source, const struct cuda_attention *c) {
    static const char *const axes[] = {"batch", "head", "query", "key"};
    emit_constant(source, "HAS_BLOCK_MASK", c->a->block_mask != NULL);
    emit_constant(source, "MASK_TILES_IN_BYTE", c->a->block_mask && attention_mask_has_bits(c->a) ? 8 : 1);
    if (c->a->block_mask)
        attention_emit_tensor(source, c, c->a->block_mask, "block_mask", axes);
}

/* Sizes and bounds are arguments; features that select code are constants. So new shapes need no compilation, new
   features do. */
void attention_emit_scores(struct kernel_source *source, const struct cuda_attention *c) {
    static const char *const bias_axes[] = {"batch", "head", "query", "key"};
    const struct attention *a = c->a;
    emit_arithmetic(source, c);
    emit_number(source, c->batches, "batches");
    emit_number(source, c->heads, "heads");
    emit_number(source, c->queries, "queries");
    emit_number(source, c->keys, "keys");
    emit_number(source, c->depth, "depth");
    emit_number(source, c->value_depth, "value_depth");
    emit_number(source, c->lines, "lines");
    emit_number(source, a->left_bound, "left");
    emit_number(source, a->right_bound, "right");
    emit_constant(source, "IS_BOTTOM_RIGHT", a->alignment == WEFT_DIAGONAL_BOTTOM_RIGHT);
    emit_list(source, c, a->scale, "scale", NULL, 0, "HAS_SCALE");
    /* the argument `scale` is a tensor's address or the bits of a number, depending on HAS_SCALE */
    if (!a->scale)
        attention_emit_real(source, a->scale_value, "scale");
    attention_emit_lengths(source, c);
    /* a sink is an additional score per head in the softmax, without a value */
    emit_list(source, c, a->sink, "sink", "sink_step", 1, "HAS_SINK");
    emit_constant(source, "HAS_ALIBI", a->alibi);
    /* 0: none; 1: added to scores; 2: a boolean that hides scores */
    emit_constant(source, "BIAS", !a->bias ? 0 : dtype_is_boolean((weftDataType_t)a->bias->type) ? 2 : 1);
    if (a->bias)
        attention_emit_tensor(source, c, a->bias, "bias", bias_axes);
    else
        text_add(&source->constants, "using bias_t = float;\n"); /* the kernel refers to the type */
    attention_emit_block_mask(source, c);
    attention_emit_modifier(source, c, false);
    attention_emit_dropout(source, c);
}
