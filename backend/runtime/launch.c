/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues work: kernels, copies, tensor maps, events. The configuration of a launch is on the stack; its only argument
   is passed as kernelParams with a single pointer, which costs the driver one copy and lets it check the size. This
   file neither knows what a kernel computes nor chooses a stream. */
#include "runtime/launch.h"

#include <stdlib.h>

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Lists all limits and all requested values. Separate from is_within_limits to keep it off the hot path. */
static weftStatus_t refuse_limits(const struct launch *launch) {
    const struct kernel *kernel = launch->kernel;
    FAIL(WEFT_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM,
         "cuda:%d: kernel '%s': a grid may have [%lld,%lld,%lld] blocks of %d threads and %d bytes of dynamic shared "
         "memory, this launch has [%lld,%lld,%lld] blocks of [%u,%u,%u] threads, clusters of [%u,%u,%u] and %u bytes. "
         "This is a defect of Weft: report it with this text.",
         (int)kernel->ordinal, kernel->name, (long long)kernel->max_grid[0], (long long)kernel->max_grid[1],
         (long long)kernel->max_grid[2], kernel->threads_per_block, kernel->max_dynamic_shared_bytes,
         (long long)launch->grid[0], (long long)launch->grid[1], (long long)launch->grid[2], launch->block[0],
         launch->block[1], launch->block[2], launch->cluster[0], launch->cluster[1], launch->cluster[2],
         launch->shared_bytes);
}

/* Checked here, because the driver's error does not name the limit. */
static bool is_within_limits(const struct launch *launch) {
    const struct kernel *kernel = launch->kernel;
    /* 64 bits for the product of three 32-bit extents. 1024, 1024 and 64 are the limits of every chip. */
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    bool fits = threads > 0 && launch->block[0] <= 1024 && launch->block[1] <= 1024 && launch->block[2] <= 64 &&
                threads <= (uint64_t)kernel->threads_per_block &&
                launch->shared_bytes <= (uint32_t)kernel->max_dynamic_shared_bytes;
    /* The driver requires a grid of whole clusters along each axis, within the device's limits. */
    for (int axis = 0; axis < 3; axis++) {
        fits &= launch->grid[axis] >= 0 && launch->grid[axis] <= kernel->max_grid[axis];
        if (launch->cluster[0])
            fits &= launch->cluster[axis] > 0 && launch->grid[axis] % launch->cluster[axis] == 0;
    }
    return fits;
}

/* The launch configuration for the driver. It contains pointers to itself, so it must not be moved. Attributes: cluster
   dimension, programmatic stream serialization, cooperative. */
struct configuration {
    struct cuda_launch_config config;
    struct cuda_launch_attribute attributes[3];
};

static void configure(struct configuration *c, const struct launch *launch, weftStream_t stream) {
    uint32_t count = 0;
    if (launch->cluster[0]) {
        c->attributes[count].id = CUDA_LAUNCH_CLUSTER_DIMENSION;
        for (int axis = 0; axis < 3; axis++)
            c->attributes[count].value.cluster[axis] = launch->cluster[axis];
        count++;
    }
    /* Programmatic dependent launch: the kernel may start while the previous one in the stream is still running, and
       waits itself (griddepcontrol.wait) before it reads that kernel's results. */
    if (launch->is_dependent) {
        c->attributes[count].id = CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION;
        c->attributes[count].value.programmatic = 1;
        count++;
    }
    if (launch->is_cooperative) {
        c->attributes[count].id = CUDA_LAUNCH_COOPERATIVE;
        c->attributes[count].value.cooperative = 1;
        count++;
    }
    for (int axis = 0; axis < 3; axis++) {
        c->config.grid[axis] = (uint32_t)launch->grid[axis];
        c->config.block[axis] = launch->block[axis];
    }
    c->config.shared_bytes = launch->shared_bytes;
    c->config.stream = stream;
    c->config.attributes = c->attributes;
    c->config.attribute_count = count;
}

weftStatus_t launch_kernel(const struct launch *launch, weftStream_t stream) {
    const struct kernel *kernel = launch->kernel;
    struct configuration c;
    /* The driver copies the struct before it returns, so the caller may release it. */
    void *arguments[] = {(void *)launch->arguments};
    if (!is_within_limits(launch))
        return refuse_limits(launch);
    /* Tensors may be empty, so an empty grid is no error here, although it is one for the driver. */
    if (!launch->grid[0] || !launch->grid[1] || !launch->grid[2])
        return WEFT_STATUS_SUCCESS;
    configure(&c, launch, stream);
    int result =
        kernel->driver->launch_kernel_ex(&c.config, kernel->function, kernel->argument_bytes ? arguments : NULL, NULL);
    return result ? driver_fail(result, "cuda:%d: launching kernel '%s'", (int)kernel->ordinal, kernel->name)
                  : WEFT_STATUS_SUCCESS;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Converts a driver result to a status; for messages without format arguments. */
static weftStatus_t check_result(int result, const char *what) {
    return result ? driver_fail(result, "%s", what) : WEFT_STATUS_SUCCESS;
}

/* Skips empty copies, whose addresses the driver might refuse. */
weftStatus_t launch_copy(const struct driver *driver, uint64_t dst, uint64_t src, size_t bytes, weftStream_t stream) {
    return bytes ? check_result(driver->memcpy_async(dst, src, bytes, stream), "copying memory") : WEFT_STATUS_SUCCESS;
}

/* ---- Tensor maps ------------------------------------------------------------------------------------------------- */

/* Size of an element in shared memory; box rows are measured in it. */
static uint64_t type_bytes(enum tensor_map_type type) {
    switch (type) {
    case TENSOR_MAP_U8:
        return 1;
    case TENSOR_MAP_F16:
    case TENSOR_MAP_BF16:
        return 2;
    case TENSOR_MAP_F64:
        return 8;
    default:
        return 4;
    }
}

/* Finds the rule that a tensor map violates, because the driver only reports that something is invalid. Only called
   after a failure. The rules are those of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col in the driver's
   documentation. */
static const char *broken_rule(const struct tensor_map_form *form, uint64_t address, bool is_tiled) {
    /* Bytes of the innermost dimension of a copy, which is one row in shared memory. */
    uint64_t row = (is_tiled ? form->box[0] : form->channels) * type_bytes(form->type);
    if (form->rank < (is_tiled ? 1 : 3) || form->rank > TENSOR_MAP_RANK_MAX)
        return "the rank is 1 to 5, for im2col 3 to 5";
    if (address % 16)
        return "the address is a multiple of 16";
    for (int i = 0; i < form->rank; i++) {
        if (form->dims[i] < 1 || form->dims[i] > UINT64_C(1) << 32)
            return "a dimension has 1 to 2^32 elements";
        if (i + 1 < form->rank && (form->strides[i] % 16 || form->strides[i] >= UINT64_C(1) << 40))
            return "a stride is a multiple of 16 bytes below 2^40";
        if (form->steps[i] > 8)
            return "a step is 1 to 8";
        if (is_tiled && (form->box[i] < 1 || form->box[i] > 256))
            return "a box has 1 to 256 elements in each dimension";
    }
    if (!is_tiled && (form->channels > 256 || form->pixels > 1024))
        return "an im2col copy has at most 256 channels and 1024 pixels";
    if (row % 16)
        return "a row of the box is a multiple of 16 bytes";
    /* The enumerators 1, 2, 3 mean 32, 64 and 128 bytes. */
    if (form->swizzle && row > UINT64_C(16) << form->swizzle)
        return "a row of the box is no longer than the swizzle";
    return "one that Weft does not check";
}

/* Results other than INVALID_VALUE are failures of the driver, unrelated to the form. */
static weftStatus_t check_map_result(int result, const struct tensor_map_form *form, uint64_t address, bool is_tiled) {
    if (!result)
        return WEFT_STATUS_SUCCESS;
    if (result != CUDA_INVALID_VALUE)
        return driver_fail(result, "encoding a tensor map");
    FAIL(WEFT_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE,
         "tensor map of rank %d at 0x%llx: the driver refused it; the rule it breaks: %s. dims[0] is %llu, strides[0] "
         "%llu, box [%u,%u], channels %u, pixels %u, swizzle %d. This is a defect of Weft: report it with this text.",
         form->rank, (unsigned long long)address, broken_rule(form, address, is_tiled),
         (unsigned long long)form->dims[0], (unsigned long long)form->strides[0], form->box[0], form->box[1],
         form->channels, form->pixels, (int)form->swizzle);
}

/* Element strides of the map. 0 means 1, so that forms need not set unused ones. */
static void fill_steps(uint32_t steps[TENSOR_MAP_RANK_MAX], const struct tensor_map_form *form) {
    for (int i = 0; i < TENSOR_MAP_RANK_MAX; i++)
        steps[i] = form->steps[i] ? form->steps[i] : 1;
}

weftStatus_t tensor_map_tiled(struct cuda_tensor_map *map, const struct driver *driver,
                              const struct tensor_map_form *form, uint64_t address) {
    uint32_t steps[TENSOR_MAP_RANK_MAX];
    fill_steps(steps, form);
    /* Interleave 0: the innermost dimension is contiguous. The last 0: elements outside are filled with zeros, not
       NaNs. */
    int result =
        driver->tensor_map_encode_tiled(map, (int)form->type, (uint32_t)form->rank, address, form->dims, form->strides,
                                        form->box, steps, 0, (int)form->swizzle, (int)form->promotion, 0);
    return check_map_result(result, form, address, true);
}

weftStatus_t tensor_map_im2col(struct cuda_tensor_map *map, const struct driver *driver,
                               const struct tensor_map_form *form, uint64_t address) {
    uint32_t steps[TENSOR_MAP_RANK_MAX];
    fill_steps(steps, form);
    int result = driver->tensor_map_encode_im2col(map, (int)form->type, (uint32_t)form->rank, address, form->dims,
                                                  form->strides, form->lower, form->upper, form->channels, form->pixels,
                                                  steps, 0, (int)form->swizzle, (int)form->promotion, 0);
    return check_map_result(result, form, address, false);
}

/* ---- Autotuning, tests, doctor ----------------------------------------------------------------------------------- */

/* Allocates at least one byte, because the driver refuses 0 and the caller expects a unique address. */
weftStatus_t memory_make(uint64_t *address, const struct driver *driver, size_t bytes) {
    *address = 0;
    int result = driver->mem_alloc(address, bytes ? bytes : 1);
    return result ? driver_fail(result, "allocating %zu bytes of device memory", bytes) : WEFT_STATUS_SUCCESS;
}

/* Results are ignored: memory is freed during cleanup, which must keep the earlier error message. */
void memory_free(const struct driver *driver, uint64_t address) {
    if (address)
        driver->mem_free(address);
}

/* Reports errors of any kernel on the stream. */
weftStatus_t stream_wait(const struct driver *driver, weftStream_t stream) {
    return check_result(driver->stream_synchronize(stream), "waiting for a stream");
}

/* After a failure the stopwatch is empty and may be freed again. */
weftStatus_t stopwatch_make(struct stopwatch *watch, const struct driver *driver, int64_t marks) {
    *watch = (struct stopwatch){.driver = driver};
    /* The additional entry stays NULL and terminates the list. */
    watch->marks = calloc((size_t)marks + 1, sizeof *watch->marks);
    if (!watch->marks)
        return status_no_memory(((size_t)marks + 1) * sizeof *watch->marks);
    int result = 0;
    for (int64_t i = 0; i < marks && !result; i++)
        result = driver->event_create(&watch->marks[i], CUDA_EVENT_DEFAULT);
    if (result)
        stopwatch_free(watch);
    return check_result(result, "creating a stopwatch");
}

weftStatus_t stopwatch_mark(struct stopwatch *watch, weftStream_t stream) {
    return check_result(watch->driver->event_record(watch->marks[watch->marked++], stream), "marking a stream");
}

weftStatus_t stopwatch_wait(const struct stopwatch *watch) {
    return check_result(watch->driver->event_synchronize(watch->marks[watch->marked - 1]), "waiting for a mark");
}

weftStatus_t stopwatch_read(double *seconds, const struct stopwatch *watch, int64_t from, int64_t to) {
    /* The driver measures in milliseconds, with a resolution of about half a microsecond. */
    float milliseconds = 0;
    int result = watch->driver->event_elapsed_time(&milliseconds, watch->marks[from], watch->marks[to]);
    *seconds = milliseconds * 1e-3;
    return check_result(result, "reading a stopwatch");
}

void stopwatch_free(struct stopwatch *watch) {
    for (void **mark = watch->marks; mark && *mark; mark++)
        watch->driver->event_destroy(*mark);
    free(watch->marks);
    watch->marks = NULL;
}
