//! The files by which a device that has just been made is reached.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// A node appears at once, unless something slower than the kernel makes it.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// How often the kernel looks whether a request that is not answered has lost its server, in milliseconds.
const LOOK_MS: &str = "2000";

/// What `open` makes of the node, once it is there.
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

/// A request that a dead server had taken is given to another when the kernel next looks at it; by itself it
/// does every 30 s. (For ublk so only if the server had taken as many as it may.)
pub(crate) fn look_often(device: &Path) -> io::Result<()> {
    let name = device.file_name().unwrap_or_default();
    std::fs::write(
        Path::new("/sys/block").join(name).join("queue/io_timeout"),
        LOOK_MS,
    )
}
