//! `netram rvm status`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_proto::id::Lsn;
use netram_rvm::{SegmentIdentity, SegmentView};
use netram_store::StoreSettings;
use serde_json::{Value, json};

use super::heaps::{HeapState, SegmentHeap, account, heap_in, too_large};
use super::inspection::{LogInspection, hex};
use super::verdict::LogVerdict;
use crate::command::journal::{members_hold, view_as_json};
use crate::output;

/// Show a log's positions, segments, heaps, lenders and settings
///
/// Nothing is changed and no lender is asked; a program may have the log open. The exit code is
/// 1 if the log is damaged; `netram rvm check` looks for all damage.
///
///   netram rvm status bank.log
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowLog {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Everything that is shown of a log.
struct LogDescription {
    inspection: LogInspection,
    end: Lsn,
    records: u64,
    verdict: LogVerdict,
    segments: Result<Vec<SegmentDescription>>,
    settings: Result<StoreSettings, String>,
}

/// A segment, with its file's length or why the file cannot be used.
struct SegmentDescription {
    view: SegmentView,
    file: Result<u64, String>,
    heap: Option<SegmentHeap>,
}

impl ShowLog {
    pub(super) fn run(self) -> Result<ExitCode> {
        let look = LogInspection::at(&self.log)?;
        let verified = look.inspect.verify(&mut |_| true);
        let (overlays, verdict) = look.overlays(&mut |_| true).unwrap_or_else(|error| {
            let damage = vec![output::sentence(&error)];
            let notes = Vec::new();
            (BTreeMap::new(), LogVerdict { damage, notes })
        });
        // Without all of the log, the state of a heap is unknown. A file that cannot be read is reported as
        // such.
        let heap = |view: &SegmentView| match verdict.damage.is_empty() {
            true => heap_in(view, overlays.get(&view.number)).ok().flatten(),
            false => None,
        };
        let segments = look.table().map(|table| {
            let opened = table.segments.into_iter().map(|view| SegmentDescription {
                file: view
                    .open()
                    .map(|file| file.len())
                    .map_err(|error| error.to_string()),
                heap: heap(&view),
                view,
            });
            opened.collect()
        });
        let settings = look.home.settings().map_err(|error| error.to_string());
        let shown = LogDescription {
            inspection: look,
            end: verified.scan.end.lsn,
            records: verified.scan.records,
            verdict,
            segments,
            settings,
        };
        match self.json {
            true => output::json(&shown.json())?,
            false => shown.print()?,
        }
        Ok(shown.verdict.exit_code())
    }
}

impl LogDescription {
    fn json(&self) -> Value {
        let (inspect, home) = (&self.inspection.inspect, &self.inspection.home);
        let superblock = inspect.superblock();
        let segments = self.segments.as_ref().map(|segments| {
            let all = segments.iter().map(|SegmentDescription { view, file, heap }| {
                json!({
                    "number": view.number,
                    "path": view.path,
                    "length": view.length,
                    "identity": identity(&view.identity),
                    "file_bytes": file.as_ref().ok(),
                    "trouble": file.as_ref().err(),
                    "heap": heap.as_ref().map(heap_as_json),
                })
            });
            all.collect::<Vec<_>>()
        });
        json!({
            "journal": superblock.journal.to_string(),
            "log": home.log(),
            "capacity": inspect.capacity(),
            "head": superblock.head.lsn.0,
            "stable": superblock.stable.0,
            "end": self.end.0,
            "records": self.records,
            "in_use": inspect.in_use(),
            "reservation": self.inspection.reservation(),
            "damage": self.verdict.damage,
            "notes": self.verdict.notes,
            "view": view_as_json(inspect.view()),
            "segment_table": home.segments(),
            "segment_table_trouble": self.segments.as_ref().err().map(output::sentence),
            "segments": segments.unwrap_or_default(),
            "settings_file": home.settings_file(),
            "settings_trouble": self.settings.as_ref().err(),
            "settings": self.settings.as_ref().ok().map(settings_as_json),
        })
    }

    fn print(&self) -> Result<()> {
        let (inspect, home) = (&self.inspection.inspect, &self.inspection.home);
        let superblock = inspect.superblock();
        let used = self.end.since(superblock.head.lsn);
        let capacity = inspect.capacity();
        output::line(format_args!("journal   {}", superblock.journal))?;
        output::line(format_args!(
            "log       {}, {} of {} in use ({:.0} %)",
            home.log().display(),
            output::bytes(used),
            output::bytes(capacity),
            used as f64 * 100.0 / capacity as f64
        ))?;
        output::line(format_args!(
            "          LSN {} to {} on this disk: {} to apply to segments",
            superblock.head.lsn,
            self.end,
            output::count(self.records, "record")
        ))?;
        self.print_view()?;
        self.print_segments()?;
        self.print_settings()?;
        if let Some(sentence) = self.inspection.reservation() {
            output::line(format_args!("note      {sentence}"))?;
        }
        self.verdict.print()
    }

    fn print_view(&self) -> Result<()> {
        let view = self.inspection.inspect.view();
        output::line(format_args!(
            "view      {} of epoch {}, commit rule {}",
            view.version, view.epoch, view.rule
        ))?;
        if view.members.is_empty() {
            return output::line("lenders   none: this disk has everything");
        }
        for member in &view.members {
            output::line(format_args!(
                "lender    {} (power domain `{}`), {}",
                member.address,
                member.domain,
                members_hold(view, "commits")
            ))?;
        }
        Ok(())
    }

    fn print_segments(&self) -> Result<()> {
        let segments = match &self.segments {
            Err(error) => {
                return output::line(format_args!("segments  UNKNOWN: {}", output::sentence(error)));
            }
            Ok(segments) if segments.is_empty() => return output::line("segments  none"),
            Ok(segments) => segments,
        };
        for SegmentDescription { view, file, heap } in segments {
            output::line(format_args!(
                "segment   {} {}, {}, identity {}",
                view.number,
                view.path,
                output::bytes(view.length),
                identity(&view.identity).unwrap_or_else(|| "none".to_owned())
            ))?;
            match file {
                Err(trouble) => output::line(format_args!("          UNUSABLE: {trouble}"))?,
                Ok(length) if *length > view.length => output::line(format_args!(
                    "          the file has grown to {} since it was last mapped",
                    output::bytes(*length)
                ))?,
                Ok(_) => (),
            }
            match heap.as_ref().map(|heap| &heap.state) {
                Some(HeapState::Whole(report)) => {
                    output::line(format_args!("          {}", account(report)))?;
                }
                Some(HeapState::TooLarge(bytes)) => {
                    output::line(format_args!("          {}", too_large(*bytes)))?;
                }
                Some(HeapState::Unusable(why)) => {
                    output::line(format_args!("          heap UNUSABLE: {why}"))?;
                }
                None => (),
            }
        }
        Ok(())
    }

    fn print_settings(&self) -> Result<()> {
        let file = self.inspection.home.settings_file();
        let from = match file.exists() {
            true => format!("{}, and the environment", file.display()),
            false => format!("the environment; there is no {}", file.display()),
        };
        output::line(format_args!("settings  from {from}"))?;
        let settings = match &self.settings {
            Ok(settings) => settings,
            Err(trouble) => return output::line(format_args!("          UNUSABLE: {trouble}")),
        };
        let Value::Object(fields) = settings_as_json(settings) else {
            return Ok(());
        };
        if !settings.uses_lenders() {
            output::line("          no lenders: commits wait for this disk")?;
        }
        for (name, value) in fields.iter().filter(|(_, value)| is_set(value)) {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Array(all) => {
                    let texts: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
                    texts.join(", ")
                }
                other => other.to_string(),
            };
            output::line(format_args!("          {name} = {value}"))?;
        }
        Ok(())
    }
}

fn heap_as_json(heap: &SegmentHeap) -> Value {
    let (report, too_large, trouble) = match &heap.state {
        HeapState::Whole(report) => (Some(report), None, None),
        HeapState::TooLarge(bytes) => (None, Some(*bytes), None),
        HeapState::Unusable(why) => (None, None, Some(why)),
    };
    json!({
        "offset": heap.offset,
        "trouble": trouble,
        "looked_into": report.is_some(),
        "bytes": report.map(|report| report.bytes).or(too_large),
        "blocks": report.map(|report| report.blocks.len()),
        "bytes_taken": report.map(|report| report.bytes_taken),
        "bytes_free": report.map(|report| report.free.iter().map(|(_, bytes)| bytes).sum::<u64>()),
        "largest_free": report.and_then(|report| report.free.iter().map(|(_, bytes)| bytes).max()),
        "free_extents": report.map(|report| report.free.len()),
        "roots": report.map(|report| report.roots.len()),
        "loose_roots": report.map(|report| &report.loose_roots),
    })
}

/// Whether a setting differs from its default.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(all) => !all.is_empty(),
        _ => true,
    }
}

fn identity(identity: &SegmentIdentity) -> Option<String> {
    (*identity != SegmentIdentity::default()).then(|| hex(identity, identity.len()))
}

/// Returns the settings under their names in the file: of the key, its file's name and never its contents.
fn settings_as_json(settings: &StoreSettings) -> Value {
    json!({
        "lenders": settings.lender_names(),
        "key-file": settings.key_file,
        "insecure": settings.insecure,
        "members": settings.members,
        "members-min": settings.members_min,
        "rule": settings.rule.map(|rule| rule.to_string()),
        "domain": settings.domain,
        "one-domain": settings.one_domain,
        "wait": settings.wait.map(|wait| wait.to_string()),
        "window": settings.window_bytes,
        "truncation-threshold": settings.truncation_threshold_percent,
        "spool": settings.spool_bytes,
    })
}
