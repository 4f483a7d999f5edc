/*
 * Far memory: memory that may be larger than this machine's. A part of it is local, and the rest is at lenders,
 * encrypted. Access to a remote page fetches it, and another page leaves. docs/design/far.md describes the uses and
 * the failures it survives. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program:
 *
 *     const char *lenders[] = { "tcp://10.0.0.2:7420", "tcp://10.0.0.3:7420" };
 *     rvm_far_options_t options;
 *     rvm_far_t far;
 *     void *memory;
 *
 *     rvm_init_far_options(&options);
 *     options.bytes = 16ul << 30;                      (addresses: they cost nothing until they are used)
 *     options.local_bytes = 2ul << 30;                 (the part with local memory)
 *     options.lenders = lenders;
 *     options.n_lenders = 2;
 *     options.key_file = "/etc/netram/cluster.key";
 *     if (rvm_far_open(&options, &far) != RVM_SUCCESS) ...
 *     if (rvm_far_alloc(far, 12ul << 30, &memory) != RVM_SUCCESS) ...
 *     ((double *)memory)[123456789] = 0.5;
 *     rvm_far_close(far);
 *
 * Rules for all functions:
 *   - No other part of the library is needed: no rvm_initialize(), no log. Any thread may call them.
 *   - Far memory is not storage: its content ends with the process. Recoverable memory is in rvm.h.
 *   - Access to a page that every copy holder has lost is a bus error (SIGBUS), never wrong bytes. With two copies,
 *     the default, one lender may die while rvm_far_status() reports no short pages.
 *   - While no lender has room for pages that must leave, accesses to remote pages wait; rvm_far_status() shows the
 *     number of waiting pages.
 *   - A child made by fork() has no far memory: an access there is a segmentation fault, and a call returns
 *     RVM_EINIT. Open after fork(), or call exec().
 *   - A handle is a number that looks like a pointer and must not be dereferenced. An ended or invalid handle returns
 *     RVM_EHANDLE.
 *   - A string or array is read only during the call. Results are written on RVM_SUCCESS. A NULL or misaligned
 *     pointer to a result is RVM_ERANGE.
 *   - After any code but RVM_SUCCESS, rvm_error_text() of rvm/netram.h returns a message with the reason.
 */
#ifndef RVM_FAR_H
#define RVM_FAR_H

#include <rvm/netram.h>
#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RVM_EHANDLE
#define RVM_EHANDLE 2100 /* the far memory was closed, or never existed */
#endif

/* Far memory: a range of addresses, part of which has local memory. */
typedef struct rvm_far *rvm_far_t;

/* Which page leaves when another one is fetched. */
typedef enum {
    rvm_far_dueling = 0, /* the oldest one, or most of the newly fetched: whichever causes fewer fetches */
    rvm_far_fifo = 1,    /* the one that was fetched first */
    rvm_far_clock = 2,   /* the same, unless it was accessed since the last check */
    rvm_far_lru = 3,     /* the least recently used, as far as that can be observed */
    rvm_far_random = 4
} rvm_far_replacement_t;

/* Values of `words`. */
#define RVM_FAR_NO_WORDS 0ul        /* pages are always transferred whole */
#define RVM_FAR_MEASURED_WORDS ~0ul /* the number follows the measured costs of pages and words */

#define rvm_far_options_id ((rvm_struct_id_t)46)

/* Options of far memory. Only the sizes are required. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    rvm_length_t bytes;                /* length of the address range, up to 1 TiB */
    rvm_length_t local_bytes;          /* the cap: bytes of local memory, at least 256 KiB */
    const char *const *lenders;        /* tcp://HOST:PORT or unix:/PATH, up to 16; none: those of NETRAM_LENDERS */
    unsigned long n_lenders;
    const char *key_file;              /* the cluster key's file; NULL: NETRAM_KEY_FILE, or /etc/netram/key */
    rvm_bool_t insecure;               /* no key and no encryption: on this machine only */
    unsigned copies;                   /* number of lenders that hold each page: 1 or 2; 2 */
    const char *spill;                 /* a directory on a local disk for a file that holds the second copy with one
                                          lender, and the only copy without lenders; NULL: no file */
    rvm_length_t spill_bytes;          /* most bytes of that file; 0: no limit */
    rvm_length_t lender_bytes;         /* most bytes at each lender; 0: as many as it lends */
    rvm_length_t hidden_bytes;         /* part of the cap for pages on their way out; 0: an eighth */
    rvm_length_t packed_bytes;         /* part of the cap for pages kept compressed; ~0: a quarter; 0: none */
    rvm_far_replacement_t replacement; /* rvm_far_dueling */
    unsigned threads;                  /* number of faults served at once; 4 */
    rvm_bool_t user_faults_only;       /* needs no right to userfaultfd, but system calls on remote pages fail with EFAULT */
    const char *wait;                  /* "spin", "yield:MICROSECONDS", "block"; NULL: yield:50 */
    rvm_length_t words;                /* rvm_far_gather() and similar calls leave a page remote until this many
                                          blocks of 16 bytes of it were used, 1 to 256; or RVM_FAR_MEASURED_WORDS;
                                          RVM_FAR_NO_WORDS. Blocks are verified only when their page is fetched */
    rvm_length_t patched_bytes;        /* part of the cap for elements scattered to remote pages; 0: a quarter; ~0: none */
    rvm_length_t reserved;             /* 0 */
} rvm_far_options_t;

extern void rvm_init_far_options(rvm_far_options_t *options);

/*
 * Opens far memory and returns at once: lenders are connected in the background, and unreachable ones are retried.
 * RVM_EOPTIONS: the record is invalid, a limit is exceeded, or neither a key nor `insecure` is set. RVM_EIO with
 * errno EPERM or EACCES: no right to userfaultfd, and rvm_error_text() says how to get it; with another errno: an
 * error of the system or the spill file.
 */
extern rvm_return_t rvm_far_open(const rvm_far_options_t *options, rvm_far_t *far);

/*
 * Allocates `bytes` bytes of zeros, beginning at a page; free them with rvm_far_free(). They take no memory until
 * they are written. RVM_ERANGE: `bytes` is 0. RVM_ENO_MEMORY: not enough adjacent addresses are free; open it with
 * more.
 */
extern rvm_return_t rvm_far_alloc(rvm_far_t far, rvm_length_t bytes, void **memory);

/*
 * Frees an allocation of rvm_far_alloc(), locally and at lenders, after waiting for threads that gather or scatter
 * there; NULL is ignored. RVM_ERANGE: not an allocation, or already freed.
 */
extern rvm_return_t rvm_far_free(rvm_far_t far, void *memory);

/*
 * Access to elements without their pages: many in one round trip per lender, if `words` allows it; otherwise their
 * pages are fetched one by one. `memory` is an allocation of rvm_far_alloc() with element 0 of `size` bytes, 1 to
 * 65536, at its beginning; its length must be a multiple of `size`. `indices` are any elements in any order; strided
 * ones are `first`, `first + step`, and so on.
 *
 * gather copies `count` elements one after the other to the array `into`; several threads may do so at once. scatter
 * stores `count` values, the last of those with the same index, and keeps values for remote pages locally. One thread
 * at a time scatters to an allocation, and none gathers from it during that: others wait. The program's own loads see
 * scattered values, and scatter and gather see the program's stores; the program must order accesses of two threads
 * to the same element. The arrays may lie in far memory too.
 *
 * RVM_ERANGE: not an allocation; a NULL or misaligned array; an invalid size, or one that does not divide the
 * allocation; an index that is too large. Nothing was copied then. RVM_EIO with errno EIO: every copy of a page is
 * lost. RVM_ENO_MEMORY: no lender has room, and no frame became free for a long time. After these two some elements
 * have been copied.
 */
extern rvm_return_t rvm_far_gather(rvm_far_t far, const void *memory, rvm_length_t size, const rvm_length_t *indices, rvm_length_t count, void *into);
extern rvm_return_t rvm_far_gather_strided(rvm_far_t far, const void *memory, rvm_length_t size, rvm_length_t first, rvm_length_t step,
                                           rvm_length_t count, void *into);
extern rvm_return_t rvm_far_scatter(rvm_far_t far, void *memory, rvm_length_t size, const rvm_length_t *indices, rvm_length_t count, const void *values);
extern rvm_return_t rvm_far_scatter_strided(rvm_far_t far, void *memory, rvm_length_t size, rvm_length_t first, rvm_length_t step,
                                            rvm_length_t count, const void *values);

/* Status: numbers of pages of 4096 bytes, and counters since the opening. */
typedef struct {
    rvm_length_t used;        /* pages with local memory */
    rvm_length_t packed;      /* part of the cap that compressed pages take, in pages */
    rvm_length_t cap;         /* the cap, in pages */
    rvm_length_t waiting;     /* pages that wait here until lenders have them */
    rvm_length_t short_pages; /* pages with fewer copies than configured */
    rvm_length_t lost;        /* pages of which every copy is lost */
    rvm_length_t linked;      /* lenders with a connected session */
    rvm_length_t faults;      /* accesses that found a page not in local memory */
    rvm_length_t fetched;     /* pages that came from a lender or the spill file */
    rvm_length_t ahead;       /* pages that were requested in advance */
    rvm_length_t sent;        /* pages that were sent away, or dropped because lenders have them */
    rvm_length_t patched;     /* part of the cap that elements scattered to remote pages take, in pages */
    rvm_length_t words;       /* blocks of 16 bytes that were read without their pages */
    rvm_length_t written;     /* blocks of 16 bytes that were written without their pages */
    rvm_length_t reserved[2];
} rvm_far_status_t;

extern rvm_return_t rvm_far_status(rvm_far_t far, rvm_far_status_t *status);

/* Closes far memory and frees all its allocations: no thread may use them during the call or later. */
extern rvm_return_t rvm_far_close(rvm_far_t far);

#ifdef __cplusplus
}
#endif

#endif
