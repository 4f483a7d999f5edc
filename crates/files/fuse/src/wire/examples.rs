//! Requests as examples, for tests and fuzzers.

use super::HEADER_BYTES;
use super::init::{MAJOR, MINOR};

/// Numbers of all operations that are known here, and one that is not.
pub(crate) const NUMBERS: [u32; 37] = [
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30, 35,
    36, 38, 40, 42, 43, 44, 45, 46, 99,
];

/// A request with this number and these arguments.
pub(crate) fn request(number: u32, arguments: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + arguments.len()) as u32;
    let mut bytes = [length.to_ne_bytes(), number.to_ne_bytes()].concat();
    bytes.extend_from_slice(&(7_u64 << 60).to_ne_bytes());
    bytes.extend_from_slice(&2_u64.to_ne_bytes());
    for field in [1000_u32, 100, 4711, 0] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    [&bytes, arguments].concat()
}

/// Arguments of eight bytes each.
pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A valid request with this number.
pub(crate) fn example(number: u32) -> Vec<u8> {
    let fixed: usize = match number {
        1 | 6 | 10 | 11 | 24 => 0,
        9 | 12 | 13 | 22 => 8,
        8 | 35 | 45 => 16,
        _ => 0,
    };
    let texts: &[u8] = match number {
        1 | 8 | 9 | 10 | 11 | 13 | 22 | 24 | 35 => b"name\0",
        6 | 12 | 45 => b"name\0other\0",
        _ => b"",
    };
    let arguments = match number {
        4 => words(&[0x1bf, 9, 4096, 0, 1, 2, 3, 4, 5, 0o644 << 32, 7]),
        16 => [words(&[9, 8192, 512, 0, 0]), vec![7; 512]].concat(),
        21 => [words(&[3]), b"user.a\0abc".to_vec()].concat(),
        26 => [MAJOR, MINOR, 1 << 20, u32::MAX, u32::MAX]
            .map(u32::to_ne_bytes)
            .concat(),
        42 => words(&[2, 5, 1, 6, 1]),
        _ if !texts.is_empty() => [&vec![8; fixed], texts].concat(),
        _ => words(&[9, 4096, 512, 3, 0]),
    };
    request(number, &arguments)
}
