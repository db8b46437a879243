/* The handles that operators take, and how a tensor lies in memory. */
#ifndef EMS_SIM_TENSORS_H
#define EMS_SIM_TENSORS_H
#include "numbers.h"

#include <stdatomic.h>

enum { MAX_NDIM = 16 };

/* A view of memory: element (i, j, ...) lies at data + (offset + i*strides[0] + j*strides[1] ...)
 * elements. The offset is folded into data once the view is open (kernels.h). */
struct view {
    int ndim;
    int dtype;
    int64_t shape[MAX_NDIM];
    int64_t strides[MAX_NDIM];
    int64_t offset;
    char *data;
};

/* Some operators write the shape of their result into the caller's tensor when they run, so
 * the worker may hold on to it after the caller has destroyed it. */
struct aclTensor {
    struct view view;
    uint64_t ndim_asked;     /* more than MAX_NDIM: the view is not filled in */
    int format;
    int64_t storage_numel;   /* -1 when the caller did not say */
    atomic_int references;
};
typedef struct aclTensor aclTensor;

struct aclScalar {
    int dtype;
    unsigned char element[LARGEST_ELEMENT];
};
typedef struct aclScalar aclScalar;

struct aclIntArray {
    uint64_t count;
    int64_t values[];
};
typedef struct aclIntArray aclIntArray;

struct aclFloatArray {
    uint64_t count;
    float values[];
};
typedef struct aclFloatArray aclFloatArray;

struct aclBoolArray {
    uint64_t count;
    bool values[];
};
typedef struct aclBoolArray aclBoolArray;

struct aclTensorList {
    uint64_t count;
    aclTensor *tensors[];
};
typedef struct aclTensorList aclTensorList;

struct aclScalarList {
    uint64_t count;
    aclScalar *scalars[];
};
typedef struct aclScalarList aclScalarList;

aclTensor *tensor_retain(const aclTensor *tensor);
void tensor_release(aclTensor *tensor);

/* Why a tensor cannot be an operand, or NULL. */
const char *tensor_problem(const aclTensor *tensor);
bool scalar_is_usable(const aclScalar *scalar);
struct number scalar_number(const aclScalar *scalar);

int64_t view_numel(const struct view *view);
bool view_is_contiguous(const struct view *view);
bool view_same_shape(const struct view *left, const struct view *right);
/* the element offsets of the lowest and highest element, false when they overflow */
bool view_extent(const struct view *view, int64_t *lowest, int64_t *highest);

#endif
