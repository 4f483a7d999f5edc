/* Shared regions. The server listens at $SERVER; the directory contains cluster.key. Lock N covers page N. */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "node.h"

#include <rvm/trans.h>

#ifdef __cplusplus
#define SAME(a, b) static_assert((a) == (b), #a)
#else
#define SAME(a, b) _Static_assert((a) == (b), #a)
#endif
#define AT(type, field, place) SAME(offsetof(type, field), place)

SAME(sizeof(rvm_join_t), 144);
AT(rvm_join_t, insecure, 32);
AT(rvm_join_t, name, 40);
AT(rvm_join_t, log_bytes, 64);
AT(rvm_join_t, lock_timeout_ms, 80);
AT(rvm_join_t, capture, 96);
AT(rvm_join_t, listen, 112);
AT(rvm_join_t, reserved, 128);
SAME(sizeof(rvm_node_info_t), 64);
AT(rvm_node_info_t, left_behind, 32);
SAME(sizeof(rvm_span_t), 24);
SAME(sizeof(rvm_record_t), 16);
SAME(sizeof(rvm_lock_t), 8);
SAME(sizeof(rvm_age_t), 16);
SAME(sizeof(rvm_progress_t), 24);
SAME(sizeof(rvm_straight_t), 48);
SAME(sizeof(rvm_stray_t), 40);
AT(rvm_stray_t, lock, 24);
SAME(sizeof(rvm_heap_info_t), 64);
AT(rvm_heap_info_t, largest_free, 40);
SAME(sizeof(rvm_capture_t), 4);
SAME(sizeof(rvm_find_t), 4);
SAME(sizeof(rvm_hold_t), 4);
SAME(sizeof(rvm_fate_t), 4);

#define THREADS 4
#define ROUNDS 30

/* From joining to leaving; an abort; ended handles are refused. */
static void life(void)
{
    place_t one = join("one"), two = join("two");
    rvm_record_t record;
    rvm_fate_t fate;
    rvm_span_t span;
    rvm_txn_t txn;
    unsigned long version, value, number = 41;

    CHECK(one.id != two.id);
    OK(rvm_node_alive(one.node));
    OK(rvm_node_span(one.node, 2, &span));
    CHECK(span.lock == 2 && span.vmaddr == one.base + 2 * PAGE && span.length == PAGE);
    OK(rvm_node_span_at(one.node, one.base + 3 * PAGE - 1, &span));
    CHECK(span.lock == 2);
    OK(rvm_node_version(one.node, 2, &version));

    txn = begin(&one);
    OK(rvm_txn_acquire(txn, 2, rvm_exclusive));
    value = *counter(&one, 2);
    number += value;
    OK(rvm_txn_modify_bytes(txn, counter(&one, 2), &number, sizeof number));
    OK(rvm_txn_modify_bytes(txn, counter(&one, 2), NULL, 0));
    OK(rvm_txn_commit(txn, &record));
    CHECK(record.node == one.id && record.number == 1);
    CHECK(get(&two, 2) == value + 41);
    OK(rvm_node_version(two.node, 2, &number));
    CHECK(number == version + 1);
    OK(rvm_node_wait_version(two.node, 2, number, PATIENCE_MS));
    EXPECT(rvm_node_wait_version(two.node, 2, number + 1, 1), RVM_ETIMEDOUT);
    EXPECT(rvm_node_wait_version(two.node, 4000, 1, 1), RVM_ELOCK);
    OK(rvm_node_outcome(two.node, &record, PATIENCE_MS, &fate));
    CHECK(fate == rvm_fate_committed);
    OK(rvm_node_pull(two.node));

    txn = begin(&two);
    OK(rvm_txn_acquire(txn, 2, rvm_exclusive));
    OK(rvm_txn_set_range(txn, counter(&two, 2), 8));
    *counter(&two, 2) = 0;
    EXPECT(rvm_node_leave(two.node), RVM_EUNCOMMIT);
    EXPECT(rvm_node_abandon(two.node), RVM_EUNCOMMIT);
    OK(rvm_txn_abort(txn));
    CHECK(*counter(&two, 2) == value + 41);
    EXPECT(rvm_txn_abort(txn), RVM_EHANDLE);
    EXPECT(rvm_txn_commit(txn, NULL), RVM_EHANDLE);
    EXPECT(rvm_txn_set_range(txn, counter(&two, 2), 8), RVM_EHANDLE);

    OK(rvm_node_leave(two.node));
    EXPECT(rvm_node_leave(two.node), RVM_EHANDLE);
    EXPECT(rvm_txn_begin(two.node, restore, &txn), RVM_EHANDLE);
    two = join("two");
    CHECK(get(&two, 2) == value + 41);
    OK(rvm_node_leave(two.node));
    OK(rvm_node_leave(one.node));
}

/* Invalid arguments from C are refused with a code and a message, and have no effect. */
static void misuse(void)
{
    rvm_join_t options = options_of("one");
    rvm_lock_t locks[2] = {{1, rvm_exclusive}, {2, rvm_exclusive}};
    rvm_record_t record = {0, 0};
    rvm_node_info_t info;
    rvm_reader_t reader;
    rvm_fate_t fate;
    rvm_node_t node;
    rvm_span_t span;
    rvm_txn_t txn;
    rvm_age_t age;
    place_t one;
    char target[8];

    rvm_init_join(NULL);
    EXPECT(rvm_node_join(NULL, &node), RVM_EOPTIONS);
    EXPECT(rvm_node_join(&options, NULL), RVM_ERANGE);
    options.struct_id = rvm_tid_id;
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options = options_of("one");
    options.server = NULL;
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options.server = "somewhere";
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options = options_of(NULL);
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options = options_of("one");
    options.insecure = rvm_true;
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options.insecure = rvm_false;
    options.key_file = NULL;
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options.key_file = "no.key";
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    CHECK(strstr(rvm_error_text(), "no.key") != NULL);
    options = options_of("one");
    options.wait = "a while";
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options = options_of("one");
    options.region = "zz";
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options.region = "1";
    EXPECT(rvm_node_join(&options, &node), RVM_EGONE);

    EXPECT(rvm_node_info(NULL, &info), RVM_EHANDLE);
    EXPECT(rvm_txn_acquire(NULL, 1, rvm_shared), RVM_EHANDLE);
    EXPECT(rvm_reader_accept((rvm_reader_t)0x123456789abul), RVM_EHANDLE);

    one = join("one");
    options = options_of("one");
    EXPECT(rvm_node_join(&options, &node), RVM_EIO);
    CHECK(errno == EBUSY);
    EXPECT(rvm_node_info(one.node, NULL), RVM_ERANGE);
    EXPECT(rvm_node_info(one.node, (rvm_node_info_t *)(void *)(target + 1)), RVM_ERANGE);
    EXPECT(rvm_node_span(one.node, 4000, &span), RVM_ELOCK);
    CHECK(rvm_error_lock() == 4000);
    EXPECT(rvm_node_span_at(one.node, target, &span), RVM_ENOT_MAPPED);
    EXPECT(rvm_node_outcome(one.node, NULL, 0, &fate), RVM_ERANGE);
    EXPECT(rvm_node_outcome(one.node, &record, 0, NULL), RVM_ERANGE);
    EXPECT(rvm_txn_begin(one.node, flush, &txn), RVM_EMODE);
    EXPECT(rvm_txn_begin(one.node, restore, NULL), RVM_ERANGE);

    txn = begin(&one);
    EXPECT(rvm_txn_acquire(txn, 1, (rvm_hold_t)3), RVM_EMODE);
    EXPECT(rvm_txn_acquire(txn, 4000, rvm_shared), RVM_ELOCK);
    EXPECT(rvm_txn_acquire_all(txn, NULL, 1), RVM_ERANGE);
    EXPECT(rvm_txn_acquire_all(txn, locks, 1ul << 40), RVM_ELOCK);
    OK(rvm_txn_acquire_all(txn, NULL, 0));
    OK(rvm_txn_acquire_all(txn, locks, 2));
    OK(rvm_txn_acquire(txn, 3, rvm_shared));
    EXPECT(rvm_txn_set_range(txn, one.base + 3 * PAGE, 1), RVM_ENOT_HELD);
    CHECK(rvm_error_lock() == 3);
    EXPECT(rvm_txn_set_range(txn, one.base + 3 * PAGE - 4, 8), RVM_ENOT_HELD);
    EXPECT(rvm_txn_set_range(txn, one.base - 8, 8), RVM_ENOT_MAPPED);
    EXPECT(rvm_txn_set_range(txn, target, 8), RVM_ENOT_MAPPED);
    EXPECT(rvm_txn_set_range(txn, one.base, ~0ul), RVM_ENOT_MAPPED);
    EXPECT(rvm_txn_modify_bytes(txn, one.base + PAGE, NULL, 8), RVM_ERANGE);
    EXPECT(rvm_txn_commit(txn, (rvm_record_t *)(void *)(target + 1)), RVM_ERANGE);
    OK(rvm_txn_set_range(txn, one.base + PAGE, 2 * PAGE));
    OK(rvm_txn_commit(txn, NULL));

    OK(rvm_reader_begin(one.node, &reader));
    EXPECT(rvm_reader_read(reader, one.base, NULL, 8), RVM_ERANGE);
    EXPECT(rvm_reader_read(reader, one.base - 1, target, 8), RVM_ENOT_MAPPED);
    EXPECT(rvm_reader_age(reader, NULL), RVM_ERANGE);
    OK(rvm_reader_age(reader, &age));
    OK(rvm_reader_end(reader));
    EXPECT(rvm_reader_end(reader), RVM_EHANDLE);
    OK(rvm_node_leave(one.node));
    CHECK(strcmp(rvm_return(RVM_EUNKNOWN), "RVM_EUNKNOWN") == 0);
    CHECK(strcmp(rvm_type(rvm_join_id), "rvm_join_id") == 0);
}

/*
 * In order a transaction waits, out of order it gets an error, and one that cannot be undone may not go out of order.
 */
static void locks(void)
{
    place_t one = join("one"), two = join("two");
    rvm_txn_t holds = begin(&one), waits = begin(&two);

    OK(rvm_txn_acquire(holds, 1, rvm_exclusive));
    OK(rvm_txn_set_timeout(waits, 100));
    EXPECT(rvm_txn_acquire(waits, 1, rvm_shared), RVM_ETIMEDOUT);
    CHECK(rvm_error_lock() == 1);
    OK(rvm_txn_set_timeout(waits, PATIENCE_MS));
    OK(rvm_txn_acquire(waits, 2, rvm_exclusive));
    EXPECT(rvm_txn_acquire(waits, 1, rvm_exclusive), RVM_EDIED);
    CHECK(rvm_error_lock() == 1);
    OK(rvm_txn_abort(holds));
    OK(rvm_txn_abort(waits));
    add(&two, 1);

    OK(rvm_txn_begin(one.node, no_restore, &holds));
    OK(rvm_txn_acquire(holds, 2, rvm_exclusive));
    EXPECT(rvm_txn_acquire(holds, 1, rvm_exclusive), RVM_ELOCK);
    CHECK(rvm_error_lock() == 1);
    OK(rvm_txn_commit(holds, NULL));
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* A reader sees the pinned state until it accepts. */
static void reader(void)
{
    place_t one = join("one"), two = join("two");
    unsigned long before = get(&two, 1), seen;
    rvm_reader_t pinned;
    rvm_age_t age;

    OK(rvm_reader_begin(two.node, &pinned));
    add(&one, 1);
    for (age.positions = 0; age.positions == 0; usleep(1000))
        OK(rvm_reader_age(pinned, &age));
    OK(rvm_reader_read(pinned, counter(&two, 1), &seen, sizeof seen));
    CHECK(seen == before && *counter(&two, 1) == before);
    OK(rvm_reader_check(pinned));
    EXPECT(rvm_node_leave(two.node), RVM_EUNCOMMIT);
    OK(rvm_reader_accept(pinned));
    OK(rvm_reader_read(pinned, counter(&two, 1), &seen, sizeof seen));
    CHECK(seen == before + 1);
    OK(rvm_reader_end(pinned));
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* Too much is held back: the reader gets an error, and continues. */
static void expired(void)
{
    place_t one = join("one");
    rvm_join_t options = options_of("two");
    rvm_node_info_t info;
    rvm_reader_t pinned;
    rvm_node_t two;
    char byte;
    int tries;

    options.pinned_bytes_max = 4096;
    OK(rvm_node_join(&options, &two));
    OK(rvm_node_info(two, &info));
    OK(rvm_reader_begin(two, &pinned));
    for (tries = 0; rvm_reader_check(pinned) == RVM_SUCCESS; tries++) {
        CHECK(tries < 10000);
        add(&one, 1);
    }
    EXPECT(rvm_reader_read(pinned, info.vmaddr, &byte, 1), RVM_EEXPIRED);
    OK(rvm_reader_accept(pinned));
    OK(rvm_reader_read(pinned, info.vmaddr, &byte, 1));
    OK(rvm_reader_end(pinned));
    OK(rvm_node_leave(two));
    OK(rvm_node_leave(one.node));
}

static place_t for_threads;
static rvm_txn_t for_both;

static void *work(void *unused)
{
    int round;

    (void)unused;
    for (round = 0; round < ROUNDS; round++)
        add(&for_threads, (unsigned)round % 3);
    return NULL;
}

static void *commit_it(void *code)
{
    *(rvm_return_t *)code = rvm_txn_commit(for_both, NULL);
    return NULL;
}

/* Transactions of many threads; and one transaction in two threads, one of which ends it. */
static void threads(void)
{
    unsigned long before[3], lock;
    pthread_t thread[THREADS];
    rvm_return_t codes[2];
    int index;

    for_threads = join("one");
    for (lock = 0; lock < 3; lock++)
        before[lock] = get(&for_threads, (unsigned)lock);
    for (index = 0; index < THREADS; index++)
        CHECK(pthread_create(&thread[index], NULL, work, NULL) == 0);
    for (index = 0; index < THREADS; index++)
        CHECK(pthread_join(thread[index], NULL) == 0);
    for (lock = 0; lock < 3; lock++)
        CHECK(get(&for_threads, (unsigned)lock) - before[lock] == THREADS * (unsigned long)((ROUNDS + 2 - lock) / 3));

    for (index = 0; index < ROUNDS; index++) {
        for_both = begin(&for_threads);
        OK(rvm_txn_acquire(for_both, 1, rvm_exclusive));
        OK(rvm_txn_set_range(for_both, counter(&for_threads, 1), 8));
        CHECK(pthread_create(&thread[0], NULL, commit_it, &codes[0]) == 0);
        CHECK(pthread_create(&thread[1], NULL, commit_it, &codes[1]) == 0);
        CHECK(pthread_join(thread[0], NULL) == 0 && pthread_join(thread[1], NULL) == 0);
        CHECK((codes[0] == RVM_SUCCESS && codes[1] == RVM_EHANDLE) || (codes[1] == RVM_SUCCESS && codes[0] == RVM_EHANDLE));
    }
    OK(rvm_node_leave(for_threads.node));
}

/* Uncommitted stores that cannot be undone spoil the copy, which stays readable until the node is abandoned. */
static void gone(void)
{
    place_t one = join("one");
    unsigned long before = get(&one, 1);
    rvm_record_t never;
    rvm_fate_t fate;
    rvm_txn_t txn;

    OK(rvm_txn_begin(one.node, no_restore, &txn));
    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    OK(rvm_txn_set_range(txn, counter(&one, 1), 8));
    *counter(&one, 1) = 99999;
    OK(rvm_txn_abort(txn));
    EXPECT(rvm_node_alive(one.node), RVM_EGONE);
    EXPECT(rvm_txn_begin(one.node, restore, &txn), RVM_EGONE);
    EXPECT(rvm_node_pull(one.node), RVM_EGONE);
    CHECK(*counter(&one, 1) == 99999);
    never.node = one.id;
    never.number = 1;
    OK(rvm_node_abandon(one.node));
    EXPECT(rvm_node_alive(one.node), RVM_EHANDLE);

    one = join("one");
    CHECK(one.id != never.node && get(&one, 1) == before);
    OK(rvm_node_outcome(one.node, &never, PATIENCE_MS, &fate));
    CHECK(fate == rvm_fate_aborted);
    OK(rvm_node_leave(one.node));
}

/* A child has its parent's memory but none of its threads. */
static void forked(void)
{
    place_t one = join("one");
    rvm_txn_t txn = begin(&one);
    int status;
    pid_t child;

    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        rvm_join_t options = options_of("two");
        rvm_node_t node;

        EXPECT(rvm_node_alive(one.node), RVM_EINIT);
        EXPECT(rvm_txn_set_range(txn, counter(&one, 1), 8), RVM_EINIT);
        EXPECT(rvm_txn_commit(txn, NULL), RVM_EINIT);
        EXPECT(rvm_node_leave(one.node), RVM_EINIT);
        EXPECT(rvm_node_join(&options, &node), RVM_EINIT);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(rvm_txn_set_range(txn, counter(&one, 1), 8));
    OK(rvm_txn_commit(txn, NULL));
    OK(rvm_node_leave(one.node));
}

/* The calls of the paper's Table 1. */
static void table_1(void)
{
    place_t one = join("one");
    unsigned long before = get(&one, 1);
    rvm_trans_t trans;

    Trans_Init(&trans, one.node);
    EXPECT(Trans_Acquire(&trans, 1), RVM_EHANDLE);
    OK(Trans_Begin(&trans, restore));
    CHECK(Trans_Begin(&trans, restore) == RVM_EUNCOMMIT);
    OK(Trans_Acquire(&trans, 1));
    OK(Trans_SetRange(&trans, counter(&one, 1), 8));
    ++*counter(&one, 1);
    CHECK(Trans_Commit(&trans, restore) == RVM_EMODE);
    OK(Trans_Commit(&trans, flush));
    EXPECT(Trans_Commit(&trans, flush), RVM_EHANDLE);
    OK(Trans_Begin(&trans, restore));
    OK(Trans_Abort(&trans));
#ifdef __cplusplus
    {
        Trans other, left_open(one.node);

        EXPECT(other.Begin(restore), RVM_EHANDLE);
        other.Init(one.node);
        OK(other.Begin(restore));
        OK(other.Acquire(1));
        OK(other.SetRange(counter(&one, 1), 8));
        ++*counter(&one, 1);
        OK(other.Commit(no_flush));
        OK(left_open.Begin(restore));
        OK(left_open.Acquire(1));
    }
    before++;
#endif
    CHECK(get(&one, 1) == before + 1);
    OK(rvm_node_leave(one.node));
}

/* A region with an address is mapped there, or not at all. */
static void address(void)
{
    char *wanted = (char *)strtoul(getenv("ADDRESS"), NULL, 0);
    rvm_join_t options = options_of("one");
    rvm_node_t node;
    place_t one;
    void *taken = mmap(wanted, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    CHECK(taken == wanted);
    EXPECT(rvm_node_join(&options, &node), RVM_ERANGE);
    CHECK(munmap(taken, PAGE) == 0);
    one = join("one");
    CHECK(one.base == wanted);
    /* A pointer into the region is valid in every process. */
    add(&one, 1);
    OK(rvm_node_leave(one.node));
    one = join("one");
    CHECK(one.base == wanted && get(&one, 1) > 0);
    OK(rvm_node_leave(one.node));
}

/* Adds, as the node $NAME, under locks 1 and 2 at once, until both are $LAST. */
static void count(void)
{
    unsigned long last = strtoul(getenv("LAST"), NULL, 0), first;
    static const rvm_lock_t both[2] = {{2, rvm_exclusive}, {1, rvm_exclusive}};
    place_t me = join(getenv("NAME"));

    do {
        rvm_txn_t txn = begin(&me);

        OK(rvm_txn_acquire_all(txn, both, 2));
        first = *counter(&me, 1);
        CHECK(*counter(&me, 2) == first);
        if (first < last) {
            first++;
            OK(rvm_txn_modify_bytes(txn, counter(&me, 1), &first, sizeof first));
            OK(rvm_txn_modify_bytes(txn, counter(&me, 2), &first, sizeof first));
            printf("%lu\n", first);
        }
        OK(rvm_txn_commit(txn, NULL));
    } while (first < last);
    OK(rvm_node_leave(me.node));
}

/* Adds under both locks and prints each number after its commit, until it is killed. */
static void run(void)
{
    static const rvm_lock_t both[2] = {{1, rvm_exclusive}, {2, rvm_exclusive}};
    place_t me = join(getenv("NAME"));

    for (;;) {
        rvm_txn_t txn = begin(&me);
        unsigned long number;

        OK(rvm_txn_acquire_all(txn, both, 2));
        number = *counter(&me, 1) + 1;
        CHECK(*counter(&me, 2) + 1 == number);
        OK(rvm_txn_modify_bytes(txn, counter(&me, 1), &number, sizeof number));
        OK(rvm_txn_modify_bytes(txn, counter(&me, 2), &number, sizeof number));
        OK(rvm_txn_commit(txn, NULL));
        printf("%lu\n", number);
        fflush(stdout);
    }
}

/* Prints the number found, after checking both counters. */
static void look(void)
{
    place_t me = join(getenv("NAME"));
    unsigned long number = get(&me, 1);

    CHECK(get(&me, 2) == number);
    printf("%lu\n", number);
    OK(rvm_node_leave(me.node));
}

MAIN(CASE(life), CASE(misuse), CASE(locks), CASE(reader), CASE(expired), CASE(threads), CASE(gone), CASE(forked),
     CASE(table_1), CASE(address), CASE(count), CASE(run), CASE(look))
