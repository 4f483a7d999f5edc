//! Oracle of recoverable memory. After a crash it holds some prefix of the committed transactions, with every
//! acknowledged one and never a part of one. An abort leaves nothing behind.

use super::violation::fail;

/// One committed transaction: its writes in order.
#[derive(Clone, Debug, Default)]
pub struct ModelTransaction {
    /// Segment index, byte offset and bytes of each write.
    pub writes: Vec<(usize, usize, Vec<u8>)>,
}

/// The reference model of recoverable memory: its state at the last opening, and every commit since.
#[derive(Clone, Debug)]
pub struct MemoryModel {
    base: Vec<Vec<u8>>,
    /// Transactions that lead from zeros to the memory at the last opening.
    before_opening: Vec<ModelTransaction>,
    /// Expected contents of each segment.
    pub now: Vec<Vec<u8>>,
    commits: Vec<ModelTransaction>,
    /// Number of leading `commits` that are acknowledged.
    acked: usize,
}

impl MemoryModel {
    /// Memory of zeros.
    pub fn new(segments: usize, bytes: usize) -> MemoryModel {
        let zeros = vec![vec![0; bytes]; segments];
        MemoryModel {
            base: zeros.clone(),
            before_opening: Vec::new(),
            now: zeros,
            commits: Vec::new(),
            acked: 0,
        }
    }

    /// Records a transaction that was handed to the log. With `acked`, it and all before it are durable.
    pub fn commit(&mut self, transaction: ModelTransaction, acked: bool) {
        apply(&mut self.now, &transaction);
        self.commits.push(transaction);
        if acked {
            self.acked = self.commits.len();
        }
    }

    /// Records that every commit so far is durable.
    pub fn flushed(&mut self) {
        self.acked = self.commits.len();
    }

    /// Limits the durable commits to the first `count`, because the members or disk that kept the others are
    /// lost.
    pub fn keep_first(&mut self, count: usize) {
        self.acked = self.acked.min(count);
    }

    /// Checks the memory that was mapped after an opening. Returns the number of commits in doubt that were
    /// found.
    pub fn reopened(&mut self, found: Vec<Vec<u8>>) -> usize {
        let mut image = self.base.clone();
        let mut matching = None;
        for count in 0..=self.commits.len() {
            if count > 0 {
                apply(&mut image, &self.commits[count - 1]);
            }
            if count >= self.acked && image == found {
                matching = Some(count);
                break;
            }
        }
        let Some(matching) = matching else {
            fail(
                6,
                format!(
                    "recovered memory is none of the prefixes of {} commits that have the first {}",
                    self.commits.len(),
                    self.acked
                ),
            );
        };
        let in_doubt = matching - self.acked;
        let mut past = std::mem::take(&mut self.before_opening);
        past.extend(self.commits.drain(..matching));
        *self = MemoryModel {
            base: found.clone(),
            before_opening: past,
            now: found,
            commits: Vec::new(),
            acked: 0,
        };
        in_doubt
    }

    /// Checks the opening of a copied log over segments that were as in `before` and are as in `after`. Each
    /// segment that may be mapped is in the state after some commit, no earlier than any of its bytes before.
    pub fn copy_opened(&self, before: &[Vec<u8>], after: &[Vec<u8>], mapped: &[bool]) {
        let zeros = self.base.iter().map(|segment| vec![0; segment.len()]);
        let mut image: Vec<Vec<u8>> = zeros.collect();
        let all: Vec<&ModelTransaction> = self.before_opening.iter().chain(&self.commits).collect();
        let same = |image: &[Vec<u8>]| {
            let segments = (0..mapped.len()).filter(|segment| mapped[*segment]);
            segments.clone().all(|segment| image[segment] == after[segment])
        };
        let mut shown = same(&image).then_some(0);
        for (count, transaction) in (1..).zip(&all) {
            apply(&mut image, transaction);
            if same(&image) {
                shown = Some(count);
            }
        }
        let Some(shown) = shown else {
            fail(
                24,
                "a copy of the log left segments in no state that commits made".to_owned(),
            );
        };
        let zeros = self.base.iter().map(|segment| vec![0; segment.len()]);
        let mut image: Vec<Vec<u8>> = zeros.collect();
        let mut later = differing(&image, before);
        later.retain(|(segment, _)| mapped[*segment]);
        for transaction in &all[..shown] {
            apply(&mut image, transaction);
            later.retain(|(segment, at)| image[*segment][*at] != before[*segment][*at]);
        }
        if let Some((segment, at)) = later.first() {
            fail(
                24,
                format!("a copy of the log put an older byte over a newer one, at {at} of segment {segment}"),
            );
        }
    }

    /// Checks memory as a running program sees it.
    pub fn check_running(&self, segment: usize, memory: &[u8], when: &str) {
        if self.now[segment] != memory {
            fail(6, format!("{when}, memory is not what the commits made it"));
        }
    }
}

fn differing(a: &[Vec<u8>], b: &[Vec<u8>]) -> Vec<(usize, usize)> {
    let segments = (0..).zip(a.iter().zip(b));
    let bytes = segments.flat_map(|(segment, (a, b))| {
        let places = (0..).zip(a.iter().zip(b)).filter(|(_, (a, b))| a != b);
        places.map(move |(at, _)| (segment, at))
    });
    bytes.collect()
}

fn apply(image: &mut [Vec<u8>], transaction: &ModelTransaction) {
    for (segment, offset, bytes) in &transaction.writes {
        image[*segment][*offset..*offset + bytes.len()].copy_from_slice(bytes);
    }
}
