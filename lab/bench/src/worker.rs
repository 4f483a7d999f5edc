//! A client that is meant to be killed: it runs TPC-A and records outside of its own memory which
//! transactions were acknowledged.
//!
//! It writes the number of the last acknowledged transaction to a file after the acknowledgement and before
//! the next transaction. The kernel then has the number, so it outlives the process. A transaction that the
//! process did not live to record is in doubt, and there can be only one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::Durability;
use netram_rvm::RealStorage;
use netram_transport::{ClusterKey, NetAddress, Security};
use serde::{Deserialize, Serialize};

use crate::child::ChildJob;
use crate::error::{BenchError, ErrorContext};
use crate::tpca::{AccessPattern, AccountChooser, Bank};

/// Time within which members must join.
const JOIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
const JOURNAL_NAME: &str = "journal";
const ACK_FILE_NAME: &str = "acked";

/// Job of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BankWorker {
    /// The directory of journal, bank and acknowledgement file.
    pub directory: PathBuf,
    /// Lenders that may become members.
    pub lenders: Vec<String>,
    /// Wanted number of members.
    pub members: usize,
    /// File of the cluster key; `None` for unencrypted links.
    pub key_file: Option<PathBuf>,
    /// Number of accounts of a new bank, in units of 1,024. An old bank keeps its own.
    pub accounts_k: u64,
    /// Seed of the choice of accounts.
    pub seed: u64,
}

impl BankWorker {
    /// Configuration of the journal.
    ///
    /// # Errors
    ///
    /// Fails if an address or the key file is not valid.
    pub fn config(&self) -> Result<JournalConfig, BenchError> {
        let security = match &self.key_file {
            Some(path) => Security::Key(ClusterKey::load(path).context("load the cluster key")?),
            None => Security::Insecure,
        };
        let lenders: Result<Vec<NetAddress>, _> = self.lenders.iter().map(|text| text.parse()).collect();
        let lenders = lenders.context("read the lenders' addresses")?;
        Ok(JournalConfig {
            one_domain: true,
            seal: self.key_file.is_some(),
            ..JournalConfig::with_lenders(lenders, security, self.members)
        })
    }

    /// Directory of the journal.
    pub fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL_NAME)
    }

    /// Creates the journal and founds the bank without members; afterwards everything is on the disk.
    ///
    /// # Errors
    ///
    /// Fails if the journal or the bank cannot be created.
    pub fn prepare(&self, log_bytes: u64) -> Result<(), BenchError> {
        Journal::create(&self.journal(), log_bytes).context("create a journal")?;
        let alone = JournalConfig::default();
        let (journal, _) = Journal::open(&self.journal(), alone).context("open a journal")?;
        let id = journal.id();
        Bank::create(journal, id, &self.directory, self.accounts_k * 1024)?;
        ack_file(&self.directory, true)?
            .write_all_at(&[0; 8], 0)
            .context("begin the count")
    }

    /// Opens the journal, which recovers it, and the bank.
    ///
    /// # Errors
    ///
    /// Fails if the journal or the bank cannot be opened.
    pub fn open(
        &self,
        config: JournalConfig,
    ) -> Result<(Bank<Journal, RealStorage>, netram_journal::JournalRecovery), BenchError> {
        let (journal, recovered) = Journal::open(&self.journal(), config).context("open the journal")?;
        let id = journal.id();
        Ok((Bank::open(journal, id, &self.directory)?, recovered))
    }
}

impl ChildJob for BankWorker {
    const ROLE: &'static str = "Teller";

    // Runs transactions until killed.
    fn run(&self) -> Result<(), BenchError> {
        let acked = ack_file(&self.directory, true)?;
        let (mut bank, _) = self.open(self.config()?)?;
        let joined = bank.rvm().log().wait_for_members(JOIN_TIMEOUT);
        joined
            .map_err(|blocked| BenchError::InvalidRequest(format!("the lenders did not join: {blocked}")))?;
        bank.rvm().start_truncation().context("start truncation")?;
        crate::say("ready")?;
        let mut chooser = AccountChooser::new(AccessPattern::Random, bank.accounts(), self.seed);
        loop {
            let number = bank.transact(&mut chooser, Durability::Remote)?;
            acked
                .write_all_at(&number.to_le_bytes(), 0)
                .context("write down what was acknowledged")?;
        }
    }
}

/// Number of the last transaction that a client in `directory` knew to be acknowledged.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub fn last_acked(directory: &Path) -> Result<u64, BenchError> {
    let mut number = [0; 8];
    ack_file(directory, false)?
        .read_exact_at(&mut number, 0)
        .context("read what was acknowledged")?;
    Ok(u64::from_le_bytes(number))
}

fn ack_file(directory: &Path, write: bool) -> Result<File, BenchError> {
    let path = directory.join(ACK_FILE_NAME);
    let opened = OpenOptions::new()
        .read(true)
        .write(write)
        .create(write)
        .truncate(false)
        .open(&path);
    opened.context(format_args!("open {}", path.display()))
}
