/* SPDX-License-Identifier: Apache-2.0 */
/* The repack family ("cuda.packed"): products whose operands TMA cannot read in their layout, or that have two types. A
   kernel of the map family first copies such an operand into the workspace, with the summed dimension innermost and
   rows padded to 16 bytes; a family that uses TMA multiplies the copy. A convolution's result that would be stored in
   short pieces is stored to the workspace and copied at the end, and the epilogue's operand at the start. Convolutions
   may be rewritten in the process, see repack.h; if groups are merged, infinities and NaN affect the results of
   adjacent groups, too. The price is the sum of the steps. */
#include "engines/cuda/product/repack/repack.h"
#include "engines/cuda/families.h"
#include "engines/cuda/map/copy_region.h"
#include "engines/cuda/map/copy_fallback.h"
#include "engines/cuda/product/hopper/hopper.h"
#include "graph/ops/convolution.h"

#include <math.h>

/* Both are measured, because the map family's prices are those of sweeps over large memory. */
static const double COPY_SHARE = 0.81;     /* share of the predicted rate that copies of images reach */
static const double COPY_SECONDS = 1.6e-6; /* delay until a product sees the end of a copy */

/* Families that use TMA may multiply the copies; all others may make them. */
static bool can_multiply(const struct family *family) { return family->wants_boxes; }
static bool can_copy(const struct family *family) { return !family->wants_boxes; }

/* The region with some of its candidates repacked, one bit of `chosen` per candidate. `staged` is the region in a
   separate graph, with packed tensors in place of the chosen ones; copier: by candidate, or NULL. */
struct packing {
    struct repack_candidates candidates;
    int chosen;
    struct staged staged;
    const struct family *copier[REPACK_CANDIDATES];
    double copying, seconds; /* predicted time of the copies, and of everything */
};

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Makes the region of a copy to the packed tensor, or from it back to the result. */
static weftStatus_t make_copy(struct region *region, const struct repack_candidate *candidate, bool is_result,
                              struct arena *arena) {
    if (is_result)
        return copy_region(region, &candidate->packed_view, &candidate->tensor_view, arena);
    return candidate->is_diagonal
               ? copy_diagonal_region(region, &candidate->tensor_view, &candidate->packed_view, arena)
               : copy_region(region, &candidate->tensor_view, &candidate->packed_view, arena);
}

/* Builds one copy and moves its kernels into the step; the packed tensor is in the workspace, at the offset that
   `staged` assigned. */
static weftStatus_t add_copy(struct cuda_step *state, const struct packing *packing, int at,
                             const struct device *device, struct arena *arena) {
    const struct repack_candidate *candidate = &packing->candidates.at[at];
    const struct staged_value *value = packing->staged.at;
    struct step step = {.family = packing->copier[at]};
    bool is_result = at == PACKED_RESULT;
    /* Every chosen candidate has an entry in `staged`. */
    while (value->value != candidate->value)
        value++;
    const struct kernel_place targets[] = {{is_result ? COPY_TO : COPY_FROM, value->value, 0, NULL},
                                           {is_result ? COPY_FROM : COPY_TO, -1, value->scratch, NULL}};
    TRY(make_copy(&step.region, candidate, is_result, arena));
    TRY(step.family->build(&step, device, NULL, arena));
    return kernels_take(state, step.state, targets, 2, 0, arena);
}

/* ---- Acceptance -------------------------------------------------------------------------------------------------- */

/* True if the tensor already has the layout of its copy, which would then be useless. */
static bool is_redundant(const struct repack_candidate *candidate) {
    return !candidate->must_replace && candidate->tensor->alignment >= candidate->packed.alignment &&
           tensor_same_layout(candidate->tensor, &candidate->packed);
}

/* True if the set of candidates is useful: no tensor is replaced twice or by an equal one, and every necessary one is
   included. If both operands of a product are the same tensor, it is replaced once. */
static bool is_complete(const struct packing *packing) {
    const struct repack_candidate *at = packing->candidates.at;
    bool is_square = at[PACKED_A].value == at[PACKED_B].value, complete = true;
    int both = 1 << PACKED_A | 1 << PACKED_B;
    for (int i = 0; i < REPACK_CANDIDATES; i++) {
        bool is_chosen = packing->chosen >> i & 1, is_other = is_square && packing->chosen & both && i <= PACKED_B;
        complete = complete && (at[i].tensor ? is_chosen || is_other || !at[i].must_replace : !is_chosen) &&
                   !(is_chosen && is_redundant(&at[i]));
    }
    /* An operand of the epilogue must have the layout of the result. */
    bool is_consistent = !at[PACKED_OPERAND].tensor || packing->chosen >> PACKED_OPERAND == 0 || /* both, or neither */
                         packing->chosen >> PACKED_OPERAND == 3;
    return complete && is_consistent && !(is_square && (packing->chosen & both) == both);
}

/* The time of each copy and the family that makes it; INFINITY if no family can. Computed once per candidate,
   independent of the set that is chosen later. */
static void price_copies(double seconds[REPACK_CANDIDATES], struct packing *packing, const struct engine *engine,
                         const struct device *device, struct arena *arena) {
    for (int i = 0; i < REPACK_CANDIDATES; i++) {
        const struct repack_candidate *candidate = &packing->candidates.at[i];
        struct region copy;
        struct offer offer = {.seconds = INFINITY};
        /* Copies that cannot be expressed as a region count as impossible. */
        if (candidate->tensor && !is_redundant(candidate) &&
            (make_copy(&copy, candidate, i == PACKED_RESULT, arena) ||
             engine_offer(&offer, engine, &copy, device, can_copy)))
            offer.seconds = INFINITY;
        packing->copier[i] = offer.family;
        seconds[i] = offer.seconds / COPY_SHARE + COPY_SECONDS;
    }
}

/* Finds the family that multiplies with the chosen copies, and its price, in the graph with these copies. The tensors
   live in `arena`, like the graph that references them. */
static weftStatus_t price_chosen(struct packing *packing, const struct region *region, const struct device *device,
                                 struct arena *arena) {
    struct staged *staged = &packing->staged;
    *staged = (struct staged){0};
    for (int i = 0; i < REPACK_CANDIDATES; i++) {
        const struct repack_candidate *candidate = &packing->candidates.at[i];
        struct tensor *packed;
        if (!(packing->chosen >> i & 1))
            continue;
        TRY(arena_copy(arena, &packed, &candidate->packed, sizeof *packed));
        staged_add(staged, candidate->value, candidate->tensor, packed);
    }
    TRY(staged_exchange(staged, region, arena));
    for (int i = 0; i < region->count; i++)
        /* Rewrites also change parameters of the operation. */
        if (region_node(region, i) == packing->candidates.node)
            TRY(repack_rewrite(&packing->candidates, region_node(&staged->region, i)->op, arena));
    TRY(engine_offer(&staged->inner, region->engine, &staged->region, device, can_multiply));
    packing->seconds = packing->copying + staged->inner.seconds;
    return WEFT_STATUS_SUCCESS;
}

/* Chooses the fastest of all rewrites and sets of candidates, at most 4 x 15. If none is accepted, the reason is that
   for the unchanged product. Sets of operands that no family multiplies are not tried again with other results. */
static weftStatus_t analyse(struct packing *best, const struct region *region, const struct device *device,
                            struct arena *arena) {
    struct packing packing = {0};
    double copying[REPACK_CANDIDATES];
    best->seconds = INFINITY;
    TRY(hopper_check_device(device, "packed family"));
    for (enum rewrite rewrite = REWRITES; rewrite-- > UNCHANGED;) {
        weftStatus_t status = repack_find(&packing.candidates, region, rewrite);
        if (status && rewrite == UNCHANGED)
            return status;
        if (status)
            continue;
        price_copies(copying, &packing, region->engine, device, arena);
        int declined = 0; /* a bit for each of the four sets of operands */
        for (packing.chosen = 1; packing.chosen < 1 << REPACK_CANDIDATES; packing.chosen++) {
            packing.copying = 0;
            for (int i = 0; i < REPACK_CANDIDATES; i++)
                packing.copying += packing.chosen >> i & 1 ? copying[i] : 0;
            int operands = packing.chosen & (1 << PACKED_A | 1 << PACKED_B);
            /* If just the copies cost more than the best choice so far, the set is skipped. */
            if (!is_complete(&packing) || declined >> operands & 1 || packing.copying >= best->seconds)
                continue;
            if (price_chosen(&packing, region, device, arena) != WEFT_STATUS_SUCCESS)
                declined |= 1 << operands;
            else if (packing.seconds < best->seconds)
                *best = packing;
        }
    }
    return best->seconds < INFINITY ? WEFT_STATUS_SUCCESS : WEFT_STATUS_NOT_SUPPORTED;
}

/* Graphs that were tried are only needed for the duration of the query. */
static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    struct packing packing;
    struct arena arena = {0};
    weftStatus_t status = analyse(&packing, region, device, &arena);
    arena_free(&arena);
    TRY(status);
    offer->seconds = packing.seconds;
    offer->used = packing.staged.inner.used;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* Kernels run in this order: copies of inputs, the product, the copy of its result. */
static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    static const char *const words[] = {"", ", narrow groups merged", ", taps as channels", ", lines omitted"};
    struct packing *packing;
    struct cuda_step *state;
    struct step inner;
    TRY(arena_alloc(arena, &packing, sizeof *packing));
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    /* Repeats the analysis in the plan's arena, because the staged graph must outlive the step. */
    TRY(analyse(packing, &step->region, device, arena));
    for (int i = PACKED_A; i < PACKED_RESULT; i++)
        if (packing->chosen >> i & 1)
            TRY(add_copy(state, packing, i, device, arena));
    TRY(staged_build_inner(state, &packing->staged, device, knobs, &inner, arena));
    if (packing->chosen >> PACKED_RESULT & 1)
        TRY(add_copy(state, packing, PACKED_RESULT, device, arena));
    step->workspace_bytes = packing->staged.scratch_bytes + inner.workspace_bytes;
    step->seconds = packing->copying + inner.seconds;
    return arena_print(arena, &step->detail, "%d tensor%s repacked%s, %s: %s", packing->staged.count,
                       plural(packing->staged.count), words[packing->candidates.rewrite],
                       packing->staged.inner.family->name, inner.detail ? inner.detail : "");
}

const struct family cuda_packed = {
    .name = "cuda.packed",
    .combines = true,
    .doc = "a matmul or convolution whose operands are first copied to a layout that Hopper's TMA can read",
    .accepts = accepts,
    .build = build,
    .may_alias = contraction_may_alias,
    .relaxes = contraction_relaxes,
};
