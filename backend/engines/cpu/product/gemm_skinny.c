/* SPDX-License-Identifier: Apache-2.0 */
/* Each batch entry is divided into parts, which are ranges of columns, one for each thread. A thread has the entry's
   rows of A as floats and computes some columns of C at a time in a buffer. */
#include "engines/cpu/product/gemm_skinny.h"

#include "base/number.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/product/gemm_small.h"

#include <stdatomic.h>
#include <string.h>

enum {
    LEAST_DEPTH = 128, /* minimum depth, because lanes are added once per element */
    COLUMNS = 64,      /* columns of C at once: a multiple of the four that small_dots computes */
    LINE = 64          /* alignment of buffers in bytes */
};
/* Elements of B that a thread reads, or multiplications that it performs, before another one wakes up. */
static const double ALONE = 1 << 17;

/* NULL if no kernel reads B in place. */
static small_dots *dots_of(const struct gemm *gemm) {
    const struct gemm_matrix *b = gemm->b;
    const struct small_kernel *kernel = small_kernel(0);
    if (gemm->pack_b != gemm_pack_matrix || b->depth_stride != 1)
        return NULL;
    switch (b->type) {
    case WEFT_DATA_FLOAT:
        return kernel->dots[SMALL_FLOAT];
    case WEFT_DATA_BFLOAT16:
        return kernel->dots[SMALL_BF16];
    case WEFT_DATA_HALF:
        return kernel->dots[SMALL_HALF];
    default:
        return NULL;
    }
}

/* With more rows, packing B or using prepacked panels is faster. Microseconds on a Xeon for 16 rows, n and k 1024, in
   place and packed: FLOAT 125, 180, prepacked 105; HALF, which is converted to float again for every four rows, 150,
   138, and with cold caches 175, 200. */
bool gemm_skinny_accepts(const struct gemm *gemm) {
    bool is_float = gemm->kernel->factors == WEFT_DATA_FLOAT,
         is_deep = gemm->k >= LEAST_DEPTH && gemm->k <= SKINNY_DEPTH;
    return is_float && is_deep && gemm->m <= SKINNY_ROWS && dots_of(gemm) != NULL;
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/* Each thread has memory for the rows of A and for columns of C. */
static int64_t a_floats(const struct gemm *gemm) { return gemm->m * round_up(gemm->k, LINE / 4); }

static int64_t thread_bytes(const struct gemm *gemm) {
    return (a_floats(gemm) + gemm->m * COLUMNS) * (int64_t)sizeof(float);
}

int64_t gemm_skinny_workspace_bytes(const struct gemm *gemm, int threads) {
    return gemm->m <= SKINNY_ROWS && gemm->k <= SKINNY_DEPTH ? max64(threads, 1) * thread_bytes(gemm) : 0;
}

/* Rows of A with a pitch of `ld` floats. */
struct rows {
    const float *at;
    int64_t ld;
};

/* Returns the rows of A of a batch entry, in place if they are floats, otherwise packed one at a time as panels of one
   row. */
static struct rows rows_of(const struct gemm *gemm, int64_t batch, float *buffer) {
    const struct gemm_matrix *a = gemm->a;
    if (gemm->pack_a == gemm_pack_matrix && a->depth_stride == 1 && gemm_has_floats(a))
        return (struct rows){(const float *)(const void *)gemm_corner(a, batch, 0, 0), a->stride};
    struct rows rows = {buffer, round_up(gemm->k, LINE / 4)};
    for (int64_t i = 0; i < gemm->m; i++)
        for (int64_t k0 = 0; k0 < gemm->k; k0 += GEMM_DEPTH)
            gemm->pack_a(gemm->a, buffer + i * rows.ld + k0, 1, batch, i, 1, k0, (int)min64(GEMM_DEPTH, gemm->k - k0));
    return rows;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* State of one gemm_skinny_run, on the caller's stack. */
struct job {
    const struct gemm *gemm;
    small_dots *dots;
    int64_t part, parts; /* columns of each part, except perhaps the last; parts per entry */
    char *buffers;
    _Atomic int64_t next;
};

/* Passes columns to the sink, or copies them to their destination. */
static void store(const struct gemm *gemm, float *block, int64_t batch, int64_t column, int64_t columns) {
    struct gemm_destination destination = {0};
    if (gemm->find)
        destination = gemm->find(gemm->sink, batch, 0, (int)gemm->m, column);
    for (int64_t i = 0; i < gemm->m && destination.accepts_sums; i++)
        memcpy(destination.at + i * destination.row_bytes, block + i * COLUMNS, (size_t)columns * sizeof *block);
    if (!destination.accepts_sums)
        gemm->store(gemm->sink, block, COLUMNS, batch, 0, (int)gemm->m, column, (int)columns);
}

/* Computes columns [column, end) of an entry. */
static void run_part(const struct job *job, struct rows a, float *block, int64_t batch, int64_t column, int64_t end) {
    const struct gemm *gemm = job->gemm;
    const struct gemm_matrix *b = gemm->b;
    for (; column < end; column += COLUMNS) {
        struct small_skinny few = {.count = (int)gemm->m,
                                   .rows = min64(COLUMNS, end - column),
                                   .depth = gemm->k,
                                   .matrix = gemm_corner(b, batch, column, 0),
                                   .ld = b->stride};
        job->dots(&few, a.at, a.ld, block, COLUMNS);
        store(gemm, block, batch, column, few.rows);
    }
}

/* Thread main loop: processes parts until none is left. `thread` is the index of its buffers. */
static void run_parts(void *context, int64_t thread) {
    struct job *job = context;
    const struct gemm *gemm = job->gemm;
    float *buffer = (float *)(void *)(job->buffers + thread * thread_bytes(gemm));
    struct rows a = {0};
    int64_t index, batch = -1; /* batch entry whose rows are in `a` */
    while ((index = atomic_fetch_add(&job->next, 1)) < gemm->batch * job->parts) {
        if (index / job->parts != batch)
            a = rows_of(gemm, batch = index / job->parts, buffer);
        int64_t column = index % job->parts * job->part;
        run_part(job, a, buffer + a_floats(gemm), batch, column, min64(column + job->part, gemm->n));
    }
}

void gemm_skinny_run(const struct gemm *gemm, int threads, void *workspace) {
    double work = (double)gemm->batch * (double)gemm->n * (double)gemm->k * (1 + (double)gemm->m / 4);
    int64_t most = work < ALONE ? 1 : max64(threads, 1);
    int64_t part = round_up(divide_up(gemm->n, divide_up(most, gemm->batch)), 4);
    struct job job = {gemm, dots_of(gemm), part, divide_up(gemm->n, part), workspace, 0};
    threads_for(min64(most, gemm->batch * job.parts), run_parts, &job);
}
