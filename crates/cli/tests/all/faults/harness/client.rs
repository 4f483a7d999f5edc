//! Client processes, one after another over the same journal, and what was heard from them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::process::{FaultsProcess, PATIENCE, send, until};
use crate::faults::worker::{WORK, WorkerMessage, WorkerRecovery, WorkerSettings, WorkerTask};

/// A client over its successive processes: what it must do, and what it is known to have acknowledged.
#[derive(Clone)]
pub(crate) struct FaultsClient {
    pub(crate) work: WorkerSettings,
    /// A command that runs the one behind it: a tracer, a namespace.
    pub(crate) wrap: Vec<String>,
    log: PathBuf,
}

/// Everything that a process reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientReport {
    pub(crate) messages: Vec<WorkerMessage>,
    /// The newest number acknowledged, a thread.
    pub(crate) acked: Vec<u64>,
    pub(crate) acks: u64,
    /// Acknowledgements that the members' rule gave.
    pub(crate) by_rule: u64,
    /// Acknowledgements that the local disk had.
    pub(crate) by_disk: u64,
    /// Acknowledgements from a thread whose commit had failed before.
    pub(crate) after_failure: u64,
    /// The longest time between two acknowledgements, to report.
    pub(crate) longest_stall: Duration,
    latest: Option<Instant>,
    ended: bool,
}

/// A client's process.
pub(crate) struct ClientProcess {
    process: FaultsProcess,
    report: Arc<(Mutex<ClientReport>, Condvar)>,
    reader: Option<JoinHandle<()>>,
    wrapped: bool,
}

/// How a client's process ended.
pub(crate) struct ClientEnd {
    pub(crate) code: i32,
    pub(crate) report: ClientReport,
}

impl FaultsClient {
    pub(crate) fn new(work: WorkerSettings, log: PathBuf) -> FaultsClient {
        FaultsClient {
            work,
            wrap: Vec::new(),
            log,
        }
    }

    /// The same client with a window of so many bytes.
    pub(crate) fn with_window(mut self, bytes: u64) -> FaultsClient {
        self.work.window_bytes = bytes;
        self
    }

    /// The same client, whose processes log elsewhere.
    pub(crate) fn with_log(&self, log: PathBuf) -> FaultsClient {
        FaultsClient { log, ..self.clone() }
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Starts a process that recovers, checks, and commits.
    pub(crate) fn start(&self) -> ClientProcess {
        let worker = std::env::current_exe().expect("this test has a path");
        let worker = worker.to_str().expect("build directories have printable names");
        let parts = [
            "--exact",
            "faults::worker::process",
            "--nocapture",
            "--test-threads",
            "1",
        ];
        let line: Vec<&str> = self
            .wrap
            .iter()
            .map(String::as_str)
            .chain([worker])
            .chain(parts)
            .collect();
        let mut command = Command::new(line[0]);
        let work = serde_json::to_string(&self.work).expect("plain data");
        command.args(&line[1..]).env(WORK, work);
        let mut process = FaultsProcess::start(&mut command, &self.log);
        let heard = Arc::new((Mutex::new(ClientReport::default()), Condvar::new()));
        let (stdout, hearing) = (process.take_stdout(), Arc::clone(&heard));
        let reader = std::thread::spawn(move || listen(stdout, &hearing));
        ClientProcess {
            process,
            report: heard,
            reader: Some(reader),
            wrapped: !self.wrap.is_empty(),
        }
    }

    /// Notes what a process has acknowledged: later ones must find it.
    pub(crate) fn learn(&mut self, heard: &ClientReport) {
        let known = &mut self.work.acked;
        match self.work.task {
            WorkerTask::Journal { .. } | WorkerTask::Volume => {
                let newest = heard.acked.iter().copied().max().unwrap_or(0);
                known[0] = known[0].max(newest);
            }
            WorkerTask::Bank { .. } => {
                for (known, newest) in known.iter_mut().zip(&heard.acked) {
                    *known = (*known).max(*newest);
                }
            }
        }
        for said in &heard.messages {
            match said {
                WorkerMessage::Trimming { first } => self.work.trimmed = self.work.trimmed.max(*first),
                // What one recovery has found is on the disk, so the next must find it, too.
                WorkerMessage::Recovered(report) => {
                    for (known, found) in self.work.acked.iter_mut().zip(&report.last) {
                        *known = (*known).max(*found);
                    }
                }
                WorkerMessage::Wrong { text } => panic!("data were lost: {text}"),
                _ => (),
            }
        }
    }

    /// Recovers, checks, and closes; commits nothing.
    pub(crate) fn try_recover(&mut self) -> Result<WorkerRecovery, String> {
        let commits = self.work.commits.replace(0);
        let ended = self.start().end();
        self.work.commits = commits;
        self.learn(&ended.report);
        if let Some(refused) = ended.report.refusal() {
            return Err(refused);
        }
        assert_eq!(ended.code, 0, "{:?}", ended.report.messages);
        Ok(ended.report.report().expect("it ended well"))
    }

    pub(crate) fn recover(&mut self) -> WorkerRecovery {
        match self.try_recover() {
            Ok(report) => report,
            Err(text) => panic!("recovery was refused: {text}"),
        }
    }

    /// Kills the process and notes what it had acknowledged.
    pub(crate) fn kill(&mut self, running: ClientProcess) -> ClientReport {
        let heard = running.kill();
        self.learn(&heard);
        heard
    }

    /// Kills the process, of which no commit has failed, and recovers.
    pub(crate) fn end_unfailed(&mut self, running: ClientProcess) -> WorkerRecovery {
        let heard = self.kill(running);
        assert_eq!(heard.failure(), None, "a commit failed");
        eprintln!(
            "{} commits, the longest stall {:?}",
            heard.acks, heard.longest_stall
        );
        self.recover()
    }
}

impl ClientReport {
    pub(crate) fn report(&self) -> Option<WorkerRecovery> {
        self.messages.iter().find_map(|said| match said {
            WorkerMessage::Recovered(report) => Some(report.clone()),
            _ => None,
        })
    }

    pub(crate) fn refusal(&self) -> Option<String> {
        self.messages.iter().find_map(|said| match said {
            WorkerMessage::Refused { text } => Some(text.clone()),
            _ => None,
        })
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.messages.iter().find_map(|said| match said {
            WorkerMessage::Failed { text, .. } => Some(text.clone()),
            _ => None,
        })
    }

    /// Returns the latest state of the lenders: why members do not acknowledge, and their addresses.
    pub(crate) fn standing(&self) -> Option<(Option<String>, Vec<String>)> {
        self.messages.iter().rev().find_map(|said| match said {
            WorkerMessage::Standing { blocked, members, .. } => Some((blocked.clone(), members.clone())),
            _ => None,
        })
    }

    /// Returns how long the slowest commit of a journal's client took.
    pub(crate) fn longest_commit(&self) -> Duration {
        let slow = self.messages.iter().filter_map(|said| match said {
            WorkerMessage::Slowest { us } => Some(Duration::from_micros(*us)),
            _ => None,
        });
        slow.max().unwrap_or_default()
    }

    fn pid(&self) -> Option<i32> {
        self.messages.iter().find_map(|said| match said {
            WorkerMessage::Started { pid } => Some(*pid),
            _ => None,
        })
    }

    fn hear(&mut self, line: &str) {
        if let Some(json) = line.strip_prefix('@') {
            let said: WorkerMessage = serde_json::from_str(json).expect("the client speaks plainly");
            // A wait for members is no stall.
            self.latest = None;
            self.messages.push(said);
        } else if let Some(acked) = line.strip_prefix("+ ") {
            let words: Vec<u64> = acked.split(' ').filter_map(|word| word.parse().ok()).collect();
            if let [thread, number, _members, rule, disk] = words[..] {
                self.ack(thread as usize, number, rule, disk);
            }
        }
    }

    fn ack(&mut self, thread: usize, number: u64, rule: u64, disk: u64) {
        let now = Instant::now();
        if let Some(latest) = self.latest.replace(now) {
            self.longest_stall = self.longest_stall.max(now - latest);
        }
        if self.acked.len() <= thread {
            self.acked.resize(thread + 1, 0);
        }
        self.acked[thread] = self.acked[thread].max(number);
        self.acks += 1;
        self.by_rule += rule;
        self.by_disk += disk;
        let failed = |said: &WorkerMessage| matches!(said, WorkerMessage::Failed { thread: failed, .. } if *failed == thread);
        self.after_failure += u64::from(self.messages.iter().any(failed));
    }
}

impl ClientProcess {
    pub(crate) fn heard(&self) -> ClientReport {
        self.report.0.lock().expect("the listener does not panic").clone()
    }

    /// Waits until what was heard satisfies `enough`; panics when the process ends before, or takes for ever.
    pub(crate) fn until(&self, what: &str, enough: impl Fn(&ClientReport) -> bool) -> ClientReport {
        let deadline = Instant::now() + PATIENCE;
        let (heard, news) = &*self.report;
        let mut guard = heard.lock().expect("the listener does not panic");
        while !enough(&guard) && !guard.ended && Instant::now() < deadline {
            let waited = news.wait_timeout(guard, Duration::from_millis(100));
            guard = waited.expect("the listener does not panic").0;
        }
        let heard = guard.clone();
        // The listener must not find the lock poisoned.
        drop(guard);
        if !enough(&heard) {
            let why = if heard.ended {
                "the client ended before"
            } else {
                "waited in vain for"
            };
            panic!(
                "{why} {what}; heard {} acknowledgements and {:?}",
                heard.acks, heard.messages
            );
        }
        heard
    }

    /// Waits until the client commits, with its members if it has been given any.
    pub(crate) fn until_serving(&self) -> ClientReport {
        self.until("it is ready", |heard| {
            heard
                .messages
                .iter()
                .any(|said| matches!(said, WorkerMessage::Ready { .. }))
        })
    }

    /// Waits for `count` further acknowledgements.
    pub(crate) fn until_acks(&self, count: u64) -> ClientReport {
        let from = self.heard().acks;
        self.until("more acknowledgements", |heard| heard.acks >= from + count)
    }

    /// Waits for `count` further acknowledgements by the members' rule.
    pub(crate) fn until_acks_by_rule(&self, count: u64) -> ClientReport {
        let from = self.heard().by_rule;
        self.until("more acknowledgements of members", |heard| {
            heard.by_rule >= from + count
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            send(pid, signal);
        }
    }

    /// Stops the process; on return none of its threads is inside a system call that could still change
    /// something.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let pid = self.pid().expect("it has started");
        until("every thread has stopped", || {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
                return true;
            };
            tasks.flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                // The state follows the name, which may contain anything but ends with the last parenthesis.
                stat.rsplit_once(") ")
                    .is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
            })
        });
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process. Everything that it reported before is read.
    pub(crate) fn kill(mut self) -> ClientReport {
        self.end_by_force();
        self.heard()
    }

    /// Waits until the process ends by itself.
    pub(crate) fn end(mut self) -> ClientEnd {
        let code = self.process.wait();
        self.join();
        ClientEnd {
            code,
            report: self.heard(),
        }
    }

    fn pid(&self) -> Option<i32> {
        match self.wrapped {
            false => Some(self.process.pid()),
            true => self.heard().pid(),
        }
    }

    fn end_by_force(&mut self) {
        if self.wrapped {
            // The tracer must not be killed first: its child would run on.
            let deadline = Instant::now() + PATIENCE;
            while self.pid().is_none() && !self.process.has_ended() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            if !self.process.has_ended() {
                self.signal(Signal::KILL);
                let gone = Instant::now() + Duration::from_secs(10);
                while !self.process.has_ended() && Instant::now() < gone {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        self.process.kill();
        self.join();
    }

    fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            // A panic of the thread was printed already; a second one here would hide the test's.
            let _ = reader.join();
        }
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        if self.reader.is_some() {
            self.end_by_force();
        }
    }
}

fn listen(stdout: ChildStdout, heard: &(Mutex<ClientReport>, Condvar)) {
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    loop {
        line.clear();
        let read = lines.read_line(&mut line);
        let mut guard = heard.0.lock().expect("nobody panics under this lock");
        match read {
            // A line cut off by a kill was never an acknowledgement.
            Ok(bytes) if bytes > 0 && line.ends_with('\n') => guard.hear(line.trim_end()),
            _ => guard.ended = true,
        }
        heard.1.notify_all();
        if guard.ended {
            return;
        }
    }
}
