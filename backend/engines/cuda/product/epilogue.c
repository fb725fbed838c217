/* SPDX-License-Identifier: Apache-2.0 */
/* What follows the sum: alpha, beta, the pointwise operations of the region, and the stores, as one printed function over
   a run of results that lie side by side. It must not know how sums are made. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"
#include "graph/ops/pointwise.h"

#include <string.h>

enum { LONGEST_RUN = 8 };
enum { LOAD_INSTRUCTIONS = 2, TOTAL_INSTRUCTIONS = 2 };

static const struct tensor *tensor_at(const struct contraction *c, int value) {
    return c->region->graph->values[value].tensor;
}

static weftDataType_t tensor_type(const struct contraction *c, int value) {
    return (weftDataType_t)tensor_at(c, value)->type;
}

static bool made_inside(const struct contraction *c, int value) {
    int producer = c->region->graph->values[value].producer;
    return producer >= 0 && region_has(c->region, producer);
}

static bool is_index(const struct node *node) {
    return ((const struct pointwise_op *)node->op)->pw->mode == WEFT_POINTWISE_GEN_INDEX;
}

static int output_of(const struct node *node) {
    int i = 0;
    while (!node->is_output[i])
        i++;
    return node->operands[i];
}

/* ---- Analysis ---------------------------------------------------------------------------------------------------- */

static weftStatus_t check_tensor(const struct contraction *c, const struct descriptor *op, const struct tensor *tensor,
                                 bool is_output) {
    const struct tensor *result = tensor_at(c, c->result);
    bool fits = tensor->dims.count == result->dims.count || (tensor_elements(tensor) == 1 && !is_output);
    for (int64_t i = 0; fits && i < tensor->dims.count && tensor->dims.count == result->dims.count; i++)
        fits = tensor->dims.at[i] == result->dims.at[i] || (tensor->dims.at[i] == 1 && !is_output);
    if (!fits)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: %s has dims %s, %s makes %s. What follows it must have these dims.",
             descriptor_label(op), descriptor_label(&tensor->base), tensor_dims_text(tensor),
             descriptor_label(c->node->op), tensor_dims_text(result));
    TRY(tensor_check_plain(tensor, op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_finisher(struct contraction *c, struct finisher **added, enum finisher_role role, int value) {
    struct finish *finish = &c->finish;
    for (int k = 0; k < finish->count; k++)
        if (finish->at[k].role == role && finish->at[k].value == value) {
            *added = &finish->at[k];
            return WEFT_STATUS_SUCCESS;
        }
    if (finish->count == FINISHERS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: more than %d operands would follow it in one kernel",
             descriptor_label(c->node->op), FINISHERS_MAX);
    *added = &finish->at[finish->count++];
    **added = (struct finisher){.role = role, .value = value};
    return WEFT_STATUS_SUCCESS;
}

/* An operand in memory: its strides over the digits, 0 where it broadcasts. */
static weftStatus_t add_memory(struct contraction *c, enum finisher_role role, int value) {
    const struct tensor *tensor = tensor_at(c, value);
    struct finisher *finisher = NULL;
    if (!cuda_type_name((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, whose elements have no address",
             descriptor_label(c->node->op), descriptor_label(&tensor->base),
             dtype_of((weftDataType_t)tensor->type)->name);
    TRY(add_finisher(c, &finisher, role, value));
    finisher->type = (weftDataType_t)tensor->type;
    bool is_scalar = tensor_elements(tensor) == 1;
    for (int index = BATCH; index < DEPTH; index++)
        for (int d = 0; d < c->digits[index].count; d++) {
            const struct digit *digit = &c->digits[index].at[d];
            bool moves = !is_scalar && tensor->dims.at[digit->dim] != 1;
            finisher->strides[index][d] = moves ? tensor->strides.at[digit->dim] * digit->dim_step : 0;
        }
    return WEFT_STATUS_SUCCESS;
}

/* A coordinate of the result, as the value of GEN_INDEX or to be held below a bound. */
static weftStatus_t add_coordinate(struct contraction *c, enum finisher_role role, int value, int64_t dim) {
    struct finisher *finisher = NULL;
    TRY(add_finisher(c, &finisher, role, value));
    finisher->bound = tensor_at(c, c->result)->dims.at[dim];
    for (int index = BATCH; index < DEPTH; index++)
        for (int d = 0; d < c->digits[index].count; d++)
            finisher->strides[index][d] = c->digits[index].at[d].dim == dim ? c->digits[index].at[d].dim_step : 0;
    return WEFT_STATUS_SUCCESS;
}

/* What a reduction comes to is known when all tiles are done: nothing here can read it. */
static weftStatus_t check_source(const struct contraction *c, const struct node *node, int value) {
    if (made_inside(c, value) && totals_serve(&c->region->graph->nodes[c->region->graph->values[value].producer]))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s reads %s, which is known when the whole product is made.",
             descriptor_label(node->op), descriptor_label(&tensor_at(c, value)->base));
    return WEFT_STATUS_SUCCESS;
}

/* Elements are as many as the product's; other inputs are read by the kernel that ends it. */
static weftStatus_t add_reducer(struct contraction *c, const struct node *node) {
    TRY(totals_add(c, node));
    for (int k = 0; k < node->operand_count; k++) {
        int value = node->operands[k];
        const struct tensor *tensor = tensor_at(c, value);
        bool is_whole = tensor_elements(tensor) == tensor_elements(tensor_at(c, c->result));
        if (node->is_output[k]) {
            if (region_exports(c->region, value))
                TRY(add_memory(c, FINISH_TOTAL, value));
            continue;
        }
        TRY(check_source(c, node, value));
        TRY(check_tensor(c, node->op, tensor, is_whole));
        if (!made_inside(c, value))
            TRY(add_memory(c, FINISH_LOAD, value));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_node(struct contraction *c, const struct node *node) {
    if (totals_serve(node))
        return add_reducer(c, node);
    TRY(formula_accepts(node->op));
    for (int k = 0; k < node->operand_count; k++) {
        int value = node->operands[k];
        TRY(check_source(c, node, value));
        TRY(check_tensor(c, node->op, tensor_at(c, value), node->is_output[k]));
        if (node->is_output[k] ? region_exports(c->region, value) : !made_inside(c, value) && !is_index(node))
            TRY(add_memory(c, node->is_output[k] ? FINISH_STORE : FINISH_LOAD, value));
    }
    if (is_index(node))
        TRY(add_coordinate(c, FINISH_INDEX, output_of(node), ((const struct pointwise_op *)node->op)->pw->axis));
    return WEFT_STATUS_SUCCESS;
}

static void merge_digits(struct finish *finish, int index) {
    int64_t *extents = finish->extents[index];
    for (int i = finish->digit_count[index] - 1; i-- > 0;) {
        bool merges = extents[i] * extents[i + 1] < INT32_MAX;
        for (int k = 0; k < finish->count; k++) {
            const int64_t *strides = finish->at[k].strides[index];
            merges = merges && strides[i] == strides[i + 1] * extents[i + 1];
        }
        if (!merges)
            continue;
        extents[i + 1] *= extents[i];
        finish->digit_count[index]--;
        for (int j = i; j < finish->digit_count[index]; j++) {
            extents[j] = extents[j + 1];
            for (int k = 0; k < finish->count; k++)
                finish->at[k].strides[index][j] = finish->at[k].strides[index][j + 1];
        }
    }
}

/* The index whose last digit runs along the memory of the first store. */
static enum index find_lead(const struct contraction *c) {
    const struct finish *finish = &c->finish;
    int rows = finish->digit_count[ROW], columns = finish->digit_count[COLUMN], k = 0;
    if (c->is_direct)
        return BATCH;
    if (!rows || !columns)
        return rows ? ROW : COLUMN;
    while (k < finish->count && finish->at[k].role != FINISH_STORE)
        k++;
    if (k == finish->count) /* only totals leave */
        return COLUMN;
    return finish->at[k].strides[ROW][rows - 1] < finish->at[k].strides[COLUMN][columns - 1] ? ROW : COLUMN;
}

/* Whether runs of it are read or written where sums are finished, or their places compared. */
static bool moves_data(const struct finisher *finisher) {
    return finisher->role != FINISH_INDEX && finisher->role != FINISH_TOTAL;
}

/* How many neighbours one thread finishes: what is contiguous is read and written in one access. */
static int find_run(const struct contraction *c) {
    const struct finish *finish = &c->finish;
    int last = finish->digit_count[finish->lead] - 1;
    int64_t length = last < 0 ? 1 : gcd64(LONGEST_RUN, finish->extents[finish->lead][last]);
    for (int k = 0; k < finish->count; k++) {
        const struct finisher *finisher = &finish->at[k];
        if (last < 0 || !moves_data(finisher) || finisher->strides[finish->lead][last] == 0)
            continue;
        if (finisher->role == FINISH_LIMIT && finisher->strides[finish->lead][last] != 1)
            return 1;
        if (finisher->role == FINISH_LIMIT) {
            length = gcd64(length, finisher->bound);
            continue;
        }
        if (finisher->strides[finish->lead][last] != 1)
            continue;
        int64_t fits = gcd64(tensor_at(c, finisher->value)->alignment, 16) / dtype_bytes(finisher->type, 1);
        length = gcd64(length, fits > 1 ? fits : 1);
        for (int index = BATCH; index < DEPTH; index++)
            for (int d = 0; d < finish->digit_count[index]; d++)
                if (finisher->strides[index][d] && (index != (int)finish->lead || d != last))
                    length = gcd64(length, finisher->strides[index][d]);
    }
    return (int)length;
}

weftStatus_t finish_analyse(struct contraction *c) {
    struct finish *finish = &c->finish;
    const struct tensor *result = tensor_at(c, c->result);
    if (region_exports(c->region, c->result))
        TRY(add_memory(c, FINISH_STORE, c->result));
    for (int i = 0; i < c->region->count; i++)
        if (contraction_is_behind(c, region_node(c->region, i)))
            TRY(add_node(c, region_node(c->region, i)));
    if (c->beta != 0)
        TRY(add_memory(c, FINISH_OLD, c->result));
    for (int p = 0; p < c->phase_count; p++)
        TRY(add_coordinate(c, FINISH_LIMIT, c->phases[p].coordinate,
                           result->dims.count - COORDINATES + c->phases[p].coordinate));
    if (c->has_limit)
        TRY(add_coordinate(c, FINISH_LIMIT, COORDINATES, c->limited_dim));
    for (int index = BATCH; index < DEPTH; index++) {
        finish->digit_count[index] = c->digits[index].count;
        for (int d = 0; d < c->digits[index].count; d++)
            finish->extents[index][d] = c->digits[index].at[d].extent;
        merge_digits(finish, index);
    }
    finish->lead = find_lead(c);
    finish->run = find_run(c);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static int lead_digit(const struct finish *finish) { return finish->digit_count[finish->lead] - 1; }

static int64_t lead_stride(const struct finish *finish, const struct finisher *finisher) {
    int last = lead_digit(finish);
    return last < 0 ? 0 : finisher->strides[finish->lead][last];
}

/* The loads that are the same in all rows, or the others. */
static void print_loads(struct kernel_print *print, const struct contraction *c, bool of_column) {
    const struct finish *finish = &c->finish;
    for (int k = 0; k < finish->count; k++) {
        const struct finisher *finisher = &finish->at[k];
        bool is_old = finisher->role == FINISH_OLD;
        if ((finisher->role != FINISH_LOAD && !is_old) || finisher->is_brought ||
            finish_is_of_column(finish, k) != of_column)
            continue;
        const char *type = cuda_type_name(finisher->type);
        int64_t stride = lead_stride(finish, finisher);
        if (stride > 1)
            text_add(&print->code, "    for (int e = 0; e < RUN; e++) in.f%d.at[e] = (p.f%d", k, k);
        else
            text_add(&print->code, "    in.f%d = load_run<%s, %s>(p.f%d", k, type, stride ? "RUN" : "1", k);
        finish_print_offset(print, finish, k);
        if (stride > 1)
            text_add(&print->code, ")[e * p.f%d_%c%d];\n", k, index_letters[finish->lead], lead_digit(finish));
        else
            text_add(&print->code, ");\n");
    }
}

/* Whether evaluate() reads a value that it has made, and so as its tensor holds it. */
static bool is_read_inside(const struct contraction *c, int value) {
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        for (int k = 0; k < node->operand_count && !(c->finish.totals_stored && totals_serve(node)); k++)
            if (node->operands[k] == value && !node->is_output[k])
                return true;
    }
    return false;
}

/* Whether sums become 16 bits and are read again as they are: a run of them is converted at once. */
static bool keeps_runs(const struct contraction *c) {
    return is_read_inside(c, c->result) && c->alpha == 1 && c->beta == 0 &&
           dtype_bytes(tensor_type(c, c->result), 1) == 2 && strcmp(arithmetic_rows[c->arithmetic].sum, "float") == 0;
}

/* v<result> from the sum, as its tensor holds it; whole numbers stay whole unless they are scaled. */
static void print_result(struct kernel_print *print, const struct contraction *c) {
    if (keeps_runs(c)) {
        text_add(&print->code, "        const float v%d = kept.number.at[e];\n", c->result);
        return;
    }
    bool is_scaled = c->alpha != 1 || c->beta != 0;
    bool is_whole = c->arithmetic == MMA_INT8 || c->arithmetic == FMA_INT32 || c->arithmetic == FMA_INT64;
    const char *type = is_whole ? is_scaled ? "double" : "i64" : c->arithmetic == FMA_DOUBLE ? "double" : "float";
    text_add(&print->code, "        %s v%d = (%s)sum.at[e]", type, c->result, type);
    if (c->alpha != 1) {
        print_real(print, c->alpha, "alpha");
        text_add(&print->code, " * (%s)__longlong_as_double(p.alpha)", type);
    }
    if (c->beta != 0) {
        int old = 0;
        print_real(print, c->beta, "beta");
        while (c->finish.at[old].role != FINISH_OLD)
            old++;
        text_add(&print->code, " + (%s)__longlong_as_double(p.beta) * as<%s>::of(in.f%d.at[%s])", type, type, old,
                 lead_stride(&c->finish, &c->finish.at[old]) ? "e" : "0");
    }
    text_add(&print->code, ";\n");
    if (is_read_inside(c, c->result))
        text_add(&print->code, "        v%d = rounded<%s>(v%d);\n", c->result,
                 cuda_type_name(tensor_type(c, c->result)), c->result);
}

static void print_values(struct kernel_print *print, const struct contraction *c) {
    const struct finish *finish = &c->finish;
    for (int k = 0; k < finish->count; k++) {
        const struct finisher *finisher = &finish->at[k];
        bool is_late = finisher->type == WEFT_DATA_BFLOAT16;
        if (finisher->role == FINISH_LOAD && is_late && finish->run == 2 && lead_stride(finish, finisher) == 1)
            text_add(&print->code, "        const float v%d = to_float_late(*(const u32*)&in.f%d, e);\n",
                     finisher->value, k);
        else if (finisher->role == FINISH_LOAD)
            text_add(&print->code, "        const %s v%d = %s(in.f%d.at[%s]);\n",
                     is_late ? "float" : cuda_type_name(finisher->type), finisher->value,
                     is_late ? "to_float_late" : "", k, lead_stride(finish, finisher) ? "e" : "0");
        if (finisher->role == FINISH_INDEX) {
            text_add(&print->code, "        const i64 v%d = 0", finisher->value);
            finish_print_offset(print, finish, k);
            print_term(print, "e", lead_stride(finish, finisher),
                       named("f%d_%c%d", k, index_letters[finish->lead], lead_digit(finish)).text);
            text_add(&print->code, ";\n");
        }
    }
}

static void print_stores(struct kernel_print *print, const struct contraction *c) {
    const struct finish *finish = &c->finish;
    for (int k = 0; k < finish->count; k++) {
        const struct finisher *finisher = &finish->at[k];
        if (finisher->role != FINISH_STORE)
            continue;
        const char *type = cuda_type_name(finisher->type);
        int64_t stride = lead_stride(finish, finisher);
        if (stride <= 1)
            text_add(&print->code, "    store_run<%s, RUN>(p.f%d", type, k);
        else
            text_add(&print->code, "    for (int e = 0; e < RUN; e++) (p.f%d", k);
        finish_print_offset(print, finish, k);
        if (stride <= 1)
            text_add(&print->code, ", out.f%d);\n", k);
        else
            text_add(&print->code, ")[e * p.f%d_%c%d] = out.f%d.at[e];\n", k, index_letters[finish->lead],
                     lead_digit(finish), k);
    }
}

double finish_instructions(const struct contraction *c) {
    double count = 0;
    for (int k = 0; k < c->finish.count; k++)
        if (c->finish.at[k].role == FINISH_LOAD || c->finish.at[k].role == FINISH_OLD)
            count += LOAD_INSTRUCTIONS;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        if (contraction_is_behind(c, node) && !totals_serve(node) && !is_index(node))
            count += formula_instructions((const struct pointwise_op *)node->op);
    }
    for (int span = 0; span < SPANS; span++)
        count += TOTAL_INSTRUCTIONS * c->finish.totals[span].count;
    return count;
}

int finish_fetched_words(const struct finish *finish) {
    int words = 0;
    for (int k = 0; k < finish->count; k++)
        if ((finish->at[k].role == FINISH_LOAD || finish->at[k].role == FINISH_OLD) && !finish->at[k].is_brought)
            words += (int)divide_up(dtype_bytes(finish->at[k].type, 2), 4) * (finish_is_of_column(finish, k) ? 2 : 4);
    return words;
}

/* fetch(): what is read of memory, apart from the rest so that kernels can read ahead. fetch_below(): what differs in another row of the
   same column; it exists even where the first one does not, so what they share is read before rows are looked at. */
static void print_fetch(struct kernel_print *print, const struct contraction *c) {
    const struct finish *finish = &c->finish;
    text_add(&print->code, "struct fetched {\n");
    for (int k = 0; k < finish->count; k++)
        if (finish->at[k].role == FINISH_LOAD || finish->at[k].role == FINISH_OLD)
            text_add(&print->code, "    run<%s, %s> f%d;\n", cuda_type_name(finish->at[k].type),
                     lead_stride(finish, &finish->at[k]) ? "RUN" : "1", k);
    print_constant(print, "FETCHED_WORDS", finish_fetched_words(finish));
    text_add(&print->code, "};\n\n");
    for (int is_below = 0; is_below < 2; is_below++) {
        text_add(&print->code,
                 is_below
                     ? "DEVICE fetched fetch_below(const arguments& p, index z, index i, index j, fetched in) {\n"
                     : "DEVICE fetched fetch(const arguments& p, index z, index i, index j) {\n    fetched in = {};\n");
        finish_print_digits(print, finish);
        finish_print_limits(print, finish, true, "return in");
        if (!is_below)
            print_loads(print, c, true);
        finish_print_limits(print, finish, false, "return in");
        print_loads(print, c, false);
        text_add(&print->code, "    return in;\n}\n\n");
    }
}

/* Whether operand k stores the sums themselves, converted already. */
static bool is_kept(const struct contraction *c, int k) {
    const struct finisher *finisher = &c->finish.at[k];
    return keeps_runs(c) && finisher->role == FINISH_STORE && finisher->value == c->result;
}

/* Whether reductions read the value and else only operands in memory, and no other operation reads it. */
static bool is_only_totalled(const struct contraction *c, int value) {
    bool is_read = false;
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        if (!contraction_is_behind(c, node))
            continue;
        if (!totals_serve(node) && node_reads(node, value))
            return false;
        for (int k = 0; k < node->operand_count && totals_serve(node); k++)
            if (!node->is_output[k] && node->operands[k] != value && made_inside(c, node->operands[k]))
                return false;
        is_read = is_read || (totals_serve(node) && node_reads(node, value));
    }
    return is_read;
}

/* The operand that stores in 16 bits what reductions read, as it is stored, and nothing else does: a run of it is converted at once,
   behind all formulas; -1: none is such. */
static int find_totalled(const struct contraction *c) {
    for (int k = 0; k < c->finish.count && !c->finish.totals_stored; k++) {
        const struct finisher *finisher = &c->finish.at[k];
        bool is_half = dtype_is_half(finisher->type);
        if (finisher->role == FINISH_STORE && finisher->value != c->result && is_half &&
            is_only_totalled(c, finisher->value))
            return k;
    }
    return -1;
}

/* evaluate(): from sums to what is stored, converted. */
static void print_evaluate(struct kernel_print *print, const struct contraction *c) {
    const struct finish *finish = &c->finish;
    int totalled = find_totalled(c), last = totalled < 0 ? -1 : finish->at[totalled].value;
    text_add(&print->code, "struct finished {\n");
    for (int k = 0; k < finish->count; k++)
        if (finish->at[k].role == FINISH_STORE)
            text_add(&print->code, "    run<%s, RUN> f%d;\n", cuda_type_name(finish->at[k].type), k);
    if (!finish->totals_stored)
        totals_print_fields(print, finish);
    text_add(&print->code, "};\n\nDEVICE finished evaluate(const arguments& p, index z, index i, index j, "
                           "const run<sum_t, RUN>& sum, const fetched& in) {\n    finished out;\n");
    finish_print_digits(print, finish);
    if (keeps_runs(c))
        text_add(&print->code, "    const auto kept = keep_run<%s>(sum);\n", cuda_type_name(tensor_type(c, c->result)));
    if (totalled >= 0)
        text_add(&print->code, "    run<float, RUN> last;\n");
    text_add(&print->code, "    #pragma unroll\n    for (int e = 0; e < RUN; e++) {\n");
    print_values(print, c);
    print_result(print, c);
    for (int i = 0; i < c->region->count; i++) {
        const struct node *node = region_node(c->region, i);
        if (!contraction_is_behind(c, node) || totals_serve(node) || is_index(node))
            continue;
        if (is_read_inside(c, output_of(node)) && output_of(node) != last)
            formula_print(&print->code, c->region->graph, node);
        else /* storing rounds */
            formula_print_exact(&print->code, c->region->graph, node);
    }
    for (int k = 0; k < finish->count; k++)
        if (finish->at[k].role == FINISH_STORE && !is_kept(c, k) && k != totalled)
            text_add(&print->code, "        out.f%d.at[e] = from<%s>::number(v%d);\n", k,
                     cuda_type_name(finish->at[k].type), finish->at[k].value);
    if (totalled >= 0) {
        text_add(&print->code,
                 "        last.at[e] = (float)v%d;\n    }\n    const auto kept_last = keep_run<%s>(last);\n"
                 "    out.f%d = kept_last.stored;\n    #pragma unroll\n    for (int e = 0; e < RUN; e++) {\n",
                 last, cuda_type_name(finish->at[totalled].type), totalled);
        print_values(print, c);
        text_add(&print->code, "        const float v%d = kept_last.number.at[e];\n", last);
    }
    if (!finish->totals_stored)
        totals_print_elements(print, c);
    text_add(&print->code, "    }\n");
    for (int k = 0; k < finish->count; k++)
        if (is_kept(c, k))
            text_add(&print->code, "    out.f%d = kept.stored;\n", k);
    text_add(&print->code, "    return out;\n}\n\n");
}

/* exists(p, z, i, j): whether the result has such an element. */
static void print_exists(struct kernel_print *print, const struct finish *finish) {
    text_add(&print->code, "DEVICE bool exists(const arguments& p, index z, index i, index j) {\n");
    finish_print_digits(print, finish);
    finish_print_all_limits(print, finish, "return false");
    text_add(&print->code, "    return true;\n}\n\n");
}

void finish_print(struct kernel_print *print, const struct contraction *c) {
    print_constant(print, "RUN", c->finish.run);
    finish_print_arguments(print, &c->finish);
    print_fetch(print, c);
    print_evaluate(print, c);
    if (c->finish.reducer_count)
        print_exists(print, &c->finish);
    text_add(&print->code, "DEVICE finished finish(const arguments& p, index z, index i, index j, "
                           "const run<sum_t, RUN>& sum, const fetched& in) {\n");
    finish_print_digits(print, &c->finish);
    finish_print_all_limits(print, &c->finish, "return {}");
    text_add(&print->code, "    const finished out = evaluate(p, z, i, j, sum, in);\n");
    print_stores(print, c);
    text_add(&print->code,
             "    return out;\n}\n\n"
             "DEVICE finished finish(const arguments& p, index z, index i, index j, const run<sum_t, RUN>& sum) {\n"
             "    return finish(p, z, i, j, sum, fetch(p, z, i, j));\n}\n\n");
}

void finish_print_place(struct kernel_print *print, const struct contraction *c, int k) {
    const struct finish *finish = &c->finish;
    const char *type = cuda_type_name(finish->at[k].type);
    text_add(&print->code, "DEVICE %s* place_of_result(const arguments& p, index z, index i, index j) {\n", type);
    finish_print_digits(print, finish);
    finish_print_all_limits(print, finish, "return nullptr");
    text_add(&print->code, "    return p.f%d", k);
    finish_print_offset(print, finish, k);
    text_add(&print->code, ";\n}\n\n");
}

bool finish_lies_alike(const struct contraction *c, int k, const struct finisher *store) {
    const struct finish *finish = &c->finish;
    const struct finisher *finisher = &finish->at[k];
    bool is = (finisher->role == FINISH_LOAD || finisher->role == FINISH_OLD) && dtype_bytes(finisher->type, 1) == 2 &&
              dtype_bytes(store->type, 1) == 2 && tensor_at(c, finisher->value)->alignment % 16 == 0 &&
              !tensor_at(c, finisher->value)->is_by_value && finisher->strides[COLUMN][0] == 1;
    for (int index = BATCH; index <= ROW; index++)
        for (int d = 0; d < finish->digit_count[index]; d++)
            is = is && finisher->strides[index][d] > 0 && finisher->strides[index][d] % 8 == 0;
    return is;
}

/* Whether what operand k stores has elements of so many bytes, and rows of whole accesses of 16 bytes. */
static bool is_staged(const struct contraction *c, const struct finisher *store, int bytes) {
    const struct finish *finish = &c->finish;
    int64_t access = 16 / bytes;
    if (dtype_bytes(store->type, 1) != bytes || finish->lead != COLUMN || finish->digit_count[COLUMN] != 1 ||
        store->strides[COLUMN][0] != 1 || finish->run < 2 || digits_extent(&c->digits[COLUMN]) % access != 0)
        return false;
    for (int index = BATCH; index <= ROW; index++)
        for (int d = 0; d < finish->digit_count[index]; d++)
            if (store->strides[index][d] <= 0 || store->strides[index][d] % access != 0)
                return false;
    return tensor_at(c, store->value)->alignment % 16 == 0;
}

int finish_find_stored(const struct contraction *c, int bytes, const struct finisher *stores[2]) {
    int count = 0;
    for (int k = 0; k < c->finish.count; k++)
        if (c->finish.at[k].role == FINISH_STORE) {
            if (count == 2 || !is_staged(c, &c->finish.at[k], bytes))
                return 0;
            stores[count++] = &c->finish.at[k];
        }
    return count;
}

const struct finisher *finish_find_staged(const struct contraction *c, int bytes) {
    const struct finisher *stores[2];
    return finish_find_stored(c, bytes, stores) == 1 ? stores[0] : NULL;
}
