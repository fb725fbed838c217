/* SPDX-License-Identifier: Apache-2.0 */
/* The PyTorch integration in a process without an interpreter; tests/weft_torch/test_calls.py tests it in Python. */
#include "harness.h"
#include "torch/calls.h"

static void refusals(void) {
    int facts = 0;
    CHECK(!weftTorchFunctions(NULL), "there are no facts");
    CHECK(!weftTorchFunctions(&facts), "there is no interpreter");
}

int main(void) {
    RUN(refusals());
    return harness_end();
}
