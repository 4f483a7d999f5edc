//! `netram play`: a shell with two lenders running, to try netram on one machine.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use clap::Args;
use netram_transport::ClusterKey;
use rustix::process::{Pid, Signal, kill_process};

use crate::options::SizeArg;
use crate::output;

/// Names the processes of the lenders, so that one can be killed to try it.
pub(crate) const LENDERS_VARIABLE: &str = "NETRAM_PLAY_LENDERS";
/// Names of the lenders: of two, one may be killed, and nothing is lost.
const LENDERS: [&str; 2] = ["a", "b"];
/// Offset of exit codes for an end by a signal, as shells have it.
const SIGNALLED: u8 = 128;

/// Open a shell with two lenders running, to try netram on one machine
///
/// In the shell NETRAM_LENDERS and NETRAM_KEY_FILE are set, so every command of netram, and every
/// program that uses it, finds the lenders without a flag. The lenders end with the shell, and
/// their memory is freed.
///
///   netram play
///   netram play -- python3 bank.py      # a command instead of a shell
///
/// Kill one of the lenders (`kill -9`, with a process number from NETRAM_PLAY_LENDERS) and see
/// that nothing is lost. Both share this machine's power: this is for trying, not for keeping.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct OpenPlayShell {
    /// Bytes that each lender lends
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: SizeArg,
    /// Command to run instead of $SHELL
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A lender process, which ends when this is dropped; its memory is freed.
struct PlayLender {
    process: Child,
    address: String,
    store: PathBuf,
}

impl OpenPlayShell {
    pub(super) fn run(self) -> Result<ExitCode> {
        remove_abandoned();
        let directory = tempfile::Builder::new().prefix("netram-play-").tempdir()?;
        let key_file = directory.path().join("cluster.key");
        ClusterKey::generate().save_new(&key_file)?;
        let mut lenders = Vec::new();
        for name in LENDERS {
            lenders.push(PlayLender::start(name, directory.path(), &key_file, self.memory)?);
        }
        let addresses: Vec<&str> = lenders.iter().map(|lender| lender.address.as_str()).collect();
        let ids: Vec<String> = lenders
            .iter()
            .map(|lender| lender.process.id().to_string())
            .collect();
        if self.command.is_empty() {
            output::remark(format_args!(
                "two lenders, {} each: {}\nNETRAM_LENDERS and NETRAM_KEY_FILE are set in this shell; leave it with `exit`",
                output::bytes(self.memory.0),
                addresses.join(", ")
            ));
        }
        let mut command = self.shell();
        command
            .env("NETRAM_LENDERS", addresses.join(","))
            .env("NETRAM_KEY_FILE", &key_file)
            .env(LENDERS_VARIABLE, ids.join(" "));
        // Ctrl-C is for the programs in the shell. A handler, unlike an ignored signal, is not inherited by
        // them.
        let _interrupts =
            signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::<AtomicBool>::default())?;
        let name = command.get_program().display().to_string();
        let status = command.status().with_context(|| format!("starting {name}"))?;
        drop(lenders);
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
        Ok(ExitCode::from(code.unwrap_or_else(|| {
            SIGNALLED.saturating_add(signal.unwrap_or_default())
        })))
    }

    fn shell(&self) -> Command {
        match self.command.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            None => Command::new(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
        }
    }
}

/// Frees the memory of plays that were killed: their lenders ended with them, and left it.
fn remove_abandoned() {
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name
            .to_str()
            .and_then(|name| name.strip_prefix("netram-play-")?.split('-').next());
        if id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Keeps the settings of the caller's environment from a lender that is started for a trial.
pub(super) fn without_settings(command: &mut Command) {
    let without =
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(|name| name.starts_with("NETRAM_")));
    for (variable, _) in without {
        command.env_remove(variable);
    }
}

impl PlayLender {
    fn start(name: &str, directory: &Path, key_file: &Path, memory: SizeArg) -> Result<PlayLender> {
        let log = directory.join(format!("lender-{name}.log"));
        let name = format!("play-{}-{name}", std::process::id());
        let store = PathBuf::from(format!("/dev/shm/netram-{name}.mem"));
        let mut command = Command::new(netram_process::this_program()?);
        without_settings(&mut command);
        command
            .args([
                "lender",
                "serve",
                "--with-parent",
                "--listen",
                "tcp://127.0.0.1:0",
            ])
            .args([
                "--name",
                &name,
                "--domain",
                &name,
                "--memory",
                &memory.0.to_string(),
                "--store",
            ])
            .arg(&store)
            .arg("--key-file")
            .arg(key_file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).context("creating a lender's log")?);
        let process = command.spawn().context("starting a lender")?;
        let mut lender = PlayLender {
            process,
            address: String::new(),
            store,
        };
        let lines = lender.process.stdout.take().map(BufReader::new);
        for line in lines.into_iter().flat_map(BufRead::lines) {
            let line = line.context("reading a lender's output")?;
            if let Some(address) = line.strip_prefix("listening ") {
                address.clone_into(&mut lender.address);
            }
            if line == "ready" {
                break;
            }
        }
        ensure!(
            !lender.address.is_empty(),
            "a lender ended before it was ready: {}",
            std::fs::read_to_string(&log).unwrap_or_default().trim()
        );
        Ok(lender)
    }
}

impl Drop for PlayLender {
    fn drop(&mut self) {
        // A lender that was killed already is only waited for.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
        let _ = netram_lender::remove_store(&self.store);
    }
}
