/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU engines' thread pool and packed GEMM, compared with naive loops in double, on every kernel that this CPU
   supports. Prints a line per failed check; exits non-zero if there was one. */
#define _GNU_SOURCE 1 /* fork, usleep */
#include "base/dtype.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/gemm.h"
#include "engines/cpu/product/gemm_skinny.h"
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- The pool ---- */

struct visits {
    _Atomic int *seen;
    int64_t inner; /* number of tasks of a nested loop in each task */
};

static void visit(void *context, int64_t task) {
    struct visits *visits = context;
    visits->seen[task]++;
}

static void visit_nested(void *context, int64_t task) {
    struct visits *outer = context;
    struct visits inner = {outer->seen + task * outer->inner, 0};
    threads_for(outer->inner, visit, &inner);
}

static void check_loop(int64_t tasks, int64_t inner) {
    int64_t total = inner ? tasks * inner : tasks;
    struct visits visits = {calloc((size_t)total + 1, sizeof(_Atomic int)), inner};
    threads_for(tasks, inner ? visit_nested : visit, &visits);
    for (int64_t i = 0; i < total; i++)
        CHECK(visits.seen[i] == 1, "task %lld of %lld ran %d times", (long long)i, (long long)total, visits.seen[i]);
    free((void *)visits.seen);
}

struct meeting {
    _Atomic int begun, missed;
    int wanted;
};

/* A task that waits until all tasks have begun, which requires a separate thread for each. */
static void meet(void *context, int64_t task) {
    struct meeting *meeting = context;
    (void)task;
    meeting->begun++;
    for (int wait = 0; meeting->begun < meeting->wanted && wait < 30000; wait++)
        usleep(1000);
    meeting->missed += meeting->begun < meeting->wanted;
}

static void check_meeting(const char *when) {
    struct meeting meeting = {.wanted = threads_count()};
    threads_for(meeting.wanted, meet, &meeting);
    CHECK(meeting.missed == 0, "%s %d of %d threads take no task", when, meeting.missed, meeting.wanted);
}

static void *loop_often(void *unused) {
    for (int64_t i = 0; i < 500; i++)
        check_loop(i % 40, 0);
    return unused;
}

static void test_threads(void) {
    CHECK(threads_count() >= 1, "threads_count is %d", threads_count());
    check_loop(100, 0); /* before the pool exists */
    CHECK(threads_start() == WEFT_STATUS_SUCCESS, "threads_start fails");
    CHECK(threads_start() == WEFT_STATUS_SUCCESS, "a second threads_start fails");
    for (int64_t tasks = 0; tasks < 300; tasks++)
        check_loop(tasks, 0);
    check_loop(100000, 0);
    check_loop(13, 29);
    check_meeting("awake,");
    usleep(20000); /* the workers are asleep now */
    check_meeting("asleep,");
    usleep(20000);
    check_loop(1000, 0);

    pthread_t callers[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&callers[i], NULL, loop_often, NULL);
    loop_often(NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(callers[i], NULL);
}

static void test_fork(void) {
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        harness_failures = 0;
        alarm(300); /* limit for a hang, long enough for a busy machine */
        check_loop(1000, 0);
        fflush(stdout);
        _exit(harness_end());
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "a loop in a forked child ends with wait status %d", status);
    check_loop(1000, 0);
}

/* ---- GEMM ---- */

static _Thread_local uint64_t random_state = 7;

static double random_value(void) /* in [-1, 1) */
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(random_state >> 40) / (1 << 23) - 1;
}

enum layout {
    INDEX_MAJOR, /* depth is contiguous */
    DEPTH_MAJOR, /* the index (row of A, column of B) is */
    SPREAD,      /* neither */
    REPEATED,    /* one row for all indices, one matrix for the whole batch */
};

/* Creates `batch` random matrices, with batch dims 2 x (batch / 2) or 1 x batch, in a buffer of exactly their size. */
static struct gemm_matrix make_matrix(weftDataType_t type, enum layout layout, int64_t batch, int64_t indices,
                                      int64_t depth) {
    struct gemm_matrix matrix = {.type = type, .batch_rank = 2};
    int64_t pad = layout == SPREAD ? 3 : 1;
    matrix.batch_dims[0] = batch % 2 ? 1 : 2;
    matrix.batch_dims[1] = batch / matrix.batch_dims[0];
    matrix.stride = layout == INDEX_MAJOR ? depth : layout == REPEATED ? 0 : pad;
    matrix.depth_stride = layout == DEPTH_MAJOR || layout == SPREAD ? pad * indices : 1;
    matrix.batch_strides[1] = layout == REPEATED ? 0 : pad * indices * depth;
    matrix.batch_strides[0] = matrix.batch_strides[1] * matrix.batch_dims[1];
    int64_t last = (batch - 1) * matrix.batch_strides[1];
    if (indices > 0 && depth > 0)
        last += (indices - 1) * matrix.stride + (depth - 1) * matrix.depth_stride;
    void *base = malloc((size_t)dtype_bytes(type, last + 1));
    for (int64_t i = 0; i <= last; i++)
        dtype_store(type, base, i, dtype_is_integer(type) ? 100 * random_value() : random_value());
    matrix.base = base;
    return matrix;
}

static double element(const struct gemm_matrix *matrix, int64_t batch, int64_t index, int64_t depth) {
    int64_t outer = batch / matrix->batch_dims[1], inner = batch % matrix->batch_dims[1];
    return dtype_load(matrix->type, matrix->base,
                      outer * matrix->batch_strides[0] + inner * matrix->batch_strides[1] + index * matrix->stride +
                          depth * matrix->depth_stride);
}

struct result {
    weftDataType_t type;
    int64_t m, n;
    double *values;
    unsigned char *stores; /* how often each element was stored */
};

static void store_result(const void *sink, void *block, int64_t ld, int64_t batch, int64_t row, int rows,
                         int64_t column, int columns) {
    const struct result *result = sink;
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            int64_t at = (batch * result->m + row + i) * result->n + column + j;
            result->values[at] = dtype_load(result->type, block, i * ld + j);
            result->stores[at]++;
        }
    }
}

enum { GUARD = 64 };

/* Runs with a workspace that is filled with NaN, misaligned by `shift`, and guarded at its end. */
static struct result run(const struct gemm *shape, int threads, int shift) {
    struct gemm gemm = *shape;
    size_t elems = (size_t)(gemm.batch * gemm.m * gemm.n);
    struct result result = {gemm.kernel->type, gemm.m, gemm.n, calloc(elems + 1, sizeof(double)), calloc(elems + 1, 1)};
    size_t bytes = (size_t)gemm_workspace_bytes(&gemm, threads);
    unsigned char *workspace = malloc(bytes + (size_t)shift + GUARD);
    memset(workspace, 0xff, bytes + (size_t)shift + GUARD);
    gemm.store = store_result;
    gemm.sink = &result;
    gemm_run(&gemm, threads, workspace + shift);
    for (int i = 0; i < GUARD; i++)
        CHECK(workspace[bytes + (size_t)shift + (size_t)i] == 0xff, "workspace overrun by %d", i + 1);
    for (int i = 0; i < shift; i++)
        CHECK(workspace[i] == 0xff, "workspace underrun at %d", i);
    free(workspace);
    return result;
}

static void free_result(struct result *result) {
    free(result->values);
    free(result->stores);
}

struct gemm_case {
    int64_t batch, m, n, k;
    weftDataType_t type_a, type_b;
    enum layout a, b;
};

/* Converts a matrix to doubles with contiguous depth: [batch][count][depth]. */
static double *widened(const struct gemm_matrix *matrix, int64_t batch, int64_t count, int64_t depth) {
    double *values = malloc((size_t)(batch * count * depth + 1) * sizeof *values), *next = values;
    for (int64_t at = 0; at < batch * count; at++)
        for (int64_t k = 0; k < depth; k++)
            *next++ = element(matrix, at / count, at % count, k);
    return values;
}

/* Compares with the reference. The bound per element is that of a sum of k rounded products: k * epsilon * sum |a*b|;
   integers are exact. */
static void check_values(const struct gemm_case *c, const struct gemm *gemm, const struct result *result) {
    double *a = widened(gemm->a, c->batch, c->m, c->k), *b = widened(gemm->b, c->batch, c->n, c->k);
    weftDataType_t type = gemm->kernel->type;
    double epsilon = type == WEFT_DATA_INT32 ? 0 : type == WEFT_DATA_DOUBLE ? 0x1p-52 : 0x1p-23;
    int wrong = 0;
    for (int64_t at = 0; at < c->batch * c->m * c->n && wrong < 3; at++) {
        int64_t batch = at / (c->m * c->n), i = at / c->n % c->m, j = at % c->n;
        const double *row = a + (batch * c->m + i) * c->k, *column = b + (batch * c->n + j) * c->k;
        double want = 0, size = 0;
        for (int64_t k = 0; k < c->k; k++) {
            double product = row[k] * column[k];
            want += product;
            size += fabs(product);
        }
        double got = result->values[at];
        bool good = fabs(got - want) <= (double)c->k * epsilon * size && result->stores[at] == 1;
        wrong += !good;
        CHECK(good,
              "%s %lldx%lldx%lldx%lld types %d,%d layouts %d,%d: C[%lld,%lld,%lld] is %g, not "
              "%g; stored %d times",
              gemm->kernel->name, (long long)c->batch, (long long)c->m, (long long)c->n, (long long)c->k, c->type_a,
              c->type_b, c->a, c->b, (long long)batch, (long long)i, (long long)j, got, want, result->stores[at]);
    }
    free(a);
    free(b);
}

static void refuse_pack(const void *source, void *panel, int width, int64_t batch, int64_t first, int count, int64_t k0,
                        int depth) {
    (void)source, (void)panel, (void)width, (void)count;
    CHECK(false, "packs %d depths from [%lld,%lld,%lld], which are packed", depth, (long long)batch, (long long)first,
          (long long)k0);
}

/* Prepacked operands (A, B or both) give bit-identical results, and are not packed again. */
static void check_packed(const struct gemm *gemm, int threads, const struct result *want) {
    enum { LINE = 64, A = 1, B = 2 };
    for (int packed = A; packed <= (A | B); packed++) {
        struct gemm other = *gemm;
        void *panels[2] = {NULL};
        for (int i = 0; i < 2; i++) {
            if (!(packed & (i ? B : A)))
                continue;
            int64_t bytes = gemm_packed_bytes(gemm, i);
            size_t whole = (size_t)((bytes + GUARD + LINE - 1) / LINE * LINE);
            unsigned char *end = (panels[i] = aligned_alloc(LINE, whole));
            memset(panels[i], 0xff, whole);
            gemm_prepack(gemm, i, panels[i]);
            for (int64_t j = bytes; j < bytes + GUARD; j++)
                CHECK(end[j] == 0xff, "packed operand overrun by %d", (int)(j - bytes) + 1);
            *(i ? &other.packed_b : &other.packed_a) = panels[i];
            if (!gemm_skinny_accepts(gemm))
                *(i ? &other.pack_b : &other.pack_a) = refuse_pack;
        }
        struct result result = run(&other, threads, 0);
        size_t elements = (size_t)(gemm->batch * gemm->m * gemm->n);
        CHECK(memcmp(result.values, want->values, elements * sizeof *want->values) == 0,
              "%s %lldx%lldx%lldx%lld on %d threads with operands %d packed: other sums", gemm->kernel->name,
              (long long)gemm->batch, (long long)gemm->m, (long long)gemm->n, (long long)gemm->k, threads, packed);
        free_result(&result);
        free(panels[0]);
        free(panels[1]);
    }
}

/* C in the kernel's own type, with a gap after each row. */
struct sums {
    char *at;
    int64_t m, ld, bytes;
};

static struct gemm_destination find_sums(const void *sink, int64_t batch, int64_t row, int rows, int64_t column) {
    const struct sums *sums = sink;
    (void)rows;
    return (struct gemm_destination){sums->at + ((batch * sums->m + row) * sums->ld + column) * sums->bytes,
                                     sums->ld * sums->bytes, sums->bytes, true};
}

static void refuse_store(const void *sink, void *block, int64_t ld, int64_t batch, int64_t row, int rows,
                         int64_t column, int columns) {
    (void)sink, (void)block, (void)ld;
    CHECK(false, "store is called for [%d,%d] of C[%lld,%lld,%lld], which are in place", rows, columns,
          (long long)batch, (long long)row, (long long)column);
}

/* Sums stored directly to memory, aligned to their element size, equal those passed to the sink; gaps do not change. */
static void check_in_place(struct gemm gemm, int threads, const struct result *handed) {
    enum { GAP = 3 };
    int64_t bytes = dtype_bytes(handed->type, 1), rows = gemm.batch * gemm.m, ld = gemm.n + GAP;
    char *memory = malloc((size_t)(bytes * (rows * ld + 1))), gap[GAP * sizeof(double)];
    void *workspace = malloc((size_t)gemm_workspace_bytes(&gemm, threads));
    struct sums sums = {memory + bytes, gemm.m, ld, bytes};
    memset(memory, 0xa5, (size_t)(bytes * (rows * ld + 1)));
    memset(gap, 0xa5, sizeof gap);
    gemm.store = refuse_store, gemm.find = find_sums, gemm.sink = &sums;
    gemm_run(&gemm, threads, workspace);
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < gemm.n; j++)
            wrong += dtype_load(handed->type, sums.at, i * ld + j) != handed->values[i * gemm.n + j];
        wrong += memcmp(sums.at + (i * ld + gemm.n) * bytes, gap, (size_t)(GAP * bytes)) != 0;
    }
    CHECK(wrong == 0, "%s %lldx%lldx%lldx%lld in place on %d threads: %lld elements are wrong", gemm.kernel->name,
          (long long)gemm.batch, (long long)gemm.m, (long long)gemm.n, (long long)gemm.k, threads, (long long)wrong);
    free(workspace);
    free(memory);
}

static void check_gemm(const struct gemm_case *c, const struct gemm_kernel *kernel) {
    static const int threads[] = {2, 3, 5, 64, 0};
    struct gemm_matrix a = make_matrix(c->type_a, c->a, c->batch, c->m, c->k);
    struct gemm_matrix b = make_matrix(c->type_b, c->b, c->batch, c->n, c->k);
    struct gemm gemm = {.kernel = kernel,
                        .batch = c->batch,
                        .m = c->m,
                        .n = c->n,
                        .k = c->k,
                        .pack_a = gemm_pack_of_a(kernel),
                        .pack_b = gemm_pack_of_b(kernel),
                        .a = &a,
                        .b = &b};
    struct result alone = run(&gemm, 1, 0);
    check_values(c, &gemm, &alone);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        struct result other = run(&gemm, threads[i], (int)(4 * i));
        CHECK(memcmp(alone.values, other.values, sizeof(double) * (size_t)(c->batch * c->m * c->n)) == 0,
              "%s %lldx%lldx%lldx%lld: %d threads give other bits than one", kernel->name, (long long)c->batch,
              (long long)c->m, (long long)c->n, (long long)c->k, threads[i]);
        free_result(&other);
    }
    for (int count = 1; count <= 2 && c->k > 0; count++) {
        check_in_place(gemm, count, &alone);
        check_packed(&gemm, count, &alone);
    }
    free_result(&alone);
    free((void *)a.base);
    free((void *)b.base);
}

#define F32 WEFT_DATA_FLOAT
static const struct gemm_case cases[] = {
    /* sizes: one element, panel edges, depth edges, more than one tile, work that threads share */
    {1, 1, 1, 1, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 1, 97, 5, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 97, 1, 5, F32, F32, INDEX_MAJOR, INDEX_MAJOR},
    {1, 12, 32, 384, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 13, 33, 385, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 11, 31, 383, F32, F32, DEPTH_MAJOR, INDEX_MAJOR},
    {1, 5, 7, 1025, F32, F32, DEPTH_MAJOR, DEPTH_MAJOR},
    {1, 200, 96, 64, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {3, 144, 70, 400, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 1541, 35, 9, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 35, 1925, 9, F32, F32, DEPTH_MAJOR, INDEX_MAJOR},
    {1, 197, 211, 131, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {1, 197, 120, 400, F32, F32, DEPTH_MAJOR, INDEX_MAJOR},
    {6, 70, 50, 80, F32, F32, INDEX_MAJOR, INDEX_MAJOR},
    {7, 61, 67, 41, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    /* strides */
    {4, 29, 41, 67, F32, F32, SPREAD, SPREAD},
    {4, 29, 41, 67, F32, F32, REPEATED, INDEX_MAJOR},
    {4, 29, 41, 67, F32, F32, DEPTH_MAJOR, REPEATED},
    {2, 29, 41, 1100, F32, F32, INDEX_MAJOR, INDEX_MAJOR},
    /* types, in all three layouts */
    {2, 19, 37, 390, WEFT_DATA_BFLOAT16, WEFT_DATA_HALF, INDEX_MAJOR, DEPTH_MAJOR},
    {2, 19, 37, 30, WEFT_DATA_HALF, WEFT_DATA_BFLOAT16, DEPTH_MAJOR, INDEX_MAJOR},
    {2, 19, 37, 30, WEFT_DATA_BFLOAT16, WEFT_DATA_DOUBLE, SPREAD, SPREAD},
    {2, 19, 37, 31, WEFT_DATA_INT4, WEFT_DATA_INT8, INDEX_MAJOR, DEPTH_MAJOR},
    {2, 19, 37, 31, WEFT_DATA_INT8, WEFT_DATA_INT4, DEPTH_MAJOR, SPREAD},
    /* few rows, contiguous depth */
    {1, 1, 517, 128, F32, F32, INDEX_MAJOR, INDEX_MAJOR},
    {3, 16, 70, 301, F32, WEFT_DATA_HALF, INDEX_MAJOR, INDEX_MAJOR},
    {1, 16, 70, 301, F32, F32, DEPTH_MAJOR, INDEX_MAJOR},
    {5, 7, 131, 160, WEFT_DATA_HALF, WEFT_DATA_BFLOAT16, SPREAD, INDEX_MAJOR},
    {4, 5, 66, 257, F32, F32, REPEATED, REPEATED},
    {2, 17, 66, 257, F32, F32, INDEX_MAJOR, INDEX_MAJOR},
    /* nothing to add, or an empty result */
    {2, 40, 50, 0, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {2, 0, 50, 8, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
    {2, 40, 0, 8, F32, F32, INDEX_MAJOR, DEPTH_MAJOR},
};

/* Maps a case's type to a type that a kernel of these factors supports; F32 in a case means any type. */
static weftDataType_t type_for(weftDataType_t factors, weftDataType_t type) {
    switch (factors) {
    case WEFT_DATA_INT8:
        return WEFT_DATA_INT8;
    case WEFT_DATA_BFLOAT16:
        return type == F32 || type == WEFT_DATA_DOUBLE ? WEFT_DATA_BFLOAT16
               : type == WEFT_DATA_HALF                ? WEFT_DATA_FP8_E4M3
                                                       : type;
    case WEFT_DATA_DOUBLE: /* makes rounding to float visible */
        return type == F32 ? WEFT_DATA_DOUBLE : type;
    default:
        return type == WEFT_DATA_DOUBLE ? F32 : type;
    }
}

static void test_gemm(weftDataType_t factors) {
    const struct gemm_kernel *kernel;
    bool is_everywhere = factors == F32 || factors == WEFT_DATA_DOUBLE;
    CHECK(gemm_kernel(factors, 0) != NULL || !is_everywhere, "no kernel for type %d", factors);
    for (int rank = 0; (kernel = gemm_kernel(factors, rank)) != NULL; rank++) {
        CHECK(kernel->factors == factors, "%s is of another type", kernel->name);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct gemm_case c = cases[i];
            c.type_a = type_for(factors, c.type_a), c.type_b = type_for(factors, c.type_b);
            check_gemm(&c, kernel);
        }
    }
}

static float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Flushes subnormal numbers to 0. */
static float flush(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value; }

/* Accumulates products with FMA over every `step`th depth of [first, end). */
static float sum_products(const uint16_t *a, const uint16_t *b, int first, int end, int step, float sum) {
    for (int k = first; k < end; k += step)
        sum = flush(fmaf(flush(bits_to_float((uint32_t)a[k] << 16)), flush(bits_to_float((uint32_t)b[k] << 16)), sum));
    return sum;
}

enum { PAIRS = 48, DEPTH = 2 * PAIRS };

/* Order of dot.h: the upper half of each pair first. */
static float sum_pairs(const uint16_t *a, const uint16_t *b) {
    float sum = 0;
    for (int k = 0; k < DEPTH; k += 2)
        sum = sum_products(a, b, k, k + 1, 1, sum_products(a, b, k + 1, k + 2, 1, sum));
    return sum;
}

/* Order of gemm_amx.h: of each 32 depths, even and odd ones separately. */
static float sum_tiles(const uint16_t *a, const uint16_t *b) {
    float sum = 0;
    for (int k = 0; k < DEPTH; k += 32) {
        float even = sum_products(a, b, k, k + 32, 2, 0), odd = sum_products(a, b, k + 1, k + 32, 2, 0);
        sum = flush(sum + flush(even + odd));
    }
    return sum;
}

/* Packs [lanes, DEPTH] into a panel. */
static void fill_panel(uint16_t *panel, uint16_t (*lanes)[DEPTH], int width, int group) {
    for (int i = 0; i < width; i++)
        for (int d = 0; d < DEPTH; d++)
            panel[(d / group * width + i) * group + d % group] = lanes[i][d];
}

/* Checks the products of a BFLOAT16 kernel bit for bit on random pairs, including sums that cancel, are infinite, NaN
   or subnormal. */
static void check_pairs(const struct gemm_kernel *kernel) {
    static const uint16_t odd[] = {0x0001, 0x8020, 0x0080, 0x3f80, 0xbf80, 0x4b80, 0xcb80, 0x1f80, 0x9f80, 0x7f00};
    static uint16_t a[GEMM_WIDTH][DEPTH], b[GEMM_WIDTH][DEPTH];
    static _Alignas(64) uint16_t a_panel[GEMM_WIDTH * DEPTH], b_panel[GEMM_WIDTH * DEPTH];
    static _Alignas(64) float c[GEMM_WIDTH * GEMM_WIDTH];
    for (int i = 0; i < GEMM_WIDTH; i++)
        for (int k = 0; k < DEPTH; k++) {
            a[i][k] = odd[(int)((random_value() + 1) * 5)];
            b[i][k] = odd[(int)((random_value() + 1) * 5)];
        }
    a[1][7] = 0x7f80, a[2][8] = 0x7fc0, b[3][9] = 0xff80;
    fill_panel(a_panel, a, kernel->rows, kernel->group_a);
    fill_panel(b_panel, b, kernel->columns, kernel->group_b);
    if (kernel->begin)
        kernel->begin();
    kernel->multiply(PAIRS, a_panel, b_panel, c, kernel->columns, true);
    if (kernel->end)
        kernel->end();
    for (int i = 0; i < kernel->rows; i++)
        for (int j = 0; j < kernel->columns; j++) {
            float want = kernel->group_a > kernel->group_b ? sum_tiles(a[i], b[j]) : sum_pairs(a[i], b[j]);
            float got = c[i * kernel->columns + j];
            CHECK(got == want || (isnan(want) && isnan(got)), "%s: [%d,%d] is %a, not %a", kernel->name, i, j,
                  (double)got, (double)want);
        }
}

/* Byte sums that continue from the value in C wrap around; all bytes have the largest magnitude of either sign. */
static void check_wrapping(const struct gemm_kernel *kernel) {
    enum { BYTES = 192, GROUPS = BYTES / 4 };
    static int8_t a[GEMM_WIDTH][BYTES], b[GEMM_WIDTH][BYTES];
    static _Alignas(64) uint32_t a_panel[GEMM_WIDTH * GROUPS], b_panel[GEMM_WIDTH * (GROUPS + 1)];
    static _Alignas(64) uint32_t c[GEMM_WIDTH * GEMM_WIDTH];
    struct gemm_matrix a_matrix = {a, WEFT_DATA_INT8, BYTES, 1, 0, {0}, {0}};
    struct gemm_matrix b_matrix = {b, WEFT_DATA_INT8, BYTES, 1, 0, {0}, {0}};
    uint32_t *b_factors = b_panel + (kernel->start ? kernel->columns : 0);
    for (int i = 0; i < GEMM_WIDTH; i++)
        for (int k = 0; k < BYTES; k++)
            a[i][k] = random_value() < 0 ? -128 : 127, b[i][k] = random_value() < 0 ? -128 : 127;
    for (int i = 0; i < kernel->rows * kernel->columns; i++)
        c[i] = i % 2 ? (uint32_t)INT32_MAX : (uint32_t)INT32_MIN;
    gemm_pack_of_a(kernel)(&a_matrix, a_panel, kernel->rows, 0, 0, kernel->rows, 0, BYTES);
    gemm_pack_of_b(kernel)(&b_matrix, b_factors, kernel->columns, 0, 0, kernel->columns, 0, BYTES);
    if (kernel->start)
        kernel->start(GROUPS, b_panel);
    if (kernel->begin)
        kernel->begin();
    kernel->multiply(GROUPS, a_panel, b_panel, c, kernel->columns, false);
    if (kernel->end)
        kernel->end();
    for (int i = 0; i < kernel->rows; i++)
        for (int j = 0; j < kernel->columns; j++) {
            int at = i * kernel->columns + j;
            uint32_t want = at % 2 ? (uint32_t)INT32_MAX : (uint32_t)INT32_MIN;
            for (int k = 0; k < BYTES; k++)
                want += (uint32_t)(a[i][k] * b[j][k]);
            CHECK(c[at] == want, "%s: [%d,%d] is %u, not %u", kernel->name, i, j, c[at], want);
        }
}

static void test_narrow(void) {
    static const char *const wanted[] = {"amx-int8", "amx-bf16", "avx512vnni", "avx512bf16"};
    const struct gemm_kernel *kernel;
    for (int rank = 0; (kernel = gemm_kernel(WEFT_DATA_BFLOAT16, rank)) != NULL; rank++)
        check_pairs(kernel);
    for (int rank = 0; (kernel = gemm_kernel(WEFT_DATA_INT8, rank)) != NULL; rank++)
        check_wrapping(kernel);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!cpu_runs(wanted[i]))
            printf("not observed: kernels for %s (this CPU, or its system, has none)\n", wanted[i]);
}

/* After a product, the caller's tiles are released, so that a context switch does not save them. */
static void test_release(void) {
#if defined __x86_64__
    enum { IN_USE = 1, TILES = 1 << 17 | 1 << 18 };
    uint32_t low, high;
    if (!cpu_runs("amx-bf16"))
        return;
    check_gemm(&(struct gemm_case){1, 40, 40, 40, WEFT_DATA_BFLOAT16, WEFT_DATA_BFLOAT16, INDEX_MAJOR, DEPTH_MAJOR},
               gemm_kernel(WEFT_DATA_BFLOAT16, 0));
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(IN_USE));
    CHECK((low & TILES) == 0, "tiles are in use behind a product: %x", low);
#endif
}

/* Two threads that run GEMMs concurrently get separate, correct results. */
static void *run_one(void *unused) {
    for (int i = 0; i < 3; i++)
        check_gemm(&(struct gemm_case){1, 130, 110, 90, F32, F32, REPEATED, REPEATED}, gemm_kernel(F32, 0));
    return unused;
}

int main(void) {
    pthread_t other;
    setvbuf(stdout, NULL, _IOLBF, 0);
    RUN(test_threads());
    RUN(test_gemm(WEFT_DATA_FLOAT));
    RUN(test_gemm(WEFT_DATA_DOUBLE));
    RUN(test_gemm(WEFT_DATA_BFLOAT16));
    RUN(test_gemm(WEFT_DATA_INT8));
    RUN(test_narrow());
    RUN(test_release());
    pthread_create(&other, NULL, run_one, NULL);
    run_one(NULL);
    pthread_join(other, NULL);
    RUN(test_fork());
    return harness_end();
}
