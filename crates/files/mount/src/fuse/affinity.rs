//! Threads that answer stand where whoever asks runs.
//!
//! A caller on one core and an answering thread on another cost two wake-ups of cores that have gone to
//! sleep, 20 to 50 µs each on a virtual machine; on the same core they take turns. The caller waits meanwhile
//! in any case. Only one that asks again and again is followed: several at once are served better by all
//! cores.

use std::cell::RefCell;
use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Questions in a row after which it is looked where the caller runs, and again after as many.
const ROW_LENGTH: u32 = 32;

#[derive(Default)]
struct CallerAffinity {
    /// Who asked last, and how often in a row.
    caller: u32,
    row: u32,
    /// Where this thread is held, and where it might be otherwise.
    pinned: Option<(usize, CpuSet)>,
}

thread_local! {
    static AFFINITY: RefCell<CallerAffinity> = RefCell::default();
}

/// This thread of the machine asks. Costs nothing but once in 32 times: some µs.
pub(super) fn follow_caller(caller: u32) {
    AFFINITY.with_borrow_mut(|near| near.follow_caller(caller));
}

impl CallerAffinity {
    fn follow_caller(&mut self, caller: u32) {
        if caller != self.caller {
            self.caller = caller;
            self.row = 0;
            self.unpin();
            return;
        }
        self.row += 1;
        if self.row.is_multiple_of(ROW_LENGTH)
            && let Some(core) = core_of(caller)
        {
            self.pin(core);
        }
    }

    fn pin(&mut self, core: usize) {
        if self.pinned.as_ref().is_some_and(|(held, _)| *held == core) {
            return;
        }
        self.unpin();
        let Ok(anywhere) = sched_getaffinity(None) else {
            return;
        };
        let mut there = CpuSet::new();
        if core < CpuSet::MAX_CPU && anywhere.is_set(core) {
            there.set(core);
            if sched_setaffinity(None, &there).is_ok() {
                self.pinned = Some((core, anywhere));
            }
        }
    }

    fn unpin(&mut self) {
        if let Some((_, anywhere)) = self.pinned.take() {
            let _ = sched_setaffinity(None, &anywhere);
        }
    }
}

/// On which core a thread ran last.
fn core_of(thread: u32) -> Option<usize> {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // Its name comes before, in parentheses, and may have any letters. The 37th field behind that is the
    // core.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores() -> u32 {
        sched_getaffinity(None).unwrap().count()
    }

    #[test]
    fn who_asks_again_and_again_is_followed_and_let_go_when_another_asks() {
        let body = || {
            let before = cores();
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let mut near = CallerAffinity::default();
            for _ in 0..ROW_LENGTH {
                near.follow_caller(own);
            }
            assert_eq!(cores(), before, "not yet");
            near.follow_caller(own);
            assert_eq!(cores(), 1);
            let held = near.pinned.as_ref().map(|(core, _)| *core);
            assert_eq!(held, core_of(own));
            near.follow_caller(own + 1);
            assert_eq!(cores(), before);
        };
        std::thread::spawn(body).join().unwrap();
    }
}
