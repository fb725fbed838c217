/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver without a GPU, selected by WEFT_LIBCUDA. It validates calls like the real driver, counts live objects,
   records launches, and fails on request. Kernels loaded as PTX from NVRTC run on the emulator before the launch
   returns; others do not run. Device memory is host memory, and copies are synchronous. Tests control the driver
   through the table that the library exports as `fake_cuda`. The first call reads these variables:
     FAKE_CUDA_VERSION   version of the driver; default 13000
     FAKE_CUDA_DEVICES   number of GPUs; default 2
     FAKE_CUDA_ARCH      their architecture; default 90
     FAKE_CUDA_LARGE     number of multiprocessors of an H200; default: a small GPU with 4 multiprocessors
     FAKE_CUDA_MISSING   an entry point that does not exist
     FAKE_CUDA_FAIL      n:result, like fail_at */
#ifndef WEFT_TESTS_FAKE_CUDA_H
#define WEFT_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_launch {
    char kernel[64];
    int device;
    uint32_t grid[3], block[3], cluster[3], shared_bytes;
    bool is_dependent, is_cooperative;
    void *stream;
    size_t argument_bytes; /* 0 if the image does not specify it */
    uint8_t arguments[256];
};

/* Counts of objects that currently exist. */
struct fake_counts {
    int contexts; /* primary contexts retained */
    int modules, events, allocations, streams, graphs;
    int current;      /* contexts that this thread has pushed but not popped */
    int capture_mode; /* the mode that this thread has set */
};

struct fake_cuda {
    /* Makes the nth call from now (1: the next one) return `result` without any effect; 0 cancels that. */
    void (*fail_at)(int64_t nth, int result);
    const char *(*failed_call)(void); /* the call that fail_at made fail, or NULL if it has not happened yet */
    int64_t (*calls)(void);           /* number of calls so far, except queries of error texts */
    void (*counts)(struct fake_counts *counts);
    /* Between these two, calls that allocate, load or wait count as misuse. */
    void (*begin_execution)(void);
    void (*end_execution)(void);
    /* Captures a stream until called with NULL. Meanwhile, work on the default stream fails, and calls that allocate,
       free, load or wait fail in threads that have not relaxed their capture mode. */
    void (*capture)(void *stream);
    /* Destroys all streams and creates new ones at the same addresses. */
    void (*replace_streams)(void);
    /* Number of violations of the rules of the driver, and a description of the last one. */
    int (*misuses)(char *text, size_t bytes);
    int64_t (*launches)(void);
    bool (*launch)(int64_t index, struct fake_launch *launch); /* only the last 64 are stored */
};

#endif
