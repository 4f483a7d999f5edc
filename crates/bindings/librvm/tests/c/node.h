/*
 * Helpers of programs on shared regions. The server listens at $SERVER; the directory contains cluster.key. Lock N
 * covers page N.
 */
#ifndef NODE_H
#define NODE_H

#include "check.h"

#include <rvm/shared.h>

#define PAGE 4096ul
/* Limit of waits in a test, longer than any step on a busy machine. */
#define PATIENCE_MS 60000

/* A node and the address of its copy. */
typedef struct {
    rvm_node_t node;
    char *base;
    unsigned long id;
} place_t;

static inline rvm_join_t options_of(const char *directory)
{
    rvm_join_t options;

    rvm_init_join(&options);
    CHECK(options.lock_timeout_ms == 10000 && options.patience_ms == 30000);
    options.server = getenv("SERVER");
    options.directory = directory;
    options.key_file = "cluster.key";
    options.wait = getenv("WAIT");
    options.log_bytes = 4 * MIB;
    options.lock_timeout_ms = PATIENCE_MS;
    options.patience_ms = PATIENCE_MS;
    return options;
}

static inline place_t join(const char *directory)
{
    rvm_join_t options = options_of(directory);
    rvm_node_info_t info;
    place_t place;

    OK(rvm_node_join(&options, &place.node));
    OK(rvm_node_info(place.node, &info));
    CHECK(info.vmaddr != NULL && info.length == info.spans * PAGE && info.id != 0);
    place.base = info.vmaddr;
    place.id = info.id;
    return place;
}

static inline unsigned long *counter(place_t *place, unsigned lock)
{
    return (unsigned long *)(void *)(place->base + lock * PAGE);
}

static inline rvm_txn_t begin(place_t *place)
{
    rvm_txn_t txn;

    OK(rvm_txn_begin(place->node, restore, &txn));
    return txn;
}

/* Adds one to the counter under a lock. Returns its new value. */
static inline unsigned long add(place_t *place, unsigned lock)
{
    rvm_txn_t txn = begin(place);
    unsigned long value;

    OK(rvm_txn_acquire(txn, lock, rvm_exclusive));
    OK(rvm_txn_set_range(txn, counter(place, lock), sizeof value));
    value = ++*counter(place, lock);
    OK(rvm_txn_commit(txn, NULL));
    return value;
}

/* The present value of the counter under a lock. */
static inline unsigned long get(place_t *place, unsigned lock)
{
    rvm_txn_t txn = begin(place);
    rvm_record_t record = {7, 7};
    unsigned long value;

    OK(rvm_txn_acquire(txn, lock, rvm_shared));
    value = *counter(place, lock);
    OK(rvm_txn_commit(txn, &record));
    CHECK(record.number == 0);
    return value;
}

#endif
