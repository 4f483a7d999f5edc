//! Processes that have files open in a directory, as far as `/proc` shows them. Other users' processes are
//! visible only to root.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process that has a file open in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// Path of an open or mapped file, or of its working directory.
    pub path: PathBuf,
}

impl fmt::Display for MountUser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} (process {}) has {} open",
            self.name,
            self.pid,
            self.path.display()
        )
    }
}

/// Processes, other than this one, that have a file open in `directory`.
pub fn users(directory: &Path) -> Vec<MountUser> {
    find(directory, None)
}

/// Processes, other than this one, that have a file of the file system open that is mounted at `directory`.
/// The mount's own server has the directory beneath open, whose path is the same.
pub(crate) fn users_of_mount(directory: &Path) -> Vec<MountUser> {
    let device = fs::metadata(directory).map(|found| found.dev());
    find(directory, device.ok())
}

fn find(directory: &Path, device: Option<u64>) -> Vec<MountUser> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    { processes }
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| *pid != own)
        .filter_map(|pid| {
            let path = open_in(pid, directory, device)?;
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Some(MountUser {
                pid,
                name: name.trim().to_owned(),
                path,
            })
        })
        .collect()
}

fn open_in(pid: u32, directory: &Path, device: Option<u64>) -> Option<PathBuf> {
    let is_of =
        |link: &Path| device.is_none_or(|device| fs::metadata(link).is_ok_and(|found| found.dev() == device));
    let links = ["cwd", "root"].map(|link| PathBuf::from(format!("/proc/{pid}/{link}")));
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let maps = fs::read_dir(format!("/proc/{pid}/map_files"))
        .into_iter()
        .flatten()
        .flatten();
    { links.into_iter() }
        .chain(descriptors.map(|entry| entry.path()))
        .chain(maps.map(|entry| entry.path()))
        .filter_map(|link| Some((fs::read_link(&link).ok()?, link)))
        .find(|(path, link)| path.starts_with(directory) && is_of(link))
        .map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn users_include_open_files_and_working_directories() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        assert_eq!(users(&path), []);
        fs::write(path.join("log"), b"").unwrap();
        for cwd in [false, true] {
            let mut command = Command::new("sleep");
            command.arg("60");
            match cwd {
                true => command.current_dir(&path),
                false => command.stdin(Stdio::from(fs::File::open(path.join("log")).unwrap())),
            };
            let mut child = command.spawn().unwrap();
            let found = users(&path);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].pid, child.id());
        }
    }
}
