/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver without a GPU, chosen by WEFT_LIBCUDA: it checks what it is asked as the real one does, keeps count of
   what is alive, records launches, and fails on demand. Kernels that come as NVRTC's PTX run, on the emulator, before
   the launch returns; others do not. Memory is host memory, and copies happen at once. Tests steer it through the table
   that the library exports as `fake_cuda`. Before it is asked anything it reads
     FAKE_CUDA_VERSION   what it says it speaks; 13000
     FAKE_CUDA_DEVICES   how many GPUs; 2
     FAKE_CUDA_ARCH      of them; 90
     FAKE_CUDA_LARGE     how many multiprocessors, of a chip that is otherwise an H200; else it has 4, and little of all
     FAKE_CUDA_MISSING   an entry that it lacks
     FAKE_CUDA_FAIL      n:result, as fail_at */
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
    size_t argument_bytes; /* 0 where the image does not say */
    uint8_t arguments[256];
};

/* What is alive now. */
struct fake_counts {
    int contexts; /* primary contexts retained */
    int modules, events, allocations, streams, graphs;
    int current;      /* contexts pushed and not popped by this thread */
    int capture_mode; /* that this thread has set */
};

struct fake_cuda {
    /* The nth call from now on (1: the next) answers `result` and does nothing; 0 stops that. */
    void (*fail_at)(int64_t nth, int result);
    const char *(*failed_call)(void); /* the one that fail_at meant, once it has come; else NULL */
    int64_t (*calls)(void);           /* all so far but for error texts */
    void (*counts)(struct fake_counts *counts);
    /* Between the two, calls that allocate, load or wait are misuse. */
    void (*begin_execution)(void);
    void (*end_execution)(void);
    /* Captures a stream until told NULL. Meanwhile work on the default stream fails, and calls that allocate, free,
       load or wait fail in threads that have not declared them harmless. */
    void (*capture)(void *stream);
    /* All streams are destroyed, and others are made at their addresses. */
    void (*replace_streams)(void);
    /* How often the driver was called against its rules, and the last such case in words. */
    int (*misuses)(char *text, size_t bytes);
    int64_t (*launches)(void);
    bool (*launch)(int64_t index, struct fake_launch *launch); /* the last 64 are kept */
};

#endif
