//! Rule 20, *a peer's claims are bounded before they cost anything*: what members say of their windows takes no more memory
//! than the windows have.

use netram_proto::journal::Recovery;

use super::fail;

/// A recovery has taken something in. Each member has a window of `window` bytes.
pub(crate) fn recovery(recovery: &Recovery, window: u64) {
    let (read, most) = (recovery.bytes_read(), window * recovery.answers().count() as u64);
    if read > most {
        fail(
            20,
            format!("recovery has read {read} bytes of windows that hold {most} together"),
        );
    }
}
