//! A volume kept twice: the client's side that feeds a data lender, and the data lender's that keeps the copy.
//!
//! What is said and when is `netram_block_machine`'s affair; what is done to the files is `netram_block`'s and the
//! follower's of `netram_journal`. Here are the threads, the links and the directories.
//!
//! | module | does |
//! |---|---|
//! | [`Keeper`] | the data lender: copies in a directory, sessions handed to their threads |
//! | `host`, `session` | one copy, open; what its client asks of it |
//! | `blocks` | the blocks of a resync |
//! | `claim` | what a restore says to the data lender |
//! | `proof` | what is asked before anything is claimed |
//! | `stages`, `scrub`, `quota`, `failure` | the copy's image, looking for damage, what copies may take, what is said of failures |
//! | `feeder` | the client's thread `netram-replica`: ships the log, sends blocks, says who is in service |
//! | `fetch` | blocks from the copy, for a volume that lost or lacks them |
//! | [`restore`] | a volume made anew from a copy elsewhere |
//! | `standing` | the file that makes a directory a copy |
//! | `status` | how a data lender stands, for people |
//! | `wire` | messages over a link |

mod blocks;
mod claim;
mod failure;
mod feeder;
mod fetch;
mod host;
mod keeper;
mod proof;
mod quota;
pub mod restore;
mod scrub;
mod session;
mod stages;
mod standing;
mod status;
#[cfg(test)]
mod tests;
mod wire;

pub use keeper::{Keeper, KeeperError, KeeperLimits};
pub use proof::ClaimFound;
pub use standing::StandingFileError;
pub use status::{DataLenderStatus, ResyncStatus};

pub(crate) use feeder::{Feeder, Parts as FeederParts, VolumeDisk};
pub(crate) use fetch::Copy;
pub(crate) use proof::{Ago, CopyWord, ask_copy, heard_lately};
pub(crate) use restore::first_word;
pub(crate) use scrub::scrub_file;
pub(crate) use standing::StandingFile;
