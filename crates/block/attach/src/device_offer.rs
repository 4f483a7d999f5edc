//! A server's offer to the supervisor, as a line.

use crate::serve::{OFFER, SOCKET_OFFER};
use crate::ublk;

/// Offer of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DeviceOffer {
    /// Name of the file to bind a loop device to, in the mount that the server was given.
    File(String),
    /// A socket: the server's descriptor number, and the description for the kernel.
    Socket { number: i32, bytes: u64, flags: u16 },
    /// A ublk device, by its number.
    Device(u32),
}

impl DeviceOffer {
    pub(crate) fn parse(line: &str) -> Option<DeviceOffer> {
        if let Some(name) = line.strip_prefix(OFFER) {
            return Some(DeviceOffer::File(name.into()));
        }
        if let Some(number) = line.strip_prefix(ublk::OFFER) {
            return Some(DeviceOffer::Device(number.parse().ok()?));
        }
        let mut words = line.strip_prefix(SOCKET_OFFER)?.split(' ');
        Some(DeviceOffer::Socket {
            number: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
            flags: words.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_of_each_method_are_parsed_and_other_lines_are_none() {
        let socket = DeviceOffer::Socket {
            number: 7,
            bytes: 4096,
            flags: 5,
        };
        assert_eq!(DeviceOffer::parse("socket 7 4096 5"), Some(socket));
        assert_eq!(DeviceOffer::parse("ublk 3"), Some(DeviceOffer::Device(3)));
        assert_eq!(
            DeviceOffer::parse("file a b"),
            Some(DeviceOffer::File("a b".into()))
        );
        for other in ["hello", "", "file", "socket 7", "ublk x"] {
            assert_eq!(DeviceOffer::parse(other), None, "{other}");
        }
    }
}
