/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU engines' thread pool: one per process, shared by all plans. It splits one loop over the
   threads and must not know what the loop computes. Its threads are OpenMP's where the program has
   them (openmp.h), else its own. */
#ifndef WEFT_ENGINES_CPU_THREADS_H
#define WEFT_ENGINES_CPU_THREADS_H

#include "weft/weft_enums.h"

#include <stdint.h>

/* How many threads work on a loop, the caller included: the processors that this process's affinity mask
   and control groups leave it, capped by the environment variable
   WEFT_THREADS; at least 1. Constant for the life of the process. */
int threads_count(void);

/* Makes the pool, the first time; called when a plan is built, so that executing never creates a
   thread. Until then, and in a child after fork, every loop runs on its caller alone.
   Fails with INTERNAL_ERROR when the system gives no thread. */
weftStatus_t threads_start(void);

/* Runs body(context, task) once for every task in [0, tasks), and returns when all are done.
   Neighbouring tasks start on one thread, in ascending order, and on the same one job after job as
   long as all threads are as quick. Allocates nothing. When the pool is taken, by
   another thread or by the loop that this call is made from, the caller runs all tasks itself, in
   order. */
void threads_for(int64_t tasks, void (*body)(void *context, int64_t task), void *context);

#endif
