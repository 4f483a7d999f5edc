//! The study of paging policies: would remote memory help a program, and under which policy?
//!
//! A program runs, and every reference that it makes goes through models of a machine's memory, one for each
//! policy, all in one pass (Markatos, MASCOTS'96, section 3). The policies are those of
//! [`netram_far_machine::paging`], which the pager uses as well. This crate finds and counts the references,
//! and computes their costs.
//!
//! | file | does |
//! |---|---|
//! | `study.rs` | passes references to every policy |
//! | `numbering.rs` | numbers the pages that a program references |
//! | `settings.rs` | a study's settings and outcome as text |
//! | `trace.rs` | references as text |
//! | `costs.rs` | costs of events: the paper's table 1, and today's |
//! | `process.rs` | runs a program under a tracer of its references |
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
