/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of weft.torch's operators. Python knows what a call means; a call like one that was made before runs here: its
   plan is found by a key, torch allocates the results, and the plan runs. What is new, or beyond that, is Python's. All
   state is the process's own and guarded by the interpreter's lock. */
#include "torch/key.h"
#include "weft/weft.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MAX = 256, PLACES = 4096, PROBES = 8 };

/* What torch tells of itself at the first call. */
static struct {
    struct object *flags;       /* tuple of functions: what a plan on a GPU depends on besides */
    struct object *current_gpu; /* function: the ordinal */
    struct object *stream;      /* function of the ordinal: the address */
    struct object *nothing;     /* the empty tuple */
} asked;

static int64_t hits; /* calls whose plan was found here */

/* ---- A plan with all that a run needs ---- */

struct prepared {
    struct object *told; /* the tuple that all below is of, and lives in */
    weftBackendDescriptor_t plan;
    int slot_count, result_count;
    int places[SLOTS_MAX];    /* each slot's argument, or ~i for result i */
    struct object *results;   /* tuple: arguments of `allocate`, or None */
    struct object *allocate;  /* function that makes a tensor; on a GPU on the current one */
    struct object *workspace; /* None; on a GPU arguments of `allocate`, else a function: the address */
    struct object *ordinal;   /* tuple of the GPU's; None: the CPU */
    long long ordinal_number;
};

static const char prepared_name[] = "weft.prepared", operator_name[] = "weft.operator";

static void end_prepared(struct object *capsule) {
    struct prepared *prepared = python.of_capsule(capsule, prepared_name);
    python.drop(prepared->told);
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
    python.keep(python.none);
    return python.none;
}

/* prepare(plan, places, results, allocate, workspace, ordinal, owner): a capsule; None where there are too many slots.
   plan: its address. owner: what keeps it. The others are as in struct prepared. */
static struct object *prepare(struct object *self, struct object *told, struct object *named) {
    (void)self, (void)named;
    struct prepared *made = calloc(1, sizeof *made);
    if (!made || !read_places(made, python.get_of_tuple(told, 1))) {
        free(made);
        return none();
    }
    made->plan = (weftBackendDescriptor_t)(uintptr_t)python.to_int(python.get_of_tuple(told, 0));
    made->results = python.get_of_tuple(told, 2);
    made->result_count = (int)python.tuple_count(made->results);
    made->allocate = python.get_of_tuple(told, 3);
    made->workspace = python.get_of_tuple(told, 4);
    made->ordinal = python.get_of_tuple(told, 5);
    if (made->ordinal != python.none)
        made->ordinal_number = python.to_int(python.get_of_tuple(made->ordinal, 0));
    python.keep(made->told = told);
    return python.new_capsule(made, prepared_name, end_prepared);
}

/* ---- A run ---- */

/* What one run holds. */
struct run {
    uint64_t pointers[SLOTS_MAX];
    struct object *results; /* tuple */
    struct object *held;    /* workspace; NULL if there is none */
    void *workspace, *stream;
};

/* The number that a function gives; false if it raised. */
static bool ask(long long *out, struct object *called, struct object *arguments) {
    struct object *answer = python.call(called, arguments, NULL);
    if (!answer)
        return false;
    *out = python.to_int(answer);
    python.drop(answer);
    return true;
}

static bool allocate_results(struct run *run, const struct prepared *plan) {
    run->results = python.new_tuple(plan->result_count);
    for (int i = 0; run->results && i < plan->result_count; i++) {
        struct object *how = python.get_of_tuple(plan->results, i);
        struct object *made = how == python.none ? none() : python.call(plan->allocate, how, NULL);
        if (!made)
            return false;
        python.set_of_tuple(run->results, i, made);
    }
    return run->results != NULL;
}

static bool find_workspace(struct run *run, const struct prepared *plan) {
    long long address = 0;
    if (plan->workspace == python.none)
        return true;
    if (plan->ordinal == python.none) {
        bool is_there = ask(&address, plan->workspace, asked.nothing);
        run->workspace = (void *)(uintptr_t)address;
        return is_there;
    }
    run->held = python.call(plan->allocate, plan->workspace, NULL);
    return run->held && !torch.get_data(tensor_of(run->held), &run->workspace);
}

static bool find_stream(struct run *run, const struct prepared *plan) {
    long long stream = 0;
    bool is_found = plan->ordinal == python.none || ask(&stream, asked.stream, plan->ordinal);
    run->stream = (void *)(uintptr_t)stream;
    return is_found;
}

/* The addresses of arguments and results; false where an argument is no tensor. */
static bool find_pointers(struct run *run, const struct prepared *plan, struct object *arguments) {
    intptr_t count = python.tuple_count(arguments);
    for (int i = 0; i < plan->slot_count; i++) {
        int place = plan->places[i];
        if (place >= count)
            return false;
        struct object *value =
            place >= 0 ? python.get_of_tuple(arguments, place) : python.get_of_tuple(run->results, ~place);
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
           (ask(&current, asked.current_gpu, asked.nothing) && current == plan->ordinal_number);
}

/* Without the interpreter's lock: on the CPU this is where the time goes. */
static bool execute(const struct run *run, const struct prepared *plan) {
    void *thread = python.unlock();
    weftStatus_t status = weftExecute(plan->plan, plan->slot_count, run->pointers, run->workspace, run->stream);
    python.lock(thread);
    return status == WEFT_STATUS_SUCCESS;
}

static void drop(struct object *value) {
    if (value)
        python.drop(value);
}

/* One result as it is, several as a tuple. */
static struct object *take_results(struct run *run, const struct prepared *plan) {
    struct object *taken = run->results;
    if (plan->result_count == 1) {
        taken = python.get_of_tuple(run->results, 0);
        python.keep(taken);
        python.drop(run->results);
    }
    run->results = NULL;
    return taken;
}

/* The results. NULL: Python raised, or without that the run is beyond this way and nothing was enqueued. */
static struct object *run_prepared(const struct prepared *plan, struct object *arguments) {
    struct run run;
    run.results = run.held = NULL, run.workspace = NULL;
    bool is_done = is_on_current_gpu(plan) && allocate_results(&run, plan) && find_pointers(&run, plan, arguments) &&
                   find_workspace(&run, plan) && find_stream(&run, plan) && execute(&run, plan);
    struct object *results = is_done ? take_results(&run, plan) : NULL;
    drop(run.results);
    drop(run.held); /* torch's allocator gives it to what comes behind on the stream */
    return results;
}

/* ---- Which plan ---- */

struct entry {
    struct object *prepared; /* what the operator's `find` gave */
    uint64_t hash;
    int count;
    uint64_t words[]; /* the first is the operator's `find`, which is kept, so that no other has its address */
};

static struct entry *table[PLACES];

static struct entry *find_entry(const struct key *key) {
    for (int i = 0; i < PROBES; i++) {
        struct entry *each = table[(key->hash + (uint64_t)i) % PLACES];
        if (each && each->hash == key->hash && each->count == key->count &&
            !memcmp(each->words, key->words, (size_t)key->count * 8))
            return each;
    }
    return NULL;
}

static struct object *find_of(const uint64_t *words) { return (struct object *)(uintptr_t)words[0]; }

/* Dropping runs code of Python's, which may call operators: the table is whole before. */
static void replace_entry(struct entry **place, struct entry *with) {
    struct entry *old = *place;
    *place = with;
    if (!old)
        return;
    python.drop(old->prepared);
    python.drop(find_of(old->words));
    free(old);
}

/* Keeps what stands for a key, in place of another where all places for it are taken. */
static void keep_entry(const struct key *key, struct object *prepared) {
    size_t bytes = (size_t)key->count * 8;
    struct entry *made = malloc(sizeof *made + bytes), **place = &table[key->hash % PLACES];
    if (!made)
        return;
    made->hash = key->hash, made->count = key->count;
    memcpy(made->words, key->words, bytes);
    python.keep(made->prepared = prepared);
    python.keep(find_of(made->words));
    for (int i = PROBES - 1; i >= 0; i--)
        if (!table[(key->hash + (uint64_t)i) % PLACES])
            place = &table[(key->hash + (uint64_t)i) % PLACES];
    replace_entry(place, made);
}

/* Forgets what an operator's `find` gave; of NULL, of any. */
static void forget_of(const struct object *find) {
    for (int i = 0; i < PLACES; i++)
        if (table[i] && (!find || find_of(table[i]->words) == find))
            replace_entry(&table[i], NULL);
}

/* forget(): plans that were cleared are found no more. */
static struct object *forget(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)arguments, (void)named;
    forget_of(NULL);
    return none();
}

/* found(): how often a call's plan was found here. */
static struct object *found(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)arguments, (void)named;
    return python.new_int(hits);
}

/* ---- Operators ---- */

struct operator {
    struct object *told;
    struct object *find; /* function of a call's arguments: what prepare() made, a function that does it, or None */
    struct object *slow; /* the same call in Python, which None leaves it to */
    int64_t served;      /* calls that ran here */
};

static void end_operator(struct object *capsule) {
    struct operator *operator = python.of_capsule(capsule, operator_name);
    forget_of(operator->find);
    python.drop(operator->told);
    free(operator);
}

static bool add_flags(struct key *key) {
    intptr_t count = python.tuple_count(asked.flags);
    uint64_t bits = 0;
    for (intptr_t i = 0; i < count; i++) {
        struct object *flag = python.call(python.get_of_tuple(asked.flags, i), asked.nothing, NULL);
        if (!flag)
            return false;
        bits |= (uint64_t)(flag == python.true_) << i;
        python.drop(flag);
    }
    return key_add_word(key, bits);
}

static bool make_key(struct key *key, const struct operator *operator, struct object *arguments, struct object *named) {
    key->count = 0, key->is_on_gpu = false;
    intptr_t count = python.tuple_count(arguments), place = 0;
    struct object *name, *value;
    bool fits = key_add_word(key, (uint64_t)(uintptr_t)operator->find);
    for (intptr_t i = 0; fits && i < count; i++)
        fits = key_add(key, python.get_of_tuple(arguments, i));
    while (fits && named && python.dict_next(named, &place, &name, &value))
        fits = key_add_text(key, name) && key_add(key, value);
    fits = fits && (!key->is_on_gpu || add_flags(key));
    if (fits)
        key_finish(key);
    return fits;
}

/* What stands for a key, or NULL with what Python raised; to be dropped. */
static struct object *find_prepared(const struct key *key, const struct operator *operator, struct object *arguments,
                                    struct object *named) {
    struct entry *kept = find_entry(key);
    if (kept) {
        hits += kept->prepared->type == python.capsule;
        python.keep(kept->prepared);
        return kept->prepared;
    }
    struct object *prepared = python.call(operator->find, arguments, named);
    if (prepared)
        keep_entry(key, prepared);
    return prepared;
}

/* The results; NULL: Python raised, or without that the call is beyond what was found. */
static struct object *call_found(struct operator *operator, struct object *found, struct object *arguments,
                                 struct object *named) {
    if (found->type != python.capsule)
        return found == python.none ? NULL : python.call(found, arguments, named);
    struct object *results = run_prepared(python.of_capsule(found, prepared_name), arguments);
    operator->served += results != NULL;
    return results;
}

static struct object *call(struct object *self, struct object *arguments, struct object *named) {
    struct operator *operator = python.of_capsule(self, operator_name);
    struct key key;
    struct object *results = NULL;
    if (make_key(&key, operator, arguments, named)) {
        struct object *found = find_prepared(&key, operator, arguments, named);
        results = found ? call_found(operator, found, arguments, named) : NULL;
        drop(found);
    }
    return results || python.error() ? results : python.call(operator->slow, arguments, named);
}

/* operator(find, slow): a function that stands for `slow`. */
static struct object *make_operator(struct object *self, struct object *told, struct object *named) {
    static struct method method = {"operator", call, METHOD_TAKES_NAMED, NULL};
    (void)self, (void)named;
    struct operator *made = calloc(1, sizeof *made);
    if (!made)
        return none();
    python.keep(made->told = told);
    made->find = python.get_of_tuple(told, 0);
    made->slow = python.get_of_tuple(told, 1);
    struct object *capsule = python.new_capsule(made, operator_name, end_operator);
    struct object *made_function = capsule ? python.new_function(&method, capsule, NULL) : NULL;
    drop(capsule);
    return made_function;
}

/* served(operator): how many of its calls ran here. */
static struct object *served(struct object *self, struct object *arguments, struct object *named) {
    (void)self, (void)named;
    struct object *capsule = python.self_of_function(python.get_of_tuple(arguments, 0));
    struct operator *operator = capsule ? python.of_capsule(capsule, operator_name) : NULL;
    return operator ? python.new_int(operator->served) : NULL;
}

/* ---- What Python gets ---- */

/* Whether tensors lie in objects as is_tensor() and torch's functions take them: so does one of 2 by 3 elements. */
static bool is_as_expected(struct object *tensor, struct object *address) {
    int64_t dim, *sizes, *strides;
    void *behind_head;
    memcpy(&behind_head, tensor_of(tensor), sizeof behind_head);
    return behind_head == (void *)(uintptr_t)python.to_int(address) && !torch.get_dim(tensor_of(tensor), &dim) &&
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
    struct object *made = python.new_tuple(COUNT);
    for (int i = 0; made && i < COUNT; i++)
        python.set_of_tuple(made, i, python.new_function(&methods[i], NULL, NULL));
    return made;
}

void *weftTorchFunctions(void *facts) {
    if (!facts || !python_find())
        return NULL;
    struct object **places[] = {&kinds.tensor, &kinds.parameter,   &kinds.dtype,
                                &asked.flags,  &asked.current_gpu, &asked.stream};
    enum { COUNT = sizeof places / sizeof *places };
    if (!is_as_expected(python.get_of_tuple(facts, COUNT), python.get_of_tuple(facts, COUNT + 1)))
        return NULL;
    for (int i = 0; i < COUNT; i++)
        python.keep(*places[i] = python.get_of_tuple(facts, i));
    asked.nothing = python.new_tuple(0);
    return asked.nothing ? functions() : NULL;
}
