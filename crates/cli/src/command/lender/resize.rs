//! `netram lender resize`: lending more or less memory, without a restart.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use netram_lender::MemoryReport;
use netram_proto::id::Lsn;
use netram_proto::wire::{FrameHeader, FrameKind};

use super::drain::OperatedArgs;
use crate::options::{DurationArg, SizeArg};
use crate::output;

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Lend less memory, and return the rest to this machine, without a restart
///
/// From now on the lender lends at most --memory. It returns what is free at once, and asks its
/// clients to move pages of programs under `netram run`, then windows of journals. A window leaves
/// only when another lender has taken its place; this waits for that.
///
/// The order ends with the lender's process, or with --memory all: the lender then lends as much as
/// it was started with, as far as this machine has memory to spare.
///
/// Exit code: 0 no more than that is lent, 1 not yet, 2 wrong usage.
///
///   netram lender resize --memory 2GiB
///   netram lender resize --memory all
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ResizeLender {
    #[command(flatten)]
    operated: OperatedArgs,
    /// Most bytes to lend from now on, or `all`
    #[arg(long, value_name = "SIZE|all")]
    memory: MemoryWish,
    /// How long to wait until no more than that is lent
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: DurationArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryWish {
    All,
    Bytes(u64),
}

impl FromStr for MemoryWish {
    type Err = <SizeArg as FromStr>::Err;

    fn from_str(text: &str) -> Result<MemoryWish, Self::Err> {
        match text {
            "all" => Ok(MemoryWish::All),
            size => size.parse().map(|SizeArg(bytes)| MemoryWish::Bytes(bytes)),
        }
    }
}

impl ResizeLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        let began = Instant::now();
        let question = FrameHeader::new(FrameKind::Status);
        let lenders = self.operated.lenders()?;
        for lender in &lenders {
            let report = self.operated.tell(lender, question)?;
            if let MemoryWish::Bytes(bytes) = self.memory
                && bytes > report.memory.reserved
            {
                bail!(
                    "{} was started with {} to lend: for more, start it with a larger --memory",
                    report.name,
                    output::bytes(report.memory.reserved)
                );
            }
        }
        let mut order = FrameHeader::new(FrameKind::Offer);
        order.lsn = Lsn(match self.memory {
            MemoryWish::All => u64::MAX,
            MemoryWish::Bytes(bytes) => bytes,
        });
        for lender in &lenders {
            self.operated.tell(lender, order)?;
        }
        let mut said = vec![String::new(); lenders.len()];
        loop {
            let mut done = true;
            for (lender, said) in lenders.iter().zip(&mut said) {
                let report = self.operated.tell(lender, question)?;
                let excess = self.excess(&report.memory);
                done &= excess == 0;
                let line = line(&report.memory, excess);
                if *said != line {
                    output::line(format_args!("{}: {line}", report.name))?;
                    *said = line;
                }
            }
            let left = self.timeout.0.saturating_sub(began.elapsed());
            match (done, left.is_zero()) {
                (true, _) => return Ok(ExitCode::SUCCESS),
                (false, true) => return Ok(ExitCode::FAILURE),
                (false, false) => std::thread::sleep(left.min(ASK_EVERY)),
            }
        }
    }

    /// Returns the bytes that the lender has of this machine's memory beyond what it shall.
    fn excess(&self, memory: &MemoryReport) -> u64 {
        match self.memory {
            MemoryWish::All => 0,
            MemoryWish::Bytes(most) => (memory.reserved - memory.given_back).saturating_sub(most),
        }
    }
}

/// Returns what a lender has, and what is still to move away.
fn line(memory: &MemoryReport, excess: u64) -> String {
    let (lent, returned) = (output::bytes(memory.used), output::bytes(memory.given_back));
    let offered = output::bytes(memory.offered.unwrap_or(memory.reserved));
    let moving = match excess {
        0 => String::new(),
        bytes => format!("; {} to move away", output::bytes(bytes)),
    };
    format!("{offered} offered, {lent} of it lent, {returned} returned to the machine{moving}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_or_all_of_it_is_asked_for() {
        assert_eq!("all".parse::<MemoryWish>().unwrap(), MemoryWish::All);
        assert_eq!("2MiB".parse::<MemoryWish>().unwrap(), MemoryWish::Bytes(2 << 20));
        assert_eq!("0".parse::<MemoryWish>().unwrap(), MemoryWish::Bytes(0));
        assert!("much".parse::<MemoryWish>().is_err());
    }
}
