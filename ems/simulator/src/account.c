/* How much memory of each device is in use, counted over all processes of a user.
 *
 * The account is a small file in /dev/shm. A process owns one line of it for as long as it holds
 * the record lock of that line's byte; the kernel gives such a lock back even after kill -9, so
 * what a dead process took is given back by whoever looks next. The table itself is guarded by
 * the record lock of byte 0 between processes and by a mutex between threads, as record locks
 * belong to processes. Where there is no such file, the account is the process's own.
 */
#include "sim.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINES = 255 };

struct line {
    uint64_t used[SIM_MAX_DEVICES]; /* by physical device */
};
struct table {
    struct line lines[LINES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct table own_table;
static struct table *table = &own_table;
static int own_line;
static int file = -1; /* -1: the process's own account */
static pid_t owner;   /* the process that opened the account: not its forked children */
static char path[128];

static int record_lock(int command, short type, off_t byte)
{
    struct flock record = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int answer;
    do
        answer = fcntl(file, command, &record);
    while (answer < 0 && errno == EINTR && command == F_SETLKW);
    return command == F_GETLK && !answer ? record.l_type : answer;
}

static off_t byte_of(int line)
{
    return line + 1;
}

/* closing the file gives all of the process's record locks back */
static void close_file(void)
{
    if (file >= 0)
        close(file);
    file = -1;
    if (table != &own_table)
        munmap(table, sizeof *table);
    table = &own_table;
    own_line = 0;
}

static void use_own_account(const char *why)
{
    close_file();
    sim_trace("memory is counted for this process only: %s: %s", path, why);
}

static bool map_file(void)
{
    struct stat status;
    if (fstat(file, &status) || !S_ISREG(status.st_mode) || status.st_uid != geteuid())
        return false;
    /* growing a new file fills it with zeros; the size of a file in use never changes */
    if (status.st_size < (off_t)sizeof *table && ftruncate(file, sizeof *table))
        return false;
    void *mapped = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        return false;
    table = mapped;
    return true;
}

/* takes a line that nobody alive owns; the table is locked */
static bool take_line(void)
{
    for (int line = 0; line < LINES; line++) {
        if (!record_lock(F_SETLK, F_WRLCK, byte_of(line))) {
            own_line = line;
            memset(&table->lines[line], 0, sizeof table->lines[line]);
            return true;
        }
    }
    return false;
}

/* the last to leave removes the file: who opened it before may lock one that is gone */
static bool file_is_gone(void)
{
    struct stat status;
    return fstat(file, &status) || status.st_nlink == 0;
}

/* removes the account of processes that have all died without leaving: nobody holds a lock */
static void remove_dead(const char *name)
{
    char dead[sizeof "/dev/shm/" + sizeof((struct dirent *)0)->d_name];
    snprintf(dead, sizeof dead, "/dev/shm/%s", name);
    if (!strcmp(dead, path)) /* closing it would give this process's own locks back */
        return;
    int other = open(dead, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (other < 0)
        return;
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat status;
    /* whoever opens it at this moment waits for the lock, and sees then that the file is gone */
    if (!fcntl(other, F_SETLK, &all) && !fstat(other, &status) && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid())
        unlink(dead);
    close(other);
}

static void remove_all_dead(void)
{
    char prefix[32];
    int length = snprintf(prefix, sizeof prefix, "ems-simulator-%u-", (unsigned)geteuid());
    DIR *directory = opendir("/dev/shm");
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strncmp(entry->d_name, prefix, length))
            remove_dead(entry->d_name);
    }
    closedir(directory);
}

static void open_account(void)
{
    owner = getpid();
    memset(&own_table, 0, sizeof own_table);
    snprintf(path, sizeof path, "/dev/shm/ems-simulator-%u-%s", (unsigned)geteuid(),
             sim_settings()->account);
    remove_all_dead();
    do {
        if (file >= 0)
            close(file);
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file < 0 || record_lock(F_SETLKW, F_WRLCK, 0)) {
            use_own_account(strerror(errno));
            return;
        }
    } while (file_is_gone());
    if (!map_file())
        use_own_account("not a usable file");
    else if (!take_line())
        use_own_account("every line is taken");
    else
        record_lock(F_SETLK, F_UNLCK, 0);
}

static void lock_table(void)
{
    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        /* a forked child has inherited neither the locks nor the line */
        close_file();
        open_account();
    }
    if (file >= 0)
        record_lock(F_SETLKW, F_WRLCK, 0);
}

static void unlock_table(void)
{
    if (file >= 0)
        record_lock(F_SETLK, F_UNLCK, 0);
    pthread_mutex_unlock(&lock);
}

static bool is_alive(int line)
{
    return line == own_line || file < 0 || record_lock(F_GETLK, F_WRLCK, byte_of(line)) != F_UNLCK;
}

static uint64_t in_use(int device)
{
    uint64_t sum = 0;
    for (int line = 0; line < LINES; line++) {
        uint64_t *used = &table->lines[line].used[device];
        if (*used && !is_alive(line))
            memset(&table->lines[line], 0, sizeof table->lines[line]);
        sum += *used;
    }
    return sum;
}

bool sim_account_take(int device, uint64_t nbytes, uint64_t *used)
{
    int physical = sim_settings()->visible[device];
    uint64_t limit = sim_settings()->memory_nbytes;
    lock_table();
    *used = in_use(physical);
    bool fits = nbytes <= limit && *used <= limit - nbytes;
    if (fits)
        table->lines[own_line].used[physical] += nbytes;
    unlock_table();
    return fits;
}

void sim_account_give(int device, uint64_t nbytes)
{
    int physical = sim_settings()->visible[device];
    lock_table();
    uint64_t *used = &table->lines[own_line].used[physical];
    /* a forked child may free what its parent took */
    *used -= nbytes < *used ? nbytes : *used;
    unlock_table();
}

uint64_t sim_account_in_use(int device)
{
    lock_table();
    uint64_t used = in_use(sim_settings()->visible[device]);
    unlock_table();
    return used;
}

static bool somebody_else_is_alive(void)
{
    for (int line = 0; line < LINES; line++) {
        if (line != own_line && is_alive(line))
            return true;
    }
    return false;
}

__attribute__((destructor)) static void leave(void)
{
    pthread_mutex_lock(&lock);
    if (file >= 0 && owner == getpid()) {
        record_lock(F_SETLKW, F_WRLCK, 0);
        memset(&table->lines[own_line], 0, sizeof table->lines[own_line]);
        if (!somebody_else_is_alive())
            unlink(path);
        close_file(); /* what a worker still gives back must not touch another process's line */
    }
    pthread_mutex_unlock(&lock);
}
