/*
 * A persistent heap in recoverable memory: blocks are allocated and freed in transactions, and after a crash the heap
 * has the blocks of the committed ones. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     char *data;
 *     int err;
 *
 *     rds_zap_heap("bank.heap", RVM_LENGTH_TO_OFFSET(length), (char *)0x20000000000, 4096, heap_length, 80, 64, &err);
 *                                                                     (once; the file must exist, and be long enough)
 *     rds_load_heap("bank.heap", RVM_LENGTH_TO_OFFSET(length), &data, &err);        (at every start)
 *
 *     rvm_begin_transaction(&tid, restore);
 *     struct account *account = (struct account *)rds_malloc(sizeof *account, &tid, &err);
 *     rvm_set_range(&tid, account, sizeof *account);            (rds_malloc does not declare the block's bytes)
 *     account->balance = 100;
 *     rvm_end_transaction(&tid, flush);
 *
 *     rds_unload_heap(&err);
 *
 * Rules for all functions:
 *   - `*err` receives SUCCESS, a code of this header (negative), or one of rvm.h (positive). It may be NULL.
 *     rvm_error_text() of rvm/netram.h returns a message with the reason.
 *   - If `tid` is NULL where that is allowed, the call uses a transaction of its own, ended with no_flush.
 *   - Any thread may call them. Conflicts in the blocks' contents are not detected.
 *   - A block freed in a transaction is reused only after that has committed. A block allocated in a transaction that
 *     aborts is free again, in every mode of the transaction.
 *   - Blocks begin at multiples of 16.
 *
 * The layout in the segment is netram's own (docs/design/heap.md). A heap that the original RDS wrote is refused with
 * EHEAP_VERSION_SKEW: move its contents with a program that reads them with the old library.
 */
#ifndef _RDS_H_
#define _RDS_H_

#include <stdio.h>

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ codes */

#define SUCCESS 0
#define ERVM_FAILED (-1)        /* an internal error of the library */
#define EBAD_LIST (-2)          /* not returned */
#define EBAD_SEGMENT_HDR (-3)   /* the segment does not contain a heap */
#define EHEAP_VERSION_SKEW (-4) /* no heap there, or one of another version */
#define EHEAP_INIT (-5)         /* no heap has been started, or one already has */
#define EBAD_ARGS (-6)          /* an invalid argument, such as an address outside the heap or not a multiple of 16 */
#define ECORRUPT (-7)           /* the address is not the beginning of a block, or the heap is damaged */
#define EFREED_TWICE (-8)       /* the block is already free */
#define ENO_ROOM (-9)           /* no free part of the heap is large enough */

/* ------------------------------------------------------------------ heaps */

/*
 * Makes `dev` a segment with two regions, an empty heap at `startAddr` directly followed by zeroed static data, both
 * in whole pages. The file must exist and have room for one page more than both. Its old content is lost. Everything
 * is on the disk on return, and nothing stays mapped. `nlists` and `chunkSize`, parameters of the original's free
 * lists, must not be 0 and have no effect. Returns 0, or -1.
 */
extern int rds_zap_heap(const char *dev, rvm_offset_t dev_length, void *startAddr, rvm_length_t staticLength,
                        rvm_length_t heapLength, unsigned long nlists, unsigned long chunkSize, int *err);

/*
 * Makes an empty heap in `length` mapped bytes at `base`, a multiple of 16. Returns 0, or -1. Start it after the
 * transaction has committed.
 */
extern int rds_init_heap(void *base, rvm_length_t length, unsigned long chunkSize, unsigned long nlists,
                         rvm_tid_t *tid, int *err);

/*
 * Loads the segment and starts its heap; stores the address of the static data in `*staticAddr`. Addresses in use are
 * never replaced: that is RVM_EINTERNAL. After an error nothing stays mapped. Returns 0, or -1.
 */
extern int rds_load_heap(const char *dev, rvm_offset_t dev_length, char **staticAddr, int *err);

/*
 * Flushes, truncates, stops the heap and unmaps its segment. RVM_EUNCOMMIT while transactions have ranges there, or
 * while a call in another thread uses the heap; the heap then stays loaded. ALWAYS returns -1, like the original:
 * look at `*err`.
 */
extern int rds_unload_heap(int *err);

/*
 * Starts the heap at `base`, in a region that the program mapped; stops it. Both ALWAYS return -1, like the original:
 * look at `*err`. A process has one heap at a time; starting a second is EHEAP_INIT. RVM_EUNCOMMIT: for stopping,
 * while a call in another thread uses the heap; for starting, while open transactions have ranges in the region.
 */
extern int rds_start_heap(void *base, int *err);
extern int rds_stop_heap(int *err);

/* ----------------------------------------------------------------- blocks */

/* Allocates a block of at least `size` bytes, which keep earlier values. Returns NULL after an error. */
#ifdef __cplusplus
extern char *rds_malloc(rvm_length_t size, rvm_tid_t *tid, int *err);
#else
extern void *rds_malloc(rvm_length_t size, rvm_tid_t *tid, int *err);
#endif

/* Frees a block. Returns 0, or -1. */
extern int rds_free(void *addr, rvm_tid_t *tid, int *err);

/* Prepares `nblocks` blocks of `size` bytes, so that this many rds_malloc() need no preparation. Returns 0, or -1. */
extern int rds_prealloc(rvm_length_t size, unsigned long nblocks, rvm_tid_t *tid, int *err);

/* Returns 1 if a block of `size` bytes could be allocated now, otherwise 0. */
extern int rds_maxblock(unsigned long size);

/*
 * Blocks to be freed together later. Zero the record before its first use. rds_fake_free() enlarges `table`, and
 * rds_do_free() frees it.
 */
typedef struct intlist {
    unsigned long size;
    unsigned long count;
    char **table;
} intentionList_t;

/* Adds a block that could be freed now to the list, without changing it. Returns the code. */
extern int rds_fake_free(void *addr, intentionList_t *list);

/*
 * Frees all blocks of the list in a transaction of its own, ended with `mode`, and empties the list. After an error
 * no block is freed and the list is unchanged. Returns the code.
 */
extern int rds_do_free(intentionList_t *list, rvm_mode_t mode);

/* ---------------------------------------------------------- looking at it */

/* Counters since the start or the last clearing. A number that does not fit 32 bits is returned as the largest. */
typedef struct {
    unsigned malloc;       /* blocks allocated */
    unsigned prealloc;     /* blocks prepared */
    unsigned free;         /* blocks freed */
    unsigned coalesce;     /* 0: free pages are merged at once */
    unsigned hits;         /* allocations that found a free slot or free pages */
    unsigned misses;       /* allocations that had to prepare slots */
    unsigned large_list;   /* extents of free pages */
    unsigned large_hits;   /* 0 */
    unsigned large_misses; /* allocations that found no room */
    unsigned merged;       /* empty runs of blocks turned back into free pages */
    unsigned unmerged;     /* 0 */
    unsigned freebytes;    /* free bytes */
    unsigned mallocbytes;  /* bytes of allocated blocks */
} rds_stats_t;

/* The same with 64 bits. Not in the original. */
typedef struct {
    unsigned long malloc, prealloc, free, coalesce, hits, misses, large_list, large_hits, large_misses, merged,
        unmerged, freebytes, mallocbytes;
} rds_long_stats_t;

/* Fill the record. Both return the code. */
extern int rds_get_stats(rds_stats_t *stats);
extern int rds_get_long_stats(rds_long_stats_t *stats);

/* Sets the counters to zero, but not the numbers of bytes. Returns 0, or -1. */
extern int rds_clear_stats(int *err);

/* Print the heap to stdout. */
extern int rds_print_stats(void);
extern void print_heap(void);

/*
 * Print a line to `file` for every allocation and free until the trace is turned off; print the whole heap once. They
 * return the code. EBAD_ARGS: `file` is NULL.
 */
extern int rds_trace_on(FILE *file);
extern int rds_trace_off(void);
extern int rds_trace_dump_heap(void);

extern int rds_tracing;
extern FILE *rds_tracing_file;

/* Adds a line of the program's own to the trace. */
#define RDS_LOG(...)                                    \
    do {                                                \
        if (rds_tracing && rds_tracing_file) {          \
            fprintf(rds_tracing_file, __VA_ARGS__);     \
            fflush(rds_tracing_file);                   \
        }                                               \
    } while (0)

/*
 * Not declared here, as in the original: `rvm_region_def_t *RegionDefs` and `unsigned long NRegionDefs`, the regions of
 * the loaded heap; `int rds_testsw`, which nothing reads.
 */

#ifdef __cplusplus
}
#endif

#endif
