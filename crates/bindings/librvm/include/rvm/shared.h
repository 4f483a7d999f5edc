/*
 * Shared regions: one memory in several processes, on one machine or many, changed in transactions under locks. A commit
 * is safe when it is in the lenders' memories; the same record brings the other copies up to date. What that means, and
 * what it survives, is in docs/design/shared.md. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program:
 *
 *     rvm_join_t options;
 *     rvm_node_t node;
 *     rvm_txn_t txn;
 *     rvm_record_t record;
 *     rvm_node_info_t info;
 *
 *     rvm_init_join(&options);
 *     options.server = "tcp://plan:7440";              (where `netram shared serve` listens)
 *     options.directory = "/var/lib/plan/node-1";      (this process's alone)
 *     options.key_file = "/etc/netram/cluster.key";
 *     if (rvm_node_join(&options, &node) != RVM_SUCCESS) ...
 *     rvm_node_info(node, &info);                      (info.vmaddr, info.length)
 *
 *     rvm_txn_begin(node, restore, &txn);
 *     if (rvm_txn_acquire(txn, 7, rvm_exclusive) != RVM_SUCCESS) ...
 *     rvm_txn_set_range(txn, info.vmaddr + 7 * 4096, 8);
 *     ++*(long *)(info.vmaddr + 7 * 4096);
 *     if (rvm_txn_commit(txn, &record) != RVM_SUCCESS) ...
 *
 *     rvm_node_leave(node);
 *
 * Rules for all functions:
 *   - Nothing else of the library is needed: no rvm_initialize(), no log.
 *   - They may be called by any thread. Whatever waits (join, acquire, commit, accept, outcome, leave) holds up only its
 *     caller, and others that use the same transaction or reader.
 *   - A handle is a number that looks like a pointer, never to be followed. One that has ended, or was never given, is
 *     refused with RVM_EHANDLE, in whatever thread. NULL is never a handle.
 *   - The region's memory is there from rvm_node_join() until rvm_node_leave() or rvm_node_abandon() of that node, also
 *     after RVM_EGONE. After that it is not mapped.
 *   - What a program reads there is current, and stands still, under a lock that covers it. Without one it may change at
 *     any time, by half, unless a reader pins it. Bytes are stored to under their lock, held exclusively, after
 *     rvm_txn_set_range(); nothing sees stores elsewhere, and they are in no other copy.
 *   - A child made by fork() after a joining must neither use its parent's nodes nor join: RVM_EINIT. Join after fork(), or
 *     call exec(). What it sees at the region's addresses is a copy that no longer changes with the others.
 *   - A process that ends without leaving is as good as crashed: what it committed is safe, its locks go on when its lease
 *     is over, and the next joining with the same directory offers what it left.
 *   - A string or array is read during the call only. Answers are written on RVM_SUCCESS, and where it is said. NULL or a
 *     misaligned address where a record belongs is RVM_ERANGE.
 *   - Whatever is not RVM_SUCCESS is explained, in a sentence, by rvm_error_text() of rvm/netram.h.
 */
#ifndef RVM_SHARED_H
#define RVM_SHARED_H

#include <rvm/netram.h>
#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------- return codes */

/* Beside those of rvm.h. One code for each thing that a program may do about it. */
#define RVM_EHANDLE 2100   /* no such node, transaction or reader: it has ended, or never was */
#define RVM_EDIED 2101     /* a lock is in use, and was acquired out of order: abort, and begin with it */
#define RVM_ETIMEDOUT 2102 /* not in time: somebody holds the lock for long, or the server is away */
#define RVM_ELOST 2103     /* the node has lost its locks: abort, and begin again */
#define RVM_EGONE 2104     /* there is no node any more: leave or abandon it, and join again */
#define RVM_EUNKNOWN 2105  /* a commit is neither done nor undone: join again, and ask for the outcome */
#define RVM_ELOCK 2106     /* no such lock; too many; out of order in a transaction that cannot be undone */
#define RVM_ENOT_HELD 2107 /* bytes under no lock that this transaction holds exclusively */
#define RVM_EEXPIRED 2108  /* what the reader saw is past: accept goes on */
#define RVM_ESTRAY 2109    /* a commit found stores that it may not make: it is aborted, and rvm_error_stray() names them */
#define RVM_ENO_HEAP 2110  /* there is no heap under the lock, of any version: make one */
#define RVM_ENO_ROOM 2111  /* no free place in the heap is large enough */
#define RVM_EBLOCK 2112    /* no block of a heap begins at the address, or it is free: the program's mistake */
#define RVM_EDAMAGED 2113  /* the heap is damaged */
#define RVM_ESERVED 2114   /* the region has a server, or had one a moment ago: no copy is saved */

/*
 * The lock that this thread's last failing call was about, of RVM_EDIED, RVM_ETIMEDOUT (an acquire), RVM_ELOCK and
 * RVM_ENOT_HELD: that which is to be acquired first, or at all. 0 if there is none.
 */
extern unsigned rvm_error_lock(void);

/* Bytes that were stored to and may not have been: a run of them. */
typedef struct {
    char *vmaddr;          /* where it begins */
    rvm_length_t length;
    unsigned long count;   /* how many such runs were found */
    unsigned lock;         /* that covers the first byte, */
    rvm_bool_t has_lock;   /* if one does */
    rvm_bool_t held;       /* and the transaction had it exclusively: the bytes were not declared */
} rvm_stray_t;

/* The first run that this thread's last failing call was about, of RVM_ESTRAY. False, and nothing is written: it was not. */
extern rvm_bool_t rvm_error_stray(rvm_stray_t *stray);

/* ---------------------------------------------------------------- handles */

/* A node: one joining of a region by this process. */
typedef struct rvm_node *rvm_node_t;
/* An open transaction. One thread at a time; a second one waits for the first's call. */
typedef struct rvm_txn *rvm_txn_t;
/* A pinned reader. As a transaction. */
typedef struct rvm_reader *rvm_reader_t;

/* ------------------------------------------------------------------ nodes */

#define rvm_join_id ((rvm_struct_id_t)45)

/*
 * How a node's stores are found (docs/design/rvm.md, "How stores are found"). Each node of a region chooses for itself. Whatever is found
 * must lie under locks that the transaction holds exclusively; anything else is RVM_ESTRAY at the commit, and put back.
 */
typedef enum {
    rvm_capture_declared = 0, /* rvm_txn_set_range() says them all; nothing is looked for */
    rvm_capture_twins = 1,    /* stored pages are compared with copies; nothing is declared */
    rvm_capture_pages = 2,    /* stored pages count whole; nothing is declared */
    rvm_capture_adaptive = 3, /* declared, and by the page what is cheapest */
    rvm_capture_verified = 4, /* declared, and compared: undeclared stores are RVM_ESTRAY. For tests */
    rvm_capture_reported = 5  /* the same, but they are only reported (rvm_node_undeclared), and stay in this copy alone */
} rvm_capture_t;

/* How the first store to a page is found, of twins and pages. */
typedef enum {
    rvm_find_trap = 0, /* by SIGSEGV: whoever takes that signal does so before joining, or passes on what is not its own.
                          System calls that store to the region fail with EFAULT */
    rvm_find_watch = 1 /* by the kernel (Linux 6.7, userfaultfd); the joining is RVM_EOPTIONS where that is not had */
} rvm_find_t;

/* What to join, and how. Whoever needs no more sets the first two, and the key. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    const char *server;            /* tcp://HOST:PORT or unix:/PATH */
    const char *directory;         /* this process's alone; made if missing. What earlier processes left there is offered
                                      to the server, and removed when nothing of it can be missing */
    const char *key_file;          /* the cluster's key */
    rvm_bool_t insecure;           /* no key, no encryption: this machine only */
    rvm_bool_t lazy;               /* others' records come before a grant, or when rvm_node_pull() asks for them */
    const char *name;              /* for people; NULL: "process N" */
    const char *wait;              /* "spin", "yield:MICROSECONDS", "block"; NULL: yield:50 */
    const char *region;            /* refuse any region but this: the id that `netram shared status` prints; NULL: none */
    rvm_length_t log_bytes;        /* of the node's log; 0: 32 MiB */
    rvm_length_t pinned_bytes_max; /* of records held back for readers; 0: 64 MiB. Beyond it readers expire */
    long lock_timeout_ms;          /* how long an acquire waits; 10000 */
    long patience_ms;              /* how long joining and leaving may take, and a commit waits for a silent server; 30000 */
    rvm_capture_t capture;         /* where stores are found by page (twins, pages, adaptive), one transaction of this node at a
                                      time holds locks exclusively; the next one waits before its first, or is RVM_EUNCOMMIT */
    rvm_find_t find;
    rvm_bool_t straight;           /* records go straight to other nodes, too; true */
    rvm_bool_t fall_behind;        /* beyond pinned_bytes_max readers keep what they see, and the node is gone */
    const char *listen;            /* where other nodes reach this machine, for that; NULL: this one goes to them */
    const char *group;             /* the multicast group for that, ADDRESS:PORT[%INTERFACE]; NULL: as the server says */
    rvm_length_t reserved[2];      /* zeros */
} rvm_join_t;

extern void rvm_init_join(rvm_join_t *options);

/*
 * Joins: the whole region is in memory when this returns. Waits for a server that is not there yet. A region with an
 * address is mapped there: RVM_ERANGE if something else is. RVM_EOPTIONS: the record; a name that is none; neither key nor
 * `insecure`. RVM_ETIMEDOUT, RVM_EIO: no server, or it broke off; try again. RVM_EIO with errno EBUSY: a node that runs has
 * the directory. RVM_EGONE: the server refuses this node.
 */
extern rvm_return_t rvm_node_join(const rvm_join_t *options, rvm_node_t *node);

/* What a node has. */
typedef struct {
    unsigned long id;           /* of this joining, never used twice */
    char *vmaddr;               /* the region's first byte */
    rvm_length_t length;        /* its bytes */
    unsigned long spans;        /* how many locks it has */
    unsigned long left_behind;  /* journals of earlier processes that could not be offered to the end yet */
    rvm_length_t reserved[3];
} rvm_node_info_t;

extern rvm_return_t rvm_node_info(rvm_node_t node, rvm_node_info_t *info);

/* The bytes that one lock covers. */
typedef struct {
    unsigned lock;
    char *vmaddr;
    rvm_length_t length;
} rvm_span_t;

/* The span of a lock. RVM_ELOCK: there is none. */
extern rvm_return_t rvm_node_span(rvm_node_t node, unsigned lock, rvm_span_t *span);
/* The spans in the order of addresses: the first is at place 0, info.spans of them. RVM_ERANGE: there are not so many. */
extern rvm_return_t rvm_node_nth_span(rvm_node_t node, unsigned long place, rvm_span_t *span);
/* The span that has the byte at an address. RVM_ENOT_MAPPED: outside the region; RVM_ELOCK: no lock covers it. */
extern rvm_return_t rvm_node_span_at(rvm_node_t node, const void *address, rvm_span_t *span);

/* RVM_SUCCESS while there is a node; RVM_EGONE with the reason in rvm_error_text() when there is none any more. */
extern rvm_return_t rvm_node_alive(rvm_node_t node);

/* How often what a lock covers has been written, in this copy or on its way there. */
extern rvm_return_t rvm_node_version(rvm_node_t node, unsigned lock, unsigned long *version);

/*
 * Waits until the memory here has this version of a lock, whoever wrote it. What is held back for a reader is not there yet.
 * RVM_ETIMEDOUT, RVM_ELOCK, RVM_EGONE.
 */
extern rvm_return_t rvm_node_wait_version(rvm_node_t node, unsigned lock, unsigned long version, long timeout_ms);

/* Asks the server of a lazy node for what there is. */
extern rvm_return_t rvm_node_pull(rvm_node_t node);

/* How far this node's own records have come: the number of the last of each kind. */
typedef struct {
    unsigned long appended; /* in its journal */
    unsigned long acked;    /* safe, whatever dies */
    unsigned long kept;     /* on the server's disk */
} rvm_progress_t;

extern rvm_return_t rvm_node_progress(rvm_node_t node, rvm_progress_t *progress);

/* What became of records that went, or came, straight from node to node. */
typedef struct {
    unsigned long taken;     /* of others: here before the server's stream brought them */
    unsigned long forgotten; /* of others: out of place, or late */
    unsigned long cast;      /* own ones that were multicast */
    unsigned long linked;    /* own ones over a link, once for each peer */
    unsigned long dropped;   /* own ones that a peer was not sent, because it reads too slowly */
    unsigned long peers;     /* nodes that are sent records */
} rvm_straight_t;

extern rvm_return_t rvm_node_straight(rvm_node_t node, rvm_straight_t *straight);

/*
 * A journal that an earlier process of the directory left, and why it is there still, in a sentence: the one at `place` of
 * info.left_behind, cut to `size` with its end. RVM_ERANGE: there are not so many (any more).
 */
extern rvm_return_t rvm_node_left_behind(rvm_node_t node, unsigned long place, char *told, rvm_length_t size);

/*
 * Why commits of this node wait for the server's disk, and why each lender does not count, in a sentence, cut to `size` with
 * its end. Empty: lenders acknowledge them.
 */
extern rvm_return_t rvm_node_uncounted(rvm_node_t node, char *told, rvm_length_t size);

/*
 * Takes the undeclared stores that commits have found where capture is verified or reported: the first `room` runs, and
 * how many there were. The others are forgotten; between two calls 1024 are kept. In each, `count` is how many there were, and
 * `held` is 0, which says nothing: what the transaction had locked is not known any more.
 */
extern rvm_return_t rvm_node_undeclared(rvm_node_t node, rvm_stray_t *found, unsigned long room, unsigned long *count);

/*
 * Saves this node's copy of the region in a new directory: when the server is lost for good, `netram shared rescue` makes the
 * region anew of the copies of those nodes that live. RVM_ESERVED: the node's lease runs, or the server came back; try again
 * when the lease is over. RVM_EUNCOMMIT: a transaction holds locks exclusively, or a commit is not acknowledged. RVM_EGONE,
 * RVM_EIO. Pinned readers see what is new from here on.
 */
extern rvm_return_t rvm_node_save_copy(rvm_node_t node, const char *directory);

/* A commit, by the node that made it. Number 0: nothing was written. */
typedef struct {
    unsigned long node;
    unsigned long number;
} rvm_record_t;

typedef enum {
    rvm_fate_open = 0,      /* not known in time: ask again */
    rvm_fate_committed = 1, /* it counts, everywhere and for good */
    rvm_fate_aborted = 2,   /* it never will */
    rvm_fate_forgotten = 3  /* nobody knows any more: too many nodes have come and gone since */
} rvm_fate_t;

/* What became of a record, of any node, that RVM_EUNKNOWN has named. What was said never changes. */
extern rvm_return_t rvm_node_outcome(rvm_node_t node, const rvm_record_t *record, long timeout_ms, rvm_fate_t *fate);

/*
 * Leaves: all that was committed is durable at the server, and the node's journal is removed. RVM_EUNCOMMIT: transactions
 * or readers are open, or other threads are in calls; the node stays. After any other answer but RVM_EHANDLE and RVM_EINIT
 * the node has ended and the region is not mapped. RVM_ETIMEDOUT, RVM_EGONE, RVM_EIO: what was committed is safe all the
 * same; the journal stays, and the next joining with the same directory offers it.
 */
extern rvm_return_t rvm_node_leave(rvm_node_t node);

/* Ends a node without a word, as a crash would: for one that is gone. RVM_EUNCOMMIT as above. */
extern rvm_return_t rvm_node_abandon(rvm_node_t node);

/* ----------------------------------------------------------- transactions */

typedef enum {
    rvm_shared = 1,   /* to read what the lock covers, with others that read */
    rvm_exclusive = 2 /* to write there */
} rvm_hold_t;

typedef struct {
    unsigned lock;
    rvm_hold_t hold;
} rvm_lock_t;

/*
 * Begins a transaction. restore: an abort puts old values back. no_restore: nothing is kept; locks must be acquired in
 * ascending order, and an abort after a declaration spoils the copy, so that the node is gone. RVM_EMODE, RVM_EGONE.
 */
extern rvm_return_t rvm_txn_begin(rvm_node_t node, rvm_mode_t mode, rvm_txn_t *txn);

/* How long the acquires of this transaction wait for others; negative is 0. */
extern rvm_return_t rvm_txn_set_timeout(rvm_txn_t txn, long timeout_ms);

/*
 * Acquires a lock, to hold until the transaction ends. One that it holds already costs nothing; shared becomes exclusive.
 * In ascending order it waits for whoever uses the lock; out of order it waits for no transaction, and dies instead
 * (RVM_EDIED). After any failure the transaction is open, with the locks that it had. RVM_ETIMEDOUT, RVM_ELOST, RVM_ELOCK,
 * RVM_EGONE; RVM_EUNCOMMIT: stores are found by page, and another transaction of this node has the region: abort, begin again.
 */
extern rvm_return_t rvm_txn_acquire(rvm_txn_t txn, unsigned lock, rvm_hold_t hold);

/* Acquires several, in their order whatever order they are named in. */
extern rvm_return_t rvm_txn_acquire_all(rvm_txn_t txn, const rvm_lock_t *locks, unsigned long count);

/*
 * Says that these bytes will change, before they do. RVM_ENOT_HELD: a byte is under no lock that the transaction holds
 * exclusively; RVM_ENOT_MAPPED: outside the region; RVM_ETOO_BIG. Nothing changed then.
 */
extern rvm_return_t rvm_txn_set_range(rvm_txn_t txn, void *base, rvm_length_t length);

/* Says so, and copies `length` bytes from `source`, which must not overlap them. */
extern rvm_return_t rvm_txn_modify_bytes(rvm_txn_t txn, void *base, const void *source, rvm_length_t length);

/*
 * Commits: waits until the members hold what was declared, as it is now, then frees the locks. Whatever it returns, but
 * RVM_EHANDLE, RVM_EINIT and RVM_ERANGE (a misaligned record), the transaction has ended. `record`, if not NULL, is the
 * commit's name.
 * RVM_EUNKNOWN: nobody knows yet; `record` is written, and rvm_node_outcome() of the next joining answers. RVM_ELOST,
 * RVM_EGONE, RVM_ETOO_BIG, RVM_EIO, RVM_ESTRAY: it is aborted.
 */
extern rvm_return_t rvm_txn_commit(rvm_txn_t txn, rvm_record_t *record);

/* Ends it without a trace: in `restore` mode memory is as it was before each range was declared. Its locks are free. */
extern rvm_return_t rvm_txn_abort(rvm_txn_t txn);

/* ------------------------------------------------------------------ heaps */

/*
 * A persistent heap in the span of a lock (docs/design/heap.md): blocks that come and go in transactions. All of this is a part of the
 * transaction, and undone with it. Whoever makes a heap, allocates, frees or sets a root holds its lock exclusively
 * (RVM_ENOT_HELD otherwise), whoever follows pointers at least shared, or reads with a pinned reader. A block is an address in
 * the region, begins at a multiple of 16, and stays where it is until it is freed or rvm_txn_realloc() moves it. Pointers may be
 * stored in blocks where the region has an address; elsewhere offsets from info.vmaddr.
 */

/*
 * Makes the lock's span a heap without blocks, whatever it was. It is used from the next transaction on: in this one, and
 * when the transaction has stored to the span before, RVM_EUNCOMMIT. RVM_ERANGE: the span is less than three pages.
 */
extern rvm_return_t rvm_txn_format_heap(rvm_txn_t txn, unsigned lock);

/*
 * A block of at least `size` bytes with whatever values they had. Nothing of it is declared: say rvm_txn_set_range() before
 * storing there. RVM_ENO_ROOM, RVM_ENO_HEAP, RVM_EVERSION_SKEW (a heap that another release of the library made: use that),
 * RVM_EDAMAGED.
 */
extern rvm_return_t rvm_txn_malloc(rvm_txn_t txn, unsigned lock, rvm_length_t size, void **block);

/*
 * Makes a block at least `size` bytes long; `moved` is where it is then. Bytes up to the shorter length keep their values.
 * RVM_EBLOCK; RVM_EUNCOMMIT: another transaction's block. After any failure the block is as it was.
 */
extern rvm_return_t rvm_txn_realloc(rvm_txn_t txn, const void *block, rvm_length_t size, void **moved);

/* Frees a block. It is given out again when the transaction has committed. RVM_EBLOCK, for NULL too. */
extern rvm_return_t rvm_txn_free(rvm_txn_t txn, const void *block);

/* Bytes that a block can hold: at least what was asked for. */
extern rvm_return_t rvm_txn_block_size(rvm_txn_t txn, const void *block, rvm_length_t *size);

/* The block in one of a heap's 64 roots, where a program begins to look; NULL until it is set. RVM_ERANGE: no such root. */
extern rvm_return_t rvm_txn_root(rvm_txn_t txn, unsigned lock, unsigned long number, void **block);
/* Sets a root to an address in the region, or to NULL. RVM_EBLOCK: elsewhere. */
extern rvm_return_t rvm_txn_set_root(rvm_txn_t txn, unsigned lock, unsigned long number, const void *block);

/* What a heap holds, in bytes. */
typedef struct {
    rvm_length_t bytes;        /* all of it, its own header and table included */
    rvm_length_t usable;       /* of pages that it can give out */
    rvm_length_t taken;        /* of blocks */
    rvm_length_t free_pages;   /* of pages that belong to nothing */
    rvm_length_t free_slots;   /* of places that wait for a block of their size */
    rvm_length_t largest_free; /* of the largest extent of free pages */
    rvm_length_t reserved[2];
} rvm_heap_info_t;

/* Under the lock held exclusively. */
extern rvm_return_t rvm_txn_heap_info(rvm_txn_t txn, unsigned lock, rvm_heap_info_t *info);

/* ---------------------------------------------------------------- readers */

/*
 * Pins the copy as it is, to be read without locks: what others commit waits, in bounded memory. What is seen is between two
 * commits, with all that those before it had read. It moves on when it accepts, and when a transaction of this node acquires a
 * lock. What this process's own transactions store it sees at once.
 */
extern rvm_return_t rvm_reader_begin(rvm_node_t node, rvm_reader_t *reader);

/* RVM_SUCCESS: what was read at its addresses since it began, or last accepted, is as pinned. RVM_EEXPIRED: it is not. */
extern rvm_return_t rvm_reader_check(rvm_reader_t reader);

/* Copies `length` bytes at `base` out of the region, at one moment. RVM_EEXPIRED; RVM_ENOT_MAPPED. */
extern rvm_return_t rvm_reader_read(rvm_reader_t reader, const void *base, void *target, rvm_length_t length);

/*
 * A root of a heap, as pinned. RVM_ENO_HEAP: no transaction of this node has used that heap yet; let one ask for its root.
 * RVM_EEXPIRED, RVM_ERANGE, RVM_ELOCK.
 */
extern rvm_return_t rvm_reader_root(rvm_reader_t reader, unsigned lock, unsigned long number, void **block);

/* Moves on to everything that has come. */
extern rvm_return_t rvm_reader_accept(rvm_reader_t reader);

/* How far it is behind what the server is known to have: records, and how long the oldest has been here. */
typedef struct {
    unsigned long positions;
    unsigned long nanoseconds;
} rvm_age_t;

extern rvm_return_t rvm_reader_age(rvm_reader_t reader, rvm_age_t *age);

extern rvm_return_t rvm_reader_end(rvm_reader_t reader);

#ifdef __cplusplus
}
#endif

#endif
