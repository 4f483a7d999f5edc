//! Opening a journal: from the lock to the first append. Each step is durable before the next begins.
//!
//! 1. Lock the journal; read the view and the superblock. Read the local log's valid prefix, from the disk
//!    and not from a cache.
//! 2. *Ask* the view's members whether recovery would succeed. A refusal ends here, and has changed nothing
//!    (rule 18).
//! 3. *Claim*: store the view again under the next epoch. From here on an older writer can be fenced.
//! 4. *Fence* the view's members and read their windows, until enough have answered (rule 5) or it is certain
//!    that too few will.
//! 5. Extend the local prefix with the records they hold; write it to the local log; sync.
//! 6. *Release*: store a view without members. From here on the local log alone is complete.
//!
//! A crash between any two steps finds the same members in the view (before 6) or needs none (after).

mod files;
mod grow;
mod inquiry;
pub(crate) mod members;

use std::path::Path;
use std::time::{Duration, Instant};

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{
    AssembleError, AssembleOptions, AssembledLog, JournalWriter, LogFile, LogScan, LogSuperblock, PeerAnswer,
    SlotPair, View, Voter, assemble,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint as Chain;
use netram_transport::MulticastSender;

use crate::auto;
use crate::commit_waiters::CommitWaiters;
use crate::config::JournalConfig;
use crate::core::{JournalState, JournalStateParts};
use crate::error::JournalOpenError;
use crate::file::DiskFile;
use crate::maintenance::ViewFile;
use crate::owner::JournalOwner;
use crate::paths::{JournalLock, JournalPaths};
use crate::seal::RecordSealer;
use crate::sys;

pub(crate) use files::{open_key, open_log, open_sealer, open_view};
pub use grow::GrowReport;
pub(crate) use grow::grow;
use inquiry::{InquiryResult, JournalSnapshot};
pub use inquiry::{OpenCheck, claim_note};
pub(crate) use inquiry::{check, check_copy};

/// Result of a recovery.
#[derive(Clone, Debug)]
pub struct JournalRecovery {
    /// The epoch that has begun.
    pub epoch: Epoch,
    /// LSN of the log's oldest record.
    pub head: Lsn,
    /// LSN at which the local log's valid prefix ended.
    pub local_end: Lsn,
    /// LSN at which the log ends now.
    pub end: Lsn,
    /// Records that came from members rather than from the local disk.
    pub records_from_members: u64,
    /// Bytes that came from members.
    pub bytes_from_members: u64,
    /// Bytes among them that repaired a damaged stretch of the local log.
    pub repaired: u64,
    /// The members of the last view, and each one's answer.
    pub members: Vec<(String, PeerAnswer)>,
    /// Number of members that had to answer.
    pub needed: usize,
    /// The accepted loss: recovery was not complete, as `accept_loss` allowed.
    pub loss_accepted: Option<String>,
    /// Duration of the recovery.
    pub took: Duration,
}

/// A recovered journal whose threads have not been started.
pub(crate) struct ReadyJournal {
    pub(crate) shared: JournalState,
    pub(crate) journal: JournalId,
    pub(crate) view_file: ViewFile,
    pub(crate) recovered: JournalRecovery,
}

/// The journal's files and its lock.
pub(crate) struct JournalFiles {
    paths: JournalPaths,
    lock: JournalLock,
    pub(crate) log: LogFile<DiskFile>,
    slots: SlotPair,
    pub(crate) superblock: LogSuperblock,
    view_file: ViewFile,
    pub(crate) sealer: RecordSealer,
    pub(crate) owner: JournalOwner,
}

/// Result of steps 4 and 5, before the members are released.
struct LogRecovery {
    local: LogScan,
    assembled: AssembledLog,
    members: Vec<(String, PeerAnswer)>,
    loss_accepted: Option<String>,
}

/// Called between steps 5 and 6: the local log is complete, and the members still hold their windows.
pub(crate) type CompletionHook<'a> = &'a mut dyn FnMut() -> Result<(), IoError>;

pub(crate) fn open(
    lock: JournalLock,
    config: JournalConfig,
    complete: CompletionHook<'_>,
) -> Result<ReadyJournal, JournalOpenError> {
    let root = lock.paths().root().to_path_buf();
    let config = auto::found(config, lock.paths());
    auto::keep(&config, lock.paths());
    let (files, taken, recovered) = JournalFiles::recovered_with(lock, &config, complete)?;
    if config.voter == Voter::Server && recovered.head != recovered.end {
        // The epoch would begin behind records that the server may lack, and its members would drop them.
        return Err(JournalOpenError::Unmerged {
            path: root,
            from: recovered.head,
            end: recovered.end,
        });
    }
    files.serve(config, &taken, recovered)
}

impl JournalFiles {
    /// Runs all steps: afterwards the local log is complete, and no member is needed.
    pub(crate) fn recovered(
        root: &Path,
        config: &JournalConfig,
        complete: CompletionHook<'_>,
    ) -> Result<(JournalFiles, AssembledLog, JournalRecovery), JournalOpenError> {
        let lock = JournalPaths::at(root).lock()?;
        let config = auto::found(config.clone(), lock.paths());
        JournalFiles::recovered_with(lock, &config, complete)
    }

    /// Does the same for a journal that the caller has locked.
    fn recovered_with(
        lock: JournalLock,
        config: &JournalConfig,
        complete: CompletionHook<'_>,
    ) -> Result<(JournalFiles, AssembledLog, JournalRecovery), JournalOpenError> {
        let began = Instant::now();
        config.check().map_err(JournalOpenError::Config)?;
        let root = lock.paths().root().to_path_buf();
        let mut files = JournalFiles::open(lock, config)?;
        let needed = files.view_file.newest().answers();
        let local = files.scan()?;
        let asked = files
            .looked()
            .ask(&local, config)
            .map_err(|(_, refusal)| refusal)?;
        files.claim(&asked.claim)?;
        let (found, claim) = (files.recover(&asked, local, config)?, asked.claim);
        complete().map_err(|source| files.not_stored(root, claim.epoch, source))?;
        files.release(&claim, found.assembled.end.lsn, config)?;
        let recovered = JournalRecovery {
            epoch: claim.epoch,
            head: files.superblock.head.lsn,
            local_end: found.local.end.lsn,
            end: found.assembled.end.lsn,
            records_from_members: found.assembled.records_from_members,
            bytes_from_members: found.assembled.from_members,
            repaired: found.assembled.repaired,
            members: found.members,
            needed,
            loss_accepted: found.loss_accepted,
            took: began.elapsed(),
        };
        Ok((files, found.assembled, recovered))
    }

    fn open(lock: JournalLock, config: &JournalConfig) -> Result<JournalFiles, JournalOpenError> {
        let place = lock.paths().clone();
        let (log, slots, superblock) = open_log(&place, true, config.modelled_sync_delay)?;
        let view_file = open_view(&place, true)?;
        let view = view_file.newest();
        if view.journal != superblock.journal {
            return Err(JournalOpenError::Mixed {
                path: place.root().to_path_buf(),
                log: superblock.journal,
                view: view.journal,
            });
        }
        let (sealer, owner) = open_key(&place, view.journal)?;
        Ok(JournalFiles {
            paths: place,
            lock,
            log,
            slots,
            superblock,
            view_file,
            sealer,
            owner,
        })
    }

    /// The files as the inquiry reads them.
    fn looked(&self) -> JournalSnapshot<'_> {
        JournalSnapshot {
            root: self.paths.root(),
            log: &self.log,
            log_path: self.paths.log(),
            superblock: &self.superblock,
            view: self.view_file.newest(),
            owner: &self.owner,
        }
    }

    /// Step 3: stores the claimed view durably.
    fn claim(&mut self, claim: &View) -> Result<(), JournalOpenError> {
        let stored = self.view_file.store(claim.clone());
        stored.map_err(|source| self.not_stored(self.paths.view(), claim.epoch, source))
    }

    /// Steps 4 and 5. The members' state may have changed since the inquiry, so the recovery may still be
    /// refused.
    fn recover(
        &self,
        asked: &InquiryResult,
        local: LogScan,
        config: &JournalConfig,
    ) -> Result<LogRecovery, JournalOpenError> {
        let claim = &asked.claim;
        let fence = self.looked().fence(claim, local.end.lsn, config);
        // If no loss is accepted, all members are awaited as without the inquiry.
        let mut recovery = match asked.loss_accepted {
            Some(_) => fence.after_probe(&asked.inquiry),
            None => fence,
        };
        let mut loss_accepted = match members::ask(&mut recovery, &self.owner, config) {
            Ok(()) => None,
            Err(why) if inquiry::is_accepted(&why.refusal, config) => Some(why.refusal.to_string()),
            Err(why) => return Err(self.looked().refused(why, config)),
        };
        let windows = recovery.windows();
        let damaged = |source| JournalOpenError::Damaged {
            path: self.paths.log(),
            source,
        };
        let (sealer, mut plain) = (&self.sealer, Vec::new());
        let mut put_together = |accept_loss| {
            let known = AssembleOptions {
                proof: self.superblock.stable.max(claim.proof()),
                limit: self.superblock.head.lsn.plus(self.log.capacity()),
                accept_loss,
                local_durable: config.replica_origin.is_some().then_some(self.superblock.stable),
            };
            assemble(
                &self.log,
                &local,
                &windows,
                known,
                FaultSwitch::NONE,
                &mut |record| {
                    // Any lender that has seen the record before could forge an unsealed one.
                    let trusted = record.header.sealed || !config.seal;
                    trusted && sealer.open(&record.header, record.bytes, &mut plain).is_some()
                },
            )
        };
        let taken = match put_together(false) {
            Err(corrupt @ AssembleError::Corrupt { .. }) if config.accept_loss => {
                let before = loss_accepted.map_or_else(String::new, |loss| loss + "; ");
                loss_accepted = Some(format!("{before}{corrupt}"));
                put_together(true)
            }
            taken => taken,
        };
        let taken = taken.map_err(damaged)?;
        if let Some(loss) = &loss_accepted {
            tracing::warn!(
                loss,
                "records may be lost, and the settings accept that; continuing"
            );
        }
        let members = recovery
            .answers()
            .map(|(address, answer)| (address.to_string(), answer))
            .collect();
        Ok(LogRecovery {
            local,
            assembled: taken,
            members,
            loss_accepted,
        })
    }

    /// Scans the local log's valid prefix, as the disk has it.
    fn scan(&self) -> Result<LogScan, JournalOpenError> {
        scan_log(&self.log, &self.superblock, &self.sealer, &self.paths)
    }

    /// Step 6: everything below `end` is on the local disk, so the members are released.
    fn release(&mut self, claim: &View, end: Lsn, config: &JournalConfig) -> Result<(), JournalOpenError> {
        let released = claim.released(end);
        let ring = config.ring_bytes(self.log.capacity());
        self.superblock = LogSuperblock {
            stable: end,
            ..self.superblock.for_ring(ring, end)
        };
        let stored = self.log.store(&mut self.slots, &self.superblock);
        stored.map_err(|source| self.not_stored(self.paths.log(), claim.epoch, source))?;
        let stored = self.view_file.store(released);
        stored.map_err(|source| self.not_stored(self.paths.view(), claim.epoch, source))
    }

    /// Trims the log to `end`, below which no record is needed any more. Durable on return.
    pub(crate) fn store_head(&mut self, end: Chain) -> Result<(), JournalOpenError> {
        let superblock = LogSuperblock {
            head: end,
            stable: end.lsn,
            ..self.superblock
        };
        let epoch = self.view_file.newest().epoch;
        let stored = self.log.store(&mut self.slots, &superblock);
        stored.map_err(|source| self.not_stored(self.paths.log(), epoch, source))?;
        self.superblock = superblock;
        Ok(())
    }

    fn not_stored(
        &self,
        path: std::path::PathBuf,
        epoch: Epoch,
        source: impl Into<IoError>,
    ) -> JournalOpenError {
        let source = source.into();
        JournalOpenError::Store { path, epoch, source }
    }

    /// Builds the state that the journal's threads need.
    fn serve(
        self,
        mut config: JournalConfig,
        taken: &AssembledLog,
        recovered: JournalRecovery,
    ) -> Result<ReadyJournal, JournalOpenError> {
        let view = self.view_file.newest();
        let journal = view.journal;
        let ring_bytes = config.ring_bytes(self.log.capacity());
        let system = |what| move |source| JournalOpenError::System { what, source };
        let (ring, drain) = sys::ring(ring_bytes, taken.end.lsn).map_err(system("mapping the ring"))?;
        let waiting = CommitWaiters::new().map_err(system("making a poller"))?;
        let caster = multicast_sender(&mut config);
        let salt = view.sealing_salt(FaultSwitch::NONE);
        let salt = salt.expect("an opening draws a salt with its claim");
        let writer_config = config.writer_config(ring_bytes);
        let writer = JournalWriter::new(
            journal,
            view.epoch,
            view.writer,
            view.version,
            taken.end,
            writer_config,
        )
        .with_epochs(view.epochs.clone())
        .with_salt(view.salt)
        .with_note(view.note.clone());
        let shared = JournalState::new(JournalStateParts {
            writer,
            ring,
            drain,
            end: taken.end,
            log: self.log,
            slots: self.slots,
            superblock: self.superblock,
            config,
            sealer: self.sealer.for_epoch(salt),
            owner: self.owner,
            paths: self.paths,
            lock: self.lock,
            waiting,
            multicast_sender: caster,
            view: self.view_file.newest().clone(),
        });
        Ok(ReadyJournal {
            shared,
            journal,
            view_file: self.view_file,
            recovered,
        })
    }
}

/// Scans the valid prefix of a log, as the disk has it.
fn scan_log(
    log: &LogFile<DiskFile>,
    superblock: &LogSuperblock,
    sealer: &RecordSealer,
    place: &JournalPaths,
) -> Result<LogScan, JournalOpenError> {
    // An error here stems from an earlier process's writes and has now been reported. Only what the disk
    // returns with an empty cache counts.
    let _ = log.file().sync();
    log.file().drop_cache();
    let limit = superblock.head.lsn.plus(log.capacity());
    // Checking one record with the key suffices; opening all would cost more than reading them. With a wrong
    // key the journal would serve, and seal records that no later opening with the right key could read.
    let (mut own_key, mut plain) = (None, Vec::new());
    let scan = log.scan(superblock.head, limit, &mut |record| {
        if own_key.is_none() && record.header.sealed {
            own_key = Some(sealer.open(&record.header, record.bytes, &mut plain).is_some());
        }
        own_key != Some(false)
    });
    match own_key {
        Some(false) => Err(JournalOpenError::OtherKey { path: place.key() }),
        _ => Ok(scan),
    }
}

/// The multicast sender, if it is wanted and can be opened. Without it each member is served over its own
/// link, which is slower but no reason to refuse the opening.
fn multicast_sender(config: &mut JournalConfig) -> Option<MulticastSender> {
    let multicast = config.multicast.as_ref()?;
    match MulticastSender::open(&multicast.group, multicast.datagram_bytes, multicast.ttl) {
        Ok(caster) => Some(caster),
        Err(error) => {
            tracing::warn!(group = %multicast.group, %error, "multicast is unavailable; appends go to each member over its own link");
            config.multicast = None;
            None
        }
    }
}

pub(crate) fn span(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
