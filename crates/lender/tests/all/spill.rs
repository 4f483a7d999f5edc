//! Windows on a disk while the machine is off: what the next start makes of them.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use netram_lender::{Lender, LenderConfig, LenderStartError, SpillError, StoreOrigin, WindowStoreError};
use netram_proto::id::{Incarnation, Lsn};
use netram_proto::wire::{Flag, FrameKind, RefusalReason};
use netram_transport::NetAddress;
use tempfile::TempDir;

use crate::common::{START, TestWriter, WINDOW, config, memory_dir, receive, send, status, until};

const JOURNAL: u128 = 7;

/// A lender's memory, and its disk.
pub(crate) struct Machine {
    pub(crate) memory: TempDir,
    pub(crate) disk: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Machine {
            memory: memory_dir(),
            disk,
        }
    }

    pub(crate) fn config(&self) -> LenderConfig {
        LenderConfig {
            spill: Some(self.disk.path().to_owned()),
            ..config(&self.memory)
        }
    }

    pub(crate) fn start(&self) -> Lender {
        Lender::start(self.config()).unwrap()
    }

    pub(crate) fn refused(&self, config: LenderConfig) -> SpillError {
        match Lender::start(config) {
            Err(LenderStartError::Store(WindowStoreError::Spill(refused))) => refused,
            Ok(_) => panic!("the lender starts"),
            Err(other) => panic!("{other}"),
        }
    }

    fn spill(&self) -> PathBuf {
        self.disk.path().join("test.spill")
    }

    /// The machine loses what is in its memory.
    pub(crate) fn lose_power(&self) {
        fs::remove_file(self.memory.path().join("store")).unwrap();
    }

    /// A client appends some records; the lender then stops as told by a signal. Returns the records and the
    /// incarnation of the memory they were in.
    fn fill_and_stop(&self, epoch: u32) -> (Vec<u8>, Incarnation) {
        let lender = self.start();
        let mut writer = TestWriter::join(&lender.addresses()[0], JOURNAL, epoch);
        let records: Vec<u8> = (0..20).flat_map(|index| writer.append(&[index; 700])).collect();
        writer.acked();
        let incarnation = lender.incarnation();
        lender.stop_and_spill(Duration::ZERO).unwrap();
        (records, incarnation)
    }
}

fn bound(address: &NetAddress, epoch: u32) -> (TestWriter, Incarnation) {
    let writer = TestWriter::bind(address, JOURNAL, epoch);
    let incarnation = Incarnation(writer.incarnation);
    (writer, incarnation)
}

/// Recovery finds the window as it was joined, and the next writer joins anew.
fn reads_and_goes_on(lender: &Lender, records: &[u8], joined_in: Incarnation) {
    let address = lender.addresses()[0].clone();
    assert_ne!(lender.incarnation(), joined_in);
    assert!(status(&address).journals[0].spilled);
    let (mut next, incarnation) = bound(&address, 3);
    assert_eq!(incarnation, joined_in, "the view names this one");
    let fenced = next.fence();
    assert_eq!(fenced.header.flags, Flag::KNOWN | Flag::READ_ONLY);
    assert_eq!(
        (fenced.header.stable, fenced.header.lsn, fenced.header.mark),
        (START, START.plus(records.len() as u64), 1)
    );
    assert_eq!(next.read(START, records.len()), records);
    let mut leave = next.header(FrameKind::Leave);
    (leave.lsn, leave.mark) = (Lsn(2), 1);
    assert_eq!(next.ask(leave, &[]).header.kind, FrameKind::LeaveAck);
    // The session knows an incarnation that is no more.
    let mut join = next.header(FrameKind::Join);
    join.stable = Lsn(1);
    send(&mut next.link, join, &WINDOW.to_le_bytes());
    assert!(receive(&mut next.link).is_err());
    let mut again = TestWriter::join(&address, JOURNAL, 3);
    assert_eq!(Incarnation(again.incarnation), lender.incarnation());
    again.append(b"new");
    again.acked();
    assert!(!status(&address).journals[0].spilled);
}

#[test]
fn after_a_loss_of_power_recovery_finds_the_windows_as_they_were() {
    let machine = Machine::new();
    let (records, incarnation) = machine.fill_and_stop(2);
    machine.lose_power();
    let lender = machine.start();
    assert_eq!(lender.origin(), StoreOrigin::Loaded);
    assert!(machine.spill().exists(), "power may fail again");
    reads_and_goes_on(&lender, &records, incarnation);
    until("the file is removed", || !machine.spill().exists());
}

#[test]
fn power_may_fail_again_before_a_client_has_read_its_window() {
    let machine = Machine::new();
    let (records, incarnation) = machine.fill_and_stop(2);
    for _ in 0..3 {
        machine.lose_power();
        drop(machine.start());
    }
    // Another stop in good order writes the window again.
    machine.start().stop_and_spill(Duration::ZERO).unwrap();
    machine.lose_power();
    let lender = machine.start();
    assert_eq!(lender.origin(), StoreOrigin::Loaded);
    reads_and_goes_on(&lender, &records, incarnation);
}

#[test]
fn a_start_of_the_same_boot_goes_on_with_the_closed_memory() {
    for keeps_file in [true, false] {
        let machine = Machine::new();
        let (records, incarnation) = machine.fill_and_stop(2);
        if !keeps_file {
            fs::remove_file(machine.spill()).unwrap();
        }
        let lender = machine.start();
        assert_eq!(lender.origin(), StoreOrigin::Reopened);
        reads_and_goes_on(&lender, &records, incarnation);
    }
}

/// A writer that lived on must not add to a window of which a copy exists.
#[test]
fn a_window_that_was_written_to_a_disk_never_grows() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    let lender = machine.start();
    let address = lender.addresses()[0].clone();
    let (mut writer, _) = bound(&address, 2);
    assert_eq!(writer.fence().header.flags, Flag::KNOWN | Flag::READ_ONLY);
    writer.append(b"more");
    assert_eq!(
        receive(&mut writer.link).unwrap().refusal(),
        Some(RefusalReason::NotJoined)
    );
    let mut join = writer.header(FrameKind::Join);
    join.stable = Lsn(2);
    send(&mut writer.link, join, &WINDOW.to_le_bytes());
    assert!(
        receive(&mut writer.link).is_err(),
        "it was bound to the old memory"
    );
    let mut again = TestWriter::join(&address, JOURNAL, 2);
    assert_eq!(Incarnation(again.incarnation), lender.incarnation());
    again.append(b"more");
    again.acked();
}

#[test]
fn yesterdays_spill_answers_for_no_memory_of_today() {
    let machine = Machine::new();
    let (_, yesterday) = machine.fill_and_stop(2);
    let copy = fs::read(machine.spill()).unwrap();
    let lender = machine.start();
    let today = lender.incarnation();
    let mut writer = TestWriter::bind(&lender.addresses()[0], JOURNAL, 3);
    writer.fence();
    let mut leave = writer.header(FrameKind::Leave);
    (leave.lsn, leave.mark) = (Lsn(2), 1);
    writer.ask(leave, &[]);
    TestWriter::join(&lender.addresses()[0], JOURNAL, 3).append(b"today's");
    drop(lender);
    machine.lose_power();
    fs::write(machine.spill(), copy).unwrap();
    let lender = machine.start();
    let (_, incarnation) = bound(&lender.addresses()[0], 4);
    assert_eq!(incarnation, yesterday);
    assert!(![lender.incarnation(), incarnation].contains(&today));
}

#[test]
fn a_spill_that_is_torn_or_changed_is_refused_and_left_alone() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    machine.lose_power();
    let whole = fs::read(machine.spill()).unwrap();
    for length in [0, 100, 4095, 4096, 5000, whole.len() - 1] {
        fs::write(machine.spill(), &whole[..length]).unwrap();
        let refused = machine.refused(machine.config());
        assert!(
            matches!(refused, SpillError::Damaged { .. }),
            "{length}: {refused}"
        );
        assert_eq!(fs::read(machine.spill()).unwrap(), whole[..length]);
    }
    for at in [9, 20, 4096 + 20, 4096 + 140, 4096 + 300, whole.len() - 3] {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        fs::write(machine.spill(), changed).unwrap();
        let refused = machine.refused(machine.config());
        let is_told = matches!(
            refused,
            SpillError::Damaged { .. } | SpillError::OtherFormat { .. }
        );
        assert!(is_told, "{at}: {refused}");
    }
    // The whole one is taken up all the same: nothing was lost on the way.
    fs::write(machine.spill(), whole).unwrap();
    assert_eq!(machine.start().origin(), StoreOrigin::Loaded);
}

#[test]
fn a_spill_that_never_got_its_name_counts_as_none() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    machine.lose_power();
    fs::rename(machine.spill(), machine.disk.path().join("test.spill.next")).unwrap();
    assert_eq!(machine.start().origin(), StoreOrigin::New);
}

#[test]
fn a_spill_beside_another_memory_is_refused_and_nothing_is_lost() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    let spill = fs::read(machine.spill()).unwrap();
    machine.lose_power();
    fs::remove_file(machine.spill()).unwrap();
    let lender = machine.start();
    let mut writer = TestWriter::join(&lender.addresses()[0], 8, 1);
    writer.append(b"needed");
    writer.acked();
    drop(lender);
    fs::write(machine.spill(), &spill).unwrap();
    let refused = machine.refused(machine.config());
    assert!(matches!(refused, SpillError::Beside { .. }), "{refused}");
    assert!(refused.to_string().contains("test.spill"), "{refused}");
    assert_eq!(fs::read(machine.spill()).unwrap(), spill);
    fs::remove_file(machine.spill()).unwrap();
    let lender = machine.start();
    assert_eq!(lender.origin(), StoreOrigin::Restored);
    assert_eq!(status(&lender.addresses()[0]).journals.len(), 1);
}

#[test]
fn another_lenders_spill_and_one_that_does_not_fit_are_refused_by_name() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    machine.lose_power();
    let small = LenderConfig {
        memory: 32 * 1024,
        quota: Some(32 * 1024),
        ..machine.config()
    };
    let refused = machine.refused(small);
    assert!(
        matches!(
            refused,
            SpillError::DoesNotFit {
                needed: WINDOW,
                journals: 1,
                ..
            }
        ),
        "{refused}"
    );
    let larger = LenderConfig {
        memory: 4 << 20,
        ..machine.config()
    };
    let lender = Lender::start(larger).unwrap();
    assert_eq!(lender.origin(), StoreOrigin::Loaded, "another size will do");
    drop(lender);
    machine.lose_power();
    fs::rename(machine.spill(), machine.disk.path().join("other.spill")).unwrap();
    let other = LenderConfig {
        name: "other".to_owned(),
        ..machine.config()
    };
    let refused = machine.refused(other);
    assert!(
        matches!(&refused, SpillError::Foreign { lender, .. } if lender == "test"),
        "{refused}"
    );
}

#[test]
fn memory_of_another_size_is_taken_up_from_the_disk() {
    let machine = Machine::new();
    let (records, incarnation) = machine.fill_and_stop(2);
    let larger = LenderConfig {
        memory: 4 << 20,
        ..machine.config()
    };
    let lender = Lender::start(larger).unwrap();
    assert_eq!(lender.origin(), StoreOrigin::Loaded);
    reads_and_goes_on(&lender, &records, incarnation);
}

#[test]
fn a_directory_that_others_can_change_and_a_name_in_use_are_refused() {
    let machine = Machine::new();
    let lender = machine.start();
    let second = LenderConfig {
        store: Some(machine.memory.path().join("second")),
        listen: vec![NetAddress::Unix(machine.memory.path().join("socket-2"))],
        ..machine.config()
    };
    let refused = machine.refused(second);
    assert!(matches!(refused, SpillError::InUse { .. }), "{refused}");
    drop(lender);
    fs::set_permissions(machine.disk.path(), fs::Permissions::from_mode(0o770)).unwrap();
    let refused = machine.refused(machine.config());
    assert!(
        matches!(refused, SpillError::NotPrivate { mode: 0o770, .. }),
        "{refused}"
    );
}

/// A step that fails leaves the windows in memory, and says so.
#[test]
fn a_spill_that_fails_leaves_the_windows_to_the_next_start() {
    let machine = Machine::new();
    let lender = machine.start();
    let mut writer = TestWriter::join(&lender.addresses()[0], JOURNAL, 2);
    let records = writer.append(&[5; 3000]);
    writer.acked();
    let incarnation = lender.incarnation();
    // The file cannot get its name.
    fs::create_dir(machine.spill()).unwrap();
    let failed = lender.stop_and_spill(Duration::ZERO).unwrap_err();
    assert!(failed.to_string().contains("give its name to"), "{failed}");
    drop(lender);
    fs::remove_dir(machine.spill()).unwrap();
    let lender = machine.start();
    assert_eq!(lender.origin(), StoreOrigin::Reopened);
    reads_and_goes_on(&lender, &records, incarnation);
}

/// The file has the only good copy of a window whose bytes in memory fail their checks.
#[test]
fn a_spill_outlives_the_damage_of_what_was_loaded_from_it() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    machine.lose_power();
    drop(machine.start());
    let store = fs::OpenOptions::new()
        .write(true)
        .open(machine.memory.path().join("store"))
        .unwrap();
    let chunks = machine.config().memory;
    let first = store.metadata().unwrap().len() - chunks;
    store.write_all_at(&vec![0; chunks as usize], first).unwrap();
    let lender = machine.start();
    assert_eq!(status(&lender.addresses()[0]).journals[0].window_bytes, 0);
    // A spill that is not needed is gone after a second.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(machine.spill().exists());
    lender.stop_and_spill(Duration::ZERO).unwrap();
    assert!(machine.spill().exists());
}

#[test]
fn without_windows_nothing_is_written_and_nothing_stays() {
    let machine = Machine::new();
    let lender = machine.start();
    let room = fs::metadata(machine.disk.path().join("test.spill.next")).unwrap();
    assert!(room.len() > 1 << 20, "room is set aside");
    lender.stop_and_spill(Duration::ZERO).unwrap();
    assert_eq!(fs::read_dir(machine.disk.path()).unwrap().count(), 0);
}

/// An earlier release reads a store that was closed as one of another format, and does not start.
#[test]
fn an_earlier_release_does_not_serve_from_a_closed_store() {
    let machine = Machine::new();
    machine.fill_and_stop(2);
    let store = fs::File::open(machine.memory.path().join("store")).unwrap();
    let mut version = [0; 4];
    store.read_exact_at(&mut version, 8).unwrap();
    assert_eq!(u32::from_le_bytes(version), 2);
}
