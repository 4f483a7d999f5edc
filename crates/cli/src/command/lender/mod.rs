//! `netram lender`: the service that lends memory, and what its operator asks of it.

mod drain;
mod forget;
mod list;
mod notify;
mod operator;
pub(crate) mod probe;
mod resize;
mod serve;
mod serve_settings;
pub(crate) mod status;
pub(crate) mod status_tables;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use netram_lender::LenderConfig;

#[cfg(feature = "products")]
pub(crate) use notify::{pending_forgets_json, report_pending_forgets, windows};

/// Returns what a lender with this settings file alone is started with.
pub(crate) fn configured(settings: &Path) -> Result<LenderConfig> {
    serve_settings::ServeSettings::read(settings)?.config()
}

/// Lend this machine's memory to others, and look after lenders
///
/// A lender is a process that gives part of its machine's RAM to journals of other machines.
/// Start one on each of two machines or more, with the same cluster key.
///
///   netram lender serve --domain ups-1
///   netram lender status tcp://10.0.0.2:7420 tcp://10.0.0.3:7420
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum LenderCommand {
    Serve(Box<serve::ServeLender>),
    Status(status::ShowLenders),
    List(list::ListJournals),
    Drain(drain::DrainLender),
    Undrain(drain::UndrainLender),
    Resize(resize::ResizeLender),
    Forget(forget::ForgetJournal),
    Notify(notify::NotifyLenders),
}

impl LenderCommand {
    /// Whether this is the lender itself.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self, LenderCommand::Serve(_))
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            LenderCommand::Serve(serve) => serve.run(),
            LenderCommand::Status(status) => status.run(),
            LenderCommand::List(list) => list.run(),
            LenderCommand::Drain(drain) => drain.run(),
            LenderCommand::Undrain(undrain) => undrain.run(),
            LenderCommand::Resize(resize) => resize.run(),
            LenderCommand::Forget(forget) => forget.run(),
            LenderCommand::Notify(notify) => notify.run(),
        }
    }
}
