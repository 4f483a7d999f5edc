/* Sizes, offsets and values that programs compiled long ago contain. */
#include <stddef.h>

#include "check.h"

#include <rvm/rvm_segment.h>
#include <rvm/rvm_statistics.h>

#ifdef __cplusplus
#define SAME(a, b) static_assert((a) == (b), #a)
#else
#define SAME(a, b) _Static_assert((a) == (b), #a)
#endif
#define AT(type, field, place) SAME(offsetof(type, field), place)

SAME(sizeof(rvm_length_t), sizeof(void *));
SAME(sizeof(rvm_bool_t), 4);
SAME(sizeof(rvm_mode_t), 4);
SAME(sizeof(rvm_struct_id_t), 4);
SAME(sizeof(rvm_return_t), 4);
SAME(sizeof(rvm_offset_t), 16);
AT(rvm_offset_t, high, 0);
AT(rvm_offset_t, low, 8);

SAME(sizeof(rvm_tid_t), 40);
AT(rvm_tid_t, from_heap, 4);
AT(rvm_tid_t, uname, 8);
AT(rvm_tid_t, tid, 24);
AT(rvm_tid_t, reserved, 32);

SAME(sizeof(rvm_region_t), 72);
AT(rvm_region_t, data_dev, 8);
AT(rvm_region_t, dev_length, 16);
AT(rvm_region_t, offset, 32);
AT(rvm_region_t, vmaddr, 48);
AT(rvm_region_t, length, 56);
AT(rvm_region_t, no_copy, 64);

SAME(sizeof(rvm_options_t), 120);
AT(rvm_options_t, log_dev, 8);
AT(rvm_options_t, truncate, 16);
AT(rvm_options_t, recovery_buf_len, 24);
AT(rvm_options_t, flush_buf_len, 32);
AT(rvm_options_t, max_read_len, 40);
AT(rvm_options_t, log_empty, 48);
AT(rvm_options_t, pager, 56);
AT(rvm_options_t, n_uncommit, 64);
AT(rvm_options_t, tid_array, 72);
AT(rvm_options_t, flags, 80);
AT(rvm_options_t, create_log_file, 88);
AT(rvm_options_t, create_log_size, 96);
AT(rvm_options_t, create_log_mode, 112);

SAME(sizeof(rvm_region_def_t), 32);
AT(rvm_region_def_t, offset, 0);
AT(rvm_region_def_t, length, 16);
AT(rvm_region_def_t, vmaddr, 24);

SAME(sizeof(rvm_statistics_t), 1600);
AT(rvm_statistics_t, n_abort, 8);
AT(rvm_statistics_t, n_flush_commit, 16);
AT(rvm_statistics_t, n_no_flush_commit, 24);
AT(rvm_statistics_t, n_uncommit, 32);
AT(rvm_statistics_t, n_no_flush, 40);
AT(rvm_statistics_t, n_truncation_wait, 48);
AT(rvm_statistics_t, no_flush_length, 56);
AT(rvm_statistics_t, n_split, 72);
AT(rvm_statistics_t, n_flush, 80);
AT(rvm_statistics_t, n_rvm_flush, 88);
AT(rvm_statistics_t, n_special, 96);
AT(rvm_statistics_t, n_wrap, 104);
AT(rvm_statistics_t, log_dev_cur, 112);
AT(rvm_statistics_t, log_written, 120);
AT(rvm_statistics_t, range_overlap, 136);
AT(rvm_statistics_t, trans_overlap, 152);
AT(rvm_statistics_t, n_range_elim, 168);
AT(rvm_statistics_t, n_trans_elim, 176);
AT(rvm_statistics_t, n_trans_coalesced, 184);
AT(rvm_statistics_t, flush_time, 192);
AT(rvm_statistics_t, last_flush_time, 208);
AT(rvm_statistics_t, last_truncation_time, 216);
AT(rvm_statistics_t, last_tree_build_time, 224);
AT(rvm_statistics_t, last_tree_apply_time, 232);
AT(rvm_statistics_t, flush_times, 240);
AT(rvm_statistics_t, range_lengths, 320);
AT(rvm_statistics_t, range_elims, 424);
AT(rvm_statistics_t, trans_elims, 472);
AT(rvm_statistics_t, range_overlaps, 520);
AT(rvm_statistics_t, trans_overlaps, 624);
AT(rvm_statistics_t, tot_abort, 728);
AT(rvm_statistics_t, tot_flush_commit, 736);
AT(rvm_statistics_t, tot_no_flush_commit, 744);
AT(rvm_statistics_t, tot_split, 752);
AT(rvm_statistics_t, tot_flush, 760);
AT(rvm_statistics_t, tot_rvm_flush, 768);
AT(rvm_statistics_t, tot_special, 776);
AT(rvm_statistics_t, tot_wrap, 784);
AT(rvm_statistics_t, log_dev_max, 792);
AT(rvm_statistics_t, tot_log_written, 800);
AT(rvm_statistics_t, tot_range_overlap, 816);
AT(rvm_statistics_t, tot_trans_overlap, 832);
AT(rvm_statistics_t, tot_range_elim, 848);
AT(rvm_statistics_t, tot_trans_elim, 856);
AT(rvm_statistics_t, tot_trans_coalesced, 864);
AT(rvm_statistics_t, tot_rvm_truncate, 872);
AT(rvm_statistics_t, tot_async_truncation, 880);
AT(rvm_statistics_t, tot_sync_truncation, 888);
AT(rvm_statistics_t, tot_truncation_wait, 896);
AT(rvm_statistics_t, tot_recovery, 904);
AT(rvm_statistics_t, tot_flush_time, 912);
AT(rvm_statistics_t, tot_truncation_time, 928);
AT(rvm_statistics_t, tot_tree_build_times, 944);
AT(rvm_statistics_t, tot_tree_apply_times, 984);
AT(rvm_statistics_t, tot_truncation_times, 1024);
AT(rvm_statistics_t, tot_flush_times, 1064);
AT(rvm_statistics_t, tot_range_lengths, 1144);
AT(rvm_statistics_t, tot_range_elims, 1248);
AT(rvm_statistics_t, tot_trans_elims, 1296);
AT(rvm_statistics_t, tot_range_overlaps, 1344);
AT(rvm_statistics_t, tot_trans_overlaps, 1448);
AT(rvm_statistics_t, tot_trans_coalesces, 1552);

SAME(rvm_false, 0);
SAME(rvm_true, 1);
SAME(restore, 140);
SAME(no_restore, 141);
SAME(flush, 142);
SAME(no_flush, 143);
SAME(rvm_first_mode, 139);
SAME(rvm_last_mode, 144);
SAME(rvm_region_id, 40);
SAME(rvm_options_id, 41);
SAME(rvm_tid_id, 42);
SAME(rvm_statistics_id, 43);
SAME(rvm_first_struct_id, 39);
SAME(rvm_last_struct_id, 44);
SAME(rvm_first_code, 199);
SAME(rvm_last_code, 227);
SAME(RVM_EINIT, 200);
SAME(RVM_EVM_OVERLAP, 226);
SAME(RVM_ESEGMENT_HDR, 2000);
SAME(RVM_COALESCE_RANGES, 1);
SAME(RVM_COALESCE_TRANS, 2);
SAME(RVM_ALL_OPTIMIZATIONS, 3);
SAME(RVM_MAP_PRIVATE, 8);
SAME(TRUE, 1);
SAME(FALSE, 0);
SAME(_PARALLEL_LIBRARIES, 1);
SAME(sizeof(RVM_VERSION), 38);
SAME(sizeof(RVM_STATISTICS_VERSION), 38);

static void values(void)
{
    static rvm_offset_t initialised = RVM_OFFSET_INITIALIZER(1, 2);

    CHECK(initialised.high == 1 && initialised.low == 2);
    CHECK(strcmp(RVM_VERSION, "RVM Interface Version 1.3  7 Mar 1994") == 0);
    CHECK(strcmp(RVM_STATISTICS_VERSION, "RVM Statistics Version 1.1 8 Dec 1992") == 0);
    CHECK(RVM_SEGMENT_HDR_SIZE == 4096);
}

MAIN(CASE(values))
