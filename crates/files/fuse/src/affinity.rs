//! Runs an answering thread on the core of its caller.
//!
//! With caller and answering thread on different cores, each request wakes two sleeping cores, at 20 to 50 µs
//! each on a virtual machine. On the same core they take turns, and the caller waits anyway. Only a caller
//! that asks repeatedly is followed: several callers at once are served better by all cores.

use std::cell::RefCell;
use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Requests in a row by one caller before its core is looked up, and between later look-ups.
const ROW_LENGTH: u32 = 32;

#[derive(Default)]
struct CallerAffinity {
    /// Thread id of the last caller, and its number of requests in a row.
    caller: u32,
    row: u32,
    /// Core that this thread is pinned to, and the cores it may use otherwise.
    pinned: Option<(usize, CpuSet)>,
    /// Requests come from one core only.
    stays: bool,
}

thread_local! {
    static AFFINITY: RefCell<CallerAffinity> = RefCell::default();
}

/// Notes a request by the thread `caller`, which the calling thread is about to answer. Costs some µs once in
/// 32 calls, else nothing.
pub fn follow_caller(caller: u32) {
    AFFINITY.with_borrow_mut(|near| near.follow_caller(caller));
}

/// Keeps the calling thread on the core, if it may run there: it answers callers of no other.
pub(crate) fn stay_on(core: u16) {
    AFFINITY.with_borrow_mut(|near| {
        near.stays = true;
        near.pin(core.into());
    });
}

impl CallerAffinity {
    fn follow_caller(&mut self, caller: u32) {
        if self.stays {
            return;
        }
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

/// Core on which a thread ran last.
fn core_of(thread: u32) -> Option<usize> {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The thread's name comes first, in parentheses, and may contain any character. The 37th field after it
    // is the core.
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
    fn affinity_follows_a_repeat_caller_and_is_released_for_another() {
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
