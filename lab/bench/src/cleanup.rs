//! What must not outlive a measurement that a signal ends, for no guard is dropped then.
//!
//! Its threads may be just making something, so nothing is safely gone while they run. The process therefore
//! becomes another program, [`CleanupJob`], in its own place: the kernel ends all threads first, and whoever
//! waits for the process waits for the cleaning.

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

use crate::child::{ChildRole, PLAY};
use crate::error::{BenchError, ErrorContext};
#[cfg(feature = "experiments")]
use crate::far::{cgroup, swap};
use crate::namespaces;
use crate::sys::ignore_interruptions;

/// The program that runs.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// How often it is looked whether children have ended, and how long for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const POLLS_MAX: usize = 1000;

static PENDING_ITEMS: Mutex<Vec<CleanupItem>> = Mutex::new(Vec::new());

/// Something that stays unless it is taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CleanupItem {
    /// A file, or a directory and all that is in it.
    Path(PathBuf),
    /// A network namespace.
    Namespace(String),
    /// A directory that something is mounted on. What it was mounted from ends with that.
    Mount(PathBuf),
    /// What the kernel swaps to.
    #[cfg(feature = "experiments")]
    Swap(PathBuf),
    /// A group of processes.
    #[cfg(feature = "experiments")]
    Group(PathBuf),
}

/// It is about to be made. Not after it is: a signal between the two would leave it.
pub(crate) fn register(leftover: CleanupItem) {
    pending_items().push(leftover);
}

/// It has been taken away.
pub(crate) fn unregister(leftover: &CleanupItem) {
    pending_items().retain(|other| other != leftover);
}

fn pending_items() -> MutexGuard<'static, Vec<CleanupItem>> {
    PENDING_ITEMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the order in which they can be taken away.
fn in_cleanup_order(leftovers: &[CleanupItem]) -> Vec<CleanupItem> {
    let mut all = leftovers.to_vec();
    all.sort_by_key(CleanupItem::cleanup_rank);
    all
}

/// Ends this process with the exit code `code`, its children, and whatever they would leave.
pub fn abandon(code: i32) -> ! {
    // While those who serve it still answer.
    let used = pending_items().clone();
    in_cleanup_order(&used)
        .into_iter()
        .filter(CleanupItem::is_in_use)
        .for_each(CleanupItem::remove);
    // Held to the end: nothing more is made that has to be remembered first.
    let all = pending_items();
    let remaining = in_cleanup_order(&all);
    if let Ok(list) = item_list(&remaining) {
        // Returns only if it fails.
        let _ = clean(code, list);
    }
    remaining.into_iter().for_each(CleanupItem::remove);
    std::process::exit(code)
}

/// A list for the cleaner, in a file that has no name.
fn item_list(leftovers: &[CleanupItem]) -> io::Result<File> {
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
    let role = serde_json::to_string(&ChildRole::Clean(CleanupJob { code }))?;
    Err(Command::new(THIS_PROGRAM)
        .args([PLAY, &role])
        .stdin(list)
        .stdout(Stdio::null())
        .exec())
}

/// What an abandoned measurement has become. What it takes away is listed on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CleanupJob {
    code: i32,
}

impl CleanupJob {
    /// Takes everything away, and ends the process as the measurement would have ended.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        let listed: Vec<CleanupItem> =
            serde_json::from_reader(io::stdin()).context("read what a measurement has left")?;
        kill_children();
        listed.into_iter().for_each(CleanupItem::remove);
        std::process::exit(self.code)
    }
}

/// Most were killed by the kernel, with the thread that had started them; one that was just starting had not
/// asked for it. One that the kernel does not let go of must not hold up the rest.
fn kill_children() {
    for _ in 0..POLLS_MAX {
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
        std::thread::sleep(POLL_INTERVAL);
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

impl CleanupItem {
    /// Processes end before what they swap to is taken away; and that, and what is mounted, before the
    /// directories that they are in, or their contents would be removed one by one.
    fn cleanup_rank(&self) -> u8 {
        match self {
            #[cfg(feature = "experiments")]
            CleanupItem::Group(_) => 0,
            #[cfg(feature = "experiments")]
            CleanupItem::Swap(_) => 1,
            CleanupItem::Mount(_) => 1,
            CleanupItem::Path(_) | CleanupItem::Namespace(_) => 2,
        }
    }

    /// Whether it goes better while what is behind it still answers.
    fn is_in_use(&self) -> bool {
        self.cleanup_rank() < 2
    }

    /// Whatever is gone already was removed by its guard.
    fn remove(self) {
        let _ = match self {
            CleanupItem::Path(path) if path.is_dir() => retry_removal(|| fs::remove_dir_all(&path)),
            CleanupItem::Path(path) => fs::remove_file(path).is_ok(),
            CleanupItem::Namespace(name) => namespaces::ip(&["netns", "delete", &name]).is_ok(),
            CleanupItem::Mount(path) => unmount(&path).is_ok(),
            #[cfg(feature = "experiments")]
            CleanupItem::Swap(path) => !path.exists() || swap::end(&path).is_ok(),
            #[cfg(feature = "experiments")]
            CleanupItem::Group(path) => cgroup::end(&path),
        };
    }
}

/// Unmounts it whoever uses it, and lets the directory be removed: `netram mount` keeps it from everybody
/// until it gives it back itself.
pub(crate) fn unmount(directory: &Path) -> io::Result<()> {
    let mut command = Command::new("umount");
    command
        .arg("--lazy")
        .arg(directory)
        .stderr(Stdio::null())
        .status()?;
    let directory = File::open(directory)?;
    let mut flags = rustix::fs::ioctl_getflags(&directory)?;
    flags.remove(IFlags::IMMUTABLE);
    Ok(rustix::fs::ioctl_setflags(&directory, flags)?)
}

/// Tries for a second: somebody may be just making something in it, or ending.
pub(crate) fn retry_removal(mut remove: impl FnMut() -> io::Result<()>) -> bool {
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
        let directory = tempfile::tempdir().unwrap();
        let [kept, gone] = ["kept", "gone"].map(|name| CleanupItem::Path(directory.path().join(name)));
        register(kept.clone());
        register(gone.clone());
        unregister(&kept);
        let all = pending_items().clone();
        assert!(all.contains(&gone) && !all.contains(&kept));
        unregister(&gone);
    }

    #[test]
    fn what_is_in_use_goes_first() {
        let [path, mount, group] =
            [CleanupItem::Path, CleanupItem::Mount, CleanupItem::Group].map(|kind| kind("somewhere".into()));
        let all = [path.clone(), mount.clone(), group.clone()];
        assert_eq!(in_cleanup_order(&all), [group, mount, path]);
    }

    #[test]
    fn children_are_found_whatever_they_are_called() {
        let directory = tempfile::tempdir().unwrap();
        let named = directory.path().join("a) S 1 (b");
        std::os::unix::fs::symlink("/bin/sleep", &named).unwrap();
        let mut child = Command::new(&named).arg("60").spawn().unwrap();
        let found = children().contains(&Pid::from_child(&child));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }
}
