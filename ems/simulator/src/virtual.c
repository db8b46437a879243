/* Reserved addresses with physical memory mapped into them: torch's expandable segments.
 *
 * HARDWARE: granularity of physical memory, and what is refused about alignments.
 */
#include "memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct physical {
    uint64_t nbytes;
    int device;
    int file;
};

struct physical_properties {
    int handle_type, allocation_type, attribute;
    uint32_t device;
    int location_type; /* 1: on a device */
    uint64_t reserved;
};

API aclError aclrtReserveMemAddress(void **out, size_t size, size_t alignment, void *wanted,
                                    uint64_t flags)
{
    (void)alignment;
    (void)wanted;
    (void)flags;
    int device;
    aclError failed = sim_need_device("aclrtReserveMemAddress", &device);
    if (failed)
        return failed;
    struct pool *pool = sim_pool(device);
    uint64_t nbytes = round_up(size, HUGE_PAGE);
    pthread_rwlock_wrlock(&pool->lock);
    uint64_t lo = sim_find_gap(pool, 0, nbytes, HUGE_PAGE);
    struct range range = {
        .lo = lo,
        .hi = lo + nbytes,
        .start = lo,
        .end = lo + nbytes,
        .kind = RESERVED,
    };
    bool reserved = lo && sim_ranges_insert(&pool->reserved, &range);
    pthread_rwlock_unlock(&pool->lock);
    if (!reserved)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "npu:%d: no addresses for %zu bytes", device,
                        size);
    *out = (void *)lo;
    return ACL_OK;
}

API aclError aclrtReleaseMemAddress(void *p)
{
    struct pool *pool = sim_pool_of(p);
    if (!pool)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtReleaseMemAddress(%p): not reserved", p);
    pthread_rwlock_wrlock(&pool->lock);
    int index = sim_ranges_starting(&pool->reserved, (uint64_t)p, RESERVED);
    if (index >= 0) {
        struct range range = sim_ranges_remove(&pool->reserved, index);
        sim_map_device_file(pool, range.start, range.end);
    }
    pthread_rwlock_unlock(&pool->lock);
    if (index < 0)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtReleaseMemAddress(%p): not reserved", p);
    return ACL_OK;
}

API aclError aclrtMallocPhysical(void **handle, size_t size,
                                 const struct physical_properties *properties, uint64_t flags)
{
    (void)flags;
    const int on_device = 1;
    int device = (int)properties->device;
    if (properties->location_type != on_device)
        return sim_fail(ACL_RT_FEATURE_NOT_SUPPORT, "physical host memory is not simulated");
    if (device >= sim_device_count())
        return sim_fail(ACL_RT_INVALID_DEVICEID, "device %d of %d", device, sim_device_count());
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory");
    aclError failed = sim_charge(device, size);
    if (failed) {
        free(physical);
        return failed;
    }
    physical->nbytes = size;
    physical->device = device;
    physical->file = sim_memory_file("simulated npu, physical", size);
    if (physical->file < 0) {
        free(physical);
        sim_account_give(device, size);
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "npu:%d: %s", device, strerror(errno));
    }
    *handle = physical;
    return ACL_OK;
}

API aclError aclrtFreePhysical(void *handle)
{
    struct physical *physical = handle;
    sim_account_give(physical->device, physical->nbytes);
    close(physical->file);
    free(physical);
    return ACL_OK;
}

API aclError aclrtMapMem(void *p, size_t size, size_t offset, void *handle, uint64_t flags)
{
    (void)flags;
    struct physical *physical = handle;
    struct pool *pool = sim_pool_of(p);
    if (!pool)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtMapMem(%p): not reserved", p);
    uint64_t lo = (uint64_t)p;
    struct range range = {
        .lo = lo,
        .hi = lo + size,
        .start = lo,
        .end = lo + size,
        .kind = MAPPED,
    };
    pthread_rwlock_wrlock(&pool->lock);
    int index = sim_ranges_find(&pool->reserved, lo);
    bool mapped = index >= 0 && range.hi <= pool->reserved.at[index].hi;
    if (mapped) {
        void *alias = mmap(sim_alias(lo), size, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->file, (off_t)offset);
        mapped = alias != MAP_FAILED && sim_ranges_insert(&pool->live, &range);
    }
    pthread_rwlock_unlock(&pool->lock);
    if (!mapped)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtMapMem(%p, %zu): not in a reserved range", p,
                        size);
    return ACL_OK;
}

API aclError aclrtUnmapMem(void *p)
{
    struct pool *pool = sim_pool_of(p);
    if (!pool)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtUnmapMem(%p): not mapped", p);
    pthread_rwlock_wrlock(&pool->lock);
    int index = sim_ranges_starting(&pool->live, (uint64_t)p, MAPPED);
    if (index >= 0) {
        struct range range = sim_ranges_remove(&pool->live, index);
        mmap(sim_alias(range.lo), range.hi - range.lo, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    }
    pthread_rwlock_unlock(&pool->lock);
    if (index < 0)
        return sim_fail(ACL_RT_PARAM_INVALID, "aclrtUnmapMem(%p): not mapped", p);
    return ACL_OK;
}

static aclError no_shareable_handles(void)
{
    return sim_fail(ACL_RT_FEATURE_NOT_SUPPORT, "shareable handles are not simulated");
}

API aclError aclrtMemExportToShareableHandle(void *handle, int type, uint64_t flags, uint64_t *out)
{
    (void)handle;
    (void)type;
    (void)flags;
    (void)out;
    return no_shareable_handles();
}

API aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void **handle)
{
    (void)shareable;
    (void)device;
    (void)handle;
    return no_shareable_handles();
}

API aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *processes, size_t count)
{
    (void)shareable;
    (void)processes;
    (void)count;
    return no_shareable_handles();
}
