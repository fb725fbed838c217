/* SPDX-License-Identifier: Apache-2.0 */
/* rng: random numbers that depend only on seed, offset and position.
   y is seen as rows of its last dimension. Element (row, column) gets word column % 4 of the Philox-4x32-10 block row *
   ceil(columns / 4) + column / 4, which is in counter words 0 and 1; the offset is in words 2 and 3, and the seed is
   the key: see base/philox.h. With u = (word >> 8) / 2^24:
     BERNOULLI  u < probability
     UNIFORM    minimum + (maximum - minimum) u
     NORMAL     mean + deviation r cos(t) in even columns, r sin(t) in odd ones, where of the block's words a = 0 or 2
                and b = 1 or 3, r = sqrt(-2 ln((a + 1) / 2^32)) and t = 2 pi (b >> 8) / 2^24 (Box and Muller)
   then converted to y's type. Different offsets select disjoint sequences. */
#include "graph/ops/rng.h"
#include "base/number.h"
#include "base/philox.h"

#include <math.h>

/* ---- The parameter descriptor ------------------------------------------------------------------------------------ */

static const struct row parameter_rows[] = {
    VALUE_ROW(WEFT_TYPE_RNG_DISTRIBUTION, struct rng, distribution, WEFT_ATTR_RNG_DISTRIBUTION, "distribution",
              .initial = WEFT_RNG_DISTRIBUTION_BERNOULLI, .doc = "which distribution: weftRngDistribution_t"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct rng, mean, WEFT_ATTR_RNG_NORMAL_DIST_MEAN, "normal_mean", .doc = "NORMAL: mean"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct rng, deviation, WEFT_ATTR_RNG_NORMAL_DIST_STANDARD_DEVIATION,
              "normal_standard_deviation", .initial = 1, .doc = "NORMAL: standard deviation"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct rng, most, WEFT_ATTR_RNG_UNIFORM_DIST_MAXIMUM, "uniform_maximum", .initial = 1,
              .doc = "UNIFORM: exclusive upper end, reached only by rounding to y's type"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct rng, least, WEFT_ATTR_RNG_UNIFORM_DIST_MINIMUM, "uniform_minimum",
              .doc = "UNIFORM: lower end"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct rng, probability, WEFT_ATTR_RNG_BERNOULLI_DIST_PROBABILITY,
              "bernoulli_probability", .initial = 0.5, .doc = "BERNOULLI: probability of 1"),
};

/* Comparisons are negated so that NaN is rejected, too. Parameters of other distributions are also checked. */
static weftStatus_t finalize_parameters(struct descriptor *descriptor) {
    const struct rng *rng = (const struct rng *)descriptor;
    if (!(rng->probability >= 0 && rng->probability <= 1))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: bernoulli_probability is %g. Give one in 0..1.",
             descriptor_label(descriptor), rng->probability);
    if (!(rng->least <= rng->most && isfinite(rng->most - rng->least)))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: uniform_minimum is %g and uniform_maximum %g. Give finite ends, the smaller one as minimum.",
             descriptor_label(descriptor), rng->least, rng->most);
    if (!(rng->deviation >= 0))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: normal_standard_deviation is %g. Give one of 0 or more.",
             descriptor_label(descriptor), rng->deviation);
    return WEFT_STATUS_SUCCESS;
}

const struct schema rng_schema = {
    .kind = WEFT_BACKEND_RNG_DESCRIPTOR,
    .name = "random distribution",
    .doc = "distribution of random numbers; parameters that it does not use are ignored",
    .size = sizeof(struct rng),
    ROWS(parameter_rows),
    .finalize = finalize_parameters,
};

/* ---- The operation ----------------------------------------------------------------------------------------------- */

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct rng_op, parameters, WEFT_ATTR_OPERATION_RNG_DESC, "parameters",
              .required = true, .target = WEFT_BACKEND_RNG_DESCRIPTOR, .doc = "the distribution"),
    VALUE_ROW(WEFT_TYPE_INT64, struct rng_op, seed, WEFT_ATTR_OPERATION_RNG_SEED, "seed",
              .doc = "the seed as a number"),
    TENSOR_ROW(ROLE_INPUT, struct rng_op, seed_tensor, WEFT_ATTR_OPERATION_RNG_SEED, "seed", .shape = "[1..]",
               .doc = "the seed as a scalar tensor, INT32 or INT64; takes precedence over a number"),
    TENSOR_ROW(ROLE_INPUT, struct rng_op, offset, WEFT_ATTR_OPERATION_RNG_OFFSET_DESC, "offset", .shape = "[1..]",
               .doc = "selects one of the seed's sequences, INT32 or INT64; unset: 0"),
    TENSOR_ROW(ROLE_OUTPUT, struct rng_op, y, WEFT_ATTR_OPERATION_RNG_YDESC, "y", .required = true,
               .shape = "[d..], dims must be set", .doc = "result; default type FLOAT"),
};

static const struct method methods[] = {
    {"rng", "random numbers by the counter-based Philox generator; set the result's dims : y ~ distribution", NULL,
     "seed=0 offset=None distribution=BERNOULLI bernoulli_probability=None uniform_minimum=None uniform_maximum=None "
     "normal_mean=None normal_standard_deviation=None",
     "y"},
    {0},
};

/* A seed or an offset: a single integer. Accepts NULL. */
static weftStatus_t check_integer(const struct descriptor *op, const char *key, const struct tensor *tensor) {
    TRY(check_scalar(op, key, tensor));
    if (tensor && !dtype_is_integer((weftDataType_t)tensor->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s. Use INT32 or INT64.", descriptor_label(op), key,
             dtype_of((weftDataType_t)tensor->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* The dims of y must be set; the type defaults to FLOAT. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct rng_op *op = (struct rng_op *)descriptor;
    if (op->y->dims.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: y has no dims, and no input to infer them from. Set y's dims.",
             descriptor_label(descriptor));
    /* The check of outputs sets packed strides, because no input determines another order. */
    tensor_infer_type(op->y, WEFT_DATA_FLOAT);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct rng_op *op = (const struct rng_op *)descriptor;
    TRY(check_integer(descriptor, "seed", op->seed_tensor));
    return check_integer(descriptor, "offset", op->offset);
}

/* The number in a scalar tensor, or `otherwise` if the tensor is absent or has no memory. */
int64_t rng_scalar(const struct bindings *bindings, const struct tensor *tensor, int64_t otherwise) {
    struct view view = view_of(bindings, tensor);
    return view.data ? dtype_load_i64(view.type, view.data, 0) : otherwise;
}

/* Lane 0 to 3 of a block's words; the formulas are at the top of this file. */
static double draw(const struct rng *rng, struct philox words, int lane) {
    /* Compared as 24-bit integers, so that all engines agree bit for bit. */
    if (rng->distribution == WEFT_RNG_DISTRIBUTION_BERNOULLI)
        return words.word[lane] >> 8 < philox_threshold(rng->probability);
    if (rng->distribution == WEFT_RNG_DISTRIBUTION_UNIFORM)
        return rng->least + (rng->most - rng->least) * philox_unit(words.word[lane]);
    /* Two lanes share a radius and an angle: words 0 and 1, or 2 and 3. */
    int pair = lane & 2;
    /* Adding 1 avoids the logarithm of 0. */
    double radius = sqrt(-2 * log((words.word[pair] + 1.0) * 0x1p-32));
    double angle = 6.283185307179586477 * philox_unit(words.word[pair + 1]);
    return rng->mean + rng->deviation * radius * (lane & 1 ? sin(angle) : cos(angle));
}

/* Generates element by element; each value depends only on its position, so that every order and every engine yields
   the same result. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct rng_op *op = (const struct rng_op *)descriptor;
    struct view y = view_of(bindings, op->y);
    uint64_t seed = (uint64_t)rng_scalar(bindings, op->seed_tensor, op->seed);
    uint64_t offset = (uint64_t)rng_scalar(bindings, op->offset, 0);
    int64_t index[WEFT_DIM_MAX], row = -1;
    if (!y.data)
        return;
    for (bool more = index_begin(index, y.rank, y.dims); more; more = index_next(index, y.rank, y.dims)) {
        int64_t column = index[y.rank - 1], columns = y.dims[y.rank - 1];
        /* Rows are counted at their first element, because indices iterate in row-major order. */
        row += column == 0;
        uint64_t block = philox_index((uint64_t)row, (uint64_t)column, (uint64_t)columns);
        view_store(&y, index, draw(op->parameters, philox_words(seed, offset, block), (int)(column % 4)));
    }
}

const struct op rng_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_RNG_DESCRIPTOR,
            .name = "rng",
            .doc = "random numbers by the counter-based Philox generator",
            .size = sizeof(struct rng_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &rng_op,
        },
    .parameters = &rng_schema,
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .reference = reference,
};
