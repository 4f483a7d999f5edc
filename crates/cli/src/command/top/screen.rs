//! The screen of `netram top` as a value: keys go in, a frame comes out.

use std::time::Duration;

use netram_watch::view::summary::{ClusterSummary, SummaryQuery};
use netram_watch::view::{ClusterView, JournalRow, LenderRow};
use netram_watch::words::{age, bytes, count};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Widget, Wrap};

/// Age of the state from which it is called old.
const OLD: Duration = Duration::from_secs(6);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const WARN: Style = Style::new().fg(Color::Yellow);
const GOOD: Style = Style::new().fg(Color::Green);
const QUIET: Style = Style::new().fg(Color::DarkGray);

/// A list that keys move in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TopList {
    Person,
    #[default]
    Journals,
    Lenders,
    Events,
}

impl TopList {
    const ALL: [TopList; 4] = [
        TopList::Person,
        TopList::Journals,
        TopList::Lenders,
        TopList::Events,
    ];
}

/// The choices of the user.
#[derive(Debug, Default)]
pub(super) struct TopScreen {
    pub(super) list: TopList,
    /// First row that is shown of each list.
    pub(super) offsets: [usize; 4],
    pub(super) search: String,
    pub(super) is_typing: bool,
}

impl TopScreen {
    /// Takes a key. Returns whether the user quits.
    pub(super) fn handle(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return true;
        }
        if self.is_typing {
            match key.code {
                KeyCode::Esc => {
                    self.is_typing = false;
                    self.search.clear();
                }
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Backspace => drop(self.search.pop()),
                KeyCode::Char(letter) if self.search.len() < 80 => self.search.push(letter),
                _ => (),
            }
            self.offsets = [0; 4];
            return false;
        }
        let step = match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('/') => {
                self.is_typing = true;
                return false;
            }
            KeyCode::Esc => {
                self.search.clear();
                return false;
            }
            KeyCode::Tab | KeyCode::Right => return self.turn(1),
            KeyCode::BackTab | KeyCode::Left => return self.turn(3),
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::PageDown => 10,
            KeyCode::PageUp => -10,
            KeyCode::Home => isize::MIN,
            _ => return false,
        };
        let offset = &mut self.offsets[self.list as usize];
        *offset = offset.saturating_add_signed(step);
        false
    }

    fn turn(&mut self, by: usize) -> bool {
        self.list = TopList::ALL[(self.list as usize + by) % TopList::ALL.len()];
        false
    }

    /// Draws a frame of any size.
    pub(super) fn draw(&mut self, area: Rect, out: &mut Buffer, view: &ClusterView, state_age: Duration) {
        let query = SummaryQuery {
            search: self.search.clone(),
            page: self.offsets[TopList::Journals as usize] / netram_watch::limit::JOURNALS_SHOWN,
        };
        let summary = view.summary(&query, state_age.as_millis() as u64);
        let person = (summary.person.len() as u16 * 2).clamp(1, (area.height / 4).max(2));
        let risks = (summary.risks.len() as u16).clamp(1, 5) + 1;
        let rows = [
            Constraint::Length(2),
            Constraint::Length(person + 2),
            Constraint::Length(risks + 2),
            Constraint::Fill(3),
            Constraint::Fill(2),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ];
        let [head, needs, risk, journals, lenders, latency, events, foot] =
            Layout::vertical(rows).areas(area);
        self.head(&summary, state_age).render(head, out);
        self.person(&summary).render(needs, out);
        at_risk(&summary).render(risk, out);
        self.journals(&summary, journals).render(journals, out);
        self.lenders(&summary, lenders).render(lenders, out);
        latencies(&summary).render(latency, out);
        self.events(&summary).render(events, out);
        self.foot().render(foot, out);
    }

    fn head<'a>(&self, summary: &ClusterSummary<'a>, state_age: Duration) -> Paragraph<'a> {
        let counts = &summary.counts;
        let verdict = match (counts.person_due, counts.person, summary.is_complete) {
            (0, 0, true) => Span::styled("well", GOOD),
            (0, 0, false) => Span::styled("asking everybody for the first time", QUIET),
            (0, watched, _) => Span::styled(format!("watching {}", count(watched as u64, "thing")), WARN),
            (1, ..) => Span::styled("1 thing needs a person", BAD),
            (due, ..) => Span::styled(format!("{due} things need a person"), BAD),
        };
        let silent = match counts.lenders_silent {
            0 => String::new(),
            silent => format!(" ({silent} without answer)"),
        };
        let told = format!(
            " · {}{silent} · {}",
            count(counts.lenders as u64, "lender"),
            count(counts.journals as u64, "journal")
        );
        let old = match state_age > OLD {
            true => Span::styled(format!(" · nothing new for {}", age(state_age)), BAD),
            false => Span::raw(""),
        };
        let first = Line::from(vec![
            Span::styled("netram  ", Modifier::BOLD),
            verdict,
            told.into(),
            old,
        ]);
        let silent = summary
            .silent_pages
            .iter()
            .map(|(page, why)| format!("{page} does not answer: {why}"));
        let remarks: Vec<String> = summary.remarks.iter().cloned().chain(silent).collect();
        Paragraph::new(vec![first, Line::styled(remarks.join(" · "), WARN)])
    }

    fn person<'a>(&self, summary: &ClusterSummary<'a>) -> Paragraph<'a> {
        let mut lines = Vec::new();
        for one in summary.person.iter().skip(self.offsets[TopList::Person as usize]) {
            let style = match one.worry() {
                4 => BAD,
                2 | 3 => WARN,
                _ => QUIET,
            };
            let others = match one.others {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            let urgency = match (one.worry(), one.due) {
                (4, _) => "act now ",
                (_, true) => "today ",
                _ => "may pass ",
            };
            let subject = format!(
                "{}{others}, for {}",
                one.subject,
                age(Duration::from_secs(one.for_s))
            );
            lines.push(Line::from(vec![Span::styled(urgency, style), subject.into()]));
            let mut said = vec![Span::raw("  "), Span::raw(one.sentence.as_str())];
            if let Some(command) = &one.command {
                said.push(Span::styled(format!(": {command}"), Modifier::BOLD));
            }
            lines.push(Line::from(said));
        }
        if summary.person.is_empty() {
            lines.push(Line::styled("Nothing needs a person.", GOOD));
        }
        let block = self.block("What needs a person", TopList::Person);
        Paragraph::new(lines).block(block).wrap(Wrap { trim: false })
    }

    fn journals<'a>(&self, summary: &ClusterSummary<'a>, area: Rect) -> Table<'a> {
        let title = match self.search.is_empty() {
            true => format!("Journals: {}, the worst first", summary.counts.journals),
            false => format!(
                "Journals: {} of {} found",
                summary.counts.journals_matched, summary.counts.journals
            ),
        };
        let heads = [
            "state",
            "journal",
            "members",
            "not on disk",
            "lost with all",
            "p50",
            "p99",
            "p99.9",
        ];
        let skipped = self.offsets[TopList::Journals as usize] % netram_watch::limit::JOURNALS_SHOWN;
        let rows = summary
            .journals
            .iter()
            .skip(skipped)
            .take(usize::from(area.height));
        let widths = [
            Constraint::Length(15),
            Constraint::Fill(1),
            Constraint::Length(7),
            Constraint::Length(11),
            Constraint::Length(20),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(7),
        ];
        Table::new(rows.map(|row| journal(row)), widths)
            .header(Row::new(heads).style(QUIET))
            .block(self.block(&title, TopList::Journals))
    }

    fn lenders<'a>(&self, summary: &ClusterSummary<'a>, area: Rect) -> Table<'a> {
        let counts = &summary.counts;
        let title = format!(
            "Lenders: {}, {} without answer",
            counts.lenders, counts.lenders_silent
        );
        let heads = ["domain", "lender", "state", "used", "lent", "journals"];
        let skipped = self.offsets[TopList::Lenders as usize];
        let rows = summary
            .lenders
            .iter()
            .skip(skipped)
            .take(usize::from(area.height));
        let widths = [
            Constraint::Length(14),
            Constraint::Fill(1),
            Constraint::Fill(2),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(13),
        ];
        Table::new(rows.map(|row| lender(row)), widths)
            .header(Row::new(heads).style(QUIET))
            .block(self.block(&title, TopList::Lenders))
    }

    fn events<'a>(&self, summary: &ClusterSummary<'a>) -> Paragraph<'a> {
        let shown = summary.events.iter().skip(self.offsets[TopList::Events as usize]);
        let lines = shown.map(|event| {
            let ago = Duration::from_millis(summary.now_ms.saturating_sub(event.unix_ms));
            let ago = format!("{} ago ", age(Duration::from_secs(ago.as_secs())));
            Line::from(vec![
                Span::styled(ago, QUIET),
                format!("{}: {}", event.subject, event.what).into(),
            ])
        });
        Paragraph::new(lines.collect::<Vec<_>>()).block(self.block("Events", TopList::Events))
    }

    fn foot(&self) -> Line<'static> {
        match self.is_typing {
            true => Line::from(format!("/{}_   Enter keeps it, Esc ends the search", self.search)),
            false => Line::styled("q quit · Tab next list · arrows move · / search", QUIET),
        }
    }

    fn block<'a>(&self, title: &str, list: TopList) -> Block<'a> {
        let style = match self.list == list {
            true => Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD),
            false => Style::new(),
        };
        let title = Span::styled(title.to_owned(), style);
        Block::new()
            .borders(Borders::TOP)
            .border_style(QUIET)
            .title(title)
    }
}

fn at_risk<'a>(summary: &ClusterSummary<'a>) -> Table<'a> {
    let rows = summary.risks.iter().take(5).map(|risk| {
        let is_bad = risk.is_alone && risk.bytes > 0;
        let style = if is_bad { BAD } else { Style::new() };
        let (lost, oldest) = match risk.bytes {
            0 => ("nothing".to_owned(), "-".to_owned()),
            lost => (bytes(lost), age(Duration::from_millis(risk.age_ms))),
        };
        Row::new([risk.lost.clone(), lost, oldest, risk.journals.to_string()]).style(style)
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(14),
        Constraint::Length(14),
        Constraint::Length(8),
    ];
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(QUIET)
        .title("At risk");
    let heads = Row::new(["if this is lost", "would be gone", "oldest", "journals"]).style(QUIET);
    Table::new(rows, widths).header(heads).block(block)
}

fn latencies(summary: &ClusterSummary<'_>) -> Line<'static> {
    let [p50, p99, p999] = summary.hour.quantiles.map(waited);
    let commits = count(summary.hour.commits, "commit");
    Line::from(vec![
        Span::styled("Latency of the last hour: ", Modifier::BOLD),
        format!("half {p50} · 99 % {p99} · 99.9 % {p999} · {commits}").into(),
    ])
}

fn journal(row: &JournalRow) -> Row<'static> {
    let (state, style) = if row.error.is_some() {
        ("no answer", BAD)
    } else if row.fenced.is_some() {
        ("fenced", BAD)
    } else if row.disk_error.is_some() {
        ("disk failed", BAD)
    } else if row.disk_refused.is_some() {
        ("disk refuses", BAD)
    } else if row.blocked.is_some() {
        ("waits for disk", WARN)
    } else if row.worry > 2 {
        ("at risk", BAD)
    } else if row.lenders.is_empty() {
        ("no lenders", QUIET)
    } else if row.worry > 0 {
        ("look at it", WARN)
    } else {
        ("well", GOOD)
    };
    let name = match row.host.is_empty() {
        true => row.name.clone(),
        false => format!("{} at {}", row.name, row.host),
    };
    let lost = match row.risk("all") {
        Some(risk) if risk.bytes > 0 => {
            format!(
                "{}, {}",
                bytes(risk.bytes),
                age(Duration::from_millis(risk.age_ms))
            )
        }
        _ => "nothing".to_owned(),
    };
    let quantiles = row.hour.as_ref().map(|hour| hour.quantiles).unwrap_or_default();
    let [p50, p99, p999] = quantiles.map(waited);
    let cells = [
        name,
        format!("{} of {}", row.members, row.members_wanted),
        bytes(row.unsynced),
        lost,
        p50,
        p99,
        p999,
    ];
    Row::new(
        [Cell::from(state).style(style)]
            .into_iter()
            .chain(cells.map(Cell::from)),
    )
}

fn lender(row: &LenderRow) -> Row<'static> {
    let (state, style) = match &row.error {
        Some(error) => (error.clone(), BAD),
        None if row.on_battery => (format!("{}, on battery", row.state), WARN),
        None => (row.state.clone(), if row.worry > 0 { WARN } else { GOOD }),
    };
    let name = match row.name.is_empty() {
        true => row.address.clone(),
        false => format!("{} {}", row.name, row.address),
    };
    let journals = match row.journals_max {
        0 => row.journals.to_string(),
        max => format!("{} of {max}", row.journals),
    };
    Row::new([
        Cell::from(row.domain.clone()),
        Cell::from(name),
        Cell::from(state).style(style),
        Cell::from(bytes(row.used)),
        Cell::from(bytes(row.lent)),
        Cell::from(journals),
    ])
}

/// A latency in words.
fn waited(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}
