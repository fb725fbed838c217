/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the patch families of Hopper: TMA boxes of channels-last images. */
#ifndef WEFT_ENGINES_CUDA_PATCH_H
#define WEFT_ENGINES_CUDA_PATCH_H

#include "engines/cuda/product/hopper/hopper.h"

/* True if TMA can load boxes of a 16-bit operand: channels are contiguous, and all other strides and the address are
   multiples of 16 bytes. */
bool patch_is_aligned(const struct conv_operand *operand);

/* Map of an image or of filters: channels, columns, lines, slices (only of volumes), and images or filters (`outer`).
   box: extents of channels, columns, lines and outer; one slice. The swizzle is that of a box's rows. */
struct cuda_map patch_map(const struct conv_operand *operand, bool is_volume, int64_t channels, int64_t outer,
                          const int box[4]);

#endif
