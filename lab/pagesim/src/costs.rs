//! Cost of events in processor cycles: the paper's table 1, and the clock that it does not state.

use netram_far_machine::paging::PolicyTally;

/// Costs of a machine, its network and its disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineCosts {
    /// Clock in cycles per second.
    pub clock_hz: f64,
    /// Cycles of a reference to local memory.
    pub local_word: f64,
    /// Cycles of a reference to one word of remote memory.
    pub remote_word: f64,
    /// Cycles of the operating system for each time that it moves pages.
    pub overhead: f64,
    /// Throughput of the network in bytes per second.
    pub network_rate: f64,
    /// Seconds before a page's first byte arrives over the network.
    pub network_latency: f64,
    /// Throughput of the disk in bytes per second, in both directions.
    pub disk_rate: f64,
    /// Seconds before the first byte of a page is read from or written to the disk.
    pub disk_latency: f64,
    /// Page size in bytes.
    pub page_bytes: f64,
}

/// A machine with a name.
#[derive(Clone, Copy, Debug)]
pub struct NamedMachine {
    /// Its name.
    pub name: &'static str,
    /// Description of the machine.
    pub what: &'static str,
    /// Its costs.
    pub costs: MachineCosts,
    /// Cycles of a remote word that software fetches.
    pub software_word: f64,
}

/// A processor of today with a disk of today. A fault costs the kernel's notice to a user-space handler
/// (`userfaultfd`), 7.6 µs.
const TODAY: MachineCosts = MachineCosts {
    clock_hz: 3e9,
    local_word: 1.0,
    remote_word: 0.0,
    overhead: 22_800.0,
    network_rate: 0.0,
    network_latency: 0.0,
    disk_rate: 2e9,
    disk_latency: 80e-6,
    page_bytes: 4096.0,
};

/// The paper's machine and four of today. The latter are assumptions, each of which can be overridden.
pub const MACHINES: [NamedMachine; 5] = [
    NamedMachine {
        name: "mascots96",
        what: "the paper's table 1: 25 MB/s network, 5 MB/s disk with 2.5 ms to seek, 110 MHz",
        costs: MachineCosts::MASCOTS96,
        software_word: 1000.0,
    },
    NamedMachine {
        name: "rdma",
        what: "100 Gbit/s RDMA, 3 us there and back; NVMe disk, 80 us; 3 GHz",
        costs: MachineCosts {
            remote_word: 9_000.0,
            network_rate: 12e9,
            network_latency: 3e-6,
            ..TODAY
        },
        software_word: 9_000.0,
    },
    NamedMachine {
        name: "tcp",
        what: "10 Gbit/s Ethernet with TCP, 25 us there and back; NVMe disk, 80 us; 3 GHz",
        costs: MachineCosts {
            remote_word: 75_000.0,
            network_rate: 1.2e9,
            network_latency: 25e-6,
            ..TODAY
        },
        software_word: 75_000.0,
    },
    NamedMachine {
        name: "cxl",
        what: "memory on a CXL switch: 250 ns a word; NVMe disk, 80 us; 3 GHz; pages moved by the kernel, 2 us",
        costs: MachineCosts {
            remote_word: 750.0,
            overhead: 6_000.0,
            network_rate: 20e9,
            network_latency: 250e-9,
            ..TODAY
        },
        software_word: 15_000.0,
    },
    NamedMachine {
        name: "zram",
        what: "pages packed in this machine's own memory (LZ4): 3.5 us to pack, 0.9 us to unpack; NVMe disk, 80 us; 3 GHz; pages moved by the kernel, 2 us",
        costs: MachineCosts {
            // There are no words: the page is unpacked for each access.
            remote_word: 8_700.0,
            overhead: 6_000.0,
            network_rate: f64::INFINITY,
            // About as many pages are packed as are unpacked.
            network_latency: 2.2e-6,
            ..TODAY
        },
        software_word: 8_700.0,
    },
];

impl MachineCosts {
    /// Table 1 of the paper, which does not state the clock. With 110 MHz, and the processor waiting for
    /// every page written and read, the paper's figure for TRANS under DISK follows from the stated costs.
    pub const MASCOTS96: MachineCosts = MachineCosts {
        clock_hz: 110e6,
        local_word: 1.0,
        remote_word: 100.0,
        overhead: 500.0,
        network_rate: 25e6,
        network_latency: 0.0,
        disk_rate: 5e6,
        disk_latency: 2.5e-3,
        page_bytes: 8192.0,
    };

    /// The same over another network. A word's cost changes in proportion to a page's; otherwise the paper's
    /// figure 2 would contradict its text.
    pub fn with_network_rate(self, rate: f64) -> MachineCosts {
        MachineCosts {
            remote_word: self.remote_word * self.network_rate / rate,
            network_rate: rate,
            ..self
        }
    }

    /// The same with remote words fetched by software (the paper's footnote 4: 1000 cycles).
    pub fn with_remote_word(self, cycles: f64) -> MachineCosts {
        MachineCosts {
            remote_word: cycles,
            ..self
        }
    }

    /// Cycles of transferring one page over the network.
    pub fn network_page(&self) -> f64 {
        (self.network_latency + self.page_bytes / self.network_rate) * self.clock_hz
    }

    /// Cycles of reading or writing one page on the disk.
    pub fn disk_page(&self) -> f64 {
        (self.disk_latency + self.page_bytes / self.disk_rate) * self.clock_hz
    }

    /// Cycles of all events. The program waits for each transfer.
    pub fn cycles(&self, tally: &PolicyTally) -> f64 {
        tally.local as f64 * self.local_word
            + tally.words as f64 * self.remote_word
            + tally.faults as f64 * self.overhead
            + tally.network_pages() as f64 * self.network_page()
            + tally.disk_pages() as f64 * self.disk_page()
    }
}
