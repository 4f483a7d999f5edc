//! No-flush commits, which do not wait: the cost of one of them with a range of 128 bytes, and of the flush
//! afterwards.

use std::hint::black_box;
use std::time::Instant;

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use serde::Serialize;

use super::Tr190Progress;
use super::experiment::{BlockOrder, LOG_BYTES, Tr190Effort};
use super::system::{MemberLink, Tr190System};
use super::testbed::Tr190Testbed;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::tpca::{AccessPattern, AccountChooser};

/// Size of the range in bytes.
pub const BLOCK_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;
/// Number of commits in one round.
const COMMITS: u64 = 10_000;
/// Number of rounds; each takes some milliseconds.
const ROUNDS: usize = 5;
/// Sizes of the spool in bytes: none, and one that holds less than a round, so that it fills and is merged.
const SPOOLS: [usize; 2] = [0, 1 << 20];
/// Number of measurements: both orders, with and without a member, with each spool.
pub const CELLS: usize = 4 * SPOOLS.len();

/// Result for no-flush commits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoFlushRow {
    /// Order of the blocks.
    pub order: BlockOrder,
    /// Whether there is a member to send them to.
    pub member: bool,
    /// Size in bytes of the spool in which commits are kept and merged until the flush; 0 for none.
    pub spool_bytes: usize,
    /// Nanoseconds of a transaction: begin, one range, store, commit. The mean of a round, the median over
    /// rounds.
    pub transaction_ns: f64,
    /// The same in the first pass over the blocks, whose first store to each page copies it.
    pub first_pass_ns: f64,
    /// Milliseconds of the flush after a round's transactions.
    pub flush_ms: f64,
    /// Number of transactions in a round.
    pub transactions: u64,
}

/// Measures all of them.
///
/// # Errors
///
/// Fails if the memory cannot be set up, or a commit fails.
pub fn measure(
    mut stage: Tr190Testbed<'_>,
    effort: Tr190Effort,
    tell: &mut dyn FnMut(Tr190Progress<'_>),
) -> Result<Vec<NoFlushRow>, BenchError> {
    let mut rows = Vec::new();
    for member in [false, true] {
        for order in [BlockOrder::Sequential, BlockOrder::Random] {
            for spool_bytes in SPOOLS {
                let what = format!(
                    "commits that do not wait, {}, {}, {}",
                    order.name(),
                    if member { "one member" } else { "no member" },
                    if spool_bytes > 0 { "spool" } else { "no spool" }
                );
                tell(Tr190Progress::Cell {
                    figure: 0,
                    what: &what,
                });
                rows.push(row(&mut stage, order, member, spool_bytes, effort)?);
            }
        }
    }
    assert_eq!(rows.len(), CELLS);
    Ok(rows)
}

fn row(
    stage: &mut Tr190Testbed<'_>,
    order: BlockOrder,
    member: bool,
    spool_bytes: usize,
    effort: Tr190Effort,
) -> Result<NoFlushRow, BenchError> {
    let link = if member { MemberLink::Tcp } else { MemberLink::Disk };
    let server = stage.servers(link, 1)?.into_iter().next();
    let file = stage.data_file(0, effort.data_bytes())?;
    let memory = stage.memory(Tr190System::RVM.over(link), server, LOG_BYTES, Durability::Lazy)?;
    memory.rvm.set_spool_bytes(spool_bytes);
    let region = memory.rvm.map(&file, 0, 0).context("map the data file")?;
    // The page is in the page cache and mapped, but not yet a private copy.
    black_box(
        region
            .read()
            .iter()
            .step_by(PAGE_BYTES)
            .map(|byte| u64::from(*byte))
            .sum::<u64>(),
    );
    let slots = effort.data_bytes() / BLOCK_BYTES as u64;
    let mut block = [0; BLOCK_BYTES];
    let rounds = if effort.quick { 2 } else { ROUNDS };
    let (mut took, mut flushed, mut first_pass_ns) = (Vec::new(), Vec::new(), 0.0);
    for round in 0..=rounds {
        let mut chooser = AccountChooser::new(AccessPattern::Random, slots, 1);
        let began = Instant::now();
        for number in 0..COMMITS {
            let slot = match order {
                BlockOrder::Sequential => number,
                BlockOrder::Random => chooser.below(slots),
            };
            block[..8].copy_from_slice(&(number + round as u64).to_le_bytes());
            let mut transaction = memory.rvm.begin(RestoreMode::Restore);
            transaction
                .write(&region, slot as usize * BLOCK_BYTES, &block)
                .context("change a block")?;
            transaction
                .commit(Durability::Lazy)
                .context("commit a transaction")?;
        }
        let committed = began.elapsed();
        memory
            .rvm
            .flush(Tr190System::RVM.over(link).durability())
            .context("flush")?;
        let transaction_ns = committed.as_nanos() as f64 / COMMITS as f64;
        if round == 0 {
            first_pass_ns = transaction_ns;
        } else {
            took.push(transaction_ns);
            flushed.push((began.elapsed() - committed).as_secs_f64() * 1e3);
        }
        // No truncation may run in the next round.
        memory.rvm.truncate().context("empty the log")?;
    }
    Ok(NoFlushRow {
        order,
        member,
        spool_bytes,
        transaction_ns: median(took),
        first_pass_ns,
        flush_ms: median(flushed),
        transactions: COMMITS,
    })
}
