//! A journal that no process has open, from its files.

use std::path::Path;

use anyhow::{Context, Result};
use netram_journal::JournalInspector;
use netram_proto::journal::View;

use super::explanation::Explanation;
use crate::output;

/// Explains the journal in `journal`, which the user calls `path`. `is_plain`: it is a journal or a log, not
/// part of something else.
///
/// # Errors
/// Its files cannot be read.
pub(super) fn explain(path: &Path, journal: &Path, is_plain: bool) -> Result<Explanation> {
    let found = JournalInspector::open(journal)
        .with_context(|| format!("looking at the journal {}", journal.display()))?;
    let mut said = of_view(path, found.view(), is_plain);
    let shown = journal.display();
    said.state
        .insert(0, format!("No process has the journal {shown} open."));
    Ok(said)
}

fn of_view(path: &Path, view: &View, is_plain: bool) -> Explanation {
    let mut said = Explanation::default();
    if view.clean.is_some() {
        let sentence = "The local disk has everything, and the next opening needs no lender.";
        said.state.push(sentence.to_owned());
        return said;
    }
    if view.members.is_empty() || !view.counting {
        let sentence = "No lender counted when it was last open: the local log is complete, and the next opening needs no lender.";
        said.state.push(sentence.to_owned());
        return said;
    }
    let addresses: Vec<&str> = view
        .members
        .iter()
        .map(|member| member.address.as_str())
        .collect();
    let needed = view.rule.answers(addresses.len());
    said.state.push(format!(
        "It was not closed: its process or machine ended without notice. What came after LSN {} may be in the memory of \
         {} only; the next opening needs the answer of {needed} of them (commit rule {}).",
        view.base,
        output::count(addresses.len() as u64, "lender"),
        view.rule
    ));
    said.state.extend(
        view.members
            .iter()
            .map(|member| format!("  {} (power domain `{}`)", member.address, member.domain)),
    );
    said.todo.push(format!(
        "Keep these lenders running, and see whether they answer: netram lender status {}",
        addresses.join(" ")
    ));
    said.todo.push(match is_plain {
        true => format!(
            "Open it again, which recovers it, or: netram journal recover {}",
            path.display()
        ),
        false => "Open it again as always, which recovers it.".to_owned(),
    });
    said
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Incarnation, JournalId, Lsn};
    use netram_proto::journal::{CommitRule, ViewMember};

    use super::*;

    fn view(counting: bool, clean: Option<Lsn>) -> View {
        let member = |address: &str| ViewMember {
            address: address.to_owned(),
            domain: "ups-1".to_owned(),
            incarnation: Incarnation(7),
            join: None,
        };
        View {
            counting,
            clean,
            rule: CommitRule::Any,
            base: Lsn(4096),
            members: vec![member("tcp://a:7420"), member("tcp://b:7420")],
            ..View::first(JournalId(7))
        }
    }

    #[test]
    fn a_journal_that_crashed_names_its_lenders_and_the_command_that_recovers_it() {
        let path = Path::new("/j");
        let said = of_view(path, &view(true, None), true);
        assert!(
            said.state[0].contains("after LSN 4096") && said.state[0].contains("answer of 2 of"),
            "{said:?}"
        );
        assert!(
            said.todo[0].ends_with("netram lender status tcp://a:7420 tcp://b:7420"),
            "{said:?}"
        );
        assert!(said.todo[1].ends_with("netram journal recover /j"), "{said:?}");
        let of_volume = of_view(path, &view(true, None), false);
        assert!(!of_volume.todo[1].contains("netram"), "{of_volume:?}");
        for at_rest in [view(false, None), view(true, Some(Lsn(4096)))] {
            assert!(of_view(path, &at_rest, true).todo.is_empty());
        }
    }
}
