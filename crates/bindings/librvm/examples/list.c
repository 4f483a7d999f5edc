/*
 * A list shared by processes: entries are blocks of a heap in a shared region, linked by pointers.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     gcc -o list list.c -lrvm
 *     netram shared create /var/lib/list --size 1MiB --span-size 1MiB --address 0x200000000000
 *     netram shared serve /var/lib/list --listen tcp://0.0.0.0:7440 --key-file cluster.key
 *
 *     ./list tcp://plan:7440 node-1 cluster.key add milk bread        (each process has its own directory)
 *     ./list tcp://plan:7440 node-2 cluster.key add salt
 *     ./list tcp://plan:7440 node-3 cluster.key show                  (all entries, newest first)
 *     ./list tcp://plan:7440 node-4 cluster.key take                  (removes and prints the newest entry)
 *
 * The region has an address, so a pointer is valid in every process and can be stored as it is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rvm/shared.h>

#define LOCK 0  /* covers the whole region with its heap */
#define FIRST 0 /* root of the newest entry */

struct entry {
    struct entry *next;
    char text[48];
};

static void must(rvm_return_t code)
{
    if (code != RVM_SUCCESS) {
        fprintf(stderr, "%s: %s\n", rvm_return(code), rvm_error_text());
        exit(1); /* like a crash: no change is half done, and the other processes continue */
    }
}

static rvm_txn_t begin(rvm_node_t node, rvm_hold_t hold)
{
    rvm_txn_t txn;

    must(rvm_txn_begin(node, restore, &txn));
    must(rvm_txn_acquire(txn, LOCK, hold));
    return txn;
}

static struct entry *first(rvm_txn_t txn)
{
    void *block;

    must(rvm_txn_root(txn, LOCK, FIRST, &block));
    return (struct entry *)block;
}

/* The first process makes the heap. */
static void prepare(rvm_node_t node)
{
    rvm_txn_t txn = begin(node, rvm_exclusive);
    void *block;
    rvm_return_t code = rvm_txn_root(txn, LOCK, FIRST, &block);

    if (code == RVM_ENO_HEAP)
        must(rvm_txn_format_heap(txn, LOCK));
    else
        must(code);
    must(rvm_txn_commit(txn, NULL));
}

static void add(rvm_node_t node, const char *text)
{
    rvm_txn_t txn = begin(node, rvm_exclusive);
    struct entry *entry;
    void *block;

    must(rvm_txn_malloc(txn, LOCK, sizeof *entry, &block));
    entry = (struct entry *)block;
    must(rvm_txn_set_range(txn, entry, sizeof *entry)); /* first declare the change, */
    entry->next = first(txn);                           /* then make it */
    snprintf(entry->text, sizeof entry->text, "%s", text);
    must(rvm_txn_set_root(txn, LOCK, FIRST, entry));
    must(rvm_txn_commit(txn, NULL)); /* from here on the entry is safe and visible to all */
}

static void show(rvm_node_t node)
{
    rvm_txn_t txn = begin(node, rvm_shared);
    const struct entry *entry;

    for (entry = first(txn); entry != NULL; entry = entry->next)
        puts(entry->text);
    must(rvm_txn_commit(txn, NULL));
}

/* Removes and prints the newest entry. Returns 0 if there is none. */
static int take(rvm_node_t node)
{
    rvm_txn_t txn = begin(node, rvm_exclusive);
    struct entry *entry = first(txn), was;

    if (entry != NULL) {
        was = *entry;
        must(rvm_txn_set_root(txn, LOCK, FIRST, was.next));
        must(rvm_txn_free(txn, entry));
    }
    must(rvm_txn_commit(txn, NULL));
    if (entry != NULL)
        puts(was.text);
    return entry != NULL;
}

int main(int count, char **words)
{
    rvm_join_t options;
    rvm_node_t node;
    int word, found = 1;

    if (count < 5) {
        fprintf(stderr, "%s SERVER DIRECTORY KEY_FILE add TEXT... | show | take\n", words[0]);
        return 2;
    }
    rvm_init_join(&options);
    options.server = words[1];
    options.directory = words[2];
    options.key_file = words[3];
    must(rvm_node_join(&options, &node));
    prepare(node);
    if (strcmp(words[4], "add") == 0)
        for (word = 5; word < count; word++)
            add(node, words[word]);
    else if (strcmp(words[4], "show") == 0)
        show(node);
    else
        found = take(node);
    must(rvm_node_leave(node));
    return !found;
}
