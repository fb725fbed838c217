/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a row program: constants, arguments and printed functions in front of the file of their memory
   scheme. */
#include "engines/cuda/rows/emit.h"
#include "base/number.h"

#include <stdio.h>

/* Elements of a row that lie as far apart as SAMPLES of them would (core/reduce.cuh takes all), of which ROW_SAMPLES
   are taken: more are as many reads again. */
enum { SAMPLES = 16, ROW_SAMPLES = 4 };

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* The addresses at which the first part would begin that the others belong to, and the coordinates from which on they
   do. */
static void emit_parts(struct emitter *p, int k) {
    const struct operand *operand = operand_at(p, k);
    const struct concat_op *parts = operand->parts;
    const struct tensor *whole = p->rows->graph->values[operand->memory].tensor;
    int64_t before = 0;
    char name[32];
    for (int part = 0; part < parts->inputs.count; part++) {
        const struct tensor *tensor = parts->inputs.tensors[part];
        int64_t offset = -dtype_bytes(operand->type, before * whole->strides.at[concat_axis(parts)]);
        snprintf(name, sizeof name, "p%d_%d", k, part);
        emit_pointer(p->source, operand->type, graph_find_value(p->rows->graph, tensor), offset, name);
        before += tensor->dims.at[concat_axis(parts)];
        snprintf(name, sizeof name, "end%d_%d", k, part);
        emit_number(p->source, before, name);
    }
}

/* Strides 0 and, along the fast dim, 1 are text. */
static void emit_operand_fields(struct emitter *p, int k) {
    const struct operand *operand = operand_at(p, k);
    char name[32];
    snprintf(name, sizeof name, "p%d", k);
    if (operand->parts)
        emit_parts(p, k);
    else if (operand->memory >= 0 && !schedule_is_part(p->s, k))
        emit_pointer(p->source, operand->type, operand->memory, dtype_bytes(operand->type, operand->offset), name);
    else if (operand->memory == MEMORY_SCRATCH)
        emit_scratch(p->source, type_of(p, k), dtype_bytes(operand->type, operand->offset), name);
    for (int i = 0; i < p->s->nest.rank; i++) {
        snprintf(name, sizeof name, "s%d_%d", k, i);
        if (operand->strides[i] > 1 || (operand->strides[i] == 1 && i != schedule_fast_dim(p->s)))
            emit_number(p->source, operand->strides[i], name);
    }
    if (term_is_column_sum(rows_find(p->rows, operand->value))) {
        snprintf(name, sizeof name, "block%d", k);
        emit_number(p->source, row_space_length(&p->rows->space), name);
    }
}

/* The extent along which positions count, in runs. */
static int64_t extent_in_runs(const struct schedule *s, int dim) {
    return dim == schedule_fast_dim(s) ? s->nest.extents[dim] / s->vectors.width : s->nest.extents[dim];
}

/* Samples lie as far apart as the row's last dim allows. The sampled operand has strides 0 within the row, so the step
   is that of the one that reads the same memory. In elements. */
static int64_t sample_step(const struct schedule *s) {
    int last = s->nest.rank - 1, memory = s->nest.operands[s->rows->sampled].memory;
    int64_t step = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (s->nest.operands[k].memory == memory && s->nest.operands[k].strides[last] > step)
            step = s->nest.operands[k].strides[last];
    return s->nest.extents[last] / SAMPLES * step;
}

/* Fields of the arguments that all kernels of rows share; sizes are never text. */
static void emit_fields(struct emitter *p) {
    const struct schedule *s = p->s;
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {
        {"jobs", s->grid.tiles * p->stage->splits},
        {"strips", s->vectors.strips},
        {"vectors", s->vectors.per_row},
        {"rows", schedule_slots(s)},
        {"length", row_space_length(&p->rows->space)},
        {"splits", p->stage->splits},
    };
    char name[32];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        emit_number(p->source, numbers[i].number, numbers[i].name);
    if (p->rows->sampled >= 0)
        emit_number(p->source, sample_step(s), "sample_step");
    if (s->overlap.is_used) {
        emit_number(p->source, s->overlap.elements, "overlap");
        emit_number(p->source, s->overlap.last, "last_run");
    }
    /* Jobs are split by it into tile and split; so many tiles are never split. */
    emit_divisor(p->source, s->grid.tiles < INT32_MAX ? s->grid.tiles : 1, "tiles");
    emit_scratch(p->source, "char", p->stage->left >= 0 ? p->stage->left : 0, "left");
    for (int pass = 0; pass < p->stage->closed; pass++) {
        snprintf(name, sizeof name, "total%d", pass);
        emit_scratch(p->source, "char", p->stage->partials[pass], name);
        snprintf(name, sizeof name, "splits%d", pass);
        emit_number(p->source, p->stage->split_counts[pass], name);
    }
    for (int i = 0; i < s->nest.rank; i++) {
        snprintf(name, sizeof name, "extent%d", i);
        /* The slowest dim of each kind is what divisions leave. */
        if (i != 0 && i != s->nest.row_dims)
            emit_divisor(p->source, extent_in_runs(s, i), name);
    }
    for (int k = 0; k < p->rows->operand_count; k++)
        if (rows_is_located(p, k))
            emit_operand_fields(p, k);
}

/* The last pass of split rows, when all reductions are known. */
static bool stores_only(const struct stage *stage) { return stage->is_split && stage->left < 0; }

/* ---- Constants --------------------------------------------------------------------------------------------------- */

/* The kernels, by the scheme of their schedule; and the launch that joins splits. */
enum { JOIN = MEMORY_CHANNELS + 1 };

static const struct {
    const char *file, *entry;
} files[] = {
    [MEMORY_STREAMED] = {"rows/streamed.cuh", "rows_streamed"},
    [MEMORY_REGISTERS] = {"rows/registers.cuh", "rows_registers"},
    [MEMORY_PERSISTENT] = {"rows/persistent.cuh", "rows_persistent"},
    [MEMORY_STAGED] = {"rows/staged.cuh", "rows_staged"},
    [MEMORY_PIPELINED] = {"rows/pipelined.cuh", "rows_pipelined"},
    [MEMORY_COLUMNS] = {"rows/columns.cuh", "rows_columns"},
    [MEMORY_COLUMNS_SHARED] = {"rows/columns_shared.cuh", "rows_columns_shared"},
    [JOIN] = {"rows/join_splits.cuh", "rows_join_splits"},
};

/* Row of `files`. */
static int file_of(const struct schedule *s, const struct stage *stage) {
    return stage->joins ? JOIN : (int)s->memory.scheme;
}

/* Vectors of an operand in one stage of shared memory. */
static int64_t slot_vectors(const struct schedule *s) {
    int threads = s->memory.scheme == MEMORY_PIPELINED        ? 32 * s->memory.warps_per_group
                  : s->memory.scheme == MEMORY_COLUMNS_SHARED ? s->threads.block
                                                              : s->threads.group;
    return (int64_t)s->memory.steps * threads;
}

/* A constant is printed only for the kernels that name it: an unused one would make programs differ that are the
   same. */
static void emit_constants(struct emitter *p) {
    enum {
        STREAMED = 1 << MEMORY_STREAMED,
        REGISTERS = 1 << MEMORY_REGISTERS,
        PERSISTENT = 1 << MEMORY_PERSISTENT,
        STAGED = 1 << MEMORY_STAGED,
        PIPELINED = 1 << MEMORY_PIPELINED,
        COLUMNS = 1 << MEMORY_COLUMNS,
        SHARED = 1 << MEMORY_COLUMNS_SHARED,
        JOINING = 1 << JOIN,
        IN_SLOTS = STAGED | PIPELINED | SHARED,
        ANYWHERE = STREAMED | REGISTERS | PERSISTENT | STAGED, /* rows may begin anywhere */
        ON_CHIP = REGISTERS | PERSISTENT | IN_SLOTS | COLUMNS,
        ALL = ON_CHIP | STREAMED | JOINING,
    };
    const struct schedule *s = p->s;
    const struct stage *stage = p->stage;
    bool goes_on = stage->is_split && stage->closed > 0; /* from the end, which L2 still has */
    const struct {
        int files; /* that have it */
        const char *name;
        int64_t value;
    } constants[] = {
        {ALL, "WIDTH", s->vectors.width},
        {ALL, "COLUMNS", s->nest.is_columns},
        {ALL, "COLUMN_SUMS", s->passes.column_sums},
        {ALL, "VECTOR_STEP", goes_on ? -s->threads.group : s->threads.group},
        {ALL, "GROUP", s->threads.group},
        {ALL, "ACROSS", s->threads.across},
        {ALL, "THREADS", s->threads.block},
        {ALL, "TRIGGER", s->grid.trigger},
        {ON_CHIP & ~COLUMNS, "CLUSTER", s->threads.cluster},
        {ALL & ~JOINING, "MIN_BLOCKS", s->threads.min_blocks},
        {ALL & ~JOINING, "PASSES", stage->passes_end},
        {ON_CHIP, "STEPS", s->memory.steps},
        {ON_CHIP, "IS_WHOLE", s->memory.is_whole},
        {STREAMED | SHARED, "UNROLL", s->memory.unroll},
        {ANYWHERE, "UNALIGNED", s->unaligned.most},
        {ANYWHERE & ~STREAMED, "GUARANTEED", s->unaligned.guaranteed},
        {REGISTERS, "KEEPS_BROADCAST", s->memory.keeps_broadcast},
        {REGISTERS, "CONVERTS_AGAIN", s->memory.converts_again},
        {REGISTERS, "PREFETCH_DISTANCE", s->grid.l2_distance},
        {REGISTERS | PERSISTENT | STAGED | PIPELINED, "PREFETCHES_EARLY", s->grid.l2_early},
        {STAGED | PIPELINED, "STAGES", s->memory.stages},
        {STAGED, "STAGES_BEGIN", STAGES_BEGIN},
        {PIPELINED, "WARPS_PER_STAGE", s->memory.warps_per_group},
        {IN_SLOTS, "SLOT_VECTORS", slot_vectors(s)},
        {IN_SLOTS, "KEPT_BYTES", schedule_kept_bytes(s)},
        {STREAMED, "OVERLAPS", s->overlap.is_used},
        {STREAMED, "SEGMENT", s->threads.segment},
        {STREAMED, "IS_SPLIT", stage->is_split},
        {STREAMED, "IS_SINGLE",
         stores_only(stage) && stage->splits * s->threads.group * s->memory.unroll >= s->vectors.per_row},
        {STREAMED, "HAS_ROW_STORES", stage->has_row_stores},
        {STREAMED | JOINING, "CLOSED", stage->closed},
        {JOINING, "JOINED", stage->joined},
    };
    text_add(&p->source->constants,
             "#include \"core/async.cuh\"\n#include \"core/stream.cuh\"\n#include \"core/dependent_launch.cuh\"\n"
             "#include \"core/reduce.cuh\"\n\n");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (constants[i].files >> file_of(s, stage) & 1)
            emit_constant(p->source, constants[i].name, constants[i].value);
}

/* What not every program has, and the types; the row program of the library is read behind them. */
static void emit_types(struct emitter *p) {
    const struct schedule *s = p->s;
    if (s->unaligned.most)
        emit_constant(p->source, "MARGIN", s->unaligned.margin);
    if (p->rows->sampled >= 0)
        emit_constant(p->source, "SAMPLES", ROW_SAMPLES);
    text_add(&p->source->constants, "using position = %s;\n", s->vectors.per_row < INT32_MAX / 2 ? "int" : "i64");
    text_add(&p->source->constants, "using column_t = %s;\n\n#include \"rows/program.cuh\"\n",
             math_name(p->rows->follow.math));
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* What kernels have in front of them, but for their constants. In the order in which they use each other. */
static void emit_functions(struct emitter *p) {
    emit_fields(p);
    rows_emit_base(p);
    rows_emit_kept(p);
    rows_emit_row_numbers(p);
    rows_emit_columns(p);
    rows_emit_passes(p);
    rows_emit_row_stores(p);
}

/* One unsplit launch, for rows/channels.cuh. */
void rows_emit_functions(struct kernel_source *source, const struct schedule *s) {
    const struct stage stage = {
        .passes_end = s->passes.count, .splits = 1, .joined = -1, .has_row_stores = true, .left = -1};
    struct emitter p = {s, s->rows, &stage, source, &source->code};
    emit_functions(&p);
}

/* Prints one launch. On a copy of the schedule, since joins and stores change it. */
static weftStatus_t emit_launch(const struct schedule *planned, const struct stage *stage, struct cuda_step *state,
                                struct arena *arena) {
    struct schedule adapted = *planned, *s = &adapted;
    if (stage->joins)
        schedule_for_joining(s, planned->grid.splits);
    else if (stores_only(stage))
        schedule_for_storing(s);
    if (state->count == KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would take more than %d launches", KERNELS_MAX);
    struct kernel_source source;
    kernel_source_init(&source, s->rows->region);
    struct emitter p = {s, s->rows, stage, &source, &source.code};
    emit_constants(&p);
    emit_types(&p);
    emit_functions(&p);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    /* Persistent blocks take tile after tile, others one job each. */
    int64_t jobs = s->grid.tiles * stage->splits;
    int64_t most = schedule_is_persistent(s) ? s->grid.blocks : INT32_MAX / s->threads.cluster;
    kernel->grid[0] = (uint32_t)(min64(jobs, most) * s->threads.cluster);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = (uint32_t)s->threads.block;
    kernel->shared_bytes = (uint32_t)schedule_shared_bytes(s);
    kernel->cluster = s->threads.cluster > 1 ? (uint32_t)s->threads.cluster : 0;
    kernel->is_dependent = s->grid.is_dependent;
    int file = file_of(s, stage);
    return kernel_finish(&source, kernel, files[file].file, files[file].entry, arena);
}

/* Bytes from the start of the workspace. */
static int64_t take_scratch(int64_t *scratch_bytes, int64_t bytes) {
    int64_t at = *scratch_bytes;
    *scratch_bytes += round_up(bytes, 256);
    return at;
}

/* Joins what the splits left in a pass, where many blocks would. Later launches then find one partial result for each
   row, at `at`. */
static weftStatus_t emit_join(const struct schedule *s, struct stage *stage, int pass, int64_t at,
                              struct cuda_step *state, struct arena *arena) {
    struct stage join = *stage;
    /* Reads the splits' results of this pass, and leaves one for each row. */
    join.joins = true;
    join.joined = pass;
    join.is_split = false;
    join.splits = 1;
    join.closed = pass + 1;
    join.left = at;
    TRY(emit_launch(s, &join, state, arena));
    stage->partials[pass] = at;
    stage->split_counts[pass] = 1;
    return WEFT_STATUS_SUCCESS;
}

/* A launch for each pass that ends in reductions, and one behind them: it stores elements, or joins the last. Launches
   follow each other in one stream, so what one leaves the next finds. Passes after the first go from the end of a row
   to its beginning (VECTOR_STEP), which L2 still has. */
static weftStatus_t emit_split(const struct schedule *s, struct stage stage, struct cuda_step *state,
                               int64_t *scratch_bytes, struct arena *arena) {
    /* Of one split of all rows. */
    int64_t bytes = schedule_slots(s) * schedule_partial_bytes(s);
    stage.is_split = true;
    stage.has_row_stores = false;
    stage.splits = s->grid.splits;
    for (int pass = 0; pass < s->passes.closed; pass++) {
        /* The passes before this one have left partial results. */
        stage.closed = pass;
        stage.passes_end = pass + 1;
        stage.left = take_scratch(scratch_bytes, bytes * s->grid.splits);
        stage.partials[pass] = stage.left;
        stage.split_counts[pass] = s->grid.splits;
        TRY(emit_launch(s, &stage, state, arena));
        if (schedule_joins(s, pass))
            TRY(emit_join(s, &stage, pass, take_scratch(scratch_bytes, bytes), state, arena));
    }
    /* The launch behind the last reduction: elements are stored, by as many splits as that takes, or partial results
       end as numbers of rows. */
    stage.is_split = s->passes.storing >= s->passes.closed;
    stage.joins = !stage.is_split;
    stage.splits = stage.is_split ? s->grid.store_splits : 1;
    stage.closed = s->passes.closed;
    stage.passes_end = s->passes.closed + stage.is_split;
    stage.has_row_stores = true;
    stage.left = -1;
    return emit_launch(s, &stage, state, arena);
}

weftStatus_t rows_emit(const struct schedule *s, struct cuda_step *state, int64_t *scratch_bytes, struct arena *arena) {
    int64_t partials[TERMS_MAX], split_counts[TERMS_MAX];
    /* All passes in one launch. */
    const struct stage whole = {.passes_end = s->passes.count,
                                .splits = 1,
                                .joined = -1,
                                .has_row_stores = true,
                                .left = -1,
                                .partials = partials,
                                .split_counts = split_counts};
    /* No rows: nothing to launch. */
    if (s->vectors.strips == 0)
        return WEFT_STATUS_SUCCESS;
    if (s->grid.splits == 1)
        return emit_launch(s, &whole, state, arena);
    return emit_split(s, whole, state, scratch_bytes, arena);
}
