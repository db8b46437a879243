/* Device memory of another process. The key of an export names the owner's file; who imports it
 * opens that file by way of /proc and maps the same pages.
 *
 * HARDWARE: what an importer sees after the owner has freed the memory (zeros, here), and
 * whether a process that was not named by aclrtIpcMemSetImportPid is refused (it is not, here).
 */
#include "memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct export {
    int process;
    int device; /* physical: the other process may see other devices */
    int file;
    unsigned long long offset;
    unsigned long long nbytes;
};

static bool is_allocated(struct pool *pool, uint64_t lo, uint64_t hi)
{
    pthread_rwlock_rdlock(&pool->lock);
    int index = sim_ranges_find(&pool->live, lo);
    const struct range *range = index >= 0 ? &pool->live.at[index] : NULL;
    bool allocated = range && range->kind == ALLOCATED && hi <= range->hi;
    pthread_rwlock_unlock(&pool->lock);
    return allocated;
}

API aclError aclrtIpcMemGetExportKey(void *p, size_t size, char *key, size_t room, uint64_t flags)
{
    (void)flags;
    struct pool *pool = sim_pool_of(p);
    uint64_t lo = (uint64_t)p;
    if (!pool || !is_allocated(pool, lo, lo + size))
        return sim_fail(ACL_RT_PARAM_INVALID, "%p+%zu is in no allocation to share", p, size);
    int device = sim_settings()->visible[sim_device_of(p)];
    int length = snprintf(key, room, "ems:%d:%d:%d:%llx:%zx", (int)getpid(), device, pool->file,
                          (unsigned long long)(lo - pool->base), size);
    if (length >= (int)room)
        return sim_fail(ACL_RT_PARAM_INVALID, "%zu bytes are too few for a key", room);
    return ACL_OK;
}

API aclError aclrtIpcMemSetImportPid(const char *key, int32_t *processes, size_t count)
{
    (void)key;
    (void)processes;
    (void)count;
    return ACL_OK;
}

static int visible_number(int physical)
{
    for (int device = 0; device < sim_device_count(); device++) {
        if (sim_settings()->visible[device] == physical)
            return device;
    }
    return -1;
}

static bool parse_key(const char *key, struct export *export)
{
    int fields = sscanf(key, "ems:%d:%d:%d:%llx:%llx", &export->process, &export->device,
                        &export->file, &export->offset, &export->nbytes);
    return fields == 5 && export->nbytes && strlen(key) < sizeof((struct range *)0)->key;
}

static aclError map_import(int device, int file, const struct export *export, const char *key,
                           void **out)
{
    struct pool *pool = sim_pool(device);
    uint64_t lead = export->offset % PAGE;
    uint64_t mapped_nbytes = round_up(lead + export->nbytes, PAGE);
    pthread_rwlock_wrlock(&pool->lock);
    uint64_t start = sim_find_gap(pool, 0, mapped_nbytes, PAGE);
    struct range range = {
        .lo = start + lead,
        .hi = start + lead + export->nbytes,
        .start = start,
        .end = start + mapped_nbytes,
        .kind = IMPORTED,
    };
    snprintf(range.key, sizeof range.key, "%s", key);
    bool mapped = start != 0;
    if (mapped) {
        void *alias = mmap(sim_alias(start), mapped_nbytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                           (off_t)(export->offset - lead));
        mapped = alias != MAP_FAILED && sim_ranges_insert(&pool->live, &range);
    }
    pthread_rwlock_unlock(&pool->lock);
    if (!mapped)
        return sim_fail(ACL_RT_IPC, "npu:%d: %s cannot be mapped", device, key);
    *out = (void *)range.lo;
    return ACL_OK;
}

API aclError aclrtIpcMemImportByKey(void **out, const char *key, uint64_t flags)
{
    (void)flags;
    struct export export;
    if (!parse_key(key, &export))
        return sim_fail(ACL_RT_PARAM_INVALID, "%.60s is no key of an export", key);
    int device = visible_number(export.device);
    if (device < 0)
        return sim_fail(ACL_RT_INVALID_DEVICEID, "physical device %d is not visible",
                        export.device);
    aclError failed = sim_pool_open(device);
    if (failed)
        return failed;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", export.process, export.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return sim_fail(ACL_RT_IPC, "%s: %s", path, strerror(errno));
    failed = map_import(device, file, &export, key, out);
    close(file);
    return failed;
}

static bool close_import(struct pool *pool, const char *key)
{
    for (int i = 0; i < pool->live.count; i++) {
        const struct range *range = &pool->live.at[i];
        if (range->kind == IMPORTED && !strcmp(range->key, key)) {
            struct range closed = sim_ranges_remove(&pool->live, i);
            sim_map_device_file(pool, closed.start, closed.end);
            return true;
        }
    }
    return false;
}

/* harmless for a key that was not imported: the owner of the memory closes it, too */
API aclError aclrtIpcMemClose(const char *key)
{
    struct export export;
    int device = parse_key(key, &export) ? visible_number(export.device) : -1;
    if (device < 0)
        return ACL_OK;
    struct pool *pool = sim_pool(device);
    pthread_rwlock_wrlock(&pool->lock);
    close_import(pool, key);
    pthread_rwlock_unlock(&pool->lock);
    return ACL_OK;
}
