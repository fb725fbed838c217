/* SPDX-License-Identifier: Apache-2.0 */
/* Code generation shared by the product families: tiled kernels, and the kernel that combines the partial sums of
   splits. */
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/product/contraction.h"

enum {
    COMBINE_THREADS = 256,            /* threads of a block that combines splits */
    COMBINE_SHARERS_MAX = 32,         /* eight adjacent runs are still whole cache lines */
    COMBINE_THREADS_WANTED = 1 << 17, /* number of threads that can load at the same time */
    GROUP_TILES = 8,                  /* tile rows that are computed together, so that their operands are reused from
                                         L2 */
};

/* CUDA's limit on gridDim.x; kernels loop over the rest. */
static const int64_t GRID_MAX = INT32_MAX;

/* Emits the types of sums and indices. Every product kernel starts with these, because shared headers use them. */
void contraction_emit_begin(struct kernel_source *source, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    kernel_source_init(source, c->region);
    emit_type(source, "sum_t", row->sum);
    text_add(&source->constants, "using index = %s;\n", c->is_small ? "u32" : "i64");
    emit_constant(source, "LEAD_IS_ROW", c->epilogue.lead == ROW);
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
}

/* The sums of each split go to the workspace: all results of one split, then those of the next. */
static void emit_splits(struct kernel_source *source, const struct contraction *c) {
    emit_number(source, c->splits, "splits");
    emit_number(source, c->steps_per_split, "steps_per_split");
    if (c->splits > 1)
        emit_scratch(source, "sum_t", 0, "partial");
}

/* A split kernel stores plain sums. The epilogue is part of the combining kernel, because only that one has complete
   sums. */
void contraction_emit_epilogue(struct kernel_source *source, const struct contraction *c) {
    emit_constant(source, "IS_SPLIT", c->splits > 1);
    emit_splits(source, c);
    if (c->splits == 1) {
        epilogue_emit(source, c);
        return;
    }
    /* Threads store runs in this case, too, but fetch no operands for them. */
    emit_constant(source, "RUN", c->epilogue.run);
    emit_constant(source, "FETCHED_WORDS", 0);
}

/* Emits the integer type that numbers tiles or results, of which there are at most `most`: 32-bit divisions are one
   multiplication. */
static void emit_position(struct kernel_source *source, int64_t most) {
    text_add(&source->constants, "using position = %s;\n", index_type(most));
}

/* Returns the threads of a block: one warp per part of the tile, or one thread per thread_m x thread_n results. */
static int tile_threads(const struct contraction *c) {
    const struct tile *tile = c->tile;
    return arithmetic_rows[c->arithmetic].is_mma ? tile->warps_m * tile->warps_n * 32
                                                 : tile->rows / tile->thread_m * (tile->columns / tile->thread_n);
}

/* Blocks that should fit on a multiprocessor: two, which hide each other's latencies, if 128 registers per thread
   suffice for the sums and the data in flight. A multiprocessor has 65,536 registers, which is 128 for each of 512
   threads in two blocks. */
static int resident_blocks(const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    /* 16-bit elements in accesses of at least four elements need few registers in flight. */
    bool is_large = c->tile->rows + c->tile->columns > 192, is_light = row->is_mma && c->has_k16;
    for (int f = 0; f < OPERANDS; f++)
        is_light =
            is_light && c->operand[f].run >= 4 && dtype_bytes((weftDataType_t)c->operand[f].tensor->type, 1) == 2;
    return row->bytes == 1 || (is_large && !is_light) ? 1 : 2;
}

weftStatus_t contraction_add_kernel(struct cuda_kernel **kernel, struct step *step, const struct contraction *c,
                                    struct arena *arena) {
    struct cuda_step *state;
    *kernel = NULL;
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (contraction_elements(c) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    *kernel = &state->kernels[state->count++];
    return WEFT_STATUS_SUCCESS;
}

void contraction_set_launch(struct cuda_kernel *kernel, int64_t blocks, int64_t threads, int64_t shared_bytes) {
    kernel->grid[0] = (uint32_t)blocks;
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)threads;
    kernel->shared_bytes = (uint32_t)shared_bytes;
}

uint32_t contraction_grid(int64_t pieces) { return (uint32_t)(pieces < GRID_MAX ? pieces : GRID_MAX); }

void contraction_emit_tile(struct kernel_source *source, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    const struct tile *tile = c->tile;
    contraction_emit_begin(source, c);
    if (row->is_mma)
        emit_constant(source, "HAS_K16", c->has_k16);
    emit_constant(source, "BLOCK_M", tile->rows);
    emit_constant(source, "BLOCK_N", tile->columns);
    emit_constant(source, "BLOCK_K", row->block_k);
    emit_constant(source, row->is_mma ? "WARPS_M" : "THREAD_M", row->is_mma ? tile->warps_m : tile->thread_m);
    emit_constant(source, row->is_mma ? "WARPS_N" : "THREAD_N", row->is_mma ? tile->warps_n : tile->thread_n);
    emit_constant(source, "THREADS", tile_threads(c));
    emit_constant(source, "BLOCKS", resident_blocks(c));
    /* Elements outside an operand have the value p.fill if that is not 0. */
    emit_constant(source, "HAS_FILL", c->fill != 0);
}

/* tiles: along rows, along columns, and batch entries. Tiles are numbered as locate() in product/tiles.cuh decodes
   them: the tiles of one split are adjacent, so that running blocks share operands in L2. */
weftStatus_t contraction_end_tiles(struct kernel_source *source, struct cuda_kernel *kernel,
                                   const struct contraction *c, const int64_t tiles[3], struct arena *arena) {
    int64_t all = tiles[0] * tiles[1] * tiles[2] * c->splits;
    bool is_mma = arithmetic_rows[c->arithmetic].is_mma;
    emit_real(source, c->fill, "fill");
    emit_constant(source, "GROUP_TILES", GROUP_TILES);
    emit_number(source, tiles[0], "tiles_m");
    emit_divisor(source, tiles[0] * tiles[1], "tiles_per_entry");
    emit_divisor(source, GROUP_TILES * tiles[1], "tiles_per_group");
    emit_divisor(source, tiles[2], "batches");
    emit_number(source, all, "tiles");
    emit_position(source, all);
    TRY(is_mma ? kernel_finish(source, kernel, "product/portable_mma.cuh", "portable_mma", arena)
               : kernel_finish(source, kernel, "product/portable_fma.cuh", "portable_fma", arena));
    /* Shared memory is static: at most 48 KB, which every chip provides without opting in. */
    contraction_set_launch(kernel, contraction_grid(all), tile_threads(c), 0);
    return WEFT_STATUS_SUCCESS;
}

/* Number of threads that share the partial sums of a run of results, because few results keep few threads busy. If
   there are several, the grid has enough blocks for all of them. It is a power of two up to the number of splits, so
   that each of them has a part. `runs`: number of runs of results. */
static int64_t combine_sharers(const struct contraction *c, int64_t runs) {
    int64_t sharers = 1;
    while (sharers * 2 <= c->splits && sharers < COMBINE_SHARERS_MAX && runs * sharers < COMBINE_THREADS_WANTED)
        sharers *= 2;
    return sharers;
}

weftStatus_t contraction_add_combine(struct step *step, const struct contraction *c, struct arena *arena) {
    struct cuda_step *state = step->state;
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    struct kernel_source source;
    int64_t runs = contraction_elements(c) / c->epilogue.run, sharers = combine_sharers(c, runs);
    /* Runs that a block combines at the same time. */
    int64_t together = COMBINE_THREADS / sharers;
    contraction_emit_begin(&source, c);
    emit_constant(&source, "THREADS", COMBINE_THREADS);
    emit_splits(&source, c);
    epilogue_emit(&source, c);
    bool lead_is_row = c->epilogue.lead == ROW;
    /* Divisors that decode the number of a result into its index along the lead and across it. */
    emit_divisor(&source, modes_extent(&c->modes[lead_is_row ? ROW : COLUMN]), "along");
    emit_divisor(&source, modes_extent(&c->modes[lead_is_row ? COLUMN : ROW]), "across");
    emit_number(&source, runs, "runs");
    emit_number(&source, sharers, "sharers");
    emit_number(&source, divide_up(c->splits, sharers), "parts_each");
    emit_position(&source, contraction_elements(c));
    TRY(kernel_finish(&source, kernel, "product/combine_splits.cuh", "combine_splits", arena));
    contraction_set_launch(kernel, contraction_grid(divide_up(runs, together)), COMBINE_THREADS, 0);
    int64_t bytes = contraction_elements(c) * c->splits * contraction_sum_bytes(c);
    step->workspace_bytes = round_up(bytes, 64);
    return WEFT_STATUS_SUCCESS;
}
