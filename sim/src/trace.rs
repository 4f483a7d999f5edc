//! What happened, as a number (always) and as a story (when somebody will read it).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use netram_proto::time::Time;

/// Lines of the story that are kept.
const TRACE_LINES_MAX: usize = 400;

/// A run's fingerprint and, on demand, its last events in words.
#[derive(Debug)]
pub struct EventTrace {
    hash: u64,
    /// Events so far.
    pub events: u64,
    lines: Option<TraceLines>,
}

/// The last events in words, for whoever catches a run that fails.
pub type TraceLines = Rc<RefCell<VecDeque<String>>>;

impl EventTrace {
    /// A trace that writes into `story`, if there is one.
    pub fn new(story: Option<TraceLines>) -> EventTrace {
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

    /// Adds a line to the story, if there is to be one.
    pub fn tell(&mut self, now: Time, line: impl FnOnce() -> String) {
        let Some(story) = &self.lines else { return };
        let mut story = story.borrow_mut();
        if story.len() == TRACE_LINES_MAX {
            // The first line says what the world is like; it stays.
            story.remove(1);
        }
        story.push_back(format!("{:>12.3} ms  {}", now.0 as f64 / 1e6, line()));
    }

    /// The fingerprint.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
