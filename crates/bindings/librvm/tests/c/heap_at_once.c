/* The persistent heap with calls in other threads. */
#include "heap.h"

#include <pthread.h>
#include <sched.h>

#define AT_ONCE 3
#define LOOKS 2000

/* Allocates and frees in transactions of the calls' own, until the library has ended. */
static void *churn(void *nothing)
{
    for (;;) {
        int err = 1;
        char *block = (char *)rds_malloc(64, NULL, &err);

        if (block == NULL) {
            CHECK(err == RVM_EINIT || err == EHEAP_INIT);
            return nothing;
        }
        if (rds_free(block, NULL, &err) != 0)
            CHECK(err == RVM_EINIT || err == EHEAP_INIT);
    }
}

/* Ends the library as soon as no transaction is open. */
static void end_beside(void)
{
    rvm_return_t code;

    while ((code = rvm_terminate()) != RVM_SUCCESS) {
        CHECK(code == RVM_EUNCOMMIT);
        usleep(100);
    }
}

/* The library ends while calls wait for the log and hold the heap. */
static void ended(void)
{
    pthread_t workers[AT_ONCE];
    int i;

    start();
    zap();
    load();
    for (i = 0; i < AT_ONCE; i++)
        CHECK(pthread_create(&workers[i], NULL, churn, NULL) == 0);
    usleep(20000);
    end_beside();
    for (i = 0; i < AT_ONCE; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
}

/* The owner of each block. */
static unsigned char owned[HEAP_BYTES / 16];
static int running;

static unsigned char *owner(char *block)
{
    return &owned[(block - PLACE) / 16];
}

/* No heap is loaded at the moment. */
static void gone(int err)
{
    CHECK(err == EHEAP_INIT);
    sched_yield();
}

/* Allocates blocks that no other thread has, and frees them, while the heap is loaded and unloaded. */
static void *own_blocks(void *rounds)
{
    uintptr_t i;

    for (i = 0; i < (uintptr_t)rounds; i++) {
        char *blocks[8];
        int err, at;

        for (at = 0; at < 8; at++) {
            while ((blocks[at] = (char *)rds_malloc(64, NULL, &err)) == NULL)
                gone(err);
            CHECK(__atomic_exchange_n(owner(blocks[at]), 1, __ATOMIC_SEQ_CST) == 0);
        }
        for (at = 0; at < 8; at++) {
            __atomic_store_n(owner(blocks[at]), 0, __ATOMIC_SEQ_CST);
            while (rds_free(blocks[at], NULL, &err) != 0)
                gone(err);
        }
        usleep(200); /* so that the heap is idle at times */
    }
    __atomic_fetch_sub(&running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void restart(void)
{
    int err = 1;

    rds_stop_heap(&err);
    CHECK(err == SUCCESS || err == RVM_EUNCOMMIT);
    if (err == SUCCESS)
        ERR(rds_start_heap(PLACE, &err), SUCCESS);
}

static void reload(void)
{
    int err = 1;

    rds_unload_heap(&err);
    CHECK(err == SUCCESS || err == RVM_EUNCOMMIT);
    if (err == SUCCESS)
        load();
}

static void beside_owners(void (*act)(void), uintptr_t rounds)
{
    pthread_t workers[AT_ONCE];
    int i;

    start();
    zap();
    load();
    running = AT_ONCE;
    for (i = 0; i < AT_ONCE; i++)
        CHECK(pthread_create(&workers[i], NULL, own_blocks, (void *)rounds) == 0);
    while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0) {
        act();
        usleep(50);
    }
    for (i = 0; i < AT_ONCE; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    act();
    CHECK(taken() == 0);
}

/* A heap in use by other threads is neither stopped nor unloaded: a second one would allocate the same blocks. */
static void stopped(void)
{
    beside_owners(restart, 300);
    ERR(rds_stop_heap(&err), SUCCESS);
    OK(rvm_terminate());
}

static void unloaded(void)
{
    beside_owners(reload, 300);
    unload();
    OK(rvm_terminate());
}

/* A heap that cannot be unloaded stays loaded. */
static void not_unloaded(void)
{
    rvm_region_t statics;
    char *block;

    start();
    zap();
    rvm_init_region(&statics);
    statics.vmaddr = load();
    statics.length = STATIC_BYTES;
    block = allocate(100, NULL);
    OK(rvm_unmap(&statics));
    ERR(rds_unload_heap(&err), RVM_ENOT_MAPPED);
    ERR(rds_free(block, NULL, &err), SUCCESS);
    block = allocate(100, NULL);
    CHECK(taken() >= 100);
    OK(rvm_terminate());
}

static void *clear(void *rounds)
{
    uintptr_t i;

    for (i = 0; i < (uintptr_t)rounds; i++) {
        int err = 1;
        CHECK(rds_clear_stats(&err) == 0);
        CHECK(err == SUCCESS);
    }
    return NULL;
}

static void *look(void *rounds)
{
    uintptr_t i;

    for (i = 0; i < (uintptr_t)rounds; i++) {
        rds_long_stats_t stats;

        CHECK(rds_get_long_stats(&stats) == SUCCESS);
        CHECK(stats.malloc < UINT32_MAX && stats.free < UINT32_MAX);
    }
    return NULL;
}

/* Statistics are never negative, even if another thread clears them. */
static void cleared(void)
{
    void *(*const work_of[AT_ONCE])(void *) = {clear, look, churn};
    pthread_t workers[AT_ONCE];
    int i;

    start();
    zap();
    load();
    for (i = 0; i < AT_ONCE; i++)
        CHECK(pthread_create(&workers[i], NULL, work_of[i], (void *)(uintptr_t)LOOKS) == 0);
    for (i = 0; i < 2; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    end_beside();
    CHECK(pthread_join(workers[2], NULL) == 0);
}

MAIN(CASE(ended), CASE(cleared), CASE(stopped), CASE(unloaded), CASE(not_unloaded))
