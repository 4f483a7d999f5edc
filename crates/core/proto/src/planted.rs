//! Faults that the simulator's own test switches on, one at a time, to prove that the simulator finds them.
//!
//! Each changes one line of a machine. Without the crate feature `planted` the switch is empty,
//! [`FaultSwitch::is`] is `false` at compile time, and no trace of it is left in a build.

/// One planted fault. The number in parentheses is the rule of `docs/design/failure-model.md` that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// (1) The writer acknowledges when *any* member holds a record, whatever the commit rule says.
    AnyInsteadOfRule,
    /// (1) Acknowledgements of an earlier join or incarnation count.
    StaleAckCounts,
    /// (1) Multicast bytes count as held by every listener.
    MulticastCountsAsHeld,
    /// (2) A member acknowledges bytes that it has received but not verified as whole records.
    AckUnverified,
    /// (2) A member accepts an append that leaves a gap before it.
    AcceptGap,
    /// (3) A proposed view counts before it is durable.
    ViewBeforeDurable,
    /// (3) A view may be stored although acknowledged records do not satisfy it yet.
    NoViewGate,
    /// (3) A member whose lender drains leaves before another has taken its place.
    LeavesUnreplaced,
    /// (3) A member whose lender asks its window back leaves although nothing can take its place.
    ReclaimTakesCopy,
    /// (3) A changed commit rule counts before the view with it is durable.
    RuleBeforeDurable,
    /// (3) A removed member is told to free its window while the durable view names it.
    RemovedAtOnce,
    /// (4) A fenced member still accepts appends of a lower epoch.
    MemberFenceIgnored,
    /// (4) A fenced writer continues.
    WriterFenceIgnored,
    /// (4) A lender forgets a fence although the journal has not ended.
    FenceForgotten,
    /// (4) A member that leaves the view is told that the journal was closed cleanly.
    ClosedTooEarly,
    /// (5) Recovery reads a member's window before it fences the member.
    ReadBeforeFence,
    /// (5) Recovery accepts one answer as enough, whatever the commit rule says.
    OneAnswerSuffices,
    /// (5) A lender that restarted empty counts as having answered.
    AmnesiacCounts,
    /// (5) Recovery releases the members before the records taken from them are synced.
    ReleaseBeforeSync,
    /// (6) Recovery accepts a record that is incomplete.
    TornRecordAccepted,
    /// (6) Spooled commits are logged after the commit that follows them.
    SpoolAfterFlush,
    /// (6) Spooled commits are dropped when a flush is due.
    SpoolDropped,
    /// (6) A page of a file is split over two records, between which the journal may end.
    PageCut,
    /// (6) Recovery accepts a record from a member whose AEAD tag does not verify.
    ForgeryAccepted,
    /// (7) Records are accepted without checking that they chain to their predecessor.
    ChainUnchecked,
    /// (8) A bad record below the stable LSN is treated as the end of the log.
    CorruptionIsEnd,
    /// (8) A cut-off commit is reported as done.
    CutOffIsDone,
    /// (9) A failed sync is retried, and the retry is trusted.
    SyncRetried,
    /// (10) The writer tells members to drop what is acknowledged instead of what is stable.
    TrimAboveStable,
    /// (10) A full member overwrites its oldest bytes.
    OverrunAccepted,
    /// (11) A member uses the length of a read as the peer sent it.
    LengthBelieved,
    /// (12) A data lender reports bytes as durable before it has synced them.
    FlushedBeforeSync,
    /// (12) A replica counts as consistent before its log has reached the state that its blocks may show.
    ReplicaWholeTooEarly,
    /// (12) A restore accepts answers of only some members, or windows that begin above the replica's end.
    RestoreUnproven,
    /// (12) A restore fences a member before it asks which epoch had fenced it.
    FencedBeforeProbe,
    /// (12) A resync sends blocks with writes that the client's disk does not have yet.
    SentBeforeDisk,
    /// (13) The local disk of a shared journal counts as a voter.
    DiskVotes,
    /// (13) A view of a shared journal counts before the server has it.
    ViewBeforeServer,
    /// (13) Members drop bytes that are stable but that the server lacks.
    DroppedBeforeServer,
    /// (14) A lender accepts frames of a deposit's earlier session.
    SessionUnfenced,
    /// (14) An owner takes the answer for an earlier version of a page as the answer for the version in
    /// flight.
    OldAckCounts,
    /// (14) A page may leave its owner's memory before all its copies are stored.
    EvictedBeforeStored,
    /// (14) An owner looks for pages of a deposit's earlier life in that deposit, and nowhere else.
    DepositLifeIgnored,
    /// (14) A slot is not freed when its page is stored elsewhere.
    SlotLeaked,
    /// (14) A failed write to the spill file counts as written.
    UnwrittenCounts,
    /// (14) Requested blocks are returned although their page was stored anew in the meantime.
    OldBlocksGiven,
    /// (14) An owner returns reclaimed slots while pages are still in them.
    SlotsBeforePages,
    /// (14) A returning owner expects slots that it has given up, and takes a deposit without them for
    /// another deposit.
    GivenUpIsCounted,
    /// (0) A page is requested only from a slow lender although another one has it too.
    LateAwaited,
    /// (17) A call that the system refused is treated as a failed sync.
    RefusalIsFinal,
    /// (17) Recovery removes a file created since the checkpoint and rebuilds it from records, which lack its
    /// unrecorded bytes.
    UnrecordedRemoved,
    /// (17) A background thread ends at the first refused call.
    ServiceThreadEnds,
    /// (17) A mount's server that takes over executes every request again that the killed one left
    /// unanswered.
    ExecutedForgotten,
    /// (17) A mount's server that takes over replays contents over the files that programs have open.
    ContentsReplayed,
    /// (5) A mount's server that takes over trims the journal without syncing the files.
    TakenOverUnsynced,
    /// (24) A log that is a copy, or older than a segment, is applied to the segment.
    StampIgnored,
    /// (17) Recovery of a database trusts the page cache after a failed sync.
    CacheTrusted,
    /// (17) A call that failed for lack of descriptors counts as a failed sync.
    RefusalIsFailure,
    /// (18) A process checkpoints a database before it holds the lock of the journal that it is about to
    /// empty.
    CheckpointBeforeLock,
    /// (16) A lender is a member under each of its addresses.
    AliasJoins,
    /// (16) Recovery accepts a window that was joined again after the view was stored.
    JoinIgnored,
    /// (15) A lender lets a client bind a journal that the client does not own.
    OwnerIgnored,
    /// (15) A region's server lets a session speak for a node whose journal its client does not own.
    NodeOwnerIgnored,
    /// (15) A data lender lets a client follow a copy whose journal the client does not own.
    CopyOwnerIgnored,
    /// (15) A client believes a lender that claims a fence which the journal's owner has not signed.
    UnsignedFenceBelieved,
    /// (16) Recovery asks only the addresses in the view.
    MovedCountsAsGone,
    /// (19) A journal is marked clean while the disk lacks records.
    CleanTooEarly,
    /// (19) Members count although the durable view calls the journal clean.
    CountsWhileClean,
    /// (20) Recovery believes a member that claims to hold more than its window can.
    OverclaimBelieved,
    /// (20) A writer counts its own pauses against its members.
    PauseHeldAgainst,
    /// (20) A member that answers but makes no progress stays a member.
    StallAllowed,
    /// (20) Any lender's word that a newer writer has fenced it stops the writer, whatever epoch it names.
    FenceBelieved,
    /// (4) No member's word that a newer writer has fenced it ever stops the writer.
    FenceClaimIgnored,
    /// (4) The word of a lender that moved does not count for the address that it left.
    MovedClaimIgnored,
    /// (18) An opening claims and fences before it has probed whether it can succeed.
    FenceBeforeProof,
    /// (21) Records are sealed under the journal's own key, whatever salt the epoch has.
    SaltIgnored,
    /// (23) Lenders free bytes that a deleted log did not have, though the log may have been a copy whose
    /// original needs them.
    HoldingsForgotten,
    /// (23) A window that was written to a disk accepts further appends.
    SpilledWindowGrows,
    /// (23) A memory of which a spill exists goes on under its incarnation.
    ClosedStoreServes,
    /// (23) The memory of a silent client's window is dropped before its file is complete.
    SilentDroppedEarly,
    /// (23) The window of a silent client is written to its file while it may still grow.
    SilentNotFrozen,
    /// (20) All clients of a lender share one account, whatever their names.
    LimitSharedAcrossNames,
    /// (23) A lender drops the windows of a client whose key is revoked.
    RevokedWindowDropped,
    /// (0) A lender goes on asking for windows when its machine has memory again.
    ReclaimNeverEnds,
    /// (25) A power failure of this machine's own domain is said to spare this machine.
    OwnDomainSpared,
    /// (0) The clock for a node's lease on a shared region stops while its machine sleeps.
    SleepStopsClock,
    /// (0) A node of a shared region trusts its link to the server however long that has been silent.
    SilenceTrusted,
    /// (0) A listener slower than the timer is treated as one that hears nothing.
    SlowIsDeaf,
}

impl PlantedFault {
    /// All faults, in the order of their rules.
    pub const ALL: [PlantedFault; 88] = [
        PlantedFault::AnyInsteadOfRule,
        PlantedFault::StaleAckCounts,
        PlantedFault::MulticastCountsAsHeld,
        PlantedFault::AckUnverified,
        PlantedFault::AcceptGap,
        PlantedFault::ViewBeforeDurable,
        PlantedFault::NoViewGate,
        PlantedFault::LeavesUnreplaced,
        PlantedFault::ReclaimTakesCopy,
        PlantedFault::RuleBeforeDurable,
        PlantedFault::RemovedAtOnce,
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
        PlantedFault::ExecutedForgotten,
        PlantedFault::ContentsReplayed,
        PlantedFault::TakenOverUnsynced,
        PlantedFault::StampIgnored,
        PlantedFault::CacheTrusted,
        PlantedFault::RefusalIsFailure,
        PlantedFault::CheckpointBeforeLock,
        PlantedFault::AliasJoins,
        PlantedFault::JoinIgnored,
        PlantedFault::OwnerIgnored,
        PlantedFault::NodeOwnerIgnored,
        PlantedFault::CopyOwnerIgnored,
        PlantedFault::UnsignedFenceBelieved,
        PlantedFault::MovedCountsAsGone,
        PlantedFault::CleanTooEarly,
        PlantedFault::CountsWhileClean,
        PlantedFault::OverclaimBelieved,
        PlantedFault::PauseHeldAgainst,
        PlantedFault::StallAllowed,
        PlantedFault::FenceBelieved,
        PlantedFault::FenceClaimIgnored,
        PlantedFault::MovedClaimIgnored,
        PlantedFault::FenceBeforeProof,
        PlantedFault::SaltIgnored,
        PlantedFault::HoldingsForgotten,
        PlantedFault::SpilledWindowGrows,
        PlantedFault::ClosedStoreServes,
        PlantedFault::SilentDroppedEarly,
        PlantedFault::SilentNotFrozen,
        PlantedFault::LimitSharedAcrossNames,
        PlantedFault::RevokedWindowDropped,
        PlantedFault::ReclaimNeverEnds,
        PlantedFault::OwnDomainSpared,
        PlantedFault::SleepStopsClock,
        PlantedFault::SilenceTrusted,
        PlantedFault::SlowIsDeaf,
    ];
}

/// The fault, if any, that is planted in a machine.
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
