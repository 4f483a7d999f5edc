//! A lender's status as sent in a `StatusReport` frame: these structures as JSON.

use std::collections::BTreeMap;

use netram_clients::ClientUsage;
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::ClientResource;
use serde::{Deserialize, Serialize};

use crate::limit::REPORT_MARGIN_BYTES;
use crate::power::PowerReport;

/// A lender's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The lender's name.
    pub name: String,
    /// The release that the lender runs.
    pub version: String,
    /// The incarnation of the memory, in hexadecimal.
    pub incarnation: String,
    /// The power domain of the lender's machine.
    pub domain: String,
    /// Seconds since the lender's process started.
    pub uptime_s: u64,
    /// The lender's process id.
    pub pid: u32,
    /// The addresses that the lender listens at.
    pub addresses: Vec<String>,
    /// The addresses reserved for data sessions; if empty, data sessions use the others.
    #[serde(default)]
    pub data_addresses: Vec<String>,
    /// The multicast group that the lender serves.
    #[serde(default)]
    pub multicast: Option<String>,
    /// Whether links are encrypted.
    pub secure: bool,
    /// Whether the lender is stopping.
    pub stopping: bool,
    /// Whether it is drained: it takes no new windows and pages, and asks clients to move theirs away.
    #[serde(default)]
    pub draining: bool,
    /// Whether it is drained and holds nothing that a client may still need.
    #[serde(default)]
    pub safe_to_stop: bool,
    /// The windows and pages that clients may still need.
    #[serde(default)]
    pub left: LeftReport,
    /// The source of its machine's power; `None` if it watches no UPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerReport>,
    /// The lent memory.
    pub memory: MemoryReport,
    /// Wait policy of the shards: `spin`, `yield:N` or `block`.
    pub wait: String,
    /// Number of threads that serve journals.
    pub shards: usize,
    /// Number of current connections.
    pub connections: usize,
    /// Counters since the lender's process started.
    pub counters: CounterReport,
    /// The journals that the lender holds or was fenced for, by id.
    pub journals: Vec<JournalReport>,
    /// Number of journals that did not fit in this report.
    pub journals_left_out: usize,
    /// Number of journals that the lender must remember, since they are neither closed nor over.
    #[serde(default)]
    pub journals_used: u32,
    /// Maximum number of journals that it can remember.
    #[serde(default)]
    pub journals_max: u32,
    /// Named clients, and what each has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientReport>,
    /// Number of clients that did not fit in this report.
    #[serde(default)]
    pub clients_left_out: usize,
    /// Deposits: pages of other machines' far-memory arenas.
    #[serde(default)]
    pub deposits: Vec<DepositReport>,
    /// Number of deposits that did not fit in this report.
    #[serde(default)]
    pub deposits_left_out: usize,
    /// Replicas of volumes on this machine's disk.
    #[serde(default)]
    pub replicas: Vec<ReplicaReport>,
    /// Number of replicas that did not fit in this report.
    #[serde(default)]
    pub replicas_left_out: usize,
    /// Disk space of all replicas; `None` if this lender keeps none.
    #[serde(default)]
    pub copies: Option<CopiesReport>,
}

/// The windows and pages in a lender's memory that clients may still need. Windows in files do not
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftReport {
    /// Number of windows, with bytes or without: a journal that was not closed is not opened without them.
    pub windows: usize,
    /// Bytes in these windows.
    pub bytes: u64,
    /// Pages of deposits: all slots of a connected owner, and those with a page of another.
    pub pages: u64,
}

impl LeftReport {
    pub(crate) fn of(journals: &[JournalReport], deposits: &[DepositReport]) -> LeftReport {
        let in_memory = |journal: &&JournalReport| journal.window_bytes > 0 && !journal.on_disk;
        let windows = || journals.iter().filter(in_memory);
        LeftReport {
            windows: windows().count(),
            bytes: windows().map(|journal| journal.used_bytes).sum(),
            pages: deposits.iter().map(DepositReport::left).sum(),
        }
    }
}

/// The memory of a lender, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes reserved for lending.
    pub reserved: u64,
    /// Bytes of `reserved` in windows and deposits.
    pub used: u64,
    /// Bytes of `reserved` in neither.
    pub free: u64,
    /// Maximum bytes of one journal.
    pub quota: u64,
    /// Bytes of `used` in deposits.
    #[serde(default)]
    pub deposits: u64,
    /// Maximum bytes of all deposits.
    #[serde(default)]
    pub deposits_max: u64,
    /// Current maximum bytes of all deposits, lower while the machine is short of memory; `None` if memory is
    /// not checked.
    #[serde(default)]
    pub deposits_limit: Option<u64>,
    /// Bytes of `reserved` that are currently released to the machine.
    #[serde(default)]
    pub given_back: u64,
    /// Bytes that may be lent in all now: less than `reserved` while the machine is short of memory, or by
    /// the operator's order. `None` from an earlier release.
    #[serde(default)]
    pub offered: Option<u64>,
    /// Number of journals that are asked to take their windows elsewhere.
    #[serde(default)]
    pub windows_asked: usize,
    /// Bytes of `reserved` in huge pages at the start; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_bytes: Option<u64>,
}

impl MemoryReport {
    /// Whether less is offered than was set aside, mostly because the machine is short of memory.
    pub fn is_short(&self) -> bool {
        match self.offered {
            Some(offered) => offered < self.reserved,
            None => self.deposits_limit.is_some_and(|limit| limit < self.deposits_max),
        }
    }
}

/// Counters since the lender's process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Frames received from bound sessions.
    pub frames: u64,
    /// Appends among `frames`.
    pub appends: u64,
    /// Bytes of those appends.
    pub bytes: u64,
    /// Acknowledgements sent; one may answer many appends.
    pub acks: u64,
    /// Frames with pages for deposits.
    #[serde(default)]
    pub deposit_puts: u64,
    /// Frames that asked deposits for pages or blocks.
    #[serde(default)]
    pub deposit_gets: u64,
    /// Appends that arrived by multicast, included in `appends`.
    #[serde(default)]
    pub datagrams: u64,
    /// Gaps in multicast appends that were reported to writers.
    #[serde(default)]
    pub datagrams_missing: u64,
    /// Dropped datagrams by kind: strange, doubled, forged.
    #[serde(default)]
    pub datagrams_dropped: BTreeMap<String, u64>,
    /// Refusals sent, by kind.
    pub refusals: BTreeMap<String, u64>,
    /// Failed handshakes, by kind.
    pub handshakes_failed: BTreeMap<String, u64>,
}

/// A journal at a lender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalReport {
    /// The journal's id, in hexadecimal.
    pub id: String,
    /// The state that only the journal's owner may know; `None` in every report that is sent (rule 15).
    #[serde(skip)]
    pub state: Option<JournalStateReport>,
    /// Fields that readers of wire version 1 demand.
    #[serde(flatten, default)]
    pub earlier: EarlierFields,
    /// Name of the client that pays for the journal; empty without named clients.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// The name that the client has given it: its machine and directory. Only the lender's operator is told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Bytes of the window; zero if there is none.
    pub window_bytes: u64,
    /// Bytes held.
    pub used_bytes: u64,
    /// Whether the window was written to a disk, because the machine went off or the client was silent: it is
    /// read-only, and waits for recovery.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spilled: bool,
    /// Whether the window of a silent client is in a file of its own. If `window_bytes` is zero then, it is
    /// in no memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_disk: bool,
    /// Milliseconds since this process received the last append, if there was one.
    pub last_append_age_ms: Option<u64>,
    /// Seconds since a client of the journal was connected; `None` if unknown.
    #[serde(default)]
    pub last_heard_age_s: Option<u64>,
    /// Number of sessions bound to the journal.
    pub sessions: u32,
}

/// A named client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The client's name.
    pub name: String,
    /// Number of its connections.
    pub connections: AmountReport,
    /// Number of those that serve a journal, a deposit or a copy.
    pub sessions: AmountReport,
    /// Number of journals that it pays for.
    pub journals: AmountReport,
    /// Bytes of their windows.
    pub memory: AmountReport,
    /// Bytes of its pages.
    pub pages: AmountReport,
    /// Bytes of its copies of volumes.
    pub data: AmountReport,
}

/// An amount that a client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmountReport {
    /// The amount in use.
    pub used: u64,
    /// The amount that the client may have; `None` if only the lender's own limits count.
    pub limit: Option<u64>,
}

impl ClientReport {
    pub(crate) fn of(usage: &ClientUsage) -> ClientReport {
        let amount = |resource| {
            let (used, limit) = usage.of(resource);
            AmountReport {
                used,
                limit: (limit < u64::MAX).then_some(limit),
            }
        };
        ClientReport {
            name: usage.name.to_string(),
            connections: amount(ClientResource::Connections),
            sessions: amount(ClientResource::Sessions),
            journals: amount(ClientResource::Journals),
            memory: amount(ClientResource::Memory),
            pages: amount(ClientResource::Pages),
            data: amount(ClientResource::Data),
        }
    }
}

/// Fields of a journal that programs of wire version 1 do not read a report without. They are empty: only the
/// journal's owner may know them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EarlierFields {
    writer: String,
    epoch: u32,
    trim: u64,
    held: u64,
    generation: u32,
}

/// A journal's state at a lender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStateReport {
    /// The writer that fenced it last.
    pub writer: WriterId,
    /// The epoch of that writer; zero if the journal was never fenced.
    pub epoch: Epoch,
    /// LSN of the window's first byte.
    pub trim: Lsn,
    /// LSN up to which everything from `trim` on is held.
    pub held: Lsn,
    /// Number of the join that created the window.
    pub generation: u32,
}

/// A deposit: pages of a far-memory arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepositReport {
    /// The first 8 of the id's 32 hexadecimal digits. Whoever knows all of them may take the deposit over.
    pub id: String,
    /// Number of its slots, a page each.
    pub slots: u32,
    /// Number of slots that hold or have held a page.
    pub held: u32,
    /// Bytes of memory that it occupies.
    pub bytes: u64,
    /// Whether its owner is connected.
    pub connected: bool,
    /// Zero; readers of wire version 1 demand it.
    #[serde(default)]
    pub session: u32,
    /// Slots that the owner was asked for and has not given back.
    #[serde(default)]
    pub asked_back: u32,
}

impl DepositReport {
    /// Number of slots whose pages the owner may still need. A connected owner gives all slots back.
    pub fn left(&self) -> u64 {
        if self.connected {
            self.slots.into()
        } else {
            self.held.into()
        }
    }
}

/// A replica of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// The volume's id, in hexadecimal.
    pub volume: String,
    /// Path of the replica on the lender's machine.
    pub path: String,
    /// `following`, `inconsistent`, `taken over`, `in use` by another process, or `failed`.
    pub state: String,
    /// The error, if it failed.
    pub error: Option<String>,
    /// Bytes of the volume.
    pub bytes: u64,
    /// The newest epoch that it knows; `None` if no process has it open.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// LSN up to which its log is durable; `None` if no process has it open.
    #[serde(default)]
    pub flushed: Option<u64>,
    /// LSN up to which its image is complete; `None` if its files do not say.
    #[serde(default)]
    pub applied: Option<u64>,
    /// Whether its client is connected.
    pub connected: bool,
    /// Milliseconds since this process last received a frame of its client.
    pub last_contact_age_ms: Option<u64>,
    /// Bytes that it occupies once it is fully written, which the quota counts.
    #[serde(default)]
    pub promised_bytes: u64,
    /// Bytes of the disk that it occupies now.
    #[serde(default)]
    pub taken_bytes: u64,
    /// Progress of its scrub.
    #[serde(default)]
    pub scrub: ScrubReport,
}

/// Progress of a replica's scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Seconds since the last complete scrub ended.
    pub ended_age_s: Option<u64>,
    /// Bytes that the current scrub has checked.
    pub done_bytes: Option<u64>,
    /// Damaged blocks found by the last scrub, or by the current one so far.
    pub found_blocks: u64,
    /// Damaged blocks among these that the client has sent again.
    pub mended_blocks: u64,
}

/// Disk space of all replicas, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesReport {
    /// Number of replicas.
    pub copies: u64,
    /// Maximum bytes once all are fully written; `None` if only the disk limits them.
    pub quota: Option<u64>,
    /// Bytes that they occupy once fully written.
    pub promised_bytes: u64,
    /// Bytes that they occupy now.
    pub taken_bytes: u64,
    /// Bytes that the copies of each named client occupy once fully written.
    #[serde(skip)]
    pub by_client: BTreeMap<String, u64>,
}

/// Truncates a list to what fits in `room` bytes of JSON. Returns the number of removed items.
fn keep_what_fits<T: Serialize>(list: &mut Vec<T>, room: &mut usize) -> usize {
    let fits = list.iter().take_while(|item| {
        let bytes = serde_json::to_vec(item).map_or(usize::MAX, |json| json.len() + 1);
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(0);
        left.is_some()
    });
    let (kept, all) = (fits.count(), list.len());
    list.truncate(kept);
    all - kept
}

impl StatusReport {
    /// The report as a frame's body. Items of lists that do not fit are counted instead of listed.
    pub fn to_frame_body(mut self) -> Vec<u8> {
        let mut room = FRAME_BODY_BYTES_MAX - REPORT_MARGIN_BYTES;
        self.journals_left_out += keep_what_fits(&mut self.journals, &mut room);
        self.clients_left_out += keep_what_fits(&mut self.clients, &mut room);
        self.deposits_left_out += keep_what_fits(&mut self.deposits, &mut room);
        self.replicas_left_out += keep_what_fits(&mut self.replicas, &mut room);
        let mut body = encode(&self);
        if body.len() > FRAME_BODY_BYTES_MAX {
            // Reached only with an absurd number of addresses; the numbers are more important.
            self.addresses.clear();
            self.data_addresses.clear();
            body = encode(&self);
        }
        assert!(body.len() <= FRAME_BODY_BYTES_MAX);
        body
    }

    /// The report without what only the lender's operator is told.
    #[must_use]
    pub fn for_clients(mut self) -> StatusReport {
        self.journals.iter_mut().for_each(|journal| journal.name.clear());
        self
    }

    /// Parses a report frame's body.
    ///
    /// # Errors
    /// The body is not the JSON of a report.
    pub fn from_frame_body(body: &[u8]) -> Result<StatusReport, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

fn encode(report: &StatusReport) -> Vec<u8> {
    match serde_json::to_vec(report) {
        Ok(json) => json,
        // Maps with string keys and plain numbers always have a JSON form.
        Err(error) => unreachable!("a report is always JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_journals_fits_a_frame_and_comes_back() {
        let journal = |index: u64| JournalReport {
            id: format!("{index:032x}"),
            state: None,
            spilled: true,
            on_disk: true,
            earlier: EarlierFields::default(),
            client: "c".repeat(32),
            name: "n".repeat(64),
            window_bytes: u64::MAX,
            used_bytes: u64::MAX,
            last_append_age_ms: Some(u64::MAX),
            last_heard_age_s: Some(u64::MAX),
            sessions: u32::MAX,
        };
        for count in [0, 1, 100, 1024] {
            let report = StatusReport {
                name: "n".repeat(64),
                journals: (0..count).map(journal).collect(),
                ..StatusReport::default()
            };
            let body = report.to_frame_body();
            assert!(body.len() <= FRAME_BODY_BYTES_MAX);
            let back = StatusReport::from_frame_body(&body).unwrap();
            assert_eq!(back.journals.len() + back.journals_left_out, count as usize);
            assert!(count > 100 || back.journals_left_out == 0);
        }
    }
}
