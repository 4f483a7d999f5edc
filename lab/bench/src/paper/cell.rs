//! One cell of a figure: one system under one load, measured once.
//!
//! Each client is a thread with its own journal, log, data file and sockets. All begin together. When the
//! first has made its transactions, or the time is over, all end, so that a cell with several clients
//! measures them under contention. Afterwards everything is truncated to the data file and read back: a cell
//! whose data is not what was committed is no result.

use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use netram_journal::Journal;
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode};
use netram_transport::NetAddress;

use super::experiment::{BlockOrder, Tr190Effort, Tr190Load, Tr190Task};
use super::modelled::ModelledStorage;
use super::system::{MemberLink, Tr190System};
use super::testbed::{ClientMemory, ModelledMemory, TemporaryDirectory, Tr190Testbed};
use crate::error::{BenchError, ErrorContext};
use crate::histogram;
use crate::machine;
use crate::tpca::{AccessPattern, AccountChooser, Bank};

const PAGE_BYTES: usize = 4096;

/// Result of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tr190Cell {
    /// Transactions per second of all clients together.
    pub tps: f64,
    /// Number of measured transactions.
    pub transactions: u64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
    /// Number of commits that waited because the log was full.
    pub full_stalls: u64,
}

/// Result of one client.
struct ClientResult {
    histogram: Histogram<u64>,
    time: Duration,
    full_stalls: u64,
}

/// A client between its opening and its end.
enum Client {
    Blocks(Box<Blocks>),
    Bank {
        bank: Box<Bank<Journal, ModelledStorage>>,
        _directory: TemporaryDirectory,
        chooser: AccountChooser,
        booked: u64,
    },
}

/// Writes blocks of a data file.
struct Blocks {
    region: Region,
    memory: ClientMemory,
    order: BlockOrder,
    chooser: AccountChooser,
    block: Vec<u8>,
    number: u64,
    /// Value that no earlier cell has written, so that reading the file back proves this cell's writes.
    mark: u64,
}

/// Measures one cell.
///
/// # Errors
///
/// Fails if a client cannot be set up, a commit fails, or the data file differs from the commits.
pub fn measure(
    stage: &mut Tr190Testbed<'_>,
    system: Tr190System,
    load: Tr190Load,
    effort: Tr190Effort,
) -> Result<Tr190Cell, BenchError> {
    let servers = stage.servers(system.link, if load.one_server { 1 } else { load.clients })?;
    let files: Result<Vec<String>, BenchError> = (0..load.clients)
        .map(|index| match load.task {
            Tr190Task::Block { .. } => stage.data_file(index, effort.data_bytes()),
            Tr190Task::Account { accounts_k, .. } => stage.bank_file(accounts_k * 1024),
        })
        .collect();
    let files = files?;
    let (start, stop) = (Barrier::new(load.clients), AtomicBool::new(false));
    let stage = &*stage;
    let results: Vec<Result<ClientResult, BenchError>> = std::thread::scope(|scope| {
        let clients: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(index, file)| {
                let server = servers.get(index % servers.len().max(1)).cloned();
                let (start, stop) = (&start, &stop);
                scope.spawn(move || {
                    let opened = open(stage, system, load, server, file);
                    // A client that cannot begin must not keep the others waiting.
                    start.wait();
                    let ran = opened
                        .and_then(|client| client.run(stage, system, (index, load.clients), effort, stop));
                    stop.store(true, Ordering::Relaxed);
                    ran
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("a measuring thread does not panic"))
            .collect()
    });
    add_up(results)
}

fn open(
    stage: &Tr190Testbed<'_>,
    system: Tr190System,
    load: Tr190Load,
    server: Option<NetAddress>,
    file: &str,
) -> Result<Client, BenchError> {
    stage.enter(system.link)?;
    let memory = stage.memory(system, server, load.log_bytes, system.durability())?;
    match load.task {
        Tr190Task::Block { bytes, order } => {
            let region = memory.rvm.map(file, 0, 0).context("map the data file")?;
            own_pages(&memory.rvm, &region)?;
            let blocks = (region.len() / bytes) as u64;
            Ok(Client::Blocks(Box::new(Blocks {
                region,
                memory,
                order,
                chooser: AccountChooser::new(AccessPattern::Random, blocks, 1),
                block: vec![0; bytes],
                number: 0,
                mark: u64::from(stage.site().number()) << 32,
            })))
        }
        Tr190Task::Account { pattern, .. } => {
            let ClientMemory { rvm, directory } = memory;
            let bank = Bank::open_on(rvm, file)?;
            own_pages(bank.rvm(), bank.region())?;
            let booked = bank.audit()?.transactions;
            let chooser = AccountChooser::new(pattern, bank.accounts(), 1);
            Ok(Client::Bank {
                bank: Box::new(bank),
                _directory: directory,
                chooser,
                booked,
            })
        }
    }
}

/// Stores to each page its own bytes in a transaction that is aborted, so that afterwards every page is the
/// client's own copy. The original's map copied everything, so its pages were copies too when the clock
/// started. [`super::lazy`] measures the cost of first stores.
fn own_pages(rvm: &ModelledMemory, region: &Region) -> Result<(), BenchError> {
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    for at in (0..region.len()).step_by(PAGE_BYTES) {
        let byte: u8 = region.get(at).context("read a page")?;
        transaction
            .write(region, at, &[byte])
            .context("store to a page")?;
    }
    transaction.abort();
    Ok(())
}

impl Client {
    fn run(
        mut self,
        stage: &Tr190Testbed<'_>,
        system: Tr190System,
        (index, clients): (usize, usize),
        effort: Tr190Effort,
        stop: &AtomicBool,
    ) -> Result<ClientResult, BenchError> {
        // After opening, not before: the journal's own threads stay free to run anywhere. Without members
        // they do the work.
        if system.link != MemberLink::Disk
            && let Some(core) = stage.cores.client_of(index, clients)
        {
            machine::pin(&[core])?;
        }
        let durability = system.durability();
        let mut histogram = histogram::empty();
        let mut took = Duration::ZERO;
        let start = Instant::now();
        let mut began = start;
        for _ in 0..effort.transactions {
            self.transact(durability)?;
            let ended = Instant::now();
            histogram.saturating_record((ended - began).as_nanos() as u64);
            took = ended - start;
            began = ended;
            if took >= effort.cap || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        if system.link != MemberLink::Disk {
            self.check_member()?;
        }
        let full_stalls = self.check(histogram.len())?;
        Ok(ClientResult {
            histogram,
            time: took,
            full_stalls,
        })
    }

    fn transact(&mut self, durability: Durability) -> Result<(), BenchError> {
        match self {
            Client::Blocks(blocks) => blocks.transact(durability),
            Client::Bank { bank, chooser, .. } => bank.transact(chooser, durability).map(drop),
        }
    }

    /// Checks that the member is there. Without it commits silently wait for the disk, as designed, and the
    /// cell would measure something else.
    fn check_member(&self) -> Result<(), BenchError> {
        let log = match self {
            Client::Blocks(blocks) => blocks.memory.rvm.log(),
            Client::Bank { bank, .. } => bank.rvm().log(),
        };
        log.wait_for_members(Duration::ZERO).map_err(|blocked| {
            BenchError::InvalidRequest(format!(
                "the member was lost while commits were measured: {blocked}"
            ))
        })
    }

    /// Writes everything to the data file and reads it back. Returns how often commits met a full log.
    fn check(&self, transactions: u64) -> Result<u64, BenchError> {
        match self {
            Client::Blocks(blocks) => {
                let rvm = &blocks.memory.rvm;
                let full_stalls = rvm.statistics().full_stalls;
                rvm.truncate().context("write the log to the data file")?;
                blocks.check_file()?;
                Ok(full_stalls)
            }
            Client::Bank { bank, booked, .. } => {
                let full_stalls = bank.rvm().statistics().full_stalls;
                bank.rvm()
                    .truncate()
                    .context("write the log to the bank's file")?;
                let found = bank.audit()?.transactions;
                if found != booked + transactions {
                    return Err(BenchError::WrongData {
                        place: bank.region().segment_path().into(),
                        why: format!(
                            "{found} transactions are in the books, {} were made",
                            booked + transactions
                        ),
                    });
                }
                Ok(full_stalls)
            }
        }
    }
}

impl Blocks {
    fn transact(&mut self, durability: Durability) -> Result<(), BenchError> {
        let slots = (self.region.len() / self.block.len()) as u64;
        let slot = match self.order {
            BlockOrder::Sequential => self.number % slots,
            BlockOrder::Random => self.chooser.below(slots),
        };
        self.number += 1;
        // Every block differs from every other, and its end shows whether it is torn.
        let mark = (self.mark + self.number).to_le_bytes();
        let end = self.block.len() - mark.len();
        self.block[..mark.len()].copy_from_slice(&mark);
        self.block[end..].copy_from_slice(&mark);
        let offset = slot as usize * self.block.len();
        let mut transaction = self.memory.rvm.begin(RestoreMode::Restore);
        transaction
            .write(&self.region, offset, &self.block)
            .context("change a block")?;
        transaction
            .commit(durability)
            .context("commit a transaction")
            .map(drop)
    }

    /// Compares the data file with memory, block by block.
    fn check_file(&self) -> Result<(), BenchError> {
        let path = self.region.segment_path();
        let what = format_args!("read {path} back");
        let file = std::fs::File::open(path).context(what)?;
        let memory = self.region.read();
        let mut piece = vec![0; 1 << 20];
        for (index, expected) in memory.chunks(piece.len()).enumerate() {
            let found = &mut piece[..expected.len()];
            file.read_exact_at(found, (index * (1 << 20)) as u64)
                .context(what)?;
            if *found != *expected {
                return Err(BenchError::WrongData {
                    place: path.into(),
                    why: format!("MiB {index} is not what was committed"),
                });
            }
        }
        Ok(())
    }
}

fn add_up(results: Vec<Result<ClientResult, BenchError>>) -> Result<Tr190Cell, BenchError> {
    let mut all = histogram::empty();
    let mut cell = Tr190Cell::default();
    for ran in results {
        let ran = ran?;
        cell.tps += ran.histogram.len() as f64 / ran.time.as_secs_f64();
        cell.full_stalls += ran.full_stalls;
        // Both have the same bounds, so every value of one fits the other.
        let added = all.add(&ran.histogram);
        assert!(added.is_ok());
    }
    let at = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Tr190Cell {
        transactions: all.len(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        max_us: all.max() as f64 / 1e3,
        ..cell
    })
}

impl Tr190Cell {
    /// The median of each field over rounds, and all transactions together.
    pub fn median(rounds: &[Tr190Cell]) -> Tr190Cell {
        let field = |of: fn(&Tr190Cell) -> f64| histogram::median(rounds.iter().map(of).collect());
        Tr190Cell {
            tps: field(|round| round.tps),
            transactions: rounds.iter().map(|round| round.transactions).sum(),
            p50_us: field(|round| round.p50_us),
            p99_us: field(|round| round.p99_us),
            max_us: field(|round| round.max_us),
            full_stalls: rounds.iter().map(|round| round.full_stalls).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(us: u64, count: u64) -> Result<ClientResult, BenchError> {
        let mut histogram = histogram::empty();
        histogram.saturating_record_n(us * 1000, count);
        Ok(ClientResult {
            histogram,
            time: Duration::from_micros(us * count),
            full_stalls: 1,
        })
    }

    #[test]
    fn throughputs_of_clients_add_up_over_their_own_times() {
        let cell = add_up(vec![ran(10, 1000), ran(20, 500)]).unwrap();
        assert_eq!((cell.transactions, cell.full_stalls), (1500, 2));
        assert!((cell.tps - 150_000.0).abs() < 1.0, "{cell:?}");
        assert!(cell.p50_us < 11.0 && cell.max_us > 19.0, "{cell:?}");
        let failed = Err(BenchError::InvalidRequest("nothing".to_owned()));
        assert!(
            add_up(vec![ran(10, 1), failed]).is_err(),
            "one lost client is no result"
        );
    }

    #[test]
    fn one_disturbed_round_does_not_move_the_median() {
        let round = |tps| Tr190Cell {
            tps,
            transactions: 10,
            ..Tr190Cell::default()
        };
        let middle = Tr190Cell::median(&[round(5.0), round(900.0), round(6.0)]);
        assert_eq!((middle.tps, middle.transactions), (6.0, 30));
    }
}
