//! `netram shared`: regions that several machines have in their memory. A file a subcommand; what is read of
//! a region's directory without opening it is in [`look`].

mod accept_loss;
mod create;
mod inspect;
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
pub enum SharedCommand {
    Create(create::CreateRegion),
    Serve(serve::ServeRegion),
    Status(status::ShowRegion),
    Verify(verify::VerifyRegion),
    Merge(merge::MergeRegion),
    Rescue(rescue::RescueRegion),
    AcceptLoss(accept_loss::AcceptRegionLoss),
}

impl SharedCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            SharedCommand::Create(create) => create.run(),
            SharedCommand::Serve(serve) => serve.run(),
            SharedCommand::Status(status) => status.run(),
            SharedCommand::Verify(verify) => verify.run(),
            SharedCommand::Merge(merge) => merge.run(),
            SharedCommand::Rescue(rescue) => rescue.run(),
            SharedCommand::AcceptLoss(accept_loss) => accept_loss.run(),
        }
    }
}
