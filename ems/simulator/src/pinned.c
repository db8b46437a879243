/* Host memory that a device may read and write: allocated here, or registered by its owner.
 *
 * HARDWARE: alignment a registration asks for, whether overlapping ones are refused (they are
 * here), limits on the size of one, and whether an interior address may unregister.
 */
#include "memory.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct ranges pinned;

/* whether any part of [lo, hi) is pinned already; locked */
static bool overlaps(uint64_t lo, uint64_t hi)
{
    int before = sim_ranges_find(&pinned, lo);
    if (before >= 0 && pinned.at[before].hi > lo)
        return true;
    return before + 1 < pinned.count && pinned.at[before + 1].lo < hi;
}

static bool add(void *p, uint64_t nbytes, enum range_kind kind)
{
    uint64_t lo = (uint64_t)p;
    struct range range = {.lo = lo, .hi = lo + nbytes, .kind = kind};
    pthread_rwlock_wrlock(&lock);
    bool added = !overlaps(range.lo, range.hi) && sim_ranges_insert(&pinned, &range);
    pthread_rwlock_unlock(&lock);
    if (added)
        sim_count(COUNT_PINNED_NBYTES, (int64_t)nbytes);
    return added;
}

static bool take_out(void *p, enum range_kind kind, struct range *removed)
{
    pthread_rwlock_wrlock(&lock);
    int index = sim_ranges_starting(&pinned, (uint64_t)p, kind);
    if (index >= 0)
        *removed = sim_ranges_remove(&pinned, index);
    pthread_rwlock_unlock(&lock);
    if (index >= 0)
        sim_count(COUNT_PINNED_NBYTES, -(int64_t)(removed->hi - removed->lo));
    return index >= 0;
}

size_t sim_first_pageable(void *const *p, const size_t *nbytes, size_t count)
{
    size_t i;
    int index = -1;
    pthread_rwlock_rdlock(&lock);
    for (i = 0; i < count; i++) {
        uint64_t lo = (uint64_t)p[i];
        uint64_t hi = lo + nbytes[i];
        if (!nbytes[i] || sim_is_device(p[i]))
            continue;
        if (index < 0 || lo < pinned.at[index].lo || lo >= pinned.at[index].hi)
            index = sim_ranges_find(&pinned, lo);
        if (index < 0 || hi > pinned.at[index].hi)
            break;
    }
    pthread_rwlock_unlock(&lock);
    return i;
}

/* pages now, as pinning does: later it would be counted as time of the first copy */
static void populate(char *pages, uint64_t nbytes)
{
#ifdef MADV_POPULATE_WRITE
    if (!madvise(pages, nbytes, MADV_POPULATE_WRITE))
        return;
#endif
    for (uint64_t i = 0; i < nbytes; i += PAGE)
        ((volatile char *)pages)[i] = 0;
}

static char *map_pages(uint64_t nbytes, uint64_t alignment)
{
    uint64_t slack = alignment > PAGE ? alignment : 0;
    char *mapped = mmap(NULL, nbytes + slack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    char *aligned = (char *)round_up((uint64_t)mapped, alignment);
    uint64_t before = (uint64_t)(aligned - mapped);
    if (before)
        munmap(mapped, before);
    if (slack > before)
        munmap(aligned + nbytes, slack - before);
    return aligned;
}

API aclError aclrtMallocHost(void **out, size_t size)
{
    uint64_t alignment = size >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    uint64_t nbytes = round_up(size ? size : 1, alignment);
    char *pages = map_pages(nbytes, alignment);
    if (!pages)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "%zu bytes of host memory: %s", size,
                        strerror(errno));
    if (alignment == HUGE_PAGE)
        madvise(pages, nbytes, MADV_HUGEPAGE);
    populate(pages, nbytes);
    if (!add(pages, nbytes, ALLOCATED)) {
        munmap(pages, nbytes);
        return sim_fail(ACL_RT_MEMORY_ALLOCATION,
                        "new host memory at %p lies in memory that was unmapped while registered",
                        (void *)pages);
    }
    *out = pages;
    sim_trace("aclrtMallocHost(%zu): %p", size, *out);
    return ACL_OK;
}

API aclError aclrtFreeHost(void *p)
{
    sim_trace("aclrtFreeHost(%p)", p);
    struct range range;
    if (!take_out(p, ALLOCATED, &range))
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtFreeHost(%p): not from aclrtMallocHost", p);
    munmap(p, range.hi - range.lo);
    return ACL_OK;
}

/* the device's address of registered memory is the host's */
API aclError aclrtHostRegister(void *p, uint64_t size, int type, void **device_address)
{
    (void)type;
    sim_trace("aclrtHostRegister(%p, %llu)", p, (unsigned long long)size);
    if (!p || !size || sim_is_device(p))
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtHostRegister(%p, %llu): no host memory", p,
                        (unsigned long long)size);
    if (!add(p, size, REGISTERED))
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtHostRegister(%p, %llu): pinned already", p,
                        (unsigned long long)size);
    *device_address = p;
    return ACL_OK;
}

API aclError aclrtHostRegisterV2(void *p, uint64_t size, uint32_t flags)
{
    (void)flags;
    void *device_address;
    return aclrtHostRegister(p, size, 0, &device_address);
}

API aclError aclrtHostUnregister(void *p)
{
    sim_trace("aclrtHostUnregister(%p)", p);
    struct range range;
    if (!take_out(p, REGISTERED, &range))
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtHostUnregister(%p): not registered", p);
    return ACL_OK;
}

struct pointer_attributes {
    uint32_t device;
    int type;
    uint32_t page_nbytes;
    uint32_t reserved[4];
};

API aclError aclrtPointerGetAttributes(const void *p, struct pointer_attributes *attributes)
{
    enum { HOST, DEVICE, UNREGISTERED };
    const size_t one_byte = 1;
    memset(attributes, 0, sizeof *attributes);
    void *const address = (void *)p;
    if (sim_is_device(p)) {
        attributes->device = (uint32_t)sim_device_of(p);
        attributes->type = DEVICE;
        attributes->page_nbytes = HUGE_PAGE;
    } else if (sim_first_pageable(&address, &one_byte, 1) == 1) {
        attributes->type = HOST;
        attributes->page_nbytes = PAGE;
    } else {
        attributes->type = UNREGISTERED;
    }
    return ACL_OK;
}
