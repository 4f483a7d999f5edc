//! The bank of TPC-A in recoverable memory, with the RVM paper's layout.
//!
//! One branch with ten tellers, N × 1,024 accounts of 128 bytes, and an audit trail of 64-byte records with
//! two slots for each account, so that accounts and trail are each about half of the memory. A transaction
//! changes the balances of an account, a teller and the branch, and writes the next audit record; the trail
//! wraps around. Each record is declared whole, as a program that assigns records does. That is 448 bytes of
//! new values in a commit.
//!
//! ```text
//! 0            magic u64 | accounts u64          one page
//! 4096         branch, ten tellers               128 bytes each: balance i64 | transactions u64 | zeros
//! 8192         accounts                          128 bytes each, the same
//! ...          audit trail                       64 bytes each: number u64 | account u64 | teller u64 | amount i64
//! ```
//!
//! The branch counts the transactions, and every amount is added in three places. A bank read after a crash
//! thus proves by itself that no transaction is torn, and how many it has.

use std::path::Path;

use netram_proto::id::JournalId;
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{
    RangeError, RealStorage, Region, RestoreMode, Rvm, RvmOptions, SegmentAllocation, SegmentStorage,
};

use super::access::AccountChooser;
use crate::error::{BenchError, ErrorContext};

/// Number of tellers of the one branch.
pub const TELLERS: u64 = 10;
const MAGIC: u64 = u64::from_le_bytes(*b"NETRBANK");
const RECORD_BYTES: usize = 128;
const AUDIT_BYTES: usize = 64;
const BRANCH: usize = 4096;
const ACCOUNTS: usize = 8192;
/// Amounts stay below this in both directions.
const AMOUNT_MAX: u64 = 1_000_000;
const TABLE_NAME: &str = "segments";
const SEGMENT_NAME: &str = "bank";

const _: () = assert!(BRANCH + (1 + TELLERS as usize) * RECORD_BYTES <= ACCOUNTS);

/// A bank over any log.
pub struct Bank<L: RecordLog, S: SegmentStorage> {
    rvm: Rvm<L, S>,
    region: Region,
    accounts: u64,
}

/// State of the books after every record was read and found consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankAudit {
    /// Number of transactions in the bank.
    pub transactions: u64,
    /// The branch's balance, which is the sum over tellers and over accounts.
    pub balance: i64,
    /// Number of audit records, each of which has its expected number.
    pub audited: u64,
}

impl<L: RecordLog> Bank<L, RealStorage> {
    /// Founds a bank beside a new log: its segment table and its segment are created in `directory`.
    ///
    /// # Errors
    ///
    /// Fails if the memory or the segment cannot be created.
    pub fn create(log: L, journal: JournalId, directory: &Path, accounts: u64) -> Result<Self, BenchError> {
        let storage =
            RealStorage::create(&name(directory, TABLE_NAME)).context("create the segment table")?;
        let rvm = Rvm::open(log, storage, RvmOptions::new(journal)).context("open recoverable memory")?;
        let segment = name(directory, SEGMENT_NAME);
        rvm.create_segment(&segment, Self::bytes(accounts), SegmentAllocation::Preallocated)
            .context("create the bank's segment")?;
        Bank::create_on(rvm, &segment, accounts)
    }

    /// Opens a bank after its log was recovered; applies the log's records.
    ///
    /// # Errors
    ///
    /// Fails if the memory cannot be opened, or has no bank.
    pub fn open(log: L, journal: JournalId, directory: &Path) -> Result<Self, BenchError> {
        let storage = RealStorage::open(&name(directory, TABLE_NAME)).context("open the segment table")?;
        let rvm = Rvm::open(log, storage, RvmOptions::new(journal)).context("open recoverable memory")?;
        Bank::open_on(rvm, &name(directory, SEGMENT_NAME))
    }
}

impl<L: RecordLog, S: SegmentStorage> Bank<L, S> {
    /// Size of a bank's segment in bytes: whole pages.
    pub fn bytes(accounts: u64) -> u64 {
        (ACCOUNTS as u64 + accounts * (RECORD_BYTES + 2 * AUDIT_BYTES) as u64).next_multiple_of(4096)
    }

    /// Founds a bank in a segment of zeros, [`Bank::bytes`] long.
    ///
    /// # Errors
    ///
    /// Fails if the segment cannot be mapped or written.
    pub fn create_on(rvm: Rvm<L, S>, segment: &str, accounts: u64) -> Result<Self, BenchError> {
        let region = rvm.map(segment, 0, 0).context("map the bank")?;
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        transaction
            .set(&region, 0, &[MAGIC, accounts])
            .context("found the bank")?;
        transaction.commit(Durability::Disk).context("found the bank")?;
        Ok(Bank {
            rvm,
            region,
            accounts,
        })
    }

    /// Opens the bank in a segment.
    ///
    /// # Errors
    ///
    /// Fails if the segment cannot be mapped, or has no bank.
    pub fn open_on(rvm: Rvm<L, S>, segment: &str) -> Result<Self, BenchError> {
        let region = rvm.map(segment, 0, 0).context("map the bank")?;
        let [magic, accounts]: [u64; 2] = region.get(0).context("read the bank")?;
        if magic != MAGIC || Self::bytes(accounts) != region.len() as u64 {
            return Err(BenchError::WrongData {
                place: segment.into(),
                why: "the segment has no bank".to_owned(),
            });
        }
        Ok(Bank {
            rvm,
            region,
            accounts,
        })
    }

    /// The bank's memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The recoverable memory of the bank.
    pub fn rvm(&self) -> &Rvm<L, S> {
        &self.rvm
    }

    /// Number of accounts.
    pub fn accounts(&self) -> u64 {
        self.accounts
    }

    /// Runs one transaction, with the given durability when this returns. Returns its number. Transactions
    /// run one at a time, because RVM requires its users to keep two transactions from changing one record at
    /// once.
    ///
    /// # Errors
    ///
    /// Fails if the commit does.
    pub fn transact(
        &mut self,
        chooser: &mut AccountChooser,
        durability: Durability,
    ) -> Result<u64, BenchError> {
        let account = chooser.account();
        let teller = chooser.below(TELLERS);
        let amount = chooser.below(2 * AMOUNT_MAX) as i64 - AMOUNT_MAX as i64;
        let mut transaction = self.rvm.begin(RestoreMode::Restore);
        let mut memory = transaction.edit(&self.region);
        let number = {
            let mut change =
                |at| -> Result<u64, RangeError> { Ok(add(memory.range_mut(at, RECORD_BYTES)?, amount)) };
            change(account_at(account))
                .and(change(teller_at(teller)))
                .and(change(BRANCH))
        };
        let number = number.context("change balances")?;
        let slot = memory
            .range_mut(self.audit_at(number), AUDIT_BYTES)
            .context("write the audit trail")?;
        for (field, value) in slot
            .chunks_exact_mut(8)
            .zip([number, account, teller, amount as u64])
        {
            field.copy_from_slice(&value.to_le_bytes());
        }
        drop(memory);
        transaction.commit(durability).context("commit a transaction")?;
        Ok(number)
    }

    /// Reads every record and checks each against the others.
    ///
    /// # Errors
    ///
    /// Fails with the first contradiction.
    pub fn audit(&self) -> Result<BankAudit, BenchError> {
        let memory = self.region.read();
        let wrong = |why| {
            Err(BenchError::WrongData {
                place: self.region.segment_path().into(),
                why,
            })
        };
        let sum = |from: usize, count: u64| -> (i64, u64) {
            let records = memory[from..].chunks_exact(RECORD_BYTES).take(count as usize);
            records
                .map(|record| (balance(record), u64_at(record, 8)))
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        };
        let branch = sum(BRANCH, 1);
        for (who, found) in [
            ("tellers", sum(teller_at(0), TELLERS)),
            ("accounts", sum(ACCOUNTS, self.accounts)),
        ] {
            if found != branch {
                return wrong(format!(
                    "the branch has balance {} after {} transactions, its {who} {} after {}",
                    branch.0, branch.1, found.0, found.1
                ));
            }
        }
        let (balance, transactions) = branch;
        let audited = transactions.min(self.slots());
        let mut amounts = 0;
        for number in transactions - audited + 1..=transactions {
            let at = self.audit_at(number);
            let record = &memory[at..at + AUDIT_BYTES];
            if u64_at(record, 0) != number {
                return wrong(format!("audit record {number} of {transactions} is missing"));
            }
            amounts += u64_at(record, 24) as i64;
        }
        if audited == transactions && amounts != balance {
            return wrong(format!(
                "the audit trail adds up to {amounts}, the branch to {balance}"
            ));
        }
        Ok(BankAudit {
            transactions,
            balance,
            audited,
        })
    }

    fn slots(&self) -> u64 {
        2 * self.accounts
    }

    /// Transactions count from 1, slots from 0.
    fn audit_at(&self, number: u64) -> usize {
        ACCOUNTS
            + self.accounts as usize * RECORD_BYTES
            + ((number - 1) % self.slots()) as usize * AUDIT_BYTES
    }
}

/// Adds `amount` to a record's balance, and one to its count. Returns the count.
fn add(record: &mut [u8], amount: i64) -> u64 {
    let count = u64_at(record, 8) + 1;
    let sum = balance(record) + amount;
    record[..8].copy_from_slice(&sum.to_le_bytes());
    record[8..16].copy_from_slice(&count.to_le_bytes());
    count
}

fn balance(record: &[u8]) -> i64 {
    u64_at(record, 0) as i64
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("a slice of eight bytes"))
}

fn account_at(account: u64) -> usize {
    ACCOUNTS + account as usize * RECORD_BYTES
}

fn teller_at(teller: u64) -> usize {
    BRANCH + (1 + teller as usize) * RECORD_BYTES
}

fn name(directory: &Path, file: &str) -> String {
    directory.join(file).to_string_lossy().into_owned()
}
