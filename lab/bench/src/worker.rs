//! A client that is there to be killed: runs TPC-A and keeps, outside of its own memory, what was
//! acknowledged to it.
//!
//! The number of the last acknowledged transaction is written to a file after the acknowledgement and before
//! the next transaction. The kernel has it then, so it outlives the process; a transaction that the process
//! did not live to report is in doubt, and only one can be.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::Durability;
use netram_rvm::RealStorage;
use netram_transport::{ClusterKey, NetAddress, Security};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, ErrorContext};
use crate::tpca::{AccessPattern, AccountChooser, Bank};

/// How long members may take to join.
const JOIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
const JOURNAL_NAME: &str = "journal";
const ACK_FILE_NAME: &str = "acked";

/// What a teller runs with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BankWorker {
    /// The directory of journal, bank and acknowledgement file.
    pub directory: PathBuf,
    /// Lenders that may become members.
    pub lenders: Vec<String>,
    /// Members to have.
    pub members: usize,
    /// The cluster key's file; none: links in the clear.
    pub key_file: Option<PathBuf>,
    /// Accounts of a new bank, in units of 1,024. An old bank keeps its own.
    pub accounts_k: u64,
    /// Where the choice of accounts begins.
    pub seed: u64,
}

impl BankWorker {
    /// The journal's configuration.
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

    /// The journal's directory.
    pub fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL_NAME)
    }

    /// Makes the journal and founds the bank, with nobody's help: everything is on the disk afterwards.
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
    pub fn open(
        &self,
        config: JournalConfig,
    ) -> Result<(Bank<Journal, RealStorage>, netram_journal::JournalRecovery), BenchError> {
        let (journal, recovered) = Journal::open(&self.journal(), config).context("open the journal")?;
        let id = journal.id();
        Ok((Bank::open(journal, id, &self.directory)?, recovered))
    }

    /// Transactions until killed.
    pub(crate) fn run(&self) -> Result<(), BenchError> {
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

/// The number of the last transaction that a teller in `directory` knew to be acknowledged.
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
