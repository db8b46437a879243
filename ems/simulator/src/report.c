/* Error texts, aclGetRecentErrMsg, tracing and the clock.
 *
 * HARDWARE: the wording of CANN's own texts is unknown; nothing may depend on ours.
 */
#include "sim.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_ROOM = 512 };

static __thread char last_text[TEXT_ROOM];  /* empty: nothing to tell */
static __thread char told_text[TEXT_ROOM];  /* what the caller of aclGetRecentErrMsg looks at */
static __thread aclError last_code;

/* torch_npu asks for the text in another thread than the one whose call failed, so the newest
 * failure of the process is kept as well */
static pthread_mutex_t newest_lock = PTHREAD_MUTEX_INITIALIZER;
static char newest_text[TEXT_ROOM];
static aclError newest_code;

double sim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void sim_trace(const char *format, ...)
{
    if (!sim_settings()->trace)
        return;
    char text[TEXT_ROOM];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int thread = (int)syscall(SYS_gettid);
    fprintf(stderr, "[simulated CANN, thread %d, %.6f] %s\n", thread, sim_now(), text);
}

aclError sim_fail(aclError code, const char *format, ...)
{
    /* by way of a local text: an argument may be the last text itself */
    char text[TEXT_ROOM];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_text, text, sizeof last_text);
    last_code = code;
    pthread_mutex_lock(&newest_lock);
    memcpy(newest_text, text, sizeof newest_text);
    newest_code = code;
    pthread_mutex_unlock(&newest_lock);
    sim_trace("failed with %d: %s", code, text);
    return code;
}

void sim_take_error(char *text, size_t room)
{
    snprintf(text, room, "%s", last_text);
    last_text[0] = 0;
}

static void tell(aclError code, char *text)
{
    const int prefix_room = 64;
    snprintf(told_text, sizeof told_text, "EF%06d: simulated CANN: %.*s", code,
             TEXT_ROOM - prefix_room, text);
    text[0] = 0;
}

API const char *aclGetRecentErrMsg(void)
{
    told_text[0] = 0;
    pthread_mutex_lock(&newest_lock);
    if (last_text[0]) {
        if (!strcmp(newest_text, last_text))
            newest_text[0] = 0;
        tell(last_code, last_text);
    }
    else if (newest_text[0])
        tell(newest_code, newest_text);
    pthread_mutex_unlock(&newest_lock);
    return told_text[0] ? told_text : NULL;
}

/* torch_npu's own log lines */
API void aclAppLog(int level, const char *function, const char *file, uint32_t line,
                   const char *format, ...)
{
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    if (level < sim_settings()->log_level || level < 0 || level > 3)
        return;
    char text[2 * TEXT_ROOM];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[torch_npu %s] %s:%u %s: %s\n", levels[level], file, line, function, text);
}
