/* SPDX-License-Identifier: Apache-2.0 */
/* What the patch families of Hopper share: boxes of images that lie channels last. */
#ifndef WEFT_ENGINES_CUDA_PATCH_H
#define WEFT_ENGINES_CUDA_PATCH_H

#include "engines/cuda/product/hopper/hopper.h"

/* Whether the copy engine can fetch boxes of an operand of 16 bits: channels are neighbours, and all else begins at
   multiples of 16 bytes. */
bool patch_is_aligned(const struct conv_operand *operand);

/* An image, or filters: channels, columns, lines, slices (of volumes), and which one. box: of channels, columns, lines
   and the last; one slice. The swizzle is that of a box's rows. */
struct cuda_map patch_map(const struct conv_operand *operand, bool is_volume, int64_t channels, int64_t outer,
                          const int box[4]);

#endif
