/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the repack family, without a GPU: the reference implementations run the small graphs of its copies, and
   every element that they write is checked; the product is then computed from the copies. */
#include "cuda_family.h"

#include "engines/cuda/map/copy_fallback.h"
#include "engines/cuda/map/copy_region.h"
#include "engines/cuda/product/repack/repack.h"

#include <math.h>

enum { ELEMENTS_MAX = 16384, VALUES_MAX = 6 };

/* ---- Running a copy ---------------------------------------------------------------------------------------------- */

/* Values of a copy's region; its input and output are stored elsewhere. */
static float memory[VALUES_MAX][ELEMENTS_MAX];

static void run(const struct region *region, void *from, void *to) {
    for (int n = 0; n < region->count; n++) {
        const struct node *node = region_node(region, n);
        void *values[VALUES_MAX];
        for (int v = 0; v < region->graph->value_count; v++) {
            int64_t bytes = tensor_bytes(region->graph->values[v].tensor);
            CHECK(bytes <= (int64_t)sizeof *memory, "%lld bytes", (long long)bytes);
            values[v] = v == COPY_FROM ? from : v == COPY_TO ? to : memory[v];
        }
        op_of(node->op)->reference(node->op, &(struct bindings){.graph = region->graph, .values = values});
    }
}

/* The input counts up from 1. */
static void count_up(const struct region *region) {
    for (int i = 0; i < ELEMENTS_MAX; i++)
        memory[COPY_FROM][i] = (float)(i + 1);
    run(region, memory[COPY_FROM], memory[COPY_TO]);
}

/* ---- Candidates -------------------------------------------------------------------------------------------------- */

enum direction { FORWARD, DATA, FILTER };

struct shape {
    enum direction direction;
    struct extents x, w, y;
    int64_t stride, padding;
    int type;
};

static desc open_product(const struct shape *shape, desc x, desc w, desc y) {
    static const struct {
        weftBackendDescriptorType_t kind;
        weftBackendAttributeName_t parameters, x, w, y;
    } names[] = {
        {WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
    };
    const int64_t strides[] = {shape->stride, shape->stride}, padding[] = {shape->padding, shape->padding};
    desc parameters = make(WEFT_BACKEND_CONVOLUTION_DESCRIPTOR), op = make(names[shape->direction].kind);
    MUST(set_enum(parameters, WEFT_ATTR_CONVOLUTION_COMP_TYPE, WEFT_TYPE_DATA_TYPE, F32));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_FILTER_STRIDES, 2, strides));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_PRE_PADDINGS, 2, padding));
    MUST(set_numbers(parameters, WEFT_ATTR_CONVOLUTION_POST_PADDINGS, 2, padding));
    MUST(weftBackendFinalize(parameters));
    MUST(set_held(op, names[shape->direction].parameters, parameters));
    MUST(set_held(op, names[shape->direction].x, x));
    MUST(set_held(op, names[shape->direction].w, w));
    MUST(set_held(op, names[shape->direction].y, y));
    drop(parameters);
    return op;
}

/* Calls `look` with the candidates for a convolution of packed tensors. */
static void with_candidates(const struct shape *shape, enum rewrite rewrite,
                            void (*look)(const struct repack_candidates *candidates, const struct region *region,
                                         struct arena *arena)) {
    struct model m = {.next_uid = 1};
    struct repack_candidates candidates;
    struct arena arena = {0};
    int node = 0;
    desc x = typed(&m, shape->x, shape->type), w = typed(&m, shape->w, shape->type);
    add(&m, open_product(shape, x, w, typed(&m, shape->y, shape->type)));
    desc graph = graph_of(m.count, m.ops);
    for (int i = 0; i < m.kept_count; i++)
        drop(m.kept[i]);
    struct region region = {.graph = (const struct graph *)graph, .count = 1, .nodes = &node};
    MUST(repack_find(&candidates, &region, rewrite));
    look(&candidates, &region, &arena);
    arena_free(&arena);
    drop(graph);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

enum { FILTERS = 16, WIDTH = 4, TAPS = 3 * 3 }; /* 4 groups of 4 filters and 4 channels: all merged, since 16 < 32 */

static const struct shape narrow = {FORWARD, DIMS(1, 16, 6, 6), DIMS(16, 4, 3, 3), DIMS(1, 16, 6, 6), 1, 1, F32};

static int64_t at_packed(const struct tensor *packed, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t *strides = packed->strides.at;
    return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
}

static void look_at_merged(const struct repack_candidates *candidates, const struct region *product,
                           struct arena *arena) {
    (void)product;
    const struct repack_candidate *candidate = &candidates->at[PACKED_B];
    struct region region;
    CHECK(candidate->must_replace && candidate->is_diagonal && candidate->packed.dims.at[1] == FILTERS, "%s",
          tensor_dims_text(&candidate->packed));
    MUST(copy_diagonal_region(&region, &candidate->tensor_view, &candidate->packed_view, arena));
    count_up(&region);
    for (int k = 0; k < FILTERS; k++)
        for (int c = 0; c < FILTERS; c++)
            for (int tap = 0; tap < TAPS; tap++) {
                float got = memory[COPY_TO][at_packed(&candidate->packed, k, c, tap / 3, tap % 3)];
                float want = k / WIDTH == c / WIDTH ? (float)((k * WIDTH + c % WIDTH) * TAPS + tap + 1) : 0;
                CHECK(got == want, "filter %d, channel %d, tap %d: %g, not %g", k, c, tap, got, want);
            }
}

static void look_at_merged_result(const struct repack_candidates *candidates, const struct region *product,
                                  struct arena *arena) {
    (void)product;
    const struct repack_candidate *candidate = &candidates->at[PACKED_RESULT];
    struct region region;
    CHECK(candidate->must_replace, "%s", tensor_dims_text(&candidate->packed));
    MUST(copy_region(&region, &candidate->packed_view, &candidate->tensor_view, arena));
    count_up(&region);
    for (int k = 0; k < FILTERS; k++)
        for (int c = 0; c < WIDTH; c++)
            for (int tap = 0; tap < TAPS; tap++) {
                float got = memory[COPY_TO][(k * WIDTH + c) * TAPS + tap];
                int64_t own = at_packed(&candidate->packed, k, k / WIDTH * WIDTH + c, tap / 3, tap % 3);
                CHECK(got == (float)(own + 1), "filter %d, channel %d, tap %d: %g, not %lld", k, c, tap, got,
                      (long long)own + 1);
            }
}

static void groups_are_merged(void) {
    struct shape gradient = narrow;
    gradient.direction = FILTER;
    with_candidates(&narrow, MERGED, look_at_merged);
    with_candidates(&gradient, MERGED, look_at_merged_result);
}

/* 2 images of 3 channels, 13 x 13: 3 x 3 patches of 4 x 4, and one line that belongs to no patch. */
static const struct shape cut = {FORWARD, DIMS(2, 3, 13, 13), DIMS(5, 3, 4, 4), DIMS(2, 5, 3, 3), 4, 0, F32};

static void look_at_patches(const struct repack_candidates *candidates, const struct region *product,
                            struct arena *arena) {
    (void)product;
    const struct repack_candidate *image = &candidates->at[PACKED_A], *filter = &candidates->at[PACKED_B];
    struct region region;
    CHECK(image->must_replace && image->packed.dims.at[1] == 48 && filter->packed.dims.at[1] == 48, "%s and %s",
          tensor_dims_text(&image->packed), tensor_dims_text(&filter->packed));
    MUST(copy_region(&region, &image->tensor_view, &image->packed_view, arena));
    count_up(&region);
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 48; c++)
            for (int place = 0; place < 9; place++) {
                int h = place / 3 * 4 + c % 16 / 4, w = place % 3 * 4 + c % 4;
                float got = memory[COPY_TO][at_packed(&image->packed, n, c, place / 3, place % 3)];
                float want = (float)(((n * 3 + c / 16) * 13 + h) * 13 + w + 1);
                CHECK(got == want, "image %d, channel %d, patch %d: %g, not %g", n, c, place, got, want);
            }
    MUST(copy_region(&region, &filter->tensor_view, &filter->packed_view, arena));
    count_up(&region);
    for (int k = 0; k < 5; k++)
        for (int c = 0; c < 48; c++) {
            float got = memory[COPY_TO][at_packed(&filter->packed, k, c, 0, 0)];
            CHECK(got == (float)(k * 48 + c + 1), "filter %d, channel %d: %g", k, c, got);
        }
}

static void patches_are_cut(void) { with_candidates(&cut, PATCHES, look_at_patches); }

/* ---- The product of the copies ----------------------------------------------------------------------------------- */

/* Tensors of the product, their repacked copies, and the expected result. */
static char given[VALUES_MAX][ELEMENTS_MAX * 4], packed[VALUES_MAX][ELEMENTS_MAX * 4], expected[ELEMENTS_MAX * 4];

/* Small integers, exact in any type; other bytes are NaN. */
static void fill(char *bytes, int type, int64_t elements) {
    for (int64_t i = 0; i < ELEMENTS_MAX; i++) {
        float number = i < elements ? (float)(rand() % 7 - 3) : NAN;
        if (type == F32)
            memcpy(bytes + i * 4, &number, 4);
        else
            memcpy(bytes + i * 2, (char *)&number + 2, 2); /* bf16 */
    }
}

static void calculate(const struct region *region, char (*places)[ELEMENTS_MAX * 4], int exchanged) {
    const struct node *node = region_node(region, 0);
    void *values[VALUES_MAX];
    for (int v = 0; v < region->graph->value_count; v++)
        values[v] = exchanged >> v & 1 ? packed[v] : places[v];
    op_of(node->op)->reference(node->op, &(struct bindings){.graph = region->graph, .values = values});
}

static void calculate_on_copies(const struct repack_candidates *candidates, const struct region *region,
                                struct arena *arena) {
    const struct graph *graph = region->graph;
    struct staged staged = {0};
    struct region copy;
    int exchanged = 0, output = 0;
    while (!graph->nodes[0].is_output[output])
        output++;
    int result = graph->nodes[0].operands[output];
    for (int v = 0; v < graph->value_count; v++)
        fill(given[v], graph->values[v].tensor->type, tensor_elements(graph->values[v].tensor));
    calculate(region, given, 0);
    memcpy(expected, given[result], sizeof expected);
    fill(given[result], graph->values[result].tensor->type, 0);
    for (int i = 0; i < REPACK_CANDIDATES; i++) {
        const struct repack_candidate *candidate = &candidates->at[i];
        if (!candidate->tensor)
            continue;
        CHECK(tensor_bytes(&candidate->packed) <= (int64_t)sizeof *packed, "%lld",
              (long long)tensor_bytes(&candidate->packed));
        fill(packed[candidate->value], candidate->packed.type, 0);
        exchanged |= 1 << candidate->value;
        staged_add(&staged, candidate->value, candidate->tensor, &candidate->packed);
        if (i == PACKED_RESULT)
            continue;
        MUST((candidate->is_diagonal ? copy_diagonal_region : copy_region)(&copy, &candidate->tensor_view,
                                                                           &candidate->packed_view, arena));
        run(&copy, given[candidate->value], packed[candidate->value]);
    }
    MUST(staged_exchange(&staged, region, arena));
    MUST(repack_rewrite(candidates, region_node(&staged.region, 0)->op, arena));
    calculate(&staged.region, given, exchanged);
    if (candidates->at[PACKED_RESULT].tensor) {
        const struct repack_candidate *candidate = &candidates->at[PACKED_RESULT];
        MUST(copy_region(&copy, &candidate->packed_view, &candidate->tensor_view, arena));
        run(&copy, packed[candidate->value], given[candidate->value]);
    }
    int64_t bytes = tensor_bytes(graph->values[result].tensor);
    CHECK(memcmp(expected, given[result], (size_t)bytes) == 0, "%s, written otherwise (%d), is something else",
          descriptor_label(candidates->node->op), (int)candidates->rewrite);
}

static void products_stay(void) {
    static const struct shape shapes[] = {
        {FORWARD, DIMS(2, 24, 7, 6), DIMS(12, 4, 3, 3), DIMS(2, 12, 4, 3), 2, 1, F32},
        {FORWARD, DIMS(2, 32, 7, 6), DIMS(64, 2, 3, 1), DIMS(2, 64, 5, 6), 1, 0, BF16},
    };
    static const struct shape patches[] = {
        {FORWARD, DIMS(3, 5, 9, 13), DIMS(7, 5, 4, 4), DIMS(3, 7, 2, 3), 4, 0, F32},
        {FORWARD, DIMS(3, 3, 9, 12), DIMS(7, 3, 3, 3), DIMS(3, 7, 3, 4), 3, 0, BF16},
    };
    for (int i = 0; i < 2; i++)
        for (int direction = FORWARD; direction <= FILTER; direction++) {
            struct shape shape = shapes[i], cuts = patches[i];
            shape.direction = cuts.direction = (enum direction)direction;
            with_candidates(&shape, UNCHANGED, calculate_on_copies);
            with_candidates(&shape, MERGED, calculate_on_copies);
            if (direction != DATA)
                with_candidates(&cuts, PATCHES, calculate_on_copies);
        }
}

int main(void) {
    RUN(groups_are_merged());
    RUN(patches_are_cut());
    RUN(products_stay());
    return harness_end();
}
