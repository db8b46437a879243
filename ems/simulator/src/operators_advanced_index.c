/* Indexing by tensors: x[i, :, j] and x[i, :, j] = values.
 *
 * The operands are the tensor, the values (the result of a read), and an index for each of the
 * first dimensions. As in torch, the indices are broadcast to one shape, which takes the place of
 * the indexed dimensions if these are neighbours and stands in front otherwise. */
#include "operators.h"

#include <string.h>

enum { READ, WRITE, ACCUMULATE };

enum { FIRST_INDEX = 2 };

struct indexing {
    struct view positions;                  /* one element per combination of indices: values */
    struct view values;                     /* what lies at one position: the values ... */
    struct view slice;                      /* ... and the tensor, before adding positions */
    int count;                              /* of indices */
    struct view indices[MAX_NDIM];          /* of the shape of `positions` */
    int dims[MAX_NDIM];                     /* which dimension each of them is for */
};

/* For a dimension of which all is meant, torch_npu gives an index that has no elements and the
 * type of the tensor. The last index is never such a one. In a tensor of integers that leaves one
 * case undecided, x[none, [i]], where an index that really is empty meets one of one element. */
static bool is_all(const aclOpExecutor *executor, int dim)
{
    const struct view *index = &executor->views[FIRST_INDEX + dim];
    bool is_last = FIRST_INDEX + dim == executor->count - 1;
    return !is_last && index->ndim == 1 && index->shape[0] == 0 && index->dtype == executor->views[0].dtype;
}

static aclError collect_indices(const aclOpExecutor *executor, struct indexing *indexing)
{
    if (executor->count - FIRST_INDEX > executor->views[0].ndim) {
        return operator_refuse(executor->name, "more indices than dimensions");
    }
    indexing->positions.ndim = 0;
    for (int dim = 0; dim < executor->count - FIRST_INDEX; dim++) {
        const struct view *index = &executor->views[FIRST_INDEX + dim];
        if (is_all(executor, dim)) {
            continue;
        }
        aclError error = require_index(executor, index);
        if (error != ACL_OK) {
            return error;
        }
        if (!shape_broadcast(&indexing->positions, index)) {
            return operator_refuse(executor->name, "the indices do not have one shape");
        }
        indexing->indices[indexing->count] = *index;
        indexing->dims[indexing->count++] = dim;
    }
    for (int i = 0; i < indexing->count; i++) {
        view_broadcast(&indexing->indices[i], &indexing->positions);
    }
    return ACL_OK;
}

static bool are_neighbours(const struct indexing *indexing)
{
    int count = indexing->count;
    return count == 0 || indexing->dims[count - 1] - indexing->dims[0] == count - 1;
}

static bool is_indexed(const struct indexing *indexing, int dim)
{
    for (int i = 0; i < indexing->count; i++) {
        if (indexing->dims[i] == dim) {
            return true;
        }
    }
    return false;
}

static void append(struct view *view, int64_t size, int64_t stride)
{
    view->shape[view->ndim] = size;
    view->strides[view->ndim] = stride;
    view->ndim++;
}

/* the dimensions of the tensor that no index is for */
static void leave_slice(const struct view *self, struct indexing *indexing)
{
    indexing->slice = *self;
    indexing->slice.ndim = 0;
    for (int dim = 0; dim < self->ndim; dim++) {
        if (!is_indexed(indexing, dim)) {
            append(&indexing->slice, self->shape[dim], self->strides[dim]);
        }
    }
}

/* the shape of the whole result: `before` dimensions of the slice, the positions, the others */
static void full_shape(const struct indexing *indexing, int before, struct view *full)
{
    full->ndim = 0;
    for (int dim = 0; dim < before; dim++) {
        append(full, indexing->slice.shape[dim], 0);
    }
    for (int dim = 0; dim < indexing->positions.ndim; dim++) {
        append(full, indexing->positions.shape[dim], 0);
    }
    for (int dim = before; dim < indexing->slice.ndim; dim++) {
        append(full, indexing->slice.shape[dim], 0);
    }
}

/* parts the values into positions and what lies at one of them */
static void split_values(const struct view *values, int before, struct indexing *indexing)
{
    int positions = indexing->positions.ndim;
    indexing->positions = *values;
    indexing->positions.ndim = 0;
    indexing->values = *values;
    indexing->values.ndim = 0;
    for (int dim = 0; dim < values->ndim; dim++) {
        bool is_position = dim >= before && dim < before + positions;
        struct view *part = is_position ? &indexing->positions : &indexing->values;
        append(part, values->shape[dim], values->strides[dim]);
    }
}

static aclError resolve(const aclOpExecutor *executor, struct indexing *indexing)
{
    struct view values = executor->views[1];
    struct view full;
    memset(indexing, 0, sizeof *indexing);
    aclError error = collect_indices(executor, indexing);
    if (error != ACL_OK) {
        return error;
    }
    leave_slice(&executor->views[0], indexing);
    if (indexing->slice.ndim + indexing->positions.ndim > MAX_NDIM) {
        return operator_refuse(executor->name, "the result has more than 16 dimensions");
    }
    int before = indexing->count > 0 && are_neighbours(indexing) ? indexing->dims[0] : 0;
    full_shape(indexing, before, &full);
    bool is_read = executor->parameters.kind == READ;
    if (is_read ? !view_same_shape(&values, &full) : !view_broadcast(&values, &full)) {
        return operator_refuse(executor->name, "the values do not have the shape of the indexed elements");
    }
    split_values(&values, before, indexing);
    return ACL_OK;
}

static aclError prepare_index(aclOpExecutor *executor)
{
    struct indexing indexing;
    aclError error = require_same_dtype(executor, 0, 1);
    if (error == ACL_OK && executor->parameters.kind == ACCUMULATE) {
        error = dtype_has_numbers(executor->views[0].dtype)
                    ? ACL_OK
                    : operator_refuse(executor->name, "data type %d cannot be added", executor->views[0].dtype);
    }
    return error == ACL_OK ? resolve(executor, &indexing) : error;
}

static void add_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    int dtype = *(const int *)context;
    for (int64_t i = 0; i < count; i++) {
        char *sum = at[0] + i * steps[0];
        struct number left = number_load(sum, dtype);
        struct number right = number_load(at[1] + i * steps[1], dtype);
        if (left.kind == FLOATING) {
            left.real += right.real;
            left.imaginary += right.imaginary;
        } else {
            left.integer = (int64_t)((uint64_t)left.integer + (uint64_t)right.integer);
        }
        number_store(sum, dtype, left);
    }
}

static void move_slice(int kind, const struct view *slice, const struct view *values)
{
    if (kind == READ) {
        view_copy(values, slice);
    } else if (kind == WRITE) {
        view_copy(slice, values);
    } else {
        const struct view *const views[] = {slice, values};
        int dtype = slice->dtype;
        for_each_row(views, 2, add_row, &dtype);
    }
}

/* moves `slice` to what the indices at the walk's position say */
static aclError point_at(const aclOpExecutor *executor, const struct indexing *indexing,
                         const struct walk *walk, struct view *slice)
{
    const struct view *self = &executor->views[0];
    *slice = indexing->slice;
    for (int i = 0; i < indexing->count; i++) {
        int dim = indexing->dims[i];
        int64_t position;
        aclError error = read_position(executor, walk->at[1 + i], indexing->indices[i].dtype,
                                       self->shape[dim], &position);
        if (error != ACL_OK) {
            return error;
        }
        slice->data += position * self->strides[dim] * (int64_t)dtype_size(self->dtype);
    }
    return ACL_OK;
}

static aclError run_index(aclOpExecutor *executor)
{
    struct indexing indexing;
    const struct view *walked[1 + MAX_NDIM];
    struct walk walk;
    aclError error = resolve(executor, &indexing);
    if (error != ACL_OK) {
        return error;
    }
    walked[0] = &indexing.positions;
    for (int i = 0; i < indexing.count; i++) {
        walked[1 + i] = &indexing.indices[i];
    }
    walk_start(&walk, walked, 1 + indexing.count);
    for (int64_t i = view_numel(&indexing.positions); i > 0; i--) {
        struct view slice;
        error = point_at(executor, &indexing, &walk, &slice);
        if (error != ACL_OK) {
            return error;
        }
        indexing.values.data = walk.at[0];
        move_slice(executor->parameters.kind, &slice, &indexing.values);
        walk_next(&walk);
    }
    return ACL_OK;
}

FIRST_HALF(aclnnIndex)(const aclTensor *self, const aclTensorList *indices, const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnIndex", .prepare = prepare_index, .run = run_index, .count = FIRST_INDEX,
         .tensors = {self, out}, .list = indices, .parameters = {.kind = READ});
}
SECOND_HALF(aclnnIndex)

FIRST_HALF(aclnnIndexPutImpl)
(const aclTensor *self, const aclTensorList *indices, const aclTensor *values, bool accumulate,
 bool is_unsafe, PLANNED)
{
    (void)is_unsafe; /* whether positions may go unchecked; here none does */
    PLAN(.name = "aclnnIndexPutImpl", .prepare = prepare_index, .run = run_index, .count = FIRST_INDEX,
         .tensors = {self, values}, .list = indices,
         .parameters = {.kind = accumulate ? ACCUMULATE : WRITE});
}
SECOND_HALF(aclnnIndexPutImpl)
