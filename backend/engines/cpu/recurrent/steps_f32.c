/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of recurrent layers in float. */
#include "base/dtype.h"
#include "base/number.h"
#include "engines/cpu/core/loops.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/recurrent/recurrent.h"

#include <string.h>

#define real float
#define TO_REAL dtype_to_f32
#define FROM_REAL dtype_from_f32
#define FIND_LOOP loop_f32
#define RUN recurrent_run_f32
#include "engines/cpu/recurrent/steps_define.h"
