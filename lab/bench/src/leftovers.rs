//! What must not outlive a measurement that a signal ends, for no guard is dropped then.
//!
//! Its threads may be just making something, so nothing is safely gone while they run. The process therefore becomes another
//! program, [`Cleaner`], in its own place: the kernel ends all threads first, and whoever waits for the process waits for the cleaning.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::IFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use serde::{Deserialize, Serialize};

use crate::child::{PLAY, Role};
use crate::error::{BenchError, Context};
#[cfg(feature = "experiments")]
use crate::far::{group, swap};
use crate::namespaces;
use crate::sys::ignore_interruptions;

/// The program that runs.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// How often it is looked whether children have ended, and how long for.
const PAUSE: Duration = Duration::from_millis(5);
const LOOKS: usize = 1000;

static LEFTOVERS: Mutex<Vec<Leftover>> = Mutex::new(Vec::new());

/// Something that stays unless it is taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Leftover {
    /// A file, or a folder and all that is in it.
    Path(PathBuf),
    /// A network namespace.
    Namespace(String),
    /// A folder that something is mounted on. What it was mounted from ends with that.
    Mount(PathBuf),
    /// What the kernel swaps to.
    #[cfg(feature = "experiments")]
    Swap(PathBuf),
    /// A group of processes.
    #[cfg(feature = "experiments")]
    Group(PathBuf),
}

/// It is about to be made. Not after it is: a signal between the two would leave it.
pub(crate) fn remember(leftover: Leftover) {
    leftovers().push(leftover);
}

/// It has been taken away.
pub(crate) fn forget(leftover: &Leftover) {
    leftovers().retain(|other| other != leftover);
}

fn leftovers() -> MutexGuard<'static, Vec<Leftover>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the order in which they can be taken away.
fn in_turn(leftovers: &[Leftover]) -> Vec<Leftover> {
    let mut all = leftovers.to_vec();
    all.sort_by_key(Leftover::turn);
    all
}

/// Ends this process with the exit code `code`, its children, and whatever they would leave.
pub fn abandon(code: i32) -> ! {
    // While those who serve it still answer.
    let used = leftovers().clone();
    in_turn(&used)
        .into_iter()
        .filter(Leftover::is_in_use)
        .for_each(Leftover::remove);
    // Held to the end: nothing more is made that has to be remembered first.
    let all = leftovers();
    let remaining = in_turn(&all);
    if let Ok(list) = listed(&remaining) {
        // Returns only if it fails.
        let _ = clean(code, list);
    }
    remaining.into_iter().for_each(Leftover::remove);
    std::process::exit(code)
}

/// A list for the cleaner, in a file that has no name.
fn listed(leftovers: &[Leftover]) -> io::Result<File> {
    let mut list = tempfile::tempfile()?;
    list.write_all(&serde_json::to_vec(leftovers)?)?;
    list.seek(SeekFrom::Start(0))?;
    Ok(list)
}

fn clean(code: i32, list: File) -> io::Result<()> {
    // Whoever is impatient asks twice.
    ignore_interruptions();
    // Those whose own parents end with it come here. Any process turns that on.
    rustix::process::set_child_subreaper(Some(Pid::INIT))?;
    let role = serde_json::to_string(&Role::Clean(Cleaner { code }))?;
    Err(Command::new(THIS_PROGRAM)
        .args([PLAY, &role])
        .stdin(list)
        .stdout(Stdio::null())
        .exec())
}

/// What an abandoned measurement has become. What it takes away is listed on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cleaner {
    code: i32,
}

impl Cleaner {
    /// Takes everything away, and ends the process as the measurement would have ended.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        let listed: Vec<Leftover> =
            serde_json::from_reader(io::stdin()).context("read what a measurement has left")?;
        kill_children();
        listed.into_iter().for_each(Leftover::remove);
        std::process::exit(self.code)
    }
}

/// Most were killed by the kernel, with the thread that had started them; one that was just starting had not asked for it. One that the kernel does not let go of
/// must not hold up the rest.
fn kill_children() {
    for _ in 0..LOOKS {
        for child in children() {
            // It is not reaped but here: its id is still its own.
            let _ = kill_process(child, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => (),
                Ok(None) => break,
                // There is none any more.
                Err(_) => return,
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// The processes whose parent this one is.
fn children() -> Vec<Pid> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the name, which may have brackets of its own: state and parent.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            (parent.parse() == Ok(own)).then(|| Pid::from_raw(pid))?
        })
        .collect()
}

impl Leftover {
    /// Processes end before what they swap to is taken away; and that, and what is mounted, before the folders that they are in, or
    /// their contents would be removed one by one.
    fn turn(&self) -> u8 {
        match self {
            #[cfg(feature = "experiments")]
            Leftover::Group(_) => 0,
            #[cfg(feature = "experiments")]
            Leftover::Swap(_) => 1,
            Leftover::Mount(_) => 1,
            Leftover::Path(_) | Leftover::Namespace(_) => 2,
        }
    }

    /// Whether it goes better while what is behind it still answers.
    fn is_in_use(&self) -> bool {
        self.turn() < 2
    }

    /// Whatever is gone already was removed by its guard.
    fn remove(self) {
        let _ = match self {
            Leftover::Path(path) if path.is_dir() => gone(|| fs::remove_dir_all(&path)),
            Leftover::Path(path) => fs::remove_file(path).is_ok(),
            Leftover::Namespace(name) => namespaces::ip(&["netns", "delete", &name]).is_ok(),
            Leftover::Mount(path) => unmount(&path).is_ok(),
            #[cfg(feature = "experiments")]
            Leftover::Swap(path) => !path.exists() || swap::end(&path).is_ok(),
            #[cfg(feature = "experiments")]
            Leftover::Group(path) => group::end(&path),
        };
    }
}

/// Unmounts it whoever uses it, and lets the folder be removed: `netram mount` keeps it from everybody until it gives it back itself.
pub(crate) fn unmount(folder: &Path) -> io::Result<()> {
    let mut command = Command::new("umount");
    command.arg("--lazy").arg(folder).stderr(Stdio::null()).status()?;
    let folder = File::open(folder)?;
    let mut flags = rustix::fs::ioctl_getflags(&folder)?;
    flags.remove(IFlags::IMMUTABLE);
    Ok(rustix::fs::ioctl_setflags(&folder, flags)?)
}

/// Tries for a second: somebody may be just making something in it, or ending.
pub(crate) fn gone(mut remove: impl FnMut() -> io::Result<()>) -> bool {
    (0..100).any(|_| match remove() {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(_) => {
            std::thread::sleep(Duration::from_millis(10));
            false
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_not_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let [kept, gone] = ["kept", "gone"].map(|name| Leftover::Path(folder.path().join(name)));
        remember(kept.clone());
        remember(gone.clone());
        forget(&kept);
        let all = leftovers().clone();
        assert!(all.contains(&gone) && !all.contains(&kept));
        forget(&gone);
    }

    #[test]
    fn what_is_in_use_goes_first() {
        let [path, mount, group] =
            [Leftover::Path, Leftover::Mount, Leftover::Group].map(|kind| kind("somewhere".into()));
        let all = [path.clone(), mount.clone(), group.clone()];
        assert_eq!(in_turn(&all), [group, mount, path]);
    }

    #[test]
    fn children_are_found_whatever_they_are_called() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("a) S 1 (b");
        std::os::unix::fs::symlink("/bin/sleep", &named).unwrap();
        let mut child = Command::new(&named).arg("60").spawn().unwrap();
        let found = children().contains(&Pid::from_child(&child));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }
}
