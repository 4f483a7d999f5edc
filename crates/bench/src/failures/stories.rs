//! The failures, one function each: what is done, and what is looked at.

use std::time::{Duration, SystemTime};

use super::disk::ClientDisk;
use super::load::{Done, Kind, Load, verify};
use super::rig::{MEMBERS, Rig};
use super::{Failure, Reliable, Row, Spans};
use crate::error::BenchError;
use crate::paper::namespaces::Namespaces;
use crate::site::Site;
use crate::tool::tool;

/// How long fio may go on after a failure is over, for what a volume does then.
const SETTLING: Duration = Duration::from_secs(3);

/// Tells the story of `failure`.
pub(super) fn tell(site: &Site, failure: Failure, spans: &Spans) -> Result<Row, BenchError> {
    match failure {
        Failure::LenderKilled | Failure::LenderStopped => lender_lost(site, failure, spans),
        Failure::LendersKilled => lenders_killed(site, spans),
        Failure::SwitchLost => switch_lost(site, spans),
        Failure::DataLenderKilled => data_lender_killed(site, spans),
        Failure::ClientKilled => client_killed(site, spans),
        Failure::ClientDiskLost => client_disk_lost(site, spans),
        Failure::AllLost => all_lost(site, spans),
    }
}

/// A member dies, or falls silent with its connections open. A spare takes its place.
fn lender_lost(site: &Site, failure: Failure, spans: &Spans) -> Result<Row, BenchError> {
    let mut rig = Rig::new(site, site, None)?;
    let load = random(&rig, spans)?;
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
    let address = rig.lender(0)?.address().to_string();
    match failure {
        Failure::LenderStopped => rig.lender(0)?.child().pause()?,
        _ => rig.kill_lender(0),
    }
    let replaced = rig.until_replaced(&address)?;
    std::thread::sleep(spans.during);
    let ended = SystemTime::now();
    let row = went_on(failure, &load.end()?, spans, failed, ended)?;
    rig.close()?;
    Ok(Row {
        recovery_ms: Some(ms(replaced)),
        recovery: "until a spare had replaced it",
        ..row
    })
}

/// The data lender dies, and comes back with its disk as it was.
fn data_lender_killed(site: &Site, spans: &Spans) -> Result<Row, BenchError> {
    let mut rig = Rig::kept_twice(site)?;
    let load = random(&rig, spans)?;
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
    rig.kill_data_lender();
    std::thread::sleep(spans.during);
    let ended = SystemTime::now();
    rig.bring_data_lender()?;
    let back = rig.until_in_service()?;
    let row = went_on(Failure::DataLenderKilled, &load.end()?, spans, failed, ended)?;
    rig.close()?;
    Ok(Row {
        recovery_ms: Some(ms(back)),
        recovery: "from its return until its disk had everything",
        ..row
    })
}

/// All lenders die. Others come later, with nothing.
fn lenders_killed(site: &Site, spans: &Spans) -> Result<Row, BenchError> {
    let mut rig = Rig::new(site, site, None)?;
    let load = random(&rig, spans)?;
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
    let addresses = rig.kill_lenders();
    rig.until_members(0)?;
    std::thread::sleep(spans.during);
    let ended = SystemTime::now();
    rig.bring_lenders(&addresses)?;
    let back = rig.until_members(MEMBERS)?;
    let row = went_on(Failure::LendersKilled, &load.end()?, spans, failed, ended)?;
    rig.close()?;
    Ok(Row {
        recovery_ms: Some(ms(back)),
        recovery: "from their return until two were members",
        ..row
    })
}

/// Nothing gets through to any lender, and nobody is told; then it does again.
fn switch_lost(site: &Site, spans: &Spans) -> Result<Row, BenchError> {
    let rig = Rig::new(site, site, Some(Namespaces::new()?))?;
    let load = random(&rig, spans)?;
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
    rig.cut()?;
    rig.until_members(0)?;
    std::thread::sleep(spans.during);
    let ended = SystemTime::now();
    rig.heal()?;
    let back = rig.until_members(MEMBERS)?;
    let row = went_on(Failure::SwitchLost, &load.end()?, spans, failed, ended)?;
    rig.close()?;
    Ok(Row {
        recovery_ms: Some(ms(back)),
        recovery: "from its return until two lenders were members",
        ..row
    })
}

/// The client's processes die in mid-write, and are started again.
fn client_killed(site: &Site, spans: &Spans) -> Result<Row, BenchError> {
    let mut rig = Rig::new(site, site, None)?;
    let (load, began) = (sequence(&rig)?, SystemTime::now());
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
    rig.crash();
    let done = load.end()?;
    rig.unmount()?;
    let attached = rig.attach(&[])?;
    let mounting = SystemTime::now();
    rig.mount()?;
    let recovered = attached + mounting.elapsed().unwrap_or_default();
    verify(done.acked_blocks(), rig.mounted())?;
    rig.close()?;
    Ok(Row {
        continues: done.failure.is_none(),
        acked: Some(done.acked_blocks()),
        recovery_ms: Some(ms(recovered)),
        recovery: "attaching and mounting",
        ..Row::new(Failure::ClientKilled, before(&done, began, failed)?)
    })
}

/// The client's processes die in mid-write, and its disk with them. A new one is made from the data lender's.
fn client_disk_lost(site: &Site, spans: &Spans) -> Result<Row, BenchError> {
    let mut rig = Rig::kept_twice(site)?;
    let id = rig.id()?;
    let (load, began) = (sequence(&rig)?, SystemTime::now());
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
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
    Ok(Row {
        continues: done.failure.is_none(),
        acked: Some(done.acked_blocks()),
        recovery_ms: Some(ms(recovered)),
        recovery: "until a new disk was attached and mounted; blocks follow as they are read, and in the background",
        copied_ms: Some(ms(copied)),
        ..Row::new(Failure::ClientDiskLost, before(&done, began, failed)?)
    })
}

/// The client's machine loses its power, and all lenders are lost with their memory. What was acknowledged and not yet on
/// the client's disk is nowhere: this must be said, and by whom it was held.
fn all_lost(site: &Site, spans: &Spans) -> Result<Row, BenchError> {
    let disk = ClientDisk::new(site.folder())?;
    let home = Site::new(site.program().to_owned(), disk.root())?;
    let mut rig = Rig::new(site, &home, None)?;
    let (load, began) = (sequence(&rig)?, SystemTime::now());
    std::thread::sleep(spans.before);
    let failed = SystemTime::now();
    // A power cut stops the processor first: a running kernel might report a sync as done that the cut prevents.
    rig.freeze();
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
    // The spare is not missed: it held nothing.
    let named = lost.iter().filter(|address| refusal.contains(*address)).count();
    if named < MEMBERS {
        return Err(wrong(
            &rig,
            &format!("the refusal does not name who is missing: {refusal}"),
        ));
    }
    let row = Row {
        reliable: Reliable::Refused { lost: None },
        continues: done.failure.is_none(),
        acked: Some(done.acked_blocks()),
        ..Row::new(Failure::AllLost, before(&done, began, failed)?)
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
    Ok(Row {
        reliable: Reliable::Refused { lost: Some(lost) },
        recovery_ms: Some(ms(recovered)),
        recovery: "attaching and mounting, once the loss had been accepted in so many words",
        ..row
    })
}

fn random(rig: &Rig<'_>, spans: &Spans) -> Result<Load, BenchError> {
    let span = spans.before + spans.during + SETTLING;
    Load::start(Kind::Random(span), rig.mounted(), rig.beside())
}

fn sequence(rig: &Rig<'_>) -> Result<Load, BenchError> {
    Load::start(Kind::Sequence, rig.mounted(), rig.beside())
}

/// A row of a failure through which fio wrote and verified on.
fn went_on(
    failure: Failure,
    done: &Done,
    spans: &Spans,
    failed: SystemTime,
    ended: SystemTime,
) -> Result<Row, BenchError> {
    if let Some(why) = &done.failure {
        return Err(BenchError::Asked(format!(
            "fio failed through {}: {why}",
            failure.what()
        )));
    }
    let during = done.between(failed, ended);
    Ok(Row {
        continues: during.is_some(),
        during_us: during.map(|during| during.median_us),
        stall_ms: during.map(|during| during.longest_ms),
        ..Row::new(failure, before(done, failed - spans.before, failed)?)
    })
}

/// The median write before the failure.
fn before(done: &Done, from: SystemTime, to: SystemTime) -> Result<f64, BenchError> {
    let none =
        || BenchError::Asked("fio wrote nothing before the failure; is the machine very busy?".to_owned());
    Ok(done.between(from, to).ok_or_else(none)?.median_us)
}

fn wrong(rig: &Rig<'_>, why: &str) -> BenchError {
    BenchError::Wrong {
        place: rig.beside().to_owned(),
        why: why.to_owned(),
    }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// What this machine lacks for any of it.
pub(super) fn lacking() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("attaching a volume needs root".to_owned());
    }
    for (program, package) in [
        ("fio", "fio"),
        ("mkfs.ext4", "e2fsprogs"),
        ("nft", "nftables"),
        ("nsenter", "util-linux"),
    ] {
        if tool("sh", &["-c", &format!("command -v {program}")]).is_err() {
            return Some(format!("there is no {program} (package {package})"));
        }
    }
    // In a container the driver may be there, but not the devices that it makes.
    let device = "test -c /dev/fuse && device=$(losetup --find) && test -b \"$device\" && : <> \"$device\"";
    if tool("sh", &["-c", device]).is_err() {
        return Some("there is no FUSE here, or no loop device".to_owned());
    }
    let ext4 = "grep -qw ext4 /proc/filesystems || modprobe ext4";
    tool("sh", &["-c", ext4])
        .err()
        .map(|_| "this kernel has no ext4".to_owned())
}
