/* Operators that fill and copy: zero, fill, copy, cast, cat, stack, arange, masked fill. */
#include "operators.h"

/* ---- fill ---- */

static aclError run_fill(aclOpExecutor *executor)
{
    view_fill(&executor->views[0], executor->scalars[0]);
    return ACL_OK;
}

static aclError run_zero(aclOpExecutor *executor)
{
    view_fill(&executor->views[0], number_of_integer(0));
    return ACL_OK;
}

static aclError run_one(aclOpExecutor *executor)
{
    view_fill(&executor->views[0], number_of_integer(1));
    return ACL_OK;
}

FIRST_HALF(aclnnInplaceZero)(const aclTensor *self, PLANNED)
{
    PLAN(.name = "aclnnInplaceZero", .prepare = require_numbers, .run = run_zero, .count = 1, .tensors = {self});
}
SECOND_HALF(aclnnInplaceZero)

FIRST_HALF(aclnnInplaceOne)(const aclTensor *self, PLANNED)
{
    PLAN(.name = "aclnnInplaceOne", .prepare = require_numbers, .run = run_one, .count = 1, .tensors = {self});
}
SECOND_HALF(aclnnInplaceOne)

FIRST_HALF(aclnnInplaceFillScalar)(const aclTensor *self, const aclScalar *value, PLANNED)
{
    PLAN(.name = "aclnnInplaceFillScalar", .prepare = require_numbers, .run = run_fill, .count = 1,
         .tensors = {self}, .scalar_count = 1, .scalars = {value});
}
SECOND_HALF(aclnnInplaceFillScalar)

/* ---- copy ---- */

aclError prepare_copy(aclOpExecutor *executor)
{
    bool converts = executor->views[0].dtype != executor->views[1].dtype;
    aclError error = converts ? require_numbers(executor) : ACL_OK;
    return error == ACL_OK ? broadcast_operands(executor) : error;
}

aclError run_copy(aclOpExecutor *executor)
{
    view_copy(&executor->views[0], &executor->views[1]);
    return ACL_OK;
}

FIRST_HALF(aclnnInplaceFillTensor)(const aclTensor *self, const aclTensor *value, PLANNED)
{
    PLAN(.name = "aclnnInplaceFillTensor", .prepare = prepare_copy, .run = run_copy, .count = 2,
         .tensors = {self, value});
}
SECOND_HALF(aclnnInplaceFillTensor)

FIRST_HALF(aclnnInplaceCopy)(const aclTensor *destination, const aclTensor *source, PLANNED)
{
    PLAN(.name = "aclnnInplaceCopy", .prepare = prepare_copy, .run = run_copy, .count = 2,
         .tensors = {destination, source});
}
SECOND_HALF(aclnnInplaceCopy)

FIRST_HALF(aclnnCast)(const aclTensor *self, int dtype, const aclTensor *out, PLANNED)
{
    (void)dtype; /* that of `out` */
    PLAN(.name = "aclnnCast", .prepare = prepare_copy, .run = run_copy, .count = 2, .tensors = {out, self});
}
SECOND_HALF(aclnnCast)

/* ---- cat and stack: the result, then the parts ---- */

/* torch lets an empty list take part in a cat, whatever the dimensions of the others */
static bool is_left_out(const struct view *part)
{
    return part->ndim == 1 && part->shape[0] == 0;
}

static bool may_be_copied(const struct view *to, const struct view *from)
{
    return to->dtype == from->dtype || (dtype_has_numbers(to->dtype) && dtype_has_numbers(from->dtype));
}

static aclError prepare_cat(aclOpExecutor *executor)
{
    const struct view *out = &executor->views[0];
    aclError error = require_dim(executor, out->ndim);
    int64_t filled = 0;
    for (int i = 1; i < executor->count && error == ACL_OK; i++) {
        const struct view *part = &executor->views[i];
        if (is_left_out(part)) {
            continue;
        }
        if (part->ndim != out->ndim || !may_be_copied(out, part)) {
            return operator_refuse(executor->name, "part %d does not fit the result", i - 1);
        }
        int64_t length = part->shape[executor->parameters.dim];
        struct view room = view_narrow(out, (int)executor->parameters.dim, filled, length);
        if (length > out->shape[executor->parameters.dim] - filled || !view_same_shape(&room, part)) {
            return operator_refuse(executor->name, "part %d does not fit the result", i - 1);
        }
        filled += length;
    }
    return error;
}

static aclError run_cat(aclOpExecutor *executor)
{
    int64_t filled = 0;
    int dim = (int)executor->parameters.dim;
    for (int i = 1; i < executor->count; i++) {
        const struct view *part = &executor->views[i];
        if (is_left_out(part)) {
            continue;
        }
        struct view room = view_narrow(&executor->views[0], dim, filled, part->shape[dim]);
        view_copy(&room, part);
        filled += part->shape[dim];
    }
    return ACL_OK;
}

static aclError prepare_stack(aclOpExecutor *executor)
{
    const struct view *out = &executor->views[0];
    aclError error = require_dim(executor, out->ndim);
    if (error == ACL_OK && out->shape[executor->parameters.dim] != executor->count - 1) {
        return operator_refuse(executor->name, "the result has no room for %d parts", executor->count - 1);
    }
    for (int i = 1; i < executor->count && error == ACL_OK; i++) {
        struct view room = view_select(out, (int)executor->parameters.dim, i - 1);
        if (!may_be_copied(&room, &executor->views[i]) || !view_same_shape(&room, &executor->views[i])) {
            return operator_refuse(executor->name, "part %d does not fit the result", i - 1);
        }
    }
    return error;
}

static aclError run_stack(aclOpExecutor *executor)
{
    for (int i = 1; i < executor->count; i++) {
        struct view room = view_select(&executor->views[0], (int)executor->parameters.dim, i - 1);
        view_copy(&room, &executor->views[i]);
    }
    return ACL_OK;
}

FIRST_HALF(aclnnCat)(const aclTensorList *parts, int64_t dim, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnCat", .prepare = prepare_cat, .run = run_cat, .count = 1, .tensors = {out},
         .list = parts, .parameters = {.dim = dim});
}
SECOND_HALF(aclnnCat)

FIRST_HALF(aclnnStack)(const aclTensorList *parts, int64_t dim, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnStack", .prepare = prepare_stack, .run = run_stack, .count = 1, .tensors = {out},
         .list = parts, .parameters = {.dim = dim});
}
SECOND_HALF(aclnnStack)

/* ---- arange: start, end, step ---- */

static struct number arange_element(const struct number *scalars, int64_t i)
{
    if (scalars[0].kind == FLOATING || scalars[2].kind == FLOATING) {
        return number_of_real(number_real(scalars[0]) + (double)i * number_real(scalars[2]));
    }
    uint64_t distance = (uint64_t)i * (uint64_t)scalars[2].integer;
    return number_of_integer((int64_t)((uint64_t)scalars[0].integer + distance));
}

static aclError run_arange(aclOpExecutor *executor)
{
    const struct view *out = &executor->views[0];
    struct walk walk;
    int64_t numel = view_numel(out);
    walk_start(&walk, (const struct view *const[]){out}, 1);
    for (int64_t i = 0; i < numel; i++) {
        number_store(walk.at[0], out->dtype, arange_element(executor->scalars, i));
        walk_next(&walk);
    }
    return ACL_OK;
}

FIRST_HALF(aclnnArange)
(const aclScalar *start, const aclScalar *end, const aclScalar *step, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnArange", .prepare = require_numbers, .run = run_arange, .count = 1, .tensors = {out},
         .scalar_count = 3, .scalars = {start, end, step});
}
SECOND_HALF(aclnnArange)

FIRST_HALF(aclnnRange)
(const aclScalar *start, const aclScalar *end, const aclScalar *step, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnRange", .prepare = require_numbers, .run = run_arange, .count = 1, .tensors = {out},
         .scalar_count = 3, .scalars = {start, end, step});
}
SECOND_HALF(aclnnRange)

/* ---- masked fill: self, mask ---- */

static void masked_fill_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const aclOpExecutor *executor = context;
    for (int64_t i = 0; i < count; i++) {
        if (number_is_nonzero(number_load(at[1] + i * steps[1], executor->views[1].dtype))) {
            number_store(at[0] + i * steps[0], executor->views[0].dtype, executor->scalars[0]);
        }
    }
}

static aclError run_masked_fill(aclOpExecutor *executor)
{
    const struct view *const views[] = {&executor->views[0], &executor->views[1]};
    for_each_row(views, 2, masked_fill_row, executor);
    return ACL_OK;
}

FIRST_HALF(aclnnInplaceMaskedFillScalar)
(const aclTensor *self, const aclTensor *mask, const aclScalar *value, PLANNED)
{
    PLAN(.name = "aclnnInplaceMaskedFillScalar", .prepare = prepare_elementwise, .run = run_masked_fill,
         .count = 2, .tensors = {self, mask}, .scalar_count = 1, .scalars = {value});
}
SECOND_HALF(aclnnInplaceMaskedFillScalar)
