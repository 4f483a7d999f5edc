//! All limits of a watcher, each with its reason. Nobody whom it asks costs it more.

use std::time::Duration;

/// Time between two questions to one target.
pub const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// The same for a target that did not answer: it may cost a whole deadline each time.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(4);
/// Maximum time of one question.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two searches for lenders and open journals that are not known yet.
pub const SEARCH_INTERVAL: Duration = Duration::from_secs(15);
/// The same for journals, which cost one look into a table of the kernel.
pub const LOCAL_SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Number of threads that ask.
pub const WORKERS: usize = 16;
/// Maximum number of them that ask targets which did not answer the last time: the others stay prompt.
pub const WORKERS_FOR_SILENT: usize = WORKERS / 2;
/// Maximum number of targets.
pub const TARGETS_MAX: usize = 2048;
/// Time after which a lender that nobody names any more, and that does not answer, is forgotten.
pub const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// Maximum bytes of a page of metrics.
pub const PAGE_BYTES_MAX: usize = 8 << 20;
/// Maximum number of journals that one page may name.
pub const JOURNALS_PER_PAGE_MAX: usize = 1024;
/// Maximum bytes of a foreign name, path or sentence.
pub const TEXT_BYTES_MAX: usize = 512;

/// Time of one step of the history of latencies.
pub const LATENCY_STEP: Duration = Duration::from_secs(10);
/// Number of steps that are kept: an hour.
pub const LATENCY_STEPS: usize = 360;
/// Maximum number of journals whose latencies are kept, about 30 KB each.
pub const LATENCY_JOURNALS_MAX: usize = 1024;
/// Maximum number of points of a curve that is sent.
pub const LATENCY_POINTS: usize = 180;

/// Maximum number of events that are kept, and that are shown.
pub const EVENTS_KEPT: usize = 512;
/// Maximum number of events on the page.
pub const EVENTS_SHOWN: usize = 60;
/// Maximum number of entries in the panel of what needs a person.
pub const PERSON_SHOWN: usize = 40;
/// Number of journals on one page of the list.
pub const JOURNALS_SHOWN: usize = 50;
/// Maximum number of lenders on one page of the list.
pub const LENDERS_SHOWN: usize = 256;
/// Maximum number of failures in the table of risks.
pub const RISKS_SHOWN: usize = 24;
/// Number of rows up to which failures that would take nothing are in it.
pub const RISKS_SHOWN_MIN: usize = 6;

/// Minimum bytes of a token: nobody guesses as many.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Maximum bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 512;
/// Number of wrong tokens of one address in [`REFUSAL_WINDOW`] after which it is not even compared.
pub const WRONG_TOKENS_MAX: u32 = 10;
/// Time after which wrong tokens are forgotten.
pub const REFUSAL_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses whose wrong tokens are counted.
pub const REFUSED_PEERS_MAX: usize = 256;

const _: () = assert!(WORKERS_FOR_SILENT < WORKERS);
const _: () = assert!(LATENCY_STEP.as_secs() * LATENCY_STEPS as u64 == 3600);
