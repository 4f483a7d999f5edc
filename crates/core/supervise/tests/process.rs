//! Processes are distinguished from later ones with the same id. Not among the crate's unit tests: a process
//! that starts there would hold their locks for a moment.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use netram_supervise::ProcessIdentity;
use rustix::process::Signal;

#[test]
fn a_process_is_signalled_but_not_another_with_the_same_id() {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let process = ProcessIdentity::of(child.id()).unwrap();
    let earlier = ProcessIdentity {
        start: process.start - 1,
        ..process
    };
    assert!(process.is_alive());
    assert!(!earlier.is_alive());
    assert!(!earlier.signal(Signal::KILL).unwrap());
    // If the signal before had been sent, it would have ended this child.
    assert!(process.signal(Signal::TERM).unwrap());
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    assert!(!process.is_alive());
    assert!(!process.signal(Signal::TERM).unwrap());
}
