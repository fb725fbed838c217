/* SPDX-License-Identifier: Apache-2.0 */
/* RNG family: one operation that generates random numbers, identical on every engine. The host code emits constants and
   the row's address; map/rng.cuh generates. */
#include "graph/ops/rng.h"
#include "base/number.h"
#include "base/philox.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

#include <stdio.h>
#include <string.h>

enum { THREADS = 256, WORDS = 4 }; /* WORDS: random 32-bit words per call of Philox */

static const struct rng_op *op_at(const struct region *region) {
    return (const struct rng_op *)region_node(region, 0)->op;
}

/* The last dim's extent; rows are all other dims. */
static int64_t columns_of(const struct tensor *y) { return y->dims.at[y->dims.count - 1]; }

/* A row begins with a new block, so that results depend only on seed, offset, row and column, never on strides. */
static int64_t blocks_per_row(const struct tensor *y) { return divide_up(columns_of(y), WORDS); }

/* Returns the number of blocks of random words; threads process one at a time. */
static int64_t blocks_of(const struct tensor *y) {
    return columns_of(y) ? tensor_elements(y) / columns_of(y) * blocks_per_row(y) : 0;
}

/* The cost is that of the stores: Philox takes less time than memory. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &rng_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s does not generate random numbers.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    const struct tensor *tensors[] = {op_at(region)->y, op_at(region)->seed_tensor, op_at(region)->offset};
    for (int k = 0; k < 3; k++)
        if (tensors[k] && (tensors[k]->vector_count != 1 || !cuda_type_name((weftDataType_t)tensors[k]->type)))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_LAYOUT,
                 "%s: %s is vectorised, or of a type that kernels cannot store. Use plain strides and FLOAT.",
                 descriptor_label(op), descriptor_label(&tensors[k]->base));
    offer->seconds = PRICE_LAUNCH_SECONDS + price_moving((double)tensor_bytes(tensors[0]), device);
    return WEFT_STATUS_SUCCESS;
}

/* True if every four adjacent elements are one aligned store: the alignment of four elements, or of an access, at most
   16 bytes. */
static bool is_whole(const struct tensor *y) {
    int64_t last = y->dims.count - 1, bytes = dtype_bytes((weftDataType_t)y->type, WORDS);
    bool is_aligned = y->strides.at[last] == 1 && y->dims.at[last] % WORDS == 0 &&
                      gcd64(y->alignment, 16) >= (bytes < 16 ? bytes : 16);
    for (int64_t i = 0; i < last; i++)
        is_aligned = is_aligned && (y->dims.at[i] == 1 || y->strides.at[i] % WORDS == 0);
    return is_aligned;
}

/* Emits seed_of() and offset_of(): a number (tensor is NULL), or the contents of a tensor, which is read on the device
   at each run. */
static void emit_scalar(struct kernel_source *source, const struct tensor *tensor, int64_t number, const char *name) {
    if (tensor)
        emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
    else
        emit_number(source, number, name);
    text_add(&source->code, "DEVICE u64 %s_of(const arguments& p) { return (u64)%s%s%s; }\n", name,
             tensor ? "to_integer(*(p." : "p.", name, tensor ? " + 0))" : "");
}

/* Emits row_of(): the first element of a row; rows are counted in row-major order. Dims of extent 1 are skipped. */
static void emit_row(struct kernel_source *source, const struct tensor *y) {
    text_add(&source->code, "DEVICE y_t* row_of(const arguments& p, position rest) {\n    y_t* at = p.y;\n");
    for (int64_t i = y->dims.count - 1; i-- > 0;) {
        char text[32];
        if (y->dims.at[i] == 1)
            continue;
        snprintf(text, sizeof text, "extent%lld", (long long)i);
        emit_divisor(source, y->dims.at[i], text);
        text_add(&source->code, "    at += (i64)split(rest, p.%s)", text);
        snprintf(text, sizeof text, "stride%lld", (long long)i);
        emit_number(source, y->strides.at[i], text);
        text_add(&source->code, " * p.%s;\n", text);
    }
    text_add(&source->code, "    return at;\n}\n\n");
}

/* Arguments are 64-bit integers: kernels reinterpret the bits of the double. */
static int64_t bits_of(double number) {
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* Emits the two numbers that define a distribution, in the order of DISTRIBUTION in map/rng.cuh: a threshold; minimum
   and range; mean and deviation. */
static void emit_distribution(struct kernel_source *source, const struct rng *rng) {
    int kind = rng->distribution == WEFT_RNG_DISTRIBUTION_BERNOULLI ? 0
               : rng->distribution == WEFT_RNG_DISTRIBUTION_UNIFORM ? 1
                                                                    : 2;
    const int64_t numbers[][2] = {{philox_threshold(rng->probability), 0},
                                  {bits_of(rng->least), bits_of(rng->most - rng->least)},
                                  {bits_of(rng->mean), bits_of(rng->deviation)}};
    emit_constant(source, "DISTRIBUTION", kind);
    emit_number(source, numbers[kind][0], "first");
    emit_number(source, numbers[kind][1], "second");
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    const struct rng_op *op = op_at(&step->region);
    const struct tensor *y = op->y;
    struct cuda_step *state;
    struct kernel_source source;
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    int64_t blocks = blocks_of(y), grid = divide_up(blocks, THREADS);
    /* 64 blocks per multiprocessor are enough for any length: blocks loop with the grid's stride. */
    int64_t most = (int64_t)device->cuda.multiprocessors * 64;
    if (blocks == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    kernel_source_init(&source, &step->region);
    emit_constant(&source, "THREADS", THREADS);
    /* Constants are structure; sizes and strides are arguments. */
    emit_constant(&source, "IS_WHOLE", is_whole(y));
    emit_type(&source, "y_t", (weftDataType_t)y->type);
    text_add(&source.constants, "using math_t = %s;\nusing position = %s;\n",
             y->type == WEFT_DATA_DOUBLE ? "double" : "float", index_type(blocks));
    text_add(&source.code, "#include \"core/philox.cuh\"\n#include \"core/gather.cuh\"\n\n");
    emit_distribution(&source, op->parameters);
    emit_number(&source, blocks, "blocks");
    emit_divisor(&source, blocks_per_row(y), "blocks_per_row");
    emit_number(&source, columns_of(y), "columns");
    emit_number(&source, y->strides.at[y->dims.count - 1], "column_stride");
    emit_pointer(&source, (weftDataType_t)y->type, graph_find_value(step->region.graph, y), 0, "y");
    emit_scalar(&source, op->seed_tensor, op->seed, "seed");
    emit_scalar(&source, op->offset, 0, "offset");
    emit_row(&source, y);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "map/rng.cuh", "rng", arena));
    kernel->grid[0] = (uint32_t)(grid < most ? grid : most);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    return arena_print(arena, &step->detail, "Philox, %s", is_whole(y) ? "four per store" : "one per store");
}

const struct family cuda_rng = {
    .name = "cuda.rng",
    .doc = "random numbers that depend only on seed, offset and position",
    .accepts = accepts,
    .build = build,
};
