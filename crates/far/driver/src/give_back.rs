//! Gives back what an owner has left at lenders that has ended without a word.

use std::thread;
use std::time::{Duration, Instant};

use netram_proto::id::{DepositId, Epoch};
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::{
    ConnectError, Interest, LinkError, NetAddress, Poller, ReadyEvents, Security, connect,
};

use crate::config::RemotePagesConfig;

/// How long a lender has to take the link, and then to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// No session comes after this one, so none of the owner's can be newer.
const LAST: Epoch = Epoch(u32::MAX);
/// What a lender says: that it has the session, and that nothing is in the deposit.
const ANSWERS: usize = 2;

/// Why a lender is not told.
#[derive(Debug, thiserror::Error)]
enum GiveBackError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("waiting for it: {0}")]
    System(#[from] std::io::Error),
    #[error("it said something else")]
    Misconduct,
    #[error("it did not answer in time")]
    Silent,
}

/// Tells all lenders at once that the owner of this deposit has ended. Its pages are gone there when this
/// returns; a lender that cannot be told within a few seconds keeps them for its lease. Only for an owner
/// that uses them no more: it would be fenced.
pub fn give_back(config: &RemotePagesConfig, deposit: DepositId) {
    thread::scope(|scope| {
        for address in &config.lenders {
            let give_back = move || {
                if let Err(error) = tell(address, &config.security, deposit) {
                    tracing::debug!(%address, %error, "a lender keeps a deposit for its lease");
                }
            };
            // Without room for a thread they are told one after the other.
            if thread::Builder::new().spawn_scoped(scope, give_back).is_err() {
                give_back();
            }
        }
    });
}

fn tell(address: &NetAddress, security: &Security, deposit: DepositId) -> Result<(), GiveBackError> {
    let mut link = connect(address, security, PATIENCE)?;
    let poller = Poller::new()?;
    poller.add(&link, 0, Interest::Read)?;
    let header = |kind| FrameHeader {
        epoch: LAST,
        sender: deposit.owner(),
        ..FrameHeader::new(kind)
    };
    let id = deposit.0.to_le_bytes();
    link.queue(&[&header(FrameKind::Deposit).encode(id.len()), &id])?;
    // To no slots.
    link.queue(&[&header(FrameKind::Resize).encode(0)])?;
    // Less than any link takes at once.
    link.flush()?;
    let until = Instant::now() + PATIENCE;
    let mut events = ReadyEvents::with_capacity(1);
    let mut answers = 0;
    loop {
        while let Some(packet) = link.receive()? {
            match Frame::parse(packet) {
                Ok(frame) if frame.header.kind == FrameKind::DepositAck => answers += 1,
                // Whatever it wants back, it gets.
                Ok(frame) if frame.header.kind == FrameKind::Withdraw => (),
                _ => return Err(GiveBackError::Misconduct),
            }
        }
        if answers >= ANSWERS {
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GiveBackError::Silent);
        }
        poller.wait(&mut events, Some(left))?;
    }
}
