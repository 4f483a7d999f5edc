//! The region's copy, made by a thread of its own: while its disk is slow, another one keeps the node's
//! lease.
//!
//! Tasks are done in the order in which the machine said them. So many bytes of them may wait
//! ([`JOINING_BYTES_MAX`]); then nothing more is taken of the link ([`CopyQueue::is_full`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_journal::{Journal, JournalConfig, JournalPaths};
use netram_proto::journal::{ServerAck, View, Voter};
use netram_proto::wire::ChainPoint;
use netram_rvm::{
    RealStorage, Region, Rvm, RvmOptions as MemoryOptions, SegmentAllocation, TruncationPolicy,
};
use netram_shared_machine::message::{JoinReply, OrphanJournalId, RegionOpening};
use netram_shared_machine::{NodeId, RecordNumber};
use netram_store::StoreSettings;

use super::apply::{ApplyTask, apply};
use super::error::{JoinError, NodeGone};
use super::inner::JoinInfo;
use super::mark::JournalMark;
use super::node_log::NodeLog;
use super::options::NodeOptions;
use super::payload::NodePayload;
use super::txn::StoreTracking;
use crate::channel::ThreadWaker;
use crate::limit::JOINING_BYTES_MAX;
use crate::server::{Span, Spans};

/// The region's copy, beside the log.
const REGION: &str = "region";

/// Something to be done for the copy.
pub(super) enum CopyTask {
    /// The node has an id: the copy, all zeros.
    Open(JoinReply),
    /// Bytes of the region.
    Page { offset: u64, bytes: NodePayload },
    /// A record of another node.
    Apply(ApplyTask),
    /// What the server has durable.
    Kept { number: RecordNumber, view: u64 },
    /// All is there: what is stored from now on is the program's.
    Whole,
}

impl CopyTask {
    fn bytes(&self) -> usize {
        match self {
            CopyTask::Page { bytes, .. } => bytes.as_ref().len(),
            CopyTask::Apply(work) => work.payload.as_ref().len(),
            CopyTask::Open(_) | CopyTask::Kept { .. } | CopyTask::Whole => 0,
        }
    }
}

/// Where the thread that has the link leaves tasks, and hears of what becomes of them.
pub(super) struct CopyQueue {
    tasks: Sender<CopyTask>,
    state: Arc<InitialCopyState>,
}

/// What both threads look at.
struct InitialCopyState {
    /// Bytes of tasks that wait.
    bytes: AtomicUsize,
    ended: AtomicBool,
    /// The journal has been given the server's lenders: its view since.
    view: Mutex<Option<View>>,
    /// Of the thread that has the link.
    waker: Arc<ThreadWaker>,
}

impl CopyQueue {
    /// A desk, and what the thread that makes the copy takes its tasks from.
    pub(super) fn new(bell: Arc<ThreadWaker>) -> (CopyQueue, CopyTasks) {
        let (tasks, waiting) = channel();
        let told = Arc::new(InitialCopyState {
            bytes: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            view: Mutex::default(),
            waker: bell,
        });
        let desk = CopyQueue {
            tasks,
            state: Arc::clone(&told),
        };
        let told = EndSignal(told);
        (
            desk,
            CopyTasks {
                waiting,
                end_signal: told,
            },
        )
    }

    pub(super) fn add(&self, task: CopyTask) {
        self.state.bytes.fetch_add(task.bytes(), Ordering::Relaxed);
        // The thread may have ended, in vain: it says why.
        let _ = self.tasks.send(task);
    }

    /// Whether so much waits that nothing more is to be taken.
    pub(super) fn is_full(&self) -> bool {
        self.state.bytes.load(Ordering::Relaxed) >= JOINING_BYTES_MAX
    }

    /// Whether the copy is whole, or cannot be made.
    pub(super) fn is_over(&self) -> bool {
        self.state.ended.load(Ordering::Acquire)
    }

    /// The journal's view, if it has a new one.
    pub(super) fn take_view(&self) -> Option<View> {
        self.state.view().take()
    }
}

impl InitialCopyState {
    fn view(&self) -> MutexGuard<'_, Option<View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be done.
pub(super) struct CopyTasks {
    waiting: Receiver<CopyTask>,
    end_signal: EndSignal,
}

/// Given up, it says that the thread has ended.
struct EndSignal(Arc<InitialCopyState>);

impl CopyTasks {
    /// The next one. `None`: there is nobody any more who would leave one.
    fn next(&self) -> Option<CopyTask> {
        self.waiting.recv().ok()
    }

    fn done(&self, bytes: usize) {
        self.end_signal.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn tell_view(&self, view: View) {
        *self.end_signal.0.view() = Some(view);
        self.end_signal.0.waker.wake();
    }
}

impl Drop for EndSignal {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

/// A journal without records, and how it begins.
pub(super) struct EmptyJournal {
    pub(super) journal: Journal,
    pub(super) config: JournalConfig,
    pub(super) root: PathBuf,
    pub(super) begins: ChainPoint,
    /// The view that the server is told when the node joins.
    pub(super) view: u64,
}

/// The copy, whole, with its journal.
pub(super) struct InitialCopy {
    pub(super) region: Region,
    pub(super) rvm: Rvm<NodeLog, RealStorage>,
    pub(super) spans: Spans,
    pub(super) id: NodeId,
    pub(super) mark: JournalMark,
    pub(super) join_info: JoinInfo,
    pub(super) stores: StoreTracking,
    /// How the journal was opened.
    pub(super) config: JournalConfig,
    /// What has come behind the whole region, when nothing more is left.
    pub(super) rest: Receiver<CopyTask>,
}

/// Does the tasks until the copy is whole. `None`: nobody wants it any more.
pub(super) fn build(
    fresh: EmptyJournal,
    options: &NodeOptions,
    tasks: CopyTasks,
) -> Result<Option<InitialCopy>, JoinError> {
    let mut fresh = Some(fresh);
    let mut making = None;
    while let Some(task) = tasks.next() {
        let bytes = task.bytes();
        match task {
            CopyTask::Open(joined) => {
                let again = || JoinError::Broken("the region was opened twice".to_owned());
                let fresh = fresh.take().ok_or_else(again)?;
                making = Some(CopyBuilder::open(fresh, options, &joined, &tasks)?);
            }
            CopyTask::Page { offset, bytes } => of(making.as_mut())?.put_page(offset, bytes.as_ref())?,
            CopyTask::Apply(work) => apply(&work, &of(making.as_mut())?.region)?,
            // It may be said before the region comes: then the journal is told when it has its lenders.
            CopyTask::Kept { number, view } => match &making {
                Some(making) => making.on_view_durable(number, view)?,
                None => check_no_records(number)?,
            },
            CopyTask::Whole => {
                of(making.as_mut())?;
                return making.map(|making| making.finish(options, tasks)).transpose();
            }
        }
        tasks.done(bytes);
    }
    Ok(None)
}

fn of(making: Option<&mut CopyBuilder>) -> Result<&mut CopyBuilder, JoinError> {
    making.ok_or_else(|| JoinError::Broken("bytes of no region came".to_owned()))
}

/// The copy, as far as it is made.
struct CopyBuilder {
    region: Region,
    rvm: Rvm<NodeLog, RealStorage>,
    spans: Spans,
    id: NodeId,
    mark: JournalMark,
    join_info: JoinInfo,
    config: JournalConfig,
    begins: ChainPoint,
}

impl CopyBuilder {
    fn open(
        fresh: EmptyJournal,
        options: &NodeOptions,
        joined: &JoinReply,
        tasks: &CopyTasks,
    ) -> Result<CopyBuilder, JoinError> {
        let opening = &joined.opening;
        let EmptyJournal {
            journal,
            config,
            root,
            begins,
            view,
        } = fresh;
        let (journal, config) = give_lenders(journal, config, (&root, options, opening), tasks)?;
        let path = root.join(REGION);
        let name = path.to_str().ok_or_else(|| JoinError::Name(path.clone()))?;
        let table = JournalPaths::at(&root).table();
        let table = table.to_str().ok_or_else(|| JoinError::Name(table.clone()))?;
        let spans = opening.spans.iter().map(|(lock, offset, length)| Span {
            lock: *lock,
            offset: *offset,
            length: *length,
        });
        let spans = Spans::new(opening.bytes, spans.collect())?;
        let whose = OrphanJournalId {
            node: joined.node,
            journal: journal.id(),
        };
        // Before the first record: whoever finds the journal must know whose it is.
        let mark = JournalMark::create(&root, whose, opening.region, begins.lsn).map_err(|cause| {
            JoinError::Directory {
                path: root.clone(),
                cause,
            }
        })?;
        let memory = MemoryOptions {
            truncation: TruncationPolicy::Elsewhere {
                patience: options.server_timeout,
            },
            ..MemoryOptions::new(journal.id())
        };
        let storage = RealStorage::create(table)?;
        let rvm = Rvm::open(
            NodeLog::new(journal, &config, opening.record_bytes_max),
            storage,
            memory,
        )?;
        // The first segment of its log, as the region is of the server's: they have the same number in
        // records.
        rvm.create_segment(name, opening.bytes, SegmentAllocation::Sparse)?;
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
        let making = CopyBuilder {
            region,
            rvm,
            spans,
            id: joined.node,
            mark,
            join_info: JoinInfo {
                region: opening.region,
                address: opening.address,
                settings: String::from_utf8_lossy(&opening.settings).into_owned(),
                name: options.name.clone(),
            },
            config,
            begins,
        };
        making.on_view_durable(RecordNumber(0), view)?;
        Ok(making)
    }

    fn put_page(&self, offset: u64, bytes: &[u8]) -> Result<(), JoinError> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let put = self.region.put_back(offset, bytes);
        put.map_err(|error| JoinError::Broken(format!("a page that the region has not: {error}")))
    }

    /// The server has this view.
    fn on_view_durable(&self, number: RecordNumber, version: u64) -> Result<(), JoinError> {
        check_no_records(number)?;
        let end = self.begins;
        self.rvm.log().on_durable(ServerAck { end, version });
        Ok(())
    }

    /// The pages that came are nobody's stores; from here on the program's are found.
    fn finish(mut self, options: &NodeOptions, tasks: CopyTasks) -> Result<InitialCopy, JoinError> {
        self.region.set_capture(options.capture)?;
        let stores = StoreTracking::new(options.capture, &self.spans, self.region.len() as u64);
        Ok(InitialCopy {
            region: self.region,
            rvm: self.rvm,
            spans: self.spans,
            id: self.id,
            mark: self.mark,
            join_info: self.join_info,
            stores,
            config: self.config,
            rest: tasks.waiting,
        })
    }
}

/// Nobody has written anything yet.
pub(super) fn check_no_records(number: RecordNumber) -> Result<(), NodeGone> {
    match number {
        RecordNumber(0) => Ok(()),
        number => Err(NodeGone::NoSuchEnd(number)),
    }
}

/// The journal with the lenders that the server names, unless the options did. It has no record yet.
fn give_lenders(
    journal: Journal,
    config: JournalConfig,
    making: (&Path, &NodeOptions, &RegionOpening),
    tasks: &CopyTasks,
) -> Result<(Journal, JournalConfig), JoinError> {
    let (root, options, opening) = making;
    if options.journal.is_some() || opening.settings.is_empty() {
        return Ok((journal, config));
    }
    // Where a home's settings are: whoever merges what is left without a server finds the lenders.
    let path = JournalPaths::at(root).settings();
    let text = String::from_utf8_lossy(&opening.settings);
    fs::write(&path, text.as_bytes()).map_err(|cause| JoinError::Directory {
        path: path.clone(),
        cause,
    })?;
    let config = parse_lenders(&text, &path, options)?;
    drop(journal);
    let (journal, _) = Journal::open(root, config.clone())?;
    tasks.tell_view(journal.newest_view());
    Ok((journal, config))
}

/// The journal's configuration as the server's settings have it. Links to lenders are protected as the one to
/// the server, unless a key is named.
fn parse_lenders(text: &str, path: &Path, options: &NodeOptions) -> Result<JournalConfig, JoinError> {
    let settings = StoreSettings::parse(text, path)?;
    let own_key = settings.key_file.is_some();
    let settings = StoreSettings {
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
