//! The spill file as the leader sees it: one more lender, asked by frames but without a link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_far_machine::deposit::SpillServer;
use netram_far_machine::limit::DEPOSIT_RETRY;
use netram_proto::id::{Epoch, Incarnation};
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use super::Inner;
use crate::seal::PageSealer;
use crate::spill::{SpillFile, SpillReply, SpillThread};

/// Delay after a failed write.
const RETRY: Duration = Duration::from_nanos(DEPOSIT_RETRY.0);

pub(super) struct SpillLink {
    thread: SpillThread,
    /// Index among the lenders.
    number: usize,
    /// The session that stands or is beginning.
    session: Option<Epoch>,
    /// Time at which the next session begins.
    again: Instant,
}

impl SpillLink {
    /// Starts the thread. `life` must differ from every lender's.
    pub(super) fn start(
        shared: &Arc<Inner>,
        file: SpillFile,
        life: Incarnation,
    ) -> std::io::Result<SpillLink> {
        let spill = SpillServer::new(shared.id(), life, file);
        let waking = Arc::clone(shared);
        Ok(SpillLink {
            thread: SpillThread::start(spill, move || waking.leadership.summon())?,
            number: shared.config.lenders.len(),
            session: None,
            again: Instant::now(),
        })
    }

    /// Handles the passing of time. To be called a few times a second, and once at the start.
    pub(super) fn housekeep(&mut self, shared: &Inner, now: Instant, time: Time) {
        let silent = shared.lock().directory().is_silent(self.number, time);
        if self.session.is_some() && silent {
            tracing::warn!(
                "the disk of the spill file does not respond; its pages go elsewhere until it does"
            );
            self.end(shared, now, time);
        } else if self.session.is_none() && self.again <= now {
            let epoch = shared.lock().links().next_session(self.number);
            self.session = Some(epoch);
            let header = FrameHeader {
                epoch,
                sender: shared.owner(),
                ..FrameHeader::new(FrameKind::Deposit)
            };
            self.thread.ask(header.encode(0).to_vec());
        }
    }

    /// Handles the spill file's replies. Returns whether a waiter may be affected.
    pub(super) fn receive(&mut self, shared: &Inner, now: Instant, time: Time) -> bool {
        let mut came = false;
        while let Some(SpillReply { epoch, packet }) = self.thread.answer() {
            if self.session != Some(epoch) {
                continue;
            }
            let Some(packet) = packet else {
                self.end(shared, now, time);
                continue;
            };
            let frame = Frame::parse(&packet).expect("the spill file's replies are valid frames");
            let heard = shared.lock().handle_frame(self.number, &frame, time);
            let heard = heard.expect("the spill file's replies fit its requests");
            for page in &heard.forged {
                tracing::error!(
                    page = page.0,
                    "the spill file returned a page whose bytes are not those that were written; the copy is dropped"
                );
            }
            came |= heard.fetched > 0;
        }
        came
    }

    /// Sends requests, up to the maximum in flight.
    pub(super) fn send(&mut self, shared: &Inner, time: Time) {
        while self.session.is_some() {
            let next = shared.lock().next_frame(self.number, time);
            let Some(mut outgoing) = next else { return };
            outgoing.header.sender = shared.owner();
            let parts: Vec<&[u8]> = outgoing.parts::<PageSealer>().collect();
            let body = parts.concat();
            self.thread
                .ask([&outgoing.header.encode(body.len())[..], &body].concat());
        }
    }

    fn end(&mut self, shared: &Inner, now: Instant, time: Time) {
        (self.session, self.again) = (None, now + RETRY);
        shared.lock().links().on_unlinked(self.number, time);
    }
}
