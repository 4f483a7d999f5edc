//! All limits of this crate.

use std::time::Duration;

/// Maximum bytes of a line of `upsd`. NUT's own programs use 512.
pub const LINE_BYTES_MAX: usize = 1024;

/// Maximum bytes of the name of a UPS, a host, a user and a password, together half of a line.
pub const WORD_BYTES_MAX: usize = 256;

/// The port of `upsd`.
pub const PORT_DEFAULT: u16 = 3493;

/// Time between two looks on mains.
pub const LOOK_ON_MAINS: Duration = Duration::from_secs(1);

/// Time between two looks while anything else is the case. Drivers look at the UPS every 2 s or so.
pub const LOOK_ON_BATTERY: Duration = Duration::from_millis(250);

/// Maximum time for which `upsd` may owe an answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for a name's lookup and a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// First pause before `upsd` is tried again; each further one is twice as long.
pub const RETRY_MIN: Duration = Duration::from_millis(250);

/// Longest pause before `upsd` is tried again, when the last reading was mains.
pub const RETRY_MAX: Duration = Duration::from_secs(5);

/// Longest pause before `upsd` is tried again, when the last reading was battery.
pub const RETRY_MAX_ON_BATTERY: Duration = Duration::from_secs(1);

/// Time after which a refused login is tried again, over a new connection.
pub const LOGIN_RETRY: Duration = Duration::from_secs(30);

/// Time for which the mains must last before they count again. Battery counts at once, since a view that
/// moves for nothing costs little; one that moves with every flicker would cost more.
pub const MAINS_STEADY: Duration = Duration::from_secs(10);

/// Time for which the battery must be low before it counts, since that stops a lender.
pub const LOW_STEADY: Duration = Duration::from_secs(1);

/// Time for which nothing may be heard before the power is unknown. A restart of `upsd` takes about 2 s.
pub const UNKNOWN_AFTER: Duration = Duration::from_secs(6);

/// Time for which nothing may be heard on battery before the battery counts as low. NUT's `upsmon` has the
/// same (`DEADTIME`).
pub const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Longest time that [`UpsMonitor::stop`](crate::UpsMonitor::stop) waits for its thread.
pub const STOP_TIMEOUT: Duration = Duration::from_millis(500);

const _: () = assert!(3 * WORD_BYTES_MAX < LINE_BYTES_MAX);
const _: () = assert!(ANSWER_TIMEOUT.as_millis() < UNKNOWN_AFTER.as_millis());
const _: () = assert!(CONNECT_TIMEOUT.as_millis() < UNKNOWN_AFTER.as_millis());
const _: () = assert!(UNKNOWN_AFTER.as_millis() < DEAD_AFTER.as_millis());
