/* Streams: a queue and, from the first task on, a worker thread each.
 *
 * A task that fails marks its stream: launching on it and synchronising it report the failure
 * until it is destroyed. EMS_SIM_STICKY=0 makes one synchronise take the failure away.
 *
 * A stream that was destroyed is kept, empty, so that a late use of it is an error.
 *
 * HARDWARE: whether a launch on a failed stream is refused at the call, how many tasks a stream
 * takes before a launch blocks, and what aclrtSetStreamFailureMode changes.
 */
#include "stream.h"
#include <errno.h>
#include <stdlib.h>

struct device_streams {
    pthread_mutex_t lock;
    struct stream *all;
    int count;
    struct stream *usual; /* what NULL stands for */
    struct stream *destroyed;
};
static struct device_streams streams_of[SIM_MAX_DEVICES] = {
    [0 ... SIM_MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};
static int created;

static bool is_alive(const struct stream *stream)
{
    return __atomic_load_n(&stream->mark, __ATOMIC_ACQUIRE) == ALIVE_STREAM;
}

API aclError aclrtCreateStreamWithConfig(aclrtStream *out, uint32_t priority, uint32_t flags)
{
    (void)priority;
    (void)flags;
    int device;
    aclError failed = sim_need_device("aclrtCreateStream", &device);
    if (failed)
        return failed;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a stream");
    stream->device = device;
    stream->number = __atomic_add_fetch(&created, 1, __ATOMIC_RELAXED);
    stream->wake_at = UINT64_MAX;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, &monotonic);
    pthread_cond_init(&stream->done, &monotonic);
    pthread_cond_init(&stream->room, &monotonic);
    pthread_condattr_destroy(&monotonic);
    __atomic_store_n(&stream->mark, ALIVE_STREAM, __ATOMIC_RELEASE);
    struct device_streams *siblings = &streams_of[device];
    pthread_mutex_lock(&siblings->lock);
    stream->next = siblings->all;
    siblings->all = stream;
    siblings->count++;
    pthread_mutex_unlock(&siblings->lock);
    sim_count(COUNT_STREAMS, 1);
    *out = stream;
    return ACL_OK;
}

API aclError aclrtCreateStream(aclrtStream *out)
{
    return aclrtCreateStreamWithConfig(out, 0, 0);
}

/* the stream that NULL stands for */
static aclError usual_stream(struct stream **stream)
{
    int device;
    aclError failed = sim_need_device("the default stream", &device);
    if (failed)
        return failed;
    struct device_streams *siblings = &streams_of[device];
    pthread_mutex_lock(&siblings->lock);
    *stream = siblings->usual;
    pthread_mutex_unlock(&siblings->lock);
    if (*stream)
        return ACL_OK;
    aclrtStream made;
    failed = aclrtCreateStream(&made);
    if (failed)
        return failed;
    /* two threads may both have made one: the second one's stays unused */
    pthread_mutex_lock(&siblings->lock);
    if (!siblings->usual)
        siblings->usual = made;
    *stream = siblings->usual;
    pthread_mutex_unlock(&siblings->lock);
    return ACL_OK;
}

static aclError find_stream(aclrtStream handle, struct stream **stream)
{
    if (!handle)
        return usual_stream(stream);
    *stream = handle;
    if (!is_alive(*stream))
        return sim_fail(ACL_RT_INVALID_HANDLE, "%p is no stream, or was destroyed", handle);
    return ACL_OK;
}

static aclError find_usable_stream(aclrtStream handle, struct stream **stream)
{
    aclError failed = find_stream(handle, stream);
    if (failed)
        return failed;
    int device = sim_current_device();
    if (device != (*stream)->device)
        return sim_fail(ACL_RT_STREAM_CONTEXT,
                        "a stream of npu:%d is used while the current device is %d",
                        (*stream)->device, device);
    return ACL_OK;
}

aclError sim_enqueue(aclrtStream handle, enum task_kind kind, const char *what,
                     aclError (*fn)(void *), void (*release)(void *), void *argument)
{
    struct stream *stream;
    struct task *task = malloc(sizeof *task);
    *task = (struct task){NULL, kind, what, fn, release, argument};
    aclError failed = find_usable_stream(handle, &stream);
    if (!failed)
        return sim_stream_launch(stream, task);
    sim_drop_task(task);
    return failed;
}

aclError sim_submit(aclrtStream stream, const char *what, aclError (*fn)(void *),
                    void (*release)(void *), void *argument)
{
    return sim_enqueue(stream, OPERATOR, what, fn, release, argument);
}

static void bury(struct stream *stream)
{
    struct device_streams *siblings = &streams_of[stream->device];
    pthread_mutex_lock(&siblings->lock);
    struct stream **link = &siblings->all;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    siblings->count--;
    if (siblings->usual == stream)
        siblings->usual = NULL;
    stream->next = siblings->destroyed;
    siblings->destroyed = stream;
    pthread_mutex_unlock(&siblings->lock);
}

static aclError destroy(aclrtStream handle, bool drop_queue)
{
    struct stream *stream;
    if (!handle)
        return sim_fail(ACL_RT_PARAM_INVALID, "the default stream cannot be destroyed");
    aclError failed = find_stream(handle, &stream);
    if (failed)
        return failed;
    unsigned alive = ALIVE_STREAM;
    bool first = __atomic_compare_exchange_n(&stream->mark, &alive, 0, false, __ATOMIC_ACQ_REL,
                                             __ATOMIC_ACQUIRE);
    if (!first)
        return sim_fail(ACL_RT_INVALID_HANDLE, "%p was destroyed", handle);
    sim_trace("stream %d of npu:%d is destroyed", stream->number, stream->device);
    bury(stream);
    sim_stream_end(stream, drop_queue);
    sim_count(COUNT_STREAMS, -1);
    return ACL_OK;
}

API aclError aclrtDestroyStream(aclrtStream stream)
{
    return destroy(stream, false);
}

API aclError aclrtDestroyStreamForce(aclrtStream stream)
{
    return destroy(stream, true);
}

/* milliseconds < 0: without limit */
static aclError synchronize(struct stream *stream, int32_t milliseconds)
{
    struct timespec deadline = sim_deadline_after(milliseconds * 1e-3);
    aclError failed = ACL_OK;
    int answer = 0;
    pthread_mutex_lock(&stream->lock);
    uint64_t target = stream->queued;
    while (stream->finished < target && answer != ETIMEDOUT) {
        if (target < stream->wake_at)
            stream->wake_at = target;
        if (milliseconds < 0)
            pthread_cond_wait(&stream->done, &stream->lock);
        else
            answer = pthread_cond_timedwait(&stream->done, &stream->lock, &deadline);
    }
    if (stream->finished < target)
        failed = sim_fail(ACL_RT_STREAM_SYNC_TIMEOUT, "stream %d was not done within %d ms",
                          stream->number, milliseconds);
    else if (stream->failure)
        failed = sim_stream_failure(stream);
    if (failed != ACL_RT_STREAM_SYNC_TIMEOUT && !sim_settings()->sticky)
        stream->failure = ACL_OK;
    pthread_mutex_unlock(&stream->lock);
    return failed;
}

API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t milliseconds)
{
    struct stream *stream;
    aclError failed = find_usable_stream(handle, &stream);
    return failed ? failed : synchronize(stream, milliseconds);
}

API aclError aclrtSynchronizeStream(aclrtStream handle)
{
    return aclrtSynchronizeStreamWithTimeout(handle, -1);
}

static struct stream **streams_now(int device, int *count)
{
    struct device_streams *siblings = &streams_of[device];
    pthread_mutex_lock(&siblings->lock);
    struct stream **streams = calloc((size_t)siblings->count + 1, sizeof *streams);
    *count = 0;
    for (struct stream *stream = siblings->all; stream; stream = stream->next)
        streams[(*count)++] = stream;
    pthread_mutex_unlock(&siblings->lock);
    return streams;
}

API aclError aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds)
{
    int device;
    aclError failed = sim_need_device("aclrtSynchronizeDevice", &device);
    if (failed)
        return failed;
    int count;
    struct stream **streams = streams_now(device, &count);
    for (int i = 0; i < count; i++) {
        aclError one = is_alive(streams[i]) ? synchronize(streams[i], milliseconds) : ACL_OK;
        if (one && !failed)
            failed = one;
    }
    free(streams);
    return failed;
}

API aclError aclrtSynchronizeDevice(void)
{
    return aclrtSynchronizeDeviceWithTimeout(-1);
}

API aclError aclrtStreamQuery(aclrtStream handle, int *status)
{
    enum { COMPLETE, NOT_READY };
    struct stream *stream;
    aclError failed = find_usable_stream(handle, &stream);
    if (failed)
        return failed;
    pthread_mutex_lock(&stream->lock);
    *status = stream->finished == stream->queued ? COMPLETE : NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    return ACL_OK;
}

API aclError aclrtStreamGetId(aclrtStream handle, int32_t *number)
{
    struct stream *stream;
    aclError failed = find_stream(handle, &stream);
    if (!failed)
        *number = stream->number;
    return failed;
}

/* 0: go on after a failure, 1: stop. Streams here always stop. */
API aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode)
{
    struct stream *stream;
    if (mode > 1)
        return sim_fail(ACL_RT_PARAM_INVALID, "%llu is no failure mode", (unsigned long long)mode);
    return find_stream(handle, &stream);
}
