//! The study of paging policies: would remote memory help this program, and under which policy?
//!
//! A program runs, and every reference that it makes goes through models of the memory of a machine, one a
//! policy, all in one pass (Markatos, MASCOTS'96, section 3). The policies are those of
//! [`netram_far_machine::paging`], which the pager obeys as well; this crate finds the references, counts,
//! and says what they cost.
//!
//! | file | does |
//! |---|---|
//! | `study.rs` | takes references, asks every policy |
//! | `numbering.rs` | numbers the pages that a program references |
//! | `settings.rs` | a study's settings and outcome as text |
//! | `trace.rs` | references as text |
//! | `costs.rs` | what events cost: the paper's table 1, and today's |
//! | `process.rs` | runs a program with what finds its references |
//! | `workload/` | the paper's programs |
//! | `mascots96.rs` | the paper's set-up: sizes, programs, reference counts |

pub mod costs;
pub mod mascots96;
mod numbering;
pub mod process;
pub mod settings;
pub mod study;
pub mod trace;
pub mod workload;

pub use costs::MachineCosts;
pub use settings::{StudyOutcome, StudySettings};
pub use study::Study;
