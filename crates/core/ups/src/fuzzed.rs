//! The fuzzers' input: a server that sends anything at any time.

use std::time::Duration;

use crate::power::PowerState;
use crate::watch::{UpsAction, UpsEvent, UpsWatch};

/// Maximum number of actions that one event may cause.
const ACTIONS_MAX: usize = 64;

/// Feeds a watch with events: a byte of kind and pause each; for received bytes also their count, then they.
pub fn watch(mut bytes: &[u8]) {
    let mut watch = UpsWatch::new("rack".to_owned(), None);
    let (mut now, mut connected) = (Duration::ZERO, false);
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        now += Duration::from_millis(u64::from(kind >> 2) * 100);
        let event = match kind & 3 {
            0 => UpsEvent::Tick,
            1 => UpsEvent::Connected,
            2 if kind & 4 == 0 => UpsEvent::Closed,
            2 => UpsEvent::Unreachable(String::new()),
            _ => {
                let count = usize::from(bytes.first().copied().unwrap_or(0)).min(bytes.len());
                let (received, rest) = bytes.split_at(count);
                bytes = rest;
                UpsEvent::Received(received.get(1..).unwrap_or_default())
            }
        };
        let before = watch.status().state;
        watch.handle(now, event);
        let mut actions = 0;
        while let Some(action) = watch.poll_action() {
            actions += 1;
            assert!(actions <= ACTIONS_MAX);
            match action {
                UpsAction::Connect => connected = true,
                UpsAction::Disconnect => connected = false,
                UpsAction::Send(_) => assert!(connected, "sent without a connection"),
                UpsAction::Report(_) => (),
            }
        }
        assert!(watch.deadline() > now);
        let state = watch.status().state;
        assert!(
            before != PowerState::LowBattery || matches!(state, PowerState::LowBattery | PowerState::Mains)
        );
    }
}

/// A look at a UPS on battery.
pub fn watch_seeds() -> Vec<Vec<u8>> {
    let mut seed = vec![0, 1];
    for line in [
        "VAR rack ups.status \"OB\"\n",
        "VAR rack battery.charge \"9\"\n",
        "VAR rack battery.charge.low \"20\"\n",
        "ERR VAR-NOT-SUPPORTED\n",
        "ERR VAR-NOT-SUPPORTED\n",
    ] {
        seed.extend([3, line.len() as u8 + 1]);
        seed.extend(line.as_bytes());
    }
    seed.extend([255, 255, 0]);
    vec![seed]
}
