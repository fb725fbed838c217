/* SPDX-License-Identifier: Apache-2.0 */
/* The loop nest of a row program: the axes in the order of memory, neighbours merged that all operands step through
   alike; which two loops make a block; and how many blocks and tiles that is. Nothing here depends on the number of
   threads, so that sums come in one order. */
#include "base/number.h"
#include "engines/cpu/rows/schedule.h"

#include <string.h>

/* Bytes of the parts that tasks share long rows in, and how many there are at most. Tiles fewer than FEW are split.
   LANES: floats of the widest vector. */
enum { SPLIT_BYTES = 128 << 10, SPLITS = 32, FEW_TILES = 8, LANES = 16 };
enum { REDUCED_BLOCK = 8192 }; /* elements that only go into totals: half of a usual L1 */
enum { LONG_PART = 256 };    /* elements of a part of a row above which entering instructions costs less than copies */
enum { REGISTER_GAP = 192 }; /* bytes, which keep registers from the same sets of the L1 cache */
/* Of a tile of rows one after the other: bytes at most, and tiles at least. */
enum { TILE_BYTES = 96 << 10, LEAST_TILES = 16 };

/* What no store depends on is not read, and has no say in the order. */
static bool is_used(const struct row_schedule *s, int k) {
    const struct row_operand *operand = &s->rows->operands[k];
    return operand->is_store || (operand->term >= 0 && s->rows->terms[operand->term].is_needed);
}

/* Of what the operand touches, each element once: broadcast axes do not count. */
static double operand_bytes(const struct row_schedule *s, int k) {
    const struct row_operand *operand = &s->rows->operands[k];
    double bytes = operand->value == VALUE_INDEX ? 0 : (double)dtype_of(operand->type)->bits / 8;
    for (int i = 0; i < s->rows->space.axis_count; i++)
        bytes *= operand->strides[i] ? (double)s->rows->space.axes[i].extent : 1;
    return bytes;
}

/* The operand that most bytes belong to: its memory order leads. */
static int leading_operand(const struct row_schedule *s) {
    int found = 0;
    for (int k = 1; k < s->rows->operand_count; k++)
        if (is_used(s, k) && (!is_used(s, found) || operand_bytes(s, k) > operand_bytes(s, found)))
            found = k;
    return found;
}

/* position: both must count through sums of columns as one, too. */
static bool steps_as_one(const struct row_schedule *s, const struct row_loop *outer, const struct row_loop *inner) {
    bool is_one = outer->is_reduced == inner->is_reduced && outer->position == inner->position * inner->extent;
    for (int k = 0; k < s->rows->operand_count && is_one; k++)
        is_one = !is_used(s, k) || outer->strides[k] == inner->strides[k] * inner->extent;
    return is_one;
}

/* Appends a loop to those of its kind, which are ordered by the leading operand's strides. */
static void insert_loop(struct row_schedule *s, const struct row_loop *loop, int first, int lead) {
    int at = s->loop_count++;
    for (; at > first && s->loops[at - 1].strides[lead] < loop->strides[lead]; at--)
        s->loops[at] = s->loops[at - 1];
    s->loops[at] = *loop;
}

/* How far apart an axis' elements count in sums of columns, which all have the same axes. */
static void pack_sums(struct row_schedule *s, int64_t *positions) {
    const struct follow *follow = &s->rows->follow;
    s->sum_length = 1;
    for (int i = s->rows->space.axis_count; i-- > 0;) {
        bool has = follow->column_count && row_space_has_axis(&s->rows->space, follow->columns[0].tensor, i);
        positions[i] = has ? s->sum_length : 0;
        s->sum_length *= has ? s->rows->space.axes[i].extent : 1;
    }
}

/* In place: a loop is read before one at or before it is written. */
static void append_loops(struct row_schedule *s, bool is_reduced, int lead) {
    const struct rowwise *rows = s->rows;
    int64_t positions[WEFT_DIM_MAX];
    int first = s->loop_count, kept = first;
    pack_sums(s, positions);
    for (int i = 0; i < rows->space.axis_count; i++) {
        struct row_loop loop = {
            .extent = rows->space.axes[i].extent, .is_reduced = is_reduced, .position = positions[i]};
        for (int k = 0; k < rows->operand_count; k++)
            loop.strides[k] = rows->operands[k].strides[i];
        /* One kind at a time, ordered as they come. */
        if (rows->space.axes[i].is_reduced == is_reduced)
            insert_loop(s, &loop, first, lead);
    }
    for (int i = first; i < s->loop_count; i++) {
        if (kept > first && steps_as_one(s, &s->loops[kept - 1], &s->loops[i])) {
            int64_t outer = s->loops[kept - 1].extent;
            s->loops[kept - 1] = s->loops[i];
            s->loops[kept - 1].extent *= outer;
        } else {
            s->loops[kept++] = s->loops[i];
        }
    }
    if (kept == first) /* one row, or rows of one element */
        s->loops[kept++] = (struct row_loop){.extent = 1, .is_reduced = is_reduced};
    s->loop_count = kept;
}

/* a and b: rows and columns of a block, both as loops of the nest. The fastest loop of the leading operand gives a
   block's columns. Its rows come from the next loop within the row, where the row is short and has one, else from the
   rows. */
static void choose_block(struct row_schedule *s, int lead) {
    int inner = s->loop_count - 1, outer = 0;
    /* `outer`: the fastest of the loops over rows; `inner`: the fastest within a row. */
    while (outer + 1 < s->loop_count && !s->loops[outer + 1].is_reduced)
        outer++;
    int64_t of_rows = s->loops[outer].strides[lead], of_row = s->loops[inner].strides[lead];
    /* Rows side by side in memory, as channels of a batch norm: columns are then different rows. */
    bool has_columns = of_rows && s->loops[outer].extent > 1 && (of_rows < of_row || !of_row);
    s->b = has_columns ? outer : inner;
    bool has_two = inner > outer + 1 && s->loops[outer].extent < 2 * s->loops[inner - 1].extent;
    s->a = has_columns ? inner : has_two ? inner - 1 : outer;
}

/* ---- Blocks and tiles -------------------------------------------------------------------------------------------- */

/* An extent in equal pieces of at most so many elements, of whole vectors where that makes no more pieces. LANES: 16
   floats are the widest vector, so that no piece but the last ends within one. */
static int64_t piece_of(int64_t extent, int64_t most) {
    if (extent <= most)
        return max64(extent, 1);
    int64_t piece = divide_up(extent, divide_up(extent, most)), whole = round_up(piece, LANES);
    return whole <= most ? whole : piece;
}

/* The same of rows, without the vectors: at least 1. */
static int64_t equal_pieces(int64_t extent, int64_t most) {
    return max64(divide_up(extent, max64(divide_up(extent, most), 1)), 1);
}

/* Rows that a tile has room for. */
static int64_t most_rows(const struct row_schedule *s) {
    /* A tile holds, for each row, a slot for each term of rows and a double for each total. */
    int64_t totals = 0, width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    for (int p = 0; p < s->pass_count; p++)
        totals = max64(totals, s->passes[p].totals);
    /* 1: where a row holds nothing at all. */
    int64_t rows = ROWWISE_ROW_BYTES / (s->row_slots * width + totals * (int64_t)sizeof(double) + 1);
    return rows > LANES ? rows - rows % LANES : max64(rows, 1);
}

/* 64 more for each register's alignment. Whole vectors; the registers share ROWWISE_REGISTER_BYTES. */
static int64_t most_elements(const struct row_schedule *s) {
    int64_t width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    int64_t elements = (ROWWISE_REGISTER_BYTES / max64(s->register_count, 1) - REGISTER_GAP - 64) / width;
    return min64(elements - elements % LANES, ROWWISE_BLOCK);
}

/* Whether elements step through a loop over rows and one within them as one, with what rows have step by step. */
static bool steps_through(const struct row_schedule *s, const struct row_loop *rows, const struct row_loop *parts) {
    bool is_one = rows->position == parts->position * parts->extent;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (is_used(s, k) && s->rows->terms[s->rows->operands[k].term].spans)
            is_one = is_one && rows->strides[k] == parts->strides[k] * parts->extent;
    return is_one;
}

/* Short parts of rows side by side in memory, as the channels of a group where channels are last, become columns: each
   has totals of its own, which are joined when a pass ends. The row's other elements must be in loops of their own. */
static void join_parts(struct row_schedule *s, int lead) {
    int outer = 0, inner = s->loop_count - 1;
    while (outer + 1 < s->loop_count && !s->loops[outer + 1].is_reduced)
        outer++;
    struct row_loop *rows = &s->loops[outer], parts = s->loops[inner];
    int64_t most = min64(min64(most_elements(s), most_rows(s)), LONG_PART - 1);
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

/* Loops over rows first, then those within one; each kind has at least one loop. */
void row_schedule_nest(struct row_schedule *s) {
    int lead = leading_operand(s);
    s->loop_count = 0;
    append_loops(s, false, lead);
    append_loops(s, true, lead);
    join_parts(s, lead);
    choose_block(s, lead);
}

/* Extents of a block, for the registers that there are. Several rows only where a row is whole within a block: columns
   then lie without gaps, and the block is one run. */
static void cut_block(struct row_schedule *s) {
    const struct row_loop *a = &s->loops[s->a], *b = &s->loops[s->b];
    int64_t elements = most_elements(s), rows = most_rows(s);
    /* Columns that are rows have values in the tile, too. */
    s->block_b = piece_of(b->extent, b->is_reduced ? elements : min64(elements, rows));
    if (s->span > 1) /* whole rows */
        s->block_b = s->span * equal_pieces(b->extent / s->span, min64(elements, rows) / s->span);
    /* Both loops within the row: then a block is one run of elements, whatever its rows. */
    s->steps_rows = !(a->is_reduced && b->is_reduced) && s->block_b >= ROW_CHUNK;
    bool is_whole = s->block_b >= b->extent, has_gaps = !b->is_reduced && s->block_b < elements / 4;
    /* Parts of one row apart in memory: part by part they are read where they lie, together they would be copied. */
    if (a->is_reduced && b->is_reduced && s->block_b >= LONG_PART)
        is_whole = false;
    /* Rows side by side, but few: blocks of one row of them would be all overhead. */
    s->block_a = is_whole || has_gaps ? elements / s->block_b : 1;
    if (!a->is_reduced)
        s->block_a = min64(s->block_a, rows);
    s->block_a = equal_pieces(a->extent, max64(s->block_a, 1));
}

/* A pass that only reduces needs no registers, so its blocks may be larger than those of others. */
static int64_t rows_of_block(const struct row_schedule *s, const struct row_pass *pass) {
    const struct row_loop *a = &s->loops[s->a];
    /* With registers, a block is what these hold. */
    if (!pass->only_reduces)
        return s->block_a;
    if (!a->is_reduced)
        return s->tile_a;
    return s->loops[s->b].is_reduced ? s->block_a : max64(min64(REDUCED_BLOCK / s->block_b, a->extent), s->block_a);
}

/* tiles: over loops of rows; blocks of each pass: over loops within a row. */
static void count_pieces(struct row_schedule *s) {
    int64_t others = 1; /* blocks but for the loop of their rows */
    s->tiles = 1;
    for (int i = 0; i < s->loop_count; i++) {
        int64_t step = i == s->a ? s->tile_a : i == s->b ? s->block_b : 1;
        s->pieces[i] = divide_up(s->loops[i].extent, step);
        if (!s->loops[i].is_reduced)
            s->tiles *= s->pieces[i];
        else if (i != s->a)
            others *= s->pieces[i];
    }
    /* The fewest of any pass, as splits must leave a block for each. */
    s->blocks = 0;
    for (int p = 0; p < s->pass_count; p++) {
        struct row_pass *pass = &s->passes[p];
        pass->block_a = rows_of_block(s, pass);
        pass->blocks = s->loops[s->a].is_reduced ? others * divide_up(s->loops[s->a].extent, pass->block_a) : others;
        s->blocks = p == 0 ? pass->blocks : min64(s->blocks, pass->blocks);
    }
}

/* Rows that lie one after the other are taken several at a time, as many as stay in the caches from pass to pass, so
   that what is calculated once for a row is calculated for many at once. */
static int64_t rows_of_tile(const struct row_schedule *s) {
    const struct row_loop *a = &s->loops[s->a];
    int64_t width = s->has_wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float);
    /* Bytes of one row over all operands; 1 so that it is never 0. */
    double bytes = 1;
    for (int k = 0; k < s->rows->operand_count; k++)
        bytes += is_used(s, k) && a->strides[k]
                     ? operand_bytes(s, k) / (double)max64(row_space_rows(&s->rows->space), 1)
                     : 0;
    /* LEAST_TILES: so many are left for threads to share. */
    int64_t rows = (int64_t)(TILE_BYTES / bytes), most = row_space_rows(&s->rows->space) / LEAST_TILES;
    rows = min64(min64(rows, most_rows(s)), min64(most, a->extent));
    int64_t kept = s->kept_count * row_space_length(&s->rows->space) * width;
    if (kept)
        rows = min64(rows, ROWWISE_KEPT_BYTES / kept);
    return max64(rows - rows % s->block_a, s->block_a);
}

/* How many tasks share each tile's blocks, 1 where there are tiles enough. Few tiles of many bytes are shared: the
   number of parts depends on sizes alone, so that sums do, too. At least two blocks for two parts: a block is what is
   never cut. */
static int64_t splits_of(const struct row_schedule *s) {
    double bytes = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        bytes += is_used(s, k) ? operand_bytes(s, k) : 0;
    if (s->tiles == 0 || s->tiles >= FEW_TILES || s->blocks < 2)
        return 1;
    int64_t parts = (int64_t)(bytes / SPLIT_BYTES / (double)s->tiles);
    return max64(min64(min64(parts, SPLITS), s->blocks), 1);
}

/* Of a whole tile. */
int64_t row_schedule_tile_elements(const struct row_schedule *s) {
    return row_space_length(&s->rows->space) * s->tile_rows / s->span;
}

/* Pieces are counted twice, as the tile is chosen by a number that they decide: splits. */
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
    /* 1 row where both loops lie within it. */
    s->tile_rows = (s->loops[s->a].is_reduced ? 1 : s->tile_a) * (s->loops[s->b].is_reduced ? 1 : s->block_b);
    int64_t totals = 0;
    for (int p = 0; p < s->pass_count; p++)
        totals = max64(totals, s->passes[p].totals);
    /* Slots first, then totals, which must be aligned to double. */
    s->row_bytes = s->tile_rows * width;
    s->totals_at = round_up(s->row_slots * s->row_bytes, (int64_t)sizeof(double));
    s->tile_bytes = round_up(s->totals_at + totals * s->tile_rows * (int64_t)sizeof(double), 64);
    /* A register of a block, and the gap to the next. */
    s->register_bytes = round_up(s->block_a * s->block_b * width, 64) + REGISTER_GAP;
}
