//! The machine whose volumes are driven: its programs, its files and its mounts. The driver may run in a
//! container of that machine, and then reaches all three through process 1.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::refusal::VolumeRefusal;

/// Exit code by which `netram` refuses its arguments.
const USAGE: i32 = 2;
/// Root directory of the machine, seen from a container that has the machine's process ids.
const HOST_ROOT: &str = "/proc/1/root";

/// The machine, reached directly or from a container.
#[derive(Clone, Debug)]
pub(crate) struct HostMachine {
    netram: PathBuf,
    from_container: bool,
}

impl HostMachine {
    /// Returns the machine, whose program `netram` is at that path or in the search path.
    pub(crate) fn new(netram: PathBuf, from_container: bool) -> HostMachine {
        HostMachine {
            netram,
            from_container,
        }
    }

    /// Returns the path by which this process reaches the machine's file `path`.
    pub(crate) fn reach(&self, path: &Path) -> PathBuf {
        match self.from_container {
            true => Path::new(HOST_ROOT).join(path.strip_prefix("/").unwrap_or(path)),
            false => path.to_path_buf(),
        }
    }

    /// Returns a command that runs a program of the machine, in its namespaces.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        match self.from_container {
            true => {
                let mut command = Command::new("nsenter");
                command.args(["--target", "1", "--all", "--"]).arg(program);
                command
            }
            false => Command::new(program),
        }
    }

    /// Returns a command of `netram`.
    pub(crate) fn netram(&self) -> Command {
        self.command(&self.netram)
    }

    /// Returns a command of `netram` whose process in the background outlives the driver. A container's end
    /// kills whatever is in its control group, so the machine's systemd makes another one.
    pub(crate) fn lasting_netram(&self) -> Command {
        match self.from_container {
            true => {
                let mut command = self.command("systemd-run");
                command
                    .args(["--scope", "--quiet", "--collect", "--slice=netram.slice", "--"])
                    .arg(&self.netram);
                command
            }
            false => self.netram(),
        }
    }

    /// Reads the machine's table of mounts.
    pub(crate) fn mount_table(&self) -> io::Result<String> {
        fs::read_to_string(match self.from_container {
            true => "/proc/1/mountinfo",
            false => "/proc/self/mountinfo",
        })
    }
}

/// Runs a command to its end. Returns its standard output.
///
/// # Errors
///
/// The command could not be started, or failed; the refusal has the words that it wrote to standard error.
pub(crate) fn run(command: &mut Command) -> Result<String, VolumeRefusal> {
    let program = command.get_program().to_owned();
    let ran = command.stdin(Stdio::null()).output().map_err(|error| {
        let program = program.display();
        VolumeRefusal::Failed(format!("{program} cannot be run: {error}; is it installed here?"))
    })?;
    if ran.status.success() {
        return Ok(String::from_utf8_lossy(&ran.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    // Errors of netram begin with its name.
    let said = said.strip_prefix("netram: ").unwrap_or(&said);
    let sentence = match said {
        "" => format!("{} ended with {}", program.display(), ran.status),
        said => said.to_owned(),
    };
    Err(match ran.status.code() {
        Some(USAGE) => VolumeRefusal::Invalid(sentence),
        _ => VolumeRefusal::Failed(sentence),
    })
}
