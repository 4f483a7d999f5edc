//! The paper's setup: 8 Mbytes of local memory, 80 of remote memory, pages of 8 Kbytes, LRU, and programs
//! with their stated numbers of references.
//!
//! Only a program's references to its data are modelled. The rest of the stated number, to variables that the
//! compiler of the time kept on the stack, counts as local: a cycle each.

use netram_far_machine::paging::{FirstTouch, PolicyConfig, PolicyKind, PolicyTally, Replacement};

use crate::costs::MachineCosts;
use crate::study::Study;
use crate::workload::{ReferenceSink, gauss, mvec, sort, trans};

/// Page size in bytes.
pub const PAGE_BYTES: u64 = 8192;
/// Number of pages of local memory: 8 Mbytes.
pub const LOCAL_PAGES: u32 = 1024;
/// Number of pages of remote memory: 80 Mbytes.
pub const REMOTE_PAGES: u32 = 10_240;
/// Initial counter used where the paper does not state one. In its figure 3 all from 64 to 512 are near the
/// best.
pub const INITIAL: u32 = 64;
/// Cycles of a remote word that software fetches (footnote 4).
pub const SOFTWARE_WORD: f64 = 1000.0;

const ROWS: usize = 1500;
/// Number of pivots of GAUSS: the trace had 82.9 million references, at about 12.3 for each step.
const PIVOTS: usize = 3;
const RECORDS: usize = 1400;
const RECORD_BYTES: u64 = 8192;
/// Programs' data begins at a page.
const BASE: u64 = 1 << 30;

/// A program of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaperProgram {
    /// Transposes a matrix in place.
    Trans,
    /// Multiplies a matrix by a vector.
    Mvec,
    /// Eliminates by Gauss's algorithm.
    Gauss,
    /// Sorts records.
    Sort,
}

impl PaperProgram {
    /// All built-in programs. VERILOG is a program of its own.
    pub const ALL: [PaperProgram; 4] = [
        PaperProgram::Trans,
        PaperProgram::Mvec,
        PaperProgram::Gauss,
        PaperProgram::Sort,
    ];

    /// Name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            PaperProgram::Trans => "TRANS",
            PaperProgram::Mvec => "MVEC",
            PaperProgram::Gauss => "GAUSS",
            PaperProgram::Sort => "SORT",
        }
    }

    /// Number of references as stated in the paper.
    pub fn references(self) -> u64 {
        match self {
            PaperProgram::Trans => 22_600_000,
            PaperProgram::Mvec => 25_000_000,
            PaperProgram::Gauss => 82_900_000,
            PaperProgram::Sort => 142_400_000,
        }
    }

    /// Runs with several policies at once.
    pub fn run(self, configs: &[PolicyConfig]) -> Vec<PolicyTally> {
        let mut study = Study::new(PAGE_BYTES, configs);
        self.reference(&mut study);
        study.tallies().0
    }

    /// Runs, and passes its references to `memory`.
    pub fn reference(self, memory: &mut impl ReferenceSink) {
        match self {
            PaperProgram::Trans => drop(trans(memory, BASE, ROWS, ROWS)),
            PaperProgram::Mvec => drop(mvec(memory, BASE, ROWS)),
            PaperProgram::Gauss => drop(gauss(memory, BASE, ROWS, PIVOTS)),
            PaperProgram::Sort => drop(sort(memory, BASE, RECORDS, RECORD_BYTES)),
        }
    }

    /// Cycles of an average reference, over the paper's number of references.
    pub fn average(self, costs: &MachineCosts, tally: &PolicyTally) -> f64 {
        let others = self.references().saturating_sub(tally.references());
        let references = self.references().max(tally.references());
        (costs.cycles(tally) + others as f64 * costs.local_word) / references as f64
    }
}

/// A policy with the paper's memories.
pub fn config(kind: PolicyKind) -> PolicyConfig {
    PolicyConfig {
        kind,
        replacement: Replacement::Lru,
        local_pages: LOCAL_PAGES,
        remote_pages: REMOTE_PAGES,
        first_touch: FirstTouch::Disk,
        keep_copies: false,
        seed: 1,
    }
}
