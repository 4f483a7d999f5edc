//! The checkout: where it is, which files are in it, and how to run cargo in it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cargo puts this file into every directory that it fills and may be emptied, whatever the directory's name.
const CACHE_MARK: &str = "CACHEDIR.TAG";

/// The top of the checkout that the command was typed in.
///
/// Found anew on each run. The place this crate was built from will not do: cargo takes a build directory
/// that two checkouts share, or that a cache restored elsewhere, for fresh, and the gates would judge the
/// other tree.
pub(crate) fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("no current directory: {error}"))?;
    let top = here
        .ancestors()
        .find(|directory| directory.join("xtask/Cargo.toml").is_file());
    top.map(Path::to_path_buf)
        .ok_or_else(|| format!("{}: not inside the checkout", here.display()))
}

/// Every file below `root` with this extension, as paths relative to `root`, sorted.
pub(crate) fn files(root: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", directory.display()))?;
            // The entry's own type: a symbolic link is not followed, so a loop of them ends here.
            let kind = entry
                .file_type()
                .map_err(|error| format!("{}: {error}", directory.display()))?;
            let path = entry.path();
            if kind.is_dir() {
                let is_skipped = has_no_sources(&entry.file_name()) || path.join(CACHE_MARK).exists();
                if !is_skipped {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|own| own == extension) {
                found.push(path.strip_prefix(root).unwrap_or(&path).to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a directory of this name has nothing that people write. Cargo marks a `target` that it makes, and
/// not one that a script has made before it.
fn has_no_sources(name: &OsStr) -> bool {
    name == ".git" || name == "target"
}

/// The text of a file below `root`.
pub(crate) fn read(root: &Path, path: &Path) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("{}: {error}", path.display()))
}

/// `cargo` in the checkout, as if typed there.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = without_cargos_words(Command::new(
        std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
    ));
    command.current_dir(root);
    command
}

/// `cargo`, with clippy as the compiler of the workspace's crates: it judges what it compiles.
///
/// All that is built for testing is built so, or it would be compiled twice: cargo keeps what another
/// compiler made apart. `clippy-driver` makes the code that `rustc` makes.
pub(crate) fn checked_cargo(root: &Path) -> Command {
    let mut command = cargo(root);
    checked(&mut command);
    command
}

/// Sets what cargo reads, here or in a process that `command` starts.
pub(crate) fn checked(command: &mut Command) {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
}

/// Removes what `cargo xtask` tells of its own package.
///
/// Build scripts that name these variables (ring's does) would run anew, and rebuild half the tree, on every
/// change between `cargo xtask` and plain `cargo`.
pub(crate) fn without_cargos_words(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let about_us = name.to_str().is_some_and(|name| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        });
        if about_us {
            command.env_remove(name);
        }
    }
    command
}

/// A file without a name, for what a process prints: a pipe would have to be read while it is written.
pub(crate) fn unnamed_file() -> std::io::Result<fs::File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("netram-xtask-{}-{count}", std::process::id()));
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// The directory in which cargo leaves what it builds for testing.
pub(crate) fn built(root: &Path) -> PathBuf {
    target(root).join("debug")
}

/// The directory in which cargo leaves everything.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_build_are_not_files_of_the_tree() {
        let root = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        for (path, mark) in [
            ("src", ""),
            ("target/debug", ""),
            (".git", ""),
            ("built/debug", "built"),
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
            fs::write(root.join(path).join("a.rs"), "").unwrap();
            if !mark.is_empty() {
                fs::write(root.join(mark).join(CACHE_MARK), "").unwrap();
            }
        }
        let found = files(&root, "rs");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.unwrap(), [PathBuf::from("src/a.rs")]);
    }
}
