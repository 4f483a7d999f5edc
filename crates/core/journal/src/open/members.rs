//! Reading the windows of the last view's members: links for [`Recovery`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use netram_proto::journal::{FrameBody, PeerAnswer, Recovery, RecoveryError};
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameKind};
use netram_transport::{Link, NetAddress, Security, connect};

use crate::config::JournalConfig;
use crate::owner::JournalOwner;
use crate::reason::{LinkFailure, RecoveryFailure, UnreachableLenders};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between polls of the links: far below a disk's sync, and no load.
pub(crate) const PAUSE: Duration = Duration::from_micros(200);

/// Interval between log lines about members that have not answered.
const WAIT_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// State shared by the thread that connects to one member and the thread that asks it.
#[derive(Default)]
struct ConnectRequest {
    /// Whether a connection is wanted. Written by both threads.
    connection: AtomicBool,
    /// Why the last attempt failed.
    failure: Mutex<Option<LinkFailure>>,
}

impl ConnectRequest {
    fn failure(&self) -> MutexGuard<'_, Option<LinkFailure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fences and reads the members, as `owner`, until the recovery has a verdict.
pub(crate) fn ask(
    recovery: &mut Recovery,
    owner: &JournalOwner,
    config: &JournalConfig,
) -> Result<(), RecoveryFailure> {
    let began = Instant::now();
    let addresses: Vec<String> = recovery.addresses().map(String::from).collect();
    let wanted: Arc<[ConnectRequest]> = addresses.iter().map(|_| ConnectRequest::default()).collect();
    wanted
        .iter()
        .for_each(|wanted| wanted.connection.store(true, Ordering::Relaxed));
    let (sender, connected) = mpsc::channel();
    // The threads end when the channel is dropped, at the latest one attempt after the verdict.
    let start = |index: usize| {
        let Ok(address) = addresses[index].parse::<NetAddress>() else {
            return Ok(());
        };
        let (sender, security, theirs) = (sender.clone(), config.security.clone(), Arc::downgrade(&wanted));
        let connecting = std::thread::Builder::new().name("netram-ask".into());
        let owner = owner.clone();
        let spawned =
            connecting.spawn(move || keep_connecting(index, &address, &security, &owner, &theirs, &sender));
        spawned.map(drop)
    };
    await_verdict(recovery, owner, &wanted, began, &start, &connected, config).map_err(|refusal| {
        RecoveryFailure {
            refusal,
            unreachable: UnreachableLenders(
                addresses
                    .into_iter()
                    .zip(wanted.iter())
                    .filter_map(reason)
                    .collect(),
            ),
        }
    })
}

fn reason((address, wanted): (String, &ConnectRequest)) -> Option<(String, LinkFailure)> {
    let away = wanted.failure().clone()?;
    Some((address, away))
}

fn await_verdict(
    recovery: &mut Recovery,
    owner: &JournalOwner,
    wanted: &[ConnectRequest],
    began: Instant,
    start: &dyn Fn(usize) -> std::io::Result<()>,
    connected: &mpsc::Receiver<(usize, Link)>,
    config: &JournalConfig,
) -> Result<(), RecoveryError> {
    let mut told = began + config.grace;
    let mut links: Vec<Option<Link>> = wanted.iter().map(|_| None).collect();
    let (mut unstarted, mut start_at) = ((0..wanted.len()).collect::<Vec<_>>(), began);
    loop {
        if !unstarted.is_empty() && Instant::now() >= start_at {
            start_at = Instant::now() + CONNECT_PAUSE;
            // A limit of this machine refused the thread, perhaps for a moment.
            unstarted.retain(|index| {
                let Err(error) = start(*index) else { return false };
                *wanted[*index].failure() = Some(LinkFailure::LocalSystem(error.to_string()));
                true
            });
        }
        let now = Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if let Some(verdict) = recovery.verdict(now) {
            return verdict;
        }
        if Instant::now() >= told {
            told += WAIT_LOG_INTERVAL;
            log_waiting(recovery, wanted, config.patience.saturating_sub(began.elapsed()));
        }
        while let Ok((index, link)) = connected.try_recv() {
            links[index] = Some(link);
            recovery.on_connected(index);
        }
        let mut moved = false;
        for (index, slot) in links.iter_mut().enumerate() {
            match slot.as_mut().map(|link| exchange(recovery, owner, index, link)) {
                Some(Ok(some)) => moved |= some,
                Some(Err(why)) => {
                    *slot = None;
                    if let Some(why) = why {
                        tracing::debug!(lender = recovery.addresses().nth(index), %why, "dropped a member of the last view");
                        *wanted[index].failure() = Some(why);
                    }
                    recovery.on_lost(index);
                    wanted[index].connection.store(true, Ordering::Relaxed);
                }
                None => (),
            }
        }
        if !moved {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Logs which members have not answered and why, and how long recovery will wait.
fn log_waiting(recovery: &Recovery, wanted: &[ConnectRequest], patience: Duration) {
    let answers = recovery.answers().zip(wanted);
    let missing = answers.filter(|((_, answer), _)| *answer != PeerAnswer::Complete);
    let missing: Vec<String> = missing
        .map(|((address, answer), wanted)| match &*wanted.failure() {
            Some(why) => format!("{address} ({why})"),
            None => format!("{address} ({answer})"),
        })
        .collect();
    tracing::warn!(
        "recovery is waiting for lenders that may hold the only copy of acknowledged records: {}. It will refuse after \
         another {} s (`patience`, NETRAM_PATIENCE)",
        missing.join(", "),
        patience.as_secs()
    );
}

/// Connects to one member whenever a connection is wanted, since it may be restarted while it is asked.
fn keep_connecting(
    index: usize,
    address: &NetAddress,
    security: &Security,
    owner: &JournalOwner,
    wanted: &Weak<[ConnectRequest]>,
    sender: &mpsc::Sender<(usize, Link)>,
) {
    while let Some(all) = wanted.upgrade() {
        let wanted = &all[index];
        if wanted.connection.load(Ordering::Relaxed) {
            let connected =
                connect(address, security, CONNECT_TIMEOUT).map_err(|error| LinkFailure::from(&error));
            let connected = connected.and_then(|mut link| {
                let introduced = owner.introduce(&mut link);
                introduced.map_or(Err(LinkFailure::CutOff), |()| Ok(link))
            });
            match connected {
                Ok(link) => {
                    wanted.connection.store(false, Ordering::Relaxed);
                    // A refusal stays the reason until the member has answered.
                    wanted.failure().take_if(|why| !why.is_refusal());
                    // After the verdict the receiver is gone.
                    let _ = sender.send((index, link));
                }
                Err(why) => {
                    // The waiting thread logs the reason, and so does the journal if it opens without this
                    // member.
                    tracing::debug!(lender = %address, %why, "cannot reach a member of the last view; retrying");
                    *wanted.failure() = Some(why);
                }
            }
        }
        drop(all);
        std::thread::sleep(CONNECT_PAUSE);
    }
}

/// Sends pending frames, and receives what one read of the socket brings. A member that sends without end
/// thus leaves the clock to the caller. After an error, which may have a reason, the link must be dropped.
fn exchange(
    recovery: &mut Recovery,
    owner: &JournalOwner,
    index: usize,
    link: &mut Link,
) -> Result<bool, Option<LinkFailure>> {
    let (mut moved, version) = (false, link.version());
    while let Some(outgoing) = recovery.next_frame(index) {
        let FrameBody::Inline(body, length) = outgoing.body else {
            unreachable!("a recovery sends no log bytes")
        };
        owner
            .queue(link, &outgoing.header, &body[..length])
            .map_err(|_| None)?;
        moved = true;
    }
    link.flush().map_err(|_| None)?;
    while let Some(packet) = link.receive().map_err(|_| None)? {
        let frame = Frame::parse(packet).map_err(|_| None)?;
        owner
            .check(version, &frame)
            .map_err(|_| Some(LinkFailure::ForgedFence))?;
        recovery.on_frame(index, &frame);
        if frame.header.kind == FrameKind::Refuse {
            return Err(LinkFailure::of_refusal(&frame.header));
        }
        moved = true;
        if !link.has_buffered() {
            break;
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
    use netram_proto::journal::View;
    use netram_proto::time::Nanos;
    use netram_proto::wire::FrameHeader;
    use netram_transport::both_ends::link_pair;
    use netram_transport::link::RECEIVE_BUFFER_BYTES;

    use super::*;

    /// Recovery read from a member for as long as that sent, and looked at no clock: a member that never
    /// stopped kept it for ever.
    #[test]
    fn one_look_at_a_member_takes_no_more_than_one_read() {
        const BODY: usize = RECEIVE_BUFFER_BYTES / 3;
        let directory = tempfile::tempdir().unwrap();
        let address = NetAddress::Unix(directory.path().join("member"));
        let (mut client, mut member) = link_pair(&address, &Security::Insecure);
        let view = View::first(JournalId(1));
        let owner = JournalOwner::none(JournalId(1));
        let mut recovery = Recovery::new(&view, Epoch(1), WriterId(1), Lsn(0), Time(0), Nanos(0), Nanos(0))
            .with_addresses(["unix:/member"]);
        // Together they fit the socket, but not one read.
        let unasked = FrameHeader::new(FrameKind::Data).encode(BODY);
        for _ in 0..4 {
            member.send(&[&unasked, &vec![0; BODY]]).unwrap();
        }
        assert_eq!(exchange(&mut recovery, &owner, 0, &mut client), Ok(true));
        while !member.flush().unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(
            exchange(&mut recovery, &owner, 0, &mut client),
            Ok(true),
            "the others have their turn in between"
        );
        assert_eq!(recovery.bytes_read(), 0, "nothing was asked");
    }
}
