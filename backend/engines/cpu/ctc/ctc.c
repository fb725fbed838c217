/* SPDX-License-Identifier: Apache-2.0 */
/* The CTC family: losses of sequences without alignment, and their gradients, in double. One thread computes a
   sequence. The states of a step are vectors: three exponentials and a logarithm are computed for all of them at once.
   Probabilities that a step reads a class are added up in the order of the states. */
#include "base/number.h"
#include "engines/cpu/core/loops.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/families.h"
#include "graph/ops/ctc_loss.h"
#include "graph/ops/pointwise.h"

#include <math.h>
#include <string.h>

/* Estimated, per thread. */
static const double STATE_SECONDS = 20e-9; /* one state of one step */
static const double CLASS_SECONDS = 3e-9;  /* the gradient of one class of one step */
static const double START_SECONDS = 1e-6;

enum {
    PAD = 2,  /* elements of -inf before and after the states of a step */
    ROWS = 9, /* vectors of states that a sequence needs */
    TASKS_MAX = 64,
};

struct ctc {
    const struct ctc_loss_op *op;
    bool is_backward;
    int64_t steps, batch, classes, labels, states;
    int64_t row, task_bytes; /* numbers of a vector of states; scratch of a task */
    int64_t tasks;           /* each computes every tasks-th sequence */
    int log_probs, targets, input_lengths, target_lengths, loss, log_alpha, dloss, dlog_probs; /* values, or -1 */
};

struct job {
    const struct ctc *c;
    void *const *values;
    char *scratch;
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static int value_of(const struct region *region, const struct tensor *tensor) {
    return tensor ? graph_find_value(region->graph, tensor) : -1;
}

static weftStatus_t analyse(struct ctc *c, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &ctc_loss_op && op_of(op) != &ctc_loss_bwd_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single CTC loss is supported, with nothing fused.",
             descriptor_label(op));
    *c = (struct ctc){.op = (const struct ctc_loss_op *)op, .is_backward = op_of(op) == &ctc_loss_bwd_op};
    const struct tensor *log_probs = c->op->log_probs;
    c->steps = log_probs->dims.at[CTC_TIME], c->batch = log_probs->dims.at[CTC_BATCH];
    c->classes = log_probs->dims.at[CTC_CLASS];
    c->labels = ctc_labels(c->op), c->states = ctc_states(c->op);
    c->log_probs = value_of(region, log_probs), c->targets = value_of(region, c->op->targets);
    c->input_lengths = value_of(region, c->op->input_lengths);
    c->target_lengths = value_of(region, c->op->target_lengths);
    c->loss = value_of(region, c->op->loss), c->log_alpha = value_of(region, c->op->log_alpha);
    c->dloss = value_of(region, c->op->dloss), c->dlog_probs = value_of(region, c->op->dlog_probs);
    c->row = divide_up(c->states + 2 * PAD, 8) * 8;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct ctc c = {0};
    TRY(analyse(&c, region));
    int64_t threads = min64(device->threads > 1 ? device->threads : 1, max64(c.batch, 1));
    double all = (double)c.steps * (double)c.batch;
    double states = all * (double)c.states * STATE_SECONDS;
    double classes = c.is_backward ? all * (double)c.classes * CLASS_SECONDS : 0;
    offer->seconds = START_SECONDS + (states + classes) / (double)threads;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

/* One sequence, with its vectors of states, which have PAD elements of -inf before and after them. */
struct sequence {
    const struct job *job;
    const struct ctc *c;
    int64_t n, steps, labels, states;
    int64_t *symbols;             /* the class of each state */
    double *skips;                /* 0 if paths may go from state - 2 to a state, otherwise -inf */
    double *before, *now, *probs; /* of two steps, and the log-probabilities of the symbols */
    double *a, *b, *d;            /* of the calculation */
    double *read;                 /* per class */
};

static int64_t load_integer(const struct job *job, int value, const struct tensor *tensor, int64_t at) {
    return dtype_load_i64((weftDataType_t)tensor->type, job->values[value], at);
}

/* Lengths and labels were checked before the run, but stay within memory if they changed since. */
static int64_t clamped(int64_t x, int64_t most) { return max64(min64(x, most), 0); }

static void set_all(double *x, int64_t count, double value) {
    for (int64_t i = 0; i < count; i++)
        x[i] = value;
}

static void find_labels(struct sequence *s) {
    const struct ctc_loss_op *op = s->c->op;
    const int64_t *strides = op->targets->strides.at;
    int64_t first = 0, step = strides[op->targets->dims.count - 1], all = op->targets->dims.at[0];
    for (int64_t i = 0; i < s->n && ctc_is_concatenated(op); i++)
        first += clamped(
            load_integer(s->job, s->c->target_lengths, op->target_lengths, i * op->target_lengths->strides.at[0]),
            s->c->labels);
    if (ctc_is_concatenated(op))
        s->labels = clamped(all - first, s->labels);
    s->states = 2 * s->labels + 1;
    int64_t origin = ctc_is_concatenated(op) ? first * step : s->n * strides[0];
    for (int64_t i = 0; i < s->states; i++) {
        int64_t symbol =
            i % 2 ? load_integer(s->job, s->c->targets, op->targets, origin + i / 2 * step) : s->c->op->blank;
        s->symbols[i] = symbol >= 0 && symbol < s->c->classes ? symbol : -1;
        s->skips[i] = i >= 2 && s->symbols[i] != s->symbols[i - 2] ? 0 : -INFINITY;
    }
    s->skips[s->states] = s->skips[s->states + 1] = -INFINITY;
}

static struct sequence sequence_of(const struct job *job, int64_t task, int64_t n) {
    const struct ctc *c = job->c;
    const struct ctc_loss_op *op = c->op;
    struct sequence s = {.job = job, .c = c, .n = n};
    double *at = (double *)(job->scratch + task * c->task_bytes);
    double **const vectors[] = {&s.skips, &s.before, &s.now, &s.probs, &s.a, &s.b, &s.d};
    s.symbols = (int64_t *)at, at += c->row;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++, at += c->row) {
        set_all(at, c->row, -INFINITY);
        *vectors[i] = at + PAD;
    }
    s.read = at;
    s.steps =
        clamped(load_integer(job, c->input_lengths, op->input_lengths, n * op->input_lengths->strides.at[0]), c->steps);
    s.labels = clamped(load_integer(job, c->target_lengths, op->target_lengths, n * op->target_lengths->strides.at[0]),
                       c->labels);
    find_labels(&s);
    return s;
}

/* Loads the log-probabilities of the states' symbols. */
static void load_probs(struct sequence *s, int64_t t) {
    const struct tensor *tensor = s->c->op->log_probs;
    const int64_t *strides = tensor->strides.at;
    int64_t origin = t * strides[CTC_TIME] + s->n * strides[CTC_BATCH];
    for (int64_t i = 0; i < s->states; i++)
        s->probs[i] = i >= 2 && i % 2 == 0 ? s->probs[0]
                      : s->symbols[i] < 0  ? -INFINITY
                                           : dtype_load((weftDataType_t)tensor->type, s->job->values[s->c->log_probs],
                                                        origin + s->symbols[i] * strides[CTC_CLASS]);
}

static const struct pointwise_parameters none = {0};

static void apply(weftPointwiseMode_t mode, int64_t count, double *x) { loop_f64(mode)(count, x, x, x, x, &none); }

/* Differences to the largest of three numbers, which replaces a; 0 is subtracted if all are -inf. */
WIDE static void subtract_largest(int64_t count, double *restrict a, double *restrict b, double *restrict d,
                                  double *restrict largest) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        double most = a[i] > b[i] ? a[i] : b[i];
        most = most > d[i] ? most : d[i];
        largest[i] = most;
        most = most == -INFINITY ? 0 : most;
        a[i] -= most, b[i] -= most, d[i] -= most;
    }
}

WIDE static void add_three(int64_t count, double *restrict a, const double *restrict b, const double *restrict d) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        a[i] = a[i] + b[i] + d[i];
}

/* to = logsumexp(a, b, d); changes these. */
static void add_logs(const struct sequence *s, double *to) {
    subtract_largest(s->states, s->a, s->b, s->d, to);
    apply(WEFT_POINTWISE_EXP, s->states, s->a);
    apply(WEFT_POINTWISE_EXP, s->states, s->b);
    apply(WEFT_POINTWISE_EXP, s->states, s->d);
    add_three(s->states, s->a, s->b, s->d);
    apply(WEFT_POINTWISE_LOG, s->states, s->a);
    for (int64_t i = 0; i < s->states; i++)
        to[i] = to[i] == -INFINITY ? -INFINITY : s->a[i] + to[i];
}

/* alpha of a step, from that of the step before. */
static void advance(struct sequence *s, int64_t t) {
    load_probs(s, t);
    if (t == 0) {
        for (int64_t i = 0; i < s->states; i++)
            s->now[i] = i < 2 ? s->probs[i] : -INFINITY;
        return;
    }
    double *before = s->now;
    s->now = s->before, s->before = before;
    for (int64_t i = 0; i < s->states; i++)
        s->a[i] = before[i], s->b[i] = before[i - 1], s->d[i] = before[i - 2] + s->skips[i];
    add_logs(s, s->now);
    for (int64_t i = 0; i < s->states; i++)
        s->now[i] += s->probs[i];
}

static double likelihood_of(const struct sequence *s, const double *last) {
    if (s->steps == 0)
        return s->labels ? -INFINITY : 0;
    double a = last[s->states - 1], b = s->labels ? last[s->states - 2] : -INFINITY, most = a > b ? a : b;
    return most == -INFINITY ? most : most + log(exp(a - most) + exp(b - most));
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* Stores `known` states of a step; the others are -inf. */
static void store_alpha(const struct sequence *s, int64_t t, const double *alpha, int64_t known) {
    const struct ctc *c = s->c;
    const struct tensor *tensor = c->op->log_alpha;
    if (c->log_alpha < 0 || !s->job->values[c->log_alpha])
        return;
    int64_t origin = s->n * tensor->strides.at[0] + t * tensor->strides.at[1], step = tensor->strides.at[2];
    void *memory = s->job->values[c->log_alpha];
    int64_t whole = step == 1 ? known : 0;
    dtype_from_f64((weftDataType_t)tensor->type, memory, origin, alpha, whole);
    for (int64_t i = whole; i < c->states; i++)
        dtype_store((weftDataType_t)tensor->type, memory, origin + i * step, i < known ? alpha[i] : -INFINITY);
}

static void forward(const struct job *job, int64_t task, int64_t n) {
    const struct ctc *c = job->c;
    struct sequence s = sequence_of(job, task, n);
    for (int64_t t = 0; t < c->steps; t++) {
        if (t < s.steps)
            advance(&s, t);
        store_alpha(&s, t, s.now, t < s.steps ? s.states : 0);
    }
    double loss = 0 - likelihood_of(&s, s.now);
    if (job->values[c->loss])
        dtype_store((weftDataType_t)c->op->loss->type, job->values[c->loss], n * c->op->loss->strides.at[0],
                    loss == INFINITY && c->op->zero_infinity ? 0 : loss);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

static void load_alpha(const struct sequence *s, int64_t t, double *alpha) {
    const struct tensor *tensor = s->c->op->log_alpha;
    int64_t origin = s->n * tensor->strides.at[0] + t * tensor->strides.at[1], step = tensor->strides.at[2];
    if (step == 1)
        dtype_to_f64(alpha, (weftDataType_t)tensor->type, s->job->values[s->c->log_alpha], origin, s->states);
    else
        for (int64_t i = 0; i < s->states; i++)
            alpha[i] = dtype_load((weftDataType_t)tensor->type, s->job->values[s->c->log_alpha], origin + i * step);
}

/* beta of a step, from that of the step after it, in `now`; probs are those of the step after it. */
static void recede(struct sequence *s, int64_t t) {
    if (t == s->steps - 1) {
        for (int64_t i = 0; i < s->states; i++)
            s->now[i] = i >= s->states - 2 ? 0 : -INFINITY;
        return;
    }
    double *after = s->now;
    for (int64_t i = 0; i < s->states; i++)
        after[i] += s->probs[i];
    s->now = s->before, s->before = after;
    for (int64_t i = 0; i < s->states; i++)
        s->a[i] = after[i], s->b[i] = after[i + 1], s->d[i] = after[i + 2] + s->skips[i + 2];
    add_logs(s, s->now);
}

/* The gradient of a step; is_nan: the loss is infinite. */
static void store_step(const struct sequence *s, int64_t t, double scale, bool is_zero, bool is_nan) {
    const struct ctc *c = s->c;
    const struct tensor *from = c->op->log_probs, *to = c->op->dlog_probs;
    double *row = s->read + c->classes;
    int64_t origin = t * from->strides.at[CTC_TIME] + s->n * from->strides.at[CTC_BATCH];
    int64_t target = t * to->strides.at[CTC_TIME] + s->n * to->strides.at[CTC_BATCH];
    int64_t in = from->strides.at[CTC_CLASS], out = to->strides.at[CTC_CLASS];
    if (is_zero || is_nan) {
        set_all(row, c->classes, is_zero ? 0 : NAN);
    } else {
        if (in == 1)
            dtype_to_f64(row, (weftDataType_t)from->type, s->job->values[c->log_probs], origin, c->classes);
        for (int64_t k = 0; k < c->classes && in != 1; k++)
            row[k] = dtype_load((weftDataType_t)from->type, s->job->values[c->log_probs], origin + k * in);
        apply(WEFT_POINTWISE_EXP, c->classes, row);
        for (int64_t k = 0; k < c->classes; k++)
            row[k] = scale * (row[k] - s->read[k]);
    }
    if (out == 1)
        dtype_from_f64((weftDataType_t)to->type, s->job->values[c->dlog_probs], target, row, c->classes);
    for (int64_t k = 0; k < c->classes && out != 1; k++)
        dtype_store((weftDataType_t)to->type, s->job->values[c->dlog_probs], target + k * out, row[k]);
}

static void backward(const struct job *job, int64_t task, int64_t n) {
    const struct ctc *c = job->c;
    struct sequence s = sequence_of(job, task, n);
    double *alpha = s.a;
    if (s.steps > 0)
        load_alpha(&s, s.steps - 1, alpha);
    double likelihood = likelihood_of(&s, alpha);
    double scale =
        dtype_load((weftDataType_t)c->op->dloss->type, job->values[c->dloss], n * c->op->dloss->strides.at[0]);
    bool is_infinite = likelihood == -INFINITY;
    set_all(s.read, c->classes, 0);
    for (int64_t t = c->steps; t-- > 0;) {
        bool is_zero = t >= s.steps || (is_infinite && c->op->zero_infinity);
        if (!is_zero && !is_infinite) {
            recede(&s, t);
            load_alpha(&s, t, alpha);
            for (int64_t i = 0; i < s.states; i++)
                alpha[i] += s.now[i] - likelihood;
            apply(WEFT_POINTWISE_EXP, s.states, alpha);
            for (int64_t i = 0; i < s.states; i++)
                if (s.symbols[i] >= 0)
                    s.read[s.symbols[i]] += alpha[i];
        }
        store_step(&s, t, scale, is_zero, is_infinite);
        for (int64_t i = 0; i < s.states; i++)
            if (s.symbols[i] >= 0)
                s.read[s.symbols[i]] = 0;
        if (!is_zero && !is_infinite)
            load_probs(&s, t);
    }
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct ctc *c;
    TRY(arena_alloc(arena, &c, sizeof *c));
    TRY(analyse(c, &step->region));
    TRY(threads_start());
    c->tasks = max64(min64(c->batch, min64(threads_count(), TASKS_MAX)), 1);
    c->task_bytes = divide_up((ROWS * c->row + 2 * c->classes) * (int64_t)sizeof(double), 64) * 64;
    step->workspace_bytes = c->tasks * c->task_bytes;
    step->state = c;
    return arena_print(arena, &step->detail, "%lld states, %lld sequence%s at a time", (long long)c->states,
                       (long long)c->tasks, plural(c->tasks));
}

static void run_task(void *context, int64_t task) {
    const struct job *job = context;
    for (int64_t n = task; n < job->c->batch; n += job->c->tasks)
        (job->c->is_backward ? backward : forward)(job, task, n);
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct job job = {step->state, values, workspace};
    const struct ctc *c = job.c;
    if (!c->is_backward || values[c->dlog_probs])
        threads_for(c->tasks, run_task, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_ctc = {
    .name = "cpu.ctc",
    .doc = "connectionist temporal classification of sequences, and its gradient",
    .accepts = accepts,
    .build = build,
    .run = run,
};
