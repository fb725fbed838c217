/* SPDX-License-Identifier: Apache-2.0 */
/* The pooling family: pooling and interpolation, forward and backward. The element that each tap reads is tabulated
   along each axis when a plan is built, so that the loops need not handle padding. */
#include "engines/cpu/pooling/pooling.h"

#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/families.h"

/* Measured with two threads on an EPYC. */
static const double BYTES_PER_SECOND = 14e9;
static const double TAP_SECONDS = 0.15e-9; /* per thread: one tap of one lane */
static const double START_SECONDS = 1e-6;

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

/* Means and interpolation read 0 in padding, or clamp it; with -inf their results would be -inf. */
static weftStatus_t check_mode(const struct resample_geometry *g, const struct descriptor *op) {
    if (g->beta != 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: beta is %g, only 0 is supported.", descriptor_label(op),
             g->beta);
    if (g->padding == WEFT_NEG_INF_PAD && g->mode != WEFT_RESAMPLE_MAXPOOL &&
        g->mode != WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: its padding is -inf, which is supported only for maxima.",
             descriptor_label(op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check_types(const struct resample_geometry *g, const struct descriptor *op) {
    const struct resample_operand *operands[] = {&g->x, &g->y, &g->saved, &g->index};
    for (int i = 0; i < 4; i++) {
        const struct tensor *tensor = operands[i]->tensor;
        if (!tensor)
            continue;
        TRY(tensor_check_plain(tensor, op));
        weftDataType_t type = (weftDataType_t)tensor->type;
        bool is_taken =
            i == 3 ? type == WEFT_DATA_INT8 || type == WEFT_DATA_INT32 : type == WEFT_DATA_FLOAT || dtype_is_half(type);
        if (!is_taken || tensor->is_by_value || tensor->is_constant)
            FAIL(
                WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
                "%s: %s has data type %s. Only floats of 32 and 16 bits, and indices in INT8 and INT32, are supported.",
                descriptor_label(op), descriptor_label(&tensor->base), dtype_of(type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if lanes are contiguous in all tensors: channels, or positions of a row. */
static bool are_lanes(const struct resample_geometry *g, bool is_last) {
    const struct resample_operand *operands[] = {&g->x, &g->y, &g->saved, &g->index};
    for (int i = 0; i < 4; i++) {
        int64_t extent = is_last ? g->c : operands[i]->size[2];
        int64_t stride = is_last ? operands[i]->channel_stride : operands[i]->size_stride[2];
        if (operands[i]->tensor && extent != 1 && stride != 1)
            return false;
    }
    return true;
}

static bool is_pool(const struct resample_geometry *g) {
    return g->mode != WEFT_RESAMPLE_BILINEAR && g->mode != WEFT_RESAMPLE_NEAREST;
}

static bool clamps(const struct resample_geometry *g) {
    return g->padding == WEFT_EDGE_VAL_PAD && g->mode != WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
}

/* Chooses a box whose rows fit into a thread's sums. */
static void find_box(struct pooling *w) {
    const int64_t *x = w->g.x.size;
    int64_t rows = max64(1, POOLING_SUMS / max64(1, x[2]));
    w->box[1] = max64(1, min64(x[1], rows));
    w->box[0] = max64(1, min64(x[0], rows / w->box[1]));
}

/* True if the rows of a plane are contiguous. */
static bool is_plane(const struct resample_operand *operand) {
    int64_t step = 1;
    for (int i = POOLING_AXES - 1; i >= 0; i--) {
        if (operand->size[i] != 1 && operand->size_stride[i] != step)
            return false;
        step *= operand->size[i];
    }
    return true;
}

/* True for a mean in float over all elements of a channel. */
static bool is_whole_mean(const struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    for (int i = 0; i < POOLING_AXES; i++)
        if (g->y.size[i] != 1 || g->offset[i] != 0 || g->taps[i] != g->x.size[i] || g->dilation[i] != 1 ||
            g->x.size[i] == 0)
            return false;
    return w->is_mean && is_plane(&g->x) && g->x.tensor->type == WEFT_DATA_FLOAT &&
           g->y.tensor->type == WEFT_DATA_FLOAT;
}

static bool scatters(const struct pooling *w) {
    const struct resample_geometry *g = &w->g;
    return g->backward && w->is_max && w->is_strided && g->x.tensor->type == WEFT_DATA_FLOAT &&
           g->taps[0] * g->taps[1] * g->taps[2] <= 64;
}

/* True for a gradient along rows that is gathered row by row. */
static bool gathers(const struct pooling *w) { return w->g.backward && !w->is_last && !w->is_max && !w->is_whole; }

static int value_of(const struct region *region, const struct tensor *tensor) {
    return tensor ? graph_find_value(region->graph, tensor) : -1;
}

/* Fills in everything except the tables. */
static weftStatus_t analyse(struct pooling *w, const struct region *region) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (region->count > 1 || (op_of(op) != &resample_op && op_of(op) != &resample_backward_op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: only a single pooling operation is supported, with nothing fused.", descriptor_label(op));
    *w = (struct pooling){.g = resample_geometry(op)};
    struct resample_geometry *g = &w->g;
    TRY(check_mode(g, op));
    TRY(check_types(g, op));
    w->is_max = g->mode == WEFT_RESAMPLE_MAXPOOL;
    w->is_mean = is_pool(g) && !w->is_max;
    w->reads_zeros = w->is_max && g->padding == WEFT_ZERO_PAD;
    w->is_strided = is_pool(g) && !clamps(g);
    w->is_last = are_lanes(g, true) && (g->c > 1 || !are_lanes(g, false));
    w->is_whole = !w->is_last && is_whole_mean(w);
    w->scatters = !w->is_last && scatters(w);
    w->x = value_of(region, g->x.tensor), w->y = value_of(region, g->y.tensor);
    w->index = value_of(region, g->index.tensor), w->saved = value_of(region, g->saved.tensor);
    w->lanes = POOLING_LANES;
    if (!w->is_last && !are_lanes(g, false))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "%s: neither channels nor rows are contiguous in all its tensors. Give one of the two a stride of 1.",
             descriptor_label(op));
    if (!w->is_last && g->x.size[2] > POOLING_ROW)
        /* With the strides and windows of pools, a pass reads fewer than POOLING_ROW elements. */
        w->lanes = POOLING_LANES / 8;
    bool is_read_whole = !w->is_strided || w->lanes * g->step[2] + resample_span(g, 2) > POOLING_ROW;
    if (!w->is_last && is_read_whole && g->x.size[2] > POOLING_ROW)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: rows have %lld elements, at most %d are supported.",
             descriptor_label(op), (long long)g->x.size[2], POOLING_ROW);
    int64_t longest = w->is_max ? g->x.size[2] : max64(g->x.size[2], g->y.size[2]);
    if (g->backward && !w->is_last && longest > POOLING_SUMS)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "%s: a row has %lld elements, at most %d are supported.",
             descriptor_label(op), (long long)longest, POOLING_SUMS);
    find_box(w);
    return WEFT_STATUS_SUCCESS;
}

/* Memory traffic once, and one operation per tap and lane. The maxima of a gradient without an index are recomputed. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct pooling w;
    TRY(analyse(&w, region));
    const struct resample_geometry *g = &w.g;
    const struct resample_operand *operands[] = {&g->x, &g->y, &g->index, &g->saved};
    double taps = (double)(g->taps[0] * g->taps[1] * g->taps[2]), bytes = 0;
    for (int i = 0; i < 4; i++)
        bytes += operands[i]->tensor ? (double)tensor_bytes(operands[i]->tensor) : 0;
    bool has_index = g->backward && w.is_max && g->index.tensor;
    double computing = (has_index ? 8 : taps) * (double)tensor_elements(g->y.tensor) * TAP_SECONDS;
    computing /= device->threads > 1 ? device->threads : 1;
    double moving = bytes / BYTES_PER_SECOND;
    offer->seconds = START_SECONDS + (computing > moving ? computing : moving);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static void tabulate_tap(struct pooling_axis *axis, const struct resample_geometry *g, int i, int64_t position,
                         int tap) {
    int64_t first = resample_first_tap(g, i, position), source_index = first + tap * g->dilation[i],
            last = g->x.size[i] - 1;
    if (clamps(g))
        source_index = source_index < 0 ? 0 : source_index > last ? last : source_index;
    bool is_inside = source_index >= 0 && source_index <= last;
    axis->sources[position * axis->taps + tap] = is_inside ? source_index : POOLING_OUTSIDE;
    axis->insides[position] += is_inside;
    axis->counts[position] += is_inside || g->mode != WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
    if (is_inside) {
        axis->starts[tap] = min64(axis->starts[tap], position);
        axis->ends[tap] = position + 1;
    }
    if (axis->weights) {
        double rest = (double)(position * g->step[i] - g->offset[i] - first * g->denominator[i]);
        double fraction = rest / (double)g->denominator[i];
        axis->weights[position * axis->taps + tap] = (float)(tap ? fraction : 1 - fraction);
    }
}

/* Taps are numbered over all axes, row-major. */
static weftStatus_t tabulate_masks(struct pooling *w, int i, struct arena *arena) {
    struct pooling_axis *axis = &w->axes[i];
    int64_t positions = w->g.y.size[i], inner = 1, taps = w->g.taps[0] * w->g.taps[1] * w->g.taps[2];
    for (int k = i + 1; k < POOLING_AXES; k++)
        inner *= w->g.taps[k];
    TRY(arena_alloc(arena, &axis->masks, (size_t)positions * sizeof *axis->masks));
    for (int64_t k = 0; k < positions * taps; k++) {
        int64_t position = k / taps, tap = k % taps / inner % axis->taps;
        bool is_inside = axis->sources[position * axis->taps + tap] != POOLING_OUTSIDE;
        axis->masks[position] |= (uint64_t)is_inside << (k % taps);
    }
    return WEFT_STATUS_SUCCESS;
}

/* The result to which tap `tap` of an output position contributes, or -1. */
static int64_t result_of(const struct pooling *w, const struct pooling_direction *direction,
                         const struct pooling_axis *axis, int64_t position, int64_t tap) {
    int64_t source_index = axis->sources[position * axis->taps + tap];
    if (source_index == POOLING_OUTSIDE)
        return !direction->is_gradient && w->reads_zeros ? position : -1;
    if (direction->is_gradient)
        return source_index;
    return !axis->weights || axis->weights[position * axis->taps + tap] != 0 ? position : -1;
}

static struct pooling_link link_of(const struct pooling *w, const struct pooling_direction *direction,
                                   const struct pooling_axis *axis, int64_t position, int64_t tap) {
    double weight = axis->weights ? (double)axis->weights[position * axis->taps + tap] : 1;
    return (struct pooling_link){
        .source_index = direction->is_gradient ? position : axis->sources[position * axis->taps + tap],
        .tap = tap,
        .weight = direction->is_gradient && w->is_mean ? weight / (double)axis->counts[position] : weight};
}

/* Builds the links of each result, in the order of positions and taps: counts them first, then fills them in. */
static weftStatus_t tabulate_links(struct pooling *w, struct pooling_direction *direction, int i, struct arena *arena) {
    struct pooling_axis *axis = &w->axes[i];
    int64_t results = (direction->is_gradient ? &w->g.x : &w->g.y)->size[i], taps = w->g.y.size[i] * axis->taps;
    struct pooling_link *links;
    int64_t *ends;
    TRY(arena_alloc(arena, &direction->links[i], (size_t)(results + 1) * sizeof *direction->links[i]));
    TRY(arena_alloc(arena, &links, (size_t)taps * sizeof *links));
    TRY(arena_alloc(arena, &ends, (size_t)(results + 1) * sizeof *ends));
    for (int64_t k = 0; k < taps; k++)
        ends[result_of(w, direction, axis, k / axis->taps, k % axis->taps) + 1]++;
    ends[0] = 0; /* for taps that contribute to no result */
    for (int64_t result = 0; result < results; result++)
        ends[result + 1] += ends[result];
    for (int64_t result = 0; result <= results; result++)
        direction->links[i][result] = links + ends[result];
    for (int64_t k = 0; k < taps; k++) {
        int64_t result = result_of(w, direction, axis, k / axis->taps, k % axis->taps);
        if (result >= 0)
            links[ends[result]++] = link_of(w, direction, axis, k / axis->taps, k % axis->taps);
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if a result has the same links as the one `steps` result steps earlier, shifted by that many source steps. */
static bool has_same_links(const struct pooling *w, const struct pooling_direction *direction, int64_t result,
                           int64_t steps) {
    int64_t other = result + steps * direction->result_step, *counts = w->axes[2].counts;
    const struct pooling_link *one = direction->links[2][result], *end = direction->links[2][result + 1];
    const struct pooling_link *two = direction->links[2][other];
    if (direction->links[2][other + 1] - two != end - one ||
        (!direction->is_gradient && w->is_mean && counts[result] != counts[other]))
        return false;
    for (; one < end; one++, two++)
        if (one->source_index == POOLING_OUTSIDE ||
            two->source_index != one->source_index + steps * direction->source_step || two->tap != one->tap ||
            two->weight != one->weight)
            return false;
    return true;
}

/* Divides a row of results into segments of every result_step-th result. */
static weftStatus_t tabulate_segments(const struct pooling *w, struct pooling_direction *direction,
                                      struct arena *arena) {
    int64_t results = (direction->is_gradient ? &w->g.x : &w->g.y)->size[2];
    int64_t common = gcd64(w->g.step[2], w->g.denominator[2]), step = w->g.step[2] / common;
    direction->result_step = direction->is_gradient ? step : w->g.denominator[2] / common;
    direction->source_step = direction->is_gradient ? w->g.denominator[2] / common : step;
    TRY(arena_alloc(arena, &direction->segments, (size_t)results * sizeof *direction->segments));
    for (int64_t phase = 0; phase < min64(direction->result_step, results); phase++)
        for (int64_t at = phase, steps; at < results; at += steps * direction->result_step) {
            for (steps = 1; at + steps * direction->result_step < results && has_same_links(w, direction, at, steps);)
                steps++;
            direction->segments[direction->segment_count++] = (struct pooling_segment){at, steps};
        }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t tabulate_direction(struct pooling *w, struct pooling_direction *direction, bool is_gradient,
                                       struct arena *arena) {
    direction->is_gradient = is_gradient;
    for (int i = 0; i < POOLING_AXES; i++)
        TRY(tabulate_links(w, direction, i, arena));
    const int64_t *size = (is_gradient ? &w->g.x : &w->g.y)->size;
    int64_t planes = w->is_last ? w->g.n : w->g.n * w->g.c;
    int64_t row = w->is_last ? size[2] * w->g.c : 4 * size[2];
    direction->task_rows = max64(1, POOLING_TASK / max64(1, row));
    direction->tasks = divide_up(planes * size[0] * size[1], direction->task_rows);
    return tabulate_segments(w, direction, arena);
}

static weftStatus_t tabulate(struct pooling *w, int i, struct arena *arena) {
    struct pooling_axis *axis = &w->axes[i];
    const struct resample_geometry *g = &w->g;
    size_t positions = (size_t)g->y.size[i], taps = (size_t)g->taps[i];
    axis->taps = (int)g->taps[i];
    axis->stride = g->step[i];
    TRY(arena_alloc(arena, &axis->sources, positions * taps * sizeof *axis->sources));
    TRY(arena_alloc(arena, &axis->counts, positions * sizeof *axis->counts));
    TRY(arena_alloc(arena, &axis->insides, positions * sizeof *axis->insides));
    TRY(arena_alloc(arena, &axis->starts, taps * sizeof *axis->starts));
    TRY(arena_alloc(arena, &axis->ends, taps * sizeof *axis->ends));
    if (g->mode == WEFT_RESAMPLE_BILINEAR && taps == 2)
        TRY(arena_alloc(arena, &axis->weights, positions * taps * sizeof *axis->weights));
    for (size_t k = 0; k < taps; k++)
        axis->starts[k] = (int64_t)positions, axis->ends[k] = 0;
    for (size_t o = 0; o < positions; o++)
        for (size_t k = 0; k < taps; k++)
            tabulate_tap(axis, g, i, (int64_t)o, (int)k);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building and running ---------------------------------------------------------------------------------------- */

/* Tasks are rows of positions with channels, boxes of a gradient, or rows of a channel. */
static int64_t tasks_of(const struct pooling *w) {
    const int64_t *x = w->g.x.size, *y = w->g.y.size;
    if (tensor_elements((w->g.backward ? &w->g.x : &w->g.y)->tensor) == 0)
        return 0;
    if (w->is_whole)
        return divide_up(w->g.n * w->g.c, POOLING_PLANES);
    if (w->scatters)
        return w->g.n * w->g.c;
    if (w->is_last || gathers(w))
        return w->g.backward ? w->gradient.tasks : w->forward.tasks;
    if (w->g.backward)
        return w->g.n * w->g.c * divide_up(x[0], w->box[0]) * divide_up(x[1], w->box[1]);
    return w->g.n * w->g.c * y[0];
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)device, (void)knobs;
    struct pooling *w;
    TRY(arena_alloc(arena, &w, sizeof *w));
    TRY(analyse(w, &step->region));
    for (int i = 0; i < POOLING_AXES; i++)
        TRY(tabulate(w, i, arena));
    w->picks = !w->is_max && !w->is_mean;
    for (int64_t i = 0; w->picks && i < w->g.y.size[2]; i++)
        w->picks = w->axes[2].insides[i] == w->axes[2].taps;
    for (int i = 0; w->scatters && i < POOLING_AXES; i++)
        TRY(tabulate_masks(w, i, arena));
    if (w->is_last && (!w->g.backward || pooling_channels_workspace_bytes(w)))
        TRY(tabulate_direction(w, &w->forward, false, arena));
    if (w->g.backward && (w->is_last || gathers(w)))
        TRY(tabulate_direction(w, &w->gradient, true, arena));
    w->tasks = tasks_of(w);
    TRY(threads_start());
    step->state = w;
    if (w->is_last)
        step->workspace_bytes = pooling_channels_workspace_bytes(w);
    return arena_print(arena, &step->detail, "windows of %lldx%lldx%lld, lanes of %s", (long long)w->g.taps[0],
                       (long long)w->g.taps[1], (long long)w->g.taps[2], w->is_last ? "channels" : "rows");
}

static weftStatus_t run(const struct step *step, void *const *values, void *workspace, weftStream_t stream) {
    (void)stream;
    struct pooling_job job = {step->state, values, workspace};
    const struct pooling *w = job.pooling;
    /* A gradient without readers has no memory. */
    if (!values[w->x])
        return WEFT_STATUS_SUCCESS;
    if (step->workspace_bytes)
        threads_for(w->forward.tasks, pooling_channels_find_task, &job);
    if (w->is_whole || w->scatters)
        threads_for(w->tasks, w->is_whole ? pooling_mean_task : pooling_scatter_task, &job);
    else if (w->is_last)
        threads_for(w->tasks, w->g.backward ? pooling_channels_backward_task : pooling_channels_forward_task, &job);
    else if (gathers(w))
        threads_for(w->tasks, pooling_gather_task, &job);
    else
        threads_for(w->tasks, w->g.backward ? pooling_backward_task : pooling_forward_task, &job);
    return WEFT_STATUS_SUCCESS;
}

const struct family cpu_pooling = {
    .name = "cpu.window",
    .doc = "pooling and interpolation, forward and backward",
    .accepts = accepts,
    .build = build,
    .run = run,
};
