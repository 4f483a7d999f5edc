//! What a monitor says of a real `upsd`.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use netram_ups::{PowerReason, PowerState, PowerStatus, UpsLogin, UpsMonitor, UpsName, UpsRefusal};

use crate::nut::{Nut, PASSWORD, PATIENCE};

/// A monitor, and what it has said.
struct Watched {
    monitor: UpsMonitor,
    statuses: Receiver<PowerStatus>,
    seen: Vec<PowerStatus>,
}

impl Watched {
    fn start(name: &UpsName, login: Option<UpsLogin>) -> Watched {
        let (sender, statuses) = channel();
        let monitor = UpsMonitor::start(name, login, move |status| {
            let _ = sender.send(status.clone());
        });
        Watched {
            monitor: monitor.unwrap(),
            statuses,
            seen: Vec::new(),
        }
    }

    /// Waits for a status of this state, and returns its reason.
    fn await_state(&mut self, state: PowerState) -> Option<PowerReason> {
        self.await_status(&format!("{state}"), |status| status.state == state)
    }

    fn await_status(&mut self, what: &str, is: impl Fn(&PowerStatus) -> bool) -> Option<PowerReason> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(status) = self.statuses.recv_timeout(left) else {
                panic!("waited in vain for {what} after {:?}", self.seen);
            };
            self.seen.push(status.clone());
            if is(&status) {
                return status.reason;
            }
        }
    }

    fn states(&self) -> Vec<PowerState> {
        self.seen.iter().map(|status| status.state).collect()
    }
}

use PowerState::{LowBattery, Mains, OnBattery, Unknown};

#[test]
fn an_outage_is_told_step_by_step_and_so_is_its_end() {
    let Some(nut) = Nut::start("OL") else { return };
    let mut watched = Watched::start(&nut.name(), nut.login(PASSWORD));
    assert_eq!(watched.await_state(Mains), None);
    nut.say("OB DISCHRG");
    assert_eq!(watched.await_state(OnBattery), None);
    nut.say("OB DISCHRG LB");
    let reason = watched.await_state(LowBattery);
    assert!(matches!(reason, Some(PowerReason::Low(_))), "{reason:?}");
    nut.say("OL CHRG LB");
    assert_eq!(watched.await_state(Mains), None);
    let known = watched.states().into_iter().filter(|state| *state != Unknown);
    assert_eq!(known.collect::<Vec<_>>(), [Mains, OnBattery, LowBattery, Mains]);
}

#[test]
fn the_primarys_announcement_is_a_low_battery_and_it_sees_who_is_logged_in() {
    let Some(nut) = Nut::start("OB") else { return };
    let mut watched = Watched::start(&nut.name(), nut.login(PASSWORD));
    assert_eq!(watched.await_state(OnBattery), None);
    // It waits for those that are logged in before it turns the UPS off.
    assert_eq!(nut.command_as_primary("GET NUMLOGINS rack"), "NUMLOGINS rack 1");
    assert_eq!(nut.command_as_primary("FSD rack"), "OK FSD-SET");
    assert_eq!(watched.await_state(LowBattery), Some(PowerReason::Ending));
    drop(watched);
    crate::nut::wait_until("the logout", || {
        nut.command_as_primary("GET NUMLOGINS rack") == "NUMLOGINS rack 0"
    });
}

#[test]
fn a_wrong_password_is_said_and_the_outage_is_seen_all_the_same() {
    let Some(nut) = Nut::start("OL") else { return };
    let mut watched = Watched::start(&nut.name(), nut.login("wrong"));
    let refused = Some(PowerReason::NotLoggedIn(UpsRefusal::AccessDenied));
    assert_eq!(watched.await_state(Mains), refused);
    assert_eq!(nut.command_as_primary("GET NUMLOGINS rack"), "NUMLOGINS rack 0");
    nut.say("OB");
    assert_eq!(watched.await_state(OnBattery), refused);
}

#[test]
fn an_unknown_ups_is_unknown_and_says_so() {
    let Some(nut) = Nut::start("OL") else { return };
    let name = UpsName {
        ups: "rock".to_owned(),
        ..nut.name()
    };
    let mut watched = Watched::start(&name, None);
    let reason = watched.await_state(Unknown);
    assert_eq!(reason, Some(PowerReason::Refused(UpsRefusal::UnknownUps)));
}

#[test]
fn a_restarted_upsd_is_found_again() {
    let Some(mut nut) = Nut::start("OL") else { return };
    let mut watched = Watched::start(&nut.name(), nut.login(PASSWORD));
    watched.await_state(Mains);
    nut.kill_upsd();
    let reason = watched.await_state(Unknown);
    assert!(matches!(reason, Some(PowerReason::Unreachable(_))), "{reason:?}");
    nut.start_upsd();
    assert_eq!(watched.await_state(Mains), None);
    assert_eq!(nut.command_as_primary("GET NUMLOGINS rack"), "NUMLOGINS rack 1");
}

#[test]
fn an_upsd_that_dies_on_battery_is_a_low_battery() {
    let Some(mut nut) = Nut::start("OB") else { return };
    let mut watched = Watched::start(&nut.name(), None);
    watched.await_state(OnBattery);
    nut.kill_upsd();
    let reason = watched.await_state(LowBattery);
    assert!(matches!(reason, Some(PowerReason::Lost(_))), "{reason:?}");
}

#[test]
fn a_driver_that_hangs_or_is_gone_makes_the_power_unknown() {
    let Some(mut nut) = Nut::start("OL") else { return };
    let mut watched = Watched::start(&nut.name(), None);
    watched.await_state(Mains);
    nut.freeze_driver();
    let stale = PowerReason::Refused(UpsRefusal::DataStale);
    assert_eq!(watched.await_state(Unknown), Some(stale));
    nut.kill_driver();
    let gone = PowerReason::Refused(UpsRefusal::DriverNotConnected);
    watched.await_status("a driver that is gone", |status| {
        status.reason.as_ref() == Some(&gone)
    });
    nut.start_driver();
    watched.await_state(Mains);
}

#[test]
fn a_server_that_never_answers_is_said_and_a_stoppedmonitor_says_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("rack@{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let mut watched = Watched::start(&name, None);
    assert_eq!(watched.await_state(Unknown), Some(PowerReason::Silent));
    let Watched {
        monitor, statuses, ..
    } = watched;
    monitor.stop();
    // Its thread has ended, and its function is gone.
    assert_eq!(
        statuses.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
}
