//! The journal of a dead node of a shared region, read by the server from the node's members.
//!
//! The server first durably records that the node is being fenced, and from then on accepts nothing more from
//! it. Reading fences the members, so that they do not either. Nothing is stored here, so reading can be
//! interrupted and repeated at any point. After the server has durably recorded that the node is gone,
//! [`FencedJournal::forget`] tells the lenders to free their windows. Both need a journal that is never
//! reopened: a node has a new one each time it joins. crates/core/proto/src/journal/writer/server_ack.rs
//! explains why the members suffice.

use std::time::Instant;

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::{
    ForgetNotice, FrameBody, NodeReadError, PeerAnswer, Recovery, RecoveryError, View, node_records,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::RecordKind;
use netram_proto::time::Time;
use netram_proto::wire::{ChainPoint as Chain, Frame};
use netram_transport::{Link, NetAddress, OwnerKey, connect};

use crate::config::JournalConfig;
use crate::open::{members, span};
use crate::owner::JournalOwner;
use crate::reason::{RecoveryFailure, UnreachableLenders};
use crate::seal::DataKey;

/// The server's knowledge of a node's journal.
pub struct FencedJournal {
    /// The newest view that the server has.
    pub view: View,
    /// Where the records that the server has end.
    pub server_end: Chain,
    /// The key that seals the journal's records, or the seed of its owner, if it is only to be forgotten.
    pub key: DataKey,
}

/// A record that the server lacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedRecord {
    /// LSN at which the record begins.
    pub lsn: Lsn,
    /// Where the record ends, and its CRC.
    pub end: Chain,
    /// The epoch that wrote the record.
    pub epoch: Epoch,
    /// The record's kind, which says whose it is.
    pub kind: RecordKind,
    /// The decrypted payload.
    pub payload: Vec<u8>,
}

/// The records that the server lacked.
#[derive(Clone, Debug)]
pub struct FencedRecords {
    /// The records, in the order of the node's appends.
    pub records: Vec<FencedRecord>,
    /// Where they end: no record beyond it was or will ever be acknowledged.
    pub end: Chain,
    /// The members, and each one's answer.
    pub members: Vec<(String, PeerAnswer)>,
    /// The accepted loss: acknowledged records may be missing, as `accept_loss` allowed.
    pub loss_accepted: Option<String>,
}

/// Why a dead node's journal could not be read completely. The attempt lost nothing.
#[derive(Debug, thiserror::Error)]
pub enum FencedJournalError {
    /// Too few members answered, or a later reader has fenced them.
    #[error("the node's journal: {0}{1}")]
    Refused(RecoveryError, UnreachableLenders),
    /// The members' bytes are damaged where records may have been acknowledged.
    #[error("{0}")]
    Damaged(NodeReadError),
}

impl FencedJournal {
    /// Fences the members and reads the records that the server lacks, with the proof that they are complete.
    /// Waits up to `config.patience` for members that must answer. Of `config` only `lenders` (new addresses
    /// of members), `security`, `seal`, `patience`, `grace` and `accept_loss` are used.
    ///
    /// # Errors
    /// `Refused` if too few members answered or a later reader fenced them, `Damaged` if their bytes are.
    pub fn read(&self, config: &JournalConfig) -> Result<FencedRecords, FencedJournalError> {
        let (grace, patience) = (span(config.grace), span(config.patience));
        let spares: Vec<String> = config.lenders.iter().map(ToString::to_string).collect();
        let mut recovery = Recovery::of_node(&self.view, self.server_end.lsn, Time(0), grace, patience)
            .with_addresses(spares.iter().map(String::as_str));
        let mut loss_accepted = match members::ask(&mut recovery, &self.owner(), config) {
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
                // Any lender that has seen the record before could forge an unsealed one.
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

    /// The journal's owner: the server, which has the node's key.
    fn owner(&self) -> JournalOwner {
        let journal = self.view.journal;
        let seed = OwnerKey::from_seed(self.key.as_bytes());
        JournalOwner::of(journal, &self.key)
            .or_else(|_| JournalOwner::with(journal, seed))
            .unwrap_or(JournalOwner::none(journal))
    }

    /// Tells the members, and `others` that may have a window, that they may free it, since the server has
    /// durably recorded that the node is gone. Returns those that could not be told within `config.patience`
    /// in all. They keep the memory until they are told or restarted.
    pub fn forget(&self, others: &[String], config: &JournalConfig) -> Vec<String> {
        let (mut forget, owner) = (ForgetNotice::new(&self.view, others), self.owner());
        let deadline = Instant::now() + config.patience;
        // An invalid address belongs to no lender.
        let addresses = forget.addresses().map(|address| address.parse().ok());
        let addresses: Vec<Option<NetAddress>> = addresses.collect();
        loop {
            let mut untold = Vec::new();
            // One attempt each in turns, so that an unreachable lender does not take the others' time.
            for (index, address) in addresses.iter().enumerate() {
                let Some(address) = address.as_ref().filter(|_| !forget.is_done(index)) else {
                    continue;
                };
                if let Ok(mut link) = connect(address, &config.security, members::CONNECT_TIMEOUT) {
                    tell(&mut forget, &owner, index, &mut link);
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

/// Exchanges frames with one lender until it is done, the link breaks, or it stays silent.
fn tell(forget: &mut ForgetNotice, owner: &JournalOwner, index: usize, link: &mut Link) {
    let deadline = Instant::now() + members::CONNECT_TIMEOUT;
    if owner.introduce(link).is_err() {
        return;
    }
    forget.on_connected(index);
    while !forget.is_done(index) && Instant::now() < deadline {
        if let Some(outgoing) = forget.next_frame(index) {
            let FrameBody::Inline(body, length) = outgoing.body else {
                unreachable!("a forget notice sends no log bytes")
            };
            let sent = owner.queue(link, &outgoing.header, &body[..length]);
            if sent.and_then(|()| link.flush()).is_err() {
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
