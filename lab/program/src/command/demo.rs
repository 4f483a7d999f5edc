//! `netram-lab demo`: all of netram on one machine, in under a minute.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use netram_bench::child::ChildProcess;
use netram_bench::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use netram_bench::tpca::{self, LOG_BYTES, TpcaRow};
use netram_bench::worker::{self, BankWorker};
use netram_transport::WaitPolicy;

use super::testbed::testbed;
use netram_cli::command::journal::recovery_sentences;
use netram_cli::output;

const LENDERS: usize = 3;
/// Number of copies; one more lender is a spare.
const MEMBERS: usize = 2;

/// Show netram at work on this machine, and prove that nothing acknowledged is
/// lost
///
/// Starts three lenders, runs TPC-A with commits to the local disk and with commits to the
/// lenders' memory, then kills the client and a lender while they work, recovers, and
/// counts. Everything is removed at the end. The exit code is 1 if an acknowledged
/// transaction is missing.
///
///   netram-lab demo
///   netram-lab demo --quick --dir /mnt/slow-disk
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct RunDemo {
    /// Take a few seconds instead of half a minute
    #[arg(long)]
    quick: bool,
    /// Directory for the journal; choose a disk of interest [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Duration of each phase.
struct PhaseTimes {
    run: Duration,
    before_kill: Duration,
}

impl RunDemo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let began = Instant::now();
        let times = if self.quick {
            PhaseTimes {
                run: Duration::from_millis(400),
                before_kill: Duration::from_millis(300),
            }
        } else {
            PhaseTimes {
                run: Duration::from_secs(5),
                before_kill: Duration::from_secs(3),
            }
        };
        let site = testbed(self.dir.as_deref())?;
        compare(&site, &times)?;
        crash(&site, &times)?;
        say("")?;
        say(&format!(
            "All of it took {}. Measure more with `netram-lab bench figures`; lend memory with `netram lender serve --help`.",
            output::age(began.elapsed())
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn say(text: &str) -> Result<()> {
    output::line(text)
}

fn step(number: u32, what: &str, why: &str) -> Result<()> {
    say("")?;
    say(&format!("{number}. {what}"))?;
    say(&format!("   {why}"))
}

/// Local disk beside remote memory, with the same program.
fn compare(site: &Testbed, times: &PhaseTimes) -> Result<()> {
    step(
        1,
        "A bank, its commits on the local disk",
        "TPC-A: each transaction changes three balances and an audit trail in memory; its commit waits for fdatasync.",
    )?;
    let disk = watched(site, &tpca::TpcaSpec::with(0, times.run))?;
    step(
        2,
        "The same bank, its commits in the memory of lenders",
        "Two lender processes hold each commit before it counts, encrypted; the disk follows in the background.",
    )?;
    let remote = watched(site, &tpca::TpcaSpec::with(MEMBERS, times.run))?;
    let mut table = output::table(
        &["commits wait for", "transactions/s", "p50 us", "p99 us", "ratio"],
        1,
    );
    let faster = remote.transactions.per_second / disk.transactions.per_second;
    for (name, row, ratio) in [
        ("the local disk", &disk, 1.0),
        ("two lenders' memory", &remote, faster),
    ] {
        table.add_row([
            name.to_owned(),
            output::number(row.transactions.per_second),
            output::number(row.transactions.p50_us),
            output::number(row.transactions.p99_us),
            format!("{ratio:.1} x"),
        ]);
    }
    say("")?;
    say(&table.to_string())?;
    say("   (Lenders and client share this machine's cores here; with machines of their own they do not.)")
}

/// Runs one row with its progress shown: a bar on a terminal, a line each second in a file.
fn watched(site: &Testbed, spec: &tpca::TpcaSpec) -> Result<TpcaRow> {
    let began = Instant::now();
    let mut next_line = Duration::from_secs(1);
    let bar = output::is_watched().then(|| bar(spec.time));
    let row = tpca::measure(site, spec, &mut |count| {
        let elapsed = began.elapsed();
        let text = format!("{} transactions", output::thousands(count as i64));
        match &bar {
            Some(bar) => {
                bar.set_position(elapsed.as_millis() as u64);
                bar.set_message(text);
            }
            None if elapsed >= next_line => {
                // Progress that cannot be shown is no reason to stop.
                let _ = writeln!(std::io::stdout().lock(), "   {text}");
                next_line = elapsed + Duration::from_secs(1);
            }
            None => (),
        }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let tps = output::number(row.transactions.per_second);
    say(&format!(
        "   {tps} transactions a second; the books agree afterwards, {} transactions in all",
        output::thousands(row.booked as i64)
    ))?;
    Ok(row)
}

fn bar(time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_millis() as u64);
    if let Ok(style) = ProgressStyle::with_template("   {bar:40.green} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Kills the client and a lender while they work; recovers; counts.
fn crash(site: &Testbed, times: &PhaseTimes) -> Result<()> {
    step(
        3,
        "A client that is killed in the middle of its work, and a lender with it",
        "It writes down each transaction that was acknowledged to it. Then: kill -9, both of them.",
    )?;
    let spec = LenderSpec {
        wire: SocketKind::Tcp,
        secure: true,
        wait: WaitPolicy::default(),
        core: None,
    };
    let mut lenders = (0..LENDERS)
        .map(|_| site.lender(spec))
        .collect::<Result<Vec<LenderProcess>, _>>()?;
    let directory = site.directory().join("teller");
    std::fs::create_dir(&directory)?;
    let teller = BankWorker {
        directory: directory.clone(),
        lenders: lenders
            .iter()
            .map(|lender| lender.address().to_string())
            .collect(),
        members: MEMBERS,
        key_file: Some(site.key_file().to_path_buf()),
        accounts_k: 32,
        seed: u64::from(std::process::id()),
    };
    teller.prepare(LOG_BYTES)?;
    let mut client = ChildProcess::play(site.program(), &teller, "client", site.directory())?;
    client.ready("ready")?;
    let (client_id, began) = (client.id(), Instant::now());
    while began.elapsed() < times.before_kill {
        std::thread::sleep(times.before_kill / 3);
        let acked = output::thousands(worker::last_acked(&directory)? as i64);
        say(&format!("   {acked} transactions acknowledged"))?;
    }
    client.kill();
    // The first is a member, because lenders are taken in order.
    let victim = lenders.remove(0);
    let (victim_id, victim_address) = (victim.child().id(), victim.address().to_string());
    victim.kill();
    let acked = worker::last_acked(&directory)?;
    say(&format!(
        "   killed: the client (pid {client_id}) and the lender {victim_address} (pid {victim_id})"
    ))?;
    recover(&teller, acked)
}

fn recover(teller: &BankWorker, acked: u64) -> Result<()> {
    step(
        4,
        "Recovery",
        "The journal is opened again: what the disk did not have yet, the surviving member gives.",
    )?;
    let began = Instant::now();
    let (bank, recovered) = teller.open(teller.config()?)?;
    for sentence in recovery_sentences(&recovered) {
        say(&format!("   {sentence}"))?;
    }
    say(&format!(
        "   ready to commit again after {}",
        output::age(began.elapsed())
    ))?;
    step(
        5,
        "The proof",
        "Every record is read back: balances against each other, and the count against the client's.",
    )?;
    let books = bank.audit()?;
    let (held, told) = (
        output::thousands(books.transactions as i64),
        output::thousands(acked as i64),
    );
    ensure!(
        books.transactions >= acked,
        "LOST: {told} transactions were acknowledged, the recovered bank has {held}; please report this"
    );
    say(&format!(
        "   acknowledged to the client before it was killed   {told:>12}"
    ))?;
    say(&format!(
        "   in the recovered bank                             {held:>12}"
    ))?;
    let doubt = books.transactions - acked;
    ensure!(
        doubt <= 1,
        "{doubt} more than were acknowledged, but only one can have been under way; please report this"
    );
    if doubt == 1 {
        say(
            "   (the one more was under way: committed, and the client killed before it could write that down)",
        )?;
    }
    say("   branch, tellers, accounts and audit trail agree. Nothing acknowledged was lost, nothing is torn.")
}
