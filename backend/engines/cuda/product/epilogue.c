/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue: alpha, beta, the pointwise operations of the region and the stores, emitted as one function over a run
   of contiguous results. This file must not know how sums are computed. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/pointwise.h"

enum {
    LONGEST_RUN = 8,         /* contiguous results per thread: 16 bytes of halves */
    LOAD_INSTRUCTIONS = 2,   /* per element of an operand: its share of a vector access, and a conversion */
    REDUCE_INSTRUCTIONS = 2, /* per element of a reduction */
};

/* Values are numbered by the region's graph. */
static const struct tensor *tensor_at(const struct contraction *c, int value) {
    return c->region->graph->values[value].tensor;
}

static weftDataType_t tensor_type(const struct contraction *c, int value) {
    return (weftDataType_t)tensor_at(c, value)->type;
}

/* True if an operation of the region produces the value, so that it is in registers. */
static bool is_produced_inside(const struct contraction *c, int value) { return region_makes(c->region, value); }

/* GEN_INDEX reads no tensor: its value is a coordinate. */
static bool is_index(const struct node *node) {
    return ((const struct pointwise_op *)node->op)->pw->mode == WEFT_POINTWISE_GEN_INDEX;
}

/* ---- Analysis ---------------------------------------------------------------------------------------------------- */

/* The tensor must have the result's dims or one element, because nothing is reshaped on the way. Inputs may broadcast
   along any dimension; outputs may not (is_output, and inputs of reductions that are as large as the result). */
static weftStatus_t check_tensor(const struct contraction *c, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    const struct tensor *result = tensor_at(c, c->result);
    bool fits = tensor->dims.count == result->dims.count || (tensor_elements(tensor) == 1 && !is_output);
    for (int64_t i = 0; fits && i < tensor->dims.count && tensor->dims.count == result->dims.count; i++)
        fits = tensor->dims.at[i] == result->dims.at[i] || (tensor->dims.at[i] == 1 && !is_output);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: %s has dims %s, but %s produces %s. Operations after it must have these dims.", descriptor_label(op),
             descriptor_label(&tensor->base), tensor_dims_text(tensor), descriptor_label(c->node->op),
             tensor_dims_text(result));
    TRY(tensor_check_plain(tensor, op));
    return WEFT_STATUS_SUCCESS;
}

/* Finds the operand with this role and value, or adds one: a tensor that two operations read is loaded once. */
static weftStatus_t add_operand(struct contraction *c, struct epilogue_operand **added, enum epilogue_role role,
                                int value) {
    struct epilogue *epilogue = &c->epilogue;
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == role && epilogue->at[k].value == value) {
            *added = &epilogue->at[k];
            return WEFT_STATUS_SUCCESS;
        }
    if (epilogue->count == EPILOGUE_OPERANDS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: more than %d operands in its epilogue",
             descriptor_label(c->node->op), EPILOGUE_OPERANDS_MAX);
    *added = &epilogue->at[epilogue->count++];
    **added = (struct epilogue_operand){.role = role, .value = value};
    return WEFT_STATUS_SUCCESS;
}

/* Adds an operand in memory with its strides over the modes, 0 if it broadcasts. For EPILOGUE_REDUCED these are the
   strides of the reduced tensor, which the combining kernel stores. */
static weftStatus_t add_memory(struct contraction *c, enum epilogue_role role, int value) {
    const struct tensor *tensor = tensor_at(c, value);
    struct epilogue_operand *operand = NULL;
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, whose elements have no address",
             descriptor_label(c->node->op), descriptor_label(&tensor->base),
             dtype_of((weftDataType_t)tensor->type)->name);
    TRY(add_operand(c, &operand, role, value));
    operand->type = (weftDataType_t)tensor->type;
    bool is_scalar = tensor_elements(tensor) == 1;
    for (int index = BATCH; index < K; index++)
        for (int d = 0; d < c->modes[index].count; d++) {
            const struct mode *mode = &c->modes[index].at[d];
            bool moves = !is_scalar && tensor->dims.at[mode->dim] != 1;
            operand->strides[index][d] = moves ? tensor->strides.at[mode->dim] * mode->dim_step : 0;
        }
    return WEFT_STATUS_SUCCESS;
}

/* Adds a coordinate of the result: the value of GEN_INDEX, or a coordinate with an upper bound. */
static weftStatus_t add_coordinate(struct contraction *c, enum epilogue_role role, int value, int64_t dim) {
    struct epilogue_operand *operand = NULL;
    TRY(add_operand(c, &operand, role, value));
    operand->bound = tensor_at(c, c->result)->dims.at[dim];
    for (int index = BATCH; index < K; index++)
        for (int d = 0; d < c->modes[index].count; d++)
            operand->strides[index][d] = c->modes[index].at[d].dim == dim ? c->modes[index].at[d].dim_step : 0;
    return WEFT_STATUS_SUCCESS;
}

/* Results of reductions are complete only after all tiles, so no other node of the region can read them. value: an
   input of `node`. */
static weftStatus_t check_source(const struct contraction *c, const struct node *node, int value) {
    if (is_produced_inside(c, value) &&
        reductions_support(&c->region->graph->nodes[c->region->graph->values[value].producer]))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s reads %s, which is complete only after the whole product.",
             descriptor_label(node->op), descriptor_label(&tensor_at(c, value)->base));
    return WEFT_STATUS_SUCCESS;
}

/* Inputs with as many elements as the product are reduced; the others are read by the final reduction kernel. */
static weftStatus_t add_reducer(struct contraction *c, const struct node *node) {
    TRY(reductions_add(c, node));
    for (int k = 0; k < node->operand_count; k++) {
        int value = node->operands[k];
        const struct tensor *tensor = tensor_at(c, value);
        /* Every element of such a tensor is reduced. A broadcast mean or variance is read when lines are combined. */
        bool is_whole = tensor_elements(tensor) == tensor_elements(tensor_at(c, c->result));
        if (node->is_output[k]) {
            if (region_exports(c->region, value))
                TRY(add_memory(c, EPILOGUE_REDUCED, value));
            continue;
        }
        TRY(check_source(c, node, value));
        TRY(check_tensor(c, node->op, tensor, is_whole));
        if (!is_produced_inside(c, value))
            TRY(add_memory(c, EPILOGUE_LOAD, value));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Adds the operands of a node after the product: loads of its inputs, and stores of outputs that are used outside the
   region. Values that are only used inside stay in registers. */
static weftStatus_t add_node(struct contraction *c, const struct node *node) {
    if (reductions_support(node))
        return add_reducer(c, node);
    TRY(formula_accepts(node->op));
    for (int k = 0; k < node->operand_count; k++) {
        int value = node->operands[k];
        TRY(check_source(c, node, value));
        TRY(check_tensor(c, node->op, tensor_at(c, value), node->is_output[k]));
        if (node->is_output[k] ? region_exports(c->region, value) : !is_produced_inside(c, value) && !is_index(node))
            TRY(add_memory(c, node->is_output[k] ? EPILOGUE_STORE : EPILOGUE_LOAD, value));
    }
    if (is_index(node))
        TRY(add_coordinate(c, EPILOGUE_INDEX, node_result(node), ((const struct pointwise_op *)node->op)->pw->axis));
    return WEFT_STATUS_SUCCESS;
}

/* Merges adjacent modes that all operands traverse as one, which saves divisions per element. Like modes_merge, with
   the operands of the epilogue: the strides of A and B do not matter. */
static void merge_modes(struct epilogue *epilogue, int index) {
    int64_t *extents = epilogue->extents[index];
    for (int i = epilogue->mode_count[index] - 1; i-- > 0;) {
        /* One 32-bit division must split the merged index again. */
        bool merges = extents[i] * extents[i + 1] < INT32_MAX;
        for (int k = 0; k < epilogue->count; k++) {
            const int64_t *strides = epilogue->at[k].strides[index];
            merges = merges && strides[i] == strides[i + 1] * extents[i + 1];
        }
        if (!merges)
            continue;
        extents[i + 1] *= extents[i];
        epilogue->mode_count[index]--;
        for (int j = i; j < epilogue->mode_count[index]; j++) {
            extents[j] = extents[j + 1];
            for (int k = 0; k < epilogue->count; k++)
                epilogue->at[k].strides[index][j] = epilogue->at[k].strides[index][j + 1];
        }
    }
}

/* The index whose last mode is contiguous in the first store: the one with the smaller stride. A thread then stores
   contiguous elements, whichever operand they came from. */
static enum index find_lead(const struct contraction *c) {
    const struct epilogue *epilogue = &c->epilogue;
    /* k: the first store; the others are assumed to have the same layout. */
    int rows = epilogue->mode_count[ROW], columns = epilogue->mode_count[COLUMN], k = 0;
    /* The direct kernel numbers its results by the batch only. */
    if (c->is_direct)
        return BATCH;
    if (!rows || !columns)
        return rows ? ROW : COLUMN;
    while (k < epilogue->count && epilogue->at[k].role != EPILOGUE_STORE)
        k++;
    if (k == epilogue->count) /* only reductions are stored */
        return COLUMN;
    return epilogue->at[k].strides[ROW][rows - 1] < epilogue->at[k].strides[COLUMN][columns - 1] ? ROW : COLUMN;
}

/* True if the epilogue reads or writes runs of the operand, or compares its coordinate. */
static bool moves_data(const struct epilogue_operand *operand) {
    return operand->role != EPILOGUE_INDEX && operand->role != EPILOGUE_REDUCED;
}

/* Number of contiguous results per thread, each run being read and written in one access. A bound must be a multiple of
   the run, otherwise a run would be partly inside. A contiguous operand must be aligned at the start of every run. An
   operand that broadcasts or is strided along the lead is read element by element and does not limit the run. */
static int find_run(const struct contraction *c) {
    const struct epilogue *epilogue = &c->epilogue;
    int last = epilogue->mode_count[epilogue->lead] - 1;
    int64_t length = last < 0 ? 1 : gcd64(LONGEST_RUN, epilogue->extents[epilogue->lead][last]);
    for (int k = 0; k < epilogue->count; k++) {
        const struct epilogue_operand *operand = &epilogue->at[k];
        if (last < 0 || !moves_data(operand) || operand->strides[epilogue->lead][last] == 0)
            continue;
        if (operand->role == EPILOGUE_LIMIT && operand->strides[epilogue->lead][last] != 1)
            return 1;
        if (operand->role == EPILOGUE_LIMIT) {
            length = gcd64(length, operand->bound);
            continue;
        }
        if (operand->strides[epilogue->lead][last] != 1)
            continue;
        int64_t fits = gcd64(tensor_at(c, operand->value)->alignment, 16) / dtype_bytes(operand->type, 1);
        length = gcd64(length, fits > 1 ? fits : 1);
        for (int index = BATCH; index < K; index++)
            for (int d = 0; d < epilogue->mode_count[index]; d++)
                if (operand->strides[index][d] && (index != (int)epilogue->lead || d != last))
                    length = gcd64(length, operand->strides[index][d]);
    }
    return (int)length;
}

/* The result's own store comes first, because the lead follows the first store. Limits come last: with phases, a mode
   can exceed its dimension of the result. */
weftStatus_t epilogue_analyse(struct contraction *c) {
    struct epilogue *epilogue = &c->epilogue;
    const struct tensor *result = tensor_at(c, c->result);
    if (region_exports(c->region, c->result))
        TRY(add_memory(c, EPILOGUE_STORE, c->result));
    for (int i = 0; i < c->region->count; i++)
        if (contraction_is_in_epilogue(c, region_node(c->region, i)))
            TRY(add_node(c, region_node(c->region, i)));
    if (c->beta != 0)
        TRY(add_memory(c, EPILOGUE_OLD, c->result));
    for (int p = 0; p < c->phase_count; p++)
        TRY(add_coordinate(c, EPILOGUE_LIMIT, c->phases[p].coordinate,
                           result->dims.count - COORDINATES + c->phases[p].coordinate));
    if (c->has_limit)
        TRY(add_coordinate(c, EPILOGUE_LIMIT, COORDINATES, c->limited_dim));
    for (int index = BATCH; index < K; index++) {
        epilogue->mode_count[index] = c->modes[index].count;
        for (int d = 0; d < c->modes[index].count; d++)
            epilogue->extents[index][d] = c->modes[index].at[d].extent;
        merge_modes(epilogue, index);
    }
    epilogue->lead = find_lead(c);
    epilogue->run = find_run(c);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Code generation --------------------------------------------------------------------------------------------- */

/* The mode along which runs are contiguous; -1: the lead has extent 1. */
static int lead_mode(const struct epilogue *epilogue) { return epilogue->mode_count[epilogue->lead] - 1; }

/* Distance between consecutive elements of a run; 0: all elements of the run share one. */
static int64_t lead_stride(const struct epilogue *epilogue, const struct epilogue_operand *operand) {
    int last = lead_mode(epilogue);
    return last < 0 ? 0 : operand->strides[epilogue->lead][last];
}

/* Emits the loads that are the same for all rows, or the others. A contiguous operand is loaded in one access of RUN
   elements, one that broadcasts along the run as one element, others element by element. */
static void emit_loads(struct kernel_source *source, const struct contraction *c, bool per_column) {
    const struct epilogue *epilogue = &c->epilogue;
    for (int k = 0; k < epilogue->count; k++) {
        const struct epilogue_operand *operand = &epilogue->at[k];
        bool is_old = operand->role == EPILOGUE_OLD;
        if ((operand->role != EPILOGUE_LOAD && !is_old) || operand->is_auxiliary ||
            epilogue_is_per_column(epilogue, k) != per_column)
            continue;
        const char *type = cuda_type_name(operand->type);
        int64_t stride = lead_stride(epilogue, operand);
        /* Strided elements are loaded separately. */
        if (stride > 1)
            text_add(&source->code, "    for (int e = 0; e < RUN; e++) in.f%d.at[e] = (p.f%d", k, k);
        else
            text_add(&source->code, "    in.f%d = load_run<%s, %s>(p.f%d", k, type, stride ? "RUN" : "1", k);
        epilogue_emit_offset(source, epilogue, k);
        if (stride > 1)
            text_add(&source->code, ")[e * p.f%d_%c%d];\n", k, index_letters[epilogue->lead], lead_mode(epilogue));
        else
            text_add(&source->code, ");\n");
    }
}

/* True if evaluate() reads a value that it has computed, which therefore has to be rounded to its tensor's type.
   Reductions of the stored result read the stored data instead. */
static bool is_read_in_region(const struct contraction *c, int value) {
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        for (int k = 0; k < node->operand_count && !(c->epilogue.reduces_stored && reductions_support(node)); k++)
            if (node->operands[k] == value && !node->is_output[k])
                return true;
    }
    return false;
}

/* True if sums are rounded to 16 bits and read again: the run is then converted as a whole, because one instruction
   converts two floats to two halves. Readers of a free tensor see the unrounded sums. */
static bool converts_runs(const struct contraction *c) {
    bool is_free = c->region->graph->values[c->result].tensor->is_free;
    return is_read_in_region(c, c->result) && !is_free && c->alpha == 1 && c->beta == 0 &&
           dtype_bytes(tensor_type(c, c->result), 1) == 2 && arithmetic_rows[c->arithmetic].sum == WEFT_DATA_FLOAT;
}

/* Emits v<result>, the value of the sum in its tensor's type. Integer sums are i64, like all integers in epilogue
   formulas, and stay integers unless they are scaled: with alpha or beta they pass through double, which holds 53 bits.
   The value is rounded here only if a later operation reads it and its tensor is not free. */
static void emit_result(struct kernel_source *source, const struct contraction *c) {
    if (converts_runs(c)) {
        text_add(&source->code, "        const float v%d = converted.number.at[e];\n", c->result);
        return;
    }
    bool is_scaled = c->alpha != 1 || c->beta != 0;
    bool is_whole = c->arithmetic == MMA_INT8 || c->arithmetic == FMA_INT32 || c->arithmetic == FMA_INT64;
    const char *type = is_whole ? is_scaled ? "double" : "i64" : c->arithmetic == FMA_DOUBLE ? "double" : "float";
    text_add(&source->code, "        %s v%d = (%s)sum.at[e]", type, c->result, type);
    if (c->alpha != 1) {
        emit_real(source, c->alpha, "alpha");
        text_add(&source->code, " * (%s)__longlong_as_double(p.alpha)", type);
    }
    if (c->beta != 0) {
        int old = 0;
        emit_real(source, c->beta, "beta");
        while (c->epilogue.at[old].role != EPILOGUE_OLD)
            old++;
        text_add(&source->code, " + (%s)__longlong_as_double(p.beta) * as<%s>::of(in.f%d.at[%s])", type, type, old,
                 lead_stride(&c->epilogue, &c->epilogue.at[old]) ? "e" : "0");
    }
    text_add(&source->code, ";\n");
    if (is_read_in_region(c, c->result) && !c->region->graph->values[c->result].tensor->is_free)
        text_add(&source->code, "        v%d = rounded<%s>(v%d);\n", c->result,
                 cuda_type_name(tensor_type(c, c->result)), c->result);
}

/* Emits v<value> for the operands that fetch() loaded and for coordinates, inside the loop over e. Conversion from
   bfloat16 is deferred until its use, which saves registers. */
static void emit_values(struct kernel_source *source, const struct contraction *c) {
    const struct epilogue *epilogue = &c->epilogue;
    for (int k = 0; k < epilogue->count; k++) {
        const struct epilogue_operand *operand = &epilogue->at[k];
        /* As floats they would occupy one register each. */
        bool is_late = operand->type == WEFT_DATA_BFLOAT16;
        /* Keep a pair in one word until it is used; as two values, each half would be extracted at once. */
        if (operand->role == EPILOGUE_LOAD && is_late && epilogue->run == 2 && lead_stride(epilogue, operand) == 1)
            text_add(&source->code, "        const float v%d = to_float_late(*(const u32*)&in.f%d, e);\n",
                     operand->value, k);
        else if (operand->role == EPILOGUE_LOAD)
            text_add(&source->code, "        const %s v%d = %s(in.f%d.at[%s]);\n",
                     is_late ? "float" : cuda_type_name(operand->type), operand->value, is_late ? "to_float_late" : "",
                     k, lead_stride(epilogue, operand) ? "e" : "0");
        if (operand->role == EPILOGUE_INDEX) {
            text_add(&source->code, "        const i64 v%d = 0", operand->value);
            epilogue_emit_offset(source, epilogue, k);
            emit_term(source, "e", lead_stride(epilogue, operand),
                      named("f%d_%c%d", k, index_letters[epilogue->lead], lead_mode(epilogue)).text);
            text_add(&source->code, ";\n");
        }
    }
}

/* A contiguous run is stored in one access, others element by element. struct results has the converted values of each
   store. */
static void emit_stores(struct kernel_source *source, const struct contraction *c) {
    const struct epilogue *epilogue = &c->epilogue;
    for (int k = 0; k < epilogue->count; k++) {
        const struct epilogue_operand *operand = &epilogue->at[k];
        if (operand->role != EPILOGUE_STORE)
            continue;
        const char *type = cuda_type_name(operand->type);
        int64_t stride = lead_stride(epilogue, operand);
        if (stride <= 1)
            text_add(&source->code, "    store_run<%s, RUN>(p.f%d", type, k);
        else
            text_add(&source->code, "    for (int e = 0; e < RUN; e++) (p.f%d", k);
        epilogue_emit_offset(source, epilogue, k);
        if (stride <= 1)
            text_add(&source->code, ", out.f%d);\n", k);
        else
            text_add(&source->code, ")[e * p.f%d_%c%d] = out.f%d.at[e];\n", k, index_letters[epilogue->lead],
                     lead_mode(epilogue), k);
    }
}

/* For prices: instructions of the loads, formulas and reductions of one element. */
double epilogue_instructions(const struct contraction *c) {
    double count = 0;
    for (int k = 0; k < c->epilogue.count; k++)
        if (c->epilogue.at[k].role == EPILOGUE_LOAD || c->epilogue.at[k].role == EPILOGUE_OLD)
            count += LOAD_INSTRUCTIONS;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        if (contraction_is_in_epilogue(c, node) && !reductions_support(node) && !is_index(node))
            count += formula_instructions((const struct pointwise_op *)node->op);
    }
    for (int span = 0; span < SPANS; span++)
        count += REDUCE_INSTRUCTIONS * c->epilogue.spans[span].count;
    return count;
}

/* Number of 32-bit registers. For 16 columns, a thread has two pairs in each of its two rows: 4 pairs, or 2 if the rows
   share the operand. A pair of 16-bit elements is one word. */
int epilogue_fetched_words(const struct epilogue *epilogue) {
    int words = 0;
    for (int k = 0; k < epilogue->count; k++)
        if ((epilogue->at[k].role == EPILOGUE_LOAD || epilogue->at[k].role == EPILOGUE_OLD) &&
            !epilogue->at[k].is_auxiliary)
            words +=
                (int)divide_up(dtype_bytes(epilogue->at[k].type, 2), 4) * (epilogue_is_per_column(epilogue, k) ? 2 : 4);
    return words;
}

/* fetch() loads the operands. It is a separate function so that kernels can prefetch. fetch_below() loads what differs
   in another row of the same column. That row may exist even if the first one does not, so fetch() loads the shared
   operands before it tests the row. Operands that are loaded in another way (is_auxiliary) have fields that the kernel
   fills in. */
static void emit_fetch(struct kernel_source *source, const struct contraction *c) {
    const struct epilogue *epilogue = &c->epilogue;
    text_add(&source->code, "struct fetched {\n");
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == EPILOGUE_LOAD || epilogue->at[k].role == EPILOGUE_OLD)
            text_add(&source->code, "    run<%s, %s> f%d;\n", cuda_type_name(epilogue->at[k].type),
                     lead_stride(epilogue, &epilogue->at[k]) ? "RUN" : "1", k);
    emit_constant(source, "FETCHED_WORDS", epilogue_fetched_words(epilogue));
    text_add(&source->code, "};\n\n");
    /* The same text twice; fetch_below() omits the operands of the column. */
    for (int is_below = 0; is_below < 2; is_below++) {
        text_add(&source->code,
                 is_below
                     ? "DEVICE fetched fetch_below(const arguments& p, index z, index i, index j, fetched in) {\n"
                     : "DEVICE fetched fetch(const arguments& p, index z, index i, index j) {\n    fetched in = {};\n");
        epilogue_emit_modes(source, epilogue);
        epilogue_emit_limits(source, epilogue, true, "return in");
        if (!is_below)
            emit_loads(source, c, true);
        epilogue_emit_limits(source, epilogue, false, "return in");
        emit_loads(source, c, false);
        text_add(&source->code, "    return in;\n}\n\n");
    }
}

/* True if operand k stores the unmodified sums. keep_run has already converted that run. */
static bool is_converted_run(const struct contraction *c, int k) {
    const struct epilogue_operand *operand = &c->epilogue.at[k];
    return converts_runs(c) && operand->role == EPILOGUE_STORE && operand->value == c->result;
}

/* True if the value is read by reductions, whose other inputs are all in memory, and by no other operation. Then its
   rounding to 16 bits can be deferred until the run is complete. */
static bool is_only_reduced(const struct contraction *c, int value) {
    bool is_read = false;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        if (!contraction_is_in_epilogue(c, node))
            continue;
        if (!reductions_support(node) && node_reads(node, value))
            return false;
        for (int k = 0; k < node->operand_count && reductions_support(node); k++)
            if (!node->is_output[k] && node->operands[k] != value && is_produced_inside(c, node->operands[k]))
                return false;
        is_read = is_read || (reductions_support(node) && node_reads(node, value));
    }
    return is_read;
}

/* The operand that stores, in 16 bits, a value that only reductions read, after rounding; -1 if there is no such
   operand. Its run is converted as a whole after all formulas. */
static int find_reduced(const struct contraction *c) {
    /* At most one operand, because the loop over a run is split only once. */
    for (int k = 0; k < c->epilogue.count && !c->epilogue.reduces_stored; k++) {
        const struct epilogue_operand *operand = &c->epilogue.at[k];
        bool is_half = dtype_is_half(operand->type);
        if (operand->role == EPILOGUE_STORE && operand->value != c->result && is_half &&
            is_only_reduced(c, operand->value))
            return k;
    }
    return -1;
}

/* struct results, the return type of evaluate(): a run for each store, and the elements of each reduction. */
static void emit_results(struct kernel_source *source, const struct epilogue *epilogue) {
    text_add(&source->code, "struct results {\n");
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == EPILOGUE_STORE)
            text_add(&source->code, "    run<%s, RUN> f%d;\n", cuda_type_name(epilogue->at[k].type), k);
    if (!epilogue->reduces_stored)
        reductions_emit_fields(source, epilogue);
    text_add(&source->code, "};\n\n");
}

/* Emits the operations of the region after the product, in order. Values that are read inside are rounded to their
   tensor's type, except `last`, which is rounded later together with its run. */
static void emit_formulas(struct kernel_source *source, const struct contraction *c, int last) {
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        if (!contraction_is_in_epilogue(c, node) || reductions_support(node) || is_index(node))
            continue;
        if (is_read_in_region(c, node_result(node)) && node_result(node) != last)
            formula_emit(&source->code, c->region->graph, node);
        else /* the store rounds */
            formula_emit_exact(&source->code, c->region->graph, node);
    }
}

/* Splits the loop over a run in two. In between, the run of operand `reduced` is converted as a whole, so that the
   second loop reads the rounded value. */
static void emit_reduced_run(struct kernel_source *source, const struct contraction *c, int reduced) {
    const struct epilogue_operand *operand = &c->epilogue.at[reduced];
    text_add(&source->code,
             "        last.at[e] = (float)v%d;\n    }\n    const auto converted_last = keep_run<%s>(last);\n"
             "    out.f%d = converted_last.stored;\n    #pragma unroll\n    for (int e = 0; e < RUN; e++) {\n",
             operand->value, cuda_type_name(operand->type), reduced);
    emit_values(source, c);
    text_add(&source->code, "        const float v%d = converted_last.number.at[e];\n", operand->value);
}

/* Emits evaluate(), which computes the converted results from the sums: one loop over the run, or two around the
   conversion of the reduced value. */
static void emit_evaluate(struct kernel_source *source, const struct contraction *c) {
    const struct epilogue *epilogue = &c->epilogue;
    int reduced = find_reduced(c);
    text_add(&source->code, "DEVICE results evaluate(const arguments& p, index z, index i, index j, "
                            "const run<sum_t, RUN>& sum, const fetched& in) {\n    results out;\n");
    epilogue_emit_modes(source, epilogue);
    if (converts_runs(c))
        text_add(&source->code, "    const auto converted = keep_run<%s>(sum);\n",
                 cuda_type_name(tensor_type(c, c->result)));
    if (reduced >= 0)
        text_add(&source->code, "    run<float, RUN> last;\n");
    text_add(&source->code, "    #pragma unroll\n    for (int e = 0; e < RUN; e++) {\n");
    emit_values(source, c);
    emit_result(source, c);
    emit_formulas(source, c, reduced < 0 ? -1 : epilogue->at[reduced].value);
    for (int k = 0; k < epilogue->count; k++)
        if (epilogue->at[k].role == EPILOGUE_STORE && !is_converted_run(c, k) && k != reduced)
            text_add(&source->code, "        out.f%d.at[e] = from<%s>::number(v%d);\n", k,
                     cuda_type_name(epilogue->at[k].type), epilogue->at[k].value);
    if (reduced >= 0)
        emit_reduced_run(source, c, reduced);
    if (!epilogue->reduces_stored)
        reductions_emit_elements(source, c);
    text_add(&source->code, "    }\n");
    for (int k = 0; k < epilogue->count; k++)
        if (is_converted_run(c, k))
            text_add(&source->code, "    out.f%d = converted.stored;\n", k);
    text_add(&source->code, "    return out;\n}\n\n");
}

/* Emits exists(p, z, i, j): true if the result has such an element. */
static void emit_exists(struct kernel_source *source, const struct epilogue *epilogue) {
    text_add(&source->code, "DEVICE bool exists(const arguments& p, index z, index i, index j) {\n");
    epilogue_emit_modes(source, epilogue);
    epilogue_emit_all_limits(source, epilogue, "return false");
    text_add(&source->code, "    return true;\n}\n\n");
}

/* Functions are emitted in the order in which they call each other. The second epilogue() calls fetch() itself, for
   kernels that do not prefetch. */
void epilogue_emit(struct kernel_source *source, const struct contraction *c) {
    emit_constant(source, "RUN", c->epilogue.run);
    epilogue_emit_arguments(source, &c->epilogue);
    emit_fetch(source, c);
    emit_results(source, &c->epilogue);
    emit_evaluate(source, c);
    if (c->epilogue.reduction_count)
        emit_exists(source, &c->epilogue);
    text_add(&source->code, "DEVICE results epilogue(const arguments& p, index z, index i, index j, "
                            "const run<sum_t, RUN>& sum, const fetched& in) {\n");
    epilogue_emit_modes(source, &c->epilogue);
    epilogue_emit_all_limits(source, &c->epilogue, "return {}");
    text_add(&source->code, "    const results out = evaluate(p, z, i, j, sum, in);\n");
    emit_stores(source, c);
    text_add(&source->code,
             "    return out;\n}\n\n"
             "DEVICE results epilogue(const arguments& p, index z, index i, index j, const run<sum_t, RUN>& sum) {\n"
             "    return epilogue(p, z, i, j, sum, fetch(p, z, i, j));\n}\n\n");
}

/* Emits the address for kernels that store the results of evaluate() themselves. */
void epilogue_emit_address(struct kernel_source *source, const struct contraction *c, int k) {
    const struct epilogue *epilogue = &c->epilogue;
    const char *type = cuda_type_name(epilogue->at[k].type);
    text_add(&source->code, "DEVICE %s* address_of_result(const arguments& p, index z, index i, index j) {\n", type);
    epilogue_emit_modes(source, epilogue);
    epilogue_emit_all_limits(source, epilogue, "return nullptr");
    text_add(&source->code, "    return p.f%d", k);
    epilogue_emit_offset(source, epilogue, k);
    text_add(&source->code, ";\n}\n\n");
}

/* Strides are multiples of 8 elements, 16 bytes: each piece of a row starts at an address that TMA accepts. */
bool epilogue_has_layout_of(const struct contraction *c, int k, const struct epilogue_operand *store) {
    const struct epilogue *epilogue = &c->epilogue;
    const struct epilogue_operand *operand = &epilogue->at[k];
    bool is_alike = (operand->role == EPILOGUE_LOAD || operand->role == EPILOGUE_OLD) &&
                    dtype_bytes(operand->type, 1) == 2 && dtype_bytes(store->type, 1) == 2 &&
                    tensor_at(c, operand->value)->alignment % 16 == 0 && !tensor_at(c, operand->value)->is_by_value &&
                    operand->strides[COLUMN][0] == 1;
    for (int index = BATCH; index <= ROW; index++)
        for (int d = 0; d < epilogue->mode_count[index]; d++)
            is_alike = is_alike && operand->strides[index][d] > 0 && operand->strides[index][d] % 8 == 0;
    return is_alike;
}

/* True if the elements that operand k stores have `bytes` bytes and its rows consist of whole 16-byte accesses. The
   results of a row must be contiguous with runs of at least two, because accumulators come in pairs. */
static bool is_staged(const struct contraction *c, const struct epilogue_operand *store, int bytes) {
    const struct epilogue *epilogue = &c->epilogue;
    int64_t access = 16 / bytes;
    if (dtype_bytes(store->type, 1) != bytes || epilogue->lead != COLUMN || epilogue->mode_count[COLUMN] != 1 ||
        store->strides[COLUMN][0] != 1 || epilogue->run < 2 || modes_extent(&c->modes[COLUMN]) % access != 0)
        return false;
    for (int index = BATCH; index <= ROW; index++)
        for (int d = 0; d < epilogue->mode_count[index]; d++)
            if (store->strides[index][d] <= 0 || store->strides[index][d] % access != 0)
                return false;
    return tensor_at(c, store->value)->alignment % 16 == 0;
}

/* Kernels have epilogue tiles for at most two results. */
int epilogue_find_stored(const struct contraction *c, int bytes, const struct epilogue_operand *stores[2]) {
    int count = 0;
    for (int k = 0; k < c->epilogue.count; k++)
        if (c->epilogue.at[k].role == EPILOGUE_STORE) {
            if (count == 2 || !is_staged(c, &c->epilogue.at[k], bytes))
                return 0;
            stores[count++] = &c->epilogue.at[k];
        }
    return count;
}

const struct epilogue_operand *epilogue_find_staged(const struct contraction *c, int bytes) {
    const struct epilogue_operand *stores[2];
    return epilogue_find_stored(c, bytes, stores) == 1 ? stores[0] : NULL;
}

const struct epilogue_operand *epilogue_find_half(const struct contraction *c) { return epilogue_find_staged(c, 2); }

/* Kernels can then reduce epilogue tiles in shared memory when they are stored. */
bool epilogue_reduces_only_stored(const struct contraction *c) {
    const struct epilogue_operand *store = epilogue_find_half(c);
    const struct reduced_span *spans = c->epilogue.spans;
    return store && spans[SPAN_COLUMN].count > 0 && spans[SPAN_ROW].count + spans[SPAN_ALL].count == 0 &&
           reductions_read_only_value(c, store->value);
}
