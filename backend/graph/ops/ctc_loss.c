/* SPDX-License-Identifier: Apache-2.0 */
/* ctc_loss: the negative logarithm of the probability that a sequence of T steps reads as its labels, if steps may
   repeat a label or be blank (connectionist temporal classification). The states of a sequence of S labels are
     blank, label 0, blank, label 1, .., blank: 2 S + 1
   and with a sum over the paths to a state, in logarithms, and p the state's own symbol:
     alpha[t,s] = log_probs[t,n,p] + logsumexp(alpha[t-1,s], alpha[t-1,s-1], alpha[t-1,s-2] if s is a label that differs
                  from the one before)
     loss[n] = -logsumexp(alpha[T-1,2S], alpha[T-1,2S-1])
   A sequence without steps has a loss of 0 if it has no labels. One with fewer steps than its labels need has a loss of
   infinity, or of 0 with zero_infinity. log_alpha is -inf in states and steps that a sequence does not have. Backward:
     dlog_probs[t,n,c] = dloss[n] * (exp(log_probs[t,n,c]) - the probability that step t is in a state with symbol c)
   That is the gradient by logits of which log_probs is the log_softmax. It may pass through the gradient of that
   log_softmax, which leaves it as it is. It is 0 in steps that a sequence does not have, and NaN if the loss is
   infinite, or 0 with zero_infinity. On a GPU, lengths are clamped, and labels that are no class have probability 0. */
#include "graph/ops/ctc_loss.h"
#include "base/number.h"

#include <math.h>

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

/* T: steps, N: sequences, C: classes, S: the largest number of labels. */
#define OPERAND_ROWS(direction)                                                                                        \
    TENSOR_ROW(ROLE_INPUT, struct ctc_loss_op, log_probs,                                                              \
               WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_LOG_PROBS_DESC_EXT, "log_probs", .required = true,           \
               .shape = "[T, N, C]", .doc = "logarithms of probabilities"),                                            \
        TENSOR_ROW(ROLE_INPUT, struct ctc_loss_op, targets,                                                            \
                   WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_TARGETS_DESC_EXT, "targets", .required = true,           \
                   .shape = "[N, S] or [labels]",                                                                      \
                   .doc = "labels of each sequence, padded, or of all one after the other; INT32 or INT64"),           \
        TENSOR_ROW(ROLE_INPUT, struct ctc_loss_op, input_lengths,                                                      \
                   WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_INPUT_LENGTHS_DESC_EXT, "input_lengths",                 \
                   .required = true, .shape = "[N]", .doc = "steps of each sequence; INT32 or INT64"),                 \
        TENSOR_ROW(ROLE_INPUT, struct ctc_loss_op, target_lengths,                                                     \
                   WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_TARGET_LENGTHS_DESC_EXT, "target_lengths",               \
                   .required = true, .shape = "[N]", .doc = "labels of each sequence; INT32 or INT64")

#define OPTION_ROWS(direction)                                                                                         \
    VALUE_ROW(WEFT_TYPE_INT64, struct ctc_loss_op, blank, WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_BLANK_EXT,        \
              "blank", .least = 0, .most = INT32_MAX, .doc = "the class that is blank"),                               \
        VALUE_ROW(WEFT_TYPE_BOOLEAN, struct ctc_loss_op, zero_infinity,                                                \
                  WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_ZERO_INFINITY_EXT, "zero_infinity",                       \
                  .doc = "whether infinite losses and their gradients are 0"),                                         \
        VALUE_ROW(WEFT_TYPE_INT64, struct ctc_loss_op, max_target_length,                                              \
                  WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_MAX_TARGET_LENGTH_EXT, "max_target_length", .least = 0,   \
                  .most = INT32_MAX / 4, .doc = "S for targets [labels]; unset or 0: the number of all labels"),       \
        VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct ctc_loss_op, math,                                                       \
                  WEFT_ATTR_OPERATION_CTC_LOSS_##direction##_COMP_TYPE_EXT, "compute_data_type",                       \
                  .doc = "type of sums; DOUBLE for DOUBLE operands")

static const struct row rows[] = {
    OPERAND_ROWS(FWD),
    TENSOR_ROW(ROLE_OUTPUT, struct ctc_loss_op, loss, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOSS_DESC_EXT, "loss",
               .required = true, .shape = "[N]", .doc = "loss of each sequence"),
    TENSOR_ROW(ROLE_OUTPUT, struct ctc_loss_op, log_alpha, WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOG_ALPHA_DESC_EXT,
               "log_alpha", .shape = "[N, T, 2 S + 1]",
               .doc = "log-probability of the paths to each state, for the gradient"),
    OPTION_ROWS(FWD),
};

static const struct row bwd_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct ctc_loss_op, dloss, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_DLOSS_DESC_EXT, "dloss",
               .required = true, .shape = "[N]", .doc = "gradient of each loss"),
    OPERAND_ROWS(BWD),
    TENSOR_ROW(ROLE_INPUT, struct ctc_loss_op, log_alpha, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_LOG_ALPHA_DESC_EXT,
               "log_alpha", .required = true, .shape = "[N, T, 2 S + 1]", .doc = "result of the forward operation"),
    TENSOR_ROW(ROLE_OUTPUT, struct ctc_loss_op, dlog_probs, WEFT_ATTR_OPERATION_CTC_LOSS_BWD_DLOG_PROBS_DESC_EXT,
               "dlog_probs", .required = true, .shape = "[T, N, C]", .doc = "gradient of the logits or of log_probs"),
    OPTION_ROWS(BWD),
};

#define OPTIONS " blank=0 zero_infinity=false max_target_length=0"

static const struct method methods[] = {
    {"ctc_loss",
     "connectionist temporal classification : loss[n] = -log of the sum over all paths that read as targets[n] of "
     "prod_t exp(log_probs[t, n, path[t]])",
     NULL, "log_probs targets input_lengths target_lengths" OPTIONS, "loss log_alpha"},
    {0},
};

static const struct method bwd_methods[] = {
    {"ctc_loss_backward",
     "gradient of ctc_loss by logits, or by log_probs : dlog_probs[t,n,c] = loss[n] * (exp(log_probs[t,n,c]) - P(step "
     "t "
     "of n reads c))",
     NULL, "loss:dloss log_probs targets input_lengths target_lengths log_alpha" OPTIONS, "dlog_probs"},
    {0},
};

/* ---- Shapes and types -------------------------------------------------------------------------------------------- */

/* Runs before inference, which assumes correct ranks. */
static weftStatus_t check_inputs(const struct ctc_loss_op *op) {
    const struct descriptor *descriptor = &op->base;
    TRY(check_rank(descriptor, "log_probs", op->log_probs, 3, 3));
    TRY(check_rank(descriptor, "targets", op->targets, 1, 2));
    const int64_t *batch = &op->log_probs->dims.at[CTC_BATCH];
    TRY(check_dims(descriptor, "input_lengths", op->input_lengths, 1, batch));
    TRY(check_dims(descriptor, "target_lengths", op->target_lengths, 1, batch));
    if (!ctc_is_concatenated(op) && op->targets->dims.at[0] != *batch)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: log_probs is %s, of %lld sequences, targets is %s. Give it one row per sequence, or one dimension "
             "with "
             "all labels.",
             descriptor_label(descriptor), tensor_dims_text(op->log_probs), (long long)*batch,
             tensor_dims_text(op->targets));
    if (op->blank >= op->log_probs->dims.at[CTC_CLASS])
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: blank is %lld, log_probs is %s, of %lld classes. Choose one of them.", descriptor_label(descriptor),
             (long long)op->blank, tensor_dims_text(op->log_probs), (long long)op->log_probs->dims.at[CTC_CLASS]);
    if (ctc_labels(op) > INT32_MAX / 4)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: targets is %s. A sequence has fewer than 2^29 labels.",
             descriptor_label(descriptor), tensor_dims_text(op->targets));
    return WEFT_STATUS_SUCCESS;
}

static struct dims alpha_dims(const struct ctc_loss_op *op) {
    return (struct dims){3, {op->log_probs->dims.at[CTC_BATCH], op->log_probs->dims.at[CTC_TIME], ctc_states(op)}};
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct ctc_loss_op *op = (struct ctc_loss_op *)descriptor;
    TRY(check_inputs(op));
    struct dims dims = alpha_dims(op);
    bool is_double = op->log_probs->type == WEFT_DATA_DOUBLE || op->math == WEFT_DATA_DOUBLE;
    tensor_infer_type(op->loss, is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    tensor_infer_dims(op->loss, 1, dims.at);
    tensor_infer_strides(op->loss, NULL);
    if (!op->log_alpha)
        return WEFT_STATUS_SUCCESS;
    tensor_infer_type(op->log_alpha, is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    tensor_infer_dims(op->log_alpha, 3, dims.at);
    tensor_infer_strides(op->log_alpha, NULL);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t infer_bwd(struct descriptor *descriptor) {
    struct ctc_loss_op *op = (struct ctc_loss_op *)descriptor;
    TRY(check_inputs(op));
    weftDataType_t type = (weftDataType_t)op->log_probs->type;
    tensor_infer_type(op->dlog_probs, tensor_result_type(op->dlog_probs, type, (weftDataType_t)op->math));
    tensor_infer_like(op->dlog_probs, op->log_probs);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    const struct tensor *numbers[] = {op->log_probs, op->loss, op->log_alpha, op->dloss, op->dlog_probs};
    static const char *const keys[] = {"log_probs", "loss", "log_alpha", "dloss", "dlog_probs"};
    struct dims dims = alpha_dims(op);
    for (int i = 0; i < 5; i++)
        TRY(check_float(descriptor, keys[i], numbers[i]));
    TRY(check_index_type(descriptor, "targets", op->targets));
    TRY(check_index_type(descriptor, "input_lengths", op->input_lengths));
    TRY(check_index_type(descriptor, "target_lengths", op->target_lengths));
    TRY(check_dims(descriptor, "loss", op->loss, 1, dims.at));
    TRY(check_dims(descriptor, "log_alpha", op->log_alpha, 3, dims.at));
    TRY(check_dims(descriptor, "dloss", op->dloss, 1, dims.at));
    return check_dims(descriptor, "dlog_probs", op->dlog_probs, 3, op->log_probs->dims.at);
}

/* ---- Lengths and labels ------------------------------------------------------------------------------------------ */

static weftStatus_t check_number(const struct ctc_loss_op *op, const char *key, const struct tensor *tensor, int64_t at,
                                 int64_t number, int64_t most) {
    if (number < 0 || number > most)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: entry %lld of %s, %s, is out of range: expected 0..%lld, got %lld. Correct the contents of the "
             "tensor.",
             descriptor_label(&op->base), (long long)at, key, descriptor_label(&tensor->base), (long long)most,
             (long long)number);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_numbers(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    struct view steps = view_of(bindings, op->input_lengths), counts = view_of(bindings, op->target_lengths);
    struct view targets = view_of(bindings, op->targets);
    int64_t used = 0, all = op->targets->dims.at[0];
    for (int64_t n = 0; n < op->log_probs->dims.at[CTC_BATCH]; n++) {
        int64_t count = view_load_int(&counts, &n);
        TRY(check_number(op, "input_lengths", op->input_lengths, n, view_load_int(&steps, &n),
                         op->log_probs->dims.at[CTC_TIME]));
        TRY(check_number(op, "target_lengths", op->target_lengths, n, count,
                         ctc_is_concatenated(op) ? min64(ctc_labels(op), all - used) : ctc_labels(op)));
        for (int64_t i = 0; i < count; i++) {
            int64_t label =
                view_load_int(&targets, ctc_is_concatenated(op) ? (int64_t[]){used + i} : (int64_t[]){n, i});
            TRY(check_number(op, "targets", op->targets, ctc_is_concatenated(op) ? used + i : n * ctc_labels(op) + i,
                             label, op->log_probs->dims.at[CTC_CLASS] - 1));
        }
        used += count;
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* One sequence. */
struct sequence {
    const struct ctc_loss_op *op;
    struct view log_probs, targets;
    int64_t n, steps, labels, states, first; /* first: of its labels, among those of all sequences */
};

static struct sequence sequence_of(const struct ctc_loss_op *op, const struct bindings *bindings, int64_t n) {
    struct view steps = view_of(bindings, op->input_lengths), labels = view_of(bindings, op->target_lengths);
    struct sequence s = {op, view_of(bindings, op->log_probs), view_of(bindings, op->targets), n, 0, 0, 0, 0};
    s.steps = view_load_int(&steps, &n), s.labels = view_load_int(&labels, &n);
    s.states = 2 * s.labels + 1;
    for (int64_t i = 0; i < n; i++)
        s.first += view_load_int(&labels, &i);
    return s;
}

/* The class that a state reads. */
static int64_t symbol_of(const struct sequence *s, int64_t state) {
    if (state % 2 == 0)
        return s->op->blank;
    return view_load_int(&s->targets,
                         ctc_is_concatenated(s->op) ? (int64_t[]){s->first + state / 2} : (int64_t[]){s->n, state / 2});
}

static double log_prob(const struct sequence *s, int64_t t, int64_t state) {
    return view_load(&s->log_probs, (int64_t[]){t, s->n, symbol_of(s, state)});
}

/* True if a path may go from state - 2 to a state, past a blank. */
static bool can_skip(const struct sequence *s, int64_t state) {
    return state >= 2 && state < s->states && symbol_of(s, state) != symbol_of(s, state - 2);
}

static double add_logs(double a, double b) {
    double most = fmax(a, b);
    return most == -INFINITY ? most : most + log(exp(a - most) + exp(b - most));
}

/* alpha of one step from that of the step before. */
static void advance(const struct sequence *s, int64_t t, const double *before, double *alpha) {
    for (int64_t i = 0; i < s->states; i++) {
        double sum = t == 0 ? (i < 2 ? 0 : -INFINITY) : before[i];
        if (t > 0 && i >= 1)
            sum = add_logs(sum, before[i - 1]);
        if (t > 0 && can_skip(s, i))
            sum = add_logs(sum, before[i - 2]);
        alpha[i] = sum + log_prob(s, t, i);
    }
}

/* The logarithm of the sum over all paths, from alpha of the last step. */
static double likelihood_of(const struct sequence *s, const double *last) {
    if (s->steps == 0)
        return s->labels ? -INFINITY : 0;
    return s->labels ? add_logs(last[s->states - 1], last[s->states - 2]) : last[0];
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    struct view loss = view_of(bindings, op->loss), log_alpha = view_of(bindings, op->log_alpha);
    int64_t states = ctc_states(op);
    double *before = bindings->scratch, *alpha = before + states;
    for (int64_t n = 0; n < op->log_probs->dims.at[CTC_BATCH]; n++) {
        struct sequence s = sequence_of(op, bindings, n);
        for (int64_t t = 0; t < op->log_probs->dims.at[CTC_TIME]; t++) {
            if (t < s.steps) {
                double *kept = before;
                before = alpha, alpha = kept;
                advance(&s, t, before, alpha);
            }
            for (int64_t i = 0; i < states; i++)
                view_store_if(&log_alpha, (int64_t[]){n, t, i}, t < s.steps && i < s.states ? alpha[i] : -INFINITY);
        }
        double result = 0 - likelihood_of(&s, alpha);
        view_store_if(&loss, &n, result == INFINITY && op->zero_infinity ? 0 : result);
    }
}

static int64_t scratch_bytes(const struct descriptor *descriptor) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    return 2 * (ctc_states(op) + op->log_probs->dims.at[CTC_CLASS]) * (int64_t)sizeof(double);
}

/* beta[t,i]: the logarithm of the sum over the rest of the paths that are in state i at step t, without that step. */
static void recede(const struct sequence *s, int64_t t, const double *after, double *beta) {
    for (int64_t i = 0; i < s->states; i++) {
        if (t == s->steps - 1) {
            beta[i] = i >= s->states - 2 ? 0 : -INFINITY;
            continue;
        }
        beta[i] = after[i] + log_prob(s, t + 1, i);
        if (i + 1 < s->states)
            beta[i] = add_logs(beta[i], after[i + 1] + log_prob(s, t + 1, i + 1));
        if (can_skip(s, i + 2))
            beta[i] = add_logs(beta[i], after[i + 2] + log_prob(s, t + 1, i + 2));
    }
}

static void load_alpha(const struct view *log_alpha, const struct sequence *s, int64_t t, double *alpha) {
    for (int64_t i = 0; i < s->states; i++)
        alpha[i] = view_load(log_alpha, (int64_t[]){s->n, t, i});
}

/* Stores the gradient of one step; read: the probability that it reads each class. */
static void store_step(const struct sequence *s, const struct view *dlog_probs, int64_t t, double dloss,
                       const double *read) {
    for (int64_t c = 0; c < s->log_probs.dims[CTC_CLASS]; c++) {
        int64_t at[] = {t, s->n, c};
        view_store(dlog_probs, at, dloss * (exp(view_load(&s->log_probs, at)) - read[c]));
    }
}

static void differentiate(const struct sequence *s, const struct bindings *bindings, double *scratch) {
    const struct ctc_loss_op *op = s->op;
    struct view log_alpha = view_of(bindings, op->log_alpha), dloss = view_of(bindings, op->dloss);
    struct view dlog_probs = view_of(bindings, op->dlog_probs);
    int64_t states = ctc_states(op), classes = op->log_probs->dims.at[CTC_CLASS];
    double *alpha = scratch, *beta = alpha + states, *after = beta + states, *read = after + states;
    if (s->steps > 0)
        load_alpha(&log_alpha, s, s->steps - 1, alpha);
    double likelihood = likelihood_of(s, alpha), scale = view_load(&dloss, &s->n);
    bool is_infinite = likelihood == -INFINITY;
    for (int64_t t = op->log_probs->dims.at[CTC_TIME]; t-- > 0;) {
        bool is_zero = t >= s->steps || (is_infinite && op->zero_infinity);
        for (int64_t c = 0; c < classes && (is_zero || is_infinite); c++)
            view_store(&dlog_probs, (int64_t[]){t, s->n, c}, is_zero ? 0 : NAN);
        if (is_zero || is_infinite)
            continue;
        double *kept = after;
        after = beta, beta = kept;
        recede(s, t, after, beta);
        load_alpha(&log_alpha, s, t, alpha);
        for (int64_t c = 0; c < classes; c++)
            read[c] = 0;
        for (int64_t i = 0; i < s->states; i++)
            read[symbol_of(s, i)] += exp(alpha[i] + beta[i] - likelihood);
        store_step(s, &dlog_probs, t, scale, read);
    }
}

static void reference_bwd(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    if (!view_of(bindings, op->dlog_probs).data)
        return;
    for (int64_t n = 0; n < op->log_probs->dims.at[CTC_BATCH]; n++) {
        struct sequence s = sequence_of(op, bindings, n);
        differentiate(&s, bindings, bindings->scratch);
    }
}

static int64_t bwd_scratch_bytes(const struct descriptor *descriptor) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    return (3 * ctc_states(op) + op->log_probs->dims.at[CTC_CLASS]) * (int64_t)sizeof(double);
}

/* Three exponentials and a logarithm per state and step. */
static double flops(const struct descriptor *descriptor) {
    const struct ctc_loss_op *op = (const struct ctc_loss_op *)descriptor;
    return 10.0 * (double)op->log_probs->dims.at[CTC_BATCH] * (double)op->log_probs->dims.at[CTC_TIME] *
           (double)ctc_states(op);
}

/* The same for beta, and the exponential of each probability. */
static double bwd_flops(const struct descriptor *descriptor) {
    return 2 * flops(descriptor) + 2.0 * (double)tensor_elements(((const struct ctc_loss_op *)descriptor)->log_probs);
}

const struct op ctc_loss_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CTC_LOSS_FWD_DESCRIPTOR_EXT,
            .name = "ctc_loss",
            .doc = "connectionist temporal classification of sequences without alignment",
            .size = sizeof(struct ctc_loss_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &ctc_loss_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .check_indices = check_numbers,
    .reference = reference,
    .scratch_bytes = scratch_bytes,
    .flops = flops,
};

const struct op ctc_loss_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CTC_LOSS_BWD_DESCRIPTOR_EXT,
            .name = "ctc_loss_backward",
            .doc = "gradient of connectionist temporal classification",
            .size = sizeof(struct ctc_loss_op),
            ROWS(bwd_rows),
            .finalize = op_finalize,
            .op = &ctc_loss_bwd_op,
        },
    .methods = bwd_methods,
    .infer = infer_bwd,
    .check = check,
    .check_indices = check_numbers,
    .reference = reference_bwd,
    .scratch_bytes = bwd_scratch_bytes,
    .flops = bwd_flops,
};
