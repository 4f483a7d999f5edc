//! Sorts more numbers than the cap of local memory holds, with lenders named on the command line:
//!
//! ```text
//! netram lender serve --insecure --listen tcp://127.0.0.1:7420 --memory 1GiB &
//! cargo run --release -p netram-far --example sort -- tcp://127.0.0.1:7420
//! ```

use std::error::Error;

use netram_far::{Arena, ArenaConfig, FarVec, RemotePagesConfig};

const NUMBERS: usize = 4 << 20;
const LOCAL_BYTES: u64 = 8 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let lenders = std::env::args()
        .skip(1)
        .map(|address| address.parse())
        .collect::<Result<Vec<_>, _>>()?;
    let copies = lenders.len().min(2);
    let arena = Arena::open(ArenaConfig {
        local_bytes: LOCAL_BYTES,
        remote_pages: RemotePagesConfig {
            lenders,
            copies,
            ..RemotePagesConfig::default()
        },
        ..ArenaConfig::default()
    })?;
    let mut numbers = FarVec::<u64>::with_capacity(&arena, NUMBERS)?;
    for index in 0..NUMBERS as u64 {
        numbers.push(index.wrapping_mul(0x9E37_79B9_7F4A_7C15))?;
    }
    numbers.as_mut_slice().sort_unstable();
    let sorted = numbers.as_slice().is_sorted();
    let tally = arena.status().tally;
    eprintln!(
        "{NUMBERS} numbers in {} MiB of local memory, sorted: {sorted}; {} pages came from lenders, {} of them ahead",
        LOCAL_BYTES >> 20,
        tally.fetched + tally.ahead,
        tally.ahead
    );
    Ok(())
}
