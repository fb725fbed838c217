/* SPDX-License-Identifier: Apache-2.0 */
/* Scheduling of a launch: starts and retires clusters, selects the warps to run, and completes copies. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONGEST_TURN = 400,        /* instructions of one warp */
    TURNS_BEFORE_MORE = 2000,  /* turns without progress before another cluster starts, if one is left */
    TURNS_BEFORE_END = 200000, /* turns without progress before the launch counts as deadlocked */
    RESIDENT = 3,              /* maximum of resident clusters, unless they need others to make progress */
};

_Thread_local struct machine *machine;

uint64_t machine_random(void) {
    uint64_t x = machine->random += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static int random_below(int count) { return (int)(machine_random() % (uint64_t)count); }

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static const char *line_text(int line) {
    const struct module *module = machine->module;
    const char *text = line > 0 && line <= module->line_count ? module->lines[line - 1] : "?";
    return text + strspn(text, " \t");
}

/* The instruction that a warp executes, or will execute next; at its end, the last one. */
static const struct instruction *current(const struct warp *w) {
    if (w->now)
        return w->now;
    int64_t place = w->places[w->alive ? __builtin_ctz(w->alive) : 0], last = machine->kernel->instruction_count - 1;
    return &machine->kernel->instructions[place < last ? place : last];
}

static void add_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void add_error(const char *format, ...) {
    size_t length = strlen(machine->error);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine->error + length, sizeof machine->error - length, format, arguments);
    va_end(arguments);
}

/* Adds " (decode.cuh:343)", or nothing if the source is unknown. */
static void add_source(const struct instruction *i) {
    const struct module *module = machine->module;
    const char *file = i->source_file < module->file_count ? module->files[i->source_file] : NULL;
    if (file)
        add_error(" (%s:%d)", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, i->source_line);
}

void machine_fail(const struct warp *w, const char *format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    *machine->error = '\0';
    add_error("kernel '%s'", machine->kernel->name);
    if (w)
        add_error(", block [%u,%u,%u], warp %d", w->block->index[0], w->block->index[1], w->block->index[2], w->index);
    add_error(": %s", words);
    if (w) {
        add_error(". PTX line %d", current(w)->line);
        add_source(current(w));
        add_error(": %.120s", line_text(current(w)->line));
    }
    longjmp(machine->failed, 1);
}

static void fail_standing_still(void) {
    static const char *const states[] = {"goes round",   "at a barrier", "at the cluster's barrier",
                                         "at a product", "waits",        "has ended"};
    *machine->error = '\0';
    add_error("kernel '%s' stands still:", machine->kernel->name);
    for (const struct cluster *cluster = machine->clusters; cluster; cluster = cluster->next)
        for (int b = 0; b < cluster->block_count; b++)
            for (int k = 0; k < cluster->blocks[b].warp_count; k++) {
                const struct warp *w = &cluster->blocks[b].warps[k];
                if (w->state != WARP_DONE)
                    add_error("\n  block [%u,%u,%u] warp %d %s, PTX line %d: %.60s", w->block->index[0],
                              w->block->index[1], w->block->index[2], k, states[w->state], current(w)->line,
                              line_text(current(w)->line));
            }
    longjmp(machine->failed, 1);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct block *machine_block_of(const struct warp *w, uint64_t address) {
    uint64_t rank = (uint32_t)address >> SHARED_ADDRESS_BITS;
    if (!rank)
        return w->block;
    if (rank > (uint64_t)w->block->cluster->block_count)
        machine_fail(w, "shared address 0x%llx of block %d in a cluster of %d", (unsigned long long)address,
                     (int)rank - 1, w->block->cluster->block_count);
    struct block *block = &w->block->cluster->blocks[rank - 1];
    if (!block->warps_alive)
        machine_fail(w, "shared memory of block %d, which has ended", (int)rank - 1);
    return block;
}

unsigned char *machine_shared(const struct warp *w, uint64_t address, size_t bytes) {
    struct block *block = machine_block_of(w, address);
    uint32_t offset = (uint32_t)address & OWN_ADDRESS;
    if (offset + bytes > block->shared_bytes)
        machine_fail(w, "%zu bytes at shared address %u of %u", bytes, offset, block->shared_bytes);
    if (offset % bytes)
        machine_fail(w, "%zu bytes at shared address %u, which is not aligned", bytes, offset);
    return block->shared + offset;
}

/* Finds a piece of the device's memory, of the arguments, or of the module's own variables. */
static bool find_piece(uint64_t address, struct memory_piece *piece) {
    uint64_t parameters = (uintptr_t)machine->kernel->parameters, globals = (uintptr_t)machine->module->globals;
    *piece = (struct memory_piece){parameters, parameters + machine->kernel->parameter_bytes, false};
    if (address >= piece->from && address < piece->to)
        return true;
    *piece = (struct memory_piece){globals, globals + machine->module->global_bytes, false};
    return (address >= piece->from && address < piece->to) || machine->find_memory(address, piece);
}

/* NULL, or a description of what is wrong with an access. */
static const char *check_global(void *context, uint64_t address, size_t bytes) {
    enum { NEAR = 1024 }; /* bytes: an access this close to the end of an allocation is reported relative to it */
    static _Thread_local char words[128];
    struct memory_piece piece;
    (void)context;
    for (int k = 0; k < 4; k++)
        if (address >= machine->known[k].from && address + bytes <= machine->known[k].to)
            return NULL;
    bool is_found = find_piece(address, &piece) && address < piece.to + NEAR;
    if (is_found && !piece.was_freed && address + bytes <= piece.to) {
        machine->last_known = (machine->last_known + 1) % 4;
        machine->known[machine->last_known] = piece;
        return NULL;
    }
    int length = snprintf(words, sizeof words, "%zu bytes at 0x%llx, ", bytes, (unsigned long long)address);
    if (is_found)
        snprintf(words + length, sizeof words - (size_t)length, "%lld bytes into an allocation of %lld%s",
                 (long long)(address - piece.from), (long long)(piece.to - piece.from),
                 piece.was_freed ? ", which was freed" : "");
    else
        snprintf(words + length, sizeof words - (size_t)length, "where nothing is allocated");
    return words;
}

unsigned char *machine_memory(const struct warp *w, int lane, enum ptx_space space, uint64_t address, size_t bytes) {
    if (space == SPACE_SHARED || (space == SPACE_GENERIC && address & SHARED_WINDOW))
        return machine_shared(w, (uint32_t)address, bytes);
    bool is_anywhere = space == SPACE_GENERIC || space == SPACE_PARAMETERS; /* parameters of a call are local */
    if (space == SPACE_LOCAL || (is_anywhere && address & LOCAL_WINDOW)) {
        uint64_t offset = address & ~LOCAL_WINDOW;
        if (offset + bytes > machine->kernel->local_bytes || offset % bytes)
            machine_fail(w, "%zu bytes at local address %llu of %zu", bytes, (unsigned long long)offset,
                         machine->kernel->local_bytes);
        return w->local + (size_t)lane * machine->kernel->local_bytes + offset;
    }
    uint64_t argument = address - (uintptr_t)machine->kernel->parameters;
    if (space == SPACE_PARAMETERS && argument + bytes > machine->kernel->parameter_bytes)
        machine_fail(w, "%zu bytes at byte %lld of %zu of arguments", bytes, (long long)argument,
                     machine->kernel->parameter_bytes);
    const char *wrong = space == SPACE_PARAMETERS ? NULL : check_global(NULL, address, bytes);
    if (wrong)
        machine_fail(w, "%s", wrong);
    if (address % bytes)
        machine_fail(w, "%zu bytes at 0x%llx, which is not aligned", bytes, (unsigned long long)address);
    return (unsigned char *)(uintptr_t)address;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

void machine_add_copy(const struct copy *copy) {
    struct copy *made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = *copy;
    made->next = machine->copies;
    made->block->copies_under_way++;
    machine->copies = made;
}

void machine_take_source(struct copy *copy) {
    if (copy->taken)
        return;
    copy->taken = malloc(copy->bytes + 1);
    if (!copy->taken)
        abort();
    memcpy(copy->taken, copy->block->shared + copy->address, copy->bytes);
    copy->block->copies_under_way--;
}

static void add_floats(unsigned char *to, const unsigned char *from, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += sizeof(float)) {
        float sum, more;
        memcpy(&sum, to + i, sizeof sum);
        memcpy(&more, from + i, sizeof more);
        sum += more;
        memcpy(to + i, &sum, sizeof sum);
    }
}

/* NULL, or an error message. */
static const char *move(const struct copy *copy) {
    if (copy->kind == COPY_STORE && copy->map)
        return tensor_map_store(copy->map, copy->address, copy->coordinates, copy->taken, check_global, NULL);
    unsigned char *shared = copy->taken ? copy->taken : copy->block->shared + copy->address;
    if (copy->kind == COPY_LOAD)
        return tensor_map_load(copy->map, copy->address, copy->coordinates, copy->map->is_im2col ? copy->offsets : NULL,
                               shared, check_global, NULL);
    const char *wrong = copy->is_words || !copy->bytes ? NULL : check_global(NULL, copy->global, copy->bytes);
    if (wrong)
        return wrong;
    if (copy->adds)
        add_floats((unsigned char *)(uintptr_t)copy->global, shared, copy->bytes);
    else if (copy->kind == COPY_STORE)
        memcpy((void *)(uintptr_t)copy->global, shared, copy->bytes);
    else
        memcpy(shared, copy->is_words ? copy->words : (const void *)(uintptr_t)copy->global, copy->bytes);
    return NULL;
}

static void land(const struct copy *copy) {
    order_land_at(copy->clock, copy->block, copy->barrier);
    barrier_count(NULL, copy->block, copy->barrier, 0, -(int64_t)copy->bytes);
}

void machine_finish_copy(struct copy **at) {
    struct copy *copy = *at;
    if (copy->kind == COPY_STORE)
        machine_take_source(copy);
    else
        copy->block->copies_under_way--;
    const char *wrong = move(copy);
    if (wrong)
        machine_fail(NULL, "the copy of PTX line %d: %s", copy->line, wrong);
    if (copy->kind != COPY_STORE)
        land(copy);
    *at = copy->next;
    free(copy->clock);
    free(copy->taken);
    free(copy);
    machine->progress++;
}

static void finish_any_copy(void) {
    int count = 0;
    for (const struct copy *copy = machine->copies; copy; copy = copy->next)
        count++;
    struct copy **at = &machine->copies;
    for (int skipped = random_below(count); skipped; skipped--)
        at = &(*at)->next;
    if ((*at)->kind == COPY_STORE && !(*at)->taken && machine_random() % 2)
        machine_take_source(*at);
    else
        machine_finish_copy(at);
}

/* ---- Clusters ---------------------------------------------------------------------------------------------------- */

static void *taken(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory)
        abort();
    memset(memory, 0xFF, bytes); /* NaN in every float: no kernel may rely on the initial content */
    return memory;
}

static void fill_specials(struct warp *w) {
    const struct launch_shape *s = &machine->shape;
    const struct block *block = w->block;
    uint32_t *slots = (uint32_t *)(void *)w->files[FILE_NARROW];
    for (int l = 0; l < LANES; l++) {
        uint32_t thread = (uint32_t)(w->index * LANES + l), values[SPECIALS] = {0};
        values[SPECIAL_TID_X] = thread % s->block[0];
        values[SPECIAL_TID_Y] = thread / s->block[0] % s->block[1];
        values[SPECIAL_TID_Z] = thread / s->block[0] / s->block[1];
        for (int axis = 0; axis < 3; axis++) {
            values[SPECIAL_NTID_X + axis] = s->block[axis];
            values[SPECIAL_CTAID_X + axis] = block->index[axis];
            values[SPECIAL_NCTAID_X + axis] = s->grid[axis];
        }
        values[SPECIAL_CLUSTER_CTARANK] = block->rank;
        values[SPECIAL_CLUSTER_NCTARANK] = (uint32_t)block->cluster->block_count;
        values[SPECIAL_LANEID] = (uint32_t)l;
        values[SPECIAL_WARPID] = (uint32_t)w->index;
        values[SPECIAL_CLOCK] = 1;
        values[SPECIAL_LANEMASK_EQ] = UINT32_C(1) << l;
        values[SPECIAL_LANEMASK_LT] = (UINT32_C(1) << l) - 1;
        values[SPECIAL_LANEMASK_LE] = values[SPECIAL_LANEMASK_LT] | UINT32_C(1) << l;
        values[SPECIAL_LANEMASK_GT] = ~values[SPECIAL_LANEMASK_LE];
        values[SPECIAL_LANEMASK_GE] = ~values[SPECIAL_LANEMASK_LT];
        for (int k = 0; k < SPECIALS; k++)
            slots[k * LANES + l] = values[k];
    }
}

static void begin_warp(struct block *block, int index, uint32_t threads) {
    const struct kernel *kernel = machine->kernel;
    struct warp *w = &block->warps[index];
    uint32_t lanes = threads - (uint32_t)index * LANES;
    *w = (struct warp){
        .block = block, .index = index, .alive = lanes >= LANES ? ~UINT32_C(0) : (UINT32_C(1) << lanes) - 1};
    w->files[FILE_CONSTANTS] = machine->module->constants;
    w->files[FILE_NARROW] = taken(kernel->file_bytes[FILE_NARROW] + LANES * 4);
    w->files[FILE_WIDE] = taken(kernel->file_bytes[FILE_WIDE] + LANES * 8);
    w->predicates = taken((size_t)(kernel->predicate_count + 1) * sizeof(uint32_t));
    w->local = kernel->local_bytes ? taken(kernel->local_bytes * LANES) : NULL;
    fill_specials(w);
}

static void begin_block(struct cluster *cluster, uint32_t rank, const uint32_t *origin) {
    const struct launch_shape *s = &machine->shape;
    struct block *block = &cluster->blocks[rank];
    uint32_t threads = s->block[0] * s->block[1] * s->block[2];
    *block = (struct block){.cluster = cluster, .rank = rank};
    block->index[0] = origin[0] + rank % s->cluster[0];
    block->index[1] = origin[1] + rank / s->cluster[0] % s->cluster[1];
    block->index[2] = origin[2] + rank / s->cluster[0] / s->cluster[1];
    block->shared_bytes = (uint32_t)machine->kernel->static_shared_bytes + s->dynamic_shared_bytes;
    block->shared = taken(block->shared_bytes + 64);
    block->warp_count = block->warps_alive = (int)((threads + LANES - 1) / LANES);
    block->warps = taken((size_t)block->warp_count * sizeof *block->warps);
    block->groups = calloc((size_t)block->warp_count / GROUP_WARPS + 1, sizeof *block->groups);
    for (int k = 0; k < block->warp_count; k++)
        begin_warp(block, k, threads);
    cluster->threads_alive += (uint32_t)block->warp_count * LANES;
}

static void begin_cluster(void) {
    const struct launch_shape *s = &machine->shape;
    struct cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster)
        abort();
    uint64_t number = machine->next_cluster++;
    uint32_t origin[3], across = s->grid[0] / s->cluster[0], down = s->grid[1] / s->cluster[1];
    origin[0] = (uint32_t)(number % across) * s->cluster[0];
    origin[1] = (uint32_t)(number / across % down) * s->cluster[1];
    origin[2] = (uint32_t)(number / across / down) * s->cluster[2];
    cluster->block_count = cluster->blocks_alive = (int)(s->cluster[0] * s->cluster[1] * s->cluster[2]);
    cluster->blocks = calloc((size_t)cluster->block_count, sizeof *cluster->blocks);
    for (uint32_t rank = 0; rank < (uint32_t)cluster->block_count; rank++)
        begin_block(cluster, rank, origin);
    cluster->warp_count = cluster->block_count * cluster->blocks->warp_count;
    order_begin(cluster);
    cluster->next = machine->clusters;
    machine->clusters = cluster;
    machine->progress++;
}

static void free_cluster(struct cluster *cluster) {
    order_end(cluster);
    for (int b = 0; b < cluster->block_count; b++) {
        struct block *block = &cluster->blocks[b];
        for (int k = 0; k < block->warp_count; k++) {
            free(block->warps[k].files[FILE_NARROW]);
            free(block->warps[k].files[FILE_WIDE]);
            free(block->warps[k].predicates);
            free(block->warps[k].local);
            free(block->warps[k].copies);
        }
        for (int g = 0; g <= block->warp_count / GROUP_WARPS; g++)
            free(block->groups[g].pending);
        free(block->groups);
        free(block->warps);
        free(block->shared);
    }
    free(cluster->blocks);
    free(cluster);
}

static void end_warp(struct warp *w) {
    struct block *block = w->block;
    w->state = WARP_DONE;
    block->warps_alive--;
    machine->progress++;
    if (!block->warps_alive) {
        if (block->copies_under_way)
            machine_fail(w, "the block ended while %d copies from or to its shared memory were under way",
                         block->copies_under_way);
        block->cluster->blocks_alive--;
    }
    machine_leave(w);
}

/* ---- Warps ------------------------------------------------------------------------------------------------------- */

static void set_places(struct warp *w, uint32_t mask, uint32_t place) { FOR_LANES(mask, l) w->places[l] = place; }

/* Selects lanes that run together: usually those with the lowest instruction, so that diverged lanes reconverge;
   occasionally others. */
static uint32_t choose_lanes(struct warp *w, uint32_t *place, uint32_t *limit) {
    uint32_t able = w->alive & ~w->stuck, mask = 0;
    if (!able)
        machine_fail(w, "lanes wait for each other in different places (mask 0x%08x)", w->alive);
    uint32_t at = w->places[__builtin_ctz(able)];
    bool is_split = false;
    FOR_LANES(able, l) {
        is_split |= w->places[l] != at;
        if (w->places[l] < at)
            at = w->places[l];
    }
    if (is_split && machine_random() % 8 == 0) {
        int lane = random_below(LANES);
        if (able >> lane & 1)
            at = w->places[lane];
    }
    *limit = UINT32_MAX;
    FOR_LANES(w->alive, l) {
        mask |= (uint32_t)(w->places[l] == at) << l;
        if (w->places[l] > at && w->places[l] < *limit)
            *limit = w->places[l];
    }
    w->stuck &= ~mask;
    *place = at;
    return mask;
}

/* Selects the lanes at an instruction that can run it now; the others have to wait until all lanes that they
   synchronize with have arrived. */
static uint32_t find_ready(const struct warp *w, const struct instruction *i, uint32_t mask, uint32_t active) {
    const uint32_t *members = narrow(w, &i->operands[i->operand_count - 1]);
    if (i->meets == MEETS_NOBODY)
        return active;
    for (uint32_t rest = active; rest;) {
        int lane = __builtin_ctz(rest);
        uint32_t need = w->alive, group = active;
        if (i->meets == MEETS_MEMBERS) {
            need &= members[lane];
            FOR_LANES(active, l) group &= ~((uint32_t)(members[l] != members[lane]) << l);
        }
        if (need & mask & ~group || group & ~need)
            machine_fail(w, "lanes 0x%08x take part, lanes 0x%08x should", group, need);
        if (!(need & ~mask))
            return group;
        rest &= ~group;
    }
    return 0;
}

enum step { GOES_ON, PARTS, STOPS };

/* Runs an instruction that is neither a branch nor an end, for lanes that run together. */
static enum step run_one(struct warp *w, const struct instruction *i, uint32_t mask, uint32_t active, uint32_t place) {
    set_places(w, mask, place);
    w->now = i;
    uint32_t ready = find_ready(w, i, mask, active), idle = mask & ~active;
    if (ready) {
        enum outcome outcome = i->run(w, i, ready);
        if (outcome == WAIT || (outcome == YIELD && machine_random() % 4 == 0)) {
            set_places(w, ready | idle, place + 1);
            if (mask != w->alive && w->state == WARP_POLLS)
                w->state = WARP_READY; /* other lanes of the warp may be able to run */
            return STOPS;
        }
    }
    if (ready == active)
        return GOES_ON;
    if (!ready)
        w->stuck |= active;
    set_places(w, ready | idle, place + 1);
    return PARTS;
}

/* Moves lanes to their instructions after a branch. */
static enum step take_branch(struct warp *w, const struct instruction *i, uint32_t mask, uint32_t active,
                             uint32_t *place) {
    if (active && active != mask) {
        set_places(w, mask & ~active, *place + 1);
        set_places(w, active, i->operands[0].offset);
        return PARTS;
    }
    *place = active ? i->operands[0].offset : *place + 1;
    return GOES_ON;
}

static void end_lanes(struct warp *w, uint32_t mask, uint32_t active, uint32_t place) {
    w->alive &= ~active;
    w->stuck = 0;
    set_places(w, mask, place + 1);
    if (!w->alive)
        end_warp(w);
}

/* Runs lanes together until they diverge, reach other lanes, or use up the warp's turn. */
static int run_lanes(struct warp *w, int budget) {
    uint32_t place, limit, mask = choose_lanes(w, &place, &limit);
    for (w->now = NULL;; budget--) {
        if (place >= (uint32_t)machine->kernel->instruction_count)
            machine_fail(w, "runs beyond the kernel's end");
        const struct instruction *i = &machine->kernel->instructions[place];
        uint32_t active = mask;
        if (i->guard >= 0)
            active &= i->is_guard_negated ? ~w->predicates[i->guard] : w->predicates[i->guard];
        machine->kernel->is_reached[place] |= active || i->is_branch;
        if (i->is_end) {
            end_lanes(w, mask, active, place);
            return budget;
        }
        enum step step = i->is_branch ? take_branch(w, i, mask, active, &place)
                         : active     ? run_one(w, i, mask, active, place)
                                      : GOES_ON;
        if (step != GOES_ON)
            return step == STOPS ? 0 : budget;
        place += !i->is_branch;
        if (budget <= 0 || (i->is_branch ? mask != w->alive : place >= limit)) {
            set_places(w, mask, place);
            return budget;
        }
    }
}

static void take_turn(struct warp *w, int budget) {
    while (budget > 0 && w->state == WARP_READY)
        budget = run_lanes(w, budget);
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static bool can_go_on(const struct warp *w) {
    return w->state == WARP_READY ||
           (w->state == WARP_POLLS && barrier_is_over(w, w->block->shared + w->waits_at, w->waits_for));
}

/* Selects a warp that can run, searching from a random one. */
static struct warp *choose_warp(void) {
    int count = 0;
    for (const struct cluster *cluster = machine->clusters; cluster; cluster = cluster->next)
        for (int b = 0; b < cluster->block_count; b++)
            count += cluster->blocks[b].warp_count;
    int start = count ? random_below(count) : 0, index = 0;
    struct warp *before = NULL;
    for (struct cluster *cluster = machine->clusters; cluster; cluster = cluster->next)
        for (int b = 0; b < cluster->block_count; b++)
            for (int k = 0; k < cluster->blocks[b].warp_count; k++, index++) {
                struct warp *w = &cluster->blocks[b].warps[k];
                if ((index < start && before) || !can_go_on(w))
                    continue;
                if (index >= start)
                    return w;
                before = w;
            }
    return before;
}

/* Lets warps that wait for a barrier in shared memory test it again: a try may fail at any time. */
static void wake_pollers(void) {
    for (struct cluster *cluster = machine->clusters; cluster; cluster = cluster->next)
        for (int b = 0; b < cluster->block_count; b++)
            for (int k = 0; k < cluster->blocks[b].warp_count; k++)
                if (cluster->blocks[b].warps[k].state == WARP_POLLS)
                    cluster->blocks[b].warps[k].state = WARP_READY;
}

static int end_clusters(void) {
    int resident = 0;
    for (struct cluster **at = &machine->clusters; *at;) {
        struct cluster *cluster = *at;
        if (cluster->blocks_alive) {
            resident++;
            at = &cluster->next;
            continue;
        }
        *at = cluster->next;
        free_cluster(cluster);
    }
    return resident;
}

static void run_all(void) {
    uint64_t progress = 0;
    int idle_turns = 0, wanted = 1 + random_below(RESIDENT);
    for (;;) {
        int resident = end_clusters();
        bool has_more = machine->next_cluster < machine->cluster_count;
        if (!resident && !has_more)
            break;
        if (has_more && resident < wanted) {
            begin_cluster();
            continue;
        }
        if (machine->copies && machine_random() % 4 == 0)
            finish_any_copy();
        struct warp *w = choose_warp();
        idle_turns = machine->progress == progress ? idle_turns + (w ? 1 : 500) : 0;
        progress = machine->progress;
        if (idle_turns > TURNS_BEFORE_MORE && has_more) {
            begin_cluster();
            wanted++;
        } else if (idle_turns > TURNS_BEFORE_END) {
            fail_standing_still();
        }
        if (w) {
            w->state = WARP_READY;
            take_turn(w, 1 + random_below(machine_random() % 2 ? LONGEST_TURN : 16));
        } else if (machine->copies) {
            finish_any_copy();
        } else {
            wake_pollers();
        }
    }
    while (machine->copies) /* stores that have read their source but not written yet */
        machine_finish_copy(&machine->copies);
}

bool machine_run(struct machine *run) {
    struct machine *before = machine;
    machine = run;
    for (int axis = 0; axis < 3; axis++)
        if (!run->shape.cluster[axis])
            run->shape.cluster[axis] = 1;
    run->cluster_count = (uint64_t)(run->shape.grid[0] / run->shape.cluster[0]) *
                         (run->shape.grid[1] / run->shape.cluster[1]) * (run->shape.grid[2] / run->shape.cluster[2]);
    bool is_done = !setjmp(run->failed);
    if (is_done)
        run_all();
    while (run->copies) {
        struct copy *copy = run->copies;
        run->copies = copy->next;
        free(copy->clock);
        free(copy->taken);
        free(copy);
    }
    while (run->clusters) {
        struct cluster *cluster = run->clusters;
        run->clusters = cluster->next;
        free_cluster(cluster);
    }
    machine = before;
    return is_done;
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

operation ptx_decode(struct instruction *i) {
    static operation (*const parts[])(struct instruction *) = {decode_arithmetic, decode_conversion, decode_copies,
                                                               decode_memory,     decode_together,   decode_matrices};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        operation found = parts[k](i);
        if (found)
            return found;
    }
    return NULL;
}
