/* SPDX-License-Identifier: Apache-2.0 */
/* Runs PTX kernels on the CPU the way a GPU of compute capability 9.0 would, slowly and with strict checks. It detects
   accesses out of bounds or misaligned, misused barriers, memory overwritten while a product or a copy still uses it,
   data races on shared memory, and deadlocks of lanes and warps. Behaviour that the hardware leaves undefined is chosen
   at random. */
#ifndef WEFT_TESTS_EMULATOR_H
#define WEFT_TESTS_EMULATOR_H

#include "machine.h"

/* Properties of a kernel that a driver reports. */
struct emulated_kernel {
    const char *name;
    size_t argument_bytes, static_shared_bytes;
    int max_threads;
};

/* Loads a module from a text. Returns NULL, with the reason in `error`, if it contains anything that is not
   emulated. */
struct module *emulator_load(const char *text, char error[512]);

/* Frees a module. */
void emulator_unload(struct module *module);

/* Reads the properties of kernel `index`; returns false if the index is out of range. */
bool emulator_tell(const struct module *module, int index, struct emulated_kernel *told);

/* Runs a launch to completion. On failure returns false and stores the cause and the location in `error`. EMULATOR_SEED
   and the number of the launch seed the random decisions. */
bool emulator_launch(const struct module *module, const char *kernel, const struct launch_shape *shape,
                     const void *arguments, memory_finder *find_memory, char error[1024]);

#endif
