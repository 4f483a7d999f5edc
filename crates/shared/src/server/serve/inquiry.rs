//! The status over a link: what the directory's socket tells ([`control`](super::control)), for whoever has the cluster's key.
//!
//! Whoever asks says `Status` where a node says `Share` (`docs/protocol.md`), and has a session of the door like any other, until it has heard
//! the answer: one message, the JSON of the socket. Nothing that it says counts. It is told what was told last if that is not old, so that
//! many who ask cost the thread that serves no more than one. The word that a loss is accepted is not taken here: that is for whoever has the directory.

use std::time::Duration;

use netram_transport::{Address, Security};

use super::control::Told;
use super::driver::Driver;
use super::report::Report;
use crate::channel::{Channel, OpenError};
use crate::limit::{ANSWER_BYTES_MAX, STATUS_EVERY};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// Nobody is there, or nobody who serves a region, or not with this key.
    #[error("asking {address}: {cause}")]
    Open {
        /// Who was asked.
        address: Address,
        /// Why not.
        #[source]
        cause: OpenError,
    },
    /// It says why not.
    #[error("{address} tells no status: {reason}")]
    Refused {
        /// Who was asked.
        address: Address,
        /// Why not.
        reason: String,
    },
    /// No answer that makes sense.
    #[error("{address} gave no answer that makes sense: {reason}; it may be of another release")]
    Answer {
        /// Who was asked.
        address: Address,
        /// What is wrong with it.
        reason: String,
    },
}

/// Asks the server at this address how its region stands. Blocks, for `timeout` at most.
pub fn ask(address: &Address, security: &Security, timeout: Duration) -> Result<Report, InquiryError> {
    let answer = Channel::ask_status(address, security, timeout, ANSWER_BYTES_MAX);
    let answer = answer.map_err(|cause| InquiryError::Open {
        address: address.clone(),
        cause,
    })?;
    let reason = match serde_json::from_slice(&answer) {
        Ok(Told::Status(report)) => return Ok(*report),
        Ok(Told::Refused(reason)) => {
            let address = address.clone();
            return Err(InquiryError::Refused { address, reason });
        }
        Ok(Told::Accepted(_)) => "it accepted a loss, which nobody asked for".to_owned(),
        Err(error) => error.to_string(),
    };
    let address = address.clone();
    Err(InquiryError::Answer { address, reason })
}

impl Driver {
    /// The status as bytes, made anew if the last ones are old.
    pub(super) fn status_lately(&mut self) -> &[u8] {
        let due = |(made, _): &(_, _)| self.now.duration_since(*made) >= STATUS_EVERY;
        if self.told.as_ref().is_none_or(due) {
            let told = Told::Status(Box::new(self.report()));
            self.told = Some((self.now, bytes(&told)));
        }
        self.told.as_ref().map_or(&[], |(_, bytes)| bytes)
    }
}

fn bytes(told: &Told) -> Vec<u8> {
    let bytes = serde_json::to_vec(told).expect("a status has nothing that JSON has not");
    match bytes.len() <= ANSWER_BYTES_MAX {
        true => bytes,
        false => {
            let long = format!("it would have {} bytes; ask in its directory", bytes.len());
            serde_json::to_vec(&Told::Refused(long)).expect("a sentence is JSON")
        }
    }
}
