//! Formats of the kernel's requests, and of the replies. Numbers have the machine's byte order
//! (linux/fuse.h).
//!
//! ```text
//! request:  length u32 | operation u32 | unique u64 | node u64 | who u32 u32 u32 | 0 u32 | arguments, of that operation
//! answer:   length u32 | -errno u32    | unique u64 |          | result
//! ```

/// Bytes in front of a request's arguments.
const HEADER_BYTES: usize = 40;
/// Protocol version 7.36, of Linux 5.17. Kernels with any other minor number support it too.
const MAJOR: u32 = 7;
const MINOR: u32 = 36;
/// Minimum minor version, of Linux 4.20: the first that accepts requests of more than 32 pages.
const MINOR_MIN: u32 = 28;

/// Capabilities of the kernel, in `fuse_init_in.flags`.
const ASYNC_READ: u64 = 1;
const BIG_WRITES: u64 = 1 << 5;
const ASYNC_DIO: u64 = 1 << 15;
const MAX_PAGES: u64 = 1 << 22;
/// The kernel sends 32 more flags.
const INIT_EXT: u64 = 1 << 30;
/// The kernel can resend unanswered requests (Linux 6.9).
const HAS_RESEND: u64 = 1 << 39;

/// Direct I/O, parallel writes, no flush on close.
const OPEN_FLAGS: u32 = 1 | 1 << 6 | 1 << 5;

const PAGE_BYTES: u32 = 4096;

/// A valid request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FuseRequest<'a> {
    /// Id of the request for its reply. A request that is sent again has another.
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) operation: FuseOperation<'a>,
}

/// A request's operation and arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FuseOperation<'a> {
    Init(FuseInit),
    /// Find the file of this name.
    Lookup(&'a [u8]),
    Attributes,
    Open,
    Read {
        offset: u64,
        bytes: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    Sync,
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    Space,
    /// A handle was closed, or the file system is gone.
    Done,
    /// Drop a reference; no reply.
    Forget,
    /// An operation that this file does not support.
    Other,
}

/// The kernel's part of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuseInit {
    major: u32,
    minor: u32,
    readahead: u32,
    flags: u64,
}

/// Result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuseInitReply {
    /// Body of the reply.
    pub(super) answer: [u8; 64],
    /// Whether the kernel can resend requests that a killed server left unanswered.
    pub(super) resend: bool,
}

/// Attributes of the file or its directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseAttributes {
    pub(super) node: u64,
    pub(super) bytes: u64,
    /// Type and permissions, as in stat(2).
    pub(super) mode: u32,
    pub(super) made_s: u64,
    pub(super) block_bytes: u32,
}

/// Arguments, read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

impl<'a> FuseRequest<'a> {
    /// Parses a request; `None` if it does not have the negotiated form.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<FuseRequest<'a>> {
        let mut header = Fields(bytes.get(..HEADER_BYTES)?);
        let (length, number) = (header.u32()?, header.u32()?);
        let (unique, node) = (header.u64()?, header.u64()?);
        if length as usize != bytes.len() {
            return None;
        }
        let operation = FuseOperation::parse(number, &bytes[HEADER_BYTES..])?;
        Some(FuseRequest {
            unique,
            node,
            operation,
        })
    }
}

impl<'a> FuseOperation<'a> {
    fn parse(number: u32, arguments: &'a [u8]) -> Option<FuseOperation<'a>> {
        let mut fields = Fields(arguments);
        Some(match number {
            1 => FuseOperation::Lookup(arguments.split_last().filter(|(end, _)| **end == 0)?.1),
            2 | 42 => FuseOperation::Forget,
            3 => FuseOperation::Attributes,
            14 => FuseOperation::Open,
            15 => {
                let (_handle, offset) = (fields.u64()?, fields.u64()?);
                let bytes = fields.u32()?;
                FuseOperation::Read { offset, bytes }
            }
            16 => FuseOperation::write(fields)?,
            17 => FuseOperation::Space,
            18 | 38 => FuseOperation::Done,
            20 => FuseOperation::Sync,
            26 => FuseOperation::Init(FuseInit::parse(fields)?),
            43 => {
                let (_handle, offset) = (fields.u64()?, fields.u64()?);
                let (length, mode) = (fields.u64()?, fields.u32()?);
                FuseOperation::Allocate { offset, length, mode }
            }
            46 => {
                let (_handle, offset) = (fields.u64()?, fields.u64()?);
                let whence = fields.u32()?;
                FuseOperation::Seek { offset, whence }
            }
            _ => FuseOperation::Other,
        })
    }

    fn write(mut fields: Fields<'a>) -> Option<FuseOperation<'a>> {
        let (_handle, offset) = (fields.u64()?, fields.u64()?);
        let (bytes, _flags) = (fields.u32()?, fields.u32()?);
        let (_owner, _flags) = (fields.u64()?, fields.u64()?);
        let data = fields.0;
        (data.len() == bytes as usize).then_some(FuseOperation::Write { offset, data })
    }
}

impl FuseInit {
    fn parse(mut fields: Fields<'_>) -> Option<FuseInit> {
        let (major, minor) = (fields.u32()?, fields.u32()?);
        let (readahead, low) = (fields.u32()?, fields.u32()?);
        // Kernels before 7.36 end here.
        let high = fields.u32().filter(|_| u64::from(low) & INIT_EXT != 0);
        Some(FuseInit {
            major,
            minor,
            readahead,
            flags: u64::from(low) | u64::from(high.unwrap_or(0)) << 32,
        })
    }

    /// Negotiates the session. `Err`: the capability that the kernel lacks.
    pub(super) fn agree(
        self,
        write_bytes_max: u32,
        background_max: u16,
    ) -> Result<FuseInitReply, &'static str> {
        if self.major != MAJOR || self.minor < MINOR_MIN {
            return Err("this kernel's FUSE is older than version 7.28");
        }
        // Without it the loop device would wait for each request before it sends the next.
        if self.flags & ASYNC_DIO == 0 {
            return Err("this kernel's FUSE has no asynchronous direct I/O");
        }
        let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | INIT_EXT | HAS_RESEND;
        let flags = self.flags & wanted;
        let pages = u16::try_from(write_bytes_max / PAGE_BYTES).unwrap_or(u16::MAX);
        let mut body = Body::<64>::new();
        body.u32(MAJOR)
            .u32(self.minor.min(MINOR))
            .u32(self.readahead)
            .u32(flags as u32);
        body.u16(background_max).u16(background_max / 4 * 3);
        // The granularity of times does not matter, because they never change.
        body.u32(write_bytes_max)
            .u32(1)
            .u16(pages)
            .u16(0)
            .u32((flags >> 32) as u32);
        Ok(FuseInitReply {
            answer: body.bytes,
            resend: flags & HAS_RESEND != 0,
        })
    }
}

/// A reply's body: fields from the front, zeros behind them.
struct Body<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Body<N> {
    fn new() -> Body<N> {
        Body {
            bytes: [0; N],
            filled: 0,
        }
    }

    fn put(&mut self, field: &[u8]) -> &mut Body<N> {
        self.bytes[self.filled..][..field.len()].copy_from_slice(field);
        self.filled += field.len();
        self
    }

    fn u16(&mut self, field: u16) -> &mut Body<N> {
        self.put(&field.to_ne_bytes())
    }

    fn u32(&mut self, field: u32) -> &mut Body<N> {
        self.put(&field.to_ne_bytes())
    }

    fn u64(&mut self, field: u64) -> &mut Body<N> {
        self.put(&field.to_ne_bytes())
    }
}

impl FuseAttributes {
    /// Appends 88 bytes of attributes, the end of two kinds of reply.
    fn put<const N: usize>(&self, body: &mut Body<N>) {
        const UNIT: u64 = 512;
        body.u64(self.node).u64(self.bytes).u64(self.bytes / UNIT);
        body.u64(self.made_s).u64(self.made_s).u64(self.made_s);
        body.u32(0).u32(0).u32(0).u32(self.mode).u32(1);
        body.u32(0).u32(0).u32(0).u32(self.block_bytes).u32(0);
    }

    /// Reply to `Attributes`. The kernel must not cache it, because the file may grow.
    pub(super) fn answer(&self) -> [u8; 104] {
        let mut body = Body::new();
        body.u64(0).u32(0).u32(0);
        self.put(&mut body);
        body.bytes
    }

    /// Reply to `Lookup`. The kernel may cache the name for `name_s` seconds.
    pub(super) fn entry(&self, name_s: u64) -> [u8; 128] {
        let mut body = Body::new();
        body.u64(self.node).u64(0).u64(name_s).u64(0).u32(0).u32(0);
        self.put(&mut body);
        body.bytes
    }
}

/// Reply to `Open`.
pub(super) fn opened() -> [u8; 16] {
    let mut body = Body::new();
    body.u64(0).u32(OPEN_FLAGS);
    body.bytes
}

/// Reply to `Write`.
pub(super) fn written(bytes: u32) -> [u8; 8] {
    let mut body = Body::new();
    body.u32(bytes);
    body.bytes
}

/// Reply to `Space`: `blocks` in all, none free.
pub(super) fn space(blocks: u64, block_bytes: u32) -> [u8; 80] {
    let mut body = Body::new();
    body.u64(blocks).u64(0).u64(0).u64(1).u64(0);
    body.u32(block_bytes).u32(255).u32(block_bytes);
    body.bytes
}

/// Header of a reply with `body_bytes` behind it, or of an error without.
pub(super) fn header(unique: u64, errno: i32, body_bytes: usize) -> [u8; 16] {
    let mut body = Body::new();
    // Bodies are bounded by the requested length, 32 bits; the kernel checks.
    let length = u32::try_from(16 + body_bytes).unwrap_or(u32::MAX);
    body.u32(length)
        .u32(errno.wrapping_neg().cast_unsigned())
        .u64(unique);
    body.bytes
}

/// Tells the kernel to send unanswered requests again.
pub(super) fn resend() -> [u8; 16] {
    const NOTIFY_RESEND: u32 = 7;
    let mut body = Body::new();
    body.u32(16).u32(NOTIFY_RESEND).u64(0);
    body.bytes
}

/// See [`crate::fuzzed::fuse_request`].
pub(super) fn fuzz(bytes: &[u8]) {
    let Some(request) = FuseRequest::parse(bytes) else {
        return;
    };
    match request.operation {
        FuseOperation::Lookup(name) => assert!(name.len() < bytes.len() - HEADER_BYTES),
        FuseOperation::Write { data, .. } => assert!(data.len() <= bytes.len() - HEADER_BYTES - 40),
        FuseOperation::Init(init) => {
            if let Ok(agreed) = init.agree(1 << 20, 64) {
                assert_eq!(agreed.resend, init.flags & HAS_RESEND != 0);
            }
        }
        _ => (),
    }
}

/// See [`crate::fuzzed::fuse_seeds`].
pub(super) fn fuzz_seeds() -> Vec<Vec<u8>> {
    let one = |number: u32| {
        let mut bytes = vec![0; HEADER_BYTES];
        match number {
            1 => bytes.extend_from_slice(b"volume\0"),
            26 => {
                for field in [MAJOR, MINOR, 1 << 20, u32::MAX, u32::MAX] {
                    bytes.extend_from_slice(&field.to_ne_bytes());
                }
            }
            16 => {
                let mut fields = [0; 40];
                fields[16..20].copy_from_slice(&512_u32.to_ne_bytes());
                bytes.extend_from_slice(&fields);
                bytes.extend_from_slice(&[7; 512]);
            }
            _ => bytes.extend_from_slice(&[8; 40]),
        }
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..8].copy_from_slice(&number.to_ne_bytes());
        bytes
    };
    [1, 2, 3, 14, 15, 16, 17, 18, 20, 26, 43, 46, 99]
        .map(one)
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u32, arguments: &[u8]) -> Vec<u8> {
        let mut header = Body::<HEADER_BYTES>::new();
        let length = (HEADER_BYTES + arguments.len()) as u32;
        header.u32(length).u32(number).u64(7 << 60).u64(2);
        [&header.bytes, arguments].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn requests_are_parsed_and_truncated_or_extended_ones_are_refused() {
        let write = [words(&[9, 8192, 3, 0, 0]), b"abc".to_vec()].concat();
        for (number, arguments, operation) in [
            (1, b"netram-1\0".to_vec(), FuseOperation::Lookup(b"netram-1")),
            (
                15,
                words(&[9, 4096, 512, 0, 0]),
                FuseOperation::Read {
                    offset: 4096,
                    bytes: 512,
                },
            ),
            (
                16,
                write,
                FuseOperation::Write {
                    offset: 8192,
                    data: b"abc",
                },
            ),
            (
                43,
                words(&[9, 4096, 8192, 3]),
                FuseOperation::Allocate {
                    offset: 4096,
                    length: 8192,
                    mode: 3,
                },
            ),
            (
                46,
                words(&[9, 5, 4]),
                FuseOperation::Seek { offset: 5, whence: 4 },
            ),
        ] {
            let bytes = request(number, &arguments);
            let parsed = FuseRequest::parse(&bytes).expect("the request is complete");
            assert_eq!(parsed.operation, operation);
            assert_eq!((parsed.unique, parsed.node), (7 << 60, 2));
            for cut in 0..bytes.len() {
                assert_eq!(FuseRequest::parse(&bytes[..cut]), None, "{number} {cut}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(FuseRequest::parse(&longer), None, "{number}");
        }
        // Too few arguments in a request of the right length.
        for number in [1, 15, 16, 26, 43, 46] {
            assert_eq!(FuseRequest::parse(&request(number, &[1])), None, "{number}");
        }
        let odd = [words(&[9, 0, 5, 0, 0]), b"abc".to_vec()].concat();
        assert_eq!(
            FuseRequest::parse(&request(16, &odd)),
            None,
            "5 bytes were announced, but 3 are there"
        );
        let unknown = request(4711, &[]);
        assert_eq!(
            FuseRequest::parse(&unknown).unwrap().operation,
            FuseOperation::Other
        );
    }

    #[test]
    fn only_capabilities_of_both_sides_are_negotiated() {
        let init = |minor, flags| FuseInit {
            major: 7,
            minor,
            readahead: 1 << 17,
            flags,
        };
        let agree = |init: FuseInit| init.agree(1 << 20, 128);
        let newest = agree(init(45, u64::MAX)).unwrap();
        assert!(newest.resend);
        let word = |at: usize| u32::from_ne_bytes(newest.answer[at..][..4].try_into().unwrap());
        assert_eq!([word(0), word(4), word(8)], [7, 36, 1 << 17]);
        assert_eq!(word(20), 1 << 20);
        assert_eq!(word(28), 256, "pages of a request");
        assert!(!agree(init(38, !HAS_RESEND)).unwrap().resend);
        assert!(agree(init(27, u64::MAX)).is_err());
        assert!(agree(init(38, !ASYNC_DIO)).is_err());
        let old = Fields(&[7, 0, 0, 0, 31, 0, 0, 0, 0, 0, 2, 0, 0, 128, 0, 0]);
        assert_eq!(FuseInit::parse(old).unwrap().flags, ASYNC_DIO);
    }

    #[test]
    fn an_error_is_sent_as_a_negative_number() {
        let header = header(5, 28, 0);
        assert_eq!(i32::from_ne_bytes(header[4..8].try_into().unwrap()), -28);
        assert_eq!(header[..4], 16u32.to_ne_bytes());
    }
}
