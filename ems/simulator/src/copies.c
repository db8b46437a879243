/* Copies and fills. However many spans a copy has, it is one task on its stream.
 *
 * All spans are checked before the first byte moves. A copy that is made to fail
 * (EMS_SIM_FAIL_COPY) has moved half of its spans, rounded down.
 *
 * HARDWARE: what alignment of addresses a copy asks for, and how copies of both directions share
 * the engines of a device.
 */
#include "copies.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const names[] = {
    [HOST_TO_HOST] = "copy_h2h",
    [HOST_TO_DEVICE] = "copy_h2d",
    [DEVICE_TO_HOST] = "copy_d2h",
    [DEVICE_TO_DEVICE] = "copy_d2d",
};

static enum copy_kind kind_of(const void *dst, const void *src)
{
    if (sim_is_device(dst))
        return sim_is_device(src) ? DEVICE_TO_DEVICE : HOST_TO_DEVICE;
    return sim_is_device(src) ? DEVICE_TO_HOST : HOST_TO_HOST;
}

static void sum_up(struct copy *copy)
{
    for (size_t i = 0; i < copy->count; i++) {
        if (copy->sizes[i] && !copy->nbytes) {
            int device = sim_device_of(copy->dst[i]);
            copy->kind = kind_of(copy->dst[i], copy->src[i]);
            copy->device = device >= 0 ? device : sim_device_of(copy->src[i]);
        }
        copy->nbytes += copy->sizes[i];
    }
}

struct copy *sim_new_copy(void *const *dst, void *const *src, const size_t *sizes, size_t count)
{
    struct copy *copy = malloc(sizeof *copy + count * (4 * sizeof(void *) + sizeof(size_t)));
    if (!copy)
        return NULL;
    copy->count = count;
    copy->nbytes = 0;
    copy->kind = HOST_TO_HOST;
    copy->device = -1;
    copy->staged = NULL;
    copy->dst = (void **)(copy + 1);
    copy->src = copy->dst + count;
    copy->dst_alias = copy->src + count;
    copy->src_alias = copy->dst_alias + count;
    copy->sizes = (size_t *)(copy->src_alias + count);
    memcpy(copy->dst, dst, count * sizeof *dst);
    memcpy(copy->src, src, count * sizeof *src);
    memcpy(copy->sizes, sizes, count * sizeof *sizes);
    sum_up(copy);
    return copy;
}

void sim_release_copy(void *argument)
{
    struct copy *copy = argument;
    free(copy->staged);
    free(copy);
}

void sim_tell_span(size_t *failed_span, size_t index)
{
    if (failed_span)
        *failed_span = index;
}

/* looks up where the spans lie; `failed_span` is the first whose memory is not live */
aclError sim_reach_spans(struct copy *copy, size_t *failed_span)
{
    size_t n = copy->count;
    size_t dst = sim_reach_many(copy->dst, copy->sizes, copy->dst_alias, n);
    size_t src = sim_reach_many(copy->src, copy->sizes, copy->src_alias, n);
    size_t i = dst < src ? dst : src;
    if (i == n)
        return ACL_OK;
    sim_tell_span(failed_span, i);
    return sim_fail(ACL_RT_PARAM_INVALID, "span %zu: %p+%zu is not in live device memory", i,
                    i == dst ? copy->dst[i] : copy->src[i], copy->sizes[i]);
}

aclError sim_check_room(const size_t *room, const size_t *sizes, size_t count,
                        size_t *failed_span)
{
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] > room[i]) {
            sim_tell_span(failed_span, i);
            return sim_fail(ACL_RT_PARAM_INVALID, "span %zu: %zu bytes into a room of %zu", i,
                            sizes[i], room[i]);
        }
    }
    return ACL_OK;
}

/* one engine per device and direction: copies queue up behind each other */
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static double busy_until[SIM_MAX_DEVICES][BY_ADDRESS];

static double use_engine(const struct copy *copy, double seconds)
{
    int device = copy->device >= 0 ? copy->device : 0;
    pthread_mutex_lock(&engines_lock);
    double *busy = &busy_until[device][copy->kind];
    double now = sim_now();
    *busy = (*busy > now ? *busy : now) + seconds;
    double end = *busy;
    pthread_mutex_unlock(&engines_lock);
    return end;
}

static void sleep_until(double end)
{
    const double reaction = 60e-6; /* what a sleep takes too long */
    for (double left = end - sim_now(); left > 0; left = end - sim_now()) {
        if (left <= 2 * reaction)
            continue;
        double seconds = left - reaction;
        struct timespec nap = {.tv_sec = (time_t)seconds};
        nap.tv_nsec = (long)((seconds - (double)nap.tv_sec) * 1e9);
        nanosleep(&nap, NULL);
    }
}

static void move(const struct copy *copy, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memmove(copy->dst_alias[i], copy->src_alias[i], copy->sizes[i]);
}

static void count_copy(const struct copy *copy)
{
    sim_count(COUNT_COPIES, 1);
    sim_count(COUNT_SPANS, (int64_t)copy->count);
    if (copy->kind == HOST_TO_DEVICE)
        sim_count(COUNT_BYTES_H2D, (int64_t)copy->nbytes);
    if (copy->kind == DEVICE_TO_HOST)
        sim_count(COUNT_BYTES_D2H, (int64_t)copy->nbytes);
}

static aclError run_copy(void *argument)
{
    struct copy *copy = argument;
    if (!copy->nbytes)
        return ACL_OK;
    aclError injected = sim_copy_fault();
    double seconds = sim_copy_seconds(copy->kind, copy->nbytes);
    double end = seconds > 0 ? use_engine(copy, seconds) : 0;
    const double memcpy_bytes_per_second = 4e9;
    /* as late as possible: who forgot to wait sees old bytes */
    if (end > 0)
        sleep_until(end - (double)copy->nbytes / memcpy_bytes_per_second);
    aclError failed = sim_reach_spans(copy, NULL); /* again: it may have been freed meanwhile */
    if (failed)
        return failed;
    move(copy, injected ? copy->count / 2 : copy->count);
    if (end > 0)
        sleep_until(end);
    count_copy(copy);
    return injected;
}

static bool is_pinned(const struct copy *copy)
{
    size_t count = copy->count;
    return sim_first_pageable(copy->src, copy->sizes, count) == count &&
           sim_first_pageable(copy->dst, copy->sizes, count) == count;
}

/* takes over a source that the caller may change as soon as the call has returned */
static bool stage(struct copy *copy)
{
    copy->staged = malloc(copy->sizes[0]);
    if (!copy->staged)
        return false;
    memcpy(copy->staged, copy->src[0], copy->sizes[0]);
    copy->src[0] = copy->staged;
    return true;
}

aclError sim_enqueue_copy(struct copy *copy, aclrtStream stream)
{
    extern aclError aclrtSynchronizeStream(aclrtStream);
    bool waits = false;
    if (!is_pinned(copy))
        waits = copy->kind != HOST_TO_DEVICE || copy->count != 1 || !stage(copy);
    const char *name = names[copy->kind];
    aclError failed = sim_enqueue(stream, COPY, name, run_copy, sim_release_copy, copy);
    if (!failed && waits)
        failed = aclrtSynchronizeStream(stream);
    return failed;
}

aclError sim_copy_now(struct copy *copy)
{
    const int no_stream = 0;
    sleep_until(sim_now() + sim_delay(COPY, names[copy->kind], no_stream));
    aclError failed = run_copy(copy);
    if (!failed)
        failed = sim_check_canaries();
    sim_release_copy(copy);
    return failed;
}

static aclError check_kind(int asked, enum copy_kind kind)
{
    if (asked >= BY_ADDRESS || asked == (int)kind)
        return ACL_OK;
    return sim_fail(ACL_RT_PARAM_INVALID, "copy kind %d was asked for, the addresses make it %d",
                    asked, kind);
}

static aclError prepare(void *dst, size_t room, const void *src, size_t size, int kind,
                        struct copy **out)
{
    void *source = (void *)src;
    aclError failed = sim_check_room(&room, &size, 1, NULL);
    if (failed)
        return failed;
    struct copy *copy = sim_new_copy(&dst, &source, &size, 1);
    if (!copy)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a copy");
    failed = size ? check_kind(kind, copy->kind) : ACL_OK;
    if (!failed)
        failed = sim_reach_spans(copy, NULL);
    if (failed)
        sim_release_copy(copy);
    else
        *out = copy;
    return failed;
}

API aclError aclrtMemcpy(void *dst, size_t room, const void *src, size_t size, int kind)
{
    struct copy *copy;
    int device;
    sim_trace("aclrtMemcpy(%p, %p, %zu, kind %d)", dst, src, size, kind);
    aclError failed = sim_need_device("aclrtMemcpy", &device);
    if (!failed)
        failed = prepare(dst, room, src, size, kind, &copy);
    return failed ? failed : sim_copy_now(copy);
}

API aclError aclrtMemcpyAsync(void *dst, size_t room, const void *src, size_t size, int kind,
                              aclrtStream stream)
{
    struct copy *copy;
    sim_trace("aclrtMemcpyAsync(%p, %p, %zu, kind %d)", dst, src, size, kind);
    aclError failed = sim_launch_fault("aclrtMemcpyAsync");
    if (!failed)
        failed = prepare(dst, room, src, size, kind, &copy);
    return failed ? failed : sim_enqueue_copy(copy, stream);
}

API aclError aclrtMemcpyAsyncWithCondition(void *dst, size_t room, const void *src, size_t size,
                                           int kind, aclrtStream stream)
{
    return aclrtMemcpyAsync(dst, room, src, size, kind, stream);
}

struct fill {
    void *p;
    int32_t value;
    size_t size;
};

static aclError run_fill(void *argument)
{
    struct fill *fill = argument;
    void *alias = sim_is_device(fill->p) ? sim_reach(fill->p, fill->size) : fill->p;
    if (!alias)
        return sim_fail(ACL_RT_PARAM_INVALID, "memset: %p+%zu is not in live device memory",
                        fill->p, fill->size);
    memset(alias, fill->value, fill->size);
    return ACL_OK;
}

static aclError check_fill(void *p, size_t room, size_t size)
{
    if (size > room)
        return sim_fail(ACL_RT_PARAM_INVALID, "memset of %zu bytes in a room of %zu", size, room);
    if (sim_is_device(p) && !sim_reach(p, size))
        return sim_fail(ACL_RT_PARAM_INVALID, "memset: %p+%zu is not in live device memory", p,
                        size);
    return ACL_OK;
}

API aclError aclrtMemset(void *p, size_t room, int32_t value, size_t size)
{
    struct fill fill = {p, value, size};
    aclError failed = check_fill(p, room, size);
    if (!failed)
        failed = run_fill(&fill);
    return failed ? failed : sim_check_canaries();
}

API aclError aclrtMemsetAsync(void *p, size_t room, int32_t value, size_t size, aclrtStream stream)
{
    aclError failed = sim_launch_fault("aclrtMemsetAsync");
    if (!failed)
        failed = check_fill(p, room, size);
    if (failed)
        return failed;
    struct fill *fill = malloc(sizeof *fill);
    *fill = (struct fill){p, value, size};
    return sim_enqueue(stream, COPY, "memset", run_fill, free, fill);
}
