//! Code of both kinds of client: opening the journal, reporting the state of its lenders.

use std::time::Duration;

use netram_discover::ClusterFile;
use netram_journal::{Journal, JournalConfig, JournalRecovery, JournalStatus, MulticastOptions};
use netram_proto::port::Durability;
use netram_transport::{ClusterKey, MulticastGroup, NetAddress, Security};

use super::{WorkerEnd, WorkerMessage, WorkerRecovery, WorkerSettings, say};

/// How long a client waits for its members before it commits without them.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn log() {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    builder
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
}

pub(super) fn open(work: &WorkerSettings) -> Result<(Journal, WorkerRecovery), WorkerEnd> {
    let config = config(work).map_err(WorkerEnd::Refused)?;
    let (journal, recovered) =
        Journal::open(&work.journal, config).map_err(|error| WorkerEnd::Refused(error.to_string()))?;
    Ok((journal, report(&recovered)))
}

fn config(work: &WorkerSettings) -> Result<JournalConfig, String> {
    let security = match &work.key {
        Some(path) => Security::Key(ClusterKey::load(path).map_err(|error| error.to_string())?),
        None => Security::Insecure,
    };
    let parsed = work.lenders.iter().map(|address| address.parse::<NetAddress>());
    let lenders = parsed
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let group = work
        .multicast
        .as_ref()
        .map(|group| group.parse::<MulticastGroup>());
    let group = group.transpose().map_err(|error| error.to_string())?;
    let rule = work.rule.parse().map_err(|_| format!("no rule: {}", work.rule))?;
    let auto = work.auto.as_ref().map(|path| ClusterFile::read(path));
    Ok(JournalConfig {
        auto: auto.transpose().map_err(|error| error.to_string())?,
        rule,
        multicast: group.map(MulticastOptions::to),
        one_domain: true,
        window_bytes: work.window_bytes,
        disk_delay: Duration::from_millis(work.disk_delay_ms),
        patience: Duration::from_millis(work.patience_ms),
        grace: Duration::from_millis(200),
        accept_loss: work.accept_loss,
        ..JournalConfig::with_lenders(lenders, security, work.members)
    })
}

fn report(recovered: &JournalRecovery) -> WorkerRecovery {
    let named = |(address, answer): &(String, _)| (address.clone(), format!("{answer:?}"));
    WorkerRecovery {
        epoch: recovered.epoch.0,
        from_members: recovered.records_from_members,
        repaired: recovered.repaired,
        local_end: recovered.local_end.0,
        end: recovered.end.0,
        members: recovered.members.iter().map(named).collect(),
        loss: recovered.loss_accepted.clone(),
        last: Vec::new(),
    }
}

pub(super) fn durability(work: &WorkerSettings) -> Durability {
    match work.durability.as_str() {
        "disk" => Durability::Disk,
        "both" => Durability::Both,
        _ => Durability::Remote,
    }
}

pub(super) fn await_members(work: &WorkerSettings, journal: &Journal) {
    let members = work.members > 0 && journal.wait_for_members(MEMBERS_TIMEOUT).is_ok();
    say(&WorkerMessage::Ready { members });
}

/// Tells the standing whenever it changes, until the process ends.
pub(super) fn tell_standing(status: &dyn Fn() -> JournalStatus, go_on: &dyn Fn() -> bool) {
    let mut told = None;
    while go_on() {
        let now = standing(&status());
        if told.as_ref() != Some(&now) {
            say(&now);
            told = Some(now);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn standing(status: &JournalStatus) -> WorkerMessage {
    let lenders = &status.writer.lenders;
    let members = lenders
        .iter()
        .filter(|lender| lender.member)
        .map(|lender| lender.address.clone());
    let refused = lenders.iter().filter_map(|lender| {
        let refusal = lender.refused?;
        Some(format!("{}: {refusal:?}", lender.address))
    });
    WorkerMessage::Standing {
        blocked: status
            .writer
            .blocked
            .as_ref()
            .map(|blocked| format!("{blocked:?}")),
        members: members.collect(),
        refused: refused.collect(),
        disk: status.disk_error.map(|error| error.to_string()),
    }
}
