//! Every fault that can be planted in the machines, one at a time, breaks a rule within a bounded number of
//! seeds. A fault that is not found means a scenario or an oracle that no longer tests anything.

use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_sim::region::REGION_RULES;
use netram_sim::runner::{SeedFailure, run_seed};
use netram_sim::scenario::{
    has_copy, has_data_lender, has_drains, has_named_clients, has_pressure, has_spills, is_database,
    is_deposit, is_elastic, is_intruded, is_region, is_rolled_back, is_shared,
};

/// Maximum number of seeds until a fault is found. Most need fewer than a hundred.
const SEEDS_MAX: u64 = 100_000;

/// Faults that one world in 10,000 finds, and a seed that has found each, which is tried first.
const RARE: [(PlantedFault, u64); 1] = [(PlantedFault::MovedClaimIgnored, 45_041)];

/// These need a journal of a shared region's node; other worlds are left out.
const OF_NODES: [PlantedFault; 3] = [
    PlantedFault::DiskVotes,
    PlantedFault::ViewBeforeServer,
    PlantedFault::DroppedBeforeServer,
];

/// These need nodes of a shared region and their server; all other worlds are left out.
const OF_REGIONS: [PlantedFault; 3] = [
    PlantedFault::SleepStopsClock,
    PlantedFault::SilenceTrusted,
    PlantedFault::NodeOwnerIgnored,
];
/// Rule numbers of `docs/design/shared.md`: a node that holds a lock has everything acknowledged under it,
/// every acquire ends, and a node is its owner's.
const REGION_GRANTED: u8 = REGION_RULES + 5;
const REGION_ENDS: u8 = REGION_RULES + 9;
const REGION_OWNER: u8 = REGION_RULES + 13;

/// These need an owner with pages at lenders; all other worlds are left out.
const OF_DEPOSITS: [PlantedFault; 10] = [
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
];

/// These need lenders whose machines lack memory; the worlds that have none are left out.
const OF_PRESSURE: [PlantedFault; 2] = [PlantedFault::ReclaimTakesCopy, PlantedFault::ReclaimNeverEnds];

/// These need lenders whose clients have names; the worlds that have none are left out.
const OF_NAMED_CLIENTS: [PlantedFault; 2] = [
    PlantedFault::LimitSharedAcrossNames,
    PlantedFault::RevokedWindowDropped,
];

/// These need orders that change lenders, rule and number of members; all other worlds are left out.
const OF_ELASTIC: [PlantedFault; 2] = [PlantedFault::RuleBeforeDurable, PlantedFault::RemovedAtOnce];

/// These need several processes that have a database open; all other worlds are left out.
const OF_PARTIES: [PlantedFault; 3] = [
    PlantedFault::CacheTrusted,
    PlantedFault::RefusalIsFailure,
    PlantedFault::CheckpointBeforeLock,
];

/// These need lenders that write their memory to their disks; all other worlds are left out.
const OF_SPILLS: [PlantedFault; 4] = [
    PlantedFault::SpilledWindowGrows,
    PlantedFault::ClosedStoreServes,
    PlantedFault::SilentDroppedEarly,
    PlantedFault::SilentNotFrozen,
];

/// These need a data lender; the worlds that have none are left out.
const OF_REPLICAS: [PlantedFault; 6] = [
    PlantedFault::CopyOwnerIgnored,
    PlantedFault::FlushedBeforeSync,
    PlantedFault::ReplicaWholeTooEarly,
    PlantedFault::RestoreUnproven,
    PlantedFault::FencedBeforeProbe,
    PlantedFault::SentBeforeDisk,
];

fn found(fault: PlantedFault) -> SeedFailure {
    let rare = RARE.into_iter().filter(|(rare, _)| *rare == fault);
    let failing = rare
        .map(|(_, seed)| seed)
        .chain(0..SEEDS_MAX)
        .filter(|&seed| !OF_REPLICAS.contains(&fault) || has_data_lender(seed))
        .filter(|&seed| !OF_SPILLS.contains(&fault) || has_spills(seed))
        .filter(|&seed| !OF_PARTIES.contains(&fault) || is_database(seed))
        .filter(|&seed| !OF_DEPOSITS.contains(&fault) || is_deposit(seed))
        .filter(|&seed| !OF_NODES.contains(&fault) || is_shared(seed))
        .filter(|&seed| !OF_REGIONS.contains(&fault) || is_region(seed))
        .filter(|&seed| fault != PlantedFault::StampIgnored || has_copy(seed))
        .filter(|&seed| fault != PlantedFault::ForgeryAccepted || is_intruded(seed))
        .filter(|&seed| !OF_NAMED_CLIENTS.contains(&fault) || has_named_clients(seed))
        .filter(|&seed| !OF_PRESSURE.contains(&fault) || has_pressure(seed))
        .filter(|&seed| fault != PlantedFault::LeavesUnreplaced || has_drains(seed))
        .filter(|&seed| !OF_ELASTIC.contains(&fault) || is_elastic(seed))
        .filter(|&seed| fault != PlantedFault::SaltIgnored || is_rolled_back(seed))
        .find_map(|seed| run_seed(seed, FaultSwitch::with(fault)).err());
    match failing {
        Some(failure) => *failure,
        None => panic!("{fault:?} was not found in {SEEDS_MAX} seeds"),
    }
}

macro_rules! faults {
    ($($test:ident: $fault:ident breaks $rules:expr;)*) => {
        $(
            #[test]
            fn $test() {
                let failure = found(PlantedFault::$fault);
                assert!(
                    $rules.contains(&failure.rule),
                    "seed {} broke rule {}: {}",
                    failure.seed,
                    failure.rule,
                    failure.what
                );
                assert!(!failure.trace_lines.is_empty(), "a failure comes with its story");
            }
        )*

        const TESTED: &[PlantedFault] = &[$(PlantedFault::$fault),*];
    };
}

faults! {
    sparing_this_machine_in_its_domain_is_found: OwnDomainSpared breaks [25];
    obeying_one_that_is_no_owner_is_found: OwnerIgnored breaks [15];
    following_a_copy_of_anothers_is_found: CopyOwnerIgnored breaks [15];
    speaking_for_a_node_of_anothers_is_found: NodeOwnerIgnored breaks [REGION_OWNER];
    believing_an_unsigned_fence_is_found: UnsignedFenceBelieved breaks [15];
    counting_any_member_is_found: AnyInsteadOfRule breaks [1];
    counting_stale_acknowledgements_is_found: StaleAckCounts breaks [1, 3, 11];
    counting_what_was_multicast_as_held_is_found: MulticastCountsAsHeld breaks [1];
    acknowledging_the_unverified_is_found: AckUnverified breaks [2];
    accepting_a_gap_is_found: AcceptGap breaks [2, 10];
    counting_a_view_before_it_is_durable_is_found: ViewBeforeDurable breaks [1];
    storing_a_view_that_holds_too_little_is_found: NoViewGate breaks [3, 5];
    adding_to_a_window_that_was_written_to_a_disk_is_found: SpilledWindowGrows breaks [0, 1, 5];
    serving_from_a_memory_that_was_spilled_is_found: ClosedStoreServes breaks [1, 5, 16];
    dropping_a_silent_window_before_its_file_is_whole_is_found: SilentDroppedEarly breaks [0, 1, 5];
    writing_a_silent_window_that_may_still_grow_is_found: SilentNotFrozen breaks [1, 2, 5];
    leaving_a_drained_lender_too_early_is_found: LeavesUnreplaced breaks [3];
    counting_a_new_rule_before_it_is_durable_is_found: RuleBeforeDurable breaks [1, 3, 13];
    releasing_a_removed_member_before_it_is_replaced_is_found: RemovedAtOnce breaks [16];
    ignoring_a_seal_is_found: MemberFenceIgnored breaks [4];
    ignoring_a_fence_is_found: WriterFenceIgnored breaks [4];
    forgetting_a_seal_that_must_hold_is_found: FenceForgotten breaks [4];
    calling_a_journal_closed_that_goes_on_is_found: ClosedTooEarly breaks [4];
    reading_before_sealing_is_found: ReadBeforeFence breaks [5, 20];
    contentment_with_one_answer_is_found: OneAnswerSuffices breaks [5];
    counting_an_amnesiac_is_found: AmnesiacCounts breaks [1, 5];
    releasing_before_syncing_is_found: ReleaseBeforeSync breaks [5];
    taking_a_torn_record_is_found: TornRecordAccepted breaks [5, 6, 7];
    logging_the_spool_after_what_came_later_is_found: SpoolAfterFlush breaks [6];
    dropping_the_spool_is_found: SpoolDropped breaks [6];
    cutting_a_page_in_two_records_is_found: PageCut breaks [6];
    taking_a_record_that_its_seal_does_not_prove_is_found: ForgeryAccepted breaks [6, 7];
    taking_a_record_that_does_not_chain_is_found: ChainUnchecked breaks [2, 5, 6, 7];
    taking_damage_for_the_end_is_found: CorruptionIsEnd breaks [5];
    reporting_a_cut_off_commit_as_done_is_found: CutOffIsDone breaks [8];
    believing_a_retried_sync_is_found: SyncRetried breaks [9];
    taking_a_refusal_for_a_failed_disk_is_found: RefusalIsFinal breaks [17];
    trimming_above_stable_is_found: TrimAboveStable breaks [1, 10, 25];
    overrunning_a_window_is_found: OverrunAccepted breaks [2, 10, 11];
    believing_a_length_is_found: LengthBelieved breaks [11];
    flushed_before_it_is_synced_is_found: FlushedBeforeSync breaks [12];
    a_replica_called_whole_too_early_is_found: ReplicaWholeTooEarly breaks [12];
    a_restore_that_nobody_proves_is_found: RestoreUnproven breaks [5, 6, 12];
    asking_a_member_after_it_was_sealed_is_found: FencedBeforeProbe breaks [12];
    a_block_that_is_sent_before_the_disk_has_it_is_found: SentBeforeDisk breaks [12];
    a_node_whose_disk_votes_is_found: DiskVotes breaks [1, 13];
    counting_a_view_before_the_server_has_it_is_found: ViewBeforeServer breaks [1, 13];
    dropping_what_the_server_lacks_is_found: DroppedBeforeServer breaks [1, 13];
    frames_of_an_earlier_session_are_found: SessionUnfenced breaks [14];
    an_answer_to_an_earlier_version_is_found: OldAckCounts breaks [14];
    a_page_let_go_too_early_is_found: EvictedBeforeStored breaks [11, 14];
    counting_on_an_earlier_life_is_found: DepositLifeIgnored breaks [0, 11, 14];
    a_slot_that_leaks_is_found: SlotLeaked breaks [14];
    a_write_that_failed_and_counts_is_found: UnwrittenCounts breaks [14];
    blocks_of_a_page_that_was_put_anew_are_found: OldBlocksGiven breaks [14];
    slots_given_up_before_their_pages_have_moved_are_found: SlotsBeforePages breaks [14];
    taking_a_deposit_that_gave_slots_back_for_another_one_is_found: GivenUpIsCounted breaks [14];
    waiting_for_who_is_late_is_found: LateAwaited breaks [0];
    removing_what_has_no_record_is_found: UnrecordedRemoved breaks [5, 17];
    executing_twice_after_a_take_over_is_found: ExecutedForgotten breaks [6, 17];
    replaying_contents_under_a_program_is_found: ContentsReplayed breaks [6, 17];
    trimming_what_a_killed_server_did_not_sync_is_found: TakenOverUnsynced breaks [5, 6];
    a_keeper_that_gives_up_is_found: ServiceThreadEnds breaks [17];
    applying_a_copied_log_is_found: StampIgnored breaks [24];
    believing_the_cache_after_a_failed_sync_is_found: CacheTrusted breaks [5];
    taking_a_refusal_for_a_failed_disk_of_a_database_is_found: RefusalIsFailure breaks [17];
    settling_before_the_journal_is_locked_is_found: CheckpointBeforeLock breaks [5];
    joining_one_memory_twice_is_found: AliasJoins breaks [1, 16];
    taking_a_window_that_was_joined_anew_is_found: JoinIgnored breaks [16];
    passing_over_a_member_that_moved_is_found: MovedCountsAsGone breaks [5];
    calling_a_journal_clean_too_early_is_found: CleanTooEarly breaks [1, 5, 19];
    counting_members_of_a_clean_journal_is_found: CountsWhileClean breaks [1, 5];
    believing_what_a_member_claims_to_hold_is_found: OverclaimBelieved breaks [20];
    holding_a_writers_pause_against_its_members_is_found: PauseHeldAgainst breaks [20];
    keeping_a_member_that_makes_no_progress_is_found: StallAllowed breaks [0, 20];
    believing_every_lender_that_says_it_is_fenced_is_found: FenceBelieved breaks [20];
    ignoring_members_that_say_they_are_fenced_is_found: FenceClaimIgnored breaks [4];
    ignoring_a_fenced_lender_that_moved_is_found: MovedClaimIgnored breaks [4, 13];
    fencing_before_the_proof_is_found: FenceBeforeProof breaks [18];
    sealing_under_the_journals_own_key_is_found: SaltIgnored breaks [21];
    freeing_what_a_deleted_copy_lacked_is_found: HoldingsForgotten breaks [0, 5, 23];
    sharing_a_limit_across_names_is_found: LimitSharedAcrossNames breaks [20];
    dropping_the_window_of_a_revoked_client_is_found: RevokedWindowDropped breaks [23];
    leaving_a_lender_short_of_memory_without_another_is_found: ReclaimTakesCopy breaks [3];
    asking_for_windows_for_ever_is_found: ReclaimNeverEnds breaks [0];
    a_clock_that_stops_in_sleep_is_found: SleepStopsClock breaks [REGION_GRANTED];
    trusting_a_silent_link_is_found: SilenceTrusted breaks [REGION_ENDS];
    taking_the_slow_for_deaf_is_found: SlowIsDeaf breaks [0];
}

/// The same journals in a region: a fault that breaks a journal's rules breaks the region's too.
#[test]
fn faults_of_journals_are_found_by_the_rules_of_regions() {
    for fault in OF_NODES.into_iter().chain([PlantedFault::ReadBeforeFence]) {
        let failing = (0..SEEDS_MAX)
            .filter(|&seed| is_region(seed))
            .find_map(|seed| run_seed(seed, FaultSwitch::with(fault)).err());
        assert!(failing.is_some(), "{fault:?} was not found in a region");
    }
}

#[test]
fn every_fault_that_can_be_planted_has_its_test() {
    let named = |faults: &[PlantedFault]| {
        let mut names: Vec<String> = faults.iter().map(|fault| format!("{fault:?}")).collect();
        names.sort();
        names
    };
    assert_eq!(named(TESTED), named(&PlantedFault::ALL));
}
