//! The lender's check of the order of frames on one connection.
//!
//! The first frame binds a session to one journal, or opens a session of another kind. Only a question for
//! the lender's status needs neither. Any other frame is misconduct and ends the session. The machine stores
//! nothing but the binding, so a peer that has not bound costs a lender only its connection.

pub mod side_work;

use crate::id::{JournalId, WriterId};
use crate::owner::{OwnerProof, is_owned};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::wire::{ByteReader, Flag, Frame, FrameKind};

/// The lender's side of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LenderSession {
    journal: Option<JournalId>,
    /// The journal or deposit whose key the client has proven to hold.
    owned: Option<JournalId>,
    /// Whether a proof has arrived, so that one session costs at most one check of a signature.
    has_proof: bool,
    /// Whether the client is the lender's own operator, who may end any journal.
    operator: bool,
    planted: FaultSwitch,
}

/// The lender's reaction to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// Bind this connection to the journal and answer `Bound`.
    Bind(JournalId, WriterId),
    /// Answer with the lender's status.
    Status,
    /// Drain the lender, or with `false` end that, and answer with its status.
    Drain(bool),
    /// Lend at most this many bytes, and answer with its status.
    Offer(u64),
    /// Check the proof's signature for this link. If it is right, report it with [`LenderSession::prove`];
    /// otherwise end the session.
    Prove(OwnerProof),
    /// Subscribe the journal to the channel that the frame names, and answer `Listening`.
    Invite(JournalId),
    /// Hand this frame and all later ones to the server of replicas on this machine's disk: a data session.
    Data,
    /// The peer wants a session of a shared region, which another program serves: answer `Refuse(NoRegion)`.
    Share,
    /// Hand this frame and all later ones to the server of deposits: pages of another machine's memory.
    Deposit,
    /// Hand the frame to the journal's member.
    Member(JournalId),
}

/// The frame is not allowed at this point. The lender answers `Refuse(Malformed)` and ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// The peer sent a frame for a journal, a replica or a deposit before it opened such a session.
    NotBound,
    /// The peer opened a session twice.
    BoundTwice,
    /// The peer sent a frame that only lenders send.
    WrongDirection,
    /// The body of `Bind` is not a journal id.
    BadBind,
    /// The peer sent a second proof, one after binding, or one of a wrong length.
    BadProof,
    /// The journal, deposit or copy has an owner, and the peer has not proven to be it.
    NotOwner,
    /// The peer sent an order and is not the lender's operator.
    NotOperator,
}

impl core::fmt::Display for SessionError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(match self {
            SessionError::NotBound => "a frame for a journal before the session was bound to a journal",
            SessionError::BoundTwice => "a second bind in one session",
            SessionError::WrongDirection => "a frame that only lenders send",
            SessionError::BadBind => "a bind without a valid journal id",
            SessionError::BadProof => "a proof of ownership that is misplaced or malformed",
            SessionError::NotOwner => "a journal, deposit or copy without proof that the client owns it",
            SessionError::NotOperator => "an order from a client that is not the lender's operator",
        })
    }
}

impl core::error::Error for SessionError {}

impl LenderSession {
    /// The journal that this session is bound to.
    pub fn journal(&self) -> Option<JournalId> {
        self.journal
    }

    /// Notes that the client is the lender's operator, who may bind any journal.
    pub fn trust_operator(&mut self) {
        self.operator = true;
    }

    /// Plants a fault (simulator tests only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Notes that the client holds the key whose owned id is `id`.
    pub fn prove(&mut self, id: u128) {
        self.owned = Some(JournalId(id));
    }

    /// Whether the client may bind `journal`, or open the deposit of this id.
    fn may_bind(&self, journal: JournalId) -> bool {
        let free = !is_owned(journal.0) || self.operator;
        free || self.owned == Some(journal) || self.planted.is(PlantedFault::OwnerIgnored)
    }

    /// Whether the client may write to the copy that a `Follow` frame names: it owns the volume's journal,
    /// whose id follows the volume's. A body too short for that is left to the server of copies.
    fn may_follow(&self, frame: &Frame<'_>) -> bool {
        let mut body = ByteReader::new(frame.body);
        let (Ok(_volume), Ok(journal)) = (body.u128(), body.u128()) else {
            return true;
        };
        let is_owner = !is_owned(journal) || self.owned == Some(JournalId(journal));
        is_owner || self.planted.is(PlantedFault::CopyOwnerIgnored)
    }

    /// Checks that a frame is allowed at this point of the session.
    ///
    /// # Errors
    ///
    /// The frame is not allowed here; see [`SessionError`].
    pub fn handle(&mut self, frame: &Frame<'_>) -> Result<SessionAction, SessionError> {
        match frame.header.kind {
            FrameKind::Bind => self.on_bind(frame),
            FrameKind::Status => Ok(SessionAction::Status),
            FrameKind::Drain | FrameKind::Offer if !self.operator => Err(SessionError::NotOperator),
            FrameKind::Drain => Ok(SessionAction::Drain(frame.header.flags & Flag::UNDRAIN == 0)),
            FrameKind::Offer => Ok(SessionAction::Offer(frame.header.lsn.0)),
            FrameKind::Prove => self.on_prove(frame),
            FrameKind::Invite => self
                .journal
                .map(SessionAction::Invite)
                .ok_or(SessionError::NotBound),
            FrameKind::Follow | FrameKind::Inquire if self.journal.is_some() => Err(SessionError::BoundTwice),
            FrameKind::Follow if !self.may_follow(frame) => Err(SessionError::NotOwner),
            FrameKind::Follow | FrameKind::Inquire => Ok(SessionAction::Data),
            FrameKind::Share => match self.journal {
                None => Ok(SessionAction::Share),
                Some(_) => Err(SessionError::BoundTwice),
            },
            FrameKind::Deposit => match (self.journal, ByteReader::new(frame.body).u128()) {
                (None, Ok(id)) if !self.may_bind(JournalId(id)) => Err(SessionError::NotOwner),
                (None, _) => Ok(SessionAction::Deposit),
                (Some(_), _) => Err(SessionError::BoundTwice),
            },
            FrameKind::Resize | FrameKind::Put | FrameKind::Get | FrameKind::Gather => {
                Err(SessionError::NotBound)
            }
            FrameKind::Records
            | FrameKind::StoreView
            | FrameKind::Resync
            | FrameKind::Digests
            | FrameKind::Blocks
            | FrameKind::ResyncEnd
            | FrameKind::Fetch => Err(SessionError::NotBound),
            FrameKind::Fence
            | FrameKind::Join
            | FrameKind::Append
            | FrameKind::Ping
            | FrameKind::Read
            | FrameKind::Leave => self
                .journal
                .map(SessionAction::Member)
                .ok_or(SessionError::NotBound),
            FrameKind::Bound
            | FrameKind::Fenced
            | FrameKind::Ack
            | FrameKind::Pong
            | FrameKind::Data
            | FrameKind::LeaveAck
            | FrameKind::Report
            | FrameKind::Refuse
            | FrameKind::Withdraw
            | FrameKind::Listening
            | FrameKind::Missing
            | FrameKind::Following
            | FrameKind::Flushed
            | FrameKind::ViewStored
            | FrameKind::DigestReply
            | FrameKind::Stored
            | FrameKind::Fetched
            | FrameKind::BadBlocks
            | FrameKind::Replica
            | FrameKind::ShareAck
            | FrameKind::DepositAck
            | FrameKind::PutAck
            | FrameKind::GetReply
            | FrameKind::GatherReply
            | FrameKind::ProbeReply => Err(SessionError::WrongDirection),
        }
    }

    fn on_prove(&mut self, frame: &Frame<'_>) -> Result<SessionAction, SessionError> {
        let proof = OwnerProof::parse(frame.body).ok_or(SessionError::BadProof)?;
        if self.journal.is_some() || self.has_proof {
            return Err(SessionError::BadProof);
        }
        self.has_proof = true;
        Ok(SessionAction::Prove(proof))
    }

    fn on_bind(&mut self, frame: &Frame<'_>) -> Result<SessionAction, SessionError> {
        if self.journal.is_some() {
            return Err(SessionError::BoundTwice);
        }
        let mut body = ByteReader::new(frame.body);
        let journal = JournalId(body.u128().map_err(|_| SessionError::BadBind)?);
        if !body.rest().is_empty() {
            return Err(SessionError::BadBind);
        }
        if !self.may_bind(journal) {
            return Err(SessionError::NotOwner);
        }
        self.journal = Some(journal);
        Ok(SessionAction::Bind(journal, WriterId(frame.header.sender)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::owned_id;
    use crate::wire::FrameHeader;

    fn frame(kind: FrameKind, body: &[u8]) -> Frame<'_> {
        Frame {
            header: FrameHeader {
                sender: 5,
                ..FrameHeader::new(kind)
            },
            body,
        }
    }

    #[test]
    fn a_session_binds_once_and_then_serves_its_journal() {
        let mut session = LenderSession::default();
        assert_eq!(
            session.handle(&frame(FrameKind::Append, &[])),
            Err(SessionError::NotBound)
        );
        let id = 7u128.to_le_bytes();
        assert_eq!(
            session.handle(&frame(FrameKind::Bind, &id)),
            Ok(SessionAction::Bind(JournalId(7), WriterId(5)))
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Bind, &id)),
            Err(SessionError::BoundTwice)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Append, &[])),
            Ok(SessionAction::Member(JournalId(7)))
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Invite, &[])),
            Ok(SessionAction::Invite(JournalId(7)))
        );
    }

    #[test]
    fn an_owned_journal_is_bound_by_its_owner_or_the_operator_only() {
        let (ours, theirs) = (owned_id(&[1; 32]), owned_id(&[2; 32]));
        let bind = |mut session: LenderSession, id: u128| {
            let bound = session.handle(&frame(FrameKind::Bind, &id.to_le_bytes()));
            bound.map(|_| ())
        };
        let mut proven = LenderSession::default();
        proven.prove(ours);
        let deposit = |mut session: LenderSession, id: u128| {
            let opened = session.handle(&frame(FrameKind::Deposit, &id.to_le_bytes()));
            opened.map(|_| ())
        };
        assert_eq!(deposit(proven, ours), Ok(()));
        assert_eq!(deposit(proven, theirs), Err(SessionError::NotOwner));
        assert_eq!(bind(proven, ours), Ok(()));
        assert_eq!(bind(proven, theirs), Err(SessionError::NotOwner));
        assert_eq!(bind(proven, 7), Ok(()), "it has no owner");
        assert_eq!(bind(LenderSession::default(), ours), Err(SessionError::NotOwner));
        let mut operator = LenderSession::default();
        operator.trust_operator();
        assert_eq!(bind(operator, ours), Ok(()));
    }

    #[test]
    fn a_lender_drains_on_its_operators_word_only() {
        let mut order = frame(FrameKind::Drain, &[]);
        let mut client = LenderSession::default();
        client.prove(owned_id(&[1; 32]));
        assert_eq!(client.handle(&order), Err(SessionError::NotOperator));
        let mut operator = LenderSession::default();
        operator.trust_operator();
        assert_eq!(operator.handle(&order), Ok(SessionAction::Drain(true)));
        order.header.flags = Flag::UNDRAIN;
        assert_eq!(operator.handle(&order), Ok(SessionAction::Drain(false)));
        let mut order = frame(FrameKind::Offer, &[]);
        order.header.lsn.0 = 7;
        assert_eq!(client.handle(&order), Err(SessionError::NotOperator));
        assert_eq!(operator.handle(&order), Ok(SessionAction::Offer(7)));
    }

    #[test]
    fn a_copy_is_followed_by_the_owner_of_its_journal_only() {
        let (ours, theirs) = (owned_id(&[1; 32]), owned_id(&[2; 32]));
        let mut proven = LenderSession::default();
        proven.prove(ours);
        let mut operator = LenderSession::default();
        operator.trust_operator();
        let follow = |mut session: LenderSession, journal: u128| {
            let body = [7u128.to_le_bytes(), journal.to_le_bytes()].concat();
            session.handle(&frame(FrameKind::Follow, &body))
        };
        let data = Ok(SessionAction::Data);
        assert_eq!(follow(proven, ours), data);
        assert_eq!(follow(proven, 7), data, "it has no owner");
        for stranger in [LenderSession::default(), proven, operator] {
            assert_eq!(follow(stranger, theirs), Err(SessionError::NotOwner));
        }
        let id = theirs.to_le_bytes();
        let inquired = LenderSession::default().handle(&frame(FrameKind::Inquire, &id));
        assert_eq!(inquired, data);
    }

    #[test]
    fn a_session_takes_one_proof_and_none_once_it_is_bound() {
        let proof = OwnerProof {
            public: [1; 32],
            signature: [2; 64],
        };
        let body = proof.encode();
        let mut session = LenderSession::default();
        assert_eq!(
            session.handle(&frame(FrameKind::Prove, &body[1..])),
            Err(SessionError::BadProof)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Prove, &body)),
            Ok(SessionAction::Prove(proof))
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Prove, &body)),
            Err(SessionError::BadProof)
        );
        let mut session = LenderSession::default();
        session
            .handle(&frame(FrameKind::Bind, &7u128.to_le_bytes()))
            .unwrap();
        assert_eq!(
            session.handle(&frame(FrameKind::Prove, &body)),
            Err(SessionError::BadProof)
        );
    }

    #[test]
    fn misplaced_frames_are_refused() {
        let mut session = LenderSession::default();
        assert_eq!(
            session.handle(&frame(FrameKind::Bind, &[1, 2])),
            Err(SessionError::BadBind)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Bind, &[0; 17])),
            Err(SessionError::BadBind)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Ack, &[])),
            Err(SessionError::WrongDirection)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Invite, &[])),
            Err(SessionError::NotBound)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Status, &[])),
            Ok(SessionAction::Status)
        );
    }

    #[test]
    fn a_session_serves_one_purpose_only() {
        let mut session = LenderSession::default();
        assert_eq!(
            session.handle(&frame(FrameKind::Follow, &[])),
            Ok(SessionAction::Data)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Inquire, &[])),
            Ok(SessionAction::Data)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Share, &[])),
            Ok(SessionAction::Share)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Deposit, &[])),
            Ok(SessionAction::Deposit)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Put, &[])),
            Err(SessionError::NotBound)
        );
        assert_eq!(
            session.handle(&frame(FrameKind::Records, &[])),
            Err(SessionError::NotBound)
        );
        let id = 7u128.to_le_bytes();
        assert!(session.handle(&frame(FrameKind::Bind, &id)).is_ok());
        assert_eq!(
            session.handle(&frame(FrameKind::Follow, &[])),
            Err(SessionError::BoundTwice)
        );
        for kind in [FrameKind::Share, FrameKind::Deposit] {
            assert_eq!(session.handle(&frame(kind, &[])), Err(SessionError::BoundTwice));
        }
    }
}
