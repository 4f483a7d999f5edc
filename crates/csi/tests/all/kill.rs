//! The driver is killed while programs use its volumes.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::api::volume_capability::access_mode::Mode;
use crate::testbed::{Machine, mounted};

/// Lines that the writer adds after each event, each synced.
const LINES: usize = 200;

/// A program that adds lines to a file and syncs each, until it is stopped.
struct LineWriter {
    written: AtomicUsize,
    stop: AtomicBool,
}

impl LineWriter {
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut file = File::create(path)?;
        while !self.stop.load(Ordering::Acquire) {
            let next = self.written.load(Ordering::Acquire);
            writeln!(file, "line {next}")?;
            file.sync_all()?;
            self.written.store(next + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Waits until that many more lines are synced, or the writer has failed.
    fn wait_for_more(&self, running: impl Fn() -> bool) {
        let goal = self.written.load(Ordering::Acquire) + LINES;
        while self.written.load(Ordering::Acquire) < goal && running() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Stops the writer, also if the test fails.
struct StopOnDrop<'a>(&'a LineWriter);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

#[test]
fn a_program_that_syncs_does_not_notice_a_killed_driver_and_the_next_one_takes_its_volume_away() {
    let Some(mut machine) = Machine::for_kubernetes("csi-killed") else {
        return;
    };
    let usage = mounted(Mode::SingleNodeWriter);
    machine.create("busy", |_| ()).unwrap();
    machine.stage("busy", &usage).unwrap();
    let pod = machine.publish("busy", "pod", &usage, false).unwrap();
    let writer = LineWriter {
        written: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&writer);
        let writing = scope.spawn(|| writer.write(&pod.join("lines")));
        writer.wait_for_more(|| !writing.is_finished());
        machine.kill_driver();
        writer.wait_for_more(|| !writing.is_finished());
        machine.start();
        writer.wait_for_more(|| !writing.is_finished());
        // The orchestrator repeats what it does not know to be done.
        machine.stage("busy", &usage).unwrap();
        machine.publish("busy", "pod", &usage, false).unwrap();
        machine.end_driver();
        writer.wait_for_more(|| !writing.is_finished());
        machine.start();
        writer.stop.store(true, Ordering::Release);
        writing.join().unwrap().expect("no write and no sync fails");
    });
    let written = writer.written.load(Ordering::Acquire);
    assert!(written >= 4 * LINES, "{written}");
    machine.unpublish("busy", "pod").unwrap();
    machine.unstage("busy").unwrap();
    assert_eq!(machine.attached(), 0);

    machine.stage("busy", &usage).unwrap();
    let read = fs::read_to_string(machine.path("stage-busy/lines")).unwrap();
    assert_eq!(read.lines().count(), written, "every synced line is there");
    assert!(
        read.lines()
            .enumerate()
            .all(|(index, line)| line == format!("line {index}"))
    );
    machine.unstage("busy").unwrap();
    machine.delete("busy").unwrap();
}
