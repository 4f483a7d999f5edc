//! A program that makes one call of each kind and notes what it sees.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags, fallocate, renameat_with};

/// The results that the program saw, call by call.
#[derive(Debug, Default)]
pub(crate) struct Journey(Vec<String>);

impl Journey {
    fn note(&mut self, call: &str, seen: impl std::fmt::Debug) {
        self.0.push(format!("{call}: {seen:?}"));
    }

    fn called<V>(&mut self, call: &str, result: io::Result<V>) -> Option<V> {
        self.note(call, result.as_ref().map(|_| ()).map_err(io::Error::raw_os_error));
        result.ok()
    }

    fn file(&mut self, call: &str, file: &File) {
        let found = file.metadata().unwrap();
        let mut bytes = vec![0; found.len() as usize];
        let read = file.read_exact_at(&mut bytes, 0).map_err(|error| error.kind());
        self.note(
            call,
            (
                found.nlink(),
                found.mode(),
                read,
                bytes.escape_ascii().to_string(),
            ),
        );
    }

    /// The calls at which two runs saw different things.
    pub(crate) fn differences<'a>(&'a self, other: &'a Journey) -> Vec<(&'a String, &'a String)> {
        assert_eq!(self.0.len(), other.0.len());
        self.0
            .iter()
            .zip(&other.0)
            .filter(|(one, other)| one != other)
            .collect()
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(path)
}

/// Makes, changes and removes names, with files that stay open all the time.
pub(crate) fn run(dir: &Path) -> Journey {
    let mut seen = Journey::default();
    let at = |name: &str| dir.join(name);
    let a = seen
        .called("create", create(&at("a")))
        .expect("the first is made");
    seen.called("create again", create(&at("a")));
    seen.called("mkdir", fs::create_dir(at("d")));
    seen.called("mkdir again", fs::create_dir(at("d")));
    let appending = OpenOptions::new().append(true).open(at("a"));
    let mut appending = seen.called("open to append", appending).expect("it opens");
    for word in ["one ", "two ", "three "] {
        seen.called("append", appending.write_all(word.as_bytes()));
    }
    seen.file("appended", &a);
    seen.called("rename", fs::rename(at("a"), at("d/b")));
    seen.called("rename what is gone", fs::rename(at("a"), at("d/b")));
    seen.called("link", fs::hard_link(at("d/b"), at("c")));
    seen.called("link again", fs::hard_link(at("d/b"), at("c")));
    seen.file("linked", &a);
    seen.called("symlink", symlink("d/b", at("s")));
    seen.called("symlink again", symlink("d/b", at("s")));
    seen.note(
        "readlink",
        fs::read_link(at("s")).map_err(|error| error.raw_os_error()),
    );
    xattrs(&mut seen, &at("c"));
    let synced = OpenOptions::new().write(true).custom_flags(0o10000).open(at("c"));
    let synced = seen.called("open with O_DSYNC", synced).expect("it opens");
    seen.called("write synced", synced.write_all_at(b"ONE", 0));
    seen.called("fsync", a.sync_all());
    seen.called(
        "fallocate",
        fallocate(&a, FallocateFlags::empty(), 10, 20).map_err(Into::into),
    );
    seen.called("truncate", a.set_len(25));
    seen.file("allocated", &a);
    seen.called("unlink", fs::remove_file(at("d/b")));
    seen.called("unlink again", fs::remove_file(at("d/b")));
    seen.called("rmdir", fs::remove_dir(at("d")));
    seen.called("rmdir again", fs::remove_dir(at("d")));
    seen.called("unlink the last name", fs::remove_file(at("c")));
    seen.file("without a name", &a);
    seen.called("write without a name", a.write_all_at(b"nameless", 4));
    seen.file("written without a name", &a);
    replaced(&mut seen, dir);
    let trunc = OpenOptions::new().write(true).truncate(true).open(at("kept"));
    seen.called("truncating open", trunc);
    seen.note("length", fs::metadata(at("kept")).unwrap().len());
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    seen.note("names", names);
    seen.file("at the end", &a);
    seen
}

fn xattrs(seen: &mut Journey, path: &Path) {
    let mut set = |call: &str, value: &[u8], flags| {
        let set = rustix::fs::setxattr(path, "user.word", value, flags);
        seen.called(call, set.map_err(Into::into));
    };
    set("setxattr", b"1", XattrFlags::CREATE);
    set("setxattr again", b"2", XattrFlags::CREATE);
    set("setxattr replaced", b"3", XattrFlags::REPLACE);
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(path, "user.word", &mut value[..]);
    seen.note("getxattr", (length, value));
    for call in ["removexattr", "removexattr again"] {
        let removed = rustix::fs::removexattr(path, "user.word");
        seen.called(call, removed.map_err(Into::into));
    }
}

/// Renames over a file that is open, without replacing, and exchanging.
fn replaced(seen: &mut Journey, dir: &Path) {
    let at = |name: &str| dir.join(name);
    let old = create(&at("kept")).unwrap();
    old.write_all_at(b"old", 0).unwrap();
    let new = create(&at("new")).unwrap();
    new.write_all_at(b"newer", 0).unwrap();
    seen.called("rename over", fs::rename(at("new"), at("kept")));
    seen.file("replaced", &old);
    seen.file("in its place", &new);
    seen.note("by name", fs::read(at("kept")).unwrap());
    fs::create_dir(at("e")).unwrap();
    for (call, flags) in [
        ("not replacing", RenameFlags::NOREPLACE),
        ("exchange", RenameFlags::EXCHANGE),
    ] {
        let renamed = renameat_with(rustix::fs::CWD, at("kept"), rustix::fs::CWD, at("e"), flags);
        seen.called(call, renamed.map_err(Into::into));
    }
    let back = renameat_with(
        rustix::fs::CWD,
        at("kept"),
        rustix::fs::CWD,
        at("e"),
        RenameFlags::EXCHANGE,
    );
    seen.called("exchange back", back.map_err(Into::into));
}
