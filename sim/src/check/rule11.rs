//! Rule 11, *nothing a peer sends is trusted*: lengths stay within the buffers they describe. The runner
//! catches panics.

use netram_proto::member::{MemberReply, MemberState};

use super::violation::fail;

/// Checks that a member answers a read with bytes of its window only.
pub(crate) fn read_within_window(state: &MemberState, reply: &MemberReply) {
    let MemberReply::Data(header, bytes) = reply else {
        return;
    };
    let end = header.lsn.plus(*bytes as u64);
    if end > state.held || header.lsn < state.trim {
        fail(
            11,
            format!(
                "a member gave {} to {end} of a window from {} to {}",
                header.lsn, state.trim, state.held
            ),
        );
    }
}
