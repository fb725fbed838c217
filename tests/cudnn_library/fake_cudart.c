/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA run-time whose device is the host: NVIDIA's frontend asks it for the properties of a GPU before it builds a
   graph. It describes an H100; memory is the host's, and everything else succeeds. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_MEMORY = 97 }; /* attributes */

#define SUCCEEDS(name)                                                                                                 \
    int name(void);                                                                                                    \
    int name(void) { return 0; }
SUCCEEDS(cudaDeviceSynchronize)
SUCCEEDS(cudaEventDestroy)
SUCCEEDS(cudaEventRecord)
SUCCEEDS(cudaEventSynchronize)
SUCCEEDS(cudaGetLastError)
SUCCEEDS(cudaGraphDestroy)
SUCCEEDS(cudaGraphRetainUserObject)
SUCCEEDS(cudaSetDevice)
SUCCEEDS(cudaStreamBeginCapture)
SUCCEEDS(cudaStreamDestroy)
SUCCEEDS(cudaStreamSynchronize)
SUCCEEDS(cudaThreadExchangeStreamCaptureMode)
SUCCEEDS(cudaUserObjectRelease)

#define RETURNS(name, type, value)                                                                                     \
    int name(type *result);                                                                                            \
    int name(type *result) {                                                                                           \
        *result = value;                                                                                               \
        return 0;                                                                                                      \
    }
RETURNS(cudaGetDevice, int, 0)
RETURNS(cudaGetDeviceCount, int, 1)
RETURNS(cudaRuntimeGetVersion, int, 13000)
RETURNS(cudaDriverGetVersion, int, 13000)
RETURNS(cudaStreamCreate, void *, (void *)0x10)
RETURNS(cudaEventCreate, void *, (void *)0x20)

int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == MAJOR             ? 9
             : attribute == MINOR           ? 0
             : attribute == MULTIPROCESSORS ? 132
             : attribute == SHARED_MEMORY   ? 232448
                                            : 1024;
    return 0;
}

/* Releases before 1.2x read the struct: only the compute capability, whose position they know, matters to them. */
int cudaGetDeviceProperties(void *properties, int device);
int cudaGetDeviceProperties(void *properties, int device) {
    enum { MAJOR_OFFSET = 360, MINOR_OFFSET = 364 };
    const int major = 9, minor = 0;
    (void)device;
    memcpy((char *)properties + MAJOR_OFFSET, &major, sizeof major);
    memcpy((char *)properties + MINOR_OFFSET, &minor, sizeof minor);
    return 0;
}
int cudaGetDeviceProperties_v2(void *properties, int device);
int cudaGetDeviceProperties_v2(void *properties, int device) { return cudaGetDeviceProperties(properties, device); }

int cudaMalloc(void **address, size_t bytes);
int cudaMalloc(void **address, size_t bytes) {
    *address = calloc(1, bytes ? bytes : 1);
    return *address ? 0 : 2;
}

int cudaFree(void *address);
int cudaFree(void *address) {
    free(address);
    return 0;
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    (void)kind, (void)stream;
    memcpy(to, from, bytes);
    return 0;
}

int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream);
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    (void)stream;
    memset(to, value, bytes);
    return 0;
}

int cudaStreamIsCapturing(void *stream, int *state);
int cudaStreamIsCapturing(void *stream, int *state) {
    (void)stream;
    *state = 0;
    return 0;
}

int cudaStreamEndCapture(void *stream, void **graph);
int cudaStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    *graph = (void *)0x30;
    return 0;
}

const char *cudaGetErrorString(int error);
const char *cudaGetErrorString(int error) { return error ? "error" : "no error"; }
