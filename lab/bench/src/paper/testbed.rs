//! What the cells of one figure share: lenders, the network between namespaces, and files written in full
//! beforehand.

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

/// How a lender behind a delaying process waits: it shares its core with that process, and must not fall
/// asleep within the longer round trip.
const LONG_YIELD: WaitPolicy = WaitPolicy::Yield { us: 2_000 };
/// Bytes of the log that a bank is founded with; it holds one transaction.
const FOUNDING_LOG_BYTES: u64 = 1 << 20;
/// Bytes of a pre-written file that are written at once.
const PIECE_BYTES: usize = 1 << 20;

/// Recoverable memory of a cell.
pub type ModelledMemory = Rvm<Journal, ModelledStorage>;

/// Lenders and files.
pub struct Tr190Testbed<'s> {
    site: &'s Testbed,
    /// Who sits where.
    pub cores: CoreAssignment,
    network: Option<&'s NamespacePair>,
    servers: BTreeMap<MemberLink, Vec<LenderEndpoint>>,
}

/// A lender and how it is reached. The wire ends before the lender behind it.
struct LenderEndpoint {
    address: NetAddress,
    _wire: Option<ChildProcess>,
    _lender: LenderProcess,
}

/// A client's memory. Its log is in a directory of its own, which is to be dropped after the memory.
pub struct ClientMemory {
    /// The memory.
    pub rvm: ModelledMemory,
    /// The log's directory.
    pub directory: TemporaryDirectory,
}

/// Removes a directory when dropped.
pub struct TemporaryDirectory(PathBuf);

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // What remains is removed with the site.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'s> Tr190Testbed<'s> {
    /// An empty stage. Without `network` there is no [`MemberLink::Namespaces`].
    pub fn new(site: &'s Testbed, network: Option<&'s NamespacePair>) -> Tr190Testbed<'s> {
        Tr190Testbed {
            site,
            cores: CoreAssignment::find(),
            network,
            servers: BTreeMap::new(),
        }
    }

    /// Where files go.
    pub fn site(&self) -> &'s Testbed {
        self.site
    }

    /// The addresses of `count` servers over `link`, started if they are not there yet. They end with the
    /// thread that calls, by the kernel's hand if need be: call from one that lasts.
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

    /// Moves the calling thread to where the clients of `link` are.
    pub fn enter(&self, link: MemberLink) -> Result<(), BenchError> {
        match (link, self.network) {
            (MemberLink::Namespaces, Some(network)) => network.enter(),
            _ => Ok(()),
        }
    }

    /// Opens fresh memory with a log of `log_bytes`, for commits that are to be so safe; its truncation
    /// thread runs. To be called where the client's threads are to be: the journal's are started by this one.
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
            // Somebody waits for each: a batch that waits for company would only add to the disk's time.
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

    /// A client's data file, written in full and synced when it is first asked for.
    pub fn data_file(&self, index: usize, bytes: u64) -> Result<String, BenchError> {
        let path = self.site.directory().join(format!("data-{index}"));
        if !path.exists() {
            write_in_full(&path, bytes)?;
        }
        Ok(path_text(&path))
    }

    /// A bank's file, founded when it is first asked for; later cells go on where earlier ones left it.
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

/// Zeros, so that every block exists and is in the page cache.
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
