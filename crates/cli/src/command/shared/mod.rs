//! `netram shared`: regions that several machines have in their memory. A file a subcommand; what is read of a region's
//! directory without opening it is in [`look`].

mod accept_loss;
mod create;
mod look;
mod merge;
mod rescue;
mod serve;
mod status;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Make, serve and inspect shared regions: one persistent memory for several machines
///
/// A region is a directory on the machine of its server: the region's bytes, the
/// table of its locks and nodes, and one log for both.
///
///   netram shared create /var/lib/netram/plan --size 1GiB --span-size 64KiB
///   netram shared serve /var/lib/netram/plan --listen tcp://0.0.0.0:7440 --key-file /etc/netram/key
///   netram shared status /var/lib/netram/plan
///   netram shared status tcp://plan:7440 --key-file /etc/netram/key
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Shared {
    Create(create::Create),
    Serve(serve::Serve),
    Status(status::Status),
    Verify(verify::Verify),
    Merge(merge::Merge),
    Rescue(rescue::Rescue),
    AcceptLoss(accept_loss::AcceptLoss),
}

impl Shared {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Shared::Create(create) => create.run(),
            Shared::Serve(serve) => serve.run(),
            Shared::Status(status) => status.run(),
            Shared::Verify(verify) => verify.run(),
            Shared::Merge(merge) => merge.run(),
            Shared::Rescue(rescue) => rescue.run(),
            Shared::AcceptLoss(accept_loss) => accept_loss.run(),
        }
    }
}
