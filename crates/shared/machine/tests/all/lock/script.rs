//! Scripts of lock worlds, and the actions that may happen in them.

use std::hash::Hasher;

use netram_shared_machine::LockMode::{self, Exclusive, Shared};

/// One step of a transaction's script. After the last step it commits, with a record if it may write.
#[derive(Clone, Debug)]
pub(crate) enum ScriptStep {
    Lock(u32, LockMode),
    All(Vec<(u32, LockMode)>),
}

/// Script of one world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) locks: u32,
    /// Transactions of each node; all may be open at once.
    pub(crate) nodes: Vec<Vec<Vec<ScriptStep>>>,
    /// How often each of these faults may happen, at any point.
    pub(crate) crashes: u32,
    pub(crate) restarts: u32,
    pub(crate) cuts: u32,
    pub(crate) cancels: u32,
    pub(crate) lapses: u32,
    /// Whether transactions cannot be undone.
    pub(crate) no_restore: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptAction {
    Step {
        node: usize,
        txn: usize,
    },
    SendTail(usize),
    ToServer(usize),
    ToNode(usize),
    /// A node's link breaks.
    Cut(usize),
    Link(usize),
    Crash(usize),
    Fence(usize),
    /// The next record of a dead node's journal is merged.
    Read(usize),
    Reclaim(usize),
    /// The server restarts; its disk has all merged records, or with `lost` none since the last fencing.
    Restart {
        lost: bool,
    },
    Cancel {
        node: usize,
        txn: usize,
    },
    Lapse(usize),
    Renew(usize),
}

impl ScriptAction {
    /// Whether the action is bound to happen. A world without such an action must be done.
    pub(crate) fn is_progress(self) -> bool {
        !matches!(
            self,
            ScriptAction::Cut(_)
                | ScriptAction::Crash(_)
                | ScriptAction::Restart { .. }
                | ScriptAction::Cancel { .. }
                | ScriptAction::Lapse(_)
        )
    }
}

/// A transaction that acquires these locks one after the other: `r` shared, `w` exclusive.
pub(crate) fn txn(locks: &str) -> Vec<ScriptStep> {
    let lock = |word: &str| {
        let (hold, lock) = word.split_at(1);
        let hold = match hold {
            "r" => Shared,
            "w" => Exclusive,
            _ => panic!("r or w, not {hold}"),
        };
        (lock.parse().expect("a lock"), hold)
    };
    let one = |words: &str| match words.strip_prefix('+') {
        Some(words) => ScriptStep::All(words.split('+').map(lock).collect()),
        None => {
            let (lock, hold) = lock(words);
            ScriptStep::Lock(lock, hold)
        }
    };
    locks.split_whitespace().map(one).collect()
}

/// A script of these nodes with these transactions, without faults.
pub(crate) fn script(nodes: &[&[&str]]) -> Script {
    let txns = |txns: &&[&str]| txns.iter().map(|locks| txn(locks)).collect();
    Script {
        locks: 3,
        nodes: nodes.iter().map(txns).collect(),
        ..Script::default()
    }
}

/// Mixes words as they come, because the standard hasher would take most of an exploration's time.
pub(crate) struct MixHasher(pub(crate) u64);

impl Hasher for MixHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 31)
    }
}
