//! Asking one lender for its report, over a link of its own.

use std::time::{Duration, Instant};

use netram_proto::wire::{ClientLimitRefusal, Frame, FrameError, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{ConnectError, Link, LinkError, NetAddress, Security, connect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use crate::limit::{FAR, HANDSHAKES};

/// Why a lender gave no report.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No link could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The link ended.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The peer sent bytes that are not a frame.
    #[error("{0}")]
    Frame(FrameError),
    /// No report came in time.
    #[error("no answer")]
    NoAnswer,
    /// The report cannot be read.
    #[error("it sent a report that cannot be read: {0}")]
    Report(String),
    /// The address is for copies of volumes only.
    #[error("it takes data sessions only at this address: ask at another of its addresses")]
    DataOnly,
    /// The peer serves a shared region.
    #[error("it is the server of a shared region: ask it with `netram shared status`")]
    RegionServer,
    /// The peer is a node of a shared region.
    #[error(
        "it belongs to a shared region and is not a lender: ask the region's server with `netram shared status`"
    )]
    RegionNode,
    /// The lender's operator gives this program's key no report now.
    #[error("{0}")]
    OverClientLimit(ClientLimitRefusal),
    /// The lender refused.
    #[error("it refused to report")]
    Refused,
    /// This machine's system refused, for example a thread.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// A lender's report, and how far away it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderReport {
    /// The report, as JSON.
    pub body: Vec<u8>,
    /// Time of the quickest exchange of up to [`HANDSHAKES`] handshakes: about a round trip.
    pub round_trip: Duration,
}

/// The part of a report that the choice of lenders needs. The report itself is `StatusReport` of
/// `netram-lender`, which clients do not link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LenderFacts {
    /// The lender's name.
    pub name: String,
    /// The incarnation of its memory, in hexadecimal: what tells two lenders apart.
    pub incarnation: String,
    /// The label of its power supply.
    pub domain: String,
    /// Whether it is stopping.
    #[serde(default)]
    pub stopping: bool,
    /// Whether it asks its clients to move away: its operator drains it, or it is on battery.
    #[serde(default)]
    pub draining: bool,
    /// What feeds its machine; `None` if it watches no UPS.
    #[serde(default)]
    pub power: Option<PowerFacts>,
    /// Its memory.
    #[serde(default)]
    pub memory: MemoryFacts,
    /// Number of journals that it must remember.
    #[serde(default)]
    pub journals_used: u32,
    /// Maximum number of journals that it can remember; zero in reports of an earlier release.
    #[serde(default)]
    pub journals_max: u32,
}

/// What feeds a lender's machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct PowerFacts {
    /// `mains`, `on-battery`, `low-battery` or `unknown`.
    #[serde(default)]
    pub state: String,
}

/// A lender's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MemoryFacts {
    /// Bytes that nobody uses.
    #[serde(default)]
    pub free: u64,
    /// Maximum bytes of one journal.
    #[serde(default)]
    pub quota: u64,
}

impl LenderFacts {
    /// Reads a report's JSON.
    ///
    /// # Errors
    ///
    /// [`ProbeError::Report`] if the bytes are not a report.
    pub fn parse(body: &[u8]) -> Result<LenderFacts, ProbeError> {
        serde_json::from_slice(body).map_err(|error| ProbeError::Report(error.to_string()))
    }

    /// Whether the lender takes no new journals now: it stops, drains, or is on battery.
    pub fn is_leaving(&self) -> bool {
        // If upsd does not answer, the state is `unknown` and the lender lends on.
        let on_battery = |power: &PowerFacts| matches!(power.state.as_str(), "on-battery" | "low-battery");
        self.stopping || self.draining || self.power.as_ref().is_some_and(on_battery)
    }

    /// Whether the lender has room for another journal with a window of `window_bytes`.
    pub fn has_room(&self, window_bytes: u64) -> bool {
        let remembers = self.journals_max == 0 || self.journals_used < self.journals_max;
        remembers && self.memory.free.min(self.memory.quota) >= window_bytes
    }
}

/// Connects to a lender and asks for its report, within `timeout`.
///
/// # Errors
///
/// One [`ProbeError`] a cause.
pub fn probe(
    address: &NetAddress,
    security: &Security,
    timeout: Duration,
) -> Result<LenderReport, ProbeError> {
    let deadline = Instant::now() + timeout;
    let link = connect(address, security, timeout)?;
    let mut round_trip = link.round_trip();
    let body = request(link, FrameHeader::new(FrameKind::Status), deadline)?;
    for _ in 1..HANDSHAKES {
        if round_trip > FAR {
            break;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // The lender has answered: it is no failure if it is not that quick again.
        let Ok(again) = connect(address, security, left) else {
            break;
        };
        round_trip = round_trip.min(again.round_trip());
    }
    Ok(LenderReport { body, round_trip })
}

/// Sends an order or a question that a report answers. Returns the report's JSON.
///
/// # Errors
///
/// One [`ProbeError`] a cause.
pub fn request(mut link: Link, order: FrameHeader, deadline: Instant) -> Result<Vec<u8>, ProbeError> {
    link.send(&[&order.encode(0)])?;
    loop {
        link.flush()?;
        if let Some(packet) = link.receive()? {
            let frame = Frame::parse(packet).map_err(ProbeError::Frame)?;
            match frame.header.kind {
                FrameKind::Report => return Ok(frame.body.to_vec()),
                // A lender never sends it.
                FrameKind::ShareAck => return Err(ProbeError::RegionServer),
                FrameKind::Refuse => return Err(refusal(&frame.header)),
                _ => (),
            }
        }
        await_bytes(&link, deadline)?;
    }
}

fn refusal(header: &FrameHeader) -> ProbeError {
    match RefusalReason::from_byte(header.flags) {
        Some(RefusalReason::DataOnly) => ProbeError::DataOnly,
        Some(RefusalReason::RegionOnly) => ProbeError::RegionNode,
        Some(RefusalReason::OverClientLimit) => {
            let (resource, limit) = (header.lsn.0, header.stable.0);
            ProbeError::OverClientLimit(ClientLimitRefusal::from_numbers(resource, limit))
        }
        _ => ProbeError::Refused,
    }
}

/// Waits until the link has bytes to read. Fails after the deadline even if it has some: a peer that sends
/// other frames without end is as good as silent.
///
/// # Errors
///
/// [`ProbeError::NoAnswer`] after the deadline.
pub fn await_bytes(link: &Link, deadline: Instant) -> Result<(), ProbeError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ProbeError::NoAnswer);
    }
    if link.has_buffered() {
        return Ok(());
    }
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(
        &mut [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)],
        Some(&timeout),
    ) {
        Ok(0) => Err(ProbeError::NoAnswer),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(ProbeError::System(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use netram_transport::both_ends::link_pair;

    use super::*;

    /// A peer that sent other frames without end was waited for without end.
    #[test]
    fn a_peer_that_talks_of_something_else_is_given_up_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let address = NetAddress::Unix(directory.path().join("lender"));
        let (link, mut talker) = link_pair(&address, &Security::Insecure);
        talker
            .send(&[&FrameHeader::new(FrameKind::Pong).encode(0)])
            .unwrap();
        let header = FrameHeader::new(FrameKind::Report).encode(2);
        talker.send(&[&header, b"{}"]).unwrap();
        let late = request(link, FrameHeader::new(FrameKind::Status), Instant::now()).unwrap_err();
        assert!(
            matches!(late, ProbeError::NoAnswer),
            "the report came after the deadline: {late}"
        );
    }

    #[test]
    fn a_report_says_whether_the_lender_takes_a_journal() {
        let facts = |text: &str| LenderFacts::parse(text.as_bytes()).unwrap();
        let usual = facts(
            r#"{"name":"a","incarnation":"1","domain":"x","stopping":false,"draining":false,"power":{"state":"mains","since_s":1},
                "memory":{"free":10,"quota":8,"used":0},"journals_used":1,"journals_max":2,"other":[1]}"#,
        );
        assert!(!usual.is_leaving() && usual.has_room(8) && !usual.has_room(9));
        let full = LenderFacts {
            journals_used: 2,
            ..usual.clone()
        };
        assert!(!full.has_room(1));
        for state in ["on-battery", "low-battery"] {
            let power = Some(PowerFacts {
                state: state.to_owned(),
            });
            assert!(
                LenderFacts {
                    power,
                    ..usual.clone()
                }
                .is_leaving(),
                "{state}"
            );
        }
        assert!(
            LenderFacts {
                draining: true,
                ..usual
            }
            .is_leaving()
        );
        assert!(LenderFacts::parse(b"{}").is_err());
        assert!(LenderFacts::parse(b"\xff").is_err());
    }
}
