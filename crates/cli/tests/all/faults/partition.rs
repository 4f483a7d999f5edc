//! Partitions: the client and its lenders are on machines of their own, and the network between them goes.

use crate::faults::harness::network::Network;
use crate::faults::harness::{
    ClientProcess, DISK_NEVER_MS, FaultsClient, FaultsFixture, FaultsLender, skipped,
};

const CLIENT: usize = 0;

/// A client on one machine and lenders on two others, over TCP with the cluster key.
struct Site {
    // Before the place: lenders end before their memory is removed.
    lenders: Vec<FaultsLender>,
    place: FaultsFixture,
    // Last: processes end before their machines.
    network: Network,
}

impl Site {
    fn new(test: &str) -> Option<Site> {
        let network = match Network::new(3) {
            Ok(network) => network,
            Err(missing) => {
                skipped(test, &missing);
                return None;
            }
        };
        let place = FaultsFixture::new();
        let lend = |machine: usize| {
            let wrap = network.on(machine);
            let wrap: Vec<&str> = wrap.iter().map(String::as_str).collect();
            FaultsLender::start(
                &place,
                &format!("m{machine}"),
                &network.address(machine),
                &wrap,
                &[],
            )
        };
        Some(Site {
            lenders: vec![lend(1), lend(2)],
            place,
            network,
        })
    }

    fn client(&self, make: impl Fn(&FaultsFixture, &[&FaultsLender]) -> FaultsClient) -> FaultsClient {
        let lenders: Vec<&FaultsLender> = self.lenders.iter().collect();
        let mut client = make(&self.place, &lenders);
        client.wrap = self.network.on(CLIENT);
        client
    }

    fn cut(&self, machines: &[usize]) {
        machines.iter().for_each(|machine| self.network.cut(*machine));
    }

    fn heal(&self, machines: &[usize]) {
        machines.iter().for_each(|machine| self.network.heal(*machine));
    }
}

fn until_blocked(running: &ClientProcess, blocked: bool) {
    running.until("the view follows the network", |heard| {
        heard
            .standing()
            .is_some_and(|(reason, _)| reason.is_some() == blocked)
    });
}

#[test]
fn a_partition_fails_no_commit_and_members_come_back_when_it_heals() {
    let test = "a_partition_fails_no_commit_and_members_come_back_when_it_heals";
    let Some(site) = Site::new(test) else { return };
    let mut client = site.client(|place, lenders| place.journal(lenders, 2));
    let running = client.start();
    running.until_acks_by_rule(20);
    for cut in [&[1][..], &[2], &[1, 2]].repeat(site.place.rounds(1) as usize) {
        site.cut(cut);
        // Both members are wanted: without one, commits wait for the disk.
        until_blocked(&running, true);
        running.until_acks(20);
        site.heal(cut);
        until_blocked(&running, false);
        running.until_acks_by_rule(20);
    }
    client.end_unfailed(running);
}

#[test]
fn a_client_killed_in_a_partition_recovers_once_a_member_is_in_reach() {
    let test = "a_client_killed_in_a_partition_recovers_once_a_member_is_in_reach";
    let Some(mut site) = Site::new(test) else { return };
    let mut client = site.client(|place, lenders| place.journal(lenders, 2));
    // Only the lenders have it, and they are out of reach.
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    client.work.patience_ms = 1500;
    for _ in 0..site.place.rounds(1) {
        let running = client.start();
        running.until_acks_by_rule(20 + site.place.random.below(200));
        site.cut(&[1, 2]);
        client.kill(running);
        let refused = client
            .try_recover()
            .expect_err("nobody who has it can be reached");
        for lender in &site.lenders {
            assert!(refused.contains(&lender.address), "{refused}");
        }
        site.heal(&[2]);
        let report = client.recover();
        assert!(report.from_members >= 20, "{report:?}");
        site.heal(&[1]);
    }
}

#[test]
fn a_bank_goes_through_partitions_and_kills() {
    let Some(mut site) = Site::new("a_bank_goes_through_partitions_and_kills") else {
        return;
    };
    let mut client = site.client(|place, lenders| place.bank(lenders, 1));
    client.recover();
    for _ in 0..site.place.rounds(3) {
        let running = client.start();
        running.until_acks(10);
        let cut = 1 + site.place.random.below(2) as usize;
        site.cut(&[cut]);
        running.until_acks(1 + site.place.random.below(200));
        client.kill(running);
        site.heal(&[cut]);
    }
    client.recover();
}
