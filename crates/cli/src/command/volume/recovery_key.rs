//! Giving a new recovery key to the user: once, in a file or on standard output.

use std::path::Path;

use anyhow::Result;
use netram_volume::{RecoveryKey, RecoveryKeyError};

use crate::output;

/// Refuses a file that exists, before anything is changed.
pub(super) fn check_absent(file: Option<&Path>) -> Result<()> {
    match file.filter(|file| file.symlink_metadata().is_ok()) {
        Some(file) => Err(RecoveryKeyError::Exists {
            path: file.to_owned(),
        }
        .into()),
        None => Ok(()),
    }
}

/// Writes the key to `file`; without one, returns the text to print.
pub(super) fn give(key: &RecoveryKey, file: Option<&Path>) -> Result<Option<String>> {
    match file {
        Some(file) => {
            key.save_new(file)?;
            Ok(None)
        }
        None => Ok(Some(key.to_text().to_string())),
    }
}

/// Prints the key, or where it is.
pub(super) fn print(shown: Option<&str>, file: Option<&Path>) -> Result<()> {
    match (shown, file) {
        (Some(key), _) => {
            output::line(format_args!("recovery key: {key}"))?;
            output::line(
                "it is shown this once: keep it away from this machine. Without it the data lender's copy cannot be restored",
            )
        }
        (None, Some(file)) => output::line(format_args!(
            "recovery key in {}: keep a copy away from this machine. Without it the data lender's copy cannot be restored",
            file.display()
        )),
        (None, None) => Ok(()),
    }
}
