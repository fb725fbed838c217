/* SPDX-License-Identifier: Apache-2.0 */
/* Random sequences of calls: tensors, operations and graphs of a few random formulas are created piece by piece,
   planned, saved, loaded, copied, run with their own and with overridden shapes, and destroyed, in any order. Between
   them there are calls that must be refused without side effects. An execution on valid memory succeeds, and its result
   is correct up to rounding; every other execution is refused. A round depends only on its seed: WEFT_TEST_SEED=7
   WEFT_TEST_ROUNDS=1000 build/asan/tests/test_sequences runs 1000 rounds from seed 7. With WEFT_DEVICE=cuda the plans
   run on a GPU. */
#include "formula.h"

enum { FORMULAS = 3, ENTRIES = 20, ACTIONS = 800, ROUNDS = 120 };
static const double TOLERANCE = 4e-6;

/* ---- State of a round -------------------------------------------------------------------------------------------- */

/* Descriptors of a formula's next graph; NULL: not created yet, or destroyed. */
struct parts {
    desc tensors[VALUES_MAX], ops[VALUES_MAX];
    bool tensor_is_done[VALUES_MAX], op_is_done[VALUES_MAX];
};

enum kind { NONE, GRAPH, PLAN, BLOB, PACK, KINDS };

struct entry {
    enum kind kind;
    int formula;
    struct shapes shapes; /* of a pack: the shapes of its memory */
    desc made;
    char *blob;
    int64_t blob_bytes;
    bool overrides; /* a pack that overrides all of its shapes */
    struct memory *memory;
    void *workspace;
    int64_t workspace_bytes;
};

static struct formula formulas[FORMULAS];
static struct parts all_parts[FORMULAS];
static struct entry entries[ENTRIES];
static weftHandle_t handle;
static bool on_gpu;

static weftHandle_t open_handle(void) {
    weftHandle_t opened = NULL;
    MUST(weftCreateForDevice(&opened, on_gpu ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU, 0));
    return opened;
}

/* ---- Log that is printed on failure ------------------------------------------------------------------------------ */

enum { NOTES = 16, NOTE_BYTES = 120 };
static char notes[NOTES][NOTE_BYTES];
static uint64_t round_seed, note_count;
static long long executions, refusals;

static void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(notes[note_count++ % NOTES], NOTE_BYTES, format, arguments);
    va_end(arguments);
}

static bool is_over;

static void tell_round(void) {
    if (is_over)
        return;
    printf("after");
    for (uint64_t i = note_count > NOTES ? note_count - NOTES : 0; i < note_count; i++)
        printf("\n  %s", notes[i % NOTES]);
    printf("\nlast error: %s\nagain: WEFT_TEST_SEED=%llu WEFT_TEST_ROUNDS=1\n", last_error(),
           (unsigned long long)round_seed);
    fflush(stdout);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* A call that must fail with an error message. */
static void must_fail(weftStatus_t status, weftStatus_t wanted, const char *what) {
    CHECK(status == wanted && *last_error(), "%s: expected %s, got %s: %s", what, weftGetErrorString(wanted),
          weftGetErrorString(status), last_error());
    refusals++;
}

/* ---- Device memory ----------------------------------------------------------------------------------------------- */

static bool is_on_device(const struct memory *m, int i) {
    return on_gpu && m->address[i] && m->formula->values[i].origin != BY_VALUE;
}

/* Address of each value for the plan: on a GPU in separate memory, at an odd multiple of the alignment like on the
   host. */
static void place_on_device(struct memory *m) {
    for (int i = 0; i < m->formula->count; i++) {
        size_t odd = (size_t)m->formula->values[i].alignment;
        m->on_device[i] = m->address[i];
        if (!is_on_device(m, i))
            continue;
        MUST(weftAllocate(handle, odd + m->bytes[i], &m->device_block[i]));
        m->on_device[i] = (char *)m->device_block[i] + odd;
    }
}

static struct memory *new_device_memory(const struct formula *f, const struct shapes *shapes) {
    struct memory *m = new_memory(f, shapes);
    place_on_device(m);
    return m;
}

static void free_device_memory(struct memory *m) {
    for (int i = 0; m && i < VALUES_MAX; i++)
        MUST(weftFree(handle, m->device_block[i]));
    free_memory(m);
}

static void fill_device_memory(struct memory *m) {
    fill_memory(m);
    for (int i = 0; i < m->formula->count; i++)
        if (is_on_device(m, i))
            MUST(weftCopy(handle, m->on_device[i], m->address[i], m->bytes[i], NULL));
}

static void check_device_memory(struct memory *m, const char *what) {
    for (int i = 0; i < m->formula->count; i++)
        if (is_on_device(m, i))
            MUST(weftCopy(handle, m->address[i], m->on_device[i], m->bytes[i], NULL));
    check_memory(m, TOLERANCE, what);
    executions++;
}

static void *new_workspace(int64_t bytes) {
    void *made = NULL;
    if (on_gpu)
        MUST(weftAllocate(handle, (size_t)bytes, &made));
    else if (bytes)
        made = new_block(64, (size_t)bytes);
    return made;
}

static void free_workspace(void *workspace) {
    if (on_gpu)
        MUST(weftFree(handle, workspace));
    else
        free(workspace);
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

static int name(const struct entry *e) { return (int)(e - entries); }

static void discard(struct entry *e) {
    if (e->kind != NONE)
        note("destroy %d", name(e));
    if (e->made)
        drop(e->made);
    free_device_memory(e->memory);
    free_workspace(e->workspace);
    free(e->blob);
    *e = (struct entry){0};
}

/* Returns a free entry for an object of a formula; replaces another one if necessary. */
static struct entry *new_entry(enum kind kind, int formula, const struct shapes *shapes) {
    struct entry *e = &entries[below(ENTRIES)];
    for (int i = 0; i < ENTRIES && e->kind != NONE; i++)
        e = &entries[(name(e) + 1) % ENTRIES];
    discard(e);
    *e = (struct entry){.kind = kind, .formula = formula, .shapes = *shapes};
    return e;
}

/* Returns NULL if no entry of this kind exists. */
static struct entry *find_any(enum kind kind) {
    int first = below(ENTRIES);
    for (int i = 0; i < ENTRIES; i++)
        if (entries[(first + i) % ENTRIES].kind == kind)
            return &entries[(first + i) % ENTRIES];
    return NULL;
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

enum layout { ROW_MAJOR, COLUMN_MAJOR, PADDED_ROWS, PADDED_COLUMNS, SPREAD, OF_ONE_ROW, OF_ONE_COLUMN, LAYOUTS };

static void choose_strides(int64_t strides[2], const struct value *v, const int64_t *extents) {
    int64_t rows = extents[v->extent[0]], columns = extents[v->extent[1]], gap = 1 + below(3);
    int64_t choices[LAYOUTS][2] = {[ROW_MAJOR] = {columns, 1},
                                   [COLUMN_MAJOR] = {1, rows},
                                   [PADDED_ROWS] = {columns + gap, 1},
                                   [PADDED_COLUMNS] = {1, rows + gap},
                                   [SPREAD] = {columns * gap + 1, gap},
                                   [OF_ONE_ROW] = {0, 1},
                                   [OF_ONE_COLUMN] = {1, 0}};
    int choice = one_in(2) ? ROW_MAJOR : below(is_computed(v) ? OF_ONE_ROW : LAYOUTS);
    for (int axis = 0; axis < 2; axis++)
        strides[axis] = is_number(v) ? 1 : choices[choice][axis];
}

static void choose_shapes(struct shapes *shapes, const struct formula *f) {
    choose_extents(shapes->extents);
    for (int i = 0; i < f->count; i++)
        if (has_memory(&f->values[i]))
            choose_strides(shapes->strides[i], &f->values[i], shapes->extents);
}

static bool same_shapes(const struct shapes *a, const struct shapes *b) { return !memcmp(a, b, sizeof *a); }

/* ---- Tensors and operations -------------------------------------------------------------------------------------- */

/* Tries an invalid extent; the valid ones follow. */
static void fail_first(desc tensor) {
    MUST(set_numbers(tensor, WEFT_ATTR_TENSOR_DIMENSIONS, 2, (int64_t[]){2, -3}));
    must_fail(weftBackendFinalize(tensor), WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "a negative extent");
}

static desc open_part(const struct formula *f, const struct value *v) {
    desc made = make(WEFT_BACKEND_TENSOR_DESCRIPTOR);
    int64_t dims[2] = {f->extents[v->extent[0]], f->extents[v->extent[1]]}, strides[2];
    choose_strides(strides, v, f->extents);
    MUST(set_number(made, WEFT_ATTR_TENSOR_UNIQUE_ID, v->uid));
    MUST(set_flag(made, WEFT_ATTR_TENSOR_IS_VIRTUAL, v->is_virtual));
    if (v->is_virtual)
        return made;
    MUST(set_enum(made, WEFT_ATTR_TENSOR_DATA_TYPE, WEFT_TYPE_DATA_TYPE,
                  v->is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT));
    MUST(set_number(made, WEFT_ATTR_TENSOR_BYTE_ALIGNMENT, v->alignment));
    if (v->origin == BY_VALUE)
        MUST(set_flag(made, WEFT_ATTR_TENSOR_IS_BY_VALUE, true));
    bool is_open = is_number(v) || (is_computed(v) && one_in(3));
    if (!is_open && one_in(6))
        fail_first(made);
    if (!is_open)
        MUST(set_numbers(made, WEFT_ATTR_TENSOR_DIMENSIONS, 2, dims));
    if (!is_open && below(3))
        MUST(set_numbers(made, WEFT_ATTR_TENSOR_STRIDES, 2, strides));
    return made;
}

static desc open_with(weftBackendDescriptorType_t kind, weftBackendAttributeName_t from, desc x,
                      weftBackendAttributeName_t to, desc y) {
    desc op = make(kind);
    bool backwards = one_in(2);
    MUST(set_held(op, backwards ? to : from, backwards ? y : x));
    MUST(set_held(op, backwards ? from : to, backwards ? x : y));
    return op;
}

static desc open_sum(desc x, desc y) {
    desc parameters = make(WEFT_BACKEND_REDUCTION_DESCRIPTOR);
    MUST(set_enum(parameters, WEFT_ATTR_REDUCTION_OPERATOR, WEFT_TYPE_REDUCTION_OPERATOR_TYPE, WEFT_REDUCE_TENSOR_ADD));
    MUST(weftBackendFinalize(parameters));
    desc op = open_with(WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, WEFT_ATTR_OPERATION_REDUCTION_XDESC, x,
                        WEFT_ATTR_OPERATION_REDUCTION_YDESC, y);
    MUST(set_held(op, WEFT_ATTR_OPERATION_REDUCTION_DESC, parameters));
    MUST(set_number(op, WEFT_ATTR_OPERATION_REDUCTION_DIMS, one_in(2) ? 1 : -1));
    drop(parameters);
    return op;
}

static desc open_transpose(desc x, desc y) {
    desc op = open_with(WEFT_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR, WEFT_ATTR_OPERATION_TRANSPOSE_XDESC, x,
                        WEFT_ATTR_OPERATION_TRANSPOSE_YDESC, y);
    MUST(set_numbers(op, WEFT_ATTR_OPERATION_TRANSPOSE_PERMUTATION, 2, (int64_t[]){1, 0}));
    return op;
}

static desc open_op(const struct value *v, desc x, desc b, desc y) {
    static const weftPointwiseMode_t modes[] = {
        [ADD] = WEFT_POINTWISE_ADD,       [SUB] = WEFT_POINTWISE_SUB,       [MUL] = WEFT_POINTWISE_MUL,
        [MAX] = WEFT_POINTWISE_MAX,       [NEG] = WEFT_POINTWISE_NEG,       [ABS] = WEFT_POINTWISE_ABS,
        [RELU] = WEFT_POINTWISE_RELU_FWD, [TANH] = WEFT_POINTWISE_TANH_FWD,
    };
    switch (v->origin) {
    case MATMUL:
        return open_matmul(x, b, y);
    case TRANSPOSE:
        return open_transpose(x, y);
    case SUM:
        return open_sum(x, y);
    case SOFTMAX:
        return open_with(WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, WEFT_ATTR_OPERATION_SOFTMAX_XDESC, x,
                         WEFT_ATTR_OPERATION_SOFTMAX_YDESC, y);
    default:
        return open_pointwise(modes[v->origin], x, b, y);
    }
}

static bool has_operands(const struct parts *parts, const struct value *v) {
    return parts->tensor_is_done[v->inputs[0]] && (v->inputs[1] < 0 || parts->tensor_is_done[v->inputs[1]]);
}

/* True if the operations that compute the operands are finalized. */
static bool has_producers(const struct parts *parts, const struct formula *f, const struct value *v) {
    for (int k = 0; k < 2; k++)
        if (v->inputs[k] >= 0 && is_computed(&f->values[v->inputs[k]]) && !parts->op_is_done[v->inputs[k]])
            return false;
    return true;
}

static void advance_tensor(struct parts *parts, const struct formula *f, int i) {
    const struct value *v = &f->values[i];
    if (!parts->tensors[i] && v->origin == CONSTANT) {
        parts->tensors[i] = constant(v->uid, (float)v->constant);
        parts->tensor_is_done[i] = true;
    } else if (!parts->tensors[i]) {
        parts->tensors[i] = open_part(f, v);
    } else {
        MUST(weftBackendFinalize(parts->tensors[i]));
        parts->tensor_is_done[i] = true;
    }
}

static void advance_op(struct parts *parts, const struct formula *f, int i) {
    const struct value *v = &f->values[i];
    desc b = v->inputs[1] >= 0 ? parts->tensors[v->inputs[1]] : NULL;
    if (!parts->ops[i] && has_operands(parts, v))
        parts->ops[i] = open_op(v, parts->tensors[v->inputs[0]], b, parts->tensors[i]);
    if (!parts->ops[i] || one_in(2))
        return;
    weftStatus_t status = weftBackendFinalize(parts->ops[i]);
    if (has_producers(parts, f, v))
        MUST(status);
    else if (status)
        must_fail(status, WEFT_STATUS_BAD_PARAM, "an operation on a tensor that has no dims yet");
    parts->op_is_done[i] = status == WEFT_STATUS_SUCCESS;
}

/* Makes one or a few calls that contribute to the formula's next graph. */
static void advance(int formula) {
    const struct formula *f = &formulas[formula];
    struct parts *parts = &all_parts[formula];
    int i = below(f->count);
    if (!is_part(&f->values[i]))
        return;
    if (!parts->tensor_is_done[i])
        advance_tensor(parts, f, i);
    else if (is_computed(&f->values[i]) && !parts->op_is_done[i])
        advance_op(parts, f, i);
}

/* Destroys a part, and all parts that depend on it. */
static void forget(int formula, int i) {
    const struct formula *f = &formulas[formula];
    struct parts *parts = &all_parts[formula];
    drop(parts->tensors[i]), drop(parts->ops[i]);
    parts->tensors[i] = parts->ops[i] = NULL;
    parts->tensor_is_done[i] = parts->op_is_done[i] = false;
    for (int k = i + 1; k < f->count; k++)
        if (f->values[k].inputs[0] == i || f->values[k].inputs[1] == i)
            forget(formula, k);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* Reads the given or inferred shape of each tensor that has memory. */
static void read_shapes(struct shapes *shapes, const struct formula *f, const struct parts *parts) {
    *shapes = (struct shapes){0};
    memcpy(shapes->extents, f->extents, sizeof f->extents);
    for (int i = 0; i < f->count; i++) {
        const struct value *v = &f->values[i];
        if (!has_memory(v))
            continue;
        int64_t count, *dims = get_list(parts->tensors[i], WEFT_ATTR_TENSOR_DIMENSIONS, WEFT_TYPE_INT64, 8, &count);
        CHECK(count == 2 - is_number(v) && dims[0] == f->extents[v->extent[0]] &&
                  dims[count - 1] == f->extents[v->extent[1]],
              "value %d: dims %d x %d", i, (int)dims[0], (int)dims[count - 1]);
        int64_t *strides = get_list(parts->tensors[i], WEFT_ATTR_TENSOR_STRIDES, WEFT_TYPE_INT64, 8, &count);
        shapes->strides[i][0] = strides[0], shapes->strides[i][1] = strides[count - 1];
        free(dims), free(strides);
    }
}

static bool list_ops(desc *list, int *count, int formula) {
    const struct formula *f = &formulas[formula];
    *count = 0;
    for (int i = 0; i < f->count; i++) {
        if (!is_computed(&f->values[i]))
            continue;
        if (!all_parts[formula].op_is_done[i])
            return false;
        int at = below(++*count);
        list[*count - 1] = list[at];
        list[at] = all_parts[formula].ops[i];
    }
    return *count > 0;
}

static void make_graph(int formula) {
    desc list[VALUES_MAX];
    struct shapes shapes;
    int count;
    if (!list_ops(list, &count, formula))
        return;
    read_shapes(&shapes, &formulas[formula], &all_parts[formula]);
    struct entry *e = new_entry(GRAPH, formula, &shapes);
    e->made = open_graph(count, list);
    if (one_in(2))
        MUST(weftBackendSetAttribute(e->made, WEFT_ATTR_OPERATIONGRAPH_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(weftBackendFinalize(e->made));
    note("%d is a graph of formula %d, %d operations", name(e), formula, count);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static desc advised_config(desc graph) {
    desc results[64], heuristics = make(WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t count;
    MUST(set_held(heuristics, WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
    MUST(set_enum(heuristics, WEFT_ATTR_ENGINEHEUR_MODE, WEFT_TYPE_HEUR_MODE, WEFT_HEUR_MODE_A));
    MUST(weftBackendFinalize(heuristics));
    for (int i = 0; i < 64; i++)
        results[i] = make(WEFT_BACKEND_ENGINECFG_DESCRIPTOR);
    MUST(weftBackendGetAttribute(heuristics, WEFT_ATTR_ENGINEHEUR_RESULTS, WEFT_TYPE_BACKEND_DESCRIPTOR, 64, &count,
                                 results));
    int kept = below((int)count);
    for (int i = 0; i < 64; i++)
        if (i != kept)
            drop(results[i]);
    drop(heuristics);
    return results[kept];
}

static desc open_config_plan(desc config) {
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    drop(config);
    return plan;
}

static desc open_any_plan(desc graph) {
    if (one_in(3))
        return open_config_plan(advised_config(graph));
    int64_t first = first_cpu_index(graph), all = reference_index(graph) + 1;
    if (one_in(2))
        return open_plan(graph,
                         on_gpu ? 0 : first + below((int)(all - first))); /* other GPU engines may decline the graph */
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    MUST(set_held(plan, WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT, graph));
    return plan;
}

static void make_plan(struct entry *graph) {
    struct entry from = *graph, *e = NULL;
    desc plan = open_any_plan(from.made);
    if (one_in(2))
        MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle));
    MUST(weftBackendFinalize(plan));
    e = new_entry(PLAN, from.formula, &from.shapes);
    e->made = plan;
    note("%d is a plan of graph %d", name(e), name(graph));
}

static desc copied(desc from, weftBackendAttributeName_t attribute, weftBackendDescriptorType_t kind) {
    desc made = make(kind);
    MUST(weftBackendGetAttribute(from, attribute, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, NULL, &made));
    return made;
}

/* The graph or configuration that is read from a plan works like the one the plan was built from. */
static void copy_from_plan(struct entry *plan) {
    struct entry from = *plan;
    desc config = copied(from.made, WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, WEFT_BACKEND_ENGINECFG_DESCRIPTOR);
    struct entry *e = new_entry(one_in(2) ? PLAN : GRAPH, from.formula, &from.shapes);
    note("%d is copied from plan %d", name(e), name(plan));
    if (e->kind == PLAN) {
        e->made = finalized(open_config_plan(config));
        return;
    }
    desc engine = copied(config, WEFT_ATTR_ENGINECFG_ENGINE, WEFT_BACKEND_ENGINE_DESCRIPTOR);
    e->made = copied(engine, WEFT_ATTR_ENGINE_OPERATION_GRAPH, WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    drop(config), drop(engine);
}

static void save(struct entry *plan) {
    int64_t bytes;
    char *blob = get_text(plan->made, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes);
    struct entry from = *plan, *e = new_entry(BLOB, from.formula, &from.shapes);
    e->blob = blob, e->blob_bytes = bytes;
    note("%d is plan %d, saved", name(e), name(plan));
}

static void set_blob(desc plan, int64_t bytes, const char *blob) {
    MUST(weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, bytes, blob));
}

/* Sometimes a damaged blob is loaded first. */
static void load(struct entry *blob) {
    struct entry from = *blob;
    desc plan = make(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (one_in(4)) {
        int64_t at = 16 + below((int)from.blob_bytes - 16);
        from.blob[at] ^= 4;
        set_blob(plan, from.blob_bytes, from.blob);
        must_fail(weftBackendFinalize(plan), WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT, "a damaged plan");
        from.blob[at] ^= 4;
    }
    set_blob(plan, from.blob_bytes, from.blob);
    MUST(weftBackendFinalize(plan));
    struct entry *e = new_entry(PLAN, from.formula, &from.shapes);
    e->made = plan;
    note("%d is plan %d, loaded", name(e), name(blob));
}

/* ---- Packs ------------------------------------------------------------------------------------------------------- */

static desc open_memory_pack(const struct memory *m) {
    int64_t uids[VALUES_MAX], count = 0;
    void *pointers[VALUES_MAX];
    for (int i = 0; i < m->formula->count; i++) {
        if (!m->address[i])
            continue;
        int at = below((int)++count);
        uids[count - 1] = uids[at], pointers[count - 1] = pointers[at];
        uids[at] = m->formula->values[i].uid, pointers[at] = m->on_device[i];
    }
    return open_pack(count, uids, pointers);
}

static void set_overrides(desc pack, const struct memory *m) {
    int64_t uids[VALUES_MAX], dims[2 * VALUES_MAX], strides[2 * VALUES_MAX], count = 0;
    for (int i = 0; i < m->formula->count; i++) {
        const struct value *v = &m->formula->values[i];
        if (!m->address[i] || is_number(v))
            continue;
        for (int axis = 0; axis < 2; axis++) {
            dims[2 * count + axis] = m->shapes.extents[v->extent[axis]];
            strides[2 * count + axis] = m->shapes.strides[i][axis];
        }
        uids[count++] = v->uid;
    }
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS, count, uids));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, 2 * count, dims));
    MUST(set_numbers(pack, WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES, 2 * count, strides));
}

static desc open_pack_of(const struct entry *e) {
    desc pack = open_memory_pack(e->memory);
    if (e->overrides)
        set_overrides(pack, e->memory);
    return pack;
}

static int64_t workspace_for(desc plan, desc pack) {
    size_t bytes = SIZE_MAX;
    MUST(weftGetExecutionPlanWorkspaceSize(handle, plan, pack, &bytes));
    return (int64_t)bytes;
}

/* Allocates memory for a plan, with its own shapes or with overrides, and a workspace of exactly the required size. */
static void make_pack(struct entry *plan) {
    struct entry from = *plan, e = {.kind = PACK, .formula = from.formula, .shapes = from.shapes};
    const struct formula *f = &formulas[from.formula];
    e.overrides = one_in(2);
    if (e.overrides && below(4))
        choose_shapes(&e.shapes, f);
    e.memory = new_device_memory(f, &e.shapes);
    desc bare = finalized(open_pack_of(&e));
    e.workspace_bytes = workspace_for(from.made, bare);
    drop(bare);
    e.workspace = new_workspace(e.workspace_bytes);
    e.made = open_pack_of(&e);
    MUST(set_workspace(e.made, e.workspace));
    MUST(set_number(e.made, WEFT_ATTR_VARIANT_PACK_WORKSPACE_SIZE_EXT, e.workspace_bytes));
    MUST(weftBackendFinalize(e.made));
    struct entry *kept = new_entry(PACK, from.formula, &e.shapes);
    *kept = e;
    note("%d is a pack for plan %d%s", name(kept), name(plan), e.overrides ? ", with other shapes" : "");
}

static void run_fitting(struct entry *plan, struct entry *pack) {
    int64_t needed = workspace_for(plan->made, pack->made);
    note("run plan %d on pack %d, with %d of %d bytes", name(plan), name(pack), (int)pack->workspace_bytes,
         (int)needed);
    if (needed > pack->workspace_bytes) {
        must_fail(weftBackendExecute(handle, plan->made, pack->made),
                  pack->workspace ? WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT : WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                  "a workspace that is too small");
        return;
    }
    fill_device_memory(pack->memory);
    MUST(weftBackendExecute(handle, plan->made, pack->made));
    check_device_memory(pack->memory, "pack");
}

/* Runs a plan with a pack of its own formula, or of another formula, whose uids it does not have. */
static void run_pack(struct entry *pack) {
    struct entry *plan = find_any(PLAN);
    if (!plan)
        return;
    if (plan->formula != pack->formula)
        must_fail(weftBackendExecute(handle, plan->made, pack->made), WEFT_STATUS_BAD_PARAM, "a pack of another graph");
    else if (pack->overrides || same_shapes(&plan->shapes, &pack->shapes))
        run_fitting(plan, pack);
}

/* ---- Flat executions --------------------------------------------------------------------------------------------- */

/* Lists the value of each slot of a plan. */
static int64_t list_slots(int *values, const struct entry *plan) {
    const struct formula *f = &formulas[plan->formula];
    int64_t count,
        *uids = get_list(plan->made, WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT, WEFT_TYPE_INT64, 8, &count);
    for (int64_t s = 0; s < count; s++)
        for (int i = 0; i < f->count; i++)
            if (is_part(&f->values[i]) && f->values[i].uid == uids[s])
                values[s] = i;
    free(uids);
    return count;
}

/* Aliases an output with an input of the same size. The plan decides whether that is allowed. */
static bool lay_over(struct memory *m) {
    const struct value *values = m->formula->values;
    int in = below(m->formula->count), out = below(m->formula->count);
    bool fit = m->address[in] && m->address[out] && values[in].origin == MEMORY && is_computed(&values[out]);
    if (!fit || m->bytes[in] != m->bytes[out] || !m->bytes[in] || values[in].alignment < values[out].alignment)
        return false;
    m->address[out] = m->address[in], m->on_device[out] = m->on_device[in];
    m->is_taken[in] = true;
    return true;
}

static void run_badly(const struct entry *plan, int64_t count, const uint64_t *addresses, const int *slots,
                      const struct memory *m, void *workspace) {
    uint64_t bad[VALUES_MAX];
    int at = below((int)count), value = slots[at];
    if (!m->bytes[value])
        return;
    memcpy(bad, addresses, (size_t)count * sizeof *bad);
    bad[at] = 0;
    must_fail(weftExecute(plan->made, count, bad, workspace, NULL), WEFT_STATUS_BAD_PARAM_NULL_POINTER, "no memory");
    bad[at] = addresses[at] + 1;
    if (m->formula->values[value].origin != BY_VALUE)
        must_fail(weftExecute(plan->made, count, bad, workspace, NULL), WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                  "memory that is not aligned");
    must_fail(weftExecute(plan->made, count - 1, addresses, workspace, NULL), WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
              "a pointer less");
}

static void run_flat(struct entry *plan) {
    struct memory *m = new_device_memory(&formulas[plan->formula], &plan->shapes);
    int slots[VALUES_MAX];
    uint64_t addresses[VALUES_MAX] = {0};
    int64_t count = list_slots(slots, plan), bytes = get_number(plan->made, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    void *workspace = new_workspace(bytes);
    bool in_place = one_in(3) && lay_over(m);
    note("run plan %d%s", name(plan), in_place ? ", in place" : "");
    for (int64_t s = 0; s < count; s++)
        addresses[s] = m->bytes[slots[s]] || one_in(2) ? (uintptr_t)m->on_device[slots[s]] : 0;
    if (one_in(4))
        run_badly(plan, count, addresses, slots, m, workspace);
    fill_device_memory(m);
    weftStatus_t status = weftExecute(plan->made, count, addresses, workspace, NULL);
    if (in_place && status)
        must_fail(status, WEFT_STATUS_BAD_PARAM, "in place");
    else
        MUST(status);
    if (!status)
        check_device_memory(m, in_place ? "in place" : "flat");
    free_device_memory(m), free_workspace(workspace);
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static void act_on_plan(struct entry *plan) {
    switch (below(6)) {
    case 0:
        return save(plan);
    case 1:
        return make_pack(plan);
    case 2:
        return copy_from_plan(plan);
    case 3:
        must_fail(set_number(plan->made, WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT, 0),
                  WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT, "a change of a plan");
        return;
    default:
        return run_flat(plan);
    }
}

static void act_on(struct entry *e) {
    void (*const actions[KINDS])(struct entry *) = {
        [GRAPH] = make_plan, [PLAN] = act_on_plan, [BLOB] = load, [PACK] = run_pack};
    if (e->kind != NONE)
        actions[e->kind](e);
}

/* Existing descriptors keep their reference to the old handle. */
static void change_handle(void) {
    MUST(weftDestroy(handle));
    handle = open_handle();
    note("another handle");
}

static void act(void) {
    int choice = below(24), formula = below(FORMULAS);
    struct entry *e = &entries[below(ENTRIES)];
    if (choice < 6)
        for (int steps = below(2 * formulas[formula].count); steps > 0; steps--)
            advance(formula);
    else if (choice < 9)
        make_graph(formula);
    else if (choice == 9)
        forget(formula, below(formulas[formula].count));
    else if (choice == 10)
        discard(e);
    else if (choice == 11 && one_in(4))
        change_handle();
    else
        act_on(e);
}

static void run_round(uint64_t seed) {
    random_state = round_seed = seed;
    note_count = 0;
    handle = open_handle();
    for (int i = 0; i < FORMULAS; i++)
        make_formula(&formulas[i], i + 1);
    for (int i = 0; i < ACTIONS && !harness_failures; i++)
        act();
    for (int i = 0; i < FORMULAS; i++)
        for (int k = 0; k < formulas[i].count; k++)
            forget(i, k);
    for (int left = ENTRIES; left > 0; left--)
        discard(&entries[(int)(seed % ENTRIES + (uint64_t)left * 7) % ENTRIES]);
    MUST(weftDestroy(handle));
}

static void run_rounds(uint64_t seed, int count) {
    for (int i = 0; i < count && !harness_failures; i++)
        run_round(seed + (uint64_t)i);
}

int main(void) {
    const char *seed = getenv("WEFT_TEST_SEED"), *rounds = getenv("WEFT_TEST_ROUNDS");
    int count = rounds ? atoi(rounds) : ROUNDS;
    const char *device = getenv("WEFT_DEVICE");
    on_gpu = device && !strncmp(device, "cuda", 4);
    atexit(tell_round);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(tell_round);
    run_rounds(seed ? strtoull(seed, NULL, 10) : 1, count);
    printf("%lld executions, %lld refusals\n", executions, refusals);
    CHECK(executions > 10 * count && refusals > count, "%d rounds do too little", count);
    is_over = !harness_failures;
    return harness_end();
}
