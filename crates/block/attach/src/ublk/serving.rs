//! The server's side: creates a device, or takes over one whose server has died.
//!
//! ```text
//! supervisor                                       server
//!   "new BLOCK_BYTES rw|ro again|once MARK" ---->    opens the volume, creates the device, fetches, starts it
//!   <------------------ on its output: "ublk NUMBER"
//!   ... the server is killed ...
//!   "take NUMBER" ------------------------------>    another: opens the volume, fetches, continues
//!   <------------------------------- "ublk NUMBER"
//! ```
//!
//! [`netram_supervise::handover`] defines the other messages on that socket. If the supervisor's end closes,
//! the supervisor is gone, and the server ends the device once no other process has it exclusively.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_block::{BLOCK_BYTES, BlockDevice};
use netram_supervise::{leave_output, prepare, say_line};

use super::control::UblkControl;
use super::device::end_unused;
use super::queue::UblkQueue;
use super::wire::{self, UblkInfo, UblkParameters};
use super::{UblkError, queues_path};
use crate::failure_log::FailureLog;
use crate::node;
use crate::serve::{AttachServeError, start};

/// Start of the line that names the served device.
pub(crate) const OFFER: &str = "ublk ";

/// Maximum number of queues; there is one per processor up to this. Each has a thread, so that a wait of one
/// does not delay the others.
const QUEUES_MAX: u16 = 4;
/// Maximum number of requests of one queue in progress.
const DEPTH: u16 = 64;
/// Maximum bytes of a request. The block layer splits larger ones, and the device accepts more.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
const _: () = assert!(REQUEST_BYTES_MAX <= netram_block::limit::REQUEST_BYTES_MAX);

/// Time for the kernel to notice that a dead server is gone; it checks every 2 s ([`node::look_often`]).
const GONE_PATIENCE: Duration = Duration::from_secs(60);
const GONE_PAUSE: Duration = Duration::from_millis(10);
/// Interval at which a server without a supervisor checks whether its device is still in use.
const UNUSED_PAUSE: Duration = Duration::from_millis(500);

/// First message to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UblkStart {
    /// Create a new device.
    New {
        block_bytes: u32,
        read_only: bool,
        /// Whether another server may continue it.
        again: bool,
        /// Mark with which the supervisor recognises it.
        mark: u64,
    },
    /// Take over the device of a dead server.
    Take(u32),
}

impl fmt::Display for UblkStart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UblkStart::New {
                block_bytes,
                read_only,
                again,
                mark,
            } => {
                let access = if *read_only { "ro" } else { "rw" };
                let servers = if *again { "again" } else { "once" };
                write!(out, "new {block_bytes} {access} {servers} {mark}")
            }
            UblkStart::Take(number) => write!(out, "take {number}"),
        }
    }
}

impl FromStr for UblkStart {
    type Err = ();

    fn from_str(line: &str) -> Result<UblkStart, ()> {
        let words: Vec<&str> = line.trim().split(' ').collect();
        let one_of = |word: &str, no: &str, yes: &str| match word {
            word if word == yes => Ok(true),
            word if word == no => Ok(false),
            _ => Err(()),
        };
        match words[..] {
            ["new", block_bytes, access, servers, mark] => Ok(UblkStart::New {
                block_bytes: block_bytes.parse().map_err(drop)?,
                read_only: one_of(access, "rw", "ro")?,
                again: one_of(servers, "once", "again")?,
                mark: mark.parse().map_err(drop)?,
            }),
            ["take", number] => Ok(UblkStart::Take(number.parse().map_err(drop)?)),
            _ => Err(()),
        }
    }
}

/// Serves the device that `open` returns as a ublk device until it is stopped. It may continue a device whose
/// server died.
///
/// As [`serve()`](crate::serve()), call it in a process of its own.
///
/// # Errors
///
/// [`AttachServeError`] if the volume cannot be opened, the kernel fails, or the last flush fails.
pub fn serve_ublk<E: fmt::Display>(
    open: impl FnOnce() -> Result<Arc<dyn BlockDevice>, E>,
) -> Result<(), AttachServeError> {
    let pulse = prepare().map_err(UblkError::Serve)?;
    let mut said = String::new();
    let heard = io::stdin().lock().read_line(&mut said);
    heard.map_err(UblkError::Serve)?;
    let Ok(begin) = said.parse::<UblkStart>() else {
        // The supervisor is gone already.
        return Ok(());
    };
    let (serving, device) = start(&pulse, open, |device| Ok(UblkService::begin(&begin, &device)?))?;
    // Before the offer, because the supervisor may be gone by now, and then no other process would end the
    // device.
    let offered = serving
        .end_with_supervisor()
        .and_then(|()| say_line(format_args!("{OFFER}{}", serving.number)))
        .and_then(|()| leave_output());
    offered.map_err(UblkError::Serve)?;
    serving.join();
    drop(pulse);
    device.flush().map_err(AttachServeError::Flush)
}

/// A device that is being served.
struct UblkService {
    number: u32,
    /// Kept open, so that no other device can get the number.
    file: Arc<File>,
    queues: Vec<JoinHandle<()>>,
}

impl UblkService {
    fn begin(begin: &UblkStart, device: &Arc<dyn BlockDevice>) -> Result<UblkService, UblkError> {
        let mut control = UblkControl::open()?;
        match *begin {
            UblkStart::New {
                block_bytes,
                read_only,
                again,
                mark,
            } => {
                let info = control.add(&wanted(again, mark))?;
                let parameters = UblkParameters {
                    bytes: device.geometry().bytes,
                    block_bytes,
                    whole_bytes: BLOCK_BYTES as u32,
                    request_bytes_max: info.request_bytes_max,
                    read_only,
                };
                let made = (control.describe(info.device, &parameters))
                    .and_then(|()| UblkService::fetch(&info, device))
                    .and_then(|serving| control.start(info.device).map(|()| serving));
                if made.is_err() {
                    // The first error says more than one of this call.
                    let _ = control.delete(info.device);
                }
                made
            }
            UblkStart::Take(number) => {
                let deadline = Instant::now() + GONE_PATIENCE;
                while !control.begin_recovery(number)? {
                    if Instant::now() > deadline {
                        return Err(UblkError::Occupied(number));
                    }
                    std::thread::sleep(GONE_PAUSE);
                }
                let info = control.info(number)?;
                let serving = UblkService::fetch(&info, device)?;
                control.end_recovery(number)?;
                Ok(serving)
            }
        }
    }

    /// Starts a thread for the requests of each queue.
    fn fetch(info: &UblkInfo, device: &Arc<dyn BlockDevice>) -> Result<UblkService, UblkError> {
        let path = queues_path(info.device);
        let failed = |source| UblkError::Device {
            path: path.clone(),
            source,
        };
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let file = Arc::new(node::wait_for(&path, open).map_err(failed)?);
        let failures = Arc::new(FailureLog::default());
        let mut queues = Vec::new();
        for number in 0..info.queues {
            let queue = UblkQueue {
                device: Arc::clone(device),
                file: Arc::clone(&file),
                failures: Arc::clone(&failures),
                number,
                depth: info.depth,
                request_bytes_max: info.request_bytes_max,
            };
            let (ready, begun) = sync_channel(1);
            let thread = std::thread::Builder::new()
                .name(format!("netram-ublk-{number}"))
                .spawn(move || queue.serve(&ready));
            queues.push(thread.map_err(failed)?);
            let gone = |_| io::Error::other("the thread of a queue panicked");
            begun
                .recv()
                .map_err(gone)
                .and_then(|begun| begun)
                .map_err(failed)?;
        }
        Ok(UblkService {
            number: info.device,
            file,
            queues,
        })
    }

    /// Ends the device with its last user once the supervisor, which has the other end of the standard input,
    /// is gone.
    fn end_with_supervisor(&self) -> io::Result<()> {
        let (number, file) = (self.number, Arc::clone(&self.file));
        let watch = move || {
            // No further messages are expected.
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            loop {
                match end_unused(number) {
                    Ok(true) => break,
                    Ok(false) => (),
                    Err(error) => {
                        tracing::warn!(%error, "the supervisor is gone, and the device cannot be ended; retrying");
                    }
                }
                std::thread::sleep(UNUSED_PAUSE);
            }
            drop(file);
        };
        let watching = std::thread::Builder::new().name("netram-ublk-end".into());
        watching.spawn(watch).map(drop)
    }

    /// Waits until the device is gone.
    fn join(self) {
        for queue in self.queues {
            // A thread that panicked has ended the process.
            let _ = queue.join();
        }
    }
}

fn wanted(again: bool, mark: u64) -> UblkInfo {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let recovery = if again { wire::RECOVERY | wire::REISSUE } else { 0 };
    UblkInfo {
        queues: (processors as u16).clamp(1, QUEUES_MAX),
        depth: DEPTH,
        request_bytes_max: REQUEST_BYTES_MAX,
        device: wire::ANY,
        features: wire::USER_COPY | recovery,
        mark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_is_parsed_and_invalid_ones_are_refused() {
        let new = |block_bytes, read_only, again, mark| UblkStart::New {
            block_bytes,
            read_only,
            again,
            mark,
        };
        for (begin, line) in [
            (
                new(4096, false, true, u64::MAX),
                "new 4096 rw again 18446744073709551615",
            ),
            (new(512, true, false, 0), "new 512 ro once 0"),
            (UblkStart::Take(7), "take 7"),
        ] {
            assert_eq!(begin.to_string(), line);
            assert_eq!(format!("{line}\n").parse(), Ok(begin));
        }
        for nonsense in [
            "",
            "take",
            "take -1",
            "new 4096 rw again",
            "new 4096 r again 1",
            "n",
        ] {
            assert_eq!(nonsense.parse::<UblkStart>(), Err(()), "{nonsense}");
        }
    }
}
