//! `netram top`, in a terminal and without one.

use std::process::Command;

use crate::common::{finish, netram, program, run, skipped};

/// Runs a program in a terminal of its own: waits for a text, types or signals, and waits for the end. Prints
/// its exit code, whether the terminal is as it was, and all that it wrote.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
awaited, action = sys.argv[1].encode(), sys.argv[2]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 130, 0, 0))
before = termios.tcgetattr(slave)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.execv(sys.argv[3], sys.argv[3:])
said, acted, deadline = b"", False, time.time() + 120
while time.time() < deadline:
    if select.select([master], [], [], 0.05)[0]:
        said += os.read(master, 65536)
    if awaited in said and not acted:
        acted = True
        if action == "q":
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
            os.kill(child, signal.SIGWINCH)
            os.write(master, b"q")
        else:
            os.kill(child, signal.SIGTERM)
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        while select.select([master], [], [], 0)[0]:
            said += os.read(master, 65536)
        print(os.waitstatus_to_exitcode(status), termios.tcgetattr(slave) == before)
        print(said.decode(errors="replace"))
        sys.exit(0)
os.kill(child, signal.SIGKILL)
print("no end", said)
"#;

fn view() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let view = r#"{"is_complete": true, "lenders": [{"name": "ram-1", "address": "tcp://10.0.0.1:7420", "domain": "ups-1",
        "error": "nothing listens there"}], "journals": [{"path": "/srv/vm1", "name": "/srv/vm1"}]}"#;
    std::fs::write(file.path(), view).unwrap();
    file
}

#[test]
fn the_terminal_is_as_before_after_q_and_after_sigterm() {
    if Command::new("python3").arg("--version").output().is_err() {
        skipped("there is no python3");
        return;
    }
    let view = view();
    for action in ["q", "TERM"] {
        let mut command = Command::new("python3");
        command.args(["-c", TERMINAL, "/srv/vm1", action, program()]);
        command.args(["top", "--insecure", "--view"]).arg(view.path());
        let ran = finish(&mut command);
        let said = ran.out;
        assert!(said.starts_with("0 True\n"), "{action}: {said}{}", ran.err);
        // The alternate screen is entered and left.
        let left = said.rfind("\u{1b}[?1049l").unwrap_or_else(|| panic!("{said}"));
        assert!(said.find("\u{1b}[?1049h").unwrap() < left, "{said}");
        assert!(said.contains("ram-1") && said.contains("quit"), "{said}");
    }
}

#[test]
fn without_a_terminal_another_command_is_named_or_the_state_printed_once() {
    let refused = run(["top", "--insecure"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused
            .err
            .contains("netram top needs a terminal: use netram status --json"),
        "{}",
        refused.err
    );
    let view = view();
    let once = finish(
        netram()
            .args(["top", "--insecure", "--once", "--view"])
            .arg(view.path()),
    );
    assert_eq!(once.code, 0, "{}", once.err);
    for text in ["1 lender (1 without answer)", "/srv/vm1", "nothing listens there"] {
        assert!(once.out.contains(text), "{text}\n{}", once.out);
    }
    assert!(!once.out.contains('\u{1b}'), "{}", once.out);
}
