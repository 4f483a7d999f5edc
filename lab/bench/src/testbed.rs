//! Site of a measurement: a temporary directory, a cluster key, and lenders in their own processes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netram_journal::{Journal, JournalConfig};
use netram_proto::id::JournalId;
use netram_proto::journal::WriterTimings;
use netram_proto::time::Nanos;
use netram_transport::{ClusterKey, MulticastGroup, NetAddress, Security, WaitPolicy};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::child::{ChildProcess, listening_addresses};
use crate::cleanup::{CleanupItem, register, retry_removal};
use crate::error::{BenchError, ErrorContext};
use crate::machine;
use crate::namespaces::NamespacePair;

/// Time within which members must join; they are processes on this machine.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory of a benchmark's lender: several journals' windows.
const LENDER_MEMORY: &str = "96MiB";

/// The kind of socket between client and lender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketKind {
    /// TCP over loopback.
    #[default]
    Tcp,
    /// A Unix socket.
    Unix,
}

/// Parameters of a benchmark's lender.
#[derive(Clone, Copy, Debug)]
pub struct LenderSpec {
    /// The kind of socket.
    pub wire: SocketKind,
    /// Whether links are encrypted.
    pub secure: bool,
    /// Wait policy of its shard.
    pub wait: WaitPolicy,
    /// Core that its shard stays on.
    pub core: Option<usize>,
}

/// A directory for files, a key, and the processes started there.
pub struct Testbed {
    program: PathBuf,
    directory: TempDir,
    key: ClusterKey,
    key_file: PathBuf,
    numbers_used: AtomicU32,
}

/// A lender process. Dropping it kills it and frees its memory.
pub struct LenderProcess {
    child: Option<ChildProcess>,
    address: NetAddress,
    store: PathBuf,
}

/// A journal open in this process, in its own directory.
pub struct OpenJournal {
    /// The journal.
    pub journal: Journal,
    /// Id of the journal.
    pub id: JournalId,
    /// Its directory, which other files may use too.
    pub directory: PathBuf,
}

impl Testbed {
    /// A new site in a temporary directory below `parent`, for children of `program`.
    ///
    /// # Errors
    ///
    /// Fails if the directory or the key cannot be created.
    pub fn new(program: PathBuf, parent: &Path) -> Result<Testbed, BenchError> {
        let directory = tempfile::Builder::new().prefix("netram-").tempdir_in(parent);
        let directory = directory.context(format_args!("make a directory in {}", parent.display()))?;
        register(CleanupItem::Path(directory.path().to_owned()));
        let key = ClusterKey::generate();
        let key_file = directory.path().join("cluster.key");
        key.save_new(&key_file).context("save a cluster key")?;
        Ok(Testbed {
            program,
            directory,
            key,
            key_file,
            numbers_used: AtomicU32::new(0),
        })
    }

    /// The program that children are started from.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Path of the temporary directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// File of the cluster key.
    pub fn key_file(&self) -> &Path {
        &self.key_file
    }

    /// Encryption settings of links and records.
    pub fn security(&self, secure: bool) -> Security {
        if secure {
            Security::Key(self.key.clone())
        } else {
            Security::Insecure
        }
    }

    /// A number that nothing else at this site has.
    pub fn number(&self) -> u32 {
        self.numbers_used.fetch_add(1, Ordering::Relaxed)
    }

    /// An address to listen on.
    pub fn listen(&self, wire: SocketKind) -> NetAddress {
        let text = match wire {
            SocketKind::Tcp => "tcp://127.0.0.1:0".to_owned(),
            SocketKind::Unix => format!("unix:{}/{}.sock", self.directory().display(), self.number()),
        };
        text.parse()
            .expect("a loopback address and a path of a temporary directory are addresses")
    }

    /// Starts a lender process and waits until it listens.
    ///
    /// # Errors
    ///
    /// Fails if the process ends or does not listen in time.
    pub fn lender(&self, spec: LenderSpec) -> Result<LenderProcess, BenchError> {
        self.start_lender(spec, &self.listen(spec.wire), &[], &[])
    }

    /// The same at the address of an earlier one.
    pub(crate) fn lender_at(
        &self,
        spec: LenderSpec,
        listen: &NetAddress,
    ) -> Result<LenderProcess, BenchError> {
        self.start_lender(spec, listen, &[], &[])
    }

    /// Starts a data lender, which keeps replicas of volumes in the directory `data`.
    pub(crate) fn data_lender_at(
        &self,
        spec: LenderSpec,
        listen: &NetAddress,
        data: &Path,
    ) -> Result<LenderProcess, BenchError> {
        let more = ["--data".to_owned(), data.display().to_string()];
        self.start_lender(spec, listen, &[], &more)
    }

    /// Starts a lender with `memory`, nearly all of it for pages.
    pub(crate) fn page_lender(&self, spec: LenderSpec, memory: &str) -> Result<LenderProcess, BenchError> {
        let more = ["--memory", memory, "--deposits", memory].map(str::to_owned);
        self.start_lender(spec, &self.listen(spec.wire), &[], &more)
    }

    /// Starts a lender that also receives appends of a multicast group.
    ///
    /// # Errors
    ///
    /// Fails if the process ends or does not listen in time.
    pub fn multicast_lender(
        &self,
        spec: LenderSpec,
        group: &MulticastGroup,
    ) -> Result<LenderProcess, BenchError> {
        let more = ["--multicast".to_owned(), group.to_string()];
        self.start_lender(spec, &self.listen(spec.wire), &[], &more)
    }

    /// Starts such a lender on the other side of a network, reached by TCP whatever `spec` says.
    ///
    /// # Errors
    ///
    /// Fails if the process ends or does not listen in time.
    pub fn remote_lender(
        &self,
        network: &NamespacePair,
        spec: LenderSpec,
    ) -> Result<LenderProcess, BenchError> {
        let before = network.on_lender();
        self.start_lender(
            spec,
            &network.listen(),
            &before.each_ref().map(String::as_str),
            &[],
        )
    }

    /// `before` is a command with arguments that executes the following program.
    fn start_lender(
        &self,
        spec: LenderSpec,
        listen: &NetAddress,
        before: &[&str],
        more: &[String],
    ) -> Result<LenderProcess, BenchError> {
        let number = self.number();
        let name = format!("bench-{}-{number}", std::process::id());
        let store = PathBuf::from(format!("/dev/shm/netram-{name}.mem"));
        for file in lender_files(&store) {
            register(CleanupItem::Path(file));
        }
        let mut arguments = vec![
            "lender".to_owned(),
            "serve".to_owned(),
            "--listen".to_owned(),
            listen.to_string(),
        ];
        let mut flag = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        if !more.iter().any(|word| word == "--memory") {
            flag("--memory", LENDER_MEMORY.to_owned());
            // Some figures fill it with one window.
            flag("--quota", LENDER_MEMORY.to_owned());
        }
        flag("--domain", format!("domain-{number}"));
        flag("--wait", spec.wait.to_string());
        flag("--store", store.display().to_string());
        flag("--name", name);
        if let Some(core) = spec.core {
            flag("--pin", core.to_string());
        }
        if spec.secure {
            flag("--key-file", self.key_file.display().to_string());
        } else {
            arguments.push("--insecure".to_owned());
        }
        arguments.push("--with-parent".to_owned());
        arguments.extend_from_slice(more);
        let program = self.program.to_string_lossy();
        let arguments = arguments.iter().map(String::as_str);
        let mut words = before.iter().copied().chain([&*program]).chain(arguments);
        let first = words.next().expect("at least the program itself");
        let child = ChildProcess::start(Path::new(first), words, "lender", self.directory())?;
        let mut lender = LenderProcess {
            child: Some(child),
            address: listen.clone(),
            store,
        };
        let child = lender.child_mut();
        let addresses = listening_addresses(&child.ready("ready")?)?;
        lender.address = addresses
            .into_iter()
            .next()
            .ok_or_else(|| child.log_error("it named no address"))?;
        Ok(lender)
    }

    /// Creates a journal with a log of `log_bytes` in its own directory, and opens it.
    ///
    /// # Errors
    ///
    /// Fails if the journal cannot be created, or its members do not join in time.
    pub fn journal(&self, log_bytes: u64, config: JournalConfig) -> Result<OpenJournal, BenchError> {
        let directory = self.directory().join(format!("client-{}", self.number()));
        std::fs::create_dir(&directory).context("make a client's directory")?;
        let journal_path = directory.join("journal");
        Journal::create(&journal_path, log_bytes).context("create a journal")?;
        let members = config.members;
        let (journal, _) = Journal::open(&journal_path, config).context("open a journal")?;
        if members > 0 {
            journal.wait_for_members(JOIN_TIMEOUT).map_err(|blocked| {
                BenchError::InvalidRequest(format!("the lenders did not join the journal: {blocked}"))
            })?;
        }
        Ok(OpenJournal {
            id: journal.id(),
            journal,
            directory,
        })
    }

    /// Configuration of a journal with `lenders`, all of them members.
    pub fn config(&self, lenders: Vec<NetAddress>, secure: bool, wait: WaitPolicy) -> JournalConfig {
        let members = lenders.len();
        JournalConfig {
            wait,
            seal: secure,
            // All processes are on this machine, whatever their domain labels say.
            one_domain: true,
            domain: "bench".to_owned(),
            ..JournalConfig::with_lenders(lenders, self.security(secure), members)
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // The guard tries only once, and an ending process may still be creating a file there.
        retry_removal(|| std::fs::remove_dir_all(self.directory.path()));
    }
}

/// Failure detection that tolerates a lender paused while its floor was measured.
pub fn patient_timing() -> WriterTimings {
    WriterTimings {
        detect: Nanos::from_ms(120_000),
        ping: Nanos::from_ms(60_000),
        ..WriterTimings::default()
    }
}

impl LenderProcess {
    fn child_mut(&mut self) -> &mut ChildProcess {
        self.child
            .as_mut()
            .expect("taken only by `kill` and `stop`, which consume the lender")
    }

    /// The process.
    pub fn child(&self) -> &ChildProcess {
        self.child
            .as_ref()
            .expect("taken only by `kill` and `stop`, which consume the lender")
    }

    /// Address on which it listens.
    pub fn address(&self) -> &NetAddress {
        &self.address
    }

    /// Kills it (SIGKILL); its memory is freed, as when its machine dies.
    pub fn kill(self) {
        drop(self);
    }

    /// Asks it to stop and waits for its end.
    ///
    /// # Errors
    ///
    /// Fails if the process does not end properly.
    pub fn stop(mut self) -> Result<(), BenchError> {
        match self.child.take() {
            Some(child) => child.stop(),
            None => Ok(()),
        }
    }
}

impl Drop for LenderProcess {
    fn drop(&mut self) {
        drop(self.child.take());
        // A lender that was asked to stop may have freed its memory itself.
        for file in lender_files(&self.store) {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Files of a lender that has this store: beside it its operator's socket, and the lock under which that is
/// bound.
fn lender_files(store: &Path) -> [PathBuf; 3] {
    let beside = |extension| store.with_extension(extension);
    [
        beside("mem.operator.lock"),
        beside("mem.operator"),
        store.to_path_buf(),
    ]
}

/// Assignment of processes to cores: the client on the first, lenders on the others.
#[derive(Clone, Debug)]
pub struct CoreAssignment {
    cores: Vec<usize>,
}

impl CoreAssignment {
    /// An assignment to the cores that this process may use.
    pub fn find() -> CoreAssignment {
        CoreAssignment {
            cores: machine::cores(),
        }
    }

    /// The client's core.
    pub fn client(&self) -> usize {
        self.cores[0]
    }

    /// The core of one of several clients, from the last core downward, while lenders take theirs upward.
    /// `None` with too few cores: clients that share one while others idle would distort the measurement.
    pub fn client_of(&self, index: usize, clients: usize) -> Option<usize> {
        let count = self.cores.len();
        if clients == 1 {
            return Some(self.cores[0]);
        }
        let upper = count / 2;
        (clients <= upper).then(|| self.cores[count - 1 - index])
    }

    /// The core of the lender with this index; `None` on a machine with one core.
    pub fn lender(&self, index: usize) -> Option<usize> {
        let others = &self.cores[1..];
        (!others.is_empty()).then(|| others[index % others.len()])
    }

    /// Whether each of `lenders` lenders and a client has its own core, so that all may spin.
    pub fn spinning(&self, lenders: usize) -> bool {
        lenders < self.cores.len()
    }

    /// A wait policy with which no lender takes another's core.
    pub fn lender_wait(&self, lenders: usize) -> WaitPolicy {
        if self.spinning(lenders) {
            WaitPolicy::Spin
        } else {
            WaitPolicy::default()
        }
    }
}
