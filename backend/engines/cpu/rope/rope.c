/* SPDX-License-Identifier: Apache-2.0 */
/* The rope family: rotary position embedding and its gradient. A task is a token of a sequence: sines and cosines are
   computed once and applied to all of its heads, which are converted to float. */
#include "graph/ops/rope.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/families.h"

#include <math.h>

/* Estimated, per thread. */
static const double ELEMENT_SECONDS = 0.6e-9, ANGLE_SECONDS = 20e-9, START_SECONDS = 1e-6;

enum { ELEMENTS_MAX = 1024 }; /* of a head */

struct rope {
    const struct rope_op *op;
    bool is_backward;
    int64_t kept, pairs, distance;
    int x, y, freqs, positions; /* values of the graph, or -1 */
};

struct job {
    const struct rope *rope;
    void *const *values;
};

static weftStatus_t analyse(struct rope *r, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &rope_op && op_of(op) != &rope_backward_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: only a single rotary embedding is supported, with nothing fused.", descriptor_label(op));
    *r = (struct rope){.op = (const struct rope_op *)op, .is_backward = op_of(op) == &rope_backward_op};
    const struct tensor *tensors[] = {r->op->x, r->op->y, r->op->freqs};
    for (int k = 0; k < 3; k++)
        if (tensors[k]->type == WEFT_DATA_DOUBLE || r->op->math == WEFT_DATA_DOUBLE ||
            dtype_of((weftDataType_t)tensors[k]->type)->bits < 8)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
                 "%s: this family calculates in FLOAT, and elements have at least 8 bits.", descriptor_label(op));
    if (r->op->x->dims.at[ROPE_ELEMENT] > ELEMENTS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: heads have %lld elements, at most %d are supported.",
             descriptor_label(op), (long long)r->op->x->dims.at[ROPE_ELEMENT], ELEMENTS_MAX);
    r->kept = rope_kept(r->op), r->pairs = rope_rotated(r->op) / 2, r->distance = rope_distance(r->op);
    r->x = graph_find_value(region->graph, r->op->x), r->y = graph_find_value(region->graph, r->op->y);
    r->freqs = graph_find_value(region->graph, r->op->freqs);
    r->positions = r->op->positions ? graph_find_value(region->graph, r->op->positions) : -1;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct rope r = {0};
    TRY(analyse(&r, region));
    const int64_t *dims = r.op->x->dims.at;
    double angles = (double)(dims[ROPE_BATCH] * dims[ROPE_STEP] * r.pairs * 2);
    offer->seconds = START_SECONDS + ((double)tensor_elements(r.op->x) * ELEMENT_SECONDS + angles * ANGLE_SECONDS) /
                                         (device->threads > 1 ? device->threads : 1);
    return WEFT_STATUS_SUCCESS;
}

/* Loads or stores a head whose elements may have any stride. */
static void load_head(float *head, const struct tensor *t, const void *base, int64_t offset, int64_t count) {
    int64_t stride = t->strides.at[ROPE_ELEMENT];
    if (stride == 1)
        dtype_to_f32(head, (weftDataType_t)t->type, base, offset, count);
    for (int64_t i = 0; i < count && stride != 1; i++)
        dtype_to_f32(head + i, (weftDataType_t)t->type, base, offset + i * stride, 1);
}

static void store_head(const float *head, const struct tensor *t, void *base, int64_t offset, int64_t count) {
    int64_t stride = t->strides.at[ROPE_ELEMENT];
    if (stride == 1)
        dtype_from_f32((weftDataType_t)t->type, base, offset, head, count);
    for (int64_t i = 0; i < count && stride != 1; i++)
        dtype_from_f32((weftDataType_t)t->type, base, offset + i * stride, head + i, 1);
}

/* Factors of the rotated elements, multiplied by the scale; the sines of the gradient are negative. */
struct factors {
    float cosines[ELEMENTS_MAX], sines[ELEMENTS_MAX];
};

static int64_t position_of(const struct job *job, int64_t entry, int64_t token) {
    const struct tensor *t = job->rope->op->positions;
    if (!t)
        return token;
    bool has_offsets = rope_has_offsets(job->rope->op);
    int64_t at = entry * t->strides.at[ROPE_BATCH] + (has_offsets ? 0 : token * t->strides.at[ROPE_STEP]);
    int64_t named = dtype_load_i64((weftDataType_t)t->type, job->values[job->rope->positions], at);
    return has_offsets ? named + token : named;
}

static void compute_factors(struct factors *f, const struct job *job, int64_t position) {
    const struct rope *r = job->rope;
    const struct tensor *freqs = r->op->freqs;
    float angles[ELEMENTS_MAX];
    load_head(angles, freqs, job->values[r->freqs], position * freqs->strides.at[0], 2 * r->pairs);
    for (int64_t i = 0; i < 2 * r->pairs; i++) {
        f->cosines[i] = (float)(r->op->scale * cos((double)angles[i]));
        f->sines[i] = (float)(r->op->scale * sin((double)angles[i]));
    }
}

/* Rotates the pairs a[i] and b[i], i * step elements apart. The gradient takes the sine of the partner's angle. */
WIDE static void rotate(float *restrict a, float *restrict b, const float *restrict cos_a, const float *restrict cos_b,
                        const float *restrict sin_a, const float *restrict sin_b, int64_t pairs) {
    INDEPENDENT
    for (int64_t i = 0; i < pairs; i++) {
        float first = a[i] * cos_a[i] - b[i] * sin_a[i];
        b[i] = b[i] * cos_b[i] + a[i] * sin_b[i];
        a[i] = first;
    }
}

static void rotate_head(const struct rope *r, float *head, const struct factors *f) {
    float *x = head + r->kept, scale = (float)r->op->scale;
    for (int64_t i = 0; i < r->kept; i++)
        head[i] *= scale;
    if (!r->op->is_interleaved && !r->is_backward) {
        rotate(x, x + r->pairs, f->cosines, f->cosines + r->pairs, f->sines, f->sines + r->pairs, r->pairs);
        return;
    }
    for (int64_t i = 0; i < r->pairs; i++) {
        int64_t a = rope_first(r->op, i), b = a + r->distance;
        float sin_a = r->is_backward ? -f->sines[b] : f->sines[a], sin_b = r->is_backward ? -f->sines[a] : f->sines[b];
        float first = x[a] * f->cosines[a] - x[b] * sin_a;
        x[b] = x[b] * f->cosines[b] + x[a] * sin_b;
        x[a] = first;
    }
}

static void run_token(void *context, int64_t task) {
    const struct job *job = context;
    const struct rope *r = job->rope;
    const struct tensor *x = r->op->x, *y = r->op->y;
    const int64_t *dims = x->dims.at, *from = x->strides.at, *to = y->strides.at;
    int64_t entry = task / dims[ROPE_STEP], token = task % dims[ROPE_STEP];
    struct factors f;
    float head[ELEMENTS_MAX];
    compute_factors(&f, job, position_of(job, entry, token));
    for (int64_t h = 0; h < dims[ROPE_HEAD]; h++) {
        load_head(head, x, job->values[r->x], entry * from[ROPE_BATCH] + h * from[ROPE_HEAD] + token * from[ROPE_STEP],
                  dims[ROPE_ELEMENT]);
        rotate_head(r, head, &f);
        store_head(head, y, job->values[r->y], entry * to[ROPE_BATCH] + h * to[ROPE_HEAD] + token * to[ROPE_STEP],
                   dims[ROPE_ELEMENT]);
    }
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct rope *r;
    TRY(arena_alloc(arena, &r, sizeof *r));
    TRY(analyse(r, &step->region));
    TRY(threads_start());
    step->state = r;
    return arena_print(arena, &step->detail, "%lld pairs, %s", (long long)r->pairs,
                       r->op->is_interleaved ? "interleaved" : "halves");
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values};
    const int64_t *dims = job.rope->op->x->dims.at;
    if (values[job.rope->y])
        threads_for(dims[ROPE_BATCH] * dims[ROPE_STEP], run_token, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_rope = {
    .name = "cpu.rope",
    .doc = "rotary position embedding and its gradient",
    .accepts = accepts,
    .build = build,
    .run = run,
};
