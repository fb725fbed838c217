/* SPDX-License-Identifier: Apache-2.0 */
/* Plans convolutions whose rows are read in place: which operands are copied first, and how the work is divided. This
   file must not know tensors or operations. */
#include "engines/cpu/product/direct_task.h"

#include "base/number.h"
#include "engines/cpu/product/direct_kernel.h"

enum {
    FILTER_DEPTH = 512,     /* depth of a part of a filter gradient */
    POINTER_DEPTH = 128,    /* if columns are not packed: what a tap sees stays in L1 for all rows */
    SEGMENTS = 64,          /* segments of a part of an image's depth */
    IMAGE_COLUMNS = 128,    /* maximum columns of a task */
    FILTER_COLUMNS = 320,   /* the same for one channel under many taps */
    POINTER_COLUMNS = 1024, /* the same for columns that are not packed */
    DEPTHWISE_COLUMNS = 512,
    POINTER_ROWS = 64, /* maximum rows of a filter gradient that are too few to make packing pay off */
    /* maximum distance between positions of dy; with larger ones their lines evict each other from the cache */
    MAX_STEP = 1024,
    PART_ROWS = 288,          /* minimum rows that a task sums, for a filter gradient of single channels */
    MAX_PARTS = 16,           /* maximum number of parts of these rows */
    MAX_SPLITS = 8,           /* maximum splits of the depth of a filter gradient */
    SPLIT_DEPTH = 512,        /* minimum depth of a split, which has at least one part */
    SPLIT_SUMS = 64 << 10,    /* maximum elements of a split's sums */
    SUMS = 96 << 10,          /* maximum floats of a task's sums, if the depth has several parts */
    FEW_CHANNELS = 16,        /* below this, a border is worth a copy, because adjacent taps become one segment */
    BROADCASTS = 4,           /* broadcasts in the time of a vector multiplication */
    PACK_COST = 16,           /* cost of packing an element, in multiplications */
    ELEMENT_POINTER_COST = 4, /* cost of setting a pointer to one element, in the same unit */
    ROW_POINTER_COST = 128    /* cost of computing the pointer to a row, in the same unit */
};

/* Slowdown of tasks that store scattered elements in the same cache lines. */
static const double SHARED_LINES = 1.5;

/* Columns for some channels, in whole vectors. */
int64_t direct_width(const struct direct *d, int64_t channels) {
    if (d->is_depthwise)
        return channels;
    return round_up(d->taps * channels, direct_kernel(0)->lanes);
}

/* True if a filter stores all channels of a tap before those of the next. Parts then have few taps, otherwise few
   channels, so that each part is contiguous in each of the filter's rows. */
static bool taps_follow(const struct filter *filter) {
    struct filter simplified = *filter;
    filter_simplify(&simplified);
    return simplified.channels > filter->channels && filter->channel_stride == 1;
}

/* The largest of about equal parts with at most `most` elements each, using as few parts as possible. */
static int64_t equal_part(int64_t extent, int64_t most) { return divide_up(extent, max64(1, divide_up(extent, most))); }

/* A filter gradient that is small compared with its depth has few tasks, each of which would pack the whole image. */
static int64_t count_splits(const struct direct *d) {
    int64_t splits = 1, depth = d->segments * d->depth;
    if (d->groups * round_up(d->rows, DIRECT_ROWS) * d->columns <= SPLIT_SUMS)
        while (2 * splits <= MAX_SPLITS && 2 * splits * SPLIT_DEPTH <= depth)
            splits *= 2;
    return splits;
}

/* Chooses the parts of the depth. */
static void cut_depth(const struct direct *d, struct direct_tiling *t) {
    if (d->is_depthwise) {
        t->segments = max64(1, d->segments);
        t->depth = 1;
    } else if (d->is_filter) {
        int64_t most = d->reads_columns_in_place ? POINTER_DEPTH : FILTER_DEPTH;
        t->splits = count_splits(d);
        t->segments = d->depth < most ? max64(1, most / max64(1, d->depth)) : 1;
        t->depth = d->segments == 1 ? equal_part(divide_up(d->depth, t->splits), most) : most;
        t->depth = max64(1, min64(d->depth, t->depth));
    } else if (taps_follow(&d->filter)) {
        t->depth = IMAGE_DEPTH;
        t->segments = max64(1, min64(SEGMENTS, IMAGE_DEPTH / max64(1, d->depth)));
    } else {
        t->segments = SEGMENTS;
        t->depth = max64(LINE, IMAGE_DEPTH / max64(1, min64(SEGMENTS, d->segments)));
    }
    t->segments = max64(1, equal_part(d->segments, t->segments));
    t->depth = max64(1, min64(d->depth, round_up(equal_part(d->depth, t->depth), LINE)));
}

/* Returns the columns of a task's widest panels. */
static int64_t panel_columns(const struct direct *d, int64_t channels) {
    return d->reads_columns_in_place ? min64(channels, d->image.to.channels) : direct_width(d, channels);
}

/* Sets everything that follows from a task's channels and the number of tasks along the rows. */
static void cut_tasks(const struct direct *d, struct direct_tiling *t, int64_t channels, int64_t row_tasks) {
    t->channels = channels;
    t->channel_tasks = divide_up(d->columns / d->taps, channels);
    int64_t rows = direct_shape(panel_columns(d, channels))->rows;
    t->rows = round_up(divide_up(max64(1, d->rows), row_tasks), rows);
    t->row_tasks = divide_up(d->rows, t->rows);
}

int64_t direct_tasks(const struct direct *d, const struct direct_tiling *t) {
    return d->groups * t->row_tasks * t->channel_tasks;
}

/* Time of a row in multiplications, including the broadcasts of each of its elements for each panel. */
static double row_cost(const struct direct *d, int64_t channels) {
    int64_t columns = panel_columns(d, channels), panels = 0;
    for (int64_t left = columns; left > 0 && !d->is_depthwise; left -= direct_shape(left)->columns)
        panels++;
    double width = (double)direct_width(d, channels);
    return width + (double)panels * width / (double)columns * direct_kernel(0)->lanes / BROADCASTS;
}

/* Time until the last thread finishes, in multiplications per step of the depth. */
static double predict(const struct direct *d, const struct direct_tiling *t, int threads) {
    double rounds = (double)divide_up(direct_tasks(d, t) * t->splits, threads);
    double width = (double)direct_width(d, t->channels), rows = (double)t->rows;
    if (d->scatters && t->row_tasks > 1)
        rounds *= SHARED_LINES;
    return rounds *
           (rows * row_cost(d, t->channels) + (d->reads_columns_in_place ? ELEMENT_POINTER_COST : PACK_COST) * width +
            rows * ROW_POINTER_COST / (double)t->depth);
}

static bool has_parts(const struct direct *d, const struct direct_tiling *t) {
    return t->segments < d->segments || t->depth < d->depth || t->splits > 1;
}

/* Minimum columns of a panel that is read in place. */
static int64_t pointer_columns(void) { return 2 * direct_kernel(0)->lanes; }

/* Returns the maximum columns of a task. */
static int64_t max_columns(const struct direct *d) {
    if (d->is_depthwise)
        return DEPTHWISE_COLUMNS;
    return d->reads_columns_in_place ? POINTER_COLUMNS : d->is_filter ? FILTER_COLUMNS : IMAGE_COLUMNS;
}

/* Depends only on sizes and the number of threads; the parts of the depth depend only on sizes. Tasks have whole panels
   of channels, or whole cache lines of them. */
static void cut(struct direct *d, int threads) {
    struct direct_tiling best = {0}, t = {.splits = 1};
    int64_t channels = d->columns / d->taps, most = min64(channels, max64(1, max_columns(d) / d->taps));
    int64_t unit = d->taps == 1 || d->reads_columns_in_place ? pointer_columns() : most < LINE ? 1 : LINE;
    cut_depth(d, &t);
    for (int64_t some = most == channels ? most : most - most % unit; some > 0; some = (some - 1) / unit * unit) {
        /* Merged taps require all channels. */
        bool cuts_taps = d->taps > 1 && d->image.to.channels > channels && some < channels;
        bool cuts_panels = d->reads_columns_in_place && some % pointer_columns() != 0;
        if (cuts_taps || cuts_panels)
            continue;
        int64_t least = has_parts(d, &t) ? divide_up(d->rows, max64(STRIP, SUMS / direct_width(d, some))) : 1;
        for (int64_t i = 0; i < 2 * threads; i++) {
            cut_tasks(d, &t, some, least + i);
            if (best.rows == 0 || predict(d, &t, threads) < predict(d, &best, threads))
                best = t;
        }
    }
    int64_t width = direct_width(d, best.channels);
    best.threads = min64(max64(1, threads), direct_tasks(d, &best) * best.splits);
    int64_t panels = d->reads_columns_in_place ? width / pointer_columns() * POINTER_FLOATS : width;
    best.panels = round_up(best.segments * best.depth * panels, LINE);
    best.sums = round_up((has_parts(d, &best) ? round_up(best.rows, DIRECT_ROWS) : STRIP) * width, LINE);
    best.transposed = d->order == DIRECT_CHANNELS ? 0 : round_up(STRIP * width, LINE);
    best.pointers = best.segments * STRIP;
    d->tiling = best;
    d->is_on = best.rows > 0; /* otherwise no such division exists, and gemm is used */
}

/* Decides whether the image is read in place or copied. */
static void read_image(struct direct *d, const struct patches *patches, int64_t images) {
    bool is_few = !d->is_depthwise && patches->groups * patches->channels < FEW_CHANNELS;
    bool are_neighbours = d->is_depthwise ? patches->group_stride == 1 : patches->channel_stride == 1;
    bool is_last = patches->type == WEFT_DATA_FLOAT && (are_neighbours || patches->groups * patches->channels == 1);
    d->image = (struct staged_image){.from = *patches, .to = *patches};
    if (!is_last || is_few)
        staged_image_plan(&d->image, patches, images, false, is_few);
}

/* Taps that see contiguous elements, none of them outside, are equivalent to more channels, as long as the depth has
   one part. */
static void merge_taps(struct patches *p) {
    bool is_short = p->channels * patches_count(p->taps) <= IMAGE_DEPTH && p->taps[0] * p->taps[1] <= SEGMENTS;
    if (is_short && p->groups == 1 && p->tap_step[2] * p->stride[2] == p->channels) {
        p->channels *= p->taps[2];
        p->taps[2] = 1;
    }
}

void direct_plan_image(struct direct *d, const struct patches *patches, const struct filter *filter, int64_t images,
                       int64_t columns, int threads) {
    d->groups = patches->groups;
    d->rows = images * patches_count(patches->positions);
    d->columns = columns;
    d->taps = 1;
    /* An empty result has no tasks. */
    d->is_on = d->rows > 0 && d->columns > 0;
    if (!d->is_on)
        return;
    read_image(d, patches, images);
    if (d->image.is_bordered)
        merge_taps(&d->image.to);
    d->filter = *filter;
    d->segments = patches_count(d->image.to.taps);
    d->depth = d->image.to.channels;
    d->step = 1;
    cut(d, threads);
}

/* Positions of dy run along the depth: they need a constant stride through a whole image, and must be contiguous unless
   the channels are, or they are copied. */
static void read_dy(struct direct *d, const struct patches *dy, int64_t images) {
    struct patches simplified = *dy;
    patches_simplify(&simplified);
    d->dy = (struct staged_image){.from = simplified, .to = simplified};
    d->segments = images;
    d->depth = patches_count(dy->positions);
    d->step = simplified.stride[2];
    bool are_neighbours =
        simplified.stride[2] == 1 || (simplified.channel_stride == 1 && simplified.stride[2] <= MAX_STEP);
    if (dy->type == WEFT_DATA_FLOAT && are_neighbours && simplified.size[0] == 1 && simplified.size[1] == 1) {
        if (simplified.image_stride == d->depth * d->step) {
            d->depth *= images;
            d->segments = 1;
        }
        return;
    }
    d->step = 1;
    staged_image_plan(&d->dy, dy, images, true, false);
    d->depth *= d->segments;
    d->segments = 1;
}

void direct_plan_filter(struct direct *d, const struct patches *x, const struct patches *dy, int64_t images,
                        int threads) {
    /* gemm's packing counts the copy's lines in an int. */
    bool fits = images * patches_count(dy->positions) <= INT32_MAX;
    d->is_filter = true;
    d->groups = x->groups;
    d->rows = dy->channels;
    d->columns = x->channels * patches_count(x->taps);
    d->taps = d->order == DIRECT_CHANNELS_TAPS ? patches_count(x->taps) : 1;
    d->is_on = fits && d->rows > 0 && d->columns > 0;
    if (!d->is_on)
        return;
    read_image(d, x, images);
    if (d->image.is_bordered && (d->taps == 1 || d->columns <= FILTER_COLUMNS))
        merge_taps(&d->image.to);
    read_dy(d, dy, images);
    d->reads_columns_in_place = d->rows <= POINTER_ROWS && d->image.to.channels % pointer_columns() == 0;
    cut(d, threads);
    /* With all taps at once, it may be impossible that a number of channels both forms whole panels and is small
       enough. */
    if (d->reads_columns_in_place && !d->is_on) {
        d->reads_columns_in_place = false;
        cut(d, threads);
    }
}

void direct_plan_channels(struct direct *d, const struct patches *patches, const struct filter *filter, int64_t images,
                          int threads) {
    d->is_depthwise = true;
    d->groups = d->taps = d->depth = 1;
    d->rows = images * patches_count(patches->positions);
    d->columns = patches->groups;
    d->segments = patches_count(patches->taps);
    d->is_on = d->rows > 0;
    if (!d->is_on)
        return;
    read_image(d, patches, images);
    d->filter = *filter;
    cut(d, threads);
}

/* Channels of dy must be contiguous, and its positions need a constant stride through all images; otherwise it is
   copied. */
static void read_channels_of_dy(struct direct *d, const struct patches *dy, int64_t images) {
    struct patches simplified = *dy;
    patches_simplify(&simplified);
    bool is_even = simplified.size[0] == 1 && simplified.size[1] == 1 &&
                   (images == 1 || simplified.image_stride == simplified.size[2] * simplified.stride[2]);
    d->dy = (struct staged_image){.from = simplified, .to = simplified};
    if (dy->type != WEFT_DATA_FLOAT || dy->group_stride != 1 || !is_even)
        staged_image_plan(&d->dy, dy, images, false, false);
}

/* A task sums some rows for some channels; parts of the rows are added at the end, in order. */
static void cut_sums(struct direct *d, int threads) {
    struct direct_tiling *t = &d->tiling;
    t->rows = max64(PART_ROWS, round_up(divide_up(d->rows, MAX_PARTS), STRIP));
    t->row_tasks = divide_up(d->rows, t->rows);
    t->channels = min64(d->columns, DEPTHWISE_COLUMNS / 2);
    t->channel_tasks = divide_up(d->columns, t->channels);
    t->segments = round_up(d->segments, DIRECT_TAPS);
    t->threads = min64(max64(1, threads), t->row_tasks * t->channel_tasks);
    t->sums = round_up(DIRECT_TAPS * t->channels, LINE);
    t->pointers = t->segments * STRIP;
}

/* A task has one channel of all images. */
static void cut_planes(struct direct *d, int threads) {
    struct direct_tiling *t = &d->tiling;
    t->row_tasks = t->channels = 1;
    t->channel_tasks = d->columns;
    t->segments = d->segments;
    t->threads = min64(max64(1, threads), d->columns);
    t->sums = round_up(direct_line_floats(&d->image.to), LINE);
}

void direct_plan_channel_sums(struct direct *d, const struct patches *x, const struct patches *dy, int64_t images,
                              int threads) {
    d->is_depthwise = d->is_filter = true;
    d->groups = d->taps = d->depth = 1;
    d->rows = images * patches_count(dy->positions);
    d->columns = x->groups;
    d->segments = patches_count(x->taps);
    d->is_on = d->columns > 0 && d->segments > 0;
    if (!d->is_on)
        return;
    d->has_planes = d->rows > 0 && direct_can_sum_lines(x, dy);
    if (d->has_planes) {
        d->image = (struct staged_image){.from = *x, .to = *x};
        d->dy = (struct staged_image){.from = *dy, .to = *dy};
        cut_planes(d, threads);
        return;
    }
    read_image(d, x, images);
    read_channels_of_dy(d, dy, images);
    cut_sums(d, threads);
}

/* Floats of the parts' sums: [parts, taps, columns], or [splits, tasks, a task's sums]. */
int64_t direct_part_floats(const struct direct *d) {
    const struct direct_tiling *t = &d->tiling;
    if (d->is_depthwise)
        return d->is_filter ? round_up(t->row_tasks * t->segments * d->columns, LINE) : 0;
    return t->splits > 1 ? t->splits * direct_tasks(d, t) * t->sums : 0;
}

int64_t direct_workspace_bytes(const struct direct *d) {
    int64_t copies = round_up(staged_image_floats(&d->image), LINE) + round_up(staged_image_floats(&d->dy), LINE);
    return (LINE + copies + direct_part_floats(d) + d->tiling.threads * direct_thread_floats(&d->tiling)) *
           (int64_t)sizeof(float);
}

/* Packing for a copy accepts any address. */
bool direct_reads(const struct direct *d, void *const *values) {
    bool reads_image = !d->image.is_on && (d->is_filter || !d->has_planes), reads_dy = d->is_filter && !d->dy.is_on;
    return (!reads_image || (uintptr_t)values[d->image_value] % sizeof(float) == 0) &&
           (!reads_dy || (uintptr_t)values[d->other_value] % sizeof(float) == 0);
}
