/* What the modules about device memory share: memory.c, virtual.c, foreign.c, pinned.c. */
#ifndef EMS_SIM_MEMORY_H
#define EMS_SIM_MEMORY_H
#include "sim.h"
#include <pthread.h>

#define PAGE 4096ull
#define HUGE_PAGE (2ull << 20)

static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

enum range_kind {
    ALLOCATED,  /* aclrtMalloc, aclrtMallocHost: with canaries on a device */
    MAPPED,     /* physical memory at a reserved address */
    IMPORTED,   /* another process's */
    RESERVED,   /* an address range only */
    REGISTERED, /* host memory of the caller */
};

struct range {
    uint64_t lo, hi;     /* the bytes that may be touched */
    uint64_t start, end; /* whole pages around them that belong to nothing else */
    enum range_kind kind;
    uint64_t charged; /* bytes on the device's account */
    char key[65];     /* of an import */
};

/* ranges.c: sorted by address, without overlaps */
struct ranges {
    struct range *at;
    int count, room;
};
int sim_ranges_find(const struct ranges *ranges, uint64_t address); /* last lo <= address, or -1 */
int sim_ranges_starting(const struct ranges *ranges, uint64_t lo, enum range_kind kind); /* or -1 */
bool sim_ranges_insert(struct ranges *ranges, const struct range *range);
struct range sim_ranges_remove(struct ranges *ranges, int index);

/* memory.c: the memory of one device. Its file is mapped, readable, at an alias of the
 * addresses that callers see; those have no access, so host code cannot read device memory. */
struct pool {
    pthread_rwlock_t lock;
    struct ranges live;
    struct ranges reserved;
    int file; /* -1 until the device is used */
    uint64_t base, end;
    uint64_t next; /* where the search for room begins: a freed address is not soon used again */
};
struct pool *sim_pool(int device);
struct pool *sim_pool_of(const void *p); /* NULL for a host address */
aclError sim_pool_open(int device);
uint64_t sim_find_gap(struct pool *pool, uint64_t lead, uint64_t nbytes, uint64_t alignment);
void *sim_alias(uint64_t address);
void sim_map_device_file(struct pool *pool, uint64_t start, uint64_t end);
aclError sim_charge(int device, uint64_t nbytes);
int sim_memory_file(const char *name, uint64_t nbytes); /* unnamed memory; -1 */

#endif
