/* What streams.c and workers.c share: the queue of a stream and its worker. */
#ifndef EMS_SIM_STREAM_H
#define EMS_SIM_STREAM_H
#include "sim.h"
#include <pthread.h>
#include <time.h>

enum { ALIVE_STREAM = 0x57e4a11e };

struct task {
    struct task *next;
    enum task_kind kind;
    const char *what;
    aclError (*fn)(void *);
    void (*release)(void *);
    void *argument;
};

struct stream {
    /* these three are read without the lock */
    unsigned mark; /* ALIVE_STREAM until destroyed */
    int device;
    int number; /* the first created is 1 */
    struct stream *next;

    pthread_mutex_t lock;
    pthread_cond_t work; /* for the worker: a task, or the end */
    pthread_cond_t done; /* for who synchronises */
    pthread_cond_t room; /* for who launches on a full stream */
    pthread_t worker;
    bool started, ending;
    struct task *first, *last;
    uint64_t queued, finished;
    uint64_t wake_at; /* the least `finished` that somebody waits for */
    int waiting_for_room;
    aclError failure;
    char failure_text[256];
};

/* workers.c. What takes a `struct task` releases it in the end, refused or not. */
aclError sim_stream_launch(struct stream *stream, struct task *task);
void sim_drop_task(struct task *task);
void sim_stream_end(struct stream *stream, bool drop_queue);
aclError sim_stream_failure(const struct stream *stream); /* the stream is locked and has failed */
struct timespec sim_deadline_after(double seconds);

#endif
