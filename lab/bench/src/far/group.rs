//! A group of processes with a limit on their memory, by whichever of the kernel's two interfaces is here.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use super::job::MEMBERS;
use crate::leftovers::{Leftover, forget, gone, remember};

/// Where the first interface has its controllers of memory, and the second all.
const FIRST: &str = "/sys/fs/cgroup/memory";
const SECOND: &str = "/sys/fs/cgroup";

/// A group. Its processes must have ended when it is dropped.
#[derive(Debug)]
pub(super) struct Group {
    folder: PathBuf,
}

impl Group {
    /// `Err`: why there can be none here.
    pub(super) fn limited_to(bytes: u64, number: u32) -> Result<Group, String> {
        let name = format!("netram-bench-{}-{number}", std::process::id());
        let (above, limit) = interface()?;
        let folder = above.join(name);
        remember(Leftover::Group(folder.clone()));
        fs::create_dir(&folder).map_err(|error| format!("no group with a limit of memory: {error}"))?;
        let group = Group { folder };
        let limited = fs::write(group.folder.join(limit), bytes.to_string());
        limited.map_err(|error| format!("no limit of memory: {error}"))?;
        Ok(group)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        end(&self.folder);
        forget(&Leftover::Group(self.folder.clone()));
    }
}

/// Ends a group: its processes first, if there are any. `false`: one did not end in time.
pub(crate) fn end(folder: &Path) -> bool {
    gone(|| {
        let members = fs::read_to_string(folder.join(MEMBERS)).unwrap_or_default();
        for member in members
            .lines()
            .filter_map(|member| Pid::from_raw(member.parse().ok()?))
        {
            // One that has ended since is what was wanted.
            let _ = kill_process(member, Signal::KILL);
        }
        fs::remove_dir(folder)
    })
}

/// The folder that groups are made in, and the file of a group that has its limit.
fn interface() -> Result<(PathBuf, &'static str), String> {
    if let Some(above) = first(Path::new(FIRST)) {
        return Ok((above, "memory.limit_in_bytes"));
    }
    let second = Path::new(SECOND);
    let controllers = fs::read_to_string(second.join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|name| name == "memory") {
        return Err(
            "the kernel limits no group's memory here (no controller `memory` in /sys/fs/cgroup)".to_owned(),
        );
    }
    // It may be on already, and only root may turn it on: making a group then tells.
    let _ = fs::write(second.join("cgroup.subtree_control"), "+memory");
    Ok((second.to_owned(), "memory.max"))
}

/// This process's own group of the first interface, or the outermost where a container does not show it.
fn first(mount: &Path) -> Option<PathBuf> {
    let is_here = |folder: &Path| folder.join("memory.limit_in_bytes").exists();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.strip_prefix("memory:/").map(|own| mount.join(own))
    });
    own.into_iter()
        .chain([mount.to_owned()])
        .find(|folder| is_here(folder))
}
