/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/attention/modifier.h"

#include "engines/cpu/core/compute_type.h"
#include "engines/cpu/core/fastmath.h"
#include "engines/cpu/core/loops.h"
#include "engines/cpu/core/vector.h"

#include <string.h>

/* ---- Derivatives of modes: one loop each, from the mode table ---------------------------------------------------- */

/* Arrays of a node: scaled operands, result and its gradient, and the gradients of the operands. */
struct slopes {
    const float *x, *b, *t, *y, *dy;
    float *dx, *db;
};

#define exp(x) fast_exp(x)
#define log(x) fast_log(x)
#define sin(x) sinf(x)
#define cos(x) cosf(x)
#define pow(x, y) powf(x, y)
#define C(literal) ((float)(literal))
#define GRADIENT(name, of_x, of_b)                                                                                     \
    WIDE static void slope_##name(int64_t count, const struct slopes *s) {                                             \
        const float *xs = s->x, *bs = s->b, *ts = s->t, *ys = s->y, *dys = s->dy;                                      \
        float *dx = s->dx, *db = s->db;                                                                                \
        INDEPENDENT                                                                                                    \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            const float x = xs[i], b = bs[i], t = ts[i], y = ys[i], dy = dys[i];                                       \
            (void)x, (void)b, (void)t, (void)y;                                                                        \
            dx[i] = (float)(of_x);                                                                                     \
            db[i] = (float)(of_b);                                                                                     \
        }                                                                                                              \
    }
#define GRADIENT_BY(name, backward)
#include "graph/ops/pointwise_gradients.h"
#undef GRADIENT
#undef GRADIENT_BY

static void (*slope_of(int mode))(int64_t count, const struct slopes *s) {
    switch (mode) {
#define GRADIENT(name, of_x, of_b)                                                                                     \
    case WEFT_POINTWISE_##name:                                                                                        \
        return slope_##name;
#define GRADIENT_BY(name, backward)
#include "graph/ops/pointwise_gradients.h"
#undef GRADIENT
#undef GRADIENT_BY
    }
    return NULL;
}

/* A gradient of 0 stays 0 for any derivative. */
WIDE static void add_slope(int64_t count, float *sum, const float *slope, const float *dy, float factor) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        sum[i] += fast_pick(dy[i] == 0, 0, factor * slope[i]);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* floats of a tile; tiles in addition to those of values and gradients */
enum { TILE = KEY_TILE * PANEL, SCRATCH = 4 };

/* State of the backward pass over one tile. */
struct carrier {
    const struct score_modifier *m;
    const struct scores *scores;
    const struct panel *panel;
    int64_t key, keys, count;            /* count: number of elements */
    float *values, *gradients, *scratch; /* [value][TILE], twice, and [SCRATCH][TILE] */
};

static const struct pointwise_op *op_at(const struct carrier *c, int node) {
    return (const struct pointwise_op *)c->m->graph->nodes[node].op;
}

static float *value_at(const struct carrier *c, const struct tensor *tensor) {
    return tensor ? c->values + graph_find_value(c->m->graph, tensor) * TILE : NULL;
}

static float *gradient_at(const struct carrier *c, const struct tensor *tensor) {
    return c->gradients + graph_find_value(c->m->graph, tensor) * TILE;
}

/* Returns x itself if the factor is 1, otherwise its multiple in a scratch tile. */
static const float *scaled(const struct carrier *c, const struct tensor *tensor, double factor, int scratch) {
    const float *x = value_at(c, tensor);
    float *to = c->scratch + scratch * TILE;
    if (!x || factor == 1)
        return x;
    for (int64_t i = 0; i < c->count; i++)
        to[i] = x[i] * (float)factor;
    return to;
}

/* Indices along a dimension of [batch, head, query, key]. */
static void fill_index(const struct carrier *c, int64_t axis, float *to) {
    for (int64_t k = 0; k < c->keys; k++)
        for (int i = 0; i < PANEL; i++) {
            const int64_t index[] = {c->panel->batch, c->panel->head[i], c->panel->row[i], c->key + k};
            to[k * PANEL + i] = (float)index[axis];
        }
}

static void evaluate_node(const struct carrier *c, const struct pointwise_op *op) {
    struct pointwise_operands operands = pointwise_operands(op);
    const struct pointwise_parameters parameters = pointwise_parameters(op);
    float *out = value_at(c, operands.out);
    if (pointwise_find_mode(op->pw->mode)->form == FORM_INDEX) {
        fill_index(c, op->pw->axis, out);
        return;
    }
    const float *x = scaled(c, operands.x, op->alpha1, 0), *b = scaled(c, operands.b, op->alpha2, 1);
    const float *t = value_at(c, operands.t);
    loop_f32(op->pw->mode)(c->count, out, x, b ? b : x, t ? t : x, &parameters);
}

/* Evaluates everything that `wanted` depends on; the products, and an incoming gradient, are already there. */
static void evaluate_all(const struct carrier *c, int wanted) {
    const struct graph *graph = c->m->graph;
    bool needed[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_needed(c->m, wanted, needed);
    for (int v = 0; v < graph->value_count; v++)
        if (needed[v] && graph->values[v].producer < 0 && v != c->m->input && v != c->m->gradient_input) {
            struct view view = view_of(&c->scores->bindings, graph->values[v].tensor);
            panel_spread(c->panel, &view, c->key, c->keys, c->values + v * TILE);
        }
    for (int n = 0; n < graph->node_count; n++)
        if (needed[graph_find_value(graph, pointwise_operands(op_at(c, n)).out)])
            evaluate_node(c, op_at(c, n));
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Adds the gradients of a node's operands. Factors apply twice: to the arguments of the formula, and as its inner
   derivative. */
static void carry_node(const struct carrier *c, const struct pointwise_op *op) {
    const struct pointwise_gradient *gradient = pointwise_find_gradient(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    const struct pointwise_parameters parameters = pointwise_parameters(op);
    const float *x = scaled(c, operands.x, op->alpha1, 0), *b = scaled(c, operands.b, op->alpha2, 1);
    const float *t = value_at(c, operands.t), *dy = gradient_at(c, operands.out);
    struct slopes slopes = {
        x, b ? b : x, t ? t : x, value_at(c, operands.out), dy, c->scratch + 2 * TILE, c->scratch + 3 * TILE};
    if (gradient->backward_mode >= 0)
        loop_f32(gradient->backward_mode)(c->count, slopes.dx, x, dy, x, &parameters);
    else
        slope_of(op->pw->mode)(c->count, &slopes);
    add_slope(c->count, gradient_at(c, operands.x), slopes.dx, dy, (float)op->alpha1);
    if (b && gradient->backward_mode < 0)
        add_slope(c->count, gradient_at(c, operands.b), slopes.db, dy, (float)op->alpha2);
}

/* In reverse order, all readers of a value have added their part before the value's producer propagates it. */
static const float *derive(const struct carrier *c, const float *ds) {
    const struct score_modifier *m = c->m;
    bool dependent[SCORE_MODIFIER_VALUES_MAX], needed[SCORE_MODIFIER_VALUES_MAX];
    evaluate_all(c, m->output);
    memset(c->gradients, 0, (size_t)(m->graph->value_count * TILE) * sizeof *c->gradients);
    memcpy(c->gradients + m->output * TILE, ds, (size_t)c->count * sizeof *ds);
    score_modifier_mark_dependent(m, m->input, dependent);
    score_modifier_mark_needed(m, m->output, needed);
    for (int n = m->graph->node_count; n-- > 0;) {
        int out = graph_find_value(m->graph, pointwise_operands(op_at(c, n)).out);
        if (dependent[out] && needed[out])
            carry_node(c, op_at(c, n));
    }
    return c->gradients + m->input * TILE;
}

void modifier_carry(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys,
                    const float *products, const float *weights, float *ds, float *room) {
    const struct score_modifier *m = &scores->a->modifier;
    int64_t values = (int64_t)m->graph->value_count * TILE;
    struct carrier carrier = {.m = m,
                              .scores = scores,
                              .panel = panel,
                              .key = key,
                              .keys = keys,
                              .count = keys * PANEL,
                              .values = room,
                              .gradients = room + values,
                              .scratch = room + 2 * values};
    memcpy(carrier.values + m->input * TILE, products, (size_t)carrier.count * sizeof *products);
    const float *gradients;
    if (m->gradient_input >= 0) {
        memcpy(carrier.values + m->gradient_input * TILE, ds, (size_t)carrier.count * sizeof *ds);
        evaluate_all(&carrier, m->gradient_output);
        gradients = carrier.values + m->gradient_output * TILE;
    } else {
        gradients = derive(&carrier, ds);
    }
    for (int64_t i = 0; i < carrier.count; i++)
        ds[i] = weights[i] == 0 ? 0 : gradients[i];
}

int64_t modifier_floats(const struct score_modifier *modifier) {
    return modifier->graph ? (2 * (int64_t)modifier->graph->value_count + SCRATCH) * TILE : 0;
}

weftStatus_t modifier_check_gradient(const struct score_modifier *modifier, const struct descriptor *op) {
    for (int n = 0; n < modifier->graph->node_count; n++) {
        const struct pointwise_op *each = (const struct pointwise_op *)modifier->graph->nodes[n].op;
        weftDataType_t type = (weftDataType_t)pointwise_operands(each).out->type;
        bool is_index = pointwise_find_mode(each->pw->mode)->form == FORM_INDEX;
        if (node_is_wide(each) || (!is_index && type != WEFT_DATA_FLOAT && !dtype_is_boolean(type)))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE,
                 "%s: its score modifier computes an intermediate in %s, which its gradient does not support. Use "
                 "FLOAT.",
                 descriptor_label(op), dtype_of(type)->name);
    }
    return WEFT_STATUS_SUCCESS;
}
