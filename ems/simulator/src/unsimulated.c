/* What torch_npu links or looks up and a KV cache does not need: answered with the least that
 * lets torch_npu go on, or refused by name.
 */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* functions of the host on a stream */
struct host_function {
    void (*fn)(void *);
    void *argument;
};

static aclError run_host_function(void *argument)
{
    struct host_function *task = argument;
    task->fn(task->argument);
    return ACL_OK;
}

API aclError aclrtLaunchHostFunc(aclrtStream stream, void (*fn)(void *), void *argument)
{
    struct host_function *task = malloc(sizeof *task);
    *task = (struct host_function){fn, argument};
    return sim_enqueue(stream, COPY, "host_function", run_host_function, free, task);
}

API aclError aclrtLaunchCallback(void (*fn)(void *), void *argument, int blocks,
                                 aclrtStream stream)
{
    (void)blocks;
    return aclrtLaunchHostFunc(stream, fn, argument);
}

/* reports never arrive: callbacks run on the stream's own worker */
API aclError aclrtProcessReport(int32_t milliseconds)
{
    const useconds_t longest = 100;
    bool short_wait = milliseconds > 0 && milliseconds < (int32_t)longest;
    usleep(1000 * (short_wait ? (useconds_t)milliseconds : longest));
    return ACL_RT_WAIT_TIMEOUT;
}

API aclError aclrtSetOpExecuteTimeOutV2(uint64_t asked, uint64_t *actual)
{
    *actual = asked;
    return ACL_OK;
}

API aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t *on)
{
    (void)stream;
    *on = 0;
    return ACL_OK;
}

/* no stream is ever captured into a graph */
API aclError aclmdlRICaptureGetInfo(aclrtStream stream, int *status, void **model)
{
    (void)stream;
    *status = 0;
    *model = NULL;
    return ACL_OK;
}

API uint64_t MsprofGetHashId(const char *text, size_t length)
{
    const uint64_t fnv_basis = 1469598103934665603ull;
    const uint64_t fnv_prime = 1099511628211ull;
    uint64_t hash = fnv_basis;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * fnv_prime;
    return hash;
}

API uint64_t MsprofSysCycleTime(void)
{
    return (uint64_t)(sim_now() * 1e9);
}

/* without arguments in C: the caller's are left where they are */
#define ACCEPTED(name) \
    API aclError name(void) \
    { \
        return ACL_OK; \
    }
#define REFUSED(name) \
    API aclError name(void) \
    { \
        return sim_fail(ACL_RT_FEATURE_NOT_SUPPORT, #name " is not simulated"); \
    }

ACCEPTED(HcclSetConfig)
ACCEPTED(MsprofRegisterCallback)
ACCEPTED(MsprofReportAdditionalInfo)
ACCEPTED(MsprofReportApi)
ACCEPTED(MsprofReportCompactInfo)
ACCEPTED(aclmdlFinalizeDump)
ACCEPTED(aclmdlInitDump)
ACCEPTED(aclmdlSetDump)
ACCEPTED(aclrtCmoAsync)
ACCEPTED(aclrtSetOpExecuteTimeOut)
ACCEPTED(aclrtSetOpWaitTimeout)
ACCEPTED(aclrtSetStreamAttribute)
ACCEPTED(aclrtSetStreamOverflowSwitch)
ACCEPTED(aclrtSubscribeReport)
ACCEPTED(aclrtUnSubscribeReport)

REFUSED(aclrtBinaryGetFunction)
REFUSED(aclrtBinaryLoadFromData)
REFUSED(aclrtGetFunctionAddr)
REFUSED(rtDevBinaryRegister)
REFUSED(rtFunctionRegister)
REFUSED(rtGetC2cCtrlAddr)
REFUSED(rtKernelLaunch)

/* collective communication, which torch_npu up to 2.9 links */
REFUSED(HcclAllGather)
REFUSED(HcclAllReduce)
REFUSED(HcclBroadcast)
REFUSED(HcclCommDestroy)
REFUSED(HcclCommInitAll)
REFUSED(HcclCommInitRootInfo)
REFUSED(HcclGetRootInfo)
REFUSED(HcclRecv)
REFUSED(HcclReduceScatter)
REFUSED(HcclSend)
