/* Threads that use the runtime as hard as they can; run under a sanitizer by
 * test_simulator_stress.py. The runtime is compiled in, so what is hidden can be reached.
 */
#include "memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 25, SPANS = 64, HOST = 0, DEVICE = 1, TO_DEVICE = 1, TO_HOST = 2 };

struct location {
    uint32_t device;
    int type;
};
struct attribute {
    struct location dst, src;
    uint8_t reserved[16];
};

extern aclError aclInit(const char *);
extern aclError aclrtSetDevice(int);
extern aclError aclrtGetMemInfo(int, size_t *, size_t *);
extern aclError aclrtMalloc(void **, size_t, int);
extern aclError aclrtFree(void *);
extern aclError aclrtMallocHost(void **, size_t);
extern aclError aclrtFreeHost(void *);
extern aclError aclrtMemcpy(void *, size_t, const void *, size_t, int);
extern aclError aclrtMemcpyAsync(void *, size_t, const void *, size_t, int, void *);
extern aclError aclrtMemcpyBatchAsync(void **, size_t *, void **, size_t *, size_t,
                                      struct attribute *, size_t *, size_t, size_t *, void *);
extern aclError aclrtMemsetAsync(void *, size_t, int, size_t, void *);
extern aclError aclrtCreateStream(void **);
extern aclError aclrtDestroyStream(void *);
extern aclError aclrtDestroyStreamForce(void *);
extern aclError aclrtSynchronizeStream(void *);
extern aclError aclrtSynchronizeDevice(void);
extern aclError aclrtStreamQuery(void *, int *);
extern aclError aclrtCreateEvent(void **);
extern aclError aclrtDestroyEvent(void *);
extern aclError aclrtRecordEvent(void *, void *);
extern aclError aclrtStreamWaitEvent(void *, void *);
extern aclError aclrtSynchronizeEvent(void *);
extern aclError aclrtQueryEventStatus(void *, int *);
extern aclError aclrtEventElapsedTime(float *, void *, void *);
extern int ems_simulator_set(const char *, const char *);
extern int64_t ems_simulator_get(const char *);

static void expect(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}
#define EXPECT(condition) expect(condition, #condition)
#define OK(call) expect((call) == ACL_OK, #call)

/* what one thread works with */
struct bench {
    int device;
    size_t nbytes;
    void *in, *out; /* streams */
    void *event, *start;
    unsigned char *source, *result;
    void *first, *second; /* on the device */
};

static void set_up(struct bench *bench)
{
    OK(aclrtCreateStream(&bench->in));
    OK(aclrtCreateStream(&bench->out));
    OK(aclrtCreateEvent(&bench->event));
    OK(aclrtCreateEvent(&bench->start));
    OK(aclrtMallocHost((void **)&bench->source, bench->nbytes));
    OK(aclrtMallocHost((void **)&bench->result, bench->nbytes));
    OK(aclrtMalloc(&bench->first, bench->nbytes, 0));
    OK(aclrtMalloc(&bench->second, bench->nbytes, 0));
}

static void tear_down(struct bench *bench)
{
    OK(aclrtDestroyEvent(bench->event));
    OK(aclrtDestroyEvent(bench->start));
    OK(aclrtDestroyStream(bench->in));
    OK(aclrtDestroyStreamForce(bench->out));
    OK(aclrtFree(bench->first));
    OK(aclrtFree(bench->second));
    EXPECT(aclrtMemcpy(bench->result, 1, bench->first, 1, TO_HOST) != ACL_OK);
    OK(aclrtFreeHost(bench->source));
    OK(aclrtFreeHost(bench->result));
}

static void copy_by_batch(struct bench *bench)
{
    void *dst[SPANS];
    void *src[SPANS];
    size_t sizes[SPANS];
    size_t span = bench->nbytes / SPANS;
    for (int i = 0; i < SPANS; i++) {
        dst[i] = bench->result + (size_t)i * span;
        src[i] = (char *)bench->second + (size_t)i * span;
        sizes[i] = i < SPANS - 1 ? span : bench->nbytes - (size_t)i * span;
    }
    struct attribute attribute = {
        .dst = {0, HOST},
        .src = {(uint32_t)bench->device, DEVICE},
    };
    size_t from = 0;
    size_t failed_span = 0;
    OK(aclrtMemcpyBatchAsync(dst, sizes, src, sizes, SPANS, &attribute, &from, 1, &failed_span,
                             bench->out));
    EXPECT(failed_span == SIZE_MAX);
}

static void copy_there_and_back(struct bench *bench, int byte)
{
    size_t nbytes = bench->nbytes;
    int status;
    float milliseconds;
    memset(bench->source, byte, nbytes);
    memset(bench->result, 0, nbytes);
    OK(aclrtRecordEvent(bench->start, bench->in));
    OK(aclrtMemcpyAsync(bench->first, nbytes, bench->source, nbytes, TO_DEVICE, bench->in));
    OK(aclrtRecordEvent(bench->event, bench->in));
    OK(aclrtStreamWaitEvent(bench->out, bench->event));
    OK(aclrtMemsetAsync(bench->second, nbytes, 0, nbytes, bench->out));
    OK(aclrtMemcpyAsync(bench->second, nbytes, bench->first, nbytes, 3, bench->out));
    copy_by_batch(bench);
    OK(aclrtRecordEvent(bench->event, bench->out));
    OK(aclrtQueryEventStatus(bench->event, &status));
    OK(aclrtStreamQuery(bench->out, &status));
    OK(aclrtSynchronizeEvent(bench->event));
    OK(aclrtEventElapsedTime(&milliseconds, bench->start, bench->event));
    EXPECT(!memcmp(bench->source, bench->result, nbytes));
}

static void *use_a_device(void *argument)
{
    int id = (int)(intptr_t)argument;
    unsigned seed = (unsigned)id;
    for (int round = 0; round < ROUNDS; round++) {
        struct bench bench = {.device = id % 4, .nbytes = 4096 + (size_t)rand_r(&seed) % 300000};
        size_t available;
        size_t total;
        OK(aclrtSetDevice(bench.device));
        set_up(&bench);
        for (int byte = 1; byte < 4; byte++)
            copy_there_and_back(&bench, byte);
        EXPECT(aclrtMemcpy(bench.result, bench.nbytes, (char *)bench.first + 1, bench.nbytes,
                           TO_HOST) != ACL_OK);
        OK(aclrtGetMemInfo(0, &available, &total));
        OK(aclrtSynchronizeDevice());
        tear_down(&bench);
    }
    return NULL;
}

/* knobs are turned while copies run */
static void *turn_knobs(void *argument)
{
    (void)argument;
    for (int i = 0; i < 200; i++) {
        OK(ems_simulator_set("DELAY", i % 2 ? "stream:3=20,copy_d2h=10" : ""));
        OK(ems_simulator_set("GBPS_H2D", i % 3 ? "50" : ""));
        EXPECT(ems_simulator_get("copies") >= 0);
    }
    OK(ems_simulator_set("DELAY", ""));
    OK(ems_simulator_set("GBPS_H2D", ""));
    return NULL;
}

static void run_threads(void)
{
    pthread_t threads[THREADS + 1];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, use_a_device, (void *)(intptr_t)i);
    pthread_create(&threads[THREADS], NULL, turn_knobs, NULL);
    for (int i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void expect_overruns_to_be_found(void)
{
    void *p;
    unsigned char byte = 0;
    OK(aclrtSetDevice(0));
    OK(aclrtMalloc(&p, 100, 0));
    ((unsigned char *)sim_alias((uint64_t)p))[100] = 1;
    EXPECT(aclrtMemcpy(p, 1, &byte, 1, TO_DEVICE) == ACL_RT_VECTOR_CORE_EXCEPTION);
    OK(aclrtMemcpy(p, 1, &byte, 1, TO_DEVICE));
    ((unsigned char *)sim_alias((uint64_t)p))[-1] = 1;
    EXPECT(aclrtFree(p) == ACL_RT_VECTOR_CORE_EXCEPTION);
    EXPECT(ems_simulator_get("canary_breaks") == 2);
}

static aclError fail_task(void *argument)
{
    (void)argument;
    return sim_fail(ACL_RT_VECTOR_CORE_EXCEPTION, "the task fails");
}

/* a stream is destroyed while others launch on it and wait for it */
static void *launch_until_refused(void *stream)
{
    OK(aclrtSetDevice(0));
    while (!sim_submit(stream, "nothing", fail_task, free, malloc(1)))
        continue;
    EXPECT(aclrtSynchronizeStream(stream) != ACL_OK);
    return NULL;
}

static void expect_destroyed_streams_to_be_refused(void)
{
    for (int round = 0; round < 20; round++) {
        void *stream;
        pthread_t threads[2];
        OK(aclrtSetDevice(0));
        OK(aclrtCreateStream(&stream));
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, launch_until_refused, stream);
        OK(round % 2 ? aclrtDestroyStream(stream) : aclrtDestroyStreamForce(stream));
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        EXPECT(aclrtSynchronizeStream(stream) == ACL_RT_INVALID_HANDLE);
    }
}

int main(void)
{
    OK(aclInit(NULL));
    run_threads();
    expect_overruns_to_be_found();
    expect_destroyed_streams_to_be_refused();
    EXPECT(ems_simulator_get("live_allocations") == 0);
    EXPECT(ems_simulator_get("pinned_nbytes") == 0);
    EXPECT(ems_simulator_get("streams") == 0);
    EXPECT(ems_simulator_get("threads") == 0);
    puts("done");
    return 0;
}
