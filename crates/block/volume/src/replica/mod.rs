//! A volume kept twice: the client's side, which feeds a data lender, and the data lender's side, which keeps
//! the copy.
//!
//! The messages are defined in `netram_block_machine`, and changes of files in `netram_block` and the
//! follower of `netram_journal`. This module has the threads, the links and the directories.
//!
//! | module | purpose |
//! |---|---|
//! | [`ReplicaHost`] | the data lender: copies in a directory, and sessions passed to their threads |
//! | `open_replica`, `session` | one open copy, and a session of its client |
//! | `blocks` | blocks of a resync on the client's side |
//! | `claim` | a restore's conversation with the data lender |
//! | `restore_check` | checks before anything is claimed |
//! | `stage_thread`, `scrub`, `quota`, `failure` | applying stages to the copy's image, scrubbing, disk quota, failures and their refusals |
//! | `feeder` | the client's thread `netram-replica`: sends the log and blocks, and reports whether the data lender is in service |
//! | `fetch` | blocks fetched from the copy for a volume that lost or lacks them |
//! | [`restore`] | restoring a volume from a copy on another machine |
//! | `header_file` | the header file that makes a directory a copy |
//! | `status` | status of a data lender |
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
pub use quota::usual_quota;
pub use replica_host::{ReplicaHost, ReplicaHostError, ReplicaHostLimits};
pub use restore_check::ClaimFacts;
pub use status::{DataLenderStatus, ResyncStatus};

pub(crate) use feeder::{FeederParts, ReplicaFeeder, VolumeDisk};
pub(crate) use fetch::CopySource;
pub(crate) use header_file::ReplicaHeaderFile;
pub(crate) use restore::announce_first_view;
pub(crate) use restore_check::{Ago, CopyClaim, ask_copy, client_seen_within_window};
pub(crate) use scrub::scrub_file;
