/* Helpers of the heap's test programs. */
#ifndef HEAP_H
#define HEAP_H

#include "check.h"

#include <stdint.h>

#include <rvm/rds.h>
#include <rvm/rvm_segment.h>

#ifdef __cplusplus
extern "C" {
#endif
extern rvm_region_def_t *RegionDefs;
extern unsigned long NRegionDefs;
extern long rds_rvmsize;
extern char *rds_startaddr;
#ifdef __cplusplus
}
#endif

#define PLACE ((char *)0x20000000000ul)
#define HEAP_BYTES (1 * MIB)
#define STATIC_BYTES 4096ul
#define FILE_BYTES (4096ul + HEAP_BYTES + STATIC_BYTES)

/* Checks that the call returns `code`. */
#define ERR(call, code)                                                                       \
    do {                                                                                      \
        int err = 12345;                                                                      \
        (void)(call);                                                                         \
        if (err != (code)) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %d, not %d: %s\n", __FILE__, __LINE__, #call, err,    \
                    (code), rvm_error_text());                                                \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static inline rvm_offset_t size_of_file(void)
{
    return RVM_MK_OFFSET(0, FILE_BYTES);
}

static inline void zap(void)
{
    int err = 1;

    make_file("heap", FILE_BYTES);
    CHECK(rds_zap_heap("heap", size_of_file(), PLACE, STATIC_BYTES, HEAP_BYTES, 80, 64, &err) == 0);
    CHECK(err == SUCCESS);
    CHECK(rds_rvmsize == 0);
}

static inline char *load(void)
{
    char *data = NULL;
    int err = 1;

    CHECK(rds_load_heap("heap", size_of_file(), &data, &err) == 0);
    CHECK(err == SUCCESS);
    CHECK(data == PLACE + HEAP_BYTES);
    CHECK(rds_startaddr == PLACE && rds_rvmsize == (long)(HEAP_BYTES + STATIC_BYTES));
    CHECK(NRegionDefs == 2 && RegionDefs[0].vmaddr == PLACE && RegionDefs[1].vmaddr == data);
    return data;
}

static inline void unload(void)
{
    int err = 1;

    CHECK(rds_unload_heap(&err) == -1);
    CHECK(err == SUCCESS);
    CHECK(NRegionDefs == 0 && RegionDefs == NULL);
}

static inline rvm_tid_t begin(rvm_mode_t mode)
{
    rvm_tid_t tid;

    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, mode));
    return tid;
}

static inline char *allocate(unsigned long size, rvm_tid_t *tid)
{
    int err = 1;
    char *block = (char *)rds_malloc(size, tid, &err);

    CHECK(block != NULL);
    CHECK(err == SUCCESS);
    CHECK((uintptr_t)block % 16 == 0);
    CHECK(block > PLACE && block + size <= PLACE + HEAP_BYTES);
    return block;
}

static inline unsigned long taken(void)
{
    rds_long_stats_t stats;

    CHECK(rds_get_long_stats(&stats) == SUCCESS);
    return stats.mallocbytes;
}

#endif
