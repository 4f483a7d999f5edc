/* Transactions: commits, restored values, errors. */
#include "check.h"

/* Starts with one segment of a MiB. */
static rvm_region_t start_with(unsigned long flags)
{
    make_file("data", MIB);
    start_flags(flags);
    return map("data");
}

static void modes(void)
{
    rvm_region_t region = start_with(RVM_ALL_OPTIMIZATIONS);
    rvm_tid_t tid;

    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 100));
    memset(region.vmaddr, 'x', 100);
    OK(rvm_abort_transaction(&tid));
    CHECK(tid.tid == NULL && region.vmaddr[0] == 0 && region.vmaddr[99] == 0);

    OK(rvm_begin_transaction(&tid, no_restore));
    OK(rvm_set_range(&tid, region.vmaddr, 100));
    memset(region.vmaddr, 'y', 100);
    OK(rvm_abort_transaction(&tid));
    CHECK(region.vmaddr[0] == 'y');

    EXPECT(rvm_begin_transaction(&tid, flush), RVM_EMODE);
    EXPECT(rvm_begin_transaction(&tid, (rvm_mode_t)0), RVM_EMODE);
    OK(rvm_begin_transaction(&tid, restore));
    EXPECT(rvm_end_transaction(&tid, restore), RVM_EMODE);
    EXPECT(rvm_end_transaction(&tid, rvm_last_mode), RVM_EMODE);
    OK(rvm_set_range(&tid, region.vmaddr, 8));
    OK(rvm_end_transaction(&tid, no_flush));
}

/* Overlapping ranges are restored to the values before the first. */
static void overlaps(void)
{
    rvm_region_t region = start_with(0);
    rvm_tid_t tid;

    commit(region.vmaddr, 'a', 64, flush);
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 32));
    memset(region.vmaddr, 'b', 32);
    OK(rvm_set_range(&tid, region.vmaddr + 16, 48));
    memset(region.vmaddr + 16, 'c', 48);
    OK(rvm_set_range(&tid, region.vmaddr, 64));
    OK(rvm_abort_transaction(&tid));
    CHECK(region.vmaddr[0] == 'a' && region.vmaddr[20] == 'a' && region.vmaddr[63] == 'a');
}

static void stale(void)
{
    rvm_region_t region = start_with(RVM_ALL_OPTIMIZATIONS);
    rvm_tid_t tid, copy, wrong, older;

    memset(&wrong, 0, sizeof wrong);
    EXPECT(rvm_begin_transaction(&wrong, restore), RVM_ETID);
    EXPECT(rvm_begin_transaction(NULL, restore), RVM_ETID);
    EXPECT(rvm_set_range(NULL, region.vmaddr, 8), RVM_ETID);
    rvm_init_tid(&tid);
    EXPECT(rvm_set_range(&tid, region.vmaddr, 8), RVM_ETID);
    EXPECT(rvm_modify_bytes(&tid, region.vmaddr, "x", 1), RVM_ETID);
    EXPECT(rvm_end_transaction(&tid, flush), RVM_ETID);
    EXPECT(rvm_abort_transaction(&tid), RVM_ETID);
    OK(rvm_begin_transaction(&tid, restore));
    copy = tid;
    OK(rvm_end_transaction(&copy, flush));
    /* The original would follow a pointer to freed memory here. */
    EXPECT(rvm_set_range(&tid, region.vmaddr, 8), RVM_ETID);
    EXPECT(rvm_end_transaction(&tid, flush), RVM_ETID);
    tid.tid = (void *)0x123456789abcul;
    EXPECT(rvm_abort_transaction(&tid), RVM_ETID);

    /* A record that is begun again: the older transaction can be reached through a copy. */
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    older = tid;
    OK(rvm_begin_transaction(&tid, restore));
    CHECK(older.uname.tv_sec < tid.uname.tv_sec || older.uname.tv_usec < tid.uname.tv_usec);
    OK(rvm_abort_transaction(&older));
    OK(rvm_abort_transaction(&tid));
    OK(rvm_terminate());
}

static void ranges(void)
{
    rvm_region_t region = start_with(RVM_ALL_OPTIMIZATIONS), other;
    rvm_tid_t tid;
    char outside[8];

    make_file("second", MIB);
    other = map("second");
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    EXPECT(rvm_set_range(&tid, outside, 8), RVM_ENOT_MAPPED);
    EXPECT(rvm_set_range(&tid, NULL, 8), RVM_ENOT_MAPPED);
    EXPECT(rvm_set_range(&tid, region.vmaddr + region.length - 4, 8), RVM_ENOT_MAPPED);
    EXPECT(rvm_set_range(&tid, region.vmaddr, ~0ul), RVM_ENOT_MAPPED);
    EXPECT(rvm_modify_bytes(&tid, outside, "x", 1), RVM_ENOT_MAPPED);
    EXPECT(rvm_modify_bytes(&tid, region.vmaddr, NULL, 1), RVM_ERANGE);
    OK(rvm_set_range(&tid, region.vmaddr + region.length - 8, 8));
    OK(rvm_modify_bytes(&tid, other.vmaddr + 4096, "two regions", 12));
    OK(rvm_modify_bytes(&tid, region.vmaddr, "in one transaction", 19));
    OK(rvm_end_transaction(&tid, flush));
    CHECK(strcmp(other.vmaddr + 4096, "two regions") == 0);

    /* An empty range with optimisations is accepted unchecked. */
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, outside, 0));
    OK(rvm_modify_bytes(&tid, NULL, NULL, 0));
    OK(rvm_end_transaction(&tid, flush));
}

/* An empty range without optimisations is checked, and an empty transaction flushes earlier commits. */
static void nothing(void)
{
    rvm_region_t region = start_with(0);
    rvm_tid_t tid;
    char outside[8];

    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    EXPECT(rvm_set_range(&tid, outside, 0), RVM_ENOT_MAPPED);
    OK(rvm_set_range(&tid, region.vmaddr, 0));
    OK(rvm_end_transaction(&tid, flush));
    commit(region.vmaddr, 'l', 8, no_flush);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_end_transaction(&tid, flush));
    _exit(0);
}

static void nothing_after(void)
{
    rvm_region_t region;

    start();
    region = map("data");
    CHECK(region.vmaddr[0] == 'l' && region.vmaddr[7] == 'l');
}

/* The original had already unlinked such a transaction: the abort killed the process. */
static void too_big(void)
{
    rvm_options_t options;
    rvm_region_t region;
    rvm_tid_t tid;
    unsigned long at;

    make_file("data", 4 * MIB);
    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    options.create_log_file = rvm_true;
    options.create_log_size = RVM_MK_OFFSET(0, 64 * 1024);
    OK(RVM_INIT(&options));
    region = map("data");
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    EXPECT(rvm_set_range(&tid, region.vmaddr, MIB), RVM_ETOO_BIG);
    for (at = 0; at < MIB; at += 4096) {
        OK(rvm_set_range(&tid, region.vmaddr + at, 1024));
        memset(region.vmaddr + at, 'b', 1024);
    }
    EXPECT(rvm_end_transaction(&tid, flush), RVM_ETOO_BIG);
    EXPECT(rvm_end_transaction(&tid, no_flush), RVM_ETOO_BIG);
    EXPECT(rvm_unmap(&region), RVM_EUNCOMMIT);
    EXPECT(rvm_terminate(), RVM_EUNCOMMIT);
    OK(rvm_abort_transaction(&tid));
    CHECK(region.vmaddr[0] == 0 && region.vmaddr[MIB - 4096] == 0);
    commit(region.vmaddr, 'c', 1024, flush);
    OK(rvm_unmap(&region));
    OK(rvm_terminate());
}

/*
 * More is logged than the log holds: it is truncated meanwhile, in the background or by a commit that finds it full.
 */
static void many(void)
{
    rvm_region_t region = start_with(RVM_ALL_OPTIMIZATIONS);
    rvm_options_t options;
    unsigned long round, at;

    for (round = 0; round < 2; round++) {
        rvm_init_options(&options);
        options.truncate = round == 0 ? TRUNCATE : 0;
        options.flags = RVM_ALL_OPTIMIZATIONS;
        OK(rvm_set_options(&options));
        for (at = 0; at < 4000; at++)
            commit(region.vmaddr + at * 4099 % (MIB - 4000), 'a' + (int)(at % 26), 4000, at % 16 ? no_flush : flush);
    }
    OK(rvm_truncate());
    rvm_init_options(&options);
    OK(rvm_query(&options, NULL));
    CHECK(options.log_empty);
    OK(rvm_terminate());
}

static void many_after(void)
{
    rvm_region_t region;
    unsigned long at = 3999;

    start();
    region = map("data");
    CHECK(region.vmaddr[at * 4099 % (MIB - 4000)] == 'a' + (int)(at % 26));
    CHECK(region.vmaddr[at * 4099 % (MIB - 4000) + 3999] == 'a' + (int)(at % 26));
}

/* Queries again with a record that was used before. */
static void ask(rvm_options_t *options, rvm_region_t *region)
{
    free(options->tid_array);
    OK(rvm_query(options, region));
}

/* The list of open transactions: replaced, not extended; all, or those of a region; usable to end them. */
static void query(void)
{
    rvm_region_t region = start_with(RVM_ALL_OPTIMIZATIONS), other;
    rvm_options_t *options = rvm_malloc_options();
    rvm_tid_t tids[100];
    int at;

    make_file("second", MIB);
    other = map("second");
    for (at = 0; at < 100; at++) {
        rvm_init_tid(&tids[at]);
        OK(rvm_begin_transaction(&tids[at], restore));
        OK(rvm_set_range(&tids[at], (at < 30 ? region : other).vmaddr + at, 1));
        if (at < 10)
            OK(rvm_set_range(&tids[at], other.vmaddr + at, 1));
    }
    ask(options, NULL);
    CHECK(options->n_uncommit == 100);
    ask(options, NULL);
    CHECK(options->n_uncommit == 100 && options->tid_array[0].struct_id == rvm_tid_id);
    ask(options, &other);
    CHECK(options->n_uncommit == 80);
    ask(options, &region);
    CHECK(options->n_uncommit == 30);
    EXPECT(rvm_query(options, (rvm_region_t *)tids), RVM_EREGION);
    EXPECT(rvm_terminate(), RVM_EUNCOMMIT);
    EXPECT(rvm_unmap(&other), RVM_EUNCOMMIT);
    for (at = 0; at < 30; at++)
        OK(rvm_abort_transaction(&options->tid_array[at]));
    ask(options, NULL);
    CHECK(options->n_uncommit == 70);
    for (at = 0; at < 70; at++)
        OK(rvm_end_transaction(&options->tid_array[at], no_flush));
    ask(options, &region);
    CHECK(options->n_uncommit == 0 && options->tid_array == NULL);
    rvm_free_options(options);
    for (at = 0; at < 100; at++)
        EXPECT(rvm_abort_transaction(&tids[at]), RVM_ETID);
    options = rvm_malloc_options();
    options->n_uncommit = 7;
    OK(rvm_unmap(&other));
    EXPECT(rvm_query(options, &other), RVM_ENOT_MAPPED);
    CHECK(options->n_uncommit == 7);
    rvm_free_options(options);
    OK(rvm_terminate());
}

/*
 * Regression: the list in an answer belongs to the program, which may free it and query again with the same record.
 * The library freed it too, which was a double free.
 */
static void query_freed(void)
{
    rvm_region_t region = start_with(RVM_ALL_OPTIMIZATIONS);
    rvm_options_t options;
    rvm_tid_t tid, *kept;

    rvm_init_options(&options);
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 8));
    OK(rvm_query(&options, NULL));
    CHECK(options.n_uncommit == 1 && options.tid_array != NULL);
    free(options.tid_array);
    OK(rvm_query(&options, NULL));
    CHECK(options.n_uncommit == 1 && options.tid_array[0].tid == tid.tid);
    kept = options.tid_array;
    options.tid_array = &tid;
    OK(rvm_query(&options, NULL));
    CHECK(options.tid_array != &tid && options.tid_array != kept && kept[0].tid == tid.tid);
    free(kept);
    free(options.tid_array);
    OK(rvm_abort_transaction(&tid));
    OK(rvm_query(&options, NULL));
    CHECK(options.n_uncommit == 0 && options.tid_array == NULL);
    OK(rvm_terminate());
}

MAIN(CASE(modes), CASE(overlaps), CASE(stale), CASE(ranges), CASE(nothing), CASE(nothing_after), CASE(too_big),
     CASE(many), CASE(many_after), CASE(query), CASE(query_freed))
