/*
 * The segment loader of recoverable virtual memory: a segment whose first page says at which addresses its regions
 * belong, so that a program finds its pointers valid after every start. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Fixed addresses are a promise about a whole process. Choose them where nothing else settles (0x20000000000 and up
 * is usually free on 64-bit Linux); a region whose place is taken is refused, never laid over what is there.
 */
#ifndef _RVM_SEGMENT_H_
#define _RVM_SEGMENT_H_

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The segment's first page is no segment header. */
#define RVM_ESEGMENT_HDR 2000

/* Bytes that the header takes at the segment's begin. */
#define RVM_SEGMENT_HDR_SIZE (RVM_PAGE_SIZE)

/* One region: where in the segment, how long, at which address. */
typedef struct {
    rvm_offset_t offset;
    rvm_length_t length;
    char *vmaddr;
} rvm_region_def_t;

/* A statement, with or without a semicolon behind it. */
#define RVM_INIT_REGION(def, off, len, addr) \
    { (def).offset = (off); (def).length = (len); (def).vmaddr = (addr); }

/*
 * Writes the header for `n` regions into an existing file. The regions lie one behind the other after the header, in
 * the order of their addresses: the array is sorted so, and given the offsets. Lengths and addresses are whole pages,
 * at most 123 regions fit. RVM_ERANGE: a length, an address, or two that overlap. RVM_EOFFSET: the file is too short.
 * The segment must not be loaded. Old contents behind the header are left as they are.
 */
extern rvm_return_t rvm_create_segment(char *dev, rvm_offset_t dev_length, rvm_options_t *options, rvm_length_t n,
                                       rvm_region_def_t *defs);

/*
 * Maps all regions of a segment at their addresses. Puts their number in `*n` and an array in `*defs`, which
 * rvm_release_segment() frees. On an error nothing stays mapped. RVM_ESEGMENT_HDR: no header. RVM_EVERSION_SKEW: of
 * another version. RVM_EINTERNAL: a region's place is taken; the sentence says which.
 */
extern rvm_return_t rvm_load_segment(char *dev, rvm_offset_t dev_length, rvm_options_t *options, unsigned long *n,
                                     rvm_region_def_t **defs);

/*
 * Unmaps all regions of a loaded segment, gives their memory back to the system, frees the array and sets it to NULL.
 * RVM_EUNCOMMIT while open transactions have ranges in one of them: nothing is done.
 */
extern rvm_return_t rvm_release_segment(unsigned long n, rvm_region_def_t **defs);

/*
 * Not declared here, as in the original:
 *
 *   rvm_return_t allocate_vm(char **addr, unsigned long length);
 *       Memory for regions at *addr, or anywhere if that is NULL (it is then set), made known to rvm_map().
 *       RVM_EINTERNAL if the place is taken.
 *   rvm_return_t deallocate_vm(char *addr, unsigned long length);
 *       The reverse.
 *   int overlap(unsigned long n, rvm_region_def_t defs[]);
 *       Sorts the definitions by address; not 0 if two of them overlap.
 *   long rds_rvmsize;     bytes mapped by rvm_load_segment()
 *   char *rds_startaddr;  the lowest address that it mapped last
 */

#ifdef __cplusplus
}
#endif

#endif
