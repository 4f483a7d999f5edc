//! A disk that fails a write and goes on: afterwards the page cache has bytes that the disk never got.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::common::{finish, ran, start};
use crate::sqlite::{SqliteTestbed, no_shell, said_bytes, wait_until};

/// ext4 on a loop device whose image is on a file system of memory, which can be full: then a block that was
/// not written before fails in the device, and others do not.
struct Failing {
    memory: PathBuf,
    at: PathBuf,
    image: PathBuf,
    /// All of it is in there, and goes with it once it is not mounted.
    _directory: TempDir,
}

fn does(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Failing {
    fn new() -> Result<Failing, String> {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = Failing {
            memory: directory.path().join("memory"),
            at: directory.path().join("disk"),
            image: directory.path().join("memory/image"),
            _directory: directory,
        };
        fs::create_dir(&disk.memory).unwrap();
        fs::create_dir(&disk.at).unwrap();
        let mut mount = Command::new("mount");
        does(
            mount
                .args(["-t", "tmpfs", "-o", "size=40m", "tmpfs"])
                .arg(&disk.memory),
        )?;
        fs::write(&disk.image, vec![0; 32 << 20]).unwrap();
        let mut make = Command::new("mkfs.ext4");
        does(
            make.args(["-q", "-b", "4096", "-O", "^has_journal"])
                .arg(&disk.image),
        )?;
        does(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&disk.image)
                .arg(&disk.at),
        )?;
        Ok(disk)
    }

    /// From now on it fails to write to blocks that are free now.
    fn fail(&self) -> Result<(), String> {
        does(&mut Command::new("sync"))?;
        does(Command::new("fstrim").arg(&self.at))?;
        let mut filler = File::create(self.memory.join("filler")).unwrap();
        while filler.write_all(&[7; 4096]).is_ok() {}
        Ok(())
    }

    fn mend(&self) {
        fs::remove_file(self.memory.join("filler")).unwrap();
    }

    /// Cuts the power: what the disk has not written by now is lost.
    fn power_off(&self) {
        let copy = self.at.with_file_name("copy");
        let copied = Command::new("cp")
            .arg("--sparse=always")
            .arg(&self.image)
            .arg(&copy)
            .status();
        assert!(copied.unwrap().success());
        // Without a journal the file system counts its free blocks anew. It ends with 1 where it has mended
        // something.
        let mended = Command::new("e2fsck").arg("-fy").arg(&copy).output().unwrap();
        assert!(mended.status.code().is_some_and(|code| code < 2), "{mended:?}");
        unmount(&self.at, UnmountFlags::DETACH).unwrap();
        does(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&copy)
                .arg(&self.at),
        )
        .unwrap();
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        let _ = unmount(&self.memory, UnmountFlags::DETACH);
    }
}

/// A commit failed, and its frames stayed in the page cache as clean. The next opening let SQLite take them
/// as committed and append behind them. After a power cut the chain of the log ended before them, and
/// everything behind was lost, although lenders had held it.
#[test]
fn commits_after_a_failed_sync_survive_a_power_failure() {
    if no_shell() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        crate::common::skipped("a loop device needs root");
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = match Failing::new() {
        Ok(disk) => disk,
        Err(why) => {
            crate::common::skipped(format_args!("no disk can be made that fails: {why}"));
            return;
        }
    };
    let site = SqliteTestbed::at(directory, disk.at.clone(), "sqlite-failing", 2);
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, filler);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let (said, script) = (site.directory.path().join("said"), site.prelude());
    let mut shell = Command::new("sqlite3");
    shell
        .args(["-batch"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = start(shell.stderr(Stdio::piped()));
    let mut input = shell.stdin.take().unwrap();
    let text = "pragma synchronous=full;\npragma wal_autocheckpoint=0;\ninsert into t values(1, 'x');\n";
    input.write_all((script + text).as_bytes()).unwrap();
    wait_until("it has a journal", || site.seats_taken() == 1);
    if let Err(why) = disk.fail() {
        drop(input);
        shell.wait().unwrap();
        crate::common::skipped(format_args!("the disk's free blocks cannot be taken away: {why}"));
        return;
    }
    // By the disk, as large as it is.
    input
        .write_all(b"insert into t values(2, randomblob(400000));\n")
        .unwrap();
    drop(input);
    let failed = ran(shell.wait_with_output().unwrap());
    assert!(
        failed.err.contains("the disk failed"),
        "{} {}",
        failed.out,
        failed.err
    );
    disk.mend();
    // SQLite's own checkpoint would bring the frames to the database, and hide that their log is torn.
    let mut writer = site.writer_to_wal(10, 1, &said, &[]);
    wait_until("some commits", || said_bytes(&said) > 300);
    wait_until("it has a journal", || site.seats_taken() == 1);
    let before = said_bytes(&said);
    wait_until("some commits by the journal", || said_bytes(&said) > before + 200);
    writer.kill().unwrap();
    writer.wait().unwrap();
    disk.power_off();
    let recovered = finish(&mut site.netram("recover"));
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(site.check(&said) > 10);
}
