/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a score modifier, tile by tile: its operations are evaluated on whole tiles, and carried back through
   the derivatives of their modes. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_MODIFIER_H
#define WEFT_ENGINES_CPU_ATTENTION_MODIFIER_H

#include "engines/cpu/attention/scores.h"

/* Whether floats hold whatever the modifier makes on its way, or a sentence. */
weftStatus_t modifier_check_gradient(const struct score_modifier *modifier, const struct descriptor *op);

/* Floats of room that modifier_carry wants. */
int64_t modifier_floats(const struct score_modifier *modifier);

/* From gradients of the modified scores to those of the products, in place; 0 where a weight is 0. */
void modifier_carry(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys,
                    const float *products, const float *weights, float *ds, float *room);

#endif
