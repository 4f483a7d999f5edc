//! Time until another node has an update of eight bytes: half of a round trip.
//!
//! Each of two nodes writes under its own lock as soon as it has the other's update: a round trip is two
//! commits, each seen by the other. The floor is a bare exchange with an answering process, with messages as
//! large as such a commit's: one exchange for the member's acknowledgement, and half of one for the way to
//! the other node.
//!
//! The two processes of that floor have a core each. Where an update's path has more processes than cores, a
//! second floor shows the possible minimum: the same path between as many processes that do nothing else, and
//! yield while they wait.
//!
//! Without a rest, an update also waits for the work of the one before: the server that keeps it, the disk
//! threads. After a rest it comes to idle cores where the processes on its path sleep, and the floors'
//! processes too.

use std::time::{Duration, Instant};

use netram_shared::Node;
use netram_shared_machine::LockVersion;
use serde::Serialize;

use super::node_process::{NodeTask, REPLY_LOCK, REQUEST_LOCK};
use super::testbed::{NODE_TIMEOUT, PeerDelivery, RegionSetup, RegionTestbed, update};
use crate::commit::CommitEffort;
use crate::echo::{self, EchoClient, EchoServer, ExchangeSizes};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary, median};
use crate::machine::CorePin;
use crate::socket::PollPause;
use crate::testbed::{CoreAssignment, SocketKind, Testbed};

/// Bytes of the record: an update of eight bytes with its header, and the stamp of one lock.
const PAYLOAD_BYTES: usize = 24;
/// Exchanges of the floor: a member's acknowledgement, and one way more.
const EXCHANGES: f64 = 1.5;

/// A rest in which polling processes fall asleep, nodes and floors alike, and the disks finish.
pub const REST: Duration = Duration::from_millis(4);

/// Medians over rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UpdateVisibility {
    /// From an update's beginning until the other node has it.
    pub one_way: LatencySummary,
    /// From its beginning until its commit has returned.
    pub commit: LatencySummary,
    /// The bare exchange.
    pub exchange: LatencySummary,
    /// The floor in microseconds.
    pub floor_us: f64,
    /// Median ratio of the rounds' medians to their floors.
    pub ratio: f64,
    /// Microseconds of the same path between processes that do nothing else, on the same cores.
    pub idle_us: f64,
    /// Median ratio of the rounds' medians to that.
    pub idle_ratio: f64,
}

/// Measures in alternating rounds, with a rest after each round trip.
///
/// # Errors
///
/// Fails if the region or a floor cannot be set up.
pub fn measure(
    site: &Testbed,
    plan: RegionSetup,
    effort: CommitEffort,
    rest: Duration,
) -> Result<UpdateVisibility, BenchError> {
    let plan = RegionSetup {
        peer_delivery: PeerDelivery::Links,
        ..plan
    };
    let place = RegionTestbed::start(site, plan)?;
    let _answering = place.play(NodeTask::Answer)?;
    let node = place.join()?;
    let seats = CoreAssignment::find();
    let echo = EchoServer {
        listen: site.listen(SocketKind::Tcp).to_string(),
        exchange: ExchangeSizes::of_commit(PAYLOAD_BYTES, true),
        core: seats.lender(0),
        pause: PollPause::Spin,
        asks: None,
    };
    let start = |echo| EchoClient::start(site.program(), echo, site.directory(), Ok);
    let pinger = start(echo.clone())?;
    let idle = idle_way(&echo, start)?;
    let mut version = node.version(REQUEST_LOCK).0;
    let (mut ways, mut commits, mut exchanges, mut ratios) = (vec![], vec![], vec![], vec![]);
    let (mut idles, mut idle_ratios) = (vec![], vec![]);
    // The first round warms up.
    for round in 0..=effort.rounds {
        let exchange = {
            let _pinned = CorePin::to(seats.client())?;
            echo::rested_round(std::slice::from_ref(&pinger), effort.round, rest)?
        };
        // Half of a round trip, as for the updates.
        let idle_us = echo::chain(&idle, effort.round, rest)?.p50_us / 2.0;
        let (way, commit) = round_trips(&node, &mut version, effort.round, rest)?;
        if round > 0 {
            ratios.push(way.p50_us / (EXCHANGES * exchange.p50_us));
            idle_ratios.push(way.p50_us / idle_us);
            idles.push(idle_us);
            ways.push(way);
            commits.push(commit);
            exchanges.push(exchange);
        }
    }
    let exchange = LatencySummary::median(&exchanges);
    Ok(UpdateVisibility {
        one_way: LatencySummary::median(&ways),
        commit: LatencySummary::median(&commits),
        exchange,
        floor_us: EXCHANGES * exchange.p50_us,
        ratio: median(ratios),
        idle_us: median(idles),
        idle_ratio: median(idle_ratios),
    })
}

/// Updates answered by the other node for `time`, with a rest after each: half of each round trip, and its
/// commit.
fn round_trips(
    node: &Node,
    version: &mut u64,
    time: Duration,
    rest: Duration,
) -> Result<(LatencySummary, LatencySummary), BenchError> {
    let (mut way, mut commit) = (LatencyRecorder::start(&[]), LatencyRecorder::start(&[]));
    let end = Instant::now() + time;
    loop {
        let began = Instant::now();
        if began >= end {
            break;
        }
        *version += 1;
        update(node, REQUEST_LOCK, *version)?;
        commit.record(began.elapsed());
        let answered = node
            .wait_version(REPLY_LOCK, LockVersion(*version), NODE_TIMEOUT)
            .context("wait for an answer")?;
        if !answered {
            return Err(BenchError::InvalidRequest(
                "the other node did not answer in time".to_owned(),
            ));
        }
        way.record(began.elapsed() / 2);
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
    Ok((way.finish(), commit.finish()))
}

/// A member and an answering process, which asks the member first.
fn idle_way(
    echo: &EchoServer,
    start: impl Fn(EchoServer) -> Result<EchoClient, BenchError>,
) -> Result<[EchoClient; 2], BenchError> {
    let yields = EchoServer {
        core: None,
        pause: PollPause::Yield,
        ..echo.clone()
    };
    let member = start(yields.clone())?;
    let peer = start(EchoServer {
        asks: Some(member.address().to_string()),
        ..yields
    })?;
    Ok([member, peer])
}
