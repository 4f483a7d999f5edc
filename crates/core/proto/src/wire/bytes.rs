//! Reads and writes little-endian numbers in byte slices, never past their end.

use alloc::vec::Vec;

/// The bytes ended before the field did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortInputError;

/// Appends `value` in the encoding of [`ByteReader::varint`].
pub fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Reads fields one after another. Every read checks the length.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> ByteReader<'a> {
        ByteReader { rest: bytes }
    }

    /// The bytes that have not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    ///
    /// Fewer than `count` bytes are left. Nothing is then consumed.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ShortInputError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(ShortInputError)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    ///
    /// Fewer than `N` bytes are left. Nothing is then consumed.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ShortInputError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(ShortInputError)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next byte.
    ///
    /// # Errors
    ///
    /// No byte is left.
    pub fn u8(&mut self) -> Result<u8, ShortInputError> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes.
    ///
    /// # Errors
    ///
    /// Fewer than two bytes are left.
    pub fn u16(&mut self) -> Result<u16, ShortInputError> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    ///
    /// # Errors
    ///
    /// Fewer than four bytes are left.
    pub fn u32(&mut self) -> Result<u32, ShortInputError> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    ///
    /// # Errors
    ///
    /// Fewer than eight bytes are left.
    pub fn u64(&mut self) -> Result<u64, ShortInputError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next number in LEB128: seven bits a byte, lowest first, at most ten bytes, with the high bit clear
    /// in the last.
    ///
    /// # Errors
    ///
    /// The bytes end too early, the value exceeds 64 bits, or the encoding has a needless last byte.
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
    ///
    /// # Errors
    ///
    /// Fewer than sixteen bytes are left.
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
