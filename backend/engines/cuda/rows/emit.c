/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the kernels of a row program: constants, arguments and generated functions, followed by the device file of the
   memory scheme. */
#include "engines/cuda/rows/emit.h"
#include "base/number.h"
#include "engines/cuda/core/index_type.h"

#include <stdio.h>

/* SAMPLES evenly spaced elements of a row are defined (core/reduce.cuh uses all of them), of which ROW_SAMPLES are used
   here, because every sample is an extra read. */
enum { SAMPLES = 16, ROW_SAMPLES = 4 };

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* Emits the start addresses of the first part as seen from the other parts, and the coordinates at which those
   begin. */
static void emit_parts(struct emitter *p, int k) {
    const struct operand *operand = operand_at(p, k);
    const struct concat_op *parts = operand->parts;
    const struct tensor *joined = p->rows->graph->values[operand->memory].tensor;
    int64_t before = 0;
    char name[32];
    for (int part = 0; part < parts->inputs.count; part++) {
        const struct tensor *tensor = parts->inputs.tensors[part];
        int64_t offset = -dtype_bytes(operand->type, before * joined->strides.at[concat_axis(parts)]);
        snprintf(name, sizeof name, "p%d_%d", k, part);
        emit_pointer(p->source, operand->type, graph_find_value(p->rows->graph, tensor), offset, name);
        before += tensor->dims.at[concat_axis(parts)];
        snprintf(name, sizeof name, "end%d_%d", k, part);
        emit_number(p->source, before, name);
    }
}

/* Strides 0 and, along the fast dim, 1 are constants in the source text. */
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

/* Extent of a dim in units that positions count: vectors along the fast dim. */
static int64_t extent_in_runs(const struct schedule *s, int dim) {
    return dim == schedule_fast_dim(s) ? s->nest.extents[dim] / s->vectors.width : s->nest.extents[dim];
}

/* Samples are spread over the row's last dim. The sampled operand has stride 0 within the row, so the
   step is taken from the operand that reads the same memory. In elements. */
static int64_t sample_step(const struct schedule *s) {
    int last = s->nest.rank - 1, memory = s->nest.operands[s->rows->sampled].memory;
    int64_t step = 0;
    for (int k = 0; k < s->rows->operand_count; k++)
        if (s->nest.operands[k].memory == memory && s->nest.operands[k].strides[last] > step)
            step = s->nest.operands[k].strides[last];
    return s->nest.extents[last] / SAMPLES * step;
}

/* Arguments that all row kernels share; sizes are never constants in the text. */
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
    /* Divisor that splits a job into tile and split; larger numbers of tiles are never split. */
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
        /* The slowest dim of each kind is what remains after the divisions. */
        if (i != 0 && i != s->nest.row_dims)
            emit_divisor(p->source, extent_in_runs(s, i), name);
    }
    for (int k = 0; k < p->rows->operand_count; k++)
        if (rows_is_located(p, k))
            emit_operand_fields(p, k);
}

/* True for the last pass of split rows, when all reductions are known. */
static bool stores_only(const struct stage *stage) { return stage->is_split && stage->left < 0; }

/* ---- Constants --------------------------------------------------------------------------------------------------- */

/* The kernels, indexed by memory scheme, and the launch that joins splits. */
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

/* Index into `files`. */
static int file_of(const struct schedule *s, const struct stage *stage) {
    return stage->is_join ? JOIN : (int)s->memory.scheme;
}

/* Vectors of one operand in one stage of shared memory. */
static int64_t slot_vectors(const struct schedule *s) {
    int threads = s->memory.scheme == MEMORY_PIPELINED        ? 32 * s->memory.warps_per_group
                  : s->memory.scheme == MEMORY_COLUMNS_SHARED ? s->threads.block
                                                              : s->threads.group;
    return (int64_t)s->memory.steps * threads;
}

/* A constant is emitted only for kernels that use it: an unused one would make identical programs differ. */
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
        ANYWHERE = STREAMED | REGISTERS | PERSISTENT | STAGED, /* rows may be unaligned */
        ON_CHIP = REGISTERS | PERSISTENT | IN_SLOTS | COLUMNS,
        ALL = ON_CHIP | STREAMED | JOINING,
    };
    const struct schedule *s = p->s;
    const struct stage *stage = p->stage;
    bool goes_on = stage->is_split && stage->closed > 0; /* starts at the end of the rows, which L2 still holds */
    const struct {
        int files; /* bit mask of the kernels that use it */
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
        {IN_SLOTS, "KEPT_BYTES", schedule_resident_bytes(s)},
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

/* Emits optional definitions and types; the device library's row program is included after them. */
static void emit_types(struct emitter *p) {
    const struct schedule *s = p->s;
    if (s->unaligned.most)
        emit_constant(p->source, "MARGIN", s->unaligned.margin);
    if (p->rows->sampled >= 0)
        emit_constant(p->source, "SAMPLES", ROW_SAMPLES);
    text_add(&p->source->constants, "using position = %s;\n",
             s->vectors.per_row < WEFT_INDEX32_MAX / 2 ? "int" : "i64");
    text_add(&p->source->constants, "using column_t = %s;\n\n#include \"rows/program.cuh\"\n",
             math_name(p->rows->follow.math));
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* Emits the source that precedes a kernel, except its constants, in the order of use. */
static void emit_functions(struct emitter *p) {
    emit_fields(p);
    rows_emit_base(p);
    rows_emit_kept(p);
    rows_emit_row_numbers(p);
    rows_emit_columns(p);
    rows_emit_passes(p);
    rows_emit_row_stores(p);
}

/* Emits a single unsplit launch, for rows/channels.cuh. */
void rows_emit_functions(struct kernel_source *source, const struct schedule *s) {
    const struct stage stage = {
        .passes_end = s->passes.count, .splits = 1, .joined = -1, .has_row_stores = true, .left = -1};
    struct emitter p = {s, s->rows, &stage, source, &source->code};
    emit_functions(&p);
}

/* Emits one launch. Works on a copy of the schedule, since joins and stores change it. */
static weftStatus_t emit_launch(const struct schedule *planned, const struct stage *stage, struct cuda_step *state,
                                struct arena *arena) {
    struct schedule adapted = *planned, *s = &adapted;
    if (stage->is_join)
        schedule_for_joining(s, planned->grid.splits);
    else if (stores_only(stage))
        schedule_for_storing(s);
    if (state->count == KERNELS_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the region would need more than %d launches", KERNELS_MAX);
    struct kernel_source source;
    kernel_source_init(&source, s->rows->region);
    struct emitter p = {s, s->rows, stage, &source, &source.code};
    emit_constants(&p);
    emit_types(&p);
    emit_functions(&p);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    /* Persistent blocks loop over tiles; other blocks take one job each. */
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

/* Offset in bytes from the start of the workspace. */
static int64_t take_scratch(int64_t *scratch_bytes, int64_t bytes) {
    int64_t at = *scratch_bytes;
    *scratch_bytes += round_up(bytes, 256);
    return at;
}

/* Emits a launch that combines the splits' partial results of a pass, so that the many blocks of later launches read
   only one per row, at offset `at`. */
static weftStatus_t emit_join(const struct schedule *s, struct stage *stage, int pass, int64_t at,
                              struct cuda_step *state, struct arena *arena) {
    struct stage join = *stage;
    /* Reads the splits' partial results of this pass and writes one per row. */
    join.is_join = true;
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

/* Emits one launch for each pass that ends in reductions, and a final one that stores elements or joins the last
   partial results. Launches of a stream run in order, so each sees what the previous one wrote. Passes after the first
   run from the end of a row to its beginning (VECTOR_STEP), because L2 still holds the end. */
static weftStatus_t emit_split(const struct schedule *s, struct stage stage, struct cuda_step *state,
                               int64_t *scratch_bytes, struct arena *arena) {
    /* Bytes of one split of all rows. */
    int64_t bytes = schedule_slots(s) * schedule_partial_bytes(s);
    stage.is_split = true;
    stage.has_row_stores = false;
    stage.splits = s->grid.splits;
    for (int pass = 0; pass < s->passes.closed; pass++) {
        /* Earlier passes have written their partial results. */
        stage.closed = pass;
        stage.passes_end = pass + 1;
        stage.left = take_scratch(scratch_bytes, bytes * s->grid.splits);
        stage.partials[pass] = stage.left;
        stage.split_counts[pass] = s->grid.splits;
        TRY(emit_launch(s, &stage, state, arena));
        if (schedule_joins(s, pass))
            TRY(emit_join(s, &stage, pass, take_scratch(scratch_bytes, bytes), state, arena));
    }
    /* The launch after the last reduction: it stores elements, with as many splits as that needs, or turns partial
       results into numbers of rows. */
    stage.is_split = s->passes.storing >= s->passes.closed;
    stage.is_join = !stage.is_split;
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
    const struct stage all_passes = {.passes_end = s->passes.count,
                                     .splits = 1,
                                     .joined = -1,
                                     .has_row_stores = true,
                                     .left = -1,
                                     .partials = partials,
                                     .split_counts = split_counts};
    /* Without rows, there is nothing to launch. */
    if (s->vectors.strips == 0)
        return WEFT_STATUS_SUCCESS;
    if (s->grid.splits == 1)
        return emit_launch(s, &all_passes, state, arena);
    return emit_split(s, all_passes, state, scratch_bytes, arena);
}
