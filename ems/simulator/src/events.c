/* Events. `asked` counts the records that were queued, `done` those that ran; who waits, waits
 * for the newest record queued at that time. An event for other processes keeps both in a page
 * that they map; who waits for such a one polls.
 *
 * An event becomes done on a failed stream, too: the failure is told by synchronising the
 * stream. HARDWARE: whether synchronising the event tells it as well.
 */
#include "sim.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

enum {
    ALIVE = 0x0e7e47a1,
    FOR_OTHER_PROCESSES = 0x40,
    POLL_US = 50
};

struct progress {
    uint64_t asked, done; /* atomic, as another process may change them */
    double at;            /* when the newest record ran */
};

struct event {
    unsigned mark;
    int references; /* of the handle, and of each task that is queued */
    int file;       /* -1: of this process only */
    struct progress own;
    struct progress *progress;
    pthread_mutex_t lock;
    pthread_cond_t recorded;
    struct event *next_free;
};

/* events are made by the hundred thousand: used again, never given back, so that the late use
 * of a handle is harmless */
static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *free_events;

static uint64_t load(const uint64_t *number)
{
    return __atomic_load_n(number, __ATOMIC_ACQUIRE);
}

static struct event *take_free_event(void)
{
    pthread_mutex_lock(&free_lock);
    struct event *event = free_events;
    if (event)
        free_events = event->next_free;
    pthread_mutex_unlock(&free_lock);
    return event;
}

static struct event *new_event(void)
{
    struct event *event = take_free_event();
    if (!event) {
        event = calloc(1, sizeof *event);
        if (!event)
            return NULL;
        pthread_mutex_init(&event->lock, NULL);
        pthread_cond_init(&event->recorded, NULL);
    }
    event->references = 1;
    event->file = -1;
    event->own = (struct progress){0};
    event->progress = &event->own;
    __atomic_store_n(&event->mark, ALIVE, __ATOMIC_RELEASE);
    return event;
}

static void release_event(struct event *event)
{
    if (__atomic_sub_fetch(&event->references, 1, __ATOMIC_ACQ_REL))
        return;
    if (event->progress != &event->own)
        munmap(event->progress, PAGE);
    if (event->file >= 0)
        close(event->file);
    pthread_mutex_lock(&free_lock);
    event->next_free = free_events;
    free_events = event;
    pthread_mutex_unlock(&free_lock);
}

static bool map_progress(struct event *event)
{
    void *page = MAP_FAILED;
    if (event->file >= 0)
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, event->file, 0);
    if (page == MAP_FAILED)
        return false;
    event->progress = page;
    return true;
}

static aclError find_event(aclrtEvent handle, struct event **event)
{
    *event = handle;
    if (!handle || __atomic_load_n(&(*event)->mark, __ATOMIC_ACQUIRE) != ALIVE)
        return sim_fail(ACL_RT_INVALID_HANDLE, "%p is no event, or was destroyed", handle);
    return ACL_OK;
}

API aclError aclrtCreateEventWithFlag(aclrtEvent *out, uint32_t flags)
{
    struct event *event = new_event();
    if (!event)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for an event");
    if (flags & FOR_OTHER_PROCESSES) {
        event->file = sim_memory_file("simulated npu, event", PAGE);
        if (!map_progress(event)) {
            release_event(event);
            return sim_fail(ACL_RT_MEMORY_ALLOCATION, "event: %s", strerror(errno));
        }
    }
    *out = event;
    return ACL_OK;
}

API aclError aclrtCreateEventExWithFlag(aclrtEvent *out, uint32_t flags)
{
    return aclrtCreateEventWithFlag(out, flags);
}

API aclError aclrtCreateEvent(aclrtEvent *out)
{
    return aclrtCreateEventWithFlag(out, 0);
}

API aclError aclrtDestroyEvent(aclrtEvent handle)
{
    struct event *event;
    aclError failed = find_event(handle, &event);
    if (failed)
        return failed;
    unsigned alive = ALIVE;
    if (__atomic_compare_exchange_n(&event->mark, &alive, 0, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        release_event(event);
    return ACL_OK;
}

static void wait_for(struct event *event, uint64_t record)
{
    if (event->progress != &event->own) {
        while (load(&event->progress->done) < record)
            usleep(POLL_US);
        return;
    }
    pthread_mutex_lock(&event->lock);
    while (load(&event->progress->done) < record)
        pthread_cond_wait(&event->recorded, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

struct mark_task {
    struct event *event;
    uint64_t record;
    bool is_record;
};

static void note_record(struct event *event, uint64_t record)
{
    struct progress *progress = event->progress;
    pthread_mutex_lock(&event->lock);
    if (record > progress->done) {
        progress->at = sim_now();
        __atomic_store_n(&progress->done, record, __ATOMIC_RELEASE);
    }
    pthread_cond_broadcast(&event->recorded);
    pthread_mutex_unlock(&event->lock);
}

static aclError run_mark(void *argument)
{
    struct mark_task *task = argument;
    if (task->is_record)
        note_record(task->event, task->record);
    else
        wait_for(task->event, task->record);
    return ACL_OK;
}

static void release_mark(void *argument)
{
    struct mark_task *task = argument;
    /* a record that was dropped with its stream would be waited for without end */
    if (task->is_record)
        note_record(task->event, task->record);
    release_event(task->event);
    free(task);
}

static aclError enqueue_mark(struct event *event, aclrtStream stream, bool is_record)
{
    struct mark_task *task = malloc(sizeof *task);
    uint64_t *asked = &event->progress->asked;
    __atomic_add_fetch(&event->references, 1, __ATOMIC_ACQ_REL);
    task->event = event;
    task->is_record = is_record;
    task->record = is_record ? __atomic_add_fetch(asked, 1, __ATOMIC_ACQ_REL) : load(asked);
    const char *what = is_record ? "event_record" : "event_wait";
    return sim_enqueue(stream, MARK, what, run_mark, release_mark, task);
}

API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream)
{
    struct event *event;
    aclError failed = find_event(handle, &event);
    return failed ? failed : enqueue_mark(event, stream, true);
}

API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent handle)
{
    struct event *event;
    aclError failed = find_event(handle, &event);
    return failed ? failed : enqueue_mark(event, stream, false);
}

API aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream)
{
    (void)stream;
    struct event *event;
    return find_event(handle, &event);
}

API aclError aclrtSynchronizeEvent(aclrtEvent handle)
{
    struct event *event;
    aclError failed = find_event(handle, &event);
    if (!failed)
        wait_for(event, load(&event->progress->asked));
    return failed;
}

static bool is_done(const struct event *event)
{
    uint64_t done = load(&event->progress->done);
    return done >= load(&event->progress->asked);
}

API aclError aclrtQueryEventStatus(aclrtEvent handle, int *status)
{
    enum { NOT_READY, COMPLETE };
    struct event *event;
    aclError failed = find_event(handle, &event);
    if (!failed)
        *status = is_done(event) ? COMPLETE : NOT_READY;
    return failed;
}

/* the reverse of the above, as in the public headers */
API aclError aclrtQueryEventWaitStatus(aclrtEvent handle, int *status)
{
    enum { COMPLETE, NOT_READY };
    struct event *event;
    aclError failed = find_event(handle, &event);
    if (!failed)
        *status = is_done(event) ? COMPLETE : NOT_READY;
    return failed;
}

static aclError time_of(aclrtEvent handle, double *at)
{
    struct event *event;
    aclError failed = find_event(handle, &event);
    if (failed)
        return failed;
    pthread_mutex_lock(&event->lock);
    *at = event->progress->at;
    pthread_mutex_unlock(&event->lock);
    if (*at == 0)
        return sim_fail(ACL_RT_EVENT_TIMESTAMP_INVALID, "event %p has not been recorded", handle);
    return ACL_OK;
}

API aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent first, aclrtEvent last)
{
    double from;
    double to;
    aclError failed = time_of(first, &from);
    if (!failed)
        failed = time_of(last, &to);
    if (!failed)
        *milliseconds = (float)((to - from) * 1e3);
    return failed;
}

API aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t *microseconds)
{
    double at;
    aclError failed = time_of(handle, &at);
    if (!failed)
        *microseconds = (uint64_t)(at * 1e6);
    return failed;
}

struct event_handle {
    char tag[8];
    int process;
    int file;
    char reserved[48];
};
static const char tag[8] = "emsevnt";

API aclError aclrtIpcGetEventHandle(aclrtEvent handle, struct event_handle *out)
{
    struct event *event;
    aclError failed = find_event(handle, &event);
    if (failed)
        return failed;
    if (event->file < 0)
        return sim_fail(ACL_RT_INVALID_HANDLE, "event %p is for this process only", handle);
    memset(out, 0, sizeof *out);
    memcpy(out->tag, tag, sizeof tag);
    out->process = (int)getpid();
    out->file = event->file;
    return ACL_OK;
}

API aclError aclrtIpcOpenEventHandle(struct event_handle handle, aclrtEvent *out)
{
    if (memcmp(handle.tag, tag, sizeof tag))
        return sim_fail(ACL_RT_PARAM_INVALID, "not the handle of an event");
    struct event *event = new_event();
    if (!event)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for an event");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
    event->file = open(path, O_RDWR | O_CLOEXEC);
    if (!map_progress(event)) {
        release_event(event);
        return sim_fail(ACL_RT_IPC, "%s: %s", path, strerror(errno));
    }
    *out = event;
    return ACL_OK;
}
