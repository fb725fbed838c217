/* SPDX-License-Identifier: Apache-2.0 */
/* The PyTorch integration in a process without an interpreter; tests/weft_torch/test_calls.py tests it in Python. */
#include "harness.h"
#include "torch/calls.h"
#include "torch/workspace.h"

#include <pthread.h>

static void refusals(void) {
    int facts = 0;
    CHECK(!weftTorchFunctions(NULL), "there are no facts");
    CHECK(!weftTorchFunctions(&facts), "there is no interpreter");
}

static void *fill_workspace(void *of_other_thread) {
    unsigned char *own = workspace_of_thread(256);
    CHECK(own && own != of_other_thread, "threads share %p", (void *)own);
    memset(own, 7, 256);
    return NULL;
}

static void workspaces(void) {
    unsigned char *small = workspace_of_thread(100);
    memset(small, 1, 100);
    CHECK((uintptr_t)small % 64 == 0, "%p", (void *)small);
    CHECK(workspace_of_thread(128) == small && workspace_of_thread(1) == small, "128 bytes fit");
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, fill_workspace, small) && !pthread_join(thread, NULL), "no thread");
    CHECK(small[0] == 1 && small[99] == 1, "another thread wrote %d", small[0]);
    unsigned char *large = workspace_of_thread(1 << 20);
    CHECK((uintptr_t)large % 64 == 0, "%p", (void *)large);
    memset(large, 2, 1 << 20);
    CHECK(workspace_of_thread(100) == large, "a smaller workspace needs no allocation");
    CHECK(!workspace_of_thread(SIZE_MAX), "there is less memory");
    CHECK(workspace_of_thread(64), "memory is available again");
}

int main(void) {
    RUN(refusals());
    RUN(workspaces());
    return harness_end();
}
