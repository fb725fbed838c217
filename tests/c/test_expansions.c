/* SPDX-License-Identifier: Apache-2.0 */
/* The expansions of operations, compared with their references. Each instruction is evaluated in double over a random
   shape, with every method of computing statistics, and must give the result of the operation's definition. The
   evaluator does not know blocks or passes: a value is an array over all elements, and a value of a row is stored at
   each of the row's elements. The argument is the first seed. */
#include "harness.h"

#include "graph/expansion.h"
#include "graph/graph.h"

#include <math.h>

enum { ELEMENTS = 1024, TENSORS = 16, CASES = 300 };

static uint64_t seed, random_state;

static uint64_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = (random_state ^ (random_state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t pick(int64_t least, int64_t most) {
    return least + (int64_t)(random_bits() % (uint64_t)(most - least + 1));
}

static double random_double(void) { return (double)pick(-4000, 4000) / 1000; }

/* ---- One operation and its memory -------------------------------------------------------------------------------- */

struct model {
    desc op, tensors[TENSORS];
    int count;
    double *memory[TENSORS]; /* by uid */
};

static desc new_tensor(struct model *m, struct extents dims) {
    desc made = open_tensor(m->count, dims);
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_DOUBLE));
    int64_t elements = 1;
    for (int64_t d = 0; d < dims.count; d++)
        elements *= dims.at[d];
    m->memory[m->count] = malloc((size_t)(elements ? elements : 1) * sizeof(double));
    for (int64_t i = 0; i < elements; i++)
        m->memory[m->count][i] = random_double();
    return m->tensors[m->count++] = finalized(made);
}

static desc hold(struct model *m, weftBackendAttributeName_t name, struct extents dims) {
    desc made = new_tensor(m, dims);
    MUST(set_held(m->op, name, made));
    return made;
}

static void hold_epsilon(struct model *m, weftBackendAttributeName_t name) {
    hold(m, name, DIMS(1, 1, 1, 1));
    m->memory[m->count - 1][0] = 0.01;
}

static struct extents along(struct extents dims, const bool *kept) {
    for (int64_t d = 0; d < dims.count; d++)
        dims.at[d] = kept[d] ? dims.at[d] : 1;
    return dims;
}

/* ---- The evaluator ----------------------------------------------------------------------------------------------- */

struct evaluation {
    struct expansion e;
    int64_t count, index[ELEMENTS][WEFT_DIM_MAX], row[ELEMENTS];
    double values[INSTRUCTIONS_MAX][ELEMENTS];
    double *results[TENSORS];
};

static int64_t group_of(const struct expansion *e, int64_t d, int64_t index) {
    return e->parts[d] ? index / (e->dims.at[d] / e->parts[d]) : 0;
}

static void list_elements(struct evaluation *v) {
    const struct expansion *e = &v->e;
    v->count = 0;
    int64_t index[WEFT_DIM_MAX];
    int rank = (int)e->dims.count;
    for (bool more = index_begin(index, rank, e->dims.at); more; more = index_next(index, rank, e->dims.at)) {
        v->row[v->count] = 0;
        for (int d = 0; d < rank; d++) {
            v->index[v->count][d] = index[d];
            v->row[v->count] = v->row[v->count] * e->parts[d] + group_of(e, d, index[d]);
        }
        v->count++;
    }
}

/* Offset of an element, or of its row, in a packed tensor. */
static int64_t place_of(const struct evaluation *v, const struct tensor *tensor, int64_t element) {
    int64_t place = 0;
    for (int64_t d = 0; d < tensor->dims.count && tensor_elements(tensor) != 1; d++) {
        int64_t extent = tensor->dims.at[d], index = v->index[element][d];
        place = place * extent + (extent == v->e.dims.at[d] ? index : extent == 1 ? 0 : group_of(&v->e, d, index));
    }
    return place;
}

static double formula(enum opcode opcode, double a, double b, double c, double d) {
    switch (opcode) {
    case OPCODE_COPY:
        return a;
    case OPCODE_ADD:
        return a + b;
    case OPCODE_SUBTRACT:
        return a - b;
    case OPCODE_MULTIPLY:
        return a * b;
    case OPCODE_DIVIDE:
    case OPCODE_SHARE:
        return a / b;
    case OPCODE_NEGATE:
        return -a;
    case OPCODE_ABSOLUTE:
        return fabs(a);
    case OPCODE_ROOT:
        return sqrt(a);
    case OPCODE_INVERSE_ROOT:
        return 1 / sqrt(a);
    case OPCODE_LOGARITHM:
        return log(a);
    case OPCODE_LARGER:
        return a > b || a != a ? a : b;
    case OPCODE_IF_GREATER:
        return a > b ? c : d;
    case OPCODE_IF_EQUAL:
        return a == b ? c : d;
    case OPCODE_SHIFT:
        return a == -INFINITY ? 0 : a;
    default: /* the weights */
        return a == b ? 1 : exp(a - b);
    }
}

static double combine(enum opcode opcode, double so_far, double x) {
    return opcode == OPCODE_PRODUCT   ? so_far * x
           : opcode == OPCODE_LEAST   ? (x < so_far ? x : so_far)
           : opcode == OPCODE_LARGEST ? (x > so_far ? x : so_far)
                                      : so_far + x;
}

/* Reduces the elements of one row. square: deviations from `from`; weight: e^(element - from). */
static double over_row(const struct evaluation *v, enum opcode opcode, const double *x, int64_t element, double from,
                       bool is_second) {
    double total = opcode == OPCODE_PRODUCT   ? 1
                   : opcode == OPCODE_LEAST   ? INFINITY
                   : opcode == OPCODE_LARGEST ? -INFINITY
                                              : 0;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->row[i] != v->row[element])
            continue;
        double value = !is_second ? x[i] : opcode == OPCODE_MOMENTS ? (x[i] - from) * (x[i] - from) : exp(x[i] - from);
        total = combine(is_second ? OPCODE_SUM : opcode, total, value);
    }
    return total;
}

static double row_length(const struct evaluation *v, int64_t element) {
    double length = 0;
    for (int64_t i = 0; i < v->count; i++)
        length += v->row[i] == v->row[element];
    return length;
}

static double reduced(const struct evaluation *v, const struct instruction *at, int64_t element) {
    const double *x = v->values[at->arguments[0]];
    if (at->opcode == OPCODE_MOMENTS)
        return over_row(v, OPCODE_SUM, x, element, 0, false) / row_length(v, element);
    if (at->opcode == OPCODE_WEIGHTS)
        return over_row(v, OPCODE_LARGEST, x, element, 0, false);
    if (at->opcode != OPCODE_SECOND)
        return over_row(v, at->opcode, x, element, 0, false);
    const struct instruction *first = &v->e.at[at->arguments[0]];
    return over_row(v, first->opcode, v->values[first->arguments[0]], element, x[element], true);
}

static double sample(const struct evaluation *v, const struct tensor *tensor, const double *memory, int64_t element) {
    int64_t first = 0;
    while (v->row[first] != v->row[element])
        first++;
    return memory[place_of(v, tensor, first)];
}

static double value_at(const struct evaluation *v, const struct model *m, const struct instruction *at, int64_t i) {
    double x[INSTRUCTION_ARGUMENTS] = {0};
    switch (at->opcode) {
    case OPCODE_INPUT:
        return m->memory[at->tensor->uid][place_of(v, at->tensor, i)];
    case OPCODE_SAMPLE:
        return sample(v, at->tensor, m->memory[at->tensor->uid], i);
    case OPCODE_NUMBER:
        return at->number;
    case OPCODE_LENGTH:
    case OPCODE_COUNT:
        return row_length(v, i);
    default:
        if (at->opcode >= OPCODE_SUM && at->opcode <= OPCODE_SECOND)
            return reduced(v, at, i);
        for (int k = 0; k < INSTRUCTION_ARGUMENTS && at->arguments[k] >= 0; k++)
            x[k] = v->values[at->arguments[k]][i];
        return formula(at->opcode, x[0], x[1], x[2], x[3]);
    }
}

static void evaluate(struct evaluation *v, const struct model *m) {
    list_elements(v);
    for (int n = 0; n < v->e.count; n++) {
        const struct instruction *at = &v->e.at[n];
        bool is_result = at->opcode == OPCODE_RESULT, is_sum = at->opcode == OPCODE_SUM_TO;
        double *result = is_result || is_sum ? v->results[at->tensor->uid] : NULL;
        for (int64_t i = 0; is_sum && i < tensor_elements(at->tensor); i++)
            result[i] = 0;
        for (int64_t i = 0; i < v->count; i++) {
            if (is_result)
                result[place_of(v, at->tensor, i)] = v->values[at->arguments[0]][i];
            else if (is_sum)
                result[place_of(v, at->tensor, i)] += v->values[at->arguments[0]][i];
            else
                v->values[n][i] = value_at(v, m, at, i);
        }
    }
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static int64_t elements_of(const struct model *m, int uid) {
    return tensor_elements((const struct tensor *)m->tensors[uid]);
}

static void run_reference(struct model *m, const struct graph *graph) {
    void *values[TENSORS];
    for (int v = 0; v < graph->value_count; v++)
        values[v] = m->memory[graph->values[v].tensor->uid];
    const struct descriptor *op = (const struct descriptor *)m->op;
    int64_t bytes = op_of(op)->scratch_bytes ? op_of(op)->scratch_bytes(op) : 0;
    struct bindings bindings = {.graph = graph, .values = values, .scratch = malloc((size_t)bytes + 1)};
    op_of(op)->reference(op, &bindings);
    free(bindings.scratch);
}

static void compare(const struct model *m, const struct evaluation *v, const char *name) {
    for (int uid = 0; uid < m->count; uid++)
        for (int64_t i = 0; i < elements_of(m, uid); i++) {
            double want = m->memory[uid][i], got = v->results[uid][i];
            bool is_same = want == got || (want != want && got != got) || fabs(want - got) < 1e-9 * (1 + fabs(want));
            CHECK(is_same, "%s, method %d, seed %llu: element %lld of tensor %d is %.17g, the reference has %.17g",
                  name, (int)v->e.method, (unsigned long long)seed, (long long)i, uid, got, want);
        }
}

static void check_methods(struct model *m, const struct graph *graph, const char *name) {
    struct evaluation *v = calloc(1, sizeof *v);
    const enum statistics_method methods[] = {STATISTICS_IN_TURN, STATISTICS_SHIFTED, STATISTICS_JOINED};
    for (int k = 0; k < 3; k++)
        for (int uid = 0; uid < m->count; uid++) { /* inputs are unchanged; outputs come from the evaluator */
            size_t bytes = (size_t)(elements_of(m, uid) + 1) * sizeof(double);
            v->results[uid] = realloc(v->results[uid], bytes);
            memcpy(v->results[uid], m->memory[uid], bytes - sizeof(double));
            if (uid + 1 < m->count)
                continue;
            v->e = (struct expansion){.method = methods[k]};
            MUST(expansion_of(&v->e, (const struct descriptor *)m->op));
            evaluate(v, m);
            if (k == 0)
                run_reference(m, graph);
            compare(m, v, name);
        }
    for (int uid = 0; uid < m->count; uid++)
        free(v->results[uid]);
    free(v);
}

static void check_op(struct model *m, const char *name) {
    desc op = m->op;
    MUST(weftBackendFinalize(op));
    desc graph = finalized(open_graph(1, &op));
    check_methods(m, (const struct graph *)graph, name);
    drop(graph), drop(op);
    for (int uid = 0; uid < m->count; uid++) {
        drop(m->tensors[uid]);
        free(m->memory[uid]);
    }
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static struct extents random_dims(void) { return DIMS(pick(1, 4), 2 * pick(1, 3), pick(1, 5), pick(1, 7)); }

struct norm_case {
    const char *name;
    weftBackendNormMode_t mode;
    bool statistics[4], affine[4]; /* dims of the statistics and of scale and bias */
    int64_t groups;
};

static const struct norm_case norms[] = {
    {"layer norm", WEFT_LAYER_NORM, {1, 0, 0, 0}, {0, 1, 1, 1}, 0},
    {"RMS norm", WEFT_RMS_NORM, {1, 0, 0, 0}, {0, 1, 1, 1}, 0},
    {"instance norm", WEFT_INSTANCE_NORM, {1, 1, 0, 0}, {0, 1, 0, 0}, 0},
    {"batch norm", WEFT_BATCH_NORM, {0, 1, 0, 0}, {0, 1, 0, 0}, 0},
    {"group norm", WEFT_GROUP_NORM, {1, 1, 0, 0}, {0, 1, 0, 0}, 2},
};

static struct extents statistics_of(const struct norm_case *norm, struct extents dims) {
    struct extents made = along(dims, norm->statistics);
    if (norm->groups)
        made.at[1] = norm->groups;
    return made;
}

static void norm_forward(const struct norm_case *norm) {
    struct extents dims = random_dims(), statistics = statistics_of(norm, dims), affine = along(dims, norm->affine);
    struct model m = {.op = make(WEFT_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR)};
    MUST(set_enum(m.op, WEFT_ATTR_OPERATION_NORM_FWD_MODE, WEFT_TYPE_NORM_MODE, norm->mode));
    MUST(set_enum(m.op, WEFT_ATTR_OPERATION_NORM_FWD_PHASE, WEFT_TYPE_NORM_FWD_PHASE, WEFT_NORM_FWD_TRAINING));
    hold(&m, WEFT_ATTR_OPERATION_NORM_FWD_XDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_NORM_FWD_SCALE_DESC, affine);
    if (pick(0, 1) && norm->mode != WEFT_RMS_NORM)
        hold(&m, WEFT_ATTR_OPERATION_NORM_FWD_BIAS_DESC, affine);
    hold_epsilon(&m, WEFT_ATTR_OPERATION_NORM_FWD_EPSILON_DESC);
    if (norm->mode != WEFT_RMS_NORM)
        hold(&m, WEFT_ATTR_OPERATION_NORM_FWD_MEAN_DESC, statistics);
    hold(&m, WEFT_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, statistics);
    hold(&m, WEFT_ATTR_OPERATION_NORM_FWD_YDESC, dims);
    if (norm->groups)
        MUST(set_number(m.op, WEFT_ATTR_OPERATION_NORM_FWD_GROUPS_EXT, norm->groups));
    check_op(&m, norm->name);
}

static void norm_backward(const struct norm_case *norm) {
    struct extents dims = random_dims(), statistics = statistics_of(norm, dims), affine = along(dims, norm->affine);
    struct model m = {.op = make(WEFT_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR)};
    bool has_statistics = pick(0, 1) || norm->mode == WEFT_BATCH_NORM;
    MUST(set_enum(m.op, WEFT_ATTR_OPERATION_NORM_BWD_MODE, WEFT_TYPE_NORM_MODE, norm->mode));
    hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_XDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_DYDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_SCALE_DESC, affine);
    if (has_statistics && norm->mode != WEFT_RMS_NORM)
        hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_MEAN_DESC, statistics);
    if (has_statistics)
        hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, statistics);
    else
        hold_epsilon(&m, WEFT_ATTR_OPERATION_NORM_BWD_EPSILON_DESC);
    hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_DXDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, affine);
    if (norm->mode != WEFT_RMS_NORM)
        hold(&m, WEFT_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, affine);
    if (norm->groups)
        MUST(set_number(m.op, WEFT_ATTR_OPERATION_NORM_BWD_GROUPS_EXT, norm->groups));
    check_op(&m, norm->name);
}

static void softmax(void) {
    struct extents dims = random_dims(), row = dims;
    struct model m = {.op = make(WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR)};
    int64_t axis = pick(0, 3);
    row.at[axis] = 1;
    hold(&m, WEFT_ATTR_OPERATION_SOFTMAX_XDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_SOFTMAX_YDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_SOFTMAX_STATS_DESC, row);
    MUST(set_number(m.op, WEFT_ATTR_OPERATION_SOFTMAX_AXIS_EXT, axis));
    check_op(&m, "softmax");
}

static void reduction(void) {
    static const weftReduceTensorOp_t modes[] = {
        WEFT_REDUCE_TENSOR_ADD,   WEFT_REDUCE_TENSOR_MUL,   WEFT_REDUCE_TENSOR_MIN,
        WEFT_REDUCE_TENSOR_MAX,   WEFT_REDUCE_TENSOR_AMAX,  WEFT_REDUCE_TENSOR_AVG,
        WEFT_REDUCE_TENSOR_NORM1, WEFT_REDUCE_TENSOR_NORM2, WEFT_REDUCE_TENSOR_MUL_NO_ZEROS};
    struct extents dims = random_dims(), y = dims;
    struct model m = {.op = make(WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)};
    for (int d = 0; d < 4; d++)
        y.at[d] = pick(0, 1) ? 1 : d == 1 && pick(0, 1) ? 2 : dims.at[d];
    desc parameters = make(WEFT_BACKEND_REDUCTION_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_REDUCTION_OPERATOR, WEFT_TYPE_REDUCTION_OPERATOR_TYPE,
                  modes[pick(0, sizeof modes / sizeof *modes - 1)]));
    MUST(set_enum(parameters, WEFT_ATTR_REDUCTION_COMP_TYPE, WEFT_TYPE_DATA_TYPE, WEFT_DATA_DOUBLE));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(m.op, WEFT_ATTR_OPERATION_REDUCTION_DESC, parameters));
    hold(&m, WEFT_ATTR_OPERATION_REDUCTION_XDESC, dims);
    hold(&m, WEFT_ATTR_OPERATION_REDUCTION_YDESC, y);
    check_op(&m, "reduction");
    drop(parameters);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (seed = first; seed < first + CASES; seed++) {
        random_state = seed;
        const struct norm_case *norm = &norms[pick(0, sizeof norms / sizeof *norms - 1)];
        norm_forward(norm);
        norm_backward(norm);
        softmax();
        reduction();
    }
    return harness_end();
}
