//! Programs whose standard error is full run and end as usual: netram's own messages delay none.

use std::io::{PipeReader, Write, pipe};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{RunTestbed, compiled, reported, start, text};

/// Bytes that fit into a pipe before its writer has to wait.
const PIPE_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

/// Standard errors that take nothing, each with what must live as long as the program: a pipe without a
/// reader, and a full one.
fn deaf() -> [(&'static str, Stdio, Option<PipeReader>); 2] {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![b'x'; PIPE_BYTES]).unwrap();
    [
        ("gone", pipe().unwrap().1.into(), None),
        ("unread", writer.into(), Some(reader)),
    ]
}

/// Starts a program whose standard error takes nothing.
fn start_deaf(mut command: Command, error: Stdio) -> Child {
    start(command.stdout(Stdio::piped()).stderr(error))
}

fn end(mut child: Child, what: &str) -> Output {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("standard error {what}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_program_ends_as_ever_whatever_becomes_of_its_report() {
    let Some(site) = RunTestbed::new("unheard", 1, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    for (what, error, _reader) in deaf() {
        let ran = end(start_deaf(reported(&site, &heap), error), what);
        assert!(ran.status.success(), "standard error {what}: {}", ran.status);
        assert!(!ran.stdout.is_empty());
    }
}

/// A child writes the reason from its fault handler, and so does a program that starts such children forever.
#[test]
fn children_without_far_memory_end_even_if_the_reason_is_not_read() {
    let Some(site) = RunTestbed::new("unheard-children", 1, "64MiB") else {
        return;
    };
    let (_directory, forks) = compiled("forks", &[]);
    let running = deaf().map(|(what, error, reader)| {
        let mut command = site.run("1MiB", &[], &forks);
        command.arg("without");
        (what, start_deaf(command, error), reader)
    });
    for (what, child, _reader) in running {
        let ran = end(child, what);
        assert_eq!(
            ran.status.code(),
            Some(1),
            "standard error {what}: {}",
            ran.status
        );
        assert_eq!(
            text(&ran.stdout),
            "signal 11\n".repeat(3),
            "standard error {what}"
        );
    }
}
