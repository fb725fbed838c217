/* SPDX-License-Identifier: Apache-2.0 */
/* The loop nest of a row program: orders the axes by memory layout, merges axes that are contiguous in all operands,
   chooses the two loops of a block, and computes the numbers of blocks and tiles. Nothing here depends on the number of
   threads, so that sums have a fixed order. */
#include "base/number.h"
#include "engines/cpu/rows/schedule.h"

#include <string.h>

/* SPLIT_BYTES: size of the parts of long rows that tasks share; SPLITS: maximum number of parts. Rows are split if
   there are fewer than FEW_TILES tiles. LANES: floats of the widest vector. */
enum { SPLIT_BYTES = 128 << 10, SPLITS = 32, FEW_TILES = 8, LANES = 16 };
enum { REDUCED_BLOCK = 8192 }; /* elements that are only reduced: half of a typical L1 */
/* Elements per part of a row above which the overhead of instructions is less than that of copies. */
enum { LONG_PART = 256 };
enum { REGISTER_GAP = 192 }; /* in bytes; avoids that registers map to the same sets of the L1 cache */
/* Limits for tiles of contiguous rows: maximum bytes of a tile, minimum number of tiles. */
enum { TILE_BYTES = 96 << 10, LEAST_TILES = 16 };

/* Operands on which no store depends are not read and do not influence the loop order. */
static bool is_used(const struct row_schedule *s, int k) {
    const struct row_operand *operand = &s->rows->operands[k];
    return operand->is_store || (operand->term >= 0 && s->rows->terms[operand->term].is_needed);
}

/* Bytes that the operand touches, each element once: broadcast axes do not count. */
static double operand_bytes(const struct row_schedule *s, int k) {
    const struct row_operand *operand = &s->rows->operands[k];
    double bytes = operand->value == VALUE_INDEX ? 0 : (double)dtype_of(operand->type)->bits / 8;
    for (int i = 0; i < s->rows->space.axis_count; i++)
        bytes *= operand->strides[i] ? (double)s->rows->space.axes[i].extent : 1;
    return bytes;
}

/* The operand with the most bytes; its memory order determines the loop order. */
static int leading_operand(const struct row_schedule *s) {
    int leading = 0;
    for (int k = 1; k < s->rows->operand_count; k++)
        if (is_used(s, k) && (!is_used(s, leading) || operand_bytes(s, k) > operand_bytes(s, leading)))
            leading = k;
    return leading;
}

/* position: the loops must be contiguous in column sums, too. */
static bool steps_as_one(const struct row_schedule *s, const struct row_loop *outer, const struct row_loop *inner) {
    bool is_one = outer->is_reduced == inner->is_reduced && outer->position == inner->position * inner->extent;
    for (int k = 0; k < s->rows->operand_count && is_one; k++)
        is_one = !is_used(s, k) || outer->strides[k] == inner->strides[k] * inner->extent;
    return is_one;
}

/* Inserts a loop among those of its kind, which are sorted by the leading operand's strides. */
static void insert_loop(struct row_schedule *s, const struct row_loop *loop, int first, int lead) {
    int at = s->loop_count++;
    for (; at > first && s->loops[at - 1].strides[lead] < loop->strides[lead]; at--)
        s->loops[at] = s->loops[at - 1];
    s->loops[at] = *loop;
}

/* Positions of an axis's elements in the column sums, which all have the same axes. */
static void pack_sums(struct row_schedule *s, int64_t *positions) {
    const struct follow *follow = &s->rows->follow;
    s->sum_length = 1;
    for (int i = s->rows->space.axis_count; i-- > 0;) {
        bool has = follow->column_count && row_space_has_axis(&s->rows->space, follow->columns[0].tensor, i);
        positions[i] = has ? s->sum_length : 0;
        s->sum_length *= has ? s->rows->space.axes[i].extent : 1;
    }
}

/* Works in place: a loop is read before one at or before it is written. */
static void append_loops(struct row_schedule *s, bool is_reduced, int lead) {
    const struct rowwise *rows = s->rows;
    int64_t positions[WEFT_DIM_MAX];
    int first = s->loop_count, loop_end = first;
    pack_sums(s, positions);
    for (int i = 0; i < rows->space.axis_count; i++) {
        struct row_loop loop = {
            .extent = rows->space.axes[i].extent, .is_reduced = is_reduced, .position = positions[i]};
        for (int k = 0; k < rows->operand_count; k++)
            loop.strides[k] = rows->operands[k].strides[i];
        /* Sorts one kind of loop at a time, by insertion. */
        if (rows->space.axes[i].is_reduced == is_reduced)
            insert_loop(s, &loop, first, lead);
    }
    for (int i = first; i < s->loop_count; i++) {
        if (loop_end > first && steps_as_one(s, &s->loops[loop_end - 1], &s->loops[i])) {
            int64_t outer = s->loops[loop_end - 1].extent;
            s->loops[loop_end - 1] = s->loops[i];
            s->loops[loop_end - 1].extent *= outer;
        } else {
            s->loops[loop_end++] = s->loops[i];
        }
    }
    if (loop_end == first) /* all extents are 1: one row, or rows of one element */
        s->loops[loop_end++] = (struct row_loop){.extent = 1, .is_reduced = is_reduced};
    s->loop_count = loop_end;
}

/* Chooses the loops of a block: a for its rows, b for its columns. Columns are the fastest loop of the leading operand.
   The block's rows are the next loop within the row, if the row is short and has one, otherwise rows of the space. */
static void choose_block(struct row_schedule *s, int lead) {
    int inner = s->loop_count - 1, outer = 0;
    /* `outer`: the fastest loop over rows; `inner`: the fastest loop within a row. */
    while (outer + 1 < s->loop_count && !s->loops[outer + 1].is_reduced)
        outer++;
    int64_t of_rows = s->loops[outer].strides[lead], of_row = s->loops[inner].strides[lead];
    /* If rows are adjacent in memory, such as the channels of a batch norm, the columns of a block are different rows.
       */
    bool has_columns = of_rows && s->loops[outer].extent > 1 && (of_rows < of_row || !of_row);
    s->b = has_columns ? outer : inner;
    bool has_two = inner > outer + 1 && s->loops[outer].extent < 2 * s->loops[inner - 1].extent;
    s->a = has_columns ? inner : has_two ? inner - 1 : outer;
}

/* ---- Blocks and tiles -------------------------------------------------------------------------------------------- */

/* Divides an extent into equal pieces of at most `most` elements, rounded up to whole vectors if that does not increase
   their number. LANES: 16 floats are the widest vector, so that only the last piece ends within one. */
static int64_t piece_of(int64_t extent, int64_t most) {
    if (extent <= most)
        return max64(extent, 1);
    int64_t piece = divide_up(extent, divide_up(extent, most)), rounded = round_up(piece, LANES);
    return rounded <= most ? rounded : piece;
}

/* Like piece_of, but for rows: without rounding to vectors, and at least 1. */
static int64_t equal_pieces(int64_t extent, int64_t most) {
    return max64(divide_up(extent, max64(divide_up(extent, most), 1)), 1);
}

/* Maximum number of rows of a tile. */
static int64_t max_rows(const struct row_schedule *s) {
    /* For each row, a tile holds a slot for each row term and a double for each total. */
    int64_t totals = 0, width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    for (int p = 0; p < s->pass_count; p++)
        totals = max64(totals, s->passes[p].totals);
    /* + 1 avoids a division by 0 if a row has neither. */
    int64_t rows = ROWWISE_ROW_BYTES / (s->row_slots * width + totals * (int64_t)sizeof(double) + 1);
    return rows > LANES ? rows - rows % LANES : max64(rows, 1);
}

/* Maximum elements of a register in whole vectors; registers share ROWWISE_REGISTER_BYTES. 64 bytes per register are
   reserved for alignment. */
static int64_t max_elements(const struct row_schedule *s) {
    int64_t width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    int64_t elements = (ROWWISE_REGISTER_BYTES / max64(s->register_count, 1) - REGISTER_GAP - 64) / width;
    return min64(elements - elements % LANES, ROWWISE_BLOCK);
}

/* True if a loop over rows and a loop within them are contiguous for all operands of elements; operands of row values
   step only from row to row. */
static bool steps_through(const struct row_schedule *s, const struct row_loop *rows, const struct row_loop *parts) {
    bool is_one = rows->position == parts->position * parts->extent;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (is_used(s, k) && s->rows->terms[s->rows->operands[k].term].spans)
            is_one = is_one && rows->strides[k] == parts->strides[k] * parts->extent;
    return is_one;
}

/* Turns short parts of rows that are adjacent in memory, such as the channels of a group in channels-last layout, into
   columns. Each has its own totals, which are combined when a pass ends. The row's other elements must be in separate
   loops. */
static void join_parts(struct row_schedule *s, int lead) {
    int outer = 0, inner = s->loop_count - 1;
    while (outer + 1 < s->loop_count && !s->loops[outer + 1].is_reduced)
        outer++;
    struct row_loop *rows = &s->loops[outer], parts = s->loops[inner];
    int64_t most = min64(min64(max_elements(s), max_rows(s)), LONG_PART - 1);
    s->span = 1;
    if (inner < outer + 2 || rows->extent < 2 || parts.extent < 2 || parts.extent > most || parts.strides[lead] != 1 ||
        !steps_through(s, rows, &parts))
        return;
    s->span = parts.extent;
    rows->extent *= s->span;
    rows->position = parts.position;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (is_used(s, k) && s->rows->terms[s->rows->operands[k].term].spans)
            rows->strides[k] = parts.strides[k];
    s->loop_count = inner;
}

/* Loops over rows come first, then those within a row; each kind has at least one loop. */
void row_schedule_nest(struct row_schedule *s) {
    int lead = leading_operand(s);
    s->loop_count = 0;
    append_loops(s, false, lead);
    append_loops(s, true, lead);
    join_parts(s, lead);
    choose_block(s, lead);
}

/* Chooses the extents of a block for the available registers. A block has several rows only if each row of it is
   complete: columns then have no gaps, and the block is contiguous. */
static void cut_block(struct row_schedule *s) {
    const struct row_loop *a = &s->loops[s->a], *b = &s->loops[s->b];
    int64_t elements = max_elements(s), rows = max_rows(s);
    /* If columns are rows, their values must also fit into the tile. */
    s->block_b = piece_of(b->extent, b->is_reduced ? elements : min64(elements, rows));
    if (s->span > 1) /* complete rows only */
        s->block_b = s->span * equal_pieces(b->extent / s->span, min64(elements, rows) / s->span);
    /* If both loops are within the row, a block is one contiguous run. */
    s->steps_rows = !(a->is_reduced && b->is_reduced) && s->block_b >= ROW_CHUNK;
    bool is_whole = s->block_b >= b->extent, has_gaps = !b->is_reduced && s->block_b < elements / 4;
    /* If the parts of one row are separated in memory, each part is read in place separately; reading them together
       would require a copy. */
    if (a->is_reduced && b->is_reduced && s->block_b >= LONG_PART)
        is_whole = false;
    /* If only few rows are adjacent, blocks of one line of them would be mostly overhead. */
    s->block_a = is_whole || has_gaps ? elements / s->block_b : 1;
    if (!a->is_reduced)
        s->block_a = min64(s->block_a, rows);
    s->block_a = equal_pieces(a->extent, max64(s->block_a, 1));
}

/* A pass that only reduces needs no registers, so its blocks may be larger. */
static int64_t rows_of_block(const struct row_schedule *s, const struct row_pass *pass) {
    const struct row_loop *a = &s->loops[s->a];
    /* With registers, the block must fit into them. */
    if (!pass->only_reduces)
        return s->block_a;
    if (!a->is_reduced)
        return s->tile_a;
    return s->loops[s->b].is_reduced ? s->block_a : max64(min64(REDUCED_BLOCK / s->block_b, a->extent), s->block_a);
}

/* Counts tiles over the loops of rows, and each pass's blocks over the loops within a row. */
static void count_pieces(struct row_schedule *s) {
    int64_t others = 1; /* blocks along all loops except the one of their rows */
    s->tiles = 1;
    for (int i = 0; i < s->loop_count; i++) {
        int64_t step = i == s->a ? s->tile_a : i == s->b ? s->block_b : 1;
        s->pieces[i] = divide_up(s->loops[i].extent, step);
        if (!s->loops[i].is_reduced)
            s->tiles *= s->pieces[i];
        else if (i != s->a)
            others *= s->pieces[i];
    }
    /* The minimum over all passes, because every split needs at least one block. */
    s->blocks = 0;
    for (int p = 0; p < s->pass_count; p++) {
        struct row_pass *pass = &s->passes[p];
        pass->block_a = rows_of_block(s, pass);
        pass->blocks = s->loops[s->a].is_reduced ? others * divide_up(s->loops[s->a].extent, pass->block_a) : others;
        s->blocks = p == 0 ? pass->blocks : min64(s->blocks, pass->blocks);
    }
}

/* If rows are contiguous, a tile has as many rows as stay in the cache between passes, so that row terms are computed
   for many rows at once. */
static int64_t rows_of_tile(const struct row_schedule *s) {
    const struct row_loop *a = &s->loops[s->a];
    int64_t width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    /* Bytes of one row over all operands; starts at 1 so that it is never 0. */
    double bytes = 1;
    for (int k = 0; k < s->rows->operand_count; k++)
        bytes += is_used(s, k) && a->strides[k]
                     ? operand_bytes(s, k) / (double)max64(row_space_rows(&s->rows->space), 1)
                     : 0;
    /* LEAST_TILES: minimum number of tiles to leave for the threads. */
    int64_t rows = (int64_t)(TILE_BYTES / bytes), most = row_space_rows(&s->rows->space) / LEAST_TILES;
    rows = min64(min64(rows, max_rows(s)), min64(most, a->extent));
    int64_t row_bytes = s->kept_count * row_space_length(&s->rows->space) * width;
    if (row_bytes)
        rows = min64(rows, ROWWISE_KEPT_BYTES / row_bytes);
    return max64(rows - rows % s->block_a, s->block_a);
}

/* Number of tasks that share each tile's blocks; 1 if there are enough tiles. A few large tiles are split. The number
   of parts depends only on sizes, so that the sums do, too. Each part needs at least one block, because blocks are
   never divided. */
static int64_t splits_of(const struct row_schedule *s) {
    double bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        bytes += is_used(s, k) ? operand_bytes(s, k) : 0;
    if (s->tiles == 0 || s->tiles >= FEW_TILES || s->blocks < 2)
        return 1;
    int64_t parts = (int64_t)(bytes / SPLIT_BYTES / (double)s->tiles);
    return max64(min64(min64(parts, SPLITS), s->blocks), 1);
}

/* Elements of a complete tile. */
int64_t row_schedule_tile_elements(const struct row_schedule *s) {
    return row_space_length(&s->rows->space) * s->tile_rows / s->span;
}

/* Pieces are counted twice, because the choice of the tile depends on the number of splits, which depends on the
   pieces. */
void row_schedule_cut(struct row_schedule *s) {
    cut_block(s);
    int64_t width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    s->tile_a = s->block_a;
    count_pieces(s);
    s->splits = splits_of(s);
    if (s->splits == 1 && !s->loops[s->a].is_reduced) {
        s->tile_a = rows_of_tile(s);
        count_pieces(s);
    }
    /* One row if both loops are within it. */
    s->tile_rows = (s->loops[s->a].is_reduced ? 1 : s->tile_a) * (s->loops[s->b].is_reduced ? 1 : s->block_b);
    int64_t totals = 0;
    for (int p = 0; p < s->pass_count; p++)
        totals = max64(totals, s->passes[p].totals);
    /* Slots come first, then totals, which must be aligned for double. */
    s->row_bytes = s->tile_rows * width;
    s->totals_at = round_up(s->row_slots * s->row_bytes, (int64_t)sizeof(double));
    s->tile_bytes = round_up(s->totals_at + totals * s->tile_rows * (int64_t)sizeof(double), 64);
    /* A register of a block, plus the gap to the next one. */
    s->register_bytes = round_up(s->block_a * s->block_b * width, 64) + REGISTER_GAP;
}
