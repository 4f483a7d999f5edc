/*
 * A persistent heap in recoverable memory: blocks are allocated and freed in transactions, and after a crash the heap
 * is what the committed ones made of it. SPDX-License-Identifier: Apache-2.0 OR MIT
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
 *     rvm_set_range(&tid, account, sizeof *account);            (rds_malloc declares nothing of the block itself)
 *     account->balance = 100;
 *     rvm_end_transaction(&tid, flush);
 *
 *     rds_unload_heap(&err);
 *
 * Rules for all functions:
 *   - `*err` receives SUCCESS, a code of this header (negative), or one of rvm.h (positive). It may be NULL.
 *     rvm_error_text() of rvm/netram.h says the same in a sentence.
 *   - Where `tid` may be NULL, the call uses a transaction of its own, ended with no_flush.
 *   - They may be called by any thread. What a block holds is the program's affair.
 *   - A block freed in a transaction is given out again when that has committed, to anybody; one allocated in a
 *     transaction that aborts is free again, whatever the transaction's mode.
 *   - Blocks begin at multiples of 16.
 *
 * The layout behind it is netram's own (docs/design/heap.md). A heap that the original RDS wrote is refused with
 * EHEAP_VERSION_SKEW: move its contents by a program that reads them with the old library.
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
#define ERVM_FAILED (-1)        /* a fault of the library */
#define EBAD_LIST (-2)          /* not returned here */
#define EBAD_SEGMENT_HDR (-3)   /* the segment is not a heap's */
#define EHEAP_VERSION_SKEW (-4) /* no heap there, or another version's */
#define EHEAP_INIT (-5)         /* no heap is started, or one is already */
#define EBAD_ARGS (-6)          /* an argument makes no sense: an address outside the heap, or no multiple of 16 */
#define ECORRUPT (-7)           /* no block begins at the address, or the heap is damaged */
#define EFREED_TWICE (-8)       /* the block is free */
#define ENO_ROOM (-9)           /* no free place is large enough */

/* ------------------------------------------------------------------ heaps */

/*
 * Makes `dev` a segment of two regions, an empty heap at `startAddr` and zeroed static data right behind it, both in
 * whole pages. The file must exist and have room for a page more than both. Whatever it held is gone. Everything is on
 * the disk on return, and nothing stays mapped. `nlists` and `chunkSize`, which shaped the original's free lists, must
 * not be 0 and have no meaning here. 0, or -1.
 */
extern int rds_zap_heap(const char *dev, rvm_offset_t dev_length, void *startAddr, rvm_length_t staticLength,
                        rvm_length_t heapLength, unsigned long nlists, unsigned long chunkSize, int *err);

/*
 * Makes `length` mapped bytes at `base`, a multiple of 16, an empty heap. 0, or -1. Start it when the transaction has
 * committed.
 */
extern int rds_init_heap(void *base, rvm_length_t length, unsigned long chunkSize, unsigned long nlists,
                         rvm_tid_t *tid, int *err);

/*
 * Loads the segment and starts its heap; puts the address of the static data in `*staticAddr`. A place that the
 * process uses is never replaced: that is RVM_EINTERNAL. On an error nothing stays mapped. 0, or -1.
 */
extern int rds_load_heap(const char *dev, rvm_offset_t dev_length, char **staticAddr, int *err);

/*
 * Flushes, truncates, stops the heap and unmaps its segment. RVM_EUNCOMMIT while transactions have ranges there, or
 * while a call in another thread uses the heap. A heap that is not unloaded stays as it is.
 * Returns -1 ALWAYS, as the original: look at `*err`.
 */
extern int rds_unload_heap(int *err);

/*
 * Starts the heap at `base`, in a region that the program mapped; stops it. Both return -1 ALWAYS, as the original:
 * look at `*err`. A process has one heap at a time; starting a second is EHEAP_INIT. Stopping is RVM_EUNCOMMIT while
 * a call in another thread uses the heap; starting is, while open transactions have ranges in the region.
 */
extern int rds_start_heap(void *base, int *err);
extern int rds_stop_heap(int *err);

/* ----------------------------------------------------------------- blocks */

/* A block of at least `size` bytes with whatever values they had, or NULL. */
#ifdef __cplusplus
extern char *rds_malloc(rvm_length_t size, rvm_tid_t *tid, int *err);
#else
extern void *rds_malloc(rvm_length_t size, rvm_tid_t *tid, int *err);
#endif

/* Frees a block. 0, or -1. */
extern int rds_free(void *addr, rvm_tid_t *tid, int *err);

/* Prepares `nblocks` blocks of `size` bytes, so that as many rds_malloc() will not have to. 0, or -1. */
extern int rds_prealloc(rvm_length_t size, unsigned long nblocks, rvm_tid_t *tid, int *err);

/* 1 if a block of `size` bytes could be had now, else 0. */
extern int rds_maxblock(unsigned long size);

/*
 * Blocks to be freed together, later. Zero the record before the first use; rds_fake_free() lets `table` grow, and
 * rds_do_free() frees it.
 */
typedef struct intlist {
    unsigned long size;
    unsigned long count;
    char **table;
} intentionList_t;

/* Notes a block that could be freed now. Nothing happens to it. Returns the code. */
extern int rds_fake_free(void *addr, intentionList_t *list);

/*
 * Frees all blocks of the list in a transaction of its own, ended with `mode`, and empties the list. On an error
 * nothing is freed and the list is as before. Returns the code.
 */
extern int rds_do_free(intentionList_t *list, rvm_mode_t mode);

/* ---------------------------------------------------------- looking at it */

/* Counts are since the start or the last clearing. What does not fit 32 bits reads as the largest number. */
typedef struct {
    unsigned malloc;       /* blocks allocated */
    unsigned prealloc;     /* blocks prepared */
    unsigned free;         /* blocks freed */
    unsigned coalesce;     /* 0: free pages are joined at once */
    unsigned hits;         /* allocations that found a place ready */
    unsigned misses;       /* those that had to prepare one */
    unsigned large_list;   /* stretches of free pages there are */
    unsigned large_hits;   /* 0 */
    unsigned large_misses; /* allocations refused for want of room */
    unsigned merged;       /* empty runs of blocks made free pages again */
    unsigned unmerged;     /* 0 */
    unsigned freebytes;    /* bytes that are free */
    unsigned mallocbytes;  /* bytes of blocks that are taken */
} rds_stats_t;

/* The same without a ceiling. Not in the original. */
typedef struct {
    unsigned long malloc, prealloc, free, coalesce, hits, misses, large_list, large_hits, large_misses, merged,
        unmerged, freebytes, mallocbytes;
} rds_long_stats_t;

/* Fill the record. Return the code. */
extern int rds_get_stats(rds_stats_t *stats);
extern int rds_get_long_stats(rds_long_stats_t *stats);

/* Counts begin at zero again; bytes are what they are. 0, or -1. */
extern int rds_clear_stats(int *err);

/* Print the heap to stdout. */
extern int rds_print_stats(void);
extern void print_heap(void);

/*
 * A line to `file` for every allocation and every free, until the trace is off; the whole heap, once. Return the code.
 * EBAD_ARGS: no file.
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
