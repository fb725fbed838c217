/* SPDX-License-Identifier: Apache-2.0 */
/* recurrence: the steps of one layer of a recurrent network in one direction. x contains the products of all inputs
   with the input weights, so what remains is, with h and c of the previous step and r = weight h + bias:
     RELU, TANH  h' = activation(x + r)
     LSTM        i, f, o = logistic(x + r), g = tanh(x + r), c' = clip(f c + i g), m = o tanh(c'), h' = projection m
     GRU         r, z = logistic(x + r), n = tanh(x_n + r r_n), h' = (1 - z) n + z h
   Rows of weights are ordered by gate, then by unit. With is_reverse, the steps run from the last to the first. A
   sequence of length l has steps 0 to l - 1; y, the saved gates and the gradients of the other steps are 0, and the
   last state is that after its last step.
   recurrence_backward returns gradients of x and of the initial states. Those of the weights are products over all
   steps of its results: dweight = dx^T previous, or drecurrent^T previous for GRU, where the reset gate scales the
   gradient of n; dprojection = dprojected^T unprojected; those of the biases are sums of the same gradients. */
#include "graph/ops/recurrence.h"

#include <math.h>

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

static const char length_doc[] = "steps of each sequence, INT32 or INT64; unset: T";
static const char mode_doc[] = "formula of a step: RELU, TANH, LSTM or GRU";
static const char reverse_doc[] = "steps run from the last to the first";
static const char min_doc[] = "least cell state of LSTM, if it is less than cell_clip_max";
static const char max_doc[] = "largest cell state of LSTM, if it exceeds cell_clip_min";
static const char math_doc[] = "type of sums and of the state; DOUBLE for DOUBLE operands";
static const char hx_doc[] = "initial hidden state; unset: 0";
static const char cx_doc[] = "initial cell state of LSTM; unset: 0";
static const char projection_doc[] = "projection of the hidden state of LSTM; unset: none, and P = H";

/* T steps of B sequences; H units of G gates (4 for LSTM, 3 for GRU, else 1), a hidden state of P elements. */
#define TENSOR(role, field, name, key, ...)                                                                            \
    TENSOR_ROW(ROLE_##role, struct recurrence_op, field, WEFT_ATTR_OPERATION_RECURRENCE_##name##_EXT, key, __VA_ARGS__)
#define VALUE(type, field, name, key, ...)                                                                             \
    VALUE_ROW(WEFT_TYPE_##type, struct recurrence_op, field, WEFT_ATTR_OPERATION_RECURRENCE_##name##_EXT, key,         \
              __VA_ARGS__)
static const struct row rows[] = {
    TENSOR(INPUT, x, FWD_XDESC, "x", .required = true, .shape = "[T, B, G H]",
           .doc = "products of the inputs with the input weights, plus their bias"),
    TENSOR(INPUT, weight, FWD_WEIGHT_DESC, "weight", .required = true, .shape = "[G H, P]", .doc = "recurrent weights"),
    TENSOR(INPUT, bias, FWD_BIAS_DESC, "bias", .shape = "[G H]", .doc = "recurrent bias; unset: 0"),
    TENSOR(INPUT, hx, FWD_HXDESC, "hx", .shape = "[B, P]", .doc = hx_doc),
    TENSOR(INPUT, cx, FWD_CXDESC, "cx", .shape = "[B, H]", .doc = cx_doc),
    TENSOR(INPUT, seq_len, FWD_SEQ_LEN_DESC, "seq_len", .shape = "[B]", .doc = length_doc),
    TENSOR(INPUT, projection, FWD_PROJECTION_DESC, "projection", .shape = "[P, H]", .doc = projection_doc),
    TENSOR(OUTPUT, y, FWD_YDESC, "y", .required = true, .shape = "[T, B, P]", .doc = "hidden state after each step"),
    TENSOR(OUTPUT, hy, FWD_HYDESC, "hy", .shape = "[B, P]", .doc = "hidden state after the last step"),
    TENSOR(OUTPUT, cy, FWD_CYDESC, "cy", .shape = "[B, H]", .doc = "cell state of LSTM after the last step"),
    TENSOR(OUTPUT, gates, FWD_GATES_DESC, "gates", .shape = "[T, B, S H]",
           .doc =
               "for the backward pass: the gates and cell states of LSTM (S = 5), the gates of GRU and the recurrent "
               "products of n (S = 4)"),
    VALUE(RNN_MODE_EXT, mode, FWD_MODE, "mode", .initial = WEFT_RNN_MODE_LSTM, .doc = mode_doc),
    VALUE(BOOLEAN, is_reverse, FWD_IS_REVERSE, "is_reverse", .doc = reverse_doc),
    VALUE(DOUBLE, clip_min, FWD_CELL_CLIP_MIN, "cell_clip_min", .doc = min_doc),
    VALUE(DOUBLE, clip_max, FWD_CELL_CLIP_MAX, "cell_clip_max", .doc = max_doc),
    VALUE(DATA_TYPE, math, FWD_COMP_TYPE, "compute_data_type", .doc = math_doc),
};

static const struct row bwd_rows[] = {
    TENSOR(INPUT, dy, BWD_DYDESC, "dy", .shape = "[T, B, P]", .doc = "gradient of y; unset: 0"),
    TENSOR(INPUT, dhy, BWD_DHYDESC, "dhy", .shape = "[B, P]", .doc = "gradient of hy; unset: 0"),
    TENSOR(INPUT, dcy, BWD_DCYDESC, "dcy", .shape = "[B, H]", .doc = "gradient of cy; unset: 0"),
    TENSOR(INPUT, y, BWD_YDESC, "y", .required = true, .shape = "[T, B, P]", .doc = "hidden state after each step"),
    TENSOR(INPUT, gates, BWD_GATES_DESC, "gates", .shape = "[T, B, S H]",
           .doc = "gates of the forward pass of LSTM and GRU"),
    TENSOR(INPUT, weight, BWD_WEIGHT_DESC, "weight", .required = true, .shape = "[G H, P]", .doc = "recurrent weights"),
    TENSOR(INPUT, hx, BWD_HXDESC, "hx", .shape = "[B, P]", .doc = hx_doc),
    TENSOR(INPUT, cx, BWD_CXDESC, "cx", .shape = "[B, H]", .doc = cx_doc),
    TENSOR(INPUT, seq_len, BWD_SEQ_LEN_DESC, "seq_len", .shape = "[B]", .doc = length_doc),
    TENSOR(INPUT, projection, BWD_PROJECTION_DESC, "projection", .shape = "[P, H]", .doc = projection_doc),
    TENSOR(OUTPUT, dx, BWD_DXDESC, "dx", .required = true, .shape = "[T, B, G H]", .doc = "gradient of x"),
    TENSOR(OUTPUT, drecurrent, BWD_DRECURRENT_DESC, "drecurrent", .shape = "[T, B, G H]",
           .doc = "gradient of the recurrent products; only for GRU, otherwise it equals dx"),
    TENSOR(OUTPUT, previous, BWD_PREVIOUS_DESC, "previous", .shape = "[T, B, P]",
           .doc = "hidden state before each step"),
    TENSOR(OUTPUT, dhx, BWD_DHXDESC, "dhx", .shape = "[B, P]", .doc = "gradient of hx"),
    TENSOR(OUTPUT, dcx, BWD_DCXDESC, "dcx", .shape = "[B, H]", .doc = "gradient of cx"),
    TENSOR(OUTPUT, dprojected, BWD_DPROJECTED_DESC, "dprojected", .shape = "[T, B, P]",
           .doc = "total gradient of the hidden state after each step"),
    TENSOR(OUTPUT, unprojected, BWD_UNPROJECTED_DESC, "unprojected", .shape = "[T, B, H]",
           .doc = "hidden state of LSTM after each step, before its projection"),
    VALUE(RNN_MODE_EXT, mode, BWD_MODE, "mode", .initial = WEFT_RNN_MODE_LSTM, .doc = mode_doc),
    VALUE(BOOLEAN, is_reverse, BWD_IS_REVERSE, "is_reverse", .doc = reverse_doc),
    VALUE(DOUBLE, clip_min, BWD_CELL_CLIP_MIN, "cell_clip_min", .doc = min_doc),
    VALUE(DOUBLE, clip_max, BWD_CELL_CLIP_MAX, "cell_clip_max", .doc = max_doc),
    VALUE(DATA_TYPE, math, BWD_COMP_TYPE, "compute_data_type", .doc = math_doc),
};
#undef TENSOR
#undef VALUE

static const struct method methods[] = {
    {"recurrence",
     "the steps of a recurrent layer in one direction, from the products of the inputs with the input weights : y[t] = "
     "step(x[t], weight y[t-1] + bias), y[-1] = hx",
     NULL,
     "input:x weight bias=None hx=None cx=None seq_len=None projection=None mode=LSTM is_reverse=false "
     "cell_clip_min=0 cell_clip_max=0",
     "y hy cy gates"},
    {0},
};

static const struct method bwd_methods[] = {
    {"recurrence_backward",
     "gradients of recurrence; that of weight is the product of dx (GRU: drecurrent), transposed, with previous : "
     "dh[t] = dy[t] + weight^T dx[t+1], dx[t] = dstep(dh[t])",
     NULL,
     "loss:dy y weight gates=None hx=None cx=None dhy=None dcy=None seq_len=None projection=None mode=LSTM "
     "is_reverse=false cell_clip_min=0 cell_clip_max=0",
     "dx dhx dcx previous drecurrent dprojected unprojected"},
    {0},
};

/* ---- Shapes and types -------------------------------------------------------------------------------------------- */

void recurrence_tensors(const struct recurrence_op *op, const struct tensor *tensors[RECURRENCE_TENSORS]) {
    const struct tensor *all[RECURRENCE_TENSORS] = {
        op->x,  op->weight,     op->bias,     op->hx,    op->cx,  op->seq_len,    op->projection,
        op->y,  op->hy,         op->cy,       op->gates, op->dy,  op->dhy,        op->dcy,
        op->dx, op->drecurrent, op->previous, op->dhx,   op->dcx, op->dprojected, op->unprojected};
    for (int i = 0; i < RECURRENCE_TENSORS; i++)
        tensors[i] = all[i];
}

static const char *const keys[RECURRENCE_TENSORS] = {
    "x",  "weight", "bias", "hx", "cx",         "seq_len",  "projection", "y",   "hy",         "cy",         "gates",
    "dy", "dhy",    "dcy",  "dx", "drecurrent", "previous", "dhx",        "dcx", "dprojected", "unprojected"};

/* Runs before inference, which assumes correct ranks and sizes of the required inputs. */
static weftStatus_t check_inputs(const struct recurrence_op *op) {
    const struct descriptor *descriptor = &op->base;
    const struct tensor *sequences = op->x ? op->x : op->y;
    int64_t gates = recurrence_gates(op->mode);
    TRY(check_rank(descriptor, op->x ? "x" : "y", sequences, 3, 3));
    TRY(check_rank(descriptor, "weight", op->weight, 2, 2));
    if (op->weight->dims.at[0] % gates)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: weight is %s, but its rows are those of %lld gates. Give it the same number of rows for each gate.",
             descriptor_label(descriptor), tensor_dims_text(op->weight), (long long)gates);
    struct recurrence_sizes s = recurrence_sizes(op);
    if (!op->projection && s.projected != s.units)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: weight is %s, of %lld units and a hidden state of %lld. Give it %lld columns, or set a projection.",
             descriptor_label(descriptor), tensor_dims_text(op->weight), (long long)s.units, (long long)s.projected,
             (long long)s.units);
    return WEFT_STATUS_SUCCESS;
}

/* An operand's extents, and its type if it is unset. */
static void infer_tensor(struct tensor *tensor, const struct recurrence_op *op, const struct tensor *like, int rank,
                         const int64_t *dims) {
    if (!tensor)
        return;
    tensor_infer_type(tensor, tensor_result_type(tensor, (weftDataType_t)like->type, (weftDataType_t)op->math));
    tensor_infer_dims(tensor, rank, dims);
    if (rank == 3)
        tensor_infer_strides(tensor, like);
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct recurrence_op *op = (struct recurrence_op *)descriptor;
    TRY(check_inputs(op));
    struct recurrence_sizes s = recurrence_sizes(op);
    infer_tensor(op->y, op, op->x, 3, (int64_t[]){s.steps, s.batch, s.projected});
    infer_tensor(op->hy, op, op->x, 2, (int64_t[]){s.batch, s.projected});
    infer_tensor(op->cy, op, op->x, 2, (int64_t[]){s.batch, s.units});
    infer_tensor(op->gates, op, op->x, 3, (int64_t[]){s.steps, s.batch, recurrence_saved(op->mode) * s.units});
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t infer_bwd(struct descriptor *descriptor) {
    struct recurrence_op *op = (struct recurrence_op *)descriptor;
    TRY(check_inputs(op));
    struct recurrence_sizes s = recurrence_sizes(op);
    int64_t all[] = {s.steps, s.batch, s.gates * s.units};
    infer_tensor(op->dx, op, op->y, 3, all);
    infer_tensor(op->drecurrent, op, op->y, 3, all);
    infer_tensor(op->previous, op, op->y, 3, (int64_t[]){s.steps, s.batch, s.projected});
    infer_tensor(op->dprojected, op, op->y, 3, (int64_t[]){s.steps, s.batch, s.projected});
    infer_tensor(op->unprojected, op, op->y, 3, (int64_t[]){s.steps, s.batch, s.units});
    infer_tensor(op->dhx, op, op->y, 2, (int64_t[]){s.batch, s.projected});
    infer_tensor(op->dcx, op, op->y, 2, (int64_t[]){s.batch, s.units});
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_type(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    if (tensor->type != WEFT_DATA_DOUBLE && tensor->type != WEFT_DATA_FLOAT &&
        !dtype_is_half((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use DOUBLE, FLOAT, HALF or BFLOAT16.",
             descriptor_label(op), key, dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_lengths(const struct recurrence_op *op, int64_t batch) {
    const struct tensor *lengths = op->seq_len;
    TRY(check_dims(&op->base, "seq_len", lengths, 1, &batch));
    if (lengths && lengths->type != WEFT_DATA_INT32 && lengths->type != WEFT_DATA_INT64)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: seq_len has data type %s. Use INT32 or INT64.", descriptor_label(&op->base),
             dtype_of((weftDataType_t)lengths->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* Tensors and clipping that only some modes have. */
static weftStatus_t check_mode(const struct recurrence_op *op) {
    const char *label = descriptor_label(&op->base);
    bool is_lstm = op->mode == WEFT_RNN_MODE_LSTM, saves = recurrence_saved(op->mode) > 0;
    const struct {
        const struct tensor *tensor;
        const char *key, *modes;
        bool is_allowed;
    } limits[] = {{op->cx, "cx", "LSTM", is_lstm},
                  {op->cy, "cy", "LSTM", is_lstm},
                  {op->dcx, "dcx", "LSTM", is_lstm},
                  {op->dcy, "dcy", "LSTM", is_lstm},
                  {op->projection, "projection", "LSTM", is_lstm},
                  {op->unprojected, "unprojected", "LSTM", is_lstm},
                  {op->drecurrent, "drecurrent", "GRU", op->mode == WEFT_RNN_MODE_GRU},
                  {op->gates, "gates", "LSTM and GRU", saves}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].tensor && !limits[i].is_allowed)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is set, but only %s has it. Leave it unset.", label, limits[i].key,
                 limits[i].modes);
    if (recurrence_clips(op) && !is_lstm)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: cell_clip_min and cell_clip_max are set, but only LSTM has cells. Leave them "
             "unset.",
             label);
    if (op_of(&op->base) == &recurrence_bwd_op && saves && !op->gates)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: gates is not set. Give it the gates of the forward operation.", label);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct recurrence_op *op = (const struct recurrence_op *)descriptor;
    const struct tensor *tensors[RECURRENCE_TENSORS];
    struct recurrence_sizes s = recurrence_sizes(op);
    recurrence_tensors(op, tensors);
    for (int i = 0; i < RECURRENCE_TENSORS; i++)
        if (tensors[i] && tensors[i] != op->seq_len)
            TRY(check_type(descriptor, keys[i], tensors[i]));
    TRY(check_mode(op));
    TRY(check_lengths(op, s.batch));
    const int64_t all = s.gates * s.units, saved = recurrence_saved(op->mode) * s.units;
    for (int i = 0; i < RECURRENCE_TENSORS; i++) {
        const struct tensor *t = tensors[i];
        bool has_all = t == op->x || t == op->dx || t == op->drecurrent,
             is_state = t == op->hx || t == op->hy || t == op->dhx || t == op->dhy,
             is_cell = t == op->cx || t == op->cy || t == op->dcx || t == op->dcy;
        if (!t || t == op->weight || t == op->seq_len)
            continue;
        if (t == op->bias)
            TRY(check_dims(descriptor, keys[i], t, 1, &all));
        else if (t == op->projection)
            TRY(check_dims(descriptor, keys[i], t, 2, (int64_t[]){s.projected, s.units}));
        else if (is_state || is_cell)
            TRY(check_dims(descriptor, keys[i], t, 2, (int64_t[]){s.batch, is_cell ? s.units : s.projected}));
        else
            TRY(check_dims(descriptor, keys[i], t, 3,
                           (int64_t[]){s.steps, s.batch,
                                       has_all                ? all
                                       : t == op->gates       ? saved
                                       : t == op->unprojected ? s.units
                                                              : s.projected}));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_indices(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct recurrence_op *op = (const struct recurrence_op *)descriptor;
    struct view lengths = view_of(bindings, op->seq_len);
    struct recurrence_sizes s = recurrence_sizes(op);
    for (int64_t b = 0; lengths.data && b < s.batch; b++) {
        int64_t length = view_load_int(&lengths, &b);
        if (length < 0 || length > s.steps)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: entry %lld of seq_len, %s, is out of range: expected 0..%lld, got %lld. Correct the contents of "
                 "the tensor.",
                 descriptor_label(descriptor), (long long)b, descriptor_label(&op->seq_len->base), (long long)s.steps,
                 (long long)length);
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* A sequence: its entry in the batch, its length, and the state of the steps so far, in scratch memory. */
struct sequence {
    const struct recurrence_op *op;
    const struct bindings *bindings;
    struct recurrence_sizes sizes;
    int64_t entry, length;
    double *h, *c;       /* state, or its gradient */
    double *next, *sums; /* [P] and [G H] */
    double *unprojected; /* [H] */
};

static struct view view_in(const struct sequence *s, const struct tensor *tensor) {
    return view_of(s->bindings, tensor);
}

/* The time of the k-th step. */
static int64_t time_of(const struct sequence *s, int64_t k) { return s->op->is_reverse ? s->length - 1 - k : k; }

/* An element of a [T, B, ..] or a [B, ..] tensor; 0 if it is absent. */
static double load3(const struct sequence *s, const struct tensor *tensor, int64_t t, int64_t i) {
    struct view view = view_in(s, tensor);
    return view_load_or(&view, (int64_t[]){t, s->entry, i}, 0);
}
static double load2(const struct sequence *s, const struct tensor *tensor, int64_t i) {
    struct view view = view_in(s, tensor);
    return view_load_or(&view, (int64_t[]){s->entry, i}, 0);
}
static void store3(const struct sequence *s, const struct tensor *tensor, int64_t t, int64_t i, double number) {
    struct view view = view_in(s, tensor);
    view_store_if(&view, (int64_t[]){t, s->entry, i}, number);
}
static void store2(const struct sequence *s, const struct tensor *tensor, int64_t i, double number) {
    struct view view = view_in(s, tensor);
    view_store_if(&view, (int64_t[]){s->entry, i}, number);
}

static double matrix_at(const struct sequence *s, const struct tensor *tensor, int64_t row, int64_t column) {
    struct view view = view_in(s, tensor);
    return view_load(&view, (int64_t[]){row, column});
}

static double clip(const struct recurrence_op *op, double c) {
    return !recurrence_clips(op) ? c : c < op->clip_min ? op->clip_min : c > op->clip_max ? op->clip_max : c;
}

static struct sequence sequence_of(const struct recurrence_op *op, const struct bindings *bindings, int64_t entry) {
    struct recurrence_sizes sizes = recurrence_sizes(op);
    struct view lengths = view_of(bindings, op->seq_len);
    double *scratch = bindings->scratch;
    struct sequence s = {.op = op, .bindings = bindings, .sizes = sizes, .entry = entry};
    s.length = lengths.data ? view_load_int(&lengths, &entry) : sizes.steps;
    s.h = scratch, s.next = s.h + sizes.projected, s.c = s.next + sizes.projected, s.unprojected = s.c + sizes.units;
    s.sums = s.unprojected + sizes.units;
    return s;
}

static int64_t scratch_bytes(const struct descriptor *descriptor) {
    struct recurrence_sizes s = recurrence_sizes((const struct recurrence_op *)descriptor);
    return (2 * s.projected + (2 + s.gates) * s.units) * (int64_t)sizeof(double);
}

/* A unit's part of a step: its new state in `unprojected`. */
static void advance_unit(struct sequence *s, int64_t t, int64_t u) {
    const struct recurrence_op *op = s->op;
    const int64_t units = s->sizes.units;
    double x[4], r[4];
    for (int64_t g = 0; g < s->sizes.gates; g++) {
        x[g] = load3(s, op->x, t, g * units + u);
        r[g] = s->sums[g * units + u];
    }
    if (op->mode == WEFT_RNN_MODE_LSTM) {
        double i = logistic(x[0] + r[0]), f = logistic(x[1] + r[1]), g = tanh(x[2] + r[2]), o = logistic(x[3] + r[3]);
        s->c[u] = clip(op, f * s->c[u] + i * g);
        s->unprojected[u] = o * tanh(s->c[u]);
        const double saved[] = {i, f, g, o, s->c[u]};
        for (int64_t k = 0; k < 5; k++)
            store3(s, op->gates, t, k * units + u, saved[k]);
    } else if (op->mode == WEFT_RNN_MODE_GRU) {
        double reset = logistic(x[0] + r[0]), z = logistic(x[1] + r[1]), n = tanh(x[2] + reset * r[2]);
        s->unprojected[u] = (1 - z) * n + z * s->h[u];
        const double saved[] = {reset, z, n, r[2]};
        for (int64_t k = 0; k < 4; k++)
            store3(s, op->gates, t, k * units + u, saved[k]);
    } else {
        double sum = x[0] + r[0];
        s->unprojected[u] = op->mode == WEFT_RNN_MODE_TANH ? tanh(sum) : sum > 0 || sum != sum ? sum : 0;
    }
}

static void advance(struct sequence *s, int64_t t) {
    const struct recurrence_op *op = s->op;
    struct recurrence_sizes n = s->sizes;
    struct view bias = view_in(s, op->bias);
    for (int64_t k = 0; k < n.gates * n.units; k++) {
        s->sums[k] = view_load_or(&bias, &k, 0);
        for (int64_t p = 0; p < n.projected; p++)
            s->sums[k] += matrix_at(s, op->weight, k, p) * s->h[p];
    }
    for (int64_t u = 0; u < n.units; u++)
        advance_unit(s, t, u);
    for (int64_t p = 0; p < n.projected; p++) {
        s->h[p] = op->projection ? 0 : s->unprojected[p];
        for (int64_t u = 0; u < n.units && op->projection; u++)
            s->h[p] += matrix_at(s, op->projection, p, u) * s->unprojected[u];
        store3(s, op->y, t, p, s->h[p]);
    }
}

/* Steps after the end of a sequence are 0. */
static void clear(const struct sequence *s, const struct tensor *tensor) {
    for (int64_t t = s->length; tensor && t < s->sizes.steps; t++)
        for (int64_t i = 0; i < tensor->dims.at[RECURRENCE_UNIT]; i++)
            store3(s, tensor, t, i, 0);
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct recurrence_op *op = (const struct recurrence_op *)descriptor;
    struct recurrence_sizes n = recurrence_sizes(op);
    for (int64_t b = 0; b < n.batch; b++) {
        struct sequence s = sequence_of(op, bindings, b);
        for (int64_t p = 0; p < n.projected; p++)
            s.h[p] = load2(&s, op->hx, p);
        for (int64_t u = 0; u < n.units; u++)
            s.c[u] = load2(&s, op->cx, u);
        for (int64_t k = 0; k < s.length; k++)
            advance(&s, time_of(&s, k));
        for (int64_t p = 0; p < n.projected; p++)
            store2(&s, op->hy, p, s.h[p]);
        for (int64_t u = 0; u < n.units; u++)
            store2(&s, op->cy, u, s.c[u]);
        clear(&s, op->y);
        clear(&s, op->gates);
    }
}

/* The hidden state before step k. */
static double previous_of(const struct sequence *s, int64_t k, int64_t p) {
    return k ? load3(s, s->op->y, time_of(s, k - 1), p) : load2(s, s->op->hx, p);
}

/* Gradients of the products of unit u in step k, from that of its state, in `sums`. s->next receives the part of the
   gradient of the previous hidden state that is not a product. */
static void retreat_unit(struct sequence *s, int64_t k, int64_t u, double dh) {
    const struct recurrence_op *op = s->op;
    const int64_t units = s->sizes.units, t = time_of(s, k);
    double saved[5];
    for (int64_t i = 0; i < recurrence_saved(op->mode); i++)
        saved[i] = load3(s, op->gates, t, i * units + u);
    if (op->mode == WEFT_RNN_MODE_LSTM) {
        double i = saved[0], f = saved[1], g = saved[2], o = saved[3], squashed = tanh(saved[4]);
        double c = k ? load3(s, op->gates, time_of(s, k - 1), 4 * units + u) : load2(s, op->cx, u);
        double dc = s->c[u] + dh * o * (1 - squashed * squashed), raw = f * c + i * g;
        if (clip(op, raw) != raw)
            dc = 0;
        const double d[] = {dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g),
                            dh * squashed * o * (1 - o)};
        for (int64_t gate = 0; gate < 4; gate++) {
            s->sums[gate * units + u] = d[gate];
            store3(s, op->dx, t, gate * units + u, d[gate]);
        }
        s->c[u] = dc * f;
        store3(s, op->unprojected, t, u, o * squashed);
    } else if (op->mode == WEFT_RNN_MODE_GRU) {
        double r = saved[0], z = saved[1], n = saved[2];
        double dn = dh * (1 - z) * (1 - n * n), dz = dh * (previous_of(s, k, u) - n) * z * (1 - z);
        const double d[] = {dn * saved[3] * r * (1 - r), dz, dn}, recurrent[] = {d[0], dz, dn * r};
        for (int64_t gate = 0; gate < 3; gate++) {
            s->sums[gate * units + u] = recurrent[gate];
            store3(s, op->dx, t, gate * units + u, d[gate]);
            store3(s, op->drecurrent, t, gate * units + u, recurrent[gate]);
        }
        s->next[u] += dh * z;
    } else {
        double y = load3(s, op->y, t, u);
        s->sums[u] = op->mode == WEFT_RNN_MODE_TANH ? dh * (1 - y * y) : y > 0 ? dh : 0;
        store3(s, op->dx, t, u, s->sums[u]);
    }
}

static void retreat(struct sequence *s, int64_t k) {
    const struct recurrence_op *op = s->op;
    struct recurrence_sizes n = s->sizes;
    const int64_t t = time_of(s, k);
    for (int64_t p = 0; p < n.projected; p++) {
        s->h[p] += load3(s, op->dy, t, p);
        s->next[p] = 0;
        store3(s, op->dprojected, t, p, s->h[p]);
        store3(s, op->previous, t, p, previous_of(s, k, p));
    }
    for (int64_t u = 0; u < n.units; u++) {
        double dh = op->projection ? 0 : s->h[u];
        for (int64_t p = 0; p < n.projected && op->projection; p++)
            dh += matrix_at(s, op->projection, p, u) * s->h[p];
        retreat_unit(s, k, u, dh);
    }
    for (int64_t p = 0; p < n.projected; p++) {
        s->h[p] = s->next[p];
        for (int64_t i = 0; i < n.gates * n.units; i++)
            s->h[p] += matrix_at(s, op->weight, i, p) * s->sums[i];
    }
}

static void reference_bwd(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct recurrence_op *op = (const struct recurrence_op *)descriptor;
    struct recurrence_sizes n = recurrence_sizes(op);
    for (int64_t b = 0; b < n.batch; b++) {
        struct sequence s = sequence_of(op, bindings, b);
        for (int64_t p = 0; p < n.projected; p++)
            s.h[p] = load2(&s, op->dhy, p);
        for (int64_t u = 0; u < n.units; u++)
            s.c[u] = load2(&s, op->dcy, u);
        for (int64_t k = s.length; k-- > 0;)
            retreat(&s, k);
        for (int64_t p = 0; p < n.projected; p++)
            store2(&s, op->dhx, p, s.h[p]);
        for (int64_t u = 0; u < n.units; u++)
            store2(&s, op->dcx, u, s.c[u]);
        const struct tensor *const stepwise[] = {op->dx, op->drecurrent, op->previous, op->dprojected, op->unprojected};
        for (size_t i = 0; i < sizeof stepwise / sizeof *stepwise; i++)
            clear(&s, stepwise[i]);
    }
}

/* One multiplication and one addition for each element of the two matrices, in both directions. */
static double flops(const struct descriptor *descriptor) {
    const struct recurrence_op *op = (const struct recurrence_op *)descriptor;
    struct recurrence_sizes s = recurrence_sizes(op);
    double matrices =
        (double)tensor_elements(op->weight) + (op->projection ? (double)tensor_elements(op->projection) : 0);
    return 2.0 * (double)s.steps * (double)s.batch * matrices;
}

const struct op recurrence_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_RECURRENCE_FWD_DESCRIPTOR_EXT,
            .name = "recurrence",
            .doc = "the steps of a recurrent layer (RNN, LSTM, GRU) in one direction",
            .size = sizeof(struct recurrence_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &recurrence_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .check_indices = check_indices,
    .reference = reference,
    .scratch_bytes = scratch_bytes,
    .flops = flops,
};

const struct op recurrence_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_RECURRENCE_BWD_DESCRIPTOR_EXT,
            .name = "recurrence_backward",
            .doc = "gradients of the inputs and initial states of a recurrent layer's steps",
            .size = sizeof(struct recurrence_op),
            ROWS(bwd_rows),
            .finalize = op_finalize,
            .op = &recurrence_bwd_op,
        },
    .methods = bwd_methods,
    .infer = infer_bwd,
    .check = check,
    .check_indices = check_indices,
    .reference = reference_bwd,
    .scratch_bytes = scratch_bytes,
    .flops = flops,
};
