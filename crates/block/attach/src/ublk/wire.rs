//! Formats of commands, parameters and requests of the kernel's ublk (`linux/ublk_cmd.h`), as far as one
//! server needs them.
//!
//! ```text
//!  control   device u32 | queue u16 | length u16    address u64    data u64    path length u16, zeros to 32 bytes
//!  io        queue u16 | tag u16 | result i32    address u64, here always 0
//!  request   operation u8, flags u24 | sectors u32    first sector u64    address u64
//! ```
//!
//! Numbers have the machine's byte order.

use netram_block::SECTOR_BYTES;
use rustix::io::Errno;

/// Number of a driver's command in the form of `ioctl`: direction of the data, length of the argument, the
/// driver's letter, and the command.
const fn command(direction: u32, bytes: u32, number: u32) -> u32 {
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;
const CONTROL_BYTES: u32 = 32;
const IO_BYTES: u32 = 16;

pub(super) const GET_INFO: u32 = command(READ, CONTROL_BYTES, 0x02);
pub(super) const ADD: u32 = command(READ_WRITE, CONTROL_BYTES, 0x04);
pub(super) const DELETE: u32 = command(READ_WRITE, CONTROL_BYTES, 0x05);
pub(super) const START: u32 = command(READ_WRITE, CONTROL_BYTES, 0x06);
pub(super) const STOP: u32 = command(READ_WRITE, CONTROL_BYTES, 0x07);
pub(super) const SET_PARAMETERS: u32 = command(READ_WRITE, CONTROL_BYTES, 0x08);
pub(super) const START_RECOVERY: u32 = command(READ_WRITE, CONTROL_BYTES, 0x10);
pub(super) const END_RECOVERY: u32 = command(READ_WRITE, CONTROL_BYTES, 0x11);
/// Linux 6.5.
pub(super) const GET_FEATURES: u32 = command(READ, CONTROL_BYTES, 0x13);
/// Does not wait for processes that have the device open. Linux 6.7.
pub(super) const DELETE_LATER: u32 = command(READ, CONTROL_BYTES, 0x14);
/// Linux 6.16.
pub(super) const RESIZE: u32 = command(READ_WRITE, CONTROL_BYTES, 0x15);
pub(super) const FETCH: u32 = command(READ_WRITE, IO_BYTES, 0x20);
pub(super) const ANSWER_AND_FETCH: u32 = command(READ_WRITE, IO_BYTES, 0x21);

/// Data is copied by `pread` and `pwrite`. Linux 6.5.
pub(super) const USER_COPY: u64 = 1 << 7;
/// Requests wait for another server after theirs has died. Linux 6.0.
pub(super) const RECOVERY: u64 = 1 << 3;
/// Requests that the dead server had received are given to the next one.
pub(super) const REISSUE: u64 = 1 << 4;
pub(super) const CAN_RESIZE: u64 = 1 << 10;

/// Device number of an add command that asks for any free number.
pub(super) const ANY: u32 = u32::MAX;
const NO_QUEUE: u16 = u16::MAX;

pub(super) const FEATURES_BYTES: usize = 8;
pub(super) const INFO_BYTES: usize = 64;
pub(super) const PARAMETERS_BYTES: usize = 60;
/// Bytes of a request's description.
pub(crate) const DESCRIPTOR_BYTES: usize = 24;

/// Maximum depth of a queue in the driver, which reserves room for so many descriptions of each.
const DEPTH_MAX: usize = 4096;
/// Offset of the requests' data in the device's file.
const DATA_START: u64 = 0x8000_0000;
const TAG_BIT: u32 = 25;
const QUEUE_BIT: u32 = 41;

/// Arguments of a control command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlArguments {
    /// Number of the device.
    pub(crate) device: u32,
    /// A number that some commands need.
    pub(crate) data: u64,
}

/// A control command, whose argument is at `address`.
pub(crate) fn control(head: ControlArguments, address: u64, length: u16) -> [u8; 80] {
    let mut bytes = Bytes::<80>::new();
    bytes.put(&head.device.to_ne_bytes());
    bytes.put(&NO_QUEUE.to_ne_bytes());
    bytes.put(&length.to_ne_bytes());
    bytes.put(&if length == 0 { 0 } else { address }.to_ne_bytes());
    bytes.put(&head.data.to_ne_bytes());
    bytes.all
}

/// A command of a queue, with the result of request `tag`.
pub(crate) fn io(queue: u16, tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = Bytes::<16>::new();
    bytes.put(&queue.to_ne_bytes());
    bytes.put(&tag.to_ne_bytes());
    bytes.put(&result.to_ne_bytes());
    bytes.all
}

/// Offset and length of a queue's request descriptions in the device's file: whole pages.
pub(crate) fn descriptors(queue: u16, depth: u16, page_bytes: usize) -> (u64, usize) {
    let whole = |requests: usize| (requests * DESCRIPTOR_BYTES).next_multiple_of(page_bytes);
    let each = whole(DEPTH_MAX) as u64;
    (u64::from(queue) * each, whole(depth.into()))
}

/// Offset of a request's data in the device's file.
pub(super) fn data_at(queue: u16, tag: u16, offset: u32) -> u64 {
    assert!(offset < 1 << TAG_BIT);
    DATA_START + (u64::from(queue) << QUEUE_BIT | u64::from(tag) << TAG_BIT | u64::from(offset))
}

/// Settings of a device in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UblkInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) request_bytes_max: u32,
    pub(super) device: u32,
    pub(super) features: u64,
    /// Stored by the driver without meaning to it.
    pub(super) mark: u64,
}

impl UblkInfo {
    pub(super) fn encode(&self) -> [u8; INFO_BYTES] {
        let mut bytes = Bytes::<INFO_BYTES>::new();
        bytes.put(&self.queues.to_ne_bytes());
        bytes.put(&self.depth.to_ne_bytes());
        // State of the device, which the driver fills in.
        bytes.put(&[0; 4]);
        bytes.put(&self.request_bytes_max.to_ne_bytes());
        bytes.put(&self.device.to_ne_bytes());
        // Process id of the server, which the driver learns at the start.
        bytes.put(&[0; 8]);
        bytes.put(&self.features.to_ne_bytes());
        bytes.put(&self.mark.to_ne_bytes());
        bytes.all
    }

    pub(super) fn decode(bytes: &[u8; INFO_BYTES]) -> UblkInfo {
        UblkInfo {
            queues: short(bytes, 0),
            depth: short(bytes, 2),
            request_bytes_max: word(bytes, 8),
            device: word(bytes, 12),
            features: long(bytes, 24),
            mark: long(bytes, 32),
        }
    }
}

/// Parameters of a device for the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UblkParameters {
    pub(super) bytes: u64,
    /// 512 or 4096.
    pub(super) block_bytes: u32,
    /// Preferred bytes of writes and discards.
    pub(super) whole_bytes: u32,
    pub(super) request_bytes_max: u32,
    pub(super) read_only: bool,
}

impl UblkParameters {
    pub(super) fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        const BASIC: u32 = 1;
        const DISCARD: u32 = 2;
        const READ_ONLY: u32 = 1;
        const WRITE_CACHE: u32 = 4;
        const FORCED_WRITES: u32 = 8;
        /// Maximum bytes of one discard: 2 GiB, in whole blocks.
        const CLEARED_BYTES_MAX: u64 = 1 << 31;
        let sectors = |bytes: u64| (bytes / SECTOR_BYTES) as u32;
        let shift = |bytes: u32| [bytes.trailing_zeros() as u8];
        let (attributes, cleared) = match self.read_only {
            true => (READ_ONLY, 0),
            false => (0, sectors(CLEARED_BYTES_MAX)),
        };
        let mut bytes = Bytes::<PARAMETERS_BYTES>::new();
        bytes.put(&(PARAMETERS_BYTES as u32).to_ne_bytes());
        bytes.put(&(BASIC | DISCARD).to_ne_bytes());
        bytes.put(&(attributes | WRITE_CACHE | FORCED_WRITES).to_ne_bytes());
        bytes.put(&shift(self.block_bytes));
        // Physical block, optimal request and minimum request.
        bytes.put(&[shift(self.whole_bytes)[0]; 3]);
        bytes.put(&sectors(self.request_bytes_max.into()).to_ne_bytes());
        // No boundary that requests must not cross, neither on the device nor, below, in memory.
        bytes.put(&0_u32.to_ne_bytes());
        bytes.put(&(self.bytes / SECTOR_BYTES).to_ne_bytes());
        bytes.put(&0_u64.to_ne_bytes());
        // Discards: alignment, granularity, maximum length, maximum length of zeroing, number of ranges.
        bytes.put(&0_u32.to_ne_bytes());
        bytes.put(&self.whole_bytes.to_ne_bytes());
        bytes.put(&cleared.to_ne_bytes());
        bytes.put(&cleared.to_ne_bytes());
        bytes.put(&1_u16.to_ne_bytes());
        bytes.put(&0_u16.to_ne_bytes());
        bytes.all
    }
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UblkOperation {
    Read,
    Write,
    Flush,
    /// The space may be freed.
    Discard,
    /// The space must stay allocated.
    Zero,
}

/// A request. The device checks whether the range exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UblkRequest {
    pub(super) operation: UblkOperation,
    /// The answer must wait until the write is durable (FUA).
    pub(super) fua: bool,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl UblkRequest {
    /// Parses a request. `Err`: the error to answer with.
    pub(super) fn parse(bytes: &[u8; DESCRIPTOR_BYTES], data_bytes_max: usize) -> Result<UblkRequest, Errno> {
        const FORCED: u32 = 1 << 13;
        const KEEP_SPACE: u32 = 1 << 15;
        let flags = word(bytes, 0);
        let operation = match flags & 0xff {
            0 => UblkOperation::Read,
            1 => UblkOperation::Write,
            2 => UblkOperation::Flush,
            3 => UblkOperation::Discard,
            5 if flags & KEEP_SPACE != 0 => UblkOperation::Zero,
            5 => UblkOperation::Discard,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let length = u64::from(word(bytes, 4)) * SECTOR_BYTES;
        let has_data = matches!(operation, UblkOperation::Read | UblkOperation::Write);
        if has_data && (length == 0 || length > data_bytes_max as u64) {
            return Err(Errno::INVAL);
        }
        let first = match operation {
            // A flush has no offset; the field is undefined.
            UblkOperation::Flush => 0,
            _ => long(bytes, 8),
        };
        Ok(UblkRequest {
            operation,
            fua: flags & FORCED != 0,
            offset: first.checked_mul(SECTOR_BYTES).ok_or(Errno::INVAL)?,
            length,
        })
    }

    /// Result to report when the whole request is done: 0 if no data moves. There the driver examines only
    /// the sign, and the length of a 2 GiB discard has the sign of an error.
    pub(super) fn answered_bytes(&self) -> i32 {
        match self.operation {
            UblkOperation::Read | UblkOperation::Write => {
                i32::try_from(self.length).expect("a request with data fits in a buffer")
            }
            UblkOperation::Flush | UblkOperation::Discard | UblkOperation::Zero => 0,
        }
    }
}

/// Fields, one behind the other, with zeros behind the last.
struct Bytes<const N: usize> {
    all: [u8; N],
    length: usize,
}

impl<const N: usize> Bytes<N> {
    fn new() -> Bytes<N> {
        Bytes {
            all: [0; N],
            length: 0,
        }
    }

    fn put(&mut self, field: &[u8]) {
        self.all[self.length..][..field.len()].copy_from_slice(field);
        self.length += field.len();
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the field must lie inside")
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(field(bytes, at))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(field(bytes, at))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(field(bytes, at))
}

/// See [`crate::fuzzed::ublk_request`].
pub(crate) fn fuzz_request(bytes: &[u8]) {
    const DATA_BYTES_MAX: usize = 1 << 20;
    let Some(bytes) = bytes.first_chunk::<DESCRIPTOR_BYTES>() else {
        return;
    };
    let Ok(request) = UblkRequest::parse(bytes, DATA_BYTES_MAX) else {
        return;
    };
    let answered = std::hint::black_box(&request).answered_bytes();
    assert!(answered >= 0 && answered as usize <= DATA_BYTES_MAX);
    assert!(request.offset.is_multiple_of(SECTOR_BYTES) && request.length.is_multiple_of(SECTOR_BYTES));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernels_header() {
        for (ours, kernels) in [
            (GET_INFO, 0x8020_7502),
            (ADD, 0xc020_7504),
            (DELETE, 0xc020_7505),
            (START, 0xc020_7506),
            (STOP, 0xc020_7507),
            (SET_PARAMETERS, 0xc020_7508),
            (START_RECOVERY, 0xc020_7510),
            (END_RECOVERY, 0xc020_7511),
            (GET_FEATURES, 0x8020_7513),
            (DELETE_LATER, 0x8020_7514),
            (RESIZE, 0xc020_7515),
            (FETCH, 0xc010_7520),
            (ANSWER_AND_FETCH, 0xc010_7521),
        ] {
            assert_eq!(ours, kernels, "{kernels:#x}");
        }
    }

    #[test]
    fn fields_have_the_offsets_of_the_kernels_header() {
        let head = ControlArguments {
            device: 0x0102_0304,
            data: 0x1112_1314_1516_1718,
        };
        let bytes = control(head, 0x2122_2324_2526_2728, 0x3132);
        assert_eq!(
            (word(&bytes, 0), short(&bytes, 4), short(&bytes, 6)),
            (0x0102_0304, 0xffff, 0x3132)
        );
        assert_eq!(
            (long(&bytes, 8), long(&bytes, 16)),
            (0x2122_2324_2526_2728, head.data)
        );
        assert!(bytes[24..].iter().all(|byte| *byte == 0));
        // This command reads and writes no buffer, so it has no address.
        assert_eq!(long(&control(head, 7, 0), 8), 0);
        let bytes = io(3, 0x0405, -5);
        assert_eq!(
            (short(&bytes, 0), short(&bytes, 2), word(&bytes, 4)),
            (3, 0x0405, -5_i32 as u32)
        );
        assert_eq!(long(&bytes, 8), 0);
        let info = UblkInfo {
            queues: 2,
            depth: 64,
            request_bytes_max: 1 << 20,
            device: 9,
            features: 1 << 40,
            mark: 1 << 50,
        };
        let bytes = info.encode();
        assert_eq!(
            (
                short(&bytes, 0),
                short(&bytes, 2),
                word(&bytes, 8),
                word(&bytes, 12)
            ),
            (2, 64, 1 << 20, 9)
        );
        assert_eq!((long(&bytes, 24), long(&bytes, 32)), (1 << 40, 1 << 50));
        assert_eq!(UblkInfo::decode(&bytes), info);
    }

    #[test]
    fn parameters_have_the_offsets_of_the_kernels_header() {
        let parameters = UblkParameters {
            bytes: 48 << 20,
            block_bytes: 512,
            whole_bytes: 4096,
            request_bytes_max: 1 << 20,
            read_only: false,
        };
        let bytes = parameters.encode();
        assert_eq!((word(&bytes, 0), word(&bytes, 4)), (60, 0b11));
        // Attributes, block and request sizes, sectors per request, sectors of the device.
        assert_eq!((word(&bytes, 8), &bytes[12..16]), (0b1100, &[9, 12, 12, 12][..]));
        assert_eq!(
            (
                word(&bytes, 16),
                word(&bytes, 20),
                long(&bytes, 24),
                long(&bytes, 32)
            ),
            (2048, 0, 98_304, 0)
        );
        // Discards.
        assert_eq!((word(&bytes, 40), word(&bytes, 44)), (0, 4096));
        assert_eq!(
            (word(&bytes, 48), word(&bytes, 52), short(&bytes, 56)),
            (1 << 22, 1 << 22, 1)
        );
        let read_only = UblkParameters {
            read_only: true,
            ..parameters
        };
        let bytes = read_only.encode();
        assert_eq!(
            (word(&bytes, 8), word(&bytes, 48), word(&bytes, 52)),
            (0b1101, 0, 0)
        );
    }

    #[test]
    fn data_and_descriptions_have_the_drivers_offsets() {
        assert_eq!(data_at(0, 0, 0), 0x8000_0000);
        assert_eq!(data_at(3, 5, 512), 0x8000_0000 + (3 << 41) + (5 << 25) + 512);
        assert_eq!(descriptors(0, 64, 4096), (0, 4096));
        assert_eq!(descriptors(2, 171, 4096), (2 * 98_304, 8192));
        assert_eq!(descriptors(1, 64, 65_536), (131_072, 65_536));
    }

    fn description(flags: u32, sectors: u32, first: u64) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = Bytes::<DESCRIPTOR_BYTES>::new();
        bytes.put(&flags.to_ne_bytes());
        bytes.put(&sectors.to_ne_bytes());
        bytes.put(&first.to_ne_bytes());
        bytes.all
    }

    #[test]
    fn requests_are_parsed_as_the_kernel_means_them() {
        let parse = |flags, sectors, first| UblkRequest::parse(&description(flags, sectors, first), 1 << 20);
        let request = |operation, forced| {
            Ok(UblkRequest {
                operation,
                fua: forced,
                offset: 4096,
                length: 8192,
            })
        };
        assert_eq!(parse(0, 16, 8), request(UblkOperation::Read, false));
        assert_eq!(parse(1, 16, 8), request(UblkOperation::Write, false));
        // A metadata flag and FUA; priority flags are ignored.
        assert_eq!(
            parse(1 | 1 << 11 | 1 << 13 | 7 << 8, 16, 8),
            request(UblkOperation::Write, true)
        );
        assert_eq!(parse(3, 16, 8), request(UblkOperation::Discard, false));
        assert_eq!(parse(5, 16, 8), request(UblkOperation::Discard, false));
        assert_eq!(parse(5 | 1 << 15, 16, 8), request(UblkOperation::Zero, false));
        // The kernel gives flushes an offset beyond every end.
        assert_eq!(parse(2, 0, u64::MAX).unwrap().operation, UblkOperation::Flush);
        // Only requests without data may be longer than a buffer.
        assert_eq!(parse(1, 2049, 0), Err(Errno::INVAL));
        assert_eq!(parse(3, u32::MAX, 0).unwrap().length, u64::from(u32::MAX) * 512);
        for (flags, sectors, first) in [(0, 0, 0), (1, 0, 0), (0, 1, u64::MAX), (3, 1, 1 << 55)] {
            assert_eq!(
                parse(flags, sectors, first),
                Err(Errno::INVAL),
                "{flags} {sectors} {first}"
            );
        }
        for unknown in [4, 6, 10, 15, 255] {
            assert_eq!(parse(unknown, 1, 0), Err(Errno::OPNOTSUPP), "{unknown}");
        }
    }

    #[test]
    fn no_successful_request_is_answered_as_an_error() {
        let parse = |flags, sectors| UblkRequest::parse(&description(flags, sectors, 0), 1 << 20).unwrap();
        let zeroing = 5 | 1 << 15;
        // 2 GiB, the announced maximum, and more than that.
        for sectors in [1 << 22, 8 << 20, u32::MAX] {
            for flags in [3, 5, zeroing] {
                assert_eq!(
                    parse(flags, sectors).answered_bytes(),
                    0,
                    "{flags:#x} {sectors:#x}"
                );
            }
        }
        assert_eq!(parse(2, 0).answered_bytes(), 0);
        for flags in [0, 1] {
            assert_eq!(parse(flags, 2048).answered_bytes(), 1 << 20);
        }
    }

    #[test]
    fn a_request_of_any_bytes_fits_its_buffer() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut understood = 0;
        for _ in 0..200_000 {
            // Half of the numbers are small; otherwise the first field alone would cause a refusal.
            let (flags, sectors, first) = match random() % 2 {
                0 => (
                    random() as u32 & 0xffff_ff07,
                    random() as u32 & 0xfff,
                    random() >> 20,
                ),
                _ => (random() as u32, random() as u32, random()),
            };
            if let Ok(request) = UblkRequest::parse(&description(flags, sectors, first), 1 << 20) {
                let has_data = matches!(request.operation, UblkOperation::Read | UblkOperation::Write);
                assert!(
                    !has_data || (512..=1 << 20).contains(&request.length),
                    "{request:?}"
                );
                assert_eq!(request.offset % SECTOR_BYTES, 0);
                understood += 1;
            }
        }
        assert!(understood > 10_000, "{understood}");
    }
}
