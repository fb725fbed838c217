/* steps: common to the two directions of a recurrent layer
   Tile      a warp computes some rows of a matrix (for the gates of a step: those of one unit) times the states of 4
             sequences; its lanes share the depth, 4 elements at a time, and add their sums in a fixed order
   Meeting   all blocks of a group of sequences exchange states through the workspace, and wait for each other after
             each exchange. The launch is cooperative, so that all of them run
   Weights   prepare.cuh stores the rows of matrices in the order of tiles, padded with zeros to whole rounds of a warp.
             RESIDENT: a block copies its rows of the recurrent weights to shared memory before the first step
   Operands  of name NAME have type NAME_t, strides NAME_0 to NAME_2 and has_NAME; absent ones are 0
   Params    THREADS MODE GATES IS_REVERSE CLIPS RESIDENT sum_t matrix_t */

constexpr int WARPS = THREADS / 32;
constexpr int COLUMNS = 4; // sequences of a tile
constexpr int EACH = 4;    // adjacent elements per lane and round
constexpr int ROUND = 32 * EACH;
constexpr int RELU = 0, LSTM = 2, GRU = 3;

#define AT2(name, b, i) p.name[(b) * p.name##_0 + (i) * p.name##_1]
#define AT3(name, t, b, i) p.name[(t) * p.name##_0 + (b) * p.name##_1 + (i) * p.name##_2]
#define LOAD1(name, i) (has_##name ? as<sum_t>::of(p.name[(i) * p.name##_0]) : (sum_t)0)
#define LOAD2(name, b, i) (has_##name ? as<sum_t>::of(AT2(name, b, i)) : (sum_t)0)
#define LOAD3(name, t, b, i) (has_##name ? as<sum_t>::of(AT3(name, t, b, i)) : (sum_t)0)
#define STORE2(name, b, i, number_)                                                                                    \
    if constexpr (has_##name)                                                                                          \
    AT2(name, b, i) = from<name##_t>::number(number_)
#define STORE3(name, t, b, i, number_)                                                                                 \
    if constexpr (has_##name)                                                                                          \
    AT3(name, t, b, i) = from<name##_t>::number(number_)

template <class T> struct alignas(sizeof(T) * EACH > 16 ? 16 : sizeof(T) * EACH) four {
    T at[EACH];
};

/* ROWS sums of products for each of COLUMNS sequences; all lanes have all of them. Rows and columns past the last ones
   must have memory. */
template <int ROWS> struct tile {
    sum_t sums[ROWS][COLUMNS];
    DEVICE void multiply(const matrix_t *rows, i64 row_step, const sum_t *states, i64 state_step) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                sums[r][c] = 0;
        for (i64 k = (i64)(threadIdx.x % 32) * EACH; k < row_step; k += ROUND) {
            four<sum_t> x[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                x[c] = *(const four<sum_t> *)(states + c * state_step + k);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const four<matrix_t> w = *(const four<matrix_t> *)(rows + r * row_step + k);
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        sums[r][c] += as<sum_t>::of(w.at[i]) * x[c].at[i];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
#pragma unroll
                for (int mask = 16; mask; mask /= 2)
                    sums[r][c] += __shfl_xor_sync(~0u, sums[r][c], mask);
    }
    /* The sum of a row and a column that differ from lane to lane. */
    DEVICE sum_t of(int row, int column) const {
        sum_t found = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                found = r == row && c == column ? sums[r][c] : found;
        return found;
    }
};

/* ---- The block's part of the layer ------------------------------------------------------------------------------- */

struct part {
    i32 first_unit, units; // hidden units
    i32 first_row, rows;   // elements of the hidden state, which are those of the projection
    i64 first_entry;       // sequences
    i32 tiles;             // tiles of COLUMNS sequences
    u32 met;               // arrivals before the next meeting
};

DEVICE part part_of(const arguments &p) {
    part own;
    const i32 block = (i32)(blockIdx.x % (u32)p.blocks), group = (i32)(blockIdx.x / (u32)p.blocks);
    own.first_unit = block * (i32)p.units_each;
    own.units = max(min((i32)p.units_each, (i32)p.units - own.first_unit), 0);
    own.first_row = block * (i32)p.rows_each;
    own.rows = max(min((i32)p.rows_each, (i32)p.projected - own.first_row), 0);
    own.first_entry = (i64)group * p.entries_each;
    const i64 rest = p.batch - own.first_entry;
    own.tiles = ((i32)(rest < p.entries_each ? rest : p.entries_each) + COLUMNS - 1) / COLUMNS;
    own.met = 0;
    return own;
}

/* Waits until all blocks of the group have written what they exchange. */
DEVICE void meet(part &own, const arguments &p) {
    u32 *counter = (u32 *)p.counters + blockIdx.x / (u32)p.blocks;
    own.met += (u32)p.blocks;
    __syncthreads();
    if (threadIdx.x == 0) {
        add_released(counter, 1);
        while (load_acquired(counter) < own.met) {
        }
    }
    __syncthreads();
}

/* Steps of a sequence. Lengths come from memory and may have any value. */
DEVICE i32 length_of(const arguments &p, i64 entry) {
    if constexpr (!has_seq_len)
        return (i32)p.steps;
    else {
        const i64 length = to_integer(p.seq_len[entry * p.seq_len_0]);
        return (i32)(length < 0 ? 0 : length > p.steps ? p.steps : length);
    }
}

/* Time of step k of a sequence. Steps after its end, which are 0, have their own time. */
DEVICE i64 time_of(i32 k, i32 length) { return IS_REVERSE && k < length ? length - 1 - k : k; }

extern __shared__ four<double> s_memory[];

/* Rows of recurrent weights from the first one of this block, in shared memory or in the workspace. */
DEVICE const matrix_t *load_weights(const arguments &p, i64 first, i64 rows) {
    const matrix_t *source = (const matrix_t *)p.weights + first * p.weight_row;
    if constexpr (!RESIDENT)
        return source;
    matrix_t *to = (matrix_t *)s_memory;
    for (i64 i = (i64)threadIdx.x * EACH; i < rows * p.weight_row; i += THREADS * EACH)
        *(four<matrix_t> *)(to + i) = *(const four<matrix_t> *)(source + i);
    __syncthreads();
    return to;
}

/* A warp's share of the tiles of `rows` rows: calls body(first row, first sequence). */
template <class F> DEVICE void for_each_tile(const part &own, i32 rows, i32 step, const F &body) {
    const i32 across = (rows + step - 1) / step;
    for (i32 i = (i32)threadIdx.x / 32; i < across * own.tiles; i += WARPS)
        body(i % across * step, own.first_entry + i / across * COLUMNS);
}
