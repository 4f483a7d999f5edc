//! Settings of remote pages.

use std::path::PathBuf;

use netram_far_machine::limit::DEPOSIT_GROW_SLOTS;
use netram_transport::{NetAddress, Security, WaitPolicy};

/// Settings of remote pages. Start from the default, and set lenders.
#[derive(Clone, Debug)]
pub struct RemotePagesConfig {
    /// The lenders, up to 16; none only with a spill file.
    pub lenders: Vec<NetAddress>,
    /// Encryption and authentication of the links.
    pub security: Security,
    /// Number of copies of each page: 1 or 2. With 2, any one lender may die without loss while
    /// [`PageDirectoryStatus`](netram_far_machine::deposit::PageDirectoryStatus) reports no page as short.
    pub copies: usize,
    /// Maximum number of pages at each lender.
    pub pages_max: u32,
    /// Number of pages for which room is requested at a time.
    pub grow: u32,
    /// Directory on a local disk for the spill file, an unnamed file. It has the second copy if there is one
    /// lender, the only copy if there is none, and pages for which no lender has room; those move to lenders
    /// later. `None`: no spill file.
    pub spill: Option<PathBuf>,
    /// Maximum bytes of the spill file, at least a page. It takes disk space in steps of 16 MiB
    /// ([`grow`](Self::grow)), and keeps it until the pages are dropped.
    pub spill_bytes: u64,
    /// Behaviour of the thread that has the links while nothing arrives: spin or sleep.
    pub wait: WaitPolicy,
}

impl Default for RemotePagesConfig {
    fn default() -> RemotePagesConfig {
        RemotePagesConfig {
            lenders: Vec::new(),
            security: Security::Insecure,
            copies: 2,
            pages_max: u32::MAX,
            grow: DEPOSIT_GROW_SLOTS,
            spill: None,
            spill_bytes: u64::MAX,
            wait: WaitPolicy::default(),
        }
    }
}
