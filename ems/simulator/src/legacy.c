/* The older operator interface. torch_npu uses it for copies between devices whose tensors are not
 * contiguous or not of one type; those operators are simulated, all others refused by name. */
#include "operators.h"

#include <stdlib.h>
#include <string.h>

/* ---- descriptions ---- */

enum { PLAIN_FORMAT = 2 };

struct aclTensorDesc {
    int dtype;
    int format;
    int ndim;
    int64_t shape[MAX_NDIM];
};
typedef struct aclTensorDesc aclTensorDesc;

struct aclDataBuffer {
    void *data;
    size_t nbytes;
};
typedef struct aclDataBuffer aclDataBuffer;

static aclError set_shape(aclTensorDesc *desc, int ndim, const int64_t *shape)
{
    if (desc == NULL || ndim < 0 || ndim > MAX_NDIM || (ndim > 0 && shape == NULL)) {
        return sim_fail(ACL_INVALID_PARAM, "a tensor description of %d dimensions", ndim);
    }
    desc->ndim = ndim;
    if (ndim > 0) {
        memcpy(desc->shape, shape, (size_t)ndim * sizeof *shape);
    }
    return ACL_OK;
}

API aclTensorDesc *aclCreateTensorDesc(int dtype, int ndim, const int64_t *shape, int format)
{
    aclTensorDesc *desc = calloc(1, sizeof *desc);
    if (desc == NULL) {
        sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a tensor description");
        return NULL;
    }
    desc->dtype = dtype;
    desc->format = format;
    if (set_shape(desc, ndim, shape) != ACL_OK) {
        free(desc);
        return NULL;
    }
    return desc;
}

API void aclDestroyTensorDesc(const aclTensorDesc *desc)
{
    free((void *)(uintptr_t)desc);
}

API void aclSetTensorDescName(aclTensorDesc *desc, const char *name)
{
    (void)desc;
    (void)name;
}

API aclError aclSetTensorFormat(aclTensorDesc *desc, int format)
{
    (void)desc; /* the storage format; shape and strides decide here */
    (void)format;
    return ACL_OK;
}

API aclError aclSetTensorShape(aclTensorDesc *desc, int ndim, const int64_t *shape)
{
    (void)desc; /* the storage shape, which the buffer's size bounds */
    (void)ndim;
    (void)shape;
    return ACL_OK;
}

API aclError aclSetTensorPlaceMent(aclTensorDesc *desc, int placement)
{
    (void)desc; /* addresses say where they lie */
    (void)placement;
    return ACL_OK;
}

API int aclGetTensorDescType(const aclTensorDesc *desc)
{
    const int undefined = -1;
    return desc != NULL ? desc->dtype : undefined;
}

API int aclGetTensorDescFormat(const aclTensorDesc *desc)
{
    const int undefined = -1;
    return desc != NULL ? desc->format : undefined;
}

API size_t aclGetTensorDescNumDims(const aclTensorDesc *desc)
{
    return desc != NULL ? (size_t)desc->ndim : 0;
}

API aclError aclGetTensorDescDimV2(const aclTensorDesc *desc, size_t dim, int64_t *size)
{
    if (desc == NULL || size == NULL || dim >= (size_t)desc->ndim) {
        return sim_fail(ACL_INVALID_PARAM, "a tensor description has no dimension %zu", dim);
    }
    *size = desc->shape[dim];
    return ACL_OK;
}

API aclDataBuffer *aclCreateDataBuffer(void *data, size_t nbytes)
{
    aclDataBuffer *buffer = malloc(sizeof *buffer);
    if (buffer == NULL) {
        sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a buffer description");
        return NULL;
    }
    *buffer = (aclDataBuffer){.data = data, .nbytes = nbytes};
    return buffer;
}

API aclError aclDestroyDataBuffer(const aclDataBuffer *buffer)
{
    free((void *)(uintptr_t)buffer);
    return ACL_OK;
}

/* ---- attributes: no simulated operator has one that its operands do not tell ---- */

struct aclopAttr {
    char nothing;
};
typedef struct aclopAttr aclopAttr;

API aclopAttr *aclopCreateAttr(void)
{
    return calloc(1, sizeof(aclopAttr));
}

API void aclopDestroyAttr(const aclopAttr *attr)
{
    free((void *)(uintptr_t)attr);
}

#define IGNORED_ATTRIBUTE(type) \
    API aclError aclopSetAttr##type(void) { return ACL_OK; }

IGNORED_ATTRIBUTE(Bool)
IGNORED_ATTRIBUTE(DataType)
IGNORED_ATTRIBUTE(Float)
IGNORED_ATTRIBUTE(Int)
IGNORED_ATTRIBUTE(ListBool)
IGNORED_ATTRIBUTE(ListFloat)
IGNORED_ATTRIBUTE(ListInt)
IGNORED_ATTRIBUTE(ListListInt)
IGNORED_ATTRIBUTE(String)

/* ---- operands ---- */

/* a contiguous tensor of the described shape */
static bool describe_plain(aclTensor *tensor, const aclTensorDesc *desc, const aclDataBuffer *buffer)
{
    size_t size = desc != NULL ? dtype_size(desc->dtype) : 0;
    if (size == 0 || buffer == NULL) {
        return false;
    }
    int64_t stride = 1;
    memset(tensor, 0, sizeof *tensor);
    tensor->format = PLAIN_FORMAT;
    tensor->storage_numel = (int64_t)(buffer->nbytes / size);
    tensor->view.dtype = desc->dtype;
    tensor->view.data = buffer->data;
    tensor->view.ndim = desc->ndim;
    for (int dim = desc->ndim - 1; dim >= 0; dim--) {
        tensor->view.shape[dim] = desc->shape[dim];
        tensor->view.strides[dim] = stride;
        if (__builtin_mul_overflow(stride, desc->shape[dim], &stride)) {
            return false;
        }
    }
    return true;
}

/* integers that an operator takes from host memory; how many, or -1 */
static int host_integers(const aclTensorDesc *desc, const aclDataBuffer *buffer, int64_t *values)
{
    bool is_integers = desc != NULL && (desc->dtype == I64 || desc->dtype == I32);
    if (!is_integers || buffer == NULL || buffer->data == NULL || sim_is_device(buffer->data)) {
        return -1;
    }
    size_t size = dtype_size(desc->dtype);
    size_t count = buffer->nbytes / size;
    if (count > MAX_NDIM) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = number_load((const char *)buffer->data + i * size, desc->dtype).integer;
    }
    return (int)count;
}

/* a tensor described by four inputs: memory, sizes, strides, offset */
static bool describe_strided(aclTensor *tensor, const aclTensorDesc *const descs[],
                             const aclDataBuffer *const buffers[])
{
    int64_t offset[MAX_NDIM] = {0};
    if (!describe_plain(tensor, descs[0], buffers[0])) {
        return false;
    }
    tensor->view.ndim = host_integers(descs[1], buffers[1], tensor->view.shape);
    int strides = host_integers(descs[2], buffers[2], tensor->view.strides);
    int offsets = host_integers(descs[3], buffers[3], offset);
    tensor->view.offset = offset[0];
    return tensor->view.ndim >= 0 && strides == tensor->view.ndim && offsets == 1;
}

/* ---- execution ---- */

static aclError launch_copy(const char *name, const aclTensor *to, const aclTensor *from, aclrtStream stream)
{
    uint64_t workspace;
    aclOpExecutor *executor;
    struct request request = {
        .name = name,
        .prepare = prepare_copy,
        .run = run_copy,
        .count = 2,
        .tensors = {to, from},
        .across_devices = true,
    };
    aclError error = operator_plan(&request, &workspace, &executor);
    return error == ACL_OK ? operator_launch(executor, stream) : error;
}

/* those that copy their first input to their output; the name must outlive the call */
static const char *plain_copy_named(const char *name)
{
    static const char *const names[] = {"Cast", "Identity", "BroadcastTo"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            return names[i];
        }
    }
    return NULL;
}

API aclError aclopCompileAndExecute(const char *name, int input_count, const aclTensorDesc *const input_descs[],
                                    const aclDataBuffer *const inputs[], int output_count,
                                    const aclTensorDesc *const output_descs[], aclDataBuffer *const outputs[],
                                    const aclopAttr *attr, int engine, int flag, const char *path,
                                    aclrtStream stream)
{
    aclTensor to;
    aclTensor from;
    const char *plain_copy = plain_copy_named(name);
    bool is_view_copy = strcmp(name, "ViewCopy") == 0;
    bool is_as_strided = strcmp(name, "AsStrided") == 0;
    bool is_understood = false;
    (void)attr;
    (void)engine;
    (void)flag;
    (void)path;
    if (is_view_copy) {
        is_understood = input_count == 8 && describe_strided(&to, input_descs, inputs) &&
                        describe_strided(&from, input_descs + 4, inputs + 4);
    } else if (is_as_strided) {
        is_understood = input_count == 4 && output_count == 1 && describe_strided(&from, input_descs, inputs) &&
                        describe_plain(&to, output_descs[0], outputs[0]);
    } else if (plain_copy != NULL) {
        is_understood = input_count >= 1 && output_count == 1 && describe_plain(&from, input_descs[0], inputs[0]) &&
                        describe_plain(&to, output_descs[0], outputs[0]);
    } else {
        return operator_refuse(name, "this operator is not simulated");
    }
    if (!is_understood) {
        return operator_refuse(name, "its operands are not understood");
    }
    return launch_copy(is_view_copy ? "ViewCopy" : is_as_strided ? "AsStrided" : plain_copy, &to, &from, stream);
}

/* the variant that infers output shapes; only operators that are not simulated need it */
API aclError aclopCompileAndExecuteV2(const char *name)
{
    return operator_refuse(name, "this operator is not simulated");
}

/* ---- options of a compiler that does not exist: any is taken, all are off ---- */

static const char COMPILE_OPTION[] = "disable";

API aclError aclopSetCompileFlag(int flag)
{
    (void)flag;
    return ACL_OK;
}

API aclError aclSetCompileopt(int option, const char *value)
{
    (void)option;
    (void)value;
    return ACL_OK;
}

API size_t aclGetCompileoptSize(int option)
{
    (void)option;
    return sizeof COMPILE_OPTION;
}

API aclError aclGetCompileopt(int option, char *value, size_t room)
{
    if (value == NULL || room < sizeof COMPILE_OPTION) {
        return sim_fail(ACL_INVALID_PARAM, "compile option %d: no room for its value", option);
    }
    memcpy(value, COMPILE_OPTION, sizeof COMPILE_OPTION);
    return ACL_OK;
}

/* ---- dumps ---- */

API aclError aclopStartDumpArgs(uint32_t type, const char *path)
{
    (void)type;
    return operator_refuse("aclopStartDumpArgs", "arguments are not dumped, not to %s either", path);
}

API aclError aclopStopDumpArgs(uint32_t type)
{
    (void)type;
    return operator_refuse("aclopStopDumpArgs", "arguments are not dumped");
}
