/* Sorted tables of address ranges. The caller holds the lock of the table. */
#include "memory.h"
#include <stdlib.h>
#include <string.h>

int sim_ranges_find(const struct ranges *ranges, uint64_t address)
{
    int low = 0;
    int high = ranges->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ranges->at[middle].lo <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

int sim_ranges_starting(const struct ranges *ranges, uint64_t lo, enum range_kind kind)
{
    int index = sim_ranges_find(ranges, lo);
    if (index < 0 || ranges->at[index].lo != lo || ranges->at[index].kind != kind)
        return -1;
    return index;
}

static bool make_room(struct ranges *ranges)
{
    if (ranges->count < ranges->room)
        return true;
    int room = ranges->room ? 2 * ranges->room : 64;
    struct range *larger = realloc(ranges->at, sizeof *larger * (size_t)room);
    if (!larger)
        return false;
    ranges->at = larger;
    ranges->room = room;
    return true;
}

bool sim_ranges_insert(struct ranges *ranges, const struct range *range)
{
    if (!make_room(ranges))
        return false;
    int index = sim_ranges_find(ranges, range->lo) + 1;
    struct range *place = ranges->at + index;
    memmove(place + 1, place, sizeof *place * (size_t)(ranges->count - index));
    *place = *range;
    ranges->count++;
    return true;
}

struct range sim_ranges_remove(struct ranges *ranges, int index)
{
    struct range *place = ranges->at + index;
    struct range removed = *place;
    ranges->count--;
    memmove(place, place + 1, sizeof *place * (size_t)(ranges->count - index));
    return removed;
}
