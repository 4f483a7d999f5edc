/* Shared regions whose stores are found. Lock N covers page N. */
#include <stdint.h>

#include "node.h"

/* Joins with this capture mode. False: this machine does not support it, which is reported. */
static int join_with(const char *directory, rvm_capture_t capture, rvm_find_t find, place_t *place)
{
    rvm_join_t options = options_of(directory);
    rvm_node_info_t info;
    rvm_return_t code;

    options.capture = capture;
    options.find = find;
    code = rvm_node_join(&options, &place->node);
    if (code == RVM_EOPTIONS && find == rvm_find_watch && strstr(rvm_error_text(), "userfaultfd") != NULL) {
        fprintf(stderr, "skipped: %s\n", rvm_error_text());
        return 0;
    }
    CHECK(code == RVM_SUCCESS);
    OK(rvm_node_info(place->node, &info));
    place->base = info.vmaddr;
    place->id = info.id;
    return 1;
}

/* Bytes from a page's beginning, read under its lock. */
static int has(place_t *place, unsigned lock, unsigned at, int byte, unsigned length)
{
    rvm_txn_t txn = begin(place);
    int same = 1;
    unsigned index;

    OK(rvm_txn_acquire(txn, lock, rvm_shared));
    for (index = 0; index < length; index++)
        same = same && place->base[lock * PAGE + at + index] == byte;
    OK(rvm_txn_commit(txn, NULL));
    return same;
}

/* Sets the first bytes of a page with a declaration, as a known state for a case. */
static void clear(place_t *place, unsigned lock)
{
    static const char zeros[64] = {0};
    rvm_txn_t txn = begin(place);

    OK(rvm_txn_acquire(txn, lock, rvm_exclusive));
    OK(rvm_txn_modify_bytes(txn, place->base + lock * PAGE, zeros, sizeof zeros));
    OK(rvm_txn_commit(txn, NULL));
}

/* Without declarations every store reaches the other node; an abort undoes them. */
static void found_so(rvm_capture_t capture, rvm_find_t find)
{
    place_t one, two;
    rvm_record_t record;
    rvm_txn_t txn;

    if (!join_with("one", capture, find, &one))
        return;
    two = join("two");
    clear(&two, 1);
    txn = begin(&one);
    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    memset(one.base + PAGE + 8, 5, 8);
    OK(rvm_txn_modify_bytes(txn, one.base + PAGE + 16, "\7\7", 2));
    OK(rvm_txn_commit(txn, &record));
    CHECK(record.node == one.id && record.number > 0);
    CHECK(has(&two, 1, 0, 0, 8) && has(&two, 1, 8, 5, 8) && has(&two, 1, 16, 7, 2) && has(&two, 1, 18, 0, 8));
    txn = begin(&one);
    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    memset(one.base + PAGE, 9, 64);
    OK(rvm_txn_abort(txn));
    CHECK(has(&one, 1, 0, 0, 8) && has(&one, 1, 8, 5, 8));
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

static void found(void)
{
    found_so(rvm_capture_twins, rvm_find_trap);
    found_so(rvm_capture_pages, rvm_find_trap);
    found_so(rvm_capture_twins, rvm_find_watch);
    found_so(rvm_capture_pages, rvm_find_watch);
}

/* Declared stores work with every method of a page. */
static void adaptive(void)
{
    place_t one, two = join("two");
    unsigned long before = get(&two, 1);
    int round;

    CHECK(join_with("one", rvm_capture_adaptive, rvm_find_trap, &one));
    for (round = 0; round < 20; round++)
        add(&one, 1);
    CHECK(get(&two, 1) == before + 20);
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* Stores without the lock are reported by address, undone, and reach no other copy. */
static void stray(void)
{
    place_t one, two = join("two");
    char address[32];
    rvm_stray_t named;
    rvm_txn_t txn;

    CHECK(join_with("one", rvm_capture_twins, rvm_find_trap, &one));
    clear(&two, 1);
    clear(&two, 2);
    txn = begin(&one);
    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    OK(rvm_txn_acquire(txn, 2, rvm_shared));
    CHECK(!rvm_error_stray(&named));
    memset(one.base + PAGE, 1, 8);
    memset(one.base + 2 * PAGE + 4, 2, 3);
    EXPECT(rvm_txn_commit(txn, NULL), RVM_ESTRAY);
    CHECK(rvm_error_lock() == 2);
    CHECK(!rvm_error_stray(NULL));
    CHECK(rvm_error_stray(&named));
    CHECK(named.vmaddr == one.base + 2 * PAGE + 4 && named.length == 3 && named.count == 1);
    CHECK(named.has_lock && named.lock == 2 && !named.held);
    snprintf(address, sizeof address, "%#lx", (unsigned long)(uintptr_t)named.vmaddr);
    CHECK(strstr(rvm_error_text(), address) != NULL);
    EXPECT(rvm_txn_abort(txn), RVM_EHANDLE);
    CHECK(!rvm_error_stray(&named));
    CHECK(has(&one, 1, 0, 0, 8) && has(&one, 2, 0, 0, 8) && has(&two, 2, 0, 0, 8));
    CHECK(strcmp(rvm_return(RVM_ESTRAY), "RVM_ESTRAY") == 0);
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* Declares eight bytes and stores sixteen. */
static rvm_return_t store_too_much(place_t *place)
{
    rvm_txn_t txn = begin(place);

    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    OK(rvm_txn_set_range(txn, place->base + PAGE, 8));
    memset(place->base + PAGE, 3, 16);
    return rvm_txn_commit(txn, NULL);
}

/* Undeclared stores are an error with capture verified, */
static void verified(void)
{
    place_t one, two = join("two");
    unsigned long count = 0;
    rvm_stray_t named, listed[2];

    CHECK(join_with("one", rvm_capture_verified, rvm_find_trap, &one));
    clear(&two, 1);
    EXPECT(store_too_much(&one), RVM_ESTRAY);
    CHECK(rvm_error_stray(&named));
    CHECK(named.vmaddr == one.base + PAGE + 8 && named.length == 8 && named.count == 1);
    CHECK(named.has_lock && named.lock == 1 && named.held);
    CHECK(has(&one, 1, 0, 0, 16) && has(&two, 1, 0, 0, 16));
    EXPECT(rvm_node_undeclared(one.node, listed, 2, NULL), RVM_ERANGE);
    EXPECT(rvm_node_undeclared(one.node, NULL, 2, &count), RVM_ERANGE);
    OK(rvm_node_undeclared(one.node, listed, 2, &count));
    CHECK(count == 1 && listed[0].vmaddr == named.vmaddr && listed[0].length == 8 && listed[0].lock == 1);
    OK(rvm_node_undeclared(one.node, listed, 2, &count));
    CHECK(count == 0);
    add(&one, 1);
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* and only listed with reported: they stay in this copy. */
static void reported(void)
{
    place_t one, two = join("two");
    unsigned long count = 0;
    rvm_stray_t listed[2];

    CHECK(join_with("one", rvm_capture_reported, rvm_find_trap, &one));
    clear(&two, 1);
    OK(store_too_much(&one));
    CHECK(has(&one, 1, 0, 3, 16) && has(&two, 1, 0, 3, 8) && has(&two, 1, 8, 0, 8));
    OK(rvm_node_undeclared(one.node, listed, 2, &count));
    CHECK(count == 1 && listed[0].vmaddr == one.base + PAGE + 8 && listed[0].length == 8 && listed[0].has_lock);
    OK(rvm_node_undeclared(two.node, listed, 2, &count));
    CHECK(count == 0);
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* If stores are found by page, one transaction of the node at a time holds locks exclusively. */
static void one_at_a_time(void)
{
    rvm_txn_t holds, waits;
    place_t one;

    CHECK(join_with("one", rvm_capture_twins, rvm_find_trap, &one));
    holds = begin(&one);
    waits = begin(&one);
    OK(rvm_txn_acquire(holds, 1, rvm_exclusive));
    /* It waits at most for its timeout; and not at all if it holds locks. */
    OK(rvm_txn_set_timeout(waits, 1));
    EXPECT(rvm_txn_acquire(waits, 4, rvm_exclusive), RVM_EUNCOMMIT);
    OK(rvm_txn_set_timeout(waits, PATIENCE_MS));
    OK(rvm_txn_acquire(waits, 3, rvm_shared));
    EXPECT(rvm_txn_acquire(waits, 4, rvm_exclusive), RVM_EUNCOMMIT);
    OK(rvm_txn_commit(holds, NULL));
    OK(rvm_txn_acquire(waits, 4, rvm_exclusive));
    OK(rvm_txn_commit(waits, NULL));
    OK(rvm_node_leave(one.node));
}

/* Invalid capture modes and direct links are refused before anything happens. */
static void misuse(void)
{
    rvm_join_t options = options_of("never");
    rvm_node_t node;

    options.capture = (rvm_capture_t)6;
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options = options_of("never");
    options.find = (rvm_find_t)2;
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    options = options_of("never");
    options.listen = "nowhere";
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    CHECK(strstr(rvm_error_text(), "nowhere") != NULL);
    options = options_of("never");
    options.group = "127.0.0.1:1";
    EXPECT(rvm_node_join(&options, &node), RVM_EOPTIONS);
    CHECK(access("never", F_OK) != 0);
}

MAIN(CASE(misuse), CASE(found), CASE(adaptive), CASE(stray), CASE(verified), CASE(reported), CASE(one_at_a_time))
