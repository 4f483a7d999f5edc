//! The links to lenders, and the transfer of frames between them and the writer's state machine.

use netram_proto::journal::{FrameBody, JournalWriter, OutgoingFrame};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::Frame;
use netram_transport::multicast::SendCounts;
use netram_transport::{Link, LinkError, MulticastSender};

use zeroize::Zeroizing;

use crate::owner::{ForgedFence, JournalOwner};
use crate::reason::LinkFailure;
use crate::sys::RingAppender;

/// The links to all configured lenders, by index, and the multicast sender that they share.
#[derive(Debug)]
pub(crate) struct LenderLinks {
    slots: Vec<Slot>,
    owner: JournalOwner,
    /// The journal's name for the operators of its lenders.
    name: String,
    multicast_sender: Option<MulticastSender>,
    /// Datagrams sent and refused so far.
    pub(crate) multicast_sent: SendCounts,
    /// Earliest time of the next log line about refused datagrams.
    log_again_at: Time,
}

/// Minimum time between log lines about refused datagrams.
const DROP_LOG_INTERVAL: Nanos = Nanos::from_ms(1000);

#[derive(Debug, Default)]
struct Slot {
    link: Option<Link>,
    /// A frame for which the link had no room.
    waiting: Option<OutgoingFrame>,
    /// Whether the socket is full and the link has buffered bytes.
    unflushed: bool,
    /// Why the lender could not be reached, as last logged.
    failure: Option<LinkFailure>,
}

/// Why a link was dropped.
#[derive(Debug)]
pub(crate) enum LenderLinkError {
    /// The connection failed or the peer closed it.
    Link(LinkError),
    /// The peer sent bytes that are not a valid frame.
    Frame(netram_proto::wire::FrameError),
    /// The peer claimed a fence that the owner has not signed.
    Forged(ForgedFence),
}

impl LenderLinks {
    pub(crate) fn new(
        count: usize,
        (owner, name): (JournalOwner, String),
        sender: Option<MulticastSender>,
    ) -> LenderLinks {
        LenderLinks {
            slots: (0..count).map(|_| Slot::default()).collect(),
            owner,
            name,
            multicast_sender: sender,
            multicast_sent: SendCounts::default(),
            log_again_at: Time(0),
        }
    }

    /// Multicasts the frames that are for all members; called before the frames for each one.
    pub(crate) fn multicast(&mut self, writer: &mut JournalWriter, ring: &RingAppender, now: Time) {
        let Some(sender) = &mut self.multicast_sender else {
            return;
        };
        if sender.is_exhausted() && sender.number() == writer.channel() {
            writer.on_channel_exhausted(now);
        }
        while let Some(outgoing) = writer.next_multicast(now) {
            let FrameBody::Log { from, bytes } = outgoing.body else {
                unreachable!("only appends are multicast")
            };
            // As in `queue`: bytes that have left the ring are on the disk, and the members are told so.
            if let Some(body) = ring.read(from, bytes) {
                let sent = sender.send(&outgoing.header, body);
                self.multicast_sent.sent += sent.sent;
                self.multicast_sent.lost += sent.lost;
                if sent.lost > 0 && self.log_again_at <= now {
                    self.log_again_at = now + DROP_LOG_INTERVAL;
                    let (group, lost) = (sender.group(), self.multicast_sent.lost);
                    tracing::warn!(%group, lost, "the system refused multicast datagrams; members get the records over their links");
                }
            }
        }
    }

    /// Makes room for `count` lenders.
    pub(crate) fn grow(&mut self, count: usize) {
        let count = count.max(self.slots.len());
        self.slots.resize_with(count, Slot::default);
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

    /// Notes why lender `index` cannot be reached. Returns whether the reason is new.
    pub(crate) fn note_failure(&mut self, index: usize, why: &LinkFailure) -> bool {
        let slot = &mut self.slots[index];
        let news = slot.failure.as_ref() != Some(why);
        if news {
            slot.failure = Some(why.clone());
        }
        news
    }

    /// Why the last attempt to reach lender `index` failed.
    pub(crate) fn failure(&self, index: usize) -> Option<&LinkFailure> {
        self.slots[index].failure.as_ref()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Link> {
        std::mem::take(&mut self.slots[index]).link
    }

    /// Whether a link has bytes that its socket has not taken.
    pub(crate) fn any_unflushed(&self) -> bool {
        self.slots.iter().any(|slot| slot.unflushed)
    }

    /// Passes the frames that one read of the socket brings from lender `index` to the writer. Returns
    /// whether there was one. The journal's lock is held meanwhile, so a lender that sends without end must
    /// not keep it. Costs one system call.
    pub(crate) fn receive(
        &mut self,
        index: usize,
        writer: &mut JournalWriter,
        now: Time,
    ) -> Result<bool, LenderLinkError> {
        let Some(link) = &mut self.slots[index].link else {
            return Ok(false);
        };
        let (mut heard, version) = (false, link.version());
        while let Some(packet) = link.receive().map_err(LenderLinkError::Link)? {
            let frame = Frame::parse(packet).map_err(LenderLinkError::Frame)?;
            self.owner
                .check(version, &frame)
                .map_err(LenderLinkError::Forged)?;
            writer.on_frame(index, &frame, now);
            heard = true;
            if !link.has_buffered() {
                break;
            }
        }
        Ok(heard)
    }

    /// Sends lender `index` all frames that the writer has for it, with one system call.
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
        // An invitation that waited while the channel was renewed is obsolete; the writer has a new one.
        let stale = |outgoing: &mut OutgoingFrame| matches!(outgoing.body, FrameBody::Channel(number) if number != writer.channel());
        slot.waiting.take_if(stale);
        while let Some(outgoing) = slot.waiting.take().or_else(|| writer.next_frame(index, now)) {
            match queue(
                link,
                &outgoing,
                (&self.owner, &self.name),
                ring,
                &mut self.multicast_sender,
            ) {
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

/// Queues a frame. Returns `false` if it waited so long for a full socket that its bytes were synced and left
/// the ring.
fn queue(
    link: &mut Link,
    outgoing: &OutgoingFrame,
    (owner, name): (&JournalOwner, &str),
    ring: &RingAppender,
    sender: &mut Option<MulticastSender>,
) -> Result<bool, LinkError> {
    match &outgoing.body {
        FrameBody::Inline(bytes, length) => owner.queue(link, &outgoing.header, &bytes[..*length])?,
        FrameBody::Window(bytes) => {
            let body = [&bytes.to_le_bytes(), name.as_bytes()].concat();
            link.queue(&[&outgoing.header.encode(body.len()), &body])?;
        }
        FrameBody::Channel(number) => match sender {
            Some(sender) => {
                let tune = Zeroizing::new(sender.invite(*number).encode());
                link.queue(&[&outgoing.header.encode(tune.len()), &tune[..]])?;
            }
            None => unreachable!("invitations are sent only if multicast is configured"),
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
            LenderLinkError::Forged(error) => error.fmt(out),
        }
    }
}
