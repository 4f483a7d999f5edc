/* Programs that die: acknowledged commits survive, and none survives in part. */
#include <signal.h>

#include "check.h"

#define LAST (900 * 1024)

/* The number of a transaction is stored at both ends of the region. */
static void put(rvm_region_t *region, unsigned long number, rvm_mode_t mode)
{
    rvm_tid_t tid;

    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, no_restore));
    OK(rvm_modify_bytes(&tid, region->vmaddr, &number, sizeof number));
    OK(rvm_set_range(&tid, region->vmaddr + 8, 3000));
    memset(region->vmaddr + 8, (int)(number % 251), 3000);
    OK(rvm_modify_bytes(&tid, region->vmaddr + LAST, &number, sizeof number));
    OK(rvm_end_transaction(&tid, mode));
}

static unsigned long get(rvm_region_t *region)
{
    unsigned long first, last, at;

    memcpy(&first, region->vmaddr, sizeof first);
    memcpy(&last, region->vmaddr + LAST, sizeof last);
    CHECK(first == last);
    for (at = 0; at < 3000; at++)
        CHECK((unsigned char)region->vmaddr[8 + at] == first % 251);
    return first;
}

/* Prints each number after its commit, until it is killed. Every fourth commit waits. */
static void run(void)
{
    rvm_region_t region;
    unsigned long number;

    if (access("data", F_OK) != 0)
        make_file("data", MIB);
    start();
    region = map("data");
    for (number = get(&region) + 1;; number++) {
        put(&region, number, number % 4 == 0 ? flush : no_flush);
        if (number % 4 == 0) {
            printf("%lu\n", number);
            fflush(stdout);
        }
    }
}

/* Prints the number found. */
static void look(void)
{
    rvm_region_t region;

    start();
    region = map("data");
    printf("%lu\n", get(&region));
}

/* Commits the next number. */
static void add(void)
{
    rvm_region_t region;

    start();
    region = map("data");
    put(&region, get(&region) + 1, flush);
}

/* Ends without terminating the library, after five hundred commits without a flush. */
static void leave(void)
{
    rvm_region_t region;
    unsigned long number;

    make_file("data", MIB);
    start();
    region = map("data");
    for (number = 1; number <= 1500; number++)
        put(&region, number, number <= 1000 ? flush : no_flush);
    _exit(0);
}

static void leave_after(void)
{
    rvm_region_t region;

    start();
    region = map("data");
    CHECK(get(&region) >= 1000 && get(&region) <= 1500);
    OK(rvm_terminate());
}

/* An open transaction is lost; one that rvm_flush() flushed survives. */
static void open_at_the_end(void)
{
    rvm_region_t region;
    rvm_tid_t tid;

    make_file("data", MIB);
    start();
    region = map("data");
    put(&region, 7, no_flush);
    OK(rvm_flush());
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    OK(rvm_set_range(&tid, region.vmaddr, 8));
    memset(region.vmaddr, 0xff, 8);
    raise(SIGKILL);
}

static void open_after(void)
{
    rvm_region_t region;

    start();
    region = map("data");
    CHECK(get(&region) == 7);
}

/* rvm_terminate() makes every commit safe, also without a flush. */
static void ends_well(void)
{
    rvm_region_t region;

    make_file("data", MIB);
    start();
    region = map("data");
    put(&region, 7, no_flush);
    OK(rvm_terminate());
    _exit(0);
}

MAIN(CASE(run), CASE(look), CASE(add), CASE(leave), CASE(leave_after), CASE(open_at_the_end), CASE(open_after), CASE(ends_well))
