//! Appends that are sent once for all members, as datagrams to a multicast group (LND's transport).
//!
//! Only appends are multicast. Joins, fences, acknowledgements, reads and recovery use each member's own
//! link, which keeps order and loses nothing while it stands; missed bytes are sent again over it. So nothing
//! that happens to a datagram can acknowledge anything: a member accepts bytes in order, however they
//! arrived.
//!
//! A *channel* is one key and the datagrams encrypted under it. The writer creates it and sends the key over
//! each member's own link ([`ChannelInvite`]). It creates another channel when a member that knew the key has
//! left. A datagram is a channel, a number, and one encrypted frame:
//!
//! ```text
//!  0  channel u64                      which key; in the clear, authenticated
//!  8  number u64                       also the nonce; in the clear, authenticated
//! 16  frame: `Append`, header and body, encrypted
//!     tag (16)
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | byte layout of datagrams and invitations; cutting a frame into datagrams |
//! | `replay_window.rs` | lender: each datagram counts once |
//! | `reassembly.rs` | lender: puts appends back in order and finds what is missing |
//! | `missing_ranges.rs` | writer: the ranges that one member misses |
//! | `rtt.rs` | writer: the round-trip time of one member |
//! | `journal/writer/multicast.rs` | writer: which members listen, what is multicast, what goes over a member's own link |

mod missing_ranges;
mod reassembly;
mod replay_window;
mod rtt;

pub(crate) use missing_ranges::MissingRanges;
pub use reassembly::{AppendFragment, MissingRange, Reassembly, ReassemblyVerdict};
pub use replay_window::ReplayWindow;
pub(crate) use rtt::RttEstimator;

use core::fmt;

use crate::id::Lsn;
use crate::limit::{DATAGRAM_HEADER_BYTES, DATAGRAM_OVERHEAD_BYTES};
use crate::wire::{ByteReader, FrameHeader};

/// Size of a channel's key, in bytes.
pub const CHANNEL_KEY_BYTES: usize = 32;
/// Size of an encoded [`ChannelInvite`], in bytes.
pub const INVITE_BYTES: usize = 16 + CHANNEL_KEY_BYTES;

/// The unencrypted, authenticated header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The channel's id: random, so that writers that share a group need not agree on ids.
    pub channel: u64,
    /// Counts the channel's datagrams from zero. No number is used twice under one key.
    pub number: u64,
}

impl DatagramHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; DATAGRAM_HEADER_BYTES] {
        let mut bytes = [0; DATAGRAM_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.channel.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Reads the header at the front of `datagram`; `None` if it is too short to be one of netram's.
    pub fn parse(datagram: &[u8]) -> Option<DatagramHeader> {
        if datagram.len() < DATAGRAM_OVERHEAD_BYTES {
            return None;
        }
        let mut cursor = ByteReader::new(datagram);
        Some(DatagramHeader {
            channel: cursor.u64().ok()?,
            number: cursor.u64().ok()?,
        })
    }
}

/// The body of an `Invite` frame: the group to listen to, and the channel's key.
///
/// ```text
///  0  group's IPv4 address (4) | port u16 | zeros (2)
///  8  channel u64
/// 16  key (32)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelInvite {
    /// The multicast group's IPv4 address.
    pub group: [u8; 4],
    /// Its UDP port.
    pub port: u16,
    /// The channel's id.
    pub channel: u64,
    /// The channel's key.
    pub key: [u8; CHANNEL_KEY_BYTES],
}

impl ChannelInvite {
    /// The body as bytes.
    pub fn encode(&self) -> [u8; INVITE_BYTES] {
        let mut bytes = [0; INVITE_BYTES];
        bytes[..4].copy_from_slice(&self.group);
        bytes[4..6].copy_from_slice(&self.port.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.channel.to_le_bytes());
        bytes[16..].copy_from_slice(&self.key);
        bytes
    }

    /// Reads the body of an `Invite` frame; `None` if it is malformed.
    pub fn parse(body: &[u8]) -> Option<ChannelInvite> {
        let mut cursor = ByteReader::new(body);
        let group = cursor.array().ok()?;
        let port = cursor.u16().ok()?;
        let zeros = cursor.u16().ok()?;
        let channel = cursor.u64().ok()?;
        let key = cursor.array().ok()?;
        (zeros == 0 && cursor.rest().is_empty()).then_some(ChannelInvite {
            group,
            port,
            channel,
            key,
        })
    }
}

impl fmt::Debug for ChannelInvite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChannelInvite")
            .field("group", &self.group)
            .field("port", &self.port)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Cuts an append of `bytes` bytes into appends that fit datagrams of `datagram_bytes`. Yields the header of
/// each, and the number of log bytes from the header's LSN that follow it. A log can be cut anywhere: the
/// member reassembles its records.
pub fn fragment_append(
    header: FrameHeader,
    bytes: usize,
    datagram_bytes: usize,
) -> impl Iterator<Item = (FrameHeader, usize)> {
    assert!(datagram_bytes > DATAGRAM_OVERHEAD_BYTES);
    let most = datagram_bytes - DATAGRAM_OVERHEAD_BYTES;
    (0..bytes.div_ceil(most)).map(move |index| {
        let done = index * most;
        let piece = FrameHeader {
            lsn: Lsn(header.lsn.0 + done as u64),
            ..header
        };
        (piece, most.min(bytes - done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{DATAGRAM_BYTES_MIN, FRAME_BODY_BYTES_MAX};
    use crate::wire::FrameKind;
    use alloc::format;
    use alloc::vec;

    const INVITE: ChannelInvite = ChannelInvite {
        group: [239, 1, 2, 3],
        port: 7421,
        channel: 0x0102_0304_0506_0708,
        key: [0x5a; CHANNEL_KEY_BYTES],
    };

    #[test]
    fn an_invitation_survives_encoding_and_never_prints_its_key() {
        assert_eq!(ChannelInvite::parse(&INVITE.encode()), Some(INVITE));
        assert!(!format!("{INVITE:?}").contains("90, 90"), "0x5a is 90");
    }

    #[test]
    fn a_truncated_too_long_or_nonzero_padded_invitation_is_refused() {
        let good = INVITE.encode();
        for cut in 0..good.len() {
            assert_eq!(ChannelInvite::parse(&good[..cut]), None, "cut at {cut}");
        }
        assert_eq!(ChannelInvite::parse(&[&good[..], &[0]].concat()), None);
        let mut bad = good;
        bad[6] = 1;
        assert_eq!(ChannelInvite::parse(&bad), None);
    }

    #[test]
    fn a_datagram_too_short_for_an_encrypted_frame_is_ignored() {
        let header = DatagramHeader {
            channel: 7,
            number: u64::MAX,
        };
        let mut bytes = vec![0; DATAGRAM_OVERHEAD_BYTES];
        bytes[..DATAGRAM_HEADER_BYTES].copy_from_slice(&header.encode());
        assert_eq!(DatagramHeader::parse(&bytes), Some(header));
        for cut in 0..DATAGRAM_OVERHEAD_BYTES {
            assert_eq!(DatagramHeader::parse(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn the_fragments_of_an_append_fit_datagrams_and_cover_it() {
        let header = FrameHeader {
            lsn: Lsn(1000),
            ..FrameHeader::new(FrameKind::Append)
        };
        for bytes in [1, 475, 476, 477, 4096, FRAME_BODY_BYTES_MAX] {
            let mut next = header.lsn;
            for (piece, length) in fragment_append(header, bytes, DATAGRAM_BYTES_MIN) {
                assert_eq!(piece.lsn, next);
                assert!((1..=DATAGRAM_BYTES_MIN - DATAGRAM_OVERHEAD_BYTES).contains(&length));
                next = next.plus(length as u64);
            }
            assert_eq!(next, header.lsn.plus(bytes as u64));
        }
    }
}
