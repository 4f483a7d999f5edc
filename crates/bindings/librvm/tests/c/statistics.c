/* Statistics and their text. */
#include <pthread.h>

#include "check.h"

#include <rvm/rvm_statistics.h>

static rvm_statistics_t read_statistics(void)
{
    rvm_statistics_t statistics;

    rvm_init_statistics(&statistics);
    OK(RVM_STATISTICS(&statistics));
    return statistics;
}

static void refused(void)
{
    rvm_statistics_t statistics;

    /* The original crashed here if the library had not been initialised. */
    rvm_init_statistics(&statistics);
    EXPECT(RVM_STATISTICS(&statistics), RVM_EINIT);
    OK(RVM_INIT(NULL));
    EXPECT(RVM_STATISTICS(&statistics), RVM_ELOG);
    EXPECT(rvm_statistics("RVM Statistics Version 1.0", &statistics), RVM_ESTAT_VERSION_SKEW);
    EXPECT(rvm_statistics(NULL, &statistics), RVM_ESTAT_VERSION_SKEW);
    EXPECT(RVM_STATISTICS(NULL), RVM_ESTATISTICS);
    memset(&statistics, 0, sizeof statistics);
    EXPECT(RVM_STATISTICS(&statistics), RVM_ESTATISTICS);
    EXPECT(rvm_print_statistics(&statistics, stdout), RVM_ESTATISTICS);
    rvm_init_statistics(&statistics);
    EXPECT(rvm_print_statistics(&statistics, NULL), RVM_EIO);
}

static void counts(void)
{
    rvm_region_t region;
    rvm_statistics_t found;
    rvm_tid_t tid, open;
    unsigned long flushes = 0;
    int at;

    start();
    make_file("data", MIB);
    region = map("data");
    for (at = 0; at < 3; at++)
        commit(region.vmaddr, 'f', 100, flush);
    for (at = 0; at < 5; at++)
        commit(region.vmaddr, 'l', 100, no_flush);
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_abort_transaction(&tid));
    rvm_init_tid(&open);
    OK(rvm_begin_transaction(&open, restore));
    OK(rvm_set_range(&open, region.vmaddr, 1000));
    OK(rvm_set_range(&open, region.vmaddr + 500, 1000));
    OK(rvm_set_range(&open, region.vmaddr + 100, 100));
    found = read_statistics();
    CHECK(found.n_flush_commit == 3 && found.tot_flush_commit == 3 && found.n_no_flush_commit == 5);
    CHECK(found.n_abort == 1 && found.tot_abort == 1 && found.n_uncommit == 1 && found.n_no_flush <= 5);
    CHECK(found.tot_rvm_flush == 0 && found.tot_flush == 3);
    OK(rvm_end_transaction(&open, flush));
    OK(rvm_flush());
    found = read_statistics();
    CHECK(found.n_uncommit == 0 && found.n_no_flush == 0 && found.n_rvm_flush == 1 && found.tot_flush == 5);
    CHECK(found.tot_range_overlap.low >= 600 && found.tot_range_elim == 2);
    CHECK(found.tot_log_written.low > 1500);
    for (at = 0; at < flush_times_len; at++)
        flushes += found.tot_flush_times[at];
    CHECK(flushes == 5);
    /* Five transactions on the same hundred bytes: the last ones replaced the first. */
    CHECK(found.tot_trans_overlap.low > 0 && found.tot_trans_coalesced > 0);
    OK(rvm_truncate());
    found = read_statistics();
    CHECK(found.tot_rvm_truncate == 1 && found.n_flush_commit == 0 && found.tot_flush_commit == 4);
    CHECK(found.log_dev_cur == 0 && found.log_written.low == 0 && found.log_dev_max <= 100);
    CHECK(found.tot_truncation_time.tv_sec > 0 || found.tot_truncation_time.tv_usec > 0);
}

static volatile int done;

static void *truncate_often(void *unused)
{
    int at;

    (void)unused;
    for (at = 0; at < 200; at++)
        OK(rvm_truncate());
    done = 1;
    return NULL;
}

/* The pauses let the truncating thread run where threads take turns, as under valgrind. */
static void *commit_often(void *base)
{
    while (!done) {
        commit((char *)base, 'c', 100, no_flush);
        usleep(20);
    }
    return NULL;
}

/*
 * Counters since the last truncation, read while one ends: the difference of older and newer counters must not be
 * negative.
 */
static void beside_truncation(void)
{
    pthread_t truncating, committing;
    rvm_statistics_t found;
    rvm_region_t region;

    start();
    make_file("data", MIB);
    region = map("data");
    CHECK(pthread_create(&committing, NULL, commit_often, region.vmaddr) == 0);
    CHECK(pthread_create(&truncating, NULL, truncate_often, NULL) == 0);
    while (!done) {
        found = read_statistics();
        CHECK(found.n_no_flush_commit <= found.tot_no_flush_commit);
        CHECK(found.log_written.low <= found.tot_log_written.low);
        usleep(20);
    }
    CHECK(pthread_join(truncating, NULL) == 0 && pthread_join(committing, NULL) == 0);
    OK(rvm_terminate());
}

static void print(void)
{
    rvm_region_t region;
    rvm_statistics_t found;

    start();
    make_file("data", MIB);
    region = map("data");
    commit(region.vmaddr, 'f', 100, flush);
    found = read_statistics();
    OK(rvm_print_statistics(&found, stdout));
}

MAIN(CASE(refused), CASE(counts), CASE(beside_truncation), CASE(print))
