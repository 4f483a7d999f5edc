//! The roles of this program's child processes. Each experiment defines its job; this list names them all.

use serde::Deserialize;

use crate::child::ChildJob;
use crate::cleanup::CleanupJob;
#[cfg(feature = "experiments")]
use crate::databases::sqlite::SqliteJob;
use crate::delay::DelayProxy;
#[cfg(feature = "experiments")]
use crate::device::DeviceServeJob;
use crate::echo::EchoServer;
#[cfg(feature = "experiments")]
use crate::empty_file::EmptyFileJob;
use crate::error::{BenchError, ErrorContext};
#[cfg(feature = "experiments")]
use crate::far::job::FarJob;
#[cfg(feature = "experiments")]
use crate::shared::node_process::NodeJob;
#[cfg(feature = "experiments")]
use crate::sql_stores::SqlStoreJob;
#[cfg(feature = "experiments")]
use crate::volume::{flood::FloodJob, serve::NbdServeJob, sink::SinkServer};
use crate::worker::BankWorker;

/// Role of a child process, read from the argument of the hidden subcommand. A variant has the name of its
/// job's [`ChildJob::ROLE`].
#[derive(Clone, Debug, Deserialize)]
pub enum ChildRole {
    /// Answers requests of a fixed size, spinning, as the other end of the floor.
    Echo(EchoServer),
    /// Forwards a connection with a delay in each direction.
    Delay(DelayProxy),
    /// Runs TPC-A until killed, and reports what was acknowledged.
    Teller(BankWorker),
    /// Serves a device over NBD.
    #[cfg(feature = "experiments")]
    Serve(NbdServeJob),
    /// Writes to a volume as fast as possible.
    #[cfg(feature = "experiments")]
    Flood(FloodJob),
    /// Discards everything it receives.
    #[cfg(feature = "experiments")]
    Sink(SinkServer),
    /// Serves a file that discards what is written.
    #[cfg(feature = "experiments")]
    EmptyFile(EmptyFileJob),
    /// Serves a device to the kernel.
    #[cfg(feature = "experiments")]
    Attach(DeviceServeJob),
    /// Runs as a node of a shared region.
    #[cfg(feature = "experiments")]
    Player(NodeJob),
    /// Runs a program on memory of which a part is remote.
    #[cfg(feature = "experiments")]
    Far(FarJob),
    /// Commits rows to a SQLite database.
    #[cfg(feature = "experiments")]
    Sqlite(SqliteJob),
    /// Runs OO7's operations in a database.
    #[cfg(feature = "experiments")]
    Oo7(SqlStoreJob),
    /// Removes what a measurement has left behind.
    Clean(CleanupJob),
}

/// Plays `role`; returns when the other side is done.
///
/// # Errors
///
/// Fails if the role cannot be set up, or its measurement fails.
pub fn play(role: &ChildRole) -> Result<(), BenchError> {
    // A cleaner takes the place of its parent's child.
    if !matches!(role, ChildRole::Clean(_)) {
        netram_process::die_with_parent().context("ask to end with the parent")?;
    }
    match role {
        ChildRole::Echo(echo) => echo.run(),
        ChildRole::Delay(delay) => delay.run(),
        ChildRole::Teller(teller) => teller.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Serve(serve) => serve.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Flood(flood) => flood.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Sink(sink) => sink.run(),
        #[cfg(feature = "experiments")]
        ChildRole::EmptyFile(server) => server.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Attach(server) => server.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Player(player) => player.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Far(job) => job.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Sqlite(job) => job.run(),
        #[cfg(feature = "experiments")]
        ChildRole::Oo7(job) => job.run(),
        ChildRole::Clean(cleaner) => cleaner.run(),
    }
}

#[cfg(all(test, feature = "experiments"))]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_listed_under_its_role() {
        let roles = [
            EchoServer::ROLE,
            DelayProxy::ROLE,
            BankWorker::ROLE,
            NbdServeJob::ROLE,
            FloodJob::ROLE,
            SinkServer::ROLE,
            DeviceServeJob::ROLE,
            NodeJob::ROLE,
            FarJob::ROLE,
            SqliteJob::ROLE,
            SqlStoreJob::ROLE,
            CleanupJob::ROLE,
        ];
        for role in roles {
            let listed = serde_json::from_str::<ChildRole>(&format!("{{\"{role}\":null}}"));
            let refused = listed.unwrap_err().to_string();
            assert!(!refused.contains("unknown variant"), "{refused}");
        }
    }
}
