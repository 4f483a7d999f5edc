/*
 * The segment loader of recoverable virtual memory. The first page of a segment records the addresses of its regions,
 * so that the program's pointers are valid after every start. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Fixed addresses concern the whole process. Choose unused ones: 0x20000000000 and up is usually free on 64-bit
 * Linux. A region whose addresses are in use is refused and never replaces other memory.
 */
#ifndef _RVM_SEGMENT_H_
#define _RVM_SEGMENT_H_

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The segment's first page is not a segment header. */
#define RVM_ESEGMENT_HDR 2000

/* Bytes of the header at the segment's beginning. */
#define RVM_SEGMENT_HDR_SIZE (RVM_PAGE_SIZE)

/* One region: its offset in the segment, length and address. */
typedef struct {
    rvm_offset_t offset;
    rvm_length_t length;
    char *vmaddr;
} rvm_region_def_t;

/* A statement, with or without a semicolon behind it. */
#define RVM_INIT_REGION(def, off, len, addr) \
    { (def).offset = (off); (def).length = (len); (def).vmaddr = (addr); }

/*
 * Writes the header for `n` regions into an existing file. The regions follow the header one after the other, in the
 * order of their addresses: the array is sorted accordingly, and the offsets are set. Lengths and addresses are whole
 * pages; at most 123 regions fit. RVM_ERANGE: an invalid length or address, or overlapping regions. RVM_EOFFSET: the
 * file is too short. The segment must not be loaded. Old contents behind the header are not changed.
 */
extern rvm_return_t rvm_create_segment(char *dev, rvm_offset_t dev_length, rvm_options_t *options, rvm_length_t n,
                                       rvm_region_def_t *defs);

/*
 * Maps all regions of a segment at their addresses. Stores their number in `*n` and an array in `*defs`, which
 * rvm_release_segment() frees. After an error nothing stays mapped. RVM_ESEGMENT_HDR: no header. RVM_EVERSION_SKEW: a
 * header of another version. RVM_EINTERNAL: a region's addresses are in use; rvm_error_text() says which.
 */
extern rvm_return_t rvm_load_segment(char *dev, rvm_offset_t dev_length, rvm_options_t *options, unsigned long *n,
                                     rvm_region_def_t **defs);

/*
 * Unmaps all regions of a loaded segment, releases their memory, frees the array and sets it to NULL. RVM_EUNCOMMIT
 * while open transactions have ranges in one of them: nothing is done.
 */
extern rvm_return_t rvm_release_segment(unsigned long n, rvm_region_def_t **defs);

/*
 * Not declared here, as in the original:
 *
 *   rvm_return_t allocate_vm(char **addr, unsigned long length);
 *       Allocates memory for regions at *addr, or anywhere if that is NULL (it is then set), and registers it for
 *       rvm_map(). RVM_EINTERNAL if the addresses are in use.
 *   rvm_return_t deallocate_vm(char *addr, unsigned long length);
 *       Unregisters and releases it.
 *   int overlap(unsigned long n, rvm_region_def_t defs[]);
 *       Sorts the definitions by address; not 0 if two of them overlap.
 *   long rds_rvmsize;     bytes mapped by rvm_load_segment()
 *   char *rds_startaddr;  the lowest address of the last rvm_load_segment()
 */

#ifdef __cplusplus
}
#endif

#endif
