/*
 * Far memory: memory that may be larger than this machine's. A part of it is here, and the rest at lenders, encrypted; a page that is
 * referenced while it is away comes, and another one leaves. What that is good for, and what it survives, is in docs/design/far.md.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
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
 *     options.local_bytes = 2ul << 30;                 (of which so much has memory here)
 *     options.lenders = lenders;
 *     options.n_lenders = 2;
 *     options.key_file = "/etc/netram/cluster.key";
 *     if (rvm_far_open(&options, &far) != RVM_SUCCESS) ...
 *     if (rvm_far_alloc(far, 12ul << 30, &memory) != RVM_SUCCESS) ...
 *     ((double *)memory)[123456789] = 0.5;
 *     rvm_far_close(far);
 *
 * Rules for all functions:
 *   - Nothing else of the library is needed: no rvm_initialize(), no log. They may be called by any thread.
 *   - It is memory, not storage: what is in it ends with the process. Recoverable memory is in rvm.h.
 *   - A reference to a page that everybody who had it has lost is a bus error (SIGBUS), never wrong bytes. With two copies, which is the
 *     default, one lender may die while rvm_far_status() says that no page is short.
 *   - While no lender has room for what has to leave, references to pages that are away wait until one has: rvm_far_status() shows what waits.
 *   - A child made by fork() has none of it: there a reference is a segmentation fault, and a call RVM_EINIT. Open after fork(), or call
 *     exec().
 *   - A handle is a number that looks like a pointer, never to be followed. One that has ended, or was never given, is RVM_EHANDLE.
 *   - A string or array is read during the call only. Answers are written on RVM_SUCCESS. NULL or a misaligned address where an answer
 *     belongs is RVM_ERANGE.
 *   - Whatever is not RVM_SUCCESS is explained, in a sentence, by rvm_error_text() of rvm/netram.h.
 */
#ifndef RVM_FAR_H
#define RVM_FAR_H

#include <rvm/netram.h>
#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RVM_EHANDLE
#define RVM_EHANDLE 2100 /* no such far memory: it has been closed, or never was */
#endif

/* Far memory: addresses of which a part has memory here. */
typedef struct rvm_far *rvm_far_t;

/* Which page leaves when another one comes. */
typedef enum {
    rvm_far_dueling = 0, /* the one that has been here for longest; or most that come, so that others stay: whichever brings less */
    rvm_far_fifo = 1,    /* the one that has been here for longest */
    rvm_far_clock = 2,   /* that, unless it was referenced since it was looked at last */
    rvm_far_lru = 3,     /* the one that was referenced longest ago, as far as that is seen */
    rvm_far_random = 4
} rvm_far_replacement_t;

/* For `words`. */
#define RVM_FAR_NO_WORDS 0ul        /* pages always come whole */
#define RVM_FAR_MEASURED_WORDS ~0ul /* what a page is worth in words follows what both have cost of late */

#define rvm_far_options_id ((rvm_struct_id_t)46)

/* What far memory is to be. Whoever needs no more sets the sizes, the lenders and the key. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    rvm_length_t bytes;                /* of addresses, up to 1 TiB */
    rvm_length_t local_bytes;          /* the cap: of memory here, 256 KiB at least */
    const char *const *lenders;        /* tcp://HOST:PORT or unix:/PATH, up to 16; none only with `spill` */
    unsigned long n_lenders;
    const char *key_file;              /* the cluster's key */
    rvm_bool_t insecure;               /* no key, no encryption: this machine only */
    unsigned copies;                   /* at how many lenders a page is: 1 or 2; 2 */
    const char *spill;                 /* a directory on a local disk, for a file that is the second copy where there is one lender and
                                          the only one where there is none; NULL: there is none */
    rvm_length_t spill_bytes;          /* the most bytes of that file; 0: as many as come */
    rvm_length_t lender_bytes;         /* the most bytes at each lender; 0: as many as it lends */
    rvm_length_t hidden_bytes;         /* of the cap, for pages on their way out; 0: an eighth */
    rvm_length_t packed_bytes;         /* of the cap, for pages that stay here compressed; ~0: a quarter; 0: none */
    rvm_far_replacement_t replacement; /* rvm_far_dueling */
    unsigned threads;                  /* so many faults are served at once; 4 */
    rvm_bool_t user_faults_only;       /* needs no right to userfaultfd, but system calls on pages that are away are EFAULT */
    const char *wait;                  /* "spin", "yield:MICROSECONDS", "block"; NULL: yield:50 */
    rvm_length_t words;                /* rvm_far_gather() and its like leave a page away until so many blocks of 16 bytes of it were used, 1 to 256;
                                          or RVM_FAR_MEASURED_WORDS; RVM_FAR_NO_WORDS. Blocks are proven when their page comes, not before */
    rvm_length_t patched_bytes;        /* of the cap, for what was scattered to pages that are away; 0: a quarter; ~0: none */
    rvm_length_t reserved;             /* 0 */
} rvm_far_options_t;

extern void rvm_init_far_options(rvm_far_options_t *options);

/*
 * Opens it, and returns at once: lenders are connected meanwhile, and one that is away is tried again. RVM_EOPTIONS: the record; a limit;
 * neither key nor `insecure`. RVM_EIO with errno EPERM or EACCES: no right to userfaultfd, and rvm_error_text() says how to have it;
 * otherwise something of the system, or the spill file.
 */
extern rvm_return_t rvm_far_open(const rvm_far_options_t *options, rvm_far_t *far);

/*
 * So many bytes of it: zeros, at the beginning of a page, for `rvm_far_free`. They have no memory anywhere until they are written.
 * RVM_ERANGE: no bytes. RVM_ENO_MEMORY: it has not so many addresses in a row; open it with more.
 */
extern rvm_return_t rvm_far_alloc(rvm_far_t far, rvm_length_t bytes, void **memory);

/* Gives back what rvm_far_alloc() gave, here and at lenders, when who gathers or scatters there is done; NULL is nothing. RVM_ERANGE: nothing was given there, or it is given back. */
extern rvm_return_t rvm_far_free(rvm_far_t far, void *memory);

/*
 * Elements without their pages: many in one round trip a lender, where `words` allows it; otherwise their pages come, one by one. `memory` is what
 * rvm_far_alloc() gave, and element 0 of `size` bytes, 1 to 65536, lies at its beginning; what was given is a whole number of them. `indices` are any places,
 * in any order; strided ones are `first`, `first + step`, and so on.
 *
 * gather puts `count` elements one behind the other `into` an array; several threads may. scatter stores `count` values, of those for one place the last,
 * and keeps them here for pages that are away. One thread scatters to one allocation at a time, and nobody gathers of it meanwhile: others wait. The program's own loads and stores see what was
 * scattered, and scatter and gather what they stored; which comes first where two threads do it at once is the program's to say. The arrays may lie in far memory too.
 *
 * RVM_ERANGE: nothing was given there; NULL or a misaligned address where an array belongs; a size that is not one, or does not divide what was given;
 * an index behind the end. Nothing has been moved then. RVM_EIO, errno EIO: everybody has lost a page. RVM_ENO_MEMORY: no lender has room, and no frame became
 * free for long. After these two some elements have been moved, and others have not.
 */
extern rvm_return_t rvm_far_gather(rvm_far_t far, const void *memory, rvm_length_t size, const rvm_length_t *indices, rvm_length_t count, void *into);
extern rvm_return_t rvm_far_gather_strided(rvm_far_t far, const void *memory, rvm_length_t size, rvm_length_t first, rvm_length_t step,
                                           rvm_length_t count, void *into);
extern rvm_return_t rvm_far_scatter(rvm_far_t far, void *memory, rvm_length_t size, const rvm_length_t *indices, rvm_length_t count, const void *values);
extern rvm_return_t rvm_far_scatter_strided(rvm_far_t far, void *memory, rvm_length_t size, rvm_length_t first, rvm_length_t step,
                                            rvm_length_t count, const void *values);

/* How it stands: pages of 4096 bytes, and what has happened so far. */
typedef struct {
    rvm_length_t used;        /* pages that have memory here */
    rvm_length_t packed;      /* of the cap, what compressed pages take, in pages */
    rvm_length_t cap;         /* in pages */
    rvm_length_t waiting;     /* pages that are here until lenders have them */
    rvm_length_t short_pages; /* pages in fewer places than they should be */
    rvm_length_t lost;        /* pages that everybody has lost */
    rvm_length_t linked;      /* lenders with which there is a session */
    rvm_length_t faults;      /* references that found a page not here */
    rvm_length_t fetched;     /* of these, pages that came from a lender or the spill file */
    rvm_length_t ahead;       /* pages that were asked for ahead */
    rvm_length_t sent;        /* pages that left, or were dropped because lenders have them */
    rvm_length_t patched;     /* of the cap, what was scattered to pages that are away, in pages */
    rvm_length_t words;       /* blocks of 16 bytes that came without their pages */
    rvm_length_t written;     /* blocks that were scattered without their pages */
    rvm_length_t reserved[2];
} rvm_far_status_t;

extern rvm_return_t rvm_far_status(rvm_far_t far, rvm_far_status_t *status);

/* Closes it. All that rvm_far_alloc() gave of it is gone: no thread uses it any more, then or later. */
extern rvm_return_t rvm_far_close(rvm_far_t far);

#ifdef __cplusplus
}
#endif

#endif
