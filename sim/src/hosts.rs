//! The client's machines, each with the journal on its disk and the journal's true history.

use std::cell::RefCell;
use std::ops::{Index, IndexMut};
use std::rc::Rc;

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::{LogFile, SlotPair, View};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::wire::ChainPoint;

use crate::disk::{PlatterFile, SimDisk, SimDiskHandle, SimFile};
use crate::history::JournalHistory;
use crate::kernel::SimKernel;
use crate::log_image::image_bytes;
use crate::past_epochs::{PastEpoch, PastEpochs};
use crate::volume_history::VolumeHistory;

/// A client's machine.
#[derive(Debug)]
pub struct ClientHost {
    /// Its disk.
    pub disk: SimDiskHandle,
    /// The log's file.
    pub log_file: usize,
    /// The view's file.
    pub view_file: usize,
    /// True history of the journal on this disk.
    pub history: JournalHistory,
    /// The view on the platter.
    pub view: View,
    /// The view as read through the cache. After a failed sync it differs from the platter's until the power
    /// fails.
    pub cached_view: View,
    /// A view that is being stored and may be on the platter after a crash.
    pub storing: Option<View>,
    /// Whether the disk was damaged at rest, so that recovery may have to refuse.
    pub damaged: bool,
    /// Host of which this disk is a copy from which nothing has been recovered yet.
    pub copied_from: Option<usize>,
    /// The view's number when it was copied.
    copied_version: u64,
    /// Set if the disk is a data lender's from which nothing has been recovered yet: the LSN at which its
    /// client closed the volume.
    pub replica_closed: Option<Option<Lsn>>,
    /// File in which such a disk records that it was taken over.
    pub(crate) header_file: Option<usize>,
    /// A newer epoch, on a copy of this disk, that has recovered this log.
    pub newer_epoch: Option<NewerEpoch>,
    /// The epoch that this disk is in.
    pub(crate) epoch: Epoch,
    /// Epoch of the client's last message to the replica from which the journal is restored here.
    pub(crate) heard_epoch: Option<Epoch>,
}

/// Knowledge of the newer epoch on a copied disk.
#[derive(Clone, Copy, Debug)]
pub struct NewerEpoch {
    /// End of the log that it has.
    pub fork: Lsn,
    /// Number of the view that it knew. Later views promise nothing: the newer epoch cannot know which
    /// members to ask, so a live journal's directory must not be copied.
    pub version: u64,
    /// Whether its operator accepted the loss of acknowledged records, including those whose acknowledgement
    /// is still under way to a writer that stood still.
    pub loss_accepted: bool,
}

/// The client's machines, by number: the first, and perhaps some with a copied disk.
pub struct ClientHosts {
    hosts: Vec<ClientHost>,
    /// True history of the volume.
    volume: VolumeHistory,
    past_epochs: PastEpochs,
}

impl ClientHosts {
    /// One machine, with a journal created on its disk.
    pub(crate) fn new(kernel: &mut SimKernel) -> ClientHosts {
        ClientHosts {
            hosts: vec![new_host(kernel)],
            volume: VolumeHistory::default(),
            past_epochs: PastEpochs::default(),
        }
    }

    /// Number of machines.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there are no machines.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The machines, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &ClientHost> {
        self.hosts.iter()
    }

    /// True history of the volume.
    pub(crate) fn volume(&self) -> &VolumeHistory {
        &self.volume
    }

    /// Begins the history of a volume of `bytes` zeros.
    pub(crate) fn begin_volume(&mut self, bytes: usize) {
        self.volume = VolumeHistory::new(bytes);
    }

    /// Records a change of the volume that was logged.
    pub(crate) fn record_change(&mut self, end: Lsn, offset: usize, bytes: Vec<u8>) {
        self.volume.push(end, offset, bytes);
    }

    fn add(&mut self, host: ClientHost) -> usize {
        self.hosts.push(host);
        self.hosts.len() - 1
    }

    /// Copies a host's disk, as an operator does who believes that this moves a journal. Returns the new
    /// host.
    pub(crate) fn copy(&mut self, host: usize) -> usize {
        let source = &self.hosts[host];
        let disk = source.disk.borrow().clone();
        let copy = ClientHost {
            disk: Rc::new(RefCell::new(disk)),
            log_file: source.log_file,
            view_file: source.view_file,
            history: source.history.clone(),
            view: source.view.clone(),
            cached_view: source.cached_view.clone(),
            storing: source.storing.clone(),
            damaged: source.damaged,
            copied_from: Some(host),
            copied_version: source.view.version,
            replica_closed: None,
            header_file: None,
            newer_epoch: None,
            epoch: source.epoch,
            heard_epoch: None,
        };
        self.add(copy)
    }

    /// Adds a machine with its own disk and nothing of the journal.
    pub(crate) fn add_blank(&mut self, kernel: &mut SimKernel) -> usize {
        self.add(new_host(kernel))
    }

    /// Adds a machine with an empty disk, on which the journal of `source` is to be restored: it begins at
    /// `start`, in `view`, as a replica says. `heard` is the view of the client's last message to the
    /// replica.
    pub(crate) fn restore(
        &mut self,
        kernel: &mut SimKernel,
        source: usize,
        (view, start): (&View, ChainPoint),
        heard: &View,
    ) -> usize {
        let mut disk = SimDisk::new(kernel.rng.fork());
        let capacity = kernel.profile.capacity;
        let log_file = disk.add(LogFile::<SimFile>::file_bytes(capacity));
        let view_file = disk.add(SlotPair::bytes(SLOT_BYTES));
        let disk: SimDiskHandle = Rc::new(RefCell::new(disk));
        let view = view.adopted();
        let log = LogFile::create_at(SimFile::new(&disk, log_file), kernel.journal(), capacity, start);
        let file = SimFile::new(&disk, view_file);
        let stored = SlotPair::create(&file, View::MAGIC, SLOT_BYTES, &view.encode());
        assert!(
            log.is_ok() && stored.is_ok(),
            "a healthy disk takes a journal that begins elsewhere"
        );
        disk.borrow_mut().faults = kernel.profile.disk;
        self.add(ClientHost {
            disk,
            log_file,
            view_file,
            history: JournalHistory::new(),
            cached_view: view.clone(),
            view,
            storing: None,
            damaged: false,
            copied_from: Some(source),
            copied_version: heard.version,
            replica_closed: None,
            header_file: None,
            newer_epoch: None,
            epoch: Epoch(0),
            heard_epoch: Some(heard.epoch),
        })
    }

    /// LSN that members known to the copy promised to the original of a copied disk, which the copy's epoch
    /// must have.
    pub(crate) fn promised_to_copy(&self, host: usize) -> Lsn {
        let copy = &self.hosts[host];
        match copy.copied_from.map(|source| &self.hosts[source]) {
            Some(source) if source.view.version == copy.copied_version => source.history.acked_by_members,
            _ => Lsn(0),
        }
    }

    /// Begins the epoch on `host` with the log up to `end`, all of it on the platter and compared with
    /// [`ClientHosts::truth`].
    pub(crate) fn adopt(
        &mut self,
        kernel: &mut SimKernel,
        host: usize,
        (end, head): (ChainPoint, Lsn),
        (loss_accepted, replicated): (bool, bool),
    ) {
        match self.hosts[host].copied_from {
            Some(source) => {
                self.inherit(kernel, host, end);
                self.hosts[host].copied_from = None;
                let version = self.hosts[host].copied_version;
                self.hosts[source].newer_epoch = Some(NewerEpoch {
                    fork: end.lsn,
                    version,
                    loss_accepted,
                });
            }
            None if replicated => self.save_past_epoch(host),
            None => (),
        }
        self.hosts[host].epoch = self.hosts[host].view.epoch;
        self.volume.rewind(end.lsn);
        let history = &mut self.hosts[host].history;
        history.rewind(end.lsn);
        history.acked = end.lsn;
        history.head = head;
    }

    /// The bytes of a host's log from `from` to `to`: on the platter, or as read through the cache.
    pub(crate) fn log_bytes(&self, host: usize, from: Lsn, to: Lsn, platter: bool) -> Vec<u8> {
        let host = &self.hosts[host];
        let disk = host.disk.borrow();
        let image = if platter {
            disk.durable(host.log_file)
        } else {
            disk.cached(host.log_file)
        };
        image_bytes(image, from, to)
    }

    /// The first LSN from `from` to `to` at which the platter differs from the appended bytes.
    pub(crate) fn platter_lacks(&self, host: usize, from: Lsn, to: Lsn) -> Option<Lsn> {
        if to <= from {
            return None;
        }
        let found = self.log_bytes(host, from, to, true);
        let wanted = self.hosts[host].history.bytes(from, to);
        let at = found
            .iter()
            .zip(wanted)
            .position(|(found, wanted)| found != wanted)?;
        Some(from.plus(at as u64))
    }

    /// Reads the view from the platter that a crash would leave.
    pub(crate) fn refresh_view(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        let disk = host.disk.borrow();
        if let Some(view) = view_in(disk.durable(host.view_file)) {
            host.view = view;
        }
        if let Some(view) = view_in(disk.cached(host.view_file)) {
            host.cached_view = view;
        }
    }

    /// True history of the log that is recovered on `host` up to `end`. For a copied disk that is the
    /// original's, as far as the copy could have heard of it, or as it was when it was copied: a later
    /// opening of the original may have given up records that the copy's disk still has.
    pub(crate) fn truth(&self, host: usize, end: ChainPoint) -> &JournalHistory {
        let own = &self.hosts[host].history;
        let source = match (self.past_epoch_heard(host), self.hosts[host].copied_from) {
            (Some(past), _) => &past.history,
            (None, Some(source)) => &self.hosts[source].history,
            (None, None) => return own,
        };
        let ends = |history: &JournalHistory| history.link_at(end.lsn) == Some(end);
        match ends(own) && !ends(source) {
            true => own,
            false => source,
        }
    }

    /// Begins the history of the copy on `host`, recovered up to `end`, with [`ClientHosts::truth`].
    fn inherit(&mut self, kernel: &mut SimKernel, host: usize, end: ChainPoint) {
        self.hosts[host].history = self.truth(host, end).clone();
        if let Some(past) = self.past_epoch_heard(host) {
            self.volume = past.volume.clone();
            kernel.hit("data: later epochs lost unheard");
        }
    }

    /// Saves the history of an epoch on `host` that ends because the next one begins.
    fn save_past_epoch(&mut self, host: usize) {
        self.past_epochs.push(PastEpoch {
            host,
            epoch: self.hosts[host].epoch,
            history: self.hosts[host].history.clone(),
            volume: self.volume.clone(),
        });
    }

    /// Discards the later epochs on the disk of `host`: everything is as the end of `epoch` left it.
    pub(crate) fn return_to(&mut self, kernel: &mut SimKernel, host: usize, epoch: Epoch) {
        if let Some(past) = self.past_epochs.newest(host, epoch).cloned() {
            self.hosts[host].history = past.history;
            self.volume = past.volume;
            kernel.hit("data: later epochs lost unheard");
        }
    }

    fn past_epoch_heard(&self, host: usize) -> Option<&PastEpoch> {
        let copy = &self.hosts[host];
        self.past_epochs.newest(copy.copied_from?, copy.heard_epoch?)
    }
}

impl Index<usize> for ClientHosts {
    type Output = ClientHost;

    fn index(&self, host: usize) -> &ClientHost {
        &self.hosts[host]
    }
}

impl IndexMut<usize> for ClientHosts {
    fn index_mut(&mut self, host: usize) -> &mut ClientHost {
        &mut self.hosts[host]
    }
}

fn view_in(image: &[u8]) -> Option<View> {
    let (_, payload) = SlotPair::open(&PlatterFile(image), View::MAGIC, SLOT_BYTES).ok()?;
    View::decode(&payload).ok()
}

fn new_host(kernel: &mut SimKernel) -> ClientHost {
    let journal = kernel.journal();
    let profile = &kernel.profile;
    let mut disk = SimDisk::new(kernel.rng.fork());
    let log_file = disk.add(LogFile::<SimFile>::file_bytes(profile.capacity));
    let view_file = disk.add(SlotPair::bytes(SLOT_BYTES));
    let disk: SimDiskHandle = Rc::new(RefCell::new(disk));
    let view = View::first(journal);
    let created = LogFile::create(SimFile::new(&disk, log_file), journal, profile.capacity).is_ok()
        && SlotPair::create(
            &SimFile::new(&disk, view_file),
            View::MAGIC,
            SLOT_BYTES,
            &view.encode(),
        )
        .is_ok();
    assert!(created, "a healthy disk takes a new journal");
    disk.borrow_mut().faults = profile.disk;
    ClientHost {
        disk,
        log_file,
        view_file,
        history: JournalHistory::new(),
        cached_view: view.clone(),
        view,
        storing: None,
        damaged: false,
        copied_from: None,
        copied_version: 0,
        replica_closed: None,
        header_file: None,
        newer_epoch: None,
        epoch: Epoch(0),
        heard_epoch: None,
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::JournalId;
    use netram_proto::planted::FaultSwitch;

    use super::*;
    use crate::profile::WorldProfile;
    use crate::rng::Rng;
    use crate::trace::EventTrace;

    const FIRST: ChainPoint = ChainPoint {
        lsn: Lsn(56),
        chain: 1,
    };
    const SECOND: ChainPoint = ChainPoint {
        lsn: Lsn(112),
        chain: 2,
    };

    /// A client that logged two records in epoch 1, and whose next opening gave up the second.
    fn client() -> (SimKernel, ClientHosts) {
        let mut rng = Rng::new(7);
        let profile = WorldProfile::draw(&mut rng);
        let trace = EventTrace::new(None);
        let mut kernel = SimKernel::new(rng, profile, JournalId(9), FaultSwitch::NONE, trace);
        let mut hosts = ClientHosts::new(&mut kernel);
        hosts.begin_volume(512);
        opens(&mut kernel, &mut hosts, 1, ChainPoint::default());
        for (end, byte) in [(FIRST, 0xaa), (SECOND, 0xbb)] {
            hosts[0].history.append(&[byte; 56], end);
            hosts.record_change(end.lsn, 0, vec![byte; 512]);
        }
        opens(&mut kernel, &mut hosts, 2, FIRST);
        (kernel, hosts)
    }

    fn opens(kernel: &mut SimKernel, hosts: &mut ClientHosts, epoch: u32, end: ChainPoint) {
        hosts[0].view.epoch = Epoch(epoch);
        hosts.adopt(kernel, 0, (end, Lsn(0)), (false, true));
    }

    /// End of the log that is restored from a replica whose client was last heard in `epoch`.
    fn restored(kernel: &mut SimKernel, hosts: &mut ClientHosts, epoch: u32) -> Lsn {
        let mut heard = hosts[0].view.clone();
        heard.epoch = Epoch(epoch);
        let claim = heard.clone();
        let host = hosts.restore(kernel, 0, (&claim, ChainPoint::default()), &heard);
        hosts.truth(host, ChainPoint::default()).tail()
    }

    /// Two oracles reported a broken rule because a restore found records at a member that an opening had
    /// given up. Neither the replica nor that member had heard of the opening (seeds 3025428 and 3295405).
    #[test]
    fn a_restore_may_find_records_given_up_by_an_unheard_opening() {
        let (mut kernel, mut hosts) = client();
        assert_eq!(restored(&mut kernel, &mut hosts, 1), SECOND.lsn);
        hosts.return_to(&mut kernel, 0, Epoch(1));
        assert_eq!(hosts[0].history.tail(), SECOND.lsn);
    }

    /// The oracle reported a broken rule because a copy still had a record that the original's opening gave
    /// up later (seeds 2004 and 5006017).
    #[test]
    fn a_copy_may_have_records_the_original_gave_up_later() {
        let (mut kernel, mut hosts) = client();
        let third = ChainPoint {
            lsn: Lsn(112),
            chain: 3,
        };
        hosts[0].history.append(&[0xcc; 56], third);
        let copy = hosts.copy(0);
        opens(&mut kernel, &mut hosts, 3, FIRST);
        let ends = |end: ChainPoint| hosts.truth(copy, end).link_at(end.lsn) == Some(end);
        assert!(ends(third) && ends(FIRST));
        assert!(!ends(SECOND), "given up before the disk was copied");
    }

    #[test]
    fn a_restore_may_not_find_records_given_up_by_a_heard_opening() {
        let (mut kernel, mut hosts) = client();
        assert_eq!(restored(&mut kernel, &mut hosts, 2), FIRST.lsn);
        hosts.return_to(&mut kernel, 0, Epoch(2));
        assert_eq!(hosts[0].history.tail(), FIRST.lsn);
    }
}
