/* What copies.c and batches.c share. */
#ifndef EMS_SIM_COPIES_H
#define EMS_SIM_COPIES_H
#include "sim.h"

/* the spans of one copy, arrays in one piece of memory after it */
struct copy {
    size_t count;
    uint64_t nbytes;
    enum copy_kind kind; /* of the first span that is not empty */
    int device;          /* whose engine it uses; -1: none */
    void **dst;
    void **src;
    size_t *sizes;
    void **dst_alias;
    void **src_alias;
    void *staged; /* what was taken over of memory that is not pinned */
};

struct copy *sim_new_copy(void *const *dst, void *const *src, const size_t *sizes, size_t count);
void sim_release_copy(void *copy);

/* look before the first byte moves; `failed_span`, if there is one, is set to who is to blame */
aclError sim_check_room(const size_t *room, const size_t *sizes, size_t count, size_t *failed_span);
aclError sim_reach_spans(struct copy *copy, size_t *failed_span);
void sim_tell_span(size_t *failed_span, size_t index);

/* both release the copy in the end */
aclError sim_enqueue_copy(struct copy *copy, aclrtStream stream);
aclError sim_copy_now(struct copy *copy);

#endif
