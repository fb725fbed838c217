/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices that are not packed, compared with sums in double, on every kernel that this CPU supports:
   sizes around the kernel's own, both layouts of A, and memory after the last block that must not change. */
#include "engines/cpu/product/gemm_small.h"

#include "base/dtype.h"
#include "harness.h"

#include <math.h>
#include <string.h>

enum { ROOM = 160 * 160 };

static float a[ROOM], b[ROOM], c[ROOM];
static const float UNTOUCHED = 12345;

static void fill(float *numbers) {
    for (int i = 0; i < ROOM; i++)
        numbers[i] = (float)((i * 7919 + 104729) % 2003 - 1001) / 256;
}

static bool is_near(double found, double expected) { return fabs(found - expected) < 1e-3; }

static void check_product(const struct small_kernel *kernel, int m, int n, int depth, bool is_turned, bool adds) {
    struct small_factor left = is_turned ? (struct small_factor){a, 1, 150} : (struct small_factor){a, 150, 1};
    int whole_m = (m + kernel->rows - 1) / kernel->rows * kernel->rows, half = kernel->columns / 2;
    int whole_n = (n + half - 1) / half * half, wrong = 0;
    for (int i = 0; i < ROOM; i++)
        c[i] = UNTOUCHED;
    small_product(kernel, m, n, depth, left, (struct small_factor){b, 0, 155}, c, 150, adds);
    for (int i = 0; i < whole_m + 1; i++)
        for (int j = 0; j < whole_n + 1; j++) {
            double sum = adds ? UNTOUCHED : 0;
            for (int d = 0; d < depth; d++)
                sum += (double)a[i * left.row + d * left.depth] * b[d * 155 + j];
            bool is_inside = i < m && j < n, is_outside = i >= whole_m || j >= whole_n;
            /* Sums that are added to 12345 have its rounding error. */
            wrong += is_inside && fabs(c[i * 150 + j] - sum) > (adds ? 0.2 : 2e-3);
            wrong += is_outside && c[i * 150 + j] != UNTOUCHED;
        }
    CHECK(wrong == 0, "%s: [%d,%d] x [%d,%d]: %d elements differ", kernel->name, m, depth, depth, n, wrong);
}

/* Returns a as a matrix of the type. Halves are stored at an odd address, and a is rounded to their values. */
static const void *matrix_of(enum small_type type) {
    static char narrow[2 * ROOM + 1];
    weftDataType_t of = type == SMALL_BF16 ? WEFT_DATA_BFLOAT16 : WEFT_DATA_HALF;
    if (type == SMALL_FLOAT)
        return a;
    dtype_from_f32(of, narrow + 1, 0, a, ROOM);
    dtype_to_f32(a, of, narrow + 1, 0, ROOM);
    return narrow + 1;
}

static void check_few(const struct small_kernel *kernel, enum small_type type, int count, int rows, int depth) {
    struct small_skinny few = {count, rows, depth, matrix_of(type), 140};
    int wrong = 0;
    for (int i = 0; i < ROOM; i++)
        c[i] = 0;
    if (kernel->dots[type])
        kernel->dots[type](&few, b, 150, c, 90);
    for (int i = 0; i < count + 1; i++)
        for (int r = 0; r < (rows + 3) / 4 * 4 + 1; r++) {
            double sum = 0;
            for (int d = 0; d < depth && i < count && kernel->dots[type]; d++)
                sum += (double)a[r * 140 + d] * b[i * 150 + d];
            bool is_between = i < count && r >= rows && r < (rows + 3) / 4 * 4;
            wrong += !is_between && !is_near(c[i * 90 + r], r < rows ? sum : 0);
        }
    /* Weights: every third one is 0, and its row may be NaN. */
    for (int i = 0; i < count * 90; i++)
        c[i] = i % 90 % 3 == 1 ? 0 : (float)(i % 5 - 2) / 4;
    for (int r = 1; r < rows; r += 3)
        a[r * 140] = NAN;
    float *sums = c + 150 * 100;
    few.matrix = matrix_of(type);
    if (kernel->combine[type])
        kernel->combine[type](&few, c, 90, sums, 150);
    for (int i = 0; i < count && kernel->combine[type]; i++)
        for (int d = 0; d < depth + 1; d++) {
            double sum = 0;
            for (int r = 0; r < rows && d < depth; r++)
                sum += c[i * 90 + r] == 0 ? 0 : (double)c[i * 90 + r] * a[r * 140 + d];
            wrong += !is_near(sums[i * 150 + d], sum);
        }
    fill(a);
    CHECK(wrong == 0, "%s: %d vectors, %d rows of %d, type %d: %d elements differ", kernel->name, count, rows, depth,
          type, wrong);
}

int main(void) {
    static const int sizes[] = {1, 5, 6, 7, 8, 9, 16, 17, 31, 32, 33, 64, 70};
    const struct small_kernel *kernel;
    fill(a), fill(b);
    for (int rank = 0; (kernel = small_kernel(rank)); rank++) {
        for (int i = 0; i < 13; i++)
            for (int j = 0; j < 13; j++) {
                check_product(kernel, sizes[i], sizes[j], sizes[(i + j) % 13], j % 2, i % 2);
                check_few(kernel, SMALL_FLOAT, 1 + j % 6, sizes[i], sizes[j]);
                check_few(kernel, SMALL_BF16, 1 + j % 6, sizes[i], sizes[j]);
                check_few(kernel, SMALL_HALF, 1 + j % 6, sizes[i], sizes[j]);
            }
        check_product(kernel, 7, 33, 0, false, false);
    }
    CHECK(small_kernel(0) && SMALL_COLUMNS % small_kernel(0)->columns == 0, "no kernel, or one that is too wide");
    return harness_end();
}
