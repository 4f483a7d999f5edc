//! An owner of a deposit that sends single frames.

use netram_far_machine::deposit::{FramePages, page_header};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::wire::{FrameHeader, FrameKind};
use netram_transport::{Link, NetAddress};

use crate::common::{ReceivedFrame, dial, receive, send};

pub(crate) const PAGE: usize = 4096;

/// One owner's session.
pub(crate) struct OwnerSession {
    pub(crate) link: Link,
    pub(crate) epoch: u32,
    pub(crate) life: u64,
    pub(crate) slots: u32,
}

impl OwnerSession {
    pub(crate) fn open(address: &NetAddress, id: u128, epoch: u32) -> Result<OwnerSession, ReceivedFrame> {
        OwnerSession::over(dial(address), id, epoch)
    }

    pub(crate) fn over(link: Link, id: u128, epoch: u32) -> Result<OwnerSession, ReceivedFrame> {
        let mut owner = OwnerSession {
            link,
            epoch,
            life: 0,
            slots: 0,
        };
        let answer = owner.ask(FrameKind::Deposit, 0, &id.to_le_bytes());
        if answer.header.kind != FrameKind::DepositAck {
            return Err(answer);
        }
        owner.life = answer.header.stable.0;
        owner.slots = answer.header.lsn.0 as u32;
        Ok(owner)
    }

    pub(crate) fn header(&self, kind: FrameKind) -> FrameHeader {
        let mut header = FrameHeader::new(kind);
        (header.epoch, header.sender) = (Epoch(self.epoch), 99);
        header
    }

    pub(crate) fn ask(&mut self, kind: FrameKind, lsn: u64, body: &[u8]) -> ReceivedFrame {
        let mut header = self.header(kind);
        (header.lsn, header.mark) = (Lsn(lsn), 77);
        send(&mut self.link, header, body);
        receive(&mut self.link).unwrap()
    }

    pub(crate) fn resize(&mut self, slots: u32) -> ReceivedFrame {
        self.ask(FrameKind::Resize, slots.into(), &[])
    }

    pub(crate) fn put(&mut self, pages: &[(u32, u64)]) -> ReceivedFrame {
        let mut body = Vec::new();
        for (slot, version) in pages {
            body.extend_from_slice(&page_header(*slot, *version, PAGE));
            body.extend_from_slice(&content(*slot, *version));
        }
        self.ask(FrameKind::Put, 0, &body)
    }

    /// Requests pages and returns whether each is present; the contents must be those that were put.
    pub(crate) fn get(&mut self, pages: &[(u32, u64)]) -> Vec<bool> {
        let heads: Vec<u8> = pages
            .iter()
            .flat_map(|(slot, version)| page_header(*slot, *version, 0))
            .collect();
        let answer = self.ask(FrameKind::Get, 0, &heads);
        assert_eq!(
            (answer.header.kind, answer.header.mark),
            (FrameKind::GetReply, 77),
            "{answer:?}"
        );
        let cut = FramePages::parse(&answer.body).unwrap();
        let asked: Vec<(u32, u64)> = cut.pages().iter().map(|page| (page.slot, page.version)).collect();
        assert_eq!(asked, pages);
        for page in cut.pages().iter().filter(|page| !page.bytes.is_empty()) {
            assert_eq!(page.bytes, content(page.slot, page.version));
        }
        cut.pages().iter().map(|page| !page.bytes.is_empty()).collect()
    }
}

/// The content of a page for this slot and version; every word differs.
pub(crate) fn content(slot: u32, version: u64) -> Vec<u8> {
    let word = |index: u64| (version << 40 | u64::from(slot) << 16 | index).to_le_bytes();
    (0..PAGE as u64 / 8).flat_map(word).collect()
}
