/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: the properties that planning and prediction need, for devices of this machine or others, and how a thread
   enters a GPU. */
#ifndef WEFT_RUNTIME_DEVICE_H
#define WEFT_RUNTIME_DEVICE_H

#include "base/status.h"
#include "weft/weft.h"
#include <stdbool.h>
#include <stdint.h>

/* Properties of an NVIDIA GPU. */
struct cuda_properties {
    int major, minor; /* compute capability */
    int multiprocessors;
    int clock_khz;
    int64_t bandwidth; /* device memory, bytes per second */
    int64_t memory_bytes, l2_bytes;
    int shared_per_block; /* bytes that a kernel may request, including its static shared memory */
    int shared_per_multiprocessor, registers_per_multiprocessor, threads_per_multiprocessor;
    int threads_per_block;
    int cluster_most; /* blocks per cluster; 1: no clusters */
    bool is_limited;  /* shared_per_block or cluster_most was reduced, so kernels are checked against them */
    int64_t max_grid[3];
    uint8_t uuid[16];
};

struct device {
    weftDeviceKind_t kind;
    int32_t ordinal; /* among the devices of its kind; 0 for the CPU */
    char name[128];
    bool is_described;           /* not on this machine: can be planned and compiled for, but not run on */
    int threads;                 /* CPU: threads that work on one plan */
    struct cuda_properties cuda; /* CUDA; zero for the CPU */
};

/* Number of devices of a kind on this machine. Silently 0 if there is no driver. */
int device_count(weftDeviceKind_t kind);

/* Finds a device of this machine. Fails with BAD_PARAM_OUT_OF_BOUND if no device has that ordinal, as driver_get
   if no CUDA device can be used, and with NOT_SUPPORTED_ARCH_MISMATCH for GPUs older than 7.5. */
weftStatus_t device_find(struct device *device, weftDeviceKind_t kind, int32_t ordinal);

/* The device that weftCreate opens: the one that WEFT_DEVICE names (cpu, cuda or cuda:N), else the first usable GPU,
   else the CPU. */
weftStatus_t device_choose_default(struct device *device);

/* Describes a typical GPU of a compute capability, to plan and compile without one. A capability that is newer than the
   table gets the numbers of the newest older one. Fails with NOT_SUPPORTED_ARCH_MISMATCH below 7.5. */
weftStatus_t device_describe_cuda(struct device *device, int major, int minor);

/* Reads "sm_90", "sm_90a" or "90"; BAD_PARAM for anything else. */
weftStatus_t device_read_arch(int *major, int *minor, const char *text);

/* True if what was planned for one device can run on another one of this machine: the same kind, and for CUDA the same
   device or the described chip. */
bool device_serves(const struct device *actual, const struct device *planned);

/* True if the two are equal, so that a plan for one is a plan for the other. */
bool device_same(const struct device *a, const struct device *b);

enum { DEVICE_LABEL_BYTES = 192 };

/* "cpu:0 (name)", "cuda:0 (name, sm_90)": the name of a device in messages. */
const char *device_label(char text[DEVICE_LABEL_BYTES], const struct device *device);

/* The compilation target for a CUDA device: "sm_86", or "sm_90a" with the features of exactly this chip, if it has any.
   */
void device_arch(char arch[16], const struct device *device);

/* Number of threads that Weft may use: WEFT_THREADS, or one per processor that the affinity mask and the control groups
   allow. */
int device_host_threads(void);

/* "cpu" or "cuda". */
const char *device_kind_name(weftDeviceKind_t kind);

/* ---- Entering a CUDA device ---- */

/* A device that has been entered. */
struct device_scope {
    const struct driver *driver;
    bool is_pushed; /* device_leave has to pop the context */
};

/* Makes the device's primary context current in this thread until device_leave; almost free if it is current already.
   The context is created by the first call and retained as long as the process lives. It is the context that the CUDA
   runtime and PyTorch use. */
weftStatus_t device_enter(struct device_scope *scope, const struct device *device);
void device_leave(const struct device_scope *scope);

#endif
