/* SPDX-License-Identifier: Apache-2.0 */
/* Runs kernels in PTX on the processor, as a chip of compute capability 9.0 would, slowly and with an eye on every
   rule: reads and writes outside of what is allocated or not aligned, barriers misused, memory overwritten under a
   product or a copy that has not ended, accesses to shared memory that nothing orders, lanes and warps that wait for
   each other for ever. What a chip leaves open is decided at random. */
#ifndef WEFT_TESTS_EMULATOR_H
#define WEFT_TESTS_EMULATOR_H

#include "machine.h"

/* What a driver tells of a kernel. */
struct emulated_kernel {
    const char *name;
    size_t argument_bytes, static_shared_bytes;
    int max_threads;
};

/* The module of a text; NULL, with why in `error`, where it has something that is not emulated. */
struct module *emulator_load(const char *text, char error[512]);

/* Frees a module. */
void emulator_unload(struct module *module);

/* The indexth kernel; false: there are no more. */
bool emulator_tell(const struct module *module, int index, struct emulated_kernel *told);

/* Runs a launch to its end. False: what was wrong, and where, in `error`. EMULATOR_SEED sets what happens at random,
   with the number of the launch. */
bool emulator_launch(const struct module *module, const char *kernel, const struct launch_shape *shape,
                     const void *arguments, memory_finder *find_memory, char error[1024]);

#endif
