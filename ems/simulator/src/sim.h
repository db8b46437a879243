/* What the modules of the simulated CANN runtime share.
 *
 *   settings.c   the knobs EMS_SIM_*, from the environment and while running
 *   counters.c   what has been done so far, for tests to ask
 *   report.c     error texts, aclGetRecentErrMsg, tracing, the clock
 *   devices.c    devices, contexts, properties
 *   account.c    one memory account per device, shared by processes
 *   ranges.c     sorted tables of address ranges
 *   memory.c     address space, allocations, canaries, poison
 *   virtual.c    reserved addresses with physical memory mapped into them
 *   foreign.c    device memory of another process
 *   pinned.c     host memory that a device may read and write
 *   streams.c    streams: made, waited for, destroyed
 *   workers.c    their queues and worker threads
 *   events.c     events, also across processes
 *   copies.c     copies and fills
 *   batches.c    copies of many spans by one call
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
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
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
    ACL_RT_INTERNAL = 507000,
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
/* the text of this thread's last failure, to be told by another thread later */
void sim_take_error(char *text, size_t room);

/* settings.c: read once, at the first call of anything; never changes */
enum { SIM_MAX_DEVICES = 16 };
struct sim_settings {
    bool valid; /* false: a knob was not understood, and no device may be used */
    int devices;
    int visible_count;
    int visible[SIM_MAX_DEVICES]; /* the physical number of each visible device */
    uint64_t memory_nbytes;       /* of each device */
    int stream_depth;
    bool poison;
    bool sticky;
    bool trace;
    int log_level;
    char soc[64];
    char version[64];
    char account[64];
};
const struct sim_settings *sim_settings(void);
bool sim_parse_number(const char *text, double least, double most, double *number);

/* counters.c */
enum sim_counter {
    COUNT_COPIES,
    COUNT_SPANS,
    COUNT_BYTES_H2D,
    COUNT_BYTES_D2H,
    COUNT_LAUNCHES,
    COUNT_LIVE_ALLOCATIONS,
    COUNT_PINNED_NBYTES,
    COUNT_CANARY_BREAKS,
    COUNT_STREAMS,
    COUNT_THREADS,
    SIM_COUNTERS
};
void sim_count(enum sim_counter counter, int64_t more);

/* devices.c: numbers are those of the visible devices */
int sim_device_count(void);
int sim_current_device(void); /* of this thread; -1 without one */
void sim_enter_device(int device);
aclError sim_need_device(const char *call, int *device);

/* account.c */
bool sim_account_take(int device, uint64_t nbytes, uint64_t *in_use);
void sim_account_give(int device, uint64_t nbytes);
uint64_t sim_account_in_use(int device);

/* memory.c: a device address as the address the simulator itself may touch; NULL unless all of
 * [p, p+n) lies in one live allocation. Operators and copies use nothing else. */
void *sim_reach(const void *p, size_t n);
bool sim_is_device(const void *p);
int sim_device_of(const void *p); /* -1 for a host address */
/* the same for many spans at one taking of the lock: `alias[i]` for `p[i]`, host addresses as
 * they are; returns the index of the first that is not live, or `count` */
size_t sim_reach_many(void *const *p, const size_t *nbytes, void **alias, size_t count);
/* whether an allocation that this thread has reached since the last call was overrun */
aclError sim_check_canaries(void);

/* pinned.c: the index of the first of the host spans that is not pinned, or `count` */
size_t sim_first_pageable(void *const *p, const size_t *nbytes, size_t count);

/* streams.c: run fn(argument) on the stream's worker, then release(argument). Both may happen
 * after this function has returned; release also when the task is refused or dropped.
 * `what` names the operation for tracing and for delays ("aclnnInplaceCopy"); it must last until
 * fn has returned. A failing task marks the stream: later ones are not run, launching on it and
 * synchronising it report the error. */
aclError sim_submit(aclrtStream stream, const char *what, aclError (*fn)(void *),
                    void (*release)(void *), void *argument);

/* the same for what is no operator; a mark (of an event) runs on a failed stream, too */
enum task_kind { OPERATOR, COPY, MARK };
aclError sim_enqueue(aclrtStream stream, enum task_kind kind, const char *what,
                     aclError (*fn)(void *), void (*release)(void *), void *argument);

/* faults.c: 0, or the error with which this launch is to be refused at the call */
aclError sim_launch_fault(const char *what);
aclError sim_copy_fault(void); /* 0, or the error with which this copy fails half-way */
double sim_delay(enum task_kind kind, const char *what, int stream); /* seconds */
double sim_copy_seconds(enum copy_kind kind, uint64_t nbytes);      /* at the least; 0: no limit */
bool sim_set_fail_copy(const char *text);
bool sim_set_fail_launch(const char *text);
bool sim_set_delay(const char *text);
bool sim_set_gbps(const char *text);
bool sim_set_gbps_h2d(const char *text);
bool sim_set_gbps_d2h(const char *text);
bool sim_set_gbps_d2d(const char *text);
bool sim_set_copy_latency_us(const char *text);
bool sim_set_op_latency_us(const char *text);

#endif
