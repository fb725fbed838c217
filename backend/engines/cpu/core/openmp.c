/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the entry points that GCC's compiled code calls: libgomp provides them, and so do LLVM's and Intel's
   runtimes. */
#define _GNU_SOURCE 1 /* dladdr */
#include "engines/cpu/core/openmp.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef void parallel_call(void (*body)(void *), void *context, unsigned threads, unsigned flags);
typedef int count_call(void);

static _Atomic(parallel_call *) parallel;   /* NULL if no runtime exists, or after a fork; written last */
static _Atomic(count_call *) count, number; /* omp_get_max_threads and omp_get_thread_num */
static _Atomic bool is_child;

static void forget(void) {
    atomic_store(&is_child, true);
    atomic_store(&parallel, NULL);
}

/* Registered at load time, because the program may fork before a plan is built. */
__attribute__((constructor)) static void watch_forks(void) {
    if (pthread_atfork(NULL, NULL, forget))
        forget();
}

/* Pins a library that was opened, because its code will be called later. */
static void keep_loaded(void *address) {
    Dl_info info;
    if (dladdr(address, &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

void openmp_find(void) {
    if (atomic_load(&parallel) || atomic_load(&is_child))
        return;
    void *program = dlopen(NULL, RTLD_NOW);
    void *call = program ? dlsym(program, "GOMP_parallel") : NULL;
    void *counts = program ? dlsym(program, "omp_get_max_threads") : NULL;
    void *numbers = program ? dlsym(program, "omp_get_thread_num") : NULL;
    if (call && counts && numbers) {
        keep_loaded(call);
        atomic_store(&count, *(count_call **)&counts);
        atomic_store(&number, *(count_call **)&numbers);
        atomic_store(&parallel, *(parallel_call **)&call);
    }
    if (program)
        dlclose(program);
}

struct loop {
    void (*body)(int thread);
};

/* Queried for each loop: a caller's second thread may be the third one of another caller. */
static void run_body(void *loop) { ((struct loop *)loop)->body(atomic_load(&number)()); }

int openmp_threads(int most) {
    int threads = atomic_load(&parallel) ? atomic_load(&count)() : 0;
    return threads > most ? 0 : threads;
}

void openmp_run(int threads, void (*body)(int thread)) {
    parallel_call *call = atomic_load(&parallel);
    call(run_body, &(struct loop){body}, (unsigned)threads, 0);
}
