use super::*;

fn at(seconds: u64) -> Moment {
    Moment {
        mono_ms: seconds * 1000,
        unix_ms: 1_000_000 + seconds * 1000,
    }
}

fn lender(address: &str, answer: Result<&str, &str>) -> Sighting {
    Sighting::Lender {
        address: address.to_owned(),
        answer: match answer {
            Ok(name) => Ok(Box::new(LenderRow {
                name: name.to_owned(),
                lent: 100,
                offered: 100,
                ..LenderRow::default()
            })),
            Err(error) => Err(error.to_owned()),
        },
    }
}

fn named(addresses: &[&str]) -> Sighting {
    let row = |address: &&str| LenderRow {
        address: (*address).to_owned(),
        found_by: vec!["file".to_owned()],
        ..LenderRow::default()
    };
    Sighting::Named(addresses.iter().map(row).collect())
}

#[test]
fn a_lender_that_stops_answering_keeps_what_was_known_and_comes_first() {
    let mut watcher = ClusterWatcher::default();
    watcher.handle(at(0), named(&["a", "b"]));
    watcher.handle(at(0), lender("a", Ok("ram-a")));
    watcher.handle(at(0), lender("b", Ok("ram-b")));
    watcher.handle(at(2), lender("b", Err("nothing listens there")));
    let view = watcher.view(at(3));
    let row = &view.lenders[0];
    assert_eq!(
        (row.title(), row.lent, row.seen_ms),
        ("ram-b", 100, at(0).unix_ms)
    );
    assert_eq!(row.error.as_deref(), Some("nothing listens there"));
    assert_eq!(view.lenders[1].found_by, ["file"]);
    assert_eq!(view.events[0].what, "it does not answer: nothing listens there");
    watcher.handle(at(4), lender("b", Ok("ram-b")));
    let view = watcher.view(at(5));
    assert!(view.lenders.iter().all(|row| row.error.is_none()) && view.person.is_empty());
    assert_eq!(view.events[0].what, "it answers again");
    // One that nobody names is forgotten, but not while it answers.
    watcher.handle(at(5000), named(&["a"]));
    assert_eq!(watcher.view(at(5000)).lenders.len(), 2);
    watcher.handle(at(5001), lender("b", Err("gone")));
    watcher.handle(at(5002), named(&["a"]));
    assert_eq!(watcher.view(at(5002)).lenders.len(), 1);
}

fn page(journals: Vec<JournalRow>) -> Sighting {
    Sighting::Process {
        page: "db2:9465".to_owned(),
        answer: Ok(Box::new(PageSighting {
            journals,
            ..PageSighting::default()
        })),
    }
}

#[test]
fn a_page_that_does_not_answer_keeps_its_journals_and_hides_no_other() {
    let mut watcher = ClusterWatcher::default();
    let row = |path: &str| JournalRow {
        path: path.to_owned(),
        ..JournalRow::default()
    };
    watcher.handle(at(0), page(vec![row("/a"), row("/b")]));
    let lost = Sighting::Process {
        page: "db2:9465".to_owned(),
        answer: Err("no answer in time".to_owned()),
    };
    watcher.handle(at(2), lost);
    let view = watcher.view(at(3));
    assert_eq!(view.journals.len(), 2);
    assert!(
        view.journals
            .iter()
            .all(|row| row.error.is_some() && row.host == "db2:9465")
    );
    assert_eq!(view.person.len(), 1, "{:?}", view.person);
    watcher.handle(at(4), page(vec![row("/b")]));
    assert_eq!(watcher.view(at(4)).journals.len(), 1);
}

#[test]
fn a_journal_whose_own_process_answers_is_not_counted_again_from_its_page() {
    let mut watcher = ClusterWatcher::default();
    let known = KnownJournal {
        row: JournalRow {
            path: "/a".to_owned(),
            ..JournalRow::default()
        },
        ..KnownJournal::default()
    };
    watcher.journals.insert("socket".to_owned(), known);
    for page in ["127.0.0.1:9465", "10.0.0.9:9465"] {
        let row = JournalRow {
            path: "/a".to_owned(),
            ..JournalRow::default()
        };
        let sighting = Sighting::Process {
            page: page.to_owned(),
            answer: Ok(Box::new(PageSighting {
                journals: vec![row],
                ..PageSighting::default()
            })),
        };
        watcher.handle(at(0), sighting);
    }
    let view = watcher.view(at(1));
    let hosts: Vec<&str> = view.journals.iter().map(|row| row.host.as_str()).collect();
    assert_eq!(
        hosts,
        ["", "10.0.0.9:9465"],
        "another machine has the same directory"
    );
}

#[test]
fn foreign_text_is_short_and_has_no_control_characters() {
    let mut watcher = ClusterWatcher::default();
    let long = format!("\u{1b}[2J{}", "é".repeat(10_000));
    watcher.handle(at(0), lender("a", Ok(&long)));
    let view = watcher.view(at(0));
    let name = &view.lenders[0].name;
    assert!(
        name.len() < 2 * TEXT_BYTES_MAX && name.starts_with("\\u{1b}[2Jé"),
        "{name}"
    );
}
