/* What the modules of the simulated CANN runtime share.
 *
 *   settings.c   EMS_SIM_* read once
 *   report.c     error texts, aclGetRecentErrMsg, tracing
 *   devices.c    devices, contexts, properties
 *   account.c    one memory account per device, shared by processes
 *   memory.c     address space, allocations, canaries, poison, pinned host memory, IPC
 *   streams.c    streams and their workers
 *   events.c     events, also across processes
 *   copies.c     copies and fills
 *   faults.c     which copy or launch is to fail, which stream or operation to be late
 *   tensors.c    the handles operators take: tensors, scalars, lists
 *   operators.c  the operators a KV cache needs          kernels.c  their loops
 *   legacy.c     the older operator interface
 *   refused.c    every other operator, refused by name
 *   unsimulated.c  the rest that torch_npu links or looks up
 *
 * C11 and POSIX threads; no torch and no CANN header.
 */
#ifndef EMS_SIM_H
#define EMS_SIM_H
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int aclError;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtContext;

/* numbers of the public ACL headers */
enum {
    ACL_OK = 0,
    ACL_INVALID_PARAM = 100000,
    ACL_REPEAT_INITIALIZE = 100002,
    ACL_OP_NOT_FOUND = 100024,
    ACL_RT_PARAM_INVALID = 107000,
    ACL_RT_INVALID_DEVICEID = 107001,
    ACL_RT_CONTEXT_NULL = 107002,
    ACL_RT_STREAM_CONTEXT = 107003,
    ACL_RT_EVENT_TIMESTAMP_INVALID = 107006,
    ACL_RT_INVALID_HANDLE = 107017,
    ACL_RT_WAIT_TIMEOUT = 107019,
    ACL_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_RT_MEMORY_ALLOCATION = 207001,
    ACL_RT_MEMORY_FREE = 207002,
    ACL_RT_IPC = 507022,
    ACL_RT_VECTOR_CORE_EXCEPTION = 507035,
    ACL_RT_STREAM_SYNC_TIMEOUT = 507046,
    ACL_RT_EVENT_SYNC_TIMEOUT = 507047,
    ACL_RT_COPY_FAILED = 507052
};

enum copy_kind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

/* report.c */
aclError sim_fail(aclError code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
double sim_now(void); /* seconds, monotonic */

/* memory.c: a device address as the address the simulator itself may touch; NULL unless all of
 * [p, p+n) lies in one live allocation. Operators and copies use nothing else. */
void *sim_reach(const void *p, size_t n);
bool sim_is_device(const void *p);
int sim_device_of(const void *p); /* -1 for a host address */

/* streams.c: run fn(argument) on the stream's worker, then release(argument). Both may happen
 * after this function has returned; release also when the task is refused or dropped.
 * `what` names the operation for tracing and for delays ("copy", "aclnnInplaceCopy", ...).
 * A failing task marks the stream: later ones are not run, synchronising reports the error. */
aclError sim_submit(aclrtStream stream, const char *what, aclError (*fn)(void *),
                    void (*release)(void *), void *argument);

/* faults.c: 0, or the error with which this launch is to be refused at the call */
aclError sim_launch_fault(const char *what);

#endif
