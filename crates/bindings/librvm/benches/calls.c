/*
 * The costs of librvm's calls: cc -O2 crates/bindings/librvm/benches/calls.c $(pkg-config --cflags --libs rvm)
 * -lpthread
 *
 *     ./a.out DIRECTORY [ROUNDS]      nanoseconds per call, medians; files are created in DIRECTORY
 *
 * The lower bound beside them is a call of rvm_page_size(), which does nothing.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rvm/netram.h>
#include <rvm/rvm.h>

#define RANGES 1000
#define REGION (16ul << 20)
#define ROUNDS_MAX 10000

static rvm_region_t region;
static int rounds = 1000;

static void must(rvm_return_t code)
{
    if (code != RVM_SUCCESS) {
        fprintf(stderr, "%s: %s\n", rvm_return(code), rvm_error_text());
        exit(1);
    }
}

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the times measured by `once`. */
static double median(double (*once)(int), int argument)
{
    static double taken[ROUNDS_MAX];
    int at;

    for (at = 0; at < rounds; at++)
        taken[at] = once(argument);
    qsort(taken, (size_t)rounds, sizeof taken[0], compare);
    return taken[rounds / 2];
}

static double floor_once(int unused)
{
    volatile rvm_length_t sum = 0;
    double began = now_ns();
    int at;

    (void)unused;
    for (at = 0; at < RANGES; at++)
        sum += rvm_page_size();
    return (now_ns() - began) / RANGES;
}

enum { RESTORE = 1, RANDOM = 2 };

static double ranges_in(char *base, int how)
{
    rvm_tid_t tid;
    double began, taken;
    unsigned long place = 12345;
    int at;

    rvm_init_tid(&tid);
    must(rvm_begin_transaction(&tid, how & RESTORE ? restore : no_restore));
    began = now_ns();
    for (at = 0; at < RANGES; at++) {
        place = how & RANDOM ? place * 6364136223846793005ul + 1442695040888963407ul : (unsigned long)at << 40;
        must(rvm_set_range(&tid, base + (place >> 40) % (REGION / 16 / 8) * 8, 8));
    }
    taken = (now_ns() - began) / RANGES;
    must(rvm_abort_transaction(&tid));
    return taken;
}

static double ranges_once(int how)
{
    return ranges_in(region.vmaddr, how);
}

static double empty_once(int unused)
{
    rvm_tid_t tid;
    double began = now_ns();
    int at;

    (void)unused;
    rvm_init_tid(&tid);
    for (at = 0; at < RANGES; at++) {
        must(rvm_begin_transaction(&tid, no_restore));
        must(rvm_end_transaction(&tid, flush));
    }
    return (now_ns() - began) / RANGES;
}

static double lazy_once(int unused)
{
    static unsigned long place;
    rvm_tid_t tid;
    double began = now_ns(), taken;
    int at;

    (void)unused;
    rvm_init_tid(&tid);
    for (at = 0; at < 100; at++) {
        place = (place + 128) % REGION;
        must(rvm_begin_transaction(&tid, restore));
        must(rvm_set_range(&tid, region.vmaddr + place, 128));
        region.vmaddr[place]++;
        must(rvm_end_transaction(&tid, no_flush));
    }
    taken = (now_ns() - began) / 100;
    must(rvm_flush());
    return taken;
}

/* Times of each of two threads while the other does the same elsewhere in the region. */
static double beside[2][ROUNDS_MAX];

static void *ranges_beside(void *which)
{
    double *taken = (double *)which;
    char *base = region.vmaddr + (taken == beside[0] ? 0 : REGION / 16);
    int at;

    for (at = 0; at < rounds; at++)
        taken[at] = ranges_in(base, 0);
    qsort(taken, (size_t)rounds, sizeof taken[0], compare);
    return NULL;
}

static void choose(unsigned long flags)
{
    rvm_options_t options;

    rvm_init_options(&options);
    options.flags = flags;
    must(rvm_set_options(&options));
}

int main(int argc, char **argv)
{
    rvm_options_t options;
    pthread_t threads[2];
    FILE *data;
    int at;

    if (argc < 2 || chdir(argv[1]) != 0) {
        fprintf(stderr, "calls DIRECTORY [ROUNDS]\n");
        return 2;
    }
    if (argc > 2 && atoi(argv[2]) > 0 && atoi(argv[2]) <= ROUNDS_MAX)
        rounds = atoi(argv[2]);
    data = fopen("calls.data", "w");
    if (data == NULL || ftruncate(fileno(data), REGION) != 0 || fclose(data) != 0) {
        perror("calls.data");
        return 1;
    }
    rvm_init_options(&options);
    options.log_dev = (char *)"calls.log";
    options.create_log_file = access("calls.log", F_OK) == 0 ? rvm_false : rvm_true;
    options.create_log_size = RVM_MK_OFFSET(0, 64ul << 20);
    options.flags = RVM_ALL_OPTIMIZATIONS;
    must(RVM_INIT(&options));
    rvm_init_region(&region);
    region.data_dev = (char *)"calls.data";
    must(rvm_map(&region, NULL));
    for (at = 0; at < (int)(REGION / 4096); at++)
        region.vmaddr[(unsigned long)at * 4096] = 0;

    printf("%-58s%8.1f\n", "floor: a call that does nothing", median(floor_once, 0));
    printf("%-58s%8.1f\n", "set_range, no_restore, ordered", median(ranges_once, 0));
    printf("%-58s%8.1f\n", "set_range, no_restore, random", median(ranges_once, RANDOM));
    printf("%-58s%8.1f\n", "set_range, restore, ordered", median(ranges_once, RESTORE));
    printf("%-58s%8.1f\n", "set_range, restore, random", median(ranges_once, RESTORE | RANDOM));
    for (at = 0; at < 2; at++)
        pthread_create(&threads[at], NULL, ranges_beside, beside[at]);
    for (at = 0; at < 2; at++)
        pthread_join(threads[at], NULL);
    printf("%-58s%8.1f\n", "set_range, no_restore, ordered, two threads",
           (beside[0][rounds / 2] + beside[1][rounds / 2]) / 2);
    printf("%-58s%8.1f\n", "begin and end without a range", median(empty_once, 0));
    printf("%-58s%8.1f\n", "begin, set_range of 128 bytes, end no_flush; spool", median(lazy_once, 0));
    choose(RVM_COALESCE_RANGES);
    printf("%-58s%8.1f\n", "the same without spool", median(lazy_once, 0));
    must(rvm_terminate());
    return 0;
}
