/* SPDX-License-Identifier: Apache-2.0 */
/* Paged load family: rows of keys or values from the pages of a cache, as a tensor in memory. Attention reads pages
   itself where it can; this serves every other reader. map/paged_load.cuh moves the elements. */
#include "graph/ops/paged_cache_load.h"
#include "base/number.h"
#include "engines/cuda/core/index_type.h"
#include "engines/cuda/core/kernel.h"
#include "engines/cuda/core/price.h"
#include "engines/cuda/families.h"

enum { THREADS = 256, ACCESS_BYTES = 16 };
enum { BATCH, HEAD, ROW, COLUMN };

static const struct paged_cache_load_op *op_at(const struct region *region) {
    return (const struct paged_cache_load_op *)region_node(region, 0)->op;
}

/* The strides of y in the order of the container: batch, head, row, column. */
static struct dims strides_of_y(const struct paged_cache_load_op *op) {
    struct dims strides = op->y->strides;
    if (paged_cache_load_is_transposed(op)) {
        strides.at[ROW] = op->y->strides.at[COLUMN];
        strides.at[COLUMN] = op->y->strides.at[ROW];
    }
    return strides;
}

static weftStatus_t accepts(const struct region *region, const struct device *device, struct offer *offer) {
    const struct descriptor *op = region_node(region, 0)->op;
    if (op_of(op) != &paged_cache_load_op)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s does not load pages.", descriptor_label(op));
    if (region->count > 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: nothing is fused with it here, %s needs a kernel of its own.", descriptor_label(op),
             descriptor_label(region_node(region, 1)->op));
    const struct paged_cache_load_op *load = op_at(region);
    const struct tensor *tensors[] = {load->container, load->y, load->table, load->length};
    for (int k = 0; k < 4; k++) {
        TRY(tensor_check_plain(tensors[k], op));
        if (!cuda_type_name((weftDataType_t)tensors[k]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, whose elements have no address",
                 descriptor_label(op), descriptor_label(&tensors[k]->base),
                 dtype_of((weftDataType_t)tensors[k]->type)->name);
    }
    offer->seconds = PRICE_LAUNCH_SECONDS + price_moving(2 * (double)tensor_bytes(load->y), device);
    return WEFT_STATUS_SUCCESS;
}

/* Adjacent elements of a row that are one aligned access to a tensor with these strides. */
static int64_t run_of(const struct tensor *tensor, const struct dims *strides, int64_t columns) {
    int64_t run = gcd64(gcd64(tensor->alignment, ACCESS_BYTES) / dtype_bytes((weftDataType_t)tensor->type, 1), columns);
    if (strides->at[COLUMN] != 1)
        return 1;
    for (int i = BATCH; i < COLUMN; i++)
        run = gcd64(run, strides->at[i]);
    return max64(run, 1);
}

static void emit_strides(struct kernel_source *source, const struct dims *strides, const char *const names[4]) {
    for (int i = BATCH; i <= COLUMN; i++)
        emit_number(source, strides->at[i], names[i]);
}

static void emit_memory(struct kernel_source *source, const struct tensor *tensor, const char *type, const char *name) {
    emit_type(source, type, (weftDataType_t)tensor->type);
    emit_pointer(source, (weftDataType_t)tensor->type, graph_find_value(source->graph, tensor), 0, name);
}

/* A stride of an extent of 1 is not used. */
static int64_t stride_of(const struct tensor *tensor, int i) {
    return tensor->dims.at[i] == 1 ? 0 : tensor->strides.at[i];
}

static void emit(struct kernel_source *source, const struct paged_cache_load_op *op, int64_t run, int64_t runs) {
    static const char *const of_container[] = {"container_page", "container_head", "container_row", "container_column"};
    static const char *const of_y[] = {"y_batch", "y_head", "y_row", "y_column"};
    const struct dims strides = strides_of_y(op);
    const int64_t *container = op->container->dims.at;
    bool is_transposed = paged_cache_load_is_transposed(op);
    emit_constant(source, "THREADS", THREADS);
    emit_constant(source, "RUN", run);
    text_add(&source->constants, "using position = %s;\n", index_type(runs));
    text_add(&source->code, "#include \"core/gather.cuh\"\n\n");
    emit_memory(source, op->container, "container_t", "container");
    emit_memory(source, op->table, "table_t", "table");
    emit_memory(source, op->length, "length_t", "length");
    emit_memory(source, op->y, "y_t", "y");
    emit_number(source, runs, "runs");
    emit_divisor(source, container[COLUMN] / run, "runs_per_row");
    emit_divisor(source, op->y->dims.at[is_transposed ? COLUMN : ROW], "rows");
    emit_divisor(source, container[HEAD], "heads");
    emit_divisor(source, container[ROW], "page_rows");
    emit_number(source, container[BATCH], "pages");
    emit_number(source, stride_of(op->length, BATCH), "length_batch");
    emit_number(source, stride_of(op->table, BATCH), "table_batch");
    emit_number(source, stride_of(op->table, ROW), "table_entry");
    emit_strides(source, &op->container->strides, of_container);
    emit_strides(source, &strides, of_y);
}

static weftStatus_t build(struct step *step, const struct device *device, const struct knob_choices *knobs,
                          struct arena *arena) {
    (void)knobs;
    const struct paged_cache_load_op *op = op_at(&step->region);
    const struct dims strides = strides_of_y(op);
    int64_t columns = op->container->dims.at[COLUMN];
    struct cuda_step *state;
    struct kernel_source source;
    TRY(arena_alloc(arena, &state, sizeof *state));
    step->state = state;
    if (tensor_elements(op->y) == 0)
        return arena_print(arena, &step->detail, "nothing to compute");
    int64_t run = gcd64(run_of(op->container, &op->container->strides, columns), run_of(op->y, &strides, columns));
    int64_t runs = tensor_elements(op->y) / run, grid = divide_up(runs, THREADS);
    /* 64 blocks per multiprocessor are enough for any length: blocks loop with the grid's stride. */
    int64_t most = (int64_t)device->cuda.multiprocessors * 64;
    kernel_source_init(&source, &step->region);
    emit(&source, op, run, runs);
    struct cuda_kernel *kernel = &state->kernels[state->count++];
    TRY(kernel_finish(&source, kernel, "map/paged_load.cuh", "paged_load", arena));
    kernel->grid[0] = (uint32_t)min64(grid, most);
    kernel->grid[1] = kernel->grid[2] = 1;
    kernel->block = THREADS;
    kernel->is_dependent = device->cuda.major >= 9;
    return arena_print(arena, &step->detail, "rows of pages, %d per access", (int)run);
}

const struct family cuda_paged_load = {
    .name = "cuda.paged_load",
    .doc = "rows of keys or values from the pages that a table assigns",
    .accepts = accepts,
    .build = build,
};
