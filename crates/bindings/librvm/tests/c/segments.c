/* The segment loader. */
#include "check.h"

#include <rvm/rvm_segment.h>

#ifdef __cplusplus
extern "C" {
#endif
extern long rds_rvmsize;
extern char *rds_startaddr;
extern int overlap(unsigned long n, rvm_region_def_t defs[]);
#ifdef __cplusplus
}
#endif

#define PLACE ((char *)0x20000000000ul)
#define SIZE (64 * 1024ul)

static rvm_offset_t none(void)
{
    return RVM_MK_OFFSET(0, 0);
}

/* Two regions, passed in the wrong order, with a gap between their addresses. */
static void define(rvm_region_def_t *defs)
{
    RVM_INIT_REGION(defs[0], none(), SIZE, PLACE + 4 * SIZE);
    RVM_INIT_REGION(defs[1], none(), 2 * SIZE, PLACE)
}

static void create(void)
{
    rvm_region_def_t defs[2];

    start();
    make_file("data", MIB);
    define(defs);
    OK(rvm_create_segment((char *)"data", none(), NULL, 2, defs));
    CHECK(defs[0].vmaddr == PLACE && defs[0].offset.low == 4096);
    CHECK(defs[1].vmaddr == PLACE + 4 * SIZE && defs[1].offset.low == 4096 + 2 * SIZE);
}

static void load(void)
{
    rvm_region_def_t *defs = NULL;
    unsigned long n = 0;

    create();
    CHECK(rds_rvmsize == 0);
    OK(rvm_load_segment((char *)"data", none(), NULL, &n, &defs));
    CHECK(n == 2 && defs[0].vmaddr == PLACE && defs[0].length == 2 * SIZE && defs[1].length == SIZE);
    CHECK(rds_rvmsize == (long)(3 * SIZE) && rds_startaddr == PLACE);
    /* A pointer into the segment, valid after every start. */
    commit(PLACE + 100, 'p', 8, flush);
    OK(rvm_terminate());
    CHECK(PLACE[100] == 'p');
    free(defs);
}

static void load_again(void)
{
    rvm_region_def_t *defs = NULL;
    rvm_options_t options;
    rvm_tid_t tid;
    unsigned long n = 0;

    start();
    OK(rvm_load_segment((char *)"data", none(), NULL, &n, &defs));
    CHECK(PLACE[100] == 'p' && PLACE[107] == 'p' && PLACE[108] == 0);
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, PLACE + 4 * SIZE, 8));
    EXPECT(rvm_release_segment(n, &defs), RVM_EUNCOMMIT);
    CHECK(defs != NULL && PLACE[100] == 'p');
    OK(rvm_abort_transaction(&tid));
    OK(rvm_release_segment(n, &defs));
    CHECK(defs == NULL && rds_rvmsize == 0);
    /* The memory was released: other memory mapped there is not replaced. */
    CHECK(mmap(PLACE + 4 * SIZE, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
               0) == PLACE + 4 * SIZE);
    PLACE[4 * SIZE] = 'm';
    EXPECT(rvm_load_segment((char *)"data", none(), NULL, &n, &defs), RVM_EINTERNAL);
    CHECK(PLACE[4 * SIZE] == 'm' && defs == NULL && strstr(rvm_error_text(), "0x20000040000") != NULL);
    CHECK(munmap(PLACE + 4 * SIZE, 4096) == 0);
    rvm_init_options(&options);
    options.flags = RVM_ALL_OPTIMIZATIONS | RVM_MAP_PRIVATE;
    OK(rvm_load_segment((char *)"data", none(), &options, &n, &defs));
    CHECK(PLACE[100] == 'p');
    EXPECT(rvm_load_segment((char *)"data", none(), NULL, &n, &defs), RVM_EINTERNAL);
    OK(rvm_release_segment(n, &defs));
    EXPECT(rvm_release_segment(n, &defs), RVM_ERANGE);
    OK(rvm_terminate());
}

static void refused(void)
{
    rvm_region_def_t defs[2], *loaded = NULL;
    unsigned long n;
    FILE *file;

    EXPECT(rvm_create_segment((char *)"data", none(), NULL, 2, defs), RVM_EINIT);
    EXPECT(rvm_load_segment((char *)"data", none(), NULL, &n, &loaded), RVM_EINIT);
    start();
    make_file("data", MIB);
    define(defs);
    EXPECT(rvm_create_segment((char *)"nowhere", none(), NULL, 2, defs), RVM_EIO);
    defs[0].length = 8 * SIZE;
    EXPECT(rvm_create_segment((char *)"data", none(), NULL, 2, defs), RVM_ERANGE);
    CHECK(defs[0].vmaddr == PLACE);
    CHECK(overlap(2, defs) != 0);
    define(defs);
    CHECK(overlap(2, defs) == 0 && defs[0].vmaddr == PLACE);
    defs[0].length = 100;
    EXPECT(rvm_create_segment((char *)"data", none(), NULL, 2, defs), RVM_ERANGE);
    EXPECT(rvm_create_segment((char *)"data", none(), NULL, 0, defs), RVM_ERANGE);
    EXPECT(rvm_create_segment((char *)"data", none(), NULL, 2, NULL), RVM_ERANGE);
    define(defs);
    EXPECT(rvm_create_segment((char *)"data", RVM_MK_OFFSET(0, 2 * SIZE), NULL, 2, defs), RVM_EOFFSET);
    EXPECT(rvm_load_segment((char *)"data", none(), NULL, &n, &loaded), RVM_ESEGMENT_HDR);
    EXPECT(rvm_load_segment((char *)"data", none(), NULL, NULL, &loaded), RVM_ERANGE);
    make_file("short", 512);
    EXPECT(rvm_load_segment((char *)"short", none(), NULL, &n, &loaded), RVM_ESEGMENT_HDR);
    define(defs);
    OK(rvm_create_segment((char *)"data", none(), NULL, 2, defs));
    OK(rvm_truncate());
    OK(rvm_terminate());
    /* The header is the original's, byte for byte: its version is at this offset. */
    file = fopen("data", "r+");
    CHECK(file != NULL && fgetc(file) == 1 && fseek(file, 4 + 4, SEEK_SET) == 0);
    CHECK(fgetc(file) == 'S' && fseek(file, 4 + 20, SEEK_SET) == 0 && fputc('!', file) == '!' && fclose(file) == 0);
    CHECK(loaded == NULL);
}

static void another_version(void)
{
    rvm_region_def_t *loaded = NULL;
    unsigned long n;

    start();
    EXPECT(rvm_load_segment((char *)"data", none(), NULL, &n, &loaded), RVM_EVERSION_SKEW);
}

MAIN(CASE(create), CASE(load), CASE(load_again), CASE(refused), CASE(another_version))
