//! A closed journal is closed at once, whatever its threads were about.

use std::os::unix::net::UnixListener;

use crate::common::{Place, commit};
use netram_client::Journal;
use netram_proto::port::Durability;

/// A journal that was closed while it was connecting to a lender kept its lock for as long as the attempt took, three
/// seconds: its own process was told that the journal was in use, by itself.
#[test]
fn a_closed_journal_can_be_opened_while_a_connection_is_still_being_tried() {
    let place = Place::new();
    Journal::create(&place.journal(), 1 << 20).unwrap();
    // It accepts and then says nothing: the handshake waits.
    let silent = UnixListener::bind(place.directory.path().join("silent.sock")).unwrap();
    let config = place.config(&["silent"], 1);
    let (journal, _) = Journal::open(&place.journal(), config.clone()).unwrap();
    let (_waiting, _) = silent.accept().unwrap();
    commit(&journal, b"by the disk", Durability::Remote);
    journal.close().unwrap();
    let (journal, recovered) = Journal::open(&place.journal(), config).unwrap();
    assert!(recovered.end > recovered.head);
    // Dropping closes as well.
    let (_waiting_too, _) = silent.accept().unwrap();
    drop(journal);
    netram_client::Inspect::open(&place.journal())
        .map(|seen| assert!(!seen.in_use()))
        .unwrap();
}
