//! Runs everything at once: lenders, server, editors and a viewer, which are killed one after the other. At
//! the end every stroke that an editor reported as safe is in the drawing exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::demo_directory::{DemoDirectory, LENDERS, wait_for_end_of_input};
use crate::drawing::{create, current};
use crate::editor::DRAWN_PREFIX;
use crate::viewer::SHOWN_PREFIX;

/// Longer than any expected wait.
const PATIENCE: Duration = Duration::from_secs(60);
const EDITORS: u32 = 3;
const VIEWER: &str = "viewer";

/// Options of the demo.
pub(crate) struct DemoOptions {
    pub(crate) listen: String,
    pub(crate) terminal: bool,
    pub(crate) strokes: u64,
    pub(crate) stay: bool,
    pub(crate) pause: u64,
}

/// Runs the demo. Fails if a stroke is missing.
pub(crate) fn run(choices: &DemoOptions) -> anyhow::Result<()> {
    let memory = Path::new("/dev/shm");
    let directory = match memory.is_dir() {
        true => tempfile::tempdir_in(memory)?,
        false => tempfile::tempdir()?,
    };
    let place = DemoDirectory::at(directory.path().to_owned());
    place.create()?;
    let mut cast = DemoProcesses::new(place);
    LENDERS
        .iter()
        .try_for_each(|name| cast.start(name, &["lend", name]))?;
    cast.start("server", &["serve"])?;
    let judge = cast.directory.join("judge")?;
    create(&judge)?;
    judge.leave()?;

    cast.start_viewer(choices)?;
    (1..=EDITORS).try_for_each(|author| cast.start_editor(author, choices.pause))?;
    cast.all_draw(choices.strokes)?;
    for victim in [
        "editor-1", "lender-1", "server", "editor-2", VIEWER, "lender-3", "editor-3",
    ] {
        println!("kill -9 {victim}");
        let arguments = cast.kill(victim)?;
        // The others go on without it; without the server, for as long as they keep their locks.
        if victim != "server" {
            cast.others_draw(victim, choices.strokes)?;
        }
        cast.start_again(victim, arguments)?;
        cast.all_draw(choices.strokes)?;
    }
    cast.stop_editors()?;

    let judge = cast.directory.join("judge")?;
    let verdict = verdict(&current(&judge)?, &cast.safe());
    judge.leave()?;
    println!("{}", verdict?);
    if choices.stay {
        wait_for_end_of_input();
    }
    Ok(())
}

/// Compares the drawing with the strokes that editors reported as safe.
fn verdict(seen: &[crate::drawing::VisibleStroke], safe: &BTreeMap<u32, u64>) -> anyhow::Result<String> {
    let mut found: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for stroke in seen {
        let fresh = found.entry(stroke.author).or_default().insert(stroke.number);
        ensure!(
            fresh,
            "stroke {} of editor {} is there twice",
            stroke.number,
            stroke.author
        );
    }
    for (author, last) in safe {
        let theirs = found.get(author);
        let missing = (1..=*last).find(|number| theirs.is_none_or(|theirs| !theirs.contains(number)));
        if let Some(number) = missing {
            bail!("stroke {number} of editor {author} was safe, and is missing");
        }
    }
    let acknowledged: u64 = safe.values().sum();
    Ok(format!(
        "every one of {acknowledged} acknowledged strokes is there, each once; {} strokes in all",
        seen.len()
    ))
}

/// The processes, by their names.
struct DemoProcesses {
    directory: DemoDirectory,
    processes: BTreeMap<String, (Child, Vec<String>)>,
    /// The last safe stroke of each editor.
    safe: Arc<Mutex<BTreeMap<u32, u64>>>,
    /// Number of viewers that have printed their page's address.
    shown: Arc<AtomicU32>,
}

impl DemoProcesses {
    fn new(place: DemoDirectory) -> DemoProcesses {
        DemoProcesses {
            directory: place,
            processes: BTreeMap::new(),
            safe: Arc::default(),
            shown: Arc::default(),
        }
    }

    /// Starts this program with a command, the directory, and further arguments.
    fn start(&mut self, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        self.start_again(name, arguments)
    }

    fn start_viewer(&mut self, choices: &DemoOptions) -> anyhow::Result<()> {
        let mut arguments = vec!["view", "--listen", &choices.listen];
        if choices.terminal {
            arguments.push("--terminal");
        }
        self.start(VIEWER, &arguments)
    }

    fn start_editor(&mut self, author: u32, pause: u64) -> anyhow::Result<()> {
        let (author, pause) = (author.to_string(), pause.to_string());
        self.start(&format!("editor-{author}"), &["edit", &author, "--pause", &pause])
    }

    fn start_again(&mut self, name: &str, arguments: Vec<String>) -> anyhow::Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(&arguments[0])
            .arg(&self.directory.directory)
            .args(&arguments[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let (author, safe) = (author_of(name), Arc::clone(&self.safe));
        let (shown, before) = (Arc::clone(&self.shown), self.shown.load(Ordering::SeqCst));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.starts_with(SHOWN_PREFIX) {
                    println!("the drawing is {line}");
                    shown.fetch_add(1, Ordering::SeqCst);
                }
                let number = line
                    .strip_prefix(DRAWN_PREFIX)
                    .and_then(|number| number.parse().ok());
                if let (Some(number), Some(author)) = (number, author) {
                    let mut safe = safe.lock().unwrap_or_else(PoisonError::into_inner);
                    safe.insert(author, number);
                }
            }
        });
        self.processes.insert(name.to_owned(), (child, arguments));
        let since = Instant::now();
        while name == VIEWER && self.shown.load(Ordering::SeqCst) == before {
            ensure!(
                since.elapsed() < PATIENCE,
                "the viewer did not print its page's address"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Kills a process (SIGKILL). Returns its arguments.
    fn kill(&mut self, name: &str) -> anyhow::Result<Vec<String>> {
        let (mut child, arguments) = self.processes.remove(name).context("it was started")?;
        child.kill()?;
        child.wait()?;
        Ok(arguments)
    }

    /// The last safe stroke of each editor.
    fn safe(&self) -> BTreeMap<u32, u64> {
        self.safe.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn all_draw(&mut self, strokes: u64) -> anyhow::Result<()> {
        self.others_draw("nobody", strokes)
    }

    /// Waits until every editor but one has drawn `strokes` more.
    fn others_draw(&mut self, but: &str, strokes: u64) -> anyhow::Result<()> {
        let (before, since) = (self.safe(), Instant::now());
        let wanted: Vec<u32> = (1..=EDITORS)
            .filter(|author| Some(*author) != author_of(but))
            .collect();
        loop {
            let now = self.safe();
            let drawn = |author| now.get(author).unwrap_or(&0) - before.get(author).unwrap_or(&0);
            if wanted.iter().all(|author| drawn(author) >= strokes) {
                return Ok(());
            }
            for (name, (child, _)) in &mut self.processes {
                if let Some(status) = child.try_wait()? {
                    bail!("{name} ended by itself: {status}");
                }
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "the editors made no progress: {before:?}, then {now:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the editors in an orderly way: they leave the region.
    fn stop_editors(&mut self) -> anyhow::Result<()> {
        for author in 1..=EDITORS {
            let (mut child, _) = self
                .processes
                .remove(&format!("editor-{author}"))
                .context("it was started")?;
            drop(child.stdin.take());
            let since = Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                if since.elapsed() > PATIENCE {
                    child.kill()?;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            ensure!(status.success(), "editor {author} did not leave: {status}");
        }
        Ok(())
    }
}

/// Editor number of a process.
fn author_of(name: &str) -> Option<u32> {
    name.strip_prefix("editor-")?.parse().ok()
}

impl Drop for DemoProcesses {
    fn drop(&mut self) {
        for (child, _) in self.processes.values_mut() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::VisibleStroke;

    fn seen(strokes: &[(u32, u64)]) -> Vec<VisibleStroke> {
        let stroke = |(author, number): &(u32, u64)| VisibleStroke {
            author: *author,
            number: *number,
            points: Vec::new(),
        };
        strokes.iter().map(stroke).collect()
    }

    #[test]
    fn missing_and_duplicate_strokes_are_found() {
        let safe = BTreeMap::from([(1, 2), (2, 1)]);
        assert!(verdict(&seen(&[(1, 2), (1, 1), (2, 1)]), &safe).is_ok());
        // Strokes that were not acknowledged may be there.
        assert!(verdict(&seen(&[(1, 2), (1, 1), (2, 1), (2, 2)]), &safe).is_ok());
        assert!(verdict(&seen(&[(1, 2), (2, 1)]), &safe).is_err());
        assert!(verdict(&seen(&[(1, 2), (1, 1)]), &safe).is_err());
        assert!(verdict(&seen(&[(1, 2), (1, 1), (2, 1), (1, 1)]), &safe).is_err());
    }
}
