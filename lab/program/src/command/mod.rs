//! The laboratory's commands, beside those of `netram`.

#[cfg(feature = "experiments")]
mod bash;
#[cfg(feature = "experiments")]
mod bench;
mod demo;
#[cfg(feature = "experiments")]
mod pagesim;
pub(crate) mod testbed;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use netram_cli::command::PlayPart;

/// The laboratory's commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(feature = "experiments")]
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    #[cfg(feature = "experiments")]
    Bash(bash::StressRvm),
    Demo(demo::RunDemo),
    #[cfg(feature = "experiments")]
    #[command(subcommand)]
    Pagesim(pagesim::PagesimCommand),
    #[cfg(feature = "experiments")]
    Peers(bench::BenchPeers),
    #[command(flatten)]
    Netram(netram_cli::command::NetramCommand),
    #[command(name = netram_cli::command::PART, hide = true)]
    Play(PlayPart),
}

/// Roles of a child process of this program, beside those of `netram`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "one value a process")]
enum Part {
    #[cfg(feature = "experiments")]
    Bash(Box<bash::player::StressPlayer>),
    Measurement(netram_bench::roles::ChildRole),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            #[cfg(feature = "experiments")]
            Command::Bench(bench) => bench.run(),
            #[cfg(feature = "experiments")]
            Command::Bash(bash) => bash.run(),
            Command::Demo(demo) => demo.run(),
            #[cfg(feature = "experiments")]
            Command::Pagesim(pagesim) => pagesim.run(),
            #[cfg(feature = "experiments")]
            Command::Peers(peers) => peers.run(),
            Command::Netram(command) => command.run(),
            Command::Play(play) => match serde_json::from_str(play.role()) {
                Ok(Part::Measurement(role)) => {
                    netram_bench::roles::play(&role)?;
                    Ok(ExitCode::SUCCESS)
                }
                #[cfg(feature = "experiments")]
                Ok(Part::Bash(player)) => {
                    player.run()?;
                    Ok(ExitCode::SUCCESS)
                }
                Err(_) => play.run(),
            },
        }
    }
}
