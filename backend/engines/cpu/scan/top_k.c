/* SPDX-License-Identifier: Apache-2.0 */
/* The top_k family: the largest or smallest elements of lines. Elements become integer keys of the same order, of which
   a heap holds the k best; blocks of keys without a better one are skipped. For k = 1, the heap is one register. */
#include "graph/ops/top_k.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/families.h"
#include "engines/cpu/scan/tile.h"

#include <math.h>
#include <string.h>

/* Estimated, per thread. */
static const double ELEMENT_SECONDS = 0.5e-9, ENTRY_SECONDS = 20e-9, START_SECONDS = 1e-6;

enum {
    OF_X,
    OF_VALUES,
    OF_INDICES,
    TOP_K_TENSORS,
    BLOCK = 16,           /* keys that are compared at once */
    TASKS_PER_THREAD = 4, /* tasks have heaps in the workspace */
    LANES_COUNT_MAX = 256 /* k up to which lines advance together */
};

struct top_k {
    const struct top_k_op *op;
    bool is_narrow; /* keys have 32 bits */
    bool is_real;
    int64_t length, lanes, groups, tasks;
    int values[TOP_K_TENSORS]; /* of the graph, or -1 */
    struct lines lines;
};

/* The heap's root is the worst element: the one with the smallest key; of equal ones, the last. */
struct entry {
    int64_t key, position;
};

struct job {
    const struct top_k *top_k;
    void *const *values;
    struct entry *heaps;
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

/* Types that float represents exactly. */
static bool fits_float(weftDataType_t type) {
    const struct dtype *t = dtype_of(type);
    return t->is_float ? t->bits <= 32 : t->bits <= 16;
}

static weftStatus_t analyse(struct top_k *t, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || op_of(op) != &top_k_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: only a single top_k is supported, with nothing fused.",
             descriptor_label(op));
    *t = (struct top_k){.op = (const struct top_k_op *)op};
    const struct tensor *tensors[] = {t->op->x, t->op->values, t->op->indices};
    for (int k = 0; k < TOP_K_TENSORS; k++) {
        t->values[k] = tensors[k] ? graph_find_value(region->graph, tensors[k]) : -1;
        if (tensors[k] && dtype_of((weftDataType_t)tensors[k]->type)->bits < 8)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s share bytes, which threads cannot write.",
                 descriptor_label(op), descriptor_label(&tensors[k]->base));
    }
    int axis = axis_dimension(t->op->axis, t->op->x);
    t->is_narrow = fits_float((weftDataType_t)t->op->x->type);
    t->is_real = dtype_is_float((weftDataType_t)t->op->x->type);
    t->length = t->op->x->dims.at[axis];
    lines_find(&t->lines, axis, tensors, TOP_K_TENSORS);
    /* Lines advance together where their elements are loaded together. */
    t->lanes = t->lines.steps[OF_X] == 1 || t->op->count > LANES_COUNT_MAX ? 1 : TILE_LANES;
    t->groups = divide_up(t->lines.count, t->lanes);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct top_k t;
    TRY(analyse(&t, region));
    double threads = fmin(device->threads > 1 ? device->threads : 1, fmax(1, (double)t.groups));
    double entries = (double)t.lines.count * (double)t.op->count * log2((double)t.op->count + 1);
    offer->seconds =
        START_SECONDS + ((double)tensor_elements(t.op->x) * ELEMENT_SECONDS + entries * ENTRY_SECONDS) / threads;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Integers in the order of floats: a negative float's magnitude bits are inverted. Adding 0 turns -0 into 0. For the
   smallest elements, the order is reversed. NaN has a key of its own. */
WIDE static void make_keys_32(int32_t *keys, const float *x, int64_t count, int32_t flip, int32_t of_nan) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float number = x[i] + 0.0f;
        int32_t bits;
        memcpy(&bits, &number, sizeof bits);
        int32_t key = bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
        keys[i] = number != number ? of_nan : key ^ flip;
    }
}

static void make_keys_64(int64_t *keys, const double *x, int64_t count, int64_t flip, int64_t of_nan) {
    for (int64_t i = 0; i < count; i++) {
        double number = x[i] + 0.0;
        int64_t bits;
        memcpy(&bits, &number, sizeof bits);
        int64_t key = bits ^ (int64_t)((uint64_t)(bits >> 63) >> 1);
        keys[i] = number != number ? of_nan : key ^ flip;
    }
}

/* ---- Heaps ------------------------------------------------------------------------------------------------------- */

static bool is_worse(struct entry a, struct entry b) {
    return a.key != b.key ? a.key < b.key : a.position > b.position;
}

/* Places an entry at the root of a heap of `count` entries. */
static void sift_down(struct entry *heap, int64_t count, struct entry e) {
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child + 1 < count && is_worse(heap[child + 1], heap[child]))
            child++;
        if (child >= count || !is_worse(heap[child], e))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = e;
}

static void sift_up(struct entry *heap, int64_t at, struct entry e) {
    for (; at && is_worse(e, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = e;
}

/* Sorts a heap: best first. */
static void sort(struct entry *heap, int64_t count) {
    while (count > 1) {
        struct entry worst = heap[0], last = heap[--count];
        sift_down(heap, count, last);
        heap[count] = worst;
    }
}

/* A heap under construction; positions arrive in ascending order, so that equal keys never replace an entry. */
struct selection {
    struct entry *heap;
    int64_t count, size; /* entries so far, and at most */
};

static void offer_key(struct selection *s, int64_t key, int64_t position) {
    struct entry e = {key, position};
    if (s->count < s->size)
        sift_up(s->heap, s->count++, e);
    else if (key > s->heap[0].key)
        sift_down(s->heap, s->size, e);
}

/* Offers `count` keys, the first at position `begin`. Blocks whose largest key is not better than the root are skipped,
   once the heap is full. */
#define OFFER(name, T)                                                                                                 \
    WIDE static T largest_##name(const T *keys) {                                                                      \
        T most = keys[0];                                                                                              \
        for (int i = 1; i < BLOCK; i++)                                                                                \
            most = keys[i] > most ? keys[i] : most;                                                                    \
        return most;                                                                                                   \
    }                                                                                                                  \
    static void offer_##name(struct selection *s, const T *keys, int64_t begin, int64_t count) {                       \
        int64_t i = 0;                                                                                                 \
        for (; i < count && s->count < s->size; i++)                                                                   \
            offer_key(s, keys[i], begin + i);                                                                          \
        for (; i + BLOCK <= count; i += BLOCK)                                                                         \
            if (largest_##name(keys + i) > s->heap[0].key)                                                             \
                for (int64_t k = i; k < i + BLOCK; k++)                                                                \
                    offer_key(s, keys[k], begin + k);                                                                  \
        for (; i < count; i++)                                                                                         \
            offer_key(s, keys[i], begin + i);                                                                          \
    }
OFFER(32, int32_t)
OFFER(64, int64_t)

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* Offers steps [begin, begin + count) of some lines. */
static void offer_tile(const struct top_k *t, struct selection *selections, const struct tile_lines *lines,
                       const void *base, int64_t begin, int64_t count) {
    const bool is_least = t->op->mode == WEFT_REDUCE_TENSOR_MIN;
    const bool is_nan_last = is_least && t->op->nan_propagation != WEFT_PROPAGATE_NAN;
    float reals[TILE_LANES * TILE_STEPS];
    double wide[TILE_STEPS * TILE_LANES];
    int64_t keys[TILE_LANES * TILE_STEPS];
    int32_t narrow[TILE_STEPS];
    if (t->is_narrow)
        tile_load_f32(reals, lines, base, begin, count);
    else if (t->is_real)
        tile_load_f64(wide, lines, base, begin, count);
    else
        tile_load_i64(keys, lines, base, begin, count);
    for (int64_t l = 0; l < lines->lanes; l++) {
        int64_t *row = keys + l * TILE_STEPS;
        if (t->is_narrow) {
            make_keys_32(narrow, reals + l * TILE_STEPS, count, is_least ? -1 : 0, is_nan_last ? INT32_MIN : INT32_MAX);
            offer_32(&selections[l], narrow, begin, count);
            continue;
        }
        if (t->is_real)
            make_keys_64(row, wide + l * TILE_STEPS, count, is_least ? -1 : 0, is_nan_last ? INT64_MIN : INT64_MAX);
        for (int64_t i = 0; i < count && is_least && !t->is_real; i++)
            row[i] = ~row[i];
        offer_64(&selections[l], row, begin, count);
    }
}

/* Stores the entries of one line, which are sorted. Elements are read again at their positions. */
static void store_line(const struct job *job, const struct entry *entries, int64_t line) {
    const struct top_k *t = job->top_k;
    const struct tensor *values = t->op->values, *indices = t->op->indices;
    void *value_memory = t->values[OF_VALUES] < 0 ? NULL : job->values[t->values[OF_VALUES]];
    void *index_memory = t->values[OF_INDICES] < 0 ? NULL : job->values[t->values[OF_INDICES]];
    weftDataType_t type = (weftDataType_t)t->op->x->type;
    const void *x = job->values[t->values[OF_X]];
    int64_t offsets[TOP_K_TENSORS];
    for (int k = 0; k < TOP_K_TENSORS; k++)
        offsets[k] = lines_offset(&t->lines, k, line);
    for (int64_t i = 0; i < t->op->count; i++) {
        int64_t from = offsets[OF_X] + entries[i].position * t->lines.steps[OF_X];
        if (value_memory && t->is_real)
            dtype_store((weftDataType_t)values->type, value_memory, offsets[OF_VALUES] + i * t->lines.steps[OF_VALUES],
                        dtype_load(type, x, from));
        else if (value_memory)
            dtype_store_i64((weftDataType_t)values->type, value_memory,
                            offsets[OF_VALUES] + i * t->lines.steps[OF_VALUES], dtype_load_i64(type, x, from));
        if (index_memory)
            dtype_store_i64((weftDataType_t)indices->type, index_memory,
                            offsets[OF_INDICES] + i * t->lines.steps[OF_INDICES], entries[i].position);
    }
}

static void run_task(void *context, int64_t task) {
    const struct job *job = context;
    const struct top_k *t = job->top_k;
    struct entry *heaps = job->heaps + task * t->lanes * t->op->count;
    for (int64_t g = task * t->groups / t->tasks; g < (task + 1) * t->groups / t->tasks; g++) {
        int64_t first = g * t->lanes, lanes = min64(t->lanes, t->lines.count - first);
        struct tile_lines lines = tile_lines_at(&t->lines, OF_X, (weftDataType_t)t->op->x->type, first, lanes);
        struct selection selections[TILE_LANES];
        for (int64_t l = 0; l < lanes; l++)
            selections[l] = (struct selection){heaps + l * t->op->count, 0, t->op->count};
        for (int64_t begin = 0; begin < t->length; begin += TILE_STEPS)
            offer_tile(t, selections, &lines, job->values[t->values[OF_X]], begin,
                       min64(TILE_STEPS, t->length - begin));
        for (int64_t l = 0; l < lanes; l++) {
            sort(selections[l].heap, t->op->count);
            store_line(job, selections[l].heap, first + l);
        }
    }
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct top_k *t;
    TRY(arena_alloc(arena, &t, sizeof *t));
    TRY(analyse(t, &step->region));
    TRY(threads_start());
    t->tasks = min64(t->groups, (device->threads > 1 ? device->threads : 1) * TASKS_PER_THREAD);
    step->workspace_bytes = t->tasks * t->lanes * t->op->count * (int64_t)sizeof(struct entry);
    step->state = t;
    return arena_print(arena, &step->detail, "%d-bit keys, %lld line%s at a time", t->is_narrow ? 32 : 64,
                       (long long)t->lanes, plural(t->lanes));
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct job job = {step->state, values, workspace};
    threads_for(job.top_k->tasks, run_task, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_top_k = {
    .name = "cpu.top_k",
    .doc = "the largest or smallest elements along a dimension",
    .accepts = accepts,
    .build = build,
    .run = run,
};
