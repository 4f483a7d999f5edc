//! The parts of this test binary when it is started again: in the guest, or as a server beside it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use netram_nbd::{NbdExport, NbdServer, NbdServerConfig, TlsMode};
use netram_volume::Volume;

use crate::guest::cache::CachedDevice;

/// Variable with the part to play and its arguments.
const PART: &str = "NETRAM_GUEST_PART";
/// Beginning of the line that reports a file's number as synced.
const SYNCED: &str = "synced ";
/// Beginning of the line with the bytes that a recovery got from lenders.
const FROM_MEMBERS: &str = "bytes from members: ";

/// Not a test of its own: the process that plays a part.
#[test]
fn part() {
    let Ok(said) = std::env::var(PART) else { return };
    // The test runner has written the beginning of a line.
    say("");
    match said.split(' ').collect::<Vec<_>>()[..] {
        ["write", directory, from] => write_until_it_fails(Path::new(directory), number(from)..),
        ["write", directory, from, to] => {
            write_until_it_fails(Path::new(directory), number(from)..number(to))
        }
        ["check", directory, count] => check(Path::new(directory), number(count)),
        ["recover", volume] => recover(Path::new(volume)),
        ["serve", image, address] => serve(Path::new(image), address),
        _ => panic!("no such part: {said}"),
    }
}

/// The shell's command for a part.
pub(crate) fn command(part: &str) -> String {
    let program = std::env::current_exe().expect("this test has a path");
    format!(
        "{PART}='{part}' {} --exact guest::part::part --nocapture --test-threads 1",
        program.display()
    )
}

/// The arguments and the variable of the same, for a process of the host.
pub(crate) fn process(part: &str) -> (PathBuf, [&'static str; 5], (&'static str, String)) {
    let program = std::env::current_exe().expect("this test has a path");
    let arguments = [
        "--exact",
        "guest::part::part",
        "--nocapture",
        "--test-threads",
        "1",
    ];
    (program, arguments, (PART, part.to_owned()))
}

/// The file whose syncing a line acknowledges.
pub(crate) fn acknowledged(line: &str) -> Option<u64> {
    line.strip_prefix(SYNCED)?.parse().ok()
}

/// Writes and syncs files and their directory, and reports each, until something fails.
fn write_until_it_fails(directory: &Path, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let written = File::create(directory.join(number.to_string()))
            .and_then(|mut file| {
                file.write_all(&content(number))?;
                file.sync_all()
            })
            .and_then(|()| File::open(directory)?.sync_all());
        if let Err(error) = written {
            return say(&format!("failed: {error}"));
        }
        say(&format!("{SYNCED}{number}"));
    }
}

/// Each of the first `count` files is there, and is what was written.
pub(crate) fn check(directory: &Path, count: u64) {
    for number in 0..count {
        let found = fs::read(directory.join(number.to_string()));
        let found = found.unwrap_or_else(|error| panic!("of {count} synced files {number}: {error}"));
        assert!(
            found == content(number),
            "file {number} of {count} has other bytes"
        );
    }
}

/// Opens a volume, as its server does, and closes it.
fn recover(volume: &Path) {
    let (volume, recovered) = Volume::open(volume).expect("it opens");
    volume.close().expect("it closes");
    say(&format!("{FROM_MEMBERS}{}", recovered.journal.bytes_from_members));
}

/// The bytes that a recovery had from members.
pub(crate) fn recovered(line: &str) -> Option<u64> {
    line.strip_prefix(FROM_MEMBERS)?.parse().ok()
}

/// Serves a disk that keeps what is not flushed in this process only.
fn serve(image: &Path, address: &str) {
    let device = CachedDevice::open(image).expect("the image opens").shared();
    let server = NbdServer::start(NbdServerConfig {
        listen: vec![address.parse().expect("an address")],
        exports: vec![NbdExport {
            name: "db".into(),
            description: String::new(),
            device,
            read_only: false,
        }],
        tls: TlsMode::Off,
        insecure: true,
        other_users: false,
    });
    let _server = server.expect("the server starts");
    say("ready");
    // Runs until it is killed, or the test is gone.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("somebody listens");
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn content(number: u64) -> Vec<u8> {
    let length = 1 + number * 997 % 9000;
    (0..length).map(|at| (at * 31 + number * 17) as u8).collect()
}
