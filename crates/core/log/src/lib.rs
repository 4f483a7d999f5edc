//! Internal to netram: programs use the crate `netram`.
//!
//! Log lines that never delay the program.
//!
//! A service must continue whatever becomes of its standard error: a pipe that is not read, a pipe whose
//! reader is gone, a full disk. A thread of its own therefore writes the lines, and callers only put them
//! into a queue. Lines that find the queue full or cannot be written are dropped and counted, and the next
//! line written states their number.
//!
//! A process may end right after a line. For such lines there is [`LogWriter::urgent`], which waits a limited
//! time until the line is written. After one such wait was in vain, no caller waits again before something
//! has been written.
//!
//! A library in another program has no such thread and uses [`try_write_line`].
#![forbid(unsafe_code)]

mod direct;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

pub use direct::{try_write_bytes, try_write_line};

/// Maximum lines in the queue. It bounds how late the thread is when writing is slow.
const WAITING_MAX: usize = 1024;

/// Interval at which a full queue is retried by a caller that waits.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Builds the line about a number of dropped lines, including its line feed.
pub type DropNotice = fn(u64) -> String;

enum QueueItem {
    Line(Vec<u8>),
    /// A marker that is answered once everything before it was written or dropped.
    Drained(SyncSender<()>),
}

/// The queue of a log. Clones share it.
#[derive(Clone)]
pub struct LogWriter {
    queue: SyncSender<QueueItem>,
    counts: Arc<QueueCounts>,
}

/// Counters shared by the writing thread and the callers.
#[derive(Debug)]
struct QueueCounts {
    dropped: AtomicU64,
    /// Lines that the output has taken or refused.
    ended: AtomicU64,
    /// Value of `ended` when a caller last waited in vain; while they are equal, waiting is useless.
    stuck_at: AtomicU64,
}

impl QueueCounts {
    fn new() -> QueueCounts {
        QueueCounts {
            dropped: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            // A count that is never reached.
            stuck_at: AtomicU64::new(u64::MAX),
        }
    }
}

/// A writer whose `write` returns once the line is written, if the output takes it in time.
#[derive(Clone, Debug)]
pub struct UrgentWriter {
    lines: LogWriter,
    within: Duration,
}

impl LogWriter {
    /// Starts the thread that writes to `output`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn to(output: impl Write + Send + 'static, note: DropNotice) -> io::Result<LogWriter> {
        let (queue, items) = sync_channel(WAITING_MAX);
        let counts = Arc::new(QueueCounts::new());
        let shared = Arc::clone(&counts);
        std::thread::Builder::new()
            .name("netram-log".to_owned())
            .spawn(move || writer_loop(output, &items, &shared, note))?;
        Ok(LogWriter { queue, counts })
    }

    /// Queues `line`, which ends with a line feed. Never waits.
    pub fn write_line(&self, line: &[u8]) {
        if self.queue.try_send(QueueItem::Line(line.to_vec())).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A writer on the same queue for lines after which the process may end. Each write waits until
    /// everything is written, but at most `within`, and not at all while the output takes nothing.
    pub fn urgent(&self, within: Duration) -> UrgentWriter {
        UrgentWriter {
            lines: self.clone(),
            within,
        }
    }

    /// Waits until everything queued is written, but at most `within`; to be called before a process ends.
    /// Returns at once if the output has taken nothing since a caller waited in vain.
    pub fn drain(&self, within: Duration) {
        self.wait(|until| self.is_drained(until), within);
    }

    /// Queues `line` and waits until it is written, as [`drain`](Self::drain) does.
    fn write_urgently(&self, line: &[u8], within: Duration) {
        let mut said = false;
        self.wait(
            |until| {
                said = true;
                self.put(QueueItem::Line(line.to_vec()), until) && self.is_drained(until)
            },
            within,
        );
        if !said {
            self.write_line(line);
        }
    }

    /// Runs `body`, which waits for the output, unless waiting is useless; remembers whether it succeeded.
    fn wait(&self, body: impl FnOnce(Instant) -> bool, within: Duration) {
        let ended = self.counts.ended.load(Ordering::Relaxed);
        if self.counts.stuck_at.load(Ordering::Relaxed) != ended && !body(Instant::now() + within) {
            self.counts.stuck_at.store(ended, Ordering::Relaxed);
        }
    }

    fn is_drained(&self, until: Instant) -> bool {
        let (tell, told) = sync_channel(1);
        // Without an answer standard error is stuck, which must not keep the process alive.
        let left = || until.saturating_duration_since(Instant::now());
        self.put(QueueItem::Drained(tell), until) && told.recv_timeout(left()).is_ok()
    }

    /// Waits for room in the queue. Returns `false` if there was none in time.
    fn put(&self, mut item: QueueItem, until: Instant) -> bool {
        while let Err(TrySendError::Full(again)) = self.queue.try_send(item) {
            if Instant::now() >= until {
                if matches!(again, QueueItem::Line(_)) {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
                return false;
            }
            item = again;
            std::thread::sleep(RETRY_INTERVAL);
        }
        true
    }

    /// Number of lines dropped since the last line about them.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for LogWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LogWriter")
            .field("dropped", &self.dropped())
            .finish()
    }
}

/// Each call of `write` is one line and never fails.
impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_line(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Each call of `write` is one line and never fails.
impl Write for UrgentWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lines.write_urgently(bytes, self.within);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats a panic as whole lines, with the backtrace if the environment asks for one.
///
/// The standard library's own panic output waits for standard error without limit.
pub fn panic_lines(panic: &PanicHookInfo<'_>) -> String {
    let trace = Backtrace::capture();
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    match trace.status() {
        BacktraceStatus::Captured => format!("thread '{name}' {panic}\n{trace}\n"),
        _ => format!("thread '{name}' {panic}\n"),
    }
}

/// Writes queued lines until all senders are gone.
fn writer_loop(mut output: impl Write, items: &Receiver<QueueItem>, counts: &QueueCounts, note: DropNotice) {
    while let Ok(item) = items.recv() {
        match item {
            QueueItem::Line(line) => {
                let lost = counts.dropped.swap(0, Ordering::Relaxed);
                let noted = lost == 0 || output.write_all(note(lost).as_bytes()).is_ok();
                let again = if noted { 0 } else { lost };
                let failed = !noted || output.write_all(&line).is_err();
                { &counts.dropped }.fetch_add(again + u64::from(failed), Ordering::Relaxed);
                counts.ended.fetch_add(1, Ordering::Relaxed);
            }
            // The caller may have stopped waiting.
            QueueItem::Drained(tell) => drop(tell.try_send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn note(lost: u64) -> String {
        format!("({lost} lost)\n")
    }

    /// The written text, and whether writing fails.
    #[derive(Clone, Default)]
    struct SharedOutput(Arc<Mutex<(String, bool)>>);

    impl SharedOutput {
        fn now(&self) -> MutexGuard<'_, (String, bool)> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Write for SharedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut paper = self.now();
            if paper.1 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            paper.0.push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_their_order_before_the_end() {
        let paper = SharedOutput::default();
        let mut lines = LogWriter::to(paper.clone(), note).unwrap();
        for number in 0..5 {
            writeln!(lines, "{number}").unwrap();
        }
        lines.drain(LONG);
        assert_eq!(paper.now().0, "0\n1\n2\n3\n4\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_the_count_is_written_later() {
        let paper = SharedOutput::default();
        let lines = LogWriter::to(paper.clone(), note).unwrap();
        paper.now().1 = true;
        for _ in 0..3 {
            lines.write_line(b"no reader gets it\n");
        }
        lines.drain(LONG);
        assert_eq!(lines.dropped(), 3);
        paper.now().1 = false;
        lines.write_line(b"read\n");
        lines.drain(LONG);
        assert_eq!(paper.now().0, "(3 lost)\nread\n");
        assert_eq!(lines.dropped(), 0);
    }

    /// An output that holds each line until it is released, and announces that it has the line.
    struct StuckOutput {
        paper: SharedOutput,
        holds: Sender<()>,
        go_on: Receiver<()>,
    }

    impl Write for StuckOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The test may have stopped listening.
            let _ = self.holds.send(());
            let _ = self.go_on.recv();
            self.paper.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct StuckBench {
        lines: LogWriter,
        paper: SharedOutput,
        holds: Receiver<()>,
        go_on: Sender<()>,
    }

    impl StuckBench {
        fn new() -> StuckBench {
            let ((go_on, told), (tell, holds)) = (channel(), channel());
            let paper = SharedOutput::default();
            let stuck = StuckOutput {
                paper: paper.clone(),
                holds: tell,
                go_on: told,
            };
            StuckBench {
                lines: LogWriter::to(stuck, note).unwrap(),
                paper,
                holds,
                go_on,
            }
        }
    }

    #[test]
    fn no_caller_waits_for_a_reader_that_does_not_read() {
        let held = StuckBench::new();
        // The thread takes the first line and is stuck with it.
        held.lines.write_line(b"x\n");
        held.holds.recv_timeout(LONG).unwrap();
        let more = 3 * WAITING_MAX as u64;
        for _ in 0..WAITING_MAX as u64 + more {
            held.lines.write_line(b"x\n");
        }
        assert_eq!(held.lines.dropped(), more);
        drop(held.go_on);
        held.lines.drain(LONG);
        let mut written = "x\n".repeat(WAITING_MAX + 1);
        written.insert_str(2, &note(more));
        assert_eq!(held.paper.now().0, written);
    }

    #[test]
    fn an_urgent_line_is_written_when_its_writer_returns() {
        let held = StuckBench::new();
        held.lines.write_line(b"before\n");
        held.holds.recv_timeout(LONG).unwrap();
        let mut urgent = held.lines.urgent(LONG);
        let said = std::thread::spawn(move || writeln!(urgent, "last words"));
        held.go_on.send(()).unwrap();
        held.holds.recv_timeout(LONG).unwrap();
        assert!(!said.is_finished(), "its line is held");
        held.go_on.send(()).unwrap();
        said.join().unwrap().unwrap();
        assert_eq!(held.paper.now().0, "before\nlast words\n");
    }

    #[test]
    fn an_urgent_line_waits_for_a_place_in_the_queue() {
        let held = StuckBench::new();
        for _ in 0..=WAITING_MAX {
            held.lines.write_line(b"x\n");
        }
        held.holds.recv_timeout(LONG).unwrap();
        // The thread has taken one line; this one fills its room in the queue.
        held.lines.write_line(b"x\n");
        let lost = held.lines.dropped();
        let mut urgent = held.lines.urgent(LONG);
        let said = std::thread::spawn(move || writeln!(urgent, "last words"));
        drop(held.go_on);
        said.join().unwrap().unwrap();
        assert!(held.paper.now().0.ends_with("x\nlast words\n"));
        assert!(lost <= 1, "{lost}");
    }

    #[test]
    fn after_a_wait_in_vain_no_caller_waits_until_something_is_written() {
        let held = StuckBench::new();
        held.lines.write_line(b"held\n");
        held.holds.recv_timeout(LONG).unwrap();
        held.lines.urgent(Duration::ZERO).write_all(b"in vain\n").unwrap();
        let since = Instant::now();
        for _ in 0..1000 {
            held.lines.urgent(LONG).write_all(b"at once\n").unwrap();
        }
        assert!(since.elapsed() < LONG);
        drop(held.go_on);
        // The first line has been written by then.
        held.holds.recv_timeout(LONG).unwrap();
        held.lines.urgent(LONG).write_all(b"waited for\n").unwrap();
        assert!(held.paper.now().0.ends_with("at once\nwaited for\n"));
    }
}
