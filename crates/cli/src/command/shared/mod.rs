//! `netram shared`: memory regions that several machines have in common. A file for each subcommand; reading
//! a region's directory without opening it is in [`inspect`].

mod accept_loss;
mod check;
mod create;
mod inspect;
mod merge;
mod rescue;
mod serve;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Create, serve and inspect shared regions: one persistent memory for programs on several machines
///
/// A region is a directory on the machine of its server. Programs join it as nodes: each has the
/// whole region in its memory, and changes it by transactions under locks.
///
///   netram shared create /var/lib/netram/plan --size 1GiB --span-size 64KiB
///   netram shared serve /var/lib/netram/plan --listen tcp://0.0.0.0:7440
///   netram shared status /var/lib/netram/plan
///   netram shared status tcp://10.0.0.5:7440
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum SharedCommand {
    Create(create::CreateRegion),
    Serve(serve::ServeRegion),
    Status(status::ShowRegion),
    Check(check::CheckRegion),
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
            SharedCommand::Check(check) => check.run(),
            SharedCommand::Merge(merge) => merge.run(),
            SharedCommand::Rescue(rescue) => rescue.run(),
            SharedCommand::AcceptLoss(accept_loss) => accept_loss.run(),
        }
    }
}
