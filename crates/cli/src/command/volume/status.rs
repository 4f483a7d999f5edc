//! `netram volume status`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use netram_attach::AttachEntry;
use netram_volume::control::{VolumeReply, VolumeReport, VolumeRequest};
use netram_volume::replica::DataLenderStatus;
use netram_volume::{FlushPolicy, VolumeInspection, VolumePaths, VolumeSettings, ask};
use serde_json::json;

use super::opener::unexpected_reply;
use super::{absolute, registry};
use crate::output;

/// Show a volume's state
///
/// Nothing is changed and no lender is asked. If the volume is attached or served, the process
/// that has it open is asked for its lenders, what is not on the disk yet, counters and failures.
///
///   netram volume status /var/lib/netram/db
///   netram volume status /var/lib/netram/db --metrics      # for Prometheus
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the metrics of the process that has the volume open, for Prometheus
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

/// Everything that is known of a volume.
struct VolumeView {
    inspected: VolumeInspection,
    settings: VolumeSettings,
    attached: Option<AttachEntry>,
    live: Option<VolumeReport>,
}

impl ShowVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let place = VolumePaths::at(&path);
        let inspected = place.inspect()?;
        if self.metrics {
            return self.show_metrics(&place);
        }
        let live = match ask(&place, &VolumeRequest::Status, &mut |_| ())? {
            Some(VolumeReply::Status(report)) => Some(*report),
            Some(told) => return Err(unexpected_reply(&told)),
            None => None,
        };
        let seen = VolumeView {
            inspected,
            settings: place.settings()?,
            attached: registry().find(&path)?,
            live,
        };
        match self.json {
            true => output::json(&seen.json(&path))?,
            false => {
                for (what, value) in seen.lines().into_iter().chain(seen.live_lines()) {
                    output::line(format_args!("{what:<17} {value}"))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ShowVolume {
    fn show_metrics(&self, place: &VolumePaths) -> Result<ExitCode> {
        match ask(place, &VolumeRequest::Metrics, &mut |_| ())? {
            Some(VolumeReply::Metrics(text)) => output::line(text.trim_end())?,
            Some(told) => return Err(unexpected_reply(&told)),
            None => bail!(
                "{} is neither attached nor served; only an open volume has metrics",
                self.volume.display()
            ),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl VolumeView {
    fn flush(&self) -> &'static str {
        match self.settings.flush {
            FlushPolicy::Remote => "remote",
            FlushPolicy::Disk => "disk",
        }
    }

    fn lenders(&self) -> Vec<String> {
        self.settings.journal.lender_names()
    }

    fn json(&self, path: &std::path::Path) -> serde_json::Value {
        let seen = &self.inspected;
        json!({
            "volume": path,
            "id": seen.superblock.volume.to_string(),
            "bytes": seen.superblock.bytes,
            "taken_bytes": seen.image_taken_bytes,
            "journal_bytes": seen.journal_bytes,
            "in_use": seen.in_use,
            "members": seen.members,
            "lenders": self.lenders(),
            "data_lender": self.settings.data_lender.as_ref().map(ToString::to_string),
            "flush": self.flush(),
            "attached": self.attached,
            "live": self.live,
        })
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let seen = &self.inspected;
        let device = match &self.attached {
            Some(AttachEntry { record, alive: true }) => {
                let restarts = match record.restarts {
                    0 => String::new(),
                    more => format!(
                        ", served by process {} since it was attached",
                        u64::from(more) + 1
                    ),
                };
                format!(
                    "{} ({}){restarts}",
                    record.link.display(),
                    record.device.display()
                )
            }
            Some(_) => "none: the process that served it was killed".to_owned(),
            None => "none".to_owned(),
        };
        let in_use = match (seen.in_use, &self.live) {
            (_, Some(report)) => format!(
                "by process {}, for {}",
                report.pid,
                output::age(Duration::from_secs(report.uptime_s))
            ),
            (true, None) => "yes, by a process that does not answer".to_owned(),
            (false, None) if seen.unapplied || !seen.members.is_empty() => {
                "no; it was not closed, and the next opening recovers it".to_owned()
            }
            (false, None) => "no".to_owned(),
        };
        vec![
            ("volume", seen.superblock.volume.to_string()),
            ("size", output::bytes(seen.superblock.bytes)),
            (
                "image",
                format!("{} on the disk", output::bytes(seen.image_taken_bytes)),
            ),
            ("journal", output::bytes(seen.journal_bytes)),
            ("in use", in_use),
            ("device", device),
            ("lenders", list(&self.lenders(), "none: the local disk alone")),
            (
                "data lender",
                (self.settings.data_lender.as_ref()).map_or_else(
                    || "none: this disk has the only copy".to_owned(),
                    ToString::to_string,
                ),
            ),
            ("newest writes at", list(&seen.members, "this disk")),
            ("flush", self.flush().to_owned()),
        ]
    }

    /// Returns the lines about an open volume.
    fn live_lines(&self) -> Vec<(&'static str, String)> {
        let Some(report) = &self.live else {
            return Vec::new();
        };
        let (stages, journal) = (&report.stages, &report.journal);
        let mut lines = vec![
            (
                "not in the image",
                format!(
                    "{} in the open stage, {} in {} closed; {} of memory (at most {} so far)",
                    output::bytes(stages.open_bytes),
                    output::bytes(stages.closed_bytes),
                    stages.closed,
                    output::bytes(stages.memory_bytes),
                    output::bytes(stages.memory_bytes_max)
                ),
            ),
            (
                "not on the disk",
                output::bytes(journal.tail.saturating_sub(journal.stable)),
            ),
            (
                "recovered",
                format!(
                    "{} ({} from lenders), {} unchecked",
                    output::count(report.recovered.records, "record"),
                    output::thousands(report.recovered.records_from_members.cast_signed()),
                    output::count(report.recovered.unverified_blocks, "block")
                ),
            ),
        ];
        lines.extend(report.lenders.iter().map(|lender| {
            let reason = lender
                .reason
                .as_ref()
                .map_or(String::new(), |why| format!(". {why}"));
            let domain = match lender.domain.as_str() {
                "" => String::new(),
                domain => format!(", {domain}"),
            };
            (
                "lender",
                format!(
                    "{}: {}, link {}{domain}{reason}",
                    lender.address, lender.role, lender.link
                ),
            )
        }));
        if !report.lenders.is_empty() && !journal.copies.is_empty() {
            lines.push(("copies", journal.copies.clone()));
        }
        lines.extend(report.data_lender.as_ref().map(|status| ("copy", copy(status))));
        lines.extend(report.restoring.as_ref().map(|progress| {
            let (done, total) = (output::bytes(progress.done), output::bytes(progress.total));
            ("restoring", format!("{done} of {total} looked at"))
        }));
        let why = |what, why: &Option<String>| why.clone().map(|why| (what, why));
        lines.extend(why("waits for disk", &journal.blocked));
        lines.extend(why("image fails", &report.failure));
        lines.extend(why("journal fails", &journal.disk_error));
        lines.extend(why("journal waits", &journal.disk_refused));
        lines.push(("counters", counted(&report.counters)));
        if let Some(front) = &report.front {
            lines.push((
                "front end",
                format!("{}: {}", front.kind, counted(&front.counters)),
            ));
        }
        lines
    }
}

/// Returns the state of the data lender's copy.
fn copy(status: &DataLenderStatus) -> String {
    let mut text = match (&status.trouble, status.in_service) {
        (Some(trouble), _) => trouble.clone(),
        (None, true) => "in service".to_owned(),
        (None, false) => "not in service".to_owned(),
    };
    if let Some(condition) = &status.condition {
        text = format!("{text}, {condition}");
    }
    text = format!("{text}, {} behind", output::bytes(status.lag_bytes));
    if status.dirty_blocks > 0 {
        text = format!(
            "{text}, {} to be sent",
            output::count(status.dirty_blocks, "block")
        );
    }
    if status.no_recovery_key {
        text = format!("{text}; cannot be restored elsewhere: no recovery key, see `netram volume rekey`");
    }
    if let Some(resync) = &status.resync {
        text = format!(
            "{text}; resync: {} of {} blocks, {} a second",
            resync.done_blocks, resync.total_blocks, resync.blocks_a_second
        );
    }
    text
}

fn counted(counters: &std::collections::BTreeMap<String, u64>) -> String {
    let counted: Vec<String> = counters
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{name} {}", output::thousands(count.cast_signed())))
        .collect();
    list(&counted, "nothing yet")
}

fn list(names: &[String], none: &str) -> String {
    match names.is_empty() {
        true => none.to_owned(),
        false => names.join(", "),
    }
}
