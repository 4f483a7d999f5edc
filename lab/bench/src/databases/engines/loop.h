/* What the programs around storage engines have in common.
 *
 * `ENGINE put DIR MODE SECONDS FIRST` commits one record of 100 bytes after the other, its key a number from FIRST on, for so long, and says
 * how many, in how many seconds, and the median and the 99th percentile in microseconds. MODE is `sync`: each is synced; `dsync`: likewise, by
 * writes to a log that is opened O_DSYNC, if the engine has that; or `nosync`.
 * `ENGINE count DIR` says how many records there are.
 * `ENGINE serve DIR MODE PIPE` stays open and says `ready`. It does one of both for each line of the named pipe, `put SECONDS` or `count`, until
 * that is closed. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef RECORD_BYTES
#define RECORD_BYTES 100
#endif

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
static inline void key_of(uint64_t number, unsigned char key[8])
{
    for (int at = 0; at < 8; at++)
        key[at] = (unsigned char)(number >> (56 - 8 * at));
}

static int by_size(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

/* Commits for a while, from the record `first` on; says how many, and how long they took. Returns the number of the next record. */
static uint64_t measure(uint64_t first, double seconds)
{
    char record[RECORD_BYTES];
    memset(record, 'x', sizeof record);
    uint64_t done = 0, room = 1 << 16;
    uint32_t *took = malloc(room * sizeof *took);
    uint64_t began = now_ns(), until = began + (uint64_t)(seconds * 1e9), last = began;
    while (last < until) {
        put(first + done, record);
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
    fflush(stdout);
    free(took);
    return first + done;
}

/* Does what each line of the pipe asks for. */
static void serve(const char *pipe)
{
    char line[64];
    uint64_t next = 0;
    printf("ready\n");
    fflush(stdout);
    FILE *asked = fopen(pipe, "r");
    sure(asked != NULL, "open the pipe", pipe);
    while (fgets(line, sizeof line, asked) != NULL) {
        printf("answer ");
        if (strncmp(line, "put ", 4) == 0)
            next = measure(next, atof(line + 4));
        else
            printf("%llu\n", (unsigned long long)count());
        fflush(stdout);
    }
    fclose(asked);
}

int main(int argc, char **argv)
{
    enum mode mode = SYNC;
    if (argc > 3 && strcmp(argv[3], "sync") != 0)
        mode = strcmp(argv[3], "dsync") == 0 ? DSYNC : NOSYNC;
    if (argc == 3 && strcmp(argv[1], "count") == 0) {
        open_engine(argv[2], SYNC);
        printf("%llu\n", (unsigned long long)count());
    } else if (argc == 6 && strcmp(argv[1], "put") == 0) {
        open_engine(argv[2], mode);
        measure(strtoull(argv[5], NULL, 10), atof(argv[4]));
    } else if (argc == 5 && strcmp(argv[1], "serve") == 0) {
        open_engine(argv[2], mode);
        serve(argv[4]);
    } else {
        fprintf(stderr, "put DIR sync|dsync|nosync SECONDS FIRST, count DIR, or serve DIR sync|dsync|nosync PIPE\n");
        return 2;
    }
    close_engine();
    return 0;
}
