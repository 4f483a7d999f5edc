//! Measures what declaring ranges and committing cost without any log or disk:
//! `cargo run --release -p netram-rvm --example set_range`.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{
    AppendError, Durability, File, IoError, Kind, Log, LogError, LogState, Record, Ticket, Votes, WaitError,
};
use netram_proto::time::Time;
use netram_rvm::limit::TABLE_BYTES;
use netram_rvm::{Allocation, Identity, Memory, Mode, Options, Placement, Region, Rvm, Storage};

const RANGES: usize = 1000;
const REGION_BYTES: usize = 1 << 24;
const LOG_BYTES: u64 = 1 << 40;
const RUNS: usize = 2000;

/// A log that forgets: appends cost their encoding only.
struct Forgetful {
    tail: Cell<u64>,
    ring: RefCell<Vec<u8>>,
}

impl Log for Forgetful {
    fn append(&self, _: Kind, length: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Ticket, AppendError> {
        fill(&mut self.ring.borrow_mut()[..length]);
        let lsn = Lsn(self.tail.get());
        self.tail.set(lsn.0 + length as u64);
        Ok(Ticket {
            lsn,
            end: Lsn(self.tail.get()),
        })
    }

    fn wait(&self, _: Ticket, _: Durability) -> Result<Votes, WaitError> {
        Ok(Votes::default())
    }

    fn state(&self) -> LogState {
        let tail = Lsn(self.tail.get());
        LogState {
            head: tail,
            stable: tail,
            acked: tail,
            tail,
            capacity: LOG_BYTES,
            payload_max: 1 << 20,
        }
    }

    fn read(&self, from: Lsn, _: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        Ok(from)
    }

    fn trim(&self, _: Lsn) -> Result<(), LogError> {
        Ok(())
    }
}

/// Zeros that take writes and keep none.
struct Zeros(u64);

impl File for Zeros {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0)
    }

    fn read_at(&self, _: u64, into: &mut [u8]) -> Result<(), IoError> {
        into.fill(0);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), IoError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

struct Nowhere(Zeros);

impl Storage for Nowhere {
    type File = Zeros;

    fn name(&self, path: &str) -> Result<String, IoError> {
        Ok(path.to_owned())
    }

    fn create_segment(&self, _: &str, _: u64, _: Allocation) -> Result<(), IoError> {
        Ok(())
    }

    fn open_segment(&self, _: &str) -> Result<Zeros, IoError> {
        Ok(Zeros(REGION_BYTES as u64))
    }

    fn map(&self, _: &Zeros, _: u64, length: usize, _: Placement) -> Result<Memory, IoError> {
        Ok(Memory::from_bytes(vec![0; length].into_boxed_slice()))
    }

    fn identity(&self, _: &Zeros) -> Result<Identity, IoError> {
        Ok(Identity::default())
    }

    fn assign_identity(&self, _: &Zeros) -> Result<Identity, IoError> {
        Ok(Identity::default())
    }

    fn table(&self) -> &Zeros {
        &self.0
    }

    fn now(&self) -> Time {
        Time(0)
    }
}

/// The median cost, in nanoseconds a range, of declaring `offsets` and of committing them.
fn measure(rvm: &Rvm<Forgetful, Nowhere>, region: &Region, mode: Mode, offsets: &[usize]) -> (f64, f64) {
    let (mut declaring, mut committing) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut transaction = rvm.begin(mode);
        let began = Instant::now();
        for offset in offsets {
            transaction
                .set_range(black_box(region), *offset, 8)
                .expect("inside the region");
        }
        let declared = Instant::now();
        transaction
            .commit(Durability::Lazy)
            .expect("the log takes everything");
        declaring.push((declared - began).as_nanos() as f64 / RANGES as f64);
        committing.push(declared.elapsed().as_nanos() as f64 / RANGES as f64);
    }
    (median(&mut declaring), median(&mut committing))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let log = Forgetful {
        tail: Cell::new(64),
        ring: RefCell::new(vec![0; 1 << 20]),
    };
    let rvm = Rvm::open(log, Nowhere(Zeros(TABLE_BYTES)), Options::new(JournalId(1)))?;
    let region = rvm.map("segment", 0, 0)?;
    let mut seed = 1u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % (REGION_BYTES - 8)
    };
    let patterns: [(&str, Vec<usize>); 4] = [
        ("adjacent", (0..RANGES).map(|at| at * 8).collect()),
        ("ordered", (0..RANGES).map(|at| at * 64).collect()),
        ("random", (0..RANGES).map(|_| random()).collect()),
        ("repeated", (0..RANGES).map(|at| at % 10 * 64).collect()),
    ];
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "ns a range, {RANGES} ranges of 8 bytes a transaction, median of {RUNS}"
    )?;
    writeln!(
        out,
        "{:<12}{:<12}{:>10}{:>10}",
        "mode", "order", "set_range", "commit"
    )?;
    for mode in [Mode::NoRestore, Mode::Restore] {
        for (name, offsets) in &patterns {
            let (declaring, committing) = measure(&rvm, &region, mode, offsets);
            writeln!(
                out,
                "{:<12}{name:<12}{declaring:>10.1}{committing:>10.1}",
                format!("{mode:?}")
            )?;
        }
    }
    Ok(())
}
