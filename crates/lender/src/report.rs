//! A lender's status, as it travels in a `StatusReport` frame: JSON of these structures.

use std::collections::BTreeMap;

use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::limit::REPORT_MARGIN_BYTES;

/// A lender's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The lender's name.
    pub name: String,
    /// The release it runs.
    pub version: String,
    /// This life of its memory, in hexadecimal.
    pub incarnation: String,
    /// What feeds its machine with power.
    pub domain: String,
    /// Seconds since its process started.
    pub uptime_s: u64,
    /// Its process.
    pub pid: u32,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Where it listens for data sessions alone; empty: they come in where all others do.
    #[serde(default)]
    pub data_addresses: Vec<String>,
    /// The multicast group that it serves.
    #[serde(default)]
    pub multicast: Option<String>,
    /// Whether links are encrypted.
    pub secure: bool,
    /// Whether it is about to stop lending.
    pub stopping: bool,
    /// What it lends.
    pub memory: MemoryReport,
    /// How hard its shards wait: `spin`, `yield:N` or `block`.
    pub wait: String,
    /// Threads that serve journals.
    pub shards: usize,
    /// Connections now.
    pub connections: usize,
    /// What happened since its process started.
    pub counters: CounterReport,
    /// The journals it holds or has been sealed for, by id.
    pub journals: Vec<JournalReport>,
    /// Journals that did not fit into this report.
    pub journals_left_out: usize,
    /// Journals that the lender must remember: neither closed nor over.
    #[serde(default)]
    pub journals_used: u32,
    /// The most that it can remember.
    #[serde(default)]
    pub journals_max: u32,
    /// Deposits: pages of other machines' arenas.
    #[serde(default)]
    pub deposits: Vec<DepositReport>,
    /// Deposits that did not fit into this report.
    #[serde(default)]
    pub deposits_left_out: usize,
    /// Copies of volumes on this machine's disk.
    #[serde(default)]
    pub replicas: Vec<ReplicaReport>,
    /// Copies that did not fit into this report.
    #[serde(default)]
    pub replicas_left_out: usize,
    /// What all copies take; `None`: this lender keeps none.
    #[serde(default)]
    pub copies: Option<CopiesReport>,
}

/// What a lender lends, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Reserved for lending.
    pub reserved: u64,
    /// Of this, in windows and deposits.
    pub used: u64,
    /// Of this, in neither.
    pub free: u64,
    /// The most that one journal may have.
    pub quota: u64,
    /// Of what is used, in deposits.
    #[serde(default)]
    pub deposits: u64,
    /// The most that all deposits may have.
    #[serde(default)]
    pub deposits_max: u64,
    /// What they may have now; less while the machine is short of memory. `None`: the lender does not look.
    #[serde(default)]
    pub deposits_limit: Option<u64>,
    /// Of what is reserved, given back to the machine for now.
    #[serde(default)]
    pub given_back: u64,
}

impl MemoryReport {
    /// Whether deposits get less than they may have, for the machine is short of memory.
    pub fn is_short(&self) -> bool {
        self.deposits_limit.is_some_and(|limit| limit < self.deposits_max)
    }
}

/// What happened since the lender's process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    /// Frames taken from bound sessions.
    pub frames: u64,
    /// Of these, appends.
    pub appends: u64,
    /// Bytes in those appends.
    pub bytes: u64,
    /// Acknowledgements sent; one may answer many appends.
    pub acks: u64,
    /// Frames of pages put into deposits.
    #[serde(default)]
    pub deposit_puts: u64,
    /// Frames that asked deposits for pages, or for blocks of them.
    #[serde(default)]
    pub deposit_gets: u64,
    /// Of the appends, those that were multicast.
    #[serde(default)]
    pub datagrams: u64,
    /// Holes in what was multicast that writers were told of.
    #[serde(default)]
    pub datagrams_missing: u64,
    /// Datagrams that were dropped, by kind: strange, doubled, forged.
    #[serde(default)]
    pub datagrams_dropped: BTreeMap<String, u64>,
    /// Refusals sent, by kind.
    pub refusals: BTreeMap<String, u64>,
    /// Handshakes that failed, by kind.
    pub handshakes_failed: BTreeMap<String, u64>,
}

/// One journal at a lender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalReport {
    /// The journal's id, in hexadecimal.
    pub id: String,
    /// The writer that sealed it last, in hexadecimal.
    pub writer: String,
    /// That writer's epoch; zero: nobody has sealed it.
    pub epoch: u32,
    /// Bytes of its window; zero: it has none.
    pub window_bytes: u64,
    /// The window's first byte.
    pub trim: u64,
    /// Everything from `trim` to here is held.
    pub held: u64,
    /// Bytes held.
    pub used_bytes: u64,
    /// The number of the join that made the window.
    pub generation: u32,
    /// Milliseconds since the last append to this process, if there was one.
    pub last_append_age_ms: Option<u64>,
    /// Seconds since a client of the journal was connected; `None`: not known.
    #[serde(default)]
    pub last_heard_age_s: Option<u64>,
    /// Sessions bound to the journal.
    pub sessions: u32,
}

/// One deposit: pages of an arena.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepositReport {
    /// The deposit's id, in hexadecimal.
    pub id: String,
    /// Slots that it has, a page each.
    pub slots: u32,
    /// Of these, slots in which there is a page, or has been.
    pub held: u32,
    /// Bytes of memory that it takes.
    pub bytes: u64,
    /// Whether its owner is connected.
    pub connected: bool,
    /// The number of its last session.
    pub session: u32,
    /// Slots that its owner has been asked for, and has not given back.
    #[serde(default)]
    pub asked_back: u32,
}

/// One copy of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// The volume's id, in hexadecimal.
    pub volume: String,
    /// Where the copy is on the lender's machine.
    pub path: String,
    /// `following`, `inconsistent`, `taken over`, `in use` by another process, or `failed`.
    pub state: String,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// The volume's size.
    pub bytes: u64,
    /// The newest reign that it knows of; `None`: nobody has it open.
    #[serde(default)]
    pub epoch: Option<u32>,
    /// Its log is durable up to here; `None`: nobody has it open.
    #[serde(default)]
    pub flushed: Option<u64>,
    /// Its image has everything up to here; `None`: its files do not say.
    #[serde(default)]
    pub applied: Option<u64>,
    /// Whether its client is connected.
    pub connected: bool,
    /// Milliseconds since its client was heard last, by this process.
    pub last_contact_age_ms: Option<u64>,
    /// Bytes that it takes once it is written in full: what the quota counts.
    #[serde(default)]
    pub promised_bytes: u64,
    /// Bytes of the disk that it takes now.
    #[serde(default)]
    pub taken_bytes: u64,
    /// Its own scrub.
    #[serde(default)]
    pub scrub: ScrubReport,
}

/// How a copy's own scrub stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Seconds since the last whole one ended.
    pub ended_age_s: Option<u64>,
    /// How far the one under way is.
    pub done_bytes: Option<u64>,
    /// Damaged blocks that the last one found, or the one under way so far.
    pub found_blocks: u64,
    /// Of these, blocks that the client has sent again.
    pub mended_blocks: u64,
}

/// What all copies take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesReport {
    /// How many there are.
    pub copies: u64,
    /// What they may take once they are written in full; `None`: what the disk has.
    pub quota: Option<u64>,
    /// What they take once they are written in full.
    pub promised_bytes: u64,
    /// What they take now.
    pub taken_bytes: u64,
}

/// Keeps of a list what fits into `room` bytes of JSON. Returns how many do not.
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
    /// The report as a frame's body. Journals and copies that do not fit are counted instead of listed.
    pub fn to_frame_body(mut self) -> Vec<u8> {
        let mut room = FRAME_BODY_BYTES_MAX - REPORT_MARGIN_BYTES;
        self.journals_left_out += keep_what_fits(&mut self.journals, &mut room);
        self.deposits_left_out += keep_what_fits(&mut self.deposits, &mut room);
        self.replicas_left_out += keep_what_fits(&mut self.replicas, &mut room);
        let mut body = encode(&self);
        if body.len() > FRAME_BODY_BYTES_MAX {
            // Only an absurd number of addresses gets here; the numbers still matter most.
            self.addresses.clear();
            self.data_addresses.clear();
            body = encode(&self);
        }
        assert!(body.len() <= FRAME_BODY_BYTES_MAX);
        body
    }

    /// Reads a report frame's body.
    pub fn from_frame_body(body: &[u8]) -> Result<StatusReport, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

fn encode(report: &StatusReport) -> Vec<u8> {
    match serde_json::to_vec(report) {
        Ok(json) => json,
        // Maps with string keys and plain numbers: there is nothing that JSON cannot say.
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
            writer: "f".repeat(16),
            epoch: u32::MAX,
            window_bytes: u64::MAX,
            trim: u64::MAX,
            held: u64::MAX,
            used_bytes: u64::MAX,
            generation: u32::MAX,
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
