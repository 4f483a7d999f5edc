//! Little-endian numbers in and out of byte slices, never past their end.

use alloc::vec::Vec;

/// The bytes ended before the field did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortInputError;

/// Appends a number as [`ByteReader::varint`] reads it.
pub fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Reads fields one after another; every read is checked.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> ByteReader<'a> {
        ByteReader { rest: bytes }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ShortInputError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(ShortInputError)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ShortInputError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(ShortInputError)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, ShortInputError> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, ShortInputError> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, ShortInputError> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, ShortInputError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next number of seven bits a byte, the lowest first, at most ten bytes; the last has its highest
    /// bit clear. More than 64 bits, or a needless last byte, is as bad as too few bytes.
    pub fn varint(&mut self) -> Result<u64, ShortInputError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            value |= bits << shift;
            if byte & 0x80 == 0 {
                let canonical = bits << shift >> shift == bits && (byte != 0 || shift == 0);
                return if canonical {
                    Ok(value)
                } else {
                    Err(ShortInputError)
                };
            }
        }
        Err(ShortInputError)
    }

    /// The next sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, ShortInputError> {
        self.array().map(u128::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_one_form_and_it_is_read_back() {
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(
                bytes.len(),
                (64 - value.leading_zeros() as usize).div_ceil(7).max(1)
            );
            let mut cursor = ByteReader::new(&bytes);
            assert_eq!(cursor.varint(), Ok(value));
            assert!(cursor.rest().is_empty());
            assert_eq!(
                ByteReader::new(&bytes[..bytes.len() - 1]).varint(),
                Err(ShortInputError)
            );
        }
        // A needless byte; 65 bits; eleven bytes.
        for wrong in [
            &[0x80, 0][..],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[0x80; 11],
        ] {
            assert_eq!(ByteReader::new(wrong).varint(), Err(ShortInputError), "{wrong:?}");
        }
    }
}
