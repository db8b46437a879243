/* Channels that carry tensors from graphs to the host. The graph engine of torch_npu links them;
 * there are no graphs here, so none can be made and there is nothing in one. */
#include "sim.h"

static aclError refuse(const char *call)
{
    return sim_fail(ACL_OP_NOT_FOUND, "%s: graphs are not simulated", call);
}

#define NO_HANDLE(name)     \
    API void *name(void)    \
    {                       \
        refuse(#name);      \
        return NULL;        \
    }

#define NO_COUNT(name)      \
    API size_t name(void)   \
    {                       \
        refuse(#name);      \
        return 0;           \
    }

#define NO_ACTION(name)     \
    API aclError name(void) \
    {                       \
        return refuse(#name); \
    }

NO_HANDLE(acltdtCreateChannelWithCapacity)
NO_HANDLE(acltdtCreateDataset)
NO_HANDLE(acltdtGetDataAddrFromItem)
NO_HANDLE(acltdtGetDataItem)

NO_COUNT(acltdtGetDataSizeFromItem)
NO_COUNT(acltdtGetDatasetSize)
NO_COUNT(acltdtGetDimNumFromItem)

NO_ACTION(acltdtDestroyChannel)
NO_ACTION(acltdtDestroyDataset)
NO_ACTION(acltdtGetDimsFromItem)
NO_ACTION(acltdtReceiveTensor)

API int acltdtGetDataTypeFromItem(const void *item)
{
    const int undefined = -1;
    (void)item;
    refuse("acltdtGetDataTypeFromItem");
    return undefined;
}
