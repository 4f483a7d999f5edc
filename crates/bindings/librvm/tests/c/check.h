/* Helpers of the test programs. Each case runs in a process of its own: `program case directory`. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rvm/netram.h>
#include <rvm/rvm.h>

/* Ends the program if `what` is false. */
#define CHECK(what) check((what) != 0, #what, __FILE__, __LINE__)
/* Ends the program if the call does not return the code. */
#define EXPECT(call, code) expect((call), (code), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(call, RVM_SUCCESS)

#define MIB (1024ul * 1024ul)

/* Seconds after which a running case is ended, so that no test waits forever. */
#define HANGS_AFTER 240

static inline void check(int holds, const char *what, const char *file, int line)
{
    if (!holds) {
        fprintf(stderr, "%s:%d: is false: %s (errno %d, %s)\n", file, line, what, errno, rvm_error_text());
        exit(1);
    }
}

static inline void expect(rvm_return_t got, rvm_return_t wanted, const char *call, const char *file, int line)
{
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s: %s, not %s: %s\n", file, line, call, rvm_return(got), rvm_return(wanted),
                rvm_error_text());
        exit(1);
    }
    if (got != RVM_SUCCESS)
        check(rvm_error_text()[0] != 0, "a failure has a message", file, line);
}

/* A file of `bytes` zeros. */
static inline void make_file(const char *name, unsigned long bytes)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    CHECK(ftruncate(file, (off_t)bytes) == 0);
    CHECK(close(file) == 0);
}

/* Starts the library with a log in this directory, created if it does not exist. */
static inline void start_flags(unsigned long flags)
{
    rvm_options_t options;

    rvm_init_options(&options);
    options.log_dev = (char *)"log";
    options.flags = flags;
    options.create_log_file = access("log", F_OK) == 0 ? rvm_false : rvm_true;
    options.create_log_size = RVM_MK_OFFSET(0, 4 * MIB);
    OK(RVM_INIT(&options));
}

static inline void start(void)
{
    start_flags(RVM_ALL_OPTIMIZATIONS);
}

/* Maps all of a segment. */
static inline rvm_region_t map(const char *segment)
{
    rvm_region_t region;

    rvm_init_region(&region);
    region.data_dev = (char *)segment;
    OK(rvm_map(&region, NULL));
    CHECK(region.vmaddr != NULL);
    return region;
}

/* Commits `length` bytes of `byte` at `base`. */
static inline void commit(char *base, int byte, unsigned long length, rvm_mode_t mode)
{
    rvm_tid_t tid;

    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, base, length));
    memset(base, byte, length);
    OK(rvm_end_transaction(&tid, mode));
    CHECK(tid.tid == NULL);
}

/* Runs the case that argv[1] names, in the directory argv[2]. */
typedef struct {
    const char *name;
    void (*run)(void);
} test_case_t;

static inline int run_case(int argc, char **argv, const test_case_t *cases)
{
    CHECK(argc == 3);
    CHECK(chdir(argv[2]) == 0);
    alarm(HANGS_AFTER);
    for (; cases->name != NULL; cases++) {
        if (strcmp(cases->name, argv[1]) == 0) {
            cases->run();
            return 0;
        }
    }
    fprintf(stderr, "no case %s\n", argv[1]);
    return 2;
}

/* Prints the names of all cases, for the harness: `program`. */
#define MAIN(...)                                                         \
    int main(int argc, char **argv)                                       \
    {                                                                     \
        static const test_case_t cases[] = {__VA_ARGS__, {NULL, NULL}};   \
        const test_case_t *it = cases;                                    \
        if (argc == 1) {                                                  \
            for (; it->name != NULL; it++)                                \
                puts(it->name);                                           \
            return 0;                                                     \
        }                                                                 \
        return run_case(argc, argv, cases);                               \
    }
#define CASE(name) {#name, name}

#endif
