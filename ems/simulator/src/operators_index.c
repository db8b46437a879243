/* Operators that take positions: index_select, index_copy, embedding, gather, scatter. */
#include "operators.h"

#include <string.h>

/* ---- one slice of a dimension per index: the written one, the read one, the index ----
 *
 * `packed` has a slice for each index, `table` is what the index points into. */

enum { SELECT, INDEX_COPY };

static const struct view *packed_of(const aclOpExecutor *executor)
{
    return &executor->views[executor->parameters.kind == SELECT ? 0 : 1];
}

static const struct view *table_of(const aclOpExecutor *executor)
{
    return &executor->views[executor->parameters.kind == SELECT ? 1 : 0];
}

static void as_list(struct view *view)
{
    if (view->ndim == 0) {
        view->ndim = 1;
        view->shape[0] = 1;
        view->strides[0] = 1;
    }
}

static aclError prepare_slices(aclOpExecutor *executor)
{
    for (int i = 0; i < executor->count; i++) {
        as_list(&executor->views[i]);
    }
    const struct view *index = &executor->views[2];
    aclError error = require_dim(executor, table_of(executor)->ndim);
    if (error == ACL_OK) {
        error = require_index(executor, index);
    }
    if (error == ACL_OK) {
        error = require_same_dtype(executor, 0, 1);
    }
    if (error != ACL_OK) {
        return error;
    }
    struct view expected = *table_of(executor);
    expected.shape[executor->parameters.dim] = index->shape[0];
    if (index->ndim != 1 || !view_same_shape(&expected, packed_of(executor))) {
        return operator_refuse(executor->name, "the shapes do not fit each other");
    }
    return ACL_OK;
}

static aclError run_slices(aclOpExecutor *executor)
{
    const struct view *index = &executor->views[2];
    const struct view *table = table_of(executor);
    int dim = (int)executor->parameters.dim;
    struct walk walk;
    walk_start(&walk, (const struct view *const[]){index}, 1);
    for (int64_t i = 0; i < index->shape[0]; i++) {
        int64_t position;
        aclError error = read_position(executor, walk.at[0], index->dtype, table->shape[dim], &position);
        if (error != ACL_OK) {
            return error;
        }
        struct view slot = view_select(packed_of(executor), dim, i);
        struct view slice = view_select(table, dim, position);
        if (executor->parameters.kind == SELECT) {
            view_copy(&slot, &slice);
        } else {
            view_copy(&slice, &slot);
        }
        walk_next(&walk);
    }
    return ACL_OK;
}

FIRST_HALF(aclnnIndexSelect)
(const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnIndexSelect", .prepare = prepare_slices, .run = run_slices, .count = 3,
         .tensors = {out, self, index}, .parameters = {.dim = dim, .kind = SELECT});
}
SECOND_HALF(aclnnIndexSelect)

FIRST_HALF(aclnnInplaceIndexCopy)
(const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *source, PLANNED)
{
    PLAN(.name = "aclnnInplaceIndexCopy", .prepare = prepare_slices, .run = run_slices, .count = 3,
         .tensors = {self, source, index}, .parameters = {.dim = dim, .kind = INDEX_COPY});
}
SECOND_HALF(aclnnInplaceIndexCopy)

/* ---- the same into a copy: the result, the values, the index, the original ---- */

static aclError prepare_original(aclOpExecutor *executor)
{
    aclError error = require_same_dtype(executor, 0, 3);
    if (error == ACL_OK && !view_same_shape(&executor->views[0], &executor->views[3])) {
        return operator_refuse(executor->name, "the result does not have the shape of the original");
    }
    return error;
}

static aclError prepare_slices_into_copy(aclOpExecutor *executor)
{
    aclError error = prepare_original(executor);
    return error == ACL_OK ? prepare_slices(executor) : error;
}

static aclError run_slices_into_copy(aclOpExecutor *executor)
{
    view_copy(&executor->views[0], &executor->views[3]);
    return run_slices(executor);
}

FIRST_HALF(aclnnIndexCopy)
(const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *source,
 const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnIndexCopy", .prepare = prepare_slices_into_copy, .run = run_slices_into_copy,
         .count = 4, .tensors = {out, source, index, self}, .parameters = {.dim = dim, .kind = INDEX_COPY});
}
SECOND_HALF(aclnnIndexCopy)

/* ---- embedding: the result, the table of rows, the index ---- */

static aclError prepare_embedding(aclOpExecutor *executor)
{
    const struct view *table = &executor->views[1];
    const struct view *index = &executor->views[2];
    aclError error = require_index(executor, index);
    if (error == ACL_OK) {
        error = require_same_dtype(executor, 0, 1);
    }
    if (error != ACL_OK) {
        return error;
    }
    if (table->ndim != 2 || index->ndim + 1 > MAX_NDIM) {
        return operator_refuse(executor->name, "the table has %d dimensions", table->ndim);
    }
    struct view expected = *index;
    expected.shape[expected.ndim++] = table->shape[1];
    if (!view_same_shape(&expected, &executor->views[0])) {
        return operator_refuse(executor->name, "the shapes do not fit each other");
    }
    return ACL_OK;
}

static aclError run_embedding(aclOpExecutor *executor)
{
    const struct view *index = &executor->views[2];
    const struct view *table = &executor->views[1];
    struct view row = executor->views[0];
    struct view rows = executor->views[0];
    struct walk walk;
    rows.ndim--;
    row.ndim = 1;
    row.shape[0] = executor->views[0].shape[rows.ndim];
    row.strides[0] = executor->views[0].strides[rows.ndim];
    walk_start(&walk, (const struct view *const[]){index, &rows}, 2);
    for (int64_t i = view_numel(index); i > 0; i--) {
        int64_t position;
        aclError error = read_position(executor, walk.at[0], index->dtype, table->shape[0], &position);
        if (error != ACL_OK) {
            return error;
        }
        struct view source = view_select(table, 0, position);
        row.data = walk.at[1];
        view_copy(&row, &source);
        walk_next(&walk);
    }
    return ACL_OK;
}

FIRST_HALF(aclnnEmbedding)(const aclTensor *weight, const aclTensor *index, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnEmbedding", .prepare = prepare_embedding, .run = run_embedding, .count = 3,
         .tensors = {out, weight, index});
}
SECOND_HALF(aclnnEmbedding)

/* ---- one element per index: the written one, the read one, the index ---- */

enum { GATHER, SCATTER };

static aclError prepare_elements(aclOpExecutor *executor)
{
    for (int i = 0; i < executor->count; i++) {
        as_list(&executor->views[i]);
    }
    const struct view *index = &executor->views[2];
    aclError error = require_dim(executor, index->ndim);
    if (error == ACL_OK) {
        error = require_index(executor, index);
    }
    if (error == ACL_OK) {
        error = require_same_dtype(executor, 0, 1);
    }
    for (int i = 0; i < 2 && error == ACL_OK; i++) {
        bool is_table = i == (executor->parameters.kind == GATHER);
        const struct view *view = &executor->views[i];
        if (view->ndim != index->ndim) {
            return operator_refuse(executor->name, "the shapes do not fit each other");
        }
        for (int dim = 0; dim < index->ndim; dim++) {
            bool is_free = is_table && dim == executor->parameters.dim;
            if (!is_free && view->shape[dim] < index->shape[dim]) {
                return operator_refuse(executor->name, "the index is larger than operand %d", i);
            }
        }
    }
    return error;
}

static aclError run_elements(aclOpExecutor *executor)
{
    bool gathers = executor->parameters.kind == GATHER;
    int dim = (int)executor->parameters.dim;
    const struct view *index = &executor->views[2];
    struct view table = executor->views[gathers ? 1 : 0];
    size_t size = dtype_size(table.dtype);
    int64_t step = table.strides[dim] * (int64_t)size;
    int64_t length = table.shape[dim];
    struct walk walk;
    table.strides[dim] = 0;
    walk_start(&walk, (const struct view *const[]){index, &executor->views[gathers ? 0 : 1], &table}, 3);
    for (int64_t i = view_numel(index); i > 0; i--) {
        int64_t position;
        aclError error = read_position(executor, walk.at[0], index->dtype, length, &position);
        if (error != ACL_OK) {
            return error;
        }
        char *element = walk.at[2] + position * step;
        memmove(gathers ? walk.at[1] : element, gathers ? element : walk.at[1], size);
        walk_next(&walk);
    }
    return ACL_OK;
}

FIRST_HALF(aclnnGather)
(const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnGather", .prepare = prepare_elements, .run = run_elements, .count = 3,
         .tensors = {out, self, index}, .parameters = {.dim = dim, .kind = GATHER});
}
SECOND_HALF(aclnnGather)

static aclError prepare_scatter(aclOpExecutor *executor)
{
    if (executor->parameters.low != 0) {
        return operator_refuse(executor->name, "a scatter that reduces is not simulated");
    }
    aclError error = executor->count > 3 ? prepare_original(executor) : ACL_OK;
    return error == ACL_OK ? prepare_elements(executor) : error;
}

static aclError run_scatter_into_copy(aclOpExecutor *executor)
{
    view_copy(&executor->views[0], &executor->views[3]);
    return run_elements(executor);
}

FIRST_HALF(aclnnInplaceScatter)
(const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *source, int64_t reduction, PLANNED)
{
    PLAN(.name = "aclnnInplaceScatter", .prepare = prepare_scatter, .run = run_elements, .count = 3,
         .tensors = {self, source, index}, .parameters = {.dim = dim, .kind = SCATTER, .low = reduction});
}
SECOND_HALF(aclnnInplaceScatter)

FIRST_HALF(aclnnScatter)
(const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *source, int64_t reduction,
 const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnScatter", .prepare = prepare_scatter, .run = run_scatter_into_copy, .count = 4,
         .tensors = {out, source, index, self},
         .parameters = {.dim = dim, .kind = SCATTER, .low = reduction});
}
SECOND_HALF(aclnnScatter)
