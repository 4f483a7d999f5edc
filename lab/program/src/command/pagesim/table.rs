//! The result: one row for each policy and size of local memory.

use anyhow::Result;
use netram_far_machine::paging::PolicyTally;
use netram_pagesim::{StudyOutcome, StudySettings};
use serde_json::{Value, json};

use super::study_args::{PolicyChoice, StudyArgs};
use netram_cli::output;

/// One program's result.
pub(super) struct ProgramStudy<'a> {
    pub(super) program: String,
    pub(super) outcome: StudyOutcome,
    /// Number of the program's references, if more are known than were traced; the rest is to local memory.
    pub(super) references: Option<u64>,
    pub(super) choice: &'a StudyArgs,
    pub(super) settings: &'a StudySettings,
}

/// One policy's row.
struct Row<'a> {
    local: u64,
    chosen: PolicyChoice,
    tally: &'a PolicyTally,
    average: f64,
    seconds: f64,
}

impl ProgramStudy<'_> {
    fn references(&self) -> u64 {
        let traced = self.outcome.references();
        self.references.map_or(traced, |printed| printed.max(traced))
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let policies = self.choice.policies();
        let places = self
            .settings
            .locals
            .iter()
            .flat_map(|local| policies.iter().map(move |chosen| (*local, *chosen)));
        let row = |((local, chosen), tally): ((u64, PolicyChoice), _)| {
            let costs = self.choice.costs(chosen);
            let tally: &PolicyTally = tally;
            let others = self.references() - tally.references();
            let cycles = costs.cycles(tally) + others as f64 * costs.local_word;
            Row {
                local,
                chosen,
                tally,
                average: cycles / self.references().max(1) as f64,
                seconds: cycles / costs.clock_hz,
            }
        };
        places.zip(&self.outcome.tallies).map(row).collect()
    }

    pub(super) fn print(&self) -> Result<()> {
        let bytes = self.outcome.pages * self.settings.page_bytes;
        output::line(format_args!(
            "{}: {} references to {} ({})",
            self.program,
            output::thousands(i64::try_from(self.references()).unwrap_or(i64::MAX)),
            output::bytes(bytes),
            output::counted(self.outcome.pages, "page", "pages"),
        ))?;
        let header = [
            "local",
            "policy",
            "cycles",
            "seconds",
            "faults",
            "words",
            "net pages",
            "disk pages",
        ];
        let mut table = output::table(&header, 2);
        let rows = self.rows();
        for row in &rows {
            let best = rows
                .iter()
                .filter(|other| other.local == row.local)
                .all(|other| other.average >= row.average);
            let number = |count: u64| output::thousands(i64::try_from(count).unwrap_or(i64::MAX));
            table.add_row([
                output::bytes(row.local),
                format!("{}{}", row.chosen.name(), if best { " *" } else { "" }),
                output::number(row.average),
                output::number(row.seconds),
                number(row.tally.faults),
                number(row.tally.words),
                number(row.tally.network_pages()),
                number(row.tally.disk_pages()),
            ]);
        }
        output::line(table)
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows();
        let rows = rows.iter().map(|row| {
            let tally = row.tally;
            json!({
                "local_bytes": row.local,
                "policy": row.chosen.name(),
                "cycles_a_reference": row.average,
                "seconds": row.seconds,
                "faults": tally.faults,
                "local": tally.local,
                "words": tally.words,
                "disk_first": tally.disk_first,
                "disk_again": tally.disk_again,
                "disk_written": tally.disk_written,
                "zeroed": tally.zeroed,
                "placed": tally.placed,
                "fetched": tally.fetched,
                "sent_dirty": tally.sent_dirty,
                "sent_clean": tally.sent_clean,
                "dropped": tally.dropped,
            })
        });
        json!({
            "program": self.program,
            "references": self.references(),
            "traced": self.outcome.references(),
            "pages": self.outcome.pages,
            "children": self.outcome.children,
            "page_bytes": self.settings.page_bytes,
            "rows": rows.collect::<Vec<Value>>(),
        })
    }
}

/// Prints all results in the order of the arguments.
pub(super) fn print(studied: &[ProgramStudy<'_>]) -> Result<()> {
    let Some(first) = studied.first() else {
        return Ok(());
    };
    if first.choice.json {
        return output::json(&studied.iter().map(ProgramStudy::json).collect::<Vec<Value>>());
    }
    output::line(first.choice.what())?;
    for one in studied {
        one.print()?;
    }
    output::line("cycles: of an average reference. *: the best with this size of local memory.")
}
