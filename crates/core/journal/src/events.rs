//! Events of an open journal, for the person who asks why it is as it is.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Maximum number of events that are kept.
const EVENTS_MAX: usize = 64;

/// An event of an open journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEvent {
    /// Time, in seconds since 1970.
    pub unix_seconds: u64,
    /// The event, as a clause without a full stop.
    pub what: String,
}

/// The last events of a journal. None of them is on the hot path.
#[derive(Debug, Default)]
pub(crate) struct JournalEvents(Mutex<VecDeque<JournalEvent>>);

impl JournalEvents {
    /// Notes an event of this moment. The oldest makes room.
    pub(crate) fn note(&self, what: String) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(JournalEvent {
            unix_seconds: now.as_secs(),
            what,
        });
    }

    /// The events, the oldest first.
    pub(crate) fn list(&self) -> Vec<JournalEvent> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_events_are_kept_in_order() {
        let events = JournalEvents::default();
        for number in 0..=EVENTS_MAX {
            events.note(number.to_string());
        }
        let kept = events.list();
        assert_eq!(kept.len(), EVENTS_MAX);
        assert_eq!(kept[0].what, "1");
        assert_eq!(kept[EVENTS_MAX - 1].what, EVENTS_MAX.to_string());
    }
}
