/* SPDX-License-Identifier: Apache-2.0 */
/* Work on a stream: launching kernels, copying memory, tensor maps, and timing. The functions of the first three parts
   allocate nothing, take no lock and do not wait, so that plans may call them during execution and stream capture. All
   functions require the device to be entered (device_enter) and report failures as driver_fail does. */
#ifndef WEFT_RUNTIME_LAUNCH_H
#define WEFT_RUNTIME_LAUNCH_H

#include "runtime/driver.h"
#include "runtime/module.h"
#include "weft/weft.h"

/* ---- Kernels ---- */

struct launch {
    const struct kernel *kernel;
    int64_t grid[3];       /* blocks; if one is zero, nothing is launched */
    uint32_t block[3];     /* threads */
    uint32_t cluster[3];   /* blocks; all 0: no clusters */
    uint32_t shared_bytes; /* dynamic, per block */
    bool is_dependent;     /* may start before the previous work ends; the kernel itself waits (griddepcontrol.wait) */
    bool is_cooperative;   /* all blocks run concurrently, so that they may wait for each other */
    const void *arguments; /* the kernel's only argument, a struct; read before launch_kernel returns */
};

/* Enqueues the kernel. Fails with NOT_SUPPORTED_BAD_LAUNCH_PARAM if a grid, block or shared memory exceeds the limits.
   */
weftStatus_t launch_kernel(const struct launch *launch, weftStream_t stream);

/* ---- Memory ---- */

/* Copies between any of host and device; pageable host memory makes the call wait. */
weftStatus_t launch_copy(const struct driver *driver, uint64_t dst, uint64_t src, size_t bytes, weftStream_t stream);

/* ---- Tensor maps: arrays as TMA (sm_90 and newer) accesses them ---- */

enum tensor_map_type {
    TENSOR_MAP_U8 = 0,
    TENSOR_MAP_I32 = 3,
    TENSOR_MAP_F16 = 6,
    TENSOR_MAP_F32 = 7,
    TENSOR_MAP_F64 = 8,
    TENSOR_MAP_BF16 = 9,
    TENSOR_MAP_TF32 = 11,
};
enum tensor_map_swizzle { TENSOR_MAP_PLAIN, TENSOR_MAP_32B, TENSOR_MAP_64B, TENSOR_MAP_128B };
enum tensor_map_promotion { TENSOR_MAP_L2_NONE, TENSOR_MAP_L2_64B, TENSOR_MAP_L2_128B, TENSOR_MAP_L2_256B };
enum { TENSOR_MAP_RANK_MAX = 5 };

/* Innermost dimension first; it must be contiguous. Elements outside read as zero. */
struct tensor_map_form {
    enum tensor_map_type type;
    int rank;                                  /* 1..5; 3..5 for im2col */
    uint64_t dims[TENSOR_MAP_RANK_MAX];        /* elements */
    uint64_t strides[TENSOR_MAP_RANK_MAX - 1]; /* bytes, of dims 1.., multiples of 16 */
    uint32_t steps[TENSOR_MAP_RANK_MAX];       /* element strides; 0 means 1 */
    uint32_t box[TENSOR_MAP_RANK_MAX];         /* tiled: elements of one copy, 1..256 */
    int32_t lower[TENSOR_MAP_RANK_MAX - 2];    /* im2col: corners of the box of filter origins, dims 1.. */
    int32_t upper[TENSOR_MAP_RANK_MAX - 2];
    uint32_t channels, pixels; /* im2col: size of one copy */
    enum tensor_map_swizzle swizzle;
    enum tensor_map_promotion promotion;
};

/* Failures are INTERNAL_ERROR_UNEXPECTED_VALUE and name the violated rule. */
weftStatus_t tensor_map_tiled(struct cuda_tensor_map *map, const struct driver *driver,
                              const struct tensor_map_form *form, uint64_t address);
weftStatus_t tensor_map_im2col(struct cuda_tensor_map *map, const struct driver *driver,
                               const struct tensor_map_form *form, uint64_t address);

/* ---- For autotuning, tests and the doctor, never for execution ---- */

weftStatus_t memory_make(uint64_t *address, const struct driver *driver, size_t bytes);
void memory_free(const struct driver *driver, uint64_t address); /* 0 is allowed */
weftStatus_t stream_wait(const struct driver *driver, weftStream_t stream);

/* Measures device time between marks in a stream. */
struct stopwatch {
    const struct driver *driver;
    void **marks;   /* events */
    int64_t marked; /* number of marks recorded so far */
};

/* Allocates room for `marks` marks. */
weftStatus_t stopwatch_make(struct stopwatch *watch, const struct driver *driver, int64_t marks);
weftStatus_t stopwatch_mark(struct stopwatch *watch, weftStream_t stream);

/* stopwatch_wait waits until the last mark is reached; stopwatch_read returns the time between two marks. */
weftStatus_t stopwatch_wait(const struct stopwatch *watch);
weftStatus_t stopwatch_read(double *seconds, const struct stopwatch *watch, int64_t from, int64_t to);
void stopwatch_free(struct stopwatch *watch);

#endif
