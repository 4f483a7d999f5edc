//! What a depot is to be.

use netram_proto::limit::DEPOSIT_GROW_SLOTS;
use netram_transport::{Address, Security, WaitPolicy};

/// Settings of a depot. Take the default and name lenders.
#[derive(Clone, Debug)]
pub struct Config {
    /// The lenders, 1 to 16.
    pub lenders: Vec<Address>,
    /// How links to them are protected.
    pub security: Security,
    /// In how many places a page is to be: 1 or 2. With 2, a lender may die whenever [`Status`](netram_proto::deposit::Status) says that no
    /// page is short, and no page is lost.
    pub copies: usize,
    /// The most pages at each lender.
    pub pages_max: u32,
    /// Pages for which room is asked at once.
    pub grow: u32,
    /// What the thread that has the links does while nothing comes.
    pub wait: WaitPolicy,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lenders: Vec::new(),
            security: Security::Insecure,
            copies: 2,
            pages_max: u32::MAX,
            grow: DEPOSIT_GROW_SLOTS,
            wait: WaitPolicy::default(),
        }
    }
}
