/* SPDX-License-Identifier: Apache-2.0 */
/* Samples in double. */
#define REAL double
#define NAME(name) name##_f64
#define TO_REAL dtype_to_f64
#define FROM_REAL dtype_from_f64
#define STORED WEFT_DATA_DOUBLE
#include "engines/cpu/grid/sample_define.h"
