//! Serving the Linux kernel's own client over a socket pair. The process that configures the kernel's device
//! sets it up, so there is no handshake.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use netram_block::BlockDevice;

use crate::buffer::InputBuffer;
use crate::command::NbdSession;
use crate::limit::HANDSHAKE_TIMEOUT;
use crate::stats::{NbdCounters, NbdStats};
use crate::stream::{ClientSocket, NbdStream};
use crate::transmit::Transmission;
use crate::wire::export;

/// Export flags to pass to the kernel in place of a handshake.
pub fn kernel_flags(read_only: bool) -> u16 {
    let flags = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA | export::CAN_MULTI_CONN;
    match read_only {
        true => flags | export::READ_ONLY,
        false => flags | export::SEND_TRIM | export::SEND_WRITE_ZEROES,
    }
}

/// Serves the kernel until it disconnects or closes its end. Started requests are finished; returns the
/// counts.
pub fn serve_kernel(device: &Arc<dyn BlockDevice>, socket: OwnedFd, read_only: bool) -> NbdStats {
    let mut stream = NbdStream::new(ClientSocket::new(
        Arc::new(socket),
        Instant::now() + HANDSHAKE_TIMEOUT,
    ));
    // The kernel may be silent for any time.
    stream.lift_deadline();
    let session = NbdSession {
        export: 0,
        structured: false,
        extended: false,
        block_status: false,
        read_only,
    };
    let counters = NbdCounters::default();
    let transmission = Transmission::new(
        &mut stream,
        device,
        session,
        InputBuffer::new(),
        &counters,
        &|| false,
    );
    let end = transmission.run();
    tracing::info!("the kernel closed the device: {end}");
    stream.close();
    counters.read()
}
