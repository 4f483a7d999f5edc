//! The rounds of a loop that serves, by which another thread sees that it does not stand still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::schedule::ServiceLook;

/// Rounds of a loop, and what it does.
#[derive(Debug, Default)]
pub(crate) struct LoopPulse {
    rounds: AtomicU64,
    sentence: Mutex<String>,
}

impl LoopPulse {
    /// Notes that the loop has gone round, and does this.
    pub(crate) fn beat(&self, sentence: &str) {
        let mut said = self.sentence.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != sentence {
            sentence.clone_into(&mut said);
        }
        drop(said);
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a look that finds the loop alive if it has gone round since the look before.
    pub(crate) fn look(self: &Arc<LoopPulse>) -> impl FnMut() -> ServiceLook + Send + use<> {
        let (pulse, mut seen) = (Arc::clone(self), 0);
        move || {
            let rounds = pulse.rounds.load(Ordering::Relaxed);
            let alive = std::mem::replace(&mut seen, rounds) != rounds;
            let sentence = pulse.sentence.lock().unwrap_or_else(PoisonError::into_inner);
            ServiceLook {
                alive,
                sentence: Some(sentence.clone()).filter(|sentence| !sentence.is_empty()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_alive_only_if_it_has_gone_round_since_the_last_look() {
        let pulse = Arc::new(LoopPulse::default());
        let mut look = pulse.look();
        assert!(!look().alive);
        pulse.beat("serving");
        let found = look();
        assert_eq!((found.alive, found.sentence.as_deref()), (true, Some("serving")));
        assert!(!look().alive, "it stands still");
    }
}
