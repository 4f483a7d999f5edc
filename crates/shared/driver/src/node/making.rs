//! The region's copy, made by a thread of its own: while its disk is slow, another one keeps the node's lease.
//!
//! Tasks are done in the order in which the machine said them. So many bytes of them may wait ([`JOINING_BYTES_MAX`]); then nothing more is taken
//! of the link ([`Desk::is_full`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_journal::{Journal, JournalConfig, Place};
use netram_proto::journal::{ServerKept, View, Voter};
use netram_proto::wire::Link;
use netram_rvm::{Allocation, Options as MemoryOptions, RealStorage, Region, Rvm, Truncation};
use netram_shared_machine::message::{Joined, OldJournal, Opening};
use netram_shared_machine::{NodeId, Number};
use netram_store::Settings;

use super::error::{Gone, JoinError};
use super::hands::{Work, apply};
use super::mark::Mark;
use super::options::Options;
use super::payload::Payload;
use super::shared::Birth;
use super::tails::Tails;
use super::txn::Stores;
use crate::channel::Bell;
use crate::limit::JOINING_BYTES_MAX;
use crate::server::{Span, Spans};

/// The region's copy, beside the log.
const REGION: &str = "region";

/// Something to be done for the copy.
pub(super) enum Task {
    /// The node has an id: the copy, all zeros.
    Open(Joined),
    /// Bytes of the region.
    Page { offset: u64, bytes: Payload },
    /// A record of another node.
    Apply(Work),
    /// What the server has durable.
    Kept { number: Number, view: u64 },
    /// All is there: what is stored from now on is the program's.
    Whole,
}

impl Task {
    fn bytes(&self) -> usize {
        match self {
            Task::Page { bytes, .. } => bytes.as_ref().len(),
            Task::Apply(work) => work.payload.as_ref().len(),
            Task::Open(_) | Task::Kept { .. } | Task::Whole => 0,
        }
    }
}

/// Where the thread that has the link leaves tasks, and hears of what becomes of them.
pub(super) struct Desk {
    tasks: Sender<Task>,
    told: Arc<Told>,
}

/// What both threads look at.
struct Told {
    /// Bytes of tasks that wait.
    bytes: AtomicUsize,
    ended: AtomicBool,
    /// The journal has been given the server's lenders: its view since.
    view: Mutex<Option<View>>,
    /// Of the thread that has the link.
    bell: Arc<Bell>,
}

impl Desk {
    /// A desk, and what the thread that makes the copy takes its tasks from.
    pub(super) fn new(bell: Arc<Bell>) -> (Desk, Tasks) {
        let (tasks, waiting) = channel();
        let told = Arc::new(Told {
            bytes: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            view: Mutex::default(),
            bell,
        });
        let desk = Desk {
            tasks,
            told: Arc::clone(&told),
        };
        let told = Teller(told);
        (desk, Tasks { waiting, told })
    }

    pub(super) fn add(&self, task: Task) {
        self.told.bytes.fetch_add(task.bytes(), Ordering::Relaxed);
        // The thread may have ended, in vain: it says why.
        let _ = self.tasks.send(task);
    }

    /// Whether so much waits that nothing more is to be taken.
    pub(super) fn is_full(&self) -> bool {
        self.told.bytes.load(Ordering::Relaxed) >= JOINING_BYTES_MAX
    }

    /// Whether the copy is whole, or cannot be made.
    pub(super) fn is_over(&self) -> bool {
        self.told.ended.load(Ordering::Acquire)
    }

    /// The journal's view, if it has a new one.
    pub(super) fn take_view(&self) -> Option<View> {
        self.told.view().take()
    }
}

impl Told {
    fn view(&self) -> MutexGuard<'_, Option<View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be done.
pub(super) struct Tasks {
    waiting: Receiver<Task>,
    told: Teller,
}

/// Given up, it says that the thread has ended.
struct Teller(Arc<Told>);

impl Tasks {
    /// The next one. `None`: there is nobody any more who would leave one.
    fn next(&self) -> Option<Task> {
        self.waiting.recv().ok()
    }

    fn done(&self, bytes: usize) {
        self.told.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn tell_view(&self, view: View) {
        *self.told.0.view() = Some(view);
        self.told.0.bell.ring();
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.bell.ring();
    }
}

/// A journal without records, and how it begins.
pub(super) struct Fresh {
    pub(super) journal: Journal,
    pub(super) config: JournalConfig,
    pub(super) root: PathBuf,
    pub(super) begins: Link,
    /// The view that the server is told when the node joins.
    pub(super) view: u64,
}

/// The copy, whole, with its journal.
pub(super) struct Made {
    pub(super) region: Region,
    pub(super) rvm: Rvm<Tails, RealStorage>,
    pub(super) spans: Spans,
    pub(super) id: NodeId,
    pub(super) mark: Mark,
    pub(super) birth: Birth,
    pub(super) stores: Stores,
    /// How the journal was opened.
    pub(super) config: JournalConfig,
    /// What has come behind the whole region, when nothing more is left.
    pub(super) rest: Receiver<Task>,
}

/// Does the tasks until the copy is whole. `None`: nobody wants it any more.
pub(super) fn make(fresh: Fresh, options: &Options, tasks: Tasks) -> Result<Option<Made>, JoinError> {
    let mut fresh = Some(fresh);
    let mut making = None;
    while let Some(task) = tasks.next() {
        let bytes = task.bytes();
        match task {
            Task::Open(joined) => {
                let again = || JoinError::Broken("the region was opened twice".to_owned());
                let fresh = fresh.take().ok_or_else(again)?;
                making = Some(Making::open(fresh, options, &joined, &tasks)?);
            }
            Task::Page { offset, bytes } => of(making.as_mut())?.put_page(offset, bytes.as_ref())?,
            Task::Apply(work) => apply(&work, &of(making.as_mut())?.region)?,
            // It may be said before the region comes: then the journal is told when it has its lenders.
            Task::Kept { number, view } => match &making {
                Some(making) => making.keep(number, view)?,
                None => nothing_is_kept(number)?,
            },
            Task::Whole => {
                of(making.as_mut())?;
                return making.map(|making| making.finish(options, tasks)).transpose();
            }
        }
        tasks.done(bytes);
    }
    Ok(None)
}

fn of(making: Option<&mut Making>) -> Result<&mut Making, JoinError> {
    making.ok_or_else(|| JoinError::Broken("bytes of no region came".to_owned()))
}

/// The copy, as far as it is made.
struct Making {
    region: Region,
    rvm: Rvm<Tails, RealStorage>,
    spans: Spans,
    id: NodeId,
    mark: Mark,
    birth: Birth,
    config: JournalConfig,
    begins: Link,
}

impl Making {
    fn open(fresh: Fresh, options: &Options, joined: &Joined, tasks: &Tasks) -> Result<Making, JoinError> {
        let opening = &joined.opening;
        let Fresh {
            journal,
            config,
            root,
            begins,
            view,
        } = fresh;
        let (journal, config) = give_lenders(journal, config, (&root, options, opening), tasks)?;
        let path = root.join(REGION);
        let name = path.to_str().ok_or_else(|| JoinError::Name(path.clone()))?;
        let table = Place::at(&root).table();
        let table = table.to_str().ok_or_else(|| JoinError::Name(table.clone()))?;
        let spans = opening.spans.iter().map(|(lock, offset, length)| Span {
            lock: *lock,
            offset: *offset,
            length: *length,
        });
        let spans = Spans::new(opening.bytes, spans.collect())?;
        let whose = OldJournal {
            node: joined.node,
            journal: journal.id(),
        };
        // Before the first record: whoever finds the journal must know whose it is.
        let mark =
            Mark::create(&root, whose, opening.region, begins.lsn).map_err(|cause| JoinError::Directory {
                path: root.clone(),
                cause,
            })?;
        let memory = MemoryOptions {
            truncation: Truncation::Elsewhere {
                patience: options.patience,
            },
            ..MemoryOptions::new(journal.id())
        };
        let storage = RealStorage::create(table)?;
        let rvm = Rvm::open(
            Tails::new(journal, &config, opening.record_bytes_max),
            storage,
            memory,
        )?;
        // The first segment of its log, as the region is of the server's: they have the same number in records.
        rvm.create_segment(name, opening.bytes, Allocation::Sparse)?;
        let region = match usize::try_from(opening.address) {
            Ok(0) => rvm.map(name, 0, 0)?,
            Ok(address) => rvm.map_at(name, 0, 0, address)?,
            Err(_) => {
                return Err(JoinError::Region {
                    bytes: opening.bytes,
                    address: opening.address,
                });
            }
        };
        let making = Making {
            region,
            rvm,
            spans,
            id: joined.node,
            mark,
            birth: Birth {
                region: opening.region,
                address: opening.address,
                settings: String::from_utf8_lossy(&opening.settings).into_owned(),
                name: options.name.clone(),
            },
            config,
            begins,
        };
        making.keep(Number(0), view)?;
        Ok(making)
    }

    fn put_page(&self, offset: u64, bytes: &[u8]) -> Result<(), JoinError> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let put = self.region.put_back(offset, bytes);
        put.map_err(|error| JoinError::Broken(format!("a page that the region has not: {error}")))
    }

    /// The server has this view.
    fn keep(&self, number: Number, version: u64) -> Result<(), JoinError> {
        nothing_is_kept(number)?;
        let end = self.begins;
        self.rvm.log().on_kept(ServerKept { end, version });
        Ok(())
    }

    /// The pages that came are nobody's stores; from here on the program's are found.
    fn finish(mut self, options: &Options, tasks: Tasks) -> Result<Made, JoinError> {
        self.region.set_capture(options.capture)?;
        let stores = Stores::new(options.capture, &self.spans, self.region.len() as u64);
        Ok(Made {
            region: self.region,
            rvm: self.rvm,
            spans: self.spans,
            id: self.id,
            mark: self.mark,
            birth: self.birth,
            stores,
            config: self.config,
            rest: tasks.waiting,
        })
    }
}

/// Nobody has written anything yet.
pub(super) fn nothing_is_kept(number: Number) -> Result<(), Gone> {
    match number {
        Number(0) => Ok(()),
        number => Err(Gone::Kept(number)),
    }
}

/// The journal with the lenders that the server names, unless the options did. It has no record yet.
fn give_lenders(
    journal: Journal,
    config: JournalConfig,
    making: (&Path, &Options, &Opening),
    tasks: &Tasks,
) -> Result<(Journal, JournalConfig), JoinError> {
    let (root, options, opening) = making;
    if options.journal.is_some() || opening.settings.is_empty() {
        return Ok((journal, config));
    }
    // Where a home's settings are: whoever merges what is left without a server finds the lenders.
    let path = Place::at(root).settings();
    let text = String::from_utf8_lossy(&opening.settings);
    fs::write(&path, text.as_bytes()).map_err(|cause| JoinError::Directory {
        path: path.clone(),
        cause,
    })?;
    let config = named(&text, &path, options)?;
    drop(journal);
    let (journal, _) = Journal::open(root, config.clone())?;
    tasks.tell_view(journal.newest_view());
    Ok((journal, config))
}

/// The journal's configuration as the server's settings have it. Links to lenders are protected as the one to the server, unless a key is named.
fn named(text: &str, path: &Path, options: &Options) -> Result<JournalConfig, JoinError> {
    let settings = Settings::parse(text, path)?;
    let own_key = settings.key_file.is_some();
    let settings = Settings {
        insecure: !own_key,
        ..settings
    };
    let config = settings.journal_config()?;
    let security = match own_key {
        true => config.security.clone(),
        false => options.security.clone(),
    };
    Ok(JournalConfig {
        voter: Voter::Server,
        security,
        wait: options.wait,
        ..config
    })
}
