//! The bank that benchmarks and the demo use must detect the damage that it is there to detect.

use std::path::Path;

use netram_bench::BenchError;
use netram_bench::tpca::{AccessPattern, AccountChooser, Bank, BankAudit};
use netram_journal::{Journal, JournalConfig};
use netram_proto::port::Durability;
use netram_rvm::RealStorage;

const ACCOUNTS: u64 = 64;
const LOG_BYTES: u64 = 4 << 20;

fn open(directory: &Path) -> Result<Bank<Journal, RealStorage>, BenchError> {
    let (journal, _) = Journal::open(&directory.join("journal"), JournalConfig::default()).unwrap();
    let id = journal.id();
    Bank::open(journal, id, directory)
}

/// A bank after `transactions`, the last of them on the disk.
fn bank(directory: &Path, transactions: u64) -> Bank<Journal, RealStorage> {
    Journal::create(&directory.join("journal"), LOG_BYTES).unwrap();
    let (journal, _) = Journal::open(&directory.join("journal"), JournalConfig::default()).unwrap();
    let id = journal.id();
    let mut bank = Bank::create(journal, id, directory, ACCOUNTS).unwrap();
    let mut chooser = AccountChooser::new(AccessPattern::Localised, ACCOUNTS, 3);
    for number in 1..=transactions {
        let durability = if number == transactions {
            Durability::Disk
        } else {
            Durability::Lazy
        };
        assert_eq!(bank.transact(&mut chooser, durability).unwrap(), number);
    }
    bank
}

#[test]
fn a_reopened_bank_has_every_transaction_also_when_the_audit_trail_wrapped() {
    for transactions in [0, 1, 100, 2 * ACCOUNTS, 5 * ACCOUNTS] {
        let directory = tempfile::tempdir().unwrap();
        let before = bank(directory.path(), transactions).audit().unwrap();
        let after = open(directory.path()).unwrap().audit().unwrap();
        assert_eq!(after, before);
        assert_eq!(after.transactions, transactions);
        assert_eq!(after.audited, transactions.min(2 * ACCOUNTS));
    }
}

#[test]
fn a_changed_byte_in_any_record_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let bank = bank(directory.path(), 40);
    bank.rvm().truncate().unwrap();
    let good = bank.audit().unwrap();
    drop(bank);
    let segment = directory.path().join("bank");
    let bytes = std::fs::read(&segment).unwrap();
    // The branch's balance, a teller's count, an account, an audit record's number, and one's amount.
    let audit = 8192 + ACCOUNTS as usize * 128;
    for at in [4096, 4096 + 128 + 8, 8192 + 5, audit + 64, audit + 24] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        overwrite(&segment, &changed);
        let found = open(directory.path()).unwrap().audit();
        assert!(
            matches!(found, Err(BenchError::WrongData { .. })),
            "byte {at}: {found:?}"
        );
    }
    overwrite(&segment, &bytes);
    assert_eq!(open(directory.path()).unwrap().audit().unwrap(), good);
}

/// Overwrites in place: a new file would have another identity and be refused for that.
fn overwrite(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, 0)
        .unwrap();
}

#[test]
fn the_audit_finds_a_lost_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let mut bank = bank(directory.path(), 10);
    let before = bank.audit().unwrap();
    let mut chooser = AccountChooser::new(AccessPattern::Random, ACCOUNTS, 9);
    bank.transact(&mut chooser, Durability::Disk).unwrap();
    let BankAudit {
        transactions,
        balance,
        ..
    } = bank.audit().unwrap();
    assert_eq!(transactions, before.transactions + 1);
    assert_ne!(balance, before.balance);
}

#[test]
fn a_segment_without_a_bank_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let bank = bank(directory.path(), 1);
    bank.rvm().truncate().unwrap();
    drop(bank);
    let segment = directory.path().join("bank");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[0] ^= 1;
    overwrite(&segment, &bytes);
    assert!(matches!(
        open(directory.path()),
        Err(BenchError::WrongData { .. })
    ));
}
