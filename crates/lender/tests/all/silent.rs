//! Windows whose clients are silent: they go to the disk while the lender serves others, and come back.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use netram_lender::{JournalReport, Lender, LenderConfig, SpillError};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::wire::{Crc, Flag, FrameKind, RefusalReason};
use netram_transport::NetAddress;

use crate::common::{
    JOURNAL_NAME, START, TestWriter, WINDOW, dial, operators_status, receive, status, until,
};
use crate::pressure::order;
use crate::spill::Machine;

const SILENCE: Duration = Duration::from_secs(1);

fn config(machine: &Machine) -> LenderConfig {
    LenderConfig {
        spill_after: Some(SILENCE),
        ..machine.config()
    }
}

/// A lender with room for this many windows.
fn start_small(machine: &Machine, windows: u64) -> (Lender, NetAddress) {
    let config = LenderConfig {
        memory: windows * WINDOW,
        quota: Some(WINDOW),
        ..config(machine)
    };
    let lender = Lender::start(config).unwrap();
    let address = lender.addresses()[0].clone();
    (lender, address)
}

fn start(machine: &Machine) -> (Lender, NetAddress) {
    let lender = Lender::start(config(machine)).unwrap();
    let address = lender.addresses()[0].clone();
    (lender, address)
}

fn file(machine: &Machine, journal: u128) -> PathBuf {
    machine
        .disk
        .path()
        .join(format!("test.{}.window", JournalId(journal)))
}

fn report(address: &NetAddress, journal: u128) -> JournalReport {
    let id = JournalId(journal).to_string();
    let journals = status(address).journals;
    journals.into_iter().find(|one| one.id == id).unwrap_or_default()
}

/// A client appends some records and is heard no more. Returns the records.
fn fill(address: &NetAddress, journal: u128) -> Vec<u8> {
    let mut writer = TestWriter::join(address, journal, 2);
    let fill = journal as u8;
    let records: Vec<u8> = (0..20)
        .flat_map(|index| writer.append(&[fill ^ index; 700]))
        .collect();
    writer.acked();
    records
}

/// The same with so many records, once there is room.
fn fill_later(address: &NetAddress, journal: u128, records: u8) {
    until("there is room", || {
        let mut writer = TestWriter::bind(address, journal, 2);
        writer.fence();
        if writer.join_window(WINDOW, 1).refusal().is_some() {
            return false;
        }
        (0..records).for_each(|index| {
            writer.append(&[index; 900]);
        });
        writer.acked();
        true
    });
}

fn silent(machine: &Machine, address: &NetAddress, journal: u128) {
    until("the window of a silent client is on the disk", || {
        report(address, journal).on_disk
    });
    assert!(file(machine, journal).exists());
}

/// A client comes back, which the lender may ask to come again.
fn returns(address: &NetAddress, journal: u128, epoch: u32) -> TestWriter {
    let mut bound = None;
    until("the client is served", || {
        let mut writer = TestWriter::over(dial(address), journal, epoch);
        let header = writer.header(FrameKind::Bind);
        crate::common::send(&mut writer.link, header, &journal.to_le_bytes());
        let Ok(answer) = receive(&mut writer.link) else {
            return false;
        };
        assert_eq!(answer.header.kind, FrameKind::Bound);
        writer.incarnation = answer.header.sender;
        bound = Some(writer);
        true
    });
    bound.unwrap()
}

/// Recovery reads the window as it was, and the next writer joins anew.
fn reads_and_goes_on(machine: &Machine, address: &NetAddress, journal: u128, records: &[u8]) {
    let mut next = returns(address, journal, 3);
    let fenced = next.fence();
    assert_eq!(fenced.header.flags, Flag::KNOWN | Flag::READ_ONLY);
    let held = START.plus(records.len() as u64);
    assert_eq!((fenced.header.stable, fenced.header.lsn), (START, held));
    assert_eq!(next.read(START, records.len()), records);
    let mut leave = next.header(FrameKind::Leave);
    (leave.lsn, leave.mark) = (Lsn(2), 1);
    assert_eq!(next.ask(leave, &[]).header.kind, FrameKind::LeaveAck);
    drop(next);
    let mut again = TestWriter::join(address, journal, 4);
    again.append(b"new");
    again.acked();
    until("the file is removed", || !file(machine, journal).exists());
    assert!(!report(address, journal).spilled);
}

#[test]
fn a_silent_clients_window_survives_a_loss_of_power() {
    let machine = Machine::new();
    let (lender, address) = start(&machine);
    let incarnation = lender.incarnation();
    let records = fill(&address, 7);
    silent(&machine, &address, 7);
    // Killed: nobody has time to write anything.
    drop(lender);
    machine.lose_power();
    let (lender, address) = start(&machine);
    assert_ne!(lender.incarnation(), incarnation);
    let known = report(&address, 7);
    assert_eq!((known.on_disk, known.window_bytes), (true, 0));
    assert_eq!(known.used_bytes, records.len() as u64);
    let told = operators_status(&machine.memory);
    assert_eq!(told.journals[0].name, JOURNAL_NAME);
    let back = returns(&address, 7, 3);
    assert_eq!(back.incarnation, incarnation.0, "the view names this one");
    drop(back);
    reads_and_goes_on(&machine, &address, 7, &records);
}

/// Its client needs the memory more than the machine does.
#[test]
fn a_machine_gets_the_memory_of_a_window_on_the_disk_until_its_client_returns() {
    let machine = Machine::new();
    let (lender, address) = start_small(&machine, 4);
    let records = fill(&address, 7);
    silent(&machine, &address, 7);
    let store = machine.config().store.unwrap();
    order(&store, 0);
    until("the machine has all", || {
        lender.report().memory.given_back == 4 * WINDOW
    });
    let mut back = returns(&address, 7, 3);
    assert_eq!(back.fence().header.flags, Flag::KNOWN | Flag::READ_ONLY);
    assert_eq!(back.read(START, records.len()), records);
    assert_eq!(lender.report().memory.given_back, 3 * WINDOW);
    order(&store, u64::MAX);
    drop(back);
    reads_and_goes_on(&machine, &address, 7, &records);
}

#[test]
fn a_connected_client_keeps_its_window_however_little_it_says() {
    let machine = Machine::new();
    let (_lender, address) = start(&machine);
    let mut writer = TestWriter::join(&address, 7, 2);
    fill(&address, 8);
    silent(&machine, &address, 8);
    assert!(!report(&address, 7).spilled);
    writer.append(b"after all");
    writer.acked();
}

/// The client was only cut off. Its window has a file by now, and its own writer comes back.
#[test]
fn a_window_with_a_file_grows_no_more() {
    let machine = Machine::new();
    let (_lender, address) = start(&machine);
    let mut writer = TestWriter::join(&address, 7, 2);
    writer.append(b"one");
    writer.acked();
    let at = writer.at;
    drop(writer);
    silent(&machine, &address, 7);
    let mut back = returns(&address, 7, 2);
    assert_eq!(back.fence().header.flags, Flag::KNOWN | Flag::READ_ONLY);
    back.at = at;
    back.append(b"two");
    let refused = receive(&mut back.link).unwrap();
    assert_eq!(refused.refusal(), Some(RefusalReason::NotJoined));
    assert_eq!(back.join_window(WINDOW, 2).header.mark, 2);
    back.append(b"two");
    back.acked();
    until("the file is removed", || !file(&machine, 7).exists());
}

#[test]
fn others_get_the_memory_of_the_longest_silent_window_and_its_client_reads_it_all_the_same() {
    let machine = Machine::new();
    let (_lender, address) = start_small(&machine, 3);
    let first = fill(&address, 1);
    silent(&machine, &address, 1);
    let second = fill(&address, 2);
    silent(&machine, &address, 2);
    let mut others = vec![TestWriter::join(&address, 3, 2)];
    until("another client gets room", || {
        let mut writer = TestWriter::bind(&address, 4, 2);
        writer.fence();
        let joined = writer.join_window(WINDOW, 1);
        let refusal = joined.refusal();
        assert!(refusal.is_none_or(|refusal| refusal == RefusalReason::NoRoom));
        if refusal.is_none() {
            others.push(writer);
        }
        refusal.is_none()
    });
    let (one, two) = (report(&address, 1), report(&address, 2));
    assert_eq!((one.on_disk, one.window_bytes), (true, 0), "the longest silent");
    assert_eq!((two.on_disk, two.window_bytes), (true, WINDOW));
    // Its client's return takes the memory of the other.
    reads_back(&address, 1, &first);
    until("the other goes", || report(&address, 2).window_bytes == 0);
    others.pop().unwrap().leave();
    reads_and_goes_on(&machine, &address, 2, &second);
}

fn reads_back(address: &NetAddress, journal: u128, records: &[u8]) {
    let mut next = returns(address, journal, 3);
    next.fence();
    assert_eq!(next.read(START, records.len()), records);
}

/// What a process knew of windows in files is in the store, and what a spill knows, too.
#[test]
fn windows_in_files_outlive_their_process_and_a_shutdown() {
    let machine = Machine::new();
    let (lender, address) = start_small(&machine, 1);
    let records = fill(&address, 1);
    silent(&machine, &address, 1);
    until("its memory goes", || {
        let mut writer = TestWriter::bind(&address, 2, 2);
        writer.fence();
        writer.join_window(WINDOW, 1).refusal().is_none()
    });
    assert_eq!(report(&address, 1).window_bytes, 0);
    drop(lender);
    let (lender, address) = start_small(&machine, 1);
    assert_eq!(report(&address, 1).used_bytes, records.len() as u64);
    lender.stop_and_spill(Duration::ZERO).unwrap();
    machine.lose_power();
    let (_lender, address) = start_small(&machine, 1);
    let mut other = returns(&address, 2, 2);
    other.fence();
    other.leave();
    drop(other);
    reads_and_goes_on(&machine, &address, 1, &records);
}

/// The file is the second copy of what is in memory.
#[test]
fn a_window_that_is_damaged_in_memory_is_read_from_its_file() {
    let machine = Machine::new();
    let (lender, address) = start(&machine);
    let records = fill(&address, 7);
    silent(&machine, &address, 7);
    drop(lender);
    let store = fs::OpenOptions::new()
        .write(true)
        .open(machine.memory.path().join("store"))
        .unwrap();
    let chunks = machine.config().memory;
    let first = store.metadata().unwrap().len() - chunks;
    std::os::unix::fs::FileExt::write_all_at(&store, &vec![0; chunks as usize], first).unwrap();
    let (_lender, address) = start(&machine);
    assert_eq!(report(&address, 7).window_bytes, 0);
    reads_and_goes_on(&machine, &address, 7, &records);
}

#[test]
fn a_damaged_file_is_set_aside_and_only_the_fence_is_left() {
    let machine = Machine::new();
    let (lender, address) = start(&machine);
    let records = fill(&address, 7);
    silent(&machine, &address, 7);
    drop(lender);
    machine.lose_power();
    let mut bytes = fs::read(file(&machine, 7)).unwrap();
    let at = bytes.len() - records.len() / 2;
    bytes[at] ^= 1;
    fs::write(file(&machine, 7), &bytes).unwrap();
    let (_lender, address) = start(&machine);
    let mut back = returns(&address, 7, 3);
    let fenced = back.fence();
    assert_eq!(
        fenced.header.flags & Flag::KNOWN,
        0,
        "it does not claim the window"
    );
    let aside = file(&machine, 7).with_extension("window.damaged");
    assert_eq!(fs::read(aside).unwrap(), bytes);
    assert!(!file(&machine, 7).exists());
}

/// Bytes that the file's own check does not find fault with, and the journal's does.
#[test]
fn a_window_whose_records_do_not_chain_is_dropped_and_its_file_set_aside() {
    let machine = Machine::new();
    let (lender, address) = start(&machine);
    let records = fill(&address, 7);
    silent(&machine, &address, 7);
    drop(lender);
    machine.lose_power();
    let mut bytes = fs::read(file(&machine, 7)).unwrap();
    let end = bytes.len() - 4;
    bytes[end - records.len() / 2] ^= 1;
    let mut crc = Crc::new();
    crc.update(&bytes[32..40]);
    crc.update(&bytes[end - records.len()..end]);
    bytes[end..].copy_from_slice(&crc.finish().to_le_bytes());
    fs::write(file(&machine, 7), &bytes).unwrap();
    let (lender, address) = start(&machine);
    let fenced = returns(&address, 7, 3).fence();
    assert_eq!(
        fenced.header.flags & Flag::KNOWN,
        0,
        "it does not claim the window"
    );
    let aside = file(&machine, 7).with_extension("window.damaged");
    until("the file has another name", || aside.exists());
    assert_eq!(lender.report().memory.free, lender.report().memory.reserved);
    TestWriter::join(&address, 7, 4).append(b"goes on");
}

/// Clients that come and go would fill the lender's disk.
#[test]
fn the_files_of_windows_get_as_many_bytes_as_are_lent() {
    let machine = Machine::new();
    let (_lender, address) = start_small(&machine, 1);
    for journal in 1..=3 {
        fill_later(&address, journal, 16);
        silent(&machine, &address, journal);
    }
    fill_later(&address, 4, 60);
    until("the window is read-only", || report(&address, 4).spilled);
    std::thread::sleep(2 * SILENCE);
    let known = report(&address, 4);
    assert_eq!((known.on_disk, known.window_bytes), (false, WINDOW));
    assert!(!file(&machine, 4).exists());
}

#[test]
fn a_start_without_a_windows_file_is_refused_by_name() {
    let machine = Machine::new();
    let (lender, address) = start_small(&machine, 1);
    let records = fill(&address, 1);
    silent(&machine, &address, 1);
    until("its memory goes", || {
        let mut writer = TestWriter::bind(&address, 2, 2);
        writer.fence();
        let joined = writer.join_window(WINDOW, 1).refusal().is_none();
        joined && writer.leave().header.kind == FrameKind::LeaveAck
    });
    drop(lender);
    let small = |spill| LenderConfig {
        memory: WINDOW,
        quota: Some(WINDOW),
        spill,
        ..config(&machine)
    };
    let elsewhere = machine.disk.path().join("elsewhere");
    fs::rename(file(&machine, 1), &elsewhere).unwrap();
    for spill in [Some(machine.disk.path().to_owned()), None] {
        let refused = machine.refused(small(spill));
        assert!(matches!(refused, SpillError::WindowMissing { .. }), "{refused}");
        assert!(
            refused.to_string().contains(&JournalId(1).to_string()),
            "{refused}"
        );
    }
    fs::write(file(&machine, 1), b"half a file").unwrap();
    let refused = machine.refused(small(Some(machine.disk.path().to_owned())));
    assert!(matches!(refused, SpillError::WindowDamaged { .. }), "{refused}");
    fs::rename(elsewhere, file(&machine, 1)).unwrap();
    let (_lender, address) = start_small(&machine, 1);
    reads_and_goes_on(&machine, &address, 1, &records);
}

/// A file that stayed although its window was released, or that an operator has put back.
#[test]
fn yesterdays_file_answers_for_no_window_of_today() {
    let machine = Machine::new();
    let (lender, address) = start(&machine);
    fill(&address, 7);
    silent(&machine, &address, 7);
    let yesterday = fs::read(file(&machine, 7)).unwrap();
    let mut today = returns(&address, 7, 3);
    today.fence();
    assert_eq!(today.join_window(WINDOW, 1).header.kind, FrameKind::Ack);
    let record = today.append(b"today's");
    today.acked();
    until("the file is removed", || !file(&machine, 7).exists());
    drop(lender);
    fs::write(file(&machine, 7), &yesterday).unwrap();
    let (lender, address) = start(&machine);
    assert!(!file(&machine, 7).exists(), "memory knows better");
    assert_eq!(report(&address, 7).used_bytes, record.len() as u64);
    drop(lender);
    machine.lose_power();
    fs::write(file(&machine, 7), &yesterday).unwrap();
    let (_lender, address) = start(&machine);
    let fenced = returns(&address, 7, 4).fence();
    assert_eq!(fenced.header.flags, Flag::KNOWN | Flag::READ_ONLY);
    let epoch = u32::from_le_bytes(fenced.body[..4].try_into().unwrap());
    assert_eq!((epoch, fenced.header.mark), (2, 1), "the join of yesterday");
}

/// A snapshot of the machine's memory may be older than what the client knows.
#[test]
fn a_memory_that_does_not_know_that_its_window_has_a_file_is_refused() {
    let machine = Machine::new();
    let (lender, address) = start(&machine);
    fill(&address, 7);
    drop(lender);
    let store = machine.memory.path().join("store");
    let snapshot = fs::read(&store).unwrap();
    let (lender, address) = start(&machine);
    silent(&machine, &address, 7);
    drop(lender);
    fs::write(&store, snapshot).unwrap();
    let refused = machine.refused(config(&machine));
    assert!(matches!(refused, SpillError::LivedOn { .. }), "{refused}");
    assert!(file(&machine, 7).exists());
}

#[test]
fn a_window_that_cannot_be_written_stays_in_memory() {
    let machine = Machine::new();
    let (_lender, address) = start(&machine);
    let records = fill(&address, 7);
    // Its directory is gone, so no file can be made there.
    fs::remove_dir_all(machine.disk.path()).unwrap();
    until("the window is read-only", || report(&address, 7).spilled);
    std::thread::sleep(2 * SILENCE);
    let known = report(&address, 7);
    assert_eq!((known.on_disk, known.window_bytes), (false, WINDOW));
    reads_back(&address, 7, &records);
}
