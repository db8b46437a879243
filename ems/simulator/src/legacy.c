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

/* ---- attributes: one decides what an operator does that its operands do not tell ---- */

struct aclopAttr {
    bool has_mask; /* a slice is to ignore some of its bounds */
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

API aclError aclopSetAttrInt(aclopAttr *attr, const char *name, int64_t value)
{
    static const char *const masks[] = {"begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"};
    for (size_t i = 0; attr != NULL && i < sizeof masks / sizeof *masks; i++) {
        attr->has_mask = attr->has_mask || (value != 0 && strcmp(name, masks[i]) == 0);
    }
    return ACL_OK;
}

#define IGNORED_ATTRIBUTE(type) \
    API aclError aclopSetAttr##type(void) { return ACL_OK; }

IGNORED_ATTRIBUTE(Bool)
IGNORED_ATTRIBUTE(DataType)
IGNORED_ATTRIBUTE(Float)
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

/* ---- operators: each copies one view to another, and says which ---- */

struct call {
    const aclTensorDesc *const *input_descs;
    const aclDataBuffer *const *inputs;
    const aclTensorDesc *const *output_descs;
    aclDataBuffer *const *outputs;
    const aclopAttr *attr;
};

/* input i as integers, one for each dimension of the first input */
static bool integers_per_dim(const struct call *call, int i, int64_t *values)
{
    return host_integers(call->input_descs[i], call->inputs[i], values) == call->input_descs[0]->ndim;
}

static bool describe_plain_operands(const struct call *call, aclTensor *to, aclTensor *from)
{
    return describe_plain(to, call->output_descs[0], call->outputs[0]) &&
           describe_plain(from, call->input_descs[0], call->inputs[0]);
}

static bool describe_view_copy(const struct call *call, aclTensor *to, aclTensor *from)
{
    return describe_strided(to, call->input_descs, call->inputs) &&
           describe_strided(from, call->input_descs + 4, call->inputs + 4);
}

static bool describe_as_strided(const struct call *call, aclTensor *to, aclTensor *from)
{
    return describe_plain(to, call->output_descs[0], call->outputs[0]) &&
           describe_strided(from, call->input_descs, call->inputs);
}

static bool describe_transpose(const struct call *call, aclTensor *to, aclTensor *from)
{
    int64_t order[MAX_NDIM];
    if (!describe_plain_operands(call, to, from) || !integers_per_dim(call, 1, order)) {
        return false;
    }
    struct view plain = from->view;
    for (int dim = 0; dim < plain.ndim; dim++) {
        if (order[dim] < 0 || order[dim] >= plain.ndim) {
            return false;
        }
        from->view.shape[dim] = plain.shape[order[dim]];
        from->view.strides[dim] = plain.strides[order[dim]];
    }
    return true;
}

/* keeps `count` elements of a dimension from `start` on, of which every `step`th */
static bool cut(struct view *view, int dim, int64_t start, int64_t count, int64_t step)
{
    int64_t size = view->shape[dim];
    if (start < 0 || count < 0 || step < 1 || start > size || count > size - start) {
        return false;
    }
    view->offset += start * view->strides[dim];
    view->shape[dim] = (count + step - 1) / step;
    view->strides[dim] *= step;
    return true;
}

static bool describe_slice(const struct call *call, aclTensor *to, aclTensor *from)
{
    int64_t starts[MAX_NDIM];
    int64_t counts[MAX_NDIM];
    bool is_understood = describe_plain_operands(call, to, from) && integers_per_dim(call, 1, starts) &&
                         integers_per_dim(call, 2, counts);
    for (int dim = 0; is_understood && dim < from->view.ndim; dim++) {
        is_understood = cut(&from->view, dim, starts[dim], counts[dim], 1);
    }
    return is_understood;
}

static void drop_single(struct view *view)
{
    int kept = 0;
    for (int dim = 0; dim < view->ndim; dim++) {
        if (view->shape[dim] != 1) {
            view->shape[kept] = view->shape[dim];
            view->strides[kept] = view->strides[dim];
            kept++;
        }
    }
    view->ndim = kept;
}

/* the result may lack dimensions of which one element is taken */
static bool describe_strided_slice(const struct call *call, aclTensor *to, aclTensor *from)
{
    int64_t starts[MAX_NDIM];
    int64_t ends[MAX_NDIM];
    int64_t steps[MAX_NDIM];
    bool has_mask = call->attr != NULL && call->attr->has_mask;
    bool is_understood = !has_mask && describe_plain_operands(call, to, from) && integers_per_dim(call, 1, starts) &&
                         integers_per_dim(call, 2, ends) && integers_per_dim(call, 3, steps);
    for (int dim = 0; is_understood && dim < from->view.ndim; dim++) {
        int64_t end = ends[dim] < from->view.shape[dim] ? ends[dim] : from->view.shape[dim];
        is_understood = cut(&from->view, dim, starts[dim], end - starts[dim], steps[dim]);
    }
    if (is_understood) {
        drop_single(&to->view);
        drop_single(&from->view);
    }
    return is_understood;
}

struct legacy_operator {
    const char *name;
    int inputs;
    int outputs;
    bool (*describe)(const struct call *call, aclTensor *to, aclTensor *from);
};

static const struct legacy_operator OPERATORS[] = {
    {"ViewCopy", 8, 0, describe_view_copy},
    {"AsStrided", 4, 1, describe_as_strided},
    {"Transpose", 2, 1, describe_transpose},
    {"Slice", 3, 1, describe_slice},
    {"StridedSlice", 4, 1, describe_strided_slice},
    {"BroadcastTo", 1, 1, describe_plain_operands},
    {"Cast", 1, 1, describe_plain_operands},
    {"Identity", 1, 1, describe_plain_operands},
};

static const struct legacy_operator *operator_named(const char *name)
{
    for (size_t i = 0; name != NULL && i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        if (strcmp(OPERATORS[i].name, name) == 0) {
            return &OPERATORS[i];
        }
    }
    return NULL;
}

/* ---- execution ---- */

/* a view of the wrong shape would be broadcast, which only BroadcastTo asks for */
static aclError prepare_whole_copy(aclOpExecutor *executor)
{
    bool may_broadcast = strcmp(executor->name, "BroadcastTo") == 0 || strcmp(executor->name, "ViewCopy") == 0;
    if (!may_broadcast && !view_same_shape(&executor->views[0], &executor->views[1])) {
        return operator_refuse(executor->name, "the result does not have the shape of what is copied");
    }
    return prepare_copy(executor);
}

API aclError aclopCompileAndExecute(const char *name, int input_count, const aclTensorDesc *const input_descs[],
                                    const aclDataBuffer *const inputs[], int output_count,
                                    const aclTensorDesc *const output_descs[], aclDataBuffer *const outputs[],
                                    const aclopAttr *attr, int engine, int flag, const char *path,
                                    aclrtStream stream)
{
    const struct legacy_operator *operator = operator_named(name);
    const struct call call = {input_descs, inputs, output_descs, outputs, attr};
    aclTensor to;
    aclTensor from;
    uint64_t workspace;
    aclOpExecutor *executor;
    (void)engine;
    (void)flag;
    (void)path;
    if (operator == NULL) {
        return operator_refuse(name != NULL ? name : "an operator without a name", "it is not simulated");
    }
    bool has_operands = input_count >= operator->inputs && output_count >= operator->outputs;
    if (!has_operands || !operator->describe(&call, &to, &from)) {
        return operator_refuse(name, "its operands are not understood");
    }
    struct request request = {
        .name = operator->name,
        .prepare = prepare_whole_copy,
        .run = run_copy,
        .count = 2,
        .tensors = {&to, &from},
        .across_devices = true,
    };
    aclError error = operator_plan(&request, &workspace, &executor);
    return error == ACL_OK ? operator_launch(executor, stream) : error;
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
