/* SPDX-License-Identifier: Apache-2.0 */
/* The attention family: one sdpa_fwd or sdpa_bwd. Scores stay on chip, so memory grows linearly with the sequences.
   This file predicts times; forward.c and backward.c choose tiles. */
#include "engines/cuda/attention/attention.h"
#include "base/number.h"
#include "engines/cuda/families.h"

enum { BLOCK_QUERIES = 64, SPLIT_KEYS = 256 };
static const double FP8_COST = 3.2; /* slowdown, because operands are converted to 16 bits one by one (H200, heads of
                                       256) */
static const double MEMORY_EFFICIENCY = 0.75; /* share of the nominal rate, measured on an H200 that decodes */
static const double START_SECONDS = 3e-6, KERNEL_SECONDS = 2e-6, MERGE_SECONDS = 5e-6, PART_SECONDS = 0.2e-6;
/* Cycles of an SM per score for each term. Hopper's kernels had these costs while they, like these kernels, read a bias
   by elements, had no single-instruction tanh, and exchanged dropout bits one by one. */
static const double BIAS_CLOCKS = 0.15, MODIFIER_CLOCKS = 0.11, ALIBI_CLOCKS = 0.01, DROPOUT_CLOCKS = 0.5;
/* Prologue and epilogue of a block, for both passes of the backward; not less than Hopper's. */
static const double BLOCK_SECONDS = 1.6e-6, BACKWARD_BLOCK_SECONDS = 18e-6;

/* scores: their number. */
static double predict_terms(const struct cuda_attention *c, double scores) {
    double clocks = (c->a->bias ? BIAS_CLOCKS : 0) + (c->a->modifier.graph ? MODIFIER_CLOCKS : 0) +
                    (c->a->alibi ? ALIBI_CLOCKS : 0) + (attention_drops(c->a) ? DROPOUT_CLOCKS : 0);
    return scores * clocks / (c->device->cuda.clock_khz * 1e3 * c->device->cuda.multiprocessors);
}

/* If there are few blocks: the cost of an incomplete wave, or of merging key splits with a second kernel, which takes
   longer with more splits. */
static double predict_merge(const struct cuda_attention *c, double blocks) {
    double wanted = 2 * c->device->cuda.multiprocessors / blocks, useful = (double)c->keys / (2 * BLOCK_QUERIES);
    double parts = wanted < useful ? wanted : useful;
    if (blocks >= c->device->cuda.multiprocessors)
        return 0;
    return c->keys < SPLIT_KEYS ? KERNEL_SECONDS : MERGE_SECONDS + parts * PART_SECONDS;
}

/* Sums the time of a wave of blocks: its multiplications, and a constant per block that is not hidden. */
static double predict(const struct cuda_attention *c) {
    const struct node *node = region_node(c->region, 0);
    const struct cuda_properties *cuda = &c->device->cuda;
    double bytes = 0, recomputation = c->backward ? 7.0 / 5 : 1; /* dQ recomputes the scores */
    /* Blocks of BLOCK_QUERIES, about the size of forward tiles; `waves`: total time in units of a block's time. */
    double blocks = (double)(c->batches * c->heads * divide_up(c->queries, BLOCK_QUERIES));
    double waves = blocks > 0 ? (double)divide_up((int64_t)blocks, cuda->multiprocessors) / blocks : 0;
    for (int i = 0; i < node->operand_count; i++)
        bytes += (double)tensor_own_bytes(c->graph->values[node->operands[i]].tensor);
    double moving = bytes / ((double)cuda->bandwidth * MEMORY_EFFICIENCY);
    double multiplying = attention_predict_flops(c, op_flops(node->op) * attention_visible_fraction(c) * recomputation);
    if (dtype_is_fp8((weftDataType_t)c->a->q->type))
        multiplying *= FP8_COST;
    /* the backward pass computes scores twice */
    double scores = (double)(c->batches * c->heads * c->queries) * (double)c->keys * (c->backward ? 2 : 1);
    multiplying += predict_terms(c, scores * attention_visible_fraction(c));
    double starting = blocks * (c->backward ? BACKWARD_BLOCK_SECONDS : BLOCK_SECONDS);
    double computing = (multiplying * cuda->multiprocessors + starting) * waves;
    /* other kernels of the step */
    double others = c->backward ? KERNEL_SECONDS + attention_backward_predict_biases(c) : predict_merge(c, blocks);
    return START_SECONDS + others + (moving > computing ? moving : computing);
}

/* Also searches a tile, so that a device without enough shared memory for the smallest one is declined. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct cuda_attention c;
    TRY(attention_analyse(&c, region, device));
    TRY(c.forward ? attention_forward_accepts(&c) : attention_backward_accepts(&c));
    offer->seconds = predict(&c);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    struct cuda_attention c;
    struct cuda_step *state;
    TRY(attention_analyse(&c, &step->region, device));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    return c.forward ? attention_forward_build(step, &c, state, arena)
                     : attention_backward_build(step, &c, state, arena);
}

const struct family cuda_attention = {
    .name = "cuda.attention",
    .doc = "scaled dot-product attention and its gradients, with scores kept on chip",
    .accepts = accepts,
    .build = build,
};
