/* SPDX-License-Identifier: Apache-2.0 */
/* The norms and their gradients as instructions over rows.

   If x has a narrow type, its deviations are no smaller than its rounding steps, so (x - mean) * f may be computed as x
   * f - mean * f. Otherwise, the rounding error of the mean may exceed the smallest deviations: the difference between
   the exact mean and the rounded one, called slip, is stored in addition. */
#include "graph/expansion.h"
#include "graph/ops/norm.h"

/* Values of the expansion, per row. */
struct statistics {
    int mean, variance, inv; /* -1 if absent */
    int slip;                /* -1 if unknown */
    bool has_few_bits;
};

/* True if x is computed unrounded in the same kernel: then a narrow type does not limit the precision of its values. */
static bool is_computed_inside(const struct expansion *e, const struct tensor *tensor) {
    return e->is_computed_inside && e->is_computed_inside(e->context, tensor);
}

static struct statistics no_statistics(const struct expansion *e, const struct tensor *x) {
    bool has_few_bits = dtype_bytes((weftDataType_t)x->type, 1) <= 2 && !is_computed_inside(e, x);
    return (struct statistics){-1, -1, -1, -1, has_few_bits};
}

/* Rows are the elements that share statistics; group norm has as many rows along the channels as groups. */
static void set_rows(struct expansion *e, const struct tensor *x, const struct norm_shape *shape, bool is_group) {
    e->dims = x->dims;
    for (int64_t d = 0; d < x->dims.count; d++)
        e->parts[d] = shape->over[d] ? 1 : d == 1 && is_group ? shape->statistics.at[1] : x->dims.at[d];
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

/* Computes the mean first, then the squared deviations from it. */
static int squares_in_turn(struct expansion *e, struct statistics *s, int x, int count) {
    s->mean = expand_share(e, expand_sum(e, x), count);
    int deviation = expand_subtract(e, x, s->mean);
    int squares = expand_sum(e, expand_multiply(e, deviation, deviation));
    if (s->has_few_bits)
        return squares;
    /* Deviations from a rounded mean do not sum to 0; their sum corrects mean and squares. */
    int sum = expand_sum(e, deviation);
    s->slip = expand_share(e, sum, count);
    return expand_subtract(e, squares, expand_multiply(e, sum, s->slip));
}

/* The mean is the sample plus the mean distance from it, `off`; the rounding error of this addition is the slip. */
static void set_mean_near(struct expansion *e, struct statistics *s, int sample, int off) {
    s->mean = expand_add(e, off, sample);
    if (!s->has_few_bits)
        s->slip = expand_add(e, expand_subtract(e, sample, s->mean), off);
}

/* Sums of deviations from a sample element, so that large common offsets do not cancel. */
static int squares_shifted(struct expansion *e, struct statistics *s, int x, int sample, int count) {
    int near = expand_subtract(e, x, sample), sum = expand_sum(e, near);
    int all = expand_sum(e, expand_multiply(e, near, near)), off = expand_share(e, sum, count);
    int squares = expand_subtract(e, all, expand_multiply(e, sum, off));
    set_mean_near(e, s, sample, off);
    return squares;
}

/* Mean and squares in one reduction, which engines compute from partial moments. The result is the sum of squared
   deviations. */
static int squares_joined(struct expansion *e, struct statistics *s, int x, int sample) {
    /* Values of x are close enough to 0, or x cannot be sampled. */
    if (sample < 0) {
        s->mean = expand(e, OPCODE_MOMENTS, x, -1);
        return expand(e, OPCODE_SECOND, s->mean, -1);
    }
    int near = expand(e, OPCODE_MOMENTS, expand_subtract(e, x, sample), -1);
    int squares = expand(e, OPCODE_SECOND, near, -1);
    set_mean_near(e, s, sample, near);
    return squares;
}

/* An element of x's row to subtract, or -1 if x is not in memory or if a row has several parts. Narrow types need none
   if moments are joined. */
static int sample_of(struct expansion *e, const struct tensor *x, bool is_needed) {
    if (!is_needed || is_computed_inside(e, x) || x->is_gathered || tensor_elements(x) == 0)
        return -1;
    int sample = expand(e, OPCODE_SAMPLE, -1, -1);
    e->at[sample].tensor = x;
    return sample;
}

/* Computes mean and variance of x; both are 0 for rows without elements. */
static struct statistics take_statistics(struct expansion *e, const struct tensor *tensor, int x, bool has_mean) {
    struct statistics s = no_statistics(e, tensor);
    int count = expand(e, OPCODE_COUNT, -1, -1), squares, zero = expand_number(e, 0);
    bool is_shifted = e->method == STATISTICS_SHIFTED;
    if (!has_mean) {
        /* RMS norm: the mean stays -1, and the squares are those of x itself. */
        squares = expand_sum(e, expand_multiply(e, x, x));
    } else if (e->method == STATISTICS_IN_TURN) {
        squares = squares_in_turn(e, &s, x, count);
    } else {
        int sample = sample_of(e, tensor, is_shifted || !s.has_few_bits);
        squares =
            is_shifted && sample >= 0 ? squares_shifted(e, &s, x, sample, count) : squares_joined(e, &s, x, sample);
    }
    /* Rounding may make the sum negative, whose square root would be NaN. */
    s.variance = expand_choice(e, OPCODE_IF_GREATER, zero, squares, zero, expand_share(e, squares, count));
    return s;
}

/* (x - mean) * factor. */
static int deviation_times(struct expansion *e, int x, struct statistics s, int factor) {
    if (s.mean < 0)
        return expand_multiply(e, x, factor);
    /* One fused multiply-add per element, because mean * factor is a value per row. */
    if (s.has_few_bits)
        return expand_add(e, expand_multiply(e, x, factor), expand_negate(e, expand_multiply(e, s.mean, factor)));
    int product = expand_multiply(e, expand_subtract(e, x, s.mean), factor);
    return s.slip < 0 ? product : expand_subtract(e, product, expand_multiply(e, s.slip, factor));
}

static int normalised(struct expansion *e, int x, struct statistics s) { return deviation_times(e, x, s, s.inv); }

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* running = (1 - f) * before + f * batch, or just the batch's value if there is no previous one. An empty batch changes
   nothing. */
static void update_running(struct expansion *e, const struct tensor *out, const struct tensor *in, int batch,
                           int factor) {
    if (!out)
        return;
    /* Without a previous value or a factor, the result is one of the two numbers. */
    int before = expand_input(e, in);
    if (before < 0 || factor < 0) {
        expand_result(e, out, before < 0 ? batch : before);
        return;
    }
    int rest = expand_subtract(e, expand_number(e, 1), factor);
    int mixed = expand_add(e, expand_multiply(e, rest, before), expand_multiply(e, factor, batch));
    int length = expand(e, OPCODE_LENGTH, -1, -1);
    expand_result(e, out, expand_choice(e, OPCODE_IF_GREATER, length, expand_number(e, 0), mixed, before));
}

/* variance * n / (n - 1). */
static int unbiased(struct expansion *e, int variance) {
    int length = expand(e, OPCODE_LENGTH, -1, -1), one = expand_number(e, 1);
    int factor = expand_divide(e, length, expand_subtract(e, length, one));
    return expand_choice(e, OPCODE_IF_GREATER, length, one, expand_multiply(e, variance, factor), variance);
}

/* Statistics that are given: the operation's own inputs, or running mean and variance. */
static struct statistics given_statistics(struct expansion *e, const struct norm_forward *op, int epsilon) {
    struct statistics s = no_statistics(e, op->x);
    bool has_inverse = op->inv_variance != NULL;
    s.mean = expand_input(e, has_inverse ? op->mean : op->in_running_mean);
    s.inv = has_inverse ? expand_input(e, op->inv_variance)
                        : expand_inverse_deviation(e, expand_input(e, op->in_running_var), epsilon);
    return s;
}

/* Computes the statistics of the batch, stores those that are requested, and updates the running ones. */
static struct statistics forward_statistics(struct expansion *e, const struct norm_forward *op, int x, int epsilon) {
    struct statistics s = take_statistics(e, op->x, x, norm_has_mean(op->mode));
    s.inv = expand_inverse_deviation(e, s.variance, epsilon);
    int factor = expand_input(e, op->momentum);
    update_running(e, op->out_mean, op->in_running_mean, s.mean, factor);
    if (op->out_var)
        update_running(e, op->out_var, op->in_running_var, unbiased(e, s.variance), factor);
    if (s.mean >= 0)
        expand_result(e, op->mean, s.mean);
    expand_result(e, op->inv_variance, s.inv);
    return s;
}

/* y = scale * (x - mean) * inv + bias. A scale per row is multiplied into the factor. */
static int scaled(struct expansion *e, int x, struct statistics s, int scale, int bias) {
    /* For batch, instance and group norm, whose scale may be constant within a row. */
    bool is_per_row = scale >= 0 && !e->at[scale].is_per_element;
    int factor = is_per_row ? expand_multiply(e, scale, s.inv) : s.inv;
    /* y = x * factor + shift; both are values per row. */
    if (is_per_row && s.mean >= 0 && s.has_few_bits) {
        int moved = expand_multiply(e, s.mean, factor);
        int shift = bias < 0 ? expand_negate(e, moved) : expand_subtract(e, bias, moved);
        return expand_add(e, expand_multiply(e, x, factor), shift);
    }
    int y = deviation_times(e, x, s, factor);
    if (scale >= 0 && !is_per_row)
        y = expand_multiply(e, scale, y);
    return bias >= 0 ? expand_add(e, y, bias) : y;
}

/* The same instructions for all modes, which differ only in rows and in the operands that exist. */
weftStatus_t norm_forward_expand(const struct norm_forward *op, const struct norm_shape *shape, struct expansion *e) {
    set_rows(e, op->x, shape, op->mode == WEFT_GROUP_NORM);
    expansion_begin(e, op->math, op->x);
    TRY(expansion_needs_float(e, &op->base, "statistics"));
    int x = expand_input(e, op->x), epsilon = expand_input(e, op->epsilon);
    struct statistics s =
        norm_is_inference_of_batch(op) ? given_statistics(e, op, epsilon) : forward_statistics(e, op, x, epsilon);
    int scale = expand_input(e, op->scale), bias = expand_input(e, op->bias);
    expand_result(e, op->y, scaled(e, x, s, scale, bias));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* dx = g * factor - (deviation * slope + level), where level is 0 without a mean. */
static void store_gradient(struct expansion *e, const struct norm_backward *op, int g, int factor, int deviation,
                           int slope, int level) {
    int rest = expand_multiply(e, deviation, slope);
    rest = norm_has_mean(op->mode) ? expand_add(e, rest, level) : rest;
    expand_result(e, op->dx, expand_subtract(e, expand_multiply(e, g, factor), rest));
}

/* dx = inv * (g - mean of g - xhat * mean of g * xhat), where g = scale * dy. With a scale per position in the row, the
   sums are those of g. */
static void scaled_gradient(struct expansion *e, const struct norm_backward *op, struct statistics s, int x, int dy,
                            int scale, int weighted) {
    int g = expand_multiply(e, scale, dy), length = expand(e, OPCODE_LENGTH, -1, -1);
    int sum_g = expand_sum(e, g), sum_weighted = expand_sum(e, expand_multiply(e, scale, weighted));
    int slope = expand_multiply(e, expand_share(e, sum_weighted, length), s.inv);
    int level = expand_multiply(e, expand_share(e, sum_g, length), s.inv);
    if (s.mean >= 0 && !s.has_few_bits) {
        store_gradient(e, op, g, s.inv, normalised(e, x, s), slope, level);
        return;
    }
    /* With a narrow type, or without a mean, xhat * slope is x * (slope * inv), and the mean's part is added to the
       level. */
    slope = expand_multiply(e, slope, s.inv);
    if (s.mean >= 0)
        level = expand_subtract(e, level, expand_multiply(e, s.mean, slope));
    store_gradient(e, op, g, s.inv, x, slope, level);
}

/* With one scale per row, or none, the sums are those of dy and of dy * xhat, which are also the gradients of bias and
   scale. */
static void row_gradient(struct expansion *e, const struct norm_backward *op, struct statistics s, int x, int dy,
                         int scale, int *row_dy, int *row_weighted) {
    int one = expand_number(e, 1), length = expand(e, OPCODE_LENGTH, -1, -1);
    int deviation = deviation_times(e, x, s, one), product = expand_sum(e, expand_multiply(e, dy, deviation));
    *row_dy = expand_sum(e, dy);
    *row_weighted = expand_multiply(e, product, s.inv);
    int factor = scale < 0 ? s.inv : expand_multiply(e, scale, s.inv);
    int slope = expand_multiply(e, expand_multiply(e, expand_share(e, *row_weighted, length), factor), s.inv);
    int level = expand_multiply(e, expand_share(e, *row_dy, length), factor);
    /* The mean's part is added to the level, which is per row, so that x replaces the deviation. */
    if (s.mean >= 0 && s.has_few_bits) {
        level = expand_subtract(e, level, expand_multiply(e, s.mean, slope));
        deviation = x;
    }
    store_gradient(e, op, dy, factor, deviation, slope, level);
}

/* Gradient of the scale or bias: a sum over all rows that share the parameter. `row` is the value's sum over one row,
   or -1. */
static void sum_to(struct expansion *e, const struct tensor *tensor, int value, int row) {
    if (!tensor)
        return;
    int sum = expand(e, OPCODE_SUM_TO, value, row);
    e->at[sum].tensor = tensor;
}

/* Statistics that forward stored, or recomputed from x and epsilon. */
static struct statistics backward_statistics(struct expansion *e, const struct norm_backward *op, int x) {
    struct statistics s = no_statistics(e, op->x);
    if (op->inv_variance) {
        s.mean = expand_input(e, op->mean);
        s.inv = expand_input(e, op->inv_variance);
        return s;
    }
    s = take_statistics(e, op->x, x, norm_has_mean(op->mode));
    s.inv = expand_inverse_deviation(e, s.variance, expand_input(e, op->epsilon));
    return s;
}

/* The sums that dx needs depend on the scale: one per position in the row, or one per row. */
weftStatus_t norm_backward_expand(const struct norm_backward *op, const struct norm_shape *shape, struct expansion *e) {
    set_rows(e, op->x, shape, op->mode == WEFT_GROUP_NORM);
    expansion_begin(e, op->math, op->x);
    TRY(expansion_needs_float(e, &op->base, "statistics"));
    int x = expand_input(e, op->x), dy = expand_input(e, op->dy), row_dy = -1, row_weighted = -1;
    struct statistics s = backward_statistics(e, op, x);
    /* dy * xhat, which dscale sums over rows and dx over the row. */
    int scale = expand_input(e, op->scale), weighted = expand_multiply(e, dy, normalised(e, x, s));
    if (scale >= 0 && e->at[scale].is_per_element)
        scaled_gradient(e, op, s, x, dy, scale, weighted);
    else
        row_gradient(e, op, s, x, dy, scale, &row_dy, &row_weighted);
    sum_to(e, op->dscale, weighted, row_weighted);
    sum_to(e, op->dbias, dy, row_dy);
    /* For engines that compute dscale and dbias in a separate pass with norm_expand_sums. */
    e->mean = s.mean;
    e->inv = s.inv;
    return WEFT_STATUS_SUCCESS;
}

/* mean, inv: values of OPCODE_GIVEN, or negative if they are read from the operation's own inputs. */
void norm_expand_sums(struct expansion *e, const struct norm_backward *op, const struct tensor *dscale,
                      const struct tensor *dbias, int mean, int inv) {
    if (dscale) {
        struct statistics s = no_statistics(e, op->x);
        s.mean = mean < 0 ? expand_input(e, op->mean) : expand_given(e, mean);
        s.inv = inv < 0 ? expand_input(e, op->inv_variance) : expand_given(e, inv);
        int dy = expand_input(e, op->dy), xhat = normalised(e, expand_input(e, op->x), s);
        expand_result(e, dscale, expand_sum(e, expand_multiply(e, dy, xhat)));
    }
    if (dbias)
        expand_result(e, dbias, expand_sum(e, expand_input(e, op->dy)));
}
