//! Asking the last view's members for what they hold: links for [`Recovery`], and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use netram_proto::journal::{Body, Recovery, RecoveryRefusal};
use netram_proto::time::Time;
use netram_proto::wire::Frame;
use netram_transport::{Address, Link, connect};

use crate::config::JournalConfig;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Between looks at the links: far below a disk's sync, and no load.
const PAUSE: Duration = Duration::from_micros(200);

/// Seals and reads the members until the machine knows enough.
pub(super) fn ask(recovery: &mut Recovery, config: &JournalConfig) -> Result<(), RecoveryRefusal> {
    let began = Instant::now();
    let addresses: Vec<String> = recovery.addresses().map(String::from).collect();
    let (sender, connected) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    for (index, address) in addresses.iter().enumerate() {
        let Ok(address) = address.parse::<Address>() else {
            continue;
        };
        let (sender, security, over) = (sender.clone(), config.security.clone(), Arc::clone(&over));
        std::thread::spawn(move || keep_connecting(index, &address, &security, &over, &sender));
    }
    drop(sender);
    let verdict = await_verdict(recovery, addresses.len(), began, &connected);
    over.store(true, Ordering::Relaxed);
    verdict
}

fn await_verdict(
    recovery: &mut Recovery,
    count: usize,
    began: Instant,
    connected: &mpsc::Receiver<(usize, Link)>,
) -> Result<(), RecoveryRefusal> {
    let mut links: Vec<Option<Link>> = (0..count).map(|_| None).collect();
    loop {
        let now = Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if let Some(verdict) = recovery.verdict(now) {
            return verdict;
        }
        while let Ok((index, link)) = connected.try_recv() {
            links[index] = Some(link);
            recovery.on_connected(index);
        }
        let mut moved = false;
        for (index, slot) in links.iter_mut().enumerate() {
            match slot.as_mut().map(|link| exchange(recovery, index, link)) {
                Some(Ok(some)) => moved |= some,
                Some(Err(())) => {
                    *slot = None;
                    recovery.on_lost(index);
                }
                None => (),
            }
        }
        if !moved {
            std::thread::sleep(PAUSE);
        }
    }
}

fn keep_connecting(
    index: usize,
    address: &Address,
    security: &netram_transport::Security,
    over: &AtomicBool,
    sender: &mpsc::Sender<(usize, Link)>,
) {
    let mut told = false;
    while !over.load(Ordering::Relaxed) {
        match connect(address, security, CONNECT_TIMEOUT) {
            Ok(link) => {
                // Nobody listens any more once the verdict is in.
                let _ = sender.send((index, link));
                return;
            }
            Err(error) if !told => {
                tracing::warn!(lender = %address, %error, "cannot reach a member of the last view; trying on");
                told = true;
            }
            Err(_) => (),
        }
        std::thread::sleep(CONNECT_PAUSE);
    }
}

/// Sends and receives what there is. `Err`: the link is of no further use.
fn exchange(recovery: &mut Recovery, index: usize, link: &mut Link) -> Result<bool, ()> {
    let mut moved = false;
    while let Some(outgoing) = recovery.next_frame(index) {
        let Body::Inline(body, length) = outgoing.body else {
            unreachable!("recovery sends no log bytes")
        };
        link.send(&[&outgoing.header.encode(length), &body[..length]])
            .map_err(drop)?;
        moved = true;
    }
    while let Some(packet) = link.receive().map_err(drop)? {
        let frame = Frame::parse(packet).map_err(drop)?;
        recovery.on_frame(index, &frame);
        moved = true;
    }
    Ok(moved)
}
