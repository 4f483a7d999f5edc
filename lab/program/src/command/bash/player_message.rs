//! A player's messages about its transactions, one on each line, and the parent's conclusions.
//!
//! The lines go through a pipe, whose contents the kernel keeps when the player is killed. A line is written
//! whole and at once, after the fact that it reports.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlayerMessage {
    /// The memory was opened, and had these counts.
    Opened(Vec<u64>),
    /// A thread's transaction returned without a wait for durability.
    Lazy { thread: usize, count: u64 },
    /// A thread's transaction was acknowledged. Before it began, the threads' transactions up to `floors` had
    /// returned, so they precede it.
    Acknowledged {
        thread: usize,
        count: u64,
        floors: Vec<u64>,
    },
    /// Everything up to these counts was made durable.
    Flushed(Vec<u64>),
    /// A transaction left no trace; for the statistics.
    Aborted,
    /// An error was found.
    Wrong(String),
    /// Everything was closed in order.
    Closed,
}

/// Knowledge about every thread from all messages since the beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadProgress {
    /// Transactions up to these must exist.
    pub(super) floors: Vec<u64>,
    /// The newest transaction that returned.
    returned: Vec<u64>,
    pub(super) acknowledged: u64,
    pub(super) lazy: u64,
    pub(super) aborted: u64,
    pub(super) openings: u64,
    /// Whether the last player closed its memory in order.
    pub(super) closed: bool,
    pub(super) wrong: Vec<String>,
}

impl PlayerMessage {
    pub(super) fn line(&self) -> String {
        let mut line = match self {
            PlayerMessage::Opened(_) => "opened".to_owned(),
            PlayerMessage::Lazy { thread, count } => format!("lazy {thread} {count}"),
            PlayerMessage::Acknowledged { thread, count, .. } => format!("acknowledged {thread} {count}"),
            PlayerMessage::Flushed(_) => "flushed".to_owned(),
            PlayerMessage::Aborted => "aborted".to_owned(),
            PlayerMessage::Wrong(sentence) => format!("wrong {}", sentence.replace('\n', " ")),
            PlayerMessage::Closed => "closed".to_owned(),
        };
        if let PlayerMessage::Opened(counts)
        | PlayerMessage::Flushed(counts)
        | PlayerMessage::Acknowledged { floors: counts, .. } = self
        {
            for count in counts {
                // Writing to a string does not fail.
                let _ = write!(line, " {count}");
            }
        }
        line.push('\n');
        line
    }

    fn parse(line: &str) -> Option<PlayerMessage> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "wrong" {
            return Some(PlayerMessage::Wrong(rest.to_owned()));
        }
        let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
        let numbers = numbers.ok()?;
        let thread = || Some((usize::try_from(*numbers.first()?).ok()?, *numbers.get(1)?));
        Some(match word {
            "opened" => PlayerMessage::Opened(numbers),
            "flushed" => PlayerMessage::Flushed(numbers),
            "aborted" => PlayerMessage::Aborted,
            "closed" => PlayerMessage::Closed,
            "lazy" => {
                let (thread, count) = thread()?;
                PlayerMessage::Lazy { thread, count }
            }
            "acknowledged" => {
                let (thread, count) = thread()?;
                let floors = numbers[2..].to_vec();
                PlayerMessage::Acknowledged {
                    thread,
                    count,
                    floors,
                }
            }
            _ => return None,
        })
    }
}

/// Reads a player's messages to the end. The player's death may have cut the last line.
pub(super) fn read_messages(output: impl Read, each: &mut dyn FnMut(PlayerMessage)) {
    let mut lines = BufReader::new(output);
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        if let Some(whole) = line.strip_suffix('\n') {
            let said = PlayerMessage::parse(whole);
            each(said.unwrap_or_else(|| PlayerMessage::Wrong(format!("a player said `{whole}`"))));
        }
        line.clear();
    }
}

impl ThreadProgress {
    pub(super) fn new(threads: usize) -> ThreadProgress {
        ThreadProgress {
            floors: vec![0; threads],
            returned: vec![0; threads],
            ..ThreadProgress::default()
        }
    }

    /// Prepares for the next player.
    pub(super) fn begin(&mut self) {
        self.closed = false;
    }

    pub(super) fn take(&mut self, said: PlayerMessage) {
        match said {
            PlayerMessage::Opened(counts) => {
                self.openings += 1;
                self.found(&counts);
            }
            PlayerMessage::Lazy { thread, count } => {
                self.lazy += 1;
                self.returned(thread, count);
            }
            PlayerMessage::Acknowledged {
                thread,
                count,
                floors,
            } => {
                self.acknowledged += 1;
                self.returned(thread, count);
                self.raise(&floors);
                if let Some(floor) = self.floors.get_mut(thread) {
                    *floor = count.max(*floor);
                }
            }
            PlayerMessage::Flushed(counts) => self.raise(&counts),
            PlayerMessage::Aborted => self.aborted += 1,
            PlayerMessage::Wrong(sentence) => self.wrong.push(sentence),
            PlayerMessage::Closed => self.closed = true,
        }
    }

    /// Checks the counts found in recovered memory. From then on they count as durable, because recovery has
    /// written them to the disk.
    pub(super) fn found(&mut self, counts: &[u64]) {
        if counts.len() != self.floors.len() {
            let sentence = format!("{} threads were found, of {}", counts.len(), self.floors.len());
            self.wrong.push(sentence);
            return;
        }
        for (thread, &count) in counts.iter().enumerate() {
            let (floor, returned) = (self.floors[thread], self.returned[thread]);
            // The transaction that was running when the player died may exist or not.
            let most = returned.max(floor) + 1;
            if count < floor {
                self.wrong.push(format!(
                    "thread {thread}: transaction {floor} had been acknowledged, {count} are there"
                ));
            } else if count > most {
                self.wrong.push(format!(
                    "thread {thread}: {count} transactions are there, {most} had begun"
                ));
            }
            self.floors[thread] = count;
            self.returned[thread] = count;
        }
    }

    /// Raises the counts up to which transactions must exist.
    pub(super) fn raise(&mut self, floors: &[u64]) {
        for (floor, &at_least) in self.floors.iter_mut().zip(floors) {
            *floor = at_least.max(*floor);
        }
    }

    fn returned(&mut self, thread: usize, count: u64) {
        if let Some(returned) = self.returned.get_mut(thread) {
            *returned = count.max(*returned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &str) -> ThreadProgress {
        let mut told = ThreadProgress::new(2);
        read_messages(lines.as_bytes(), &mut |said| told.take(said));
        told
    }

    #[test]
    fn messages_round_trip_and_a_cut_line_is_ignored() {
        let all = [
            PlayerMessage::Opened(vec![1, 2]),
            PlayerMessage::Lazy { thread: 1, count: 3 },
            PlayerMessage::Acknowledged {
                thread: 0,
                count: 2,
                floors: vec![1, 3],
            },
            PlayerMessage::Flushed(vec![2, 3]),
            PlayerMessage::Aborted,
            PlayerMessage::Wrong("two lines".to_owned()),
            PlayerMessage::Closed,
        ];
        let text: String = all.iter().map(PlayerMessage::line).collect();
        let mut heard = Vec::new();
        read_messages(format!("{text}lazy 1 44").as_bytes(), &mut |said| {
            heard.push(said)
        });
        assert_eq!(heard, all);
        assert_eq!(told("nonsense\n").wrong.len(), 1);
    }

    #[test]
    fn acknowledged_and_earlier_transactions_must_exist() {
        let lines = "opened 0 0\nlazy 1 1\nlazy 1 2\nacknowledged 0 1 0 1\nlazy 0 2\n";
        for (counts, fine) in [
            ([1, 1], true),
            ([2, 2], true),
            ([3, 3], true),
            ([0, 2], false),
            ([1, 0], false),
            ([4, 2], false),
            ([1, 4], false),
        ] {
            let mut told = told(lines);
            told.found(&counts);
            assert_eq!(told.wrong.is_empty(), fine, "{counts:?}: {:?}", told.wrong);
        }
    }

    #[test]
    fn transactions_found_by_recovery_must_remain() {
        let mut told = told("opened 0 0\nlazy 0 1\nopened 1 0\n");
        assert!(told.wrong.is_empty());
        told.found(&[0, 0]);
        assert_eq!(told.wrong.len(), 1);
    }
}
