//! The failures, one function each: the fault and the checks.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use super::load::{FioLoad, FioPattern, FioResult, TimeRange, verify};
use super::testbed::{FailureTestbed, MEMBERS};
use super::{FailureRow, LndFailure, Reliability, WatchTimes};
use crate::client_disk::ClientDisk;
use crate::error::BenchError;
use crate::namespaces::NamespacePair;
use crate::testbed::Testbed;
use crate::tool::tool;

/// Runs the scenario of `failure`.
pub(super) fn run_scenario(
    site: &Testbed,
    failure: LndFailure,
    spans: &WatchTimes,
) -> Result<FailureRow, BenchError> {
    match failure {
        LndFailure::LenderKilled | LndFailure::LenderStopped => lender_lost(site, failure, spans),
        LndFailure::LendersKilled => lenders_killed(site, spans),
        LndFailure::SwitchLost => switch_lost(site, spans),
        LndFailure::DataLenderKilled => data_lender_killed(site, spans),
        LndFailure::ClientKilled => client_killed(site, spans),
        LndFailure::ClientDiskLost => client_disk_lost(site, spans),
        LndFailure::AllLost => all_lost(site, spans),
    }
}

/// A member dies, or stops answering with its connections open. A spare takes its place.
fn lender_lost(site: &Testbed, failure: LndFailure, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let fail = |rig: &mut FailureTestbed<'_>| {
        let address = rig.lender(0)?.address().to_string();
        match failure {
            LndFailure::LenderStopped => rig.lender(0)?.child().pause()?,
            _ => rig.kill_lender(0),
        }
        rig.until_replaced(&address)
    };
    through(
        FailureTestbed::new(site, site, None)?,
        failure,
        spans,
        fail,
        |_, replaced| Ok((replaced, "until a spare had replaced it")),
    )
}

/// The data lender dies and is restarted on its disk.
fn data_lender_killed(site: &Testbed, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let fail = |rig: &mut FailureTestbed<'_>| {
        rig.kill_data_lender();
        rig.until_data_lender_lost()
    };
    let heal = |rig: &mut FailureTestbed<'_>, _| {
        rig.restart_data_lender()?;
        Ok((
            rig.until_in_service()?,
            "from its return until its disk had everything",
        ))
    };
    through(
        FailureTestbed::with_data_lender(site)?,
        LndFailure::DataLenderKilled,
        spans,
        fail,
        heal,
    )
}

/// All lenders die. Later ones start with empty memory.
fn lenders_killed(site: &Testbed, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let addresses = RefCell::new(Vec::new());
    let fail = |rig: &mut FailureTestbed<'_>| {
        addresses.replace(rig.kill_lenders());
        rig.until_members(0)
    };
    let heal = |rig: &mut FailureTestbed<'_>, _| {
        rig.restart_lenders(&addresses.borrow())?;
        Ok((
            rig.until_members(MEMBERS)?,
            "from their return until two were members",
        ))
    };
    through(
        FailureTestbed::new(site, site, None)?,
        LndFailure::LendersKilled,
        spans,
        fail,
        heal,
    )
}

/// The network drops all packets to the lenders without any notice, and later works again.
fn switch_lost(site: &Testbed, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let fail = |rig: &mut FailureTestbed<'_>| {
        rig.cut()?;
        rig.until_members(0)
    };
    let heal = |rig: &mut FailureTestbed<'_>, _| {
        rig.heal()?;
        Ok((
            rig.until_members(MEMBERS)?,
            "from its return until two lenders were members",
        ))
    };
    let rig = FailureTestbed::new(site, site, Some(NamespacePair::new()?))?;
    through(rig, LndFailure::SwitchLost, spans, fail, heal)
}

/// Runs a failure during which fio writes and verifies. `fail` returns when the volume has noticed the
/// failure; `heal` returns when recovery is complete, with its duration and description.
fn through(
    mut rig: FailureTestbed<'_>,
    failure: LndFailure,
    spans: &WatchTimes,
    fail: impl FnOnce(&mut FailureTestbed<'_>) -> Result<Duration, BenchError>,
    heal: impl FnOnce(&mut FailureTestbed<'_>, Duration) -> Result<(Duration, &'static str), BenchError>,
) -> Result<FailureRow, BenchError> {
    let load = FioLoad::start(FioPattern::Random, rig.mounted(), rig.report_directory())?;
    let before = load.watch(spans.before)?;
    let failed = SystemTime::now();
    let seen = fail(&mut rig)?;
    // Speed is measured after the moment of the failure; the longest write is taken from the whole time.
    let during = load.watch(spans.during)?;
    let (recovered, recovery) = heal(&mut rig, seen)?;
    let row = surviving_row(failure, &load.stop()?, &before, failed, &during)?;
    rig.close()?;
    Ok(FailureRow {
        recovery_ms: Some(ms(recovered)),
        recovery,
        ..row
    })
}

/// The client's processes die while they write, and are restarted.
fn client_killed(site: &Testbed, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let mut rig = FailureTestbed::new(site, site, None)?;
    let load = FioLoad::start(FioPattern::Sequence, rig.mounted(), rig.report_directory())?;
    let before = load.watch(spans.before)?;
    rig.crash();
    let done = load.end()?;
    rig.unmount()?;
    let attached = rig.attach(&[])?;
    let mounting = SystemTime::now();
    rig.mount()?;
    let recovered = attached + mounting.elapsed().unwrap_or_default();
    verify(done.acked_blocks(), rig.mounted())?;
    rig.close()?;
    Ok(FailureRow {
        continues: done.failure.is_none(),
        acked: Some(done.acked_blocks()),
        recovery_ms: Some(ms(recovered)),
        recovery: "attaching and mounting",
        ..FailureRow::new(LndFailure::ClientKilled, median(&done, &before)?)
    })
}

/// The client's processes die while they write, and its disk is lost. A new one is filled from the data
/// lender's.
fn client_disk_lost(site: &Testbed, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let mut rig = FailureTestbed::with_data_lender(site)?;
    let id = rig.id()?;
    let load = FioLoad::start(FioPattern::Sequence, rig.mounted(), rig.report_directory())?;
    let before = load.watch(spans.before)?;
    rig.crash();
    let done = load.end()?;
    rig.unmount()?;
    let began_again = SystemTime::now();
    rig.lose_disk(&id)?;
    rig.attach(&[])?;
    rig.mount()?;
    let recovered = began_again.elapsed().unwrap_or_default();
    verify(done.acked_blocks(), rig.mounted())?;
    rig.until_copied()?;
    let copied = began_again.elapsed().unwrap_or_default();
    rig.close()?;
    Ok(FailureRow {
        continues: done.failure.is_none(),
        acked: Some(done.acked_blocks()),
        recovery_ms: Some(ms(recovered)),
        recovery: "until a new disk was attached and mounted; blocks follow as they are read, and in the background",
        copied_ms: Some(ms(copied)),
        ..FailureRow::new(LndFailure::ClientDiskLost, median(&done, &before)?)
    })
}

/// The client's machine loses power, and all lenders die with their memory. Acknowledged writes that were not
/// yet on the client's disk are gone. The volume must say so and name their holders.
fn all_lost(site: &Testbed, spans: &WatchTimes) -> Result<FailureRow, BenchError> {
    let disk = ClientDisk::new(site.directory(), site.number())?;
    let home = Testbed::new(site.program().to_owned(), disk.root())?;
    let mut rig = FailureTestbed::new(site, &home, None)?;
    let load = FioLoad::start(FioPattern::Sequence, rig.mounted(), rig.report_directory())?;
    let before = load.watch(spans.before)?;
    // A power cut stops the processor first. A running kernel might report a sync as done that the cut
    // prevents.
    rig.freeze()?;
    disk.cut()?;
    rig.crash();
    let lost = rig.kill_lenders();
    let done = load.end()?;
    rig.unmount()?;
    disk.power_on()?;
    let refusal = match rig.attach(&[]) {
        Ok(_) => return Err(wrong(&rig, "it was opened as if nothing were missing")),
        Err(error) => error.to_string(),
    };
    // The spare is not named, because it held nothing.
    let named = lost.iter().filter(|address| refusal.contains(*address)).count();
    if named < MEMBERS {
        return Err(wrong(
            &rig,
            &format!("the refusal does not name who is missing: {refusal}"),
        ));
    }
    let row = FailureRow {
        reliable: Reliability::Refused { lost: None },
        continues: done.failure.is_none(),
        acked: Some(done.acked_blocks()),
        ..FailureRow::new(LndFailure::AllLost, median(&done, &before)?)
    };
    if !spans.accept_loss {
        return Ok(row);
    }
    let began = SystemTime::now();
    rig.attach(&[("NETRAM_ACCEPT_LOSS", "1")])?;
    rig.mount()?;
    let recovered = began.elapsed().unwrap_or_default();
    let lost = verify(done.acked_blocks(), rig.mounted()).is_err();
    rig.close()?;
    Ok(FailureRow {
        reliable: Reliability::Refused { lost: Some(lost) },
        recovery_ms: Some(ms(recovered)),
        recovery: "attaching and mounting, once the loss had been accepted in so many words",
        ..row
    })
}

/// A row of a failure during which fio wrote and verified.
fn surviving_row(
    failure: LndFailure,
    done: &FioResult,
    before: &TimeRange,
    failed: SystemTime,
    during: &TimeRange,
) -> Result<FailureRow, BenchError> {
    if let Some(why) = &done.failure {
        return Err(BenchError::InvalidRequest(format!(
            "fio failed through {}: {why}",
            failure.what()
        )));
    }
    let since = done.during(&(failed..during.end));
    let settled = done.during(during);
    Ok(FailureRow {
        continues: settled.is_some(),
        during_us: settled.map(|stretch| stretch.median_us),
        stall_ms: since.map(|stretch| stretch.longest_ms),
        ..FailureRow::new(failure, median(done, before)?)
    })
}

/// The median write in a time range that has some.
fn median(done: &FioResult, span: &TimeRange) -> Result<f64, BenchError> {
    let none =
        || BenchError::InvalidRequest("fio has not logged the writes that the system counted".to_owned());
    Ok(done.during(span).ok_or_else(none)?.median_us)
}

fn wrong(rig: &FailureTestbed<'_>, why: &str) -> BenchError {
    BenchError::WrongData {
        place: rig.report_directory().to_owned(),
        why: why.to_owned(),
    }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Names the program that only `failure` needs and this machine lacks.
pub(super) fn lacking_for(failure: LndFailure) -> Option<String> {
    match failure {
        LndFailure::SwitchLost => {
            no_program(&[("nft", "nftables"), ("nsenter", "util-linux"), ("ip", "iproute2")])
        }
        _ => None,
    }
}

/// The first of these programs, with its package, that is not installed.
fn no_program(programs: &[(&str, &str)]) -> Option<String> {
    let is_missing =
        |(program, _): &&(&str, &str)| tool("sh", &["-c", &format!("command -v {program}")]).is_err();
    let (program, package) = programs.iter().find(is_missing)?;
    Some(format!("there is no {program} (package {package})"))
}

/// A requirement of all failures that this machine lacks.
pub(super) fn lacking() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("attaching a volume needs root".to_owned());
    }
    if let Some(lacking) = no_program(&[("fio", "fio"), ("mkfs.ext4", "e2fsprogs")]) {
        return Some(lacking);
    }
    // A container may have the driver without the devices that it creates.
    let device = "test -c /dev/fuse && device=$(losetup --find) && test -b \"$device\" && : <> \"$device\"";
    if tool("sh", &["-c", device]).is_err() {
        return Some("there is no FUSE here, or no loop device".to_owned());
    }
    let ext4 = "grep -qw ext4 /proc/filesystems || modprobe ext4";
    tool("sh", &["-c", ext4])
        .err()
        .map(|_| "this kernel has no ext4".to_owned())
}
