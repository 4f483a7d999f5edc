//! Rescues a region from copies that living nodes saved, when its server is lost for good.
//!
//! A node applies whole records in the order of their versions, and a copy contains no unacknowledged record.
//! So the copy with a lock's highest version has everything that the others have under that lock. A record
//! that wrote under several locks, if any copy has it, is in each of the chosen spans or overwritten there.
//! Records that no copy has are lost; the report names the nodes of which records were seen.
//!
//! The result is a new region with an id of its own. Nodes, journals and servers of the old region are
//! refused by it, and refuse it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber, RegionId};

use super::spans::{Span, SpanError, Spans};
use super::store::{RegionCreateError, RegionPlan, RegionStore};
use crate::saved_copy::{CopyError, SavedCopy};

/// Result of a rescue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescueReport {
    /// Identity of the new region.
    pub region: RegionId,
    /// Identity of the old region.
    pub was: RegionId,
    /// Each copy with its node, and the number of written locks of which it had the newest version.
    pub copies: Vec<(PathBuf, NodeId, usize)>,
    /// Nodes without a copy, with the last of their records that is in some copy. Their later commits are
    /// lost.
    pub absent: Vec<(NodeId, RecordNumber)>,
}

/// Failure to rescue a region. No file of the attempt is left.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// A copy cannot be used.
    #[error("{0}")]
    Copy(#[from] CopyError),
    /// No copy was named.
    #[error("no copy was named; name the directories of copies that nodes have saved")]
    None,
    /// The copies are of different regions.
    #[error("{path} is a copy of another region than the first one; name copies of one region")]
    Alien {
        /// Copy of another region.
        path: PathBuf,
    },
    /// Two copies have different bytes for the same version of a lock.
    #[error(
        "{one} and {other} have different bytes under lock {lock} at version {version}: one of them was saved by a node that was fenced or is faulty; omit that copy"
    )]
    Fork {
        /// One copy.
        one: PathBuf,
        /// The other.
        other: PathBuf,
        /// The lock.
        lock: LockId,
        /// Its version.
        version: LockVersion,
    },
    /// The spans in the copies are invalid.
    #[error("the copies have invalid spans: {0}")]
    Spans(#[from] SpanError),
    /// The new region could not be created.
    #[error("{0}")]
    Create(#[from] RegionCreateError),
    /// A copy could not be read.
    #[error("{path}: {cause}")]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// A lock's span, and the copies that have its highest version.
struct SpanSource {
    span: Span,
    version: LockVersion,
    copies: Vec<usize>,
}

/// Creates a new region at `root` from these copies.
///
/// # Errors
///
/// [`RescueError`] if a copy cannot be used, the copies contradict each other, or the new region cannot be
/// created.
pub fn rescue(root: &Path, copies: &[PathBuf], log_bytes: u64) -> Result<RescueReport, RescueError> {
    let copies: Vec<SavedCopy> = copies
        .iter()
        .map(|path| SavedCopy::open(path))
        .collect::<Result<_, _>>()?;
    let chosen = choose(&copies)?;
    agree(&copies, &chosen)?;
    let first = &copies[0];
    let spans = chosen.iter().map(|chosen| chosen.span).collect();
    let plan = RegionPlan {
        bytes: first.description.bytes,
        address: first.description.address,
        spans: Spans::new(first.description.bytes, spans)?,
        log_bytes,
        nodes_settings: first.description.settings.clone(),
    };
    let region = RegionStore::create_filled(root, &plan, &mut |file| fill(file, &copies, &chosen))?;
    let told = copies.iter().enumerate().map(|(index, copy)| {
        let its = |chosen: &&SpanSource| chosen.version > LockVersion(0) && chosen.copies[0] == index;
        let node = NodeId(copy.description.node);
        (copy.path.clone(), node, chosen.iter().filter(its).count())
    });
    Ok(RescueReport {
        region,
        was: first.region,
        copies: told.collect(),
        absent: absent(&copies),
    })
}

/// Finds the copies with the highest version of each lock.
fn choose(copies: &[SavedCopy]) -> Result<Vec<SpanSource>, RescueError> {
    let first = copies.first().ok_or(RescueError::None)?;
    let mut chosen: BTreeMap<u32, SpanSource> = BTreeMap::new();
    for (index, copy) in copies.iter().enumerate() {
        let (one, other) = (&first.description, &copy.description);
        let same = first.region == copy.region
            && (one.bytes, one.address, one.locks.len()) == (other.bytes, other.address, other.locks.len());
        let alien = || RescueError::Alien {
            path: copy.path.clone(),
        };
        if !same {
            return Err(alien());
        }
        for (lock, offset, length, version) in &copy.description.locks {
            let (span, version) = (
                Span {
                    lock: LockId(*lock),
                    offset: *offset,
                    length: *length,
                },
                LockVersion(*version),
            );
            let fresh = || SpanSource {
                span,
                version,
                copies: Vec::new(),
            };
            let best = match index {
                0 => chosen.entry(*lock).or_insert_with(fresh),
                _ => chosen.get_mut(lock).ok_or_else(alien)?,
            };
            if best.span != span {
                return Err(alien());
            }
            if version > best.version {
                (best.version, best.copies) = (version, Vec::new());
            }
            if version == best.version {
                best.copies.push(index);
            }
        }
    }
    Ok(chosen.into_values().collect())
}

/// Checks that copies with the same version of a lock have the same bytes under it.
fn agree(copies: &[SavedCopy], chosen: &[SpanSource]) -> Result<(), RescueError> {
    for SpanSource {
        span,
        version,
        copies: have,
    } in chosen
    {
        for other in &have[1..] {
            let (one, other) = (&copies[have[0]], &copies[*other]);
            let mut same = true;
            let compared = one.each(span.offset, span.length, &mut |at, bytes| {
                other.each(at, bytes.len() as u64, &mut |_, others| {
                    same &= bytes == others;
                    Ok(())
                })
            });
            compared.map_err(|cause| RescueError::System {
                path: other.path.clone(),
                cause,
            })?;
            if !same {
                return Err(RescueError::Fork {
                    one: one.path.clone(),
                    other: other.path.clone(),
                    lock: span.lock,
                    version: *version,
                });
            }
        }
    }
    Ok(())
}

/// Writes the chosen bytes; zeros are left out, so that they stay holes.
fn fill(file: &File, copies: &[SavedCopy], chosen: &[SpanSource]) -> io::Result<()> {
    for SpanSource {
        span, copies: have, ..
    } in chosen
    {
        copies[have[0]].each(span.offset, span.length, &mut |at, bytes| match bytes
            .iter()
            .any(|byte| *byte != 0)
        {
            true => file.write_all_at(bytes, at),
            false => Ok(()),
        })?;
    }
    file.sync_all()
}

/// Nodes without a copy of which some copy has records.
fn absent(copies: &[SavedCopy]) -> Vec<(NodeId, RecordNumber)> {
    let present: BTreeSet<u64> = copies.iter().map(|copy| copy.description.node).collect();
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for (node, number) in copies.iter().flat_map(|copy| &copy.description.numbers) {
        let last = seen.entry(*node).or_default();
        *last = (*last).max(*number);
    }
    let absent = seen.into_iter().filter(|(node, _)| !present.contains(node));
    absent
        .map(|(node, number)| (NodeId(node), RecordNumber(number)))
        .collect()
}
