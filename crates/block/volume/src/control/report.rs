//! A volume's status as it travels: JSON of these structures.

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

/// How an open volume stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// The release that has it open.
    pub version: String,
    /// The process that has it open.
    pub pid: u32,
    /// Seconds since it was opened.
    pub uptime_s: u64,
    /// Its directory.
    pub volume: PathBuf,
    /// Its id, in hexadecimal.
    pub id: String,
    /// Its size.
    pub bytes: u64,
    /// What opening it found.
    pub recovered: RecoveredReport,
    /// What is in memory and not in the image.
    pub stages: StagesReport,
    /// Its journal.
    pub journal: VolumeJournalReport,
    /// Every configured lender.
    pub lenders: Vec<LenderReport>,
    /// What happened since the opening, recovery included.
    pub counters: BTreeMap<String, u64>,
    /// Why the last stage did not get into the image; gone once one did.
    pub failure: Option<String>,
    /// What stands between the volume and its users.
    pub front: Option<VolumeFrontend>,
    /// The lender that keeps a copy on its disk, if there is one.
    #[serde(default)]
    pub data_lender: Option<DataLenderStatus>,
    /// How far the restoring from such a copy is, if it is under way.
    #[serde(default)]
    pub restoring: Option<TaskProgress>,
}

/// What stands between a volume and its users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFrontend {
    /// `nbd` or `device`.
    pub kind: String,
    /// Connections now, where there is such a thing.
    pub connections: Option<u64>,
    /// What it has done.
    pub counters: BTreeMap<String, u64>,
}

/// What opening found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredReport {
    /// Records applied to the image.
    pub records: u64,
    /// Of the journal's, records that came from lenders.
    pub records_from_members: u64,
    /// Blocks that recovery could not check, taken as found.
    pub unverified_blocks: u64,
    /// How long the journal's recovery took.
    pub journal_ms: u64,
}

/// Stages and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagesReport {
    /// Bytes of journal in the open stage.
    pub open_bytes: u64,
    /// Closed stages that wait for the image.
    pub closed: u64,
    /// Bytes of journal in them.
    pub closed_bytes: u64,
    /// Blocks in all of them.
    pub blocks: u64,
    /// Bytes of memory that they take.
    pub memory_bytes: u64,
    /// The most that it has been.
    pub memory_bytes_max: u64,
}

/// The journal's positions, in bytes from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeJournalReport {
    /// Everything below is in the image.
    pub head: u64,
    /// Everything below is on the local disk.
    pub stable: u64,
    /// Everything below is held as the commit rule demands, or on the local disk.
    pub acked: u64,
    /// Where the next record goes.
    pub tail: u64,
    /// Bytes that the log file can hold.
    pub capacity: u64,
    /// The reign.
    pub epoch: u32,
    /// The durable view's number.
    pub view: u64,
    /// How many copies members hold, and in how many failure domains.
    #[serde(default)]
    pub copies: String,
    /// Why writes wait for the local disk, if they do.
    pub blocked: Option<String>,
    /// Records appended in this reign.
    pub records: u64,
    /// Syncs of the log file in this reign.
    pub syncs: u64,
    /// How often an append waited because the window was full.
    pub window_stalls: u64,
    /// The local disk's failure, if it failed.
    pub disk_error: Option<String>,
    /// The error with which the system refuses to write the journal at the moment. It is tried again.
    pub disk_refused: Option<String>,
}

/// A lender, as the journal sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LenderReport {
    /// Where it is.
    pub address: String,
    /// What feeds it with power; empty until it has been reached.
    pub domain: String,
    /// `down`, `connecting`, `binding`, `sealing` or `ready`.
    pub link: String,
    /// `spare`, `joining`, `catching up` or `member`; or `the memory of`, and the address that it counts
    /// under.
    pub role: String,
    /// In the durable view: recovery would ask it.
    pub member: bool,
    /// Everything below is in its memory.
    pub held: u64,
    /// Why it does not count; `None`: it does.
    #[serde(default)]
    pub reason: Option<String>,
}

impl VolumeReport {
    /// How `volume` stands. Allocates; not for the way of a write.
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
        // Without lenders nobody expects another.
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
