/* Stands between a process and the system's syncs (LD_PRELOAD). Of each file that was synced it keeps the bytes, under
   the number of its inode, as a disk would after a power cut. At the n-th sync of a file of the log:
     SYNCS_FAIL_AT   that sync and later ones say EIO, and nothing is kept
     SYNCS_CUT_AT    the power goes: after the sync, or, with SYNCS_CUT_BEFORE, before it
     SYNCS_SLOW_AT   that sync lasts SYNCS_SLOW_MS; all do from there on with SYNCS_SLOW_ON
   and at the n-th write of a mark SYNCS_MARK_AT says EIO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static atomic_long syncs, marks;

static long given(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static int is_of(int file, const char *part)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    return strstr(path, part) != NULL;
}

static void keep(int file)
{
    static atomic_long number;
    const char *folder = getenv("SYNCS_KEEP");
    struct stat about;
    char fresh[4096], name[4096], bytes[65536];
    ssize_t n;
    off_t at = 0;
    if (!folder || fstat(file, &about) || !S_ISREG(about.st_mode))
        return;
    snprintf(fresh, sizeof fresh, "%s/new-%ld", folder, atomic_fetch_add(&number, 1));
    snprintf(name, sizeof name, "%s/%lu", folder, (unsigned long)about.st_ino);
    int copy = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (; (n = pread(file, bytes, sizeof bytes, at)) > 0; at += n)
        if (write(copy, bytes, (size_t)n) != n)
            abort();
    close(copy);
    rename(fresh, name);
}

static void cut(void)
{
    raise(SIGKILL);
}

static int through(int file, const char *call)
{
    int (*whole)(int) = (int (*)(int))dlsym(RTLD_NEXT, call);
    /* An allocator makes files under other names, and there is no record in them yet. */
    long n = is_of(file, "/commitlog/") && strcmp(call, "fdatasync") == 0 ? atomic_fetch_add(&syncs, 1) + 1 : 0;
    long fail = given("SYNCS_FAIL_AT"), slow = given("SYNCS_SLOW_AT"), power = given("SYNCS_CUT_AT");
    if (n && fail && n >= fail)
        return errno = EIO, -1;
    if (n && slow && (n == slow || (n > slow && given("SYNCS_SLOW_ON")))) {
        struct timespec pause = {given("SYNCS_SLOW_MS") / 1000, given("SYNCS_SLOW_MS") % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    if (n && n == power && given("SYNCS_CUT_BEFORE"))
        cut();
    int result = whole(file);
    if (!result)
        keep(file);
    if (n && n == power)
        cut();
    return result;
}

int fdatasync(int file) { return through(file, "fdatasync"); }
int fsync(int file) { return through(file, "fsync"); }

ssize_t pwrite(int file, const void *bytes, size_t size, off_t at)
{
    ssize_t (*whole)(int, const void *, size_t, off_t) = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    long fail = given("SYNCS_MARK_AT");
    if (fail && size == 512 && is_of(file, "/penstock/progress") && atomic_fetch_add(&marks, 1) + 1 >= fail)
        return errno = EIO, -1;
    return whole(file, bytes, size, at);
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off_t at) { return pwrite(file, bytes, size, at); }
