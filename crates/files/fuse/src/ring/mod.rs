//! Requests by io_uring instead of reads and writes of /dev/fuse (Linux 6.14).
//!
//! The kernel has a queue for each core, and puts a program's request into that of the program's core. One
//! system call sends a reply and waits for the next request. Requests that the kernel does not wait for still
//! come by /dev/fuse. A server that was killed takes what it had of these queues with it: the kernel does not
//! send such requests again, so another server cannot take the session over.
//!
//! | module | purpose |
//! |---|---|
//! | `area` | the memory that the kernel copies requests to and replies from |
//! | `queue` | one place in a queue: the commands to the kernel |
//! | `queues` | which queues there are |

mod area;
mod queue;
pub(crate) mod queues;

pub(crate) use queue::QueuePlace;

/// Number of cores that there may ever be, each of which has a queue.
pub fn cores() -> usize {
    queues::all().map_or(1, |all| all.len())
}
