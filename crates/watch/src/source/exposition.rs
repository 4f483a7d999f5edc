//! Reads a page of metrics: the lines that tell of journals, lenders, volumes, mounts, databases and
//! regions. Others are skipped.

use std::collections::BTreeMap;

use netram_telemetry::histogram::{BUCKETS, bound_s};

use crate::limit::JOURNALS_PER_PAGE_MAX;
use crate::view::{JournalRow, LenderRow, MemberRow, PageSighting, RiskRow, ServiceRow};

/// One value of a page.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> &str {
        let mut same = self.labels.iter().filter(|(other, _)| other == name);
        same.next().map_or("", |(_, value)| value.as_str())
    }

    /// The value as a count: nothing below zero, and no fraction.
    fn count(&self) -> u64 {
        self.value as u64
    }
}

/// Reads a line; `None` if it is a comment or no value.
fn sample(line: &str) -> Option<Sample> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    if name.starts_with('#') {
        return None;
    }
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            inside = inside.trim_start_matches([',', ' ']);
            if let Some(behind) = inside.strip_prefix('}') {
                rest = behind;
                break;
            }
            let (label, behind) = inside.split_once("=\"")?;
            let (value, behind) = quoted(behind)?;
            labels.push((label.to_owned(), value));
            inside = behind;
        }
    }
    // A time may follow, which nobody here writes.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads a quoted value up to its closing quote. Returns it, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// The contents of a page. Text that is no page tells nothing.
pub fn read_page(text: &str) -> PageSighting {
    let mut journals: BTreeMap<String, JournalRow> = BTreeMap::new();
    let mut lenders: BTreeMap<String, LenderRow> = BTreeMap::new();
    let mut services: BTreeMap<String, ServiceRow> = BTreeMap::new();
    for sample in text
        .lines()
        .filter(|line| line.starts_with("netram_"))
        .filter_map(sample)
    {
        if let Some(label) = service_label(&sample.name) {
            if let Some(row) = row(&mut services, sample.label(label)) {
                of_service(row, &sample);
            }
        } else if sample.name.starts_with("netram_lender_") {
            if let Some(row) = row(&mut lenders, sample.label("lender")) {
                of_lender(row, &sample);
            }
        } else if let Some(row) = row(&mut journals, sample.label("journal")) {
            of_journal(row, &sample);
        }
    }
    PageSighting {
        journals: journals
            .into_iter()
            .map(|(path, row)| finished(path, row))
            .collect(),
        lenders: lenders.into_iter().map(|(name, row)| named(name, row)).collect(),
        services: services
            .into_iter()
            .map(|(path, row)| ServiceRow { path, ..row })
            .collect(),
    }
}

/// The row of a name; `None` if the sample has none, or there are too many.
fn row<'a, T: Default>(rows: &'a mut BTreeMap<String, T>, name: &str) -> Option<&'a mut T> {
    let has_room = rows.len() < JOURNALS_PER_PAGE_MAX || rows.contains_key(name);
    (!name.is_empty() && has_room).then(|| rows.entry(name.to_owned()).or_default())
}

fn of_journal(row: &mut JournalRow, sample: &Sample) {
    let count = sample.count();
    let is_set = sample.value > 0.0;
    match sample.name.as_str() {
        "netram_commit_duration_seconds_bucket" => of_bucket(row, sample),
        "netram_journal_window_stalls_total" => row.window_stalls = count,
        "netram_journal_members" => row.members = count as u32,
        "netram_journal_members_wanted" => row.members_wanted = count as u32,
        "netram_journal_degraded" => row.blocked = is_set.then(|| "too few lenders count".to_owned()),
        "netram_journal_failed" => row.disk_error = is_set.then(|| "see its log".to_owned()),
        "netram_journal_disk_refused" => row.disk_refused = is_set.then(|| "see its log".to_owned()),
        "netram_journal_fenced" => row.fenced = is_set.then_some(0),
        "netram_journal_log_used_bytes" => row.used = count,
        "netram_journal_log_capacity_bytes" => row.capacity = count,
        "netram_journal_unsynced_bytes" => row.unsynced = count,
        "netram_at_risk_bytes" => risk(row, sample).bytes = count,
        "netram_at_risk_age_seconds" => risk(row, sample).age_ms = (sample.value * 1000.0) as u64,
        "netram_journal_lender_up" => row.lenders.push(MemberRow {
            address: sample.label("lender").to_owned(),
            domain: sample.label("domain").to_owned(),
            member: true,
            removed: false,
            why_not: (!is_set).then(|| "its client cannot reach it: is its process running?".to_owned()),
        }),
        _ => (),
    }
}

fn risk<'a>(row: &'a mut JournalRow, sample: &Sample) -> &'a mut RiskRow {
    let lost = sample.label("lost");
    let index = row
        .risks
        .iter()
        .position(|risk| risk.lost == lost)
        .unwrap_or_else(|| {
            row.risks.push(RiskRow {
                lost: lost.to_owned(),
                ..RiskRow::default()
            });
            row.risks.len() - 1
        });
    &mut row.risks[index]
}

/// Adds a bucket, which counts the smaller ones, too, until [`finished`] takes them out.
fn of_bucket(row: &mut JournalRow, sample: &Sample) {
    let bound = sample.label("le").parse().unwrap_or(f64::NAN);
    let index = (0..BUCKETS).find(|index| bound_s(*index) == bound);
    if let Some(index) = index {
        row.commits.resize(BUCKETS, 0);
        row.commits[index] += sample.count();
    }
}

fn finished(path: String, mut row: JournalRow) -> JournalRow {
    for index in (1..row.commits.len()).rev() {
        row.commits[index] = row.commits[index].saturating_sub(row.commits[index - 1]);
    }
    row.settled = row.members >= row.members_wanted;
    row.copies = match row.lenders.is_empty() {
        true => "no lenders".to_owned(),
        false => format!("{} of {} members", row.members, row.members_wanted),
    };
    row.kind = "journal".to_owned();
    row.name.clone_from(&path);
    JournalRow { path, ..row }
}

fn of_lender(row: &mut LenderRow, sample: &Sample) {
    let count = sample.count();
    match sample.name.as_str() {
        "netram_lender_reserved_bytes" => row.lent = count,
        "netram_lender_offered_bytes" => row.offered = count,
        "netram_lender_lent_bytes" => row.used = count,
        "netram_lender_journals" => row.journals = count as u32,
        "netram_lender_journals_max" => row.journals_max = count as u32,
        "netram_lender_on_battery" => row.on_battery = count > 0,
        "netram_lender_draining" if count > 0 => row.state = "draining".to_owned(),
        "netram_lender_silent_seconds" => row.silent_s = row.silent_s.max(count),
        "netram_lender_spills_failed_total" => row.spills_failed = count,
        "netram_lender_handshakes_failed_total" if sample.label("cause") == "wrong_key" => {
            row.wrong_keys = count
        }
        _ => (),
    }
    let domain = sample.label("domain");
    if !domain.is_empty() {
        domain.clone_into(&mut row.domain);
    }
}

fn named(name: String, mut row: LenderRow) -> LenderRow {
    row.free = row.lent.saturating_sub(row.used);
    if row.state.is_empty() {
        row.state = "lending".to_owned();
    }
    LenderRow {
        address: format!("{name}, by its metrics"),
        found_by: vec!["metrics".to_owned()],
        name,
        ..row
    }
}

/// The label that names the volume, mount, database or region of a metric.
fn service_label(metric: &str) -> Option<&'static str> {
    let kinds = [
        ("netram_volume_", "volume"),
        ("netram_mount_", "mount"),
        ("netram_sqlite_", "database"),
        ("netram_region_", "region"),
    ];
    let kind = kinds.into_iter().find(|(begin, _)| metric.starts_with(begin));
    kind.map(|(_, label)| label)
}

fn of_service(row: &mut ServiceRow, sample: &Sample) {
    match sample.name.as_str() {
        "netram_volume_failing" => row.failing = sample.value > 0.0,
        "netram_volume_front_errors_total" => row.front_errors += sample.count(),
        "netram_volume_corrupt_reads_total" => row.corrupt_reads = sample.count(),
        "netram_volume_data_lender_in_service" => row.copy_out |= sample.value == 0.0,
        "netram_mount_checkpoints_failing" | "netram_sqlite_checkpoints_failing" => {
            row.checkpoints_fail |= sample.value > 0.0;
        }
        "netram_region_nodes" if sample.label("state") == "stuck" => row.stuck_nodes = sample.count(),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use netram_telemetry::{LatencyHistogram, MetricFamily, MetricSamples, MetricsFormat};

    use super::*;

    #[test]
    fn a_page_of_ours_is_read_back_in_both_formats() {
        static COMMIT: MetricFamily = MetricFamily::histogram("netram_commit_duration_seconds", "Commits.");
        static RISK: MetricFamily = MetricFamily::gauge("netram_at_risk_bytes", "Bytes.");
        static AGE: MetricFamily = MetricFamily::gauge("netram_at_risk_age_seconds", "Age.");
        static UP: MetricFamily = MetricFamily::gauge("netram_journal_lender_up", "Up.");
        static WANTED: MetricFamily = MetricFamily::gauge("netram_journal_members_wanted", "Wanted.");
        let path = "/srv/a \"b\"\\\n";
        let histogram = LatencyHistogram::new();
        for nanoseconds in [1, 7_000, 7_000, u64::MAX] {
            histogram.record_ns(nanoseconds);
        }
        for format in [MetricsFormat::OpenMetrics, MetricsFormat::Prometheus] {
            let mut samples = MetricSamples::default();
            for by in ["members", "disk"] {
                samples.histogram(&COMMIT, &[("journal", path), ("by", by)], &histogram);
            }
            samples.gauge(&RISK, &[("journal", path), ("lost", "all")], 4096.0);
            samples.gauge(&AGE, &[("journal", path), ("lost", "all")], 1.5);
            samples.gauge(
                &UP,
                &[("journal", path), ("lender", "tcp://a:1"), ("domain", "ups-1")],
                0.0,
            );
            samples.gauge(&WANTED, &[("journal", path)], 2.0);
            let found = read_page(&samples.into_text(format));
            let [row] = &found.journals[..] else {
                panic!("{found:?}")
            };
            assert_eq!(row.path, path);
            let twice: Vec<u64> = histogram
                .snapshot()
                .counts
                .iter()
                .map(|count| 2 * count)
                .collect();
            assert_eq!(row.commits, twice);
            let risk = row.risk("all").unwrap();
            assert_eq!((risk.bytes, risk.age_ms), (4096, 1500));
            assert!(row.lenders[0].why_not.is_some() && !row.settled);
        }
    }

    #[test]
    fn lenders_and_volumes_of_a_page_are_read() {
        let page = "netram_lender_lent_bytes{lender=\"ram-1\"} 25.0\n\
            netram_lender_reserved_bytes{lender=\"ram-1\"} 100.0\n\
            netram_lender_handshakes_failed_total{lender=\"ram-1\",cause=\"wrong_key\"} 3\n\
            netram_volume_failing{volume=\"/v\"} 1.0\n\
            netram_mount_checkpoints_failing{mount=\"/m\"} 1.0\n\
            netram_region_nodes{region=\"/plan\",state=\"live\"} 4.0\n\
            netram_region_nodes{region=\"/plan\",state=\"stuck\"} 2.0\n";
        let found = read_page(page);
        let lender = &found.lenders[0];
        assert_eq!(
            (lender.name.as_str(), lender.free, lender.wrong_keys),
            ("ram-1", 75, 3)
        );
        let service = |path: &str| found.services.iter().find(|row| row.path == path).unwrap();
        assert!(service("/v").failing && service("/m").checkpoints_fail);
        assert_eq!(service("/plan").stuck_nodes, 2);
    }

    #[test]
    fn text_that_is_no_page_tells_nothing_and_a_huge_one_is_bounded() {
        for text in [
            "",
            "netram_",
            "netram_x{",
            "netram_x{a=\"",
            "netram_x{a=\"b\\",
            "netram_x{a=\"b\"} y",
            "é{ ",
        ] {
            assert!(read_page(text).journals.is_empty(), "{text}");
        }
        let lines = (0..2 * JOURNALS_PER_PAGE_MAX)
            .map(|number| format!("netram_journal_members{{journal=\"{number}\"}} -1e99\n"));
        let found = read_page(&lines.collect::<String>());
        assert_eq!(found.journals.len(), JOURNALS_PER_PAGE_MAX);
    }
}
