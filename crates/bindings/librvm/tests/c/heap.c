/* The persistent heap. */
#include "heap.h"

#include <pthread.h>
#include <signal.h>

/* After a start, committed blocks are at the same addresses, and uncommitted ones are gone. */
static void make(void)
{
    char *data;
    char **kept, *lost;
    rvm_tid_t tid;

    start();
    zap();
    data = load();
    tid = begin(restore);
    kept = (char **)allocate(3 * sizeof(char *), &tid);
    OK(rvm_set_range(&tid, kept, 3 * sizeof(char *)));
    kept[0] = allocate(100, &tid);
    kept[1] = allocate(5000, &tid);
    kept[2] = allocate(200000, &tid);
    OK(rvm_set_range(&tid, kept[2], 4));
    memcpy(kept[2], "kept", 4);
    OK(rvm_set_range(&tid, data, sizeof kept));
    memcpy(data, &kept, sizeof kept);
    OK(rvm_end_transaction(&tid, flush));

    tid = begin(restore);
    lost = allocate(100, &tid);
    CHECK(lost != kept[0]);
    CHECK(rds_free(kept[1], &tid, NULL) == 0);
    OK(rvm_abort_transaction(&tid));
    CHECK(allocate(100, NULL) == lost);
    ERR(rds_free(lost, NULL, &err), SUCCESS);
    unload();
    OK(rvm_terminate());
}

static void made(void)
{
    char *data, **kept;
    unsigned long before;

    start();
    data = load();
    memcpy(&kept, data, sizeof kept);
    CHECK(memcmp(kept[2], "kept", 4) == 0);
    before = taken();
    CHECK(before >= 205124 && before < 205124 + 205124 / 8);
    ERR(rds_free(kept[0], NULL, &err), SUCCESS);
    ERR(rds_free(kept[1], NULL, &err), SUCCESS);
    ERR(rds_free(kept[2], NULL, &err), SUCCESS);
    ERR(rds_free(kept, NULL, &err), SUCCESS);
    CHECK(taken() == 0);
    CHECK(rds_maxblock(HEAP_BYTES * 9 / 10) == 1);
    CHECK(rds_maxblock(HEAP_BYTES) == 0);
    unload();
    OK(rvm_terminate());
}

static void codes(void)
{
    char *block, *data = NULL;
    rds_stats_t stats;
    intentionList_t list = {0, 0, NULL};
    rvm_tid_t tid, never;

    ERR(rds_malloc(8, NULL, &err), EHEAP_INIT);
    start();
    CHECK(rds_malloc(8, NULL, NULL) == NULL);
    ERR(rds_malloc(8, NULL, &err), EHEAP_INIT);
    ERR(rds_free(PLACE, NULL, &err), EHEAP_INIT);
    ERR(rds_unload_heap(&err), EHEAP_INIT);
    ERR(rds_stop_heap(&err), EHEAP_INIT);
    CHECK(rds_maxblock(1) == 0);
    CHECK(rds_get_stats(&stats) == EHEAP_INIT);
    CHECK(rds_fake_free(PLACE, &list) == EHEAP_INIT);

    ERR(rds_load_heap("heap", size_of_file(), &data, &err), RVM_EIO);
    make_file("heap", FILE_BYTES);
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), RVM_ESEGMENT_HDR);
    ERR(rds_zap_heap("heap", size_of_file(), PLACE, 1, HEAP_BYTES, 0, 64, &err), EBAD_ARGS);
    ERR(rds_zap_heap("heap", size_of_file(), PLACE, 1, HEAP_BYTES, 80, 0, &err), EBAD_ARGS);
    ERR(rds_zap_heap(NULL, size_of_file(), PLACE, 1, HEAP_BYTES, 80, 64, &err), EBAD_ARGS);
    ERR(rds_zap_heap("heap", size_of_file(), PLACE, 1, 4096, 80, 64, &err), EBAD_ARGS);
    ERR(rds_zap_heap("heap", size_of_file(), PLACE + 8, 1, HEAP_BYTES, 80, 64, &err), RVM_ERANGE);
    ERR(rds_zap_heap("heap", size_of_file(), PLACE, 8 * MIB, HEAP_BYTES, 80, 64, &err), RVM_EOFFSET);
    CHECK(rds_rvmsize == 0);
    zap();
    load();
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), EHEAP_INIT);
    ERR(rds_start_heap(PLACE, &err), EHEAP_INIT);
    /* A loaded segment keeps its header, whatever address is passed, and its heap. */
    ERR(rds_zap_heap("heap", size_of_file(), PLACE + 64 * MIB, 1, HEAP_BYTES, 80, 64, &err), RVM_EOVERLAP);
    ERR(rds_init_heap(PLACE, HEAP_BYTES, 64, 80, NULL, &err), EHEAP_INIT);

    ERR(rds_malloc(2 * HEAP_BYTES, NULL, &err), ENO_ROOM);
    ERR(rds_malloc(~0ul, NULL, &err), ENO_ROOM);
    block = allocate(100, NULL);
    ERR(rds_free(NULL, NULL, &err), EBAD_ARGS);
    ERR(rds_free(block + 1, NULL, &err), EBAD_ARGS);
    ERR(rds_free(PLACE - 16, NULL, &err), EBAD_ARGS);
    ERR(rds_free(PLACE + HEAP_BYTES, NULL, &err), EBAD_ARGS);
    ERR(rds_free(block + 16, NULL, &err), ECORRUPT);
    ERR(rds_free(block, NULL, &err), SUCCESS);
    ERR(rds_free(block, NULL, &err), EFREED_TWICE);
    CHECK(rds_free(block, NULL, NULL) == -1);

    rvm_init_tid(&never);
    ERR(rds_malloc(8, &never, &err), RVM_ETID);
    tid = begin(restore);
    block = allocate(100, &tid);
    ERR(rds_free(block, NULL, &err), RVM_EUNCOMMIT);
    ERR(rds_unload_heap(&err), RVM_EUNCOMMIT);
    OK(rvm_end_transaction(&tid, no_flush));
    ERR(rds_malloc(8, &tid, &err), RVM_ETID);
    ERR(rds_free(block, NULL, &err), SUCCESS);
    CHECK(rds_get_stats(NULL) == EBAD_ARGS);
    CHECK(rds_fake_free(PLACE, NULL) == EBAD_ARGS);
    unload();
    ERR(rds_malloc(8, NULL, &err), EHEAP_INIT);
    OK(rvm_terminate());
}

/* Changes of an aborted transaction without restoring are not part of the heap. */
static void no_restore_abort(void)
{
    char *block, *kept;
    rvm_tid_t tid;

    start();
    zap();
    load();
    kept = allocate(64, NULL);
    tid = begin(no_restore);
    block = allocate(64, &tid);
    ERR(rds_free(kept, &tid, &err), SUCCESS);
    OK(rvm_abort_transaction(&tid));
    ERR(rds_free(block, NULL, &err), EFREED_TWICE);
    ERR(rds_free(kept, NULL, &err), SUCCESS);
    unload();
    OK(rvm_terminate());
}

static void intentions(void)
{
    char *blocks[100];
    intentionList_t list = {0, 0, NULL};
    int i;

    start();
    zap();
    load();
    for (i = 0; i < 100; i++)
        blocks[i] = allocate(40, NULL);
    for (i = 0; i < 100; i++)
        CHECK(rds_fake_free(blocks[i], &list) == SUCCESS);
    CHECK(rds_fake_free(blocks[0] + 8, &list) == EBAD_ARGS);
    CHECK(list.count == 100 && list.size == 128 && list.table[99] == blocks[99]);
    CHECK(taken() == 100 * 48);
    CHECK(rds_do_free(&list, restore) == RVM_EMODE);
    CHECK(rds_do_free(&list, flush) == SUCCESS);
    CHECK(list.count == 0 && list.table == NULL);
    CHECK(taken() == 0);
    CHECK(rds_do_free(&list, no_flush) == SUCCESS);

    /* All or nothing. */
    blocks[0] = allocate(40, NULL);
    CHECK(rds_fake_free(blocks[0], &list) == SUCCESS);
    CHECK(rds_fake_free(blocks[0], &list) == SUCCESS);
    CHECK(rds_do_free(&list, no_flush) == EFREED_TWICE);
    CHECK(taken() == 48 && list.count == 2);
    free(list.table);
    unload();
    OK(rvm_terminate());
}

static void figures(void)
{
    rds_stats_t stats;
    char line[200];
    FILE *file;
    int lines = 0;

    start();
    zap();
    load();
    CHECK(rds_trace_on(NULL) == EBAD_ARGS);
    CHECK((file = fopen("trace", "w+")) != NULL);
    CHECK(rds_trace_on(file) == SUCCESS && rds_tracing && rds_tracing_file == file);
    ERR(rds_prealloc(100, 50, NULL, &err), SUCCESS);
    ERR(rds_free(allocate(100, NULL), NULL, &err), SUCCESS);
    CHECK(rds_malloc(2 * HEAP_BYTES, NULL, NULL) == NULL);
    CHECK(rds_trace_dump_heap() == SUCCESS);
    RDS_LOG("the program's own line, %d\n", 7);
    CHECK(rds_trace_off() == SUCCESS && !rds_tracing);
    allocate(100, NULL);
    rewind(file);
    while (fgets(line, sizeof line, file))
        lines++;
    CHECK(lines >= 7);
    CHECK(strcmp(line, "the program's own line, 7\n") == 0);
    fclose(file);

    CHECK(rds_get_stats(&stats) == SUCCESS);
    CHECK(stats.malloc == 2 && stats.free == 1 && stats.prealloc == 50);
    CHECK(stats.large_misses == 1 && stats.mallocbytes == 112);
    CHECK(stats.freebytes > HEAP_BYTES * 9 / 10 && stats.freebytes < HEAP_BYTES);
    ERR(rds_clear_stats(&err), SUCCESS);
    CHECK(rds_get_stats(&stats) == SUCCESS);
    CHECK(stats.malloc == 0 && stats.free == 0 && stats.prealloc == 0);
    CHECK(stats.mallocbytes == 112);
    CHECK(rds_print_stats() == 0);
    print_heap();
    unload();
    print_heap();
    OK(rvm_terminate());
}

/* Memory of the process at the heap's address is not replaced. */
static void occupied(void)
{
    char *mine, *data = NULL;

    start();
    zap();
    mine = (char *)mmap(PLACE + 64 * 4096, 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(mine == PLACE + 64 * 4096);
    strcpy(mine, "mine");
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), RVM_EINTERNAL);
    CHECK(strcmp(mine, "mine") == 0);
    CHECK(munmap(mine, 4096) == 0);
    load();
    unload();
    OK(rvm_terminate());
}

/* Writes bytes to the segment's file. */
static void damage(unsigned long at, const char *bytes, unsigned long count)
{
    int file = open("heap", O_RDWR);

    CHECK(file >= 0);
    CHECK(pwrite(file, bytes, count, (off_t)at) == (ssize_t)count);
    CHECK(close(file) == 0);
}

static void damaged(void)
{
    const char original[] = "Dynamic Allocator Using Rvm Release 0.1 1 Dec 1990";
    char *data = NULL, *block;

    start();
    zap();
    damage(4096 + 20, "\xff", 1); /* in the heap's header */
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), ECORRUPT);
    zap();
    damage(4096 + 4096 + 8 * 100, "\xff", 1); /* a page's descriptor */
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), ECORRUPT);
    zap();
    damage(4096, original, sizeof original); /* the original's heap */
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), EHEAP_VERSION_SKEW);
    zap();
    damage(4, "X", 1); /* the segment's header */
    ERR(rds_load_heap("heap", size_of_file(), &data, &err), RVM_EVERSION_SKEW);

    zap();
    load();
    block = allocate(100, NULL);
    unload();
    damage(4096 + (unsigned long)(block - PLACE) / 4096 * 4096, "\xff", 1); /* a run's header */
    load();
    ERR(rds_malloc(100, NULL, &err), ECORRUPT);
    CHECK(rds_malloc(4096, NULL, NULL) != NULL);
    unload();
    OK(rvm_terminate());
}

/* A heap in memory that the program mapped itself. */
static void own_region(void)
{
    rvm_region_t region;
    char *block, *base;
    rvm_tid_t tid;

    start();
    make_file("data", MIB);
    region = map("data");
    base = region.vmaddr + 8192 + 32;
    ERR(rds_start_heap(base, &err), EHEAP_VERSION_SKEW);
    ERR(rds_start_heap((char *)&region, &err), RVM_ENOT_MAPPED);
    tid = begin(restore);
    ERR(rds_init_heap(base, 2 * MIB, 64, 80, &tid, &err), RVM_ENOT_MAPPED);
    ERR(rds_init_heap(base + 8, MIB / 2, 64, 80, &tid, &err), EBAD_ARGS);
    ERR(rds_init_heap(base, 5000, 64, 80, &tid, &err), EBAD_ARGS);
    ERR(rds_init_heap(base, MIB / 2, 48, 80, &tid, &err), SUCCESS); /* parameters that crash the original */
    OK(rvm_end_transaction(&tid, flush));
    ERR(rds_start_heap(base, &err), SUCCESS);
    tid = begin(restore);
    block = (char *)rds_malloc(1000, &tid, NULL);
    CHECK(block != NULL);
    ERR(rds_stop_heap(&err), SUCCESS);
    ERR(rds_start_heap(base, &err), RVM_EUNCOMMIT); /* its changes may still be undone */
    OK(rvm_abort_transaction(&tid));
    ERR(rds_start_heap(base, &err), SUCCESS);
    ERR(rds_unload_heap(&err), EBAD_SEGMENT_HDR);
    block = (char *)rds_malloc(1000, NULL, NULL);
    CHECK(block > base && block + 1000 <= base + MIB / 2);
    ERR(rds_free(block, NULL, &err), SUCCESS);
    EXPECT(rvm_unmap(&region), RVM_EUNCOMMIT);
    ERR(rds_stop_heap(&err), SUCCESS);
    OK(rvm_unmap(&region));
    region = map("data");
    ERR(rds_start_heap(region.vmaddr + 8192 + 32, &err), SUCCESS);
    OK(rvm_terminate()); /* with a started heap */
    ERR(rds_malloc(8, NULL, &err), EHEAP_INIT);
}

/* ---------------------------------------------------------------- threads */

#define THREADS 4
#define BLOCKS 50

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    char *blocks[BLOCKS];
    unsigned long sizes[BLOCKS];
    int i, round;

    memset(blocks, 0, sizeof blocks);
    memset(sizes, 0, sizeof sizes);
    for (round = 0; round < 500; round++) {
        rvm_tid_t tid = begin(round % 3 ? restore : no_restore);
        unsigned long size;
        char *before, *now = NULL;

        i = rand_r(&seed) % BLOCKS;
        before = blocks[i];
        size = 1 + (unsigned long)rand_r(&seed) % 700;
        if (before) {
            CHECK(before[0] == i + 1 && before[sizes[i] - 1] == i + 1);
            CHECK(rds_free(before, &tid, NULL) == 0);
        } else {
            now = allocate(size, &tid);
            OK(rvm_set_range(&tid, now, size));
            memset(now, i + 1, size);
        }
        if (rand_r(&seed) % 4 == 0) {
            OK(rvm_abort_transaction(&tid));
            continue;
        }
        OK(rvm_end_transaction(&tid, round % 50 ? no_flush : flush));
        blocks[i] = now;
        sizes[i] = now ? size : 0;
    }
    for (i = 0; i < BLOCKS; i++)
        if (blocks[i]) {
            CHECK(blocks[i][0] == i + 1 && blocks[i][sizes[i] - 1] == i + 1);
            CHECK(rds_free(blocks[i], NULL, NULL) == 0);
        }
    return NULL;
}

static void threads(void)
{
    pthread_t workers[THREADS];
    uintptr_t i;

    start();
    zap();
    load();
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i], NULL, work, (void *)(i + 1)) == 0);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    CHECK(taken() == 0);
    unload();
    OK(rvm_terminate());
}

/* ------------------------------------------------------------------ crash */

/* A list: newest first, with consecutive numbers. Each node is as large as its block. */
typedef struct node {
    struct node *next;
    unsigned long number;
    unsigned long check[10];
} node_t;

#define MIXED(number, i) ((number) * 2654435761ul + (i))
#define LENGTH 500

/* Pushes nodes and drops the oldest ones, until it is killed. Prints each acknowledged number. */
static void push(int told)
{
    node_t **head = (node_t **)load();
    node_t *node, *last;
    unsigned long number = *head ? (*head)->number : 0, length = 0;

    for (node = *head; node; node = node->next)
        length++;
    for (;;) {
        rvm_tid_t tid = begin(restore);
        int i;

        node = (node_t *)allocate(sizeof *node, &tid);
        OK(rvm_set_range(&tid, node, sizeof *node));
        node->next = *head;
        node->number = ++number;
        for (i = 0; i < 10; i++)
            node->check[i] = MIXED(number, (unsigned long)i);
        OK(rvm_set_range(&tid, head, sizeof *head));
        *head = node;
        if (++length > LENGTH) {
            for (last = *head; last->next->next; last = last->next)
                ;
            CHECK(rds_free(last->next, &tid, NULL) == 0);
            OK(rvm_set_range(&tid, &last->next, sizeof last->next));
            last->next = NULL;
            length--;
        }
        OK(rvm_end_transaction(&tid, number % 3 ? no_flush : flush));
        if (number % 3 == 0)
            CHECK(write(told, &number, sizeof number) == sizeof number);
    }
}

static void killed(void)
{
    unsigned long acknowledged = 0, number, length = 0;
    unsigned seed = (unsigned)getpid();
    node_t *node;
    int round;

    for (round = 0; round < 6; round++) {
        int pipes[2], status;
        pid_t child;
        unsigned long wanted = acknowledged + 1 + (unsigned long)rand_r(&seed) % 2000;

        CHECK(pipe(pipes) == 0);
        CHECK((child = fork()) >= 0);
        if (child == 0) {
            close(pipes[0]);
            start();
            if (round == 0)
                zap();
            push(pipes[1]);
        }
        close(pipes[1]);
        while (acknowledged < wanted) {
            CHECK(read(pipes[0], &number, sizeof number) == sizeof number);
            acknowledged = number;
        }
        CHECK(kill(child, SIGKILL) == 0);
        while (read(pipes[0], &number, sizeof number) == sizeof number)
            acknowledged = number;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        close(pipes[0]);
    }
    start();
    node = *(node_t **)load();
    CHECK(node != NULL && node->number >= acknowledged);
    for (number = node->number; node; node = node->next, number--) {
        int i;

        CHECK(node->number == number);
        for (i = 0; i < 10; i++)
            CHECK(node->check[i] == MIXED(number, (unsigned long)i));
        length++;
    }
    CHECK(length <= LENGTH);
    CHECK(number == 0 || length == LENGTH);
    /* No block is lost: all allocated blocks are in the list. */
    CHECK(taken() == sizeof(node_t) * length);
    unload();
    OK(rvm_terminate());
}

/* A heap of `netram rvm heap`: empty, with zeroed data behind it; used like any other. */
static void made_by_its_tool(void)
{
    char *data, *block;
    rvm_tid_t tid;
    unsigned long at;

    start();
    data = load();
    CHECK(data == PLACE + HEAP_BYTES);
    if (data[0] == 0) {
        for (at = 0; at < STATIC_BYTES; at++)
            CHECK(data[at] == 0);
        CHECK(taken() == 0);
        tid = begin(restore);
        block = allocate(100, &tid);
        CHECK(block > PLACE && block < data);
        OK(rvm_modify_bytes(&tid, block, "kept", 5));
        OK(rvm_modify_bytes(&tid, data, "+", 1));
        OK(rvm_modify_bytes(&tid, data + 8, &block, sizeof block));
        OK(rvm_end_transaction(&tid, flush));
    } else {
        memcpy(&block, data + 8, sizeof block);
        CHECK(strcmp(block, "kept") == 0);
        ERR(rds_free(block, NULL, &err), SUCCESS);
        CHECK(taken() == 0);
    }
    unload();
    OK(rvm_terminate());
}

MAIN(CASE(make), CASE(made), CASE(codes), CASE(no_restore_abort), CASE(intentions), CASE(figures), CASE(occupied),
     CASE(damaged), CASE(own_region), CASE(threads), CASE(killed), CASE(made_by_its_tool))
