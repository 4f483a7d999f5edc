use std::time::Duration;

use proptest::prelude::*;

use super::*;

const BATTERY: PowerSource = PowerSource::Battery(None);
const LOW: PowerSource = PowerSource::Battery(Some(BatteryLow::Reported));

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A judge, and the states that it has had, each with the millisecond of its beginning.
struct Story {
    judge: PowerJudge,
    at: u64,
    seen: Vec<(u64, PowerState)>,
}

impl Story {
    fn new() -> Story {
        Story {
            judge: PowerJudge::new(),
            at: 0,
            seen: Vec::new(),
        }
    }

    /// Reads this once a quarter of a second, for so long.
    fn read(mut self, source: PowerSource, for_ms: u64) -> Story {
        for _ in 0..for_ms / 250 {
            self.judge.on_reading(ms(self.at), source, "");
            self.note();
            self.at += 250;
        }
        self
    }

    /// Is without an answer for so long.
    fn silent(mut self, for_ms: u64) -> Story {
        for _ in 0..for_ms / 250 {
            self.judge.on_trouble(ms(self.at), PowerReason::Silent);
            self.note();
            self.at += 250;
        }
        self
    }

    fn note(&mut self) {
        let state = self.judge.status().state;
        if self.seen.last().is_none_or(|(_, last)| *last != state) {
            self.seen.push((self.at, state));
        }
    }

    fn states(&self) -> Vec<PowerState> {
        self.seen.iter().map(|(_, state)| *state).collect()
    }

    fn begin(&self, wanted: PowerState) -> Option<u64> {
        let found = self.seen.iter().rev().find(|(_, state)| *state == wanted);
        found.map(|(at, _)| *at)
    }
}

use PowerState::{LowBattery, Mains, OnBattery, Unknown};

#[test]
fn an_outage_is_followed_from_mains_to_low_and_back() {
    let story = Story::new()
        .read(PowerSource::Mains, 2000)
        .read(BATTERY, 2000)
        .read(LOW, 3000)
        .read(PowerSource::Mains, 12_000);
    assert_eq!(
        story.seen,
        [(0, Mains), (2000, OnBattery), (5000, LowBattery), (17_000, Mains)]
    );
}

#[test]
fn battery_counts_at_once_and_mains_only_once_they_last() {
    let mut story = Story::new().read(PowerSource::Mains, 1000);
    for _ in 0..20 {
        story = story.read(BATTERY, 250).read(PowerSource::Mains, 9750);
    }
    assert_eq!(story.states(), [Mains, OnBattery], "one move for twenty flickers");
    let story = story.read(PowerSource::Mains, 1000);
    assert_eq!(story.states(), [Mains, OnBattery, Mains]);
}

#[test]
fn one_low_reading_does_not_stop_a_lender() {
    let story = Story::new()
        .read(BATTERY, 1000)
        .read(LOW, 500)
        .read(BATTERY, 5000);
    assert_eq!(story.states(), [OnBattery]);
    let story = story.read(LOW, 250).silent(2000);
    assert_eq!(
        story.states(),
        [OnBattery, LowBattery],
        "but one and then silence does"
    );
}

#[test]
fn the_announced_end_counts_at_once_even_on_mains() {
    let story = Story::new()
        .read(PowerSource::Mains, 500)
        .read(PowerSource::Ending, 250);
    assert_eq!(story.seen, [(0, Mains), (500, LowBattery)]);
    assert_eq!(story.judge.status().reason, Some(PowerReason::Ending));
}

/// A switch without a UPS of its own takes upsd away with the mains.
#[test]
fn silence_on_battery_is_a_low_battery() {
    let story = Story::new()
        .read(PowerSource::Mains, 1000)
        .read(BATTERY, 1000)
        .silent(30_000);
    assert_eq!(story.states(), [Mains, OnBattery, LowBattery]);
    assert_eq!(story.begin(LowBattery), Some(2000 + 15_000));
    let reason = story.judge.status().reason.clone();
    assert_eq!(reason, Some(PowerReason::Lost(Box::new(PowerReason::Silent))));
}

#[test]
fn a_restart_of_upsd_on_battery_is_waited_for() {
    let story = Story::new()
        .read(BATTERY, 1000)
        .silent(14_000)
        .read(BATTERY, 500)
        .silent(14_000);
    assert_eq!(story.states(), [OnBattery]);
}

#[test]
fn silence_on_mains_is_only_reported() {
    let story = Story::new().read(PowerSource::Mains, 1000).silent(3_600_000);
    assert_eq!(story.states(), [Mains, Unknown]);
    let story = story.read(PowerSource::Mains, 250);
    assert_eq!(
        story.states(),
        [Mains, Unknown, Mains],
        "mains count at once after it"
    );
    let story = story.silent(5000).read(PowerSource::Mains, 250);
    assert_eq!(
        story.states(),
        [Mains, Unknown, Mains],
        "a restart of upsd is not seen"
    );
}

#[test]
fn silence_after_the_mains_have_returned_is_not_the_batterys_end() {
    let story = Story::new()
        .read(BATTERY, 1000)
        .read(PowerSource::Mains, 2000)
        .silent(60_000);
    assert_eq!(story.states(), [OnBattery, Unknown]);
}

#[test]
fn nothing_is_known_before_the_first_answer_and_the_first_failure_says_why() {
    let mut judge = PowerJudge::new();
    assert_eq!(judge.status().reason, Some(PowerReason::NotAsked));
    judge.on_trouble(ms(5), PowerReason::Refused(UpsRefusal::UnknownUps));
    assert_eq!(judge.status().state, Unknown);
    let reason = judge.status().reason.clone();
    assert_eq!(reason, Some(PowerReason::Refused(UpsRefusal::UnknownUps)));
    judge.on_reading(ms(9), PowerSource::Unclear, "WAIT");
    let sentence = judge.status().reason.as_ref().unwrap().to_string();
    assert!(sentence.contains("`WAIT`"), "{sentence}");
    assert_eq!(judge.deadline(), None);
}

#[test]
fn a_refused_login_is_said_beside_the_status() {
    let mut judge = PowerJudge::new();
    judge.on_login(Some(UpsRefusal::AccessDenied));
    judge.on_reading(ms(0), PowerSource::Mains, "OL");
    assert_eq!(judge.status().state, Mains);
    let reason = judge.status().reason.clone();
    assert_eq!(reason, Some(PowerReason::NotLoggedIn(UpsRefusal::AccessDenied)));
    judge.on_login(None);
    judge.on_reading(ms(1), PowerSource::Mains, "OL");
    assert_eq!(judge.status().reason, None);
}

#[derive(Clone, Debug)]
enum Step {
    Read(PowerSource),
    Trouble,
    Time,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64)>> {
    let source = prop_oneof![
        Just(PowerSource::Mains),
        Just(BATTERY),
        Just(LOW),
        Just(PowerSource::Ending),
        Just(PowerSource::Unclear),
    ];
    let step = prop_oneof![4 => source.prop_map(Step::Read), 2 => Just(Step::Trouble), 1 => Just(Step::Time)];
    proptest::collection::vec((step, 0..9000_u64), 1..60)
}

proptest! {
    /// The rules that a lender and its clients rely on, after any history.
    #[test]
    fn the_status_is_never_better_than_what_was_seen(steps in steps()) {
        let (mut judge, mut at) = (PowerJudge::new(), 0);
        let (mut last, mut silent_since) = (None, None);
        for (step, pause) in steps {
            at += pause;
            let before = judge.status().state;
            match &step {
                Step::Read(source) => judge.on_reading(ms(at), *source, "?"),
                Step::Trouble => judge.on_trouble(ms(at), PowerReason::Silent),
                Step::Time => judge.settle(ms(at)),
            }
            match step {
                Step::Read(source) if source != PowerSource::Unclear => (last, silent_since) = (Some(source), None),
                Step::Time => (),
                _ => silent_since = silent_since.or(Some(at)),
            }
            let state = judge.status().state;
            let battery = last.is_some_and(|last| last != PowerSource::Mains);
            prop_assert!(!battery || matches!(state, OnBattery | LowBattery), "{last:?}: {state:?}");
            prop_assert!(state != Mains || last == Some(PowerSource::Mains));
            let dead = silent_since.is_some_and(|since| ms(at - since) >= DEAD_AFTER);
            prop_assert!(!(battery && dead) || state == LowBattery);
            if before == LowBattery {
                prop_assert!(matches!(state, LowBattery | Mains), "{state:?}");
            }
            if let Some(deadline) = judge.deadline() {
                prop_assert!(deadline > ms(at), "a deadline that has passed would be waited for in vain");
                let mut early = judge.clone();
                early.settle(deadline.saturating_sub(ms(1)));
                prop_assert_eq!(early.status().state, state, "changed before its deadline");
            }
        }
    }
}
