use super::*;

/// A node or a data lender could name the highest possible epoch; the next claim or fence then wrapped
/// around to the first.
#[test]
fn a_view_that_leaves_no_higher_numbers_is_malformed() {
    let view = |epoch, version| View {
        epoch: Epoch(epoch),
        version,
        ..View::first(JournalId(77))
    };
    let last = view(EPOCH_MAX, VIEW_VERSION_MAX);
    assert_eq!(View::decode(&last.encode()), Ok(last.clone()));
    for beyond in [
        view(EPOCH_MAX + 1, 1),
        view(u32::MAX, 1),
        view(1, VIEW_VERSION_MAX + 1),
    ] {
        assert_eq!(View::decode(&beyond.encode()), Err(ViewError::Malformed));
    }
    let claim = last
        .restored(WriterId(1))
        .restored(WriterId(2))
        .claimed(WriterId(3));
    assert!(claim.epoch > last.epoch && claim.version > last.version);
}

#[test]
fn a_view_survives_encoding_and_every_truncation_is_refused() {
    let member = |n: u64| ViewMember {
        incarnation: Incarnation(n),
        join: Some(JoinId {
            epoch: Epoch(3),
            generation: n as u32 + 1,
        }),
        address: String::from("tcp://10.0.0.1:7700"),
        domain: String::from("ups-1"),
    };
    let mut view = View {
        rule: CommitRule::AtLeast(2),
        counting: true,
        clean: Some(Lsn(123)),
        window_bytes: 1 << 20,
        salt: Some(EpochSalt([7; 16])),
        members: (0..3).map(member).collect(),
        ..View::first(JournalId(77))
    };
    view.epochs.begin(Epoch(3), WriterId(4), Lsn(5));
    let bytes = view.encode();
    assert_eq!(View::decode(&bytes), Ok(view));
    for cut in 0..bytes.len() {
        assert!(View::decode(&bytes[..cut]).is_err());
    }
}

#[test]
fn a_view_carries_its_own_claim_note_only() {
    let mut view = View::first(JournalId(77)).claimed(WriterId(4));
    view.note = Some(ClaimNote::new(12, "netram volume restore on db7"));
    let read = View::decode(&view.encode());
    assert_eq!(read.as_ref(), Ok(&view));
    assert_eq!(view.released(Lsn(8)).claimant(), "netram volume restore on db7");
    let next = view.claimed(WriterId(5));
    assert_eq!(
        (next.note.clone(), next.claimant()),
        (None, alloc::format!("writer {}", WriterId(5)))
    );
}

/// A refused restore has only claimed the copy; one that served has another history.
#[test]
fn a_claim_that_never_served_is_adopted_and_an_epoch_that_served_is_not() {
    let ours = View::first(JournalId(77)).claimed(WriterId(1)).released(Lsn(40));
    let claim = ours.restored(WriterId(9));
    assert!(ours.is_fenced_by(&claim) && !ours.lacks_epoch_of(&claim));
    let newest = ours.with_claim_of(&claim).claimed_above(claim.epoch, WriterId(2));
    assert!(newest.epoch > claim.epoch);
    let served = newest.released(Lsn(48));
    assert_eq!(served.epochs.fork(claim.epoch, claim.writer, Lsn(48)), None);
    let restored = claim.released(Lsn(40));
    assert!(ours.is_fenced_by(&restored) && ours.lacks_epoch_of(&restored));
    let twin = View {
        writer: WriterId(3),
        ..ours.clone()
    };
    assert!(ours.is_fenced_by(&twin) && !ours.is_fenced_by(&ours));
}

#[test]
fn a_format_1_view_is_read_and_the_next_claim_records_its_epoch() {
    let view = View {
        epoch: Epoch(6),
        writer: WriterId(8),
        ..View::first(JournalId(77))
    };
    let mut bytes = view.encode();
    bytes[..2].copy_from_slice(&FORMAT_WITHOUT_EPOCHS.to_le_bytes());
    bytes.pop();
    bytes.drain(48..80);
    let read = View::decode(&bytes);
    assert_eq!(read.as_ref(), Ok(&view));
    let claim = view.claimed(WriterId(9));
    assert_eq!((claim.epoch, claim.version), (Epoch(7), view.version + 1));
    let released = claim.released(Lsn(40));
    assert_eq!(released.epochs.fork(Epoch(6), WriterId(8), Lsn(40)), None);
    assert_eq!(
        released.epochs.fork(Epoch(6), WriterId(8), Lsn(48)),
        Some(Lsn(40))
    );
    // A claim that was given up is not in the history.
    let next = released.claimed(WriterId(1)).claimed(WriterId(2));
    assert_eq!(next.epochs, released.epochs);
}

#[test]
fn a_format_3_view_is_read_and_has_no_salt() {
    let mut view = View {
        clean: Some(Lsn(123)),
        window_bytes: 1 << 20,
        ..View::first(JournalId(77)).claimed(WriterId(4))
    };
    view.epochs.begin(Epoch(1), WriterId(4), Lsn(5));
    let mut bytes = view.encode();
    bytes[..2].copy_from_slice(&FORMAT_WITHOUT_SALT.to_le_bytes());
    bytes.drain(64..80);
    assert_eq!(View::decode(&bytes), Ok(view));
}

#[test]
fn a_format_2_view_is_read_with_any_join_and_window_size() {
    let member = ViewMember {
        incarnation: Incarnation(5),
        join: None,
        address: String::from("a"),
        domain: String::from("d"),
    };
    let mut view = View {
        counting: true,
        members: alloc::vec![member],
        ..View::first(JournalId(77))
    };
    view.epochs.begin(Epoch(3), WriterId(4), Lsn(5));
    let mut bytes = view.encode();
    bytes[..2].copy_from_slice(&FORMAT_WITHOUT_JOINS.to_le_bytes());
    // Removes the member's join, and before it the window's size, the clean end and the salt.
    bytes.drain(90..98);
    bytes.drain(48..80);
    let read = View::decode(&bytes);
    assert_eq!(read.as_ref(), Ok(&view));
    assert_eq!(view.window_bytes_max(), WINDOW_BYTES_MAX);
}

#[test]
fn a_claim_of_a_replica_skips_the_epochs_of_its_client() {
    let first = View::first(JournalId(77));
    let heard = first.claimed(WriterId(1)).released(Lsn(0));
    let claim = heard.restored(WriterId(2));
    assert!(claim.epoch > Epoch(heard.epoch.0 + 0xffff), "{}", claim.epoch);
    assert_eq!(claim.epochs, heard.epochs);
    // A second attempt continues from the first.
    let again = claim.adopted().restored(WriterId(3));
    assert_eq!(again.epoch, claim.epoch.next());
    let served = again.released(Lsn(0));
    assert!(served.restored(WriterId(4)).epoch > Epoch(served.epoch.0 + 0xffff));
}

#[test]
fn the_largest_view_fits_its_slot() {
    let member = ViewMember {
        incarnation: Incarnation(1),
        join: None,
        address: "a".repeat(ADDRESS_BYTES_MAX),
        domain: "d".repeat(DOMAIN_BYTES_MAX),
    };
    let members = (0..MEMBERS_MAX).map(|_| member.clone()).collect();
    let mut view = View {
        members,
        note: Some(ClaimNote::new(
            u64::MAX,
            &"n".repeat(crate::limit::NOTE_BYTES_MAX),
        )),
        ..View::first(JournalId(1))
    };
    (1..100).for_each(|epoch| view.epochs.begin(Epoch(epoch), WriterId(1), Lsn(0)));
    assert!(view.encode().len() + 24 <= crate::limit::SLOT_BYTES);
}

#[test]
fn a_claim_has_no_salt_of_the_epoch_before_and_its_own_stays_with_it() {
    let salt = Some(EpochSalt([7; 16]));
    let view = View {
        salt,
        ..View::first(JournalId(77)).claimed(WriterId(1))
    };
    assert_eq!(view.released(Lsn(8)).salt, salt);
    for claim in [
        view.claimed(WriterId(2)),
        view.restored(WriterId(2)),
        view.claimed_above(Epoch(9), WriterId(2)),
    ] {
        assert_eq!(claim.salt, None);
    }
}
