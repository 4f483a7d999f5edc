/* Names, offsets, pages and records: usable before rvm_initialize(). */
#include "check.h"

#include <rvm/rvm_statistics.h>

static void names(void)
{
    int code;

    CHECK(strcmp(rvm_return(RVM_SUCCESS), "RVM_SUCCESS") == 0);
    CHECK(strcmp(rvm_return(RVM_EINIT), "RVM_EINIT") == 0);
    CHECK(strcmp(rvm_return(203), "RVM_EPLACEHOLDER") == 0);
    CHECK(strcmp(rvm_return(RVM_ETOO_BIG), "RVM_ETOO_BIG") == 0);
    CHECK(strcmp(rvm_return(RVM_EVM_OVERLAP), "RVM_EVM_OVERLAP") == 0);
    for (code = rvm_first_code + 1; code < rvm_last_code; code++)
        CHECK(strncmp(rvm_return(code), "RVM_E", 5) == 0);
    CHECK(strncmp(rvm_return(rvm_last_code), "RVM_E", 5) != 0);
    CHECK(strcmp(rvm_mode(restore), "restore") == 0);
    CHECK(strcmp(rvm_mode(no_flush), "no_flush") == 0);
    CHECK(strcmp(rvm_mode(rvm_last_mode), "no_flush") != 0);
    CHECK(strcmp(rvm_type(rvm_tid_id), "rvm_tid_id") == 0);
    CHECK(strcmp(rvm_type(rvm_statistics_id), "rvm_statistics_id") == 0);
    CHECK(rvm_error_text()[0] == 0);
}

static void offsets(void)
{
    rvm_offset_t x = RVM_MK_OFFSET(1, ~0ul), y = RVM_LENGTH_TO_OFFSET(2), sum, zero = x;

    sum = RVM_ADD_OFFSETS(x, y);
    CHECK(sum.high == 2 && sum.low == 1);
    sum = RVM_SUB_OFFSETS(sum, y);
    CHECK(RVM_OFFSET_EQL(sum, x));
    sum = RVM_ADD_LENGTH_TO_OFFSET(x, 1);
    CHECK(RVM_OFFSET_HIGH_BITS_TO_LENGTH(sum) == 2 && RVM_OFFSET_TO_LENGTH(sum) == 0);
    sum = RVM_SUB_LENGTH_FROM_OFFSET(sum, 1);
    CHECK(RVM_OFFSET_EQL(sum, x));
    CHECK(RVM_OFFSET_LSS(y, x) && RVM_OFFSET_GTR(x, y) && RVM_OFFSET_LEQ(x, x) && RVM_OFFSET_GEQ(x, x));
    CHECK(!RVM_OFFSET_LSS(x, x) && !RVM_OFFSET_GTR(y, x) && !RVM_OFFSET_EQL_ZERO(x));
    RVM_ZERO_OFFSET(zero);
    CHECK(RVM_OFFSET_EQL_ZERO(zero));
    CHECK(RVM_ADD_LENGTH_TO_ADDR(16, (char *)&x) == (char *)&x + 16);
    CHECK(RVM_SUB_LENGTH_FROM_ADDR((char *)&x + 16, 16) == (char *)&x);
    CHECK(RVM_PAGE_SIZE == (rvm_length_t)sysconf(_SC_PAGESIZE));
    CHECK(RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(1) == 4096 && RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(4096) == 4096);
    CHECK(RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(8191) == 4096);
    CHECK(RVM_ROUND_ADDR_UP_TO_PAGE_SIZE((char *)4097) == (char *)8192);
    CHECK(RVM_ROUND_ADDR_DOWN_TO_PAGE_SIZE((char *)8191) == (char *)4096);
    y = RVM_MK_OFFSET(7, 4097);
    sum = RVM_ROUND_OFFSET_UP_TO_PAGE_SIZE(y);
    CHECK(sum.high == 7 && sum.low == 8192);
    sum = RVM_ROUND_OFFSET_DOWN_TO_PAGE_SIZE(y);
    CHECK(sum.high == 7 && sum.low == 4096);
}

static void defaults(void)
{
    rvm_options_t options;
    rvm_region_t region;
    rvm_tid_t tid;

    memset(&options, 0xff, sizeof options);
    rvm_init_options(&options);
    CHECK(options.struct_id == rvm_options_id && options.from_heap == rvm_false);
    CHECK(options.log_dev == NULL && options.truncate == 50 && options.pager == NULL && options.flags == 0);
    CHECK(options.recovery_buf_len == 256 * 1024 && options.flush_buf_len == 256 * 1024);
    CHECK(options.max_read_len == 512 * 1024 && options.tid_array == NULL && options.n_uncommit == 0);
    CHECK(options.create_log_file == rvm_false && options.create_log_mode == 0600);
    CHECK(RVM_OFFSET_EQL_ZERO(options.create_log_size));
    memset(&region, 0xff, sizeof region);
    rvm_init_region(&region);
    CHECK(region.struct_id == rvm_region_id && region.data_dev == NULL && region.vmaddr == NULL);
    CHECK(region.length == 0 && region.no_copy == rvm_false && RVM_OFFSET_EQL_ZERO(region.offset));
    memset(&tid, 0xff, sizeof tid);
    rvm_init_tid(&tid);
    CHECK(tid.struct_id == rvm_tid_id && tid.tid == NULL && tid.uname.tv_sec == 0);
}

static void heap(void)
{
    rvm_tid_t *tid = rvm_malloc_tid(), *tid_copy;
    rvm_region_t *region = rvm_malloc_region(), *region_copy;
    rvm_options_t *options = rvm_malloc_options(), *options_copy, local;
    rvm_statistics_t *statistics = rvm_malloc_statistics(), *statistics_copy;
    rvm_tid_t wrong;

    CHECK(tid->from_heap && region->from_heap && options->from_heap && statistics->from_heap);
    tid->uname.tv_usec = 7;
    tid_copy = rvm_copy_tid(tid);
    CHECK(tid_copy != tid && tid_copy->uname.tv_usec == 7 && tid_copy->from_heap);
    region->data_dev = (char *)"shared";
    region_copy = rvm_copy_region(region);
    CHECK(region_copy->data_dev == region->data_dev);
    rvm_init_options(&local);
    local.truncate = 20;
    options_copy = rvm_copy_options(&local);
    CHECK(options_copy->truncate == 20 && options_copy->from_heap && !local.from_heap);
    CHECK(statistics->struct_id == rvm_statistics_id && statistics->tot_abort == 0);
    statistics_copy = rvm_copy_statistics(statistics);
    CHECK(statistics_copy != NULL);
    memset(&wrong, 0, sizeof wrong);
    CHECK(rvm_copy_tid(&wrong) == NULL && rvm_copy_tid(NULL) == NULL);
    CHECK(rvm_copy_region(NULL) == NULL && rvm_copy_options(NULL) == NULL && rvm_copy_statistics(NULL) == NULL);
    rvm_free_tid(tid);
    rvm_free_tid(tid_copy);
    rvm_free_region(region);
    rvm_free_region(region_copy);
    rvm_free_options(options);
    rvm_free_options(options_copy);
    rvm_free_statistics(statistics);
    rvm_free_statistics(statistics_copy);
    rvm_free_options(&local);
    rvm_free_tid(&wrong);
    rvm_free_tid(NULL);
    rvm_free_region(NULL);
    rvm_free_options(NULL);
    rvm_free_statistics(NULL);
    rvm_init_tid(NULL);
}

MAIN(CASE(names), CASE(offsets), CASE(defaults), CASE(heap))
