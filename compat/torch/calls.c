/* SPDX-License-Identifier: Apache-2.0 */
/* Fast path for the operators of weft.torch. Python implements the semantics of a call; a call that resembles an
   earlier one runs here: its plan is looked up by a key, torch allocates the results, and the plan runs. Everything
   else is left to Python. All state is global and guarded by the interpreter's lock. */
#include "torch/calls.h"
#include "torch/key.h"
#include "torch/workspace.h"
#include "weft/weft.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MAX = 256, BUCKETS = 4096, PROBES = 8 };

/* Functions that torch provides with the first call. */
static struct {
    struct object *flags;        /* tuple of functions: settings on which GPU plans depend */
    struct object *current_gpu;  /* function that returns the ordinal */
    struct object *stream;       /* function that maps an ordinal to the address of the current stream */
    struct object *no_arguments; /* the empty tuple */
} callbacks;

static int64_t hits; /* calls whose plan was found here */

/* ---- A plan with everything that an execution needs ---- */

struct prepared {
    struct object *arguments; /* tuple that owns the objects below */
    weftBackendDescriptor_t plan;
    int slot_count, result_count;
    int places[SLOTS_MAX];    /* per slot: index of its argument, or ~i for result i */
    struct object *results;   /* tuple: arguments of `allocate`, or None */
    struct object *allocate;  /* function that creates a tensor, on the current GPU if on a GPU */
    struct object *workspace; /* None; on a GPU arguments of `allocate`, else the number of bytes */
    size_t workspace_bytes;   /* on the CPU */
    struct object *ordinal;   /* tuple with the ordinal of the GPU; None: the CPU */
    long long ordinal_number;
};

static const char prepared_name[] = "weft.prepared", operator_name[] = "weft.operator";

static void end_prepared(struct object *capsule) {
    struct prepared *prepared = python.of_capsule(capsule, prepared_name);
    python.release(prepared->arguments);
    free(prepared);
}

static bool read_places(struct prepared *out, struct object *places) {
    intptr_t count = python.tuple_count(places);
    if (count > SLOTS_MAX)
        return false;
    for (intptr_t i = 0; i < count; i++)
        out->places[i] = (int)python.to_int(python.get_of_tuple(places, i));
    out->slot_count = (int)count;
    return true;
}

static struct object *none(void) {
    python.retain(python.none);
    return python.none;
}

/* prepare(plan, places, results, allocate, workspace, ordinal, owner): returns a capsule, or None if there are too many
   slots. plan: its address. owner: keeps the plan alive. The others are described in struct prepared. */
static struct object *prepare(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)named;
    struct prepared *created = calloc(1, sizeof *created);
    if (!created || !read_places(created, python.get_of_tuple(arguments, 1))) {
        free(created);
        return none();
    }
    created->plan = (weftBackendDescriptor_t)(uintptr_t)python.to_int(python.get_of_tuple(arguments, 0));
    created->results = python.get_of_tuple(arguments, 2);
    created->result_count = (int)python.tuple_count(created->results);
    created->allocate = python.get_of_tuple(arguments, 3);
    created->workspace = python.get_of_tuple(arguments, 4);
    created->ordinal = python.get_of_tuple(arguments, 5);
    if (created->ordinal != python.none)
        created->ordinal_number = python.to_int(python.get_of_tuple(created->ordinal, 0));
    else if (created->workspace != python.none)
        created->workspace_bytes = (size_t)python.to_int(created->workspace);
    python.retain(created->arguments = arguments);
    return python.new_capsule(created, prepared_name, end_prepared);
}

/* ---- Execution ---- */

/* State of an execution. */
struct run {
    uint64_t pointers[SLOTS_MAX];
    struct object *results; /* tuple */
    struct object *held;    /* workspace, or NULL */
    void *workspace, *stream;
};

/* Calls a function that returns a number; false if it raised an exception. */
static bool call_for_int(long long *out, struct object *called, struct object *arguments) {
    struct object *answer = python.call(called, arguments, NULL);
    if (!answer)
        return false;
    *out = python.to_int(answer);
    python.release(answer);
    return true;
}

static bool allocate_results(struct run *run, const struct prepared *plan) {
    run->results = python.new_tuple(plan->result_count);
    for (int i = 0; run->results && i < plan->result_count; i++) {
        struct object *how = python.get_of_tuple(plan->results, i);
        struct object *created = how == python.none ? none() : python.call(plan->allocate, how, NULL);
        if (!created)
            return false;
        python.set_of_tuple(run->results, i, created);
    }
    return run->results != NULL;
}

static bool find_workspace(struct run *run, const struct prepared *plan) {
    if (plan->workspace == python.none)
        return true;
    if (plan->ordinal == python.none)
        return (run->workspace = workspace_of_thread(plan->workspace_bytes)) != NULL;
    run->held = python.call(plan->allocate, plan->workspace, NULL);
    return run->held && !torch.get_data(tensor_of(run->held), &run->workspace);
}

static bool find_stream(struct run *run, const struct prepared *plan) {
    long long stream = 0;
    bool is_found = plan->ordinal == python.none || call_for_int(&stream, callbacks.stream, plan->ordinal);
    run->stream = (void *)(uintptr_t)stream;
    return is_found;
}

/* Collects the addresses of arguments and results; false if an argument is not a tensor. */
static bool find_pointers(struct run *run, const struct prepared *plan, struct object *arguments) {
    intptr_t count = python.tuple_count(arguments);
    for (int i = 0; i < plan->slot_count; i++) {
        int source = plan->places[i];
        if (source >= count)
            return false;
        struct object *value =
            source >= 0 ? python.get_of_tuple(arguments, source) : python.get_of_tuple(run->results, ~source);
        void *data;
        if (!is_tensor(value) || torch.get_data(tensor_of(value), &data))
            return false;
        run->pointers[i] = (uint64_t)(uintptr_t)data;
    }
    return true;
}

static bool is_on_current_gpu(const struct prepared *plan) {
    long long current;
    return plan->ordinal == python.none ||
           (call_for_int(&current, callbacks.current_gpu, callbacks.no_arguments) && current == plan->ordinal_number);
}

/* Releases the interpreter's lock, because on the CPU most of the time is spent here. */
static bool execute(const struct run *run, const struct prepared *plan) {
    void *thread = python.unlock();
    weftStatus_t status = weftExecute(plan->plan, plan->slot_count, run->pointers, run->workspace, run->stream);
    python.lock(thread);
    return status == WEFT_STATUS_SUCCESS;
}

static void release(struct object *value) {
    if (value)
        python.release(value);
}

/* A single result is returned as it is, several as a tuple. */
static struct object *return_results(struct run *run, const struct prepared *plan) {
    struct object *result = run->results;
    if (plan->result_count == 1) {
        result = python.get_of_tuple(run->results, 0);
        python.retain(result);
        python.release(run->results);
    }
    run->results = NULL;
    return result;
}

/* Returns the results. NULL: Python raised an exception, or, without one, the fast path does not apply and nothing was
   enqueued. */
static struct object *run_prepared(const struct prepared *plan, struct object *arguments) {
    struct run run;
    run.results = run.held = NULL, run.workspace = NULL;
    bool is_done = is_on_current_gpu(plan) && allocate_results(&run, plan) && find_pointers(&run, plan, arguments) &&
                   find_workspace(&run, plan) && find_stream(&run, plan) && execute(&run, plan);
    struct object *results = is_done ? return_results(&run, plan) : NULL;
    release(run.results);
    release(run.held); /* torch's allocator reuses it for later work on the stream */
    return results;
}

/* ---- Plan lookup ---- */

struct entry {
    struct object *prepared; /* result of the operator's `find` */
    uint64_t hash;
    int count;
    uint64_t words[]; /* the first one is the operator's `find`; the reference ensures that its address is not reused */
};

static struct entry *table[BUCKETS];

static struct entry *find_entry(const struct key *key) {
    for (int i = 0; i < PROBES; i++) {
        struct entry *each = table[(key->hash + (uint64_t)i) % BUCKETS];
        if (each && each->hash == key->hash && each->count == key->count &&
            !memcmp(each->words, key->words, (size_t)key->count * 8))
            return each;
    }
    return NULL;
}

static struct object *find_of(const uint64_t *words) { return (struct object *)(uintptr_t)words[0]; }

/* Releasing may run Python code that calls operators, so the table is updated first. */
static void replace_entry(struct entry **slot, struct entry *with) {
    struct entry *old = *slot;
    *slot = with;
    if (!old)
        return;
    python.release(old->prepared);
    python.release(find_of(old->words));
    free(old);
}

/* Stores the result for a key. If all its buckets are taken, it replaces another entry. */
static void insert_entry(const struct key *key, struct object *prepared) {
    size_t bytes = (size_t)key->count * 8;
    struct entry *created = malloc(sizeof *created + bytes), **slot = &table[key->hash % BUCKETS];
    if (!created)
        return;
    created->hash = key->hash, created->count = key->count;
    memcpy(created->words, key->words, bytes);
    python.retain(created->prepared = prepared);
    python.retain(find_of(created->words));
    for (int i = PROBES - 1; i >= 0; i--)
        if (!table[(key->hash + (uint64_t)i) % BUCKETS])
            slot = &table[(key->hash + (uint64_t)i) % BUCKETS];
    replace_entry(slot, created);
}

/* Removes the entries of an operator's `find`, or all if it is NULL. */
static void forget_of(const struct object *find) {
    for (int i = 0; i < BUCKETS; i++)
        if (table[i] && (!find || find_of(table[i]->words) == find))
            replace_entry(&table[i], NULL);
}

/* forget(): removes all entries, after plans were cleared. */
static struct object *forget(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)arguments, (void)named;
    forget_of(NULL);
    return none();
}

/* found(): number of calls whose plan was found here. */
static struct object *found(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)arguments, (void)named;
    return python.new_int(hits);
}

/* ---- Operators ---- */

struct operator {
    struct object *arguments;
    /* Function of a call's arguments that returns the result of prepare(), a function that serves the call, or None. */
    struct object *find;
    struct object *slow; /* the same call in Python, for everything that is not served here */
    int64_t served;      /* calls that ran here */
};

static void end_operator(struct object *capsule) {
    struct operator *operator = python.of_capsule(capsule, operator_name);
    forget_of(operator->find);
    python.release(operator->arguments);
    free(operator);
}

static bool add_flags(struct key *key) {
    intptr_t count = python.tuple_count(callbacks.flags);
    uint64_t bits = 0;
    for (intptr_t i = 0; i < count; i++) {
        struct object *flag = python.call(python.get_of_tuple(callbacks.flags, i), callbacks.no_arguments, NULL);
        if (!flag)
            return false;
        bits |= (uint64_t)(flag == python.true_) << i;
        python.release(flag);
    }
    return key_add_word(key, bits);
}

static bool make_key(struct key *key, const struct operator *operator, struct object *arguments, struct object *named) {
    key->count = 0, key->is_on_gpu = false;
    intptr_t count = python.tuple_count(arguments), position = 0;
    struct object *name, *value;
    bool fits = key_add_word(key, (uint64_t)(uintptr_t)operator->find);
    for (intptr_t i = 0; fits && i < count; i++)
        fits = key_add(key, python.get_of_tuple(arguments, i));
    while (fits && named && python.dict_next(named, &position, &name, &value))
        fits = key_add_text(key, name) && key_add(key, value);
    fits = fits && (!key->is_on_gpu || add_flags(key));
    if (fits)
        key_finish(key);
    return fits;
}

/* The result for a key, as a new reference; NULL if Python raised an exception. */
static struct object *find_prepared(const struct key *key, const struct operator *operator, struct object *arguments,
                                    struct object *named) {
    struct entry *entry = find_entry(key);
    if (entry) {
        hits += entry->prepared->type == python.capsule;
        python.retain(entry->prepared);
        return entry->prepared;
    }
    struct object *prepared = python.call(operator->find, arguments, named);
    if (prepared)
        insert_entry(key, prepared);
    return prepared;
}

/* Returns the results. NULL: Python raised an exception, or, without one, the fast path does not apply. */
static struct object *call_found(struct operator *operator, struct object *prepared, struct object *arguments,
                                 struct object *named) {
    if (prepared->type != python.capsule)
        return prepared == python.none ? NULL : python.call(prepared, arguments, named);
    struct object *results = run_prepared(python.of_capsule(prepared, prepared_name), arguments);
    operator->served += results != NULL;
    return results;
}

static struct object *call(struct object *self, struct object *arguments, struct object *named) {
    struct operator *operator = python.of_capsule(self, operator_name);
    struct key key;
    struct object *results = NULL;
    if (make_key(&key, operator, arguments, named)) {
        struct object *prepared = find_prepared(&key, operator, arguments, named);
        results = prepared ? call_found(operator, prepared, arguments, named) : NULL;
        release(prepared);
    }
    return results || python.error() ? results : python.call(operator->slow, arguments, named);
}

/* operator(find, slow): returns a function that replaces `slow`. */
static struct object *make_operator(struct object *self, struct object *arguments, struct object *named) {
    static struct method method = {"operator", call, METHOD_TAKES_NAMED, NULL};
    (void)self, (void)named;
    struct operator *created = calloc(1, sizeof *created);
    if (!created)
        return none();
    python.retain(created->arguments = arguments);
    created->find = python.get_of_tuple(arguments, 0);
    created->slow = python.get_of_tuple(arguments, 1);
    struct object *capsule = python.new_capsule(created, operator_name, end_operator);
    struct object *made_function = capsule ? python.new_function(&method, capsule, NULL) : NULL;
    release(capsule);
    return made_function;
}

/* served(operator): number of its calls that ran here. */
static struct object *served(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)named;
    struct object *capsule = python.self_of_function(python.get_of_tuple(arguments, 0));
    struct operator *operator = capsule ? python.of_capsule(capsule, operator_name) : NULL;
    return operator ? python.new_int(operator->served) : NULL;
}

/* ---- Functions for Python ---- */

/* True if tensors are stored in objects as is_tensor() and torch's functions expect, checked with a tensor of 2 by 3
   elements. */
static bool is_as_expected(struct object *tensor, struct object *address) {
    int64_t dim, *sizes, *strides;
    void *after_head;
    memcpy(&after_head, tensor_of(tensor), sizeof after_head);
    return after_head == (void *)(uintptr_t)python.to_int(address) && !torch.get_dim(tensor_of(tensor), &dim) &&
           dim == 2 && !torch.get_sizes(tensor_of(tensor), &sizes) && sizes[0] == 2 && sizes[1] == 3 &&
           !torch.get_strides(tensor_of(tensor), &strides) && strides[0] == 3 && strides[1] == 1;
}

static struct object *functions(void) {
    static struct method methods[] = {{"prepare", prepare, METHOD_TAKES_NAMED, NULL},
                                      {"operator", make_operator, METHOD_TAKES_NAMED, NULL},
                                      {"served", served, METHOD_TAKES_NAMED, NULL},
                                      {"found", found, METHOD_TAKES_NAMED, NULL},
                                      {"forget", forget, METHOD_TAKES_NAMED, NULL}};
    enum { COUNT = sizeof methods / sizeof *methods };
    struct object *created = python.new_tuple(COUNT);
    for (int i = 0; created && i < COUNT; i++)
        python.set_of_tuple(created, i, python.new_function(&methods[i], NULL, NULL));
    return created;
}

void *weftTorchFunctions(void *facts) {
    if (!facts || !python_find())
        return NULL;
    struct object **places[] = {&kinds.tensor,    &kinds.parameter,       &kinds.dtype,
                                &callbacks.flags, &callbacks.current_gpu, &callbacks.stream};
    enum { COUNT = sizeof places / sizeof *places };
    if (!is_as_expected(python.get_of_tuple(facts, COUNT), python.get_of_tuple(facts, COUNT + 1)))
        return NULL;
    for (int i = 0; i < COUNT; i++)
        python.retain(*places[i] = python.get_of_tuple(facts, i));
    callbacks.no_arguments = python.new_tuple(0);
    return callbacks.no_arguments ? functions() : NULL;
}
