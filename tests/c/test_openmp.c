/* SPDX-License-Identifier: Apache-2.0 */
/* Loops in a program that uses OpenMP threads: this program implements the runtime and counts the calls to it. Prints a
   line per failed check; exits non-zero if there was one. */
#define _GNU_SOURCE 1 /* fork */
#include "engines/cpu/core/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS_MAX = 8, TASKS = 1000 };

static int failures, set_to, asked; /* number of threads of the runtime; number of loops that it ran */
static unsigned asked_threads;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("FAILED %s:%d: ", __FILE__, __LINE__);                                                              \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

/* ---- The runtime, with the entry points that GCC calls ----------------------------------------------------------- */

int omp_get_max_threads(void), omp_get_thread_num(void);
void GOMP_parallel(void (*body)(void *), void *context, unsigned threads, unsigned flags);

struct call {
    void (*body)(void *);
    void *context;
    int number;
};

static _Thread_local int number;

static void *run_body(void *call) {
    number = ((struct call *)call)->number;
    ((struct call *)call)->body(((struct call *)call)->context);
    return NULL;
}

int omp_get_max_threads(void) { return set_to; }
int omp_get_thread_num(void) { return number; }

void GOMP_parallel(void (*body)(void *), void *context, unsigned threads, unsigned flags) {
    struct call calls[THREADS_MAX];
    pthread_t others[THREADS_MAX];
    int made = 0;
    (void)flags;
    asked++;
    asked_threads = threads;
    for (; made + 1 < (int)threads && made < THREADS_MAX; made++) {
        calls[made] = (struct call){body, context, made + 1};
        pthread_create(&others[made], NULL, run_body, &calls[made]);
    }
    body(context);
    while (made > 0)
        pthread_join(others[--made], NULL);
}

/* ---- Loops ------------------------------------------------------------------------------------------------------- */

static _Atomic int seen[TASKS];

static pthread_t caller;
static _Atomic int strangers; /* tasks that ran on a thread other than `caller` */

static void visit(void *unused, int64_t task) {
    (void)unused;
    strangers += !pthread_equal(pthread_self(), caller);
    seen[task]++;
}

static void visit_nested(void *unused, int64_t task) {
    (void)task;
    threads_for(TASKS, visit, unused);
}

/* Checks how often a loop runs each task, and how often it requests the runtime's threads. */
static void check_loop(const char *when, int nested, int wanted) {
    int before = asked, visits = nested ? nested : 1;
    for (int i = 0; i < TASKS; i++)
        seen[i] = 0;
    threads_for(nested ? nested : TASKS, nested ? visit_nested : visit, NULL);
    for (int i = 0; i < TASKS; i++)
        CHECK(seen[i] == visits, "%s: task %d ran %d times and not %d", when, i, seen[i], visits);
    CHECK(asked - before == wanted, "%s: the runtime was asked %d times and not %d", when, asked - before, wanted);
}

/* The first task of each thread waits until all threads have begun theirs, so that each thread runs SHARE tasks. */
enum { SHARE = 3 };
static _Atomic int begun, first_tasks[THREADS_MAX];

static void begin_share(void *unused, int64_t task) {
    (void)unused;
    if (first_tasks[number] >= 0)
        return;
    first_tasks[number] = (int)task;
    begun++;
    while (begun < set_to)
        sched_yield();
}

/* A loop on another thread uses other threads of the runtime. */
static void *check_shares(void *when) {
    begun = 0;
    for (int i = 0; i < THREADS_MAX; i++)
        first_tasks[i] = -1;
    threads_for((int64_t)set_to * SHARE, begin_share, NULL);
    for (int i = 0; i < set_to; i++)
        CHECK(first_tasks[i] == i * SHARE, "%s: thread %d begins with task %d and not %d", (const char *)when, i,
              first_tasks[i], i * SHARE);
    return NULL;
}

static void test_shares(void) {
    pthread_t other;
    check_shares("the first time");
    check_shares("again");
    pthread_create(&other, NULL, check_shares, "from another thread");
    pthread_join(other, NULL);
}

static void test_child(void) {
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        check_loop("in a child", 0, 0);
        CHECK(threads_start() == WEFT_STATUS_SUCCESS, "threads_start fails in a child");
        check_loop("in a child that planned", 0, 0);
        fflush(stdout);
        _exit(failures != 0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "loops in a forked child end with wait status %d", status);
}

int main(void) {
    int most = threads_count() < THREADS_MAX ? threads_count() : THREADS_MAX, usable = most > 1;
    set_to = most;
    caller = pthread_self();
    check_loop("before a plan is built", 0, 0);
    CHECK(threads_start() == WEFT_STATUS_SUCCESS, "threads_start fails");
    check_loop("as many threads as cores", 0, usable);
    CHECK(!usable || asked_threads == (unsigned)most, "%u threads were asked for and not %d", asked_threads, most);
    check_loop("nested", 3, usable);
    if (usable)
        test_shares();
    test_child();
    check_loop("after a fork", 0, usable);
    set_to = 1;
    strangers = 0;
    check_loop("set to one thread", 0, 0);
    CHECK(strangers == 0, "set to one thread: %d tasks ran on other threads than the caller's", strangers);
    set_to = threads_count() + 1;
    check_loop("set to more threads than cores", 0, 0);
    return failures != 0;
}
