//! Builds the node's copy of the region in a thread of its own. While its disk is slow, the joining thread
//! keeps the node's lease.
//!
//! Tasks are done in the order of the machine's actions. When [`JOINING_BYTES_MAX`] bytes of them wait,
//! nothing more is read from the link ([`CopyQueue::is_full`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_journal::settings::{JournalSettings, metrics_in_environment};
use netram_journal::{Journal, JournalConfig, JournalPaths, durable};
use netram_proto::journal::{ServerAck, View, Voter};
use netram_proto::wire::ChainPoint;
use netram_rvm::{
    RealStorage, Region, Rvm, RvmOptions as MemoryOptions, SegmentAllocation, TruncationPolicy,
};
use netram_shared_machine::message::{JoinReply, OrphanJournalId, RegionOpening};
use netram_shared_machine::{NodeId, RecordNumber};

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

/// Name of the copy's file, beside the log.
const REGION: &str = "region";

/// A task for the thread that builds the copy.
pub(super) enum CopyTask {
    /// The node has an id: create the copy, filled with zeros.
    Open(JoinReply),
    /// Write these bytes of the region.
    Page { offset: u64, bytes: NodePayload },
    /// Apply a record of another node.
    Apply(ApplyTask),
    /// Report what the server has durable to the journal.
    Kept { number: RecordNumber, view: u64 },
    /// The copy is complete: later stores are the program's.
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

/// The joining thread's end of the task queue.
pub(super) struct CopyQueue {
    tasks: Sender<CopyTask>,
    state: Arc<InitialCopyState>,
}

/// State that both threads share.
struct InitialCopyState {
    /// Bytes of waiting tasks.
    bytes: AtomicUsize,
    ended: AtomicBool,
    /// New view of the journal, once it has the server's lenders.
    view: Mutex<Option<View>>,
    /// Waker of the joining thread.
    waker: Arc<ThreadWaker>,
}

impl CopyQueue {
    /// Creates a queue, and its other end for the building thread.
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
        // If the thread has ended, it returns the reason itself.
        let _ = self.tasks.send(task);
    }

    /// Whether so many bytes wait that nothing more may be read.
    pub(super) fn is_full(&self) -> bool {
        self.state.bytes.load(Ordering::Relaxed) >= JOINING_BYTES_MAX
    }

    /// Whether the thread has ended: the copy is complete, or cannot be made.
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

/// The building thread's end of the task queue.
pub(super) struct CopyTasks {
    waiting: Receiver<CopyTask>,
    end_signal: EndSignal,
}

/// Reports on drop that the building thread has ended.
struct EndSignal(Arc<InitialCopyState>);

impl CopyTasks {
    /// Next task; `None`: the joining thread has ended.
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

/// A journal without records, and where it begins.
pub(super) struct EmptyJournal {
    pub(super) journal: Journal,
    pub(super) config: JournalConfig,
    pub(super) root: PathBuf,
    pub(super) begins: ChainPoint,
    /// Version of the view in the node's join request.
    pub(super) view: u64,
}

/// The complete copy with its journal.
pub(super) struct InitialCopy {
    pub(super) region: Region,
    pub(super) rvm: Rvm<NodeLog, RealStorage>,
    pub(super) spans: Spans,
    pub(super) id: NodeId,
    pub(super) mark: JournalMark,
    pub(super) join_info: JoinInfo,
    pub(super) stores: StoreTracking,
    /// Configuration of the journal.
    pub(super) config: JournalConfig,
    /// Tasks that came after the copy was complete.
    pub(super) rest: Receiver<CopyTask>,
}

/// Does tasks until the copy is complete. Returns `None` if the joining thread has ended.
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
                let again = || JoinError::Broken("the server sent the region's description twice".to_owned());
                let fresh = fresh.take().ok_or_else(again)?;
                making = Some(CopyBuilder::open(fresh, options, &joined, &tasks)?);
            }
            CopyTask::Page { offset, bytes } => of(making.as_mut())?.put_page(offset, bytes.as_ref())?,
            CopyTask::Apply(work) => apply(&work, &of(making.as_mut())?.region)?,
            // It may come before the region's description. Then the journal is told when it has its lenders.
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
    making
        .ok_or_else(|| JoinError::Broken("the server sent bytes before the region's description".to_owned()))
}

/// The copy while it is built.
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

fn read_spans(opening: &RegionOpening) -> Result<Spans, JoinError> {
    let spans = opening.spans.iter().map(|(lock, offset, length)| Span {
        lock: *lock,
        offset: *offset,
        length: *length,
    });
    Ok(Spans::new(opening.bytes, spans.collect())?)
}

fn map_region(
    rvm: &Rvm<NodeLog, RealStorage>,
    name: &str,
    opening: &RegionOpening,
) -> Result<Region, JoinError> {
    match usize::try_from(opening.address) {
        Ok(0) => Ok(rvm.map(name, 0, 0)?),
        Ok(address) => Ok(rvm.map_at(name, 0, 0, address)?),
        Err(_) => Err(JoinError::Region {
            bytes: opening.bytes,
            address: opening.address,
        }),
    }
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
        let spans = read_spans(opening)?;
        let whose = OrphanJournalId {
            node: joined.node,
            journal: journal.id(),
        };
        // Written before the first record: a process that finds the journal must know its owner.
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
        // The first segment of its log, as the region is of the server's log: both have the same number in
        // records.
        rvm.create_segment(name, opening.bytes, SegmentAllocation::Sparse)?;
        let region = map_region(&rvm, name, opening)?;
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
        put.map_err(|error| JoinError::Broken(format!("the server sent a page outside the region: {error}")))
    }

    /// Reports to the journal that the server has this view.
    fn on_view_durable(&self, number: RecordNumber, version: u64) -> Result<(), JoinError> {
        check_no_records(number)?;
        let end = self.begins;
        self.rvm.log().on_durable(ServerAck { end, version });
        Ok(())
    }

    /// Completes the copy: the pages so far are no program's stores; later stores are captured.
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

/// Fails if the server claims to have records of this node, which has written none.
pub(super) fn check_no_records(number: RecordNumber) -> Result<(), NodeGone> {
    match number {
        RecordNumber(0) => Ok(()),
        number => Err(NodeGone::NoSuchEnd(number)),
    }
}

/// Gives the journal the lenders of the server's settings, unless the options named some. The journal has no
/// record yet.
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
    // Stored as a store's settings file, so that an offline merge finds the lenders.
    let path = JournalPaths::at(root).settings();
    let text = String::from_utf8_lossy(&opening.settings);
    durable::replace(&path, text.as_bytes()).map_err(|cause| JoinError::Directory {
        path: path.clone(),
        cause,
    })?;
    let config = parse_lenders(&text, &path, options)?;
    drop(journal);
    let (journal, _) = Journal::open(root, config.clone())?;
    tasks.tell_view(journal.newest_view());
    Ok((journal, config))
}

/// Journal configuration of the server's settings. Links to lenders are protected like the link to the
/// server, unless the settings name a key.
fn parse_lenders(text: &str, path: &Path, options: &NodeOptions) -> Result<JournalConfig, JoinError> {
    let settings = JournalSettings::parse(text, path)?;
    let own_key = settings.key_file.is_some();
    let settings = JournalSettings {
        insecure: !own_key,
        // Processes of one machine cannot share an address, so the server's settings cannot name it.
        metrics: metrics_in_environment()?,
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
