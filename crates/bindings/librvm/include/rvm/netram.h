/*
 * Functions of netram's librvm that RVM does not have. A program that includes this header runs only with netram.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef RVM_NETRAM_H
#define RVM_NETRAM_H

#include <rvm/rvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Message for this thread's last call that did not return RVM_SUCCESS: the reason with the path, and the remedy.
 * Never NULL; empty if no call failed. Valid until this thread's next call that fails.
 */
extern const char *rvm_error_text(void);

/* State of the log's lenders. */
typedef struct {
    unsigned long configured; /* lenders in the settings */
    unsigned long members;    /* lenders that hold the log's newest part now */
    unsigned long wanted;     /* lenders that should hold it */
    rvm_bool_t counting;      /* acknowledgements complete commits; if not, commits wait for the disk */
} rvm_lenders_t;

/* Fills the record. RVM_EINIT or RVM_ELOG if no log is open. */
extern rvm_return_t rvm_lenders(rvm_lenders_t *lenders);

/*
 * For each lender that does not acknowledge commits, a line `address: reason`. Never NULL; empty if all do, if none
 * are configured, and if no log is open. Valid until this thread's next call of it.
 */
extern const char *rvm_lenders_text(void);

/*
 * Waits until acknowledgements of lenders complete commits, at most `timeout_ms` milliseconds; 0 only checks.
 * Programs need not call it: until then commits wait for the disk. RVM_SUCCESS: they do. RVM_EIO with errno
 * ETIMEDOUT: not in time; with ENODEV: no lenders are configured. rvm_error_text() gives the reason for each lender.
 */
extern rvm_return_t rvm_wait_for_lenders(long timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
