/* SPDX-License-Identifier: Apache-2.0 */
/* Spatial transformers: affine grids, whose ends are the centers of the first and last elements, and bilinear samples
   of images, which are 0 outside. */
#include "src/descriptors.h"

#include <stdlib.h>
#include <string.h>

struct cudnnSpatialTransformerStruct {
    struct shape image; /* of the result, packed */
};

DEFINE_LIFETIME(SpatialTransformer)

cudnnStatus_t cudnnSetSpatialTransformerNdDescriptor(cudnnSpatialTransformerDescriptor_t transformer,
                                                     cudnnSamplerType_t sampler, cudnnDataType_t type, int rank,
                                                     const int *dims) {
    REQUIRE(sampler == CUDNN_SAMPLER_BILINEAR, "cudnnSetSpatialTransformerNdDescriptor: sampler %d: expected %d.",
            (int)sampler, (int)CUDNN_SAMPLER_BILINEAR);
    REQUIRE(rank == 4 || rank == 5, "cudnnSetSpatialTransformerNdDescriptor: %d dimensions: expected 4 or 5.", rank);
    return shape_set(transformer ? &transformer->image : NULL, type, rank, dims, NULL, CUDNN_TENSOR_NCHW);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct transformer_key {
    struct key_head head;
    struct shape image, x, y, dx; /* y: or dy */
    double alpha, beta, grid_alpha, grid_beta;
};

static struct shape packed(int32_t type, int rank, const int64_t *dims) {
    struct shape shape = {.type = type, .rank = rank};
    memcpy(shape.dims, dims, (size_t)rank * sizeof *dims);
    shape_pack(&shape, CUDNN_TENSOR_NCHW);
    return shape;
}

/* [N, .., S] */
static struct shape grid_shape(const struct shape *image) {
    int64_t dims[CUDNN_DIM_MAX] = {image->dims[0]};
    for (int i = 2; i < image->rank; i++)
        dims[i - 1] = image->dims[i];
    dims[image->rank - 1] = image->rank - 2;
    return packed(image->type, image->rank, dims);
}

/* [N, S, S + 1] */
static struct shape theta_shape(const struct shape *image) {
    const int64_t spatial = image->rank - 2, dims[] = {image->dims[0], spatial, spatial + 1};
    return packed(image->type, 3, dims);
}

static const bool align_corners = true;

static void build_grid(struct builder *b, const void *key) {
    const struct transformer_key *k = key;
    const struct shape theta_of = theta_shape(&k->image), grid_of = grid_shape(&k->image);
    const weftDataType_t math = (weftDataType_t)shape_math(&k->image);
    const node theta = stored_tensor(b, UID_W, &theta_of), grid = stored_tensor(b, UID_Y, &grid_of);
    build_op(b, WEFT_BACKEND_OPERATION_AFFINE_GRID_FWD_DESCRIPTOR_EXT, 4,
             (weftAttribute_t[]){NODE(OPERATION_AFFINE_GRID_FWD_THETA_DESC_EXT, theta),
                                 NODE(OPERATION_AFFINE_GRID_FWD_GRID_DESC_EXT, grid),
                                 VALUE(OPERATION_AFFINE_GRID_FWD_ALIGN_CORNERS_EXT, BOOLEAN, align_corners),
                                 VALUE(OPERATION_AFFINE_GRID_FWD_COMP_TYPE_EXT, DATA_TYPE, math)});
}

static void build_grid_backward(struct builder *b, const void *key) {
    const struct transformer_key *k = key;
    const struct shape theta_of = theta_shape(&k->image), grid_of = grid_shape(&k->image);
    const weftDataType_t math = (weftDataType_t)shape_math(&k->image);
    const node dgrid = stored_tensor(b, UID_DY, &grid_of), dtheta = stored_tensor(b, UID_DX, &theta_of);
    build_op(b, WEFT_BACKEND_OPERATION_AFFINE_GRID_BWD_DESCRIPTOR_EXT, 4,
             (weftAttribute_t[]){NODE(OPERATION_AFFINE_GRID_BWD_DGRID_DESC_EXT, dgrid),
                                 NODE(OPERATION_AFFINE_GRID_BWD_DTHETA_DESC_EXT, dtheta),
                                 VALUE(OPERATION_AFFINE_GRID_BWD_ALIGN_CORNERS_EXT, BOOLEAN, align_corners),
                                 VALUE(OPERATION_AFFINE_GRID_BWD_COMP_TYPE_EXT, DATA_TYPE, math)});
}

static void build_sample(struct builder *b, const void *key) {
    const struct transformer_key *k = key;
    const struct shape grid_of = grid_shape(&k->image);
    const weftDataType_t math = (weftDataType_t)shape_math(&k->y);
    struct result result = {.shape = &k->y, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node y = result_begin(b, &result), x = stored_tensor(b, UID_X, &k->x),
               grid = stored_tensor(b, UID_W, &grid_of);
    build_op(b, WEFT_BACKEND_OPERATION_GRID_SAMPLE_FWD_DESCRIPTOR_EXT, 5,
             (weftAttribute_t[]){NODE(OPERATION_GRID_SAMPLE_FWD_XDESC_EXT, x),
                                 NODE(OPERATION_GRID_SAMPLE_FWD_GRID_DESC_EXT, grid),
                                 NODE(OPERATION_GRID_SAMPLE_FWD_YDESC_EXT, y),
                                 VALUE(OPERATION_GRID_SAMPLE_FWD_ALIGN_CORNERS_EXT, BOOLEAN, align_corners),
                                 VALUE(OPERATION_GRID_SAMPLE_FWD_COMP_TYPE_EXT, DATA_TYPE, math)});
    result_end(b, &result);
}

static void build_sample_backward(struct builder *b, const void *key) {
    const struct transformer_key *k = key;
    const struct shape grid_of = grid_shape(&k->image);
    const weftDataType_t math = (weftDataType_t)shape_math(&k->dx);
    struct result of_x = {.shape = &k->dx, .alpha = k->alpha, .beta = k->beta, .uid = UID_DX, .old_uid = UID_OLD};
    struct result of_grid = {
        .shape = &grid_of, .alpha = k->grid_alpha, .beta = k->grid_beta, .uid = UID_DSCALE, .old_uid = UID_OLD_SCALE};
    const node x = stored_tensor(b, UID_X, &k->x), dy = stored_tensor(b, UID_DY, &k->y),
               grid = stored_tensor(b, UID_W, &grid_of), dx = result_begin(b, &of_x), dgrid = result_begin(b, &of_grid);
    build_op(b, WEFT_BACKEND_OPERATION_GRID_SAMPLE_BWD_DESCRIPTOR_EXT, 7,
             (weftAttribute_t[]){
                 NODE(OPERATION_GRID_SAMPLE_BWD_DYDESC_EXT, dy), NODE(OPERATION_GRID_SAMPLE_BWD_XDESC_EXT, x),
                 NODE(OPERATION_GRID_SAMPLE_BWD_GRID_DESC_EXT, grid), NODE(OPERATION_GRID_SAMPLE_BWD_DXDESC_EXT, dx),
                 NODE(OPERATION_GRID_SAMPLE_BWD_DGRID_DESC_EXT, dgrid),
                 VALUE(OPERATION_GRID_SAMPLE_BWD_ALIGN_CORNERS_EXT, BOOLEAN, align_corners),
                 VALUE(OPERATION_GRID_SAMPLE_BWD_COMP_TYPE_EXT, DATA_TYPE, math)});
    result_end(b, &of_x);
    result_end(b, &of_grid);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static struct transformer_key key_of(int32_t graph, int32_t alignment,
                                     cudnnSpatialTransformerDescriptor_t transformer) {
    struct transformer_key key;
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){graph, alignment};
    key.image = transformer->image;
    return key;
}

static cudnnStatus_t generate(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer, const void *theta,
                              void *grid) {
    REQUIRE_HANDLE(handle);
    REQUIRE(transformer && theta && grid, "cudnnSpatialTfGridGeneratorForward: an argument is NULL.");
    struct transformer_key key = key_of(GRAPH_AFFINE_GRID, ALIGNMENT(theta, grid), transformer);
    return PLAN_RUN(handle, key, build_grid, {UID_W, theta}, {UID_Y, grid});
}

cudnnStatus_t cudnnSpatialTfGridGeneratorForward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer,
                                                 const void *theta, void *grid) {
    RETURN_COUNTED(generate(handle, transformer, theta, grid));
}

static cudnnStatus_t differentiate(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer,
                                   const void *dgrid, void *dtheta) {
    REQUIRE_HANDLE(handle);
    REQUIRE(transformer && dgrid && dtheta, "cudnnSpatialTfGridGeneratorBackward: an argument is NULL.");
    struct transformer_key key = key_of(GRAPH_AFFINE_GRID_BACKWARD, ALIGNMENT(dgrid, dtheta), transformer);
    return PLAN_RUN(handle, key, build_grid_backward, {UID_DY, dgrid}, {UID_DX, dtheta});
}

cudnnStatus_t cudnnSpatialTfGridGeneratorBackward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer,
                                                  const void *dgrid, void *dtheta) {
    RETURN_COUNTED(differentiate(handle, transformer, dgrid, dtheta));
}

static cudnnStatus_t sample(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer, const void *alpha,
                            cudnnTensorDescriptor_t x_desc, const void *x, const void *grid, const void *beta,
                            cudnnTensorDescriptor_t y_desc, void *y) {
    REQUIRE_HANDLE(handle);
    REQUIRE(transformer && x_desc && y_desc && x && grid && y, "cudnnSpatialTfSamplerForward: an argument is NULL.");
    struct transformer_key key = key_of(GRAPH_GRID_SAMPLE, ALIGNMENT(x, grid, y), transformer);
    key.x = x_desc->shape, key.y = y_desc->shape;
    key.alpha = read_factor(alpha, &key.y, 1), key.beta = read_factor(beta, &key.y, 0);
    return PLAN_RUN(handle, key, build_sample, {UID_X, x}, {UID_W, grid}, {UID_Y, y}, {UID_OLD, y});
}

cudnnStatus_t cudnnSpatialTfSamplerForward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer,
                                           const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                                           const void *grid, const void *beta, cudnnTensorDescriptor_t y_desc,
                                           void *y) {
    RETURN_COUNTED(sample(handle, transformer, alpha, x_desc, x, grid, beta, y_desc, y));
}

/* The arguments of the gradients, in the order of the function. */
struct gradients {
    const void *alpha;
    cudnnTensorDescriptor_t x_desc;
    const void *x, *beta;
    cudnnTensorDescriptor_t dx_desc;
    void *dx;
    const void *grid_alpha;
    cudnnTensorDescriptor_t dy_desc;
    const void *dy, *grid, *grid_beta;
    void *dgrid;
};

static cudnnStatus_t sample_backward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer,
                                     const struct gradients *g) {
    REQUIRE_HANDLE(handle);
    REQUIRE(transformer && g->x_desc && g->dx_desc && g->dy_desc && g->x && g->dx && g->dy && g->grid && g->dgrid,
            "cudnnSpatialTfSamplerBackward: an argument is NULL.");
    struct transformer_key key =
        key_of(GRAPH_GRID_SAMPLE_BACKWARD, ALIGNMENT(g->x, g->dx, g->dy, g->grid, g->dgrid), transformer);
    key.x = g->x_desc->shape, key.y = g->dy_desc->shape, key.dx = g->dx_desc->shape;
    key.alpha = read_factor(g->alpha, &key.dx, 1), key.beta = read_factor(g->beta, &key.dx, 0);
    key.grid_alpha = read_factor(g->grid_alpha, &key.image, 1),
    key.grid_beta = read_factor(g->grid_beta, &key.image, 0);
    return PLAN_RUN(handle, key, build_sample_backward, {UID_X, g->x}, {UID_DY, g->dy}, {UID_W, g->grid},
                    {UID_DX, g->dx}, {UID_OLD, g->dx}, {UID_DSCALE, g->dgrid}, {UID_OLD_SCALE, g->dgrid});
}

cudnnStatus_t cudnnSpatialTfSamplerBackward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t transformer,
                                            const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                                            const void *beta, cudnnTensorDescriptor_t dx_desc, void *dx,
                                            const void *grid_alpha, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                            const void *grid, const void *grid_beta, void *dgrid) {
    const struct gradients g = {alpha, x_desc, x, beta, dx_desc, dx, grid_alpha, dy_desc, dy, grid, grid_beta, dgrid};
    RETURN_COUNTED(sample_backward(handle, transformer, &g));
}
