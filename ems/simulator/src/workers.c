/* The worker thread of a stream, and the queue it takes its tasks from.
 *
 * After a failure what was queued is released without having run, marks of events excepted.
 */
#include "stream.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct timespec sim_deadline_after(double seconds)
{
    double at = sim_now() + seconds;
    struct timespec deadline = {.tv_sec = (time_t)at};
    deadline.tv_nsec = (long)((at - (double)deadline.tv_sec) * 1e9);
    return deadline;
}

/* sleeps, with the stream locked, unless the stream is to end */
static void delay(struct stream *stream, double seconds)
{
    struct timespec deadline = sim_deadline_after(seconds);
    int answer = 0;
    while (!stream->ending && answer != ETIMEDOUT)
        answer = pthread_cond_timedwait(&stream->work, &stream->lock, &deadline);
}

static void note_failure(struct stream *stream, aclError failure)
{
    if (stream->failure)
        return;
    stream->failure = failure;
    sim_take_error(stream->failure_text, sizeof stream->failure_text);
}

static struct task *take_task(struct stream *stream)
{
    struct task *task = stream->first;
    stream->first = task->next;
    if (!stream->first)
        stream->last = NULL;
    return task;
}

void sim_drop_task(struct task *task)
{
    if (task->release)
        task->release(task->argument);
    free(task);
}

static aclError run(const struct stream *stream, const struct task *task)
{
    aclError failed = task->fn(task->argument);
    if (!failed && task->kind != MARK)
        failed = sim_check_canaries();
    sim_trace("%s ran on stream %d of npu:%d: %d", task->what, stream->number, stream->device,
              failed);
    return failed;
}

static void run_next(struct stream *stream)
{
    struct task *task = take_task(stream);
    double seconds = sim_delay(task->kind, task->what, stream->number);
    if (seconds > 0)
        delay(stream, seconds);
    bool runs = !stream->failure || task->kind == MARK;
    pthread_mutex_unlock(&stream->lock);
    aclError failed = runs ? run(stream, task) : ACL_OK;
    sim_drop_task(task);
    pthread_mutex_lock(&stream->lock);
    if (failed)
        note_failure(stream, failed);
    stream->finished++;
    if (stream->finished >= stream->wake_at) {
        stream->wake_at = UINT64_MAX;
        pthread_cond_broadcast(&stream->done);
    }
    if (stream->waiting_for_room)
        pthread_cond_signal(&stream->room);
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    char name[16];
    snprintf(name, sizeof name, "npu%d-s%d", stream->device, stream->number);
    pthread_setname_np(pthread_self(), name);
    /* An NPU takes no processor from the thread that starts it: this one does not preempt. */
    const struct sched_param none = {.sched_priority = 0};
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
    sim_enter_device(stream->device);
    sim_count(COUNT_THREADS, 1);
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->ending)
            pthread_cond_wait(&stream->work, &stream->lock);
        if (!stream->first)
            break;
        run_next(stream);
    }
    pthread_mutex_unlock(&stream->lock);
    sim_count(COUNT_THREADS, -1);
    return NULL;
}

static bool start_worker(struct stream *stream)
{
    const size_t stack_nbytes = 512 << 10;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_nbytes);
    stream->started = !pthread_create(&stream->worker, &attributes, work, stream);
    pthread_attr_destroy(&attributes);
    return stream->started;
}

aclError sim_stream_failure(const struct stream *stream)
{
    return sim_fail(stream->failure, "stream %d of npu:%d has failed: %s", stream->number,
                    stream->device, stream->failure_text);
}

/* the stream is locked */
static aclError append(struct stream *stream, struct task *task)
{
    uint64_t depth = (uint64_t)sim_settings()->stream_depth;
    stream->waiting_for_room++;
    while (stream->queued - stream->finished >= depth && !stream->ending)
        pthread_cond_wait(&stream->room, &stream->lock);
    stream->waiting_for_room--;
    if (stream->ending)
        return sim_fail(ACL_RT_INVALID_HANDLE, "stream %d was destroyed", stream->number);
    if (stream->failure && sim_settings()->sticky && task->kind != MARK)
        return sim_stream_failure(stream);
    if (!stream->started && !start_worker(stream))
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no thread for a stream");
    if (stream->last)
        stream->last->next = task;
    else
        stream->first = task;
    stream->last = task;
    stream->queued++;
    pthread_cond_signal(&stream->work);
    return ACL_OK;
}

aclError sim_stream_launch(struct stream *stream, struct task *task)
{
    pthread_mutex_lock(&stream->lock);
    aclError failed = append(stream, task);
    pthread_mutex_unlock(&stream->lock);
    if (failed)
        sim_drop_task(task);
    return failed;
}

void sim_stream_end(struct stream *stream, bool drop_queue)
{
    struct task *dropped = NULL;
    pthread_mutex_lock(&stream->lock);
    stream->ending = true;
    if (drop_queue) {
        dropped = stream->first;
        stream->first = NULL;
        stream->last = NULL;
    }
    pthread_cond_signal(&stream->work);
    pthread_cond_broadcast(&stream->room);
    bool started = stream->started;
    pthread_mutex_unlock(&stream->lock);
    while (dropped) {
        struct task *next = dropped->next;
        sim_drop_task(dropped);
        dropped = next;
    }
    if (started)
        pthread_join(stream->worker, NULL);
    pthread_mutex_lock(&stream->lock);
    stream->finished = stream->queued;
    pthread_cond_broadcast(&stream->done);
    pthread_mutex_unlock(&stream->lock);
}
