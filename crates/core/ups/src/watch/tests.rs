use proptest::prelude::*;

use super::*;
use crate::limit::{LINE_BYTES_MAX, UNKNOWN_AFTER};
use crate::power::PowerState;
use crate::reading::BatteryLow;

/// A watch, and an `upsd` that answers as `answer` says.
struct Talk {
    watch: UpsWatch,
    now: Duration,
    connected: bool,
    sent: Vec<String>,
    reports: Vec<PowerStatus>,
}

impl Talk {
    fn new(login: Option<UpsLogin>) -> Talk {
        Talk {
            watch: UpsWatch::new("rack".to_owned(), login),
            now: Duration::ZERO,
            connected: false,
            sent: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// Runs for so long, with a server that answers each command so. `None` leaves it without an answer.
    fn run(&mut self, time: Duration, answer: &mut dyn FnMut(&str) -> Option<String>) {
        let end = self.now + time;
        while self.now < end {
            self.watch.handle(self.now, UpsEvent::Tick);
            self.drain(answer);
            let next = self.watch.deadline();
            assert!(
                next > self.now,
                "a deadline that has passed would be waited for in vain"
            );
            self.now = next.min(end);
        }
    }

    fn drain(&mut self, answer: &mut dyn FnMut(&str) -> Option<String>) {
        while let Some(action) = self.watch.poll_action() {
            match action {
                UpsAction::Connect => {
                    self.connected = true;
                    self.watch.handle(self.now, UpsEvent::Connected);
                }
                UpsAction::Disconnect => self.connected = false,
                UpsAction::Report(status) => self.reports.push(status),
                UpsAction::Send(command) => {
                    assert!(self.connected, "sent without a connection");
                    let line = String::from_utf8(command.as_bytes().to_vec()).unwrap();
                    let line = line.strip_suffix('\n').unwrap();
                    assert!(!line.contains('\n'), "{line}");
                    self.sent.push(line.to_owned());
                    if let Some(answer) = answer(line) {
                        // In two parts, as networks cut it.
                        let (one, two) = answer.as_bytes().split_at(answer.len() / 2);
                        self.watch.handle(self.now, UpsEvent::Received(one));
                        self.watch.handle(self.now, UpsEvent::Received(two));
                    }
                }
            }
        }
    }

    fn states(&self) -> Vec<PowerState> {
        self.reports.iter().map(|report| report.state).collect()
    }
}

/// An `upsd` whose UPS has this status and these values.
fn serves<'a>(values: &'a [(&'a str, &'a str)]) -> impl FnMut(&str) -> Option<String> + 'a {
    move |line| {
        let mut words = line.split(' ');
        let answer = match words.next() {
            Some("GET") => {
                let (_, ups, name) = (words.next(), words.next().unwrap(), words.next().unwrap());
                match values.iter().find(|(known, _)| *known == name) {
                    Some((_, value)) => format!("VAR {ups} {name} \"{value}\"\n"),
                    None => "ERR VAR-NOT-SUPPORTED\r\n".to_owned(),
                }
            }
            _ => "OK\n".to_owned(),
        };
        Some(answer)
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn login() -> Option<UpsLogin> {
    Some(UpsLogin::new("lender", "se\"cret").unwrap())
}

#[test]
fn a_login_comes_before_the_first_look() {
    let mut talk = Talk::new(login());
    talk.run(SECOND, &mut serves(&[("ups.status", "OL")]));
    let begin = [
        "USERNAME \"lender\"",
        "PASSWORD \"se\\\"cret\"",
        "LOGIN rack",
        "GET VAR rack ups.status",
    ];
    assert_eq!(talk.sent, begin);
    assert_eq!(talk.states(), [PowerState::Mains]);
}

#[test]
fn looks_are_more_frequent_on_battery() {
    let mut talk = Talk::new(None);
    talk.run(10 * SECOND, &mut serves(&[("ups.status", "OL")]));
    assert_eq!(talk.sent.len(), 10);
    talk.sent.clear();
    talk.run(10 * SECOND, &mut serves(&[("ups.status", "OB LB")]));
    assert!(talk.sent.len() >= 38, "{}", talk.sent.len());
    assert_eq!(
        talk.states(),
        [PowerState::Mains, PowerState::OnBattery, PowerState::LowBattery]
    );
}

#[test]
fn a_battery_below_its_own_bound_is_low_although_the_ups_does_not_say_so() {
    let mut talk = Talk::new(None);
    let low = [
        ("ups.status", "OB"),
        ("battery.charge", "19.5"),
        ("battery.charge.low", "20"),
    ];
    talk.run(3 * SECOND, &mut serves(&low));
    let last = talk.reports.last().unwrap();
    let (charge, low) = (1950, 2000);
    assert_eq!(
        last.reason,
        Some(PowerReason::Low(BatteryLow::Charge { charge, low }))
    );
    assert_eq!(last.state, PowerState::LowBattery);
}

#[test]
fn a_refused_login_is_said_and_tried_again_while_the_status_is_read() {
    let mut talk = Talk::new(login());
    let mut good = serves(&[("ups.status", "OL")]);
    let mut refusing = |line: &str| match line.starts_with("LOGIN") {
        true => Some("ERR ACCESS-DENIED\n".to_owned()),
        false => good(line),
    };
    talk.run(40 * SECOND, &mut refusing);
    let refused = PowerStatus {
        state: PowerState::Mains,
        reason: Some(PowerReason::NotLoggedIn(UpsRefusal::AccessDenied)),
    };
    assert_eq!(talk.reports, [refused], "said once");
    let logins = talk.sent.iter().filter(|line| line.starts_with("LOGIN"));
    assert_eq!(logins.count(), 2);
    talk.run(40 * SECOND, &mut serves(&[("ups.status", "OL")]));
    let mended = PowerStatus {
        state: PowerState::Mains,
        reason: None,
    };
    assert_eq!(talk.reports.last(), Some(&mended));
}

#[test]
fn what_upsd_refuses_is_the_reason_of_the_unknown() {
    for (code, refusal) in [
        ("UNKNOWN-UPS", UpsRefusal::UnknownUps),
        ("DATA-STALE", UpsRefusal::DataStale),
        ("DRIVER-NOT-CONNECTED", UpsRefusal::DriverNotConnected),
        ("ACCESS-DENIED", UpsRefusal::AccessDenied),
    ] {
        let mut talk = Talk::new(None);
        talk.run(20 * SECOND, &mut |_| Some(format!("ERR {code}\n")));
        let unknown = PowerStatus {
            state: PowerState::Unknown,
            reason: Some(PowerReason::Refused(refusal)),
        };
        assert_eq!(talk.reports, [unknown], "said once");
        assert!(talk.sent.len() >= 20, "it goes on asking");
    }
}

#[test]
fn a_server_that_is_not_upsd_is_given_up_and_tried_again_more_and_more_slowly() {
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    for garbage in [
        "HTTP/1.1 400 Bad Request\n",
        "VAR other ups.status \"OL\"\n",
        "VAR rack battery.charge \"100\"\n",
        "OK\n",
        &long,
    ] {
        let mut talk = Talk::new(None);
        talk.run(60 * SECOND, &mut |_| Some(garbage.to_owned()));
        assert!((5..25).contains(&talk.sent.len()), "{} times", talk.sent.len());
        let last = talk.reports.last().unwrap();
        assert_eq!(last.reason, Some(PowerReason::Garbled), "{garbage:?}");
        assert!(talk.reports.len() <= 50, "{}", talk.reports.len());
    }
}

#[test]
fn a_silent_upsd_is_unknown_on_mains_and_the_end_on_battery() {
    let silent = &mut |_: &str| None;
    let mut talk = Talk::new(None);
    talk.run(2 * SECOND, &mut serves(&[("ups.status", "OL")]));
    talk.run(UNKNOWN_AFTER + 4 * SECOND, silent);
    assert_eq!(talk.states(), [PowerState::Mains, PowerState::Unknown]);
    talk.run(60 * SECOND, &mut serves(&[("ups.status", "OB")]));
    talk.run(20 * SECOND, silent);
    let states = talk.states();
    assert_eq!(states[2], PowerState::OnBattery);
    assert_eq!(states.last(), Some(&PowerState::LowBattery));
}

#[test]
fn a_name_that_cannot_be_looked_up_in_time_is_a_failure() {
    let mut watch = UpsWatch::new("rack".to_owned(), None);
    watch.handle(Duration::ZERO, UpsEvent::Tick);
    assert_eq!(watch.poll_action(), Some(UpsAction::Connect));
    assert_eq!(watch.deadline(), CONNECT_TIMEOUT);
    watch.handle(CONNECT_TIMEOUT, UpsEvent::Tick);
    assert_eq!(watch.poll_action(), Some(UpsAction::Disconnect));
    let Some(UpsAction::Report(status)) = watch.poll_action() else {
        panic!("nothing is reported");
    };
    assert!(matches!(status.reason, Some(PowerReason::Unreachable(_))));
    // The connection that comes after all is closed.
    watch.handle(CONNECT_TIMEOUT, UpsEvent::Connected);
    assert_eq!(watch.poll_action(), Some(UpsAction::Disconnect));
}

#[test]
fn no_line_that_is_logged_has_the_password() {
    let mut watch = UpsWatch::new("rack".to_owned(), login());
    watch.handle(Duration::ZERO, UpsEvent::Tick);
    watch.handle(Duration::ZERO, UpsEvent::Connected);
    watch.handle(Duration::ZERO, UpsEvent::Received(b"OK\n"));
    let mut said = format!("{watch:?}");
    while let Some(action) = watch.poll_action() {
        said += &format!("{action:?}");
    }
    assert!(said.contains("PASSWORD") && !said.contains("cret"), "{said}");
}

proptest! {
    #[test]
    fn any_bytes_at_any_time_leave_a_watch_that_goes_on(
        events in proptest::collection::vec((0..5_u8, proptest::collection::vec(any::<u8>(), 0..40), 0..5000_u64), 0..60),
    ) {
        let mut watch = UpsWatch::new("rack".to_owned(), login());
        let mut now = Duration::ZERO;
        for (kind, bytes, pause) in events {
            now += Duration::from_millis(pause);
            let event = match kind {
                0 => UpsEvent::Connected,
                1 => UpsEvent::Unreachable("no".to_owned()),
                2 => UpsEvent::Closed,
                3 => UpsEvent::Received(if bytes.len() < 20 { b"OK\n" } else { &bytes }),
                _ => UpsEvent::Tick,
            };
            watch.handle(now, event);
            while watch.poll_action().is_some() {}
            prop_assert!(watch.deadline() > now);
        }
        // Whatever was before: a good upsd is found again.
        let mut talk = Talk { watch, now, connected: true, sent: Vec::new(), reports: Vec::new() };
        talk.run(60 * SECOND, &mut serves(&[("ups.status", "OL")]));
        prop_assert_eq!(talk.watch.status().state, PowerState::Mains);
    }
}
