/* What the programs around storage engines have in common.
 *
 * `ENGINE put DIR MODE SECONDS FIRST` commits one record of 100 bytes after the other, its key a number from FIRST on, for so long, and says
 * how many, in how many seconds, and the median and the 99th percentile in microseconds. MODE is `sync`: each is synced; `dsync`: likewise, by
 * writes to a log that is opened O_DSYNC, if the engine has that; or `nosync`.
 * `ENGINE count DIR` says how many records there are. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RECORD_BYTES 100

enum mode { SYNC, DSYNC, NOSYNC };

static void open_engine(const char *dir, enum mode mode);
static void put(uint64_t number, const char *record);
static uint64_t count(void);
static void close_engine(void);

static void sure(int ok, const char *what, const char *why)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Keys are in the order of their numbers. */
static void key_of(uint64_t number, unsigned char key[8])
{
    for (int at = 0; at < 8; at++)
        key[at] = (unsigned char)(number >> (56 - 8 * at));
}

static int by_size(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "count") == 0) {
        open_engine(argv[2], SYNC);
        printf("%llu\n", (unsigned long long)count());
        close_engine();
        return 0;
    }
    if (argc != 6 || strcmp(argv[1], "put") != 0) {
        fprintf(stderr, "put DIR sync|dsync|nosync SECONDS FIRST, or count DIR\n");
        return 2;
    }
    char record[RECORD_BYTES];
    memset(record, 'x', sizeof record);
    open_engine(argv[2], strcmp(argv[3], "dsync") == 0 ? DSYNC : strcmp(argv[3], "sync") == 0 ? SYNC : NOSYNC);
    uint64_t number = strtoull(argv[5], NULL, 10), done = 0, room = 1 << 16;
    uint32_t *took = malloc(room * sizeof *took);
    uint64_t began = now_ns(), until = began + (uint64_t)(atof(argv[4]) * 1e9), last = began;
    while (last < until) {
        put(number++, record);
        uint64_t now = now_ns();
        if (done == room)
            took = realloc(took, (room *= 2) * sizeof *took);
        sure(took != NULL, "time it", "out of memory");
        took[done++] = (uint32_t)(now - last);
        last = now;
    }
    qsort(took, done, sizeof *took, by_size);
    printf("%llu %.6f %.3f %.3f\n", (unsigned long long)done, (double)(last - began) / 1e9, took[done / 2] / 1e3,
           took[done * 99 / 100] / 1e3);
    close_engine();
    return 0;
}
