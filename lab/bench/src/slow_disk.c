/* A slower disk for a program that knows nothing of it.
 *
 * Preloaded, it lets every sync of a file on one device take so much longer: fsync, fdatasync, msync, and a write to a
 * file that was opened O_DSYNC or O_SYNC. NETRAM_SLOW_DISK is "DEVICE MICROSECONDS", the device's number in decimal; or
 * "DEVICE MICROSECONDS RATE", and a sync takes longer still for the bytes that the process has written to files there since the one
 * before, RATE MB a second. Files on other devices, what netram mounts among them, take what they take. Whoever makes system calls
 * past the C library is not slowed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static unsigned long long slow_device;
static long delay_us;
/* A MB a second is a byte a microsecond. 0: bytes take no time. */
static long bytes_per_us;
static atomic_llong unsynced;

__attribute__((constructor)) static void begin(void)
{
    const char *wanted = getenv("NETRAM_SLOW_DISK");
    if (wanted == NULL || sscanf(wanted, "%llu %ld %ld", &slow_device, &delay_us, &bytes_per_us) < 2)
        delay_us = bytes_per_us = 0;
    /* A timer that is late by the usual 50 us would be a slower disk than it says. Threads inherit it. */
    if (delay_us > 0)
        prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
}

static void sleep_it(void)
{
    int before = errno;
    long us = delay_us;
    if (bytes_per_us > 0)
        us += (long)(atomic_exchange(&unsynced, 0) / bytes_per_us);
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = before;
}

/* fstat would ask a file system in user space for sizes and times behind each write, which is a switch to its process and back, and would be
 * measured as that file system's. What the kernel knows by itself has the device. */
static int is_slow(int fd)
{
    struct statx there;
    int before = errno, slow;
    if (delay_us == 0)
        return 0;
    slow = statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &there) == 0
        && makedev(there.stx_dev_major, there.stx_dev_minor) == slow_device;
    errno = before;
    return slow;
}

static ssize_t written(int fd, ssize_t done)
{
    int before, flags;
    if (delay_us == 0 || done < 0)
        return done;
    if (bytes_per_us > 0 && is_slow(fd))
        atomic_fetch_add(&unsynced, done);
    before = errno;
    flags = fcntl(fd, F_GETFL);
    errno = before;
    /* O_SYNC has O_DSYNC's bit. */
    if (flags >= 0 && (flags & O_DSYNC) != 0 && is_slow(fd))
        sleep_it();
    return done;
}

static int synced(int fd, long done)
{
    if (is_slow(fd))
        sleep_it();
    return (int)done;
}

int fsync(int fd) { return synced(fd, syscall(SYS_fsync, fd)); }

int fdatasync(int fd) { return synced(fd, syscall(SYS_fdatasync, fd)); }

/* Which device a map is of is not asked: who syncs maps with this preloaded has them on the slow disk. */
int msync(void *from, size_t length, int flags)
{
    long done = syscall(SYS_msync, from, length, flags);
    if (delay_us > 0 && (flags & MS_SYNC) != 0)
        sleep_it();
    return (int)done;
}

ssize_t write(int fd, const void *from, size_t length)
{
    return written(fd, syscall(SYS_write, fd, from, length));
}

ssize_t pwrite(int fd, const void *from, size_t length, off_t at)
{
    return written(fd, syscall(SYS_pwrite64, fd, from, length, at));
}

ssize_t pwrite64(int fd, const void *from, size_t length, off64_t at)
{
    return written(fd, syscall(SYS_pwrite64, fd, from, length, at));
}

ssize_t writev(int fd, const struct iovec *from, int count)
{
    return written(fd, syscall(SYS_writev, fd, from, count));
}

ssize_t pwritev(int fd, const struct iovec *from, int count, off_t at)
{
    return written(fd, syscall(SYS_pwritev, fd, from, count, at, 0L));
}

ssize_t pwritev64(int fd, const struct iovec *from, int count, off64_t at)
{
    return written(fd, syscall(SYS_pwritev, fd, from, count, at, 0L));
}
