/* Many threads in transactions at once, while others map, truncate, and query. */
#include <pthread.h>
#include <signal.h>

#include "check.h"

#include <rvm/rvm_statistics.h>

#define THREADS 8
#define ROUNDS 400
#define SHARE 65536ul

static rvm_region_t shared_region;
static volatile int done;

static void *work(void *number)
{
    unsigned long me = (unsigned long)number, round;
    char *mine = shared_region.vmaddr + me * SHARE;
    rvm_tid_t tid;

    rvm_init_tid(&tid);
    for (round = 1; round <= ROUNDS; round++) {
        OK(rvm_begin_transaction(&tid, round % 2 ? restore : no_restore));
        OK(rvm_modify_bytes(&tid, mine, &round, sizeof round));
        OK(rvm_set_range(&tid, mine + 4096 + round * 64 % 4096, 64));
        memset(mine + 4096 + round * 64 % 4096, (int)round, 64);
        OK(rvm_modify_bytes(&tid, mine + 2 * 4096, &round, sizeof round));
        if (round % 7 == 3 && round % 2) {
            unsigned long before;

            OK(rvm_abort_transaction(&tid));
            memcpy(&before, mine, sizeof before);
            CHECK(before == round - 1);
            OK(rvm_begin_transaction(&tid, no_restore));
            OK(rvm_modify_bytes(&tid, mine, &round, sizeof round));
            OK(rvm_modify_bytes(&tid, mine + 2 * 4096, &round, sizeof round));
        }
        OK(rvm_end_transaction(&tid, round % 3 ? no_flush : flush));
    }
    return NULL;
}

static void *disturb(void *unused)
{
    rvm_region_t other;
    rvm_options_t options;
    rvm_statistics_t statistics;

    (void)unused;
    rvm_init_options(&options);
    rvm_init_statistics(&statistics);
    while (!done) {
        other = map("second");
        commit(other.vmaddr, 'd', 100, no_flush);
        OK(rvm_query(&options, &shared_region));
        CHECK(options.n_uncommit <= THREADS);
        free(options.tid_array);
        OK(RVM_STATISTICS(&statistics));
        OK(rvm_truncate());
        OK(rvm_unmap(&other));
        CHECK(munmap(other.vmaddr, other.length) == 0);
    }
    return NULL;
}

static void many(void)
{
    pthread_t threads[THREADS], other;
    unsigned long at;

    make_file("data", THREADS * SHARE);
    make_file("second", MIB);
    start();
    shared_region = map("data");
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, work, (void *)at) == 0);
    CHECK(pthread_create(&other, NULL, disturb, NULL) == 0);
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    done = 1;
    CHECK(pthread_join(other, NULL) == 0);
    OK(rvm_terminate());
}

static void many_after(void)
{
    unsigned long at, first, last;
    rvm_region_t region;

    start();
    region = map("data");
    for (at = 0; at < THREADS; at++) {
        memcpy(&first, region.vmaddr + at * SHARE, sizeof first);
        memcpy(&last, region.vmaddr + at * SHARE + 2 * 4096, sizeof last);
        CHECK(first == ROUNDS && last == ROUNDS);
    }
    region = map("second");
    CHECK(region.vmaddr[99] == 'd');
}

static void *unmap_in_vain(void *unused)
{
    (void)unused;
    while (!done)
        EXPECT(rvm_unmap(&shared_region), RVM_EUNCOMMIT);
    return NULL;
}

/*
 * Regression: a region whose unmapping is refused stays in the table. It was removed for a moment, in which a
 * declared range was refused.
 */
static void unmap_refused(void)
{
    rvm_region_t other;
    pthread_t thread;
    rvm_tid_t tid;
    int at;

    make_file("data", MIB);
    make_file("second", MIB);
    start();
    shared_region = map("data");
    other = map("second");
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, no_restore));
    OK(rvm_set_range(&tid, shared_region.vmaddr, 8));
    CHECK(pthread_create(&thread, NULL, unmap_in_vain, NULL) == 0);
    for (at = 0; at < 20000; at++) {
        OK(rvm_set_range(&tid, other.vmaddr, 8));
        OK(rvm_set_range(&tid, shared_region.vmaddr, 8));
    }
    done = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    OK(rvm_abort_transaction(&tid));
    OK(rvm_unmap(&shared_region));
    OK(rvm_terminate());
}

static volatile int commits;

static void *commit_until_cancelled(void *base)
{
    for (;;) {
        commit((char *)base, 'c', 2000, flush);
        commits = commits + 1;
        /* The library's calls are not cancellation points; this call is. */
        pthread_testcancel();
    }
    return NULL;
}

/*
 * Regression: a commit syncs on the caller's thread, where pthread_cancel ended the process by unwinding through the
 * library's frames. The thread must end after the call, with no transaction open and no lock held.
 */
static void cancelled(void)
{
    rvm_options_t options;
    pthread_t thread;
    void *result;
    int at;

    make_file("data", MIB);
    start();
    shared_region = map("data");
    for (at = 1; at <= 20; at++) {
        commits = 0;
        CHECK(pthread_create(&thread, NULL, commit_until_cancelled, shared_region.vmaddr) == 0);
        while (commits < at)
            usleep(100);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        rvm_init_options(&options);
        OK(rvm_query(&options, NULL));
        CHECK(options.n_uncommit == 0);
        commit(shared_region.vmaddr, 'm', 2000, flush);
    }
    OK(rvm_truncate());
    OK(rvm_unmap(&shared_region));
    OK(rvm_terminate());
}

static void *stay_as_it_was(void *unused)
{
    int before;

    (void)unused;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 && before == PTHREAD_CANCEL_ENABLE);
    OK(rvm_flush());
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0 && before == PTHREAD_CANCEL_DISABLE);
    OK(rvm_flush());
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0 && before == PTHREAD_CANCEL_ENABLE);
    return NULL;
}

/* A thread's own cancellation state is the same after a call. */
static void cancellation_is_the_threads(void)
{
    pthread_t thread;

    start();
    CHECK(pthread_create(&thread, NULL, stay_as_it_was, NULL) == 0 && pthread_join(thread, NULL) == 0);
    OK(rvm_terminate());
}

static pthread_t signalled;
static volatile int signals;

static void on_signal(int number)
{
    (void)number;
    signalled = pthread_self();
    signals = signals + 1;
}

/* While the program's own thread blocks a signal it stays pending: no thread of the library takes it. */
static void signals_are_the_programs(void)
{
    rvm_region_t region;
    sigset_t one, before;
    int at;

    make_file("data", MIB);
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
    CHECK(sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0);
    start();
    CHECK(pthread_sigmask(SIG_BLOCK, &one, &before) == 0 && !sigismember(&before, SIGUSR1));
    region = map("data");
    CHECK(kill(getpid(), SIGUSR1) == 0);
    for (at = 0; at < 50; at++)
        commit(region.vmaddr, 's', 100, flush);
    CHECK(signals == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(signals == 1 && pthread_equal(signalled, pthread_self()));
    OK(rvm_terminate());
}

/* The message of a failure belongs to its thread. */
static void *fail_apart(void *unused)
{
    (void)unused;
    CHECK(rvm_error_text()[0] == 0);
    EXPECT(rvm_set_options(NULL), RVM_EOPTIONS);
    CHECK(strstr(rvm_error_text(), "options") != NULL);
    return NULL;
}

static void texts(void)
{
    pthread_t thread;

    start();
    EXPECT(rvm_map(NULL, NULL), RVM_EREGION);
    CHECK(pthread_create(&thread, NULL, fail_apart, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(strstr(rvm_error_text(), "region") != NULL);
}

MAIN(CASE(many), CASE(many_after), CASE(unmap_refused), CASE(texts), CASE(signals_are_the_programs), CASE(cancelled),
     CASE(cancellation_is_the_threads))
