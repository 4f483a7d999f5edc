//! Conditions of a state that need a person if they last.

use std::collections::BTreeMap;

use super::AlertName;
use crate::view::advice::{Advice, advice};
use crate::view::{ClusterView, JournalRow, LenderRow, ServiceRow};

/// A condition that holds, or a count that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) alert: AlertName,
    /// The part that it is about: conditions with the same one are shown once.
    pub(super) subject: String,
    /// Keys of the rows that it worries.
    pub(super) worries: Vec<String>,
    pub(super) sentence: String,
    pub(super) command: Option<String>,
    pub(super) count: Option<u64>,
}

/// The conditions of a state. Journals with the same trouble share one if it is a lender's.
pub(super) fn conditions(view: &ClusterView) -> Vec<Condition> {
    let mut found: Vec<Condition> = Vec::new();
    let mut shared: BTreeMap<(AlertName, String), usize> = BTreeMap::new();
    found.extend(view.lenders.iter().flat_map(of_lender));
    for (index, condition) in found.iter().enumerate() {
        shared.insert((condition.alert, condition.subject.clone()), index);
    }
    for journal in &view.journals {
        for condition in of_journal(journal) {
            match shared.get(&(condition.alert, condition.subject.clone())) {
                Some(index) => found[*index].worries.extend(condition.worries),
                None => {
                    shared.insert((condition.alert, condition.subject.clone()), found.len());
                    found.push(condition);
                }
            }
        }
    }
    for process in view.processes.iter().filter(|process| process.error.is_some()) {
        let error = process.error.as_deref().unwrap_or_default();
        found.push(Condition {
            alert: AlertName::ProcessDown,
            subject: process.page.clone(),
            worries: vec![process.page.clone()],
            sentence: format!(
                "Look whether the process that serves {} runs: {error}",
                process.page
            ),
            command: None,
            count: None,
        });
    }
    found.extend(view.services.iter().flat_map(of_service));
    found
}

fn of_journal(journal: &JournalRow) -> Vec<Condition> {
    let key = journal.key();
    let made = |advice: Advice| {
        Some(Condition {
            alert: advice.alert?,
            subject: advice.subject.unwrap_or_else(|| key.clone()),
            worries: vec![key.clone()],
            sentence: advice.sentence,
            command: advice.command,
            count: None,
        })
    };
    let mut found: Vec<Condition> = advice(&journal.name, journal)
        .into_iter()
        .filter_map(made)
        .collect();
    for condition in &mut found {
        if condition.alert == AlertName::CommitsWaitForDisk {
            // Alone, the sentence has no lender before it that it could be an alternative to.
            let why = journal.blocked.as_deref().unwrap_or_default();
            condition.sentence = format!(
                "Commits wait for the local disk ({why}): bring lenders back, or give it another one"
            );
        }
    }
    let silent = journal.error.as_ref().map(|error| Condition {
        alert: AlertName::ProcessDown,
        subject: key.clone(),
        worries: vec![key.clone()],
        sentence: format!(
            "Look at process {}, which has it open and does not answer: {error}",
            journal.pid
        ),
        command: Some(format!("netram explain {}", journal.name)),
        count: None,
    });
    found.extend(silent.filter(|_| journal.host.is_empty()));
    found.push(Condition {
        alert: AlertName::WindowFull,
        subject: key.clone(),
        worries: vec![key.clone()],
        sentence: "Raise its window, or give it a faster disk: appends wait for the disk.".to_owned(),
        command: None,
        count: Some(journal.window_stalls),
    });
    found
}

fn of_lender(lender: &LenderRow) -> Vec<Condition> {
    let made = |alert, sentence: String, command: Option<String>, count| Condition {
        alert,
        subject: lender.address.clone(),
        worries: vec![lender.address.clone()],
        sentence,
        command,
        count,
    };
    let (title, address) = (lender.title(), &lender.address);
    if let Some(error) = &lender.error {
        let sentence = format!("Look after the lender {title}: {error}");
        return vec![made(
            AlertName::LenderDown,
            sentence,
            Some(format!("netram lender status {address}")),
            None,
        )];
    }
    let mut found = Vec::new();
    if lender.offered > 0 && lender.used as f64 / lender.offered as f64 > 0.95 {
        let sentence = format!(
            "Lend more with --memory at {title}, or add a lender: it has no room for further clients."
        );
        found.push(made(AlertName::LenderFull, sentence, None, None));
    }
    if lender.offered < lender.lent {
        let sentence = format!("Give the machine of {title} memory, or lend less: it is short of memory.");
        found.push(made(AlertName::LenderShortOfMemory, sentence, None, None));
    }
    if lender.on_battery {
        let sentence =
            format!("Bring the mains of {title} back: it is on battery, and its clients move away.");
        found.push(made(AlertName::OnBattery, sentence, None, None));
    }
    if lender.silent_s > 3600 {
        let sentence = format!(
            "Start the program whose window {title} keeps, or delete its journal: its client has been away for an hour"
        );
        let command = format!("netram lender list {address} --abandoned");
        found.push(made(AlertName::WindowAbandoned, sentence, Some(command), None));
    }
    let spills = format!(
        "Keep {title} running, and free space in its --spill directory: windows could not be written to its disk."
    );
    found.push(made(
        AlertName::SpillFailed,
        spills,
        None,
        Some(lender.spills_failed),
    ));
    let keys = format!("Find out who connects to {title} with another cluster key: its log has the address.");
    found.push(made(AlertName::WrongKey, keys, None, Some(lender.wrong_keys)));
    found
}

fn of_service(service: &ServiceRow) -> Vec<Condition> {
    let name = &service.path;
    let made = |alert, sentence: &str, command: Option<String>, count| Condition {
        alert,
        subject: format!("{}:{name}", service.host),
        worries: vec![format!("{}:{name}", service.host)],
        sentence: sentence.to_owned(),
        command,
        count,
    };
    let mut found = Vec::new();
    if service.failing {
        let sentence = "Look at the image's disk: writes cannot be applied to the image. Is it full?";
        found.push(made(AlertName::VolumeFailing, sentence, None, None));
    }
    if service.checkpoints_fail {
        let sentence =
            "Look at its disk: it does not take what the journal has, and the journal fills. Is it full?";
        found.push(made(AlertName::CheckpointsFail, sentence, None, None));
    }
    if service.stuck_nodes > 0 {
        let sentence = "Start the lenders that the region's status names: a dead node's journal cannot be read to its end";
        let command = Some(format!("netram shared status {name}"));
        found.push(made(AlertName::NodeStuck, sentence, command, None));
    }
    let status = Some(format!("netram volume status {name}"));
    if service.copy_out {
        let sentence = "Start the data lender, or free its disk: it does not follow, and this disk's loss would lose what it lacks";
        found.push(made(AlertName::CopyOutOfService, sentence, status.clone(), None));
    }
    let sentence = "Look at the volume's log: it answers requests with errors";
    found.push(made(
        AlertName::VolumeErrors,
        sentence,
        status,
        Some(service.front_errors),
    ));
    let sentence = "Check the volume: a block did not match its checksum";
    let check = Some(format!("netram volume check {name}"));
    found.push(made(
        AlertName::VolumeCorrupt,
        sentence,
        check,
        Some(service.corrupt_reads),
    ));
    found
}
