//! A volume kept twice: the client's side that feeds a data lender, and the data lender's that keeps the
//! copy.
//!
//! What is said and when is `netram_block_machine`'s affair; what is done to the files is `netram_block`'s
//! and the follower's of `netram_journal`. Here are the threads, the links and the directories.
//!
//! | module | does |
//! |---|---|
//! | [`ReplicaHost`] | the data lender: copies in a directory, sessions handed to their threads |
//! | `open_replica`, `session` | one copy, open; what its client asks of it |
//! | `blocks` | the blocks of a resync |
//! | `claim` | what a restore says to the data lender |
//! | `proof` | what is asked before anything is claimed |
//! | `stage_thread`, `scrub`, `quota`, `failure` | the copy's image, looking for damage, what copies may take, what is said of failures |
//! | `feeder` | the client's thread `netram-replica`: ships the log, sends blocks, says who is in service |
//! | `fetch` | blocks from the copy, for a volume that lost or lacks them |
//! | [`restore`] | a volume made anew from a copy elsewhere |
//! | `header_file` | the file that makes a directory a copy |
//! | `status` | how a data lender stands, for people |
//! | `link` | messages over a link |

mod blocks;
mod claim;
mod failure;
mod feeder;
mod fetch;
mod header_file;
mod link;
mod open_replica;
mod quota;
mod replica_host;
pub mod restore;
mod restore_check;
mod scrub;
mod session;
mod stage_thread;
mod status;
#[cfg(test)]
mod tests;

pub use header_file::ReplicaHeaderFileError;
pub use replica_host::{ReplicaHost, ReplicaHostError, ReplicaHostLimits};
pub use restore_check::ClaimFacts;
pub use status::{DataLenderStatus, ResyncStatus};

pub(crate) use feeder::{FeederParts, ReplicaFeeder, VolumeDisk};
pub(crate) use fetch::CopySource;
pub(crate) use header_file::ReplicaHeaderFile;
pub(crate) use restore::announce_first_view;
pub(crate) use restore_check::{Ago, CopyClaim, ask_copy, client_seen_within_window};
pub(crate) use scrub::scrub_file;
