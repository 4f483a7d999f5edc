//! Joining a region: a fresh journal, a link, the region's bytes. The node's own threads start when the
//! region is complete.
//!
//! The node's lease runs from the moment it has an id. So the calling thread serves the link and keeps the
//! lease. Another thread does all disk work ([`super::initial_copy`]); it has ended when this returns.
//!
//! A link that breaks before the region is complete ends the attempt. The node id that may have been assigned
//! has no records, and is fenced when its lease is over.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netram_journal::owner::JournalOwner;
use netram_journal::seal::DataKey;
use netram_journal::settings::metrics_in_environment;
use netram_journal::{Journal, JournalConfig, JournalPaths};
use netram_proto::journal::{ServerAck, Voter};
use netram_proto::wire::ChainPoint;
use netram_shared_machine::ToServer;
use netram_shared_machine::message::JoinRequest;
use netram_shared_machine::node::{NodeAction, NodeConfig, NodePhase, RegionNode as Machine};

use super::apply::ApplyTask;
use super::clock::Clock;
use super::core::NodeCore;
use super::error::{JoinError, NodeGone};
use super::initial_copy::{CopyQueue, CopyTask, EmptyJournal, InitialCopy, build, check_no_records};
use super::inner::{NodeInner, NodeParts};
use super::link::{ServerAddress, ServerLinkError, ServerSession};
use super::mark::JournalMark;
use super::options::NodeOptions;
use super::payload::NodePayload;

/// Pause between two attempts to connect to the server.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Pause between two checks whether there is room for more of the region.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// A node that has the region, before it has threads.
pub(super) struct JoinedNode {
    pub(super) shared: NodeInner,
    pub(super) session: ServerSession,
    pub(super) server: ServerAddress,
    /// Configuration of the journal.
    pub(super) config: JournalConfig,
}

/// A joining node's side of the protocol.
struct Joining {
    machine: Machine<NodePayload>,
    to_send: VecDeque<ToServer<NodePayload>>,
    /// Newest view that the machine knows.
    newest: u64,
    clock: Clock,
}

/// Joins with a new journal at `root`, where nothing exists.
pub(super) fn join(options: &NodeOptions, root: PathBuf) -> Result<JoinedNode, JoinError> {
    attempt(options, root.clone()).inspect_err(|_| {
        // The journal never belonged to a node. If it were left, each failed attempt would cost the space of
        // a log.
        if matches!(JournalMark::read(&root), Ok(None)) {
            // The next node of this directory removes what cannot be removed now.
            let _ = fs::remove_dir_all(&root);
        }
    })
}

fn attempt(options: &NodeOptions, root: PathBuf) -> Result<JoinedNode, JoinError> {
    let until = Instant::now() + options.server_timeout;
    let usual = JournalConfig {
        security: options.security.clone(),
        metrics: metrics_in_environment()?,
        ..JournalConfig::default()
    };
    let config = JournalConfig {
        voter: Voter::Server,
        ..options.journal.clone().unwrap_or(usual)
    };
    // The server speaks for a dead node's journal, so it must have the key of one that has an owner.
    match config.seal {
        true => Journal::create(&root, options.log_bytes)?,
        false => Journal::create_unowned(&root, options.log_bytes)?,
    };
    let (journal, _) = Journal::open(&root, config.clone())?;
    let begins = journal.stable_link();
    let view = journal.newest_view();
    let key = JournalPaths::at(&root).key();
    let key = DataKey::load(&key).map_err(|cause| JoinError::Directory { path: key, cause })?;
    let owner = JournalOwner::of(view.journal, &key).expect("the journal was opened with its key");
    let version = view.version;
    let machine = Machine::new(NodeConfig {
        join: JoinRequest {
            region: options.region,
            name: options.name.clone(),
            view,
            key: match config.seal {
                true => key.as_bytes().to_vec(),
                false => Vec::new(),
            },
            begins,
            lazy: options.lazy,
            link: 0,
        },
        pinned_bytes_max: options.pinned_bytes_max,
        full: options.full,
    });
    let mut joining = Joining {
        machine,
        to_send: VecDeque::new(),
        newest: version,
        clock: Clock::new(),
    };
    let fresh = EmptyJournal {
        journal,
        config,
        root,
        begins,
        view: version,
    };
    let server = ServerAddress {
        address: options.server.clone(),
        security: options.security.clone(),
        wait: options.wait,
        owner,
    };
    let mut session = connect(&server, until)?;
    let made = joining.get_region(&mut session, fresh, options, until)?;
    joining.arrive(made, (session, server), begins, options)
}

fn connect(server: &ServerAddress, until: Instant) -> Result<ServerSession, JoinError> {
    loop {
        match ServerSession::open(server) {
            Ok(session) => return Ok(session),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => std::thread::sleep(CONNECT_PAUSE),
        }
    }
}

impl Joining {
    /// Has the copy built, and keeps the node's lease while that lasts.
    fn get_region(
        &mut self,
        session: &mut ServerSession,
        fresh: EmptyJournal,
        options: &NodeOptions,
        until: Instant,
    ) -> Result<InitialCopy, JoinError> {
        let (desk, tasks) = CopyQueue::new(session.waker());
        std::thread::scope(|scope| {
            let making = std::thread::Builder::new()
                .name("netram-copy".to_owned())
                .spawn_scoped(scope, move || build(fresh, options, tasks))?;
            let talked = self.talk(session, &desk, until);
            // No more tasks come: the thread ends after its present one.
            drop(desk);
            let made = match making.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            talked?;
            made?.ok_or_else(|| JoinError::Broken("the server sent no region".to_owned()))
        })
    }

    /// Introduces the node, and hands on all messages until the copy is complete or cannot be made.
    fn talk(
        &mut self,
        session: &mut ServerSession,
        desk: &CopyQueue,
        until: Instant,
    ) -> Result<(), JoinError> {
        let broken = |broken: ServerLinkError| JoinError::Broken(broken.to_string());
        self.machine.on_linked();
        self.settle(desk)?;
        while !desk.is_over() {
            if Instant::now() >= until {
                return Err(JoinError::TimedOut);
            }
            let flushed = session.send(&mut self.to_send).map_err(broken)?;
            if desk.is_full() {
                // Nothing is read, so the server must not count as silent.
                self.machine.on_partial_message();
                std::thread::sleep(FULL_PAUSE);
            } else {
                match session.receive().map_err(broken)? {
                    Some(message) => {
                        session.is_awaited();
                        self.machine.handle(self.clock.now(), message);
                    }
                    None => {
                        if self.machine.is_link_silent() {
                            session.silent().map_err(broken)?;
                            self.machine.on_partial_message();
                        }
                        session.wait(flushed, || desk.is_over()).map_err(broken)?;
                    }
                }
            }
            self.take_view(desk);
            self.machine.on_tick(self.clock.now());
            self.settle(desk)?;
        }
        // The view may have come last.
        self.take_view(desk);
        self.settle(desk)
    }

    fn take_view(&mut self, desk: &CopyQueue) {
        if let Some(view) = desk.take_view() {
            self.newest = view.version;
            self.machine.on_view(view);
        }
    }

    fn settle(&mut self, desk: &CopyQueue) -> Result<(), JoinError> {
        while let Some(action) = self.machine.poll() {
            desk.add(match action {
                NodeAction::Send(message) => {
                    self.to_send.push_back(message);
                    continue;
                }
                NodeAction::Open(joined) => CopyTask::Open(joined),
                NodeAction::Page { offset, bytes } => CopyTask::Page { offset, bytes },
                NodeAction::Apply {
                    node,
                    number,
                    payload,
                } => CopyTask::Apply(ApplyTask {
                    node,
                    number,
                    payload,
                }),
                NodeAction::Durable { number, view, .. } => CopyTask::Kept { number, view },
                NodeAction::Whole => CopyTask::Whole,
                NodeAction::Rejoin => return Err(NodeGone::Behind.into()),
                NodeAction::Ended(over) => return Err(NodeGone::Ended(over).into()),
                // None of these comes before the node asks for something.
                NodeAction::Peer(_)
                | NodeAction::WaitEnded(_)
                | NodeAction::Expired
                | NodeAction::Outcome { .. }
                | NodeAction::OrphanWanted { .. } => continue,
            });
        }
        Ok(())
    }

    fn arrive(
        self,
        made: InitialCopy,
        (session, server): (ServerSession, ServerAddress),
        begins: ChainPoint,
        options: &NodeOptions,
    ) -> Result<JoinedNode, JoinError> {
        assert_eq!(self.machine.state(), NodePhase::Whole);
        let mut core = NodeCore::new(self.machine, self.newest, begins);
        core.to_send = self.to_send;
        let shared = NodeInner::new(NodeParts {
            region: made.region,
            rvm: made.rvm,
            spans: made.spans,
            id: made.id,
            core,
            clock: self.clock,
            wait: options.wait,
            mark: made.mark,
            stores: made.stores,
            join_info: made.join_info,
        });
        for task in made.rest {
            match task {
                CopyTask::Apply(work) => shared.applier.add(work).map_err(|_| NodeGone::Behind)?,
                CopyTask::Kept { number, view } => {
                    check_no_records(number)?;
                    let version = view;
                    shared.rvm.log().on_durable(ServerAck { end: begins, version });
                }
                // None of these comes after the complete region: the machine sees to that.
                CopyTask::Open(_) | CopyTask::Page { .. } | CopyTask::Whole => {}
            }
        }
        Ok(JoinedNode {
            shared,
            session,
            server,
            config: made.config,
        })
    }
}
