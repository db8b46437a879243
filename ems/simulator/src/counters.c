/* What the process has done so far: `ems_simulator_get` lets tests ask. */
#include "sim.h"
#include <stdatomic.h>
#include <string.h>

static _Atomic int64_t counters[SIM_COUNTERS];

static const char *const names[SIM_COUNTERS] = {
    [COUNT_COPIES] = "copies",
    [COUNT_SPANS] = "spans",
    [COUNT_BYTES_H2D] = "bytes_h2d",
    [COUNT_BYTES_D2H] = "bytes_d2h",
    [COUNT_LAUNCHES] = "launches",
    [COUNT_LIVE_ALLOCATIONS] = "live_allocations",
    [COUNT_PINNED_NBYTES] = "pinned_nbytes",
    [COUNT_CANARY_BREAKS] = "canary_breaks",
    [COUNT_STREAMS] = "streams",
    [COUNT_THREADS] = "threads",
};

void sim_count(enum sim_counter counter, int64_t more)
{
    atomic_fetch_add_explicit(&counters[counter], more, memory_order_relaxed);
}

/* the counter's value; -1 for an unknown name */
API int64_t ems_simulator_get(const char *counter)
{
    for (int i = 0; i < SIM_COUNTERS; i++) {
        if (!strcmp(counter, names[i]))
            return atomic_load_explicit(&counters[i], memory_order_relaxed);
    }
    return -1;
}
