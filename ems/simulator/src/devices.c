/* Devices, the current device of each thread, and what devices and CANN say about themselves.
 *
 * HARDWARE: to be compared with a real device: numbers of cores and caches, what an attribute
 * that is not listed here answers, and which list of ASCEND_RT_VISIBLE_DEVICES is refused.
 */
#include "memory.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CUBE_CORES = 24,
    VECTOR_CORES = 48,
    L2_CACHE_NBYTES = 192 << 20
};

struct device {
    atomic_bool active;
};
static struct device devices[SIM_MAX_DEVICES];
static _Atomic int default_device = -1; /* of the file given to aclInit, for threads without one */
static atomic_bool initialized;
static __thread int current_device = -1;

int sim_device_count(void)
{
    return sim_settings()->visible_count;
}

static bool is_device(int device)
{
    return device >= 0 && device < sim_device_count();
}

static aclError no_device(int device)
{
    return sim_fail(ACL_RT_INVALID_DEVICEID, "device %d of %d", device, sim_device_count());
}

void sim_enter_device(int device)
{
    current_device = device;
}

API aclError aclrtSetDevice(int32_t device)
{
    sim_trace("aclrtSetDevice(%d)", device);
    if (!sim_settings()->valid)
        return sim_fail(ACL_INVALID_PARAM, "a setting EMS_SIM_... is not understood");
    if (!is_device(device))
        return no_device(device);
    aclError failed = sim_pool_open(device);
    if (failed)
        return failed;
    devices[device].active = true;
    current_device = device;
    return ACL_OK;
}

int sim_current_device(void)
{
    if (current_device < 0 && default_device >= 0)
        aclrtSetDevice(default_device);
    return current_device;
}

aclError sim_need_device(const char *call, int *device)
{
    *device = sim_current_device();
    if (*device < 0)
        return sim_fail(ACL_RT_CONTEXT_NULL, "%s without a device", call);
    return ACL_OK;
}

/* {"defaultDevice": {"default_device": "0"}}: torch_npu relies on it since CANN 8.3 */
static void read_default_device(const char *path)
{
    char text[4096];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return;
    text[length] = 0;
    const char *found = strstr(text, "\"default_device\"");
    found = found ? strchr(found, ':') : NULL;
    found = found ? strpbrk(found, "0123456789") : NULL;
    if (found)
        default_device = atoi(found);
}

API aclError aclInit(const char *path)
{
    sim_trace("aclInit(%s)", path ? path : "NULL");
    if (!sim_settings()->valid)
        return sim_fail(ACL_INVALID_PARAM, "a setting EMS_SIM_... is not understood");
    if (atomic_exchange(&initialized, true))
        return ACL_REPEAT_INITIALIZE;
    if (path)
        read_default_device(path);
    return ACL_OK;
}

API aclError aclFinalize(void)
{
    sim_trace("aclFinalize");
    initialized = false;
    return ACL_OK;
}

API aclError aclrtGetDeviceCount(uint32_t *count)
{
    *count = (uint32_t)sim_device_count();
    return ACL_OK;
}

/* of the driver: visibility does not count */
API int drvGetDevNum(uint32_t *count)
{
    *count = (uint32_t)sim_settings()->devices;
    return 0;
}

API aclError aclrtGetDevice(int32_t *device)
{
    /* without a text: torch_npu asks in threads that have none yet */
    if (sim_current_device() < 0)
        return ACL_RT_CONTEXT_NULL;
    *device = current_device;
    return ACL_OK;
}

API aclError aclrtResetDevice(int32_t device)
{
    sim_trace("aclrtResetDevice(%d)", device);
    if (current_device == device)
        current_device = -1;
    return ACL_OK;
}

API aclError aclrtGetCurrentContext(aclrtContext *context)
{
    if (sim_current_device() < 0)
        return ACL_RT_CONTEXT_NULL;
    *context = &devices[current_device];
    return ACL_OK;
}

API aclError aclrtSetCurrentContext(aclrtContext context)
{
    struct device *device = context;
    if (device < devices || device >= devices + sim_device_count())
        return sim_fail(ACL_RT_PARAM_INVALID, "%p is no context", context);
    current_device = (int)(device - devices);
    return ACL_OK;
}

API aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active)
{
    if (!is_device(device))
        return no_device(device);
    if (flags)
        *flags = 0;
    *active = devices[device].active;
    return ACL_OK;
}

API aclError aclrtGetMemInfo(int attribute, size_t *free_nbytes, size_t *total_nbytes)
{
    (void)attribute;
    int device;
    aclError failed = sim_need_device("aclrtGetMemInfo", &device);
    if (failed)
        return failed;
    uint64_t total = sim_settings()->memory_nbytes;
    uint64_t in_use = sim_account_in_use(device);
    *total_nbytes = total;
    *free_nbytes = in_use < total ? total - in_use : 0;
    return ACL_OK;
}

API const char *aclrtGetSocName(void)
{
    return sim_settings()->soc;
}

API aclError aclGetDeviceCapability(uint32_t device, int which, int64_t *value)
{
    (void)device;
    static const int64_t values[] = {CUBE_CORES, VECTOR_CORES, L2_CACHE_NBYTES};
    if (which < 0 || which > 2)
        return ACL_INVALID_PARAM;
    *value = values[which];
    return ACL_OK;
}

API aclError aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value)
{
    if (!is_device((int)device))
        return no_device((int)device);
    switch (attribute) {
    case 1:
        *value = 6;
        break;
    case 101:
    case 102:
        *value = CUBE_CORES;
        break;
    case 201:
        *value = VECTOR_CORES;
        break;
    case 301:
        *value = (int64_t)sim_settings()->memory_nbytes;
        break;
    case 302:
        *value = L2_CACHE_NBYTES;
        break;
    case 402:
        *value = sim_settings()->visible[device];
        break;
    default:
        *value = 0;
    }
    return ACL_OK;
}

API aclError aclrtDeviceGetUuid(int32_t device, void *uuid)
{
    if (!is_device(device))
        return no_device(device);
    unsigned char text[16] = "simulated npu";
    text[15] = (unsigned char)sim_settings()->visible[device];
    memcpy(uuid, text, sizeof text);
    return ACL_OK;
}

API aclError aclGetCannAttribute(int attribute, int32_t *value)
{
    *value = attribute == 0 || attribute == 1;
    return ACL_OK;
}

struct package_version {
    char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};

API aclError aclsysGetCANNVersion(int package, struct package_version *answer)
{
    const int driver = 7;
    const char *version = package == driver ? "25.5.0" : sim_settings()->version;
    memset(answer, 0, sizeof *answer);
    snprintf(answer->version, sizeof answer->version, "%s", version);
    sscanf(version, "%63[^.].%63[^.].%63[^.].%63s", answer->major, answer->minor,
           answer->release, answer->patch);
    return ACL_OK;
}

API aclError aclsysGetVersionStr(char *package, char *version)
{
    (void)package;
    strcpy(version, sim_settings()->version);
    return ACL_OK;
}

API aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    *can = device != peer;
    return ACL_OK;
}

API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags)
{
    (void)flags;
    return is_device(peer) ? ACL_OK : no_device(peer);
}

API aclError aclrtGetDeviceUtilizationRate(int32_t device, void *rates)
{
    (void)device;
    const size_t nbytes = 16;
    memset(rates, 0, nbytes);
    return ACL_OK;
}

API aclError aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t *logical)
{
    *logical = user;
    return ACL_OK;
}

API aclError aclrtDeviceGetBareTgid(int32_t *process)
{
    *process = (int32_t)getpid();
    return ACL_OK;
}

API aclError aclrtSetDeviceSatMode(int mode)
{
    (void)mode;
    return ACL_OK;
}

API aclError aclrtSetSysParamOpt(int option, int64_t value)
{
    (void)option;
    (void)value;
    return ACL_OK;
}

API aclError aclrtCtxSetSysParamOpt(int option, int64_t value)
{
    (void)option;
    (void)value;
    return ACL_OK;
}

API aclError aclrtGetSysParamOpt(int option, int64_t *value)
{
    (void)option;
    *value = 0;
    return ACL_OK;
}
