//! States of services in words, for `systemctl status`.

#[cfg(feature = "products")]
use netram_journal::JournalStatus;

/// Returns what a journal's commits wait for.
#[cfg(feature = "products")]
pub(crate) fn commit_state(status: &JournalStatus) -> String {
    if let Some(error) = &status.disk_error {
        return format!("no commits: the disk has failed ({error})");
    }
    if let Some(error) = &status.disk_refused {
        return format!("the disk refuses writes ({error}); commits wait for lenders only");
    }
    let lenders = status.writer.lenders.len() as u64;
    match &status.writer.blocked {
        _ if lenders == 0 => "commits wait for the disk: no lenders are configured".to_owned(),
        Some(why) => format!("commits wait for the disk: {why}"),
        None => format!(
            "commits wait for lenders: {} of {} hold copies",
            status.writer.copies.have, lenders
        ),
    }
}
