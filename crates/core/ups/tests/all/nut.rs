//! An `upsd` and a driver of this test's own, as Debian's package `nut-server` has them.

use std::cell::Cell;
use std::fs::{self, File, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use netram_ups::{UpsLogin, UpsName};
use tempfile::TempDir;

/// Where Debian has the programs themselves. Those in /sbin only start what /etc/nut configures.
const PROGRAMS: &str = "/lib/nut";

/// The password of user `lender`: as NUT's parser likes it least.
pub(crate) const PASSWORD: &str = "two words, a \\ and \"quotes\" # =";

/// Bound on each wait of a test, reached only if something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A UPS `rack` that says what the test lets it say.
pub(crate) struct Nut {
    directory: TempDir,
    port: u16,
    driver: Option<Child>,
    upsd: Option<Child>,
    /// Time of the file's next change, in seconds since 1970.
    next_change: Cell<u64>,
}

impl Nut {
    /// Starts both; `None`, aloud, without `nut-server`.
    pub(crate) fn start(status: &str) -> Option<Nut> {
        if !["upsd", "dummy-ups"]
            .iter()
            .all(|name| Path::new(PROGRAMS).join(name).exists())
        {
            eprintln!("\nSKIPPED: no upsd and dummy-ups in {PROGRAMS} (package nut-server)");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let at = directory.path();
        let write = |name: &str, text: &str| {
            fs::write(at.join(name), text).unwrap();
            fs::set_permissions(at.join(name), Permissions::from_mode(0o600)).unwrap();
        };
        write(
            "ups.conf",
            "pollinterval = 1\n[rack]\ndriver = dummy-ups\nport = rack.dev\nmode = dummy-once\n",
        );
        write(
            "upsd.conf",
            &format!("LISTEN 127.0.0.1 {port}\nMAXAGE 3\nSTATEPATH {}\n", at.display()),
        );
        let escaped = PASSWORD
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('#', "\\#");
        write(
            "upsd.users",
            &format!(
                "[lender]\npassword = \"{escaped}\"\nupsmon secondary\n[boss]\npassword = boss\nupsmon primary\n"
            ),
        );
        let mut nut = Nut {
            directory,
            port,
            driver: None,
            upsd: None,
            next_change: Cell::new(1),
        };
        nut.say(status);
        nut.start_driver();
        nut.start_upsd();
        Some(nut)
    }

    /// Lets the UPS say this from its driver's next look on. The driver reads a file again only when the
    /// whole seconds of its time have changed.
    pub(crate) fn say(&self, status: &str) {
        let at = self.directory.path();
        let text = format!("ups.status: {status}\nbattery.charge: 90\nbattery.charge.low: 20\n");
        fs::write(at.join("new"), text).unwrap();
        let changed = self.next_change.replace(self.next_change.get() + 1);
        let new = File::open(at.join("new")).unwrap();
        new.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(changed))
            .unwrap();
        fs::rename(at.join("new"), at.join("rack.dev")).unwrap();
    }

    pub(crate) fn name(&self) -> UpsName {
        format!("rack@127.0.0.1:{}", self.port).parse().unwrap()
    }

    pub(crate) fn login(&self, password: &str) -> Option<UpsLogin> {
        Some(UpsLogin::new("lender", password).unwrap())
    }

    pub(crate) fn start_driver(&mut self) {
        let driver = self.command("dummy-ups", &["-a", "rack"]);
        self.driver = Some(driver);
        let socket = self.directory.path().join("dummy-ups-rack");
        wait_until("the driver's socket", || socket.exists());
    }

    pub(crate) fn start_upsd(&mut self) {
        self.upsd = Some(self.command("upsd", &[]));
        let port = self.port;
        wait_until("upsd's port", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Kills the driver; `upsd` goes on.
    pub(crate) fn kill_driver(&mut self) {
        end(&mut self.driver);
    }

    /// Stops the driver where it is, so that its data become stale.
    pub(crate) fn freeze_driver(&self) {
        let driver = self.driver.as_ref().unwrap();
        let pid = rustix::process::Pid::from_child(driver);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }

    pub(crate) fn kill_upsd(&mut self) {
        end(&mut self.upsd);
    }

    /// Sends one command as another user; returns the answer.
    pub(crate) fn command_as_primary(&self, command: &str) -> String {
        use std::io::{BufRead, BufReader, Write};
        let mut link = BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap());
        let mut answer = String::new();
        for line in ["USERNAME boss", "PASSWORD boss", command] {
            writeln!(link.get_mut(), "{line}").unwrap();
            answer.clear();
            link.read_line(&mut answer).unwrap();
        }
        answer.trim_end().to_owned()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Child {
        let at = self.directory.path();
        // Both give up root for the package's user, who may not read a test's directory.
        let user = ["-u", "root"];
        let user = if rustix::process::geteuid().is_root() {
            &user[..]
        } else {
            &[]
        };
        let log = File::create(at.join(format!("{program}.log"))).unwrap();
        Command::new(Path::new(PROGRAMS).join(program))
            .arg("-F")
            .args(user)
            .args(arguments)
            .env("NUT_CONFPATH", at)
            .env("NUT_STATEPATH", at)
            .env("NUT_ALTPIDPATH", at)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }
}

impl Drop for Nut {
    fn drop(&mut self) {
        end(&mut self.upsd);
        end(&mut self.driver);
        if std::thread::panicking() {
            for program in ["upsd", "dummy-ups"] {
                let log = self.directory.path().join(format!("{program}.log"));
                eprintln!("{program}: {}", fs::read_to_string(log).unwrap_or_default());
            }
        }
    }
}

fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Waits for a condition; its deadline bounds a failure only.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
