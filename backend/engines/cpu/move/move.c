/* SPDX-License-Identifier: Apache-2.0 */
/* The move family: one operation that only moves elements, or an identity, which may convert them, as copies
   (engines/movement.h) on all threads. If the fastest mode is the same in both memories, a copy moves runs; otherwise
   it transposes the plane of the two fastest modes (blocks.h); if neither applies, it moves single elements. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"
#include "engines/cpu/move/blocks.h"
#include "engines/movement.h"
#include "graph/ops/pointwise.h"

#include <string.h>

/* Measured with two threads on an EPYC: bytes read and written, by runs and by blocks. Higher than for the map family,
   which would load and store the same bytes. */
static const double BYTES_PER_SECOND = 18e9;
static const double SECONDS_PER_ELEMENT = 1e-9; /* per thread, element by element */
static const double START_SECONDS = 1e-6;

enum {
    PARTS_MAX = 64,
    FEW = 4,               /* planes that one loop interleaves */
    TASK_BYTES = 64 << 10, /* minimum bytes of a task: 1 us in cache, 4 us from memory */
    THREAD_TASKS = 4,      /* maximum tasks per thread: each starts with cache misses */
    CAST_RUN = 1024,       /* elements of a conversion in two steps */
    LARGE_BYTES = 8 << 20  /* size from which a result bypasses the caches */
};

/* How elements are copied: contiguous in both memories; contiguous in each but along different modes (a block, or a few
   planes); or one by one. */
enum copy_kind { RUNS, BLOCKS, PLANES, ELEMENTS };

/* One part over modes that both memories have: rows of the outer modes, each a plane of `across` x `along` elements.
   Strides in elements; extents of outer modes from the slowest to the fastest. */
struct copy {
    enum copy_kind copy_kind;
    int bytes, from_bytes; /* size of an element as it is written and as it is read */
    weftDataType_t from_type, to_type;
    bool is_large;
    int from_value, to_value;
    int64_t from_offset, to_offset;
    int rank; /* number of outer modes */
    int64_t rows, extents[2 * SIDE_MODES], from_strides[2 * SIDE_MODES], to_strides[2 * SIDE_MODES];
    /* The plane. For blocks, `along` follows the written memory and `across` the read one; for few planes, `across`
       counts them; otherwise `across` is 1. */
    int64_t along, across, from_along, to_along, from_across, to_across;
    /* A task is task_rows rows, or a strip of `strip` elements of one row's plane, in direction along or across.
       first_task: index among the tasks of all copies. */
    bool is_cut_across;
    int64_t task_rows, strip, strips, first_task;
};

struct move {
    int count;
    /* a task copies the same rows of all copies, because these are interleaved in the written memory */
    bool are_joined;
    struct copy copies[];
};

/* ---- From parts to copies ---------------------------------------------------------------------------------------- */

/* Modes of both sides, slowest first. */
struct modes {
    int rank;
    int64_t extents[2 * SIDE_MODES], from[2 * SIDE_MODES], to[2 * SIDE_MODES];
};

static void add_mode(struct modes *modes, int64_t extent, int64_t from, int64_t to) {
    modes->extents[modes->rank] = extent;
    modes->from[modes->rank] = from;
    modes->to[modes->rank++] = to;
}

static void reverse(struct modes *modes) {
    for (int i = 0; i < modes->rank / 2; i++) {
        int64_t *arrays[] = {modes->extents, modes->from, modes->to};
        for (int k = 0; k < 3; k++) {
            int64_t swapped = arrays[k][i];
            arrays[k][i] = arrays[k][modes->rank - 1 - i];
            arrays[k][modes->rank - 1 - i] = swapped;
        }
    }
}

/* Splits the modes of both sides into common extents, starting with the fastest; false if none exist, such as for 6
   counted as 2 x 3 and 3 x 2. */
static bool find_modes(struct modes *modes, const struct part *part) {
    int f = part->from.rank - 1, t = part->to.rank - 1;
    /* Remaining extents of modes f and t, and the strides of one step. */
    int64_t left_from = 1, left_to = 1, step_from = 0, step_to = 0;
    modes->rank = 0;
    for (;;) {
        for (; left_from == 1 && f >= 0; f--)
            left_from = part->from.extents[f], step_from = part->from.strides[f];
        for (; left_to == 1 && t >= 0; t--)
            left_to = part->to.extents[t], step_to = part->to.strides[t];
        if (left_from == 1 && left_to == 1)
            break;
        int64_t common = min64(left_from, left_to);
        if (left_from % common || left_to % common)
            return false;
        add_mode(modes, common, step_from, step_to);
        left_from /= common, step_from *= common;
        left_to /= common, step_to *= common;
    }
    reverse(modes);
    return true;
}

/* Sorts by the written memory's strides, then merges adjacent modes that have a constant stride in both memories. */
static void order_modes(struct modes *modes) {
    int rank = 0;
    for (int i = 1; i < modes->rank; i++)
        for (int at = i; at > 0 && modes->to[at - 1] < modes->to[at]; at--) {
            int64_t *arrays[] = {modes->extents, modes->from, modes->to};
            for (int k = 0; k < 3; k++) {
                int64_t swapped = arrays[k][at];
                arrays[k][at] = arrays[k][at - 1];
                arrays[k][at - 1] = swapped;
            }
        }
    for (int i = 0; i < modes->rank; i++) {
        bool merges = rank && modes->to[rank - 1] == modes->to[i] * modes->extents[i] &&
                      modes->from[rank - 1] == modes->from[i] * modes->extents[i];
        rank += !merges;
        modes->extents[rank - 1] = merges ? modes->extents[rank - 1] * modes->extents[i] : modes->extents[i];
        modes->from[rank - 1] = modes->from[i];
        modes->to[rank - 1] = modes->to[i];
    }
    modes->rank = rank;
}

/* The fastest mode of the read memory if it differs from that of the written one, otherwise -1. */
static int find_across(const struct modes *modes) {
    int last = modes->rank - 1;
    if (last < 1 || modes->to[last] != 1 || modes->from[last] == 1)
        return -1;
    for (int i = 0; i < last; i++)
        if (modes->from[i] == 1 && modes->extents[i] > 1)
            return i;
    return -1;
}

/* For few planes, `across` counts them, whichever memory interleaves them. */
static void orient_interleaved(struct copy *copy) {
    if (copy->along > FEW || copy->across <= FEW || copy->to_across != copy->along)
        return;
    const struct copy was = *copy;
    copy->along = was.across, copy->from_along = was.from_across, copy->to_along = was.to_across;
    copy->across = was.along, copy->from_across = was.from_along, copy->to_across = was.to_along;
}

static bool is_few(const struct copy *copy) {
    bool is_joined = copy->from_along == 1 && copy->to_along == copy->across;
    bool is_parted = copy->to_along == 1 && copy->from_along == copy->across;
    return copy->across >= 2 && copy->across <= FEW && (is_joined || is_parted);
}

static void choose_plane(struct copy *copy, const struct modes *modes) {
    int last = modes->rank - 1, across = find_across(modes);
    copy->along = last < 0 ? 1 : modes->extents[last];
    copy->from_along = last < 0 ? 1 : modes->from[last];
    copy->to_along = last < 0 ? 1 : modes->to[last];
    copy->across = across < 0 ? 1 : modes->extents[across];
    copy->to_across = across < 0 ? 0 : modes->to[across];
    copy->from_across = across < 0 ? 0 : 1;
    orient_interleaved(copy);
    copy->copy_kind = is_few(copy)                                   ? PLANES
                      : across >= 0                                  ? BLOCKS
                      : copy->from_along == 1 && copy->to_along == 1 ? RUNS
                                                                     : ELEMENTS;
    copy->rows = 1;
    for (int i = 0; i < last; i++) {
        if (i == across)
            continue;
        copy->extents[copy->rank] = modes->extents[i];
        copy->from_strides[copy->rank] = modes->from[i];
        copy->to_strides[copy->rank++] = modes->to[i];
        copy->rows *= modes->extents[i];
    }
}

/* Number of tasks for this many bytes; if it exceeds the number of threads, a multiple of it. */
static int64_t pieces_of(int64_t bytes) {
    int64_t threads = threads_count(), most = THREAD_TASKS * threads;
    int64_t pieces = max64(1, min64(divide_up(bytes, TASK_BYTES), most));
    return pieces < threads ? pieces : round_up(pieces, threads);
}

/* Several rows per task, or several tasks per row. */
static void cut_tasks(struct copy *copy) {
    /* Bytes of the wider type; moving single elements takes about four times as long. */
    int64_t wide = max64(copy->bytes, copy->from_bytes) * (copy->copy_kind == ELEMENTS ? 4 : 1);
    int64_t pieces = pieces_of(copy->rows * copy->along * copy->across * wide);
    int64_t side = TRANSPOSE_BYTES / copy->bytes, strips = divide_up(pieces, copy->rows);
    /* Splits the written rows, unless there are few: threads that write parts of the same rows contend for cache lines,
       because processors prefetch. */
    copy->is_cut_across = copy->copy_kind == BLOCKS && copy->across >= min64(strips, threads_count()) * side;
    int64_t length = copy->is_cut_across ? copy->across : copy->along;
    copy->task_rows = divide_up(copy->rows, pieces);
    copy->strip = strips > 1 ? round_up(divide_up(length, strips), side) : length;
    copy->strips = divide_up(length, copy->strip);
}

/* Elements are moved bit by bit without conversion: both types must be equal and consist of whole bytes. */
static weftStatus_t check_part(const struct part *part, const struct descriptor *op) {
    const struct tensor *from = part->from.tensor, *to = part->to.tensor;
    TRY(tensor_check_plain(from, op));
    TRY(tensor_check_plain(to, op));
    if (from->type != to->type && op_of(op) != &pointwise_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, %s has %s. Only elements of one type move.",
             descriptor_label(op), descriptor_label(&from->base), dtype_of((weftDataType_t)from->type)->name,
             descriptor_label(&to->base), dtype_of((weftDataType_t)to->type)->name);
    int bits = dtype_of((weftDataType_t)to->type)->bits;
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, whose elements share bytes.",
             descriptor_label(op), descriptor_label(&to->base), dtype_of((weftDataType_t)to->type)->name);
    if (from->is_by_value || from->is_constant)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: %s is a value without memory.", descriptor_label(op),
             descriptor_label(&from->base));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t make_copy(struct copy *copy, const struct part *part, const struct region *region,
                              const struct descriptor *op) {
    struct modes modes;
    TRY(check_part(part, op));
    if (!find_modes(&modes, part))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: the dims of both memories have no common factorization.",
             descriptor_label(op));
    order_modes(&modes);
    *copy = (struct copy){.bytes = dtype_of(part->to.type)->bits / 8,
                          .from_bytes = dtype_of(part->from.type)->bits / 8,
                          .from_type = part->from.type,
                          .to_type = part->to.type,
                          .is_large = tensor_bytes(part->to.tensor) > LARGE_BYTES,
                          .from_value = graph_find_value(region->graph, part->from.tensor),
                          .to_value = graph_find_value(region->graph, part->to.tensor),
                          .from_offset = part->from.offset,
                          .to_offset = part->to.offset};
    choose_plane(copy, &modes);
    if (part->from.type != part->to.type && copy->copy_kind != RUNS)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: it converts elements that are not contiguous in both memories.",
             descriptor_label(op));
    cut_tasks(copy);
    return WEFT_STATUS_SUCCESS;
}

/* ---- The family -------------------------------------------------------------------------------------------------- */

static double predict(const struct copy *copy, const struct device *device) {
    double elements = (double)copy->rows * (double)copy->along * (double)copy->across;
    double moving = elements * (copy->bytes + copy->from_bytes) / BYTES_PER_SECOND;
    double single = elements * SECONDS_PER_ELEMENT / (device->threads > 1 ? device->threads : 1);
    return copy->copy_kind == ELEMENTS && single > moving ? single : moving;
}

static bool is_plain(weftDataType_t type) {
    return type == WEFT_DATA_FLOAT || dtype_is_half(type) || dtype_is_fp8(type) || type == WEFT_DATA_INT8;
}

/* True for an identity without broadcasting whose compute type represents both of its types. */
static bool is_copy(const struct descriptor *descriptor) {
    if (op_of(descriptor) != &pointwise_op)
        return false;
    const struct pointwise_op *op = (const struct pointwise_op *)descriptor;
    const struct tensor *x = op->x, *y = op->y;
    if (op->pw->mode != WEFT_POINTWISE_IDENTITY || op->alpha1 != 1 || x->dims.count != y->dims.count ||
        tensor_elements(y) == 0)
        return false;
    for (int64_t i = 0; i < x->dims.count; i++)
        if (x->dims.at[i] != y->dims.at[i])
            return false;
    weftDataType_t from = (weftDataType_t)x->type, to = (weftDataType_t)y->type, math = pointwise_math(op);
    bool is_exact = math == WEFT_DATA_FLOAT || math == WEFT_DATA_DOUBLE ||
                    (math == WEFT_DATA_INT64 && from == WEFT_DATA_INT8 && to == WEFT_DATA_INT8);
    return is_exact && is_plain(from) && is_plain(to);
}

static void list_copy(struct part *part, const struct pointwise_op *op) {
    const struct tensor *tensors[] = {op->x, op->y};
    struct side *sides[] = {&part->from, &part->to};
    *part = (struct part){0};
    for (int k = 0; k < 2; k++) {
        *sides[k] = (struct side){.tensor = tensors[k], .type = (weftDataType_t)tensors[k]->type};
        sides[k]->rank = (int)tensors[k]->dims.count;
        memcpy(sides[k]->extents, tensors[k]->dims.at, sizeof tensors[k]->dims.at);
        memcpy(sides[k]->strides, tensors[k]->strides.at, sizeof tensors[k]->strides.at);
    }
    part_order(part);
}

/* The copies of a region with one node; `copies` has room for PARTS_MAX. */
static weftStatus_t analyse(struct copy *copies, int *count, const struct region *region) {
    struct part parts[PARTS_MAX];
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: nothing is fused with it, so %s needs a step of its own.",
             descriptor_label(op), descriptor_label(region_node(region, 1)->op));
    *count = 1;
    if (is_copy(op))
        list_copy(parts, (const struct pointwise_op *)op);
    else
        TRY(movement_list(parts, PARTS_MAX, count, op));
    for (int k = 0; k < *count; k++)
        TRY(make_copy(&copies[k], &parts[k], region, op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct copy copies[PARTS_MAX];
    int count;
    TRY(analyse(copies, &count, region));
    offer->seconds = START_SECONDS;
    for (int k = 0; k < count; k++)
        offer->seconds += predict(&copies[k], device);
    return WEFT_STATUS_SUCCESS;
}

/* Joins copies of runs with the same number of rows, such as the inputs of a concatenation: a task moves rows of all of
   them. */
static bool join(struct copy *copies, int count) {
    int64_t bytes = 0;
    if (count < 2 || copies[0].rows < 2)
        return false;
    for (int k = 0; k < count; k++) {
        if (copies[k].copy_kind != RUNS || copies[k].rows != copies[0].rows || copies[k].strips != 1)
            return false;
        bytes += copies[k].along * copies[k].bytes;
    }
    for (int k = 0; k < count; k++)
        copies[k].task_rows = divide_up(copies[k].rows, pieces_of(copies[k].rows * bytes));
    return true;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    static const char *const methods[] = {"runs", "transposed blocks", "few planes", "single elements"};
    struct copy copies[PARTS_MAX];
    struct move *move;
    int count;
    int64_t tasks = 0;
    TRY(analyse(copies, &count, &step->region));
    bool are_joined = join(copies, count);
    TRY(arena_alloc(arena, &move, sizeof *move + (size_t)count * sizeof *copies));
    for (int k = 0; k < count; k++) {
        move->copies[k] = copies[k];
        move->copies[k].first_task = tasks;
        tasks += divide_up(copies[k].rows, copies[k].task_rows) * copies[k].strips;
    }
    move->count = count;
    move->are_joined = are_joined;
    TRY(threads_start());
    step->state = move;
    return count == 0 ? arena_print(arena, &step->detail, "no elements")
                      : arena_print(arena, &step->detail, "%d %s by %s of %d bytes", count,
                                    count == 1 ? "copy" : "copies", methods[copies[0].copy_kind], copies[0].bytes);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

#define COPY_ELEMENTS(type)                                                                                            \
    for (int64_t i = 0; i < count; i++)                                                                                \
        ((type *)to)[i * to_stride] = ((const type *)from)[i * from_stride];                                           \
    return

static void copy_elements(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t count,
                          int bytes) {
    switch (bytes) {
    case 1:
        COPY_ELEMENTS(uint8_t);
    case 2:
        COPY_ELEMENTS(uint16_t);
    case 4:
        COPY_ELEMENTS(uint32_t);
    default:
        COPY_ELEMENTS(uint64_t);
    }
}

/* Converts through float; if either memory is aligned float, it serves as the intermediate buffer. */
static void cast_run(const struct copy *copy, char *to, const char *from, int64_t count) {
    float run[CAST_RUN];
    if (copy->to_type == WEFT_DATA_FLOAT && (uintptr_t)to % sizeof *run == 0)
        dtype_to_f32((float *)(void *)to, copy->from_type, from, 0, count);
    else if (copy->from_type == WEFT_DATA_FLOAT && (uintptr_t)from % sizeof *run == 0)
        dtype_from_f32(copy->to_type, to, 0, (const float *)(const void *)from, count);
    else
        for (int64_t i = 0; i < count; i += CAST_RUN) {
            dtype_to_f32(run, copy->from_type, from, i, min64(CAST_RUN, count - i));
            dtype_from_f32(copy->to_type, to, i, run, min64(CAST_RUN, count - i));
        }
}

/* Copies `along` elements of a strip that starts where both memories' planes start. */
static void copy_along(const struct copy *copy, char *to, const char *from, int64_t along) {
    if (copy->from_type != copy->to_type)
        cast_run(copy, to, from, along);
    else if (copy->copy_kind == PLANES)
        interleave(to, from, copy->from_along == 1 ? copy->from_across : copy->to_across, (int)copy->across, along,
                   copy->bytes, copy->from_along == 1);
    else if (copy->from_along == 2 && copy->to_along == 1)
        copy_second(to, from, along, copy->bytes);
    else
        copy_elements(to, copy->to_along, from, copy->from_along, along, copy->bytes);
}

/* next_to, next_from: the next row's plane, or NULL. */
static void transpose_strip(const struct copy *copy, char *to, const char *from, int64_t start, char *next_to,
                            const char *next_from) {
    struct plane plane = {.to = to,
                          .from = from,
                          .to_stride = copy->to_across,
                          .from_stride = copy->from_along,
                          .rows = copy->across,
                          .columns = copy->along,
                          .bytes = copy->bytes,
                          .is_large = copy->is_large,
                          .next_to = next_to,
                          .next_from = next_from};
    transpose(&plane, copy->is_cut_across, start, copy->strip);
}

/* Position of an iteration over the outer modes. */
struct cursor {
    int64_t at[2 * SIDE_MODES], from, to;
};

static struct cursor cursor_of(const struct copy *copy, int64_t row) {
    struct cursor cursor = {.from = copy->from_offset, .to = copy->to_offset};
    for (int i = copy->rank; i-- > 0; row /= copy->extents[i]) {
        cursor.at[i] = row % copy->extents[i];
        cursor.from += cursor.at[i] * copy->from_strides[i];
        cursor.to += cursor.at[i] * copy->to_strides[i];
    }
    return cursor;
}

static void advance(struct cursor *cursor, const struct copy *copy) {
    for (int i = copy->rank; i-- > 0;) {
        cursor->from += copy->from_strides[i];
        cursor->to += copy->to_strides[i];
        if (++cursor->at[i] < copy->extents[i])
            return;
        cursor->from -= copy->extents[i] * copy->from_strides[i];
        cursor->to -= copy->extents[i] * copy->to_strides[i];
        cursor->at[i] = 0;
    }
}

/* Number of remaining rows along the fastest outer mode. */
static int64_t remaining_rows(const struct copy *copy, const struct cursor *cursor, int64_t left) {
    int last = copy->rank - 1;
    return last < 0 ? 1 : min64(left, copy->extents[last] - cursor->at[last]);
}

/* Skips all of these rows except the last one. */
static void skip(struct cursor *cursor, const struct copy *copy, int64_t rows) {
    int last = copy->rank - 1;
    if (last < 0)
        return;
    cursor->at[last] += rows - 1;
    cursor->from += (rows - 1) * copy->from_strides[last];
    cursor->to += (rows - 1) * copy->to_strides[last];
}

/* State of one execution, on the stack of `run`, which returns after all tasks. */
struct job {
    const struct move *move;
    void *const *values;
};

/* Runs of equal length, which may be copied onto themselves if an input is stored within the result. */
static void copy_runs_alike(const struct copy *copy, char *to, const char *from, int64_t rows, int64_t start) {
    int last = copy->rank - 1, bytes = copy->bytes;
    int64_t to_step = last < 0 ? 0 : copy->to_strides[last], from_step = last < 0 ? 0 : copy->from_strides[last];
    copy_runs(to + start * bytes, to_step * bytes, from + start * bytes, from_step * bytes, rows,
              min64(copy->strip, copy->along - start) * bytes);
}

/* Copies rows, starting at `row`; of each row, copies a strip that starts at `start`. */
static void copy_rows(const struct job *job, const struct copy *copy, int64_t row, int64_t start) {
    int64_t end = min64(row + copy->task_rows, copy->rows);
    char *to = job->values[copy->to_value];
    const char *from = job->values[copy->from_value];
    struct cursor cursor = cursor_of(copy, row);
    bool are_runs = copy->copy_kind == RUNS && copy->from_type == copy->to_type;
    for (int64_t rows = 1; row < end; row += rows) {
        char *row_to = to + cursor.to * copy->bytes;
        const char *row_from = from + cursor.from * copy->from_bytes;
        if (are_runs) {
            rows = remaining_rows(copy, &cursor, end - row);
            copy_runs_alike(copy, row_to, row_from, rows, start);
            skip(&cursor, copy, rows);
        }
        advance(&cursor, copy);
        if (copy->copy_kind == BLOCKS)
            transpose_strip(copy, row_to, row_from, start, row + 1 < end ? to + cursor.to * copy->bytes : NULL,
                            from + cursor.from * copy->from_bytes);
        else if (!are_runs)
            copy_along(copy, row_to + start * copy->to_along * copy->bytes,
                       row_from + start * copy->from_along * copy->from_bytes, min64(copy->strip, copy->along - start));
    }
}

static void run_task(void *context, int64_t task) {
    const struct job *job = context;
    const struct copy *copy = &job->move->copies[job->move->count - 1];
    while (copy->first_task > task)
        copy--;
    copy_rows(job, copy, (task - copy->first_task) / copy->strips * copy->task_rows,
              (task - copy->first_task) % copy->strips * copy->strip);
}

static void run_joined_task(void *context, int64_t task) {
    const struct job *job = context;
    for (int k = 0; k < job->move->count; k++)
        copy_rows(job, &job->move->copies[k], task * job->move->copies[k].task_rows, 0);
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)workspace, (void)stream;
    struct job job = {step->state, values};
    int64_t tasks = 0;
    if (job.move->are_joined) {
        threads_for(divide_up(job.move->copies[0].rows, job.move->copies[0].task_rows), run_joined_task, &job);
        return WEFT_STATUS_SUCCESS;
    }
    for (int k = 0; k < job.move->count; k++)
        tasks += divide_up(job.move->copies[k].rows, job.move->copies[k].task_rows) * job.move->copies[k].strips;
    threads_for(tasks, run_task, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_move = {
    .name = "cpu.move",
    .doc = "concatenation, transposes and other operations that only move elements",
    .accepts = accepts,
    .build = build,
    .run = run,
};
