//! The links to lenders, and moving frames between them and the writer's machine.

use netram_proto::journal::{FrameBody, JournalWriter, OutgoingFrame};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::Frame;
use netram_transport::multicast::SendCounts;
use netram_transport::{Link, LinkError, MulticastSender};

use zeroize::Zeroizing;

use crate::reason::LinkFailure;
use crate::sys::RingAppender;

/// The link to each configured lender, where one stands, and the multicast that they share.
#[derive(Debug)]
pub(crate) struct LenderLinks {
    slots: Vec<Slot>,
    multicast_sender: Option<MulticastSender>,
    /// Datagrams so far.
    pub(crate) multicast_sent: SendCounts,
    /// When datagrams that this machine did not take may be complained of again.
    log_again_at: Time,
}

/// Between two complaints of datagrams that were not taken.
const DROP_LOG_INTERVAL: Nanos = Nanos::from_ms(1000);

#[derive(Debug, Default)]
struct Slot {
    link: Option<Link>,
    /// A frame that the link had no room for.
    waiting: Option<OutgoingFrame>,
    /// The socket is full; bytes wait in the link.
    unflushed: bool,
    /// Why the lender could not be reached, as last logged.
    failure: Option<LinkFailure>,
}

/// Why a link was given up.
#[derive(Debug)]
pub(crate) enum LenderLinkError {
    /// The connection failed or the peer closed it.
    Link(LinkError),
    /// The peer sent what is no frame.
    Frame(netram_proto::wire::FrameError),
}

impl LenderLinks {
    pub(crate) fn new(count: usize, caster: Option<MulticastSender>) -> LenderLinks {
        LenderLinks {
            slots: (0..count).map(|_| Slot::default()).collect(),
            multicast_sender: caster,
            multicast_sent: SendCounts::default(),
            log_again_at: Time(0),
        }
    }

    /// Multicasts everything that the machine has for all: before what each needs beside it is sent.
    pub(crate) fn multicast(&mut self, writer: &mut JournalWriter, ring: &RingAppender, now: Time) {
        let Some(caster) = &mut self.multicast_sender else {
            return;
        };
        if caster.is_exhausted() && caster.number() == writer.channel() {
            writer.on_channel_exhausted(now);
        }
        while let Some(outgoing) = writer.next_multicast(now) {
            let FrameBody::Log { from, bytes } = outgoing.body else {
                unreachable!("only appends are multicast")
            };
            // As in `queue`: what is no longer in the ring is on the disk, and the members are told so.
            if let Some(body) = ring.read(from, bytes) {
                let sent = caster.send(&outgoing.header, body);
                self.multicast_sent.sent += sent.sent;
                self.multicast_sent.lost += sent.lost;
                if sent.lost > 0 && self.log_again_at <= now {
                    self.log_again_at = now + DROP_LOG_INTERVAL;
                    let (group, lost) = (caster.group(), self.multicast_sent.lost);
                    tracing::warn!(%group, lost, "this machine does not take all datagrams; members are sent them over their links");
                }
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn install(&mut self, index: usize, link: Link) {
        self.slots[index] = Slot {
            link: Some(link),
            ..Slot::default()
        };
    }

    /// Why lender `index` cannot be reached. `true`: that is news since it was last reached.
    pub(crate) fn note_failure(&mut self, index: usize, why: &LinkFailure) -> bool {
        let slot = &mut self.slots[index];
        let news = slot.failure.as_ref() != Some(why);
        if news {
            slot.failure = Some(why.clone());
        }
        news
    }

    /// Why lender `index` could not be reached when that was last tried.
    pub(crate) fn failure(&self, index: usize) -> Option<&LinkFailure> {
        self.slots[index].failure.as_ref()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Link> {
        std::mem::take(&mut self.slots[index]).link
    }

    /// Whether some link has bytes that its socket would not take.
    pub(crate) fn any_unflushed(&self) -> bool {
        self.slots.iter().any(|slot| slot.unflushed)
    }

    /// Hands every frame that has arrived from lender `index` to the machine; `true`: there was one. One
    /// system call when there is none.
    pub(crate) fn receive(
        &mut self,
        index: usize,
        writer: &mut JournalWriter,
        now: Time,
    ) -> Result<bool, LenderLinkError> {
        let Some(link) = &mut self.slots[index].link else {
            return Ok(false);
        };
        let mut heard = false;
        while let Some(packet) = link.receive().map_err(LenderLinkError::Link)? {
            let frame = Frame::parse(packet).map_err(LenderLinkError::Frame)?;
            writer.on_frame(index, &frame, now);
            heard = true;
        }
        Ok(heard)
    }

    /// Sends lender `index` everything that the machine has for it, with one system call.
    pub(crate) fn send(
        &mut self,
        index: usize,
        writer: &mut JournalWriter,
        ring: &RingAppender,
        now: Time,
    ) -> Result<(), LenderLinkError> {
        let slot = &mut self.slots[index];
        let Some(link) = &mut slot.link else { return Ok(()) };
        let mut queued = slot.unflushed;
        // An invitation that waited for room while the channel was renewed; the machine has another for it.
        let stale = |outgoing: &mut OutgoingFrame| matches!(outgoing.body, FrameBody::Channel(number) if number != writer.channel());
        slot.waiting.take_if(stale);
        while let Some(outgoing) = slot.waiting.take().or_else(|| writer.next_frame(index, now)) {
            match queue(link, &outgoing, ring, &mut self.multicast_sender) {
                Ok(true) => queued = true,
                Ok(false) => {
                    writer.on_overtaken(index, now);
                    break;
                }
                Err(LinkError::Congested) => {
                    slot.waiting = Some(outgoing);
                    break;
                }
                Err(error) => return Err(LenderLinkError::Link(error)),
            }
        }
        if queued {
            slot.unflushed = !link.flush().map_err(LenderLinkError::Link)?;
        }
        Ok(())
    }
}

/// `false`: it waited so long for a full socket that the disk overtook it and the ring was reused.
fn queue(
    link: &mut Link,
    outgoing: &OutgoingFrame,
    ring: &RingAppender,
    caster: &mut Option<MulticastSender>,
) -> Result<bool, LinkError> {
    match &outgoing.body {
        FrameBody::Inline(bytes, length) => {
            link.queue(&[&outgoing.header.encode(*length), &bytes[..*length]])?
        }
        FrameBody::Channel(number) => match caster {
            Some(caster) => {
                let tune = Zeroizing::new(caster.invite(*number).encode());
                link.queue(&[&outgoing.header.encode(tune.len()), &tune[..]])?;
            }
            None => unreachable!("the machine invites to a channel only where one is configured"),
        },
        FrameBody::Log { from, bytes } => match ring.read(*from, *bytes) {
            Some(body) => link.queue(&[&outgoing.header.encode(*bytes), body])?,
            None => return Ok(false),
        },
    }
    Ok(true)
}

impl std::fmt::Display for LenderLinkError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LenderLinkError::Link(error) => error.fmt(out),
            LenderLinkError::Frame(error) => error.fmt(out),
        }
    }
}
