//! The spill file, as who has the links sees it: one more lender, asked by frames, without a link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_far_machine::deposit::Spill;
use netram_far_machine::limit::DEPOSIT_RETRY;
use netram_proto::id::{Epoch, Incarnation};
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameKind, Header};

use super::Shared;
use crate::seal::Sealer;
use crate::spill::{Answer, Clerk, SpillFile};

/// After a write has failed.
const RETRY: Duration = Duration::from_nanos(DEPOSIT_RETRY.0);

pub(super) struct Disk {
    clerk: Clerk,
    /// Its number among the lenders.
    number: usize,
    /// The session that stands, or is about to.
    session: Option<Epoch>,
    /// When the next one begins.
    again: Instant,
}

impl Disk {
    /// `life` has to be no lender's.
    pub(super) fn start(shared: &Arc<Shared>, file: SpillFile, life: Incarnation) -> std::io::Result<Disk> {
        let spill = Spill::new(shared.id, life, file);
        let waking = Arc::clone(shared);
        Ok(Disk {
            clerk: Clerk::start(spill, move || waking.seat.summon())?,
            number: shared.config.lenders.len(),
            session: None,
            again: Instant::now(),
        })
    }

    /// To be called a few times a second, and once before.
    pub(super) fn keep_house(&mut self, shared: &Shared, now: Instant, time: Time) {
        let silent = shared.lock().depot().is_silent(self.number, time);
        if self.session.is_some() && silent {
            tracing::warn!("the disk of the spill file does not answer; pages go elsewhere until it does");
            self.end(shared, now, time);
        } else if self.session.is_none() && self.again <= now {
            let epoch = shared.lock().links().next_session(self.number);
            self.session = Some(epoch);
            let header = Header {
                epoch,
                who: shared.owner(),
                ..Header::new(FrameKind::Deposit)
            };
            self.clerk.ask(header.encode(0).to_vec());
        }
    }

    /// Takes what the file says. `true`: somebody may have waited for it.
    pub(super) fn hear(&mut self, shared: &Shared, now: Instant, time: Time) -> bool {
        let mut came = false;
        while let Some(Answer { epoch, packet }) = self.clerk.answer() {
            if self.session != Some(epoch) {
                continue;
            }
            let Some(packet) = packet else {
                self.end(shared, now, time);
                continue;
            };
            let frame = Frame::parse(&packet).expect("the spill file answers in frames");
            let heard = shared.lock().hear(self.number, &frame, time);
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
    pub(super) fn send(&mut self, shared: &Shared, time: Time) {
        while self.session.is_some() {
            let next = shared.lock().next_frame(self.number, time);
            let Some(mut outgoing) = next else { return };
            outgoing.header.who = shared.owner();
            let parts: Vec<&[u8]> = outgoing.parts::<Sealer>().collect();
            let body = parts.concat();
            self.clerk
                .ask([&outgoing.header.encode(body.len())[..], &body].concat());
        }
    }

    fn end(&mut self, shared: &Shared, now: Instant, time: Time) {
        (self.session, self.again) = (None, now + RETRY);
        shared.lock().links().on_unlinked(self.number, time);
    }
}
