/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of direct convolutions on the CPU, compared with sums in double, on every kernel that this CPU
   supports: all heights and widths, several segments, and memory next to the result that must not change. */
#include "engines/cpu/product/direct_kernel.h"

#include "harness.h"

#include <math.h>

enum { ROOM = 160 * 160, ROWS = 16, MOST_SEGMENTS = 8 };

static float x[ROOM], w[ROOM], c[ROOM];
static const float *seen[ROWS * MOST_SEGMENTS];
static const float UNTOUCHED = 12345;

static void fill(float *numbers, int factor) {
    for (int i = 0; i < ROOM; i++)
        numbers[i] = (float)((i * factor + 104729) % 2003 - 1001) / 256;
}

/* Scattered rows, each followed by at least 150 floats. */
static void scatter_rows(void) {
    for (int i = 0; i < ROWS * MOST_SEGMENTS; i++)
        seen[i] = x + (i * 61 + 7) % 120 * 160 + i % 3;
    for (int i = 0; i < ROOM; i++)
        c[i] = UNTOUCHED;
}

static bool differs(double found, double expected) { return !(fabs(found - expected) < 2e-3 * (1 + fabs(expected))); }

static void check_multiply(const char *name, const struct direct_shape *shape, int low, int segments, int depth,
                           bool adds) {
    int rows = shape->rows >> low, columns = shape->columns, ld = columns + 5, step = 1 + low * 2, wrong = 0;
    scatter_rows();
    shape->multiply[low](segments, depth, seen, ROWS, step, w, c, ld, adds);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < ld; j++) {
            double sum = adds ? UNTOUCHED : 0;
            for (int s = 0; s < segments; s++)
                for (int d = 0; d < depth; d++)
                    sum += (double)seen[s * ROWS + i][d * step] * w[(s * depth + d) * columns + j % columns];
            wrong += j < columns ? differs(c[i * ld + j], sum) : c[i * ld + j] != UNTOUCHED;
        }
    wrong += c[rows * ld] != UNTOUCHED;
    CHECK(wrong == 0, "%s: %d rows x %d columns of %d segments, %d deep: %d elements differ", name, rows, columns,
          segments, depth, wrong);
}

/* Rows of B in any order. */
static void check_multiply_seen(const char *name, const struct direct_shape *shape, int low, int segments, int depth,
                                bool adds) {
    int rows = shape->rows >> low, columns = shape->columns, ld = columns + 5, step = 1 + low * 2, wrong = 0;
    const float *b[MOST_SEGMENTS * 40];
    scatter_rows();
    for (int i = 0; i < segments * depth; i++)
        b[i] = w + i * 83 % 97 * 160 + i % 5;
    shape->multiply_pointers[low](segments, depth, seen, ROWS, step, b, c, ld, adds);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < ld; j++) {
            double sum = adds ? UNTOUCHED : 0;
            for (int s = 0; s < segments; s++)
                for (int d = 0; d < depth; d++)
                    sum += (double)seen[s * ROWS + i][d * step] * b[s * depth + d][j];
            wrong += j < columns ? differs(c[i * ld + j], sum) : c[i * ld + j] != UNTOUCHED;
        }
    wrong += c[rows * ld] != UNTOUCHED;
    CHECK(wrong == 0, "%s: %d rows x %d columns behind pointers, %d segments, %d deep: %d elements differ", name, rows,
          columns, segments, depth, wrong);
}

static void check_channels(const struct direct_kernel *kernel, int taps, int channels) {
    int rows = kernel->channel_rows, wrong = 0;
    scatter_rows();
    kernel->filter_channels(taps, seen, ROWS, w, c, 160, channels);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j <= channels; j++) {
            double sum = 0;
            for (int t = 0; t < taps; t++)
                sum += (double)seen[t * ROWS + i][j] * w[t * channels + j];
            wrong += j < channels ? differs(c[i * 160 + j], sum) : c[i * 160 + j] != UNTOUCHED;
        }
    CHECK(wrong == 0, "%s: %d taps of %d channels: %d elements differ", kernel->name, taps, channels, wrong);
}

static void check_sums(const struct direct_kernel *kernel, int rows, int channels) {
    int wrong = 0;
    scatter_rows();
    kernel->sum_channels(rows, seen, ROWS, w, 155, c, channels);
    for (int t = 0; t < DIRECT_TAPS; t++)
        for (int j = 0; j < channels; j++) {
            double sum = 0;
            for (int i = 0; i < rows; i++)
                sum += (double)seen[t * ROWS + i][j] * w[i * 155 + j];
            wrong += differs(c[t * channels + j], sum);
        }
    wrong += c[DIRECT_TAPS * channels] != UNTOUCHED;
    CHECK(wrong == 0, "%s: gradients of %d rows, %d channels: %d elements differ", kernel->name, rows, channels, wrong);
}

static void check_planes(const struct direct_kernel *kernel, int lines, int width) {
    int wrong = 0, ld = width + 3;
    scatter_rows();
    for (int t = 0; t < DIRECT_PLANE_TAPS; t++)
        seen[t] = x + t * 37;
    kernel->sum_planes(lines, width, seen, ld, w, c);
    for (int t = 0; t < DIRECT_PLANE_TAPS; t++) {
        double sum = 0;
        for (int i = 0; i < lines; i++)
            for (int j = 0; j < width; j++)
                sum += (double)seen[t][i * ld + j] * w[i * width + j];
        wrong += differs(c[t], sum);
    }
    wrong += c[DIRECT_PLANE_TAPS] != UNTOUCHED;
    CHECK(wrong == 0, "%s: gradients of %d lines of %d places: %d elements differ", kernel->name, lines, width, wrong);
}

/* The kernel may write up to the next multiple of a vector, but not beyond it. */
static void check_filtered(const struct direct_kernel *kernel, int taps, int count) {
    int wrong = 0, written = (count + DIRECT_VECTOR - 1) / DIRECT_VECTOR * DIRECT_VECTOR;
    int64_t offsets[MOST_SEGMENTS];
    scatter_rows();
    for (int t = 0; t < taps; t++)
        offsets[t] = t * 37 % 50;
    kernel->filter_plane(taps, x, offsets, w, 3, c, count);
    for (int j = 0; j < count; j++) {
        double sum = 0;
        for (int t = 0; t < taps; t++)
            sum += (double)w[t * 3] * x[offsets[t] + j];
        wrong += differs(c[j], sum);
    }
    wrong += c[written] != UNTOUCHED;
    CHECK(wrong == 0, "%s: %d taps over %d neighbours: %d elements differ", kernel->name, taps, count, wrong);
}

/* Tests all shapes. */
static void check_products(const struct direct_kernel *kernel) {
    int width = 0;
    for (const struct direct_shape *shape = kernel->shapes; width != kernel->lanes; shape++) {
        width = shape->columns;
        CHECK(DIRECT_ROWS % (shape->rows / 2) == 0 && DIRECT_ROWS % kernel->channel_rows == 0,
              "%s: %d columns beside %d rows, which do not divide %d", kernel->name, width, shape->rows, DIRECT_ROWS);
        for (int form = 0; form < 4; form++)
            for (int segments = 0; segments <= MOST_SEGMENTS; segments += 4)
                for (int depth = 0; depth < 40; depth += 13) {
                    check_multiply(kernel->name, shape, form & 1, segments, depth, form >> 1);
                    if (width > kernel->lanes)
                        check_multiply_seen(kernel->name, shape, form & 1, segments, depth, form >> 1);
                }
    }
}

/* The panels of a number of columns consist of whole vectors, and are as wide as possible. */
static void check_shapes(const struct direct_kernel *kernel) {
    for (int columns = 1; columns < 300; columns++) {
        int left = columns, vectors = (columns + kernel->lanes - 1) / kernel->lanes;
        for (; left > 0; left -= direct_shape(left)->columns)
            vectors -= direct_shape(left)->columns / kernel->lanes;
        CHECK(vectors == 0 && (columns < kernel->shapes[0].columns || direct_shape(columns) == kernel->shapes),
              "%s: %d columns begin with a panel of %d, and panels have %d vectors too few", kernel->name, columns,
              direct_shape(columns)->columns, vectors);
    }
}

int main(void) {
    static const int CHANNELS[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 63, 64, 65, 100, 150};
    int kernels = 0;
    fill(x, 7919);
    fill(w, 6421);
    for (const struct direct_kernel *kernel; (kernel = direct_kernel(kernels)) != NULL; kernels++) {
        check_products(kernel);
        for (size_t i = 0; i < sizeof CHANNELS / sizeof *CHANNELS; i++)
            for (int taps = 0; taps <= MOST_SEGMENTS; taps += 2) {
                check_channels(kernel, taps, CHANNELS[i]);
                check_sums(kernel, 2 * taps, CHANNELS[i]);
                check_filtered(kernel, taps, CHANNELS[i]);
            }
        for (int lines = 0; lines < 30; lines += 7)
            for (int width = 16; width < 64; width += 16)
                check_planes(kernel, lines, width);
    }
    check_shapes(direct_kernel(0));
    CHECK(kernels > 0, "this CPU runs none of the kernels");
    return harness_end();
}
