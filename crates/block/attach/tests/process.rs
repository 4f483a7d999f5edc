//! Processes are told from others that have their number. Not among the crate's own tests: a process that is
//! being started there would have their locks for a moment.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use netram_attach::ProcessIdentity;
use rustix::process::Signal;

#[test]
fn a_process_is_signalled_and_one_that_only_has_its_number_is_not() {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let process = ProcessIdentity::of(child.id()).unwrap();
    let earlier = ProcessIdentity {
        start: process.start - 1,
        ..process
    };
    assert!(process.is_alive());
    assert!(!earlier.is_alive());
    assert!(!earlier.signal(Signal::KILL).unwrap());
    // Had the signal before been sent, it would have been this child's end.
    assert!(process.signal(Signal::TERM).unwrap());
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    assert!(!process.is_alive());
    assert!(!process.signal(Signal::TERM).unwrap());
}
