//! Little-endian numbers in and out of byte slices, never past their end.

/// The bytes ended before the field did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short;

/// Reads fields one after another; every read is checked.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Short> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, Short> {
        self.array().map(u128::from_le_bytes)
    }
}
