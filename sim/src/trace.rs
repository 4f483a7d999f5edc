//! Trace of a run: always as a fingerprint, on demand as text.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::rc::Rc;

use netram_proto::time::Time;

/// Maximum number of trace lines that are kept in memory.
const TRACE_LINES_MAX: usize = 400;

/// A run's fingerprint and, on demand, its events in words.
#[derive(Debug)]
pub struct EventTrace {
    hash: u64,
    /// Number of events so far.
    pub events: u64,
    lines: Option<TraceSink>,
}

/// The last events as text, for the caller that catches a failing run.
pub type TraceLines = Rc<RefCell<VecDeque<String>>>;

/// The receiver of a run's events as text.
#[derive(Clone)]
pub enum TraceSink {
    /// Memory for the last events.
    Last(TraceLines),
    /// An output for all events, each when it happens.
    All(Rc<RefCell<dyn Write>>),
}

impl fmt::Debug for TraceSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            TraceSink::Last(_) => "Last",
            TraceSink::All(_) => "All",
        })
    }
}

impl TraceSink {
    fn push(&self, line: String) {
        match self {
            TraceSink::Last(story) => {
                let mut story = story.borrow_mut();
                if story.len() == TRACE_LINES_MAX {
                    // The first line describes the world and stays.
                    story.remove(1);
                }
                story.push_back(line);
            }
            // If no process reads the story, there is no one to tell.
            TraceSink::All(output) => drop(writeln!(output.borrow_mut(), "{line}")),
        }
    }
}

impl EventTrace {
    /// A trace that writes its lines to `story`, if there is one.
    pub fn new(story: Option<TraceSink>) -> EventTrace {
        EventTrace {
            hash: 0xCBF2_9CE4_8422_2325,
            events: 0,
            lines: story,
        }
    }

    /// Mixes an event into the fingerprint.
    pub fn mark(&mut self, now: Time, what: u64, detail: u64) {
        self.events += 1;
        for value in [now.0, what, detail] {
            self.hash = (self.hash ^ value)
                .wrapping_mul(0x0000_0100_0000_01B3)
                .rotate_left(23);
        }
    }

    /// Adds a line of text, if lines are kept.
    pub fn tell(&mut self, now: Time, line: impl FnOnce() -> String) {
        let Some(story) = &self.lines else { return };
        story.push(format!("{:>12.3} ms  {}", now.0 as f64 / 1e6, line()));
    }

    /// The fingerprint.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
