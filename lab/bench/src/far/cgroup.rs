//! A control group with a memory limit, through either of the kernel's two interfaces.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cleanup::{CleanupItem, end_group, register, unregister};

/// Directory of version 1's memory controllers, and of version 2.
const FIRST: &str = "/sys/fs/cgroup/memory";
const SECOND: &str = "/sys/fs/cgroup";

/// A control group. Its processes must have ended when it is dropped.
#[derive(Debug)]
pub(super) struct MemoryCgroup {
    directory: PathBuf,
}

impl MemoryCgroup {
    /// Creates a group; the error is the reason why that is impossible.
    pub(super) fn limited_to(bytes: u64, number: u32) -> Result<MemoryCgroup, String> {
        let name = format!("netram-bench-{}-{number}", std::process::id());
        let (above, limit) = interface()?;
        let directory = above.join(name);
        register(CleanupItem::Group(directory.clone()));
        fs::create_dir(&directory).map_err(|error| format!("no group with a limit of memory: {error}"))?;
        let group = MemoryCgroup { directory };
        let limited = fs::write(group.directory.join(limit), bytes.to_string());
        limited.map_err(|error| format!("no limit of memory: {error}"))?;
        Ok(group)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        end_group(&self.directory);
        unregister(&CleanupItem::Group(self.directory.clone()));
    }
}

/// The directory in which groups are created, and the name of a group's limit file.
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
    // It may be on already, and only root may turn it on; creating a group shows whether it works.
    let _ = fs::write(second.join("cgroup.subtree_control"), "+memory");
    Ok((second.to_owned(), "memory.max"))
}

/// This process's own group in version 1, or the outermost one where a container hides it.
fn first(mount: &Path) -> Option<PathBuf> {
    let is_here = |directory: &Path| directory.join("memory.limit_in_bytes").exists();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.strip_prefix("memory:/").map(|own| mount.join(own))
    });
    own.into_iter()
        .chain([mount.to_owned()])
        .find(|directory| is_here(directory))
}
