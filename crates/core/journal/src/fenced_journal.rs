//! What a dead node of a shared region left at its members, read by the server.
//!
//! The server has written down that the node is being fenced: from then on it takes nothing more from it.
//! Reading seals the members, so that they do not either. Nothing is stored here, so it may be cut off and
//! begun anew at any point; the lenders give their windows back when they are told
//! ([`FencedJournal::forget`]), after the server has made durable that the node is gone. Both is for journals
//! that nobody begins anew: a node has one of its own each time it joins. Why so many members suffice:
//! crates/core/proto/src/journal/writer/server_ack.rs.

use std::time::Instant;

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::{
    ForgetNotice, FrameBody, NodeReadError, PeerAnswer, Recovery, RecoveryError, View, node_records,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::RecordKind;
use netram_proto::time::Time;
use netram_proto::wire::{ChainPoint as Chain, Frame};
use netram_transport::{Link, NetAddress, connect};

use crate::config::JournalConfig;
use crate::open::{members, span};
use crate::reason::{RecoveryFailure, UnreachableLenders};
use crate::seal::DataKey;

/// What the server knows of a node's journal.
pub struct FencedJournal {
    /// The newest view that the server has.
    pub view: View,
    /// Where the records end that the server has.
    pub server_end: Chain,
    /// The key that seals the journal's records.
    pub key: DataKey,
}

/// A record that the server lacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedRecord {
    /// Where it begins.
    pub lsn: Lsn,
    /// Where it ends, and its CRC.
    pub end: Chain,
    /// The reign that wrote it.
    pub epoch: Epoch,
    /// Whose it is.
    pub kind: RecordKind,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// Everything that the server lacked.
#[derive(Clone, Debug)]
pub struct FencedRecords {
    /// The records, in the node's order.
    pub records: Vec<FencedRecord>,
    /// Where they end: nothing beyond it was ever acknowledged, nor ever will be.
    pub end: Chain,
    /// The members, and how each answered.
    pub members: Vec<(String, PeerAnswer)>,
    /// Acknowledged records may be missing, and the caller accepted that.
    pub loss_accepted: Option<String>,
}

/// Why a dead node's journal could not be read to its end. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum FencedJournalError {
    /// Too few members answered, or somebody else has sealed them later.
    #[error("the node's journal: {0}{1}")]
    Refused(RecoveryError, UnreachableLenders),
    /// What they gave is damaged where records may have been acknowledged.
    #[error("{0}")]
    Damaged(NodeReadError),
}

impl FencedJournal {
    /// Seals the members and reads what the server lacks, with the proof that it is all; waits
    /// `config.patience` for those that must answer. Of `config` only `lenders` (a member may have moved to
    /// one of these addresses), `security`, `seal`, `patience`, `grace` and `accept_loss` count.
    pub fn read(&self, config: &JournalConfig) -> Result<FencedRecords, FencedJournalError> {
        let (grace, patience) = (span(config.grace), span(config.patience));
        let spares: Vec<String> = config.lenders.iter().map(ToString::to_string).collect();
        let mut recovery = Recovery::of_node(&self.view, self.server_end.lsn, Time(0), grace, patience)
            .with_addresses(spares.iter().map(String::as_str));
        let mut loss_accepted = match members::ask(&mut recovery, config) {
            Ok(()) => None,
            Err(RecoveryFailure {
                refusal,
                unreachable: away,
            }) => match refusal {
                RecoveryError::Missing { .. } if config.accept_loss => Some(refusal.to_string()),
                refusal => return Err(FencedJournalError::Refused(refusal, away)),
            },
        };
        let sealer = self.key.sealer();
        let (mut plain, mut unsealed) = (Vec::new(), Vec::new());
        let mut records = Vec::new();
        let (end, all) = node_records(
            &recovery.windows(),
            self.server_end,
            self.view.epoch,
            self.view.journal.into(),
            FaultSwitch::NONE,
            &mut |record| {
                // Without its seal a record could be made up by any lender that has seen the one before.
                let trusted = record.header.sealed || !config.seal;
                trusted && sealer.open(&record.header, record.bytes, &mut plain).is_some()
            },
            &mut |record| {
                let header = &record.header;
                let payload = sealer.open(header, record.bytes, &mut unsealed);
                records.push(FencedRecord {
                    lsn: header.lsn,
                    end: header.next_point(),
                    epoch: header.epoch,
                    kind: header.kind,
                    payload: payload.expect("it was opened a moment ago").to_vec(),
                });
            },
        );
        if let Err(error) = all {
            if !config.accept_loss {
                return Err(FencedJournalError::Damaged(error));
            }
            let before = loss_accepted.map_or_else(String::new, |loss| loss + "; ");
            loss_accepted = Some(format!("{before}{error}"));
        }
        let members = recovery.answers();
        Ok(FencedRecords {
            records,
            end,
            members: members
                .map(|(address, answer)| (address.into(), answer))
                .collect(),
            loss_accepted,
        })
    }

    /// Tells the members, and `others` that may have a window, that they may drop what they hold: that the
    /// node is gone is durable at the server. Returns those that could not be told within `config.patience`
    /// together; their memory is wasted until they hear it, or are restarted.
    pub fn forget(&self, others: &[String], config: &JournalConfig) -> Vec<String> {
        let mut forget = ForgetNotice::new(&self.view, others);
        let deadline = Instant::now() + config.patience;
        // What is no address is nobody's.
        let addresses = forget.addresses().map(|address| address.parse().ok());
        let addresses: Vec<Option<NetAddress>> = addresses.collect();
        loop {
            let mut untold = Vec::new();
            // In turns: one that cannot be reached must not keep the others' time.
            for (index, address) in addresses.iter().enumerate() {
                let Some(address) = address.as_ref().filter(|_| !forget.is_done(index)) else {
                    continue;
                };
                if let Ok(mut link) = connect(address, &config.security, members::CONNECT_TIMEOUT) {
                    tell(&mut forget, index, &mut link);
                }
                if !forget.is_done(index) {
                    untold.push(address.to_string());
                }
            }
            if untold.is_empty() || Instant::now() >= deadline {
                return untold;
            }
            std::thread::sleep(members::CONNECT_PAUSE);
        }
    }
}

/// Talks to one lender until it is done, the link breaks or it is silent.
fn tell(forget: &mut ForgetNotice, index: usize, link: &mut Link) {
    let deadline = Instant::now() + members::CONNECT_TIMEOUT;
    forget.on_connected(index);
    while !forget.is_done(index) && Instant::now() < deadline {
        if let Some(outgoing) = forget.next_frame(index) {
            let FrameBody::Inline(body, length) = outgoing.body else {
                unreachable!("there is no ring here")
            };
            let sent = link.send(&[&outgoing.header.encode(length), &body[..length]]);
            if sent.is_err() {
                return;
            }
        }
        match link.receive() {
            Ok(Some(packet)) => match Frame::parse(packet) {
                Ok(frame) => forget.on_frame(index, &frame),
                Err(_) => return,
            },
            Ok(None) => std::thread::sleep(members::PAUSE),
            Err(_) => return,
        }
    }
}
