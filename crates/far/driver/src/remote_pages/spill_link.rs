//! The spill file, as who has the links sees it: one more lender, asked by frames, without a link.

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

/// After a write has failed.
const RETRY: Duration = Duration::from_nanos(DEPOSIT_RETRY.0);

pub(super) struct SpillLink {
    thread: SpillThread,
    /// Its number among the lenders.
    number: usize,
    /// The session that stands, or is about to.
    session: Option<Epoch>,
    /// When the next one begins.
    again: Instant,
}

impl SpillLink {
    /// `life` has to be no lender's.
    pub(super) fn start(
        shared: &Arc<Inner>,
        file: SpillFile,
        life: Incarnation,
    ) -> std::io::Result<SpillLink> {
        let spill = SpillServer::new(shared.id, life, file);
        let waking = Arc::clone(shared);
        Ok(SpillLink {
            thread: SpillThread::start(spill, move || waking.leadership.summon())?,
            number: shared.config.lenders.len(),
            session: None,
            again: Instant::now(),
        })
    }

    /// To be called a few times a second, and once before.
    pub(super) fn housekeep(&mut self, shared: &Inner, now: Instant, time: Time) {
        let silent = shared.lock().directory().is_silent(self.number, time);
        if self.session.is_some() && silent {
            tracing::warn!("the disk of the spill file does not answer; pages go elsewhere until it does");
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

    /// Takes what the file says. `true`: somebody may have waited for it.
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
            let frame = Frame::parse(&packet).expect("the spill file answers in frames");
            let heard = shared.lock().handle_frame(self.number, &frame, time);
            let heard = heard.expect("the spill file answers what it is asked");
            for page in &heard.forged {
                tracing::error!(
                    page = page.0,
                    "the spill file gave a page that is not the one it was given"
                );
            }
            came |= heard.fetched > 0;
        }
        came
    }

    /// Gives it what is to be done, up to what it may have on its way.
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
