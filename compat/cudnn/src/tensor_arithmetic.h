/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEFT_CUDNN_TENSOR_ARITHMETIC_H
#define WEFT_CUDNN_TENSOR_ARITHMETIC_H

#include "src/descriptors.h"

/* to = alpha from + beta to, where extents of 1 broadcast; layouts and types may differ. */
cudnnStatus_t add_scaled(cudnnHandle_t handle, const void *alpha, const struct shape *from_shape, const void *from,
                         const void *beta, const struct shape *to_shape, void *to);

/* to = value, whose type is the tensor's. */
cudnnStatus_t fill(cudnnHandle_t handle, const struct shape *shape, void *to, const void *value);

#endif
