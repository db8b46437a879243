/* The knobs EMS_SIM_*: read from the environment once, some of them changed while running.
 *
 * A name that is no knob, or a value that is not understood, makes one line on stderr and a
 * refused aclInit: a test must not run without the fault it asked for.
 */
#include "sim.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "EMS_SIM_"

extern char **environ;

/* what tells this library from CANN's own */
API const int ems_simulator = 1;

static struct sim_settings settings = {
    .valid = true,
    .devices = 8,
    .memory_nbytes = 64ull << 30,
    .stream_depth = 1024,
    .sticky = true,
    .log_level = 4,
    .soc = "Ascend910B2",
    .version = "8.5.0",
    .account = "default",
};
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool sim_parse_number(const char *text, double least, double most, double *number)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        return false;
    *number = value;
    return true;
}

static bool parse_int(const char *text, int least, int most, int *number)
{
    double value;
    if (!sim_parse_number(text, least, most, &value) || value != (int)value)
        return false;
    *number = (int)value;
    return true;
}

static bool parse_switch(const char *text, bool *on)
{
    int number;
    if (!parse_int(text, 0, 1, &number))
        return false;
    *on = number;
    return true;
}

static bool copy_text(const char *text, char *to, size_t room)
{
    if (!*text || strlen(text) >= room)
        return false;
    strcpy(to, text);
    return true;
}

static bool set_devices(const char *text)
{
    return parse_int(text, 0, SIM_MAX_DEVICES, &settings.devices);
}

/* "1G", "1GiB", "512M", "1048576": units are powers of 1024 */
static bool set_memory(const char *text)
{
    static const char units[] = "KMGT";
    char *unit;
    double value = strtod(text, &unit);
    if (unit == text || !(value > 0))
        return false;
    const char *found = *unit ? strchr(units, *unit & ~0x20) : NULL;
    if (found) {
        value *= (double)(1ull << (10 * (found - units + 1)));
        unit++;
    }
    bool understood = !*unit || !strcmp(unit, "B") || (found && !strcmp(unit, "iB"));
    if (!understood || value >= (double)(1ull << 62))
        return false;
    settings.memory_nbytes = (uint64_t)value;
    return true;
}

static bool set_stream_depth(const char *text)
{
    return parse_int(text, 1, 1 << 20, &settings.stream_depth);
}

static bool set_poison(const char *text)
{
    return parse_switch(text, &settings.poison);
}

static bool set_sticky(const char *text)
{
    return parse_switch(text, &settings.sticky);
}

static bool set_trace(const char *text)
{
    return parse_switch(text, &settings.trace);
}

/* the least torch_npu log level that is shown: 0 debug, 1 info, 2 warning, 3 error, 4 none */
static bool set_log(const char *text)
{
    return parse_int(text, 0, 4, &settings.log_level);
}

static bool set_soc(const char *text)
{
    return copy_text(text, settings.soc, sizeof settings.soc);
}

static bool set_version(const char *text)
{
    return copy_text(text, settings.version, sizeof settings.version);
}

/* processes that name the same account share the memory of their devices */
static bool set_account(const char *text)
{
    for (const char *c = text; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        if (!letter && !(*c >= '0' && *c <= '9') && *c != '-' && *c != '_')
            return false;
    }
    return copy_text(text, settings.account, sizeof settings.account);
}

static struct knob {
    const char *name;
    bool (*set)(const char *text); /* false: not understood, nothing changed */
    bool live;                     /* may be changed while running; "" is its default */
    char text[256];
} knobs[] = {
    {"DEVICES", set_devices, false, ""},
    {"MEMORY", set_memory, false, ""},
    {"STREAM_DEPTH", set_stream_depth, false, ""},
    {"POISON", set_poison, false, ""},
    {"STICKY", set_sticky, false, ""},
    {"SOC", set_soc, false, ""},
    {"VERSION", set_version, false, ""},
    {"LOG", set_log, false, ""},
    {"TRACE", set_trace, false, ""},
    {"ACCOUNT", set_account, false, ""},
    {"FAIL_COPY", sim_set_fail_copy, true, ""},
    {"FAIL_LAUNCH", sim_set_fail_launch, true, ""},
    {"DELAY", sim_set_delay, true, ""},
    {"GBPS", sim_set_gbps, true, ""},
    {"GBPS_H2D", sim_set_gbps_h2d, true, ""},
    {"GBPS_D2H", sim_set_gbps_d2h, true, ""},
    {"GBPS_D2D", sim_set_gbps_d2d, true, ""},
    {"COPY_LATENCY_US", sim_set_copy_latency_us, true, ""},
    {"OP_LATENCY_US", sim_set_op_latency_us, true, ""},
};
static pthread_mutex_t knobs_lock = PTHREAD_MUTEX_INITIALIZER;

static struct knob *find_knob(const char *name)
{
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        if (!strcmp(knobs[i].name, name))
            return &knobs[i];
    }
    return NULL;
}

static bool turn(struct knob *knob, const char *text)
{
    if (strlen(text) >= sizeof knob->text || !knob->set(text))
        return false;
    strcpy(knob->text, text);
    return true;
}

static void read_variable(const char *variable)
{
    char name[64];
    const char *value = strchr(variable, '=');
    snprintf(name, sizeof name, "%.*s", (int)(value - variable), variable);
    value++;
    struct knob *knob = find_knob(name + strlen(PREFIX));
    if (knob && (!*value || turn(knob, value)))
        return;
    settings.valid = false;
    if (knob)
        fprintf(stderr, "ems.simulator: %s=%s is not understood\n", name, value);
    else
        fprintf(stderr, "ems.simulator: there is no setting %s\n", name);
}

/* as on hardware: a list of devices hides the others */
static void read_visible_devices(const char *list)
{
    for (const char *rest = list; *rest && settings.visible_count < settings.devices;) {
        char *end;
        long device = strtol(rest, &end, 10);
        bool number = end != rest && (!*end || *end == ',');
        if (!number || device < 0 || device >= settings.devices)
            break;
        settings.visible[settings.visible_count++] = (int)device;
        rest = *end ? end + 1 : end;
    }
}

static void read_environment(void)
{
    for (char **variable = environ; *variable; variable++) {
        if (!strncmp(*variable, PREFIX, strlen(PREFIX)))
            read_variable(*variable);
    }
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (list)
        read_visible_devices(list);
    else
        for (int device = 0; device < settings.devices; device++)
            settings.visible[settings.visible_count++] = device;
}

const struct sim_settings *sim_settings(void)
{
    pthread_once(&once, read_environment);
    return &settings;
}

/* changes a knob while running; 0, or ACL_INVALID_PARAM and nothing has changed */
API int ems_simulator_set(const char *name, const char *value)
{
    sim_settings();
    struct knob *knob = find_knob(name);
    if (!knob || !knob->live)
        return ACL_INVALID_PARAM;
    pthread_mutex_lock(&knobs_lock);
    bool understood = turn(knob, value ? value : "");
    pthread_mutex_unlock(&knobs_lock);
    return understood ? ACL_OK : ACL_INVALID_PARAM;
}

/* writes what the knob was last set to, "" for its default; 0, or ACL_INVALID_PARAM */
API int ems_simulator_setting(const char *name, char *value, size_t room)
{
    sim_settings();
    struct knob *knob = find_knob(name);
    if (!knob)
        return ACL_INVALID_PARAM;
    pthread_mutex_lock(&knobs_lock);
    snprintf(value, room, "%s", knob->text);
    pthread_mutex_unlock(&knobs_lock);
    return ACL_OK;
}
