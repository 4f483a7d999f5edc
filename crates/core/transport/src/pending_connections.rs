//! Connections that are in their handshake or have not sent a first request.
//!
//! [`PendingConnections`] is a value without sockets; `T` is the driver's state of one connection. It decides
//! whether a new connection is admitted, which one is evicted for it, and whose time is up. The cost of
//! unauthenticated clients is therefore bounded in one place: a maximum number, each for a limited time. The
//! driver owns the sockets and answers the clients.
//!
//! A *stranger* has proven nothing. It costs a socket and takes no admitted place; when there are too many
//! strangers, the oldest one goes at once. So a flood of them keeps out no client that proves itself faster
//! than the flood fills their places. A client is admitted when its handshake is done.
//!
//! ```text
//!  insert ---> in handshake -----admit-----> silent --on_answered--> silent ... --remove--> done
//!                | its deadline, or             | `patience`
//!                | too many strangers           |
//!                +----------> overdue <---------+
//! ```

use std::time::{Duration, Instant};

/// Limits on pending connections.
#[derive(Clone, Copy, Debug)]
pub struct PendingLimits {
    /// Maximum number of strangers at one time.
    pub strangers_max: usize,
    /// Maximum number of admitted connections at one time.
    pub admitted_max: usize,
    /// Minimum silence after which a connection may be evicted for a new one when the limit is reached. An
    /// honest client sends at once.
    pub grace: Duration,
    /// Maximum silence after the handshake.
    pub patience: Duration,
}

/// Result of asking for room for one more connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// The limit is not reached.
    Free,
    /// The limit was reached, and this connection was removed to make room.
    Evicted(T),
    /// The limit is reached, and no connection has been silent for longer than the grace.
    Full,
}

/// The limit that a connection exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingTimeout {
    /// The handshake was not complete at its deadline.
    Handshake,
    /// The handshake was complete, but no request arrived in time.
    FirstRequest,
}

/// The pending connections of one listener, by index.
#[derive(Debug)]
pub struct PendingConnections<T> {
    bounds: PendingLimits,
    places: Vec<Option<PendingConnection<T>>>,
    /// Free indices of `places`.
    vacant: Vec<usize>,
    admitted: usize,
    strangers: usize,
}

#[derive(Debug)]
struct PendingConnection<T> {
    owner_value: T,
    /// When the connection was accepted, or last answered.
    since: Instant,
    /// Deadline of the handshake; `None` once it is complete.
    handshake_deadline: Option<Instant>,
    /// `false` for a stranger.
    admitted: bool,
}

impl<T> PendingConnections<T> {
    /// An empty set.
    pub fn new(bounds: PendingLimits) -> PendingConnections<T> {
        PendingConnections {
            bounds,
            places: Vec::new(),
            vacant: Vec::new(),
            admitted: 0,
            strangers: 0,
        }
    }

    /// Makes room for one more stranger: returns the oldest one if there are too many.
    pub fn evict_stranger(&mut self) -> Option<T> {
        if self.strangers < self.bounds.strangers_max {
            return None;
        }
        let places = self.places.iter().enumerate();
        let strangers = places.filter_map(|(index, pending)| {
            let pending = pending.as_ref().filter(|pending| !pending.admitted)?;
            Some((pending.since, index))
        });
        let (_, oldest) = strangers.min()?;
        self.remove(oldest)
    }

    /// Admits the stranger at `index`, whose handshake is done. After [`Admission::Full`] it still is a
    /// stranger.
    pub fn admit(&mut self, now: Instant, index: usize) -> Admission<T> {
        let admission = self.make_room(now);
        if matches!(admission, Admission::Full) {
            return admission;
        }
        self.on_handshake_done(index);
        if let Some(pending) = self.places.get_mut(index).and_then(Option::as_mut)
            && !pending.admitted
        {
            pending.admitted = true;
            pending.since = now;
            self.strangers -= 1;
            self.admitted += 1;
        }
        admission
    }

    /// Whether no further connection would be admitted now.
    pub fn is_full(&self, now: Instant) -> bool {
        self.admitted >= self.bounds.admitted_max && self.eldest(now).is_none()
    }

    /// The admitted connection that has been silent for longest, if its silence exceeds the grace.
    fn eldest(&self, now: Instant) -> Option<usize> {
        let places = self.places.iter().enumerate();
        let admitted = places.filter_map(|(index, pending)| {
            let pending = pending.as_ref().filter(|pending| pending.admitted)?;
            Some((pending.since, index))
        });
        let (since, index) = admitted.min()?;
        (now.saturating_duration_since(since) > self.bounds.grace).then_some(index)
    }

    /// Makes room for one more admitted connection. At the limit, the connection that has been silent for
    /// longest is removed if its silence exceeds the grace.
    pub fn make_room(&mut self, now: Instant) -> Admission<T> {
        if self.admitted < self.bounds.admitted_max {
            return Admission::Free;
        }
        let gone = self.eldest(now).and_then(|index| self.remove(index));
        gone.map_or(Admission::Full, Admission::Evicted)
    }

    /// Adds a connection whose handshake must be complete at `deadline`, and returns its index. One that is
    /// not `admitted` is a stranger.
    pub fn insert(&mut self, now: Instant, deadline: Instant, admitted: bool, what: T) -> usize {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.admitted += usize::from(admitted);
        self.strangers += usize::from(!admitted);
        self.places[index] = Some(PendingConnection {
            owner_value: what,
            since: now,
            handshake_deadline: Some(deadline),
            admitted,
        });
        index
    }

    /// The driver's state of the connection at `index`; `None` if it was removed, perhaps while the caller
    /// walks a list of indices.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        Some(&mut self.at(index)?.owner_value)
    }

    /// Notes that the handshake is complete.
    fn on_handshake_done(&mut self, index: usize) {
        if let Some(pending) = self.at(index) {
            pending.handshake_deadline = None;
        }
    }

    /// Notes that a request was answered: the connection's patience begins again.
    pub fn on_answered(&mut self, now: Instant, index: usize) {
        if let Some(pending) = self.at(index) {
            pending.since = now;
        }
    }

    /// Removes a connection that is established or given up, and returns the driver's state.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let pending = self.places.get_mut(index)?.take()?;
        self.admitted -= usize::from(pending.admitted);
        self.strangers -= usize::from(!pending.admitted);
        self.vacant.push(index);
        Some(pending.owner_value)
    }

    /// Indices of the connections whose time is up, with the limit that each exceeded.
    pub fn overdue(&self, now: Instant) -> Vec<(usize, PendingTimeout)> {
        let places = self.places.iter().enumerate();
        let late = places.filter_map(|(index, pending)| {
            let pending = pending.as_ref()?;
            let silent = now.saturating_duration_since(pending.since);
            match pending.handshake_deadline {
                Some(deadline) if deadline <= now => Some((index, PendingTimeout::Handshake)),
                None if silent > self.bounds.patience => Some((index, PendingTimeout::FirstRequest)),
                _ => None,
            }
        });
        late.collect()
    }

    /// Indices of the connections for which `is_wanted` is true.
    pub fn find(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<usize> {
        let places = self.places.iter().enumerate();
        let wanted = places.filter(|(_, pending)| {
            pending
                .as_ref()
                .is_some_and(|pending| is_wanted(&pending.owner_value))
        });
        wanted.map(|(index, _)| index).collect()
    }

    /// Number of admitted connections.
    pub fn admitted(&self) -> usize {
        self.admitted
    }

    fn at(&mut self, index: usize) -> Option<&mut PendingConnection<T>> {
        self.places.get_mut(index)?.as_mut()
    }
}

/// A counter for frequent events. It reports at most once per interval, with the number of events since the
/// last report.
#[derive(Debug)]
pub struct ReportThrottle {
    every: Duration,
    next: Instant,
    suppressed: u64,
}

impl ReportThrottle {
    /// Reports at most once per `every`; the first event is reported at once.
    pub fn new(every: Duration, now: Instant) -> ReportThrottle {
        ReportThrottle {
            every,
            next: now,
            suppressed: 0,
        }
    }

    /// Counts an event. Returns the number of events to report, if a report is due.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.suppressed += 1;
        self.due(now)
    }

    /// Returns the number of suppressed events, if there are any and a report is due.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        if self.suppressed == 0 || now < self.next {
            return None;
        }
        self.next = now + self.every;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: PendingLimits = PendingLimits {
        strangers_max: 3,
        admitted_max: 2,
        grace: Duration::from_millis(250),
        patience: Duration::from_secs(10),
    };
    const HANDSHAKE: Duration = Duration::from_secs(5);

    struct Bench {
        connections: PendingConnections<&'static str>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            Bench {
                connections: PendingConnections::new(BOUNDS),
                now: Instant::now(),
            }
        }

        fn pass(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }

        fn arrive(&mut self, who: &'static str) -> usize {
            self.connections.insert(self.now, self.now + HANDSHAKE, true, who)
        }

        fn room(&mut self) -> Admission<&'static str> {
            self.connections.make_room(self.now)
        }

        fn overdue(&self) -> Vec<(usize, PendingTimeout)> {
            self.connections.overdue(self.now)
        }
    }

    #[test]
    fn the_oldest_is_evicted_only_after_its_grace() {
        let mut bench = Bench::new();
        bench.arrive("first");
        assert_eq!(bench.room(), Admission::Free);
        bench.pass(10);
        let second = bench.arrive("second");
        bench.pass(240);
        assert_eq!(bench.room(), Admission::Full, "both are within their grace");
        bench.pass(1);
        assert_eq!(bench.room(), Admission::Evicted("first"));
        let third = bench.arrive("third");
        assert_eq!(
            (third, bench.connections.admitted()),
            (0, 2),
            "it takes the evicted one's index"
        );
        bench.pass(100);
        assert_eq!(bench.room(), Admission::Evicted("second"));
        assert_eq!(bench.connections.get_mut(second), None);
    }

    #[test]
    fn a_refused_connection_takes_no_room_and_makes_none() {
        let mut bench = Bench::new();
        let deadline = bench.now + HANDSHAKE;
        let refused = bench.connections.insert(bench.now, deadline, false, "refused");
        bench.pass(1000);
        bench.arrive("first");
        assert_eq!(bench.room(), Admission::Free);
        bench.arrive("second");
        assert_eq!(
            bench.room(),
            Admission::Full,
            "only the refused one exceeds the grace"
        );
        assert_eq!(bench.connections.remove(refused), Some("refused"));
        assert_eq!(bench.connections.admitted(), 2);
    }

    #[test]
    fn a_handshake_ends_at_its_deadline_and_a_silence_after_the_patience() {
        let mut bench = Bench::new();
        let (slow, silent) = (bench.arrive("slow"), bench.arrive("silent"));
        bench.connections.on_handshake_done(silent);
        bench.pass(4999);
        assert_eq!(bench.overdue(), []);
        bench.pass(1);
        assert_eq!(bench.overdue(), [(slow, PendingTimeout::Handshake)]);
        bench.connections.remove(slow);
        bench.pass(5000);
        assert_eq!(bench.overdue(), []);
        bench.pass(1);
        assert_eq!(bench.overdue(), [(silent, PendingTimeout::FirstRequest)]);
    }

    /// Strangers who sent nothing kept a quarter of all clients out.
    #[test]
    fn any_number_of_strangers_takes_no_place_of_a_client() {
        let mut bench = Bench::new();
        let deadline = bench.now + HANDSHAKE;
        let client = bench.connections.insert(bench.now, deadline, false, "client");
        bench.pass(1);
        let mut gone = Vec::new();
        for stranger in ["first", "second", "third", "fourth"] {
            gone.extend(bench.connections.evict_stranger());
            bench.connections.insert(bench.now, deadline, false, stranger);
            bench.pass(1);
            if stranger == "second" {
                assert_eq!(bench.connections.admit(bench.now, client), Admission::Free);
            }
        }
        assert_eq!(gone, ["first"], "the oldest, once there are too many");
        assert_eq!(bench.connections.get_mut(client), Some(&mut "client"));
        assert!(!bench.connections.is_full(bench.now));
    }

    #[test]
    fn a_stranger_is_admitted_once_and_only_if_there_is_room() {
        let mut bench = Bench::new();
        let (first, _) = (bench.arrive("first"), bench.arrive("second"));
        let deadline = bench.now + HANDSHAKE;
        let third = bench.connections.insert(bench.now, deadline, false, "third");
        assert!(bench.connections.is_full(bench.now));
        assert_eq!(bench.connections.admit(bench.now, third), Admission::Full);
        bench.pass(251);
        bench.connections.on_answered(bench.now, first);
        assert_eq!(
            bench.connections.admit(bench.now, third),
            Admission::Evicted("second")
        );
        assert_eq!(bench.connections.admitted(), 2);
        assert_eq!(bench.connections.remove(third), Some("third"));
        assert_eq!(bench.connections.admitted(), 1);
    }

    #[test]
    fn an_answer_restarts_the_patience() {
        let mut bench = Bench::new();
        let asks = bench.arrive("asks");
        bench.connections.on_handshake_done(asks);
        bench.pass(9000);
        bench.connections.on_answered(bench.now, asks);
        let idle = bench.arrive("idle");
        bench.pass(1);
        bench.connections.on_answered(bench.now, asks);
        bench.pass(300);
        assert_eq!(
            bench.room(),
            Admission::Evicted("idle"),
            "it has been silent for longest"
        );
        assert_eq!(bench.connections.get_mut(idle), None);
        bench.pass(9_700);
        assert_eq!(bench.overdue(), []);
        bench.pass(1);
        assert_eq!(bench.overdue(), [(asks, PendingTimeout::FirstRequest)]);
    }

    #[test]
    fn a_connection_is_removed_once() {
        let mut bench = Bench::new();
        let who = bench.arrive("who");
        assert_eq!(bench.connections.remove(who), Some("who"));
        assert_eq!(bench.connections.remove(who), None);
        assert_eq!(
            (bench.connections.remove(7), bench.connections.admitted()),
            (None, 0)
        );
        bench.connections.on_answered(bench.now, who);
        bench.connections.on_handshake_done(who);
        assert_eq!(bench.overdue(), []);
    }

    #[test]
    fn a_flood_is_reported_at_once_and_then_once_per_interval() {
        let mut now = Instant::now();
        let mut flood = ReportThrottle::new(Duration::from_secs(1), now);
        assert_eq!(flood.due(now), None, "nothing has happened");
        assert_eq!(flood.count(now), Some(1));
        assert_eq!((flood.count(now), flood.count(now)), (None, None));
        now += Duration::from_millis(999);
        assert_eq!(flood.due(now), None);
        now += Duration::from_millis(1);
        assert_eq!(flood.count(now), Some(3));
        assert_eq!(
            flood.due(now + Duration::from_secs(9)),
            None,
            "everything was reported"
        );
    }
}
