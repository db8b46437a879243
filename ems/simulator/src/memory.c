/* The address space of devices and what is allocated in it.
 *
 * A device address is one of a range without access: host code that reads or writes device
 * memory dies, as it does with an NPU. The bytes lie in a file in memory, mapped once more at a
 * fixed distance, which only this library uses, after a look into the table of what is live.
 *
 * Each allocation has a canary before and one after it. They are looked at after every task
 * that came near an end, and when the memory is freed.
 *
 * HARDWARE: an allocation's real granularity, and whether freed memory is refused at once.
 */
#include "memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CANARY_NBYTES = 64,
    CANARY = 0x5c,
    POISON = 0xa5,
    NEAR_AN_END = 4096, /* a task that reaches closer than this is checked afterwards */
    MAX_TOUCHED = 16
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t space_start; /* 0: no address space could be had */
static uint64_t space_nbytes;
static uint64_t device_nbytes = 1ull << 40;
static struct pool pools[SIM_MAX_DEVICES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* device addresses, then as much for the aliases */
static bool reserve_addresses(int devices)
{
    const uint64_t least = 1ull << 32;
    for (; device_nbytes >= least; device_nbytes /= 2) {
        space_nbytes = device_nbytes * (uint64_t)devices;
        void *space = mmap(NULL, 2 * space_nbytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space != MAP_FAILED) {
            space_start = (uint64_t)space;
            return true;
        }
    }
    return false;
}

static void lay_out_space(void)
{
    int devices = sim_device_count();
    if (!devices || !reserve_addresses(devices))
        return;
    for (int device = 0; device < devices; device++) {
        struct pool *pool = &pools[device];
        pthread_rwlock_init(&pool->lock, NULL);
        pool->file = -1;
        pool->base = space_start + device_nbytes * (uint64_t)device;
        pool->end = pool->base + device_nbytes;
        pool->next = pool->base;
    }
}

struct pool *sim_pool(int device)
{
    return &pools[device];
}

bool sim_is_device(const void *p)
{
    pthread_once(&once, lay_out_space);
    return space_start && (uint64_t)p - space_start < space_nbytes;
}

int sim_device_of(const void *p)
{
    return sim_is_device(p) ? (int)(((uint64_t)p - space_start) / device_nbytes) : -1;
}

struct pool *sim_pool_of(const void *p)
{
    return sim_is_device(p) ? &pools[sim_device_of(p)] : NULL;
}

void *sim_alias(uint64_t address)
{
    return (void *)(address + space_nbytes);
}

int sim_memory_file(const char *name, uint64_t nbytes)
{
    const unsigned close_on_exec = 1;
    int file = (int)syscall(SYS_memfd_create, name, close_on_exec);
    if (file >= 0 && ftruncate(file, (off_t)nbytes)) {
        close(file);
        file = -1;
    }
    return file;
}

void sim_map_device_file(struct pool *pool, uint64_t start, uint64_t end)
{
    mmap(sim_alias(start), end - start, PROT_READ | PROT_WRITE,
         MAP_SHARED | MAP_FIXED | MAP_NORESERVE, pool->file, (off_t)(start - pool->base));
}

/* a device costs nothing before it is used */
aclError sim_pool_open(int device)
{
    pthread_once(&once, lay_out_space);
    if (!space_start)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no address space for devices");
    struct pool *pool = &pools[device];
    pthread_mutex_lock(&opening);
    if (pool->file < 0) {
        pool->file = sim_memory_file("simulated npu", device_nbytes);
        if (pool->file >= 0)
            sim_map_device_file(pool, pool->base, pool->end);
    }
    bool opened = pool->file >= 0;
    pthread_mutex_unlock(&opening);
    if (!opened)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "device %d: %s", device, strerror(errno));
    return ACL_OK;
}

/* an address with `lead` bytes before it and `nbytes` and a page after it that nothing has, or
 * 0; the pool is locked */
static uint64_t gap_between(struct pool *pool, uint64_t from, uint64_t lead, uint64_t nbytes,
                            uint64_t alignment)
{
    int live = 0;
    int reserved = 0;
    for (;;) {
        uint64_t lo = round_up(from + lead, alignment);
        uint64_t end = round_up(lo + nbytes, PAGE) + PAGE;
        if (end > pool->end)
            return 0;
        while (live < pool->live.count && pool->live.at[live].end <= lo - lead)
            live++;
        while (reserved < pool->reserved.count && pool->reserved.at[reserved].end <= lo - lead)
            reserved++;
        if (live < pool->live.count && pool->live.at[live].start < end)
            from = pool->live.at[live].end;
        else if (reserved < pool->reserved.count && pool->reserved.at[reserved].start < end)
            from = pool->reserved.at[reserved].end;
        else
            return lo;
    }
}

uint64_t sim_find_gap(struct pool *pool, uint64_t lead, uint64_t nbytes, uint64_t alignment)
{
    uint64_t found = gap_between(pool, pool->next, lead, nbytes, alignment);
    if (!found)
        found = gap_between(pool, pool->base, lead, nbytes, alignment);
    if (found)
        pool->next = round_up(found + nbytes, PAGE) + PAGE;
    return found;
}

aclError sim_charge(int device, uint64_t nbytes)
{
    uint64_t in_use;
    if (sim_account_take(device, nbytes, &in_use))
        return ACL_OK;
    return sim_fail(ACL_RT_MEMORY_ALLOCATION,
                    "npu:%d is out of memory: %llu bytes asked, %llu of %llu in use", device,
                    (unsigned long long)nbytes, (unsigned long long)in_use,
                    (unsigned long long)sim_settings()->memory_nbytes);
}

static void write_canaries(const struct range *range)
{
    memset(sim_alias(range->lo - CANARY_NBYTES), CANARY, CANARY_NBYTES);
    memset(sim_alias(range->hi), CANARY, CANARY_NBYTES);
}

static bool canary_is_whole(uint64_t address)
{
    const unsigned char *bytes = sim_alias(address);
    for (int i = 0; i < CANARY_NBYTES; i++) {
        if (bytes[i] != CANARY)
            return false;
    }
    return true;
}

static aclError check_canaries_of(const struct range *range)
{
    bool before = canary_is_whole(range->lo - CANARY_NBYTES);
    bool after = canary_is_whole(range->hi);
    if (before && after)
        return ACL_OK;
    sim_count(COUNT_CANARY_BREAKS, 1);
    write_canaries(range); /* one overrun is told once */
    return sim_fail(ACL_RT_VECTOR_CORE_EXCEPTION,
                    "something wrote %s the allocation at 0x%llx of %llu bytes",
                    before ? "past the end of" : "before the start of",
                    (unsigned long long)range->lo, (unsigned long long)(range->hi - range->lo));
}

static aclError insert_allocation(struct pool *pool, uint64_t nbytes, uint64_t charged, void **out)
{
    bool large = nbytes >= HUGE_PAGE / 2;
    uint64_t lo = sim_find_gap(pool, PAGE, nbytes, large ? HUGE_PAGE : PAGE);
    struct range range = {
        .lo = lo,
        .hi = lo + nbytes,
        .start = lo - PAGE,
        .end = round_up(lo + nbytes, PAGE) + PAGE,
        .kind = ALLOCATED,
        .charged = charged,
    };
    if (!lo || !sim_ranges_insert(&pool->live, &range))
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no addresses for %llu bytes",
                        (unsigned long long)nbytes);
    write_canaries(&range);
    *out = (void *)lo;
    return ACL_OK;
}

API aclError aclrtMalloc(void **out, size_t size, int policy)
{
    (void)policy;
    int device;
    aclError failed = sim_need_device("aclrtMalloc", &device);
    if (failed)
        return failed;
    uint64_t nbytes = size ? size : 1;
    uint64_t charged = round_up(nbytes, nbytes >= HUGE_PAGE / 2 ? HUGE_PAGE : 512);
    failed = sim_charge(device, charged);
    if (failed)
        return failed;
    struct pool *pool = sim_pool(device);
    pthread_rwlock_wrlock(&pool->lock);
    failed = insert_allocation(pool, nbytes, charged, out);
    pthread_rwlock_unlock(&pool->lock);
    if (failed) {
        sim_account_give(device, charged);
        return failed;
    }
    if (sim_settings()->poison)
        memset(sim_alias((uint64_t)*out), POISON, nbytes);
    sim_count(COUNT_LIVE_ALLOCATIONS, 1);
    sim_trace("aclrtMalloc(%zu) on npu:%d: %p", size, device, *out);
    return ACL_OK;
}

API aclError aclrtMallocAlign32(void **out, size_t size, int policy)
{
    return aclrtMalloc(out, size, policy);
}

static void give_pages_back(struct pool *pool, const struct range *range)
{
    fallocate(pool->file, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
              (off_t)(range->start - pool->base), (off_t)(range->end - range->start));
}

API aclError aclrtFree(void *p)
{
    sim_trace("aclrtFree(%p)", p);
    struct pool *pool = sim_pool_of(p);
    if (!pool)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtFree(%p): not device memory", p);
    pthread_rwlock_wrlock(&pool->lock);
    int index = sim_ranges_starting(&pool->live, (uint64_t)p, ALLOCATED);
    if (index < 0) {
        pthread_rwlock_unlock(&pool->lock);
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtFree(%p): no allocation starts there", p);
    }
    aclError overrun = check_canaries_of(&pool->live.at[index]);
    struct range range = sim_ranges_remove(&pool->live, index);
    give_pages_back(pool, &range);
    pthread_rwlock_unlock(&pool->lock);
    sim_account_give(sim_device_of(p), range.charged);
    sim_count(COUNT_LIVE_ALLOCATIONS, -1);
    return overrun;
}

/* allocations to whose ends this thread came close since the last check */
static __thread uint64_t touched[MAX_TOUCHED];
static __thread unsigned touched_count;

static void remember_touch(const struct range *range, uint64_t lo, uint64_t hi)
{
    bool close = lo - range->lo < NEAR_AN_END || range->hi - hi < NEAR_AN_END;
    if (!close || range->kind != ALLOCATED)
        return;
    if (touched_count && touched[(touched_count - 1) % MAX_TOUCHED] == range->lo)
        return;
    touched[touched_count++ % MAX_TOUCHED] = range->lo;
}

aclError sim_check_canaries(void)
{
    aclError overrun = ACL_OK;
    unsigned count = touched_count < MAX_TOUCHED ? touched_count : MAX_TOUCHED;
    touched_count = 0;
    for (unsigned i = 0; i < count && !overrun; i++) {
        struct pool *pool = sim_pool_of((void *)touched[i]);
        pthread_rwlock_rdlock(&pool->lock);
        int index = sim_ranges_starting(&pool->live, touched[i], ALLOCATED);
        if (index >= 0)
            overrun = check_canaries_of(&pool->live.at[index]);
        pthread_rwlock_unlock(&pool->lock);
    }
    return overrun;
}

/* whether [lo, hi) is live. Mapped pages side by side are one block, allocations are not. The
 * pool is locked; `index` is where the last look ended, mostly the same range again. */
static bool is_live(struct pool *pool, uint64_t lo, uint64_t hi, int *index)
{
    const struct ranges *live = &pool->live;
    int i = *index;
    if (i < 0 || i >= live->count || lo < live->at[i].lo || lo >= live->at[i].hi)
        i = sim_ranges_find(live, lo);
    if (i < 0 || lo >= live->at[i].hi)
        return false;
    *index = i;
    while (live->at[i].hi < hi) {
        bool continues = i + 1 < live->count && live->at[i].kind == MAPPED &&
                         live->at[i + 1].kind == MAPPED && live->at[i + 1].lo == live->at[i].hi;
        if (!continues)
            return false;
        i++;
    }
    remember_touch(&live->at[i], lo, hi);
    return true;
}

void *sim_reach(const void *p, size_t n)
{
    struct pool *pool = sim_pool_of(p);
    if (!pool)
        return NULL;
    int index = -1;
    uint64_t lo = (uint64_t)p;
    pthread_rwlock_rdlock(&pool->lock);
    bool live = lo + n >= lo && is_live(pool, lo, lo + n, &index);
    pthread_rwlock_unlock(&pool->lock);
    return live ? sim_alias(lo) : NULL;
}

size_t sim_reach_many(void *const *p, const size_t *nbytes, void **alias, size_t count)
{
    struct pool *locked = NULL;
    int index = -1;
    size_t i;
    for (i = 0; i < count; i++) {
        struct pool *pool = nbytes[i] ? sim_pool_of(p[i]) : NULL;
        alias[i] = p[i];
        if (!pool)
            continue;
        if (pool != locked) {
            if (locked)
                pthread_rwlock_unlock(&locked->lock);
            pthread_rwlock_rdlock(&pool->lock);
            locked = pool;
            index = -1;
        }
        uint64_t lo = (uint64_t)p[i];
        if (lo + nbytes[i] < lo || !is_live(pool, lo, lo + nbytes[i], &index))
            break;
        alias[i] = sim_alias(lo);
    }
    if (locked)
        pthread_rwlock_unlock(&locked->lock);
    return i;
}
