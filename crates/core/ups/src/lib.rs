//! Internal to netram: programs use the crate `netram`.
//!
//! The power supply: a client of `upsd`, the server of NUT (Network UPS Tools).
//!
//! An [`UpsMonitor`] is a thread that asks `upsd` and calls a function with each new [`PowerStatus`]. All
//! decisions are [`UpsWatch`]'s, a state machine without clock or sockets.
//!
//! ```text
//! upsd -> UpsMonitor (socket, clock) -> UpsWatch (commands, timeouts) -> PowerJudge (what counts) -> callback
//! ```
//!
//! | module | decides |
//! |---|---|
//! | [`name`] | the syntax of a UPS's name, and where its `upsd` listens |
//! | [`login`] | the user and password for `upsd` |
//! | [`answer`] | the meaning of a line of `upsd` |
//! | [`reading`] | the meaning of the UPS's status words and values |
//! | [`power`] | when a reading, or the absence of one, changes the power's status |
//! | [`watch`] | what is asked when, and which silence is a failure |
//! | [`monitor`] | nothing: it has the thread and the socket |
//! | [`source`] | a UPS and a login, as settings name them |
//! | [`limit`] | all limits |
//!
//! *Not here*: STARTTLS. A password crosses the network in clear, so `upsd` should be on this machine or on a
//! network of its own, as NUT's own documentation says.
#![forbid(unsafe_code)]

pub mod answer;
#[doc(hidden)]
pub mod fuzzed;
pub mod limit;
pub mod login;
pub mod monitor;
pub mod name;
pub mod power;
pub mod reading;
pub mod source;
pub mod watch;

pub use answer::UpsRefusal;
pub use login::{UpsLogin, UpsLoginError};
pub use monitor::UpsMonitor;
pub use name::{UpsName, UpsNameError};
pub use power::{PowerReason, PowerState, PowerStatus};
pub use source::{UpsSource, UpsSourceError};
pub use watch::UpsWatch;
