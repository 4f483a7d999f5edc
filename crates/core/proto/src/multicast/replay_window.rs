//! A sliding window over a channel's newest datagram numbers, as in IPsec: each datagram counts once.
//!
//! A duplicate or replayed append would do no harm: the same position of the same epoch holds the same byte.
//! But each would cost a decryption and a call of the member.

/// How far behind the newest number the window reaches. An older datagram counts as lost.
const WINDOW: u64 = 4096;
const WORDS: usize = (WINDOW / 64) as usize;

/// The newest datagram numbers of a channel that have arrived.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One above the highest number seen.
    next: u64,
    /// One bit for each of the last `WINDOW` numbers, at the number modulo the window.
    seen: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> ReplayWindow {
        ReplayWindow {
            next: 0,
            seen: [0; WORDS],
        }
    }
}

impl ReplayWindow {
    /// Whether the datagram `number` has not arrived yet and is not too old to tell. Ask before decrypting,
    /// and [`take`](ReplayWindow::take) it after: a forged number must not move the window.
    pub fn is_new(&self, number: u64) -> bool {
        if number == u64::MAX {
            return false;
        }
        let known = number < self.next;
        let old = known && self.next - number > WINDOW;
        let came = known && self.seen[word(number)] & bit(number) != 0;
        !old && !came
    }

    /// Marks the datagram `number`, which is new and authenticated, as arrived.
    pub fn take(&mut self, number: u64) {
        assert!(self.is_new(number));
        if number >= self.next {
            if number - self.next >= WINDOW {
                self.seen = [0; WORDS];
            } else {
                for skipped in self.next..=number {
                    self.seen[word(skipped)] &= !bit(skipped);
                }
            }
            self.next = number + 1;
        }
        self.seen[word(number)] |= bit(number);
    }
}

fn word(number: u64) -> usize {
    (number % WINDOW / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn each_number_counts_once_in_any_order() {
        // A model that remembers everything, and numbers that walk, jump ahead, fall back and repeat.
        let mut replay = ReplayWindow::default();
        let mut seen = BTreeSet::new();
        let (mut at, mut draw) = (0_u64, 12345_u64);
        for _ in 0..200_000 {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let roll = draw >> 33;
            at = match roll % 16 {
                0 => at + roll % (3 * WINDOW),
                1..=5 => at.saturating_sub(roll % (WINDOW + 100)),
                _ => at + 1,
            };
            let newest = seen.last().copied().unwrap_or(0);
            let old = at + WINDOW <= newest;
            assert_eq!(
                replay.is_new(at),
                !seen.contains(&at) && !old,
                "{at} after {newest}"
            );
            if replay.is_new(at) {
                replay.take(at);
                seen.insert(at);
            }
        }
    }

    #[test]
    fn the_highest_number_is_never_accepted() {
        assert!(!ReplayWindow::default().is_new(u64::MAX));
        let mut replay = ReplayWindow::default();
        replay.take(u64::MAX - 1);
        assert!(!replay.is_new(u64::MAX - 1));
        assert!(!replay.is_new(0));
    }
}
