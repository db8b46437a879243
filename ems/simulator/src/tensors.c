/* Handles of operands: tensors, scalars, arrays and lists. */
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

/* aclFormat of the public ACL headers: formats in which shape and strides tell the truth */
enum { NCHW = 0, NHWC = 1, ND = 2, HWCN = 16, NDHWC = 27, NCDHW = 30, NC = 35, NCL = 47, UNDEFINED = -1 };

static bool is_plain_format(int format)
{
    switch (format) {
    case UNDEFINED:
    case NCHW:
    case NHWC:
    case ND:
    case HWCN:
    case NDHWC:
    case NCDHW:
    case NC:
    case NCL:
        return true;
    default:
        return false;
    }
}

/* ---- tensors ---- */

static int64_t product(const int64_t *dims, uint64_t count)
{
    int64_t result = 1;
    for (uint64_t i = 0; i < count; i++) {
        if (__builtin_mul_overflow(result, dims[i], &result)) {
            return -1;
        }
    }
    return result;
}

API aclTensor *aclCreateTensor(const int64_t *shape, uint64_t ndim, int dtype, const int64_t *strides,
                               int64_t offset, int format, const int64_t *storage_shape,
                               uint64_t storage_ndim, void *data)
{
    aclTensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL) {
        sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a tensor description");
        return NULL;
    }
    atomic_init(&tensor->references, 1);
    tensor->ndim_asked = ndim;
    tensor->format = format;
    tensor->storage_numel = storage_ndim > 0 ? product(storage_shape, storage_ndim) : -1;
    tensor->view.dtype = dtype;
    tensor->view.offset = offset;
    tensor->view.data = data;
    if (ndim > MAX_NDIM || ndim == 0) {
        return tensor;
    }
    tensor->view.ndim = (int)ndim;
    memcpy(tensor->view.shape, shape, ndim * sizeof *shape);
    memcpy(tensor->view.strides, strides, ndim * sizeof *strides);
    return tensor;
}

aclTensor *tensor_retain(const aclTensor *tensor)
{
    aclTensor *shared = (aclTensor *)(uintptr_t)tensor; /* callers pass handles as const */
    atomic_fetch_add(&shared->references, 1);
    return shared;
}

void tensor_release(aclTensor *tensor)
{
    if (tensor != NULL && atomic_fetch_sub(&tensor->references, 1) == 1) {
        free(tensor);
    }
}

API aclError aclDestroyTensor(const aclTensor *tensor)
{
    tensor_release((aclTensor *)(uintptr_t)tensor);
    return ACL_OK;
}

/* The caller releases the shape with delete[], which is free() on this platform. */
API aclError aclGetViewShape(const aclTensor *tensor, int64_t **shape, uint64_t *ndim)
{
    if (tensor == NULL || shape == NULL || ndim == NULL) {
        return sim_fail(ACL_INVALID_PARAM, "aclGetViewShape: an argument is missing");
    }
    size_t count = (size_t)tensor->view.ndim;
    int64_t *copy = malloc((count > 0 ? count : 1) * sizeof *copy);
    if (copy == NULL) {
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a shape");
    }
    memcpy(copy, tensor->view.shape, count * sizeof *copy);
    *shape = copy;
    *ndim = count;
    return ACL_OK;
}

const char *tensor_problem(const aclTensor *tensor)
{
    int64_t lowest;
    int64_t highest;
    if (tensor == NULL) {
        return "it is missing";
    }
    if (tensor->ndim_asked > MAX_NDIM) {
        return "it has more than 16 dimensions";
    }
    if (dtype_size(tensor->view.dtype) == 0) {
        return "its data type is not simulated";
    }
    if (!is_plain_format(tensor->format)) {
        return "its format is private to the device";
    }
    for (int i = 0; i < tensor->view.ndim; i++) {
        if (tensor->view.shape[i] < 0) {
            return "it has a negative dimension";
        }
    }
    if (!view_extent(&tensor->view, &lowest, &highest)) {
        return "it is larger than any memory";
    }
    if (lowest < 0 || (tensor->storage_numel >= 0 && highest >= tensor->storage_numel)) {
        return view_numel(&tensor->view) > 0 ? "it reaches beyond its storage" : NULL;
    }
    return NULL;
}

/* ---- how a view lies in memory ---- */

int64_t view_numel(const struct view *view)
{
    int64_t numel = 1;
    for (int i = 0; i < view->ndim; i++) {
        numel *= view->shape[i];
    }
    return numel;
}

bool view_is_contiguous(const struct view *view)
{
    int64_t expected = 1;
    for (int i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] != 1 && view->strides[i] != expected) {
            return false;
        }
        expected *= view->shape[i];
    }
    return true;
}

bool view_same_shape(const struct view *left, const struct view *right)
{
    size_t nbytes = (size_t)left->ndim * sizeof *left->shape;
    return left->ndim == right->ndim && memcmp(left->shape, right->shape, nbytes) == 0;
}

/* so far from the ends of 64 bits that byte offsets of any element fit too */
static bool is_addressable(int64_t elements)
{
    const int64_t limit = INT64_MAX / (4 * LARGEST_ELEMENT);
    return elements > -limit && elements < limit;
}

bool view_extent(const struct view *view, int64_t *lowest, int64_t *highest)
{
    int64_t numel = 1;
    *lowest = view->offset;
    *highest = view->offset;
    for (int i = 0; i < view->ndim; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(numel, view->shape[i], &numel) || !is_addressable(numel)) {
            return false;
        }
        if (__builtin_mul_overflow(view->shape[i] - 1, view->strides[i], &reach) || !is_addressable(reach)) {
            return false;
        }
        *(reach > 0 ? highest : lowest) += reach;
    }
    return is_addressable(*lowest) && is_addressable(*highest);
}

/* ---- scalars ---- */

API aclScalar *aclCreateScalar(const void *value, int dtype)
{
    aclScalar *scalar = calloc(1, sizeof *scalar);
    if (scalar == NULL) {
        sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a scalar");
        return NULL;
    }
    scalar->dtype = dtype;
    memcpy(scalar->element, value, dtype_size(dtype));
    return scalar;
}

API aclError aclDestroyScalar(const aclScalar *scalar)
{
    free((void *)(uintptr_t)scalar);
    return ACL_OK;
}

bool scalar_is_usable(const aclScalar *scalar)
{
    return scalar != NULL && dtype_has_numbers(scalar->dtype);
}

struct number scalar_number(const aclScalar *scalar)
{
    return number_load(scalar->element, scalar->dtype);
}

/* ---- arrays and lists ---- */

/* an array handle: its count, then a copy of the values from `header` bytes on */
static void *new_array(size_t header, const void *values, uint64_t count, size_t value_size)
{
    size_t nbytes;
    if (__builtin_mul_overflow(count, value_size, &nbytes) || nbytes > SIZE_MAX - header) {
        sim_fail(ACL_INVALID_PARAM, "an array of %llu values", (unsigned long long)count);
        return NULL;
    }
    char *array = malloc(header + nbytes);
    if (array == NULL) {
        sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for an array");
        return NULL;
    }
    memcpy(array, &count, sizeof count);
    if (nbytes > 0) {
        memcpy(array + header, values, nbytes);
    }
    return array;
}

API aclIntArray *aclCreateIntArray(const int64_t *values, uint64_t count)
{
    return new_array(offsetof(aclIntArray, values), values, count, sizeof *values);
}

API aclError aclDestroyIntArray(const aclIntArray *array)
{
    free((void *)(uintptr_t)array);
    return ACL_OK;
}

API aclFloatArray *aclCreateFloatArray(const float *values, uint64_t count)
{
    return new_array(offsetof(aclFloatArray, values), values, count, sizeof *values);
}

API aclError aclDestroyFloatArray(const aclFloatArray *array)
{
    free((void *)(uintptr_t)array);
    return ACL_OK;
}

API aclBoolArray *aclCreateBoolArray(const bool *values, uint64_t count)
{
    return new_array(offsetof(aclBoolArray, values), values, count, sizeof *values);
}

API aclError aclDestroyBoolArray(const aclBoolArray *array)
{
    free((void *)(uintptr_t)array);
    return ACL_OK;
}

/* A list owns what is in it: the caller destroys only the list. */
API aclTensorList *aclCreateTensorList(aclTensor *const *tensors, uint64_t count)
{
    return new_array(offsetof(aclTensorList, tensors), tensors, count, sizeof(aclTensor *));
}

API aclError aclDestroyTensorList(const aclTensorList *list)
{
    for (uint64_t i = 0; list != NULL && i < list->count; i++) {
        tensor_release(list->tensors[i]);
    }
    free((void *)(uintptr_t)list);
    return ACL_OK;
}

API aclScalarList *aclCreateScalarList(aclScalar *const *scalars, uint64_t count)
{
    return new_array(offsetof(aclScalarList, scalars), scalars, count, sizeof(aclScalar *));
}

API aclError aclDestroyScalarList(const aclScalarList *list)
{
    for (uint64_t i = 0; list != NULL && i < list->count; i++) {
        free(list->scalars[i]);
    }
    free((void *)(uintptr_t)list);
    return ACL_OK;
}
