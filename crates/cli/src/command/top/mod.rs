//! `netram top`.

mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use netram_watch::source::ViewCollector;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::screen::TopScreen;
use super::watching::WatchArgs;
use crate::options::UsageError;
use crate::output;

/// Time between two looks at the state, and at signals.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long `--once` waits for answers.
const ONCE_PATIENCE: Duration = Duration::from_secs(6);
/// Size of what `--once` prints.
const ONCE_SIZE: Rect = Rect {
    x: 0,
    y: 0,
    width: 120,
    height: 60,
};

/// Show the cluster in the terminal, as netram dashboard does on a page
///
///   q             quit
///   Tab           go to the next list
///   arrows, PgUp  move in the list
///   /             search journals and lenders; Esc ends the search
///
///   netram top
///   netram top --scrape db1:9465
///   netram top --once
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowTop {
    #[command(flatten)]
    watch: WatchArgs,
    /// Print the state once, as text
    #[arg(long)]
    once: bool,
}

impl ShowTop {
    pub(super) fn run(self) -> Result<ExitCode> {
        let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        if !self.once && !has_terminal {
            let sentence = "netram top needs a terminal: use netram status --json, or netram top --once";
            return Err(UsageError(sentence.to_owned()).into());
        }
        let collector = self.watch.collector()?;
        match self.once {
            true => print_once(&collector)?,
            false => show(&collector)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_once(collector: &ViewCollector) -> Result<()> {
    let begun = Instant::now();
    while !collector.view().0.is_complete && begun.elapsed() < ONCE_PATIENCE && !collector.is_fixed() {
        std::thread::sleep(LOOK_INTERVAL);
    }
    let (view, age) = collector.view();
    let mut buffer = Buffer::empty(ONCE_SIZE);
    TopScreen::default().draw(ONCE_SIZE, &mut buffer, &view, age);
    let lines = text_of(&buffer);
    let used = lines
        .iter()
        .rposition(|line| !line.is_empty())
        .map_or(0, |last| last + 1);
    for line in &lines[..used] {
        output::line(line)?;
    }
    Ok(())
}

/// The lines of a buffer, without the spaces at their ends.
fn text_of(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    let lines = buffer.content.chunks(width).map(line);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

fn show(collector: &ViewCollector) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&over)).context("waiting for signals")?;
    }
    // From here on a panic restores the terminal, too.
    let mut terminal = ratatui::try_init().context("preparing the terminal")?;
    let shown = turn(collector, &mut terminal, &over);
    ratatui::restore();
    shown
}

fn turn(collector: &ViewCollector, terminal: &mut ratatui::DefaultTerminal, over: &AtomicBool) -> Result<()> {
    let mut screen = TopScreen::default();
    while !over.load(Ordering::Relaxed) {
        let (view, age) = collector.view();
        terminal
            .draw(|frame| screen.draw(frame.area(), frame.buffer_mut(), &view, age))
            .context("drawing")?;
        let deadline = Instant::now() + LOOK_INTERVAL;
        // All keys that have come are taken before the next frame.
        while event::poll(deadline.saturating_duration_since(Instant::now())).context("reading keys")? {
            match event::read().context("reading keys")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if screen.handle(key) {
                        return Ok(());
                    }
                    break;
                }
                Event::Resize(..) => break,
                _ => (),
            }
        }
    }
    Ok(())
}
