//! Limits of the page of metrics. Whatever a reader does, it costs this process no more.

use std::time::Duration;

/// Maximum number of open connections. Further ones wait in the kernel's queue until one ends.
pub const CONNECTIONS_MAX: usize = 8;

/// Maximum bytes of a request's line and headers.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// Maximum bytes that are read and dropped after a refused request, so that its answer arrives.
pub const DISCARD_BYTES_MAX: usize = 64 * 1024;

/// Maximum time of a connection, from its beginning to its end.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time of a connection while there are as many as there may be: a reader that stays makes room.
pub const CROWDED_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which a text is given to all that ask: reading it more often costs the process nothing more.
pub const TEXT_AGE_MAX: Duration = Duration::from_millis(100);

/// Pause after the system refused a connection, for example because there are no descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const _: () = assert!(CROWDED_TIMEOUT.as_nanos() < CONNECTION_TIMEOUT.as_nanos());
const _: () = assert!(REQUEST_BYTES_MAX < DISCARD_BYTES_MAX);
