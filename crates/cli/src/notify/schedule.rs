//! Decides what the service manager is told of a service, from looks at it.
//!
//! A ping is due at half of the time after which the manager takes the service for wedged. It is sent only if
//! a look since the last one found the service alive. So a loop that stands still, or a look that never
//! returns, ends the pings.

use std::time::{Duration, Instant};

/// Time between two looks, and minimum time between two sentences.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time by which a stop is extended at once.
const EXTENSION: Duration = Duration::from_secs(30);
/// Time between two extensions of a stop.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a stop is not extended any more: the manager's own limit then counts.
const EXTENDED_MAX: Duration = Duration::from_secs(3600);
/// Maximum length of a sentence in bytes.
const SENTENCE_BYTES_MAX: usize = 240;

const _: () = assert!(
    EXTENSION.as_nanos() > 2 * EXTENSION_INTERVAL.as_nanos(),
    "one extension may be lost"
);

/// State of a service at one look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceLook {
    /// Whether the threads that serve have made progress since the last look.
    pub(crate) alive: bool,
    /// Work of the service in words; `None`: as before.
    pub(crate) sentence: Option<String>,
}

/// How long a service's stop may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopPatience {
    /// As long as it needs: bytes that only this machine's memory has are brought elsewhere.
    Extend,
    /// As long as its unit says: it waits for others.
    AsConfigured,
}

/// Message to the service manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceNotice {
    /// The service lives.
    Ping,
    /// The service does this, in words.
    Status(String),
    /// The stop takes longer, by this time from now on.
    Extend(Duration),
}

/// Messages that are due.
#[derive(Clone, Debug)]
pub(super) struct NotifySchedule {
    /// Time between two pings; `None`: the manager expects none.
    ping_interval: Option<Duration>,
    next_ping: Instant,
    /// Whether the service was found alive since the last ping.
    alive: bool,
    sentence: Option<String>,
    said: Option<String>,
    next_sentence: Instant,
    /// When the stop began that is to be extended, and when it is extended next.
    extended: Option<(Instant, Instant)>,
    stopping: bool,
}

impl NotifySchedule {
    /// Begins at `now`, for a manager that expects a sign of life within `watchdog`.
    pub(super) fn new(now: Instant, watchdog: Option<Duration>) -> NotifySchedule {
        NotifySchedule {
            ping_interval: watchdog.map(|limit| limit / 2),
            next_ping: now,
            alive: false,
            sentence: None,
            said: None,
            next_sentence: now,
            extended: None,
            stopping: false,
        }
    }

    /// Records a look at the service.
    pub(super) fn handle_look(&mut self, look: ServiceLook) {
        self.alive |= look.alive;
        self.sentence = look.sentence.map(shortened).or(self.sentence.take());
    }

    /// The service stops from now on. Its threads end one after the other, so they are not looked at any
    /// more.
    pub(super) fn handle_stop(&mut self, now: Instant, sentence: &str, patience: StopPatience) {
        self.sentence = Some(shortened(sentence.to_owned()));
        (self.stopping, self.next_sentence) = (true, now);
        self.extended = (patience == StopPatience::Extend).then_some((now, now));
    }

    /// Returns the next message that is due at `now`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<ServiceNotice> {
        if let Some(interval) = self.ping_interval
            && (self.alive || self.stopping)
            && self.next_ping <= now
        {
            (self.next_ping, self.alive) = (now + interval, false);
            return Some(ServiceNotice::Ping);
        }
        if let Some((since, next)) = self.extended
            && next <= now
            && now < since + EXTENDED_MAX
        {
            self.extended = Some((since, now + EXTENSION_INTERVAL));
            return Some(ServiceNotice::Extend(EXTENSION));
        }
        if self.sentence != self.said && self.next_sentence <= now {
            self.next_sentence = now + LOOK_INTERVAL;
            self.said.clone_from(&self.sentence);
            return self.said.clone().map(ServiceNotice::Status);
        }
        None
    }

    /// Returns how long to wait until the next look.
    pub(super) fn pause(&self) -> Duration {
        self.ping_interval
            .map_or(LOOK_INTERVAL, |interval| interval.min(LOOK_INTERVAL))
    }
}

/// Returns a sentence as one line of bounded length.
fn shortened(sentence: String) -> String {
    let mut line = sentence.replace(|letter: char| letter.is_control(), " ");
    line.truncate(line.floor_char_boundary(SENTENCE_BYTES_MAX));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WATCHDOG: Duration = Duration::from_secs(60);

    fn look(alive: bool, sentence: &str) -> ServiceLook {
        ServiceLook {
            alive,
            sentence: Some(sentence.to_owned()),
        }
    }

    /// Looks once a second from `from` to `to`. Returns the seconds of the messages that `wanted` takes.
    fn seconds_of(
        schedule: &mut NotifySchedule,
        begin: Instant,
        seconds: std::ops::Range<u32>,
        look: impl Fn(u32) -> Option<ServiceLook>,
        wanted: impl Fn(&ServiceNotice) -> bool,
    ) -> Vec<u32> {
        let mut at = Vec::new();
        for second in seconds {
            if let Some(look) = look(second) {
                schedule.handle_look(look);
            }
            while let Some(notice) = schedule.poll(begin + SECOND * second) {
                if wanted(&notice) {
                    at.push(second);
                }
            }
        }
        at
    }

    fn is_ping(notice: &ServiceNotice) -> bool {
        *notice == ServiceNotice::Ping
    }

    #[test]
    fn pings_come_at_half_of_the_limit_while_the_service_makes_progress() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, Some(WATCHDOG));
        // Threads that answer every ten seconds are alive.
        let slow = |second| Some(look(second % 10 == 0, "serving"));
        let pings = seconds_of(&mut schedule, begin, 0..121, slow, is_ping);
        assert_eq!(pings, [0, 30, 60, 90, 120]);
    }

    #[test]
    fn a_wedged_service_ends_the_pings_and_one_that_goes_on_resumes_them() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, Some(WATCHDOG));
        let wedged = |second| Some(look(!(5..200).contains(&second), "serving"));
        let pings = seconds_of(&mut schedule, begin, 0..300, wedged, is_ping);
        assert_eq!(
            pings,
            [0, 30, 200, 230, 260, 290],
            "progress from before second 5 counts once"
        );
        // The manager has given it up at 90 s: its limit is counted from the last ping.
    }

    #[test]
    fn a_look_that_does_not_return_ends_the_pings() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, Some(WATCHDOG));
        let stuck = |second| (second < 5).then(|| look(true, "serving"));
        let pings = seconds_of(&mut schedule, begin, 0..500, stuck, is_ping);
        assert_eq!(pings, [0, 30]);
    }

    #[test]
    fn a_manager_without_watchdog_gets_no_pings() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, None);
        let pings = seconds_of(
            &mut schedule,
            begin,
            0..99,
            |_| Some(look(true, "serving")),
            is_ping,
        );
        assert!(pings.is_empty());
    }

    #[test]
    fn a_sentence_is_said_when_it_changes_and_once_a_second_at_most() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, None);
        let mut said = Vec::new();
        for tenth in 0..100 {
            schedule.handle_look(look(
                true,
                if tenth < 50 {
                    "one"
                } else {
                    ["two", "three"][tenth % 2]
                },
            ));
            while let Some(ServiceNotice::Status(text)) = schedule.poll(begin + SECOND * tenth as u32 / 10) {
                said.push((tenth, text));
            }
        }
        assert_eq!(said[0], (0, "one".to_owned()));
        assert!(said[1].0 >= 50, "it did not change before");
        assert!(
            said[1..].windows(2).all(|two| two[1].0 - two[0].0 >= 10),
            "{said:?}"
        );
    }

    #[test]
    fn a_sentence_is_one_line_of_bounded_length() {
        let mut schedule = NotifySchedule::new(Instant::now(), None);
        schedule.handle_look(look(true, &format!("a\nREADY=0\n{}", "ä".repeat(500))));
        let Some(ServiceNotice::Status(text)) = schedule.poll(Instant::now()) else {
            panic!("it is said");
        };
        assert!(text.len() <= SENTENCE_BYTES_MAX && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_stop_that_moves_bytes_is_extended_but_not_for_ever() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, Some(WATCHDOG));
        schedule.handle_stop(begin, "stopping", StopPatience::Extend);
        let mut same = schedule.clone();
        let is_extension = |notice: &ServiceNotice| matches!(notice, ServiceNotice::Extend(_));
        let extended = seconds_of(&mut schedule, begin, 0..5000, |_| None, is_extension);
        assert_eq!(extended, (0..3600).step_by(10).collect::<Vec<_>>());
        // Its threads end, and that is no hang.
        let pings = seconds_of(&mut same, begin, 0..300, |_| None, is_ping);
        assert_eq!(pings.len(), 10);
    }

    #[test]
    fn a_stop_that_waits_for_others_takes_as_long_as_its_unit_says() {
        let begin = Instant::now();
        let mut schedule = NotifySchedule::new(begin, None);
        schedule.handle_stop(begin, "it is mounted", StopPatience::AsConfigured);
        assert_eq!(
            schedule.poll(begin),
            Some(ServiceNotice::Status("it is mounted".to_owned()))
        );
        assert_eq!(schedule.poll(begin + SECOND * 100), None);
    }
}
