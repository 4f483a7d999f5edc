//! Another client of the cluster attacks a mount's journal while its server is down (finding S1 of the
//! review): what was synced is there afterwards.

use std::fs;
use std::time::{Duration, Instant};

use netram_journal::owner::JournalOwner;
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::limit::WINDOW_BYTES_MIN;
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{NetAddress, OwnerKey, Security, connect};

use crate::mount::kills::{last_said, last_written, writer};
use crate::mount::{MountFixture, cannot_mount, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sends frames that would empty the journal's window, in the name of `owner`. Returns the lender's first
/// answer.
fn attack(address: &str, journal: JournalId, owner: &JournalOwner) -> Option<RefusalReason> {
    let address: NetAddress = address.parse().unwrap();
    let mut link = connect(&address, &Security::Insecure, PATIENCE).unwrap();
    owner.introduce(&mut link).unwrap();
    let header = |kind, epoch| FrameHeader {
        epoch: Epoch(epoch),
        sender: 0xBAD,
        stable: Lsn(1 << 20),
        ..FrameHeader::new(kind)
    };
    let bind = journal.0.to_le_bytes();
    let bytes = WINDOW_BYTES_MIN.to_le_bytes();
    for (header, body) in [
        (header(FrameKind::Bind, 0), &bind[..]),
        (header(FrameKind::Fence, 0xFFFF_FFF0), &[]),
        (header(FrameKind::Join, 0xFFFF_FFF0), &bytes),
        (header(FrameKind::Ping, 1), &[]),
        (header(FrameKind::Leave, 0xFFFF_FFF0), &[]),
    ] {
        link.queue(&[&header.encode(body.len()), body]).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        // The lender may end the session before all of it is sent.
        let _ = link.flush();
        match link.receive() {
            Ok(Some(packet)) => {
                let header = Frame::parse(packet).unwrap().header;
                assert_eq!(header.kind, FrameKind::Refuse);
                return RefusalReason::from_byte(header.flags);
            }
            Ok(None) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the lender does not answer")
}

#[test]
fn another_client_of_the_cluster_cannot_make_synced_writes_vanish() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("hostile", 1, "64MiB");
    let said = mounted.dir().with_file_name("said");
    let mut client = writer(&mounted.dir(), 0, &said);
    wait_until("the writer has synced a thousand records", || {
        said.exists() && last_said(&said) > 1000
    });
    mounted.kill();
    client.kill().unwrap();
    client.wait().unwrap();
    let told = last_said(&said);
    let lender = &mounted.lenders[0];
    let listed = lender.status()["journals"][0]["id"].as_str().unwrap().to_owned();
    let journal = JournalId(u128::from_str_radix(&listed, 16).unwrap());
    let key = OwnerKey::derive(&[7; 32]);
    let other = JournalOwner::with(JournalId(key.owned()), key).unwrap();
    for attacker in [JournalOwner::none(journal), other] {
        assert_eq!(
            attack(&lender.address, journal, &attacker),
            Some(RefusalReason::NotOwner)
        );
    }
    let recovered = mounted.recover();
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    let there = last_written(&mounted.dir());
    assert!(there >= told, "{told} records were synced, {there} are there");
    let _ = fs::remove_file(&said);
}
