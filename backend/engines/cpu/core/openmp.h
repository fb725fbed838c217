/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of an OpenMP runtime that the program has loaded, as PyTorch does. After each of the program's own loops
   these threads spin for milliseconds, and other threads that need their cores wait for that long: a second pool next
   to them halves the speed of both. */
#ifndef WEFT_ENGINES_CPU_OPENMP_H
#define WEFT_ENGINES_CPU_OPENMP_H

/* Looks for a loaded runtime. Programs may load one at any time. */
void openmp_find(void);

/* Number of threads that a loop of this caller may use. 0 if no runtime is loaded, if its limit exceeds `most`, or if
   this process is a forked child, in which the runtime's threads do not exist. 1 if the caller wants no other threads,
   as after torch.set_num_threads(1). */
int openmp_threads(int most);

/* Runs body(thread) once on each of `threads` threads, numbered from 0, the caller, and returns when all have
   finished. */
void openmp_run(int threads, void (*body)(int thread));

#endif
