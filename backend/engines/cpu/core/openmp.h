/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of an OpenMP runtime that the program has brought, as PyTorch does. After each loop of the program's own
   they wait awake, for milliseconds, and whoever else wants their cores waits as long: a second pool beside them halves
   the speed of both. */
#ifndef WEFT_ENGINES_CPU_OPENMP_H
#define WEFT_ENGINES_CPU_OPENMP_H

/* Looks whether there is a runtime by now: programs load theirs at any time. */
void openmp_find(void);

/* How many threads a loop would have; 0 where there is no runtime, it is set to one thread or to more than `most`, or
   this process is a fork's child, which has none of the threads that the runtime believes in. */
int openmp_threads(int most);

/* Runs body(thread) once on each of so many threads, numbered from the caller's 0 on, and returns when all are done. */
void openmp_run(int threads, void (*body)(int thread));

#endif
