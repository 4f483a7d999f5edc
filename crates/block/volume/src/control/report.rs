//! A volume's status as JSON of these structures.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use netram_block::BLOCK_BYTES;
use netram_journal::JournalStatus;
use netram_proto::journal::{JournalLenderStatus, LenderRole, LinkPhase};
use serde::{Deserialize, Serialize};

use crate::replica::DataLenderStatus;
use crate::scrub::TaskProgress;
use crate::volume::Volume;

/// Status of an open volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Release of the process that has the volume open.
    pub version: String,
    /// Id of that process.
    pub pid: u32,
    /// Seconds since the volume was opened.
    pub uptime_s: u64,
    /// Directory of the volume.
    pub volume: PathBuf,
    /// Id of the volume, in hexadecimal.
    pub id: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Result of recovery at the opening.
    pub recovered: RecoveredReport,
    /// Writes that are in memory and not in the image.
    pub stages: StagesReport,
    /// Status of the journal.
    pub journal: VolumeJournalReport,
    /// Every configured lender.
    pub lenders: Vec<LenderReport>,
    /// Counters since the opening, recovery included.
    pub counters: BTreeMap<String, u64>,
    /// Why the last stage was not applied; `None` again once one is.
    pub failure: Option<String>,
    /// Front end that serves the volume.
    pub front: Option<VolumeFrontend>,
    /// Lender that keeps a copy on its disk, if there is one.
    #[serde(default)]
    pub data_lender: Option<DataLenderStatus>,
    /// Progress of a restore from such a copy, if one is under way.
    #[serde(default)]
    pub restoring: Option<TaskProgress>,
}

/// Front end of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFrontend {
    /// `nbd` or `device`.
    pub kind: String,
    /// Number of present connections, if the front end has connections.
    pub connections: Option<u64>,
    /// Counters of the front end.
    pub counters: BTreeMap<String, u64>,
}

/// Result of recovery at the opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredReport {
    /// Number of records applied to the image.
    pub records: u64,
    /// Number of the journal's records that came from lenders.
    pub records_from_members: u64,
    /// Number of blocks that recovery could not verify and accepted as found.
    pub unverified_blocks: u64,
    /// Duration of the journal's recovery in milliseconds.
    pub journal_ms: u64,
}

/// Stages and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagesReport {
    /// Bytes of journal in the open stage.
    pub open_bytes: u64,
    /// Number of closed stages that wait for the image.
    pub closed: u64,
    /// Bytes of journal in the closed stages.
    pub closed_bytes: u64,
    /// Number of blocks in all stages.
    pub blocks: u64,
    /// Bytes of memory of all stages.
    pub memory_bytes: u64,
    /// Highest value of `memory_bytes` so far.
    pub memory_bytes_max: u64,
}

/// Positions of the journal, in bytes from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeJournalReport {
    /// The image has every record below this position.
    pub head: u64,
    /// The local disk has every record below this position.
    pub stable: u64,
    /// Every record below this position meets the commit rule or is on the local disk.
    pub acked: u64,
    /// Position of the next record.
    pub tail: u64,
    /// Capacity of the log file in bytes.
    pub capacity: u64,
    /// Epoch of this writer.
    pub epoch: u32,
    /// Version of the durable view.
    pub view: u64,
    /// Number of copies that members hold, and of their failure domains.
    #[serde(default)]
    pub copies: String,
    /// Why writes wait for the local disk, if they do.
    pub blocked: Option<String>,
    /// Number of records appended in this epoch.
    pub records: u64,
    /// Number of syncs of the log file in this epoch.
    pub syncs: u64,
    /// Number of appends that waited because the window was full.
    pub window_stalls: u64,
    /// Failure of the local disk, if it failed.
    pub disk_error: Option<String>,
    /// Error with which the operating system at present refuses to write the journal. The write is retried.
    pub disk_refused: Option<String>,
}

/// A lender, as the journal sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LenderReport {
    /// Address of the lender.
    pub address: String,
    /// Power domain of the lender; empty until it has been reached.
    pub domain: String,
    /// `down`, `connecting`, `binding`, `sealing` (while it is being fenced) or `ready`.
    pub link: String,
    /// `spare`, `makes no progress`, `joining`, `catching up` or `member`; or `the memory of` the address
    /// under which it counts.
    pub role: String,
    /// Whether the lender is in the durable view, so that recovery would ask it.
    pub member: bool,
    /// The lender's memory has every record below this position.
    pub held: u64,
    /// Why the lender does not count; `None` if it does.
    #[serde(default)]
    pub reason: Option<String>,
}

impl VolumeReport {
    /// Status of `volume`. Allocates, so not for the write path.
    pub fn of(volume: &Volume, front: Option<VolumeFrontend>) -> VolumeReport {
        let status = volume.status();
        let recovered = volume.recovered();
        let stages = &status.disk.stages;
        let counters = status.disk.statistics.named();
        VolumeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: volume.uptime().as_secs(),
            volume: volume.paths().root().to_path_buf(),
            id: status.disk.superblock.volume.to_string(),
            bytes: status.disk.superblock.bytes,
            recovered: RecoveredReport {
                records: recovered.disk.records,
                records_from_members: recovered.journal.records_from_members,
                unverified_blocks: recovered.disk.unverified,
                journal_ms: milliseconds(recovered.journal.took),
            },
            stages: StagesReport {
                open_bytes: stages.open_bytes,
                closed: stages.closed as u64,
                closed_bytes: stages.closed_bytes,
                blocks: stages.blocks,
                memory_bytes: stages.memory_bytes,
                memory_bytes_max: stages.memory_bytes_max,
            },
            lenders: lenders(&status.journal),
            journal: journal(&status.journal),
            counters: counters
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            failure: status.disk.failure.map(|failure| failure.to_string()),
            front,
            data_lender: status.data_lender,
            restoring: status.restoring.map(|(done, total)| TaskProgress {
                done: done * BLOCK_BYTES,
                total: total * BLOCK_BYTES,
            }),
        }
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn journal(status: &JournalStatus) -> VolumeJournalReport {
    let log = &status.log;
    VolumeJournalReport {
        head: log.head.0,
        stable: log.stable.0,
        acked: log.acked.0,
        tail: log.tail.0,
        capacity: log.capacity,
        epoch: status.writer.epoch.0,
        view: status.writer.version,
        copies: status.writer.copies.to_string(),
        // Without configured lenders this is the expected state.
        blocked: (status.writer.blocked)
            .filter(|_| !status.writer.lenders.is_empty())
            .map(|blocked| blocked.to_string()),
        records: status.records,
        syncs: status.syncs,
        window_stalls: status.window_stalls,
        disk_error: status.disk_error.map(|error| error.to_string()),
        disk_refused: status.disk_refused.map(|error| error.to_string()),
    }
}

fn role(lender: &JournalLenderStatus) -> String {
    let role = match lender.role {
        LenderRole::Spare if lender.stalled => "makes no progress",
        LenderRole::Spare => "spare",
        LenderRole::Joining => "joining",
        LenderRole::CatchingUp(_) => "catching up",
        LenderRole::Member => "member",
    };
    match &lender.alias_of {
        Some(other) => format!("the memory of {other}"),
        None => role.to_owned(),
    }
}

fn lenders(status: &JournalStatus) -> Vec<LenderReport> {
    let lenders = status.writer.lenders.iter().zip(&status.reasons);
    lenders
        .map(|(lender, reason)| LenderReport {
            address: lender.address.clone(),
            domain: lender.domain.clone(),
            link: match lender.link {
                LinkPhase::Down(_) => "down",
                LinkPhase::Connecting => "connecting",
                LinkPhase::Binding => "binding",
                LinkPhase::Fencing => "sealing",
                LinkPhase::Ready => "ready",
            }
            .to_owned(),
            role: role(lender),
            member: lender.member,
            held: lender.held.0,
            reason: reason.as_ref().map(ToString::to_string),
        })
        .collect()
}
