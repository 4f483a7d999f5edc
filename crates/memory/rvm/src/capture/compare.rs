//! Finding the bytes in which a page differs from its twin.

/// Bytes that are compared as one block while they are equal.
const BLOCK: usize = 64;
const WORD: usize = 8;

/// Passes the start and length of each run of differing bytes to `each`, in order. Both slices have the same
/// length. A commit compares pages with their twins by this function; it is public so that it can be
/// measured.
///
/// Costs 0.07 us for an equal page in the cache, 0.2 us with runs, and 0.8 us out of the cache. Measured by
/// `netram-lab bench paper --only osdi94`.
pub fn differences(old: &[u8], new: &[u8], mut each: impl FnMut(usize, usize)) {
    assert_eq!(old.len(), new.len());
    let mut run = Run::default();
    let blocks = old.chunks(BLOCK).zip(new.chunks(BLOCK)).enumerate();
    for (index, (old, new)) in blocks {
        let at = index * BLOCK;
        if old == new {
            run.end(at, &mut each);
            continue;
        }
        let (old_words, new_words) = (old.chunks_exact(WORD), new.chunks_exact(WORD));
        let rest = (old_words.remainder(), new_words.remainder());
        for (index, (old, new)) in old_words.zip(new_words).enumerate() {
            let old = u64::from_le_bytes(old.try_into().expect("a word"));
            let new = u64::from_le_bytes(new.try_into().expect("a word"));
            run.word(at + index * WORD, old ^ new, &mut each);
        }
        let at = at + old.len() / WORD * WORD;
        for (index, (old, new)) in rest.0.iter().zip(rest.1).enumerate() {
            run.byte(at + index, old != new, &mut each);
        }
    }
    run.end(old.len(), &mut each);
}

/// Start of the current run of differing bytes, if the last bytes differed.
#[derive(Default)]
struct Run(Option<usize>);

impl Run {
    /// Eight bytes; those that are not zero in `changed` differ.
    #[inline]
    fn word(&mut self, at: usize, changed: u64, each: &mut impl FnMut(usize, usize)) {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const HIGHS: u64 = 0x8080_8080_8080_8080;
        if changed == 0 {
            self.end(at, each);
        } else if changed.wrapping_sub(ONES) & !changed & HIGHS == 0 {
            // All eight bytes differ.
            self.0.get_or_insert(at);
        } else {
            for byte in 0..WORD {
                self.byte(at + byte, (changed >> (byte * 8)) & 0xff != 0, each);
            }
        }
    }

    #[inline]
    fn byte(&mut self, at: usize, changed: bool, each: &mut impl FnMut(usize, usize)) {
        if changed {
            self.0.get_or_insert(at);
        } else {
            self.end(at, each);
        }
    }

    #[inline]
    fn end(&mut self, at: usize, each: &mut impl FnMut(usize, usize)) {
        if let Some(start) = self.0.take() {
            each(start, at - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_exactly_the_bytes_that_differ(
            length in 0usize..300,
            changes in proptest::collection::vec((0usize..300, 1usize..20, any::<u8>()), 0..12),
        ) {
            let old: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut new = old.clone();
            for (at, count, with) in changes {
                new.iter_mut().skip(at).take(count).for_each(|byte| *byte ^= with);
            }
            let mut found = vec![false; length];
            let mut last_end = None;
            differences(&old, &new, |start, count| {
                assert!(count > 0);
                assert!(last_end.is_none_or(|end| end < start), "in order, and no two runs meet");
                last_end = Some(start + count);
                found[start..start + count].fill(true);
            });
            for at in 0..length {
                prop_assert_eq!(found[at], old[at] != new[at], "{}", at);
            }
        }
    }
}
