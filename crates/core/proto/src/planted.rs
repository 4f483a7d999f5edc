//! Faults that the simulator's own test switches on, one at a time, to show that the simulator finds them.
//!
//! Each is one line of a machine gone wrong. Without the crate feature `planted` the type is empty,
//! [`FaultSwitch::is`] is `false` at compile time, and no trace of this is left in a build.

/// One planted fault. The number in brackets is the rule of `docs/failure-model.md` that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// (1) The writer acknowledges when *any* member holds a record, whatever the commit rule says.
    AnyInsteadOfRule,
    /// (1) Acknowledgements of an earlier join or incarnation count.
    StaleAckCounts,
    /// (1) What was multicast counts as held by whoever listens.
    MulticastCountsAsHeld,
    /// (2) A member acknowledges bytes that it has received but not verified as whole records.
    AckUnverified,
    /// (2) A member takes an append that leaves a gap before it.
    AcceptGap,
    /// (3) A proposed view counts before it is durable.
    ViewBeforeDurable,
    /// (3) A view may be stored although acknowledged records do not satisfy it yet.
    NoViewGate,
    /// (4) A sealed member still takes appends of a lower epoch.
    MemberFenceIgnored,
    /// (4) A writer that has been fenced goes on.
    WriterFenceIgnored,
    /// (4) A lender forgets a seal although nobody has said that the journal is over.
    FenceForgotten,
    /// (4) A member that leaves the view is told that the journal was closed whole.
    ClosedTooEarly,
    /// (5) Recovery reads a member's window before sealing it.
    ReadBeforeFence,
    /// (5) Recovery is content with one answer, whatever the commit rule says.
    OneAnswerSuffices,
    /// (5) A lender that restarted empty counts as having answered.
    AmnesiacCounts,
    /// (5) Recovery gives the members up before what it took from them is synced.
    ReleaseBeforeSync,
    /// (6) A record in doubt is taken though a part of it is missing.
    TornRecordAccepted,
    /// (6) What is spooled is logged after the commit that comes after it.
    SpoolAfterFlush,
    /// (6) What is spooled is forgotten when something must be safe.
    SpoolDropped,
    /// (6) A page of a file is cut in two records, between which the journal may end.
    PageCut,
    /// (6) Recovery takes a record that a member gave and that its seal does not prove.
    ForgeryAccepted,
    /// (7) Records are accepted without checking that they chain to their predecessor.
    ChainUnchecked,
    /// (8) A bad record below the stable LSN is taken for the end of the log.
    CorruptionIsEnd,
    /// (8) A cut-off commit is reported as done.
    CutOffIsDone,
    /// (9) A failed sync is retried, and the retry believed.
    SyncRetried,
    /// (10) The writer tells members to drop what is acknowledged rather than what is stable.
    TrimAboveStable,
    /// (10) A full member overwrites its oldest bytes.
    OverrunAccepted,
    /// (11) A read's length is believed as the peer gave it.
    LengthBelieved,
    /// (12) A data lender says that it has what it has not synced.
    FlushedBeforeSync,
    /// (12) A replica is called whole before its log has reached what its blocks may show.
    ReplicaWholeTooEarly,
    /// (12) A restore is content with some of the members, or with windows that begin above the replica's
    /// end.
    RestoreUnproven,
    /// (12) A restore seals a member before it asks who had sealed it.
    FencedBeforeProbe,
    /// (12) A resync sends blocks with writes that the client's disk does not have yet.
    SentBeforeDisk,
    /// (13) The local disk of a shared journal votes.
    DiskVotes,
    /// (13) A view of a shared journal counts before the server has it.
    ViewBeforeServer,
    /// (13) Members drop what is stable and the server lacks.
    DroppedBeforeServer,
    /// (14) A lender takes frames of a deposit's earlier session.
    SessionUnfenced,
    /// (14) An owner takes the answer to a page's earlier version for that to the one on its way.
    OldAckCounts,
    /// (14) A page may go from its owner's memory before all its places hold it.
    EvictedBeforeStored,
    /// (14) What an owner had in a deposit's earlier life is still looked for there, and nowhere else.
    DepositLifeIgnored,
    /// (14) A slot is not given back when its page is put elsewhere.
    SlotLeaked,
    /// (14) What could not be written to the spill file counts as written.
    UnwrittenCounts,
    /// (14) Blocks that were asked for are given although their page was put anew meanwhile.
    OldBlocksGiven,
    /// (14) An owner gives slots that were asked back up while pages are in them.
    SlotsBeforePages,
    /// (14) An owner that comes back looks for slots that it has given up, and takes a deposit without them
    /// for another one.
    GivenUpIsCounted,
    /// (0) A page is asked of a lender that is late, and of nobody else although another one has it.
    LateAwaited,
    /// (17) A call that the system refused is taken for a failed sync.
    RefusalIsFinal,
    /// (17) Recovery removes a file that was made since the checkpoint, and makes it anew from records: it
    /// has none of bytes that were not recorded.
    UnrecordedRemoved,
    /// (17) A thread that upholds a promise ends at the first refusal.
    ServiceThreadEnds,
    /// (24) A log that is a copy, or older than a segment, is applied to it all the same.
    StampIgnored,
    /// (17) Recovery of a database believes the page cache that a failed sync has left.
    CacheTrusted,
    /// (17) A call that was refused for want of descriptors counts as a failed sync.
    RefusalIsFailure,
    /// (18) A process settles a database before it has the lock of the journal that it is about to empty.
    CheckpointBeforeLock,
    /// (16) A lender is a member under each of its addresses.
    AliasJoins,
    /// (16) Recovery takes a window that was joined anew since the view was stored.
    JoinIgnored,
    /// (16) Recovery asks the addresses in the view and no others.
    MovedCountsAsGone,
    /// (19) A journal is called clean while the disk lacks something.
    CleanTooEarly,
    /// (19) Members count although the durable view calls the journal clean.
    CountsWhileClean,
    /// (20) Recovery believes what a member says that it holds.
    OverclaimBelieved,
    /// (20) A writer that stood still holds that against its members.
    PauseHeldAgainst,
    /// (20) A member that answers and never makes progress stays one.
    StallAllowed,
    /// (18) An opening claims and seals before it has asked whether it can succeed.
    FenceBeforeProof,
    /// (23) Lenders free what a deleted log did not have: the log may have been a copy, and its original
    /// needs it.
    HoldingsForgotten,
    /// (0) The clock by which a node of a shared region counts its lease stands still while its machine
    /// sleeps.
    SleepStopsClock,
    /// (0) A node of a shared region believes in a link to its server, however long that has been silent.
    SilenceTrusted,
    /// (0) A listener that takes longer than the timer is taken for one that hears nothing.
    SlowIsDeaf,
}

impl PlantedFault {
    /// All of them, in the order of the rules.
    pub const ALL: [PlantedFault; 65] = [
        PlantedFault::AnyInsteadOfRule,
        PlantedFault::StaleAckCounts,
        PlantedFault::MulticastCountsAsHeld,
        PlantedFault::AckUnverified,
        PlantedFault::AcceptGap,
        PlantedFault::ViewBeforeDurable,
        PlantedFault::NoViewGate,
        PlantedFault::MemberFenceIgnored,
        PlantedFault::WriterFenceIgnored,
        PlantedFault::FenceForgotten,
        PlantedFault::ClosedTooEarly,
        PlantedFault::ReadBeforeFence,
        PlantedFault::OneAnswerSuffices,
        PlantedFault::AmnesiacCounts,
        PlantedFault::ReleaseBeforeSync,
        PlantedFault::TornRecordAccepted,
        PlantedFault::SpoolAfterFlush,
        PlantedFault::SpoolDropped,
        PlantedFault::PageCut,
        PlantedFault::ForgeryAccepted,
        PlantedFault::ChainUnchecked,
        PlantedFault::CorruptionIsEnd,
        PlantedFault::CutOffIsDone,
        PlantedFault::SyncRetried,
        PlantedFault::TrimAboveStable,
        PlantedFault::OverrunAccepted,
        PlantedFault::LengthBelieved,
        PlantedFault::FlushedBeforeSync,
        PlantedFault::ReplicaWholeTooEarly,
        PlantedFault::RestoreUnproven,
        PlantedFault::FencedBeforeProbe,
        PlantedFault::SentBeforeDisk,
        PlantedFault::DiskVotes,
        PlantedFault::ViewBeforeServer,
        PlantedFault::DroppedBeforeServer,
        PlantedFault::SessionUnfenced,
        PlantedFault::OldAckCounts,
        PlantedFault::EvictedBeforeStored,
        PlantedFault::DepositLifeIgnored,
        PlantedFault::SlotLeaked,
        PlantedFault::UnwrittenCounts,
        PlantedFault::OldBlocksGiven,
        PlantedFault::SlotsBeforePages,
        PlantedFault::GivenUpIsCounted,
        PlantedFault::LateAwaited,
        PlantedFault::RefusalIsFinal,
        PlantedFault::UnrecordedRemoved,
        PlantedFault::ServiceThreadEnds,
        PlantedFault::StampIgnored,
        PlantedFault::CacheTrusted,
        PlantedFault::RefusalIsFailure,
        PlantedFault::CheckpointBeforeLock,
        PlantedFault::AliasJoins,
        PlantedFault::JoinIgnored,
        PlantedFault::MovedCountsAsGone,
        PlantedFault::CleanTooEarly,
        PlantedFault::CountsWhileClean,
        PlantedFault::OverclaimBelieved,
        PlantedFault::PauseHeldAgainst,
        PlantedFault::StallAllowed,
        PlantedFault::FenceBeforeProof,
        PlantedFault::HoldingsForgotten,
        PlantedFault::SleepStopsClock,
        PlantedFault::SilenceTrusted,
        PlantedFault::SlowIsDeaf,
    ];
}

/// Which fault, if any, is planted in a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSwitch {
    #[cfg(feature = "planted")]
    fault: Option<PlantedFault>,
}

impl FaultSwitch {
    /// No fault: the only value that a shipped build can make.
    pub const NONE: FaultSwitch = FaultSwitch {
        #[cfg(feature = "planted")]
        fault: None,
    };

    /// Plants `fault`.
    #[cfg(feature = "planted")]
    pub const fn with(fault: PlantedFault) -> FaultSwitch {
        FaultSwitch { fault: Some(fault) }
    }

    /// Whether `fault` is planted here.
    #[inline(always)]
    pub fn is(self, fault: PlantedFault) -> bool {
        #[cfg(feature = "planted")]
        return self.fault == Some(fault);
        #[cfg(not(feature = "planted"))]
        {
            let _ = fault;
            false
        }
    }
}
