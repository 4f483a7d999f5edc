/* Starting, ending, options, logs: each return code that a test can cause. */
#include <stddef.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "check.h"

#ifdef __cplusplus
extern "C"
#endif
rvm_return_t allocate_vm(char **addr, unsigned long length);

static void version(void)
{
    EXPECT(rvm_initialize("RVM Interface Version 1.2", NULL), RVM_EVERSION_SKEW);
    EXPECT(rvm_initialize(NULL, NULL), RVM_EVERSION_SKEW);
    EXPECT(rvm_initialize("", NULL), RVM_EVERSION_SKEW);
    OK(RVM_INIT(NULL));
}

static void before(void)
{
    rvm_options_t options;
    rvm_region_t region;
    rvm_tid_t tid;
    rvm_offset_t length = RVM_MK_OFFSET(0, MIB);

    rvm_init_options(&options);
    rvm_init_region(&region);
    rvm_init_tid(&tid);
    EXPECT(rvm_terminate(), RVM_EINIT);
    EXPECT(rvm_set_options(&options), RVM_EINIT);
    EXPECT(rvm_query(&options, NULL), RVM_EINIT);
    EXPECT(rvm_map(&region, NULL), RVM_EINIT);
    EXPECT(rvm_unmap(&region), RVM_EINIT);
    EXPECT(rvm_begin_transaction(&tid, restore), RVM_EINIT);
    EXPECT(rvm_set_range(&tid, &length, 8), RVM_EINIT);
    EXPECT(rvm_modify_bytes(&tid, &length, &options, 8), RVM_EINIT);
    EXPECT(rvm_abort_transaction(&tid), RVM_EINIT);
    EXPECT(rvm_end_transaction(&tid, flush), RVM_EINIT);
    EXPECT(rvm_flush(), RVM_EINIT);
    EXPECT(rvm_truncate(), RVM_EINIT);
    EXPECT(rvm_create_log(&options, &length, 0600), RVM_EINIT);
}

static void after(void)
{
    rvm_options_t options;
    rvm_tid_t tid;
    rvm_region_t region;

    start();
    make_file("data", MIB);
    region = map("data");
    commit(region.vmaddr, 'a', 100, flush);
    OK(rvm_terminate());
    CHECK(region.vmaddr[99] == 'a');
    OK(rvm_terminate());
    EXPECT(RVM_INIT(NULL), RVM_EINIT);
    rvm_init_options(&options);
    rvm_init_tid(&tid);
    EXPECT(rvm_query(&options, NULL), RVM_EINIT);
    EXPECT(rvm_begin_transaction(&tid, restore), RVM_EINIT);
    EXPECT(rvm_flush(), RVM_EINIT);
}

static void twice(void)
{
    rvm_options_t options;

    start();
    memset(&options, 0, sizeof options);
    EXPECT(RVM_INIT(&options), RVM_EOPTIONS);
    rvm_init_options(&options);
    options.log_dev = (char *)"another";
    OK(RVM_INIT(&options));
}

static void no_log(void)
{
    rvm_options_t options;
    rvm_region_t region;
    rvm_tid_t tid;

    OK(RVM_INIT(NULL));
    rvm_init_tid(&tid);
    EXPECT(rvm_begin_transaction(&tid, restore), RVM_ELOG);
    EXPECT(rvm_flush(), RVM_ELOG);
    EXPECT(rvm_truncate(), RVM_ELOG);
    make_file("data", MIB);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";
    EXPECT(rvm_map(&region, NULL), RVM_ELOG);
    rvm_init_options(&options);
    OK(rvm_query(&options, NULL));
    CHECK(options.log_empty && options.n_uncommit == 0);
    OK(rvm_terminate());
}

/* A log opened by rvm_map(), then named again by its relative and its absolute path. */
static void named_late(void)
{
    rvm_options_t options;
    rvm_region_t region;
    rvm_offset_t length = RVM_MK_OFFSET(0, MIB);
    char name[MAXPATHLEN + 1];
    struct stat found;

    OK(RVM_INIT(NULL));
    rvm_init_options(&options);
    EXPECT(rvm_create_log(&options, &length, 0640), RVM_ELOG);
    options.log_dev = (char *)"late";
    OK(rvm_create_log(&options, &length, 0640));
    EXPECT(rvm_create_log(&options, &length, 0640), RVM_ELOG);
    CHECK(stat("late", &found) == 0 && (found.st_mode & 0777) == 0640 && found.st_size >= (off_t)MIB);
    CHECK(stat("late.view", &found) == 0 && (found.st_mode & 0777) == 0640);
    make_file("data", MIB);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";
    OK(rvm_map(&region, &options));
    OK(rvm_set_options(&options));
    CHECK(realpath("late", name) != NULL);
    options.log_dev = name;
    OK(rvm_set_options(&options));
    options.log_dev = NULL;
    OK(rvm_set_options(&options));
    options.log_dev = (char *)"other";
    EXPECT(rvm_set_options(&options), RVM_ELOG);
    options.log_dev = name;
    memset(name, 0, sizeof name);
    OK(rvm_query(&options, NULL));
    CHECK(name[0] == '/' && strcmp(name + strlen(name) - 5, "/late") == 0);
}

static void options(void)
{
    rvm_options_t wanted, found;

    start();
    EXPECT(rvm_set_options(NULL), RVM_EOPTIONS);
    memset(&wanted, 0, sizeof wanted);
    EXPECT(rvm_set_options(&wanted), RVM_EOPTIONS);
    EXPECT(rvm_query(NULL, NULL), RVM_EOPTIONS);
    EXPECT(rvm_query(&wanted, NULL), RVM_EOPTIONS);
    rvm_init_options(&wanted);
    wanted.pager = (char *)"pager";
    EXPECT(rvm_set_options(&wanted), RVM_EPAGER);
    wanted.pager = NULL;
    wanted.truncate = -1;
    wanted.flags = RVM_COALESCE_TRANS;
    wanted.max_read_len = 1000;
    wanted.recovery_buf_len = 1;
    OK(rvm_set_options(&wanted));
    rvm_init_options(&found);
    OK(rvm_query(&found, NULL));
    CHECK(found.truncate == -1 && found.flags == RVM_ALL_OPTIMIZATIONS && found.max_read_len == 512);
    CHECK(found.recovery_buf_len == 64 * 1024);
    rvm_init_options(&wanted);
    OK(rvm_set_options(&wanted));
    OK(rvm_query(&found, NULL));
    CHECK(found.flags == 0 && found.truncate == 50);
}

static void missing(void)
{
    rvm_options_t options;
    char name[MAXPATHLEN + 10];

    rvm_init_options(&options);
    options.log_dev = (char *)"nowhere";
    errno = 0;
    EXPECT(RVM_INIT(&options), RVM_EIO);
    CHECK(errno == ENOENT && strstr(rvm_error_text(), "nowhere") != NULL);
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    options.log_dev = name;
    EXPECT(RVM_INIT(&options), RVM_ENAME_TOO_LONG);
    options.log_dev = (char *)"log";
    options.create_log_file = rvm_true;
    options.create_log_size = RVM_MK_OFFSET(1, 0);
    EXPECT(RVM_INIT(&options), RVM_ETOO_BIG);
    options.create_log_size = RVM_MK_OFFSET(0, ~0ul);
    EXPECT(RVM_INIT(&options), RVM_ETOO_BIG);
    CHECK(access("log", F_OK) != 0);
    /* The original accepts a log without room; here it gets the minimum. */
    options.create_log_size = RVM_MK_OFFSET(0, 0);
    OK(RVM_INIT(&options));
    OK(rvm_terminate());
}

static void exists(void)
{
    rvm_options_t options;

    make_file("log", MIB);
    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    options.create_log_file = rvm_true;
    options.create_log_size = RVM_MK_OFFSET(0, MIB);
    EXPECT(RVM_INIT(&options), RVM_ELOG);
    options.create_log_file = rvm_false;
    EXPECT(RVM_INIT(&options), RVM_ELOG);
}

/* Whichever resource runs out: the log does not exist afterwards, and the next attempt creates it. */
static void tried_again(void)
{
    rvm_options_t options;
    struct rlimit all, few;
    rvm_return_t code = RVM_EIO;
    int refused = 0;

    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    options.create_log_file = rvm_true;
    options.create_log_size = RVM_MK_OFFSET(0, MIB);
    CHECK(getrlimit(RLIMIT_NOFILE, &all) == 0);
    few = all;
    for (few.rlim_cur = 3; few.rlim_cur < 64; few.rlim_cur++) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        code = RVM_INIT(&options);
        CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
        if (code == RVM_SUCCESS)
            break;
        CHECK(code == RVM_EIO);
        CHECK(access("log", F_OK) != 0);
        refused++;
    }
    CHECK(refused > 0);
    OK(code);
    OK(rvm_terminate());
}

/* A log of the original: the text of its status block, at the beginning of a file, or where a device has it. */
static void original(void)
{
    rvm_options_t options;
    FILE *file;
    long place;

    for (place = 0; place <= 8192; place += 8192) {
        make_file("old", MIB);
        file = fopen("old", "r+");
        CHECK(file != NULL && fseek(file, place + 40, SEEK_SET) == 0);
        CHECK(fputs("RVM Log Version  1.4 Oct 17, 1997 ", file) >= 0 && fclose(file) == 0);
        rvm_init_options(&options);
        options.log_dev = (char *)"old";
        EXPECT(RVM_INIT(&options), RVM_ELOG_VERSION_SKEW);
        CHECK(strstr(rvm_error_text(), "rvm_truncate") != NULL);
    }
}

static void in_use(void)
{
    rvm_options_t options;
    int ready[2], done[2], status;
    char byte = 0, number[32];
    pid_t child;

    CHECK(pipe(ready) == 0 && pipe(done) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        start();
        CHECK(write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1);
        OK(rvm_terminate());
        exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    EXPECT(RVM_INIT(&options), RVM_ELOG);
    snprintf(number, sizeof number, "%d", (int)child);
    CHECK(strstr(rvm_error_text(), number) != NULL);
    CHECK(write(done[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    start();
}

/* Every call of a child of fork() is refused, and its parent continues. */
static void forked(void)
{
    rvm_region_t region;
    rvm_tid_t tid;
    int status;
    pid_t child;

    start();
    make_file("data", MIB);
    region = map("data");
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 8));
    memset(region.vmaddr, 'p', 8);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        rvm_tid_t own;
        char *place = NULL;

        rvm_init_tid(&own);
        EXPECT(rvm_set_range(&tid, region.vmaddr + 8, 8), RVM_EINIT);
        EXPECT(rvm_end_transaction(&tid, flush), RVM_EINIT);
        EXPECT(rvm_abort_transaction(&tid), RVM_EINIT);
        EXPECT(rvm_begin_transaction(&own, restore), RVM_EINIT);
        EXPECT(RVM_INIT(NULL), RVM_EINIT);
        EXPECT(rvm_flush(), RVM_EINIT);
        EXPECT(rvm_truncate(), RVM_EINIT);
        EXPECT(rvm_unmap(&region), RVM_EINIT);
        EXPECT(allocate_vm(&place, MIB), RVM_EINIT);
        EXPECT(rvm_terminate(), RVM_EINIT);
        CHECK(strstr(rvm_error_text(), "child") != NULL);
        CHECK(region.vmaddr[0] == 'p');
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(rvm_end_transaction(&tid, flush));
    OK(rvm_terminate());
}

/* A name that is not UTF-8 is refused before any file is created. */
static void not_utf8(void)
{
    const char *names[] = {"log\377", "log\377.view", "log\377.key", "log\377.lock", "log\377.segments"};
    rvm_offset_t length = RVM_MK_OFFSET(0, MIB);
    rvm_options_t options;
    size_t at;

    OK(RVM_INIT(NULL));
    rvm_init_options(&options);
    options.log_dev = (char *)names[0];
    errno = 0;
    EXPECT(rvm_create_log(&options, &length, 0600), RVM_EIO);
    CHECK(errno == EILSEQ && strstr(rvm_error_text(), "UTF-8") != NULL);
    for (at = 0; at < sizeof names / sizeof names[0]; at++)
        CHECK(access(names[at], F_OK) != 0 && errno == ENOENT);
}

/*
 * Regression: a signal that interrupted fallocate made the creation of a log fail. Here the kernel's filter of system
 * calls interrupts every one, because few file systems are slow enough for a real signal.
 */
static void interrupted(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINTR),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    rvm_offset_t length = RVM_MK_OFFSET(0, 4 * MIB);
    rvm_options_t options;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        fprintf(stderr, "SKIPPED: no filter of system calls can be had here\n");
        return;
    }
    OK(RVM_INIT(NULL));
    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    OK(rvm_create_log(&options, &length, 0600));
    OK(rvm_set_options(&options));
    OK(rvm_terminate());
}

MAIN(CASE(version), CASE(before), CASE(after), CASE(twice), CASE(no_log), CASE(named_late), CASE(options),
     CASE(missing), CASE(exists), CASE(tried_again), CASE(original), CASE(in_use), CASE(forked), CASE(not_utf8),
     CASE(interrupted))
