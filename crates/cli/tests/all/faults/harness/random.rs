//! Reproducible randomness, a word of state.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct FaultsRandom(pub(crate) u64);

impl FaultsRandom {
    /// Seeded by the moment, for what need not be replayed.
    pub(crate) fn here() -> FaultsRandom {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanoseconds = since.map_or(0, |since| since.as_nanos() as u64);
        FaultsRandom(nanoseconds ^ u64::from(std::process::id()).rotate_left(32))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `bound`, or zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn fill(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
