/* Planning and launching of operators. */
#include "operators.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

aclError operator_refuse(const char *name, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return sim_fail(ACL_OP_NOT_FOUND, "%s: %s", name, reason);
}

/* ---- first half ---- */

static void release(void *argument)
{
    aclOpExecutor *executor = argument;
    tensor_release(executor->result);
    free(executor);
}

static aclError add_tensor(aclOpExecutor *executor, const aclTensor *tensor)
{
    const char *problem = tensor_problem(tensor);
    if (problem != NULL) {
        return operator_refuse(executor->name, "operand %d: %s", executor->count, problem);
    }
    executor->views[executor->count++] = tensor->view;
    return ACL_OK;
}

static aclError add_scalar(aclOpExecutor *executor, const aclScalar *scalar)
{
    if (!scalar_is_usable(scalar)) {
        return operator_refuse(executor->name, "scalar %d is missing or of a type that is not simulated",
                               executor->scalar_count);
    }
    executor->scalar_dtypes[executor->scalar_count] = scalar->dtype;
    executor->scalars[executor->scalar_count++] = scalar_number(scalar);
    return ACL_OK;
}

static aclError require_one_device(const aclOpExecutor *executor)
{
    int device = -1;
    for (int i = 0; i < executor->count; i++) {
        int other = view_numel(&executor->views[i]) > 0 ? sim_device_of(executor->views[i].data) : -1;
        if (device >= 0 && other >= 0 && other != device) {
            return operator_refuse(executor->name, "its tensors lie on devices %d and %d", device, other);
        }
        device = other >= 0 ? other : device;
    }
    return ACL_OK;
}

static aclError fill_in(aclOpExecutor *executor, const struct request *request)
{
    aclError error = ACL_OK;
    for (int i = 0; i < request->count && error == ACL_OK; i++) {
        error = add_tensor(executor, request->tensors[i]);
    }
    for (uint64_t i = 0; request->list != NULL && i < request->list->count && error == ACL_OK; i++) {
        error = add_tensor(executor, request->list->tensors[i]);
    }
    for (int i = 0; i < request->scalar_count && error == ACL_OK; i++) {
        error = add_scalar(executor, request->scalars[i]);
    }
    if (error == ACL_OK && !request->across_devices) {
        error = require_one_device(executor);
    }
    if (error == ACL_OK && request->prepare != NULL) {
        error = request->prepare(executor);
    }
    return error;
}

aclError operator_plan(const struct request *request, uint64_t *workspace, aclOpExecutor **planned)
{
    enum { MAX_LIST = 1 << 20 };
    uint64_t listed = request->list != NULL ? request->list->count : 0;
    if (workspace == NULL || planned == NULL) {
        return operator_refuse(request->name, "nowhere to put the plan");
    }
    if (listed > MAX_LIST) {
        return operator_refuse(request->name, "a list of %llu tensors", (unsigned long long)listed);
    }
    size_t count = (size_t)request->count + (size_t)listed;
    aclOpExecutor *executor = calloc(1, sizeof *executor + count * sizeof(struct view));
    if (executor == NULL) {
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "%s: no host memory for the plan", request->name);
    }
    executor->name = request->name;
    executor->run = request->run;
    executor->parameters = request->parameters;
    aclError error = fill_in(executor, request);
    if (error != ACL_OK) {
        release(executor);
        return error;
    }
    executor->result = request->result != NULL ? tensor_retain(request->result) : NULL;
    *workspace = 0;
    *planned = executor;
    return ACL_OK;
}

/* ---- second half ---- */

static aclError execute(void *argument)
{
    aclOpExecutor *executor = argument;
    aclError error = ACL_OK;
    for (int i = 0; i < executor->count && error == ACL_OK; i++) {
        error = view_open(&executor->views[i], executor->name);
    }
    return error == ACL_OK ? executor->run(executor) : error;
}

aclError operator_launch(aclOpExecutor *executor, aclrtStream stream)
{
    if (executor == NULL) {
        return sim_fail(ACL_INVALID_PARAM, "an operator is launched without its plan");
    }
    aclError fault = sim_launch_fault(executor->name);
    if (fault != ACL_OK) {
        release(executor);
        return fault;
    }
    return sim_submit(stream, executor->name, execute, release, executor);
}

/* Launching has used the executor up. Only repeatable executors live longer, and
 * aclSetAclOpExecutorRepeatable is not offered. */
API aclError aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    (void)executor;
    return ACL_OK;
}

/* ---- checks ---- */

aclError require_numbers(aclOpExecutor *executor)
{
    for (int i = 0; i < executor->count; i++) {
        if (!dtype_has_numbers(executor->views[i].dtype)) {
            return operator_refuse(executor->name, "data type %d can only be moved",
                                   executor->views[i].dtype);
        }
    }
    return ACL_OK;
}

aclError require_index(const aclOpExecutor *executor, const struct view *index)
{
    if (index->dtype != I64 && index->dtype != I32) {
        return operator_refuse(executor->name, "an index of data type %d", index->dtype);
    }
    return ACL_OK;
}

aclError require_same_dtype(const aclOpExecutor *executor, int left, int right)
{
    int left_dtype = executor->views[left].dtype;
    int right_dtype = executor->views[right].dtype;
    if (left_dtype != right_dtype) {
        return operator_refuse(executor->name, "data types %d and %d differ", left_dtype, right_dtype);
    }
    return ACL_OK;
}

aclError require_dim(aclOpExecutor *executor, int ndim)
{
    int64_t *dim = &executor->parameters.dim;
    if (*dim < -ndim || *dim >= ndim) {
        return operator_refuse(executor->name, "there is no dimension %lld", (long long)*dim);
    }
    *dim += *dim < 0 ? ndim : 0;
    return ACL_OK;
}

aclError broadcast_operands(aclOpExecutor *executor)
{
    for (int i = 1; i < executor->count; i++) {
        if (!view_broadcast(&executor->views[i], &executor->views[0])) {
            return operator_refuse(executor->name, "operand %d does not have the shape of the result", i);
        }
    }
    return ACL_OK;
}

aclError prepare_elementwise(aclOpExecutor *executor)
{
    aclError error = require_numbers(executor);
    return error == ACL_OK ? broadcast_operands(executor) : error;
}

/* ---- on the worker ---- */

aclError read_position(const aclOpExecutor *executor, const char *at, int dtype, int64_t size,
                       int64_t *position)
{
    int64_t index = number_load(at, dtype).integer;
    *position = index < 0 ? index + size : index;
    if (*position < 0 || *position >= size) {
        return sim_fail(ACL_RT_VECTOR_CORE_EXCEPTION, "%s: index %lld is out of range for a dimension of %lld",
                        executor->name, (long long)index, (long long)size);
    }
    return ACL_OK;
}
