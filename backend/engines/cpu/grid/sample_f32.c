/* SPDX-License-Identifier: Apache-2.0 */
/* Samples in float. */
#define REAL float
#define NAME(name) name##_f32
#define TO_REAL dtype_to_f32
#define FROM_REAL dtype_from_f32
#define STORED WEFT_DATA_FLOAT
#include "engines/cpu/grid/sample_define.h"
