/*
 * The interface of log-based coherency (Feeley, Chase, Narasayya and Levy, 1994; their Table 1), over rvm/shared.h: a
 * C++ class, and the same as inline functions for C. It adds no function: new programs use rvm/shared.h.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     theirs                      C++                          C
 *     Trans.Init()                trans.Init(node)             Trans_Init(&trans, node)
 *     Trans.Begin(rvm_mode)       trans.Begin(restore)         Trans_Begin(&trans, restore)
 *     Trans.Commit(rvm_mode)      trans.Commit(flush)          Trans_Commit(&trans, flush)
 *     Trans.Acquire(lock)         trans.Acquire(7)             Trans_Acquire(&trans, 7)
 *     Trans.SetRange(addr, size)  trans.SetRange(addr, size)   Trans_SetRange(&trans, addr, size)
 *     (not in the table)          trans.Abort()                Trans_Abort(&trans)
 *
 * The mode of Begin is restore or no_restore, that of Commit flush or no_flush. As in the paper, locks are exclusive
 * and are released when the transaction ends. docs/guide/c.md ("The paper's calls") lists the differences. After a
 * failed Acquire the transaction is open: abort it. Where a comment here names a code, rvm_error_text() is unchanged.
 */
#ifndef RVM_TRANS_H
#define RVM_TRANS_H

#include <rvm/shared.h>

typedef struct {
    rvm_node_t node;
    rvm_txn_t txn; /* NULL between transactions */
} rvm_trans_t;

/* Call it before all others, and only between transactions. */
static inline void Trans_Init(rvm_trans_t *trans, rvm_node_t node)
{
    trans->node = node;
    trans->txn = NULL;
}

/* RVM_EUNCOMMIT: the previous transaction has not ended. */
static inline rvm_return_t Trans_Begin(rvm_trans_t *trans, rvm_mode_t mode)
{
    if (trans->txn != NULL)
        return RVM_EUNCOMMIT;
    return rvm_txn_begin(trans->node, mode, &trans->txn);
}

static inline rvm_return_t Trans_Acquire(rvm_trans_t *trans, unsigned lock)
{
    return rvm_txn_acquire(trans->txn, lock, rvm_exclusive);
}

static inline rvm_return_t Trans_SetRange(rvm_trans_t *trans, void *addr, rvm_length_t size)
{
    return rvm_txn_set_range(trans->txn, addr, size);
}

/* RVM_EMODE for a mode other than flush and no_flush: the transaction stays open. */
static inline rvm_return_t Trans_Commit(rvm_trans_t *trans, rvm_mode_t mode)
{
    rvm_txn_t txn = trans->txn;

    if (mode != flush && mode != no_flush)
        return RVM_EMODE;
    trans->txn = NULL;
    return rvm_txn_commit(txn, NULL);
}

static inline rvm_return_t Trans_Abort(rvm_trans_t *trans)
{
    rvm_txn_t txn = trans->txn;

    trans->txn = NULL;
    return rvm_txn_abort(txn);
}

#ifdef __cplusplus
/* The destructor aborts an open transaction. */
class Trans {
public:
    Trans() { Trans_Init(&trans, NULL); }
    explicit Trans(rvm_node_t node) { Trans_Init(&trans, node); }
    ~Trans()
    {
        if (trans.txn != NULL)
            Abort();
    }

    /* Only between transactions. */
    void Init(rvm_node_t node) { Trans_Init(&trans, node); }
    rvm_return_t Begin(rvm_mode_t mode) { return Trans_Begin(&trans, mode); }
    rvm_return_t Acquire(unsigned lock) { return Trans_Acquire(&trans, lock); }
    rvm_return_t SetRange(void *addr, rvm_length_t size) { return Trans_SetRange(&trans, addr, size); }
    rvm_return_t Commit(rvm_mode_t mode) { return Trans_Commit(&trans, mode); }
    rvm_return_t Abort() { return Trans_Abort(&trans); }

private:
    Trans(const Trans &);
    Trans &operator=(const Trans &);

    rvm_trans_t trans;
};
#endif

#endif
