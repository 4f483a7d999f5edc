//! Log lines that hold nobody up.
//!
//! A service must go on whatever becomes of its standard error: a pipe that nobody reads, a pipe whose reader has gone, a
//! full disk. So a thread of its own writes the lines. Whoever has something to say puts it into a queue and goes on. Lines
//! that find the queue full, and lines that could not be written, are dropped and counted; the count is the next line that
//! can be written.
#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Lines that wait to be written. The thread is late by that many at most, where writing is slow; more would be old news.
const WAITING_MAX: usize = 1024;

/// How often a full queue is tried again before the end.
const LOOK: Duration = Duration::from_millis(1);

/// The sentence about lines that were dropped, as a whole line.
pub type Note = fn(u64) -> String;

enum Item {
    Line(Vec<u8>),
    /// Everything before was written, or dropped.
    Drained(SyncSender<()>),
}

/// Where lines go. Clones share the queue.
#[derive(Clone)]
pub struct Lines {
    queue: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread that writes to `output`.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn to(output: impl Write + Send + 'static, note: Note) -> io::Result<Lines> {
        let (queue, items) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("netram-log".to_owned())
            .spawn(move || write_on(output, &items, &counter, note))?;
        Ok(Lines { queue, dropped })
    }

    /// Has `line`, which ends with a line feed, written as soon as that can be. Never waits.
    pub fn say(&self, line: &[u8]) {
        if self.queue.try_send(Item::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all that was said is written, but no longer than `within`: before a process ends.
    pub fn drain(&self, within: Duration) {
        let until = Instant::now() + within;
        let (tell, told) = sync_channel(1);
        let mut asked = Item::Drained(tell);
        while let Err(TrySendError::Full(again)) = self.queue.try_send(asked) {
            if Instant::now() >= until {
                return;
            }
            asked = again;
            std::thread::sleep(LOOK);
        }
        // If there is no answer, standard error takes nothing: that must not keep the process.
        let _ = told.recv_timeout(until.saturating_duration_since(Instant::now()));
    }

    /// Lines that were dropped since the last note about them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lines")
            .field("dropped", &self.dropped())
            .finish()
    }
}

/// Each call of `write` is a line; none fails.
impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.say(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Until nobody has anything more to say.
fn write_on(mut output: impl Write, items: &Receiver<Item>, dropped: &AtomicU64, note: Note) {
    while let Ok(item) = items.recv() {
        match item {
            Item::Line(line) => {
                let lost = dropped.swap(0, Ordering::Relaxed);
                let noted = lost == 0 || output.write_all(note(lost).as_bytes()).is_ok();
                let again = if noted { 0 } else { lost };
                let failed = !noted || output.write_all(&line).is_err();
                dropped.fetch_add(again + u64::from(failed), Ordering::Relaxed);
            }
            // Whoever asked may have stopped waiting.
            Item::Drained(tell) => drop(tell.try_send(())),
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

    /// What was written; writing fails while `fails`, and waits for a word each time if there is to be one.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<(String, bool)>>);

    impl Paper {
        fn now(&self) -> MutexGuard<'_, (String, bool)> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Write for Paper {
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
        let paper = Paper::default();
        let mut lines = Lines::to(paper.clone(), note).unwrap();
        for number in 0..5 {
            writeln!(lines, "{number}").unwrap();
        }
        lines.drain(LONG);
        assert_eq!(paper.now().0, "0\n1\n2\n3\n4\n");
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_said_as_soon_as_that_can_be() {
        let paper = Paper::default();
        let lines = Lines::to(paper.clone(), note).unwrap();
        paper.now().1 = true;
        for _ in 0..3 {
            lines.say(b"nobody hears it\n");
        }
        lines.drain(LONG);
        assert_eq!(lines.dropped(), 3);
        paper.now().1 = false;
        lines.say(b"heard\n");
        lines.drain(LONG);
        assert_eq!(paper.now().0, "(3 lost)\nheard\n");
        assert_eq!(lines.dropped(), 0);
    }

    /// Takes nothing until it is told to go on.
    struct Stuck(Paper, Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.1.recv();
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        let (go_on, told): (Sender<()>, _) = channel();
        let paper = Paper::default();
        let lines = Lines::to(Stuck(paper.clone(), told), note).unwrap();
        // The thread takes the first and is held up with it.
        lines.say(b"x\n");
        while lines.dropped() == 0 {
            lines.say(b"x\n");
        }
        let more = 3 * WAITING_MAX as u64;
        for _ in 0..more {
            lines.say(b"x\n");
        }
        let lost = lines.dropped();
        assert!(lost > more - 2, "{lost}");
        drop(go_on);
        lines.drain(LONG);
        let written = paper.now().0.lines().filter(|line| *line == "x").count();
        assert!(written >= WAITING_MAX, "{written}");
        assert!(paper.now().0.contains(&note(lost)));
    }
}
