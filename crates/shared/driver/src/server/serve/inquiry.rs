//! The status over a link, for clients with the cluster's key. It is the same as that of the control socket
//! ([`control`](super::control)).
//!
//! A client sends `Status` where a node sends `Share` (`docs/design/protocol.md`). It gets one message, the
//! JSON of the control socket; its own later messages are ignored. A recent answer is sent again, so that
//! many clients cost the serving thread no more than one. Accepting a loss is not possible here: it needs
//! access to the directory.

use std::time::{Duration, Instant};

use netram_transport::{NetAddress, Security};

use super::control::ControlReply;
use super::driver::ServeDriver;
use super::report::ServerReport;
use crate::channel::{Channel, ChannelOpenError};
use crate::limit::{REPLY_BYTES_MAX, STATUS_INTERVAL};

/// Failure to get a status.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// The server cannot be reached with this key, or it does not serve a region.
    #[error("cannot get the status from {address}: {cause}")]
    Open {
        /// Address that was asked.
        address: NetAddress,
        /// The cause.
        #[source]
        cause: ChannelOpenError,
    },
    /// The server refused, for this reason.
    #[error("{address} refused the status: {reason}")]
    Refused {
        /// Address that was asked.
        address: NetAddress,
        /// The server's reason.
        reason: String,
    },
    /// The answer is invalid.
    #[error("{address} sent an invalid answer: {reason}; the server may be of another release")]
    Answer {
        /// Address that was asked.
        address: NetAddress,
        /// The defect.
        reason: String,
    },
}

/// Asks the server at this address for its status. Blocks for at most `timeout`.
///
/// # Errors
///
/// [`InquiryError`] if the server cannot be reached or refuses, or the answer is invalid.
pub fn ask(
    address: &NetAddress,
    security: &Security,
    timeout: Duration,
) -> Result<ServerReport, InquiryError> {
    let answer = Channel::ask_status(address, security, timeout, REPLY_BYTES_MAX);
    let answer = answer.map_err(|cause| InquiryError::Open {
        address: address.clone(),
        cause,
    })?;
    let reason = match serde_json::from_slice(&answer) {
        Ok(ControlReply::Status(report)) => return Ok(*report),
        Ok(ControlReply::Refused(reason)) => {
            let address = address.clone();
            return Err(InquiryError::Refused { address, reason });
        }
        Ok(ControlReply::Accepted(_)) => "it reports an accepted loss, which was not requested".to_owned(),
        Err(error) => error.to_string(),
    };
    let address = address.clone();
    Err(InquiryError::Answer { address, reason })
}

impl ServeDriver {
    /// The status as bytes, made anew if the last ones are old.
    pub(super) fn status_lately(&mut self) -> &[u8] {
        if is_old(self.last_status.as_ref(), self.now) {
            let told = ControlReply::Status(Box::new(self.report()));
            self.last_status = Some((self.now, told.into_bytes()));
        }
        self.last_status.as_ref().map_or(&[], |(_, bytes)| bytes)
    }
}

/// Whether the last status is too old to be sent again.
fn is_old(told: Option<&(Instant, Vec<u8>)>, now: Instant) -> bool {
    told.is_none_or(|(made, _)| now.duration_since(*made) >= STATUS_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_ask_a_status_is_made_ten_times_a_second() {
        let (start, mut told, mut made) = (Instant::now(), None, 0);
        for asked in 0..1000 {
            let now = start + Duration::from_millis(asked);
            if is_old(told.as_ref(), now) {
                made += 1;
                told = Some((now, Vec::new()));
            }
        }
        assert_eq!(made, 10);
    }
}
