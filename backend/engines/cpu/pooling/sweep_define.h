/* SPDX-License-Identifier: Apache-2.0 */
/* The body of sweeps for one target. The includer defines NAME(), TARGET, LANES, and WIDEN_BYTES() and WIDEN_HALVES(),
   which widen LANES signed 8-bit or unsigned 16-bit numbers to 32 bits each. This is included text rather than an
   inline function, because GCC splits vectors according to the function's own target before it inlines. */
/* There is no include guard, because this file is included once per target. */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4), may_alias, aligned(1)));
typedef int32_t NAME(ints) __attribute__((vector_size(LANES * 4), may_alias, aligned(1)));
typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4), may_alias, aligned(1)));
#define INLINE TARGET static inline __attribute__((always_inline))

/* Converts half to float bit by bit: the 5-bit exponent has bias 15 instead of 127; all ones stay all ones. */
INLINE NAME(floats) NAME(widen)(NAME(words) half) {
    NAME(floats) scaled = (NAME(floats))((half & 0x7fff) << 13) * 0x1p112f;
    NAME(words) special = (NAME(words))((half & 0x7c00) == 0x7c00) & 0x7f800000;
    return (NAME(floats))((NAME(words))scaled | special | (half & 0x8000) << 16);
}

/* Loads channels, starting at `at`: all lanes, or only the first `lanes`, because memory may end after them. */
INLINE NAME(floats) NAME(load)(weftDataType_t type, const char *at, int lanes) {
    char copy[LANES * 4] = {0};
    if (lanes < LANES)
        at = memcpy(copy, at, (size_t)lanes * (type == WEFT_DATA_FLOAT ? 4 : 2));
    if (type == WEFT_DATA_FLOAT)
        return *(const NAME(floats) *)at;
    NAME(words) half = (NAME(words))WIDEN_HALVES(at);
    return type == WEFT_DATA_BFLOAT16 ? (NAME(floats))(half << 16) : NAME(widen)(half);
}

INLINE NAME(ints) NAME(load_pick)(weftDataType_t type, const char *at, int lanes) {
    char copy[LANES * 4] = {0};
    if (lanes < LANES)
        at = memcpy(copy, at, (size_t)lanes * (type == WEFT_DATA_INT8 ? 1 : 4));
    if (type == WEFT_DATA_INT8)
        return (NAME(ints))WIDEN_BYTES(at);
    return *(const NAME(ints) *)at;
}

/* `numbers`: floats or 32-bit integers. */
INLINE void NAME(store)(void *at, NAME(ints) numbers, int lanes) {
    if (lanes == LANES)
        *(NAME(ints) *)at = numbers;
    else
        memcpy(at, &numbers, (size_t)lanes * 4);
}

INLINE NAME(ints) NAME(select)(NAME(ints) mask, NAME(ints) yes, NAME(ints) no) { return no ^ ((no ^ yes) & mask); }

/* The first of equal numbers wins; a NaN replaces everything before it, or loses to everything. Starts with the first
   tap. */
INLINE void NAME(maximum_block)(const struct sweep *s, struct frame f, int64_t position, int64_t channel, int vectors,
                                int lanes, weftDataType_t type, bool has_where, bool nan_wins) {
    const int64_t size = type == WEFT_DATA_FLOAT ? 4 : 2, offset = position * f.row_step + channel * size;
    float *results = f.results + position * f.result_step + channel;
    int32_t *wheres = has_where ? f.where + position * f.where_step + channel : NULL;
    NAME(floats) best[4];
    NAME(ints) where[4];
    for (int v = 0; v < vectors; v++) {
        best[v] = f.continues ? NAME(load)(WEFT_DATA_FLOAT, (const char *)(results + v * LANES), lanes)
                              : NAME(load)(type, s->rows[0] + offset + v * LANES * size, lanes);
        where[v] = (NAME(ints)){0} + s->numbers[0];
        if (has_where && f.continues)
            where[v] = NAME(load_pick)(WEFT_DATA_INT32, (const char *)(wheres + v * LANES), lanes);
    }
    for (int k = !f.continues; k < f.count; k++) {
        const char *row = s->rows[k] + offset;
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) {
            NAME(floats) value = NAME(load)(type, row + v * LANES * size, lanes);
            NAME(ints) wins = nan_wins ? (value > best[v]) | (value != value) : ~(value <= best[v]) & (value == value);
            best[v] = (NAME(floats))NAME(select)(wins, (NAME(ints))value, (NAME(ints))best[v]);
            if (has_where)
                where[v] = NAME(select)(wins, (NAME(ints)){0} + s->numbers[k], where[v]);
        }
    }
    for (int v = 0; v < vectors; v++) {
        NAME(store)(results + v * LANES, (NAME(ints))(best[v] * f.factor), lanes);
        if (has_where)
            NAME(store)(wheres + v * LANES, where[v], lanes);
    }
}

/* pick_type: INT8 or INT32, or FLOAT without picks. rows, weights: the sweep's own, or copies that stay in
   registers. */
INLINE void NAME(sum_block)(const struct sweep *s, struct frame f, int64_t position, int64_t channel, int vectors,
                            int lanes, weftDataType_t type, weftDataType_t pick_type, const char *const *rows,
                            const float *weights, int taps) {
    const int64_t size = type == WEFT_DATA_FLOAT ? 4 : 2, pick_size = pick_type == WEFT_DATA_INT8 ? 1 : 4;
    const int64_t offset = position * f.row_step + channel * size;
    const int64_t pick_offset = position * f.pick_step + channel * pick_size;
    float *results = f.results + position * f.result_step + channel;
    NAME(floats) sum[4];
    for (int v = 0; v < vectors; v++)
        sum[v] =
            f.continues ? NAME(load)(WEFT_DATA_FLOAT, (const char *)(results + v * LANES), lanes) : (NAME(floats)){0};
    for (int k = 0; k < taps; k++) {
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) {
            NAME(floats) value = NAME(load)(type, rows[k] + offset + v * LANES * size, lanes) * weights[k];
            if (pick_type != WEFT_DATA_FLOAT) {
                const char *picks = s->picks[k] + pick_offset + v * LANES * pick_size;
                NAME(ints) is_picked = NAME(load_pick)(pick_type, picks, lanes) == s->numbers[k];
                value = (NAME(floats))((NAME(ints))value & is_picked);
            }
            sum[v] += value;
        }
    }
    for (int v = 0; v < vectors; v++)
        NAME(store)(results + v * LANES, (NAME(ints))(sum[v] * f.factor), lanes);
}

/* Processes four vectors of channels at a time, then two, then single ones, then the remaining part of one. */
#define EACH_BLOCK(BLOCK, ...)                                                                                         \
    for (int64_t p = 0, c; p < frame.positions; p++) {                                                                 \
        for (c = 0; c + 4 * LANES <= frame.channels; c += 4 * LANES)                                                   \
            BLOCK(sweep, frame, p, c, 4, LANES, __VA_ARGS__);                                                          \
        for (; c + 2 * LANES <= frame.channels; c += 2 * LANES)                                                        \
            BLOCK(sweep, frame, p, c, 2, LANES, __VA_ARGS__);                                                          \
        for (; c + LANES <= frame.channels; c += LANES)                                                                \
            BLOCK(sweep, frame, p, c, 1, LANES, __VA_ARGS__);                                                          \
        if (c < frame.channels)                                                                                        \
            BLOCK(sweep, frame, p, c, 1, (int)(frame.channels - c), __VA_ARGS__);                                      \
    }

INLINE void NAME(maximum_of)(const struct sweep *sweep, struct frame frame, weftDataType_t type) {
    if (sweep->where && sweep->nan_wins) {
        EACH_BLOCK(NAME(maximum_block), type, true, true)
    } else if (sweep->where) {
        EACH_BLOCK(NAME(maximum_block), type, true, false)
    } else if (sweep->nan_wins) {
        EACH_BLOCK(NAME(maximum_block), type, false, true)
    } else {
        EACH_BLOCK(NAME(maximum_block), type, false, false)
    }
}

INLINE void NAME(sum_of)(const struct sweep *sweep, struct frame frame, weftDataType_t type) {
    if (!sweep->has_picks) {
        EACH_BLOCK(NAME(sum_block), type, WEFT_DATA_FLOAT, sweep->rows, sweep->weights, frame.count)
    } else if (sweep->pick_type == WEFT_DATA_INT8) {
        EACH_BLOCK(NAME(sum_block), type, WEFT_DATA_INT8, sweep->rows, sweep->weights, frame.count)
    } else {
        EACH_BLOCK(NAME(sum_block), type, WEFT_DATA_INT32, sweep->rows, sweep->weights, frame.count)
    }
}

/* The number of taps that bilinear interpolation has left after its rows are combined. */
INLINE void NAME(sum_of_2)(const struct sweep *sweep, struct frame frame) {
    const char *const rows[] = {sweep->rows[0], sweep->rows[1]};
    const float weights[] = {sweep->weights[0], sweep->weights[1]};
    frame.continues = false;
    EACH_BLOCK(NAME(sum_block), WEFT_DATA_FLOAT, WEFT_DATA_FLOAT, rows, weights, 2)
}

/* The type is a constant here, so it is not checked for each element. */
TARGET static void NAME(maximum)(const struct sweep *sweep) {
    if (sweep->type == WEFT_DATA_FLOAT)
        NAME(maximum_of)(sweep, frame_of(sweep), WEFT_DATA_FLOAT);
    else
        NAME(maximum_of)(sweep, frame_of(sweep), sweep->type);
}

TARGET static void NAME(sum)(const struct sweep *sweep) {
    if (sweep->type == WEFT_DATA_FLOAT && sweep->count == 2 && !sweep->continues && !sweep->has_picks)
        NAME(sum_of_2)(sweep, frame_of(sweep));
    else if (sweep->type == WEFT_DATA_FLOAT)
        NAME(sum_of)(sweep, frame_of(sweep), WEFT_DATA_FLOAT);
    else
        NAME(sum_of)(sweep, frame_of(sweep), sweep->type);
}

#undef EACH_BLOCK
#undef INLINE
#undef NAME
#undef TARGET
#undef LANES
#undef WIDEN_BYTES
#undef WIDEN_HALVES
