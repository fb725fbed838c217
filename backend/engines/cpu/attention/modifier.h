/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a score modifier, tile by tile: its operations are evaluated on whole tiles and differentiated in
   reverse with the derivatives of their modes. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_MODIFIER_H
#define WEFT_ENGINES_CPU_ATTENTION_MODIFIER_H

#include "engines/cpu/attention/scores.h"

/* Checks that float can represent all intermediates of the modifier; otherwise fails with a message. */
weftStatus_t modifier_check_gradient(const struct score_modifier *modifier, const struct descriptor *op);

/* Scratch floats that modifier_carry needs. */
int64_t modifier_floats(const struct score_modifier *modifier);

/* Turns gradients of the modified scores into those of the products, in place; 0 where a weight is 0. */
void modifier_carry(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys,
                    const float *products, const float *weights, float *ds, float *room);

#endif
