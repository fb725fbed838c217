/* SPDX-License-Identifier: Apache-2.0 */
/* A process that forks while its threads execute, build, save and load plans. The child runs plans that were built
   before the fork; the parent continues. The child allocates nothing, because AddressSanitizer's heap may be locked in
   it; tests/python/test_fork.py builds plans in the child. */
#include "harness.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 30, WIDTH = 64, SECONDS = 300 /* for a child, so that it cannot hang */ };

static desc shared_plan;
static atomic_bool is_over;

/* c = a @ b, large enough for the thread pool. */
static desc make_plan(void) {
    desc a = tensor(1, DIMS(WIDTH, WIDTH)), b = tensor(2, DIMS(WIDTH, WIDTH)), c = tensor(3, DIMS(WIDTH, WIDTH));
    desc product = matmul(a, b, c), graph = graph_of(1, &product);
    desc plan = finalized(open_plan(graph, first_cpu_index(graph)));
    drop(a), drop(b), drop(c), drop(graph);
    return plan;
}

enum { COUNT = WIDTH * WIDTH };
struct memory {
    _Alignas(64) float a[COUNT], b[COUNT], c[COUNT];
    _Alignas(64) char workspace[1 << 17];
};

/* Multiplies a matrix of ones by a constant matrix. */
static void run_in(struct memory *m, desc plan, int number) {
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        m->a[i] = 1, m->b[i] = (float)number, m->c[i] = -1;
    CHECK(get_number(plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) <= (int64_t)sizeof m->workspace, "workspace");
    uint64_t pointers[] = {(uintptr_t)m->a, (uintptr_t)m->b, (uintptr_t)m->c};
    MUST(weftExecute(plan, 3, pointers, m->workspace, NULL));
    for (int i = 0; i < COUNT; i++)
        wrong += m->c[i] != (float)(WIDTH * number);
    CHECK(wrong == 0, "%d elements are wrong", wrong);
}

static void run(desc plan, int number) {
    struct memory *m = aligned_alloc(64, sizeof *m);
    run_in(m, plan, number);
    free(m);
}

static void do_everything(int number) {
    int64_t bytes;
    run(shared_plan, number);
    desc plan = make_plan(), loaded = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    char *blob = get_text(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    MUST(weftBackendSetAttribute(loaded, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
    MUST(weftBackendFinalize(loaded));
    run(loaded, number + 1);
    desc bad = open_tensor(number, DIMS(2, -1));
    REFUSED(weftBackendFinalize(bad), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
            "tensor (uid %d): dims [2,-1]: dimension 1 is negative. Extents are 0 or more elements.", number);
    free(blob);
    drop(plan), drop(loaded), drop(bad);
}

static void *be_busy(void *argument) {
    for (int number = (int)(intptr_t)argument; !is_over; number = number % 100 + 1)
        do_everything(number);
    return NULL;
}

static void fork_once(int number) {
    static struct memory memory;
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        harness_failures = 0;
        run_in(&memory, shared_plan, number);
        fflush(stdout);
        _exit(harness_failures != 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
    CHECK(status == 0, "fork %d: the child ends with wait status %d", number, status);
}

int main(void) {
    pthread_t threads[THREADS];
    shared_plan = make_plan();
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, be_busy, (void *)(intptr_t)(i + 1))) {
            printf("no thread %d\n", i);
            return 1;
        }
    for (int number = 1; number <= FORKS; number++)
        fork_once(number);
    is_over = true;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    run(shared_plan, 7);
    drop(shared_plan);
    return harness_end();
}
