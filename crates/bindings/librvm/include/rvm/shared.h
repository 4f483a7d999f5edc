/*
 * Shared regions: one memory in several processes, on one machine or many, changed in transactions under locks. A
 * commit is safe when it is in the lenders' memories; the same record updates the other copies. docs/design/shared.md
 * describes the design and the failures it survives. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program:
 *
 *     rvm_join_t options;
 *     rvm_node_t node;
 *     rvm_txn_t txn;
 *     rvm_record_t record;
 *     rvm_span_t span;
 *
 *     rvm_init_join(&options);
 *     options.server = "tcp://plan:7440";              (address of `netram shared serve`)
 *     options.directory = "/var/lib/plan/node-1";      (used by this process only)
 *     options.key_file = "/etc/netram/key";
 *     if (rvm_node_join(&options, &node) != RVM_SUCCESS) ...
 *     rvm_node_span(node, 7, &span);                   (the bytes under lock 7: span.vmaddr, span.length)
 *
 *     rvm_txn_begin(node, restore, &txn);
 *     if (rvm_txn_acquire(txn, 7, rvm_exclusive) != RVM_SUCCESS) ...
 *     rvm_txn_set_range(txn, span.vmaddr, sizeof(long));
 *     ++*(long *)span.vmaddr;
 *     if (rvm_txn_commit(txn, &record) != RVM_SUCCESS) ...
 *
 *     rvm_node_leave(node);
 *
 * Rules for all functions:
 *   - No other part of the library is needed: no rvm_initialize(), no log.
 *   - Any thread may call them. Calls that wait (join, acquire, commit, accept, outcome, leave) delay only their
 *     caller, and threads that use the same transaction or reader.
 *   - A handle is a number that looks like a pointer and must not be dereferenced. An ended or invalid handle returns
 *     RVM_EHANDLE, in any thread. NULL is never a handle.
 *   - The region's memory is mapped from rvm_node_join() until rvm_node_leave() or rvm_node_abandon() of that node,
 *     also after RVM_EGONE.
 *   - Memory covered by a held lock is current and does not change. Without a lock it may change at any time, also in
 *     part, unless a reader pins it. Store only to bytes whose lock is held exclusively, after rvm_txn_set_range():
 *     other stores are not detected and reach no other copy.
 *   - After fork() a child must neither use its parent's nodes nor join: RVM_EINIT. Join after fork(), or call
 *     exec(). The child's copy of the region no longer changes with the others.
 *   - A process that ends without leaving counts as crashed: its commits are safe, its locks are released when its
 *     lease expires, and the next join with the same directory offers its records to the server.
 *   - A string or array is read only during the call. Results are written on RVM_SUCCESS, and where stated otherwise.
 *     A NULL or misaligned pointer to a record is RVM_ERANGE.
 *   - After any code but RVM_SUCCESS, rvm_error_text() of rvm/netram.h returns a message with the reason.
 */
#ifndef RVM_SHARED_H
#define RVM_SHARED_H

#include <rvm/netram.h>
#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------- return codes */

/* In addition to those of rvm.h. One code for each reaction of a program. */
#define RVM_EHANDLE 2100   /* the node, transaction or reader has ended, or never existed */
#define RVM_EDIED 2101     /* a lock is in use, and was acquired out of order: abort, and acquire it first */
#define RVM_ETIMEDOUT 2102 /* not in time: another transaction holds the lock, or the server is unreachable */
#define RVM_ELOST 2103     /* the node has lost its locks: abort, and begin again */
#define RVM_EGONE 2104     /* the node has ended: leave or abandon it, and join again */
#define RVM_EUNKNOWN 2105  /* the outcome of a commit is unknown: join again, and query it */
#define RVM_ELOCK 2106     /* the lock does not exist; too many locks; out of order in a transaction that cannot be undone */
#define RVM_ENOT_HELD 2107 /* bytes without a lock that this transaction holds exclusively */
#define RVM_EEXPIRED 2108  /* the reader's pinned state was given up: accept continues */
#define RVM_ESTRAY 2109    /* a commit found stores outside its locks or undeclared ones, and was aborted; see
                              rvm_error_stray() */
#define RVM_ENO_HEAP 2110  /* the lock's span contains no heap, of any version: make one */
#define RVM_ENO_ROOM 2111  /* no free part of the heap is large enough */
#define RVM_EBLOCK 2112    /* the address is not an allocated block of a heap: an error of the program */
#define RVM_EDAMAGED 2113  /* the heap is damaged */
#define RVM_ESERVED 2114   /* the region has a server, or had one recently: no copy can be saved */

/*
 * The lock that this thread's last failure concerns, after RVM_EDIED, RVM_ETIMEDOUT (of an acquire), RVM_ELOCK and
 * RVM_ENOT_HELD: the one to acquire first, or at all. 0 if there is none.
 */
extern unsigned rvm_error_lock(void);

/* A run of bytes with stores that the transaction may not make. */
typedef struct {
    char *vmaddr;          /* address of the first byte */
    rvm_length_t length;
    unsigned long count;   /* number of such runs */
    unsigned lock;         /* lock that covers the first byte, */
    rvm_bool_t has_lock;   /* if there is one */
    rvm_bool_t held;       /* the transaction held it exclusively: the bytes were not declared */
} rvm_stray_t;

/*
 * The first run of this thread's last failure with RVM_ESTRAY. Returns false, and writes nothing, after another
 * failure.
 */
extern rvm_bool_t rvm_error_stray(rvm_stray_t *stray);

/* ---------------------------------------------------------------- handles */

/* A node: this process as a member of a region, from join to leave. */
typedef struct rvm_node *rvm_node_t;
/* An open transaction. Used by one thread at a time; a second one waits for the first's call. */
typedef struct rvm_txn *rvm_txn_t;
/* A pinned reader. Used like a transaction by one thread at a time. */
typedef struct rvm_reader *rvm_reader_t;

/* ------------------------------------------------------------------ nodes */

#define rvm_join_id ((rvm_struct_id_t)45)

/*
 * How a node's stores are found (docs/design/rvm.md, "How stores are found"). Each node of a region chooses for
 * itself. Found stores must lie under locks that the transaction holds exclusively; other stores are RVM_ESTRAY at
 * the commit, and are undone.
 */
typedef enum {
    rvm_capture_declared = 0, /* all are declared by rvm_txn_set_range(); no others are looked for */
    rvm_capture_twins = 1,    /* stored pages are compared with copies; declarations are not needed */
    rvm_capture_pages = 2,    /* stored pages are logged whole; declarations are not needed */
    rvm_capture_adaptive = 3, /* declared, with the cheapest method for each page */
    rvm_capture_verified = 4, /* declared, and compared: undeclared stores are RVM_ESTRAY. For tests */
    rvm_capture_reported = 5  /* like verified, but undeclared stores are only reported (rvm_node_undeclared), and
                                 stay in this copy */
} rvm_capture_t;

/* How the first store to a page is found, for twins and pages. */
typedef enum {
    rvm_find_trap = 0, /* by SIGSEGV: install another handler of that signal before joining, or pass on faults it does
                          not know. System calls that store to the region fail with EFAULT */
    rvm_find_watch = 1 /* by the kernel (Linux 6.7, userfaultfd); where it cannot, joining is RVM_EOPTIONS */
} rvm_find_t;

/* Options for joining. Only the first two are required. */
typedef struct {
    rvm_struct_id_t struct_id;
    rvm_bool_t from_heap;
    const char *server;            /* tcp://HOST:PORT or unix:/PATH */
    const char *directory;         /* used by this process only; created if missing. Records that earlier processes
                                      left there are offered to the server, and removed when they are safe */
    const char *key_file;          /* the cluster key's file; NULL: NETRAM_KEY_FILE, or /etc/netram/key */
    rvm_bool_t insecure;           /* no key and no encryption: on this machine only */
    rvm_bool_t lazy;               /* records of other nodes arrive before a grant, or when rvm_node_pull() requests them */
    const char *name;              /* name in messages; NULL: "process N" */
    const char *wait;              /* "spin", "yield:MICROSECONDS", "block"; NULL: yield:50 */
    const char *region;            /* id of the only region to accept, as printed by `netram shared status`; NULL: any */
    rvm_length_t log_bytes;        /* length of the node's log; 0: 32 MiB */
    rvm_length_t pinned_bytes_max; /* most bytes of records held back for readers; 0: 64 MiB. Beyond it readers expire */
    long lock_timeout_ms;          /* how long an acquire waits; 10000 */
    long patience_ms;              /* limit for joining, leaving, and a commit's wait for a silent server; 30000 */
    rvm_capture_t capture;         /* if stores are found by page (twins, pages, adaptive), one transaction of this
                                      node at a time holds locks exclusively; another waits before its first lock, or
                                      is RVM_EUNCOMMIT */
    rvm_find_t find;
    rvm_bool_t straight;           /* records are also sent directly to other nodes; true */
    rvm_bool_t fall_behind;        /* beyond pinned_bytes_max readers keep their state, and the node ends */
    const char *listen;            /* address for direct links from other nodes; NULL: this node connects to them */
    const char *group;             /* multicast group for that, ADDRESS:PORT[%INTERFACE]; NULL: from the server */
    rvm_length_t reserved[2];      /* zeros */
} rvm_join_t;

extern void rvm_init_join(rvm_join_t *options);

/*
 * Joins: the whole region is in memory when this returns. Waits for a server that is not reachable yet. A region with
 * an address is mapped there: RVM_ERANGE if the addresses are in use. RVM_EOPTIONS: the record is invalid, an address
 * cannot be parsed, or neither a key nor `insecure` is set. RVM_ETIMEDOUT, RVM_EIO: no server, or the connection
 * broke; try again. RVM_EIO with errno EBUSY: a running node uses the directory. RVM_EGONE: the server refuses this
 * node.
 */
extern rvm_return_t rvm_node_join(const rvm_join_t *options, rvm_node_t *node);

/* Properties of a node. */
typedef struct {
    unsigned long id;           /* id of the node, never reused */
    char *vmaddr;               /* address of the region's first byte */
    rvm_length_t length;        /* length of the region */
    unsigned long spans;        /* number of locks */
    unsigned long left_behind;  /* journals of earlier processes that are not yet completely offered to the server */
    rvm_length_t reserved[3];
} rvm_node_info_t;

extern rvm_return_t rvm_node_info(rvm_node_t node, rvm_node_info_t *info);

/* The bytes that one lock covers. */
typedef struct {
    unsigned lock;
    char *vmaddr;
    rvm_length_t length;
} rvm_span_t;

/* The span of a lock. RVM_ELOCK: the lock does not exist. */
extern rvm_return_t rvm_node_span(rvm_node_t node, unsigned lock, rvm_span_t *span);
/* The spans in the order of addresses, from 0 to info.spans - 1. RVM_ERANGE: the number is too large. */
extern rvm_return_t rvm_node_nth_span(rvm_node_t node, unsigned long place, rvm_span_t *span);
/*
 * The span that contains the byte at an address. RVM_ENOT_MAPPED: outside the region; RVM_ELOCK: no lock covers it.
 */
extern rvm_return_t rvm_node_span_at(rvm_node_t node, const void *address, rvm_span_t *span);

/* RVM_SUCCESS while the node is running; RVM_EGONE, with the reason in rvm_error_text(), after it has ended. */
extern rvm_return_t rvm_node_alive(rvm_node_t node);

/* Number of writes to a lock's span, in this copy or received for it. */
extern rvm_return_t rvm_node_version(rvm_node_t node, unsigned lock, unsigned long *version);

/*
 * Waits until the memory here has this version of a lock, written by any node. Records held back for a reader do not
 * count. RVM_ETIMEDOUT, RVM_ELOCK, RVM_EGONE.
 */
extern rvm_return_t rvm_node_wait_version(rvm_node_t node, unsigned lock, unsigned long version, long timeout_ms);

/* Requests pending records from the server, for a lazy node. */
extern rvm_return_t rvm_node_pull(rvm_node_t node);

/* Progress of this node's own records: the number of the last record of each kind. */
typedef struct {
    unsigned long appended; /* in its journal */
    unsigned long acked;    /* acknowledged by the members of its journal */
    unsigned long kept;     /* on the server's disk */
} rvm_progress_t;

extern rvm_return_t rvm_node_progress(rvm_node_t node, rvm_progress_t *progress);

/* Counters of records sent and received directly between nodes. */
typedef struct {
    unsigned long taken;     /* of other nodes: arrived before the server's stream brought them */
    unsigned long forgotten; /* of other nodes: dropped as out of order or late */
    unsigned long cast;      /* own records that were multicast */
    unsigned long linked;    /* own records sent over links, counted once per peer */
    unsigned long dropped;   /* own records not sent to a peer that reads too slowly */
    unsigned long peers;     /* nodes to which records are sent */
} rvm_straight_t;

extern rvm_return_t rvm_node_straight(rvm_node_t node, rvm_straight_t *straight);

/*
 * Text with the directory of a journal that an earlier process left, and why it is still there; cut to `size`,
 * including its terminating zero. `place` is below info.left_behind. RVM_ERANGE: the number is too large (by now).
 */
extern rvm_return_t rvm_node_left_behind(rvm_node_t node, unsigned long place, char *told, rvm_length_t size);

/*
 * Text with the reason why this node's commits wait for the server's disk, and why each lender does not acknowledge;
 * cut to `size`, including its terminating zero. Empty if lenders acknowledge them.
 */
extern rvm_return_t rvm_node_uncounted(rvm_node_t node, char *told, rvm_length_t size);

/*
 * Takes the undeclared stores that commits have found with capture verified or reported: the first `room` runs, and
 * the number of all. The others are forgotten; 1024 are kept between two calls. In each record `count` is the number
 * of runs, and `held` is 0 without meaning, because the transaction's locks are no longer known.
 */
extern rvm_return_t rvm_node_undeclared(rvm_node_t node, rvm_stray_t *found, unsigned long room, unsigned long *count);

/*
 * Saves this node's copy of the region in a new directory. If the server is permanently lost, `netram shared rescue`
 * rebuilds the region from the copies of the surviving nodes. RVM_ESERVED: the node's lease is valid, or the server
 * came back; try again after the lease has expired. RVM_EUNCOMMIT: a transaction holds locks exclusively, or a commit
 * is not acknowledged. RVM_EGONE, RVM_EIO. Pinned readers move on to the newest state.
 */
extern rvm_return_t rvm_node_save_copy(rvm_node_t node, const char *directory);

/* The record of a commit: its node and number. Number 0: no record was written. */
typedef struct {
    unsigned long node;
    unsigned long number;
} rvm_record_t;

typedef enum {
    rvm_fate_open = 0,      /* not known in time: query again */
    rvm_fate_committed = 1, /* committed, permanently and on all nodes */
    rvm_fate_aborted = 2,   /* aborted, permanently */
    rvm_fate_forgotten = 3  /* no longer known: too many nodes have come and gone since */
} rvm_fate_t;

/* Outcome of a record of any node, after RVM_EUNKNOWN. A known outcome never changes. */
extern rvm_return_t rvm_node_outcome(rvm_node_t node, const rvm_record_t *record, long timeout_ms, rvm_fate_t *fate);

/*
 * Leaves: all commits are durable at the server, and the node's journal is removed. RVM_EUNCOMMIT: transactions or
 * readers are open, or other threads are in calls; the node stays. After any other code except RVM_EHANDLE and
 * RVM_EINIT the node has ended and the region is not mapped. RVM_ETIMEDOUT, RVM_EGONE, RVM_EIO: all commits are safe
 * even so; the journal stays, and the next join with the same directory offers it.
 */
extern rvm_return_t rvm_node_leave(rvm_node_t node);

/* Ends a node at once, like a crash: for one that is gone. RVM_EUNCOMMIT as for rvm_node_leave(). */
extern rvm_return_t rvm_node_abandon(rvm_node_t node);

/* ----------------------------------------------------------- transactions */

typedef enum {
    rvm_shared = 1,   /* for reading the span, together with other readers */
    rvm_exclusive = 2 /* for writing to the span */
} rvm_hold_t;

typedef struct {
    unsigned lock;
    rvm_hold_t hold;
} rvm_lock_t;

/*
 * Begins a transaction. restore: an abort restores old values. no_restore: no old values are kept; locks must be
 * acquired in ascending order, and an abort after a declaration spoils the copy and ends the node. RVM_EMODE,
 * RVM_EGONE.
 */
extern rvm_return_t rvm_txn_begin(rvm_node_t node, rvm_mode_t mode, rvm_txn_t *txn);

/* Sets how long acquires of this transaction wait for others; negative counts as 0. */
extern rvm_return_t rvm_txn_set_timeout(rvm_txn_t txn, long timeout_ms);

/*
 * Acquires a lock until the transaction ends. Acquiring a held lock costs nothing; a shared lock can become
 * exclusive. In ascending order the call waits for transactions that use the lock; out of order it does not wait and
 * returns RVM_EDIED instead. After any failure the transaction is open, with the locks that it had. RVM_ETIMEDOUT,
 * RVM_ELOST, RVM_ELOCK, RVM_EGONE. RVM_EUNCOMMIT: stores are found by page, and another transaction of this node has
 * the region: abort, and begin again.
 */
extern rvm_return_t rvm_txn_acquire(rvm_txn_t txn, unsigned lock, rvm_hold_t hold);

/* Acquires several locks in ascending order, whatever their order in the array. */
extern rvm_return_t rvm_txn_acquire_all(rvm_txn_t txn, const rvm_lock_t *locks, unsigned long count);

/*
 * Declares that these bytes will change; call it before the store. RVM_ENOT_HELD: the transaction does not hold the
 * lock of a byte exclusively; RVM_ENOT_MAPPED: outside the region; RVM_ETOO_BIG. Nothing changed then.
 */
extern rvm_return_t rvm_txn_set_range(rvm_txn_t txn, void *base, rvm_length_t length);

/* Declares the bytes and copies `length` bytes from `source`, which must not overlap them. */
extern rvm_return_t rvm_txn_modify_bytes(rvm_txn_t txn, void *base, const void *source, rvm_length_t length);

/*
 * Commits: waits until the members hold the declared bytes with their present values, then releases the locks. The
 * transaction ends with every code except RVM_EHANDLE, RVM_EINIT and RVM_ERANGE (a misaligned record). `record`, if
 * not NULL, receives the commit's record. RVM_EUNKNOWN: the outcome is unknown; `record` is written, and
 * rvm_node_outcome() after the next join returns the outcome. RVM_ELOST, RVM_EGONE, RVM_ETOO_BIG, RVM_EIO,
 * RVM_ESTRAY: the transaction was aborted.
 */
extern rvm_return_t rvm_txn_commit(rvm_txn_t txn, rvm_record_t *record);

/*
 * Aborts a transaction and releases its locks. In `restore` mode memory is as it was before each range was declared.
 */
extern rvm_return_t rvm_txn_abort(rvm_txn_t txn);

/* ------------------------------------------------------------------ heaps */

/*
 * A persistent heap in the span of a lock (docs/design/heap.md): blocks allocated and freed in transactions. All
 * changes are part of the transaction, and are undone with it. Making a heap, allocating, freeing and setting a root
 * require the heap's lock exclusively (RVM_ENOT_HELD otherwise); following pointers requires it at least shared, or a
 * pinned reader. A block is an address in the region, a multiple of 16, and stays there until it is freed or
 * rvm_txn_realloc() moves it. If the region has an address, pointers may be stored in blocks; otherwise store offsets
 * from info.vmaddr.
 */

/*
 * Makes an empty heap in the lock's span, replacing its content. The heap can be used from the next transaction on:
 * RVM_EUNCOMMIT in this one, and if this transaction has stored to the span before. RVM_ERANGE: the span is shorter
 * than three pages.
 */
extern rvm_return_t rvm_txn_format_heap(rvm_txn_t txn, unsigned lock);

/*
 * Allocates a block of at least `size` bytes, which keep earlier values. It is not declared: call rvm_txn_set_range()
 * before storing to it. RVM_ENO_ROOM, RVM_ENO_HEAP, RVM_EVERSION_SKEW (a heap of another version of the library: use
 * that one), RVM_EDAMAGED.
 */
extern rvm_return_t rvm_txn_malloc(rvm_txn_t txn, unsigned lock, rvm_length_t size, void **block);

/*
 * Resizes a block to at least `size` bytes; `moved` receives its new address. Bytes up to the shorter length keep
 * their values. RVM_EBLOCK; RVM_EUNCOMMIT: another transaction's block. After any failure the block is unchanged.
 */
extern rvm_return_t rvm_txn_realloc(rvm_txn_t txn, const void *block, rvm_length_t size, void **moved);

/* Frees a block. It is reused only after the transaction has committed. RVM_EBLOCK, for NULL too. */
extern rvm_return_t rvm_txn_free(rvm_txn_t txn, const void *block);

/* Capacity of a block in bytes: at least the requested size. */
extern rvm_return_t rvm_txn_block_size(rvm_txn_t txn, const void *block, rvm_length_t *size);

/*
 * The block in one of a heap's 64 roots, from which a program finds its data; NULL until it is set. RVM_ERANGE: the
 * number is too large.
 */
extern rvm_return_t rvm_txn_root(rvm_txn_t txn, unsigned lock, unsigned long number, void **block);
/* Sets a root to an address in the region, or to NULL. RVM_EBLOCK: another address. */
extern rvm_return_t rvm_txn_set_root(rvm_txn_t txn, unsigned lock, unsigned long number, const void *block);

/* Statistics of a heap, in bytes. */
typedef struct {
    rvm_length_t bytes;        /* length of the heap, including its header and table */
    rvm_length_t usable;       /* pages for blocks */
    rvm_length_t taken;        /* allocated blocks */
    rvm_length_t free_pages;   /* free pages */
    rvm_length_t free_slots;   /* free slots, waiting for a block of their size */
    rvm_length_t largest_free; /* largest extent of free pages */
    rvm_length_t reserved[2];
} rvm_heap_info_t;

/* The transaction must hold the lock exclusively. */
extern rvm_return_t rvm_txn_heap_info(rvm_txn_t txn, unsigned lock, rvm_heap_info_t *info);

/* ---------------------------------------------------------------- readers */

/*
 * Pins the present state of the copy, for reading without locks; records of other nodes wait, in bounded memory. The
 * state is between two commits, and includes all that those before it had read. It moves on when the reader accepts,
 * and when a transaction of this node acquires a lock. Stores of this process's own transactions are visible at once.
 */
extern rvm_return_t rvm_reader_begin(rvm_node_t node, rvm_reader_t *reader);

/*
 * RVM_SUCCESS: bytes read directly since the beginning, or the last accept, are of the pinned state. RVM_EEXPIRED:
 * not all.
 */
extern rvm_return_t rvm_reader_check(rvm_reader_t reader);

/* Copies `length` bytes at `base` out of the region, all of the same state. RVM_EEXPIRED; RVM_ENOT_MAPPED. */
extern rvm_return_t rvm_reader_read(rvm_reader_t reader, const void *base, void *target, rvm_length_t length);

/*
 * A root of a heap in the pinned state. RVM_ENO_HEAP: no transaction of this node has used that heap yet; read its
 * root in a transaction first. RVM_EEXPIRED, RVM_ERANGE, RVM_ELOCK.
 */
extern rvm_return_t rvm_reader_root(rvm_reader_t reader, unsigned lock, unsigned long number, void **block);

/* Moves on to the newest state received. */
extern rvm_return_t rvm_reader_accept(rvm_reader_t reader);

/* How far the reader lags behind the server: number of records, and time since the oldest arrived. */
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
