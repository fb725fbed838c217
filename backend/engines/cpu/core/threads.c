/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool. It runs one loop (a "job") at a time. The caller opens a door; awake workers enter and take tasks;
   the caller shuts the door and waits for the workers inside. Each thread starts with its own share of the tasks, so
   that the same parts of the same arrays stay in the same core's cache from job to job, and then helps with the shares
   of others. A worker that sleeps through a job is not waited for. If the program has OpenMP threads, these are used as
   workers. This file must not know what a task computes. */
#include "engines/cpu/core/threads.h"

#include "base/number.h"
#include "base/status.h"
#include "engines/cpu/core/openmp.h"
#include "runtime/device.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The door: number of workers inside (16 bits), open flag (1 bit), job number (the rest). */
#define DOOR_INSIDE UINT64_C(0xffff)
#define DOOR_OPEN UINT64_C(0x10000)
#define DOOR_JOB 17

enum {
    MAX_THREADS = 4096, /* fits into the door's count */
    /* nanoseconds to spin before sleeping, about the cost of a wake-up; timed, because a pause may take 10 or 50 ns */
    SPIN = 50000
};

/* Tasks next .. end - 1 of a share have not been taken. Each share has a cache line of its own. */
static struct share {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} shares[MAX_THREADS];

/* taken guards shares, body and context: only the owner writes them, while the door is shut. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened, emptied;
    _Atomic int workers;  /* 0 until the pool is started, and in a forked child */
    _Atomic int sleepers; /* workers that wait on `opened` */
    _Atomic bool is_busy; /* a caller owns the fields below */
    _Atomic uint64_t door;
    int share_count;
    void (*body)(void *context, int64_t task);
    void *context;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER, .emptied = PTHREAD_COND_INITIALIZER};

/* Written under start_once, read after it. */
static weftStatus_t start_status = WEFT_STATUS_SUCCESS;
static int start_error; /* errno of the thread that could not be created */
static pthread_once_t start_once = PTHREAD_ONCE_INIT;

int threads_count(void) { return (int)min64(device_host_threads(), MAX_THREADS); }

/* Tells the core that this is a spin loop: saves energy and lets the sibling hyperthread run. */
static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* about 10 ns, like x86's pause; "yield" takes no time on most cores */
#endif
}

/* Enters the open job, unless it is job *seen, which this worker has already left. */
static bool enter(uint64_t *seen) {
    /* On failure compare_exchange reloads `door`, and the loop checks it again. */
    uint64_t door = atomic_load(&pool.door);
    while ((door & DOOR_OPEN) && door >> DOOR_JOB != *seen) {
        if (atomic_compare_exchange_weak(&pool.door, &door, door + 1)) {
            *seen = door >> DOOR_JOB;
            return true;
        }
    }
    return false;
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Spins before it sleeps, because the jobs of a plan follow each other within microseconds, and spins again after a
   sleep: a worker that wakes too late for one job is ready for the next. */
static void await_job(uint64_t *seen) {
    for (bool is_inside = false; !is_inside;) {
        for (int64_t end = nanoseconds() + SPIN; nanoseconds() < end; pause_briefly())
            if (enter(seen))
                return;
        /* A caller opens the door and then looks for sleepers; a worker registers as a sleeper and then looks at the
           door. So at least one of them notices the other. */
        pthread_mutex_lock(&pool.lock);
        atomic_fetch_add(&pool.sleepers, 1);
        is_inside = enter(seen);
        if (!is_inside)
            pthread_cond_wait(&pool.opened, &pool.lock);
        atomic_fetch_sub(&pool.sleepers, 1);
        pthread_mutex_unlock(&pool.lock);
    }
}

static void run_share(struct share *share) {
    int64_t task;
    /* Reads before the atomic increment: a finished share stays in every cache. */
    while (atomic_load(&share->next) < share->end && (task = atomic_fetch_add(&share->next, 1)) < share->end)
        pool.body(pool.context, task);
}

/* Runs the thread's own share, then the remaining tasks of other shares. A late thread finds none and leaves. */
static void run_tasks(int thread) {
    for (int i = 0; i < pool.share_count; i++)
        run_share(&shares[(thread + i) % pool.share_count]);
}

/* Shares are equal to within one task. */
static void cut_shares(int64_t tasks, int threads) {
    pool.share_count = (int)min64(tasks, threads);
    for (int i = 0; i < pool.share_count; i++) {
        atomic_store(&shares[i].next, i * tasks / pool.share_count);
        shares[i].end = (i + 1) * tasks / pool.share_count;
    }
}

/* Only the last worker to leave a shut door signals. The lock prevents the signal from falling between the caller's
   check and its wait. */
static void leave(void) {
    uint64_t before = atomic_fetch_sub(&pool.door, 1);
    if (!(before & DOOR_OPEN) && (before & DOOR_INSIDE) == 1) { /* the caller may be asleep */
        pthread_mutex_lock(&pool.lock);
        pthread_cond_signal(&pool.emptied);
        pthread_mutex_unlock(&pool.lock);
    }
}

/* Worker main loop: one job after another until the process ends. number: the number of the thread; the caller is 0. */
static void *work(void *number) {
    uint64_t seen = 0;
    for (;;) {
        await_job(&seen);
        run_tasks((int)(intptr_t)number);
        leave();
    }
    return NULL;
}

/* Wakes at most as many workers as tasks are left, so that each one gets at least one task. */
static void wake_workers(int64_t wanted) {
    int64_t sleepers = atomic_load(&pool.sleepers);
    if (sleepers == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    for (int64_t i = 0; i < wanted && i < sleepers; i++)
        pthread_cond_signal(&pool.opened);
    pthread_mutex_unlock(&pool.lock);
}

/* Waits until no worker is inside: then no thread reads the job any more, and its memory may be reused. */
static void await_workers(void) {
    for (int64_t end = nanoseconds() + SPIN; nanoseconds() < end; pause_briefly())
        if (!(atomic_load(&pool.door) & DOOR_INSIDE))
            return;
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.door) & DOOR_INSIDE)
        pthread_cond_wait(&pool.emptied, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* Opens the door to a prepared job and shuts it after the last task. */
static void share_job(int64_t tasks) {
    /* A new job number, so that no worker enters the same job twice. */
    uint64_t job = (atomic_load(&pool.door) >> DOOR_JOB) + 1;
    atomic_store(&pool.door, job << DOOR_JOB | DOOR_OPEN);
    wake_workers(tasks - 1);
    run_tasks(0);
    /* No worker enters any more; those inside finish their tasks. */
    atomic_fetch_and(&pool.door, ~DOOR_OPEN);
    await_workers();
}

/* Runs only on the caller if only one task exists, no pool exists, or another caller holds it: neither a nested loop
   nor a loop of another thread waits. The job is written completely before the door opens; workers read the door
   first. */
void threads_for(int64_t tasks, void (*body)(void *context, int64_t task), void *context) {
    int team = tasks < 2 ? 1 : openmp_threads(threads_count());
    if (team == 1 || atomic_load(&pool.workers) == 0 || atomic_exchange(&pool.is_busy, true)) {
        for (int64_t task = 0; task < tasks; task++)
            body(context, task);
        return;
    }
    cut_shares(tasks, team ? team : atomic_load(&pool.workers) + 1);
    pool.body = body;
    pool.context = context;
    if (team)
        openmp_run(team, run_tasks);
    else
        share_job(tasks);
    atomic_store(&pool.is_busy, false);
}

/* Only the forking thread exists in a child: resets the pool, so that loops run only on their caller. */
static void forget_workers(void) {
    atomic_store(&pool.workers, 0);
    atomic_store(&pool.door, 0);
    atomic_store(&pool.is_busy, false);
}

/* Workers are detached: they live as long as the process. If fewer than intended can be created, those are used, and
   the status reports it. */
static void create_workers(void) {
    /* The caller counts as a thread. */
    int wanted = threads_count() - 1, created = 0;
    sigset_t all, before;
    start_error = pthread_atfork(NULL, NULL, forget_workers);
    /* A worker inherits the signal mask of its creator. */
    sigfillset(&all); /* signals are handled by the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (start_error == 0 && created < wanted) {
        pthread_t thread;
        start_error = pthread_create(&thread, NULL, work, (void *)(intptr_t)(created + 1));
        if (start_error == 0) {
            pthread_detach(thread);
            created++;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* This comes last, because threads_for uses the pool afterwards. */
    atomic_store(&pool.workers, created);
    if (start_error)
        start_status = WEFT_STATUS_INTERNAL_ERROR;
}

weftStatus_t threads_start(void) {
    openmp_find();
    pthread_once(&start_once, create_workers);
    if (start_status != WEFT_STATUS_SUCCESS)
        FAIL(start_status,
             "thread pool: cannot create all of its %d threads (%s). Raise the process limit (ulimit -u) or set "
             "WEFT_THREADS=1.",
             threads_count() - 1, strerror(start_error));
    return WEFT_STATUS_SUCCESS;
}
