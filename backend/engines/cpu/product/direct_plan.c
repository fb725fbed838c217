/* SPDX-License-Identifier: Apache-2.0 */
/* Planning convolutions whose rows are read in place: which operands are copied first, and how the work is cut. It must
   not know tensors or operations. */
#include "engines/cpu/product/direct_task.h"

#include "base/number.h"
#include "engines/cpu/product/direct_kernel.h"

enum {
    FILTER_DEPTH = 512,   /* of a part of a filter's gradient */
    SEEN_DEPTH = 128,     /* where columns are not packed: what a tap sees stays in L1 while the rows pass */
    SEGMENTS = 64,        /* of a part of an image's depth */
    IMAGE_COLUMNS = 128,  /* of a task at most, */
    FILTER_COLUMNS = 320, /* but for one channel under many taps; */
    SEEN_COLUMNS = 1024,  /* of those that are not packed */
    DEPTHWISE_COLUMNS = 512,
    SEEN_ROWS = 64,        /* of a filter's gradient at most: too few to make up for packing */
    MOST_STEP = 1024,      /* between positions of dy, whose lines would push each other out of the cache */
    PART_ROWS = 288,       /* whose products a task sums at least, of a filter's gradient of single channels */
    MOST_PARTS = 16,       /* into which these are cut */
    MOST_SPLITS = 8,       /* of the depth of a filter's gradient, */
    SPLIT_DEPTH = 512,     /* each of them so deep at least, so that it has a part, */
    SPLIT_SUMS = 64 << 10, /* of so many elements at most */
    SUMS = 96 << 10,       /* floats of a task's sums at most, where the depth has several parts */
    FEW_CHANNELS = 16,     /* a border is worth a copy: taps side by side become one segment */
    BROADCASTS = 4,        /* in the time that a vector's multiplication takes */
    POINTER_FLOATS = 2,    /* that a pointer takes, at most */
    PACK_COST = 16,        /* multiplications in the time that packing one element takes, */
    SEE_COST = 4,          /* pointing to one, */
    POINTER_COST = 128     /* and making one pointer to a row */
};

/* How much longer tasks take that store elements here and there in the same lines. */
static const double SHARED_LINES = 1.5;

/* Columns of some channels, in whole vectors. */
int64_t direct_width(const struct direct *d, int64_t channels) {
    if (d->is_depthwise)
        return channels;
    return round_up(d->taps * channels, direct_kernel(0)->lanes);
}

/* Whether a filter has all channels of a tap before those of the next: then a part has few taps, else few channels, so
   that it is one run of each of the filter's rows. */
static bool taps_follow(const struct filter *filter) {
    struct filter whole = *filter;
    filter_simplify(&whole);
    return whole.channels > filter->channels && filter->channel_stride == 1;
}

/* The largest of as few parts as can be, of at most `most` each, that are about equal. */
static int64_t equal_part(int64_t whole, int64_t most) { return divide_up(whole, max64(1, divide_up(whole, most))); }

/* A filter's gradient that is small beside its depth has few tasks, each of which would pack all of the image. */
static int64_t count_splits(const struct direct *d) {
    int64_t splits = 1, depth = d->segments * d->depth;
    if (d->groups * round_up(d->rows, DIRECT_ROWS) * d->columns <= SPLIT_SUMS)
        while (2 * splits <= MOST_SPLITS && 2 * splits * SPLIT_DEPTH <= depth)
            splits *= 2;
    return splits;
}

/* Parts of the depth. */
static void cut_depth(const struct direct *d, struct direct_tiling *t) {
    if (d->is_depthwise) {
        t->segments = max64(1, d->segments);
        t->depth = 1;
    } else if (d->is_filter) {
        int64_t most = d->sees_columns ? SEEN_DEPTH : FILTER_DEPTH;
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

/* Columns of the widest panels of a task. */
static int64_t panel_columns(const struct direct *d, int64_t channels) {
    return d->sees_columns ? min64(channels, d->image.to.channels) : direct_width(d, channels);
}

/* Fills in what follows from a task's channels and the number of tasks along the rows. */
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

/* Multiplications in the time that a row takes: each of its elements is broadcast for each panel, too. */
static double row_cost(const struct direct *d, int64_t channels) {
    int64_t columns = panel_columns(d, channels), panels = 0;
    for (int64_t left = columns; left > 0 && !d->is_depthwise; left -= direct_shape(left)->columns)
        panels++;
    double width = (double)direct_width(d, channels);
    return width + (double)panels * width / (double)columns * direct_kernel(0)->lanes / BROADCASTS;
}

/* Time, in multiplications per step of the depth, until the last thread is done. */
static double predict(const struct direct *d, const struct direct_tiling *t, int threads) {
    double rounds = (double)divide_up(direct_tasks(d, t) * t->splits, threads);
    double width = (double)direct_width(d, t->channels), rows = (double)t->rows;
    if (d->scatters && t->row_tasks > 1)
        rounds *= SHARED_LINES;
    return rounds * (rows * row_cost(d, t->channels) + (d->sees_columns ? SEE_COST : PACK_COST) * width +
                     rows * POINTER_COST / (double)t->depth);
}

static bool has_parts(const struct direct *d, const struct direct_tiling *t) {
    return t->segments < d->segments || t->depth < d->depth || t->splits > 1;
}

/* Of the narrowest panel that is read in place, at least. */
static int64_t seen_columns(void) { return 2 * direct_kernel(0)->lanes; }

/* Of the columns that a task may have. */
static int64_t most_columns(const struct direct *d) {
    if (d->is_depthwise)
        return DEPTHWISE_COLUMNS;
    return d->sees_columns ? SEEN_COLUMNS : d->is_filter ? FILTER_COLUMNS : IMAGE_COLUMNS;
}

/* Depends on sizes and threads alone; the parts of the depth on sizes alone. Tasks have whole panels of channels, or
   lines of them. */
static void cut(struct direct *d, int threads) {
    struct direct_tiling best = {0}, t = {.splits = 1};
    int64_t channels = d->columns / d->taps, most = min64(channels, max64(1, most_columns(d) / d->taps));
    int64_t unit = d->taps == 1 || d->sees_columns ? seen_columns() : most < LINE ? 1 : LINE;
    cut_depth(d, &t);
    for (int64_t some = most == channels ? most : most - most % unit; some > 0; some = (some - 1) / unit * unit) {
        /* Merged taps have all channels among them. */
        bool cuts_taps = d->taps > 1 && d->image.to.channels > channels && some < channels;
        bool cuts_panels = d->sees_columns && some % seen_columns() != 0;
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
    int64_t panels = d->sees_columns ? width / seen_columns() * POINTER_FLOATS : width;
    best.panels = round_up(best.segments * best.depth * panels, LINE);
    best.sums = round_up((has_parts(d, &best) ? round_up(best.rows, DIRECT_ROWS) : STRIP) * width, LINE);
    best.turned = d->order == DIRECT_CHANNELS ? 0 : round_up(STRIP * width, LINE);
    best.seen = best.segments * STRIP;
    d->tiling = best;
    d->is_on = best.rows > 0; /* else there is no such cut, and gemm serves */
}

/* Read where it lies, or copied. */
static void read_image(struct direct *d, const struct patches *patches, int64_t images) {
    bool is_few = !d->is_depthwise && patches->groups * patches->channels < FEW_CHANNELS;
    bool are_neighbours = d->is_depthwise ? patches->group_stride == 1 : patches->channel_stride == 1;
    bool is_last = patches->type == WEFT_DATA_FLOAT && (are_neighbours || patches->groups * patches->channels == 1);
    d->image = (struct im2col){.from = *patches, .to = *patches};
    if (!is_last || is_few)
        im2col_plan(&d->image, patches, images, false, is_few);
}

/* Taps that see neighbours, all of them inside, are as good as more channels, as long as the depth has one part. */
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
    /* Nothing is made: there are no tasks to cut. */
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

/* Positions of dy are depths: evenly apart through all of an image, and neighbours unless channels are, or copied. */
static void read_dy(struct direct *d, const struct patches *dy, int64_t images) {
    struct patches whole = *dy;
    patches_simplify(&whole);
    d->dy = (struct im2col){.from = whole, .to = whole};
    d->segments = images;
    d->depth = patches_count(dy->positions);
    d->step = whole.stride[2];
    bool are_neighbours = whole.stride[2] == 1 || (whole.channel_stride == 1 && whole.stride[2] <= MOST_STEP);
    if (dy->type == WEFT_DATA_FLOAT && are_neighbours && whole.size[0] == 1 && whole.size[1] == 1) {
        if (whole.image_stride == d->depth * d->step) {
            d->depth *= images;
            d->segments = 1;
        }
        return;
    }
    d->step = 1;
    im2col_plan(&d->dy, dy, images, true, false);
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
    d->sees_columns = d->rows <= SEEN_ROWS && d->image.to.channels % seen_columns() == 0;
    cut(d, threads);
    /* With all taps at once, no number of channels may be both whole panels and few enough. */
    if (d->sees_columns && !d->is_on) {
        d->sees_columns = false;
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

/* Channels of dy are neighbours, and its positions evenly apart through all images, or it is copied. */
static void read_channels_of_dy(struct direct *d, const struct patches *dy, int64_t images) {
    struct patches whole = *dy;
    patches_simplify(&whole);
    bool is_even = whole.size[0] == 1 && whole.size[1] == 1 &&
                   (images == 1 || whole.image_stride == whole.size[2] * whole.stride[2]);
    d->dy = (struct im2col){.from = whole, .to = whole};
    if (dy->type != WEFT_DATA_FLOAT || dy->group_stride != 1 || !is_even)
        im2col_plan(&d->dy, dy, images, false, false);
}

/* A task sums some rows for some channels; parts of the rows are added up in the end, in their order. */
static void cut_sums(struct direct *d, int threads) {
    struct direct_tiling *t = &d->tiling;
    t->rows = max64(PART_ROWS, round_up(divide_up(d->rows, MOST_PARTS), STRIP));
    t->row_tasks = divide_up(d->rows, t->rows);
    t->channels = min64(d->columns, DEPTHWISE_COLUMNS / 2);
    t->channel_tasks = divide_up(d->columns, t->channels);
    t->segments = round_up(d->segments, DIRECT_TAPS);
    t->threads = min64(max64(1, threads), t->row_tasks * t->channel_tasks);
    t->sums = round_up(DIRECT_TAPS * t->channels, LINE);
    t->seen = t->segments * STRIP;
}

/* A task has a channel of all images. */
static void cut_planes(struct direct *d, int threads) {
    struct direct_tiling *t = &d->tiling;
    t->row_tasks = t->channels = 1;
    t->channel_tasks = d->columns;
    t->segments = d->segments;
    t->threads = min64(max64(1, threads), d->columns);
    t->sums = round_up(direct_plane_floats(&d->image.to), LINE);
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
    d->has_planes = d->rows > 0 && direct_has_planes(x, dy);
    if (d->has_planes) {
        d->image = (struct im2col){.from = *x, .to = *x};
        d->dy = (struct im2col){.from = *dy, .to = *dy};
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

int64_t direct_thread_floats(const struct direct_tiling *t) {
    return t->panels + t->sums + t->turned + round_up(t->seen * POINTER_FLOATS, LINE);
}

int64_t direct_workspace_bytes(const struct direct *d) {
    int64_t copies = round_up(im2col_floats(&d->image), LINE) + round_up(im2col_floats(&d->dy), LINE);
    return (LINE + copies + direct_part_floats(d) + d->tiling.threads * direct_thread_floats(&d->tiling)) *
           (int64_t)sizeof(float);
}

/* Packing for a copy takes any address. */
bool direct_reads(const struct direct *d, void *const *values) {
    bool reads_image = !d->image.is_on && (d->is_filter || !d->has_planes), reads_dy = d->is_filter && !d->dy.is_on;
    return (!reads_image || (uintptr_t)values[d->image_value] % sizeof(float) == 0) &&
           (!reads_dy || (uintptr_t)values[d->other_value] % sizeof(float) == 0);
}
