/* Reports of a node of a shared region, and the copy it saves when its server is lost. Lock N covers page N. */
#include "node.h"

/* Spans in order, progress of records, and direct records. */
static void told(void)
{
    rvm_join_t options = options_of("one");
    rvm_progress_t progress;
    rvm_straight_t straight;
    rvm_node_info_t info;
    rvm_span_t span;
    place_t one, two;
    char word[8], here[256], listen[300];
    rvm_txn_t txn;
    unsigned long place;

    CHECK(options.straight && options.capture == rvm_capture_declared && !options.fall_behind);
    CHECK(getcwd(here, sizeof here) != NULL);
    snprintf(listen, sizeof listen, "unix:%s/one.peers", here);
    options.listen = listen;
    OK(rvm_node_join(&options, &one.node));
    OK(rvm_node_info(one.node, &info));
    one.base = info.vmaddr;
    two = join("two");
    for (place = 0; place < info.spans; place++) {
        OK(rvm_node_nth_span(one.node, place, &span));
        CHECK(span.lock == place && span.vmaddr == one.base + place * PAGE && span.length == PAGE);
    }
    EXPECT(rvm_node_nth_span(one.node, place, &span), RVM_ERANGE);
    EXPECT(rvm_node_nth_span(one.node, ~0ul, &span), RVM_ERANGE);

    OK(rvm_node_progress(one.node, &progress));
    CHECK(progress.appended == 0 && progress.kept == 0);
    add(&one, 1);
    add(&one, 1);
    OK(rvm_node_progress(one.node, &progress));
    CHECK(progress.appended == 2 && progress.acked == 2);
    while (progress.kept < 2) {
        usleep(1000);
        OK(rvm_node_progress(one.node, &progress));
    }
    /* Records take two paths, and the faster one counts. */
    do {
        add(&one, 1);
        OK(rvm_node_straight(two.node, &straight));
    } while (straight.taken + straight.forgotten == 0);
    OK(rvm_node_straight(one.node, &straight));
    CHECK(straight.peers == 1 && straight.linked > 0);
    EXPECT(rvm_node_straight(one.node, NULL), RVM_ERANGE);
    EXPECT(rvm_node_progress(one.node, NULL), RVM_ERANGE);
    EXPECT(rvm_node_left_behind(one.node, 0, word, sizeof word), RVM_ERANGE);
    OK(rvm_node_uncounted(one.node, word, sizeof word));
    OK(rvm_node_uncounted(one.node, NULL, 0));
    EXPECT(rvm_node_uncounted(one.node, NULL, 1), RVM_ERANGE);
    EXPECT(rvm_node_save_copy(one.node, NULL), RVM_ERANGE);

    /* A page is too small for a heap. */
    txn = begin(&one);
    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    EXPECT(rvm_txn_format_heap(txn, 1), RVM_ERANGE);
    OK(rvm_txn_abort(txn));
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* Counts to three and reports it; saves its copy after the server is lost and the lease has expired. */
static void save(void)
{
    place_t me = join(getenv("NAME"));
    rvm_txn_t txn = begin(&me);
    rvm_return_t code;

    OK(rvm_txn_acquire(txn, 2, rvm_exclusive));
    EXPECT(rvm_node_save_copy(me.node, "early"), RVM_EUNCOMMIT);
    OK(rvm_txn_commit(txn, NULL));
    EXPECT(rvm_node_save_copy(me.node, "early"), RVM_ESERVED);
    CHECK(access("early", F_OK) != 0);
    while (add(&me, 1) < 3) {
    }
    printf("3\n");
    fflush(stdout);
    CHECK(getchar() == '\n');
    while ((code = rvm_node_save_copy(me.node, "copy")) == RVM_ESERVED)
        usleep(10000);
    CHECK(code == RVM_SUCCESS);
    EXPECT(rvm_node_save_copy(me.node, "copy"), RVM_EIO);
    OK(rvm_node_abandon(me.node));
}

/*
 * In the rebuilt region: its bytes are the copy's, and files of the old region in the directory belong to another
 * one.
 */
static void rescued(void)
{
    place_t me = join(getenv("NAME"));
    char said[512] = "", cut[5];
    rvm_node_info_t info;

    CHECK(get(&me, 1) == 3);
    OK(rvm_node_info(me.node, &info));
    CHECK(info.left_behind == 1);
    while (strstr(said, "another region") == NULL) {
        OK(rvm_node_left_behind(me.node, 0, said, sizeof said));
        CHECK(strstr(said, "journal-") != NULL);
        usleep(1000);
    }
    OK(rvm_node_left_behind(me.node, 0, cut, sizeof cut));
    CHECK(strlen(cut) == 4 && strncmp(cut, said, 4) == 0);
    OK(rvm_node_left_behind(me.node, 0, NULL, 0));
    OK(rvm_node_leave(me.node));
}

MAIN(CASE(told), CASE(save), CASE(rescued))
