/* SPDX-License-Identifier: Apache-2.0 */
/* What Weft knows of a device: enough to choose engines and predict times, on a machine that has it or not; and how a
   thread enters one. */
#ifndef WEFT_RUNTIME_DEVICE_H
#define WEFT_RUNTIME_DEVICE_H

#include "base/status.h"
#include "weft/weft.h"
#include <stdbool.h>
#include <stdint.h>

/* An NVIDIA GPU's numbers. */
struct cuda_properties {
    int major, minor; /* compute capability */
    int multiprocessors;
    int clock_khz;
    int64_t bandwidth; /* device memory, bytes per second */
    int64_t memory_bytes, l2_bytes;
    int shared_per_block; /* bytes that a kernel may ask for, its static share included */
    int shared_per_multiprocessor, registers_per_multiprocessor, threads_per_multiprocessor;
    int threads_per_block;
    int cluster_most; /* blocks of a cluster; 1: no clusters */
    bool is_limited;  /* shared_per_block or cluster_most is less than the chip's: who does not look at them is asked */
    int64_t max_grid[3];
    uint8_t uuid[16];
};

struct device {
    weftDeviceKind_t kind;
    int32_t ordinal; /* among its kind; 0 for the CPU */
    char name[128];
    bool is_described;           /* not of this machine: can be planned and compiled for, not run on */
    int threads;                 /* CPU: threads that work on one plan */
    struct cuda_properties cuda; /* CUDA; zero for the CPU */
};

/* How many devices of a kind this machine has. No driver is no device, without a word. */
int device_count(weftDeviceKind_t kind);

/* The device of a kind on this machine. Fails with BAD_PARAM_OUT_OF_BOUND when there is none of that ordinal, as
   driver_get when no CUDA device can be used, with NOT_SUPPORTED_ARCH_MISMATCH for GPUs older than 7.5. */
weftStatus_t device_find(struct device *device, weftDeviceKind_t kind, int32_t ordinal);

/* What weftCreate opens: the device that WEFT_DEVICE names (cpu, cuda or cuda:N), else the first GPU that can be used,
   else the CPU. */
weftStatus_t device_choose_default(struct device *device);

/* A typical GPU of a compute capability, for planning and compiling where there is none. A capability newer than the
   table gets the numbers of the newest older one. Fails with NOT_SUPPORTED_ARCH_MISMATCH below 7.5. */
weftStatus_t device_describe_cuda(struct device *device, int major, int minor);

/* Reads "sm_90", "sm_90a" or "90" ; BAD_PARAM for anything else. */
weftStatus_t device_read_arch(int *major, int *minor, const char *text);

/* Whether what was planned for one device runs on another, of this machine: of the same kind, and for CUDA the very
   same or of the described chip. */
bool device_serves(const struct device *here, const struct device *planned);

/* Whether two are copies of one, so that what is planned for the one is planned for the other. */
bool device_same(const struct device *a, const struct device *b);

enum { DEVICE_LABEL_BYTES = 192 };

/* "cpu:0 (name)", "cuda:0 (name, sm_90)": how messages call a device. */
const char *device_label(char text[DEVICE_LABEL_BYTES], const struct device *device);

/* What kernels for a CUDA device are compiled for: "sm_86"; with the features of exactly this chip where it has such,
   "sm_90a". */
void device_arch(char arch[16], const struct device *device);

/* Threads of this machine that Weft may keep busy: WEFT_THREADS, else one per processor that its affinity mask
   and control groups leave it. */
int device_host_threads(void);

/* "cpu" or "cuda". */
const char *device_kind_name(weftDeviceKind_t kind);

/* ---- Entering a CUDA device ---- */

/* A device that was entered. */
struct device_scope {
    const struct driver *driver;
    bool is_pushed; /* by device_leave the context goes off the thread's stack again */
};

/* Makes the device's primary context current in this thread, until device_leave; nearly free when it is current
   already. The context is made on the first call and kept as long as the process lives: it is the one that the CUDA
   runtime and PyTorch use. */
weftStatus_t device_enter(struct device_scope *scope, const struct device *device);
void device_leave(const struct device_scope *scope);

#endif
