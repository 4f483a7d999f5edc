//! Device nodes and settings of a device that has just been created.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a node is waited for. It appears at once, unless a program other than the kernel creates it.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Interval, in milliseconds, at which the kernel checks whether an unanswered request has lost its server.
const LOOK_MS: &str = "2000";

/// Result of `open` for the node, once it exists.
pub(crate) fn wait_for<T>(path: &Path, open: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

/// Makes the kernel check more often for requests that a dead server had received, which are then given to
/// another server. The default is 30 s. For ublk it matters only if the server had received the maximum
/// number.
pub(crate) fn look_often(device: &Path) -> io::Result<()> {
    let name = device.file_name().unwrap_or_default();
    std::fs::write(
        Path::new("/sys/block").join(name).join("queue/io_timeout"),
        LOOK_MS,
    )
}
