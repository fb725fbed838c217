/* SPDX-License-Identifier: Apache-2.0 */
/* From a row program to a walk. Memory-bound throughout: what counts is that enough bytes are under way (threads times
   bytes that each requests at once), that lines are touched whole, and that memory is read as rarely as may be. */
#include "engines/cuda/rows/schedule.h"
#include "base/number.h"
#include "engines/cuda/core/price.h"

#include <string.h>

enum {
    REQUESTED_BYTES = 64, /* per thread, when rows stay in registers */
    HELD_BYTES = 128,     /* per thread, at most */
    SHARED_BYTES = 40960, /* for totals, of the 48 KB that need no asking */
    SHARED_LITTLE = 1536, /* for what else there is */
    COMMON_BYTES = 32,    /* per thread, of what all rows read alike */
    STREAMED_BYTES = 32,  /* per thread, twice */
    ROW_NUMBERS = 40,     /* registers for numbers of rows that lie side by side */
    STREAM_THREADS = 256,
    SHORT_THREADS = 128, /* of blocks with a warp or less for each row */
    PERSISTENT_THREADS = 512,
    SHARED_THREADS = 512,
    SHARED_ACROSS = 8, /* runs of a line of memory */
    RING_LEAST = 3,
    RING_MOST = 4,
    PIPED_WARPS = 32,
    PIPED_REGISTERS = 40, /* of a thread, for what lasts from row to row */
    PIPED_FEWER = 24,     /* on chips for which compilers take more registers for the rest */
    PIPED_OPEN = 4,       /* rows whose totals are under way */
    PIPED_BYTES = 3072,   /* for barriers */
    RING_TEAM = 256,      /* smaller teams load their rows sooner by themselves */
    STEPS_MOST = 8,
    SUMS_BYTES = 256, /* per thread, where sums of places stay too */
    CLUSTER_MOST = 8,
    JOIN_THREADS = 256,
    NARROW_THREADS = 256, /* of blocks that only join sums of places */
    MOST_THREADS = 1024,
    LOOSE_LEAST = 32,  /* runs of a row that may have loose elements */
    OVERLAP_LEAST = 4, /* runs of rows side by side that may overlap */
    PARTS_MAX = 1024,
    JOINED_PARTS = 4, /* more parts than these are joined before many blocks read them */
};

static const double LAUNCH_SECONDS = 2e-6;
static const double SIDE_BY_SIDE_SHARE = 0.55; /* of memory's rate, that clusters holding rows side by side reach */

/* ---- Dims -------------------------------------------------------------------------------------------------------- */

static bool is_traffic(const struct walk *walk, int k) {
    const struct operand *operand = &walk->rows->operands[k];
    return operand->memory != MEMORY_INDEX && (operand->is_store || rows_find(walk->rows, operand->value)->is_needed);
}

/* Bytes that an operand moves: its elements, broadcast ones once. */
static double bytes_of(const struct walk *walk, int k) {
    const struct rows *rows = walk->rows;
    double bytes = (double)dtype_bytes(rows->operands[k].type, 1);
    for (int i = 0; i < rows->axis_count; i++)
        bytes *= rows->operands[k].strides[i] ? (double)rows->axes[i].extent : 1;
    return bytes;
}

/* The operand that most bytes belong to: its memory order leads. */
static int leading_operand(const struct walk *walk) {
    int found = 0;
    double most = -1;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (is_traffic(walk, k) && bytes_of(walk, k) > most) {
            most = bytes_of(walk, k);
            found = k;
        }
    return found;
}

/* The dims of one kind, ordered and merged, behind those that the walk has already. */
static void append_dims(struct walk *walk, bool is_reduced, int lead) {
    const struct rows *rows = walk->rows;
    struct space space = {0};
    struct operand part[ROWS_OPERANDS_MAX];
    memcpy(part, rows->operands, sizeof part);
    for (int k = 0; k < rows->operand_count; k++)
        memset(part[k].strides, 0, sizeof part[k].strides);
    for (int i = 0; i < rows->axis_count; i++) {
        if (rows->axes[i].is_reduced != is_reduced)
            continue;
        for (int k = 0; k < rows->operand_count; k++)
            part[k].strides[space.rank] = rows->operands[k].strides[i];
        space.extents[space.rank++] = rows->axes[i].extent;
    }
    if (space.rank == 0)
        space.extents[space.rank++] = 1;
    space_coalesce(&space, part, rows->operand_count, lead);
    for (int i = 0; i < space.rank; i++) {
        for (int k = 0; k < rows->operand_count; k++)
            walk->operands[k].strides[walk->rank] = part[k].strides[i];
        walk->extents[walk->rank++] = space.extents[i];
    }
}

static weftStatus_t order_dims(struct walk *walk) {
    const struct rows *rows = walk->rows;
    int lead = leading_operand(walk), kinds[2] = {0};
    for (int i = 0; i < rows->axis_count; i++)
        kinds[rows->axes[i].is_reduced]++;
    if ((kinds[0] ? kinds[0] : 1) + (kinds[1] ? kinds[1] : 1) > WEFT_DIM_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "rows in dims %s would be more than %d dims to walk",
             numbers_text(rows->dims.at, rows->dims.count), WEFT_DIM_MAX);
    memcpy(walk->operands, rows->operands, sizeof walk->operands);
    for (int k = 0; k < rows->operand_count; k++)
        memset(walk->operands[k].strides, 0, sizeof walk->operands[k].strides);
    append_dims(walk, false, lead);
    walk->kept = walk->rank;
    append_dims(walk, true, lead);
    const int64_t *strides = walk->operands[lead].strides;
    int64_t of_rows = strides[walk->kept - 1], of_row = strides[walk->rank - 1];
    walk->is_columns = of_rows && (of_rows < of_row || !of_row);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Neighbours that one access may take of every operand: what moves most bytes per element gets up to 16 bytes, and
   every run of an operand begins at a multiple of its size, or of 16 bytes. */
static int run_length(const struct walk *walk) {
    const struct rows *rows = walk->rows;
    int fast = walk_fast_dim(walk);
    int64_t length = gcd64(16, walk->extents[fast]), widest = 1;
    for (int k = 0; k < rows->operand_count; k++) {
        const struct operand *operand = &walk->operands[k];
        if (!is_traffic(walk, k) || operand->strides[fast] != 1)
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1), fits = gcd64(16, operand->offset * bytes);
        fits = operand->memory >= 0 ? gcd64(fits, rows->graph->values[operand->memory].tensor->alignment) : fits;
        bool is_whole = true;
        for (int i = 0; i < walk->rank; i++) {
            fits = i == fast ? fits : gcd64(fits, operand->strides[i] * bytes);
            is_whole = is_whole && (operand->strides[i] || walk->extents[i] == 1);
        }
        if (fits < 16)
            length = gcd64(length, fits > bytes ? fits / bytes : 1);
        if (is_whole && bytes > widest)
            widest = bytes;
    }
    return (int)gcd64(length, 16 / widest);
}

/* Whether operand k begins in memory, row by row, as the leader does: both at multiples of 16 bytes. */
static bool begins_as(const struct walk *walk, int k, int leader) {
    const struct operand *operand = &walk->operands[k];
    int64_t offset = dtype_bytes(operand->type, operand->offset);
    bool is = operand->memory >= 0 && operand->strides[walk->kept] == 1 && offset % 16 == 0 &&
              walk->rows->graph->values[operand->memory].tensor->alignment % 16 == 0;
    for (int i = 0; i < walk->kept; i++)
        is = is && (operand->strides[i] == walk->operands[leader].strides[i] || walk->extents[i] == 1);
    return is;
}

/* Rows that begin anywhere in memory, but alike in all operands: their runs begin where 16 bytes of memory do, and what
   is before and behind these is loose. What all rows read alike is shifted to their runs. */
static void loosen(struct walk *walk) {
    int64_t widest = 1, margin = 0;
    walk->leader = -1;
    if (walk->is_columns || walk->rank != walk->kept + 1 || (walk->column_totals && walk->kept > 1))
        return;
    for (int k = 0; k < walk->rows->operand_count; k++) {
        const struct operand *operand = &walk->operands[k];
        bool is_common = walk->groups > 1;
        for (int i = 0; i < walk->kept; i++)
            is_common = is_common && operand->strides[i] == 0;
        const struct term *term = rows_find(walk->rows, operand->value);
        bool is_column = operand->is_store && term->kind == TERM_TOTAL && term->total == TOTAL_COLUMN;
        if (!is_traffic(walk, k) || operand->strides[walk->kept] == 0 || is_column)
            continue;
        if (!begins_as(walk, k, is_common || walk->leader < 0 ? k : walk->leader))
            return;
        int64_t bytes = dtype_bytes(operand->type, 1);
        walk->leader = is_common ? walk->leader : k;
        widest = !is_common && bytes > widest ? bytes : widest;
        margin = is_common && 16 / bytes > margin ? 16 / bytes : margin;
    }
    int64_t run = 16 / widest, length = walk->extents[walk->kept];
    if (walk->leader < 0 || walk->run * 4 > run || length < LOOSE_LEAST * run)
        return;
    walk->run = (int)run;
    walk->runs = (length - margin) / run;
    walk->loose = (int)(2 * run - 2 + margin);
    walk->margin = (int)margin;
}

/* Rows side by side each have their own mean, scale, ...; where these are many, a thread takes fewer rows. */
static void narrow_run(struct walk *walk) {
    int most = 0;
    for (int pass = 0; pass < walk->passes && walk->is_columns; pass++) {
        bool takes_part[TERMS_MAX];
        int numbers = 0;
        walk_terms_of_pass(walk, pass, takes_part);
        for (int i = 0; i < walk->rows->term_count; i++)
            numbers += takes_part[i] && !walk->rows->terms[i].spans;
        most = numbers > most ? numbers : most;
    }
    while (walk->run > 4 && walk->run * most > ROW_NUMBERS)
        walk->run /= 2;
}

/* Rows side by side of which nothing but totals is wanted, in a number that runs do not divide: the last run overlaps the
   one before, and all are shifted to where they begin. Whoever stops before the last row of memory stays within it. */
static void let_overlap(struct walk *walk) {
    int64_t widest = 1, rows = walk->extents[0];
    bool can = walk->is_columns && walk->kept == 1 && walk->passes == 1 && walk->last_pass < 0;
    for (int k = 0; k < walk->rows->operand_count && can; k++) {
        const struct operand *operand = &walk->operands[k];
        if (operand->is_store || !rows_find(walk->rows, operand->value)->is_needed)
            continue;
        int64_t bytes = dtype_bytes(operand->type, 1);
        widest = bytes > widest ? bytes : widest;
        can = operand->memory >= 0 && operand->strides[0] == 1 &&
              dtype_bytes(operand->type, operand->offset) % 16 == 0 &&
              walk->rows->graph->values[operand->memory].tensor->alignment % 16 == 0;
        for (int i = 1; i < walk->rank; i++)
            can = can && (operand->strides[i] >= 16 || walk->extents[i] == 1);
    }
    int run = (int)(16 / widest);
    if (!can || walk->run * 4 > run || rows < OVERLAP_LEAST * run)
        return;
    walk->run = run;
    narrow_run(walk);
    walk->overlaps = true;
    walk->groups = divide_up(rows, walk->run);
    walk->overlap = (int)(walk->groups * walk->run - rows);
    walk->last_run = (walk->groups - 1) * walk->run;
}

bool walk_holds(const struct walk *walk, int k) {
    const struct operand *operand = &walk->operands[k];
    if (!walk->steps || operand->is_store || !is_traffic(walk, k) || !rows_find(walk->rows, operand->value)->spans)
        return false;
    if (walk->counted)
        return walk->counted >> k & 1;
    for (int i = 0; i < walk->kept; i++)
        if (operand->strides[i])
            return true;
    return walk->is_columns;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

static void count_passes(struct walk *walk) {
    const struct rows *rows = walk->rows;
    walk->closed = 0;
    walk->last_pass = -1;
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (!term->is_needed)
            continue;
        if (term->kind == TERM_TOTAL && term->total == TOTAL_COLUMN)
            walk->column_totals++;
        if (term->stage > walk->closed)
            walk->closed = term->stage;
    }
    for (int k = 0; k < rows->operand_count; k++) {
        const struct operand *operand = &rows->operands[k];
        const struct term *term = rows_find(rows, operand->value);
        bool is_column = term->kind == TERM_TOTAL && term->total == TOTAL_COLUMN;
        if (operand->is_store && (term->spans || is_column) && term->stage > walk->last_pass)
            walk->last_pass = term->stage;
    }
    walk->passes = walk->closed > walk->last_pass + 1 ? walk->closed : walk->last_pass + 1;
}

bool walk_carries(const struct walk *walk, const struct term *term) {
    return walk->carries && strncmp(term->text, "WEIGHT(", 7) == 0 && term->stage < walk->last_pass;
}

static void take_part(const struct walk *walk, int pass, int index, bool *takes_part) {
    const struct term *term = &walk->rows->terms[index];
    if (takes_part[index])
        return;
    takes_part[index] = true;
    bool is_there = walk_carries(walk, term) && term->stage < pass;
    for (int i = 0; i < term->use_count && term->spans && !is_there; i++)
        take_part(walk, pass, term->uses[i], takes_part);
}

/* Terms of the row are marked too where elements use them, but not what they depend on. */
void walk_terms_of_pass(const struct walk *walk, int pass, bool *takes_part) {
    const struct rows *rows = walk->rows;
    memset(takes_part, 0, TERMS_MAX * sizeof *takes_part);
    for (int i = 0; i < rows->term_count; i++) {
        const struct term *term = &rows->terms[i];
        if (term->kind != TERM_TOTAL || !term->is_needed)
            continue;
        bool is_column = term->total == TOTAL_COLUMN;
        if (is_column ? term->stage == pass : term->stage == pass + 1)
            take_part(walk, pass, term->uses[0], takes_part);
    }
    for (int k = 0; k < rows->operand_count && pass == walk->last_pass; k++) {
        const struct term *term = rows_find(rows, rows->operands[k].value);
        if (rows->operands[k].is_store && term->spans)
            take_part(walk, pass, (int)(term - rows->terms), takes_part);
    }
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static int power_above(int64_t n, int most) {
    int power = 1;
    while (power < n && power < most)
        power *= 2;
    return power;
}

bool walk_calculates_in_double(const struct walk *walk) {
    for (int i = 0; i < walk->rows->term_count; i++)
        if (walk->rows->terms[i].is_needed && strcmp(walk->rows->terms[i].type, "double") == 0)
            return true;
    return false;
}

/* Bytes of the totals of one row in one pass, at most. */
int64_t walk_total_bytes(const struct walk *walk) {
    int64_t most = 0;
    for (int pass = 0; pass < walk->closed; pass++) {
        int64_t bytes = 0;
        for (int i = 0; i < walk->rows->term_count; i++) {
            const struct term *term = &walk->rows->terms[i];
            if (term->is_needed && term->kind == TERM_TOTAL && term->total != TOTAL_COLUMN && term->stage == pass + 1)
                bytes += (strcmp(term->type, "float") == 0 ? 4 : 8) * (term->total == TOTAL_MOMENTS ? 3 : term->names);
        }
        most = bytes > most ? bytes : most;
    }
    return round_up(most, 8);
}

int64_t walk_held_bytes(const struct walk *walk, int k) {
    return dtype_bytes(walk->operands[k].type, 1) * (walk->operands[k].strides[walk_fast_dim(walk)] ? walk->run : 1);
}

/* Bytes that a thread holds for one run of each operand that stays. */
static int64_t held_bytes(const struct walk *walk) {
    int64_t bytes = 0;
    for (int k = 0; k < walk->rows->operand_count; k++)
        bytes += walk_holds(walk, k) ? walk_held_bytes(walk, k) : 0;
    return bytes ? bytes : 1;
}

int64_t walk_row_bytes(const struct walk *walk) { return held_bytes(walk) * walk->steps * walk->team; }

int64_t walk_ring_bytes(const struct walk *walk) {
    return walk_row_bytes(walk) * walk->across * walk->ring + (walk->ring > 1 && !walk->is_piped ? RING_BEGINS : 0);
}

/* Whether the copy engine can bring rows: each whole in memory, in pieces of 16 bytes. A single row has nothing of its
   own. */
static bool can_ring(const struct walk *walk, const struct device *device) {
    bool can = device->cuda.major >= 9 && walk->rank == walk->kept + 1 && walk->closed > 0, any = false;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (walk_holds(walk, k)) {
            any = true;
            can = can && walk->operands[k].strides[walk->kept] == 1 && walk_held_bytes(walk, k) % 16 == 0 &&
                  walk->operands[k].memory >= 0;
        }
    return can && any;
}

static void round_team(struct walk *walk, int64_t team) {
    walk->team = team <= 32 ? power_above(team, 32) : (int)(divide_up(team, 32) * 32);
}

/* Bytes that a thread holds for one run of each operand that all rows read alike. */
static int64_t common_bytes(const struct walk *walk) {
    int64_t bytes = 0;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (is_traffic(walk, k) && !walk->operands[k].is_store && !walk_holds(walk, k) &&
            rows_find(walk->rows, walk->operands[k].value)->spans)
            bytes += walk_held_bytes(walk, k);
    return bytes;
}

/* Runs that a thread may keep: they take registers, and so do the next row's and the sums of their places. */
static int64_t most_steps(const struct walk *walk) {
    int64_t bytes = held_bytes(walk), most = min64(HELD_BYTES / bytes > 0 ? HELD_BYTES / bytes : 1, STEPS_MOST);
    if (walk->column_totals)
        most = min64(most, SUMS_BYTES / (2 * bytes + 4 * walk->column_totals * walk->run));
    return walk_calculates_in_double(walk) && most > 2 ? most / 2 : most;
}

/* Runs of a thread: few bytes for many threads where rows are short or few. */
static int64_t wanted_steps(const struct walk *walk, const struct device *device) {
    int64_t steps = divide_up(REQUESTED_BYTES, held_bytes(walk));
    int64_t resident = (int64_t)device->cuda.multiprocessors * 512;
    while (steps > 1 && walk->groups * divide_up(walk->runs, steps) < resident)
        steps--;
    return min64(steps, most_steps(walk));
}

/* The smallest cluster whose threads hold a row in `most` runs each. Clusters cost a barrier between blocks for each
   total: rows that are read once are streamed instead. */
static bool fit_rows(struct walk *walk, const struct device *device, int64_t widest, int64_t most) {
    int64_t wanted = min64(wanted_steps(walk, device), most);
    int clusters = device->cuda.major >= 9 && walk->passes > 1 ? CLUSTER_MOST : 1;
    for (walk->cluster = 1; walk->cluster <= clusters; walk->cluster *= 2) {
        int64_t team = divide_up(walk->runs, wanted * walk->cluster);
        if (team > widest)
            team = divide_up(walk->runs, divide_up(walk->runs, widest * walk->cluster) * walk->cluster);
        if (walk->loose) /* a thread for each loose element, and no other team in its warp */
            team = team < walk->loose || team < 32 ? 32 * divide_up(walk->loose, 32) : team;
        round_team(walk, team < 8 ? min64(8, power_above(walk->runs, 8)) : team);
        walk->steps = (int)divide_up(walk->runs, (int64_t)walk->team * walk->cluster);
        walk->steps = walk->steps ? walk->steps : 1;
        if (walk->steps <= most)
            return true;
    }
    walk->cluster = 1;
    return false;
}

/* Bytes of a sum of each place of a run. */
static int64_t sum_bytes(const struct walk *walk) { return walk->run * (walk_calculates_in_double(walk) ? 8 : 4); }

/* Rows of a team in shared memory at a time, one of them worked on; 0: too few to be worth it. */
static int ring_of(const struct walk *walk, const struct device *device) {
    int64_t sums = walk->across > 1 ? sum_bytes(walk) * walk->threads : 0;
    int64_t room = device->cuda.shared_per_block - SHARED_LITTLE - sums;
    int64_t ring = min64(RING_MOST, room / (walk_row_bytes(walk) * walk->across));
    return can_ring(walk, device) && walk->team >= RING_TEAM && ring >= RING_LEAST ? (int)ring : 0;
}

/* Rows whose places are summed over all rows: few blocks, since each leaves sums of every place, that take row after row
   and have the next ones on their way. More than 512 threads leave no registers for these. */
static bool place_persistent(struct walk *walk, const struct device *device) {
    if (!fit_rows(walk, device, PERSISTENT_THREADS, most_steps(walk)))
        return false;
    /* Rows of a block begin alike, so that their places do: a number of blocks that many more leave idle. */
    if (walk->loose && (walk->cluster > 2 || device->cuda.multiprocessors < walk->cluster * walk->run))
        return false;
    int teams = walk->cluster > 1 ? 1 : PERSISTENT_THREADS / walk->team;
    for (walk->across = teams > 1 ? teams : 1; walk->across > 1; walk->across /= 2)
        if (sum_bytes(walk) * walk->team * walk->across <= SHARED_BYTES)
            break;
    walk->threads = walk->team * walk->across;
    walk->ring = ring_of(walk, device);
    walk->is_persistent = walk->prefetches = walk->forgets = walk->keeps_common = true;
    return true;
}

/* Registers of a thread for one run of what lasts from row to row: sums of places, and what all rows read alike. */
static int64_t lasting_registers(const struct walk *walk) {
    int64_t registers = walk->column_totals * walk->run + divide_up(common_bytes(walk), 4);
    return registers ? registers : 1;
}

/* Rows that a team has on their way. Blocks that share a row and sum places are as fast with few: the more there are, the
   further some multiprocessors run ahead of others, which end last. */
static int64_t most_ahead(const struct walk *walk) {
    return walk->column_totals && walk->cluster > 1 ? RING_LEAST : RING_MOST;
}

/* A ring in what barriers and totals of rows that are under way leave of shared memory. */
static bool fit_ring(struct walk *walk, const struct device *device) {
    int64_t parts = (int64_t)walk->threads / 32 * walk->cluster;
    int64_t room = device->cuda.shared_per_block - PIPED_BYTES - PIPED_OPEN * parts * walk_total_bytes(walk);
    walk->ring = (int)min64(most_ahead(walk), room / (walk_row_bytes(walk) * walk->across));
    return walk->ring >= RING_LEAST;
}

/* Teams of a block of so many warps: as many as there is work for. */
static bool fit_warps(struct walk *walk, const struct device *device, int64_t warps, int64_t registers) {
    int64_t most = min64(STEPS_MOST, registers / lasting_registers(walk)), lanes = 32 * walk->cluster;
    int64_t teams = most ? warps / divide_up(walk->runs, lanes * most) : 0;
    teams = min64(teams, walk->cluster > 1 ? 1 : divide_up(walk->groups, device->cuda.multiprocessors));
    for (; teams > 0; teams--) {
        walk->steps = (int)divide_up(walk->runs, lanes * (warps / teams));
        walk->team = (int)(32 * divide_up(walk->runs, lanes * walk->steps));
        walk->across = (int)teams;
        walk->threads = walk->team * walk->across;
        if (fit_ring(walk, device))
            return true;
    }
    return false;
}

/* Half the warps with twice the registers of each are faster where these are enough, which samples take, too. */
static bool fit_piped(struct walk *walk, const struct device *device) {
    if (device->cuda.major != 9)
        return fit_warps(walk, device, PIPED_WARPS, PIPED_FEWER);
    return (walk->rows->sampled < 0 && fit_warps(walk, device, PIPED_WARPS / 2, 2 * PIPED_REGISTERS)) ||
           fit_warps(walk, device, PIPED_WARPS, PIPED_REGISTERS);
}

/* Rows in shared memory; the last pass of a row comes behind the first pass of the next one. Two blocks or more share
   those with sums of places, which leave one block few registers for the rest. */
static bool place_piped(struct walk *walk, const struct device *device) {
    walk->steps = 1; /* walk_holds asks */
    bool has_passes = walk->passes == 2 && walk->closed == 1 && walk->last_pass == 1;
    if (!has_passes || walk->loose || walk->runs == 0 || walk->groups == 0 || walk_calculates_in_double(walk) ||
        !can_ring(walk, device))
        return false;
    for (walk->cluster = walk->column_totals ? 2 : 1; walk->cluster <= CLUSTER_MOST; walk->cluster *= 2)
        if (fit_piped(walk, device)) {
            walk->is_piped = walk->is_persistent = walk->keeps_common = true;
            walk->crew = walk->column_totals ? walk->team / 32 : 1;
            return true;
        }
    walk->cluster = 1;
    walk->ring = 0;
    return false;
}

/* Long rows go through shared memory where they can. */
static bool place_summed(struct walk *walk, const struct device *device) {
    bool is_short = place_persistent(walk, device) && walk->cluster == 1;
    return is_short || place_piped(walk, device) || place_persistent(walk, device);
}

/* Rows in registers, a team of neighbours for each; long ones are shared by the blocks of a cluster. Half of what threads
   may keep lets two blocks live side by side, one loading while the other computes. */
static bool place_rows(struct walk *walk, const struct device *device) {
    walk->steps = 1; /* walk_holds asks */
    if (walk->column_totals)
        return place_summed(walk, device);
    int64_t widest = device->cuda.major >= 9 && walk->passes > 1 ? 512 : 1024, most = most_steps(walk);
    if (!fit_rows(walk, device, widest, most > 4 ? most / 2 : most) && !fit_rows(walk, device, 512, most))
        return false;
    walk->threads = walk->team <= 32 ? SHORT_THREADS : walk->team;
    walk->across = walk->threads / walk->team;
    walk->keeps_common = common_bytes(walk) * walk->steps <= COMMON_BYTES;
    walk->forgets = walk->steps * walk->run > 32 || held_bytes(walk) > 16;
    walk->carries = !walk->forgets && !walk_calculates_in_double(walk);
    return true;
}

/* Rows side by side that only give totals: tiles as narrow as it takes for work on all multiprocessors. */
static bool place_narrow(struct walk *walk, const struct device *device) {
    int64_t most = min64(HELD_BYTES / held_bytes(walk), STEPS_MOST);
    walk->across = power_above(walk->groups, 16);
    while (walk->across > 4 && divide_up(walk->groups, walk->across) < device->cuda.multiprocessors * 3 / 4)
        walk->across /= 2;
    walk->team = power_above(walk->runs, NARROW_THREADS / walk->across);
    while (divide_up(walk->runs, walk->team) > most && walk->team * walk->across < MOST_THREADS)
        walk->team *= 2;
    walk->threads = walk->team * walk->across;
    walk->steps = (int)divide_up(walk->runs, walk->team);
    walk->forgets = true;
    return walk->steps <= most && walk->threads >= SHORT_THREADS;
}

/* Rows in registers whose neighbours in memory belong to other rows. */
static bool place_columns(struct walk *walk, const struct device *device) {
    walk->steps = 1;
    if (walk->passes == 1 && walk->last_pass < 0 && place_narrow(walk, device))
        return true;
    int64_t bytes = held_bytes(walk), most_steps = HELD_BYTES / bytes;
    walk->across = power_above(walk->groups, 16);
    int64_t team = power_above(walk->runs, 1024 / walk->across);
    int64_t steps = divide_up(walk->runs, team);
    if (steps > most_steps || steps > 8)
        return false;
    while (steps * 2 <= 4 && steps * 2 <= most_steps && team * walk->across > 128) {
        steps *= 2;
        team /= 2;
    }
    while (team * walk->across < 128)
        walk->across *= 2;
    walk->team = (int)team;
    walk->steps = (int)steps;
    walk->threads = walk->team * walk->across;
    walk->forgets = true;
    return true;
}

/* Whether every thread can copy its runs to shared memory, in pieces of 4 bytes or more. */
static bool can_copy(const struct walk *walk, const struct device *device) {
    bool can = device->cuda.major >= 8 && walk->rank == walk->kept + 1;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (walk_holds(walk, k))
            can = can && walk_held_bytes(walk, k) >= 4 && walk->operands[k].strides[walk_fast_dim(walk)] <= 1;
    return can;
}

/* Rows side by side in shared memory, of one block or of a cluster, where that keeps most multiprocessors busy. */
static bool place_shared(struct walk *walk, const struct device *device) {
    int64_t multiprocessors = device->cuda.multiprocessors;
    walk->steps = 1;
    /* Each row has numbers of every pass: more passes than two want too many registers. */
    if (walk->passes != 2 || walk->runs == 0 || !can_copy(walk, device))
        return false;
    walk->threads = SHARED_THREADS;
    /* A half-line of memory leaves smaller clusters than a line: 25 us, not 37, for 128x2048x7x7. Two operands were
       measured with lines alone. */
    walk->across = power_above(walk->groups, held_bytes(walk) <= 16 ? SHARED_ACROSS / 2 : SHARED_ACROSS);
    walk->team = walk->threads / walk->across;
    int64_t totals = walk->run * walk->across * walk_total_bytes(walk);
    int clusters = device->cuda.major >= 9 ? CLUSTER_MOST : 1;
    for (walk->cluster = 1; walk->cluster <= clusters; walk->cluster *= 2) {
        walk->steps = (int)divide_up(walk->runs, (int64_t)walk->team * walk->cluster);
        int64_t blocks = divide_up(walk->groups, walk->across) * walk->cluster;
        int64_t bytes = walk_row_bytes(walk) * walk->across + (walk->threads / 32 + 2 * walk->cluster) * totals;
        bool is_busy = blocks * 4 >= divide_up(blocks, multiprocessors) * multiprocessors * 3;
        if (is_busy && bytes + SHARED_LITTLE <= device->cuda.shared_per_block)
            break;
    }
    walk->ring = 1;
    walk->unroll = 4;
    return walk->cluster <= clusters;
}

/* Bytes that a thread asks for at once where rows are streamed. */
static int64_t streamed_bytes(const struct walk *walk) {
    int64_t bytes = 0;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (is_traffic(walk, k) && !walk->operands[k].is_store && rows_find(walk->rows, walk->operands[k].value)->spans)
            bytes += walk_held_bytes(walk, k);
    return bytes ? bytes : 1;
}

static void place_stream(struct walk *walk, const struct device *device) {
    walk->steps = walk->ring = 0;
    walk->cluster = 1;
    walk->threads = STREAM_THREADS;
    /* Chunks of rows side by side are as long as the block of runs, and cost less when they are longer. */
    walk->unroll = (int)min64(4, STREAMED_BYTES * (walk->is_columns ? 2 : 1) / streamed_bytes(walk));
    if (walk->is_columns && walk->passes > 2)
        walk->unroll = (int)min64(walk->unroll, 2);
    walk->unroll = walk->unroll < 1 ? 1 : walk->unroll;
    walk->forgets = walk->is_persistent = walk->prefetches = walk->keeps_common = walk->carries = false;
    if (!walk->is_columns) {
        walk->across = 1;
        walk->threads = walk->groups < 3 * device->cuda.multiprocessors ? 2 * STREAM_THREADS : STREAM_THREADS;
        walk->team = walk->threads;
        while (walk->last_pass < 0 && walk->passes == 1 && walk->unroll < 8 &&
               walk->runs >= 8 * walk->unroll * walk->team)
            walk->unroll *= 2; /* nothing but reads */
        return;
    }
    walk->across = power_above(walk->groups, 16);
    walk->team = walk->threads / walk->across;
    while (walk->team > 1 && walk->team / 2 >= walk->runs) {
        walk->team /= 2;
        walk->across *= 2;
    }
}

static bool totals_fit(const struct walk *walk) {
    if (!walk->is_columns)
        return true;
    int in_warp = walk->across >= 32 ? 1 : 32 / walk->across, groups = walk->team / in_warp;
    return groups <= 1 || (groups + 1) * walk->run * walk->across * walk_total_bytes(walk) <= SHARED_BYTES;
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

static double bytes_moved(const struct walk *walk) {
    double bytes = 0;
    for (int k = 0; k < walk->rows->operand_count; k++)
        if (is_traffic(walk, k))
            bytes += bytes_of(walk, k) * (walk->operands[k].is_store || walk->steps ? 1 : walk->passes);
    return bytes;
}

/* Streams whose rows are too few for the chip are cut. */
static void cut_rows(struct walk *walk, const struct device *device) {
    int64_t wanted = (int64_t)device->cuda.multiprocessors * walk->min_blocks;
    int64_t smallest = (int64_t)walk->team * walk->unroll, parts = divide_up(wanted, walk->tiles ? walk->tiles : 1);
    parts = min64(parts, min64(divide_up(walk->runs, smallest), PARTS_MAX));
    if (parts <= 1 || (walk->closed && walk->tiles * 2 >= wanted))
        return;
    walk->parts = parts;
    /* Threads that read several operands last longer, and are fewer. */
    walk->store_parts = divide_up(walk->runs, smallest * (walk->unroll < 4 ? 4 : 1));
}

bool walk_joins(const struct walk *walk, int pass) {
    return walk->parts > JOINED_PARTS && (pass < walk->closed - 1 || walk->last_pass >= walk->closed);
}

int walk_kernel_count(const struct walk *walk) {
    if (walk->groups == 0)
        return 0;
    int kernels = 1;
    for (int pass = 0; pass < walk->closed && walk->parts > 1; pass++)
        kernels += walk_joins(walk, pass) ? 2 : 1;
    return kernels;
}

/* Registers for about this many threads on a multiprocessor: what elements are put through takes them. */
static void allot_registers(struct walk *walk, const struct device *device) {
    bool is_heavy =
        walk_calculates_in_double(walk) || walk->is_columns || walk->rank - walk->kept > 1 || walk->column_totals;
    bool holds_much = held_bytes(walk) * walk->steps > 96;
    int threads = is_heavy ? 512 : walk->steps && !holds_much ? 1024 : 768;
    bool is_narrow = walk->is_columns && walk->steps && walk->passes == 1 && walk->last_pass < 0;
    if (is_narrow && walk->tiles > device->cuda.multiprocessors && !walk_calculates_in_double(walk))
        threads = 1024; /* tiles side by side, which would wait for each other else */
    for (int i = 0; i < walk->rows->term_count && threads == 1024; i++) {
        const struct term *term = &walk->rows->terms[i];
        if (term->is_needed && term->spans && term->kind == TERM_NODE)
            threads = 768;
    }
    if (threads == 1024 && walk->closed > 1 && walk->threads <= 256)
        threads = walk->loose ? 768 : 896; /* a few registers more for a second reduction */
    walk->min_blocks = threads / walk->threads > 0 && walk->ring != 1 ? threads / walk->threads : 1;
    if (walk->is_piped)
        walk->min_blocks = 1;
}

/* Clusters of 4 and 8 do not fill every group of multiprocessors: 30 and 15 of them fit on 132. No more blocks sum places
   than share the rows evenly, as each leaves sums of its own: 132 of 4096 rows would wait for 4. */
static void count_blocks(struct walk *walk, const struct device *device) {
    int64_t most = INT32_MAX, multiprocessors = device->cuda.multiprocessors;
    if (walk->is_persistent) {
        most = (walk->cluster <= 2 ? multiprocessors : multiprocessors - 12) / walk->cluster * walk->min_blocks;
        most = most > 1 ? most : 1;
    }
    walk->blocks = min64(walk->tiles * walk->parts, most);
    if (walk->column_totals && walk->blocks) {
        int64_t even = divide_up(walk->tiles, divide_up(walk->tiles, walk->blocks));
        walk->blocks = min64(walk->blocks, even);
    }
    if (walk->is_persistent && walk->loose && walk->blocks < walk->tiles) /* so that all rows of a block begin alike */
        walk->blocks -= walk->blocks % walk->run;
    walk->is_dependent = device->cuda.major >= 9;
    walk->lets_next = walk->is_dependent && walk->column_totals && !walk->ring ? LETS_WHEN_DONE : LETS_WHEN_BEGUN;
}

/* What the second cache is asked for ahead: rows before the launch before ends, where that hides its end, as blocks of
   few rows or of long ones end one by one; and where no more than two blocks are side by side, rows of blocks to come, as
   nobody else asks while one of them begins. */
static void ask_ahead(struct walk *walk, const struct device *device) {
    int64_t at_once = (int64_t)device->cuda.multiprocessors * walk->min_blocks / walk->cluster;
    if (!walk->steps || walk->is_columns || !can_ring(walk, device))
        return;
    if (walk->ring)
        walk->asks_early = true;
    else
        walk->asks_early = walk->tiles <= 2 * (walk->is_persistent ? walk->blocks : at_once);
    if (!walk->is_persistent && walk->last_pass >= 0 && walk->min_blocks <= 2)
        walk->ahead = at_once;
}

/* Each row's parts are few and rows are many: a warp or a few for each. */
void walk_for_joining(struct walk *walk, int64_t parts) {
    walk->is_columns = walk->is_whole = walk->is_persistent = false;
    walk->loose = walk->margin = walk->sure = 0;
    walk->run = walk->unroll = walk->min_blocks = 1;
    walk->steps = walk->ring = 0;
    walk->groups = walk_places(walk);
    walk->runs = rows_length(walk->rows);
    walk->team = power_above(divide_up(parts, 4), JOIN_THREADS);
    walk->team = walk->team < 32 ? 32 : walk->team;
    walk->threads = JOIN_THREADS;
    walk->across = walk->threads / walk->team;
    walk->tiles = divide_up(walk->groups, walk->across);
}

void walk_for_storing(struct walk *walk) { walk->min_blocks = (walk->unroll < 4 ? 512 : 768) / walk->threads; }

static void predict(struct walk *walk, const struct device *device) {
    int64_t blocks = walk->blocks * walk->cluster, multiprocessors = device->cuda.multiprocessors;
    double busy = 2 * (double)blocks / (double)multiprocessors; /* half of them keep memory busy */
    double share = walk->is_columns && walk->cluster > 1 ? SIDE_BY_SIDE_SHARE : 1;
    walk->seconds = LAUNCH_SECONDS * walk_kernel_count(walk) +
                    price_moving(bytes_moved(walk), device) / share / (busy > 0 && busy < 1 ? busy : 1);
}

/* Steps of loose rows in which every thread has a run, however many elements are loose. */
static int sure_steps(const struct walk *walk) {
    int64_t before = (int64_t)walk->team * walk->steps * (walk->cluster - 1); /* the last block's */
    int64_t runs = (walk->extents[walk->kept] - walk->margin - (walk->run - 1)) / walk->run - before;
    return walk->loose && runs > 0 && walk->groups == walk->tiles * walk->across ? (int)(runs / walk->team) : 0;
}

static void count_tiles(struct walk *walk) {
    walk->tiles = divide_up(walk->groups, walk->across);
    if (walk->loose && walk->column_totals) /* RUN rows are between those of teams */
        walk->tiles = divide_up(walk->groups, walk->across * walk->run) * walk->run;
    walk->parts = walk->store_parts = 1;
    walk->is_whole = walk->steps && !walk->loose && walk->runs == (int64_t)walk->steps * walk->team * walk->cluster &&
                     walk->groups == walk->tiles * walk->across;
    walk->sure = walk->steps ? sure_steps(walk) : 0;
}

/* Rows that are read once, where they fit. Those that lie side by side want their statistics in one pass when they go
   through shared memory, as streamed ones do. */
static bool place_resident(struct walk *walk, const struct device *device, bool must_stream) {
    if (walk->is_columns)
        return !walk->column_totals && (must_stream ? place_shared(walk, device) : place_columns(walk, device));
    return must_stream ? place_piped(walk, device) : place_rows(walk, device);
}

weftStatus_t walk_begin(struct walk *walk, const struct rows *rows) {
    memset(walk, 0, sizeof *walk);
    walk->rows = rows;
    walk->unroll = walk->cluster = 1;
    TRY(order_dims(walk));
    count_passes(walk);
    walk->run = run_length(walk);
    narrow_run(walk);
    walk->groups = walk->runs = 1;
    for (int i = 0; i < walk->rank; i++)
        *(i < walk->kept ? &walk->groups : &walk->runs) *= walk->extents[i];
    *(walk->is_columns ? &walk->groups : &walk->runs) /= walk->run;
    return WEFT_STATUS_SUCCESS;
}

int64_t walk_places(const struct walk *walk) { return rows_count(walk->rows) + walk->overlap; }

weftStatus_t walk_plan(struct walk *walk, const struct rows *rows, const struct device *device, bool must_stream) {
    TRY(walk_begin(walk, rows));
    loosen(walk);
    bool is_resident = walk->passes > 0 && place_resident(walk, device, must_stream) && totals_fit(walk);
    if (!is_resident && walk->loose && walk->column_totals) {
        TRY(walk_begin(walk, rows));
        is_resident = walk->passes > 0 && place_resident(walk, device, must_stream) && totals_fit(walk);
    }
    if (!is_resident) {
        let_overlap(walk);
        place_stream(walk, device);
    }
    while (!totals_fit(walk) && walk->across > 1) {
        walk->across /= 2;
        walk->threads /= 2;
    }
    if (!totals_fit(walk) || walk->threads % 32)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the totals of %d rows at a time do not fit in shared memory",
             walk->run);
    count_tiles(walk);
    allot_registers(walk, device);
    if (!walk->steps)
        cut_rows(walk, device);
    count_blocks(walk, device);
    ask_ahead(walk, device);
    predict(walk, device);
    return WEFT_STATUS_SUCCESS;
}
