//! Opening a journal: from the lock to the first append. Each step is durable before the next begins.
//!
//! 1. Lock the directory; read the view and the superblock.
//! 2. *Claim*: store the view again under the next epoch. From here on an older writer can be fenced.
//! 3. Read the local log's valid prefix, from the disk and not from a cache.
//! 4. Seal the view's members and read their windows, until enough have answered (rule 5) or it is certain that too few
//!    will.
//! 5. Continue the local prefix with what they hold; write it to the local log; sync.
//! 6. *Release*: store a view without members. From here on the local log alone is complete.
//!
//! A crash between any two steps finds the same members in the view (before 6) or needs none (after).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::{
    AssembleError, Assembled, Body, Known, LogFile, PeerAnswer, Recovery, RecoveryRefusal, Scan, SlotError,
    Slots, Superblock, View, Writer, WriterConfig, assemble,
};
use netram_proto::limit::{
    LENDERS_MAX, LOG_ALIGN, MEMBERS_MAX, SLOT_BYTES, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN,
};
use netram_proto::planted::Planted;
use netram_proto::port::File;
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Checked, Frame};
use netram_transport::{Address, Link, connect};

use crate::config::JournalConfig;
use crate::core::{Parts, Shared};
use crate::directory::{Directory, random};
use crate::error::{OpenError, ViewFileError};
use crate::file::DiskFile;
use crate::keeper::ViewFile;
use crate::seal::{DataKey, Sealer};
use crate::sys::{self, Drain};
use crate::waiting::Waiting;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Between looks at the links while recovering: far below a disk's sync, and no load.
const RECOVERY_PAUSE: Duration = Duration::from_micros(200);

/// What recovery found and did.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The reign that has begun.
    pub epoch: Epoch,
    /// The log's oldest record.
    pub head: Lsn,
    /// Where the local log's valid prefix ended.
    pub local_end: Lsn,
    /// Where the log ends now.
    pub end: Lsn,
    /// Records that came from members rather than from the local disk.
    pub records_from_members: u64,
    /// Bytes that came from members.
    pub bytes_from_members: u64,
    /// Bytes among them that repaired a damaged stretch of the local log.
    pub repaired: u64,
    /// The members of the last view, and how each answered.
    pub members: Vec<(String, PeerAnswer)>,
    /// Members that had to answer.
    pub needed: usize,
    /// Acknowledged records may be missing: recovery was not complete, and the caller accepted that.
    pub loss_accepted: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// A journal that is ready for its threads.
pub(crate) struct Opened {
    pub(crate) shared: Shared,
    pub(crate) journal: JournalId,
    pub(crate) drain: Drain,
    pub(crate) view_file: ViewFile,
    pub(crate) recovered: Recovered,
}

pub(crate) fn open(root: &Path, config: JournalConfig) -> Result<Opened, OpenError> {
    let began = Instant::now();
    check(&config)?;
    let directory = Directory::at(root);
    let lock = directory.lock()?;
    let (log, slots, superblock) = open_log(&directory, config.modelled_sync_delay)?;
    let mut view_file = open_view(&directory, true)?;
    let view = view_file.newest().clone();
    if view.journal != superblock.journal {
        return Err(OpenError::Mixed {
            path: root.to_path_buf(),
            log: superblock.journal,
            view: view.journal,
        });
    }
    let sealer = open_sealer(&directory)?;
    let (epoch, writer) = (view.epoch.next(), WriterId(u64::from_le_bytes(random())));
    let claim = View {
        version: view.version + 1,
        epoch,
        writer,
        ..view.clone()
    };
    let stored = |source| OpenError::Store {
        path: directory.view(),
        epoch,
        source,
    };
    view_file.store(claim.clone()).map_err(stored)?;

    let local = scan(&log, &superblock);
    let mut recovery = Recovery::new(
        &claim,
        epoch,
        writer,
        local.end.lsn,
        Time(0),
        span(config.grace),
        span(config.patience),
    );
    let asked = ask_members(&mut recovery, &config);
    let loss = accepted(asked, &config, &directory)?;
    let (taken, loss) = put_together(
        &directory,
        &log,
        &superblock,
        &claim,
        &local,
        &mut recovery,
        &sealer,
        loss,
        &config,
    )?;

    let mut slots = slots;
    let released = View {
        version: claim.version + 1,
        counting: false,
        base: taken.end.lsn,
        members: Vec::new(),
        ..claim
    };
    let superblock = Superblock {
        stable: taken.end.lsn,
        ..superblock
    };
    let log_stored = |source| OpenError::Store {
        path: directory.log(),
        epoch,
        source,
    };
    log.store(&mut slots, &superblock).map_err(log_stored)?;
    view_file.store(released.clone()).map_err(stored)?;

    let recovered = Recovered {
        epoch,
        head: superblock.head.lsn,
        local_end: local.end.lsn,
        end: taken.end.lsn,
        records_from_members: taken.records_from_members,
        bytes_from_members: taken.from_members,
        repaired: taken.repaired,
        members: recovery
            .answers()
            .map(|(address, answer)| (address.to_string(), answer))
            .collect(),
        needed: view.answers(),
        loss_accepted: loss,
        took: began.elapsed(),
    };
    let journal = view.journal;
    let window_bytes = window_bytes(&config, log.capacity());
    let system = |what| move |source| OpenError::System { what, source };
    let (ring, drain) = sys::ring(window_bytes, taken.end.lsn).map_err(system("mapping the ring"))?;
    let waiting = Waiting::new().map_err(system("making a poller"))?;
    let machine = Writer::new(
        journal,
        epoch,
        writer,
        released.version,
        taken.end,
        writer_config(&config, window_bytes),
    );
    let sealer = config.seal.then_some(sealer);
    let parts = Parts {
        writer: machine,
        ring,
        end: taken.end,
        log,
        slots,
        superblock,
        config,
        sealer,
        directory,
        lock,
        waiting,
    };
    Ok(Opened {
        shared: Shared::new(parts),
        journal,
        drain,
        view_file,
        recovered,
    })
}

fn check(config: &JournalConfig) -> Result<(), OpenError> {
    let wrong = |what: String| Err(OpenError::Config(what));
    if config.lenders.len() > LENDERS_MAX {
        return wrong(format!(
            "{} lenders are configured; at most {LENDERS_MAX} are possible",
            config.lenders.len()
        ));
    }
    if config.members > MEMBERS_MAX || config.members > config.lenders.len() {
        return wrong(format!(
            "{} members are asked for, of {} lenders; give at least as many lenders as members, and at most {MEMBERS_MAX} members",
            config.members,
            config.lenders.len()
        ));
    }
    if config.members > 0 && config.rule.copies(config.members) > config.members {
        return wrong(format!(
            "the commit rule {} cannot be met by {} members",
            config.rule, config.members
        ));
    }
    if config.members_min.is_some_and(|min| min > config.members) {
        return wrong(format!(
            "the minimum of members exceeds the {} members asked for",
            config.members
        ));
    }
    if !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&config.window_bytes) {
        return wrong(format!(
            "a window of {} bytes is out of bounds; choose {WINDOW_BYTES_MIN} to {WINDOW_BYTES_MAX}",
            config.window_bytes
        ));
    }
    let mut seen: Vec<&Address> = Vec::new();
    for address in &config.lenders {
        if seen.contains(&address) {
            return wrong(format!(
                "{address} is named twice; two copies at one lender are one copy"
            ));
        }
        seen.push(address);
    }
    Ok(())
}

/// The ring in whole pages, and no larger than the log: what is beyond could never be used.
fn window_bytes(config: &JournalConfig, capacity: u64) -> u64 {
    config.window_bytes.next_multiple_of(LOG_ALIGN).min(capacity)
}

fn writer_config(config: &JournalConfig, window_bytes: u64) -> WriterConfig {
    WriterConfig {
        lenders: config.lenders.iter().map(Address::to_string).collect(),
        rule: config.rule,
        wanted: config.members,
        min: config.min(),
        domain: config.domain.clone(),
        one_domain: config.one_domain,
        window_bytes,
        timing: config.timing,
    }
}

pub(crate) fn open_log(
    directory: &Directory,
    sync_delay: Duration,
) -> Result<(LogFile<DiskFile>, Slots, Superblock), OpenError> {
    let file = directory.open(directory.log(), true)?;
    let file = DiskFile::with_sync_delay(file, sync_delay);
    LogFile::open(file).map_err(|source| OpenError::Log {
        path: directory.log(),
        source,
    })
}

pub(crate) fn open_view(directory: &Directory, write: bool) -> Result<ViewFile, OpenError> {
    let file = DiskFile::new(directory.open(directory.view(), write)?);
    let wrong = |source| OpenError::View {
        path: directory.view(),
        source,
    };
    let (slots, payload) = Slots::open(&file, View::MAGIC, SLOT_BYTES).map_err(|error| {
        wrong(match error {
            SlotError::Io(error) => ViewFileError::Io(error),
            SlotError::Foreign => ViewFileError::Foreign,
            SlotError::Damaged => ViewFileError::Damaged,
        })
    })?;
    let view = View::decode(&payload).map_err(|error| wrong(ViewFileError::Contents(error)))?;
    Ok(ViewFile::new(file, slots, view))
}

pub(crate) fn open_sealer(directory: &Directory) -> Result<Sealer, OpenError> {
    let path = directory.key();
    DataKey::load(&path)
        .map(|key| key.sealer())
        .map_err(|source| OpenError::File { path, source })
}

/// The local log's valid prefix, as the disk has it.
fn scan(log: &LogFile<DiskFile>, superblock: &Superblock) -> Scan {
    // An error here was caused by an earlier process's writes, and has been reported now. What counts is what the disk
    // gives back once the cache is dropped.
    let _ = log.file().sync();
    log.file().drop_cache();
    let limit = superblock.head.lsn.plus(log.capacity());
    log.scan(superblock.head, limit, &mut |_| true)
}

fn genuine(sealer: &Sealer, record: Checked<'_>, plain: &mut Vec<u8>) -> bool {
    sealer.open(&record.header, record.bytes, plain).is_some()
}

/// With leave to lose, a refusal becomes a remark.
fn accepted(
    asked: Result<(), RecoveryRefusal>,
    config: &JournalConfig,
    directory: &Directory,
) -> Result<Option<String>, OpenError> {
    match asked {
        Ok(()) => Ok(None),
        Err(refusal @ RecoveryRefusal::Missing { .. }) if config.accept_loss => {
            tracing::warn!(%refusal, "going on all the same: loss was accepted");
            Ok(Some(refusal.to_string()))
        }
        Err(refusal) => Err(OpenError::Refused {
            path: directory.root().to_path_buf(),
            refusal,
        }),
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "each is one thing that recovery has found out"
)]
fn put_together(
    directory: &Directory,
    log: &LogFile<DiskFile>,
    superblock: &Superblock,
    claim: &View,
    local: &Scan,
    recovery: &mut Recovery,
    sealer: &Sealer,
    loss: Option<String>,
    config: &JournalConfig,
) -> Result<(Assembled, Option<String>), OpenError> {
    let known = |accept_loss| Known {
        proof: superblock.stable.max(claim.base),
        limit: superblock.head.lsn.plus(log.capacity()),
        accept_loss,
    };
    let windows = recovery.windows();
    let mut plain = Vec::new();
    let mut try_with = |accept_loss| {
        assemble(
            log,
            local,
            &windows,
            known(accept_loss),
            Planted::NONE,
            &mut |record| genuine(sealer, record, &mut plain),
        )
    };
    let damaged = |source| OpenError::Damaged {
        path: directory.log(),
        source,
    };
    match try_with(false) {
        Ok(taken) => Ok((taken, loss)),
        Err(corrupt @ AssembleError::Corrupt { .. }) if config.accept_loss => {
            tracing::warn!(%corrupt, "going on all the same: loss was accepted");
            let taken = try_with(true).map_err(damaged)?;
            Ok((
                taken,
                Some(loss.map_or_else(|| corrupt.to_string(), |loss| format!("{loss}; {corrupt}"))),
            ))
        }
        Err(error) => Err(damaged(error)),
    }
}

/// Seals and reads the members until the machine knows enough.
fn ask_members(recovery: &mut Recovery, config: &JournalConfig) -> Result<(), RecoveryRefusal> {
    let began = Instant::now();
    let addresses: Vec<String> = recovery.addresses().map(String::from).collect();
    let (sender, connected) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    for (index, address) in addresses.iter().enumerate() {
        let Ok(address) = address.parse::<Address>() else {
            continue;
        };
        let (sender, security, over) = (sender.clone(), config.security.clone(), Arc::clone(&over));
        std::thread::spawn(move || keep_connecting(index, &address, &security, &over, &sender));
    }
    drop(sender);
    let verdict = await_verdict(recovery, addresses.len(), began, &connected);
    over.store(true, Ordering::Relaxed);
    verdict
}

fn await_verdict(
    recovery: &mut Recovery,
    count: usize,
    began: Instant,
    connected: &mpsc::Receiver<(usize, Link)>,
) -> Result<(), RecoveryRefusal> {
    let mut links: Vec<Option<Link>> = (0..count).map(|_| None).collect();
    loop {
        let now = Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if let Some(verdict) = recovery.verdict(now) {
            return verdict;
        }
        while let Ok((index, link)) = connected.try_recv() {
            links[index] = Some(link);
            recovery.on_connected(index);
        }
        let mut moved = false;
        for (index, slot) in links.iter_mut().enumerate() {
            match slot.as_mut().map(|link| exchange(recovery, index, link)) {
                Some(Ok(some)) => moved |= some,
                Some(Err(())) => {
                    *slot = None;
                    recovery.on_lost(index);
                }
                None => (),
            }
        }
        if !moved {
            std::thread::sleep(RECOVERY_PAUSE);
        }
    }
}

fn keep_connecting(
    index: usize,
    address: &Address,
    security: &netram_transport::Security,
    over: &AtomicBool,
    sender: &mpsc::Sender<(usize, Link)>,
) {
    let mut told = false;
    while !over.load(Ordering::Relaxed) {
        match connect(address, security, CONNECT_TIMEOUT) {
            Ok(link) => {
                // Nobody listens any more once the verdict is in.
                let _ = sender.send((index, link));
                return;
            }
            Err(error) if !told => {
                tracing::warn!(lender = %address, %error, "cannot reach a member of the last view; trying on");
                told = true;
            }
            Err(_) => (),
        }
        std::thread::sleep(CONNECT_PAUSE);
    }
}

/// Sends and receives what there is. `Err`: the link is of no further use.
fn exchange(recovery: &mut Recovery, index: usize, link: &mut Link) -> Result<bool, ()> {
    let mut moved = false;
    while let Some(outgoing) = recovery.next_frame(index) {
        let Body::Inline(body, length) = outgoing.body else {
            unreachable!("recovery sends no log bytes")
        };
        link.send(&[&outgoing.header.encode(length), &body[..length]])
            .map_err(drop)?;
        moved = true;
    }
    while let Some(packet) = link.receive().map_err(drop)? {
        let frame = Frame::parse(packet).map_err(drop)?;
        recovery.on_frame(index, &frame);
        moved = true;
    }
    Ok(moved)
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
