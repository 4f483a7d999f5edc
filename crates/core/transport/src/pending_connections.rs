//! Strangers: connections that shake hands, or have shaken hands and not said yet what they want.
//!
//! [`PendingConnections`] is a value. It holds them, `T` being what the driver goes on with one by, and
//! decides for whom there is room, who makes room for the next, and whose time is up. So what anybody may
//! cost who has proven nothing is bounded in one place: so many at once, each for so long. Sockets, and what
//! a stranger is told, are the driver's.
//!
//! ```text
//!  make_room ---> place: shaking --shook--> silent --answered--> silent ... --remove--> a stranger no more
//!      | no room          | its deadline      | `patience`
//!      +--> refused       +----> overdue <----+
//! ```

use std::time::{Duration, Instant};

/// What strangers may cost.
#[derive(Clone, Copy, Debug)]
pub struct PendingLimits {
    /// So many may be admitted at once.
    pub admitted_max: usize,
    /// When there is no room for another one, who has said nothing for longer than this makes room. Whoever
    /// is honest speaks at once.
    pub grace: Duration,
    /// How long one that has shaken hands may say nothing.
    pub patience: Duration,
}

/// Whether there is room for one more stranger.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// There is.
    Free,
    /// There is now: this one had to go.
    Evicted(T),
    /// There is none, and nobody is to go for it.
    Full,
}

/// What a stranger's time has run out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingTimeout {
    /// It has not shaken hands.
    Handshake,
    /// It has not said what it wants.
    FirstRequest,
}

/// See the module.
#[derive(Debug)]
pub struct PendingConnections<T> {
    bounds: PendingLimits,
    places: Vec<Option<PendingConnection<T>>>,
    /// Places that nobody has.
    vacant: Vec<usize>,
    admitted: usize,
}

#[derive(Debug)]
struct PendingConnection<T> {
    owner_value: T,
    /// When it came, or was answered last.
    since: Instant,
    /// Until when it may shake hands; `None`: it has.
    handshake_deadline: Option<Instant>,
    /// `false`: it is only here to be told that there is no room.
    admitted: bool,
}

impl<T> PendingConnections<T> {
    /// Nobody yet.
    pub fn new(bounds: PendingLimits) -> PendingConnections<T> {
        PendingConnections {
            bounds,
            places: Vec::new(),
            vacant: Vec::new(),
            admitted: 0,
        }
    }

    /// Sees to room for one more. Where all places are taken the one that has been silent for longest goes,
    /// if that is long.
    pub fn make_room(&mut self, now: Instant) -> Admission<T> {
        if self.admitted < self.bounds.admitted_max {
            return Admission::Free;
        }
        let places = self.places.iter().enumerate();
        let admitted = places.filter_map(|(index, stranger)| {
            let stranger = stranger.as_ref().filter(|stranger| stranger.admitted)?;
            Some((stranger.since, index))
        });
        let eldest = admitted.min();
        let late = eldest.filter(|(since, _)| now.saturating_duration_since(*since) > self.bounds.grace);
        let gone = late.and_then(|(_, index)| self.remove(index));
        gone.map_or(Admission::Full, Admission::Evicted)
    }

    /// Takes in one that has until `deadline` to shake hands, and says where it is. One that is not
    /// `admitted` is only to be told that there is no room, and takes none.
    pub fn insert(&mut self, now: Instant, deadline: Instant, admitted: bool, what: T) -> usize {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.admitted += usize::from(admitted);
        self.places[index] = Some(PendingConnection {
            owner_value: what,
            since: now,
            handshake_deadline: Some(deadline),
            admitted,
        });
        index
    }

    /// The stranger that is there. `None`: it has been removed, which whoever goes through a list of them
    /// must expect.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        Some(&mut self.at(index)?.owner_value)
    }

    /// It has shaken hands.
    pub fn on_handshake_done(&mut self, index: usize) {
        if let Some(stranger) = self.at(index) {
            stranger.handshake_deadline = None;
        }
    }

    /// It has asked, and been answered: its patience begins anew.
    pub fn on_answered(&mut self, now: Instant, index: usize) {
        if let Some(stranger) = self.at(index) {
            stranger.since = now;
        }
    }

    /// It is a stranger no more, or is to go.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let stranger = self.places.get_mut(index)?.take()?;
        self.admitted -= usize::from(stranger.admitted);
        self.vacant.push(index);
        Some(stranger.owner_value)
    }

    /// Those whose time is up.
    pub fn overdue(&self, now: Instant) -> Vec<(usize, PendingTimeout)> {
        let places = self.places.iter().enumerate();
        let late = places.filter_map(|(index, stranger)| {
            let stranger = stranger.as_ref()?;
            let silent = now.saturating_duration_since(stranger.since);
            match stranger.handshake_deadline {
                Some(deadline) if deadline <= now => Some((index, PendingTimeout::Handshake)),
                None if silent > self.bounds.patience => Some((index, PendingTimeout::FirstRequest)),
                _ => None,
            }
        });
        late.collect()
    }

    /// Those for whom there was room.
    pub fn admitted(&self) -> usize {
        self.admitted
    }

    fn at(&mut self, index: usize) -> Option<&mut PendingConnection<T>> {
        self.places.get_mut(index)?.as_mut()
    }
}

/// Counts what happens too often to be reported each time: it is to be said at most once in a while, with how
/// often it happened.
#[derive(Debug)]
pub struct ReportThrottle {
    every: Duration,
    next: Instant,
    suppressed: u64,
}

impl ReportThrottle {
    /// To be said `every` so often at most, and at once the first time.
    pub fn new(every: Duration, now: Instant) -> ReportThrottle {
        ReportThrottle {
            every,
            next: now,
            suppressed: 0,
        }
    }

    /// It has happened. `Some`: this is to be said now, of so many.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.suppressed += 1;
        self.due(now)
    }

    /// Whether something that was held back is to be said now.
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
        admitted_max: 2,
        grace: Duration::from_millis(250),
        patience: Duration::from_secs(10),
    };
    const HANDSHAKE: Duration = Duration::from_secs(5);

    struct Bench {
        strangers: PendingConnections<&'static str>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            Bench {
                strangers: PendingConnections::new(BOUNDS),
                now: Instant::now(),
            }
        }

        fn pass(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }

        fn arrive(&mut self, who: &'static str) -> usize {
            self.strangers.insert(self.now, self.now + HANDSHAKE, true, who)
        }

        fn room(&mut self) -> Admission<&'static str> {
            self.strangers.make_room(self.now)
        }

        fn overdue(&self) -> Vec<(usize, PendingTimeout)> {
            self.strangers.overdue(self.now)
        }
    }

    #[test]
    fn the_eldest_makes_room_and_nobody_before_its_grace_is_over() {
        let mut bench = Bench::new();
        bench.arrive("first");
        assert_eq!(bench.room(), Admission::Free);
        bench.pass(10);
        let second = bench.arrive("second");
        bench.pass(240);
        assert_eq!(bench.room(), Admission::Full, "both may still be about to speak");
        bench.pass(1);
        assert_eq!(bench.room(), Admission::Evicted("first"));
        let third = bench.arrive("third");
        assert_eq!((third, bench.strangers.admitted()), (0, 2), "in its place");
        bench.pass(100);
        assert_eq!(bench.room(), Admission::Evicted("second"));
        assert_eq!(bench.strangers.get_mut(second), None);
    }

    #[test]
    fn whoever_is_refused_takes_nobodys_room_and_makes_none() {
        let mut bench = Bench::new();
        let deadline = bench.now + HANDSHAKE;
        let refused = bench.strangers.insert(bench.now, deadline, false, "refused");
        bench.pass(1000);
        bench.arrive("first");
        assert_eq!(bench.room(), Admission::Free);
        bench.arrive("second");
        assert_eq!(
            bench.room(),
            Admission::Full,
            "only the refused one has been here for long"
        );
        assert_eq!(bench.strangers.remove(refused), Some("refused"));
        assert_eq!(bench.strangers.admitted(), 2);
    }

    #[test]
    fn a_handshake_ends_by_its_deadline_and_silence_by_patience() {
        let mut bench = Bench::new();
        let (slow, silent) = (bench.arrive("slow"), bench.arrive("silent"));
        bench.strangers.on_handshake_done(silent);
        bench.pass(4999);
        assert_eq!(bench.overdue(), []);
        bench.pass(1);
        assert_eq!(bench.overdue(), [(slow, PendingTimeout::Handshake)]);
        bench.strangers.remove(slow);
        bench.pass(5000);
        assert_eq!(bench.overdue(), []);
        bench.pass(1);
        assert_eq!(bench.overdue(), [(silent, PendingTimeout::FirstRequest)]);
    }

    #[test]
    fn whoever_is_answered_is_not_silent() {
        let mut bench = Bench::new();
        let asks = bench.arrive("asks");
        bench.strangers.on_handshake_done(asks);
        bench.pass(9000);
        bench.strangers.on_answered(bench.now, asks);
        let idle = bench.arrive("idle");
        bench.pass(1);
        bench.strangers.on_answered(bench.now, asks);
        bench.pass(300);
        assert_eq!(
            bench.room(),
            Admission::Evicted("idle"),
            "it has been silent for longest"
        );
        assert_eq!(bench.strangers.get_mut(idle), None);
        bench.pass(9_700);
        assert_eq!(bench.overdue(), []);
        bench.pass(1);
        assert_eq!(bench.overdue(), [(asks, PendingTimeout::FirstRequest)]);
    }

    #[test]
    fn who_has_gone_is_gone_once() {
        let mut bench = Bench::new();
        let who = bench.arrive("who");
        assert_eq!(bench.strangers.remove(who), Some("who"));
        assert_eq!(bench.strangers.remove(who), None);
        assert_eq!((bench.strangers.remove(7), bench.strangers.admitted()), (None, 0));
        bench.strangers.on_answered(bench.now, who);
        bench.strangers.on_handshake_done(who);
        assert_eq!(bench.overdue(), []);
    }

    #[test]
    fn a_flood_is_said_at_once_and_then_once_in_a_while() {
        let mut now = Instant::now();
        let mut flood = ReportThrottle::new(Duration::from_secs(1), now);
        assert_eq!(flood.due(now), None, "nothing has happened");
        assert_eq!(flood.count(now), Some(1));
        assert_eq!((flood.count(now), flood.count(now)), (None, None));
        now += Duration::from_millis(999);
        assert_eq!(flood.due(now), None);
        now += Duration::from_millis(1);
        assert_eq!(flood.count(now), Some(3));
        assert_eq!(flood.due(now + Duration::from_secs(9)), None, "all has been said");
    }
}
