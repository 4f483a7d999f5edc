//! Blocks of a resync on the client's side: choosing, comparing and reading them.

use netram_block::{BLOCK_BYTES, DeviceError, ResyncRun, digest};
use netram_block_machine::message::{BlockDigest, DIGEST_BYTES};
use netram_block_machine::{ReplicaMessage, ReplicaSource, ResyncScope, SourceAction};
use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;
use netram_proto::time::Time;
use netram_proto::wire::ChainPoint;

use super::feeder::VolumeDisk;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Number of blocks compared at once; few enough to answer pings in between.
const COMPARED_AT_ONCE: usize = 256;
/// Maximum number of attempts to begin a resync before the journal's head moves.
const BEGIN_ATTEMPTS_MAX: usize = 100;
const TOO_FAST: &str = "the journal is overwritten too fast for a resync to begin; give it a larger log";

/// Digest of a block that cannot be read; another block has it only by chance.
const UNREADABLE: BlockDigest = [0xff; DIGEST_BYTES];

/// A block's number and bytes, or `None` for a block of zeros.
type NumberedBlock = (u64, Option<Vec<u8>>);

/// State of a resync.
#[derive(Default)]
pub(super) struct BlockChooser {
    /// Next block to choose, and the number of passes so far.
    cursor: u64,
    pass: u32,
    /// Whether holes need not be sent, because the copy has zeros there.
    skips_holes: bool,
    /// Numbers of blocks that cannot be read here.
    unreadable: Vec<u64>,
    sent_blocks: u64,
}

impl BlockChooser {
    /// Number of blocks sent in all resyncs.
    pub(super) fn sent_blocks(&self) -> u64 {
        self.sent_blocks
    }

    /// Does the machine's next step on the volume's blocks. Returns the messages to send.
    pub(super) fn act(
        &mut self,
        disk: &VolumeDisk,
        source: &mut ReplicaSource,
        todo: SourceAction,
        now: Time,
    ) -> Result<Vec<ReplicaMessage>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        match todo {
            SourceAction::Begin { scope, since } => self.begin(disk, source, scope, since)?,
            SourceAction::Move { since } => source.on_moved(go_on(disk, since)?),
            SourceAction::Choose { max, pass } => {
                let chosen = self.choose(disk, max, pass)?;
                source.on_chosen(&chosen, disk.log().state().head);
            }
            SourceAction::Digest { first, count } => {
                let digests = digests(disk, first, count.min(COMPARED_AT_ONCE))?;
                let tail = disk.log().state().tail;
                return Ok(source
                    .on_digested(first, &digests, tail, now)
                    .into_iter()
                    .collect());
            }
            SourceAction::Read(numbers) => {
                let blocks = self.read(disk, &numbers)?;
                self.sent_blocks += blocks.len() as u64;
                return Ok(source.on_read(&blocks, disk.log().state().tail, now));
            }
            SourceAction::Clear => {
                if !self.unreadable.is_empty() {
                    // The copy has older bytes there, or none, which must not pass for the newest. Marks made
                    // now outlive the resync.
                    disk.mark_dirty(&self.unreadable).map_err(|error| text(&error))?;
                    self.unreadable.clear();
                }
                disk.finish_resync().map_err(|error| text(&error))?;
                source.on_cleared();
            }
            SourceAction::Mark(numbers) => {
                disk.mark_dirty(&numbers).map_err(|error| text(&error))?;
                source.on_marked();
            }
            SourceAction::Send(_) | SourceAction::Ship { .. } => unreachable!("not a step about blocks"),
        }
        Ok(Vec::new())
    }

    fn begin(
        &mut self,
        disk: &VolumeDisk,
        source: &mut ReplicaSource,
        scope: ResyncScope,
        since: Option<Lsn>,
    ) -> Result<(), String> {
        let since = since.filter(|_| scope == ResyncScope::Dirty);
        for _ in 0..BEGIN_ATTEMPTS_MAX {
            let begun = disk.begin_resync(since).map_err(|error| error.to_string())?;
            // If that LSN was trimmed already, records in between are in no set: try again.
            let Ok(start) = disk.log().link_at(begun.from) else {
                continue;
            };
            (self.cursor, self.pass) = (0, 0);
            self.skips_holes = scope == ResyncScope::Data;
            self.unreadable.clear();
            let (blocks, all) = (begun.blocks, begun.all);
            tracing::info!(blocks, all, ?scope, from = %begun.from, "resync started");
            source.on_begun(start, blocks, all);
            return Ok(());
        }
        Err(TOO_FAST.to_owned())
    }

    /// Next blocks of the set, at most `max`.
    fn choose(&mut self, disk: &VolumeDisk, max: usize, pass: u32) -> Result<Vec<u64>, String> {
        if self.pass != pass {
            // The copy may now have data where this side has a hole.
            (self.cursor, self.pass, self.skips_holes) = (0, pass, false);
        }
        let mut chosen = Vec::new();
        while chosen.len() < max {
            let most = (max - chosen.len()) as u64;
            let run = match pass {
                0 => disk.next_resync(self.cursor, most),
                _ => disk.next_dirtied(self.cursor, most),
            };
            let run = run.map_err(|error| error.to_string())?;
            let Some(ResyncRun {
                first,
                end: behind,
                hole,
            }) = run
            else {
                break;
            };
            if hole && self.skips_holes {
                self.cursor = behind;
                continue;
            }
            let behind = behind.min(first + most);
            chosen.extend(first..behind);
            self.cursor = behind;
        }
        Ok(chosen)
    }

    /// Reads blocks as they are now. An unreadable block is left out and noted.
    fn read(&mut self, disk: &VolumeDisk, numbers: &[u64]) -> Result<Vec<NumberedBlock>, String> {
        let mut blocks = Vec::with_capacity(numbers.len());
        for run in numbers.chunk_by(|a, b| a + 1 == *b) {
            let mut bytes = vec![0; run.len() * BLOCK];
            let whole = disk.read_own(run[0], &mut bytes);
            for (number, block) in run.iter().zip(bytes.chunks_exact_mut(BLOCK)) {
                let read = match whole {
                    Ok(()) => Ok(()),
                    // One of these blocks is damaged; find out which.
                    Err(_) => disk.read_own(*number, block),
                };
                match read {
                    Ok(()) => blocks.push((*number, is_data(block).then(|| block.to_vec()))),
                    Err(DeviceError::Corrupt { .. } | DeviceError::Missing { .. }) => {
                        tracing::error!(
                            block = number,
                            "a block is damaged here and cannot be sent to the data lender"
                        );
                        self.unreadable.push(*number);
                    }
                    // The volume has no such block.
                    Err(DeviceError::OutOfRange { .. }) => (),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(blocks)
    }
}

/// Start of the journal now, for a copy that has everything below `since`.
fn go_on(disk: &VolumeDisk, since: Lsn) -> Result<Option<(ChainPoint, u64)>, String> {
    for _ in 0..BEGIN_ATTEMPTS_MAX {
        let moved = disk.continue_resync(since).map_err(|error| error.to_string())?;
        let Some(begun) = moved else { return Ok(None) };
        // If that LSN was trimmed already, there are more blocks: try again.
        if let Ok(start) = disk.log().link_at(begun.from) {
            tracing::info!(blocks = begun.blocks, from = %begun.from, "resync continues from a later start of the journal");
            return Ok(Some((start, begun.blocks)));
        }
    }
    Err(TOO_FAST.to_owned())
}

fn is_data(block: &[u8]) -> bool {
    block.iter().any(|byte| *byte != 0)
}

/// Digests of blocks from `first`, up to the volume's end; `UNREADABLE` for a block that cannot be read.
fn digests(disk: &VolumeDisk, first: u64, count: usize) -> Result<Vec<BlockDigest>, String> {
    let there = (disk.geometry().bytes / BLOCK_BYTES).saturating_sub(first);
    let count = there.min(count as u64) as usize;
    let mut bytes = vec![0; count * BLOCK];
    let whole = match count {
        0 => Ok(()),
        _ => disk.read_own(first, &mut bytes),
    };
    let mut digests = Vec::with_capacity(count);
    for (index, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        let read = match whole {
            Ok(()) => Ok(()),
            Err(_) => disk.read_own(first + index as u64, block),
        };
        match read {
            Ok(()) => digests.push(digest(block)),
            Err(DeviceError::Corrupt { .. } | DeviceError::Missing { .. }) => digests.push(UNREADABLE),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(digests)
}
