/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of an OpenMP runtime that the program has brought, as PyTorch does. After each loop of the program's own
   they wait awake, for milliseconds, and whoever else wants their cores waits as long: a second pool beside them halves
   the speed of both. */
#ifndef WEFT_ENGINES_CPU_OPENMP_H
#define WEFT_ENGINES_CPU_OPENMP_H

#include <stdbool.h>

/* Looks whether there is a runtime by now: programs load theirs at any time. */
void openmp_find(void);

/* Runs body(context) once on each of the runtime's threads, the caller's among them, and returns when all are done.
   False, and nothing is run, where there is no runtime, it is set to one thread or to more than `most`, or this
   process is a fork's child, which has none of the threads that the runtime believes in. */
bool openmp_run(int most, void (*body)(void *context), void *context);

#endif
