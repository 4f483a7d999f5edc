//! The state of a cluster, kept from what each question brings.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netram_journal::JournalEvent;
use netram_journal::orders::JournalReport;

use super::alerts::AlertTracker;
use super::latency::LatencyHistory;
use super::rows::{ClusterEvent, ClusterView, JournalRow, LenderRow, Moment, ProcessRow, ServiceRow};
use crate::limit::{EVENTS_KEPT, FORGET_AFTER, LATENCY_JOURNALS_MAX, LATENCY_POINTS, TEXT_BYTES_MAX};
use crate::words::plain;

/// Maximum number of events of a journal that are taken when it is first seen.
const EVENTS_AT_FIRST: usize = 12;
/// Maximum number of lenders and of risks of a journal that are taken.
const PARTS_MAX: usize = 32;

/// The outcome of a question.
#[derive(Debug)]
pub enum Sighting {
    /// A lender's answer.
    Lender {
        /// Its address.
        address: String,
        /// Its state, or why there is none.
        answer: Result<Box<LenderRow>, String>,
    },
    /// The lenders that sources name now, each with its sources, and the name and domain that these say.
    Named(Vec<LenderRow>),
    /// The answer of a process that has a journal open.
    Journal {
        /// Its socket.
        socket: String,
        /// Its state, or why there is none.
        answer: Result<Box<JournalReport>, String>,
    },
    /// A journal is not open any more.
    Closed(String),
    /// A page of metrics.
    Process {
        /// The page.
        page: String,
        /// Its contents, or why it does not answer.
        answer: Result<Box<PageSighting>, String>,
    },
    /// The uses of journals of this machine: directory, kind, and name.
    Uses(Vec<(String, String, String)>),
    /// Remarks of a search.
    Remarks(Vec<String>),
    /// All that is known has been asked.
    Complete,
}

/// The contents of a page of metrics.
#[derive(Debug, Default)]
pub struct PageSighting {
    /// Its journals.
    pub journals: Vec<JournalRow>,
    /// Its lenders.
    pub lenders: Vec<LenderRow>,
    /// Its volumes, mounts, databases and regions.
    pub services: Vec<ServiceRow>,
}

/// The state of a cluster. Time and answers go in; a view comes out.
#[derive(Debug, Default)]
pub struct ClusterWatcher {
    lenders: BTreeMap<String, LenderRow>,
    journals: BTreeMap<String, KnownJournal>,
    pages: BTreeMap<String, KnownPage>,
    uses: BTreeMap<String, (String, String)>,
    histories: BTreeMap<String, LatencyHistory>,
    total: LatencyHistory,
    events: VecDeque<ClusterEvent>,
    remarks: Vec<String>,
    tracker: AlertTracker,
    is_complete: bool,
}

#[derive(Debug, Default)]
struct KnownJournal {
    row: JournalRow,
    last_event: Option<JournalEvent>,
}

#[derive(Debug, Default)]
struct KnownPage {
    row: ProcessRow,
    found: PageSighting,
}

impl ClusterWatcher {
    /// Takes what a question brought.
    pub fn handle(&mut self, now: Moment, sighting: Sighting) {
        match sighting {
            Sighting::Lender { address, answer } => self.on_lender(now, address, answer),
            Sighting::Named(named) => self.on_named(now, named),
            Sighting::Journal { socket, answer } => self.on_journal(now, socket, answer),
            Sighting::Closed(socket) => {
                if let Some(known) = self.journals.remove(&socket) {
                    self.histories.remove(&known.row.key());
                    self.note(
                        now,
                        &known.row.path,
                        "it was closed, or its process ended".to_owned(),
                    );
                }
            }
            Sighting::Process { page, answer } => self.on_process(now, page, answer),
            Sighting::Uses(uses) => {
                self.uses = uses
                    .into_iter()
                    .map(|(path, kind, name)| (path, (kind, name)))
                    .collect();
            }
            Sighting::Remarks(remarks) => self.remarks = remarks.iter().map(|remark| clip(remark)).collect(),
            Sighting::Complete => self.is_complete = true,
        }
    }

    fn on_lender(&mut self, now: Moment, address: String, answer: Result<Box<LenderRow>, String>) {
        let known = self.lenders.entry(address.clone()).or_insert_with(|| LenderRow {
            address: address.clone(),
            ..LenderRow::default()
        });
        let (was_up, was_seen) = (known.error.is_none(), known.seen_ms > 0);
        let event = match answer {
            Ok(row) => {
                let found_by = std::mem::take(&mut known.found_by);
                *known = LenderRow {
                    address: address.clone(),
                    found_by,
                    seen_ms: now.unix_ms,
                    error: None,
                    ..clipped_lender(*row)
                };
                (was_seen && !was_up).then(|| "it answers again".to_owned())
            }
            Err(error) => {
                let error = clip(&error);
                let event = (was_seen && was_up).then(|| format!("it does not answer: {error}"));
                known.error = Some(error);
                event
            }
        };
        if let Some(what) = event {
            let title = known.title().to_owned();
            self.note(now, &title, what);
        }
    }

    fn on_named(&mut self, now: Moment, named: Vec<LenderRow>) {
        let names: BTreeSet<String> = named.iter().map(|row| row.address.clone()).collect();
        for row in named {
            match self.lenders.entry(row.address.clone()) {
                Entry::Occupied(known) => known.into_mut().found_by = row.found_by,
                Entry::Vacant(new) => {
                    new.insert(LenderRow {
                        error: Some("it has not answered yet".to_owned()),
                        ..clipped_lender(row)
                    });
                }
            }
        }
        let patience = FORGET_AFTER.as_millis() as u64;
        self.lenders.retain(|address, lender| {
            names.contains(address) || lender.error.is_none() || lender.seen_ms + patience > now.unix_ms
        });
    }

    /// Whether a lender is known.
    pub fn has_lender(&self, address: &str) -> bool {
        self.lenders.contains_key(address)
    }

    fn on_journal(&mut self, now: Moment, socket: String, answer: Result<Box<JournalReport>, String>) {
        let known = self.journals.entry(socket.clone()).or_default();
        let report = match answer {
            Ok(report) => report,
            Err(error) => {
                if known.row.path.is_empty() {
                    known.row.kind = "journal".to_owned();
                    known.row.path = socket;
                    known.row.name.clone_from(&known.row.path);
                }
                known.row.error = Some(clip(&error));
                return;
            }
        };
        let mut row = clipped_journal(JournalRow::of_report(&report));
        row.seen_ms = now.unix_ms;
        if row.path.is_empty() {
            // An earlier release does not tell its directory.
            row.path = clip(&report.journal);
            row.name.clone_from(&row.path);
        }
        let key = row.key();
        known.row = row;
        let events = &report.events;
        let begin = match &known.last_event {
            None => events.len().saturating_sub(EVENTS_AT_FIRST),
            Some(last) => events
                .iter()
                .rposition(|event| event == last)
                .map_or(0, |index| index + 1),
        };
        known.last_event = events.last().cloned().or(known.last_event.take());
        for event in &events[begin..] {
            self.push(ClusterEvent {
                unix_ms: event.unix_seconds.saturating_mul(1000),
                subject: clip(&report.path),
                what: clip(&event.what),
            });
        }
        self.count(now, key, &report.commits);
    }

    fn on_process(&mut self, now: Moment, page: String, answer: Result<Box<PageSighting>, String>) {
        let known = self.pages.entry(page.clone()).or_default();
        known.row.page.clone_from(&page);
        let was_up = known.row.error.is_none();
        let found = match answer {
            Ok(found) => *found,
            Err(error) => {
                let error = clip(&error);
                let event = (known.row.seen_ms > 0 && was_up).then(|| format!("it does not answer: {error}"));
                for journal in &mut known.found.journals {
                    journal.error = Some(error.clone());
                }
                for lender in &mut known.found.lenders {
                    lender.error = Some(error.clone());
                }
                known.row.error = Some(error);
                if let Some(what) = event {
                    self.note(now, &page, what);
                }
                return;
            }
        };
        let came_back = known.row.seen_ms > 0 && !was_up;
        known.row.error = None;
        known.row.seen_ms = now.unix_ms;
        known.row.journals = found.journals.len();
        let seen = |row| JournalRow {
            host: page.clone(),
            seen_ms: now.unix_ms,
            ..clipped_journal(row)
        };
        known.found = PageSighting {
            journals: found.journals.into_iter().map(seen).collect(),
            lenders: found.lenders.into_iter().map(clipped_lender).collect(),
            services: found.services,
        };
        for lender in &mut known.found.lenders {
            lender.seen_ms = now.unix_ms;
        }
        let is_twice = |row: &&JournalRow| is_twice(&self.journals, row);
        let counted = known.found.journals.iter().filter(|row| !is_twice(row));
        let counted: Vec<_> = counted.map(|row| (row.key(), row.commits.clone())).collect();
        for (key, commits) in counted {
            self.count(now, key, &commits);
        }
        if came_back {
            self.note(now, &page, "it answers again".to_owned());
        }
    }

    /// Counts commits of a journal.
    fn count(&mut self, now: Moment, key: String, commits: &[u64]) {
        if !self.histories.contains_key(&key) && self.histories.len() >= LATENCY_JOURNALS_MAX {
            return;
        }
        let gained = self.histories.entry(key).or_default().read(now.mono_ms, commits);
        self.total.add(now.mono_ms, &gained);
    }

    fn note(&mut self, now: Moment, subject: &str, what: String) {
        self.push(ClusterEvent {
            unix_ms: now.unix_ms,
            subject: subject.to_owned(),
            what,
        });
    }

    fn push(&mut self, event: ClusterEvent) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The state of this moment, the worst first.
    pub fn view(&mut self, now: Moment) -> ClusterView {
        let mut journals: Vec<JournalRow> = self.journals.values().map(|known| known.row.clone()).collect();
        for journal in &mut journals {
            if let Some((kind, name)) = self.uses.get(&journal.path) {
                (journal.kind, journal.name) = (kind.clone(), name.clone());
            }
        }
        let of_pages = self.pages.values().flat_map(|page| &page.found.journals);
        journals.extend(of_pages.filter(|row| !is_twice(&self.journals, row)).cloned());
        for journal in &mut journals {
            let history = self.histories.get_mut(&journal.key());
            journal.hour = history.map(|history| history.hour(now.mono_ms));
        }
        let mut lenders: Vec<LenderRow> = self.lenders.values().cloned().collect();
        let of_pages = self.pages.values().flat_map(|page| &page.found.lenders);
        for lender in of_pages {
            // One that is asked itself tells more; its page has what only its operator may know.
            match lenders.iter_mut().find(|other| other.name == lender.name) {
                Some(asked) => asked.spills_failed = lender.spills_failed,
                None => lenders.push(lender.clone()),
            }
        }
        let hour = self.total.hour(now.mono_ms);
        let mut events: Vec<ClusterEvent> = self.events.iter().cloned().collect();
        events.sort_by(|a, b| b.cmp(a));
        let mut view = ClusterView {
            now,
            is_complete: self.is_complete,
            lenders,
            journals,
            processes: self.pages.values().map(|page| page.row.clone()).collect(),
            services: self
                .pages
                .values()
                .flat_map(|page| page.found.services.clone())
                .collect(),
            events,
            person: Vec::new(),
            hour,
            curve: self.total.curve(LATENCY_POINTS),
            remarks: self.remarks.clone(),
        };
        self.tracker.judge(&mut view);
        view.sort();
        view
    }
}

impl ClusterView {
    /// Puts the worst lenders and journals first.
    pub fn sort(&mut self) {
        let of_lender = |row: &LenderRow| {
            (
                u8::MAX - row.worry,
                row.error.is_none(),
                row.domain.clone(),
                row.title().to_owned(),
            )
        };
        self.lenders.sort_by_cached_key(of_lender);
        let alone = |row: &JournalRow| row.risk("this machine").map_or(0, |risk| risk.bytes);
        self.journals.sort_by_cached_key(|row| {
            (
                u8::MAX - row.worry,
                u64::MAX - alone(row),
                row.error.is_none(),
                row.host.clone(),
                row.name.clone(),
            )
        });
    }
}

/// Whether a journal of a page is one whose own process tells more.
fn is_twice(journals: &BTreeMap<String, KnownJournal>, row: &JournalRow) -> bool {
    row.is_here() && journals.values().any(|known| known.row.path == row.path)
}

/// Foreign text without control characters, and not longer than it may be.
pub(crate) fn clip(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    match end < text.len() {
        true => format!("{}…", plain(&text[..end])),
        false => plain(text),
    }
}

fn clipped_lender(row: LenderRow) -> LenderRow {
    LenderRow {
        name: clip(&row.name),
        domain: clip(&row.domain),
        state: clip(&row.state),
        ..row
    }
}

fn clipped_journal(mut row: JournalRow) -> JournalRow {
    for text in [&mut row.path, &mut row.name, &mut row.copies] {
        *text = clip(text);
    }
    for text in [&mut row.blocked, &mut row.disk_error, &mut row.disk_refused]
        .into_iter()
        .flatten()
    {
        *text = clip(text);
    }
    row.lenders.truncate(PARTS_MAX);
    for lender in &mut row.lenders {
        lender.address = clip(&lender.address);
        lender.domain = clip(&lender.domain);
        lender.why_not = lender.why_not.as_deref().map(clip);
    }
    row.risks.truncate(PARTS_MAX);
    for risk in &mut row.risks {
        risk.lost = clip(&risk.lost);
    }
    row
}

#[cfg(test)]
mod tests;
