/*
 * Recoverable virtual memory: map a file into memory, say what a transaction changes, change it, commit. After a
 * crash the memory is what was committed.
 *
 * The interface is that of RVM (Satyanarayanan and others, 1993), name by name and byte by byte, so that programs
 * written for it compile and run as they are. The library behind it is netram's: the newest part of the log may be
 * in other machines' memory. What netram adds is in rvm/netram.h. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program:
 *
 *     rvm_options_t options;
 *     rvm_region_t region;
 *     rvm_tid_t tid;
 *
 *     rvm_init_options(&options);
 *     options.log_dev = "bank.log";                    (made by rvm_create_log, or by `netram rvm create`)
 *     if (RVM_INIT(&options) != RVM_SUCCESS) ...       (recovery happens here)
 *
 *     rvm_init_region(&region);
 *     region.data_dev = "bank.data";                   (any file)
 *     if (rvm_map(&region, NULL) != RVM_SUCCESS) ...   (region.vmaddr, region.length)
 *
 *     rvm_init_tid(&tid);
 *     rvm_begin_transaction(&tid, restore);
 *     rvm_set_range(&tid, region.vmaddr, 8);           (before the store, always)
 *     ++*(long *)region.vmaddr;
 *     if (rvm_end_transaction(&tid, flush) != RVM_SUCCESS) ...
 *
 *     rvm_terminate();
 *
 * Rules for all functions:
 *   - They may be called by any thread. One transaction is used by one thread at a time.
 *   - A child made by fork() must not use its parent's library: it is refused with RVM_EINIT. Regions are no snapshot
 *     to it: pages not stored to before the fork show the segment file, which the parent's truncation changes.
 *   - A string is read during the call only. A record belongs to the caller.
 *   - Whatever is not RVM_SUCCESS is explained, in a sentence, by rvm_error_text() of rvm/netram.h.
 */
#ifndef RVM_VERSION
#define RVM_VERSION "RVM Interface Version 1.3  7 Mar 1994"

#include <sys/param.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a version string, with its end. */
#define RVM_VERSION_MAX 128

#ifndef TRUE
#define TRUE 1
#endif
#ifndef FALSE
#define FALSE 0
#endif
#ifndef _PARALLEL_LIBRARIES
#define _PARALLEL_LIBRARIES 1
#endif

/* ---------------------------------------------------------------- scalars */

typedef enum { rvm_false = 0, rvm_true = 1 } rvm_bool_t;

/* As wide as a pointer. */
typedef unsigned long rvm_length_t;

/* A place in a file. `low` alone carries the whole offset; `high` is the carry of 128-bit arithmetic. */
typedef struct {
    rvm_length_t high;
    rvm_length_t low;
} rvm_offset_t;

/* ----------------------------------------------------------- return codes */

typedef int rvm_return_t;

#define RVM_SUCCESS 0

#define rvm_first_code 199
#define RVM_EINIT 200              /* not initialised, terminated, or a child of fork() */
#define RVM_EINTERNAL 201          /* a fault of the library; an address that cannot be had */
#define RVM_EIO 202                /* a system call failed: errno says how */
#define RVM_EPLACEHOLDER 203       /* never returned */
#define RVM_ELOG 204               /* no log, another log, a log in use, a damaged log; a file in the way of a new one */
#define RVM_ELOG_VERSION_SKEW 205  /* the log was made by another library, or in another format */
#define RVM_EMODE 206              /* no mode for this call */
#define RVM_ENAME_TOO_LONG 207     /* a name of more than MAXPATHLEN - 1 bytes */
#define RVM_ENO_MEMORY 208         /* the system has no memory */
#define RVM_ENOT_MAPPED 209        /* not wholly inside one mapped region; a device without dev_length */
#define RVM_EOFFSET 210            /* beyond the segment's end, or beyond what can be counted */
#define RVM_EOPTIONS 211           /* no options record, or one that was not initialised */
#define RVM_EOVERLAP 212           /* these bytes of the segment are mapped already */
#define RVM_EPAGER 213             /* `pager` is not NULL */
#define RVM_ERANGE 214             /* an address that cannot be used; part of a region */
#define RVM_EREGION 215            /* no region record, or one that was not initialised */
#define RVM_EREGION_DEF 216        /* never returned */
#define RVM_ESRC 217               /* never returned */
#define RVM_ESTATISTICS 218        /* no statistics record, or one that was not initialised */
#define RVM_ESTAT_VERSION_SKEW 219 /* another version of rvm_statistics.h */
#define RVM_ETERMINATED 220        /* never returned */
#define RVM_ETHREADS 221           /* never returned */
#define RVM_ETID 222               /* no transaction: not begun, ended, or no record */
#define RVM_ETOO_BIG 223           /* more than a log can take */
#define RVM_EUNCOMMIT 224          /* transactions are open */
#define RVM_EVERSION_SKEW 225      /* header and library differ; another version of a segment's header, or of a heap */
#define RVM_EVM_OVERLAP 226        /* these addresses are mapped already */
#define rvm_last_code 227

/* ------------------------------------------------------------------ modes */

typedef enum {
    rvm_first_mode = 139,
    restore = 140,    /* begin: keep old values, an abort puts them back */
    no_restore = 141, /* begin: keep nothing, an abort leaves memory as it is */
    flush = 142,      /* end: return when the commit survives a crash */
    no_flush = 143,   /* end: return at once; a crash may lose the commit, whole, until the next flush */
    rvm_last_mode = 144
} rvm_mode_t;

typedef enum {
    rvm_first_struct_id = 39,
    rvm_region_id = 40,
    rvm_options_id = 41,
    rvm_tid_id = 42,
    rvm_statistics_id = 43,
    rvm_last_struct_id = 44
} rvm_struct_id_t;

/* ---------------------------------------------------------------- records */

/*
 * Every record begins with its type and whether rvm_malloc_X() made it. A record is initialised by rvm_init_X() or
 * rvm_malloc_X() before its first use; functions refuse one that is not.
 */

/* A transaction. `uname` is the unique time of its beginning; `tid` is NULL between transactions. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    struct timeval uname;
    void *tid;
    rvm_length_t reserved;
} rvm_tid_t;

/* A part of a segment in memory. rvm_map() takes the wish and puts in what was mapped. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    char *data_dev;          /* the segment: the name of a file */
    rvm_offset_t dev_length; /* use no more than this of it; 0: all. Devices need it */
    rvm_offset_t offset;     /* where in the segment the region begins; rounded down to a page */
    char *vmaddr;            /* where in memory; NULL: anywhere */
    rvm_length_t length;     /* bytes; 0: to the segment's end */
    rvm_bool_t no_copy;      /* the old contents are not needed. They are shown all the same: it costs nothing */
} rvm_region_t;

#define TRUNCATE 50                       /* per cent of the log at which truncation begins */
#define RECOVERY_BUF_LEN (256 * 1024)
#define MIN_RECOVERY_BUF_LEN (64 * 1024)
#define FLUSH_BUF_LEN (256 * 1024)
#define MIN_FLUSH_BUF_LEN (64 * 1024)
#define MAX_READ_LEN (512 * 1024)

/* What may be chosen, and what rvm_query() answers. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    char *log_dev;                 /* the log: the name of a file. Query: NULL, or MAXPATHLEN + 1 bytes to fill */
    long truncate;                 /* log in use, per cent, at which the background thread truncates. <= 0 or > 100:
                                      only a full log is truncated */
    rvm_length_t recovery_buf_len; /* kept and answered; without effect */
    rvm_length_t flush_buf_len;    /* kept and answered; without effect */
    rvm_length_t max_read_len;     /* kept and answered; without effect: segments are read a page at a time, if touched */
    rvm_bool_t log_empty;          /* answer: nothing is in the log that is not in the segments */
    char *pager;                   /* must be NULL */
    long n_uncommit;               /* answer: open transactions */
    rvm_tid_t *tid_array;          /* answer: a copy of each, the program's to free() */
    rvm_length_t flags;            /* RVM_COALESCE_RANGES and the others */
    rvm_bool_t create_log_file;    /* rvm_initialize() makes the log; RVM_ELOG when there is a file already */
    rvm_offset_t create_log_size;  /* bytes of that log */
    long create_log_mode;          /* its permissions */
} rvm_options_t;

/*
 * Flags. Ranges of one transaction are always merged; the flag still decides what an empty range or transaction means
 * (see rvm_set_range and rvm_end_transaction).
 */
#define RVM_COALESCE_RANGES 1 /* merge ranges within a transaction */
#define RVM_COALESCE_TRANS 2  /* keep no_flush commits in memory and log each byte once, at the next flush */
#define RVM_ALL_OPTIMIZATIONS (RVM_COALESCE_RANGES | RVM_COALESCE_TRANS)
#define RVM_MAP_PRIVATE 8     /* regions are always private mappings; accepted, without effect */

/* malloc: a new record, initialised; NULL without memory. copy: a new record with the same contents (pointers are
 * shared), NULL if the source is not valid. init: to the defaults. free: records of malloc and copy only; others and
 * NULL are left alone. None needs rvm_initialize(). */
extern rvm_tid_t *rvm_malloc_tid(void);
extern void rvm_init_tid(rvm_tid_t *tid);
extern rvm_tid_t *rvm_copy_tid(rvm_tid_t *tid);
extern void rvm_free_tid(rvm_tid_t *tid);

extern rvm_region_t *rvm_malloc_region(void);
extern void rvm_init_region(rvm_region_t *region);
extern rvm_region_t *rvm_copy_region(rvm_region_t *region);
extern void rvm_free_region(rvm_region_t *region);

/* rvm_free_options() also frees `tid_array`: set it to NULL when it is freed already. */
extern rvm_options_t *rvm_malloc_options(void);
extern void rvm_init_options(rvm_options_t *options);
extern rvm_options_t *rvm_copy_options(rvm_options_t *options);
extern void rvm_free_options(rvm_options_t *options);

/* -------------------------------------------------------------- functions */

/*
 * Starts the library; once a process. Opening a log (options->log_dev) recovers it: everything committed is in the
 * segments when this returns. `options` may be NULL; the log is then named by rvm_set_options() or rvm_map().
 * Called again: RVM_SUCCESS, the options are not looked at. After rvm_terminate(): RVM_EINIT, for ever.
 * After an error nothing was started, a log that was to be made is not there, and it can be tried again.
 * RVM_EIO with errno ESTALE: the log is a copy, or older than one of its segments; EBUSY from rvm_map(): the segment is
 * another log's that was not closed. rvm_error_text() names it and the remedy.
 *
 * Lenders are named in a file beside the log, `<log>.toml`, or in the environment: see rvm(3).
 */
extern rvm_return_t rvm_initialize(const char *version, rvm_options_t *options);
#define RVM_INIT(options) rvm_initialize(RVM_VERSION, (options))

/*
 * Flushes, applies the log to the segments, closes both: afterwards the segments have everything, and all of it can be
 * moved, copied and given to another log. RVM_EUNCOMMIT while transactions are open: nothing is done. RVM_EIO when a
 * segment cannot be written: the log is still open and has everything; mend it and call again, or end the process.
 * Regions that are still mapped stay readable, as after rvm_unmap(). Called again: RVM_SUCCESS. A process may also just
 * end: what was flushed is safe, and applied at the next start.
 */
extern rvm_return_t rvm_terminate(void);

/*
 * Changes flags, `truncate`, and names the log if there is none yet. RVM_ELOG for another log than the one in use.
 */
extern rvm_return_t rvm_set_options(rvm_options_t *options);

/*
 * Fills the options record, and lists the open transactions: all, or those with ranges in `region` if it is not NULL.
 * `tid_array` is made new, NULL if there are none, and the program frees it: by free(), or by rvm_free_options() for the
 * last one of a record from the heap. The one that the record held before is left alone. RVM_ENOT_MAPPED: `region` is
 * not mapped.
 */
extern rvm_return_t rvm_query(rvm_options_t *options, rvm_region_t *region);

/*
 * Maps a region. The usable length of a segment is its size rounded down to 512 bytes, and at most `dev_length`.
 * The offset is rounded down and the end up to a page, the end then cut at the usable length; the record is given what
 * was mapped, and is untouched after an error. Nothing is read before it is touched.
 *
 * `vmaddr` NULL: anywhere. Else exactly there, page-aligned: in memory that rvm_register_page() or allocate_vm() made
 * known, which the region replaces; or where nothing is mapped. Other memory in use is RVM_ERANGE, never overwritten.
 */
extern rvm_return_t rvm_map(rvm_region_t *region, rvm_options_t *options);

/*
 * Ends a mapping; `vmaddr` and `length` as rvm_map() gave them. The memory stays readable, and is no longer
 * recoverable: pages that were stored to stay as they are, the others go on showing the segment file. If it is not
 * needed munmap() it; first rvm_unregister_page() it if rvm_register_page() made it known, or else the next region
 * there would replace what took its place; memory of allocate_vm() goes with deallocate_vm().
 * RVM_EUNCOMMIT while open transactions have ranges in it.
 */
extern rvm_return_t rvm_unmap(rvm_region_t *region);

/* Begins a transaction in an initialised record. Any number may be open; they do not nest. */
extern rvm_return_t rvm_begin_transaction(rvm_tid_t *tid, rvm_mode_t mode);

/*
 * Says that these bytes, inside one region, will change. Call it before the store. Nothing detects that two
 * transactions change the same bytes: that is the program's affair. With optimisations on, an empty range is accepted
 * unseen; without, it must lie in a region. RVM_ETOO_BIG: no record of this log can carry so long a range.
 */
extern rvm_return_t rvm_set_range(rvm_tid_t *tid, void *base, rvm_length_t length);

/* Says that these bytes will change and copies `length` bytes from `source`, which must not overlap them. */
extern rvm_return_t rvm_modify_bytes(rvm_tid_t *tid, void *base, const void *source, rvm_length_t length);

/*
 * Commits: the declared ranges, with the values that they have now. flush: with everything committed before; on return
 * it survives a crash of this machine (held by lenders as the commit rule says, or by the disk). An empty transaction
 * costs nothing with optimisations on; without, a flush flushes what was committed before.
 *
 * After an error `tid->tid` tells. Not NULL: the transaction is still open, as after RVM_ETOO_BIG and RVM_ELOG, and after
 * RVM_EIO for a log that is full or whose disk failed before: abort it, or try again. NULL: it has ended and its fate is
 * unknown, never "aborted": the next start tells.
 */
extern rvm_return_t rvm_end_transaction(rvm_tid_t *tid, rvm_mode_t mode);

/* Ends a transaction without a trace. In `restore` mode memory is as it was before each range was declared. */
extern rvm_return_t rvm_abort_transaction(rvm_tid_t *tid);

/* Makes everything committed so far survive a crash. */
extern rvm_return_t rvm_flush(void);

/* Flushes, and writes everything committed so far to the segments; the log is empty after it. */
extern rvm_return_t rvm_truncate(void);

/*
 * Makes a log at options->log_dev for `length` bytes of records, with these permissions, its space allocated.
 * RVM_ELOG when there is a file already. Beside it come `.view`, `.key`, `.lock` and `.segments`: they belong to it.
 */
extern rvm_return_t rvm_create_log(rvm_options_t *options, rvm_offset_t *length, long mode);

/* The name of a code, a mode, a record type. Static; never NULL; not to be changed. */
extern char *rvm_return(rvm_return_t code);
extern char *rvm_mode(rvm_mode_t mode);
extern char *rvm_type(rvm_struct_id_t id);

/* --------------------------------------------- offsets, addresses, lengths */

extern rvm_offset_t rvm_mk_offset(rvm_length_t high, rvm_length_t low);
extern rvm_offset_t rvm_add_offsets(rvm_offset_t *x, rvm_offset_t *y);
extern rvm_offset_t rvm_add_length_to_offset(rvm_offset_t *offset, rvm_length_t length);
extern rvm_offset_t rvm_sub_offsets(rvm_offset_t *x, rvm_offset_t *y);
extern rvm_offset_t rvm_sub_length_from_offset(rvm_offset_t *offset, rvm_length_t length);
extern rvm_offset_t rvm_rnd_offset_up_to_page(rvm_offset_t *offset);
extern rvm_offset_t rvm_rnd_offset_dn_to_page(rvm_offset_t *offset);

/* A page's bytes, and the mask that keeps whole pages. Right at any time, also before rvm_initialize(). */
extern rvm_length_t rvm_page_size(void);
extern rvm_length_t rvm_page_mask(void);

/* Macros with two operands take addresses: give variables. */
#define RVM_MK_OFFSET(high, low) (rvm_mk_offset((rvm_length_t)(high), (rvm_length_t)(low)))
#define RVM_OFFSET_INITIALIZER(high, low) { (high), (low) }
#define RVM_ZERO_OFFSET(x) ((x).high = 0, (x).low = 0)
#define RVM_OFFSET_TO_LENGTH(x) ((x).low)
#define RVM_OFFSET_HIGH_BITS_TO_LENGTH(x) ((x).high)
#define RVM_LENGTH_TO_OFFSET(length) (RVM_MK_OFFSET(0, (length)))

#define RVM_ADD_OFFSETS(x, y) (rvm_add_offsets(&(x), &(y)))
#define RVM_ADD_LENGTH_TO_OFFSET(x, length) (rvm_add_length_to_offset(&(x), (rvm_length_t)(length)))
#define RVM_ADD_LENGTH_TO_ADDR(length, addr) ((char *)((rvm_length_t)(length) + (rvm_length_t)(addr)))
#define RVM_SUB_OFFSETS(x, y) (rvm_sub_offsets(&(x), &(y)))
#define RVM_SUB_LENGTH_FROM_OFFSET(x, length) (rvm_sub_length_from_offset(&(x), (rvm_length_t)(length)))
#define RVM_SUB_LENGTH_FROM_ADDR(addr, length) ((char *)((rvm_length_t)(addr) - (rvm_length_t)(length)))

#define RVM_OFFSET_LSS(x, y) ((x).high < (y).high || ((x).high == (y).high && (x).low < (y).low))
#define RVM_OFFSET_GTR(x, y) ((x).high > (y).high || ((x).high == (y).high && (x).low > (y).low))
#define RVM_OFFSET_LEQ(x, y) (!RVM_OFFSET_GTR(x, y))
#define RVM_OFFSET_GEQ(x, y) (!RVM_OFFSET_LSS(x, y))
#define RVM_OFFSET_EQL(x, y) ((x).high == (y).high && (x).low == (y).low)
#define RVM_OFFSET_EQL_ZERO(x) ((x).high == 0 && (x).low == 0)

#define RVM_PAGE_SIZE (rvm_page_size())
#define RVM_PAGE_MASK (rvm_page_mask())
#define RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(length) \
    (((rvm_length_t)(length) + (RVM_PAGE_SIZE - 1)) & RVM_PAGE_MASK)
#define RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(length) ((rvm_length_t)(length) & RVM_PAGE_MASK)
#define RVM_ROUND_ADDR_UP_TO_PAGE_SIZE(addr) ((char *)RVM_ROUND_LENGTH_UP_TO_PAGE_SIZE(addr))
#define RVM_ROUND_ADDR_DOWN_TO_PAGE_SIZE(addr) ((char *)RVM_ROUND_LENGTH_DOWN_TO_PAGE_SIZE(addr))
#define RVM_ROUND_OFFSET_UP_TO_PAGE_SIZE(offset) (rvm_rnd_offset_up_to_page(&(offset)))
#define RVM_ROUND_OFFSET_DOWN_TO_PAGE_SIZE(offset) (rvm_rnd_offset_dn_to_page(&(offset)))

/*
 * Not declared here, as in the original; programs that use them declare them themselves:
 *
 *   rvm_bool_t rvm_register_page(char *addr, rvm_length_t length);
 *       Makes memory of the program's own known as a place for regions: rvm_map() replaces it when vmaddr says so.
 *       rvm_false: not whole pages, or some of it is known or mapped already.
 *   rvm_bool_t rvm_unregister_page(char *addr, rvm_length_t length);
 *       The reverse, of all or a part. rvm_false: none of it was known.
 *   rvm_bool_t rvm_no_yield;  (or long: there is room for it)
 *       Was a wish to recovery's scheduling. Kept, without effect.
 */

#ifdef __cplusplus
}
#endif

#endif
