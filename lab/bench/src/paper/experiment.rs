//! The figures of TR-190 as a table: parameters, loads, durations.

use std::time::Duration;

use serde::Serialize;

use super::system::{FloorKind, MemberLink, Tr190Series, Tr190System};
use crate::tpca::AccessPattern;

/// Default size of the log in bytes.
pub const LOG_BYTES: u64 = 8 << 20;
/// Size of the data file in bytes.
pub const DATA_BYTES: u64 = 100 << 20;
/// Size in bytes of the data file with [`Tr190Effort::small`]; [`super::lazy`] writes less in a round.
const DATA_BYTES_SMALL: u64 = 4 << 20;
/// Number of transactions in a cell, unless its time is over before.
pub const TRANSACTIONS: u64 = 10_000;
/// Microseconds added to a round trip by longer wires: those of local networks.
const LONGER: [u32; 3] = [25, 50, 100];

/// Extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tr190Effort {
    /// Number of rounds; results are their medians.
    pub rounds: usize,
    /// Maximum number of transactions of each client in a cell.
    pub transactions: u64,
    /// Time after which a cell ends.
    #[serde(serialize_with = "in_seconds", rename = "cap_s")]
    pub cap: Duration,
    /// Whether only some x values are measured.
    pub quick: bool,
    /// Whether data files and banks are small. That shows that every curve is measured and drawn, but not its
    /// height.
    pub small: bool,
}

fn in_seconds<S: serde::Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_f64(value.as_secs_f64())
}

impl Tr190Effort {
    /// Three rounds of the paper's transactions.
    pub const FULL: Tr190Effort = Tr190Effort {
        rounds: 3,
        transactions: TRANSACTIONS,
        cap: Duration::from_secs(5),
        quick: false,
        small: false,
    };
    /// One short round, as a check that everything works.
    pub const QUICK: Tr190Effort = Tr190Effort {
        rounds: 1,
        transactions: TRANSACTIONS,
        cap: Duration::from_millis(120),
        quick: true,
        small: false,
    };

    /// Size of the data file in bytes.
    pub fn data_bytes(&self) -> u64 {
        if self.small { DATA_BYTES_SMALL } else { DATA_BYTES }
    }
}

/// One figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Tr190Experiment {
    /// The paper's number.
    pub number: u8,
    /// Title of the figure.
    pub title: &'static str,
    /// Parameter on the x axis.
    pub axis: Tr190Axis,
    work: FigureWork,
}

/// Parameter on the x axis, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Tr190Axis {
    /// Bytes of one transaction's range.
    #[serde(rename = "block bytes")]
    BlockBytes,
    /// Size of the log.
    #[serde(rename = "log KB")]
    LogKb,
    /// Pairs of client and server; throughput is that of one pair.
    #[serde(rename = "pairs")]
    Pairs,
    /// Clients of one server; throughput is that of all together.
    #[serde(rename = "clients")]
    Clients,
    /// Number of accounts in units of 1,024.
    #[serde(rename = "accounts K")]
    AccountsK,
}

/// Transactions of a figure.
#[derive(Clone, Copy, Debug)]
enum FigureWork {
    Blocks(BlockOrder),
    Fixed(usize),
    Accounts(AccessPattern),
}

/// Order in which the blocks of the data file are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockOrder {
    /// In the order of the file.
    Sequential,
    /// At random, each equally likely.
    Random,
}

impl BlockOrder {
    /// Name of the order.
    pub fn name(self) -> &'static str {
        match self {
            BlockOrder::Sequential => "sequential",
            BlockOrder::Random => "random",
        }
    }
}

/// Load of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tr190Load {
    /// The transaction.
    pub task: Tr190Task,
    /// Size of each client's log in bytes.
    pub log_bytes: u64,
    /// Number of clients, each with its own log and data file.
    pub clients: usize,
    /// Whether all clients share the first server.
    pub one_server: bool,
}

/// One transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tr190Task {
    /// A write of a block of the data file.
    Block {
        /// Size of the block in bytes.
        bytes: usize,
        /// Order of the blocks.
        order: BlockOrder,
    },
    /// A transaction of TPC-A.
    Account {
        /// Number of accounts in units of 1,024.
        accounts_k: u64,
        /// Access pattern.
        pattern: AccessPattern,
    },
}

/// The figures.
pub const TR190: [Tr190Experiment; 11] = [
    figure(
        1,
        "Block size, sequential",
        Tr190Axis::BlockBytes,
        FigureWork::Blocks(BlockOrder::Sequential),
    ),
    figure(
        2,
        "Log size, blocks of 128 bytes",
        Tr190Axis::LogKb,
        FigureWork::Fixed(128),
    ),
    figure(
        3,
        "Log size, blocks of 512 bytes",
        Tr190Axis::LogKb,
        FigureWork::Fixed(512),
    ),
    figure(
        4,
        "Block size, random",
        Tr190Axis::BlockBytes,
        FigureWork::Blocks(BlockOrder::Random),
    ),
    figure(
        5,
        "Network load: pairs, blocks of 32 bytes, each pair",
        Tr190Axis::Pairs,
        FigureWork::Fixed(32),
    ),
    figure(
        6,
        "Network load: pairs, blocks of 2 KB, each pair",
        Tr190Axis::Pairs,
        FigureWork::Fixed(2048),
    ),
    figure(
        7,
        "Server load: clients of one server, blocks of 32 bytes, total",
        Tr190Axis::Clients,
        FigureWork::Fixed(32),
    ),
    figure(
        8,
        "Server load: clients of one server, blocks of 2 KB, total",
        Tr190Axis::Clients,
        FigureWork::Fixed(2048),
    ),
    figure(
        9,
        "TPC-A, sequential",
        Tr190Axis::AccountsK,
        FigureWork::Accounts(AccessPattern::Sequential),
    ),
    figure(
        10,
        "TPC-A, random",
        Tr190Axis::AccountsK,
        FigureWork::Accounts(AccessPattern::Random),
    ),
    figure(
        11,
        "TPC-A, localised",
        Tr190Axis::AccountsK,
        FigureWork::Accounts(AccessPattern::Localised),
    ),
];

const fn figure(number: u8, title: &'static str, axis: Tr190Axis, work: FigureWork) -> Tr190Experiment {
    Tr190Experiment {
        number,
        title,
        axis,
        work,
    }
}

impl Tr190Experiment {
    /// The x values that `effort` measures, in the axis's unit.
    pub fn measured_x_values(&self, effort: Tr190Effort) -> &'static [u64] {
        match self.axis {
            Tr190Axis::AccountsK if effort.small => &[32, 64],
            Tr190Axis::LogKb if effort.small => &[32, 8192],
            Tr190Axis::Pairs | Tr190Axis::Clients if effort.small => &[1, 2],
            _ => self.x_values(effort.quick),
        }
    }

    /// All x values, in the axis's unit.
    pub fn x_values(&self, quick: bool) -> &'static [u64] {
        match (self.axis, quick) {
            (Tr190Axis::BlockBytes, false) => &[32, 128, 512, 1024, 2048, 4096, 10_240],
            (Tr190Axis::BlockBytes, true) => &[32, 128, 2048],
            (Tr190Axis::LogKb, false) => &[16, 24, 32, 48, 64, 128, 512, 2048, 8192],
            (Tr190Axis::LogKb, true) => &[16, 32, 8192],
            (Tr190Axis::Pairs | Tr190Axis::Clients, false) => &[1, 2, 3, 4],
            (Tr190Axis::Pairs | Tr190Axis::Clients, true) => &[1, 4],
            (Tr190Axis::AccountsK, false) => &[32, 64, 128, 256, 512, 1024],
            (Tr190Axis::AccountsK, true) => &[32, 1024],
        }
    }

    /// The curves: every system, the floors where the block size varies, and longer wires in figure 1.
    pub fn series(&self, namespaces: bool, quick: bool) -> Vec<Tr190Series> {
        let mut series: Vec<Tr190Series> = Tr190System::all(namespaces)
            .into_iter()
            .map(Tr190Series::System)
            .collect();
        if self.number == 1 && !quick {
            series
                .extend(LONGER.map(|us| Tr190Series::System(Tr190System::RVM.over(MemberLink::Longer(us)))));
        }
        if self.axis == Tr190Axis::BlockBytes {
            series.extend([FloorKind::Sync, FloorKind::Exchange].map(Tr190Series::Floor));
        }
        series
    }

    /// The load at an x value.
    pub fn load(&self, place: u64) -> Tr190Load {
        let alone = |task| Tr190Load {
            task,
            log_bytes: LOG_BYTES,
            clients: 1,
            one_server: false,
        };
        match (self.work, self.axis) {
            (FigureWork::Blocks(order), _) => alone(Tr190Task::Block {
                bytes: place as usize,
                order,
            }),
            (FigureWork::Accounts(pattern), _) => alone(Tr190Task::Account {
                accounts_k: place,
                pattern,
            }),
            (FigureWork::Fixed(bytes), axis) => {
                let order = BlockOrder::Sequential;
                let load = alone(Tr190Task::Block { bytes, order });
                if axis == Tr190Axis::LogKb {
                    return Tr190Load {
                        log_bytes: place * 1024,
                        ..load
                    };
                }
                Tr190Load {
                    clients: place as usize,
                    one_server: axis == Tr190Axis::Clients,
                    ..load
                }
            }
        }
    }
}

impl Tr190Axis {
    /// Name of the axis.
    pub fn name(self) -> &'static str {
        match self {
            Tr190Axis::BlockBytes => "bytes of a transaction",
            Tr190Axis::LogKb => "size of the log, KB",
            Tr190Axis::Pairs => "pairs of client and server",
            Tr190Axis::Clients => "clients of one server",
            Tr190Axis::AccountsK => "accounts, in units of 1,024",
        }
    }

    /// Unit of the axis in files.
    pub fn unit(self) -> &'static str {
        match self {
            Tr190Axis::BlockBytes => "block_bytes",
            Tr190Axis::LogKb => "log_kb",
            Tr190Axis::Pairs => "pairs",
            Tr190Axis::Clients => "clients",
            Tr190Axis::AccountsK => "accounts_k",
        }
    }

    /// Whether x values are counts, for which a logarithmic axis would mislead.
    pub fn is_count(self) -> bool {
        matches!(self, Tr190Axis::Pairs | Tr190Axis::Clients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::limit::LOG_BYTES_MIN;

    #[test]
    fn quick_x_values_are_x_values_of_the_full_run() {
        for experiment in TR190 {
            let full = experiment.x_values(false);
            assert!(experiment.x_values(true).iter().all(|place| full.contains(place)));
            assert!(full.is_sorted());
            let small = Tr190Effort {
                small: true,
                ..Tr190Effort::QUICK
            };
            let small = experiment.measured_x_values(small);
            assert!(small.len() >= 2 && small.iter().all(|place| full.contains(place)));
            assert_eq!(
                experiment.measured_x_values(Tr190Effort::QUICK),
                experiment.x_values(true)
            );
        }
    }

    #[test]
    fn the_papers_parameters_are_the_ones_used() {
        let facts = super::super::facts::Tr190Facts::tr190().unwrap();
        assert_eq!(
            (facts.log_bytes, facts.data_file_bytes, facts.transactions),
            (LOG_BYTES, DATA_BYTES, TRANSACTIONS)
        );
        for (index, experiment) in TR190.iter().enumerate() {
            assert_eq!(usize::from(experiment.number), index + 1);
            for &place in experiment.x_values(false) {
                let load = experiment.load(place);
                assert!(load.log_bytes >= LOG_BYTES_MIN, "the smallest log that there is");
                assert_eq!(load.one_server, experiment.axis == Tr190Axis::Clients);
                if experiment.axis.is_count() {
                    assert_eq!(load.clients as u64, place);
                }
            }
        }
        let smallest = TR190[1].load(TR190[1].x_values(true)[0]);
        assert_eq!(smallest.log_bytes, LOG_BYTES_MIN);
        assert_eq!(
            TR190[9].load(1024).task,
            Tr190Task::Account {
                accounts_k: 1024,
                pattern: AccessPattern::Random
            }
        );
    }

    #[test]
    fn figures_by_block_size_have_floors() {
        for experiment in TR190 {
            let series = experiment.series(true, true);
            let floors = series
                .iter()
                .filter(|series| matches!(series, Tr190Series::Floor(_)))
                .count();
            assert_eq!(floors, if matches!(experiment.number, 1 | 4) { 2 } else { 0 });
        }
    }
}
