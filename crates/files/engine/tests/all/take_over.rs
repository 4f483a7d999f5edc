//! Servers of a directory die at any step, another takes over, and requests without a reply are sent again.
//! The files are always those of a directory whose server never died.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use netram_files::model::{MemoryDisk, ModelInode};
use netram_files::{
    AttributeChange, ChangeError, CheckpointError, DirectoryEntry, DirectoryOpenError, DirectoryOptions,
    FileOwner, InodeId, InodeKind, InodeSpec, JournaledDirectory, NameError,
};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{Durability, IoError, RecordLog};
use proptest::prelude::*;

use crate::common::log::MemoryLog;

type Tested = JournaledDirectory<MemoryLog, MemoryDisk, MemoryDisk>;

const OPTIONS: DirectoryOptions = DirectoryOptions {
    journal: JournalId(5),
    durability: Durability::Remote,
    loss_accepted: false,
    files_max: 24,
    on_failed_sync: None,
    reign: Some(1),
    planted: netram_proto::planted::FaultSwitch::NONE,
};

/// A program's request. Names and inodes are drawn from those that there are.
#[derive(Clone, Debug)]
enum Request {
    Make { at: u8, kind: InodeKind },
    Link { file: u8, at: u8 },
    Remove { at: u8 },
    Rename { from: u8, to: u8, exchange: bool },
    Write { file: u8, offset: u16, byte: u8 },
    Resize { file: u8, size: u16 },
    SetXattr { file: u8, value: Option<u8> },
    SetMode { file: u8, mode: u8 },
    Sync { file: u8 },
    Forget { file: u8 },
}

/// When the server dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// After this many operations of the disk, and perhaps of its successor's.
    AtStep(u8, Option<u8>),
    /// Before it replies.
    Unanswered,
}

fn request() -> impl Strategy<Value = Request> {
    let kind = prop_oneof![
        4 => Just(InodeKind::File),
        2 => Just(InodeKind::Directory),
        1 => Just(InodeKind::Symlink),
    ];
    prop_oneof![
        6 => (any::<u8>(), kind).prop_map(|(at, kind)| Request::Make { at, kind }),
        2 => any::<(u8, u8)>().prop_map(|(file, at)| Request::Link { file, at }),
        4 => any::<u8>().prop_map(|at| Request::Remove { at }),
        5 => any::<(u8, u8, bool)>().prop_map(|(from, to, exchange)| Request::Rename { from, to, exchange }),
        6 => any::<(u8, u16, u8)>().prop_map(|(file, offset, byte)| Request::Write {
            file,
            offset: offset % 9000,
            byte
        }),
        3 => any::<(u8, u16)>().prop_map(|(file, size)| Request::Resize { file, size: size % 9000 }),
        2 => any::<(u8, Option<u8>)>().prop_map(|(file, value)| Request::SetXattr { file, value }),
        2 => any::<(u8, u8)>().prop_map(|(file, mode)| Request::SetMode { file, mode }),
        2 => any::<u8>().prop_map(|file| Request::Sync { file }),
        2 => any::<u8>().prop_map(|file| Request::Forget { file }),
    ]
}

fn death() -> impl Strategy<Value = Option<Death>> {
    prop_oneof![
        5 => Just(None),
        2 => (0_u8..8, proptest::option::of(0_u8..20)).prop_map(|(step, next)| Some(Death::AtStep(step, next))),
        1 => Just(Some(Death::Unanswered)),
    ]
}

/// A name of the root, or of the directory `x`.
fn place(directory: &Tested, number: u8) -> (InodeId, [u8; 1]) {
    let x = directory.names().look_up(DirectoryEntry {
        directory: InodeId::ROOT,
        name: b"x",
    });
    let inside = x.filter(|x| directory.names().kind(*x) == Some(InodeKind::Directory));
    let letters = b"xabcd";
    match (number / 8 % 3, inside) {
        (0, Some(x)) => (x, [letters[usize::from(number % 5)]]),
        _ => (InodeId::ROOT, [letters[usize::from(number % 5)]]),
    }
}

/// A file, with a name or without.
fn file(directory: &Tested, number: u8) -> Option<InodeId> {
    let names = directory.names();
    let files: Vec<InodeId> = names
        .nodes()
        .filter(|node| names.kind(*node) == Some(InodeKind::File))
        .collect();
    files.get(usize::from(number) % files.len().max(1)).copied()
}

/// Executes a request. Returns the inode of its reply.
fn execute(directory: &Tested, request: &Request, number: u64) -> Result<InodeId, ChangeError> {
    let asked = Some(number);
    let at = |place: &'_ (InodeId, [u8; 1])| DirectoryEntry {
        directory: place.0,
        name: Box::leak(Box::new(place.1)),
    };
    let place = |number| place(directory, number);
    let file = |number| file(directory, number).ok_or(ChangeError::Name(NameError::Missing));
    match *request {
        Request::Make { at: name, kind } => {
            let target: &[u8] = if kind == InodeKind::Symlink {
                b"target"
            } else {
                b""
            };
            let spec = InodeSpec {
                kind,
                mode: 0o700,
                owner: FileOwner::default(),
                target,
            };
            return directory.make(at(&place(name)), spec, asked);
        }
        Request::Link { file: node, at: name } => {
            directory.link(file(node)?, at(&place(name)), asked)?;
            return file(node);
        }
        Request::Remove { at: name } => {
            let at = at(&place(name));
            let node = directory.names().look_up(at);
            let is_directory =
                node.and_then(|node| directory.names().kind(node)) == Some(InodeKind::Directory);
            directory.remove(at, is_directory, asked)
        }
        Request::Rename { from, to, exchange } => {
            directory.rename(at(&place(from)), at(&place(to)), true, exchange, asked)
        }
        Request::Write {
            file: node,
            offset,
            byte,
        } => {
            let file = directory.open_file(file(node)?)?;
            directory.write(&file, offset.into(), &[byte; 700])
        }
        Request::Resize { file: node, size } => {
            let file = directory.open_file(file(node)?)?;
            directory.resize(&file, size.into())
        }
        Request::SetXattr { file: node, value } => {
            let value = value.map(|value| [value]);
            directory.set_xattr(
                file(node)?,
                b"user.a",
                value.as_ref().map(|value| &value[..]),
                asked,
            )
        }
        Request::SetMode { file: node, mode } => {
            let attributes = AttributeChange {
                mode: Some(mode.into()),
                ..AttributeChange::default()
            };
            directory.set_attributes(file(node)?, attributes)
        }
        Request::Sync { file: node } => directory.sync(file(node)?).map(drop),
        Request::Forget { file: node } => directory.forget(file(node)?),
    }
    .map(|()| InodeId::ROOT)
}

/// A directory whose servers die.
struct Servers {
    log: MemoryLog,
    disk: MemoryDisk,
    directory: Tested,
}

impl Servers {
    fn new() -> Servers {
        let (log, disk) = (MemoryLog::new(1 << 20), MemoryDisk::new());
        let (directory, _) =
            JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), OPTIONS).unwrap();
        Servers { log, disk, directory }
    }

    /// Another server takes over; `dies`: the first to try dies as well.
    fn take_over(&mut self, more: usize, dies: Option<u8>) {
        self.log = self.log.crash(more);
        self.disk.kill();
        let open = |servers: &Servers| {
            let disk = servers.disk.clone();
            JournaledDirectory::take_over(servers.log.clone(), disk.clone(), disk, OPTIONS)
        };
        if let Some(step) = dies {
            self.disk.fail_after(step.into());
            let first = open(self);
            let died = self.disk.has_stopped();
            self.disk.kill();
            match first {
                Err(error) if !died => panic!("{error}"),
                Err(_) => (),
                Ok((first, _)) => return self.directory = first,
            }
        }
        self.directory = open(self).unwrap().0;
    }

    fn ask(&mut self, request: &Request, number: u64, death: Option<Death>) -> Result<InodeId, ChangeError> {
        // What the kernel forgets is not sent again; the file would stay until the directory is closed.
        let forgotten = match *request {
            Request::Forget { file: node } => file(&self.directory, node),
            _ => None,
        };
        if let Some(Death::AtStep(step, _)) = death {
            self.disk.fail_after(step.into());
        }
        let mut result = execute(&self.directory, request, number);
        let died = self.disk.has_stopped();
        match death {
            Some(Death::AtStep(step, next)) if died => self.take_over(step.into(), next),
            Some(Death::Unanswered) => self.take_over(0, None),
            _ => {
                self.disk.kill();
                self.directory.on_answered(number);
                return result;
            }
        }
        result = match self.directory.executed_before(number) {
            Some(node) => Ok(node),
            None => match forgotten {
                Some(node) => self.directory.forget(node).map(|()| InodeId::ROOT),
                None => execute(&self.directory, request, number),
            },
        };
        self.directory.on_answered(number);
        self.directory.on_all_answered();
        result
    }

    /// Files by their paths, with those that have lost their names.
    fn contents(&self) -> BTreeMap<Vec<u8>, ModelInode> {
        self.disk.contents()
    }
}

fn named(contents: BTreeMap<Vec<u8>, ModelInode>) -> BTreeMap<Vec<u8>, ModelInode> {
    contents
        .into_iter()
        .filter(|(path, _)| !path.starts_with(b".netram"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_directory_whose_servers_die_is_as_one_whose_server_lives(
        steps in proptest::collection::vec((request(), death(), 0_u8..20), 1..80)
    ) {
        let (mut living, mut dying) = (Servers::new(), Servers::new());
        for (index, (request, death, checkpoint)) in steps.iter().enumerate() {
            let number = 2 * index as u64;
            // Anything else would be a change twice, or none.
            let expected = living.ask(request, number, None);
            let seen = dying.ask(request, number, *death);
            prop_assert_eq!(expected, seen, "{:?} {:?}", request, death);
            if *checkpoint == 0 {
                dying.directory.checkpoint().unwrap();
            }
            prop_assert_eq!(living.contents(), dying.contents(), "{:?} {:?}", request, death);
            let nodes = |servers: &Servers| servers.directory.names().nodes().collect::<BTreeSet<InodeId>>();
            prop_assert_eq!(nodes(&living), nodes(&dying), "numbers of inodes stay");
        }
        // All that was synced before any of the deaths outlives the machine.
        let nodes: Vec<InodeId> = dying.directory.names().nodes().collect();
        for node in nodes {
            dying.directory.sync(node).unwrap();
        }
        let contents = named(dying.contents());
        let Servers { log, disk, directory } = dying;
        drop(directory);
        disk.power_off(|| false);
        JournaledDirectory::open(log.crash(0), disk.clone(), disk.clone(), OPTIONS).unwrap();
        prop_assert_eq!(contents, disk.contents(), "and files without a name are gone");
    }
}

fn make(servers: &Servers, name: &str, number: u64) -> InodeId {
    let spec = InodeSpec {
        kind: InodeKind::File,
        mode: 0o600,
        owner: FileOwner::default(),
        target: b"",
    };
    let at = DirectoryEntry {
        directory: InodeId::ROOT,
        name: name.as_bytes(),
    };
    servers.directory.make(at, spec, Some(number)).unwrap()
}

/// The reply to a request that was executed before a checkpoint: its record is gone.
#[test]
fn a_catalog_has_the_requests_that_are_not_answered() {
    let mut servers = Servers::new();
    let answered = make(&servers, "answered", 2);
    servers.directory.on_answered(2);
    let node = make(&servers, "unanswered", 4);
    servers.directory.checkpoint().unwrap();
    for _ in 0..2 {
        servers.take_over(0, None);
        assert_eq!(servers.directory.executed_before(4), Some(node));
        assert_eq!(servers.directory.executed_before(2), None, "{answered:?}");
    }
    servers.directory.on_all_answered();
    assert_eq!(servers.directory.executed_before(4), None);
    servers.directory.checkpoint().unwrap();
    assert_eq!(
        make(&servers, "next", 6),
        InodeId(node.0 + 1),
        "no number is given twice"
    );
}

/// Regression: a server that was killed between the record of an attribute and the attribute itself left one
/// that its successor took for made.
#[test]
fn an_attribute_that_was_recorded_only_is_made_by_the_next_server() {
    let mut servers = Servers::new();
    let node = make(&servers, "f", 2);
    servers.directory.on_answered(2);
    let record = servers.directory.log().state().tail;
    servers.disk.fail_after(0);
    let refused = servers.directory.set_xattr(node, b"user.a", Some(b"1"), Some(4));
    assert_eq!(refused, Err(ChangeError::Disk(IoError::EIO)));
    // Without the record of the refusal, as if it had been killed before.
    servers.log = servers.log.cut(Lsn(record.0 + 1));
    servers.take_over(0, None);
    assert!(servers.directory.executed_before(4).is_some());
    let xattrs = servers.contents()[&b"f"[..]].xattrs.clone();
    assert_eq!(xattrs.get(&b"user.a"[..]).map(Vec::as_slice), Some(&b"1"[..]));
}

#[test]
fn only_a_directory_that_is_served_so_is_taken_over() {
    let (log, disk) = (MemoryLog::new(1 << 20), MemoryDisk::new());
    let alone = DirectoryOptions {
        reign: None,
        ..OPTIONS
    };
    drop(JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), alone).unwrap());
    let refused = |log: &MemoryLog| {
        JournaledDirectory::take_over(log.crash(0), disk.clone(), disk.clone(), alone).err()
    };
    assert_eq!(refused(&log), Some(DirectoryOpenError::NotContinued));
    let log = log.crash(0);
    let (directory, _) = JournaledDirectory::open(log, disk.clone(), disk.clone(), OPTIONS).unwrap();
    let log = directory.close().unwrap();
    assert_eq!(refused(&log), Some(DirectoryOpenError::NotContinued));
}

/// No later server can see that a sync has failed.
#[test]
fn a_failed_sync_is_told_before_any_call_returns_it() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let options = DirectoryOptions {
        on_failed_sync: Some(|| TOLD.store(true, Relaxed)),
        ..OPTIONS
    };
    let servers = Servers::new();
    make(&servers, "log", 2);
    servers.disk.kill();
    let (log, disk) = (servers.log.crash(0), servers.disk.clone());
    let failed_by = |step| {
        disk.fail_after(step);
        let failed = JournaledDirectory::take_over(log.clone(), disk.clone(), disk.clone(), options).err();
        disk.kill();
        (failed, TOLD.swap(false, Relaxed))
    };
    assert_eq!(failed_by(0), (Some(DirectoryOpenError::Sync(IoError::EIO)), true));
    let (directory, _) =
        JournaledDirectory::take_over(log.clone(), disk.clone(), disk.clone(), options).unwrap();
    directory
        .set_attributes(
            InodeId(2),
            AttributeChange {
                mode: Some(1),
                ..AttributeChange::default()
            },
        )
        .unwrap();
    disk.fail_after(0);
    assert_eq!(directory.checkpoint(), Err(CheckpointError::Sync(IoError::EIO)));
    assert!(TOLD.load(Relaxed));
}
