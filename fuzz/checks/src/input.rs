//! A fuzzer's bytes as choices. Any bytes choose something; when they are used up every choice is zero.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::wire::{FrameHeader, FrameKind};

/// The unused bytes.
pub struct FuzzInput<'a>(&'a [u8]);

impl<'a> FuzzInput<'a> {
    /// An input with all of `bytes` unused.
    pub fn new(bytes: &'a [u8]) -> FuzzInput<'a> {
        FuzzInput(bytes)
    }

    /// Whether all bytes are used up.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `N` bytes.
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        for byte in &mut taken {
            *byte = self.u8();
        }
        taken
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Bytes after a length of one byte; fewer if the input ends.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.u8()).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    /// All unused bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Mostly a number near `base`, in steps of eight like log positions; sometimes any number.
    pub fn near(&mut self, base: u64) -> u64 {
        match self.u8() {
            0..=99 => base,
            byte @ 100..=199 => base.wrapping_add(u64::from(byte).wrapping_sub(140).wrapping_mul(8)),
            byte @ 200..=239 => u64::from(byte - 200),
            240..=247 => base.wrapping_add(self.u16().into()),
            _ => self.u64(),
        }
    }

    /// Mostly a small number; sometimes any.
    pub fn small(&mut self) -> u32 {
        match self.u8() {
            byte @ 0..=239 => u32::from(byte & 7),
            _ => self.u32(),
        }
    }

    /// A header of this kind, mostly near a log position and with a small epoch.
    pub fn header(&mut self, kind: FrameKind, base: u64) -> FrameHeader {
        FrameHeader {
            kind,
            flags: self.u8(),
            lsn: Lsn(self.near(base)),
            epoch: Epoch(self.small()),
            mark: self.small(),
            stable: Lsn(self.near(base)),
            sender: self.small().into(),
        }
    }
}
