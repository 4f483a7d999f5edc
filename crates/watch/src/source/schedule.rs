//! When each target is asked, as a value. Targets that did not answer get a part of the threads only.

use std::collections::BTreeMap;

use crate::limit::{ASK_INTERVAL, RETRY_INTERVAL, TARGETS_MAX, WORKERS_FOR_SILENT};

/// The times at which targets are asked.
#[derive(Debug)]
pub(super) struct AskSchedule<T> {
    targets: BTreeMap<T, TargetState>,
    silent_asked: usize,
}

#[derive(Clone, Copy, Debug)]
struct TargetState {
    due_ms: u64,
    is_silent: bool,
    is_asked: bool,
    was_asked: bool,
}

impl<T: Ord + Clone> AskSchedule<T> {
    pub(super) fn new() -> AskSchedule<T> {
        AskSchedule {
            targets: BTreeMap::new(),
            silent_asked: 0,
        }
    }

    /// Adds a target, to be asked at once. One that is known stays as it is; one too many is left out.
    pub(super) fn add(&mut self, now_ms: u64, target: T) {
        if self.targets.len() >= TARGETS_MAX {
            return;
        }
        self.targets.entry(target).or_insert(TargetState {
            due_ms: now_ms,
            is_silent: false,
            is_asked: false,
            was_asked: false,
        });
    }

    /// Removes the targets that are not to be kept.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let silent_asked = &mut self.silent_asked;
        self.targets.retain(|target, state| {
            let kept = keep(target);
            if !kept && state.is_silent && state.is_asked {
                *silent_asked -= 1;
            }
            kept
        });
    }

    /// The target to ask now, which is then being asked.
    pub(super) fn next(&mut self, now_ms: u64) -> Option<T> {
        let has_room = self.silent_asked < WORKERS_FOR_SILENT;
        let may =
            |state: &TargetState| !state.is_asked && state.due_ms <= now_ms && (has_room || !state.is_silent);
        let due = self.targets.iter_mut().filter(|(_, state)| may(state));
        let (target, state) = due.min_by_key(|(_, state)| state.due_ms)?;
        state.is_asked = true;
        self.silent_asked += usize::from(state.is_silent);
        Some(target.clone())
    }

    /// Notes that a target was asked. Returns whether it is still one.
    pub(super) fn asked(&mut self, now_ms: u64, target: &T, has_answered: bool) -> bool {
        let Some(state) = self.targets.get_mut(target).filter(|state| state.is_asked) else {
            return false;
        };
        self.silent_asked -= usize::from(state.is_silent);
        let pause = match has_answered {
            true => ASK_INTERVAL,
            false => RETRY_INTERVAL,
        };
        *state = TargetState {
            due_ms: now_ms + pause.as_millis() as u64,
            is_silent: !has_answered,
            is_asked: false,
            was_asked: true,
        };
        true
    }

    /// Whether every target has been asked.
    pub(super) fn is_complete(&self) -> bool {
        self.targets.values().all(|state| state.was_asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_do_not_answer_leave_threads_to_the_others() {
        let mut schedule = AskSchedule::new();
        for target in 0..100 {
            schedule.add(0, target);
        }
        assert!(!schedule.is_complete());
        while let Some(target) = schedule.next(0) {
            schedule.asked(0, &target, target >= 60);
        }
        assert!(schedule.is_complete());
        let later = RETRY_INTERVAL.as_millis() as u64;
        let asked: Vec<i32> = std::iter::from_fn(|| schedule.next(later)).collect();
        let silent = asked.iter().filter(|target| **target < 60).count();
        assert_eq!((asked.len() - silent, silent), (40, WORKERS_FOR_SILENT));
        // One of them gives up its thread, and another one is asked.
        schedule.asked(
            later,
            &asked.iter().copied().find(|target| *target < 60).unwrap(),
            false,
        );
        assert!(schedule.next(later).is_some() && schedule.next(later).is_none());
        // Removed ones hold no thread.
        schedule.retain(|target| *target >= 60);
        assert_eq!(schedule.silent_asked, 0);
    }

    #[test]
    fn a_target_is_asked_by_one_thread_and_again_after_a_while() {
        let mut schedule = AskSchedule::new();
        schedule.add(5, 'a');
        assert_eq!(
            (schedule.next(4), schedule.next(5), schedule.next(5)),
            (None, Some('a'), None)
        );
        schedule.add(6, 'a');
        assert_eq!(schedule.next(6), None);
        schedule.asked(10, &'a', true);
        let pause = ASK_INTERVAL.as_millis() as u64;
        assert_eq!(
            (schedule.next(9 + pause), schedule.next(10 + pause)),
            (None, Some('a'))
        );
        for number in 0..2 * TARGETS_MAX as u32 {
            schedule.add(0, char::from_u32(0x1000 + number).unwrap());
        }
        assert_eq!(schedule.targets.len(), TARGETS_MAX);
    }
}
