//! Generic netlink, as far as needed to configure a driver: requests with attributes, and their answers.
//!
//! ```text
//! 0        4      6       8        12     16       17       18    20
//! | length | kind | flags | number | port | command | version | 0 0 | attributes: length 2, name 2, value, padding to 4
//! ```

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const HEADER_BYTES: usize = 20;
const ATTRIBUTE_BYTES: usize = 4;

/// Kind of the message that ends an answer, with an error or success.
const KIND_ERROR: u16 = 2;
/// Kind of requests about families.
const KIND_CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const NESTED: u16 = 1 << 15;
const NAME_MASK: u16 = 0x3fff;

/// Maximum bytes of an answer; they are short.
const ANSWER_BYTES_MAX: usize = 8192;

/// A request being built, or the attributes inside one.
#[derive(Debug, Default)]
pub(crate) struct NetlinkAttributes(Vec<u8>);

impl NetlinkAttributes {
    fn put(&mut self, name: u16, value: &[u8]) {
        // Values are a few numbers: no length comes near 16 bits.
        let length = (ATTRIBUTE_BYTES + value.len()) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&name.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(crate) fn word(&mut self, name: u16, value: u32) {
        self.put(name, &value.to_ne_bytes());
    }

    pub(crate) fn long(&mut self, name: u16, value: u64) {
        self.put(name, &value.to_ne_bytes());
    }

    pub(crate) fn nested(&mut self, name: u16, fill: impl FnOnce(&mut NetlinkAttributes)) {
        let mut inner = NetlinkAttributes::default();
        fill(&mut inner);
        self.put(name | NESTED, &inner.0);
    }

    /// Value of attribute `name`.
    fn find(&self, name: u16) -> Option<&[u8]> {
        let mut rest = self.0.as_slice();
        loop {
            let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let found = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & NAME_MASK;
            let value = rest.get(ATTRIBUTE_BYTES..length)?;
            if found == name {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }

    pub(crate) fn find_word(&self, name: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.find(name)?.first_chunk()?))
    }
}

/// A connection to one netlink family of the kernel.
#[derive(Debug)]
pub(crate) struct NetlinkFamily {
    socket: OwnedFd,
    kind: u16,
    version: u8,
    number: u32,
}

impl NetlinkFamily {
    /// Opens the family `name`. `NotFound`: the kernel lacks it, or has not loaded its driver.
    pub(crate) fn open(name: &str, version: u8) -> io::Result<NetlinkFamily> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))?;
        let mut family = NetlinkFamily {
            socket,
            kind: KIND_CONTROL,
            version: 1,
            number: 0,
        };
        let answer = family.call(GET_FAMILY, |attributes| {
            attributes.put(FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
        })?;
        let id = answer.find(FAMILY_ID).and_then(|id| id.first_chunk());
        let id = id.ok_or_else(|| io::Error::other("the kernel returned no number for the driver"))?;
        family.kind = u16::from_ne_bytes(*id);
        family.version = version;
        Ok(family)
    }

    /// Sends a command and waits until it is done. Returns the attributes of the answer.
    pub(crate) fn call(
        &mut self,
        command: u8,
        fill: impl FnOnce(&mut NetlinkAttributes),
    ) -> io::Result<NetlinkAttributes> {
        self.number += 1;
        let mut attributes = NetlinkAttributes::default();
        fill(&mut attributes);
        let request = encode(self.kind, self.number, command, self.version, &attributes);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &request, SendFlags::empty(), &kernel)?;
        let mut answer = NetlinkAttributes::default();
        let mut buffer = [0; ANSWER_BYTES_MAX];
        loop {
            let (_, received) = recv(&self.socket, &mut buffer, RecvFlags::empty())?;
            let datagram = buffer.get(..received).unwrap_or_default();
            if let Some(done) = read(datagram, self.number, &mut answer) {
                return done.map(|()| answer);
            }
        }
    }
}

fn encode(kind: u16, number: u32, command: u8, version: u8, attributes: &NetlinkAttributes) -> Vec<u8> {
    let length = HEADER_BYTES + attributes.0.len();
    let mut request = Vec::with_capacity(length);
    request.extend_from_slice(&(length as u32).to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
    request.extend_from_slice(&number.to_ne_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&[command, version, 0, 0]);
    request.extend_from_slice(&attributes.0);
    request
}

/// Reads those messages of a datagram that answer request `number`. Returns the result if it is among them.
fn read(mut datagram: &[u8], number: u32, answer: &mut NetlinkAttributes) -> Option<io::Result<()>> {
    let word = |message: &[u8], at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?));
    while let Some(length) = word(datagram, 0) {
        let message = datagram.get(..length as usize)?;
        let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
        if word(message, 8)? == number {
            match kind {
                KIND_ERROR => {
                    let code = word(message, 16)?.cast_signed();
                    return Some(match code {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    });
                }
                _ => *answer = NetlinkAttributes(message.get(HEADER_BYTES..)?.to_vec()),
            }
        }
        datagram = datagram.get((length as usize).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_as_they_were_put_and_truncated_ones_are_not() {
        let mut attributes = NetlinkAttributes::default();
        attributes.put(7, b"odd");
        attributes.nested(3, |inner| inner.word(1, 77));
        attributes.long(2, u64::MAX);
        attributes.word(1, 42);
        assert_eq!(attributes.find(7), Some(&b"odd"[..]));
        assert_eq!(attributes.find_word(1), Some(42));
        assert_eq!(attributes.find(2), Some(&[0xff; 8][..]));
        let inner = NetlinkAttributes(attributes.find(3).unwrap().to_vec());
        assert_eq!(inner.find_word(1), Some(77));
        assert_eq!(attributes.find(9), None);
        for cut in 0..attributes.0.len() {
            let cut = NetlinkAttributes(attributes.0[..cut].to_vec());
            assert_eq!(cut.find_word(1), None);
        }
        let endless = NetlinkAttributes(vec![0; 16]);
        assert_eq!(endless.find_word(1), None);
    }

    #[test]
    fn an_answer_ends_with_the_result_of_its_own_request() {
        let mut attributes = NetlinkAttributes::default();
        attributes.word(1, 5);
        let reply = |number| encode(30, number, 1, 1, &attributes);
        let result = |number: u32, code: i32| {
            let mut message = encode(KIND_ERROR, number, 0, 0, &NetlinkAttributes::default());
            message[16..20].copy_from_slice(&code.to_ne_bytes());
            message
        };
        let mut answer = NetlinkAttributes::default();
        assert!(read(&[reply(3), result(3, 0)].concat(), 4, &mut answer).is_none());
        assert_eq!(answer.find_word(1), None);
        assert!(read(&reply(4), 4, &mut answer).is_none());
        let done = read(&[result(3, -1), result(4, 0)].concat(), 4, &mut answer);
        assert!(matches!(done, Some(Ok(()))));
        assert_eq!(answer.find_word(1), Some(5));
        let failed = read(&result(4, -16), 4, &mut answer).unwrap().unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(16));
        for cut in 0..20 {
            assert!(read(&result(4, 0)[..cut], 4, &mut answer).is_none());
        }
    }

    #[test]
    fn the_kernel_has_its_control_family_and_no_unknown_one() {
        assert!(NetlinkFamily::open("nlctrl", 1).is_ok());
        let none = NetlinkFamily::open("netram-none", 1).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
