//! The tables of `netram lender status`.

use std::time::Duration;

use anyhow::Result;
use netram_journal::config::DOMAIN_DEFAULT;
use netram_lender::{AmountReport, CopiesReport, JournalReport, StatusReport};

pub(crate) use netram_watch::view::state_of as state;

use super::status::LenderAnswer;
use crate::output;

/// Prints all that the lenders answered.
pub(super) fn show(answers: &[LenderAnswer]) -> Result<()> {
    output::line(lenders(answers))?;
    let reports = || answers.iter().filter_map(|answer| answer.report.as_ref());
    for report in reports() {
        if let Some(copies) = report.copies.as_ref().filter(|copies| copies.copies > 0) {
            output::line(copies_line(&report.name, copies))?;
        }
    }
    for line in reports()
        .filter_map(power_line)
        .chain(reports().filter_map(pressure_line))
        .chain(reports().filter_map(huge_line))
    {
        output::line(line)?;
    }
    for table in [
        clients(answers),
        journals(answers),
        deposits(answers),
        multicast(answers),
    ]
    .into_iter()
    .flatten()
    {
        output::line(table)?;
    }
    if let Some(report) = reports().find(|report| report.domain == DOMAIN_DEFAULT) {
        output::line(format_args!(
            "domain `{DOMAIN_DEFAULT}`: lender {} has no power label. It counts only for journals of machines with another label, \
             or with one-domain; label it with `netram lender serve --domain`",
            report.name
        ))?;
    }
    Ok(())
}

/// Returns how many journals a lender remembers, of as many as it can.
pub(crate) fn journals_used(report: &StatusReport) -> String {
    match report.journals_max {
        // An earlier release does not say.
        0 => (report.journals.len().saturating_add(report.journals_left_out)).to_string(),
        max => format!("{} of {max}", report.journals_used),
    }
}

/// Returns the table of lenders.
fn lenders(answers: &[LenderAnswer]) -> String {
    let mut lenders = output::table(
        &[
            "lender", "address", "domain", "state", "used", "free", "lent", "journals", "up",
        ],
        4,
    );
    for answer in answers {
        let Some(report) = &answer.report else {
            let error = answer.error.as_deref().unwrap_or_default();
            lenders.add_row(["-", &answer.address, "-", error, "-", "-", "-", "-", "-"]);
            continue;
        };
        let memory = &report.memory;
        lenders.add_row([
            report.name.clone(),
            answer.address.clone(),
            report.domain.clone(),
            state(report),
            output::bytes(memory.used),
            output::bytes(memory.free),
            output::bytes(memory.reserved),
            journals_used(report),
            output::age(Duration::from_secs(report.uptime_s)),
        ]);
    }
    lenders.to_string()
}

/// Returns the table of named clients; `None` if no lender has any.
fn clients(answers: &[LenderAnswer]) -> Option<String> {
    let heads = [
        "client",
        "lender",
        "connections",
        "journals",
        "memory",
        "pages",
        "copies",
    ];
    let mut table = output::table(&heads, 2);
    let count = |amount: &AmountReport| match amount.limit {
        Some(limit) => format!("{} of {limit}", amount.used),
        None => amount.used.to_string(),
    };
    let bytes = |amount: &AmountReport| match amount.limit {
        Some(0) if amount.used == 0 => "none".to_owned(),
        Some(limit) => format!("{} of {}", output::bytes(amount.used), output::bytes(limit)),
        None => output::bytes(amount.used),
    };
    let mut any = false;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        for client in &report.clients {
            any = true;
            table.add_row([
                client.name.clone(),
                report.name.clone(),
                count(&client.connections),
                count(&client.journals),
                bytes(&client.memory),
                bytes(&client.pages),
                bytes(&client.data),
            ]);
        }
    }
    any.then(|| table.to_string())
}

/// Returns the table of journals; `None` if no lender has one.
fn journals(answers: &[LenderAnswer]) -> Option<String> {
    let mut journals = output::table(
        &[
            "journal",
            "lender",
            "bytes",
            "window",
            "last append",
            "last heard",
        ],
        2,
    );
    let mut any = false;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        for journal in &report.journals {
            any = true;
            let age = journal
                .last_append_age_ms
                .map(|ms| output::age(Duration::from_millis(ms)));
            journals.add_row([
                journal.id.clone(),
                report.name.clone(),
                output::bytes(journal.used_bytes),
                window(journal),
                age.map_or_else(|| "-".to_owned(), |age| format!("{age} ago")),
                last_contact(journal),
            ]);
        }
    }
    any.then(|| journals.to_string())
}

/// Returns the bytes of a journal's window, and where they are.
pub(super) fn window(journal: &JournalReport) -> String {
    match (journal.window_bytes, journal.on_disk, journal.spilled) {
        (0, true, _) => "on disk".to_owned(),
        (0, false, _) => "none".to_owned(),
        (bytes, true, _) => format!("{}, also on disk", output::bytes(bytes)),
        (bytes, false, true) => format!("{}, from disk", output::bytes(bytes)),
        (bytes, false, false) => output::bytes(bytes),
    }
}

/// Returns when a client of the journal was connected last.
pub(super) fn last_contact(journal: &JournalReport) -> String {
    match journal.last_heard_age_s {
        _ if journal.sessions > 0 => "connected".to_owned(),
        Some(age) => format!("{} ago", output::age(Duration::from_secs(age))),
        None => "-".to_owned(),
    }
}

/// Returns the table of far-memory pages by owner; `None` if there are none.
fn deposits(answers: &[LenderAnswer]) -> Option<String> {
    let mut table = output::table(
        &[
            "deposit",
            "lender",
            "owner",
            "slots",
            "with a page",
            "asked back",
            "bytes",
        ],
        3,
    );
    let mut any = false;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        for deposit in &report.deposits {
            any = true;
            let owner = if deposit.connected { "connected" } else { "away" };
            table.add_row([
                deposit.id.clone(),
                report.name.clone(),
                owner.to_owned(),
                deposit.slots.to_string(),
                deposit.held.to_string(),
                deposit.asked_back.to_string(),
                output::bytes(deposit.bytes),
            ]);
        }
    }
    any.then(|| table.to_string())
}

/// Returns the table of multicast appends by lender; `None` if none came.
fn multicast(answers: &[LenderAnswer]) -> Option<String> {
    let mut table = output::table(
        &[
            "multicast",
            "group",
            "datagrams",
            "missing",
            "duplicate",
            "forged",
            "unknown",
        ],
        2,
    );
    let mut any = false;
    for report in answers.iter().filter_map(|answer| answer.report.as_ref()) {
        let counters = &report.counters;
        let dropped = |kind| counters.datagrams_dropped.get(kind).copied().unwrap_or(0);
        let counts = [
            counters.datagrams,
            counters.datagrams_missing,
            dropped("doubled"),
            dropped("forged"),
            dropped("strange"),
        ];
        if counts.iter().all(|count| *count == 0) {
            continue;
        }
        any = true;
        let group = report.multicast.clone().unwrap_or_else(|| "-".to_owned());
        let row = [report.name.clone(), group];
        table.add_row(row.into_iter().chain(counts.map(|count| count.to_string())));
    }
    any.then(|| table.to_string())
}

/// Returns what feeds a lender's machine; `None` if it watches no UPS.
fn power_line(report: &StatusReport) -> Option<String> {
    let power = report.power.as_ref()?;
    let why = power
        .why
        .as_ref()
        .map_or_else(String::new, |why| format!(" ({why})"));
    Some(format!(
        "{} power: {} for {}{why}, UPS {}",
        report.name,
        power.state.replace('-', " "),
        output::age(Duration::from_secs(power.since_s)),
        power.ups
    ))
}

/// Returns what a lender does because its machine is short of memory; `None` if it is not.
fn pressure_line(report: &StatusReport) -> Option<String> {
    let memory = report.memory;
    let offered = memory.offered.filter(|_| memory.is_short())?;
    let asked = report
        .deposits
        .iter()
        .map(|deposit| u64::from(deposit.asked_back));
    Some(format!(
        "{} offers {} of {}: {} and {} asked back, {} returned to the machine",
        report.name,
        output::bytes(offered),
        output::bytes(memory.reserved),
        output::count(memory.windows_asked as u64, "window"),
        output::counted(asked.sum(), "page is", "pages are"),
        output::bytes(memory.given_back),
    ))
}

/// Returns how much of a lender's memory is in huge pages; `None` if none is.
fn huge_line(report: &StatusReport) -> Option<String> {
    let bytes = report.memory.huge_bytes.filter(|bytes| *bytes > 0)?;
    let (name, bytes) = (&report.name, output::bytes(bytes));
    Some(format!("{name} has {bytes} of its memory in huge pages"))
}

/// Returns the space that a data lender's copies take.
fn copies_line(name: &str, copies: &CopiesReport) -> String {
    let quota = copies
        .quota
        .map_or_else(String::new, |quota| format!(", quota {}", output::bytes(quota)));
    format!(
        "{name} keeps {}: {} on its disk, {} once all blocks are written{quota}",
        output::counted(copies.copies, "copy of a volume", "copies of volumes"),
        output::bytes(copies.taken_bytes),
        output::bytes(copies.promised_bytes),
    )
}
