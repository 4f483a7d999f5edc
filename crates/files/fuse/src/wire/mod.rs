//! Formats of the kernel's requests, and of the replies. Numbers have the machine's byte order
//! (linux/fuse.h).
//!
//! ```text
//! request:  length u32 | operation u32 | unique u64 | node u64 | user u32 | group u32 | thread u32 | 0 u32 | arguments
//! reply:    length u32 | -errno u32    | unique u64 |          | result
//! ```

pub(crate) mod examples;
pub(crate) mod init;
pub(crate) mod reply;
pub(crate) mod request;
#[cfg(test)]
mod tests;

/// Bytes in front of a request's arguments.
pub(crate) const HEADER_BYTES: usize = 40;

/// Capabilities that kernel and server agree on at the beginning of a session.
pub mod capability {
    /// Several reads of one file at a time.
    pub const ASYNC_READ: u64 = 1;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Several direct requests of one file at a time.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Several look-ups and listings of one directory at a time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The reply states the pages of a request.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel keeps the targets of symbolic links.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// The server clears set-id bits and capabilities, when a request says so. Without it, the kernel asks
    /// for a file's capabilities before each write.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// A second word has 32 more flags.
    pub const INIT_EXT: u64 = 1 << 30;
    /// A file that bypasses the page cache may be mapped.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel reads and writes registered files itself (Linux 6.9).
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// The kernel can send unanswered requests again (Linux 6.9).
    pub const HAS_RESEND: u64 = 1 << 39;
    /// Requests come by io_uring (Linux 6.14, if its administrator allows it).
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of the reply to an open.
pub mod open_flag {
    /// Each read and write is a request.
    pub const DIRECT_IO: u32 = 1;
    /// The page cache keeps what it has of the file.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// Closing a descriptor sends no request.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes of several threads at a time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// The kernel reads and writes the registered file itself.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// A request's bytes, read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_ne_bytes)
    }

    /// A text with the zero byte that ends it; the zero is not part of the result.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    /// A text that ends the request.
    pub(crate) fn last_text(mut self) -> Option<&'a [u8]> {
        let text = self.text()?;
        self.0.is_empty().then_some(text)
    }
}
