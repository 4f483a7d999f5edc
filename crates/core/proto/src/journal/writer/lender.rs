//! One lender as the writer sees it: its connection, and its membership if it has one.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::multicast::{MissingRanges, RttEstimator};
use crate::time::Time;

use super::leaving::LeaveNotice;
use super::status::LenderRefusal;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPhase {
    /// Not connected. The next attempt is due at this time.
    Down(Time),
    /// The driver is connecting.
    Connecting,
    /// Connected; `Bind` is to be sent or answered.
    Binding,
    /// Bound; `Fence` is to be sent or answered.
    Fencing,
    /// Fenced: this lender obeys our epoch.
    Ready,
}

/// A lender's part in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderRole {
    /// Not a member, and not asked to become one.
    Spare,
    /// Asked to open a window; it has not answered yet.
    Joining,
    /// Its window is being filled up to this LSN; then it can be proposed as a member.
    CatchingUp(Lsn),
    /// A member of the durable view, or of the one being stored.
    Member,
}

/// A control frame that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    Bind,
    Fence,
    Join,
    Leave,
    /// `Leave`, with word that the journal was closed cleanly.
    LeaveClean,
    Invite,
}

#[derive(Clone, Debug)]
pub(super) struct WriterLender {
    pub(super) address: String,
    /// Power domain of the memory whose acknowledgements count.
    pub(super) domain: String,
    /// Power domain of the memory behind this link.
    pub(super) link_domain: String,
    pub(super) link: LinkPhase,
    pub(super) role: LenderRole,
    pub(super) control: Option<ControlFrame>,
    /// Whether the journal is closed, or the lender removed, and it has not answered `Leave` yet.
    pub(super) leaving: bool,
    /// Whether an order has removed it. It is gone once it is no member and has answered `Leave`.
    pub(super) removed: bool,
    /// Incarnation of the memory whose acknowledgements count: for a member, the one it joined with.
    pub(super) incarnation: Incarnation,
    /// Incarnation of the memory behind this link, with which the next join will be made.
    pub(super) link_incarnation: Incarnation,
    /// Incarnation of the memory that bound this link. On links that lose frames, frames of an earlier one
    /// may still arrive.
    pub(super) bound_incarnation: Incarnation,
    /// The number of the join whose acknowledgements count.
    pub(super) generation: u32,
    /// The epoch that joined the window which `generation` numbers.
    pub(super) window_epoch: Epoch,
    /// End of the bytes handed to the link.
    pub(super) sent: Lsn,
    /// Start of its window when it was last emptied.
    pub(super) window_start: Lsn,
    /// The highest `sent` ever: an acknowledgement above it is a lie.
    pub(super) sent_max: Lsn,
    /// Acknowledged: whole records that the lender holds.
    pub(super) held: Lsn,
    /// Received by the lender, whole records or not.
    pub(super) received: Lsn,
    /// Ends of the last two appends: with two in flight, more bytes wait to be sent as one (group commit).
    pub(super) flight: [Lsn; 2],
    /// The stable LSN that the lender was last told.
    pub(super) stable_told: Lsn,
    /// The time since when the lender has owed an answer.
    pub(super) owing_since: Option<Time>,
    pub(super) ping_sent: Time,
    pub(super) ping_pending: bool,
    /// The last time that bytes were sent, or that the lender received more, for links that lose frames.
    pub(super) progress: Time,
    pub(super) lost_at: Option<Time>,
    /// Its `received` and `held` at the last check. `progress_at` is when they last changed, or when it last
    /// owed nothing.
    pub(super) progress_seen: (Lsn, Lsn),
    pub(super) progress_at: Time,
    /// Set if it made no progress: it is not asked to join before this time.
    pub(super) stalled_until: Option<Time>,
    /// Number of failed attempts to connect since the last connection.
    pub(super) failures: u32,
    /// Its wish that the journal leave it.
    pub(super) leave_notice: Option<LeaveNotice>,
    /// Why the lender refused the journal, and until when it is not asked again.
    pub(super) refused: Option<(LenderRefusal, Time)>,
    /// The number of the channel that the lender listens to over this connection; zero: none.
    pub(super) channel: u32,
    /// The number of the channel that it was last asked to listen to over this connection.
    pub(super) channel_invited: u32,
    /// Whether it has ever been given a channel's key in this epoch. A connection that we believe dead may
    /// still listen.
    pub(super) ever_listened: bool,
    /// Whether it has fallen behind the multicast and is served over its own link until it has caught up.
    pub(super) lagging: bool,
    /// The ranges that it reported missing.
    pub(super) missing: MissingRanges,
    /// Everything from `received` to here was handed to its own link, in order, and will arrive unless the
    /// link breaks.
    pub(super) link_end: Lsn,
    /// Estimate of its round-trip time.
    pub(super) rtt: RttEstimator,
    /// The time at which it was asked to listen.
    pub(super) invited_at: Time,
    /// End and time of a multicast frame, for measuring the round-trip time.
    pub(super) rtt_sample: Option<(Lsn, Time)>,
    /// Whether the timer has resent bytes that it had not acknowledged, and it has not answered since.
    pub(super) resent: bool,
    /// Number of consecutive times that it advanced only by bytes resent over its link.
    pub(super) resends_unheard: u32,
    /// Set if multicast does not reach it: it is not asked to listen before this time.
    pub(super) deaf_until: Option<Time>,
}

impl WriterLender {
    pub(super) fn new(address: String) -> WriterLender {
        WriterLender {
            address,
            domain: String::new(),
            link_domain: String::new(),
            link: LinkPhase::Down(Time(0)),
            role: LenderRole::Spare,
            control: None,
            leaving: false,
            removed: false,
            incarnation: Incarnation(0),
            link_incarnation: Incarnation(0),
            bound_incarnation: Incarnation(0),
            generation: 0,
            window_epoch: Epoch(0),
            sent: Lsn(0),
            window_start: Lsn(0),
            sent_max: Lsn(0),
            held: Lsn(0),
            received: Lsn(0),
            flight: [Lsn(0); 2],
            stable_told: Lsn(0),
            owing_since: None,
            ping_sent: Time(0),
            ping_pending: false,
            progress: Time(0),
            lost_at: None,
            progress_seen: (Lsn(0), Lsn(0)),
            progress_at: Time(0),
            stalled_until: None,
            failures: 0,
            leave_notice: None,
            refused: None,
            channel: 0,
            channel_invited: 0,
            ever_listened: false,
            lagging: false,
            missing: MissingRanges::default(),
            link_end: Lsn(0),
            rtt: RttEstimator::default(),
            invited_at: Time(0),
            rtt_sample: None,
            resent: false,
            resends_unheard: 0,
            deaf_until: None,
        }
    }

    /// Whether its place is free: a removed lender had it.
    pub(super) fn is_vacant(&self) -> bool {
        self.address.is_empty()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.link == LinkPhase::Ready
    }

    /// Whether appends go to this lender.
    pub(super) fn takes_appends(&self) -> bool {
        self.is_ready() && matches!(self.role, LenderRole::CatchingUp(_) | LenderRole::Member)
    }

    /// Ends a membership: nothing that this lender acknowledged counts any more.
    pub(super) fn dismiss(&mut self) {
        self.role = LenderRole::Spare;
        self.domain.clone_from(&self.link_domain);
        self.held = Lsn(0);
        self.received = Lsn(0);
    }

    /// Continues over its own link after the bytes already handed to that link: the rest may not have arrived
    /// by multicast.
    pub(super) fn resume_on_link(&mut self) {
        self.sent = self.received.max(self.link_end);
        self.flight = [self.sent; 2];
        self.missing.clear();
        self.rtt_sample = None;
    }

    /// Notes that its link was given the bytes `from` to `end`. If they leave a gap after `link_end`, they do
    /// not move it.
    pub(super) fn on_link_sent(&mut self, from: Lsn, end: Lsn) {
        if from <= self.received.max(self.link_end) {
            self.link_end = self.link_end.max(end);
        }
    }

    /// Restarts sending from `from`, which the lender holds (or which we consider stable).
    pub(super) fn resume(&mut self, from: Lsn, now: Time) {
        self.received = from;
        self.link_end = from;
        self.progress = now;
        self.resume_on_link();
    }
}
