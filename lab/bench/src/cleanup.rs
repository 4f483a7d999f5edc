//! Removal of files, mounts and processes when a signal ends a measurement, because no guard is dropped then.
//!
//! Other threads may be creating something, so nothing can be removed safely while they run. The process
//! therefore executes another program, [`CleanupJob`], in its own place. The kernel ends all threads first,
//! and a parent that waits for the process waits for the cleanup too.

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

use crate::child::{ChildJob, PART, role_argument};
use crate::error::{BenchError, ErrorContext};
use crate::sys::ignore_interruptions;
use crate::tool::ip;

/// Path of the running program.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Interval at which the end of children is checked, and the maximum number of checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const POLLS_MAX: usize = 1000;

/// Directory in which the kernel creates compressed block devices.
#[cfg(feature = "experiments")]
pub(crate) const ZRAM: &str = "/sys/class/zram-control";
/// Name of its devices, before their number.
#[cfg(feature = "experiments")]
pub(crate) const ZRAM_NAME: &str = "zram";

/// File of a control group to which members' process ids are written.
#[cfg(feature = "experiments")]
pub(crate) const PROCESSES_FILE: &str = "cgroup.procs";

static PENDING_ITEMS: Mutex<Vec<CleanupItem>> = Mutex::new(Vec::new());

/// A resource that stays unless it is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CleanupItem {
    /// A file, or a directory with its contents.
    Path(PathBuf),
    /// A network namespace.
    Namespace(String),
    /// A mount point. The process that serves it ends with the unmount.
    Mount(PathBuf),
    /// A file or device that the kernel swaps to.
    #[cfg(feature = "experiments")]
    Swap(PathBuf),
    /// A control group with its processes.
    #[cfg(feature = "experiments")]
    Group(PathBuf),
}

/// Registers a resource that is about to be created. Later is too late: a signal in between would leave it
/// behind.
pub(crate) fn register(leftover: CleanupItem) {
    pending_items().push(leftover);
}

/// Unregisters a resource that was removed.
pub(crate) fn unregister(leftover: &CleanupItem) {
    pending_items().retain(|other| other != leftover);
}

fn pending_items() -> MutexGuard<'static, Vec<CleanupItem>> {
    PENDING_ITEMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The items in the order in which they can be removed.
fn in_cleanup_order(leftovers: &[CleanupItem]) -> Vec<CleanupItem> {
    let mut all = leftovers.to_vec();
    all.sort_by_key(CleanupItem::cleanup_rank);
    all
}

/// Ends this process with exit code `code`, together with its children, and removes every registered
/// resource.
pub fn abandon(code: i32) -> ! {
    // These go first, while the processes that serve them still answer.
    let used = pending_items().clone();
    in_cleanup_order(&used)
        .into_iter()
        .filter(CleanupItem::is_in_use)
        .for_each(CleanupItem::remove);
    // The lock is held to the end, so no further resource can be registered and created.
    let all = pending_items();
    let remaining = in_cleanup_order(&all);
    if let Ok(list) = item_list(&remaining) {
        // Returns only if it fails.
        let _ = clean(code, list);
    }
    remaining.into_iter().for_each(CleanupItem::remove);
    std::process::exit(code)
}

/// The list for the cleaner, in an unnamed file.
fn item_list(leftovers: &[CleanupItem]) -> io::Result<File> {
    let mut list = tempfile::tempfile()?;
    list.write_all(&serde_json::to_vec(leftovers)?)?;
    list.seek(SeekFrom::Start(0))?;
    Ok(list)
}

fn clean(code: i32, list: File) -> io::Result<()> {
    // An impatient user may interrupt twice.
    ignore_interruptions();
    // Orphaned grandchildren become children of this process. Any process may request that.
    rustix::process::set_child_subreaper(Some(Pid::INIT))?;
    let role = role_argument(&CleanupJob { code }).map_err(io::Error::other)?;
    Err(Command::new(THIS_PROGRAM)
        .args([PART, &role])
        .stdin(list)
        .stdout(Stdio::null())
        .exec())
}

/// The program that an abandoned measurement becomes. Its standard input lists the items to remove.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CleanupJob {
    code: i32,
}

impl ChildJob for CleanupJob {
    const ROLE: &'static str = "Clean";

    // Removes all items, and ends the process with the measurement's exit code.
    fn run(&self) -> Result<(), BenchError> {
        let listed: Vec<CleanupItem> =
            serde_json::from_reader(io::stdin()).context("read what a measurement has left")?;
        kill_children();
        listed.into_iter().for_each(CleanupItem::remove);
        std::process::exit(self.code)
    }
}

/// Kills the children that are left. The kernel killed most of them with the thread that had started them;
/// one that was just starting had not asked for that. A child that the kernel does not release must not hold
/// up the rest.
fn kill_children() {
    for _ in 0..POLLS_MAX {
        for child in children() {
            // Only this code reaps it, so its id is still its own.
            let _ = kill_process(child, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => (),
                Ok(None) => break,
                // There are no children left.
                Err(_) => return,
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Child processes of this one.
fn children() -> Vec<Pid> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // State and parent follow the name, which may contain brackets.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            (parent.parse() == Ok(own)).then(|| Pid::from_raw(pid))?
        })
        .collect()
}

impl CleanupItem {
    /// Rank in the order of removal. Processes end before their swap is removed; swap and mounts go before
    /// the directories that contain them, whose removal would otherwise delete their contents one by one.
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

    /// Whether removal works better while the processes behind the item still answer.
    fn is_in_use(&self) -> bool {
        self.cleanup_rank() < 2
    }

    /// Removes the item. Errors are ignored: a missing item was removed by its guard.
    fn remove(self) {
        let _ = match self {
            CleanupItem::Path(path) if path.is_dir() => retry_removal(|| fs::remove_dir_all(&path)),
            CleanupItem::Path(path) => fs::remove_file(path).is_ok(),
            CleanupItem::Namespace(name) => ip(&["netns", "delete", &name]).is_ok(),
            CleanupItem::Mount(path) => unmount(&path).is_ok(),
            #[cfg(feature = "experiments")]
            CleanupItem::Swap(path) => !path.exists() || end_swap(&path).is_ok(),
            #[cfg(feature = "experiments")]
            CleanupItem::Group(path) => end_group(&path),
        };
    }
}

/// Removes a group after killing its processes. `false` if one did not end in time.
#[cfg(feature = "experiments")]
pub(crate) fn end_group(directory: &Path) -> bool {
    retry_removal(|| {
        let members = fs::read_to_string(directory.join(PROCESSES_FILE)).unwrap_or_default();
        for member in members
            .lines()
            .filter_map(|member| Pid::from_raw(member.parse().ok()?))
        {
            // A process that has ended since is fine too.
            let _ = kill_process(member, Signal::KILL);
        }
        fs::remove_dir(directory)
    })
}

/// Stops swapping to it, and removes it if it is compressed memory.
///
/// # Errors
///
/// Fails if the kernel does not release the device.
#[cfg(feature = "experiments")]
pub(crate) fn end_swap(path: &Path) -> Result<(), BenchError> {
    let off = crate::tool::tool("swapoff", &[&path.to_string_lossy()]).map(drop);
    let name = path.file_name().and_then(|name| name.to_str());
    match name.and_then(|name| name.strip_prefix(ZRAM_NAME)) {
        // A process may be reading its attributes just now.
        Some(number) if !retry_removal(|| fs::write(Path::new(ZRAM).join("hot_remove"), number)) => Err(
            BenchError::InvalidRequest(format!("{} is still in use", path.display())),
        ),
        _ => off,
    }
}

/// Unmounts a directory although processes may use it, and makes it removable: `netram mount` locks it until
/// it releases it.
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

/// Retries for a second, because a process may be ending, or creating a file in it.
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
    fn unregistered_items_are_not_removed() {
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
    fn items_in_use_are_removed_first() {
        let [path, mount, group] =
            [CleanupItem::Path, CleanupItem::Mount, CleanupItem::Group].map(|kind| kind("somewhere".into()));
        let all = [path.clone(), mount.clone(), group.clone()];
        assert_eq!(in_cleanup_order(&all), [group, mount, path]);
    }

    #[test]
    fn children_are_found_whatever_their_name() {
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
