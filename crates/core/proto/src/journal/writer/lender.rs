//! One lender as the writer sees it: a connection, and perhaps a membership.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::multicast::{MissingRanges, RttEstimator};
use crate::time::Time;

use super::status::LenderRefusal;

/// How far the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPhase {
    /// None. Try at this time.
    Down(Time),
    /// The driver is connecting.
    Connecting,
    /// Connected; `Bind` is to be sent or answered.
    Binding,
    /// Bound; `Fence` is to be sent or answered.
    Fencing,
    /// Sealed: this lender obeys our epoch.
    Ready,
}

/// What part the lender plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderRole {
    /// None yet.
    Spare,
    /// Asked to open a window.
    Joining,
    /// Its window is being filled up to this LSN; then it can be proposed as a member.
    CatchingUp(Lsn),
    /// In the durable view, or in the one being stored.
    Member,
}

/// A control frame that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    Bind,
    Fence,
    Join,
    Leave,
    /// As `Leave`, and the journal is closed.
    LeaveClean,
    Invite,
}

#[derive(Clone, Debug)]
pub(super) struct WriterLender {
    pub(super) address: String,
    /// What feeds the memory that acknowledgements count from.
    pub(super) domain: String,
    /// What feeds the memory behind this link.
    pub(super) link_domain: String,
    pub(super) link: LinkPhase,
    pub(super) role: LenderRole,
    pub(super) control: Option<ControlFrame>,
    /// The journal is closed, and the lender has not said yet that it knows.
    pub(super) leaving: bool,
    /// The life of the memory that acknowledgements count from: a member's is the one it joined with.
    pub(super) incarnation: Incarnation,
    /// The life of the memory behind this link, which the next join will be with.
    pub(super) link_incarnation: Incarnation,
    /// The life of the memory that bound this link. Frames of an earlier one may still arrive where links
    /// lose frames.
    pub(super) bound_incarnation: Incarnation,
    /// The number of the join whose acknowledgements count.
    pub(super) generation: u32,
    /// The reign that joined the window which `generation` numbers.
    pub(super) window_epoch: Epoch,
    /// Bytes handed to the link, from the join or from `stable`.
    pub(super) sent: Lsn,
    /// Where its window began when it was last emptied.
    pub(super) window_start: Lsn,
    /// The highest `sent` ever: an acknowledgement above it is a lie.
    pub(super) sent_max: Lsn,
    /// Acknowledged: whole records that the lender holds.
    pub(super) held: Lsn,
    /// Received by the lender, whole records or not.
    pub(super) received: Lsn,
    /// Ends of the last two appends: with two on the way, more waits to be sent as one (group commit).
    pub(super) flight: [Lsn; 2],
    /// The stable LSN that the lender was last told.
    pub(super) stable_told: Lsn,
    /// Since when the lender owes us an answer.
    pub(super) owing_since: Option<Time>,
    pub(super) ping_sent: Time,
    pub(super) ping_pending: bool,
    /// When bytes were last sent or received progress was made, for links that lose frames.
    pub(super) progress: Time,
    pub(super) lost_at: Option<Time>,
    /// What it had received and held when it was looked at last, and when that, or its owing nothing, was
    /// last news.
    pub(super) progress_seen: (Lsn, Lsn),
    pub(super) progress_at: Time,
    /// It made no progress, and is not asked to join before.
    pub(super) stalled_until: Option<Time>,
    /// Attempts to connect that failed since the connection last stood.
    pub(super) failures: u32,
    pub(super) withdrawn: bool,
    /// Why the lender would not take us as a client, and until when we do not ask again.
    pub(super) refused: Option<(LenderRefusal, Time)>,
    /// The number of the channel that the lender listens to over this connection; zero: none.
    pub(super) channel: u32,
    /// The number of the channel that it was last asked to listen to over this connection.
    pub(super) channel_invited: u32,
    /// It may have heard something in this reign, perhaps through a connection that we hold to be dead.
    pub(super) ever_listened: bool,
    /// It has fallen behind what is multicast and goes on over its own link until it has caught up.
    pub(super) lagging: bool,
    /// What it said it missed.
    pub(super) missing: MissingRanges,
    /// From `received` to here everything was handed to its own link, in order, and will come unless the link
    /// breaks.
    pub(super) link_end: Lsn,
    /// How long it takes to answer.
    pub(super) rtt: RttEstimator,
    /// When it was asked to listen.
    pub(super) invited_at: Time,
    /// The end of a frame that was multicast, and when: its answer is measured.
    pub(super) rtt_sample: Option<(Lsn, Time)>,
    /// The timer has sent it again what it had not answered for, and it has not answered since.
    pub(super) resent: bool,
    /// Times in a row that it went on only by what the timer sent it over its link.
    pub(super) resends_unheard: u32,
    /// Until when it is not asked to listen: multicast does not reach it.
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
            withdrawn: false,
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

    pub(super) fn is_ready(&self) -> bool {
        self.link == LinkPhase::Ready
    }

    /// Whether appends go to this lender.
    pub(super) fn takes_appends(&self) -> bool {
        self.is_ready() && matches!(self.role, LenderRole::CatchingUp(_) | LenderRole::Member)
    }

    /// Forgets a membership: nothing that this lender acknowledged counts any more.
    pub(super) fn dismiss(&mut self) {
        self.role = LenderRole::Spare;
        self.domain.clone_from(&self.link_domain);
        self.held = Lsn(0);
        self.received = Lsn(0);
    }

    /// Goes on over its own link behind what that was given: the rest may not have come by multicast.
    pub(super) fn resume_on_link(&mut self) {
        self.sent = self.received.max(self.link_end);
        self.flight = [self.sent; 2];
        self.missing.clear();
        self.rtt_sample = None;
    }

    /// Its link was given everything in between. What does not join on to what will come is of no promise.
    pub(super) fn on_link_sent(&mut self, from: Lsn, end: Lsn) {
        if from <= self.received.max(self.link_end) {
            self.link_end = self.link_end.max(end);
        }
    }

    /// Starts sending anew from `from`, which the lender holds (or we hold to be stable).
    pub(super) fn resume(&mut self, from: Lsn, now: Time) {
        self.received = from;
        self.link_end = from;
        self.progress = now;
        self.resume_on_link();
    }
}
