/*
 * Statistics of recoverable virtual memory: counts, bytes, times. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The first part counts since the last rvm_truncate(), tot_* since the process opened the log; the original also kept
 * those in the log, across processes. Fields marked "zero" stay zero: netram has no such event, or does not measure
 * it.
 */
#ifndef RVM_STATISTICS_VERSION
#define RVM_STATISTICS_VERSION "RVM Statistics Version 1.1 8 Dec 1992"

#include <stdio.h>

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of histogram classes: one more than bounds, the last for values beyond the last bound. */
#define flush_times_len 10
#define range_lengths_len 13
#define range_elims_len 6
#define trans_elims_len 6
#define range_overlaps_len 13
#define trans_overlaps_len 13
#define trans_coalesces_len 6
#define truncation_times_len 5

/* Their upper bounds. */
#define RVM_FLUSH_TIME_BOUNDS { 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000 }                    /* ms */
#define RVM_RANGE_LENGTH_BOUNDS { 0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096 }            /* bytes */
#define RVM_ELIMINATION_BOUNDS { 0, 5, 10, 50, 100 }                                                /* counts */
#define RVM_TRUNCATION_TIME_BOUNDS { 1, 10, 100, 500 }                                              /* s */

typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;

    /* since the last truncation */
    rvm_length_t n_abort;           /* transactions aborted */
    rvm_length_t n_flush_commit;    /* committed with flush */
    rvm_length_t n_no_flush_commit; /* committed with no_flush */
    rvm_length_t n_uncommit;        /* open now */
    rvm_length_t n_no_flush;        /* no_flush commits that are not yet in the log, now */
    rvm_length_t n_truncation_wait; /* commits that waited because the log was full */
    rvm_offset_t no_flush_length;   /* zero */
    rvm_length_t n_split;           /* zero: records are never split */
    rvm_length_t n_flush;           /* flushes, by calls and by commits */
    rvm_length_t n_rvm_flush;       /* calls of rvm_flush() */
    rvm_length_t n_special;         /* zero */
    rvm_length_t n_wrap;            /* zero */
    rvm_length_t log_dev_cur;       /* percentage of the log in use now */
    rvm_offset_t log_written;       /* bytes logged */
    rvm_offset_t range_overlap;     /* bytes not logged because ranges of one transaction overlapped */
    rvm_offset_t trans_overlap;     /* bytes not logged because a later no_flush transaction replaced them */
    rvm_length_t n_range_elim;      /* ranges merged into others of their transaction */
    rvm_length_t n_trans_elim;      /* ranges of no_flush transactions merged into others' */
    rvm_length_t n_trans_coalesced; /* no_flush transactions logged together with others */
    struct timeval flush_time;      /* time in rvm_flush() and in commits with flush */
    long last_flush_time;           /* ms; of the last rvm_flush() */
    long last_truncation_time;      /* s; of the last rvm_truncate() */
    long last_tree_build_time;      /* zero: there is no tree */
    long last_tree_apply_time;      /* zero */

    rvm_length_t flush_times[flush_times_len];       /* flushes, by ms */
    rvm_length_t range_lengths[range_lengths_len];   /* committed ranges, by bytes */
    rvm_length_t range_elims[range_elims_len];       /* transactions, by n_range_elim */
    rvm_length_t trans_elims[trans_elims_len];       /* records of no_flush transactions, by n_trans_elim */
    rvm_length_t range_overlaps[range_overlaps_len]; /* transactions, by range_overlap */
    rvm_length_t trans_overlaps[trans_overlaps_len]; /* records of no_flush transactions, by trans_overlap */

    /* since the log was opened */
    rvm_length_t tot_abort;
    rvm_length_t tot_flush_commit;
    rvm_length_t tot_no_flush_commit;
    rvm_length_t tot_split; /* zero */
    rvm_length_t tot_flush;
    rvm_length_t tot_rvm_flush;
    rvm_length_t tot_special; /* zero */
    rvm_length_t tot_wrap;    /* zero */
    rvm_length_t log_dev_max; /* highest percentage of the log in use seen by rvm_statistics() */
    rvm_offset_t tot_log_written;
    rvm_offset_t tot_range_overlap;
    rvm_offset_t tot_trans_overlap;
    rvm_length_t tot_range_elim;
    rvm_length_t tot_trans_elim;
    rvm_length_t tot_trans_coalesced;
    rvm_length_t tot_rvm_truncate;     /* calls of rvm_truncate() */
    rvm_length_t tot_async_truncation; /* truncations by the background thread */
    rvm_length_t tot_sync_truncation;  /* commits that found the log full and waited for its truncation */
    rvm_length_t tot_truncation_wait;
    rvm_length_t tot_recovery;             /* recoveries that found something to apply */
    struct timeval tot_flush_time;
    struct timeval tot_truncation_time;    /* of all rounds, including those in the background */
    rvm_length_t tot_tree_build_times[truncation_times_len]; /* zero */
    rvm_length_t tot_tree_apply_times[truncation_times_len]; /* zero */
    rvm_length_t tot_truncation_times[truncation_times_len]; /* calls of rvm_truncate(), by s */
    rvm_length_t tot_flush_times[flush_times_len];
    rvm_length_t tot_range_lengths[range_lengths_len];
    rvm_length_t tot_range_elims[range_elims_len];
    rvm_length_t tot_trans_elims[trans_elims_len];
    rvm_length_t tot_range_overlaps[range_overlaps_len];
    rvm_length_t tot_trans_overlaps[trans_overlaps_len];
    rvm_length_t tot_trans_coalesces[trans_coalesces_len]; /* records, by the no_flush transactions in them */
} rvm_statistics_t;

/* Like those of the other records; none needs rvm_initialize(). */
extern rvm_statistics_t *rvm_malloc_statistics(void);
extern void rvm_init_statistics(rvm_statistics_t *statistics);
extern rvm_statistics_t *rvm_copy_statistics(rvm_statistics_t *statistics);
extern void rvm_free_statistics(rvm_statistics_t *statistics);

/* Fills the record. RVM_ELOG if no log is open. */
extern rvm_return_t rvm_statistics(const char *version, rvm_statistics_t *statistics);
#define RVM_STATISTICS(statistics) rvm_statistics(RVM_STATISTICS_VERSION, (statistics))

/* Prints a filled record as text. */
extern rvm_return_t rvm_print_statistics(rvm_statistics_t *statistics, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
