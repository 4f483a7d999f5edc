//! Programs in C and C++ that use far memory.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::common::{Installed, LANGUAGES, Language, compilers};
use netram_lender::{Lender, LenderConfig};
use netram_transport::NetAddress;
use tempfile::TempDir;

const CASES: [&str; 10] = [
    "layout",
    "refused",
    "refused_words",
    "larger",
    "spilled",
    "at_once",
    "forked",
    "words",
    "pages_for_words",
    "words_at_once",
];
/// Exit status of a program that cannot run on this machine.
const NOT_HERE: i32 = 77;
/// Bytes that each lender lends: for all written pages, and a little for the slot.
const LENT: u64 = 64 << 20;

struct FarFixture {
    lenders: Vec<Lender>,
    names: String,
    directory: TempDir,
}

impl FarFixture {
    fn start() -> FarFixture {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let at = |name: String| directory.path().join(name);
        let sockets = ["one", "two"].map(|name| NetAddress::Unix(at(format!("{name}.sock"))));
        let lenders = sockets.iter().enumerate().map(|(index, socket)| {
            let lender = Lender::start(LenderConfig {
                name: format!("capi-far-{index}"),
                listen: vec![socket.clone()],
                memory: LENT,
                deposits: Some(LENT),
                chunk_bytes: 16 * 1024,
                store: Some(at(format!("lender-{index}.mem"))),
                ..LenderConfig::default()
            });
            lender.expect("a lender starts")
        });
        FarFixture {
            lenders: lenders.collect(),
            names: sockets.map(|socket| socket.to_string()).join(" "),
            directory,
        }
    }

    fn case(&self, mut command: Command, case: &str) -> Command {
        command.arg(case).arg(self.directory.path());
        command.env("LENDERS", &self.names);
        command
    }
}

/// Whether the machine does not support far memory; reports it if so.
fn not_here(code: Option<i32>, said: &str) -> bool {
    let not_here = code == Some(NOT_HERE);
    if not_here {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: {said}");
    }
    not_here
}

#[test]
fn programs_use_more_memory_than_they_have_locally() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    for language in LANGUAGES {
        let program = installed.compile("far", language, &["-lrvm", "-lpthread"]);
        let world = FarFixture::start();
        for case in CASES {
            let output = world.case(installed.command(&program), case).output();
            let output = output.expect("the program starts");
            let said = String::from_utf8_lossy(&output.stdout);
            if not_here(output.status.code(), &said) {
                return;
            }
            assert!(output.status.success(), "{case} ({language:?}): {output:?}");
        }
    }
}

#[test]
fn a_program_survives_the_death_of_a_lender() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("far", Language::C, &["-lrvm", "-lpthread"]);
    let mut world = FarFixture::start();
    let mut command = world.case(installed.command(&program), "survives");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said = String::new();
    let output = child.stdout.take().expect("the stream is piped");
    BufReader::new(output)
        .read_line(&mut said)
        .expect("a line is printed");
    if said != "both have it\n" {
        let code = child.wait().expect("the child can be waited for").code();
        assert!(not_here(code, &said), "{code:?}: {said}");
        return;
    }
    drop(world.lenders.remove(0));
    let mut input = child.stdin.take().expect("the stream is piped");
    input.write_all(b"\n").expect("the input is open");
    assert!(child.wait().expect("the child can be waited for").success());
}
