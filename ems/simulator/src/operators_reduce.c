/* Operators whose result is smaller than the operand: all, any, sum, max, min, equal. */
#include "operators.h"

#include <string.h>

/* ---- reductions: the result, the operand ---- */

enum reduction { ALL, ANY, SUM, MAX, MIN };

struct reducing {
    enum reduction kind;
    int dtype;
    bool has_value;
    struct number value;
};

static struct number sum_of(struct number left, struct number right)
{
    if (right.kind == FLOATING) {
        left.kind = FLOATING;
        left.real += right.real;
        left.imaginary += right.imaginary;
    } else {
        left.integer = (int64_t)((uint64_t)left.integer + (uint64_t)right.integer);
    }
    return left;
}

/* a NaN, once met, stays */
static bool is_better(enum reduction kind, struct number candidate, struct number best)
{
    if (number_is_nan(best) || number_is_nan(candidate)) {
        return !number_is_nan(best);
    }
    return kind == MAX ? number_less(best, candidate) : number_less(candidate, best);
}

static void reduce_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    struct reducing *reducing = context;
    for (int64_t i = 0; i < count; i++) {
        struct number element = number_load(at[0] + i * steps[0], reducing->dtype);
        switch (reducing->kind) {
        case ALL:
            reducing->value.integer &= number_is_nonzero(element);
            break;
        case ANY:
            reducing->value.integer |= number_is_nonzero(element);
            break;
        case SUM:
            reducing->value = sum_of(reducing->value, element);
            break;
        default:
            if (!reducing->has_value || is_better(reducing->kind, element, reducing->value)) {
                reducing->value = element;
            }
            reducing->has_value = true;
            break;
        }
    }
}

static bool is_reduced(const aclOpExecutor *executor, int dim)
{
    return executor->parameters.reduced >> dim & 1;
}

/* the operand's dimensions that stay, or those that are reduced */
static struct view dims_of(const aclOpExecutor *executor, bool reduced)
{
    const struct view *self = &executor->views[1];
    struct view part = *self;
    part.ndim = 0;
    for (int dim = 0; dim < self->ndim; dim++) {
        if (is_reduced(executor, dim) == reduced) {
            part.shape[part.ndim] = self->shape[dim];
            part.strides[part.ndim] = self->strides[dim];
            part.ndim++;
        }
    }
    return part;
}

/* the result without the dimensions of size 1 that a reduction may keep */
static struct view result_of(const aclOpExecutor *executor)
{
    const struct view *out = &executor->views[0];
    struct view result = *out;
    if (!executor->parameters.keep_dims) {
        return result;
    }
    result.ndim = 0;
    for (int dim = 0; dim < out->ndim; dim++) {
        if (!is_reduced(executor, dim)) {
            result.shape[result.ndim] = out->shape[dim];
            result.strides[result.ndim] = out->strides[dim];
            result.ndim++;
        }
    }
    return result;
}

static aclError prepare_reduction(aclOpExecutor *executor)
{
    enum reduction kind = (enum reduction)executor->parameters.kind;
    aclError error = require_numbers(executor);
    if (error != ACL_OK) {
        return error;
    }
    struct view kept = dims_of(executor, false);
    struct view reduced = dims_of(executor, true);
    struct view result = result_of(executor);
    int out_ndim = executor->parameters.keep_dims ? executor->views[1].ndim : kept.ndim;
    if (executor->views[0].ndim != out_ndim || !view_same_shape(&kept, &result)) {
        return operator_refuse(executor->name, "the result does not have the shape of the reduction");
    }
    bool picks = kind == MAX || kind == MIN;
    if (picks && dtype_category(executor->views[1].dtype) == IS_COMPLEX) {
        return operator_refuse(executor->name, "complex numbers have no order");
    }
    if (picks && view_numel(&reduced) == 0) {
        return operator_refuse(executor->name, "there is no element to pick");
    }
    return ACL_OK;
}

static aclError run_reduction(aclOpExecutor *executor)
{
    enum reduction kind = (enum reduction)executor->parameters.kind;
    struct view kept = dims_of(executor, false);
    struct view reduced = dims_of(executor, true);
    struct view result = result_of(executor);
    const struct view *const rows[] = {&reduced};
    struct walk walk;
    walk_start(&walk, (const struct view *const[]){&result, &kept}, 2);
    for (int64_t i = view_numel(&result); i > 0; i--) {
        struct reducing reducing = {.kind = kind, .dtype = reduced.dtype, .value = number_of_integer(kind == ALL)};
        reduced.data = walk.at[1];
        for_each_row(rows, 1, reduce_row, &reducing);
        number_store(walk.at[0], result.dtype, reducing.value);
        walk_next(&walk);
    }
    return ACL_OK;
}

/* a bit for each dimension; all of them when none is named */
static bool reduced_dims(const aclTensor *self, const aclIntArray *dims, uint64_t *bits)
{
    int ndim = self != NULL ? self->view.ndim : 0;
    *bits = dims == NULL || dims->count == 0 ? (UINT64_C(1) << ndim) - 1 : 0;
    for (uint64_t i = 0; dims != NULL && i < dims->count; i++) {
        int64_t dim = dims->values[i] < 0 ? dims->values[i] + ndim : dims->values[i];
        bool is_scalar = ndim == 0 && (dims->values[i] == 0 || dims->values[i] == -1);
        if (!is_scalar && (dim < 0 || dim >= ndim)) {
            return false;
        }
        *bits |= is_scalar ? 0 : UINT64_C(1) << dim;
    }
    return true;
}

static aclError plan_reduction(const char *name, enum reduction kind, const aclTensor *self,
                               const aclIntArray *dims, bool keep_dims, const aclTensor *out, PLANNED)
{
    struct parameters parameters = {.kind = (int)kind, .keep_dims = keep_dims};
    if (!reduced_dims(self, dims, &parameters.reduced)) {
        return operator_refuse(name, "it is to reduce a dimension that does not exist");
    }
    PLAN(.name = name, .prepare = prepare_reduction, .run = run_reduction, .count = 2,
         .tensors = {out, self}, .parameters = parameters);
}

FIRST_HALF(aclnnAll)
(const aclTensor *self, const aclIntArray *dims, bool keep_dims, const aclTensor *out, PLANNED)
{
    return plan_reduction("aclnnAll", ALL, self, dims, keep_dims, out, workspace, planned);
}
SECOND_HALF(aclnnAll)

FIRST_HALF(aclnnAny)
(const aclTensor *self, const aclIntArray *dims, bool keep_dims, const aclTensor *out, PLANNED)
{
    return plan_reduction("aclnnAny", ANY, self, dims, keep_dims, out, workspace, planned);
}
SECOND_HALF(aclnnAny)

FIRST_HALF(aclnnReduceSum)
(const aclTensor *self, const aclIntArray *dims, bool keep_dims, int dtype, const aclTensor *out, PLANNED)
{
    (void)dtype; /* that of `out` */
    return plan_reduction("aclnnReduceSum", SUM, self, dims, keep_dims, out, workspace, planned);
}
SECOND_HALF(aclnnReduceSum)

FIRST_HALF(aclnnMax)(const aclTensor *self, const aclTensor *out, PLANNED)
{
    return plan_reduction("aclnnMax", MAX, self, NULL, false, out, workspace, planned);
}
SECOND_HALF(aclnnMax)

FIRST_HALF(aclnnMin)(const aclTensor *self, const aclTensor *out, PLANNED)
{
    return plan_reduction("aclnnMin", MIN, self, NULL, false, out, workspace, planned);
}
SECOND_HALF(aclnnMin)

/* ---- the largest or smallest along one dimension: the result, its positions, the operand ---- */

static aclError prepare_pick(aclOpExecutor *executor)
{
    const struct view *self = &executor->views[2];
    aclError error = require_numbers(executor);
    if (error == ACL_OK) {
        error = require_dim(executor, self->ndim);
    }
    if (error == ACL_OK) {
        error = require_index(executor, &executor->views[1]);
    }
    if (error != ACL_OK) {
        return error;
    }
    int dim = (int)executor->parameters.dim;
    struct view expected = executor->parameters.keep_dims ? view_narrow(self, dim, 0, 1) : view_select(self, dim, 0);
    bool fits = view_same_shape(&executor->views[0], &expected) && view_same_shape(&executor->views[1], &expected);
    if (!fits || self->shape[dim] == 0 || dtype_category(self->dtype) == IS_COMPLEX) {
        return operator_refuse(executor->name, "the shapes do not fit, or there is nothing to pick");
    }
    return ACL_OK;
}

static aclError run_pick(aclOpExecutor *executor)
{
    enum reduction kind = (enum reduction)executor->parameters.kind;
    int dim = (int)executor->parameters.dim;
    struct view out = executor->views[0];
    struct view positions = executor->views[1];
    const struct view *self = &executor->views[2];
    struct view start = view_select(self, dim, 0);
    int64_t step = self->strides[dim] * (int64_t)dtype_size(self->dtype);
    struct walk walk;
    if (executor->parameters.keep_dims) {
        out = view_select(&out, dim, 0);
        positions = view_select(&positions, dim, 0);
    }
    walk_start(&walk, (const struct view *const[]){&out, &positions, &start}, 3);
    for (int64_t i = view_numel(&out); i > 0; i--) {
        int64_t place = 0;
        struct number best = number_load(walk.at[2], self->dtype);
        for (int64_t k = 1; k < self->shape[dim]; k++) {
            struct number candidate = number_load(walk.at[2] + k * step, self->dtype);
            if (is_better(kind, candidate, best)) {
                best = candidate;
                place = k;
            }
        }
        number_store(walk.at[0], out.dtype, best);
        number_store(walk.at[1], positions.dtype, number_of_integer(place));
        walk_next(&walk);
    }
    return ACL_OK;
}

#define PICK(operator, which)                                                                  \
    FIRST_HALF(operator)(const aclTensor *self, int64_t dim, bool keep_dims, const aclTensor *out, \
                         const aclTensor *positions, PLANNED)                                  \
    {                                                                                          \
        PLAN(.name = #operator, .prepare = prepare_pick, .run = run_pick, .count = 3,          \
             .tensors = {out, positions, self},                                                \
             .parameters = {.dim = dim, .kind = which, .keep_dims = keep_dims});               \
    }                                                                                          \
    SECOND_HALF(operator)

PICK(aclnnMaxDim, MAX)
PICK(aclnnMinDim, MIN)

/* ---- equal: one bool for the result, the two operands ---- */

struct comparing {
    int left;
    int right;
    bool equal;
};

static void compare_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    struct comparing *comparing = context;
    int64_t size = (int64_t)dtype_size(comparing->left);
    bool has_equal_bytes = comparing->left == comparing->right && dtype_category(comparing->left) <= IS_INTEGER;
    if (has_equal_bytes && steps[0] == size && steps[1] == size) {
        comparing->equal = comparing->equal && memcmp(at[0], at[1], (size_t)(count * size)) == 0;
        return;
    }
    for (int64_t i = 0; i < count && comparing->equal; i++) {
        struct number left = number_load(at[0] + i * steps[0], comparing->left);
        struct number right = number_load(at[1] + i * steps[1], comparing->right);
        comparing->equal = number_equal(left, right);
    }
}

static aclError prepare_equal(aclOpExecutor *executor)
{
    aclError error = require_numbers(executor);
    if (error == ACL_OK && view_numel(&executor->views[0]) != 1) {
        return operator_refuse(executor->name, "the result is not a single element");
    }
    return error;
}

static aclError run_equal(aclOpExecutor *executor)
{
    const struct view *const operands[] = {&executor->views[1], &executor->views[2]};
    struct comparing comparing = {
        .left = operands[0]->dtype,
        .right = operands[1]->dtype,
        .equal = view_same_shape(operands[0], operands[1]),
    };
    if (comparing.equal) {
        for_each_row(operands, 2, compare_row, &comparing);
    }
    view_fill(&executor->views[0], number_of_integer(comparing.equal));
    return ACL_OK;
}

FIRST_HALF(aclnnEqual)(const aclTensor *self, const aclTensor *other, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnEqual", .prepare = prepare_equal, .run = run_equal, .count = 3,
         .tensors = {out, self, other});
}
SECOND_HALF(aclnnEqual)
