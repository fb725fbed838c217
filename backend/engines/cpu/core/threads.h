/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool of the CPU engines: one per process, shared by all plans. It splits a loop over the threads and must
   not know what the loop computes. It uses OpenMP's threads if the program has them (openmp.h), otherwise its own. */
#ifndef WEFT_ENGINES_CPU_THREADS_H
#define WEFT_ENGINES_CPU_THREADS_H

#include "weft/weft_enums.h"

#include <stdint.h>

/* Number of threads of a loop, including the caller: the processors that the affinity mask and control groups allow,
   capped by the environment variable WEFT_THREADS, at least 1. Constant for the life of the process. */
int threads_count(void);

/* Starts the pool on the first call. Called when a plan is built, so that execution never creates a thread. Before
   that, and in a child after fork, every loop runs on its caller only. Returns INTERNAL_ERROR if the system cannot
   create a thread. */
weftStatus_t threads_start(void);

/* Runs body(context, task) once for every task in [0, tasks) and returns when all have finished. Adjacent tasks start
   on the same thread, in ascending order, and stay on it from job to job as long as all threads are equally fast.
   Allocates nothing. If the pool is in use, by another thread or by an enclosing loop, the caller runs all tasks
   itself, in order. */
void threads_for(int64_t tasks, void (*body)(void *context, int64_t task), void *context);

#endif
