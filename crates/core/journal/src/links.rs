//! The links to lenders, and moving frames between them and the writer's machine.

use netram_proto::journal::{Body, Outgoing, Writer};
use netram_proto::time::{Span, Time};
use netram_proto::wire::Frame;
use netram_transport::multicast::Sent;
use netram_transport::{Caster, Link, LinkError};

use zeroize::Zeroizing;

use crate::reason::Away;
use crate::sys::Appender;

/// The link to each configured lender, where one stands, and the multicast that they share.
#[derive(Debug)]
pub(crate) struct Links {
    slots: Vec<Slot>,
    caster: Option<Caster>,
    /// Datagrams so far.
    pub(crate) cast: Sent,
    /// When datagrams that this machine did not take may be complained of again.
    complain: Time,
}

/// Between two complaints of datagrams that were not taken.
const COMPLAINT_PAUSE: Span = Span::from_ms(1000);

#[derive(Debug, Default)]
struct Slot {
    link: Option<Link>,
    /// A frame that the link had no room for.
    waiting: Option<Outgoing>,
    /// The socket is full; bytes wait in the link.
    unflushed: bool,
    /// Why the lender could not be reached, as last logged.
    away: Option<Away>,
}

/// Why a link was given up.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection failed or the peer closed it.
    Link(LinkError),
    /// The peer sent what is no frame.
    Frame(netram_proto::wire::FrameError),
}

impl Links {
    pub(crate) fn new(count: usize, caster: Option<Caster>) -> Links {
        Links {
            slots: (0..count).map(|_| Slot::default()).collect(),
            caster,
            cast: Sent::default(),
            complain: Time(0),
        }
    }

    /// Multicasts everything that the machine has for all: before what each needs beside it is sent.
    pub(crate) fn cast(&mut self, writer: &mut Writer, ring: &Appender, now: Time) {
        let Some(caster) = &mut self.caster else { return };
        if caster.is_worn() && caster.number() == writer.channel() {
            writer.on_channel_worn(now);
        }
        while let Some(outgoing) = writer.next_cast(now) {
            let Body::Log { from, bytes } = outgoing.body else {
                unreachable!("only appends are multicast")
            };
            // As in `queue`: what is no longer in the ring is on the disk, and the members are told so.
            if let Some(body) = ring.read(from, bytes) {
                let sent = caster.send(&outgoing.header, body);
                self.cast.sent += sent.sent;
                self.cast.lost += sent.lost;
                if sent.lost > 0 && self.complain <= now {
                    self.complain = now + COMPLAINT_PAUSE;
                    let (group, lost) = (caster.group(), self.cast.lost);
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
    pub(crate) fn is_away(&mut self, index: usize, why: &Away) -> bool {
        let slot = &mut self.slots[index];
        let news = slot.away.as_ref() != Some(why);
        if news {
            slot.away = Some(why.clone());
        }
        news
    }

    /// Why lender `index` could not be reached when that was last tried.
    pub(crate) fn away(&self, index: usize) -> Option<&Away> {
        self.slots[index].away.as_ref()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Link> {
        std::mem::take(&mut self.slots[index]).link
    }

    /// Whether some link has bytes that its socket would not take.
    pub(crate) fn any_unflushed(&self) -> bool {
        self.slots.iter().any(|slot| slot.unflushed)
    }

    /// Hands every frame that has arrived from lender `index` to the machine; `true`: there was one. One system call when
    /// there is none.
    pub(crate) fn receive(&mut self, index: usize, writer: &mut Writer, now: Time) -> Result<bool, Broken> {
        let Some(link) = &mut self.slots[index].link else {
            return Ok(false);
        };
        let mut heard = false;
        while let Some(packet) = link.receive().map_err(Broken::Link)? {
            let frame = Frame::parse(packet).map_err(Broken::Frame)?;
            writer.on_frame(index, &frame, now);
            heard = true;
        }
        Ok(heard)
    }

    /// Sends lender `index` everything that the machine has for it, with one system call.
    pub(crate) fn send(
        &mut self,
        index: usize,
        writer: &mut Writer,
        ring: &Appender,
        now: Time,
    ) -> Result<(), Broken> {
        let slot = &mut self.slots[index];
        let Some(link) = &mut slot.link else { return Ok(()) };
        let mut queued = slot.unflushed;
        // An invitation that waited for room while the channel was renewed; the machine has another for it.
        let stale = |outgoing: &mut Outgoing| matches!(outgoing.body, Body::Channel(number) if number != writer.channel());
        slot.waiting.take_if(stale);
        while let Some(outgoing) = slot.waiting.take().or_else(|| writer.next_frame(index, now)) {
            match queue(link, &outgoing, ring, &mut self.caster) {
                Ok(true) => queued = true,
                Ok(false) => {
                    writer.on_overtaken(index, now);
                    break;
                }
                Err(LinkError::Congested) => {
                    slot.waiting = Some(outgoing);
                    break;
                }
                Err(error) => return Err(Broken::Link(error)),
            }
        }
        if queued {
            slot.unflushed = !link.flush().map_err(Broken::Link)?;
        }
        Ok(())
    }
}

/// `false`: it waited so long for a full socket that the disk overtook it and the ring was reused.
fn queue(
    link: &mut Link,
    outgoing: &Outgoing,
    ring: &Appender,
    caster: &mut Option<Caster>,
) -> Result<bool, LinkError> {
    match &outgoing.body {
        Body::Inline(bytes, length) => link.queue(&[&outgoing.header.encode(*length), &bytes[..*length]])?,
        Body::Channel(number) => match caster {
            Some(caster) => {
                let tune = Zeroizing::new(caster.tune(*number).encode());
                link.queue(&[&outgoing.header.encode(tune.len()), &tune[..]])?;
            }
            None => unreachable!("the machine invites to a channel only where one is configured"),
        },
        Body::Log { from, bytes } => match ring.read(*from, *bytes) {
            Some(body) => link.queue(&[&outgoing.header.encode(*bytes), body])?,
            None => return Ok(false),
        },
    }
    Ok(true)
}

impl std::fmt::Display for Broken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Link(error) => error.fmt(out),
            Broken::Frame(error) => error.fmt(out),
        }
    }
}
