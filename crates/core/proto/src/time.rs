//! Time for the machines: a number that the driver passes in.

use core::ops::{Add, Sub};

/// Nanoseconds since an origin that the driver chooses. Only differences have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A duration of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// A duration of `us` microseconds.
    pub const fn from_us(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    /// The duration in whole milliseconds, rounded down.
    pub const fn ms(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl Time {
    /// The duration from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Nanos> for Time {
    type Output = Time;

    fn add(self, span: Nanos) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Nanos> for Time {
    type Output = Time;

    fn sub(self, span: Nanos) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}
