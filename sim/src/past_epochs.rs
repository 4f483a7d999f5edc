//! True state at the end of each epoch, to judge a restore from a replica that has not heard of a later
//! epoch.
//!
//! An opening gives up records in doubt that no member of *its* view holds. A replica that never heard of
//! that opening may have a view with other members, one that was proposed and sent there but never durable at
//! the client. If none of those members heard of the opening either, a restore may find such records and take
//! them: it cannot tell. For it the later epochs never existed. Records that they acknowledged by the
//! client's own disk alone are lost silently, as `docs/design/failure-model.md` says. The restore's own check
//! makes sure that no member of the replica's view was fenced by one of them.

use netram_proto::id::Epoch;
use netram_proto::wire::ChainPoint;

use crate::check::rule12::VolumeHistory;
use crate::history::JournalHistory;
use crate::world::World;

/// An epoch that has ended.
#[derive(Clone, Debug)]
pub(crate) struct PastEpoch {
    host: usize,
    epoch: Epoch,
    history: JournalHistory,
    changes: VolumeHistory,
}

impl World {
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

    /// Begins the history of the copy on `host`, recovered up to `end`, with [`World::truth`].
    pub(crate) fn inherit(&mut self, host: usize, end: ChainPoint) {
        self.hosts[host].history = self.truth(host, end).clone();
        if let Some(past) = self.past_epoch_heard(host) {
            self.changes = past.changes.clone();
            self.kernel.hit("data: later epochs lost unheard");
        }
    }

    /// Saves the history of an epoch on `host` that ends because the next one begins.
    pub(crate) fn save_past_epoch(&mut self, host: usize) {
        if self.data.is_some() {
            self.past_epochs.push(PastEpoch {
                host,
                epoch: self.hosts[host].epoch,
                history: self.hosts[host].history.clone(),
                changes: self.changes.clone(),
            });
        }
    }

    /// Discards the later epochs on the disk of `host`: everything is as the end of `epoch` left it.
    pub(crate) fn return_to(&mut self, host: usize, epoch: Epoch) {
        if let Some(past) = self.past_epoch_of(host, epoch).cloned() {
            self.hosts[host].history = past.history;
            self.changes = past.changes;
            self.kernel.hit("data: later epochs lost unheard");
        }
    }

    fn past_epoch_heard(&self, host: usize) -> Option<&PastEpoch> {
        let copy = &self.hosts[host];
        self.past_epoch_of(copy.copied_from?, copy.heard_epoch?)
    }

    /// `None`: no epoch has followed it.
    fn past_epoch_of(&self, host: usize, epoch: Epoch) -> Option<&PastEpoch> {
        let named = |past: &&PastEpoch| (past.host, past.epoch) == (host, epoch);
        self.past_epochs.iter().rev().find(named)
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::Lsn;
    use netram_proto::planted::FaultSwitch;

    use super::*;
    use crate::data::SimDataLender;
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

    /// A world whose client logged two records in epoch 1, and whose next opening gave up the second.
    fn world() -> World {
        let mut rng = Rng::new(7);
        let profile = WorldProfile::draw(&mut rng);
        let capacity = profile.capacity;
        let mut world = World::new(rng, profile, FaultSwitch::NONE, EventTrace::new(None));
        let data = SimDataLender::new(Rng::new(8), 0, world.kernel.journal(), capacity, 1);
        world.data = Some(data);
        world.changes = VolumeHistory::new(512);
        opens(&mut world, 1, ChainPoint::default());
        for (end, byte) in [(FIRST, 0xaa), (SECOND, 0xbb)] {
            world.hosts[0].history.append(&[byte; 56], end);
            world.changes.push(end.lsn, 0, vec![byte; 512]);
        }
        opens(&mut world, 2, FIRST);
        world
    }

    fn opens(world: &mut World, epoch: u32, end: ChainPoint) {
        world.hosts[0].view.epoch = Epoch(epoch);
        world.adopt(0, end, Lsn(0), false);
    }

    /// End of the log that is restored from a replica whose client was last heard in `epoch`.
    fn restored(world: &mut World, epoch: u32) -> Lsn {
        let mut heard = world.hosts[0].view.clone();
        heard.epoch = Epoch(epoch);
        let claim = heard.clone();
        let host = world.restore_host(0, &claim, ChainPoint::default(), &heard);
        world.truth(host, ChainPoint::default()).tail()
    }

    /// Two oracles reported a broken rule because a restore found records at a member that an opening had
    /// given up. Neither the replica nor that member had heard of the opening (seeds 3025428 and 3295405).
    #[test]
    fn a_restore_may_find_records_given_up_by_an_unheard_opening() {
        let mut world = world();
        assert_eq!(restored(&mut world, 1), SECOND.lsn);
        world.return_to(0, Epoch(1));
        assert_eq!(world.hosts[0].history.tail(), SECOND.lsn);
    }

    /// The oracle reported a broken rule because a copy still had a record that the original's opening gave
    /// up later (seeds 2004 and 5006017).
    #[test]
    fn a_copy_may_have_records_the_original_gave_up_later() {
        let mut world = world();
        let third = ChainPoint {
            lsn: Lsn(112),
            chain: 3,
        };
        world.hosts[0].history.append(&[0xcc; 56], third);
        let copy = world.copy_host(0);
        opens(&mut world, 3, FIRST);
        let ends = |end: ChainPoint| world.truth(copy, end).link_at(end.lsn) == Some(end);
        assert!(ends(third) && ends(FIRST));
        assert!(!ends(SECOND), "given up before the disk was copied");
    }

    #[test]
    fn a_restore_may_not_find_records_given_up_by_a_heard_opening() {
        let mut world = world();
        assert_eq!(restored(&mut world, 2), FIRST.lsn);
        world.return_to(0, Epoch(2));
        assert_eq!(world.hosts[0].history.tail(), FIRST.lsn);
    }
}
