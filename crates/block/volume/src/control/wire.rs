//! Lines of a session.

use serde::{Deserialize, Serialize};

use super::report::VolumeReport;
use crate::resync::ResyncOutcome;
use crate::scrub::{ScrubFindings, TaskProgress};

/// Request to a process that has a volume open. A new operation begins here and is served in
/// [`super::server`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum VolumeRequest {
    /// Return the status.
    Status,
    /// Return the metrics of the process.
    Metrics,
    /// Make the volume larger.
    Grow {
        /// New size in bytes.
        bytes: u64,
    },
    /// Compare every block with its checksum.
    Scrub,
    /// Make the data lender's copy equal.
    Resync {
        /// Resync even a copy that has more than the volume, or another history.
        whole: bool,
    },
    /// Let the data lender have the volume's new wrapped key.
    Rekeyed,
}

/// Reply to a [`VolumeRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeReply {
    /// Progress; more replies follow.
    Progress(TaskProgress),
    /// The status.
    Status(Box<VolumeReport>),
    /// The metrics of the process, in the text format of Prometheus.
    Metrics(String),
    /// The volume has grown.
    Grown {
        /// Former size in bytes.
        before: u64,
        /// New size in bytes.
        after: u64,
    },
    /// Every block was compared.
    Scrubbed(ScrubFindings),
    /// The data lender's copy is equal.
    Resynced(ResyncOutcome),
    /// The data lender gets the new wrapped key in its next session.
    Rekeyed {
        /// Whether the volume has a data lender.
        data_lender: bool,
    },
    /// The request was refused, for this reason.
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_readable_json_form_and_unknown_fields_are_refused() {
        let read = |text: &str| serde_json::from_str::<VolumeRequest>(text);
        assert_eq!(read(r#"{"ask":"status"}"#).unwrap(), VolumeRequest::Status);
        assert_eq!(
            read(r#"{"ask":"grow","bytes":4096}"#).unwrap(),
            VolumeRequest::Grow { bytes: 4096 }
        );
        for wrong in [
            r#"{"ask":"grow"}"#,
            r#"{"ask":"grow","bytes":-1}"#,
            r#"{"ask":"grow","bytes":1,"more":2}"#,
            r#"{"ask":"erase"}"#,
            "[]",
            "",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
