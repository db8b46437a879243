/* Which copy or launch is to fail, which stream or operation to be late, how fast copies are.
 * All of it may be changed while running; one lock is taken once per task, not per span.
 */
#include "sim.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* "N", "N:code" or "every:N[:code]"; the counting starts when it is set */
struct fault {
    long nth; /* 0: never */
    bool every;
    aclError code;
    long seen;
};
static struct fault copy_fault;
static struct fault launch_fault;

static bool parse_fault(const char *text, aclError usual_code, struct fault *fault)
{
    struct fault parsed = {.code = usual_code};
    static const char every[] = "every:";
    if (!strncmp(text, every, strlen(every))) {
        parsed.every = true;
        text += strlen(every);
    }
    char *end = (char *)text;
    if (*text) {
        parsed.nth = strtol(text, &end, 10);
        if (end == text || parsed.nth < 1)
            return false;
    }
    if (*end == ':') {
        const char *code = end + 1;
        parsed.code = (aclError)strtol(code, &end, 10);
        if (end == code || parsed.code <= 0)
            return false;
    }
    if (*end || (parsed.every && !parsed.nth))
        return false;
    pthread_mutex_lock(&lock);
    *fault = parsed;
    pthread_mutex_unlock(&lock);
    return true;
}

bool sim_set_fail_copy(const char *text)
{
    return parse_fault(text, ACL_RT_COPY_FAILED, &copy_fault);
}

bool sim_set_fail_launch(const char *text)
{
    return parse_fault(text, ACL_RT_INTERNAL, &launch_fault);
}

static aclError next_of(struct fault *fault, long *number)
{
    pthread_mutex_lock(&lock);
    *number = ++fault->seen;
    bool hit = fault->nth && (fault->every ? *number % fault->nth == 0 : *number == fault->nth);
    aclError code = hit ? fault->code : ACL_OK;
    pthread_mutex_unlock(&lock);
    return code;
}

aclError sim_copy_fault(void)
{
    long number;
    aclError code = next_of(&copy_fault, &number);
    return code ? sim_fail(code, "injected failure of copy %ld", number) : ACL_OK;
}

aclError sim_launch_fault(const char *what)
{
    sim_settings();
    sim_count(COUNT_LAUNCHES, 1);
    long number;
    aclError code = next_of(&launch_fault, &number);
    return code ? sim_fail(code, "injected refusal of launch %ld, %s", number, what) : ACL_OK;
}

/* "what=microseconds[,what=microseconds...]": what is the name of an operation, "*" for all that
 * are no marks of events, or "stream:N" for the work of the Nth stream that was created */
enum { MAX_DELAYS = 16 };
struct delay {
    char what[48];
    int stream; /* 0: not by stream */
    double seconds;
};
static struct delay delays[MAX_DELAYS];
static int delay_count;

static bool parse_delay(const char *text, size_t length, struct delay *delay)
{
    const char *equals = memchr(text, '=', length);
    char number[32];
    size_t digits = equals ? (size_t)(text + length - equals - 1) : 0;
    if (!equals || equals == text || digits >= sizeof number)
        return false;
    size_t name = (size_t)(equals - text);
    if (name >= sizeof delay->what)
        return false;
    memset(delay, 0, sizeof *delay);
    memcpy(delay->what, text, name);
    memcpy(number, equals + 1, digits);
    number[digits] = 0;
    double microseconds;
    if (!sim_parse_number(number, 0, 3600e6, &microseconds))
        return false;
    delay->seconds = microseconds * 1e-6;
    if (!strncmp(delay->what, "stream:", 7)) {
        delay->stream = atoi(delay->what + 7);
        return delay->stream > 0;
    }
    return true;
}

bool sim_set_delay(const char *text)
{
    struct delay parsed[MAX_DELAYS];
    int count = 0;
    for (const char *rest = text; *rest;) {
        size_t length = strcspn(rest, ",");
        if (count == MAX_DELAYS || !parse_delay(rest, length, &parsed[count]))
            return false;
        count++;
        rest += length;
        if (*rest == ',')
            rest++;
    }
    pthread_mutex_lock(&lock);
    memcpy(delays, parsed, sizeof *parsed * (size_t)count);
    delay_count = count;
    pthread_mutex_unlock(&lock);
    return true;
}

static double gbps_any, gbps_h2d, gbps_d2h, gbps_d2d; /* 0: no limit */
static double copy_latency_us, op_latency_us;

static bool set_number(const char *text, double *number)
{
    double parsed = 0;
    if (*text && !sim_parse_number(text, 0, 1e12, &parsed))
        return false;
    pthread_mutex_lock(&lock);
    *number = parsed;
    pthread_mutex_unlock(&lock);
    return true;
}

bool sim_set_gbps(const char *text)
{
    return set_number(text, &gbps_any);
}

bool sim_set_gbps_h2d(const char *text)
{
    return set_number(text, &gbps_h2d);
}

bool sim_set_gbps_d2h(const char *text)
{
    return set_number(text, &gbps_d2h);
}

bool sim_set_gbps_d2d(const char *text)
{
    return set_number(text, &gbps_d2d);
}

bool sim_set_copy_latency_us(const char *text)
{
    return set_number(text, &copy_latency_us);
}

bool sim_set_op_latency_us(const char *text)
{
    return set_number(text, &op_latency_us);
}

static bool concerns(const struct delay *delay, enum task_kind kind, const char *what, int stream)
{
    if (delay->stream)
        return kind != MARK && delay->stream == stream;
    if (!strcmp(delay->what, "*"))
        return kind != MARK;
    return !strcmp(delay->what, what);
}

double sim_delay(enum task_kind kind, const char *what, int stream)
{
    pthread_mutex_lock(&lock);
    double seconds = kind == OPERATOR ? op_latency_us * 1e-6 : 0;
    for (int i = 0; i < delay_count; i++) {
        if (concerns(&delays[i], kind, what, stream))
            seconds += delays[i].seconds;
    }
    pthread_mutex_unlock(&lock);
    return seconds;
}

/* EMS_SIM_GBPS limits copies between host and device that have no limit of their own */
static double gbps_of(enum copy_kind kind)
{
    if (kind == HOST_TO_DEVICE)
        return gbps_h2d > 0 ? gbps_h2d : gbps_any;
    if (kind == DEVICE_TO_HOST)
        return gbps_d2h > 0 ? gbps_d2h : gbps_any;
    return kind == DEVICE_TO_DEVICE ? gbps_d2d : 0;
}

double sim_copy_seconds(enum copy_kind kind, uint64_t nbytes)
{
    pthread_mutex_lock(&lock);
    double gbps = gbps_of(kind);
    double seconds = copy_latency_us * 1e-6;
    if (gbps > 0)
        seconds += (double)nbytes / (gbps * 1e9);
    pthread_mutex_unlock(&lock);
    return seconds;
}
