/* Copies of many spans by one call, with attributes that say where the spans lie.
 *
 * HARDWARE: whether a refused batch has moved nothing, whether a batch may go from device to
 * device, how strictly attributes are compared with addresses, and that a batch waits where host
 * memory is not pinned.
 */
#include "copies.h"

/* one end of the spans of a batch */
struct location {
    uint32_t device;
    enum { HOST, DEVICE } type;
};

struct batch_attribute {
    struct location dst;
    struct location src;
    uint8_t reserved[16];
};

struct batch {
    void **dst;
    size_t *room;
    void **src;
    size_t *sizes;
    size_t count;
    const struct batch_attribute *attributes;
    const size_t *first_spans; /* the span from which on each attribute holds */
    size_t attribute_count;
    size_t *failed_span;
};

static aclError check_attribute_indexes(const struct batch *batch)
{
    size_t count = batch->attribute_count;
    bool valid = batch->attributes && batch->first_spans && count && count <= batch->count;
    for (size_t i = 0; valid && i < count; i++) {
        size_t first = batch->first_spans[i];
        valid = i ? first > batch->first_spans[i - 1] && first < batch->count : first == 0;
    }
    if (valid)
        return ACL_OK;
    return sim_fail(ACL_RT_PARAM_INVALID,
                    "%zu attributes for %zu spans: the first must be for span 0, the others for "
                    "later ones each",
                    count, batch->count);
}

static bool lies_at(const void *p, const struct location *location)
{
    if (location->type == HOST)
        return !sim_is_device(p);
    return location->type == DEVICE && sim_device_of(p) == (int)location->device;
}

static aclError check_span_locations(const struct batch *batch)
{
    size_t which = 0;
    for (size_t i = 0; i < batch->count; i++) {
        if (which + 1 < batch->attribute_count && i == batch->first_spans[which + 1])
            which++;
        const struct batch_attribute *attribute = &batch->attributes[which];
        if (!lies_at(batch->dst[i], &attribute->dst) || !lies_at(batch->src[i], &attribute->src)) {
            sim_tell_span(batch->failed_span, i);
            return sim_fail(ACL_RT_PARAM_INVALID,
                            "span %zu: attribute %zu does not say where %p and %p are", i, which,
                            batch->dst[i], batch->src[i]);
        }
    }
    return ACL_OK;
}

static aclError prepare_batch(const struct batch *batch, struct copy **out)
{
    sim_tell_span(batch->failed_span, SIZE_MAX);
    if (!batch->dst || !batch->room || !batch->src || !batch->sizes || !batch->count)
        return sim_fail(ACL_RT_PARAM_INVALID, "a batch without spans");
    aclError failed = check_attribute_indexes(batch);
    if (!failed)
        failed = sim_check_room(batch->room, batch->sizes, batch->count, batch->failed_span);
    if (!failed)
        failed = check_span_locations(batch);
    if (failed)
        return failed;
    struct copy *copy = sim_new_copy(batch->dst, batch->src, batch->sizes, batch->count);
    if (!copy)
        return sim_fail(ACL_RT_MEMORY_ALLOCATION, "no host memory for a batch");
    failed = sim_reach_spans(copy, batch->failed_span);
    if (failed)
        sim_release_copy(copy);
    else
        *out = copy;
    return failed;
}

API aclError aclrtMemcpyBatch(void **dst, size_t *room, void **src, size_t *sizes, size_t count,
                              struct batch_attribute *attributes, size_t *first_spans,
                              size_t attribute_count, size_t *failed_span)
{
    struct batch batch = {dst,        room,        src,             sizes,      count,
                          attributes, first_spans, attribute_count, failed_span};
    struct copy *copy;
    int device;
    sim_trace("aclrtMemcpyBatch of %zu spans", count);
    aclError failed = sim_need_device("aclrtMemcpyBatch", &device);
    if (!failed)
        failed = prepare_batch(&batch, &copy);
    return failed ? failed : sim_copy_now(copy);
}

API aclError aclrtMemcpyBatchAsync(void **dst, size_t *room, void **src, size_t *sizes,
                                   size_t count, struct batch_attribute *attributes,
                                   size_t *first_spans, size_t attribute_count,
                                   size_t *failed_span, aclrtStream stream)
{
    struct batch batch = {dst,        room,        src,             sizes,      count,
                          attributes, first_spans, attribute_count, failed_span};
    struct copy *copy;
    sim_trace("aclrtMemcpyBatchAsync of %zu spans", count);
    sim_tell_span(failed_span, SIZE_MAX);
    aclError failed = sim_launch_fault("aclrtMemcpyBatchAsync");
    if (!failed)
        failed = prepare_batch(&batch, &copy);
    return failed ? failed : sim_enqueue_copy(copy, stream);
}
