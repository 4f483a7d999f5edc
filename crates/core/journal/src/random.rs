//! Randomness.

use ring::rand::{SecureRandom, SystemRandom};

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("Linux gives random bytes once it has booted");
    bytes
}
