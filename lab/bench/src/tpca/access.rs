//! Choice of the account that the next transaction touches: the three patterns of the RVM paper, repeatable
//! from a seed.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Accounts on one page of memory: 4,096 / 128.
pub const ACCOUNTS_A_PAGE: u64 = 32;

/// An access pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessPattern {
    /// Sequential accounts: the best case for paging.
    Sequential,
    /// Random accounts, each equally likely: the worst case.
    #[default]
    Random,
    /// 70 % of the transactions on 5 % of the pages, 25 % on another 15 %, 5 % on the remaining 80 %.
    Localised,
}

impl AccessPattern {
    /// All patterns, in the order of the papers' tables.
    pub const ALL: [AccessPattern; 3] = [
        AccessPattern::Sequential,
        AccessPattern::Random,
        AccessPattern::Localised,
    ];

    /// The pattern's name.
    pub fn name(self) -> &'static str {
        match self {
            AccessPattern::Sequential => "sequential",
            AccessPattern::Random => "random",
            AccessPattern::Localised => "localised",
        }
    }
}

impl FromStr for AccessPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<AccessPattern, String> {
        let found = AccessPattern::ALL
            .into_iter()
            .find(|pattern| pattern.name() == text);
        found.ok_or_else(|| format!("`{text}` is no access pattern; choose sequential, random or localised"))
    }
}

/// Chooses accounts, tellers and amounts.
#[derive(Clone, Debug)]
pub struct AccountChooser {
    pattern: AccessPattern,
    accounts: u64,
    next: u64,
    random: Random,
}

impl AccountChooser {
    /// Choices among `accounts`. The hot sets are rounded down to whole pages, and have at least one page.
    pub fn new(pattern: AccessPattern, accounts: u64, seed: u64) -> AccountChooser {
        assert!(accounts >= ACCOUNTS_A_PAGE);
        AccountChooser {
            pattern,
            accounts,
            next: 0,
            random: Random(seed),
        }
    }

    /// The next transaction's account.
    pub fn account(&mut self) -> u64 {
        match self.pattern {
            AccessPattern::Sequential => {
                let account = self.next;
                self.next = (account + 1) % self.accounts;
                account
            }
            AccessPattern::Random => self.random.below(self.accounts),
            AccessPattern::Localised => {
                let pages = self.accounts / ACCOUNTS_A_PAGE;
                let hot = (pages * 5 / 100).max(1);
                let warm = (pages * 20 / 100).max(hot);
                let (from, to) = match self.random.below(100) {
                    0..70 => (0, hot),
                    70..95 if warm > hot => (hot, warm),
                    _ if pages > warm => (warm, pages),
                    _ => (0, pages),
                };
                let page = from + self.random.below(to - from);
                page * ACCOUNTS_A_PAGE + self.random.below(ACCOUNTS_A_PAGE)
            }
        }
    }

    /// A number below `bound`, each equally likely.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }
}

/// SplitMix64, which is good enough for choosing accounts and the same on every machine.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: u64 = 32 * 1024;

    #[test]
    fn every_choice_is_an_account_and_a_seed_repeats_them() {
        for pattern in AccessPattern::ALL {
            let choices = |accounts| {
                let mut chooser = AccountChooser::new(pattern, accounts, 7);
                (0..1000).map(|_| chooser.account()).collect::<Vec<_>>()
            };
            assert_eq!(choices(ACCOUNTS), choices(ACCOUNTS));
            for accounts in [ACCOUNTS_A_PAGE, 3 * ACCOUNTS_A_PAGE, ACCOUNTS] {
                assert!(
                    choices(accounts).iter().all(|account| *account < accounts),
                    "{pattern:?}"
                );
            }
        }
    }

    #[test]
    fn localised_access_has_the_papers_shares() {
        let mut chooser = AccountChooser::new(AccessPattern::Localised, ACCOUNTS, 1);
        let mut shares = [0_u32; 3];
        for _ in 0..100_000 {
            let percent = chooser.account() * 100 / ACCOUNTS;
            shares[if percent < 5 {
                0
            } else if percent < 20 {
                1
            } else {
                2
            }] += 1;
        }
        // Sets are whole pages, so a few accounts lie beyond the border.
        for (share, hold) in shares.into_iter().zip([70_000, 25_000, 5_000]) {
            assert!(share.abs_diff(hold) < 1_000, "{shares:?}");
        }
    }

    #[test]
    fn a_pattern_prints_as_it_is_parsed() {
        for pattern in AccessPattern::ALL {
            assert_eq!(pattern.name().parse(), Ok(pattern));
        }
        assert!("zipf".parse::<AccessPattern>().is_err());
    }
}
