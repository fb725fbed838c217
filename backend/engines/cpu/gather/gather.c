/* SPDX-License-Identifier: Apache-2.0 */
/* The gather family: selections by indices, and sums at indices. Sums are accumulated in the result if its type allows
   it, otherwise in the workspace, always in the order of the indices: threads divide lines, never the sums of one
   element. */
#include "graph/ops/gather.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/families.h"
#include "engines/lines.h"

#include <math.h>
#include <string.h>

/* Estimated for two threads. */
static const double BYTES_PER_SECOND = 8e9, ELEMENT_SECONDS = 2e-9, START_SECONDS = 1e-6;

enum {
    OF_WHOLE,    /* the tensor in which indices are positions */
    OF_SELECTED, /* one slice or element per index */
    OF_INDEX,    /* only if it has one number per element */
    OF_X,        /* initial values of sums */
    GATHER_TENSORS,
    COLUMNS = 256,        /* adjacent lines that are converted at once */
    TASKS_PER_THREAD = 4, /* tasks divide lines */
};

struct gather {
    const struct gather_op *op;
    bool is_sum, has_slices, is_direct; /* sums are accumulated in y */
    weftDataType_t sum;                 /* FLOAT, DOUBLE or INT64 */
    int64_t extent, count;              /* of the axis; number of indices along it */
    int64_t tasks, index_step;
    int values[GATHER_TENSORS]; /* of the graph, or -1 */
    const struct tensor *tensors[GATHER_TENSORS];
    struct lines lines;
};

struct job {
    const struct gather *gather;
    void *const *values;
    void *sums; /* [position][line], unless is_direct */
};

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static weftStatus_t check_types(const struct gather *g) {
    const struct descriptor *op = &g->op->base;
    for (int k = 0; k < GATHER_TENSORS; k++)
        if (g->tensors[k] && dtype_of((weftDataType_t)g->tensors[k]->type)->bits < 8)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: elements of %s share bytes, which threads cannot write.",
                 descriptor_label(op), descriptor_label(&g->tensors[k]->base));
    if (!g->is_sum && g->op->x->type != g->op->y->type)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: x is %s and y %s, and this family only copies.",
             descriptor_label(op), dtype_of((weftDataType_t)g->op->x->type)->name,
             dtype_of((weftDataType_t)g->op->y->type)->name);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t analyse(struct gather *g, const struct region *region, const struct device *device) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &gather_op && op_of(op) != &scatter_add_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: only a single operation with indices is supported, with nothing fused.", descriptor_label(op));
    *g = (struct gather){.op = (const struct gather_op *)op, .is_sum = op_of(op) == &scatter_add_op};
    g->has_slices = gather_has_slices(g->op);
    g->tensors[OF_WHOLE] = gather_whole(g->op);
    g->tensors[OF_SELECTED] = gather_selected(g->op);
    g->tensors[OF_INDEX] = g->has_slices ? NULL : g->op->index;
    g->tensors[OF_X] = g->is_sum ? g->op->x : NULL;
    TRY(check_types(g));
    int axis = axis_dimension(g->op->axis, g->tensors[OF_WHOLE]);
    lines_find(&g->lines, axis, g->tensors, GATHER_TENSORS);
    g->tensors[OF_INDEX] = g->op->index;
    for (int k = 0; k < GATHER_TENSORS; k++)
        g->values[k] = g->tensors[k] ? graph_find_value(region->graph, g->tensors[k]) : -1;
    g->index_step = g->has_slices ? g->op->index->strides.at[0] : g->lines.steps[OF_INDEX];
    g->extent = g->tensors[OF_WHOLE]->dims.at[axis], g->count = g->tensors[OF_SELECTED]->dims.at[axis];
    g->sum = g->is_sum ? scatter_math(g->op) : WEFT_DATA_FLOAT;
    g->sum = !dtype_is_float(g->sum)                                            ? WEFT_DATA_INT64
             : g->sum == WEFT_DATA_DOUBLE || g->op->y->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE
                                                                                : WEFT_DATA_FLOAT;
    g->is_direct = (int32_t)g->sum == g->op->y->type;
    /* Slices are divided by their columns, so that each thread reads all indices; other lines one by one. */
    int64_t units = g->has_slices && g->is_sum ? divide_up(g->lines.count, COLUMNS / 4) : g->lines.count;
    int64_t wanted = (device->threads > 1 ? device->threads : 1) * TASKS_PER_THREAD;
    g->tasks = min64(g->has_slices && !g->is_sum ? g->count : units, wanted);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct gather g;
    TRY(analyse(&g, region, device));
    double bytes = 2.0 * (double)tensor_bytes(g.tensors[OF_SELECTED]), elements = 0;
    if (g.is_sum)
        bytes += 2.0 * (double)tensor_bytes(g.op->y);
    if (g.is_sum || !g.has_slices)
        elements = (double)tensor_elements(g.tensors[OF_SELECTED]);
    offer->seconds = START_SECONDS + bytes / BYTES_PER_SECOND + elements * ELEMENT_SECONDS / fmax(1, (double)g.tasks);
    return WEFT_STATUS_SUCCESS;
}

static int64_t index_at(const struct job *job, int64_t offset) {
    const struct gather *g = job->gather;
    return dtype_load_i64((weftDataType_t)g->op->index->type, job->values[g->values[OF_INDEX]], offset);
}

/* ---- Gathering --------------------------------------------------------------------------------------------------- */

/* Copies one element; from: -1 for 0. */
static void copy_element(char *to, const char *base, int64_t from, int64_t bytes) {
    if (from < 0)
        memset(to, 0, (size_t)bytes);
    else
        memcpy(to, base + from * bytes, (size_t)bytes);
}

/* A task copies the slices of some indices. Adjacent lines of a slice are copied at once. */
static void gather_slices(void *context, int64_t task) {
    const struct job *job = context;
    const struct gather *g = job->gather;
    const struct lines *lines = &g->lines;
    const int64_t bytes = tensor_element_bytes(g->op->x);
    const char *x = job->values[g->values[OF_WHOLE]];
    char *y = job->values[g->values[OF_SELECTED]];
    int last = lines->rank - 1;
    int64_t run = lines->rank ? lines->extents[last] : 1, strides[2] = {1, 1};
    for (int k = 0; k < 2 && lines->rank; k++)
        strides[k] = lines->strides[k][last];
    bool is_copy = run == 1 || (strides[OF_WHOLE] == 1 && strides[OF_SELECTED] == 1);
    for (int64_t m = task * g->count / g->tasks; m < (task + 1) * g->count / g->tasks; m++) {
        int64_t position = index_at(job, m * g->index_step);
        for (int64_t line = 0; line < lines->count; line += run) {
            char *to = y + (lines_offset(lines, OF_SELECTED, line) + m * lines->steps[OF_SELECTED]) * bytes;
            int64_t from = lines_offset(lines, OF_WHOLE, line) + position * lines->steps[OF_WHOLE];
            if (is_copy)
                copy_element(to, x + (position < 0 ? 0 : from * bytes), position < 0 ? -1 : 0, run * bytes);
            for (int64_t i = 0; i < run && !is_copy; i++)
                copy_element(to + i * strides[OF_SELECTED] * bytes, x, position < 0 ? -1 : from + i * strides[OF_WHOLE],
                             bytes);
        }
    }
}

static void gather_elements(void *context, int64_t task) {
    const struct job *job = context;
    const struct gather *g = job->gather;
    const struct lines *lines = &g->lines;
    const int64_t bytes = tensor_element_bytes(g->op->x);
    char *y = job->values[g->values[OF_SELECTED]];
    for (int64_t line = task * lines->count / g->tasks; line < (task + 1) * lines->count / g->tasks; line++) {
        int64_t from = lines_offset(lines, OF_WHOLE, line), index = lines_offset(lines, OF_INDEX, line);
        char *to = y + lines_offset(lines, OF_SELECTED, line) * bytes;
        for (int64_t m = 0; m < g->count; m++) {
            int64_t position = index_at(job, index + m * g->index_step);
            copy_element(to + m * lines->steps[OF_SELECTED] * bytes, job->values[g->values[OF_WHOLE]],
                         position < 0 ? -1 : from + position * lines->steps[OF_WHOLE], bytes);
        }
    }
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* Where the sums of some adjacent lines are stored: those of the first position, their stride in elements, and the
   bytes from one position to the next. */
struct sums {
    char *at;
    int64_t stride, step;
};

/* The number of lines from `line` on, at most `most`, that have a constant stride in every tensor. */
static int64_t columns_from(const struct lines *lines, int64_t line, int64_t most) {
    int64_t run = lines->rank ? lines->extents[lines->rank - 1] : 1;
    return min64(most, run - line % run);
}

static int64_t column_stride(const struct lines *lines, int tensor) {
    return lines->rank ? lines->strides[tensor][lines->rank - 1] : 1;
}

static struct sums sums_of(const struct job *job, int64_t line) {
    const struct gather *g = job->gather;
    int64_t bytes = dtype_bytes(g->sum, 1);
    if (!g->is_direct)
        return (struct sums){(char *)job->sums + line * bytes, 1, g->lines.count * bytes};
    return (struct sums){(char *)job->values[g->values[OF_WHOLE]] + lines_offset(&g->lines, OF_WHOLE, line) * bytes,
                         column_stride(&g->lines, OF_WHOLE), g->lines.steps[OF_WHOLE] * bytes};
}

static struct sums sums_at(struct sums first, int64_t position) {
    first.at += position * first.step;
    return first;
}

/* Loads elements into a row of the type of the sums. */
static void load_row(void *row, weftDataType_t sum, const struct tensor *t, const void *base, int64_t offset,
                     int64_t stride, int64_t count) {
    weftDataType_t type = (weftDataType_t)t->type;
    if (sum == WEFT_DATA_INT64)
        for (int64_t i = 0; i < count; i++)
            ((int64_t *)row)[i] = dtype_load_i64(type, base, offset + i * stride);
    else if (sum == WEFT_DATA_DOUBLE && stride == 1)
        dtype_to_f64(row, type, base, offset, count);
    else if (sum == WEFT_DATA_FLOAT && stride == 1)
        dtype_to_f32(row, type, base, offset, count);
    else
        for (int64_t i = 0; i < count; i++) {
            double number = dtype_load(type, base, offset + i * stride);
            if (sum == WEFT_DATA_DOUBLE)
                ((double *)row)[i] = number;
            else
                ((float *)row)[i] = (float)number;
        }
}

#define ADD(name, T, WIDER)                                                                                            \
    static void add_##name(struct sums to, const T *row, int64_t count) {                                              \
        T *at = (T *)(void *)to.at;                                                                                    \
        if (to.stride == 1)                                                                                            \
            INDEPENDENT                                                                                                \
        for (int64_t i = 0; i < count; i++)                                                                            \
            at[i] = (T)((WIDER)at[i] + (WIDER)row[i]);                                                                 \
        else for (int64_t i = 0; i < count; i++) at[i * to.stride] = (T)((WIDER)at[i * to.stride] + (WIDER)row[i]);    \
    }
ADD(f32, float, float)
ADD(f64, double, double)
ADD(i64, int64_t, uint64_t)

static void add_row(const struct gather *g, struct sums to, const void *row, int64_t count) {
    if (g->sum == WEFT_DATA_FLOAT)
        add_f32(to, row, count);
    else if (g->sum == WEFT_DATA_DOUBLE)
        add_f64(to, row, count);
    else
        add_i64(to, row, count);
}

/* Sets the sums of some lines to x, or 0. */
static void begin_sums(const struct job *job, int64_t line, int64_t count) {
    const struct gather *g = job->gather;
    int64_t bytes = dtype_bytes(g->sum, 1);
    char row[COLUMNS * sizeof(double)];
    struct sums first = sums_of(job, line);
    memset(row, 0, sizeof row);
    for (int64_t n = 0; n < g->extent; n++) {
        struct sums to = sums_at(first, n);
        if (g->op->x)
            load_row(row, g->sum, g->op->x, job->values[g->values[OF_X]],
                     lines_offset(&g->lines, OF_X, line) + n * g->lines.steps[OF_X], column_stride(&g->lines, OF_X),
                     count);
        if (to.stride == 1)
            memcpy(to.at, row, (size_t)(count * bytes));
        for (int64_t i = 0; i < count && to.stride != 1; i++)
            memcpy(to.at + i * to.stride * bytes, row + i * bytes, (size_t)bytes);
    }
}

/* Rounds the sums of some lines to y. */
static void end_sums(const struct job *job, int64_t line, int64_t count) {
    const struct gather *g = job->gather;
    const struct tensor *y = g->op->y;
    void *base = job->values[g->values[OF_WHOLE]];
    int64_t stride = column_stride(&g->lines, OF_WHOLE);
    for (int64_t n = 0; n < g->extent && !g->is_direct; n++) {
        const void *row = sums_at(sums_of(job, line), n).at;
        int64_t to = lines_offset(&g->lines, OF_WHOLE, line) + n * g->lines.steps[OF_WHOLE];
        if (g->sum == WEFT_DATA_FLOAT && stride == 1)
            dtype_from_f32((weftDataType_t)y->type, base, to, row, count);
        for (int64_t i = 0; i < count && !(g->sum == WEFT_DATA_FLOAT && stride == 1); i++)
            if (g->sum == WEFT_DATA_INT64)
                dtype_store_i64((weftDataType_t)y->type, base, to + i * stride, ((const int64_t *)row)[i]);
            else
                dtype_store((weftDataType_t)y->type, base, to + i * stride,
                            g->sum == WEFT_DATA_DOUBLE ? ((const double *)row)[i] : ((const float *)row)[i]);
    }
}

static void add_slices(const struct job *job, int64_t line, int64_t count) {
    const struct gather *g = job->gather;
    char row[COLUMNS * sizeof(double)];
    struct sums first = sums_of(job, line);
    int64_t src = lines_offset(&g->lines, OF_SELECTED, line), stride = column_stride(&g->lines, OF_SELECTED);
    for (int64_t m = 0; m < g->count; m++) {
        int64_t position = index_at(job, m * g->index_step);
        if (position < 0)
            continue;
        load_row(row, g->sum, g->op->src, job->values[g->values[OF_SELECTED]], src + m * g->lines.steps[OF_SELECTED],
                 stride, count);
        add_row(g, sums_at(first, position), row, count);
    }
}

static void add_elements(const struct job *job, int64_t line) {
    const struct gather *g = job->gather;
    int64_t index = lines_offset(&g->lines, OF_INDEX, line), src = lines_offset(&g->lines, OF_SELECTED, line);
    struct sums first = sums_of(job, line);
    char row[sizeof(double)];
    for (int64_t m = 0; m < g->count; m++) {
        int64_t position = index_at(job, index + m * g->index_step);
        if (position < 0)
            continue;
        load_row(row, g->sum, g->op->src, job->values[g->values[OF_SELECTED]], src + m * g->lines.steps[OF_SELECTED], 1,
                 1);
        add_row(g, sums_at(first, position), row, 1);
    }
}

/* A task computes all sums of some lines. */
static void add_lines(void *context, int64_t task) {
    const struct job *job = context;
    const struct gather *g = job->gather;
    int64_t line = task * g->lines.count / g->tasks, end = (task + 1) * g->lines.count / g->tasks;
    while (line < end) {
        int64_t count = columns_from(&g->lines, line, min64(COLUMNS, end - line));
        begin_sums(job, line, count);
        if (g->has_slices)
            add_slices(job, line, count);
        for (int64_t i = 0; i < count && !g->has_slices; i++)
            add_elements(job, line + i);
        end_sums(job, line, count);
        line += count;
    }
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct gather *g;
    TRY(arena_alloc(arena, &g, sizeof *g));
    TRY(analyse(g, &step->region, device));
    TRY(threads_start());
    step->state = g;
    if (g->is_sum && !g->is_direct)
        step->workspace_bytes = tensor_elements(g->op->y) * dtype_bytes(g->sum, 1);
    return arena_print(arena, &step->detail, "%s%s", g->has_slices ? "slices" : "elements",
                       !g->is_sum     ? ""
                       : g->is_direct ? ", summed in the result"
                                      : ", summed in the workspace");
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct job job = {step->state, values, workspace};
    const struct gather *g = job.gather;
    if (!values[g->values[g->is_sum ? OF_WHOLE : OF_SELECTED]])
        return WEFT_STATUS_SUCCESS;
    threads_for(g->tasks, g->is_sum ? add_lines : g->has_slices ? gather_slices : gather_elements, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_gather = {
    .name = "cpu.gather",
    .doc = "selections by indices, and sums at indices",
    .accepts = accepts,
    .build = build,
    .run = run,
};
