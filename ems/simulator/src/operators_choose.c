/* Operators whose result has a size that only the data tell: masked_select, nonzero.
 *
 * The caller gives a result for the worst case, synchronises, and asks its own handle for the
 * shape (aclGetViewShape). The last operand says which elements are chosen. */
#include "operators.h"

#include <string.h>

static aclError require_room(const aclOpExecutor *executor, int64_t numel)
{
    const struct view *out = &executor->views[0];
    if (!view_is_contiguous(out) || view_numel(out) < numel) {
        return operator_refuse(executor->name, "the result has no room for the worst case");
    }
    return ACL_OK;
}

static aclError prepare_masked_select(aclOpExecutor *executor)
{
    struct view shape = executor->views[1];
    bool fits = shape_broadcast(&shape, &executor->views[2]);
    if (!fits || !view_broadcast(&executor->views[1], &shape) || !view_broadcast(&executor->views[2], &shape)) {
        return operator_refuse(executor->name, "the mask does not have the shape of the operand");
    }
    if (!dtype_has_numbers(executor->views[2].dtype) || executor->views[0].ndim != 1) {
        return operator_refuse(executor->name, "the mask or the result cannot be used");
    }
    aclError error = require_same_dtype(executor, 0, 1);
    return error == ACL_OK ? require_room(executor, view_numel(&shape)) : error;
}

static aclError run_masked_select(aclOpExecutor *executor)
{
    const struct view *self = &executor->views[1];
    const struct view *mask = &executor->views[2];
    size_t size = dtype_size(self->dtype);
    char *to = executor->views[0].data;
    int64_t chosen = 0;
    struct walk walk;
    walk_start(&walk, (const struct view *const[]){self, mask}, 2);
    for (int64_t i = view_numel(self); i > 0; i--) {
        if (number_is_nonzero(number_load(walk.at[1], mask->dtype))) {
            memcpy(to + chosen * (int64_t)size, walk.at[0], size);
            chosen++;
        }
        walk_next(&walk);
    }
    executor->result->view.shape[0] = chosen;
    return ACL_OK;
}

FIRST_HALF(aclnnMaskedSelect)(const aclTensor *self, const aclTensor *mask, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnMaskedSelect", .prepare = prepare_masked_select, .run = run_masked_select,
         .count = 3, .tensors = {out, self, mask}, .result = out);
}
SECOND_HALF(aclnnMaskedSelect)

/* nonzero: a row of positions per element found, or a row of elements per dimension */
enum { ROW_PER_ELEMENT, ROW_PER_DIM };

static aclError prepare_nonzero(aclOpExecutor *executor)
{
    const struct view *self = &executor->views[1];
    if (!dtype_has_numbers(self->dtype) || executor->views[0].dtype != I64 || executor->views[0].ndim != 2) {
        return operator_refuse(executor->name, "the operand or the result cannot be used");
    }
    return require_room(executor, view_numel(self) * self->ndim);
}

static int64_t count_nonzero(const struct view *self)
{
    struct walk walk;
    int64_t found = 0;
    walk_start(&walk, &self, 1);
    for (int64_t i = view_numel(self); i > 0; i--) {
        found += number_is_nonzero(number_load(walk.at[0], self->dtype));
        walk_next(&walk);
    }
    return found;
}

static aclError run_nonzero(aclOpExecutor *executor)
{
    const struct view *self = &executor->views[1];
    bool row_per_dim = executor->parameters.kind == ROW_PER_DIM;
    int64_t total = count_nonzero(self);
    int64_t found = 0;
    struct walk walk;
    walk_start(&walk, &self, 1);
    for (int64_t i = view_numel(self); i > 0; i--) {
        bool chosen = number_is_nonzero(number_load(walk.at[0], self->dtype));
        for (int dim = 0; chosen && dim < self->ndim; dim++) {
            int64_t place = row_per_dim ? dim * total + found : found * self->ndim + dim;
            memcpy(executor->views[0].data + place * (int64_t)sizeof place, &walk.position[dim], sizeof place);
        }
        found += chosen;
        walk_next(&walk);
    }
    executor->result->view.shape[row_per_dim ? 1 : 0] = total;
    return ACL_OK;
}

FIRST_HALF(aclnnNonzero)(const aclTensor *self, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnNonzero", .prepare = prepare_nonzero, .run = run_nonzero, .count = 2,
         .tensors = {out, self}, .result = out, .parameters = {.kind = ROW_PER_ELEMENT});
}
SECOND_HALF(aclnnNonzero)

FIRST_HALF(aclnnNonzeroV2)(const aclTensor *self, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnNonzeroV2", .prepare = prepare_nonzero, .run = run_nonzero, .count = 2,
         .tensors = {out, self}, .result = out, .parameters = {.kind = ROW_PER_DIM});
}
SECOND_HALF(aclnnNonzeroV2)
