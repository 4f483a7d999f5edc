//! Messages of a service to the service manager (systemd): that it is ready, what it does, and that it lives.
//!
//! | file | contents |
//! |---|---|
//! | `schedule.rs` | decides what is said, and when |
//! | `service.rs` | the thread that looks at the service and says it |
//! | `pulse.rs` | the rounds of a loop that serves |
//! | `sentences.rs` | states in words |
//! | `socket.rs` | the manager's socket |

mod pulse;
mod schedule;
mod sentences;
mod service;
mod socket;

pub(crate) use pulse::LoopPulse;
pub(crate) use schedule::{ServiceLook, StopPatience};
#[cfg(feature = "products")]
pub(crate) use sentences::commit_state;
pub(crate) use service::ServiceNotifier;
pub(crate) use socket::VARIABLES;
