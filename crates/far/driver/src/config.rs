//! What a depot is to be.

use std::path::PathBuf;

use netram_far_machine::limit::DEPOSIT_GROW_SLOTS;
use netram_transport::{NetAddress, Security, WaitPolicy};

/// Settings of a depot. Take the default and name lenders.
#[derive(Clone, Debug)]
pub struct RemotePagesConfig {
    /// The lenders, up to 16; none only with a spill file.
    pub lenders: Vec<NetAddress>,
    /// How links to them are protected.
    pub security: Security,
    /// In how many places a page is to be: 1 or 2. With 2, a lender may die whenever
    /// [`PageDirectoryStatus`](netram_far_machine::deposit::Status) says that no page is short, and no page
    /// is lost.
    pub copies: usize,
    /// The most pages at each lender.
    pub pages_max: u32,
    /// Pages for which room is asked at once.
    pub grow: u32,
    /// A directory on a local disk, for a file without a name: the second copy where there is one lender, the
    /// only one where there is none, and where pages go for which no lender has room. They move to lenders
    /// when those have. `None`: there is no such file.
    pub spill: Option<PathBuf>,
    /// The most bytes of that file, a page at least. It takes disk space 16 MiB at a time
    /// ([`grow`](Self::grow)), and keeps it until the depot is dropped.
    pub spill_bytes: u64,
    /// What the thread that has the links does while nothing comes.
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
