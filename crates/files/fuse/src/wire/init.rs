//! The handshake of a session.

use super::Fields;
use super::capability::{HAS_RESEND, INIT_EXT, MAX_PAGES, OVER_IO_URING, PASSTHROUGH};
use super::reply::ReplyBody;

/// Protocol version 7.40, of Linux 6.9. Kernels with any other minor number support it too.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 40;
/// Minimum minor version, of Linux 4.20: the first that accepts requests of more than 32 pages.
const MINOR_MIN: u32 = 28;
const PAGE_BYTES: u32 = 4096;

/// The kernel's part of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseInit {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) readahead: u32,
    pub(super) capabilities: u64,
}

/// A server's part of the handshake.
#[derive(Clone, Copy, Debug)]
pub struct FuseOptions {
    /// Wanted capabilities.
    pub wanted: u64,
    /// Capabilities without which the server cannot work, and the refusal's text.
    pub needed: (u64, &'static str),
    /// Maximum number of requests that no thread waits for, as of reading ahead, and that are sent before
    /// earlier ones are answered.
    pub background_max: u16,
}

/// Result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseAgreement {
    capabilities: u64,
}

impl FuseAgreement {
    /// Whether kernel and server have all of these capabilities.
    pub fn has(self, capabilities: u64) -> bool {
        self.capabilities & capabilities == capabilities
    }

    /// Whether another server can continue the session: the kernel sends what this one left unanswered again.
    pub fn can_be_taken_over(self) -> bool {
        self.has(HAS_RESEND) && !self.is_over_io_uring()
    }

    /// Whether the kernel holds all requests back until each core's queue can be served.
    pub fn is_over_io_uring(self) -> bool {
        self.has(OVER_IO_URING)
    }
}

impl FuseInit {
    pub(super) fn parse(mut fields: Fields<'_>) -> Option<FuseInit> {
        let (major, minor) = (fields.u32()?, fields.u32()?);
        let (readahead, low) = (fields.u32()?, fields.u32()?);
        // Kernels before 7.36 end here.
        let high = fields.u32().filter(|_| u64::from(low) & INIT_EXT != 0);
        Some(FuseInit {
            major,
            minor,
            readahead,
            capabilities: u64::from(low) | u64::from(high.unwrap_or(0)) << 32,
        })
    }

    /// Negotiates the session and writes the reply to `body`. `Err`: the text of the refusal.
    pub fn agree(
        self,
        options: &FuseOptions,
        write_bytes_max: u32,
        body: &mut ReplyBody,
    ) -> Result<FuseAgreement, &'static str> {
        if self.major != MAJOR || self.minor < MINOR_MIN {
            return Err("this kernel's FUSE is older than version 7.28");
        }
        let (needed, refusal) = options.needed;
        if self.capabilities & needed != needed {
            return Err(refusal);
        }
        let wanted = options.wanted | needed | MAX_PAGES | INIT_EXT;
        let capabilities = self.capabilities & wanted;
        let pages = u16::try_from(write_bytes_max / PAGE_BYTES).unwrap_or(u16::MAX);
        // File systems may be stacked one deep: the registered file's is not stacked itself.
        let depth = u32::from(capabilities & PASSTHROUGH != 0);
        let background = options.background_max;
        body.u32(MAJOR)
            .u32(self.minor.min(MINOR))
            .u32(self.readahead)
            .u32(capabilities as u32);
        body.u16(background).u16(background / 4 * 3).u32(write_bytes_max);
        // Times have a granularity of 1 ns.
        body.u32(1).u16(pages).u16(0).u32((capabilities >> 32) as u32);
        body.u32(depth).u32(0).u32(0).u32(0).u32(0).u32(0).u32(0);
        Ok(FuseAgreement { capabilities })
    }
}
