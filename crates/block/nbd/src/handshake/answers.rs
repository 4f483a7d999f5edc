//! Answers to options about exports and contexts.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};

use super::{HandshakeEnd, HandshakeStep, NbdHandshake};
use crate::command::NbdSession;
use crate::limit::REQUEST_BYTES_MAX;
use crate::wire::option::{ContextQuery, InfoQuery, OptionReply, reply};
use crate::wire::{BASE_ALLOCATION, BASE_ALLOCATION_ID, export, info};

impl NbdHandshake<'_> {
    fn find(&self, name: &[u8]) -> Option<usize> {
        let mut present = self.present();
        let found = present.find(|(_, offer)| name.is_empty() || offer.name.as_bytes() == name);
        found.map(|(index, _)| index)
    }

    fn session(&self, index: usize) -> NbdSession {
        NbdSession {
            export: index,
            structured: self.structured,
            extended: self.extended,
            block_status: self.structured && self.allocation == Some(index),
            read_only: self.offers[index].read_only,
        }
    }

    fn flags(&self, index: usize) -> u16 {
        let mut flags = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA;
        flags |= export::CAN_MULTI_CONN | export::SEND_CACHE;
        if self.offers[index].read_only {
            flags |= export::READ_ONLY;
        } else {
            flags |= export::SEND_TRIM | export::SEND_WRITE_ZEROES | export::SEND_FAST_ZERO;
        }
        if self.structured {
            flags |= export::SEND_DF;
        }
        if self.extended && self.allocation == Some(index) {
            flags |= export::BLOCK_STAT_PAYLOAD;
        }
        flags
    }

    pub(super) fn on_export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let Some(index) = self.find(data) else {
            return HandshakeStep::End(HandshakeEnd::UnknownExport);
        };
        out.extend_from_slice(&self.offers[index].bytes.to_be_bytes());
        out.extend_from_slice(&self.flags(index).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        HandshakeStep::Transmit(self.session(index))
    }

    pub(super) fn on_list(&self, raw: u32, out: &mut Vec<u8>) -> HandshakeStep {
        for (_, offer) in self.present() {
            let name = offer.name.as_bytes();
            let length = (name.len() as u32).to_be_bytes();
            let description = offer.description.as_bytes();
            reply(out, raw, OptionReply::Server, &[&length, name, description]);
        }
        reply(out, raw, OptionReply::Ack, &[]);
        HandshakeStep::Again
    }

    pub(super) fn on_info(&mut self, raw: u32, go: bool, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let Some(query) = InfoQuery::parse(data) else {
            reply(
                out,
                raw,
                OptionReply::Invalid,
                &[b"the option's lengths do not add up"],
            );
            return HandshakeStep::Again;
        };
        let Some(index) = self.find(query.name) else {
            reply(
                out,
                raw,
                OptionReply::Unknown,
                &[b"no export has this name; LIST names them"],
            );
            return HandshakeStep::Again;
        };
        let offer = &self.offers[index];
        let kind = |number: u16| number.to_be_bytes();
        let size = offer.bytes.to_be_bytes();
        let flags = self.flags(index).to_be_bytes();
        reply(out, raw, OptionReply::Info, &[&kind(info::EXPORT), &size, &flags]);
        if query.wants_name {
            reply(
                out,
                raw,
                OptionReply::Info,
                &[&kind(info::NAME), offer.name.as_bytes()],
            );
        }
        if query.wants_description && !offer.description.is_empty() {
            let text = offer.description.as_bytes();
            reply(out, raw, OptionReply::Info, &[&kind(info::DESCRIPTION), text]);
        }
        // Sent to every client, even unasked: a client that does not know it skips it.
        let sizes = [SECTOR_BYTES as u32, BLOCK_BYTES as u32, REQUEST_BYTES_MAX].map(u32::to_be_bytes);
        reply(
            out,
            raw,
            OptionReply::Info,
            &[&kind(info::BLOCK_SIZE), sizes.as_flattened()],
        );
        reply(out, raw, OptionReply::Ack, &[]);
        match go {
            true => HandshakeStep::Transmit(self.session(index)),
            false => HandshakeStep::Again,
        }
    }

    pub(super) fn on_contexts(
        &mut self,
        raw: u32,
        set: bool,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> HandshakeStep {
        if set {
            // Even if it fails, this option replaces the earlier choice.
            self.allocation = None;
        }
        let mut say = |kind: OptionReply, message: &str| {
            reply(out, raw, kind, &[message.as_bytes()]);
            HandshakeStep::Again
        };
        if !self.structured {
            return say(
                OptionReply::Invalid,
                "contexts need structured replies; send STRUCTURED_REPLY first",
            );
        }
        let Some(query) = ContextQuery::parse(data) else {
            return say(OptionReply::Invalid, "the option's lengths do not add up");
        };
        let Some(index) = self.find(query.name) else {
            return say(OptionReply::Unknown, "no export has this name; LIST names them");
        };
        let listed = !set && (query.queries == 0 || query.names_base);
        if listed || query.names_allocation {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()];
            reply(out, raw, OptionReply::MetaContext, &parts);
            if set {
                self.allocation = Some(index);
            }
        }
        reply(out, raw, OptionReply::Ack, &[]);
        HandshakeStep::Again
    }
}
