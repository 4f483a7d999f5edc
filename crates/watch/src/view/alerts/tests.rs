use super::*;
use crate::view::{JournalRow, LenderRow, MemberRow, ProcessRow, RiskRow, ServiceRow};

const RULES: &str = include_str!("../../../../../packaging/prometheus/netram.rules.yml");

fn at(seconds: u64) -> Moment {
    Moment {
        mono_ms: seconds * 1000,
        unix_ms: seconds * 1000,
    }
}

fn seconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        other => panic!("{other} is no unit"),
    };
    number.parse::<u64>().unwrap() * unit
}

#[test]
fn alerts_fire_as_the_rules_that_ship_say() {
    let mut told = 0;
    for rule in RULES.split("- alert: Netram").skip(1) {
        let (name, rest) = rule.split_once('\n').unwrap();
        let alert = AlertName::ALL.iter().find(|alert| format!("{alert:?}") == name);
        let ours = alert.unwrap_or_else(|| panic!("{name} is not shown")).rule();
        let value = |key: &str| rest.lines().find_map(|line| line.trim().strip_prefix(key));
        assert_eq!(value("for: ").map_or(0, seconds), ours.hold_s, "{name}");
        let within = value("expr: ").unwrap().split_once('[');
        let within = within.map(|(_, rest)| seconds(rest.split(']').next().unwrap()));
        assert_eq!(within, ours.grown_within_s, "{name}");
        let severity = format!("{{severity: {}}}", format!("{:?}", ours.severity).to_lowercase());
        assert_eq!(value("labels: "), Some(&severity[..]), "{name}");
        told += 1;
    }
    assert_eq!(told, AlertName::ALL.len());
}

fn journal(path: &str, away: &str) -> JournalRow {
    let lender = |address: &str, why_not: Option<&str>| MemberRow {
        address: address.to_owned(),
        member: true,
        why_not: why_not.map(str::to_owned),
        ..MemberRow::default()
    };
    JournalRow {
        path: path.to_owned(),
        name: path.to_owned(),
        settled: true,
        lenders: vec![
            lender("tcp://a:1", None),
            lender(away, Some("nothing listens there")),
        ],
        ..JournalRow::default()
    }
}

#[test]
fn a_state_is_due_once_it_has_lasted_and_is_forgotten_when_it_ends() {
    let mut tracker = AlertTracker::default();
    let mut view = ClusterView::default();
    let mut judge = |view: &mut ClusterView, seconds, bytes| {
        let risk = RiskRow {
            lost: "this machine".to_owned(),
            bytes,
            age_ms: 0,
        };
        view.journals = vec![JournalRow {
            lenders: vec![MemberRow::default()],
            settled: true,
            risks: vec![risk],
            ..journal("/j", "")
        }];
        view.now = at(seconds);
        tracker.judge(view);
        let due: Vec<_> = view
            .person
            .iter()
            .map(|one| (one.alert, one.for_s, one.due))
            .collect();
        (due, view.journals[0].worry)
    };
    assert_eq!(judge(&mut view, 100, 0), (vec![], 0));
    assert_eq!(judge(&mut view, 101, 9), (vec![(AlertName::AtRisk, 0, false)], 3));
    assert_eq!(judge(&mut view, 110, 9), (vec![(AlertName::AtRisk, 9, false)], 3));
    assert_eq!(judge(&mut view, 111, 9), (vec![(AlertName::AtRisk, 10, true)], 4));
    assert_eq!(judge(&mut view, 112, 0), (vec![], 0));
    assert_eq!(judge(&mut view, 113, 9), (vec![(AlertName::AtRisk, 0, false)], 3));
}

#[test]
fn journals_that_miss_the_same_lender_are_one_entry() {
    let mut view = ClusterView {
        now: at(5),
        journals: (0..5000)
            .map(|number| journal(&format!("/j{number}"), "tcp://b:1"))
            .collect(),
        ..ClusterView::default()
    };
    AlertTracker::default().judge(&mut view);
    assert_eq!(view.person.len(), 1);
    assert_eq!(
        (view.person[0].subject.as_str(), view.person[0].others),
        ("tcp://b:1", 4999)
    );
    // The lender itself is asked, too: still one entry, with the command that shows more.
    view.lenders = vec![LenderRow {
        address: "tcp://b:1".to_owned(),
        error: Some("nothing listens there".to_owned()),
        ..LenderRow::default()
    }];
    AlertTracker::default().judge(&mut view);
    assert_eq!(view.person.len(), 1);
    assert_eq!(
        view.person[0].command.as_deref(),
        Some("netram lender status tcp://b:1")
    );
    assert!(view.journals.iter().all(|journal| journal.worry == 1) && view.lenders[0].worry == 1);
}

#[test]
fn a_count_needs_a_person_only_after_it_grew() {
    let mut tracker = AlertTracker::default();
    let mut wrong_keys = |seconds, wrong_keys| {
        let lender = LenderRow {
            address: "tcp://a:1".to_owned(),
            wrong_keys,
            ..LenderRow::default()
        };
        let mut view = ClusterView {
            now: at(seconds),
            lenders: vec![lender],
            ..ClusterView::default()
        };
        tracker.judge(&mut view);
        view.person.len()
    };
    assert_eq!(wrong_keys(0, 7), 0, "what was before may be long over");
    assert_eq!(wrong_keys(1, 8), 1);
    assert_eq!(wrong_keys(601, 8), 1);
    assert_eq!(wrong_keys(602, 8), 0);
    assert_eq!(wrong_keys(603, 0), 0, "a lender that was started again");
    assert_eq!(wrong_keys(604, 1), 1);
}

#[test]
fn the_most_urgent_comes_first_and_each_part_is_judged() {
    let lender = LenderRow {
        address: "tcp://a:1".to_owned(),
        used: 96,
        offered: 100,
        lent: 200,
        on_battery: true,
        silent_s: 3601,
        ..LenderRow::default()
    };
    let fenced = JournalRow {
        fenced: Some(2),
        ..journal("/j", "")
    };
    let mut view = ClusterView {
        now: at(0),
        lenders: vec![lender],
        journals: vec![fenced],
        processes: vec![ProcessRow {
            page: "10.0.0.9:9464".to_owned(),
            error: Some("no answer in time".to_owned()),
            ..ProcessRow::default()
        }],
        services: vec![ServiceRow {
            failing: true,
            copy_out: true,
            checkpoints_fail: true,
            stuck_nodes: 1,
            ..ServiceRow::default()
        }],
        ..ClusterView::default()
    };
    AlertTracker::default().judge(&mut view);
    let alerts: Vec<AlertName> = view.person.iter().map(|one| one.alert).collect();
    assert_eq!(
        alerts,
        [
            AlertName::Fenced,
            AlertName::VolumeFailing,
            AlertName::CheckpointsFail,
            AlertName::NodeStuck,
            AlertName::OnBattery,
            AlertName::WindowAbandoned,
            AlertName::LenderDown,
            AlertName::ProcessDown,
            AlertName::LenderFull,
            AlertName::LenderShortOfMemory,
            AlertName::CopyOutOfService,
        ]
    );
    assert!(view.person.iter().all(|one| !one.sentence.is_empty()));
}
