/* SPDX-License-Identifier: Apache-2.0 */
/* The channels family: batch norm of channels that lie side by side in memory, forward in training and backward, with the
   pointwise operations around it, in one launch whose blocks wait for each other between statistics and results. What
   was read for the statistics stays on chip as far as it fits. The row program is that of the rows family; this is
   another way to walk it (rows/channels.cuh). */
#include "base/number.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"
#include "engines/cuda/rows/schedule.h"
#include "graph/ops/norm.h"

#include <stdio.h>
#include <string.h>

enum {
    THREADS = 512,    /* that calculate */
    COPYING = 32,     /* threads beside these, of which one asks for copies */
    LINE_RUNS = 8,    /* of 16 bytes: a line of memory */
    BOX_PLACES = 256, /* of one copy, at most */
    DEPTH_LEAST = 3,
    DEPTH_MOST = 32,
    SHARED_LITTLE = 1024,
};

static const double LAUNCH_SECONDS = 5e-6, CACHED_SHARE = 0.5;

struct channels {
    struct rows rows;
    struct walk walk;
    int64_t slabs, blocks; /* blocks: of each slab */
    int64_t batches;       /* of a slab */
    int64_t stay;          /* batches of a block that the cache is asked to keep */
    int depth;
};

/* ---- What is served ---------------------------------------------------------------------------------------------- */

static bool is_batch_norm(const struct node *node) {
    if (op_of(node->op) == &norm_backward_op)
        return ((const struct norm_backward *)node->op)->mode == WEFT_BATCH_NORM;
    if (op_of(node->op) != &norm_forward_op)
        return false;
    const struct norm_forward *op = (const struct norm_forward *)node->op;
    return op->mode == WEFT_BATCH_NORM && !norm_is_inference_of_batch(op);
}

static weftStatus_t check_region(const struct region *region, const struct device *device) {
    int norms = 0;
    for (int i = 0; i < region->count; i++)
        norms += is_batch_norm(region_node(region, i));
    if (norms != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: this family serves one batch norm with statistics of its batch at a time",
             descriptor_label(region_node(region, 0)->op));
    if (device->cuda.major < 9)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "the copy engine comes with sm_90, this is sm_%d%d",
             device->cuda.major, device->cuda.minor);
    return WEFT_STATUS_SUCCESS;
}

/* Operands that totals depend on. */
static uint32_t counted_operands(const struct walk *walk) {
    bool takes_part[TERMS_MAX];
    uint32_t counted = 0;
    walk_terms_of_pass(walk, 0, takes_part);
    for (int k = 0; k < walk->rows->operand_count; k++) {
        const struct term *term = rows_find(walk->rows, walk->operands[k].value);
        if (!walk->operands[k].is_store && takes_part[term - walk->rows->terms])
            counted |= UINT32_C(1) << k;
    }
    return counted;
}

/* Whether the copy engine can bring what stays: neighbours in memory, in pieces of 16 bytes. */
static bool can_copy(const struct walk *walk) {
    int copies = 0;
    bool can = true;
    for (int k = 0; k < walk->rows->operand_count; k++) {
        const struct operand *operand = &walk->operands[k];
        if (!walk_holds(walk, k))
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1);
        copies++;
        can = can && operand->memory >= 0 && operand->strides[0] == 1 && operand->strides[1] * bytes % 16 == 0 &&
              operand->strides[1] > 0 && walk->run * walk->across * bytes % 16 == 0 &&
              walk->rows->graph->values[operand->memory].tensor->alignment % 16 == 0;
    }
    return can && copies > 0 && copies <= MAPS_MAX;
}

static weftStatus_t check_walk(const struct walk *walk) {
    if (!walk->is_columns || walk->kept != 1 || walk->rank != 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
             "channels must be neighbours in memory, and their places one dimension in every tensor");
    if (walk->closed != 1 || walk->last_pass != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "one pass takes statistics and one stores results, this region takes %d for statistics and %d in all",
             walk->closed, walk->passes);
    if (walk_calculates_in_double(walk))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums are taken in float, not in double");
    if (walk->run < 4)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "threads take 4 neighbouring channels or more, here they could take %d",
             walk->run);
    if (walk->runs > INT32_MAX / 2)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%lld places are more than copies count", (long long)walk->runs);
    return WEFT_STATUS_SUCCESS;
}

/* ---- The walk ---------------------------------------------------------------------------------------------------- */

/* The share of all threads' work that counts, when slabs are `across` runs wide. */
static double worth_of(const struct walk *walk, int64_t across, const struct device *device) {
    int64_t slabs = divide_up(walk->groups, across), multiprocessors = device->cuda.multiprocessors;
    return (double)walk->groups / (double)(slabs * across) * (double)(multiprocessors / slabs * slabs) /
           (double)multiprocessors;
}

/* Bytes that are read again from memory: what stayed neither in shared memory nor in the cache. */
static double bytes_again(const struct walk *walk, const struct device *device) {
    double bytes = 0, shared = (double)device->cuda.multiprocessors * (double)device->cuda.shared_per_block;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (walk_holds(walk, k))
            bytes += (double)walk_held_bytes(walk, k) * (double)walk->groups * (double)walk->runs;
    bytes -= shared + CACHED_SHARE * (double)device->cuda.l2_bytes;
    return bytes > 0 ? bytes : 0;
}

/* A line of memory, two where memory is what counts; or what wastes clearly less. */
static int choose_across(const struct walk *walk, const struct device *device) {
    int usual = bytes_again(walk, device) > 0 ? 2 * LINE_RUNS : LINE_RUNS, across = 1;
    while (across < walk->groups && across < usual)
        across *= 2;
    for (int other = across / 2; other >= LINE_RUNS / 2; other /= 2)
        if (worth_of(walk, other, device) > 1.1 * worth_of(walk, across, device))
            across = other;
    return across;
}

static int64_t batch_bytes(const struct walk *walk) { return walk_row_bytes(walk) * walk->across * walk->unroll; }

/* Bytes of the numbers of a channel, at most. */
static int64_t row_bytes(const struct walk *walk) {
    int64_t bytes = 8;
    for (int i = 0; i < walk->rows->term_count; i++) {
        const struct term *term = &walk->rows->terms[i];
        if (term->is_needed && !term->spans)
            bytes += term->names * (strcmp(term->type, "float") == 0 ? 4 : 8);
    }
    return bytes;
}

static weftStatus_t place(struct channels *c, const struct device *device) {
    struct walk *walk = &c->walk;
    int64_t multiprocessors = device->cuda.multiprocessors;
    walk->counted = counted_operands(walk);
    walk->steps = walk->ring = walk->min_blocks = 1;
    walk->threads = THREADS;
    walk->across = choose_across(walk, device);
    walk->team = walk->threads / walk->across;
    walk->unroll = walk_row_bytes(walk) <= 16 * walk->team ? 2 : 1;
    if (!can_copy(walk))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT, "the copy engine brings up to %d tensors in pieces of 16 bytes",
             MAPS_MAX);
    c->slabs = divide_up(walk->groups, walk->across);
    c->batches = divide_up(walk->runs, (int64_t)walk->team * walk->unroll);
    c->blocks = c->slabs ? min64(multiprocessors / c->slabs, c->batches) : 0;
    /* Fewer blocks could run beside others of their kind, and would share their counters. */
    if (2 * c->slabs * c->blocks <= multiprocessors)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%lld slabs of %d channels with %lld batches of %d places would not keep %lld multiprocessors busy",
             (long long)c->slabs, walk->across * walk->run, (long long)c->batches, walk->team * walk->unroll,
             (long long)multiprocessors);
    int64_t numbers = walk->across * walk->run * (walk->threads / 32 * walk_total_bytes(walk) + row_bytes(walk));
    c->depth = (int)min64((device->cuda.shared_per_block - SHARED_LITTLE - numbers) / batch_bytes(walk), DEPTH_MOST);
    if (c->depth < DEPTH_LEAST)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
             "shared memory holds %d batches of %lld bytes, of %d at least", c->depth, (long long)batch_bytes(walk),
             DEPTH_LEAST);
    return WEFT_STATUS_SUCCESS;
}

/* Bytes of what is read, or stored, of all elements. */
static double bytes_of(const struct walk *walk, bool is_store) {
    double bytes = 0;
    for (int k = 0; k < walk->rows->operand_count; k++) {
        const struct operand *operand = &walk->operands[k];
        const struct term *term = rows_find(walk->rows, operand->value);
        if (operand->is_store == is_store && term->spans && term->is_needed && operand->memory >= 0)
            bytes += (double)walk_held_bytes(walk, k) * (double)walk->groups * (double)walk->runs;
    }
    return bytes;
}

static void predict(struct channels *c, const struct device *device) {
    struct walk *walk = &c->walk;
    double again = bytes_again(walk, device), stored = bytes_of(walk, true);
    /* Where more is read again than the cache holds, what is asked to stay there is in the way of results. */
    c->stay = again > 0 ? 0 : divide_up(c->batches, c->blocks);
    walk->puts_away = stored > CACHED_SHARE * (double)device->cuda.l2_bytes;
    walk->seconds = LAUNCH_SECONDS + price_moving(bytes_of(walk, false) + again + stored, device);
}

static weftStatus_t plan(struct channels *c, const struct region *region, const struct device *device) {
    TRY(check_region(region, device));
    TRY(rows_analyse(&c->rows, region, TAKE_AT_ONCE, true));
    TRY(walk_begin(&c->walk, &c->rows));
    TRY(check_walk(&c->walk));
    TRY(place(c, device));
    predict(c, device);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static void print_constants(struct kernel_print *print, const struct channels *c) {
    const struct walk *walk = &c->walk;
    const struct {
        const char *name;
        int64_t value;
    } constants[] = {
        {"RUN", walk->run},
        {"COLUMNS", true},
        {"ACROSS", walk->across},
        {"TEAM", walk->team},
        {"THREADS", walk->threads},
        {"UNROLL", walk->unroll},
        {"DEPTH", c->depth},
        {"FLOW", c->depth / 2},
        {"SLOTS", (int64_t)walk->unroll * walk->threads}, /* runs of a slot */
        {"HELD_BYTES", walk_row_bytes(walk) / walk->team},
        {"BETWEEN", walk->team},
        {"COLUMN_TOTALS", 0},
    };
    text_add(&print->constants,
             "#include \"core/async.cuh\"\n#include \"core/stream.cuh\"\n#include \"core/reduce.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        print_constant(print, constants[i].name, constants[i].value);
    text_add(&print->constants, "using position = int;\n");
}

static enum tensor_map_type map_type(weftDataType_t type) {
    int64_t bytes = dtype_bytes(type, 1);
    return bytes == 1 ? TENSOR_MAP_U8 : bytes == 2 ? TENSOR_MAP_BF16 : TENSOR_MAP_F32;
}

/* Maps of the operands that stay: places by channels. */
static void print_maps(struct kernel_print *print, const struct walk *walk) {
    for (int k = 0; k < walk->rows->operand_count; k++) {
        const struct operand *operand = &walk->operands[k];
        if (!walk_holds(walk, k))
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1);
        struct cuda_map map = {.form = {.type = map_type(operand->type), .rank = 2, .promotion = TENSOR_MAP_L2_128B},
                               .offset = operand->offset * bytes};
        char name[16];
        map.form.dims[0] = (uint64_t)(walk->groups * walk->run);
        map.form.dims[1] = (uint64_t)walk->runs;
        map.form.strides[0] = (uint64_t)(operand->strides[1] * bytes);
        map.form.box[0] = (uint32_t)(walk->across * walk->run);
        map.form.box[1] = (uint32_t)min64((int64_t)walk->unroll * walk->team, BOX_PLACES);
        snprintf(name, sizeof name, "map%d", k);
        print_map(print, operand->memory, &map, name);
    }
}

/* bring(): one batch of all of them, each behind the other, as take_held() looks for them. */
static void print_bring(struct text *code, const struct walk *walk) {
    int64_t at = 0;
    text_add(code,
             "DEVICE void bring(u32 slot, u32 arrival, const arguments& a, int channel, int place, u64 policy) {\n"
             "    for (int row = 0; row < UNROLL * TEAM; row += %d) {\n",
             BOX_PLACES);
    for (int k = 0; k < walk->rows->operand_count; k++) {
        if (!walk_holds(walk, k))
            continue;
        int64_t bytes = walk_held_bytes(walk, k);
        text_add(code,
                 "    load_box(slot + %lld * SLOTS + row * %lld, a.map%d, arrival, channel, place + row, policy);\n",
                 (long long)at, (long long)(bytes * walk->across), k);
        at += bytes;
    }
    text_add(code, "    }\n}\n\n");
}

/* ---- The family -------------------------------------------------------------------------------------------------- */

static weftStatus_t accepts(const struct region *region, const struct device *device, double *seconds) {
    struct channels c;
    TRY(plan(&c, region, device));
    *seconds = c.walk.seconds;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct channels c;
    struct cuda_step *state;
    struct kernel_print print;
    TRY(plan(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    const struct walk *walk = &c.walk;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    kernel_print_init(&print, &step->region);
    print_constants(&print, &c);
    print_maps(&print, walk);
    print_number(&print, c.slabs, "slabs");
    print_number(&print, c.stay, "stay");
    walk_print_functions(&print, walk);
    print_bring(&print.code, walk);
    kernel->grid[0] = (uint32_t)(c.slabs * c.blocks);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)walk->threads + COPYING;
    kernel->shared_bytes = (uint32_t)(batch_bytes(walk) * c.depth);
    kernel->is_dependent = kernel->is_cooperative = true;
    step->workspace_bytes = c.slabs * c.blocks * walk->across * walk->run * walk_total_bytes(walk);
    TRY(kernel_finish(&print, kernel, "rows/channels.cuh", "channels", arena));
    int64_t batches = divide_up(c.batches, c.blocks);
    return arena_print(arena, &step->detail,
                       "slabs of %d channels, %lld blocks for each; batches of %d places, %lld for a block, of which "
                       "%lld stay in shared memory%s",
                       walk->across * walk->run, (long long)c.blocks, walk->team * walk->unroll, (long long)batches,
                       (long long)min64(c.depth, batches),
                       batches <= c.depth ? ""
                       : c.stay           ? " and the others in the cache"
                                          : "");
}

/* A plan for a described chip may come to one of its kind that has fewer multiprocessors. */
static weftStatus_t load(struct step *step, const struct device *device) {
    TRY(cuda_load(step, device));
    const struct cuda_kernel *kernel = &((const struct cuda_step *)step->state)->kernels[0];
    struct device_scope scope;
    int blocks;
    TRY(device_enter(&scope, device));
    weftStatus_t status =
        kernel_blocks_per_multiprocessor(&blocks, kernel->loaded, (int)kernel->block, (int)kernel->shared_bytes);
    device_leave(&scope);
    if (!status && (int64_t)blocks * device->cuda.multiprocessors < kernel->grid[0])
        status = status_fail(WEFT_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM,
                             "%u blocks wait for each other, and %s runs %d at once. Build the plan for this device.",
                             kernel->grid[0], device->name, blocks * device->cuda.multiprocessors);
    return status;
}

const struct family cuda_channels = {
    .name = "cuda.channels",
    .doc =
        "batch norm of channels that are neighbours in memory, with the pointwise operations around it, in one launch",
    .accepts = accepts,
    .build = build,
    .load = load,
    .run = cuda_run,
    .may_alias = rows_may_alias,
    .release = cuda_release,
};
