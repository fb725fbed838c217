/* SPDX-License-Identifier: Apache-2.0 */
/* Data types, hashes, text and byte blobs of backend/base, checked value by value. The oracle for float types is their
   definition: `decode` computes a code's value with ldexp, and the nearest code is found by a search in the sorted
   values. Prints one line per failed check and exits non-zero; a failing sweep stops at its first mismatch. */
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/text.h"
#include "harness.h"

#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values from the papers that define the formats, independent of the table under test. */
struct format {
    weftDataType_t type;
    int bits, mantissa_bits, bias;
    unsigned max_code;      /* last finite magnitude */
    unsigned overflow_code; /* code of larger magnitudes */
    bool has_nan, has_infinity;
};

static const struct format FORMATS[] = {
    {WEFT_DATA_HALF, 16, 10, 15, 0x7bff, 0x7c00, true, true},
    {WEFT_DATA_BFLOAT16, 16, 7, 127, 0x7f7f, 0x7f80, true, true},
    {WEFT_DATA_FP8_E4M3, 8, 3, 7, 0x7e, 0x7e, true, false},
    {WEFT_DATA_FP8_E5M2, 8, 2, 15, 0x7b, 0x7b, true, true},
    {WEFT_DATA_FP4_E2M1, 4, 1, 1, 0x7, 0x7, false, false},
};
enum { FORMAT_COUNT = sizeof FORMATS / sizeof FORMATS[0] };

static const weftDataType_t STORED[] = {
    WEFT_DATA_FLOAT,    WEFT_DATA_DOUBLE,       WEFT_DATA_HALF,     WEFT_DATA_BFLOAT16, WEFT_DATA_FP8_E4M3,
    WEFT_DATA_FP8_E5M2, WEFT_DATA_FP8_E8M0,     WEFT_DATA_FP4_E2M1, WEFT_DATA_INT4,     WEFT_DATA_UINT4,
    WEFT_DATA_INT8,     WEFT_DATA_UINT8,        WEFT_DATA_INT32,    WEFT_DATA_UINT32,   WEFT_DATA_INT64,
    WEFT_DATA_BOOLEAN,  WEFT_DATA_BYTE_BOOLEAN,
};
enum { STORED_COUNT = sizeof STORED / sizeof STORED[0] };

static double decode(const struct format *format, unsigned code) {
    unsigned magnitude = code & ((1u << (format->bits - 1)) - 1);
    double sign = code == magnitude ? 1 : -1;
    int exponent = (int)(magnitude >> format->mantissa_bits);
    double fraction = magnitude & ((1u << format->mantissa_bits) - 1);
    if (magnitude > format->max_code)
        return copysign(format->has_infinity && magnitude == format->max_code + 1 ? INFINITY : NAN, sign);
    if (exponent > 0)
        fraction += 1 << format->mantissa_bits;
    exponent = exponent > 0 ? exponent : 1;
    return sign * ldexp(fraction, exponent - format->bias - format->mantissa_bits);
}

/* Finds the code of a value by a search over all finite magnitudes: nearest, ties to the even code. The code after the
   last finite one is a candidate, too: a value that rounds to it overflows. */
static unsigned nearest_code(const struct format *format, double value) {
    unsigned sign = signbit(value) ? 1u << (format->bits - 1) : 0;
    double magnitude = fabs(value);
    unsigned low = 0, high = format->max_code + 1; /* decode(low) <= magnitude < "decode(high)" */
    if (magnitude > decode(format, format->max_code)) {
        double last = decode(format, format->max_code);
        double step = last - decode(format, format->max_code - 1);
        bool keeps = magnitude < last + step / 2;
        return sign | (keeps ? format->max_code : format->overflow_code);
    }
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (decode(format, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    if (low == format->max_code)
        return sign | low;
    double below = magnitude - decode(format, low), above = decode(format, low + 1) - magnitude;
    bool up = above < below || (above == below && low % 2 == 1);
    return sign | (low + up);
}

static unsigned stored_code(weftDataType_t type, double value) {
    uint16_t code = 0;
    dtype_store(type, &code, 0, value);
    return code;
}

/* One more than the widest vector: vectors and the remainder are converted by different code, which must agree. */
enum { ROW = 17 };

static unsigned row_code(weftDataType_t type, float value) {
    uint16_t code = 0, codes[ROW] = {0}, others[ROW] = {0};
    float row[ROW];
    for (int i = 0; i < ROW; i++)
        row[i] = value;
    dtype_from_f32(type, codes, 0, row, ROW);
    for (int i = 0; i < ROW; i++)
        dtype_from_f32(type, others, i, &value, 1);
    CHECK(memcmp(codes, others, sizeof codes) == 0, "%s: a row of %a", dtype_of(type)->name, (double)value);
    dtype_from_f32(type, &code, 0, &value, 1);
    return code;
}

/* The same check for loads. */
static bool row_loads_alike(const struct format *format, unsigned code) {
    uint16_t codes[ROW];
    float row[ROW], one;
    bool is_alike = true;
    for (int i = 0; i < ROW; i++)
        codes[i] = (uint16_t)(code * (0xffff / ((1u << format->bits) - 1))); /* the code, repeated */
    dtype_to_f32(row, format->type, codes, 0, ROW);
    dtype_to_f32(&one, format->type, codes, 0, 1);
    for (int i = 0; i < ROW; i++)
        is_alike = is_alike && memcmp(&row[i], &one, sizeof one) == 0;
    return is_alike;
}

/* True if value and sign of zero are equal; all NaNs are equal. */
static bool same(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b)); }

static void test_table(void) {
    static const struct {
        const char *name;
        int bits;
    } expected[STORED_COUNT] = {{"f32", 32}, {"f64", 64}, {"f16", 16}, {"bf16", 16}, {"e4m3", 8}, {"e5m2", 8},
                                {"e8m0", 8}, {"e2m1", 4}, {"i4", 4},   {"u4", 4},    {"i8", 8},   {"u8", 8},
                                {"i32", 32}, {"u32", 32}, {"i64", 64}, {"bool1", 1}, {"bool8", 8}};
    for (int i = 0; i < STORED_COUNT; i++) {
        const struct dtype *row = dtype_of(STORED[i]);
        CHECK(row, "%s has no row", expected[i].name);
        if (!row)
            continue;
        CHECK(!strcmp(row->name, expected[i].name), "%s, not %s", row->name, expected[i].name);
        CHECK(row->bits == expected[i].bits, "%s: %d bits", row->name, row->bits);
        CHECK(dtype_bytes(STORED[i], 9) == (9 * row->bits + 7) / 8, "%s", row->name);
        CHECK(dtype_is_float(STORED[i]) + dtype_is_integer(STORED[i]) + dtype_is_boolean(STORED[i]) == 1,
              "%s is of one kind", row->name);
        CHECK(dtype_is_half(STORED[i]) == (row->is_float && row->bits == 16), "%s: half", row->name);
        CHECK(dtype_is_fp8(STORED[i]) == (!strcmp(row->name, "e4m3") || !strcmp(row->name, "e5m2")), "%s: fp8",
              row->name);
        uint64_t bits = 0;
        dtype_store(STORED[i], &bits, 0, row->max);
        CHECK(dtype_load(STORED[i], &bits, 0) == row->max, "%s: %a", row->name, row->max);
        dtype_store(STORED[i], &bits, 0, row->lowest);
        CHECK(dtype_load(STORED[i], &bits, 0) == row->lowest, "%s: %a", row->name, row->lowest);
    }
    static const int without[] = {-1, 5, 7, 8, 14, 20, 21, 23, 24, 1000, INT_MAX};
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        weftDataType_t type = (weftDataType_t)without[i];
        uint64_t bits = 77;
        dtype_store(type, &bits, 0, 1);
        dtype_store_i64(type, &bits, 0, 1);
        CHECK(!dtype_of(type) && bits == 77 && dtype_bytes(type, 8) == 0, "type %d", without[i]);
        CHECK(dtype_load(type, &bits, 0) == 0 && dtype_load_i64(type, &bits, 0) == 0, "type %d", without[i]);
    }
    CHECK(dtype_bytes(WEFT_DATA_DOUBLE, 1ll << 59) == 1ll << 62, "large counts do not overflow");
}

/* Every code loads as the value of its definition, and a store returns the same code. */
static void test_codes(const struct format *format) {
    const char *name = dtype_of(format->type)->name;
    for (unsigned code = 0; code < 1u << format->bits; code++) {
        uint16_t storage = (uint16_t)code;
        double value = dtype_load(format->type, &storage, 0);
        double wide;
        float narrow;
        dtype_to_f32(&narrow, format->type, &storage, 0, 1);
        dtype_to_f64(&wide, format->type, &storage, 0, 1);
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        bool quiet = !isnan(narrow) || (bits & 0x400000);
        CHECK(row_loads_alike(format, code), "%s: a row of 0x%x", name, code);
        unsigned back = stored_code(format->type, value);
        unsigned row_back = row_code(format->type, narrow);
        /* A signaling NaN is returned as a quiet one; e5m2 stores infinity as its largest value. */
        unsigned want = code, magnitude = code & ((1u << (format->bits - 1)) - 1);
        if (magnitude > format->max_code)
            want = isinf(value) ? (code ^ magnitude) | format->overflow_code : code | 1u << (format->mantissa_bits - 1);
        if (!same(value, decode(format, code)) || !same(narrow, value) || !same(wide, value) || !quiet ||
            back != want || row_back != want) {
            CHECK(false, "%s 0x%x loads %a (rows %a %a), stores 0x%x (row 0x%x)", name, code, value, (double)narrow,
                  wide, back, row_back);
            return;
        }
    }
}

static bool rounds_right(const struct format *format, double value) {
    double values[2] = {value, -value};
    for (int i = 0; i < 2; i++) {
        unsigned want = nearest_code(format, values[i]);
        unsigned got = stored_code(format->type, values[i]);
        uint16_t row = 0;
        dtype_from_f64(format->type, &row, 0, &values[i], 1);
        float as_float = (float)values[i];
        bool is_float = (double)as_float == values[i];
        unsigned from_float = is_float ? row_code(format->type, as_float) : want;
        CHECK(got == want && row == want && from_float == want, "%s of %a: want 0x%x, store 0x%x, rows 0x%x 0x%x",
              dtype_of(format->type)->name, values[i], want, got, row, from_float);
        if (got != want || row != want || from_float != want)
            return false;
    }
    return true;
}

/* Tests every midpoint, every value, and both sides of each. The doubles adjacent to a midpoint catch a store that
   rounds to float first, which would turn them into the midpoint. */
static void test_rounding(const struct format *format) {
    for (unsigned code = 0; code < format->max_code; code++) {
        double low = decode(format, code), high = decode(format, code + 1);
        double middle = (low + high) / 2;
        double probes[] = {low,
                           nextafter(low, high),
                           low + (middle - low) / 2,
                           nextafter(middle, low),
                           (double)nextafterf((float)middle, 0),
                           middle,
                           (double)nextafterf((float)middle, INFINITY),
                           nextafter(middle, high),
                           middle + (high - middle) / 2,
                           nextafter(high, low)};
        for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++)
            if (!rounds_right(format, probes[i]))
                return;
    }
    double last = decode(format, format->max_code);
    double half = (last - decode(format, format->max_code - 1)) / 2;
    double beyond[] = {last + half / 2, nextafter(last + half, 0),
                       last + half,     nextafter(last + half, INFINITY),
                       last * 2,        0x1.fffffep127,
                       1e300,           INFINITY,
                       1e-300,          0x1p-1074,
                       0x1p-149,        0x1.fffffcp-127};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++)
        if (!rounds_right(format, beyond[i]))
            return;
}

/* Doubles with random bits, most of them far out of range, and doubles with exponents of the format. */
static void test_random(const struct format *format) {
    uint64_t state = 1;
    for (int i = 0; i < 200000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = state ^ state >> 29;
        if (i % 2) /* exponents around the format's */
            bits = (bits & 0x800fffffffffffff) | (uint64_t)(1023 - 150 + (state >> 33) % 300) << 52;
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isnan(value) && !rounds_right(format, value))
            return;
    }
}

static void test_nan(const struct format *format) {
    const char *name = dtype_of(format->type)->name;
    double nans[] = {NAN, -NAN};
    for (int i = 0; i < 2; i++) {
        uint16_t codes[2] = {(uint16_t)stored_code(format->type, nans[i]),
                             (uint16_t)row_code(format->type, (float)nans[i])};
        for (int j = 0; j < 2; j++) {
            double back = dtype_load(format->type, codes + j, 0);
            CHECK(format->has_nan ? isnan(back) : back == 6, "%s: NaN becomes %g", name, back);
        }
    }
    /* A NaN payload in the bits that are cut off must not turn the NaN into infinity. */
    uint64_t bits = 0x7ff0000000000001;
    double payload;
    memcpy(&payload, &bits, sizeof payload);
    unsigned code = stored_code(format->type, payload);
    uint16_t storage = (uint16_t)code;
    CHECK(!format->has_nan || isnan(dtype_load(format->type, &storage, 0)), "%s: 0x%x", name, code);
}

static void test_e8m0(void) {
    for (int code = 0; code < 256; code++) {
        uint8_t storage = (uint8_t)code, back = 0;
        double value = dtype_load(WEFT_DATA_FP8_E8M0, &storage, 0);
        dtype_store(WEFT_DATA_FP8_E8M0, &back, 0, value);
        CHECK(back == code && same(value, code < 255 ? ldexp(1, code - 127) : NAN), "e8m0 %d: %a", code, value);
    }
    for (int code = 0; code < 254; code++) {
        double middle = ldexp(1.5, code - 127);
        double probes[] = {nextafter(middle, 0), middle, nextafter(middle, INFINITY)};
        int want[] = {code, code + 1, code + 1};
        for (int i = 0; i < 3; i++)
            CHECK(stored_code(WEFT_DATA_FP8_E8M0, probes[i]) == (unsigned)want[i], "e8m0 of %a", probes[i]);
    }
    static const struct {
        double value;
        unsigned code;
    } edges[] = {{0, 0},      {-0.0, 0},       {-1, 0},          {-INFINITY, 0},
                 {1e-300, 0}, {INFINITY, 254}, {0x1.8p127, 254}, {NAN, 255}};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        CHECK(stored_code(WEFT_DATA_FP8_E8M0, edges[i].value) == edges[i].code, "e8m0 of %g", edges[i].value);
}

static void test_integers(void) {
    static const struct {
        weftDataType_t type;
        int64_t low, high;
    } ranges[] = {{WEFT_DATA_INT4, -8, 7},
                  {WEFT_DATA_UINT4, 0, 15},
                  {WEFT_DATA_INT8, -128, 127},
                  {WEFT_DATA_UINT8, 0, 255},
                  {WEFT_DATA_INT32, INT32_MIN, INT32_MAX},
                  {WEFT_DATA_UINT32, 0, UINT32_MAX},
                  {WEFT_DATA_INT64, INT64_MIN, INT64_MAX}};
    static const double values[] = {
        0,      -0.0,    0.5,           1.5,          2.5,          -0.5,         -1.5,          -2.5,  3.49,
        6.5,    7.5,     -8.5,          126.5,        127.5,        -128.5,       254.5,         255.5, 1e9,
        -1e9,   3e9,     4294967294.5,  4294967295.5, 2147483646.5, 2147483647.5, -2147483648.5, 1e18,  -1e18,
        0x1p63, -0x1p63, 0x1p62 + 1024, 1e300,        -1e300,       INFINITY,     -INFINITY,     NAN};
    static const int64_t wholes[] = {0,
                                     1,
                                     -1,
                                     7,
                                     8,
                                     -8,
                                     -9,
                                     127,
                                     128,
                                     -128,
                                     -129,
                                     255,
                                     256,
                                     INT32_MAX,
                                     INT32_MIN,
                                     UINT32_MAX,
                                     (1ll << 53) + 1,
                                     INT64_MAX,
                                     INT64_MIN,
                                     INT64_MAX - 1};
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        weftDataType_t type = ranges[r].type;
        int64_t low = ranges[r].low, high = ranges[r].high;
        const char *name = dtype_of(type)->name;
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            double v = values[i];
            int64_t want = isnan(v) ? 0 : v <= (double)low ? low : v >= (double)high ? high : (int64_t)nearbyint(v);
            uint64_t storage[3] = {0};
            float f = (float)v;
            dtype_store(type, storage, 1, v);
            CHECK(dtype_load_i64(type, storage, 1) == want, "%s of %g: %lld", name, v,
                  (long long)dtype_load_i64(type, storage, 1));
            CHECK(dtype_load(type, storage, 1) == (double)want, "%s of %g", name, v);
            dtype_from_f64(type, storage, 1, &v, 1);
            CHECK(dtype_load_i64(type, storage, 1) == want, "%s row of %g", name, v);
            dtype_from_f32(type, storage, 1, &f, 1);
            dtype_store(type, storage, 0, f);
            CHECK(dtype_load_i64(type, storage, 1) == dtype_load_i64(type, storage, 0), "%s float row of %g", name, v);
        }
        for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++) {
            int64_t v = wholes[i], want = v < low ? low : v > high ? high : v;
            uint64_t storage[3] = {0};
            dtype_store_i64(type, storage, 1, v);
            CHECK(dtype_load_i64(type, storage, 1) == want, "%s of %lld", name, (long long)v);
        }
        for (int64_t v = low < -300 ? -300 : low; v <= high && v <= 300; v++) {
            uint64_t storage[3] = {0};
            dtype_store_i64(type, storage, 2, v);
            CHECK(dtype_load_i64(type, storage, 2) == v, "%s of %lld", name, (long long)v);
        }
    }
}

static void test_i64_in_floats(void) {
    double exact = 0;
    dtype_store_i64(WEFT_DATA_DOUBLE, &exact, 0, -(1ll << 53));
    CHECK(exact == -0x1p53 && dtype_load_i64(WEFT_DATA_DOUBLE, &exact, 0) == -(1ll << 53), "%a", exact);
    float values[] = {2.5f, -1e30f, NAN, 3.5f};
    static const int64_t want[] = {2, INT64_MIN, 0, 4};
    for (int i = 0; i < 4; i++)
        CHECK(dtype_load_i64(WEFT_DATA_FLOAT, values, i) == want[i], "%g", (double)values[i]);
    uint16_t half = 0;
    dtype_store_i64(WEFT_DATA_HALF, &half, 0, 2049);
    CHECK(half == stored_code(WEFT_DATA_HALF, 2048), "0x%x", half);
    uint8_t boolean = 0;
    dtype_store_i64(WEFT_DATA_BYTE_BOOLEAN, &boolean, 0, INT64_MIN);
    CHECK(boolean == 1 && dtype_load_i64(WEFT_DATA_BYTE_BOOLEAN, &boolean, 0) == 1, "%d", boolean);
}

static void test_booleans(void) {
    static const double values[] = {0, -0.0, 1, -1, 0.25, NAN, 1e-300, INFINITY};
    static const bool want[] = {false, false, true, true, true, true, true, true};
    uint8_t bits[1] = {0xff}, bytes[8];
    float row[8];
    for (int i = 0; i < 8; i++) {
        dtype_store(WEFT_DATA_BOOLEAN, bits, i, values[i]);
        dtype_store(WEFT_DATA_BYTE_BOOLEAN, bytes, i, values[i]);
        CHECK(bytes[i] == want[i], "bool8 of %g", values[i]);
    }
    CHECK(bits[0] == 0xfc, "lowest bit first: 0x%x", bits[0]);
    dtype_to_f32(row, WEFT_DATA_BOOLEAN, bits, 0, 8);
    for (int i = 0; i < 8; i++)
        CHECK(row[i] == want[i], "bool1 %d", i);
    bytes[0] = 0x80;
    CHECK(dtype_load(WEFT_DATA_BYTE_BOOLEAN, bytes, 0) == 1, "any byte but 0 is true");
}

static void test_nibbles(void) {
    uint8_t bytes[2] = {0x5a, 0xff};
    CHECK(dtype_load(WEFT_DATA_UINT4, bytes, 0) == 10, "low nibble first");
    CHECK(dtype_load(WEFT_DATA_INT4, bytes, 0) == -6, "signed");
    CHECK(dtype_load(WEFT_DATA_FP4_E2M1, bytes, 1) == 3, "e2m1");
    dtype_store(WEFT_DATA_INT4, bytes, 1, -1);
    CHECK(bytes[0] == 0xfa && bytes[1] == 0xff, "0x%x 0x%x", bytes[0], bytes[1]);
    dtype_store(WEFT_DATA_FP4_E2M1, bytes, 0, -1.5);
    CHECK(bytes[0] == 0xfb, "0x%x", bytes[0]);
}

/* Compares rows of every type, length and start with single loads and stores, and checks that no other bytes are
   written. */
static void test_rows(weftDataType_t type) {
    enum { COUNT = 67, LONGEST = 51 };
    const char *name = dtype_of(type)->name;
    float f32[COUNT];
    double f64[COUNT];
    uint32_t state = 12345;
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        f64[i] = (double)(int32_t)state * pow(2, (int)(state >> 3 & 63) - 60);
        f32[i] = (float)(i % 13 ? f64[i] : i % 2 ? NAN : -INFINITY);
        f64[i] = i % 11 ? f64[i] : f32[i];
    }
    for (int length = 0; length <= LONGEST; length++)
        for (int start = 0; start < 9; start++) {
            uint8_t want[8 * COUNT], got[8 * COUNT];
            float loaded[COUNT];
            double wide[COUNT];
            memset(want, 0xa5, sizeof want);
            memset(got, 0xa5, sizeof got);
            for (int i = 0; i < length; i++)
                dtype_store(type, want, start + i, f32[i]);
            dtype_from_f32(type, got, start, f32, length);
            bool stores = !memcmp(want, got, sizeof want);
            dtype_to_f32(loaded, type, got, start, length);
            dtype_to_f64(wide, type, got, start, length);
            bool loads = true;
            for (int i = 0; i < length; i++) {
                double value = dtype_load(type, got, start + i);
                loads = loads && same(loaded[i], (float)value) && same(wide[i], value);
            }
            for (int i = 0; i < length; i++)
                dtype_store(type, want, start + i, f64[i]);
            dtype_from_f64(type, got, start, f64, length);
            stores = stores && !memcmp(want, got, sizeof want);
            CHECK(stores && loads, "%s: %d elements from %d", name, length, start);
            if (!stores || !loads)
                return;
        }
}

/* Converts rows of all halves, for which CPUs have instructions, and the floats around the midpoint of adjacent halves,
   where rounding changes. Signaling NaNs may be returned as quiet ones. */
static void test_rows_of_halves(void) {
    static uint16_t codes[1 << 16], got[1 << 16];
    static float row[1 << 16];
    for (int i = 0; i < 1 << 16; i++)
        codes[i] = (uint16_t)i;
    dtype_to_f32(row, WEFT_DATA_HALF, codes, 0, 1 << 16);
    for (int i = 0; i < 1 << 16; i++)
        CHECK(same(row[i], dtype_load(WEFT_DATA_HALF, codes, i)), "0x%x loads as %a", i, (double)row[i]);
    for (int away = -1; away <= 1; away++) {
        for (int i = 0; i < 1 << 16; i++) {
            double middle =
                (dtype_load(WEFT_DATA_HALF, codes, i) + dtype_load(WEFT_DATA_HALF, codes, (i + 1) & 0xffff)) / 2;
            row[i] = away == 0 ? (float)middle : nextafterf((float)middle, away * INFINITY);
        }
        dtype_from_f32(WEFT_DATA_HALF, got, 0, row, 1 << 16);
        for (int i = 0; i < 1 << 16; i++)
            CHECK(got[i] == stored_code(WEFT_DATA_HALF, row[i]), "%a is stored as 0x%x", (double)row[i], got[i]);
    }
}

static void digest(char hex[65], const void *data, size_t bytes, size_t step) {
    struct sha256 hash;
    uint8_t raw[32];
    sha256_init(&hash);
    for (size_t done = 0; done < bytes; done += step)
        sha256_update(&hash, (const char *)data + done, bytes - done < step ? bytes - done : step);
    sha256_final(raw, &hash);
    sha256_hex(hex, raw);
}

static void test_hashes(void) {
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
         "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[65], other[65];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        digest(hex, known[i].text, strlen(known[i].text), 7);
        CHECK(!strcmp(hex, known[i].hex), "sha256 of \"%s\" is %s", known[i].text, hex);
    }
    static char many[1000000];
    memset(many, 'a', sizeof many);
    digest(hex, many, sizeof many, 4099);
    CHECK(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"), "sha256 of a million a: %s",
          hex);
    for (size_t bytes = 0; bytes < 200; bytes++) { /* every length modulo the block size, which decides the padding */
        digest(hex, many, bytes, 200);
        digest(other, many, bytes, 1);
        CHECK(!strcmp(hex, other), "%zu bytes at once and one by one", bytes);
    }
}

static void test_text(void) {
    struct text text;
    text_init(&text);
    CHECK(!strcmp(text_string(&text), ""), "empty");
    for (int i = 0; i < 1000; i++)
        text_add(&text, "%d %s;", i, "x");
    CHECK(text.length == strlen(text_string(&text)) && text.length == 5890, "%zu", text.length);
    CHECK(!strncmp(text_string(&text), "0 x;1 x;", 8) && !text.failed, "%.8s", text_string(&text));
    text_free(&text);
    CHECK(text.length == 0 && !text.chars, "freed");

    for (size_t held = 0; held < 200; held++) /* shorter than the capacity, equal to it, and longer */
        for (size_t added = 1; added < 70; added++) {
            text_add(&text, "%*s", (int)held, "");
            text_add(&text, "%0*d", (int)added, 7);
            CHECK(text.length == held + added && strlen(text.chars) == held + added &&
                      text.chars[text.length - 1] == '7',
                  "%zu and %zu characters", held, added);
            text_free(&text);
        }
    text_add_chars(&text, NULL, 0);
    text_add_chars(&text, "100%d", 5);
    text_add(&text, "%s", "");
    CHECK(!strcmp(text_string(&text), "100%d"), "%s", text_string(&text));
    text_add_chars(&text, text.chars, SIZE_MAX - 2); /* more than can exist: fails without a read */
    text_add(&text, "lost");
    CHECK(text.failed && !strcmp(text_string(&text), "100%d"), "%s", text_string(&text));
    text_free(&text);
    CHECK(!text.failed, "free clears");
}

static void test_json(void) {
    static const struct {
        const char *string, *json;
    } strings[] = {
        {NULL, "null"},
        {"", "\"\""},
        {"q\"b\\s/", "\"q\\\"b\\\\s/\""},
        {"\b\f\n\r\t\x01\x1f\x7f", "\"\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\""},
        {"a\xff"
         "b\xc3",
         "\"a\\ufffdb\\ufffd\""},
        {"\xc0\xaf", "\"\\ufffd\\ufffd\""},                       /* overlong */
        {"\xe0\x9f\xbf", "\"\\ufffd\\ufffd\\ufffd\""},            /* overlong */
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},            /* surrogate */
        {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""}, /* past the last one */
    };
    static const struct {
        double number;
        const char *json;
    } numbers[] = {
        {0, "0"},       {-0.0, "-0"},  {0.1, "0.1"},        {1.0 / 3, "0.3333333333333333"}, {1e300, "1e+300"},
        {-2.5, "-2.5"}, {NAN, "null"}, {-INFINITY, "null"}, {0x1p-1074, "5e-324"},           {16777216, "16777216"}};
    struct text text;
    text_init(&text);
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        text_json_string(&text, strings[i].string);
        CHECK(!strcmp(text_string(&text), strings[i].json), "%s", text_string(&text));
        text_free(&text);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        text_json_number(&text, numbers[i].number);
        CHECK(!strcmp(text_string(&text), numbers[i].json), "%s", text_string(&text));
        text_free(&text);
    }
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8")) { /* only if that locale is installed */
        text_json_number(&text, 1.5);
        CHECK(!strcmp(text_string(&text), "1.5"), "%s", text_string(&text));
        text_free(&text);
        setlocale(LC_NUMERIC, "C");
    }
}

static void write_sample(struct byte_writer *writer) {
    byte_writer_init(writer);
    byte_put_u8(writer, 0xab);
    byte_put_u32(writer, 0x01020304);
    byte_put_i64(writer, -2);
    byte_put_block(writer, "block", 5);
    byte_put_block(writer, NULL, 0);
    byte_put_raw(writer, "raw", 3);
}

static void test_bytes(void) {
    static const uint8_t head[] = {0xab, 4, 3, 2, 1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct byte_writer writer;
    struct byte_reader reader;
    write_sample(&writer);
    CHECK(writer.length == 37 && !memcmp(writer.data, head, sizeof head) && !writer.failed, "little-endian, %zu bytes",
          writer.length);

    /* Reads the whole blob, and each prefix in a separate allocation, so that AddressSanitizer detects a read past the
       end. */
    for (size_t length = 0; length <= writer.length; length++) {
        uint8_t *blob = malloc(length ? length : 1);
        if (!blob)
            abort();
        memcpy(blob, writer.data, length);
        byte_reader_init(&reader, blob, length);
        char raw[3] = "??";
        size_t bytes, none;
        uint8_t u8 = byte_get_u8(&reader);
        uint32_t u32 = byte_get_u32(&reader);
        int64_t i64 = byte_get_i64(&reader);
        const uint8_t *block = byte_get_block(&reader, &bytes);
        bool block_right = length < 26 ? !block && bytes == 0 : bytes == 5 && !memcmp(block, "block", 5);
        const uint8_t *empty = byte_get_block(&reader, &none);
        byte_get_raw(&reader, raw, 3);
        CHECK(u8 == (length < 1 ? 0 : 0xab) && u32 == (length < 5 ? 0 : 0x01020304), "%zu", length);
        CHECK(i64 == (length < 13 ? 0 : -2), "%zu", length);
        CHECK(block_right && none == 0 && !empty == (length < 34), "%zu", length);
        CHECK(!memcmp(raw, length < 37 ? "\0\0" : "raw", 3), "%zu", length);
        CHECK(reader.bad == (length < 37), "%zu", length);
        free(blob);
    }
    byte_writer_free(&writer);
}

static void test_bad_counts(void) {
    static const int64_t counts[] = {-1, INT64_MIN, INT64_MAX, 9, 16};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct byte_writer writer;
        struct byte_reader reader;
        size_t bytes = 77;
        byte_writer_init(&writer);
        byte_put_i64(&writer, counts[i]);
        byte_put_raw(&writer, "12345678", 8);
        byte_reader_init(&reader, writer.data, writer.length);
        CHECK(!byte_get_block(&reader, &bytes) && bytes == 0 && reader.bad, "length %lld", (long long)counts[i]);
        byte_reader_init(&reader, writer.data, writer.length);
        CHECK(byte_get_count(&reader, 8) == 0 && reader.bad, "count %lld", (long long)counts[i]);
        CHECK(byte_get_u8(&reader) == 0, "bad stays bad");
        byte_put_raw(&writer, "", SIZE_MAX); /* fails before a read */
        CHECK(writer.failed && writer.length == 16, "%zu", writer.length);
        byte_writer_free(&writer);
    }
    struct byte_reader nothing;
    byte_reader_init(&nothing, NULL, 0);
    byte_get_raw(&nothing, NULL, 0);
    CHECK(!nothing.bad && byte_get_i64(&nothing) == 0 && nothing.bad, "no bytes");
}

int main(void) {
    RUN(test_table());
    for (int i = 0; i < FORMAT_COUNT; i++) {
        RUN(test_codes(&FORMATS[i]));
        RUN(test_rounding(&FORMATS[i]));
        RUN(test_random(&FORMATS[i]));
        RUN(test_nan(&FORMATS[i]));
    }
    RUN(test_e8m0());
    RUN(test_integers());
    RUN(test_i64_in_floats());
    RUN(test_booleans());
    RUN(test_nibbles());
    for (int i = 0; i < STORED_COUNT; i++)
        RUN(test_rows(STORED[i]));
    RUN(test_rows_of_halves());
    RUN(test_hashes());
    RUN(test_text());
    RUN(test_json());
    RUN(test_bytes());
    RUN(test_bad_counts());
    return harness_end();
}
