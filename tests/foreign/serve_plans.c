/* SPDX-License-Identifier: Apache-2.0 */
/* Runs saved plans on behalf of another process, which may run on a different architecture: tests/foreign_cpu.py.
   Numbers are int64, little-endian. Standard input contains a sequence of requests:
     bytes of a plan, plan, number of tensors, for each: uid, bytes of its memory, memory
   The tensor begins FENCE bytes into its memory. The response to each request on standard output is: bytes of an error,
   error; if the error is empty, the memories after the execution, in the same order. */
#include "weft/weft.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FENCE = 256, POISON = 0xff, TENSORS_MOST = 256, TEXT_BYTES = 4096 };

struct request {
    char *plan;
    int64_t plan_bytes, count, uids[TENSORS_MOST], bytes[TENSORS_MOST];
    void *memory[TENSORS_MOST], *addresses[TENSORS_MOST];
};

/* Reads all bytes; exits if the other process has closed the pipe. */
static void get(void *to, size_t bytes) {
    if (bytes && fread(to, bytes, 1, stdin) != 1)
        exit(feof(stdin) ? 0 : 1);
}

static void put(const void *from, size_t bytes) {
    if (bytes && fwrite(from, bytes, 1, stdout) != 1)
        exit(1);
}

static int64_t get_number(void) {
    int64_t number;
    get(&number, sizeof number);
    return number;
}

/* Allocates memory that is aligned for vector instructions. */
static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
    if (!memory)
        abort();
    return memory;
}

static void get_request(struct request *request) {
    request->plan_bytes = get_number();
    request->plan = allocate(request->plan_bytes);
    get(request->plan, (size_t)request->plan_bytes);
    request->count = get_number();
    if (request->count > TENSORS_MOST)
        abort();
    for (int64_t i = 0; i < request->count; i++) {
        request->uids[i] = get_number();
        request->bytes[i] = get_number();
        request->memory[i] = allocate(request->bytes[i]);
        request->addresses[i] = (char *)request->memory[i] + FENCE;
        get(request->memory[i], (size_t)request->bytes[i]);
    }
}

static void free_request(struct request *request) {
    for (int64_t i = 0; i < request->count; i++)
        free(request->memory[i]);
    free(request->plan);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        weftStatus_t status = call;                                                                                    \
        if (status != WEFT_STATUS_SUCCESS)                                                                             \
            return status;                                                                                             \
    } while (0)

static weftStatus_t load(const struct request *request, weftBackendDescriptor_t *plan, int64_t *workspace_bytes) {
    TRY(weftBackendCreateDescriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan));
    TRY(weftBackendSetAttribute(*plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR,
                                request->plan_bytes, request->plan));
    TRY(weftBackendFinalize(*plan));
    return weftBackendGetAttribute(*plan, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, WEFT_TYPE_INT64, 1, NULL,
                                   workspace_bytes);
}

static weftStatus_t execute(weftHandle_t handle, const struct request *request, weftBackendDescriptor_t plan,
                            void *workspace) {
    weftBackendDescriptor_t pack;
    TRY(weftBackendCreateDescriptor(WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    TRY(weftBackendSetAttribute(pack, WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS, WEFT_TYPE_INT64, request->count,
                                request->uids));
    TRY(weftBackendSetAttribute(pack, WEFT_ATTR_VARIANT_PACK_DATA_POINTERS, WEFT_TYPE_VOID_PTR, request->count,
                                request->addresses));
    TRY(weftBackendSetAttribute(pack, WEFT_ATTR_VARIANT_PACK_WORKSPACE, WEFT_TYPE_VOID_PTR, 1, &workspace));
    TRY(weftBackendFinalize(pack));
    TRY(weftBackendExecute(handle, plan, pack));
    return weftBackendDestroyDescriptor(pack);
}

/* True if memory contains only poison. */
static bool is_poison(const unsigned char *memory, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (memory[i] != POISON)
            return false;
    return true;
}

/* Runs a plan and stores the error message, or an empty string. The workspace has exactly the size that the plan
   requires. */
static void run(weftHandle_t handle, const struct request *request, char *error) {
    weftBackendDescriptor_t plan = NULL;
    int64_t bytes = 0;
    weftStatus_t status = load(request, &plan, &bytes);
    unsigned char *workspace = allocate(bytes + 2 * FENCE);
    memset(workspace, POISON, (size_t)bytes + 2 * FENCE);
    if (status == WEFT_STATUS_SUCCESS)
        status = execute(handle, request, plan, workspace + FENCE);
    if (status != WEFT_STATUS_SUCCESS)
        weftGetLastErrorString(error, TEXT_BYTES);
    else if (!is_poison(workspace, FENCE) || !is_poison(workspace + FENCE + bytes, FENCE))
        snprintf(error, TEXT_BYTES, "the workspace: wrote outside its %lld bytes", (long long)bytes);
    free(workspace);
    weftBackendDestroyDescriptor(plan);
}

int main(void) {
    static struct request request;
    weftHandle_t handle;
    if (weftCreateForDevice(&handle, WEFT_DEVICE_CPU, 0) != WEFT_STATUS_SUCCESS)
        return 1;
    for (;;) {
        char error[TEXT_BYTES] = "";
        get_request(&request);
        run(handle, &request, error);
        int64_t length = (int64_t)strlen(error);
        put(&length, sizeof length);
        put(error, (size_t)length);
        for (int64_t i = 0; i < request.count && !length; i++)
            put(request.memory[i], (size_t)request.bytes[i]);
        fflush(stdout);
        free_request(&request);
    }
}
