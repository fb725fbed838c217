/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of tiles, and what joins the parts of split sums: the text that families of products share. */
#include "base/number.h"
#include "engines/cuda/product/contraction.h"

enum {
    COMBINE_THREADS = 256,            /* of a block that adds up splits */
    COMBINE_SHARERS_MAX = 32,         /* eight runs side by side are whole lines still */
    COMBINE_THREADS_WANTED = 1 << 17, /* as many as load at the same time */
    GROUP_TILES = 8,                  /* rows of tiles that are made together, so that their operands meet in L2 */
};

/* CUDA's limit along x; kernels stride over what is beyond it. */
static const int64_t GRID_MAX = INT32_MAX;

/* Types of sums and indices. Every kernel of products starts with these, so that shared headers find them. */
void contraction_emit_begin(struct kernel_source *source, const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    kernel_source_init(source, c->region);
    emit_type(source, "sum_t", row->sum);
    text_add(&source->constants, "using index = %s;\n", c->is_small ? "u32" : "i64");
    emit_constant(source, "LEAD_IS_ROW", c->epilogue.lead == ROW);
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
}

/* Splits of k: the sums of each go to the workspace, side by side, all results of one split before the next. */
static void emit_splits(struct kernel_source *source, const struct contraction *c) {
    emit_number(source, c->splits, "splits");
    emit_number(source, c->steps_per_split, "steps_per_split");
    if (c->splits > 1)
        emit_scratch(source, "sum_t", 0, "partial");
}

/* A split kernel stores bare sums: what follows them is the combining kernel's, which alone sees whole sums. */
void contraction_emit_epilogue(struct kernel_source *source, const struct contraction *c) {
    emit_constant(source, "IS_SPLIT", c->splits > 1);
    emit_splits(source, c);
    if (c->splits == 1) {
        epilogue_emit(source, c);
        return;
    }
    /* Threads store runs all the same; nothing is fetched for them. */
    emit_constant(source, "RUN", c->epilogue.run);
    emit_constant(source, "FETCHED_WORDS", 0);
}

/* Divisions of 32 bits are one multiplication. */
void contraction_emit_position(struct kernel_source *source, int64_t most) {
    text_add(&source->constants, "using position = %s;\n", most < INT32_MAX ? "u32" : "i64");
}

/* Of a block: a warp for each part of the tile, or a thread for each thread_m x thread_n results. */
static int tile_threads(const struct contraction *c) {
    const struct tile *tile = c->tile;
    return arithmetic_rows[c->arithmetic].is_mma ? tile->warps_m * tile->warps_n * 32
                                                 : tile->rows / tile->thread_m * (tile->columns / tile->thread_n);
}

/* Blocks that shall fit on a multiprocessor: two, which hide each other's waits, where 128 registers per thread hold
   the sums and what is on its way. 65,536 registers of a multiprocessor are 128 for each of 512 threads: two blocks of
   256. */
static int resident_blocks(const struct contraction *c) {
    const struct arithmetic_row *row = &arithmetic_rows[c->arithmetic];
    /* Elements of 16 bits in accesses of four or more take few registers on their way. */
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
    /* Elements outside an operand count as p.fill, if that is not 0. */
    emit_constant(source, "HAS_FILL", c->fill != 0);
}

/* tiles: along rows, along columns, and batch entries. They are numbered as locate() of product/tiles.cuh splits them
   again: a split's tiles are neighbours, so that blocks at work share operands in L2. */
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
    contraction_emit_position(source, all);
    TRY(is_mma ? kernel_finish(source, kernel, "product/portable_mma.cuh", "portable_mma", arena)
               : kernel_finish(source, kernel, "product/portable_fma.cuh", "portable_fma", arena));
    /* Shared memory is static: 48 KB, which every chip gives without asking. */
    contraction_set_launch(kernel, contraction_grid(all), tile_threads(c), 0);
    return WEFT_STATUS_SUCCESS;
}

/* Threads that share the parts of a run of results: few results keep few threads busy. Where there are several, the
   grid has a block for all that these make at a time. Powers of two up to the number of splits, so that every sharer
   has a part. `runs`: of results. */
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
    /* Runs that a block makes side by side. */
    int64_t together = COMBINE_THREADS / sharers;
    contraction_emit_begin(&source, c);
    emit_constant(&source, "THREADS", COMBINE_THREADS);
    emit_splits(&source, c);
    epilogue_emit(&source, c);
    bool lead_is_row = c->epilogue.lead == ROW;
    /* From the number of a result to its index along the lead and across it. */
    emit_divisor(&source, modes_extent(&c->modes[lead_is_row ? ROW : COLUMN]), "along");
    emit_divisor(&source, modes_extent(&c->modes[lead_is_row ? COLUMN : ROW]), "across");
    emit_number(&source, runs, "runs");
    emit_number(&source, sharers, "sharers");
    emit_number(&source, divide_up(c->splits, sharers), "parts_each");
    contraction_emit_position(&source, contraction_elements(c));
    TRY(kernel_finish(&source, kernel, "product/combine_splits.cuh", "combine_splits", arena));
    contraction_set_launch(kernel, contraction_grid(divide_up(runs, together)), COMBINE_THREADS, 0);
    int64_t bytes = contraction_elements(c) * c->splits * contraction_sum_bytes(c);
    step->workspace_bytes = round_up(bytes, 64);
    return WEFT_STATUS_SUCCESS;
}
