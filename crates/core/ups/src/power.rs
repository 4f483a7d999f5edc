//! The power's status, and what changes it.
//!
//! | what is seen | what counts |
//! |---|---|
//! | battery | *on battery* at once |
//! | a low battery, for [`LOW_STEADY`] | *low battery*, until mains |
//! | FSD | *low battery* at once |
//! | mains again, for [`MAINS_STEADY`] | *mains* |
//! | nothing for [`UNKNOWN_AFTER`], mains before | *unknown*, which changes nothing |
//! | nothing for [`DEAD_AFTER`], battery before | *low battery*: the battery may end unseen |

use std::fmt;
use std::time::Duration;

use crate::answer::UpsRefusal;
use crate::limit::{DEAD_AFTER, LOW_STEADY, MAINS_STEADY, UNKNOWN_AFTER};
use crate::reading::{BatteryLow, PowerSource};

/// The source of this machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// The mains.
    Mains,
    /// The battery of a UPS.
    OnBattery,
    /// Power may end at any moment: save everything now.
    LowBattery,
    /// Not known.
    Unknown,
}

/// The source of this machine's power, and a reason where one is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerStatus {
    /// The state.
    pub state: PowerState,
    /// Why the battery is low or the state unknown; with other states what is wrong beside it.
    pub reason: Option<PowerReason>,
}

/// Why a state is what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerReason {
    /// The first answer is still awaited.
    NotAsked,
    /// No connection: the system's error.
    Unreachable(String),
    /// The answer to a command did not come in time.
    Silent,
    /// The connection was closed.
    Closed,
    /// The answer is none of NUT's.
    Garbled,
    /// A command was refused.
    Refused(UpsRefusal),
    /// The login was refused. The status is read all the same.
    NotLoggedIn(UpsRefusal),
    /// The status words say neither mains nor battery.
    Unclear(String),
    /// The UPS's battery is low.
    Low(BatteryLow),
    /// NUT announces that power ends (FSD).
    Ending,
    /// The UPS was silent on battery for [`DEAD_AFTER`], for this reason.
    Lost(Box<PowerReason>),
    /// The service manager sent SIGPWR.
    Signal,
}

impl fmt::Display for PowerState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            PowerState::Mains => "mains",
            PowerState::OnBattery => "on battery",
            PowerState::LowBattery => "low battery",
            PowerState::Unknown => "unknown",
        })
    }
}

impl fmt::Display for PowerReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PowerReason::NotAsked => out.write_str("upsd has not answered yet"),
            PowerReason::Unreachable(why) => write!(out, "upsd cannot be reached: {why}"),
            PowerReason::Silent => out.write_str("upsd does not answer"),
            PowerReason::Closed => out.write_str("upsd closed the connection"),
            PowerReason::Garbled => out.write_str("no upsd listens there: its answer is not NUT's"),
            PowerReason::Refused(refusal) => refusal.fmt(out),
            PowerReason::NotLoggedIn(refusal) => {
                write!(
                    out,
                    "not logged in, so the UPS may be turned off early: {refusal}"
                )
            }
            PowerReason::Unclear(words) => {
                write!(out, "the UPS says neither mains nor battery: `{words}`")
            }
            PowerReason::Low(BatteryLow::Reported) => out.write_str("the UPS says so"),
            PowerReason::Low(BatteryLow::Charge { charge, low }) => {
                write!(out, "charge {}%, of at least {}%", charge / 100, low / 100)
            }
            PowerReason::Low(BatteryLow::Runtime { runtime, low }) => {
                write!(out, "{runtime}s left, of at least {low}s")
            }
            PowerReason::Ending => out.write_str("NUT turns the UPS off (FSD)"),
            PowerReason::Lost(why) => {
                let seconds = DEAD_AFTER.as_secs();
                write!(out, "nothing heard for {seconds}s on battery: {why}")
            }
            PowerReason::Signal => out.write_str("SIGPWR"),
        }
    }
}

/// Decides what counts, from readings, their absence and the time since some start.
#[derive(Clone, Debug)]
pub struct PowerJudge {
    status: PowerStatus,
    /// The last reading was a battery's.
    on_battery: bool,
    /// Since when each reading has been the mains.
    mains_since: Option<Duration>,
    /// Since when each reading has been a low battery, and the last one's reason.
    low_since: Option<(Duration, BatteryLow)>,
    /// Since when there has been no reading, and the newest reason. The clock begins with the first failure,
    /// not with the last reading: a machine that slept has not been silent.
    trouble: Option<(Duration, PowerReason)>,
    /// Why the last login was refused.
    not_logged_in: Option<UpsRefusal>,
}

impl Default for PowerJudge {
    fn default() -> PowerJudge {
        PowerJudge::new()
    }
}

impl PowerJudge {
    /// A judge that knows nothing yet.
    pub fn new() -> PowerJudge {
        PowerJudge {
            status: PowerStatus {
                state: PowerState::Unknown,
                reason: Some(PowerReason::NotAsked),
            },
            on_battery: false,
            mains_since: None,
            low_since: None,
            trouble: None,
            not_logged_in: None,
        }
    }

    /// The status that counts.
    pub fn status(&self) -> &PowerStatus {
        &self.status
    }

    /// Whether the status may change soon, so that frequent looks are worthwhile.
    pub fn is_tense(&self) -> bool {
        self.on_battery || matches!(self.status.state, PowerState::OnBattery | PowerState::LowBattery)
    }

    /// Whether the last login was refused.
    pub fn is_login_refused(&self) -> bool {
        self.not_logged_in.is_some()
    }

    /// Handles the answer to a login.
    pub fn on_login(&mut self, refused: Option<UpsRefusal>) {
        self.not_logged_in = refused;
    }

    /// Handles a reading. `words` are its status words.
    pub fn on_reading(&mut self, now: Duration, source: PowerSource, words: &str) {
        if source == PowerSource::Unclear {
            return self.on_trouble(now, PowerReason::Unclear(words.to_owned()));
        }
        self.trouble = None;
        self.on_battery = source != PowerSource::Mains;
        self.mains_since = match source {
            PowerSource::Mains => self.mains_since.or(Some(now)),
            _ => None,
        };
        self.low_since = match source {
            PowerSource::Battery(Some(low)) => {
                let since = self.low_since.map_or(now, |(since, _)| since);
                Some((since, low))
            }
            _ => None,
        };
        if source == PowerSource::Ending {
            self.set(PowerState::LowBattery, Some(PowerReason::Ending));
        }
        self.settle(now);
    }

    /// Handles the absence of a reading.
    pub fn on_trouble(&mut self, now: Duration, why: PowerReason) {
        let since = self.trouble.as_ref().map_or(now, |(since, _)| *since);
        self.trouble = Some((since, why));
        self.mains_since = None;
        self.settle(now);
    }

    /// Handles the passing of time.
    pub fn settle(&mut self, now: Duration) {
        let beside = self.not_logged_in.clone().map(PowerReason::NotLoggedIn);
        let state = self.status.state;
        if let Some((since, low)) = self.low_since
            && now.saturating_sub(since) >= LOW_STEADY
        {
            return self.set_low(PowerReason::Low(low));
        }
        if let Some((since, why)) = self.trouble.clone() {
            return self.settle_silence(now.saturating_sub(since), why);
        }
        if self.on_battery {
            if state != PowerState::LowBattery {
                self.set(PowerState::OnBattery, beside);
            }
        } else if let Some(since) = self.mains_since {
            let steady = now.saturating_sub(since) >= MAINS_STEADY;
            match state {
                PowerState::OnBattery | PowerState::LowBattery if !steady => (),
                _ => self.set(PowerState::Mains, beside),
            }
        }
    }

    fn settle_silence(&mut self, silence: Duration, why: PowerReason) {
        match self.status.state {
            // A low battery is for good until the mains are back.
            PowerState::LowBattery => (),
            _ if self.on_battery && silence >= DEAD_AFTER => {
                self.set_low(PowerReason::Lost(Box::new(why)));
            }
            // Nothing is known that a wait could keep.
            PowerState::Unknown => self.set(PowerState::Unknown, Some(why)),
            _ if silence < UNKNOWN_AFTER => (),
            PowerState::OnBattery if self.on_battery => self.set(PowerState::OnBattery, Some(why)),
            PowerState::OnBattery | PowerState::Mains => self.set(PowerState::Unknown, Some(why)),
        }
    }

    /// The reason that made the battery low first is kept.
    fn set_low(&mut self, why: PowerReason) {
        if self.status.state != PowerState::LowBattery {
            self.set(PowerState::LowBattery, Some(why));
        }
    }

    fn set(&mut self, state: PowerState, reason: Option<PowerReason>) {
        self.status = PowerStatus { state, reason };
    }

    /// When time alone changes the status next; `None`: not before the next event.
    pub fn deadline(&self) -> Option<Duration> {
        let low = self.low_since.map(|(since, _)| since + LOW_STEADY);
        let steady = self.mains_since.map(|since| since + MAINS_STEADY);
        let silent = self.trouble.as_ref().map(|(since, _)| match self.on_battery {
            true => *since + DEAD_AFTER,
            false => *since + UNKNOWN_AFTER,
        });
        let pending = match self.status.state {
            PowerState::OnBattery => [low, steady, silent],
            PowerState::LowBattery => [None, steady, None],
            PowerState::Mains => [None, None, silent],
            PowerState::Unknown => [None; 3],
        };
        pending.into_iter().flatten().min()
    }
}

#[cfg(test)]
#[path = "power/tests.rs"]
mod tests;
