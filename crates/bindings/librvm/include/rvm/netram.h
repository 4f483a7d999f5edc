/*
 * What netram's librvm offers beyond RVM. A program that asks for this header runs with netram only.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef RVM_NETRAM_H
#define RVM_NETRAM_H

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Why the last call of this thread that did not return RVM_SUCCESS failed: a plain sentence with the path and what to
 * do. Never NULL; empty if no call failed. Valid until this thread's next call that fails.
 */
extern const char *rvm_error_text(void);

/* How the log stands with its lenders. */
typedef struct {
    unsigned long configured; /* lenders named in the settings */
    unsigned long members;    /* lenders that hold the log's newest part now */
    unsigned long wanted;     /* how many should */
    rvm_bool_t counting;      /* their acknowledgement ends a commit; if not, commits wait for the disk */
} rvm_lenders_t;

/* Fills the record. RVM_EINIT or RVM_ELOG when there is no open log. */
extern rvm_return_t rvm_lenders(rvm_lenders_t *lenders);

/*
 * Why each lender that does not count does not: a line for each, `address: why`. Never NULL; empty when all count, when
 * none are configured, and when there is no open log. Valid until this thread's next call of it.
 */
extern const char *rvm_lenders_text(void);

/*
 * Waits until lenders' acknowledgements end commits, but at most `timeout_ms` milliseconds; 0: just looks. Programs
 * need not call it: until then commits wait for the disk. RVM_SUCCESS: they do. RVM_EIO with errno ETIMEDOUT: not in
 * time; with ENODEV: no lenders are configured. rvm_error_text() says what is in the way, lender by lender.
 */
extern rvm_return_t rvm_wait_for_lenders(long timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
