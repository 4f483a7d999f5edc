//! Who has something open in a directory, as far as `/proc` shows it: of others' processes only root sees
//! that.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A process that has something open there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// Its number.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// What it has open: a file, or the directory that it is in.
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

/// Who has something open in `directory`, but for this process.
pub fn users(directory: &Path) -> Vec<MountUser> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    { processes }
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| *pid != own)
        .filter_map(|pid| {
            let path = open_in(pid, directory)?;
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Some(MountUser {
                pid,
                name: name.trim().to_owned(),
                path,
            })
        })
        .collect()
}

fn open_in(pid: u32, directory: &Path) -> Option<PathBuf> {
    let within = |path: &PathBuf| path.starts_with(directory);
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
        .filter_map(|link| fs::read_link(link).ok())
        .find(within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn whoever_has_a_file_open_or_stands_in_the_directory_is_found() {
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
