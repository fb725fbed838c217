/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cuda/core/delegate.h"

#include <string.h>

/* NULL: the value keeps its number. Linear search: a kernel has some dozen arguments. */
static const struct kernel_place *find_replacement(const struct kernel_place *targets, int count, int of) {
    for (int k = 0; k < count; k++)
        if (targets[k].of == of)
            return &targets[k];
    return NULL;
}

/* Redirects an argument that is a value, or a tensor map of one. A constant of the other graph becomes a number:
   constants are scalars of at most 8 bytes, one word. An address in the workspace keeps the argument's own offset. */
static void redirect(struct argument *argument, struct cuda_map *maps, const struct kernel_place *target) {
    if (target->value >= 0) {
        argument->value = target->value;
    } else if (target->constant) {
        *argument = (struct argument){ARGUMENT_NUMBER, -1, 0};
        memcpy(&argument->number, target->constant->constant, sizeof argument->number);
    } else if (argument->kind == ARGUMENT_MAP) {
        argument->value = -1;
        maps[argument->number].offset += target->scratch;
    } else {
        *argument = (struct argument){ARGUMENT_SCRATCH, -1, target->scratch + argument->number};
    }
}

/* Copies arguments and maps, because the other step's arena and graph are destroyed before this plan; text and names
   are shared. All scratch of the other step moves by `scratch`, independent of `targets`. */
weftStatus_t kernels_take(struct cuda_step *state, const struct cuda_step *from, const struct kernel_place *targets,
                          int count, int64_t scratch, struct arena *arena) {
    if (state->count + from->count > KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the step would have more than %d kernels", KERNELS_MAX);
    for (int i = 0; i < from->count; i++) {
        struct cuda_kernel *kernel = &state->kernels[state->count++];
        struct argument *arguments;
        struct cuda_map *maps;
        /* Grid, block and flags stay unchanged. */
        *kernel = from->kernels[i];
        TRY(arena_copy(arena, &arguments, kernel->arguments, (size_t)kernel->argument_count * sizeof *arguments));
        TRY(arena_copy(arena, &maps, kernel->maps, (size_t)kernel->map_count * sizeof *maps));
        for (int k = 0; k < kernel->argument_count; k++) {
            struct argument *argument = &arguments[k];
            const struct kernel_place *target = find_replacement(targets, count, argument->value);
            if (argument->kind == ARGUMENT_SCRATCH)
                argument->number += scratch;
            else if (target && argument->kind != ARGUMENT_NUMBER)
                redirect(argument, maps, target);
        }
        kernel->arguments = arguments;
        kernel->maps = maps;
    }
    return WEFT_STATUS_SUCCESS;
}
