//! Settings and outcome of a study as text, which goes from the command line to the traced process and back.
//!
//! ```text
//! page=8192 local=8388608,16777216 remote=83886080 replacement=lru first=disk copies=no seed=1 policies=disk,ram-disk,remote-main,counters:64
//! ```
//!
//! Every policy is studied with every size of local memory.

use std::fmt;
use std::str::FromStr;

use netram_far_machine::paging::{FirstTouch, PolicyConfig, PolicyKind, PolicyTally, Replacement};

use crate::study::Study;

/// Maximum number of policies studied at once, each counted with each size of local memory.
pub const POLICIES_MAX: usize = 256;
/// The smallest page and the largest.
const PAGE_BYTES: std::ops::RangeInclusive<u64> = 256..=1 << 30;

/// Settings of a study. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StudySettings {
    /// Page size, a power of two.
    pub page_bytes: u64,
    /// Sizes of local memory, each at least a page.
    pub locals: Vec<u64>,
    /// Size of remote memory.
    pub remote_bytes: u64,
    /// Replacement of pages.
    pub replacement: Replacement,
    /// Source of a page at its first reference.
    pub first_touch: FirstTouch,
    /// Whether remote memory keeps pages that were fetched.
    pub keep_copies: bool,
    /// Seed of random replacement.
    pub seed: u64,
    /// The policies, in this order.
    pub policies: Vec<PolicyKind>,
}

/// Text that is no valid settings, or settings that cannot be studied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StudySettingsError {
    /// A word is unknown in its place.
    #[error("unknown {what} `{word}`; known: {known}")]
    Unknown {
        /// The word.
        word: String,
        /// Meaning of the word.
        what: &'static str,
        /// The known words.
        known: &'static str,
    },
    /// A value is not a number.
    #[error("`{0}` is not a number")]
    Number(String),
    /// A word does not have the form NAME=VALUE.
    #[error("`{0}` is not of the form name=value")]
    Form(String),
    /// The settings contradict each other.
    #[error("{0}")]
    Sense(&'static str),
}

const POLICIES: &str = "disk, ram-disk, remote-main, counters:N (N words before a page moves)";

/// Name of a policy in arguments and tables.
pub fn policy_name(kind: PolicyKind) -> String {
    match kind {
        PolicyKind::Disk => "disk".to_owned(),
        PolicyKind::RamDisk => "ram-disk".to_owned(),
        PolicyKind::RemoteMain => "remote-main".to_owned(),
        PolicyKind::Counters { initial } => format!("counters:{initial}"),
    }
}

/// Parses the name of a policy.
///
/// # Errors
///
/// Fails if the name is unknown, or its counter no number.
pub fn parse_policy(word: &str) -> Result<PolicyKind, StudySettingsError> {
    let counters = word
        .strip_prefix("counters:")
        .map(|initial| (initial, initial.parse()));
    match (word, counters) {
        ("disk", _) => Ok(PolicyKind::Disk),
        ("ram-disk", _) => Ok(PolicyKind::RamDisk),
        ("remote-main", _) => Ok(PolicyKind::RemoteMain),
        (_, Some((_, Ok(0)))) => Err(StudySettingsError::Sense("a counter begins at 1 or above")),
        (_, Some((_, Ok(initial)))) => Ok(PolicyKind::Counters { initial }),
        (_, Some((initial, Err(_)))) => Err(StudySettingsError::Number(initial.to_owned())),
        _ => Err(StudySettingsError::Unknown {
            word: word.to_owned(),
            what: "policy",
            known: POLICIES,
        }),
    }
}

/// Parses the name of a replacement.
///
/// # Errors
///
/// Fails if the name is unknown.
pub fn parse_replacement(word: &str) -> Result<Replacement, StudySettingsError> {
    let found = REPLACEMENTS.iter().find(|(_, name)| *name == word);
    found
        .map(|(replacement, _)| *replacement)
        .ok_or(StudySettingsError::Unknown {
            word: word.to_owned(),
            what: "replacement",
            known: "lru, clock, random, fifo, dueling",
        })
}

const REPLACEMENTS: [(Replacement, &str); 5] = [
    (Replacement::Lru, "lru"),
    (Replacement::Clock, "clock"),
    (Replacement::Random, "random"),
    (Replacement::Fifo, "fifo"),
    (Replacement::Dueling, "dueling"),
];

/// Parses the name of a first touch.
///
/// # Errors
///
/// Fails if the name is unknown.
pub fn parse_first_touch(word: &str) -> Result<FirstTouch, StudySettingsError> {
    match word {
        "disk" => Ok(FirstTouch::Disk),
        "zeros" => Ok(FirstTouch::Zeros),
        _ => Err(StudySettingsError::Unknown {
            word: word.to_owned(),
            what: "first touch",
            known: "disk, zeros",
        }),
    }
}

impl StudySettings {
    /// Checks that the settings are consistent.
    ///
    /// # Errors
    ///
    /// Fails with the first contradiction.
    pub fn check(&self) -> Result<(), StudySettingsError> {
        let sense = |holds: bool, what| holds.then_some(()).ok_or(StudySettingsError::Sense(what));
        let page = PAGE_BYTES.contains(&self.page_bytes) && self.page_bytes.is_power_of_two();
        sense(page, "a page's size is a power of two from 256 bytes to 1 GiB")?;
        let least = self
            .locals
            .iter()
            .min()
            .is_some_and(|local| *local >= self.page_bytes);
        sense(least, "local memory holds a page at least")?;
        let most = self.page_bytes.saturating_mul(u64::from(u32::MAX));
        let fits = |bytes: &u64| *bytes <= most;
        let all = self.locals.iter().all(fits) && fits(&self.remote_bytes);
        sense(all, "a memory holds less than 2^32 pages")?;
        sense(!self.policies.is_empty(), "there is no policy to study")?;
        let count = self.policies.len().saturating_mul(self.locals.len());
        sense(
            count <= POLICIES_MAX,
            "there are more than 256 policies, each with each size of local memory",
        )
    }

    /// All configurations: every policy with the first size of local memory, then with the next. The settings
    /// must be consistent.
    pub fn configs(&self) -> Vec<PolicyConfig> {
        let pages = |bytes: u64| u32::try_from(bytes / self.page_bytes).unwrap_or(u32::MAX);
        let config = |local: u64, kind: &PolicyKind| PolicyConfig {
            kind: *kind,
            replacement: self.replacement,
            local_pages: pages(local),
            remote_pages: pages(self.remote_bytes),
            first_touch: self.first_touch,
            keep_copies: self.keep_copies,
            seed: self.seed,
        };
        let with = |local: &u64| {
            let local = *local;
            self.policies.iter().map(move |kind| config(local, kind))
        };
        self.locals.iter().flat_map(with).collect()
    }

    /// A study with these settings.
    pub fn study(&self) -> Study {
        Study::new(self.page_bytes, &self.configs())
    }
}

impl fmt::Display for StudySettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replacement = REPLACEMENTS.iter().find(|(one, _)| *one == self.replacement);
        let first = match self.first_touch {
            FirstTouch::Disk => "disk",
            FirstTouch::Zeros => "zeros",
        };
        let copies = if self.keep_copies { "yes" } else { "no" };
        let policies: Vec<String> = self.policies.iter().copied().map(policy_name).collect();
        let locals: Vec<String> = self.locals.iter().map(u64::to_string).collect();
        let (page, local, remote, seed) = (self.page_bytes, locals.join(","), self.remote_bytes, self.seed);
        let replacement = replacement.map_or("lru", |(_, name)| name);
        write!(
            out,
            "page={page} local={local} remote={remote} replacement={replacement} "
        )?;
        write!(
            out,
            "first={first} copies={copies} seed={seed} policies={}",
            policies.join(",")
        )
    }
}

fn number(word: &str) -> Result<u64, StudySettingsError> {
    word.parse()
        .map_err(|_| StudySettingsError::Number(word.to_owned()))
}

impl FromStr for StudySettings {
    type Err = StudySettingsError;

    fn from_str(text: &str) -> Result<StudySettings, StudySettingsError> {
        let mut settings = StudySettings {
            page_bytes: 0,
            locals: Vec::new(),
            remote_bytes: 0,
            replacement: Replacement::Lru,
            first_touch: FirstTouch::Disk,
            keep_copies: false,
            seed: 0,
            policies: Vec::new(),
        };
        for word in text.split_whitespace() {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| StudySettingsError::Form(word.to_owned()))?;
            match name {
                "page" => settings.page_bytes = number(value)?,
                "local" => settings.locals = value.split(',').map(number).collect::<Result<_, _>>()?,
                "remote" => settings.remote_bytes = number(value)?,
                "seed" => settings.seed = number(value)?,
                "replacement" => settings.replacement = parse_replacement(value)?,
                "first" => settings.first_touch = parse_first_touch(value)?,
                "copies" => settings.keep_copies = value == "yes",
                "policies" => {
                    settings.policies = value.split(',').map(parse_policy).collect::<Result<_, _>>()?
                }
                _ => return Err(StudySettingsError::Form(word.to_owned())),
            }
        }
        settings.check()?;
        Ok(settings)
    }
}

/// Counts of a study.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StudyOutcome {
    /// Number of pages that the program referenced.
    pub pages: u64,
    /// Number of references that are not modelled.
    pub others: u64,
    /// Number of forked child processes, whose references are not counted.
    pub children: u64,
    /// Events under each policy, in the order of [`StudySettings::configs`].
    pub tallies: Vec<PolicyTally>,
}

impl StudyOutcome {
    /// The outcome of a study that has ended.
    pub fn of(study: &mut Study) -> StudyOutcome {
        let (tallies, others) = study.tallies();
        let pages = u64::from(study.pages());
        StudyOutcome {
            pages,
            others,
            children: 0,
            tallies,
        }
    }

    /// Number of references that the program made.
    pub fn references(&self) -> u64 {
        self.others + self.tallies.first().map_or(0, PolicyTally::references)
    }
}

/// The numbers of a tally, in their order in the text.
fn numbers(tally: &mut PolicyTally) -> [&mut u64; 12] {
    let PolicyTally {
        local,
        words,
        faults,
        disk_first,
        disk_again,
        zeroed,
        fetched,
        placed,
        sent_dirty,
        sent_clean,
        disk_written,
        dropped,
    } = tally;
    [
        local,
        words,
        faults,
        disk_first,
        disk_again,
        zeroed,
        fetched,
        placed,
        sent_dirty,
        sent_clean,
        disk_written,
        dropped,
    ]
}

impl fmt::Display for StudyOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} {} {}", self.pages, self.others, self.children)?;
        for tally in &self.tallies {
            let mut tally = *tally;
            let words = numbers(&mut tally).map(|number| number.to_string());
            writeln!(out, "{}", words.join(" "))?;
        }
        Ok(())
    }
}

impl FromStr for StudyOutcome {
    type Err = StudySettingsError;

    fn from_str(text: &str) -> Result<StudyOutcome, StudySettingsError> {
        let mut lines = text
            .lines()
            .map(|line| line.split(' ').map(number).collect::<Result<Vec<u64>, _>>());
        let head = lines
            .next()
            .ok_or(StudySettingsError::Sense("the outcome is empty"))??;
        let [pages, others, children] = head[..] else {
            return Err(StudySettingsError::Sense(
                "the outcome's first line has three numbers",
            ));
        };
        let mut tallies = Vec::new();
        for line in lines {
            let mut tally = PolicyTally::default();
            let (found, places) = (line?, numbers(&mut tally));
            if found.len() != places.len() {
                return Err(StudySettingsError::Sense(
                    "a line of the outcome has twelve numbers",
                ));
            }
            places
                .into_iter()
                .zip(found)
                .for_each(|(place, value)| *place = value);
            tallies.push(tally);
        }
        Ok(StudyOutcome {
            pages,
            others,
            children,
            tallies,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> StudySettings {
        StudySettings {
            page_bytes: 4096,
            locals: vec![1 << 20, 1 << 19],
            remote_bytes: 0,
            replacement: Replacement::Clock,
            first_touch: FirstTouch::Zeros,
            keep_copies: true,
            seed: 9,
            policies: vec![
                PolicyKind::Disk,
                PolicyKind::RamDisk,
                PolicyKind::RemoteMain,
                PolicyKind::Counters { initial: 64 },
            ],
        }
    }

    #[test]
    fn settings_and_outcomes_round_trip_as_text() {
        assert_eq!(settings().to_string().parse(), Ok(settings()));
        let mut study = settings().study();
        for address in 0..3_000_000 {
            study.reference(address * 7, 8, netram_far_machine::paging::PageAccess::Write);
        }
        let outcome = StudyOutcome {
            children: 2,
            ..StudyOutcome::of(&mut study)
        };
        assert_eq!(outcome.to_string().parse(), Ok(outcome.clone()));
        assert!(
            outcome.tallies.iter().all(|tally| tally.faults > 256),
            "{outcome}"
        );
    }

    #[test]
    fn inconsistent_settings_are_named_in_the_error() {
        let error = |text: &str| text.parse::<StudySettings>().unwrap_err().to_string();
        let rest = "local=8192 remote=0 policies=disk";
        assert!(error(&format!("page=4095 {rest}")).contains("power of two"));
        assert!(error("page=4096 local=100 policies=disk").contains("a page at least"));
        assert!(error("page=4096 local=8192").contains("no policy"));
        assert!(error("page=4096 local=8192 policies=floppy").contains("ram-disk"));
        assert!(error("page=4096 local=8192 policies=counters:0").contains("1 or above"));
        assert!(error("page=4096 local=8192 policies=counters:x").contains("not a number"));
        assert!(error("page").contains("name=value"));
    }
}
