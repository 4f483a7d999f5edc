//! Acknowledged data that a loss of memory would take now, derived from the votes for the newest commits.
//!
//! An acknowledged byte is on a disk, or in the memory of members and in this machine's ring. Bytes that no
//! disk has are lost once all memory that has them is lost at one moment. A disk outlives power.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::id::Lsn;
use crate::planted::PlantedFault;
use crate::time::{Nanos, Time};

use super::JournalWriter;

/// Maximum number of times that are kept of acknowledgements.
const STEPS_MAX: usize = 64;

/// Machines that lose their memory at one moment. Their disks stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLoss {
    /// This machine.
    Machine,
    /// All machines of a power domain, this one too if it is there.
    Domain(String),
    /// This machine, and all machines of a power domain where it is not.
    MachineAndDomain(String),
    /// This machine and all lenders.
    All,
}

impl fmt::Display for MemoryLoss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLoss::Machine => out.write_str("this machine"),
            MemoryLoss::Domain(name) => write!(out, "domain {name}"),
            MemoryLoss::MachineAndDomain(name) => write!(out, "this machine and domain {name}"),
            MemoryLoss::All => out.write_str("all"),
        }
    }
}

/// Acknowledged data that a loss of memory would take now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAtRisk {
    /// The machines that lose their memory.
    pub lost: MemoryLoss,
    /// Bytes of the log that were acknowledged and would be gone.
    pub bytes: u64,
    /// Time since the oldest of them was acknowledged, to about one tick; zero if there are none.
    pub age: Nanos,
}

/// When the bytes that no disk has were acknowledged, in steps of a tick or more. Ticks allocate nothing.
#[derive(Clone, Debug)]
pub(super) struct AckTimes {
    /// Everything below the LSN had been acknowledged at the time. In order.
    steps: Vec<(Time, Lsn)>,
}

impl Default for AckTimes {
    fn default() -> AckTimes {
        AckTimes {
            steps: Vec::with_capacity(STEPS_MAX),
        }
    }
}

impl AckTimes {
    fn note(&mut self, now: Time, acked: Lsn, on_disk: Lsn) {
        self.steps.retain(|(_, lsn)| *lsn > on_disk);
        if acked <= on_disk || self.steps.last().is_some_and(|(_, last)| *last >= acked) {
            return;
        }
        if self.steps.len() == STEPS_MAX {
            // Two steps become one, with the time of the earlier: data is never younger than reported.
            for index in 0..STEPS_MAX / 2 {
                self.steps[index] = (self.steps[2 * index].0, self.steps[2 * index + 1].1);
            }
            self.steps.truncate(STEPS_MAX / 2);
        }
        self.steps.push((now, acked));
    }

    /// The age of the byte at `from`.
    fn age(&self, from: Lsn, now: Time) -> Nanos {
        let step = self.steps.iter().find(|(_, lsn)| *lsn > from);
        step.map_or(Nanos(0), |(time, _)| now.since(*time))
    }
}

impl JournalWriter {
    /// Handles the passing of time: remembers when data was acknowledged.
    pub(super) fn note_ack_times(&mut self, now: Time) {
        let on_disk = self.on_some_disk();
        self.ack_times.note(now, self.acked, on_disk);
    }

    /// Data that would be lost if memory were lost now: this machine's, a power domain's, both, or all.
    /// Members that are unreachable count as lost. Allocates.
    pub fn at_risk(&self, now: Time) -> Vec<DataAtRisk> {
        let own = &self.config.domain;
        let mut found = alloc::vec![self.at_risk_by(MemoryLoss::Machine, now)];
        for domain in self.domain_names() {
            found.push(self.at_risk_by(MemoryLoss::Domain(domain.to_owned()), now));
            if domain != own {
                found.push(self.at_risk_by(MemoryLoss::MachineAndDomain(domain.to_owned()), now));
            }
        }
        found.push(self.at_risk_by(MemoryLoss::All, now));
        found
    }

    fn at_risk_by(&self, lost: MemoryLoss, now: Time) -> DataAtRisk {
        let from = self.left_by(&lost).min(self.acked);
        let bytes = self.acked.since(from);
        DataAtRisk {
            age: match bytes {
                0 => Nanos(0),
                _ => self.ack_times.age(from, now),
            },
            lost,
            bytes,
        }
    }

    /// Everything below is still somewhere after that loss.
    fn left_by(&self, lost: &MemoryLoss) -> Lsn {
        let machine = match lost {
            MemoryLoss::Domain(_) if self.planted.is(PlantedFault::OwnDomainSpared) => false,
            MemoryLoss::Domain(name) => *name == self.config.domain,
            _ => true,
        };
        if !machine {
            return self.tail;
        }
        let survives = |index: &usize| {
            let lender = &self.lenders[*index];
            let stays = match lost {
                MemoryLoss::Machine => true,
                MemoryLoss::Domain(name) | MemoryLoss::MachineAndDomain(name) => lender.domain != *name,
                MemoryLoss::All => false,
            };
            stays && lender.is_ready() && !self.departing.has(*index)
        };
        let held = self.view.iter().filter(survives);
        let held = held.map(|index| self.lenders[index].held).max();
        self.on_some_disk().max(held.unwrap_or_default())
    }

    /// Everything below is on this machine's disk, or on that of its server or data lender.
    fn on_some_disk(&self) -> Lsn {
        let server = self.server_ack.map(|said| said.end.lsn);
        let copy = self.replica_ack.map(|(kept, _)| kept.lsn);
        self.stable
            .lsn
            .max(server.unwrap_or_default())
            .max(copy.unwrap_or_default())
    }

    /// The power domains of this machine and the members.
    fn domain_names(&self) -> Vec<&str> {
        let members = self.view.iter().map(|index| self.lenders[index].domain.as_str());
        let mut names: Vec<&str> = members.chain([self.config.domain.as_str()]).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::super::tests::Bench;
    use super::*;
    use crate::journal::CommitRule;

    /// A writer of domain "here" with members in "east", "west" and "west" that have acknowledged 100 bytes.
    fn bench() -> Bench {
        let mut bench = Bench::empty(3, 3, CommitRule::Any);
        for (index, domain) in ["east", "west", "west"].iter().enumerate() {
            bench.connect_from(index, index as u64 + 1, domain.as_bytes());
        }
        for index in 0..3 {
            bench.join(index);
        }
        bench.store_view();
        bench.append(100);
        for index in 0..3 {
            bench.ack(index, 100, 100);
        }
        bench
    }

    fn bytes(bench: &Bench) -> Vec<(String, u64)> {
        let risks = bench.writer.at_risk(bench.now);
        risks
            .iter()
            .map(|risk| (risk.lost.to_string(), risk.bytes))
            .collect()
    }

    fn expect(bench: &Bench, expected: &[(&str, u64)]) {
        let found = bytes(bench);
        let found: Vec<(&str, u64)> = found
            .iter()
            .map(|(lost, bytes)| (lost.as_str(), *bytes))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_a_loss_takes_is_what_no_disk_and_no_other_memory_has() {
        let mut bench = bench();
        expect(
            &bench,
            &[
                ("this machine", 0),
                ("domain east", 0),
                ("this machine and domain east", 0),
                ("domain here", 0),
                ("domain west", 0),
                ("this machine and domain west", 0),
                ("all", 100),
            ],
        );
        // The east alone acknowledges more.
        bench.append(130);
        bench.ack(0, 130, 130);
        assert_eq!(bench.writer.acked(), Lsn(130));
        let of = |bench: &Bench, lost: &str| bytes(bench).iter().find(|risk| risk.0 == lost).unwrap().1;
        assert_eq!(of(&bench, "this machine"), 0);
        assert_eq!(of(&bench, "this machine and domain east"), 30);
        assert_eq!(of(&bench, "this machine and domain west"), 0);
        // A member that does not answer counts as lost.
        bench.writer.on_lost(0, bench.now);
        assert_eq!(of(&bench, "this machine"), 30);
        let end = crate::wire::ChainPoint {
            lsn: Lsn(130),
            chain: 0,
        };
        bench.writer.on_stable(end, bench.now);
        assert!(bytes(&bench).iter().all(|(_, bytes)| *bytes == 0));
    }

    #[test]
    fn the_domain_of_this_machine_takes_its_memory_too() {
        let mut bench = Bench::empty(1, 1, CommitRule::All);
        bench.connect_from(0, 1, b"here");
        bench.join(0);
        bench.store_view();
        bench.append(100);
        bench.ack(0, 100, 100);
        expect(&bench, &[("this machine", 0), ("domain here", 100), ("all", 100)]);
    }

    #[test]
    fn the_age_is_that_of_the_oldest_byte_and_never_too_young() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let mut times = AckTimes::default();
        for step in 1..=1000 {
            times.note(at(10 * step), Lsn(step * 8), Lsn(0));
        }
        assert!(times.steps.len() <= STEPS_MAX);
        let now = at(20_000);
        for byte in [0, 7, 8, 3999, 7999] {
            let acked = at(10 * (byte / 8 + 1));
            let age = times.age(Lsn(byte), now);
            assert!(age >= now.since(acked), "{byte}");
        }
        assert_eq!(times.age(Lsn(0), now), now.since(at(10)));
        assert_eq!(times.age(Lsn(8000), now), Nanos(0));
        times.note(now, Lsn(8000), Lsn(8000));
        assert!(times.steps.is_empty());
    }
}
