//! Resources that the cells of a figure share: lenders, the network between namespaces, and files written in
//! full beforehand.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use netram_journal::Journal;
use netram_proto::port::Durability;
use netram_rvm::{RealStorage, Rvm, RvmOptions};
use netram_transport::{NetAddress, WaitPolicy};

use super::modelled::ModelledStorage;
use super::system::{MemberLink, Tr190System};
use crate::child::ChildProcess;
use crate::delay::DelayProxy;
use crate::error::{BenchError, ErrorContext};
use crate::namespaces::NamespacePair;
use crate::testbed::{self, CoreAssignment, LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tpca::Bank;

/// Wait policy of a lender behind a delaying process: it shares its core with that process, and must not fall
/// asleep within the longer round trip.
const LONG_YIELD: WaitPolicy = WaitPolicy::Yield { us: 2_000 };
/// Size in bytes of the log that a bank is founded with; it holds one transaction.
const FOUNDING_LOG_BYTES: u64 = 1 << 20;
/// Bytes written at once to a file that is written in full.
const PIECE_BYTES: usize = 1 << 20;

/// Recoverable memory of a cell.
pub type ModelledMemory = Rvm<Journal, ModelledStorage>;

/// Lenders and files of a run.
pub struct Tr190Testbed<'s> {
    site: &'s Testbed,
    /// Cores of client and lenders.
    pub cores: CoreAssignment,
    network: Option<&'s NamespacePair>,
    servers: BTreeMap<MemberLink, Vec<LenderEndpoint>>,
}

/// A lender and its address. The wire ends before the lender behind it.
struct LenderEndpoint {
    address: NetAddress,
    _wire: Option<ChildProcess>,
    _lender: LenderProcess,
}

/// A client's memory. Its log has its own directory, which must be dropped after the memory.
pub struct ClientMemory {
    /// The memory.
    pub rvm: ModelledMemory,
    /// Directory of the log.
    pub directory: TemporaryDirectory,
}

/// Removes a directory when dropped.
pub struct TemporaryDirectory(PathBuf);

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // The site's removal takes whatever remains.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'s> Tr190Testbed<'s> {
    /// A testbed without lenders yet. [`MemberLink::Namespaces`] needs `network`.
    pub fn new(site: &'s Testbed, network: Option<&'s NamespacePair>) -> Tr190Testbed<'s> {
        Tr190Testbed {
            site,
            cores: CoreAssignment::find(),
            network,
            servers: BTreeMap::new(),
        }
    }

    /// The site of its files.
    pub fn site(&self) -> &'s Testbed {
        self.site
    }

    /// Addresses of `count` servers over `link`, started on first use. The kernel ends them with the calling
    /// thread, so call from one that lasts.
    ///
    /// # Errors
    ///
    /// Fails if a server cannot be started.
    pub fn servers(&mut self, link: MemberLink, count: usize) -> Result<Vec<NetAddress>, BenchError> {
        if link == MemberLink::Disk {
            return Ok(Vec::new());
        }
        let have = self.servers.get(&link).map_or(0, Vec::len);
        for index in have..count {
            let server = self.start(link, index)?;
            self.servers.entry(link).or_default().push(server);
        }
        let servers = self.servers.get(&link).map_or(&[][..], Vec::as_slice);
        Ok(servers[..count.min(servers.len())]
            .iter()
            .map(|server| server.address.clone())
            .collect())
    }

    fn start(&self, link: MemberLink, index: usize) -> Result<LenderEndpoint, BenchError> {
        let core = self.cores.lender(index);
        let spec = LenderSpec {
            wire: if link == MemberLink::Unix {
                SocketKind::Unix
            } else {
                SocketKind::Tcp
            },
            secure: true,
            wait: match link {
                MemberLink::Longer(_) => LONG_YIELD,
                _ => WaitPolicy::default(),
            },
            core,
        };
        let lender = match (link, self.network) {
            (MemberLink::Namespaces, Some(network)) => self.site.remote_lender(network, spec)?,
            (MemberLink::Namespaces, None) => {
                let why = "there are no network namespaces to measure between";
                return Err(BenchError::InvalidRequest(why.to_owned()));
            }
            _ => self.site.lender(spec)?,
        };
        let (mut address, mut wire) = (lender.address().clone(), None);
        if let MemberLink::Longer(us) = link {
            let (child, through) =
                DelayProxy::start(self.site.program(), &address, us, core, self.site.directory())?;
            (address, wire) = (through, Some(child));
        }
        Ok(LenderEndpoint {
            address,
            _wire: wire,
            _lender: lender,
        })
    }

    /// Moves the calling thread to the side of `link`'s clients.
    ///
    /// # Errors
    ///
    /// Fails if the namespace cannot be entered.
    pub fn enter(&self, link: MemberLink) -> Result<(), BenchError> {
        match (link, self.network) {
            (MemberLink::Namespaces, Some(network)) => network.enter(),
            _ => Ok(()),
        }
    }

    /// Opens new memory with a log of `log_bytes` for commits of this durability; its truncation thread runs.
    /// Call it on the client's core, since this thread starts those of the journal.
    ///
    /// # Errors
    ///
    /// Fails if the journal or the memory cannot be opened.
    pub fn memory(
        &self,
        system: Tr190System,
        server: Option<NetAddress>,
        log_bytes: u64,
        commits: Durability,
    ) -> Result<ClientMemory, BenchError> {
        let addresses = server.into_iter().collect();
        let mut config = self.site.config(addresses, true, WaitPolicy::default());
        config.timing = testbed::patient_timing();
        config.modelled_sync_delay = system.sync_delay();
        if commits == Durability::Disk {
            // A thread waits for each commit, so a delay for batching would only add to the disk's time.
            config.disk_delay = std::time::Duration::ZERO;
        }
        let opened = self.site.journal(log_bytes, config)?;
        let table = path_text(&opened.directory.join("segments"));
        let storage = RealStorage::create(&table).context("create the segment table")?;
        let storage = ModelledStorage::new(storage, system.sync_delay());
        let options = RvmOptions {
            // Cells share the data files, and the logs of earlier cells are gone.
            adopt_segments: true,
            ..RvmOptions::new(opened.id)
        };
        let rvm = Rvm::open(opened.journal, storage, options).context("open recoverable memory")?;
        rvm.start_truncation().context("start truncation")?;
        Ok(ClientMemory {
            rvm,
            directory: TemporaryDirectory(opened.directory),
        })
    }

    /// A client's data file, written in full and synced on first use.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn data_file(&self, index: usize, bytes: u64) -> Result<String, BenchError> {
        let path = self.site.directory().join(format!("data-{index}"));
        if !path.exists() {
            write_in_full(&path, bytes)?;
        }
        Ok(path_text(&path))
    }

    /// A bank's file, founded on first use; later cells continue with the state that earlier ones left.
    ///
    /// # Errors
    ///
    /// Fails if the bank cannot be founded.
    pub fn bank_file(&self, accounts: u64) -> Result<String, BenchError> {
        let path = self.site.directory().join(format!("bank-{accounts}"));
        let segment = path_text(&path);
        if !path.exists() {
            write_in_full(&path, Bank::<Journal, ModelledStorage>::bytes(accounts))?;
            let ClientMemory {
                rvm,
                directory: _directory,
            } = self.memory(Tr190System::RVM, None, FOUNDING_LOG_BYTES, Durability::Disk)?;
            let bank = Bank::create_on(rvm, &segment, accounts)?;
            bank.rvm().truncate().context("write the bank to its file")?;
        }
        Ok(segment)
    }
}

/// Writes zeros, so that every block exists and is in the page cache.
pub(crate) fn write_in_full(path: &Path, bytes: u64) -> Result<(), BenchError> {
    let what = format_args!("write {}", path.display());
    let mut file = File::create_new(path).context(what)?;
    let piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize]).context(what)?;
        left -= now;
    }
    file.sync_all().context(what)
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
