//! The benchmark's own random numbers, the same on every machine for ever.
//!
//! Golden values depend on them. The generator is SplitMix64: the state advances by a constant, and a number
//! is the mixed state. A number below a bound is the upper half of a product, so that machines cannot round
//! differently.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Oo7Random(u64);

impl Oo7Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Oo7Random {
        Oo7Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from zero up to but not including `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        let upper = self.next() >> 32;
        ((upper * u64::from(bound)) >> 32) as u32
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u32, last: u32) -> u32 {
        assert!(first <= last);
        first + self.below(last - first + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_fixed() {
        let mut random = Oo7Random::new(1);
        let numbers: Vec<u32> = (0..6).map(|_| random.below(100_000)).collect();
        assert_eq!(numbers, [56_656, 74_578, 97_100, 44_435, 44_426, 76_289]);
    }

    #[test]
    fn numbers_keep_to_their_bounds_and_reach_them() {
        let mut random = Oo7Random::new(7);
        let numbers: Vec<u32> = (0..10_000).map(|_| random.between(10, 19)).collect();
        for number in 10..20 {
            let count = numbers.iter().filter(|found| **found == number).count();
            assert!((800..1200).contains(&count), "{number}: {count}");
        }
        assert!(numbers.iter().all(|number| (10..20).contains(number)));
    }
}
