//! The power of the lender's machine, and what the lender does about it.
//!
//! On battery it drains, and lends again with the mains, unless its operator drains it. A low battery is for
//! the program that has the lender: it [stops](crate::Lender::stop) it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use netram_ups::{PowerState, PowerStatus};
use serde::{Deserialize, Serialize};

/// The source of the lender's power.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerReport {
    /// `mains`, `on-battery`, `low-battery` or `unknown`.
    pub state: String,
    /// Seconds since the state began, or since the lender's start.
    pub since_s: u64,
    /// Why the state is unknown or the battery low, or what is wrong beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The UPS, as `NAME@HOST`.
    pub ups: String,
}

/// The lender's reaction to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PowerOrder {
    /// Drain.
    Drain,
    /// Lend again.
    Undrain,
    /// No reaction.
    None,
}

/// The power's last known state.
#[derive(Debug, Default)]
pub(crate) struct PowerRecord(Mutex<Option<KnownPower>>);

#[derive(Debug)]
struct KnownPower {
    ups: String,
    status: PowerStatus,
    since: Instant,
    /// Whether the last state that was known was the battery.
    battery: bool,
    /// Whether the lender drains for that reason alone.
    drains: bool,
}

impl PowerRecord {
    /// Notes a status, and returns what is to be done. A state that is unknown changes nothing.
    pub(crate) fn note(&self, ups: &str, status: &PowerStatus, now: Instant) -> PowerOrder {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.take();
        let (was_battery, drained) = before
            .as_ref()
            .map_or((false, false), |before| (before.battery, before.drains));
        let battery = match status.state {
            PowerState::Mains => false,
            PowerState::OnBattery | PowerState::LowBattery => true,
            PowerState::Unknown => was_battery,
        };
        let order = match (was_battery, battery) {
            (false, true) => PowerOrder::Drain,
            (true, false) if drained => PowerOrder::Undrain,
            _ => PowerOrder::None,
        };
        *known = Some(KnownPower {
            ups: ups.to_owned(),
            status: status.clone(),
            since: before
                .filter(|before| before.status.state == status.state)
                .map_or(now, |before| before.since),
            battery,
            drains: match order {
                PowerOrder::Drain => true,
                PowerOrder::Undrain => false,
                PowerOrder::None => drained,
            },
        });
        order
    }

    /// Notes that the operator gave an order: that one stands when the mains are back.
    pub(crate) fn leave_to_operator(&self) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &mut *known {
            known.drains = false;
        }
    }

    /// The report; `None` without a UPS.
    pub(crate) fn report(&self, now: Instant) -> Option<PowerReport> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map(|known| PowerReport {
            state: known.status.state.to_string().replace(' ', "-"),
            since_s: now.saturating_duration_since(known.since).as_secs(),
            why: known.status.reason.as_ref().map(ToString::to_string),
            ups: known.ups.clone(),
        })
    }
}

/// Logs a status, at the level of who must act.
pub(crate) fn log(ups: &str, status: &PowerStatus) {
    let why = status.reason.as_ref().map(tracing::field::display);
    match status.state {
        PowerState::Mains if status.reason.is_none() => tracing::info!(ups, "this machine is on the mains"),
        PowerState::Mains => tracing::warn!(ups, why, "this machine is on the mains"),
        PowerState::OnBattery => {
            tracing::warn!(
                ups,
                why,
                "this machine is on battery: clients are asked to move away"
            );
        }
        PowerState::LowBattery => tracing::warn!(ups, why, "the battery is low: the lender ends"),
        PowerState::Unknown => tracing::warn!(ups, why, "not known whether this machine is on battery"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netram_ups::PowerReason;

    use super::*;

    fn status(state: PowerState) -> PowerStatus {
        PowerStatus { state, reason: None }
    }

    #[test]
    fn battery_drains_and_mains_end_that_drain_whatever_is_unknown_between() {
        let (record, now) = (PowerRecord::default(), Instant::now());
        let note = |state| record.note("rack@localhost", &status(state), now);
        assert_eq!(note(PowerState::Unknown), PowerOrder::None);
        assert_eq!(note(PowerState::Mains), PowerOrder::None);
        assert_eq!(note(PowerState::OnBattery), PowerOrder::Drain);
        assert_eq!(note(PowerState::Unknown), PowerOrder::None);
        assert_eq!(note(PowerState::LowBattery), PowerOrder::None);
        assert_eq!(note(PowerState::Mains), PowerOrder::Undrain);
        assert_eq!(note(PowerState::Mains), PowerOrder::None);
    }

    #[test]
    fn an_operators_order_on_battery_outlives_the_battery() {
        let (record, now) = (PowerRecord::default(), Instant::now());
        let note = |state| record.note("rack@localhost", &status(state), now);
        record.leave_to_operator();
        assert_eq!(note(PowerState::OnBattery), PowerOrder::Drain);
        record.leave_to_operator();
        assert_eq!(note(PowerState::LowBattery), PowerOrder::None);
        assert_eq!(note(PowerState::Mains), PowerOrder::None);
    }

    #[test]
    fn a_report_says_since_when_and_why() {
        let (record, now) = (PowerRecord::default(), Instant::now());
        assert_eq!(record.report(now), None);
        record.note("rack@localhost", &status(PowerState::OnBattery), now);
        let silent = PowerStatus {
            state: PowerState::OnBattery,
            reason: Some(PowerReason::Silent),
        };
        record.note("rack@localhost", &silent, now + Duration::from_secs(5));
        let report = record.report(now + Duration::from_secs(9)).unwrap();
        assert_eq!((report.state.as_str(), report.since_s), ("on-battery", 9));
        assert_eq!(report.why.as_deref(), Some("upsd does not answer"));
        assert_eq!(report.ups, "rack@localhost");
    }
}
