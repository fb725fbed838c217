/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of an OpenMP runtime that the program has brought, as PyTorch does. After each loop of the program's own
   they wait awake, for milliseconds, and whoever else wants their cores waits as long: a second pool beside them halves
   the speed of both. */
#ifndef WEFT_ENGINES_CPU_OPENMP_H
#define WEFT_ENGINES_CPU_OPENMP_H

/* Looks whether there is a runtime by now: programs load theirs at any time. */
void openmp_find(void);

/* The number of threads that a loop of the caller has; 0 if there is no runtime, it is set to more than `most`, or this
   process is a fork's child, which has none of the threads that the runtime believes in. 1: the caller wants no other
   thread, as after torch.set_num_threads(1). */
int openmp_threads(int most);

/* Runs body(thread) once on each of so many threads, numbered from the caller's 0 on, and returns when all are done. */
void openmp_run(int threads, void (*body)(int thread));

#endif
