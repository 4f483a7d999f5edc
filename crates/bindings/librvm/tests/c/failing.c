/* A disk that fails. */
#include <sys/syscall.h>

#include "check.h"

static volatile int fails;

/* Replacements for the functions with which the library writes and syncs its files. */
#ifdef __cplusplus
extern "C"
#endif
ssize_t pwrite64(int file, const void *bytes, size_t count, long offset)
{
    if (fails) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

#ifdef __cplusplus
extern "C"
#endif
int fdatasync(int file)
{
    if (fails) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, file);
}

static void log_fails(void)
{
    rvm_region_t region;
    rvm_tid_t tid;

    make_file("data", MIB);
    start();
    region = map("data");
    commit(region.vmaddr, 'g', 100, flush);
    fails = 1;
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 100));
    memset(region.vmaddr, 'u', 100);
    errno = 0;
    /* The outcome is unknown: the transaction has ended, and memory keeps its stores. */
    EXPECT(rvm_end_transaction(&tid, flush), RVM_EIO);
    CHECK(errno == EIO && tid.tid == NULL && region.vmaddr[0] == 'u');
    CHECK(strstr(rvm_error_text(), "unknown") != NULL);
    fails = 0;
    /* The log accepts no more records: a transaction that cannot be logged stays open, and can be undone. */
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 100));
    memset(region.vmaddr, 'r', 100);
    EXPECT(rvm_end_transaction(&tid, flush), RVM_EIO);
    CHECK(tid.tid != NULL);
    OK(rvm_abort_transaction(&tid));
    CHECK(region.vmaddr[0] == 'u');
    EXPECT(rvm_flush(), RVM_EIO);
}

static void log_after(void)
{
    rvm_region_t region;

    start();
    region = map("data");
    CHECK(region.vmaddr[0] == 'g' || region.vmaddr[0] == 'u');
    CHECK(region.vmaddr[99] == region.vmaddr[0]);
    commit(region.vmaddr, 'n', 100, flush);
    OK(rvm_terminate());
}

MAIN(CASE(log_fails), CASE(log_after))
