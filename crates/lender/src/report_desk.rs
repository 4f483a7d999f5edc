//! Builds the lender's status on a thread of its own, a few times a second at most, for all who ask for it.
//!
//! Building visits every journal, and on a data lender reads the copies' directories and files. A thread that
//! answers appends or greets clients waits for neither, and no client can make it do so by asking often. It
//! takes a ticket instead, and reads nothing more from that client until a report is there that was begun
//! after the question.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limit::{REPORT_INTERVAL, SPILL_LOOK};
use crate::state::DaemonState;

/// A question for the lender's status: the number of the first report that answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportTicket(u64);

/// The newest report, and who waits for the next one.
#[derive(Default)]
pub(crate) struct ReportDesk {
    questions: Mutex<Questions>,
    asked: Condvar,
    /// Number of the newest report that is complete.
    done: AtomicU64,
}

/// A report as frames' bodies.
#[derive(Clone, Default)]
pub(crate) struct ReportBodies {
    pub(crate) for_clients: Arc<[u8]>,
    /// With the names of journals.
    pub(crate) for_operator: Arc<[u8]>,
}

#[derive(Default)]
struct Questions {
    /// Number of reports begun so far.
    begun: u64,
    /// Number of the last report that is wanted.
    wanted: u64,
    /// Indices of the wakers of the threads that wait.
    waiting: Vec<usize>,
    /// The newest report.
    report: ReportBodies,
    stopping: bool,
}

impl ReportDesk {
    /// Asks for a report. The waker with this index is woken when it is there.
    pub(crate) fn ask(&self, waker: usize) -> ReportTicket {
        let mut questions = self.lock();
        questions.wanted = questions.begun + 1;
        if !questions.waiting.contains(&waker) {
            questions.waiting.push(waker);
        }
        self.asked.notify_one();
        ReportTicket(questions.wanted)
    }

    /// The report for this ticket, once it is there. A few nanoseconds until then.
    pub(crate) fn take(&self, ticket: ReportTicket) -> Option<ReportBodies> {
        (self.done.load(Ordering::Acquire) >= ticket.0).then(|| self.lock().report.clone())
    }

    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.asked.notify_one();
    }

    /// Builds reports until the lender stops. Also removes a spill once no client needs it: no other thread
    /// may wait for a disk.
    pub(crate) fn run(shared: &DaemonState) {
        let desk = &shared.desk;
        let mut look = shared.store.has_spill().then_some(SPILL_LOOK);
        while desk.await_event(look) {
            if look.is_some() && drop_spill(shared) {
                look = None;
            }
            if !desk.begin() {
                continue;
            }
            let began = Instant::now();
            desk.finish(shared);
            if !desk.rest_until(began + REPORT_INTERVAL) {
                return;
            }
        }
    }

    /// Builds the report that was begun, and wakes those who wait for it.
    fn finish(&self, shared: &DaemonState) {
        let report = shared.report();
        let waiting = self.publish(ReportBodies {
            for_operator: report.clone().to_frame_body().into(),
            for_clients: report.for_clients().to_frame_body().into(),
        });
        for waker in waiting {
            if let Err(error) = shared.wakers[waker].wake() {
                panic!("cannot wake a thread that waits for a report: {error}");
            }
        }
    }

    /// Builds one report.
    #[cfg(test)]
    pub(crate) fn build(&self, shared: &DaemonState) {
        assert!(self.await_event(None) && self.begin());
        self.finish(shared);
    }

    /// Waits for a question, for `most` at most. `false`: the lender is stopping.
    fn await_event(&self, most: Option<Duration>) -> bool {
        let idle = |questions: &mut Questions| !questions.stopping && questions.wanted <= questions.begun;
        let questions = self.lock();
        let questions = match most {
            None => self.asked.wait_while(questions, idle),
            Some(most) => {
                let waited = self.asked.wait_timeout_while(questions, most, idle);
                waited.map(|(questions, _)| questions).map_err(|poisoned| {
                    let (questions, _) = poisoned.into_inner();
                    PoisonError::new(questions)
                })
            }
        };
        !questions.unwrap_or_else(PoisonError::into_inner).stopping
    }

    /// Begins a report, if one is wanted.
    fn begin(&self) -> bool {
        let mut questions = self.lock();
        let is_wanted = questions.wanted > questions.begun;
        questions.begun += u64::from(is_wanted);
        is_wanted
    }

    /// Makes the report that was begun last the newest one. Returns the wakers of those who may wait for it.
    /// They stay noted if a client has asked since it was begun: the next report must wake its thread, too.
    fn publish(&self, report: ReportBodies) -> Vec<usize> {
        let mut questions = self.lock();
        questions.report = report;
        self.done.store(questions.begun, Ordering::Release);
        match questions.wanted > questions.begun {
            true => questions.waiting.clone(),
            false => std::mem::take(&mut questions.waiting),
        }
    }

    /// Waits until `until`. `false`: the lender is stopping.
    fn rest_until(&self, until: Instant) -> bool {
        let mut questions = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if questions.stopping || left.is_zero() {
                return !questions.stopping;
            }
            let rested = self.asked.wait_timeout(questions, left);
            questions = rested.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the spill if none of its windows is needed any more. Returns whether it is gone.
fn drop_spill(shared: &DaemonState) -> bool {
    if shared.store.spilled_windows() > 0 {
        return false;
    }
    match shared.store.drop_spill() {
        Ok(()) => tracing::info!("every window of the spill has been read or released: the file was removed"),
        Err(error) => tracing::warn!(%error, "the spill is not needed any more, and stays"),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(body: &[u8]) -> ReportBodies {
        let [for_clients, for_operator] = [Arc::from(body), Arc::from(body)];
        ReportBodies {
            for_clients,
            for_operator,
        }
    }

    fn body(taken: Option<ReportBodies>) -> Option<Arc<[u8]>> {
        taken.map(|report| report.for_clients)
    }

    #[test]
    fn a_report_answers_only_questions_from_before_it_was_begun() {
        let desk = ReportDesk::default();
        let first = desk.ask(3);
        assert!(desk.take(first).is_none());
        assert!(desk.await_event(None) && desk.begin());
        let late = desk.ask(4);
        assert_eq!(desk.publish(report(b"one")), [3, 4]);
        assert_eq!(body(desk.take(first)).as_deref(), Some(&b"one"[..]));
        assert!(
            desk.take(late).is_none(),
            "it was asked while the first was built"
        );
        assert!(desk.await_event(None) && desk.begin());
        assert_eq!(
            desk.publish(report(b"two")),
            [3, 4],
            "who asked late is woken again"
        );
        assert_eq!(body(desk.take(late)).as_deref(), Some(&b"two"[..]));
        assert!(desk.lock().waiting.is_empty(), "nobody waits any more");
    }

    #[test]
    fn any_number_of_questions_costs_one_report() {
        let desk = ReportDesk::default();
        let tickets: Vec<ReportTicket> = (0..1000).map(|_| desk.ask(0)).collect();
        assert!(desk.await_event(None) && desk.begin());
        assert_eq!(desk.publish(report(b"all")), [0]);
        assert!(tickets.iter().all(|ticket| desk.take(*ticket).is_some()));
        desk.stop();
        assert!(!desk.await_event(None), "none is wanted");
    }
}
