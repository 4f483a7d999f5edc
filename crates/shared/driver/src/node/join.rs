//! Joining: a fresh journal, a link, the region's bytes. The node's own threads come when the region is whole.
//!
//! From the moment when the node has an id, its lease runs. So the caller's thread keeps the link, and says that the node lives; what waits for a disk
//! is done by another ([`super::making`]), which has ended when this returns.
//!
//! A link that breaks before the region is whole ends the attempt: the node id that it may have been given has no records, and is fenced when its
//! lease is over.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netram_journal::seal::DataKey;
use netram_journal::{Journal, JournalConfig, Place};
use netram_proto::journal::{ServerKept, Voter};
use netram_proto::wire::Link;
use netram_shared_machine::ToServer;
use netram_shared_machine::message::Join;
use netram_shared_machine::node::{Deed, Node as Machine, NodeConfig, State};

use super::clock::Clock;
use super::core::Core;
use super::error::{Gone, JoinError};
use super::hands::Work;
use super::link::{Broken, Server, Session};
use super::making::{Desk, Fresh, Made, Task, make, nothing_is_kept};
use super::mark::Mark;
use super::options::Options;
use super::payload::Payload;
use super::shared::{Parts, Shared};

/// Between two attempts to find a server that is not there yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks whether there is room for more of the region.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// A node that has the region, before it has threads.
pub(super) struct Arrived {
    pub(super) shared: Shared,
    pub(super) session: Session,
    pub(super) server: Server,
    /// How the journal was opened.
    pub(super) config: JournalConfig,
}

/// A node that joins, as its server sees it.
struct Joining {
    machine: Machine<Payload>,
    to_send: VecDeque<ToServer<Payload>>,
    /// The newest view that the machine was told.
    newest: u64,
    clock: Clock,
}

/// Joins with a new journal at `root`, where nothing is.
pub(super) fn join(options: &Options, root: PathBuf) -> Result<Arrived, JoinError> {
    attempt(options, root.clone()).inspect_err(|_| {
        // It never was a node's. Left there, each attempt at a server that is not there would cost a log.
        if matches!(Mark::read(&root), Ok(None)) {
            // What is left the next node of this directory removes.
            let _ = fs::remove_dir_all(&root);
        }
    })
}

fn attempt(options: &Options, root: PathBuf) -> Result<Arrived, JoinError> {
    let until = Instant::now() + options.patience;
    let config = JournalConfig {
        voter: Voter::Server,
        ..options.journal.clone().unwrap_or_else(|| JournalConfig {
            security: options.security.clone(),
            ..JournalConfig::default()
        })
    };
    Journal::create(&root, options.log_bytes)?;
    let (journal, _) = Journal::open(&root, config.clone())?;
    let begins = journal.stable_link();
    let view = journal.newest_view();
    let key = Place::at(&root).key();
    let key = DataKey::load(&key).map_err(|cause| JoinError::Directory { path: key, cause })?;
    let version = view.version;
    let machine = Machine::new(NodeConfig {
        join: Join {
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
    let fresh = Fresh {
        journal,
        config,
        root,
        begins,
        view: version,
    };
    let server = Server {
        address: options.server.clone(),
        security: options.security.clone(),
        wait: options.wait,
    };
    let mut session = connect(&server, until)?;
    let made = joining.get_region(&mut session, fresh, options, until)?;
    joining.arrive(made, (session, server), begins, options)
}

fn connect(server: &Server, until: Instant) -> Result<Session, JoinError> {
    loop {
        match Session::open(server) {
            Ok(session) => return Ok(session),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => std::thread::sleep(CONNECT_PAUSE),
        }
    }
}

impl Joining {
    /// Has the copy made, and keeps the node's lease meanwhile.
    fn get_region(
        &mut self,
        session: &mut Session,
        fresh: Fresh,
        options: &Options,
        until: Instant,
    ) -> Result<Made, JoinError> {
        let (desk, tasks) = Desk::new(session.bell());
        std::thread::scope(|scope| {
            let making = std::thread::Builder::new()
                .name("netram-making".to_owned())
                .spawn_scoped(scope, move || make(fresh, options, tasks))?;
            let talked = self.talk(session, &desk, until);
            // Nobody leaves anything more: in vain, the thread ends with what it does now.
            drop(desk);
            let made = match making.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            talked?;
            made?.ok_or_else(|| JoinError::Broken("no region came".to_owned()))
        })
    }

    /// Says who it is, and hands on what comes, until the copy is whole or cannot be made.
    fn talk(&mut self, session: &mut Session, desk: &Desk, until: Instant) -> Result<(), JoinError> {
        let broken = |broken: Broken| JoinError::Broken(broken.to_string());
        self.machine.on_linked();
        self.settle(desk)?;
        while !desk.is_over() {
            if Instant::now() >= until {
                return Err(JoinError::TimedOut);
            }
            let flushed = session.send(&mut self.to_send).map_err(broken)?;
            if desk.is_full() {
                // Nothing is taken, whatever comes.
                self.machine.on_heard();
                std::thread::sleep(FULL_PAUSE);
            } else {
                match session.receive().map_err(broken)? {
                    Some(message) => {
                        session.is_awaited();
                        self.machine.handle(self.clock.now(), message);
                    }
                    None => {
                        if self.machine.link_is_silent() {
                            session.silent().map_err(broken)?;
                            self.machine.on_heard();
                        }
                        session.rest(flushed, || desk.is_over()).map_err(broken)?;
                    }
                }
            }
            self.take_view(desk);
            self.machine.on_tick(self.clock.now());
            self.settle(desk)?;
        }
        // It may have come last.
        self.take_view(desk);
        self.settle(desk)
    }

    fn take_view(&mut self, desk: &Desk) {
        if let Some(view) = desk.take_view() {
            self.newest = view.version;
            self.machine.on_view(view);
        }
    }

    fn settle(&mut self, desk: &Desk) -> Result<(), JoinError> {
        while let Some(deed) = self.machine.poll() {
            desk.add(match deed {
                Deed::Send(message) => {
                    self.to_send.push_back(message);
                    continue;
                }
                Deed::Open(joined) => Task::Open(joined),
                Deed::Page { offset, bytes } => Task::Page { offset, bytes },
                Deed::Apply {
                    node,
                    number,
                    payload,
                } => Task::Apply(Work {
                    node,
                    number,
                    payload,
                }),
                Deed::Kept { number, view, .. } => Task::Kept { number, view },
                Deed::Whole => Task::Whole,
                Deed::Anew => return Err(Gone::Behind.into()),
                Deed::Over(over) => return Err(Gone::Over(over).into()),
                // Nobody has asked for anything yet.
                Deed::Straight(_)
                | Deed::Waited(_)
                | Deed::Expired
                | Deed::Fate { .. }
                | Deed::Wanted { .. } => continue,
            });
        }
        Ok(())
    }

    fn arrive(
        self,
        made: Made,
        (session, server): (Session, Server),
        begins: Link,
        options: &Options,
    ) -> Result<Arrived, JoinError> {
        assert_eq!(self.machine.state(), State::Whole);
        let mut core = Core::new(self.machine, self.newest, begins);
        core.to_send = self.to_send;
        let shared = Shared::new(Parts {
            region: made.region,
            rvm: made.rvm,
            spans: made.spans,
            id: made.id,
            core,
            clock: self.clock,
            wait: options.wait,
            mark: made.mark,
            stores: made.stores,
            birth: made.birth,
        });
        for task in made.rest {
            match task {
                Task::Apply(work) => shared.hands.add(work).map_err(|_| Gone::Behind)?,
                Task::Kept { number, view } => {
                    nothing_is_kept(number)?;
                    let version = view;
                    shared.rvm.log().on_kept(ServerKept { end: begins, version });
                }
                // Not behind the whole region: the machine sees to that.
                Task::Open(_) | Task::Page { .. } | Task::Whole => {}
            }
        }
        Ok(Arrived {
            shared,
            session,
            server,
            config: made.config,
        })
    }
}
