//! Joining, in the caller's thread: a fresh journal, a link, the region's bytes. Threads come when the region is whole.
//!
//! A link that breaks before that ends the attempt: the node id that it may have been given has no records, and is fenced when its
//! lease is over.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_client::seal::DataKey;
use netram_client::{Journal, JournalConfig, Place};
use netram_home::Settings;
use netram_proto::journal::{ServerKept, Voter};
use netram_proto::shared::message::{Join, Joined, OldJournal, Opening};
use netram_proto::shared::node::{Deed, Node as Machine, NodeConfig, State};
use netram_proto::shared::{NodeId, Number, ToServer};
use netram_proto::wire::Link;
use netram_rvm::{Allocation, Options as MemoryOptions, RealStorage, Region, Rvm, Truncation};

use super::core::Core;
use super::error::{Gone, JoinError};
use super::hands::{Work, apply};
use super::link::{Broken, Server, Session};
use super::mark::Mark;
use super::options::Options;
use super::payload::Payload;
use super::shared::{Birth, Parts, Shared, time_since};
use super::tails::Tails;
use super::txn::Stores;
use crate::server::{Span, Spans};

/// The region's copy, beside the log.
const REGION: &str = "region";
/// Between two attempts to find a server that is not there yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A node that has the region, before it has threads.
pub(super) struct Arrived {
    pub(super) shared: Shared,
    pub(super) session: Session,
    pub(super) server: Server,
    /// How the journal was opened.
    pub(super) config: JournalConfig,
}

/// A node that joins.
struct Joining<'o> {
    options: &'o Options,
    root: PathBuf,
    config: JournalConfig,
    machine: Machine<Payload>,
    to_send: VecDeque<ToServer<Payload>>,
    /// `None`: it is in `opened`.
    journal: Option<Journal>,
    /// Where the journal's records begin, and the view that the server was told first.
    begins: Link,
    view: u64,
    /// The newest view that the machine was told.
    newest: u64,
    opened: Option<Opened>,
    whole: bool,
    origin: Instant,
}

/// The region's copy.
struct Opened {
    region: Region,
    rvm: Rvm<Tails, RealStorage>,
    spans: Spans,
    id: NodeId,
    mark: Mark,
    birth: Birth,
}

/// Joins with a new journal at `root`, where nothing is.
pub(super) fn join(options: &Options, root: PathBuf) -> Result<Arrived, JoinError> {
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
        options,
        root,
        config,
        machine,
        to_send: VecDeque::new(),
        journal: Some(journal),
        begins,
        view: version,
        newest: version,
        opened: None,
        whole: false,
        origin: Instant::now(),
    };
    let server = Server {
        address: options.server.clone(),
        security: options.security.clone(),
        wait: options.wait,
    };
    let mut session = connect(&server, until)?;
    joining.get_region(&mut session, until)?;
    joining.arrive(session, server)
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

impl Joining<'_> {
    /// Says who it is, and takes what comes until the region is whole.
    fn get_region(&mut self, session: &mut Session, until: Instant) -> Result<(), JoinError> {
        let broken = |broken: Broken| JoinError::Broken(broken.to_string());
        self.machine.on_linked();
        self.settle()?;
        while !self.whole {
            if Instant::now() >= until {
                return Err(JoinError::TimedOut);
            }
            let flushed = session.send(&mut self.to_send).map_err(broken)?;
            match session.receive().map_err(broken)? {
                Some(message) => self.machine.handle(time_since(self.origin), message),
                None => session.rest(flushed, || false).map_err(broken)?,
            }
            self.machine.on_tick(time_since(self.origin));
            self.settle()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), JoinError> {
        while let Some(deed) = self.machine.poll() {
            match deed {
                Deed::Send(message) => self.to_send.push_back(message),
                Deed::Open(joined) => self.open(&joined)?,
                Deed::Page { offset, bytes } => self.put_page(offset, bytes.as_ref())?,
                Deed::Apply {
                    node,
                    number,
                    payload,
                } => {
                    let work = Work {
                        node,
                        number,
                        payload,
                    };
                    apply(&work, &self.opened()?.region)?;
                }
                Deed::Kept { number, view, .. } => self.keep(number, view)?,
                Deed::Whole => self.whole = true,
                Deed::Anew => return Err(Gone::Behind.into()),
                Deed::Over(over) => return Err(Gone::Over(over).into()),
                // Nobody has asked for anything yet.
                Deed::Straight(_)
                | Deed::Waited(_)
                | Deed::Expired
                | Deed::Fate { .. }
                | Deed::Wanted { .. } => {}
            }
        }
        Ok(())
    }

    fn opened(&self) -> Result<&Opened, JoinError> {
        let opened = self.opened.as_ref();
        opened.ok_or_else(|| JoinError::Broken("bytes of no region came".to_owned()))
    }

    /// The node has an id: its copy of the region, all zeros.
    fn open(&mut self, joined: &Joined) -> Result<(), JoinError> {
        let opening = &joined.opening;
        let journal = self.journal_for(opening)?;
        let path = self.root.join(REGION);
        let name = path.to_str().ok_or_else(|| JoinError::Name(path.clone()))?;
        let table = Place::at(&self.root).table();
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
        let mark = Mark::create(&self.root, whose, opening.region, self.begins.lsn).map_err(|cause| {
            JoinError::Directory {
                path: self.root.clone(),
                cause,
            }
        })?;
        let memory = MemoryOptions {
            truncation: Truncation::Elsewhere {
                patience: self.options.patience,
            },
            ..MemoryOptions::new(journal.id())
        };
        let storage = RealStorage::create(table)?;
        let rvm = Rvm::open(
            Tails::new(journal, &self.config, opening.record_bytes_max),
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
        self.opened = Some(Opened {
            region,
            rvm,
            spans,
            id: joined.node,
            mark,
            birth: Birth {
                region: opening.region,
                address: opening.address,
                settings: String::from_utf8_lossy(&opening.settings).into_owned(),
                name: self.options.name.clone(),
            },
        });
        self.keep(Number(0), self.view)
    }

    /// The journal with the lenders that the server names, unless the options did. It has no record yet.
    fn journal_for(&mut self, opening: &Opening) -> Result<Journal, JoinError> {
        let again = || JoinError::Broken("the region was opened twice".to_owned());
        let journal = self.journal.take().ok_or_else(again)?;
        if self.options.journal.is_some() || opening.settings.is_empty() {
            return Ok(journal);
        }
        // Where a home's settings are: whoever merges what is left without a server finds the lenders.
        let path = Place::at(&self.root).settings();
        let text = String::from_utf8_lossy(&opening.settings);
        fs::write(&path, text.as_bytes()).map_err(|cause| JoinError::Directory {
            path: path.clone(),
            cause,
        })?;
        self.config = named(&text, &path, self.options)?;
        drop(journal);
        let (journal, _) = Journal::open(&self.root, self.config.clone())?;
        let view = journal.newest_view();
        self.newest = view.version;
        self.machine.on_view(view);
        Ok(journal)
    }

    fn put_page(&self, offset: u64, bytes: &[u8]) -> Result<(), JoinError> {
        let region = &self.opened()?.region;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let put = region.put_back(offset, bytes);
        put.map_err(|error| JoinError::Broken(format!("a page that the region has not: {error}")))
    }

    /// The server has this view.
    fn keep(&self, number: Number, version: u64) -> Result<(), JoinError> {
        if number != Number(0) {
            return Err(Gone::Kept(number).into());
        }
        // It may be said before the region comes: then the journal is told when it has its lenders.
        if let Some(opened) = &self.opened {
            let end = self.begins;
            opened.rvm.log().on_kept(ServerKept { end, version });
        }
        Ok(())
    }

    fn arrive(self, session: Session, server: Server) -> Result<Arrived, JoinError> {
        assert_eq!(self.machine.state(), State::Whole);
        let never = || JoinError::Broken("no region came".to_owned());
        let mut opened = self.opened.ok_or_else(never)?;
        // Behind the pages that came, which are nobody's stores.
        opened.region.set_capture(self.options.capture)?;
        let stores = Stores::new(self.options.capture, &opened.spans, opened.region.len() as u64);
        let mut core = Core::new(self.machine, self.newest, self.begins);
        core.to_send = self.to_send;
        let shared = Shared::new(Parts {
            region: opened.region,
            rvm: opened.rvm,
            spans: opened.spans,
            id: opened.id,
            core,
            origin: self.origin,
            wait: self.options.wait,
            mark: opened.mark,
            stores,
            birth: opened.birth,
        });
        Ok(Arrived {
            shared,
            session,
            server,
            config: self.config,
        })
    }
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
