//! File systems on attached volumes: made once, mounted, shown elsewhere, enlarged.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::host::{HostMachine, run};
use crate::mount_table::{self, TableMount};
use crate::refusal::{VolumeRefusal, failed};

/// File systems that can be made.
pub(crate) const KINDS: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// File system of a volume for which none was asked.
pub(crate) const KIND_DEFAULT: &str = "ext4";
/// Exit code of blkid if it found nothing.
const NOTHING_FOUND: i32 = 2;
/// Bytes at the beginning of a device that are read before a file system is made.
const PROBE_BYTES: usize = 4096;

/// Returns the table of mounts.
pub(crate) fn table(host: &HostMachine) -> Result<Vec<TableMount>, VolumeRefusal> {
    let text = host.mount_table().map_err(failed("/proc/self/mountinfo"))?;
    Ok(mount_table::parse(&text))
}

/// Returns the kind of file system on a device; `None` if there is nothing on it.
///
/// # Errors
///
/// The device cannot be read, or what is on it is no file system.
pub(crate) fn found_on(host: &HostMachine, device: &Path) -> Result<Option<String>, VolumeRefusal> {
    // blkid's answer for what it cannot read is that it found nothing.
    let mut bytes = [0; PROBE_BYTES];
    let mut read = || File::open(host.reach(device))?.read_exact(&mut bytes);
    read().map_err(failed(device))?;
    let mut command = host.command("blkid");
    command.args(["--probe", "--output", "export"]).arg(device);
    let probed = command.output().map_err(failed("blkid"))?;
    let said = String::from_utf8_lossy(&probed.stdout);
    let value = |key: &str| {
        said.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    match (probed.status.code(), value("TYPE"), value("PTTYPE")) {
        (Some(0), Some(kind), _) => Ok(Some(kind.to_owned())),
        (Some(NOTHING_FOUND), ..) => Ok(None),
        (Some(0), None, Some(partitions)) => Err(VolumeRefusal::Precondition(format!(
            "{} has a partition table ({partitions}) and no file system: publish it as a block device",
            device.display()
        ))),
        _ => Err(VolumeRefusal::Failed(format!(
            "blkid cannot tell what is on {}: {}",
            device.display(),
            String::from_utf8_lossy(&probed.stderr).trim()
        ))),
    }
}

/// Makes a file system on a device that has none. It dies with this process: the next attempt begins anew.
pub(crate) fn make(host: &HostMachine, device: &Path, kind: &str) -> Result<(), VolumeRefusal> {
    let mut command = host.command("setpriv");
    command.args(["--pdeathsig", "KILL", &format!("mkfs.{kind}"), "-q"]);
    // Otherwise it asks whether a whole device is meant.
    command.args((kind == "ext4").then_some("-F")).arg(device);
    run(&mut command).map(drop)
}

/// Mounts the file system on a device.
pub(crate) fn mount(
    host: &HostMachine,
    device: &Path,
    (kind, options): (&str, &[String]),
    target: &Path,
) -> Result<(), VolumeRefusal> {
    make_directory(&host.reach(target))?;
    let mut command = host.command("mount");
    command.args(["-t", kind]);
    if !options.is_empty() {
        command.args(["-o", &options.join(",")]);
    }
    run(command.arg(device).arg(target)).map(drop)
}

/// Shows a mounted directory, or a device's node, at `target` as well.
pub(crate) fn bind(
    host: &HostMachine,
    source: &Path,
    target: &Path,
    read_only: bool,
) -> Result<(), VolumeRefusal> {
    let mut command = host.command("mount");
    command
        .args(["-o", if read_only { "bind,ro" } else { "bind" }])
        .arg(source)
        .arg(target);
    run(&mut command).map(drop)
}

/// Makes a mount refuse writes, which the rest of its file system goes on taking.
pub(crate) fn make_read_only(host: &HostMachine, target: &Path) -> Result<(), VolumeRefusal> {
    let mut command = host.command("mount");
    run(command.args(["-o", "remount,bind,ro"]).arg(target)).map(drop)
}

/// Unmounts everything on `target`.
///
/// # Errors
///
/// A program has files open there.
pub(crate) fn unmount(host: &HostMachine, target: &Path) -> Result<(), VolumeRefusal> {
    while mount_table::at(&table(host)?, target).is_some() {
        run(host.command("umount").arg("--no-canonicalize").arg(target)).map_err(|error| {
            VolumeRefusal::Precondition(format!(
                "{error}; `fuser -vm {}` shows which programs have it open",
                target.display()
            ))
        })?;
    }
    Ok(())
}

/// Enlarges the mounted file system to its device.
pub(crate) fn grow(host: &HostMachine, device: &Path, mount: &TableMount) -> Result<(), VolumeRefusal> {
    let mut command = match mount.kind.as_str() {
        "ext4" => {
            let mut command = host.command("resize2fs");
            command.arg(device);
            command
        }
        "xfs" => {
            let mut command = host.command("xfs_growfs");
            command.arg(&mount.target);
            command
        }
        "btrfs" => {
            let mut command = host.command("btrfs");
            command.args(["filesystem", "resize", "max"]).arg(&mount.target);
            command
        }
        kind => {
            return Err(VolumeRefusal::Invalid(format!(
                "the volume has the new size, but a file system of the kind {kind} cannot be enlarged here"
            )));
        }
    };
    run(&mut command).map(drop).map_err(|error| {
        // The kernel's words for it are only that permission is denied.
        let remedy = match mount.kind.as_str() {
            "ext4" => {
                "; a mounted ext4 grows only if netram-csi has CAP_SYS_RESOURCE, as in a privileged container"
            }
            _ => "",
        };
        VolumeRefusal::Failed(format!(
            "the volume has the new size, its file system has not: {error}{remedy}"
        ))
    })
}

/// Makes a directory and those above it.
pub(crate) fn make_directory(path: &Path) -> Result<(), VolumeRefusal> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o750).create(path);
    made.map_err(failed(path))
}

/// Makes an empty file, for a device's node to be mounted on.
pub(crate) fn make_file(path: &Path) -> Result<(), VolumeRefusal> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    let mut options = File::options();
    let made = options.create(true).append(true).open(path);
    made.map(drop).map_err(failed(path))
}

/// Removes an empty directory, or the empty file of a device's node.
pub(crate) fn remove_target(path: &Path) -> Result<(), VolumeRefusal> {
    let removed = match path.symlink_metadata() {
        Ok(there) if there.is_dir() => fs::remove_dir(path),
        // A file with contents is not ours.
        Ok(there) if there.is_file() && there.len() > 0 => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed(path)),
    }
}
