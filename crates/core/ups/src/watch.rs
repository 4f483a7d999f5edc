//! The conversation with `upsd`: what is asked when, and which silence is a failure.
//!
//! The driver calls [`UpsWatch::handle`] with what has happened, then carries out what
//! [`UpsWatch::poll_action`] returns until it returns nothing, and sleeps until [`UpsWatch::deadline`].

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::answer::{LineBuffer, UpsAnswer, UpsRefusal, parse, quote};
use crate::limit::{
    ANSWER_TIMEOUT, CONNECT_TIMEOUT, LOGIN_RETRY, LOOK_ON_BATTERY, LOOK_ON_MAINS, RETRY_MAX,
    RETRY_MAX_ON_BATTERY, RETRY_MIN,
};
use crate::login::UpsLogin;
use crate::power::{PowerJudge, PowerReason, PowerStatus};
use crate::reading::{PowerSource, UpsReading, percent, seconds};

/// Something that has happened.
#[derive(Clone, Debug)]
pub enum UpsEvent<'a> {
    /// The connection that was asked for is there.
    Connected,
    /// The connection that was asked for failed, with the system's error.
    Unreachable(String),
    /// Bytes of `upsd` have arrived.
    Received(&'a [u8]),
    /// The connection was closed, or has failed.
    Closed,
    /// Time has passed.
    Tick,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpsAction {
    /// Connect to `upsd`; an earlier connection is gone.
    Connect,
    /// Send this line.
    Send(UpsCommand),
    /// Close the connection.
    Disconnect,
    /// Tell the owner this status.
    Report(PowerStatus),
}

/// A line for `upsd`, which may have the password.
#[derive(Clone, PartialEq, Eq)]
pub struct UpsCommand(Zeroizing<String>);

impl UpsCommand {
    /// The line with its end.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for UpsCommand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.0.split(' ').next().unwrap_or_default();
        write!(out, "UpsCommand({verb})")
    }
}

/// A question that `upsd` owes an answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Username,
    Password,
    Login,
    Status,
    Charge,
    ChargeLow,
    Runtime,
    RuntimeLow,
}

impl Question {
    /// The variable that the question is about; `None` for a part of the login.
    fn variable(self) -> Option<&'static str> {
        match self {
            Question::Username | Question::Password | Question::Login => None,
            Question::Status => Some("ups.status"),
            Question::Charge => Some("battery.charge"),
            Question::ChargeLow => Some("battery.charge.low"),
            Question::Runtime => Some("battery.runtime"),
            Question::RuntimeLow => Some("battery.runtime.low"),
        }
    }
}

/// The connection.
#[derive(Debug)]
enum LinkState {
    /// No connection; the next one is asked for at this time.
    Down { until: Duration },
    /// One was asked for.
    Dialing { deadline: Duration },
    /// One is there.
    Up(UpsSession),
}

/// A connection's state.
#[derive(Debug)]
struct UpsSession {
    begun: Duration,
    buffer: LineBuffer,
    /// The question that is open, and when its answer is overdue.
    asked: Option<(Question, Duration)>,
    /// When the next look begins.
    next_look: Duration,
    /// A look has been answered.
    looked: bool,
    /// The findings of the current look.
    reading: UpsReading,
}

/// The client of one UPS, as a state machine. `now` is the time since any fixed start.
#[derive(Debug)]
pub struct UpsWatch {
    ups: String,
    login: Option<UpsLogin>,
    judge: PowerJudge,
    link: LinkState,
    /// Pause before the next connection.
    pause: Duration,
    actions: VecDeque<UpsAction>,
    reported: PowerStatus,
}

impl UpsWatch {
    /// Watches the UPS `ups`. Without a login, `upsd` does not count this program among those that it waits
    /// for.
    pub fn new(ups: String, login: Option<UpsLogin>) -> UpsWatch {
        let judge = PowerJudge::new();
        UpsWatch {
            ups,
            login,
            reported: judge.status().clone(),
            judge,
            link: LinkState::Down {
                until: Duration::ZERO,
            },
            pause: RETRY_MIN,
            actions: VecDeque::new(),
        }
    }

    /// The status that counts.
    pub fn status(&self) -> &PowerStatus {
        self.judge.status()
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Duration, event: UpsEvent<'_>) {
        match (event, &self.link) {
            (UpsEvent::Connected, LinkState::Dialing { .. }) => self.on_connected(now),
            (UpsEvent::Unreachable(why), LinkState::Dialing { .. }) => {
                self.fail(now, PowerReason::Unreachable(why));
            }
            (UpsEvent::Received(bytes), LinkState::Up(_)) => self.on_bytes(now, bytes),
            // A second connection takes the place of the first.
            (UpsEvent::Closed | UpsEvent::Connected, LinkState::Up(_)) => self.fail(now, PowerReason::Closed),
            // One that comes late was given up.
            (UpsEvent::Connected, LinkState::Down { .. }) => self.actions.push_back(UpsAction::Disconnect),
            _ => (),
        }
        self.settle(now);
    }

    /// Returns the next thing to do.
    pub fn poll_action(&mut self) -> Option<UpsAction> {
        self.actions.pop_front()
    }

    /// When [`UpsEvent::Tick`] is due.
    pub fn deadline(&self) -> Duration {
        let link = match &self.link {
            LinkState::Down { until } => *until,
            LinkState::Dialing { deadline } => *deadline,
            LinkState::Up(session) => session.asked.map_or(session.next_look, |(_, overdue)| overdue),
        };
        self.judge.deadline().map_or(link, |judge| judge.min(link))
    }

    fn on_connected(&mut self, now: Duration) {
        self.link = LinkState::Up(UpsSession {
            begun: now,
            buffer: LineBuffer::default(),
            asked: None,
            next_look: now,
            looked: false,
            reading: UpsReading::default(),
        });
        match self.login.is_some() {
            true => self.ask(now, Question::Username),
            false => self.ask(now, Question::Status),
        }
    }

    fn on_bytes(&mut self, now: Duration, bytes: &[u8]) {
        let LinkState::Up(session) = &mut self.link else {
            return;
        };
        let mut lines = Vec::new();
        let whole = session.buffer.push(bytes, &mut lines);
        for line in lines {
            let LinkState::Up(session) = &mut self.link else {
                return;
            };
            let answered = match (session.asked.take(), parse(&line)) {
                (Some((question, _)), Ok(answer)) => self.on_answer(now, question, answer),
                // It says something unasked.
                _ => None,
            };
            if answered.is_none() {
                return self.fail(now, PowerReason::Garbled);
            }
        }
        if whole.is_err() {
            self.fail(now, PowerReason::Garbled);
        }
    }

    /// Handles the answer to a question. `None`: it is not one.
    fn on_answer(&mut self, now: Duration, question: Question, answer: UpsAnswer) -> Option<()> {
        let Some(variable) = question.variable() else {
            return self.on_login_answer(now, question, answer);
        };
        let found = match answer {
            UpsAnswer::Done => return None,
            UpsAnswer::Refused(refusal) => Err(refusal),
            UpsAnswer::Value { ups, name, .. }
                if !ups.eq_ignore_ascii_case(&self.ups) || name != variable =>
            {
                return None;
            }
            UpsAnswer::Value { value, .. } => Ok(value),
        };
        self.on_value(now, question, found);
        Some(())
    }

    fn on_login_answer(&mut self, now: Duration, question: Question, answer: UpsAnswer) -> Option<()> {
        let refused = match answer {
            UpsAnswer::Done => None,
            UpsAnswer::Refused(refusal) => Some(refusal),
            UpsAnswer::Value { .. } => return None,
        };
        let next = match (question, refused.is_some()) {
            (_, true) | (Question::Login, _) => {
                self.judge.on_login(refused);
                Question::Status
            }
            (Question::Username, false) => Question::Password,
            _ => Question::Login,
        };
        self.ask(now, next);
        Some(())
    }

    fn on_value(&mut self, now: Duration, question: Question, found: Result<String, UpsRefusal>) {
        let LinkState::Up(session) = &mut self.link else {
            return;
        };
        let reading = &mut session.reading;
        let number = |parsed: fn(&str) -> Option<u32>| found.as_deref().ok().and_then(parsed);
        let next = match question {
            Question::Charge => {
                reading.charge = number(percent);
                Some(Question::ChargeLow)
            }
            Question::ChargeLow => {
                reading.charge_low = number(percent);
                Some(Question::Runtime)
            }
            Question::Runtime => {
                reading.runtime = number(seconds);
                Some(Question::RuntimeLow)
            }
            Question::RuntimeLow => {
                reading.runtime_low = number(seconds);
                None
            }
            _ => match found {
                Ok(status) => {
                    reading.status = status;
                    // Only on battery do the values count.
                    let values = reading.source() == PowerSource::Battery(None);
                    values.then_some(Question::Charge)
                }
                Err(refusal) => return self.end_look(now, Err(refusal)),
            },
        };
        match next {
            Some(question) => self.ask(now, question),
            None => self.end_look(now, Ok(())),
        }
    }

    /// Ends a look, with the reading or a refusal.
    fn end_look(&mut self, now: Duration, found: Result<(), UpsRefusal>) {
        let LinkState::Up(session) = &mut self.link else {
            return;
        };
        let reading = std::mem::take(&mut session.reading);
        // A server that fails after its first answer is tried again ever more slowly, too.
        if std::mem::replace(&mut session.looked, true) {
            self.pause = RETRY_MIN;
        }
        match found {
            Ok(()) => self.judge.on_reading(now, reading.source(), &reading.status),
            Err(refusal) => self.judge.on_trouble(now, PowerReason::Refused(refusal)),
        }
        let pause = match self.judge.is_tense() {
            true => LOOK_ON_BATTERY,
            false => LOOK_ON_MAINS,
        };
        if let LinkState::Up(session) = &mut self.link {
            session.next_look = now + pause;
        }
    }

    fn ask(&mut self, now: Duration, question: Question) {
        let LinkState::Up(session) = &mut self.link else {
            return;
        };
        session.asked = Some((question, now + ANSWER_TIMEOUT));
        let command = match (question, &self.login) {
            (Question::Username, Some(login)) => format!("USERNAME {}\n", quote(login.user())),
            (Question::Password, Some(login)) => format!("PASSWORD {}\n", quote(login.password())),
            (Question::Login, _) => format!("LOGIN {}\n", self.ups),
            _ => format!(
                "GET VAR {} {}\n",
                self.ups,
                question.variable().unwrap_or_default()
            ),
        };
        let command = UpsCommand(Zeroizing::new(command));
        self.actions.push_back(UpsAction::Send(command));
    }

    /// Gives the connection up, for now.
    fn fail(&mut self, now: Duration, why: PowerReason) {
        self.actions.push_back(UpsAction::Disconnect);
        self.judge.on_trouble(now, why);
        self.link = LinkState::Down {
            until: now + self.pause,
        };
        let most = match self.judge.is_tense() {
            true => RETRY_MAX_ON_BATTERY,
            false => RETRY_MAX,
        };
        self.pause = (self.pause * 2).min(most);
    }

    /// Does what is due.
    fn settle(&mut self, now: Duration) {
        match &self.link {
            LinkState::Down { until } if *until <= now => self.dial(now),
            LinkState::Dialing { deadline } if *deadline <= now => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                self.fail(
                    now,
                    PowerReason::Unreachable(format!("no answer within {seconds}s")),
                );
            }
            LinkState::Up(session) => match session.asked {
                Some((_, overdue)) if overdue <= now => self.fail(now, PowerReason::Silent),
                None if session.next_look <= now => {
                    // upsd takes one login a connection.
                    let again =
                        self.judge.is_login_refused() && now.saturating_sub(session.begun) >= LOGIN_RETRY;
                    match again {
                        true => {
                            self.actions.push_back(UpsAction::Disconnect);
                            self.dial(now);
                        }
                        false => self.ask(now, Question::Status),
                    }
                }
                _ => (),
            },
            _ => (),
        }
        self.judge.settle(now);
        if *self.judge.status() != self.reported {
            self.reported = self.judge.status().clone();
            self.actions.push_back(UpsAction::Report(self.reported.clone()));
        }
    }

    fn dial(&mut self, now: Duration) {
        self.actions.push_back(UpsAction::Connect);
        self.link = LinkState::Dialing {
            deadline: now + CONNECT_TIMEOUT,
        };
    }
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
