//! The status over a link: what the directory's socket tells ([`control`](super::control)), for whoever has
//! the cluster's key.
//!
//! Whoever asks says `Status` where a node says `Share` (`docs/protocol.md`), and has a session of the door
//! like any other, until it has heard the answer: one message, the JSON of the socket. Nothing that it says
//! counts. It is told what was told last if that is not old, so that many who ask cost the thread that serves
//! no more than one. The word that a loss is accepted is not taken here: that is for whoever has the
//! directory.

use std::time::{Duration, Instant};

use netram_transport::{NetAddress, Security};

use super::control::ControlReply;
use super::driver::ServeDriver;
use super::report::ServerReport;
use crate::channel::{Channel, ChannelOpenError};
use crate::limit::{REPLY_BYTES_MAX, STATUS_INTERVAL};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// Nobody is there, or nobody who serves a region, or not with this key.
    #[error("asking {address}: {cause}")]
    Open {
        /// Who was asked.
        address: NetAddress,
        /// Why not.
        #[source]
        cause: ChannelOpenError,
    },
    /// It says why not.
    #[error("{address} tells no status: {reason}")]
    Refused {
        /// Who was asked.
        address: NetAddress,
        /// Why not.
        reason: String,
    },
    /// No answer that makes sense.
    #[error("{address} gave no answer that makes sense: {reason}; it may be of another release")]
    Answer {
        /// Who was asked.
        address: NetAddress,
        /// What is wrong with it.
        reason: String,
    },
}

/// Asks the server at this address how its region stands. Blocks, for `timeout` at most.
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
        Ok(ControlReply::Accepted(_)) => "it accepted a loss, which nobody asked for".to_owned(),
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

/// Whether what was told last is not to be told again.
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
