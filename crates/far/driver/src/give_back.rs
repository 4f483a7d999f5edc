//! Frees the pages that an owner left at lenders when it ended without closing its links.

use std::thread;
use std::time::{Duration, Instant};

use netram_proto::id::{DepositId, Epoch};
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::{
    ConnectError, Interest, LinkError, NetAddress, OwnerKey, Poller, ReadyEvents, Security, connect,
};

use crate::config::RemotePagesConfig;

/// Time limit for connecting to a lender, and then for its answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// The highest session number, so that no session of the owner can be newer.
const LAST: Epoch = Epoch(u32::MAX);
/// Number of answers expected from a lender: to the session, and to the resize to no slots.
const ANSWERS: usize = 2;

/// Why a lender was not told.
#[derive(Debug, thiserror::Error)]
enum GiveBackError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("waiting for it: {0}")]
    System(#[from] std::io::Error),
    #[error("it sent an unexpected frame")]
    Misconduct,
    #[error("it did not answer in time")]
    Silent,
}

/// Tells all lenders in parallel that the owner of this deposit has ended, and waits a few seconds for them.
/// A lender that cannot be reached keeps the pages for its lease. Only for an owner that no longer uses them:
/// it would be fenced. `owner` is the key that owns the deposits.
pub fn give_back(config: &RemotePagesConfig, owner: &OwnerKey) {
    thread::scope(|scope| {
        for address in &config.lenders {
            let give_back = move || {
                if let Err(error) = tell(address, &config.security, owner) {
                    tracing::debug!(%address, %error, "a lender could not be told that a deposit is no longer used; it keeps the pages until the lease ends");
                }
            };
            // If no thread can be started, lenders are told one after another.
            if thread::Builder::new().spawn_scoped(scope, give_back).is_err() {
                give_back();
            }
        }
    });
}

fn tell(address: &NetAddress, security: &Security, owner: &OwnerKey) -> Result<(), GiveBackError> {
    let deposit = DepositId(owner.owned());
    let mut link = connect(address, security, PATIENCE)?;
    owner.introduce(&mut link)?;
    let poller = Poller::new()?;
    poller.add(&link, 0, Interest::Read)?;
    let header = |kind| FrameHeader {
        epoch: LAST,
        sender: deposit.owner(),
        ..FrameHeader::new(kind)
    };
    let id = deposit.0.to_le_bytes();
    link.queue(&[&header(FrameKind::Deposit).encode(id.len()), &id])?;
    // Zero slots.
    link.queue(&[&header(FrameKind::Resize).encode(0)])?;
    // Small enough for any link to take at once.
    link.flush()?;
    let until = Instant::now() + PATIENCE;
    let mut events = ReadyEvents::with_capacity(1);
    let mut answers = 0;
    loop {
        let packet = link.receive()?;
        let is_empty = packet.is_none();
        match packet.map(Frame::parse) {
            Some(Ok(frame)) if frame.header.kind == FrameKind::DepositAck => answers += 1,
            // A request to give back slots is fulfilled anyway.
            Some(Ok(frame)) if frame.header.kind == FrameKind::Withdraw => (),
            Some(_) => return Err(GiveBackError::Misconduct),
            None => (),
        }
        if answers >= ANSWERS {
            return Ok(());
        }
        // The clock is read after each frame, since some lender may send requests without end.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GiveBackError::Silent);
        }
        if !is_empty {
            continue;
        }
        poller.wait(&mut events, Some(left))?;
    }
}
