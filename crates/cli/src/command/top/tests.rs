use netram_watch::view::{ClusterEvent, HourLatency, RiskRow};
use netram_watch::view::{ClusterView, JournalRow, LenderRow};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::screen::TopList;
use super::*;

fn cluster() -> ClusterView {
    let lender = |number: u32| LenderRow {
        address: format!("tcp://10.0.0.{number}:7420"),
        name: format!("ram-{number}"),
        domain: format!("ups-{}", number % 4),
        state: "lending".to_owned(),
        error: (number == 7).then(|| "no answer in time".to_owned()),
        ..LenderRow::default()
    };
    let journal = |number: u32| JournalRow {
        path: format!("/srv/vm{number}"),
        name: format!("/srv/vm{number}"),
        worry: u8::from(number == 4242) * 4,
        risks: vec![RiskRow {
            lost: "all".to_owned(),
            bytes: 4096,
            age_ms: 3,
        }],
        hour: Some(HourLatency {
            commits: 1,
            quantiles: [Some(24e-6), Some(1.5e-3), None],
        }),
        ..JournalRow::default()
    };
    let mut view = ClusterView {
        is_complete: true,
        lenders: (0..200).map(lender).collect(),
        journals: (0..5000).map(journal).collect(),
        events: vec![ClusterEvent {
            subject: "ram-7".to_owned(),
            what: "it does not answer".to_owned(),
            unix_ms: 0,
        }],
        ..ClusterView::default()
    };
    view.sort();
    view
}

fn drawn(screen: &mut TopScreen, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    screen.draw(area, &mut buffer, &cluster(), Duration::ZERO);
    text_of(&buffer).join("\n")
}

fn press(screen: &mut TopScreen, keys: &[KeyCode]) -> bool {
    let press =
        |screen: &mut TopScreen, code: &KeyCode| screen.handle(KeyEvent::new(*code, KeyModifiers::NONE));
    keys.iter().any(|code| press(screen, code))
}

#[test]
fn a_large_cluster_fits_with_the_worst_on_top() {
    let said = drawn(&mut TopScreen::default(), 120, 50);
    for text in [
        "200 lenders (1 without answer) · 5,000 journals",
        "Nothing needs a person",
        "/srv/vm4242",
        "24 µs",
        "1.5 ms",
        "no answer in time",
        "all machines at once",
    ] {
        assert!(said.contains(text), "{text}\n{said}");
    }
    let line = said
        .lines()
        .position(|line| line.contains("/srv/vm4242"))
        .unwrap();
    assert!(said.lines().nth(line - 1).unwrap().starts_with("state"), "{said}");
}

#[test]
fn any_size_of_the_terminal_is_drawn() {
    for (width, height) in [(0, 0), (1, 1), (20, 5), (40, 10), (300, 100)] {
        drawn(&mut TopScreen::default(), width, height);
    }
}

#[test]
fn keys_move_search_and_quit() {
    let mut screen = TopScreen::default();
    assert!(!press(
        &mut screen,
        &[KeyCode::Up, KeyCode::Down, KeyCode::PageDown]
    ));
    assert_eq!(screen.offsets[TopList::Journals as usize], 11);
    press(&mut screen, &[KeyCode::Tab]);
    assert_eq!(screen.list, TopList::Lenders);
    press(&mut screen, &[KeyCode::BackTab, KeyCode::Char('/')]);
    assert!(
        !press(
            &mut screen,
            &[KeyCode::Char('v'), KeyCode::Char('q'), KeyCode::Backspace]
        ),
        "`q` is a letter here"
    );
    press(
        &mut screen,
        &[
            KeyCode::Char('m'),
            KeyCode::Char('7'),
            KeyCode::Char('7'),
            KeyCode::Enter,
        ],
    );
    let said = drawn(&mut screen, 120, 50);
    assert!(
        said.contains("Journals: 11 of 5000 found") && said.contains("/srv/vm77"),
        "{said}"
    );
    press(&mut screen, &[KeyCode::Esc]);
    assert!(drawn(&mut screen, 120, 50).contains("5000, the worst first"));
    assert!(press(&mut screen, &[KeyCode::Char('q')]));
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(TopScreen::default().handle(control));
}
