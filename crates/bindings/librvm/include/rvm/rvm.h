/*
 * Recoverable virtual memory: map a file into memory, declare what a transaction changes, change it, commit. After a
 * crash the memory has the committed content.
 *
 * The interface is that of RVM (Satyanarayanan and others, 1993), name by name and byte by byte, so that programs
 * written for it compile and run unchanged. The library behind it is netram's: the newest part of the log may be in
 * the memory of other machines. rvm/netram.h has netram's additions. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program:
 *
 *     rvm_options_t options;
 *     rvm_region_t region;
 *     rvm_tid_t tid;
 *
 *     rvm_init_options(&options);
 *     options.log_dev = "bank.log";                    (created by rvm_create_log, or by `netram rvm create`)
 *     if (RVM_INIT(&options) != RVM_SUCCESS) ...       (recovery happens here)
 *
 *     rvm_init_region(&region);
 *     region.data_dev = "bank.data";                   (any file)
 *     if (rvm_map(&region, NULL) != RVM_SUCCESS) ...   (sets region.vmaddr, region.length)
 *
 *     rvm_init_tid(&tid);
 *     rvm_begin_transaction(&tid, restore);
 *     rvm_set_range(&tid, region.vmaddr, 8);           (always before the store)
 *     ++*(long *)region.vmaddr;
 *     if (rvm_end_transaction(&tid, flush) != RVM_SUCCESS) ...
 *
 *     rvm_terminate();
 *
 * Rules for all functions:
 *   - Any thread may call them. One transaction is used by one thread at a time.
 *   - A child made by fork() must not use its parent's library: its calls return RVM_EINIT. Regions are no snapshot
 *     for it: pages without stores before the fork show the segment file, which the parent's truncation changes.
 *   - A string is read only during the call. A record belongs to the caller.
 *   - After any code but RVM_SUCCESS, rvm_error_text() of rvm/netram.h returns a message with the reason.
 */
#ifndef RVM_VERSION
#define RVM_VERSION "RVM Interface Version 1.3  7 Mar 1994"

#include <sys/param.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a version string, including its terminating zero. */
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

/* An offset in a file. `low` alone holds the whole offset; `high` is the carry of 128-bit arithmetic. */
typedef struct {
    rvm_length_t high;
    rvm_length_t low;
} rvm_offset_t;

/* ----------------------------------------------------------- return codes */

typedef int rvm_return_t;

#define RVM_SUCCESS 0

#define rvm_first_code 199
#define RVM_EINIT 200              /* not initialised, terminated, or a child of fork() */
#define RVM_EINTERNAL 201          /* an internal error; an address that cannot be used */
#define RVM_EIO 202                /* a system call failed; see errno */
#define RVM_EPLACEHOLDER 203       /* never returned */
#define RVM_ELOG 204               /* no log, another log, a log in use, a damaged log; a new log's file exists */
#define RVM_ELOG_VERSION_SKEW 205  /* the log was made by another library, or in another format */
#define RVM_EMODE 206              /* a mode that is not valid for this call */
#define RVM_ENAME_TOO_LONG 207     /* a name of more than MAXPATHLEN - 1 bytes */
#define RVM_ENO_MEMORY 208         /* the system has no memory */
#define RVM_ENOT_MAPPED 209        /* not entirely inside one mapped region; a device without dev_length */
#define RVM_EOFFSET 210            /* beyond the segment's end, or not representable */
#define RVM_EOPTIONS 211           /* no options record, or one that was not initialised */
#define RVM_EOVERLAP 212           /* these bytes of the segment are already mapped */
#define RVM_EPAGER 213             /* `pager` is not NULL */
#define RVM_ERANGE 214             /* an address that cannot be used; a part of a region */
#define RVM_EREGION 215            /* no region record, or one that was not initialised */
#define RVM_EREGION_DEF 216        /* never returned */
#define RVM_ESRC 217               /* never returned */
#define RVM_ESTATISTICS 218        /* no statistics record, or one that was not initialised */
#define RVM_ESTAT_VERSION_SKEW 219 /* another version of rvm_statistics.h */
#define RVM_ETERMINATED 220        /* never returned */
#define RVM_ETHREADS 221           /* never returned */
#define RVM_ETID 222               /* no transaction: not begun, ended, or not a record */
#define RVM_ETOO_BIG 223           /* more than the log can hold */
#define RVM_EUNCOMMIT 224          /* transactions are open */
#define RVM_EVERSION_SKEW 225      /* header and library differ; a segment's header, or a heap, has another version */
#define RVM_EVM_OVERLAP 226        /* these addresses are already mapped */
#define rvm_last_code 227

/* ------------------------------------------------------------------ modes */

typedef enum {
    rvm_first_mode = 139,
    restore = 140,    /* begin: keep old values; an abort restores them */
    no_restore = 141, /* begin: keep no old values; an abort leaves memory as it is */
    flush = 142,      /* end: return when the commit survives a crash */
    no_flush = 143,   /* end: return at once; until the next flush a crash may lose the whole commit */
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
 * Every record begins with its type and whether rvm_malloc_X() allocated it. Initialise a record by rvm_init_X() or
 * rvm_malloc_X() before its first use; functions refuse one that is not initialised.
 */

/* A transaction. `uname` is the unique time at which it began; `tid` is NULL between transactions. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    struct timeval uname;
    void *tid;
    rvm_length_t reserved;
} rvm_tid_t;

/* A part of a segment in memory. rvm_map() reads the request and stores what was mapped. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    char *data_dev;          /* path of the segment's file */
    rvm_offset_t dev_length; /* maximum length to use; 0: all. Required for devices */
    rvm_offset_t offset;     /* offset of the region in the segment; rounded down to a page */
    char *vmaddr;            /* address in memory; NULL: anywhere */
    rvm_length_t length;     /* length in bytes; 0: to the segment's end */
    rvm_bool_t no_copy;      /* the old contents are not needed. They are shown all the same, at no cost */
} rvm_region_t;

#define TRUNCATE 50                       /* percentage of the log at which truncation begins */
#define RECOVERY_BUF_LEN (256 * 1024)
#define MIN_RECOVERY_BUF_LEN (64 * 1024)
#define FLUSH_BUF_LEN (256 * 1024)
#define MIN_FLUSH_BUF_LEN (64 * 1024)
#define MAX_READ_LEN (512 * 1024)

/* Options, and the answers of rvm_query(). */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    char *log_dev;                 /* path of the log's file. Query: NULL, or a buffer of MAXPATHLEN + 1 bytes */
    long truncate;                 /* percentage of the log in use at which the background thread truncates. <= 0 or >
                                      100: only a full log is truncated */
    rvm_length_t recovery_buf_len; /* stored and returned; no effect */
    rvm_length_t flush_buf_len;    /* stored and returned; no effect */
    rvm_length_t max_read_len;     /* stored and returned; no effect, because pages of segments are read when they are
                                      touched */
    rvm_bool_t log_empty;          /* answer: every record in the log is applied to the segments */
    char *pager;                   /* must be NULL */
    long n_uncommit;               /* answer: number of open transactions */
    rvm_tid_t *tid_array;          /* answer: copies of their records; the program must free() the array */
    rvm_length_t flags;            /* RVM_COALESCE_RANGES and the other flags */
    rvm_bool_t create_log_file;    /* rvm_initialize() creates the log; RVM_ELOG if the file exists */
    rvm_offset_t create_log_size;  /* length of that log in bytes */
    long create_log_mode;          /* its permissions */
} rvm_options_t;

/*
 * Flags. Ranges of one transaction are always merged; the first flag only changes how empty ranges and transactions
 * are treated (see rvm_set_range and rvm_end_transaction).
 */
#define RVM_COALESCE_RANGES 1 /* merge ranges within a transaction */
#define RVM_COALESCE_TRANS 2  /* keep no_flush commits in memory and log each byte once, at the next flush */
#define RVM_ALL_OPTIMIZATIONS (RVM_COALESCE_RANGES | RVM_COALESCE_TRANS)
#define RVM_MAP_PRIVATE 8     /* regions are always private mappings; accepted, no effect */

/*
 * malloc: returns a new, initialised record; NULL without memory. copy: returns a new record with the same contents
 * (pointers are shared); NULL if the source is not valid. init: sets the defaults. free: frees records of malloc and
 * copy only, and ignores others and NULL. None of them needs rvm_initialize().
 */
extern rvm_tid_t *rvm_malloc_tid(void);
extern void rvm_init_tid(rvm_tid_t *tid);
extern rvm_tid_t *rvm_copy_tid(rvm_tid_t *tid);
extern void rvm_free_tid(rvm_tid_t *tid);

extern rvm_region_t *rvm_malloc_region(void);
extern void rvm_init_region(rvm_region_t *region);
extern rvm_region_t *rvm_copy_region(rvm_region_t *region);
extern void rvm_free_region(rvm_region_t *region);

/* rvm_free_options() also frees `tid_array`; set it to NULL if it was already freed. */
extern rvm_options_t *rvm_malloc_options(void);
extern void rvm_init_options(rvm_options_t *options);
extern rvm_options_t *rvm_copy_options(rvm_options_t *options);
extern void rvm_free_options(rvm_options_t *options);

/* -------------------------------------------------------------- functions */

/*
 * Starts the library; once per process. Opening a log (options->log_dev) recovers it: every commit is in the segments
 * when this returns. `options` may be NULL; the log is then named by rvm_set_options() or rvm_map(). Called again:
 * RVM_SUCCESS, and the options are ignored. After rvm_terminate(): always RVM_EINIT. After an error nothing was
 * started, a log that was to be created does not exist, and the call can be retried. RVM_EIO with errno ESTALE: the
 * log is a copy, or older than one of its segments; with errno EBUSY from rvm_map(): the segment belongs to another
 * log that was not closed. rvm_error_text() names it and the remedy.
 *
 * Lenders are configured in a file beside the log, `<log>.toml`, or in the environment: see rvm(3).
 */
extern rvm_return_t rvm_initialize(const char *version, rvm_options_t *options);
#define RVM_INIT(options) rvm_initialize(RVM_VERSION, (options))

/*
 * Flushes, applies the log to the segments and closes both. Afterwards the segments contain everything, and all files
 * can be moved, copied and given to another log. RVM_EUNCOMMIT while transactions are open: nothing is done. RVM_EIO
 * if a segment cannot be written: the log stays open and keeps everything; remove the cause and call again, or end
 * the process. Regions that are still mapped stay readable, as after rvm_unmap(). Called again: RVM_SUCCESS. A
 * process may also simply end: flushed commits are safe, and are applied at the next start.
 */
extern rvm_return_t rvm_terminate(void);

/* Changes flags and `truncate`, and opens the log if none is open yet. RVM_ELOG for another log than the open one. */
extern rvm_return_t rvm_set_options(rvm_options_t *options);

/*
 * Fills the options record, and lists the open transactions: all, or those with ranges in `region` if it is not NULL.
 * `tid_array` is newly allocated, or NULL if there are none. The program must free it: by free(), or by
 * rvm_free_options() for the last one of a record from the heap. The array that the record contained before is not
 * freed. RVM_ENOT_MAPPED: `region` is not mapped.
 */
extern rvm_return_t rvm_query(rvm_options_t *options, rvm_region_t *region);

/*
 * Maps a region. The usable length of a segment is its size rounded down to 512 bytes, and at most `dev_length`. The
 * offset is rounded down and the end up to a page, then the end is cut at the usable length. The record receives what
 * was mapped; after an error it is unchanged. Pages are read when they are first touched.
 *
 * `vmaddr` NULL: anywhere. Otherwise exactly there, page-aligned: in memory that rvm_register_page() or allocate_vm()
 * registered, which the region replaces, or where nothing is mapped. Other memory in use is RVM_ERANGE and never
 * overwritten.
 */
extern rvm_return_t rvm_map(rvm_region_t *region, rvm_options_t *options);

/*
 * Ends a mapping; `vmaddr` and `length` must be as rvm_map() returned them. The memory stays readable but is no
 * longer recoverable: pages with stores keep their content, the others continue to show the segment file. To release
 * the memory call munmap(). If it was registered by rvm_register_page() call rvm_unregister_page() first, or the next
 * region there would replace later mappings. Release memory of allocate_vm() by deallocate_vm(). RVM_EUNCOMMIT while
 * open transactions have ranges in it.
 */
extern rvm_return_t rvm_unmap(rvm_region_t *region);

/* Begins a transaction in an initialised record. Any number may be open; they do not nest. */
extern rvm_return_t rvm_begin_transaction(rvm_tid_t *tid, rvm_mode_t mode);

/*
 * Declares that these bytes, inside one region, will change. Call it before the store. Conflicts between transactions
 * on the same bytes are not detected. With optimisations an empty range is accepted unchecked; without, it must lie
 * in a region. RVM_ETOO_BIG: the range is longer than a record of this log.
 */
extern rvm_return_t rvm_set_range(rvm_tid_t *tid, void *base, rvm_length_t length);

/* Declares that these bytes will change, and copies `length` bytes from `source`, which must not overlap them. */
extern rvm_return_t rvm_modify_bytes(rvm_tid_t *tid, void *base, const void *source, rvm_length_t length);

/*
 * Commits the declared ranges with their present values. flush: together with all earlier commits; on return it
 * survives a crash of this machine (held by lenders according to the commit rule, or on the disk). An empty
 * transaction costs nothing with optimisations; without, flush flushes all earlier commits.
 *
 * After an error look at `tid->tid`. Not NULL: the transaction is still open, as after RVM_ETOO_BIG and RVM_ELOG, and
 * after RVM_EIO for a log that is full or whose disk failed before: abort it, or retry. NULL: it has ended, and its
 * outcome is unknown, never "aborted": the next start shows it.
 */
extern rvm_return_t rvm_end_transaction(rvm_tid_t *tid, rvm_mode_t mode);

/* Aborts a transaction. In `restore` mode memory is as it was before each range was declared. */
extern rvm_return_t rvm_abort_transaction(rvm_tid_t *tid);

/* Makes every commit so far survive a crash. */
extern rvm_return_t rvm_flush(void);

/* Flushes, and writes every commit so far to the segments; the log is empty afterwards. */
extern rvm_return_t rvm_truncate(void);

/*
 * Creates a log at options->log_dev for `length` bytes of records, with these permissions and its space allocated.
 * RVM_ELOG if the file exists. The files `.view`, `.key`, `.lock` and `.segments` beside it belong to the log.
 */
extern rvm_return_t rvm_create_log(rvm_options_t *options, rvm_offset_t *length, long mode);

/* The name of a code, a mode, a record type. Static; never NULL; must not be changed. */
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

/* Bytes of a page, and the mask that keeps whole pages. Valid at any time, also before rvm_initialize(). */
extern rvm_length_t rvm_page_size(void);
extern rvm_length_t rvm_page_mask(void);

/* Macros with two operands take addresses, so pass variables. */
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
 *       Registers memory of the program as a place for regions: rvm_map() replaces it if vmaddr points there.
 *       rvm_false: not whole pages, or some of it is already registered or mapped.
 *   rvm_bool_t rvm_unregister_page(char *addr, rvm_length_t length);
 *       Unregisters all or a part of it. rvm_false: none of it was registered.
 *   rvm_bool_t rvm_no_yield;  (or long: there is room for it)
 *       Once a hint for recovery's scheduling. Kept, no effect.
 */

#ifdef __cplusplus
}
#endif

#endif
