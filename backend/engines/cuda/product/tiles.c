/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of tiles, and what joins the parts of split sums: the text that families of products share. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"

enum {
    COMBINE_THREADS = 256,
    COMBINE_SHARERS_MAX = 32,         /* eight runs side by side are whole lines still */
    COMBINE_THREADS_WANTED = 1 << 17, /* as many as load at the same time */
    GROUP_TILES = 8,                  /* rows of tiles that are walked together, so that their factors meet in L2 */
};

static const int64_t GRID_MAX = INT32_MAX;

void contraction_print_begin(struct kernel_print *print, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    kernel_print_init(print, c->region);
    text_add(&print->constants, "using sum_t = %s;\nusing index = %s;\n", row->sum, c->is_small ? "u32" : "i64");
    print_constant(print, "LEAD_IS_ROW", c->finish.lead == ROW);
    text_add(&print->code, "#include \"core/gather.cuh\"\n\n");
}

static void print_splits(struct kernel_print *print, const struct contraction *c) {
    print_number(print, c->splits, "splits");
    print_number(print, c->steps_per_split, "steps_per_split");
    if (c->splits > 1)
        print_scratch(print, "sum_t", 0, "partial");
}

void contraction_print_end(struct kernel_print *print, const struct contraction *c) {
    print_constant(print, "IS_SPLIT", c->splits > 1);
    print_splits(print, c);
    if (c->splits == 1) {
        finish_print(print, c);
        return;
    }
    print_constant(print, "RUN", c->finish.run);
    print_constant(print, "FETCHED_WORDS", 0);
}

void contraction_print_position(struct kernel_print *print, int64_t most) {
    text_add(&print->constants, "using position = %s;\n", most < INT32_MAX ? "u32" : "i64");
}

static int tile_threads(const struct contraction *c) {
    const struct tile *tile = c->tile;
    return arithmetic_rows[c->arithmetic].is_mma ? tile->warps_m * tile->warps_n * 32
                                                 : tile->rows / tile->thread_m * (tile->columns / tile->thread_n);
}

/* Blocks that shall fit on a multiprocessor: two, which hide each other's waits, where 128 registers per thread hold the
   sums and what is on its way. */
static int resident_blocks(const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    bool is_large = c->tile->rows + c->tile->columns > 192, is_light = row->is_mma && c->has_k16;
    for (int f = 0; f < FACTORS; f++)
        is_light = is_light && c->factor[f].run >= 4 && dtype_bytes((weftDataType_t)c->factor[f].tensor->type, 1) == 2;
    return row->bytes == 1 || (is_large && !is_light) ? 1 : 2;
}

uint32_t contraction_grid(int64_t pieces) { return (uint32_t)(pieces < GRID_MAX ? pieces : GRID_MAX); }

void contraction_print_tile(struct kernel_print *print, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    const struct tile *tile = c->tile;
    contraction_print_begin(print, c);
    if (row->is_mma)
        print_constant(print, "HAS_K16", c->has_k16);
    print_constant(print, "BLOCK_M", tile->rows);
    print_constant(print, "BLOCK_N", tile->columns);
    print_constant(print, "BLOCK_K", row->block_depth);
    print_constant(print, row->is_mma ? "WARPS_M" : "THREAD_M", row->is_mma ? tile->warps_m : tile->thread_m);
    print_constant(print, row->is_mma ? "WARPS_N" : "THREAD_N", row->is_mma ? tile->warps_n : tile->thread_n);
    print_constant(print, "THREADS", tile_threads(c));
    print_constant(print, "BLOCKS", resident_blocks(c));
    print_constant(print, "HAS_FILL", c->fill != 0);
}

/* tiles: along rows, along columns, and batch entries. */
weftStatus_t contraction_finish_tiles(struct kernel_print *print, struct cuda_kernel *kernel,
                                      const struct contraction *c, const int64_t tiles[3], struct arena *arena) {
    int64_t all = tiles[0] * tiles[1] * tiles[2] * c->splits;
    bool is_mma = arithmetic_rows[c->arithmetic].is_mma;
    print_real(print, c->fill, "fill");
    print_constant(print, "GROUP_TILES", GROUP_TILES);
    print_number(print, tiles[0], "tiles_m");
    print_divisor(print, tiles[0] * tiles[1], "tiles_per_entry");
    print_divisor(print, GROUP_TILES * tiles[1], "tiles_per_group");
    print_divisor(print, tiles[2], "batches");
    print_number(print, all, "tiles");
    contraction_print_position(print, all);
    TRY(kernel_finish(print, kernel, is_mma ? "product/portable_mma.cuh" : "product/portable_fma.cuh", "contraction",
                      arena));
    kernel->grid[0] = contraction_grid(all);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)tile_threads(c);
    return WEFT_STATUS_SUCCESS;
}

/* Threads that share the parts of a run of results: few results keep few threads busy. Where there are several, the grid
   has a block for all that these make at a time. */
static int64_t combine_sharers(const struct contraction *c, int64_t runs) {
    int64_t sharers = 1;
    while (sharers * 2 <= c->splits && sharers < COMBINE_SHARERS_MAX && runs * sharers < COMBINE_THREADS_WANTED)
        sharers *= 2;
    return sharers;
}

weftStatus_t contraction_add_combine(struct step *step, const struct contraction *c, struct arena *arena) {
    struct cuda_step *state = step->state;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    struct kernel_print print;
    int64_t runs = contraction_elements(c) / c->finish.run, sharers = combine_sharers(c, runs);
    int64_t together = COMBINE_THREADS / sharers;
    contraction_print_begin(&print, c);
    print_constant(&print, "THREADS", COMBINE_THREADS);
    print_splits(&print, c);
    finish_print(&print, c);
    bool lead_is_row = c->finish.lead == ROW;
    print_divisor(&print, digits_extent(&c->digits[lead_is_row ? ROW : COLUMN]), "along");
    print_divisor(&print, digits_extent(&c->digits[lead_is_row ? COLUMN : ROW]), "across");
    print_number(&print, runs, "runs");
    print_number(&print, sharers, "sharers");
    print_number(&print, divide_up(c->splits, sharers), "parts_each");
    contraction_print_position(&print, contraction_elements(c));
    TRY(kernel_finish(&print, kernel, "product/combine_splits.cuh", "combine", arena));
    kernel->grid[0] = contraction_grid(divide_up(runs, together));
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = COMBINE_THREADS;
    int64_t bytes = contraction_elements(c) * c->splits * arithmetic_rows[c->arithmetic].sum_bytes;
    step->workspace_bytes = round_up(bytes, 64);
    return WEFT_STATUS_SUCCESS;
}
