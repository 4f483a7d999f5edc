/* A log whose newest part lenders hold: the program dies before its disk has any record, and loses none. */
#include <signal.h>
#include <sys/syscall.h>

#include "check.h"

static volatile int hold;

/*
 * Replacements for the functions with which the library writes and syncs its log. A thread that calls them while
 * `hold` is set never returns, so its data reaches no disk.
 */
#ifdef __cplusplus
extern "C"
#endif
ssize_t pwrite64(int file, const void *bytes, size_t count, long offset)
{
    while (hold)
        pause();
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

#ifdef __cplusplus
extern "C"
#endif
int fdatasync(int file)
{
    while (hold)
        pause();
    return (int)syscall(SYS_fdatasync, file);
}

/* A segment whose log is at the lender. */
static rvm_region_t with_a_lender(void)
{
    rvm_region_t region;
    rvm_lenders_t lenders;

    make_file("data", MIB);
    start();
    region = map("data");
    commit(region.vmaddr + 500 * 1024, 'd', 100, flush);
    /* Long, because everything is slow under valgrind. */
    OK(rvm_wait_for_lenders(60000));
    OK(rvm_lenders(&lenders));
    CHECK(lenders.configured == 1 && lenders.members == 1 && lenders.wanted == 1 && lenders.counting);
    return region;
}

static void held(void)
{
    rvm_region_t region = with_a_lender();
    unsigned long at;

    for (at = 0; at < 200; at++)
        commit(region.vmaddr + at * 1024, 'a' + (int)(at % 26), 1000, flush);
    OK(rvm_truncate());
    OK(rvm_unmap(&region));
    OK(rvm_terminate());
}

static void die(void)
{
    rvm_region_t region = with_a_lender();
    unsigned long at;

    hold = 1;
    for (at = 0; at < 200; at++)
        commit(region.vmaddr + at * 1024, 'a' + (int)(at % 26), 1000, flush);
    raise(SIGKILL);
}

static void recover(void)
{
    rvm_region_t region;
    unsigned long at;

    start();
    region = map("data");
    for (at = 0; at < 200; at++) {
        CHECK(region.vmaddr[at * 1024] == 'a' + (int)(at % 26));
        CHECK(region.vmaddr[at * 1024 + 999] == 'a' + (int)(at % 26));
    }
    CHECK(region.vmaddr[500 * 1024] == 'd');
    OK(rvm_terminate());
}

static void alone(void)
{
    rvm_lenders_t lenders;

    EXPECT(rvm_lenders(&lenders), RVM_EINIT);
    OK(RVM_INIT(NULL));
    EXPECT(rvm_lenders(&lenders), RVM_ELOG);
    EXPECT(rvm_wait_for_lenders(0), RVM_ELOG);
    CHECK(rvm_lenders_text()[0] == 0);
}

static void alone_with_log(void)
{
    rvm_lenders_t lenders;

    start();
    EXPECT(rvm_lenders(NULL), RVM_ERANGE);
    OK(rvm_lenders(&lenders));
    CHECK(lenders.configured == 0 && lenders.members == 0 && !lenders.counting);
    CHECK(rvm_lenders_text()[0] == 0);
    errno = 0;
    EXPECT(rvm_wait_for_lenders(1000), RVM_EIO);
    CHECK(errno == ENODEV && strstr(rvm_error_text(), "NETRAM_LENDERS") != NULL);
}

/* Lenders are configured but unreachable: commits wait for the disk, and the program can get the reason. */
static void nobody(void)
{
    rvm_region_t region;

    make_file("data", MIB);
    start();
    region = map("data");
    commit(region.vmaddr, 'd', 100, flush);
    errno = 0;
    EXPECT(rvm_wait_for_lenders(50), RVM_EIO);
    CHECK(errno == ETIMEDOUT);
    CHECK(strstr(rvm_error_text(), "nothing listens there") != NULL);
    CHECK(strstr(rvm_lenders_text(), "nothing listens there: start the lender\n") != NULL);
    OK(rvm_terminate());
}

/* Invalid settings are refused with their source. */
static void wrong_settings(void)
{
    rvm_options_t options;

    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    options.create_log_file = rvm_true;
    options.create_log_size = RVM_MK_OFFSET(0, MIB);
    EXPECT(RVM_INIT(&options), RVM_ELOG);
    CHECK(strstr(rvm_error_text(), "lenders") != NULL);
    /* No file was created that would make another attempt fail. */
    CHECK(access("log", F_OK) != 0);
    EXPECT(RVM_INIT(&options), RVM_ELOG);
    CHECK(strstr(rvm_error_text(), "lenders") != NULL);
}

MAIN(CASE(held), CASE(die), CASE(recover), CASE(alone), CASE(alone_with_log), CASE(nobody), CASE(wrong_settings))
