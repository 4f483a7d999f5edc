//! One look at a UPS: its status words and values, and their meaning.

/// The values that one look has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpsReading {
    /// The words of `ups.status`, such as `OB DISCHRG LB`.
    pub status: String,
    /// `battery.charge`, in hundredths of a percent; asked on battery only, like those below.
    pub charge: Option<u32>,
    /// `battery.charge.low`: charge at which the battery counts as low.
    pub charge_low: Option<u32>,
    /// `battery.runtime`, in seconds.
    pub runtime: Option<u32>,
    /// `battery.runtime.low`: seconds at which the battery counts as low.
    pub runtime_low: Option<u32>,
}

/// The source of the machine's power, by one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerSource {
    /// The mains, through the UPS or past it.
    Mains,
    /// The battery, and why it counts as low, if it does.
    Battery(Option<BatteryLow>),
    /// Power is about to end, by an administrator's or another program's decision (FSD).
    Ending,
    /// The reading says neither.
    Unclear,
}

/// Why a battery counts as low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatteryLow {
    /// The UPS says so (LB).
    Reported,
    /// The charge has reached the UPS's own bound, both in hundredths of a percent.
    Charge {
        /// The charge.
        charge: u32,
        /// The bound.
        low: u32,
    },
    /// The runtime has reached the UPS's own bound, both in seconds.
    Runtime {
        /// The runtime that is left.
        runtime: u32,
        /// The bound.
        low: u32,
    },
}

impl UpsReading {
    /// The source of the machine's power. Battery wins over mains, should a UPS report both.
    pub fn source(&self) -> PowerSource {
        let has = |word: &str| self.status.split(' ').any(|known| known == word);
        if has("FSD") {
            return PowerSource::Ending;
        }
        if has("OB") {
            // A UPS that calibrates empties its battery beside the mains: `upsmon` does not end then either.
            return PowerSource::Battery(if has("CAL") { None } else { self.low(has("LB")) });
        }
        match has("OL") || has("BYPASS") {
            true => PowerSource::Mains,
            false => PowerSource::Unclear,
        }
    }

    fn low(&self, reported: bool) -> Option<BatteryLow> {
        if reported {
            return Some(BatteryLow::Reported);
        }
        let reached = |pair: (Option<u32>, Option<u32>)| match pair {
            (Some(value), Some(low)) if value <= low => Some((value, low)),
            _ => None,
        };
        let charge = reached((self.charge, self.charge_low));
        let runtime = reached((self.runtime, self.runtime_low));
        charge
            .map(|(charge, low)| BatteryLow::Charge { charge, low })
            .or(runtime.map(|(runtime, low)| BatteryLow::Runtime { runtime, low }))
    }
}

/// Parses a charge (`87`, `87.5`) in hundredths of a percent. Some drivers report nonsense, which counts as
/// nothing.
pub fn percent(value: &str) -> Option<u32> {
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    if !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole = digits(whole).filter(|whole| *whole <= 100)?;
    let hundredths = part.bytes().chain(*b"00").take(2);
    let hundredths = hundredths.fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
    Some(whole * 100 + hundredths)
}

/// Parses seconds (`1200`, `1200.0`).
pub fn seconds(value: &str) -> Option<u32> {
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    let part_is_plain = part.bytes().all(|byte| byte.is_ascii_digit());
    digits(whole).filter(|_| part_is_plain)
}

/// Parses a number that has neither sign nor space.
fn digits(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(status: &str) -> PowerSource {
        let status = status.to_owned();
        UpsReading {
            status,
            ..UpsReading::default()
        }
        .source()
    }

    #[test]
    fn status_words_mean_what_upsmon_takes_them_for() {
        for mains in ["OL", "OL CHRG", "OL LB", "ALARM OL RB", "BYPASS", "OL CAL"] {
            assert_eq!(source(mains), PowerSource::Mains, "{mains}");
        }
        for battery in ["OB", "OB DISCHRG", "OL OB", "OB CAL", "OB LB CAL"] {
            assert_eq!(source(battery), PowerSource::Battery(None), "{battery}");
        }
        for low in ["OB LB", "LB OB", "ALARM OB DISCHRG LB"] {
            assert_eq!(
                source(low),
                PowerSource::Battery(Some(BatteryLow::Reported)),
                "{low}"
            );
        }
        for ending in ["FSD", "FSD OL", "FSD OB LB", "OL FSD"] {
            assert_eq!(source(ending), PowerSource::Ending, "{ending}");
        }
        for unclear in ["", "WAIT", "OFF", "ALARM", "LB", "OLB", "OBX", "ol"] {
            assert_eq!(source(unclear), PowerSource::Unclear, "{unclear}");
        }
    }

    #[test]
    fn a_battery_below_the_bounds_of_its_ups_is_low() {
        let read = |status: &str, charge, charge_low, runtime, runtime_low| {
            UpsReading {
                status: status.to_owned(),
                charge,
                charge_low,
                runtime,
                runtime_low,
            }
            .source()
        };
        let charged = |charge, low| read("OB", Some(charge), Some(low), None, None);
        let (charge, low) = (2000, 2000);
        let is_low = PowerSource::Battery(Some(BatteryLow::Charge { charge, low }));
        assert_eq!(charged(2000, 2000), is_low);
        assert_eq!(charged(2001, 2000), PowerSource::Battery(None));
        let (runtime, low) = (119, 120);
        let is_low = PowerSource::Battery(Some(BatteryLow::Runtime { runtime, low }));
        assert_eq!(read("OB", None, Some(2000), Some(119), Some(120)), is_low);
        assert_eq!(
            read("OB", Some(0), None, Some(0), None),
            PowerSource::Battery(None)
        );
        assert_eq!(read("OL", Some(0), Some(1), None, None), PowerSource::Mains);
    }

    #[test]
    fn values_are_numbers_or_nothing() {
        assert_eq!(percent("100"), Some(10_000));
        assert_eq!(percent("87.5"), Some(8750));
        assert_eq!(percent("0.129"), Some(12));
        for bad in ["", "-1", "+5", "101", "1e1", "87.x", "NaN", "4294967296", " 5"] {
            assert_eq!(percent(bad), None, "{bad:?}");
        }
        assert_eq!(seconds("1200.00"), Some(1200));
        for bad in ["", "-1", "+5", "1.x", "inf", "4294967296"] {
            assert_eq!(seconds(bad), None, "{bad:?}");
        }
    }
}
