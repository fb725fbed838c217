/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions after a product: the code with which tiles compute partial sums of their results, and the kernel that
   combines the partial sums in the workspace, always in the same order. This file must not know how tiles are
   scheduled. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/bn_bwd_weights.h"
#include "graph/ops/genstats.h"
#include "graph/ops/reduction.h"

enum {
    COMBINE_THREADS = 512,    /* threads of a block that combines partial sums */
    PARTIALS_ALIGNMENT = 256, /* bytes */
    COLUMN_LANES = 8,         /* adjacent totals that are read at once, at least 32 bytes */
    ROW_LANES = 32,           /* more than for columns, because rows have fewer partial sums */
};

/* COMBINE_SECONDS: one combining kernel, like any kernel that reduces little. FACTORS_SECONDS: in addition, if the sums
   become factors of batch norm's gradient. H100: data gradients with these sums took 3 to 6 us more than without. */
static const double COMBINE_SECONDS = 2e-6, FACTORS_SECONDS = 1.5e-6;

/* How an operator maps an element, which combination of core/reduce.cuh it uses, and how it maps the total. X: the
   number, N: the number of elements. */
struct operator {
    const char *combine, *element, *result;
};

/* reductions_add refuses operators without a row. AMAX: `largest` of an empty set is negative, and absolute values are
   not. */
static const struct operator operators[] = {
    [WEFT_REDUCE_TENSOR_ADD] = {"sum", "X", "X"},
    [WEFT_REDUCE_TENSOR_MUL] = {"product", "X", "X"},
    [WEFT_REDUCE_TENSOR_MIN] = {"least", "X", "X"},
    [WEFT_REDUCE_TENSOR_MAX] = {"largest", "X", "X"},
    [WEFT_REDUCE_TENSOR_AMAX] = {"largest", "fabs(X)", "X < 0 ? 0.0f : X"},
    [WEFT_REDUCE_TENSOR_AVG] = {"sum", "X", "X / (float)p.count"},
    [WEFT_REDUCE_TENSOR_NORM1] = {"sum", "fabs(X)", "X"},
    [WEFT_REDUCE_TENSOR_NORM2] = {"sum", "X * X", "sqrt(X)"},
    [WEFT_REDUCE_TENSOR_MUL_NO_ZEROS] = {"product", "X == 0 ? 1.0f : X", "X"},
};
enum { OPERATORS = sizeof operators / sizeof *operators };

const char *const span_names[SPANS] = {[SPAN_COLUMN] = "column", [SPAN_ROW] = "row", [SPAN_ALL] = "whole"};

/* ---- Spans of reductions ----------------------------------------------------------------------------------------- */

/* Statistics of batch norms are two reductions each. */
bool reductions_support(const struct node *node) {
    const struct op *op = op_of(node->op);
    return op == &reduction_op || op == &genstats_op || op == &bn_bwd_weights_op;
}

/* Returns the type of the sums, and in *kept (never NULL) an output, whose dims determine the span. */
static int32_t math_of(const struct node *node, const struct tensor **output) {
    const struct op *op = op_of(node->op);
    if (op == &reduction_op) {
        *output = ((const struct reduction_op *)node->op)->y;
        return (int32_t)reduction_math((const struct reduction_op *)node->op);
    }
    if (op == &genstats_op) {
        *output = ((const struct genstats_op *)node->op)->sum;
        return ((const struct genstats_op *)node->op)->math;
    }
    *output = ((const struct bn_bwd_weights_op *)node->op)->mean;
    return ((const struct bn_bwd_weights_op *)node->op)->math;
}

/* Only whole columns, whole rows or everything can be reduced; tiles support no other lines. */
static weftStatus_t refuse_dims(const struct node *node, const struct tensor *output) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
         "%s: reduces to %s; tiles reduce whole columns, whole rows, or the whole result of a product.",
         descriptor_label(node->op), tensor_dims_text(output));
}

/* True if all modes of an index are kept, false if all are reduced; an index of extent 1 counts as reduced. Fails if
   only some are kept. */
static weftStatus_t find_is_kept(const struct contraction *c, const struct node *node, const struct tensor *output,
                                 enum index index, bool *is_kept) {
    const struct tensor *result = c->region->graph->values[c->result].tensor;
    /* Number of kept modes with more than one element, and of all such modes. */
    int kept_count = 0, count = 0;
    for (int d = 0; d < c->modes[index].count; d++) {
        int dim = c->modes[index].at[d].dim;
        if (c->modes[index].at[d].extent == 1)
            continue;
        if (output->dims.at[dim] != 1 && output->dims.at[dim] != result->dims.at[dim])
            return refuse_dims(node, output);
        kept_count += output->dims.at[dim] != 1;
        count++;
    }
    if (kept_count && kept_count < count)
        return refuse_dims(node, output);
    *is_kept = kept_count > 0;
    return WEFT_STATUS_SUCCESS;
}

/* The t-th number of a span is the t-th line of its partial sums. genstats and batch-norm weights need two, the sums of
   X and of X * X or X * x^. Either all reductions of a span keep the batch entries or none does, because its lines
   belong to each entry or to all of them. */
weftStatus_t reductions_add(struct contraction *c, const struct node *node) {
    struct epilogue *epilogue = &c->epilogue;
    const struct tensor *output, *result = c->region->graph->values[c->result].tensor;
    const struct op *op = op_of(node->op);
    int32_t math = math_of(node, &output), mode = WEFT_REDUCE_TENSOR_ADD;
    bool kept_indices[K];
    if (op == &reduction_op)
        mode = ((const struct reduction_op *)node->op)->parameters->mode;
    if (math == WEFT_DATA_DOUBLE || !dtype_is_float((weftDataType_t)math) || result->type == WEFT_DATA_DOUBLE ||
        mode < 0 || mode >= OPERATORS || !operators[mode].combine)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: tiles reduce in float, by the built-in operators.",
             descriptor_label(node->op));
    if (output->dims.count != result->dims.count)
        return refuse_dims(node, output);
    for (int index = BATCH; index < K; index++)
        TRY(find_is_kept(c, node, output, (enum index)index, &kept_indices[index]));
    /* Either nothing would be reduced, or each batch entry to one number, which is not a span. */
    if ((kept_indices[ROW] && kept_indices[COLUMN]) ||
        (kept_indices[BATCH] && !kept_indices[ROW] && !kept_indices[COLUMN]))
        return refuse_dims(node, output);
    /* The kept index determines the span. */
    enum span span = kept_indices[COLUMN] ? SPAN_COLUMN : kept_indices[ROW] ? SPAN_ROW : SPAN_ALL;
    struct reduced_span *reduced = &epilogue->spans[span];
    if (reduced->count > 0 && reduced->keeps_batch != kept_indices[BATCH])
        return refuse_dims(node, output);
    if (epilogue->reduction_count == REDUCTIONS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: more than %d reductions after the product.",
             descriptor_label(node->op), REDUCTIONS_MAX);
    epilogue->reductions[epilogue->reduction_count++] = (struct fused_reduction){node, span, reduced->count, mode};
    reduced->keeps_batch = kept_indices[BATCH];
    /* Number of elements per total, for means. */
    reduced->elements = tensor_elements(output) ? tensor_elements(result) / tensor_elements(output) : 0;
    reduced->count += op == &reduction_op ? 1 : 2;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Elements of reductions in tiles ----------------------------------------------------------------------------- */

/* Returns the value number of a tensor in the graph. */
static int value_of(const struct contraction *c, const struct tensor *tensor) {
    return graph_find_value(c->region->graph, tensor);
}

/* The combination of core/reduce.cuh for the t-th number of a span. Nodes with two numbers sum both. Lines of a span
   may have different operators. */
static const char *combine_name(const struct epilogue *epilogue, enum span span, int t) {
    for (int r = 0; r < epilogue->reduction_count; r++) {
        const struct fused_reduction *reduction = &epilogue->reductions[r];
        if (reduction->span == span && reduction->first == t && op_of(reduction->node->op) == &reduction_op)
            return operators[reduction->mode].combine;
    }
    return "sum";
}

/* Emits struct <span>_reductions: COUNT, the neutral element none(), with which partial sums start, and joined(), which
   combines two partial sums, in the given type. */
static void emit_kind(struct kernel_source *source, const struct epilogue *epilogue, enum span span, const char *type) {
    int count = epilogue->spans[span].count;
    text_add(&source->code, "struct %s_reductions {\n    static constexpr int COUNT = %d;\n", span_names[span], count);
    text_add(&source->code, "    static DEVICE %s none(int t) { return ", type);
    for (int t = 0; t < count; t++)
        text_add(&source->code, "t == %d ? %s<%s>::none().number : ", t, combine_name(epilogue, span, t), type);
    text_add(&source->code, "0.0f; }\n    static DEVICE %s joined(int t, %s a, %s b) { return ", type, type, type);
    for (int t = 0; t < count; t++)
        text_add(&source->code, "t == %d ? %s<%s>::joined({a}, {b}).number : ", t, combine_name(epilogue, span, t),
                 type);
    text_add(&source->code, "0.0f; }\n};\n");
}

/* Spans without reductions have COUNT 0, so kernels skip their loops. */
static void emit_kinds(struct kernel_source *source, const struct contraction *c, const char *type) {
    if (c->epilogue.reduction_count)
        text_add(&source->constants, "#include \"core/reduce.cuh\"\n");
    for (int span = 0; span < SPANS; span++)
        emit_kind(source, &c->epilogue, (enum span)span, type);
    text_add(&source->code, "\n");
}

void reductions_emit_kinds(struct kernel_source *source, const struct contraction *c) {
    emit_kinds(source, c, "float");
}

/* Partial sums of tiles have few elements each and are floats. Their total is double if an output is DOUBLE. */
static const char *combined_type(const struct contraction *c, enum span span) {
    for (int r = 0; r < c->epilogue.reduction_count; r++) {
        const struct node *node = c->epilogue.reductions[r].node;
        for (int k = 0; k < node->operand_count && c->epilogue.reductions[r].span == span; k++)
            if (node->is_output[k] && c->region->graph->values[node->operands[k]].tensor->type == WEFT_DATA_DOUBLE)
                return "double";
    }
    return "float";
}

void reductions_emit_fields(struct kernel_source *source, const struct epilogue *epilogue) {
    for (int span = 0; span < SPANS; span++)
        if (epilogue->spans[span].count)
            text_add(&source->code, "    run<float, RUN> %ss[%d];\n", span_names[span], epilogue->spans[span].count);
}

/* Emits the contribution of X, given by the text `x`, to number t of the node: `element`. */
static void emit_element(struct kernel_source *source, const struct fused_reduction *reduction, int t, const char *x,
                         const char *element) {
    text_add(&source->code, "        { const float X = %s; out.%ss[%d].at[e] = %s; }\n", x, span_names[reduction->span],
             reduction->first + t, element);
}

/* Inside evaluate()'s loop over e, where v<value> are floats or have the tensors' types. */
void reductions_emit_elements(struct kernel_source *source, const struct contraction *c) {
    for (int r = 0; r < c->epilogue.reduction_count; r++) {
        const struct fused_reduction *reduction = &c->epilogue.reductions[r];
        const struct descriptor *node = reduction->node->op;
        if (op_of(node) == &reduction_op) {
            int x = value_of(c, ((const struct reduction_op *)node)->x);
            emit_element(source, reduction, 0, named("as<float>::of(v%d)", x).text, operators[reduction->mode].element);
        } else if (op_of(node) == &genstats_op) {
            int x = value_of(c, ((const struct genstats_op *)node)->x);
            for (int t = 0; t < 2; t++)
                emit_element(source, reduction, t, named("as<float>::of(v%d)", x).text, t ? "X * X" : "X");
        } else {
            const struct bn_bwd_weights_op *op = (const struct bn_bwd_weights_op *)node;
            const struct name dy = named("as<float>::of(v%d)", value_of(c, op->dy));
            emit_element(source, reduction, 0, dy.text, "X");
            text_add(
                &source->code,
                "        { const float X = %s; out.%ss[%d].at[e] = X * ((as<float>::of(v%d) - as<float>::of(v%d)) * "
                "as<float>::of(v%d)); }\n",
                dy.text, span_names[reduction->span], reduction->first + 1, value_of(c, op->x), value_of(c, op->mean),
                value_of(c, op->inv_variance));
        }
    }
}

/* In that case the stored data suffices, and kernels can reduce epilogue tiles. */
bool reductions_read_only_value(const struct contraction *c, int value) {
    bool reads_only_value = true;
    for (int r = 0; r < c->epilogue.reduction_count; r++) {
        const struct node *node = c->epilogue.reductions[r].node;
        for (int k = 0; k < node->operand_count; k++)
            reads_only_value = reads_only_value && (node->is_output[k] || node->operands[k] == value);
    }
    return reads_only_value;
}

/* From the stored 16 bits, so that the reduction sees the same data as a separate kernel would read from memory. A
   struct of runs of one element, so that the same code fills it. */
void reductions_emit_stored(struct kernel_source *source, const struct contraction *c,
                            const struct epilogue_operand *store) {
    if (c->epilogue.reduction_count == 0)
        return;
    text_add(&source->code, "struct stored_elements {\n    static constexpr int RUN = 1;\n");
    reductions_emit_fields(source, &c->epilogue);
    text_add(&source->code,
             "};\n\nDEVICE stored_elements elements_of(const arguments& p, u16 bits) {\n    stored_elements out;\n"
             "    const %s v%d = {bits};\n    constexpr int e = 0;\n",
             cuda_type_name(store->type), store->value);
    reductions_emit_elements(source, c);
    text_add(&source->code, "    return out;\n}\n\n");
}

/* ---- Totals ------------------------------------------------------------------------------------------------------ */

/* Emits p.f<k>[offset], an operand over the kept index, and returns k. Operands of reductions are already in the
   epilogue. */
static int emit_address(struct kernel_source *source, const struct contraction *c, const struct tensor *tensor) {
    const struct epilogue *epilogue = &c->epilogue;
    int value = value_of(c, tensor), k = 0;
    while (epilogue->at[k].value != value)
        k++;
    text_add(&source->code, "(p.f%d", k);
    epilogue_emit_offset(source, epilogue, k);
    text_add(&source->code, ")[0]");
    return k;
}

/* Outputs without readers are omitted. formula: in terms of X, weighted and parameters. */
static void emit_store(struct kernel_source *source, const struct contraction *c, const struct tensor *tensor,
                       const char *formula) {
    if (!tensor || !region_exports(c->region, value_of(c, tensor)))
        return;
    text_add(&source->code, "    ");
    emit_address(source, c, tensor);
    text_add(&source->code, " = from<%s>::number(%s);\n", cuda_type_name((weftDataType_t)tensor->type), formula);
}

/* Emits the value of a parameter as float, over the kept index. An absent one is 1. */
static void emit_parameter(struct kernel_source *source, const struct contraction *c, const struct tensor *tensor,
                           const char *name) {
    text_add(&source->code, "    const float %s = ", name);
    if (!tensor) {
        text_add(&source->code, "1.0f;\n");
        return;
    }
    text_add(&source->code, "to_float(");
    emit_address(source, c, tensor);
    text_add(&source->code, ");\n");
}

/* As defined in bn_bwd_weights.c. X: sum of dy; weighted: sum of dy * x^. */
static void emit_bn_bwd_weights(struct kernel_source *source, const struct contraction *c,
                                const struct bn_bwd_weights_op *op) {
    emit_parameter(source, c, op->mean, "mean");
    emit_parameter(source, c, op->inv_variance, "inv");
    emit_parameter(source, c, op->scale, "scale");
    text_add(&source->code, "    const float count = (float)p.count, of_dy = scale * inv;\n"
                            "    const float of_x = -of_dy * inv * weighted / count;\n");
    emit_store(source, c, op->dscale, "weighted");
    emit_store(source, c, op->dbias, "X");
    emit_store(source, c, op->eq_scale_dy, "of_dy");
    emit_store(source, c, op->eq_scale_x, "of_x");
    emit_store(source, c, op->eq_bias, "-of_dy * X / count - of_x * mean");
}

/* Emits conclude(p, z, i, j, total), which writes the results of the reductions of one column, of one row or of
   everything. The kernel calls it once per total. */
static void emit_conclude(struct kernel_source *source, const struct contraction *c, enum span span) {
    const struct epilogue *epilogue = &c->epilogue;
    text_add(&source->code,
             "DEVICE void conclude(const arguments& p, index z, index i, index j, const total_t (&total)[%d]) {\n",
             epilogue->spans[span].count);
    epilogue_emit_modes(source, epilogue);
    epilogue_emit_all_limits(source, epilogue, "return");
    for (int r = 0; r < epilogue->reduction_count; r++) {
        const struct fused_reduction *reduction = &epilogue->reductions[r];
        const struct descriptor *node = reduction->node->op;
        if (reduction->span != span)
            continue;
        text_add(&source->code, "    {\n    const total_t X = total[%d];\n", reduction->first);
        if (op_of(node) != &reduction_op)
            text_add(&source->code, "    const total_t weighted = total[%d];\n", reduction->first + 1);
        if (op_of(node) == &reduction_op) {
            emit_store(source, c, ((const struct reduction_op *)node)->y, operators[reduction->mode].result);
        } else if (op_of(node) == &genstats_op) {
            emit_store(source, c, ((const struct genstats_op *)node)->sum, "X");
            emit_store(source, c, ((const struct genstats_op *)node)->sq_sum, "weighted");
        } else {
            emit_bn_bwd_weights(source, c, (const struct bn_bwd_weights_op *)node);
        }
        text_add(&source->code, "    }\n");
    }
    text_add(&source->code, "}\n\n");
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* Returns the number of totals in a line, which is the extent of the index that the span keeps. */
static int64_t extent_along(const struct contraction *c, enum span span) {
    return span == SPAN_ALL ? 1 : modes_extent(&c->modes[span == SPAN_ROW ? ROW : COLUMN]);
}

/* Offset of the partial sums of a span in the workspace; SPANS: their end. Each span's lines are aligned to
   PARTIALS_ALIGNMENT. */
static int64_t offset_of(const struct contraction *c, const int64_t lines[SPANS], enum span span) {
    int64_t offset = 0;
    for (int before = 0; before < (int)span; before++) {
        int64_t partials = c->epilogue.spans[before].count * lines[before] * extent_along(c, (enum span)before);
        offset += round_up(partials * (int64_t)sizeof(float), PARTIALS_ALIGNMENT);
    }
    return offset;
}

/* Emits the fields <span>_partials and <span>_lines of the product's arguments. */
void reductions_emit_partials(struct kernel_source *source, const struct contraction *c, const int64_t lines[SPANS],
                              enum span span) {
    emit_scratch(source, "float", offset_of(c, lines, span), named("%s_partials", span_names[span]).text);
    emit_number(source, lines[span], named("%s_lines", span_names[span]).text);
}

/* The order in which lines are summed depends only on their number, so that repeated runs give the same bits. offset:
   position of the span's lines in the workspace, in bytes; lines: number of lines of all batch entries. */
static weftStatus_t build_combine(struct cuda_kernel *kernel, const struct contraction *c, enum span span,
                                  int64_t lines, int64_t offset, struct arena *arena) {
    const struct reduced_span *reduced = &c->epilogue.spans[span];
    struct kernel_source source;
    int64_t along = extent_along(c, span), entries = reduced->keeps_batch ? modes_extent(&c->modes[BATCH]) : 1;
    /* A block covers `lanes` adjacent totals; its other threads share the lines. */
    int lanes = span == SPAN_COLUMN ? COLUMN_LANES : span == SPAN_ROW ? ROW_LANES : 1;
    /* Blocks per batch entry. */
    int64_t blocks = divide_up(along, lanes);
    kernel_source_init(&source, c->region);
    text_add(&source.constants, "using index = i32;\nusing total_t = %s;\n", combined_type(c, span));
    text_add(&source.code, "#include \"core/gather.cuh\"\n#include \"core/ptx_sm90.cuh\"\n\n");
    emit_constant(&source, "RUN", 1);
    emit_constant(&source, "THREADS", COMBINE_THREADS);
    emit_constant(&source, "LANES", lanes);
    emit_constant(&source, "SPAN_IS_ROW", span == SPAN_ROW);
    emit_scratch(&source, "float", offset, "partials");
    emit_number(&source, lines / entries, "lines");
    emit_number(&source, along, "along");
    emit_number(&source, entries, "entries");
    emit_divisor(&source, blocks, "blocks");
    emit_number(&source, reduced->elements, "count");
    epilogue_emit_arguments(&source, &c->epilogue);
    emit_kinds(&source, c, "total_t");
    text_add(&source.code, "using reductions = %s_reductions;\n\n", span_names[span]);
    emit_conclude(&source, c, span);
    TRY(kernel_finish(&source, kernel, "product/combine_partials.cuh", "combine_partials", arena));
    kernel->grid[0] = (uint32_t)(blocks * entries);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = COMBINE_THREADS;
    /* The kernel starts while the product finishes, and waits for its partial sums. */
    kernel->is_dependent = true;
    return WEFT_STATUS_SUCCESS;
}

double reductions_seconds(const struct contraction *c) {
    /* kernels of other spans run concurrently */
    double seconds = c->epilogue.reduction_count > 0 ? COMBINE_SECONDS : 0;
    for (int r = 0; r < c->epilogue.reduction_count; r++)
        seconds += op_of(c->epilogue.reductions[r].node->op) == &bn_bwd_weights_op ? FACTORS_SECONDS : 0;
    return seconds;
}

/* Builds at most one kernel per span, after the product. */
weftStatus_t reductions_build(struct step *step, const struct contraction *c, const int64_t lines[SPANS],
                              struct arena *arena) {
    struct cuda_step *state = step->state;
    for (int span = 0; span < SPANS; span++)
        if (c->epilogue.spans[span].count > 0)
            TRY(build_combine(&state->kernels[state->count++], c, (enum span)span, lines[span],
                              offset_of(c, lines, (enum span)span), arena));
    if (c->epilogue.reduction_count > 0)
        step->workspace_bytes = offset_of(c, lines, SPANS);
    return WEFT_STATUS_SUCCESS;
}
