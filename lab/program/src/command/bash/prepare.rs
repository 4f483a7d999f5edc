//! Preparation of a stress run: a directory with segments and a heap, lenders, and settings that name them.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result};
use netram_heap::Heap;
use netram_process::this_program;
use netram_rvm::SegmentAllocation;
use netram_store::{JournalLayout, Store, StoreSettings};
use netram_transport::ClusterKey;

use super::PlantedHarm;
use super::lenders::StressLenders;
use super::model::{SplitMix64, StressPlan, ThreadArea};
use super::player::{HEAP_SEGMENT, WINDOW_BYTES, segment_path};
use super::player_message::ThreadProgress;
use super::report::StressReport;
use super::stress_run::{LOG_BYTES_MIN, StressRun};
use super::thread_blocks::ThreadBlocks;

/// Number of copies of an acknowledged commit, if there are as many lenders.
const MEMBERS: usize = 2;
/// Bytes of the heap for each thread: several times what its blocks can take, so that there is always room.
const HEAP_BYTES: usize = 1024 * 1024;

/// Lenders of a stress run.
pub(super) enum LenderChoice {
    /// This many lenders of the run's own.
    Own(usize),
    /// Lenders of another user, which are not killed.
    Others {
        addresses: Vec<String>,
        key_file: Option<PathBuf>,
    },
}

impl StressRun {
    /// Creates three segments and a heap in a new directory below `parent`, and starts lenders.
    pub(super) fn prepare(
        parent: &Path,
        seed: u64,
        threads: usize,
        lending: LenderChoice,
        harm: Option<PlantedHarm>,
    ) -> Result<StressRun> {
        let place = tempfile::Builder::new().prefix("netram-bash-").tempdir_in(parent);
        let place = place.with_context(|| format!("making a directory in {}", parent.display()))?;
        let (program, mut random) = (this_program()?, SplitMix64(seed));
        let own_key = place.path().join("cluster.key");
        ClusterKey::generate().save_new(&own_key)?;
        let (count, others, key_file) = match lending {
            LenderChoice::Own(count) => (count, None, Some(own_key.clone())),
            LenderChoice::Others { addresses, key_file } => (0, Some(addresses), key_file),
        };
        let lenders = StressLenders::start(&program, place.path(), &own_key, count)?;
        let addresses = others.unwrap_or_else(|| lenders.addresses());
        let members = MEMBERS.min(addresses.len());
        let plan = StressPlan { seed, threads };
        let layout = match random.once_in(2) {
            true => JournalLayout::Directory,
            false => JournalLayout::Beside,
        };
        let home = Store::create(
            &place.path().join("log"),
            layout,
            LOG_BYTES_MIN << random.below(4),
        )?;
        let opened = home.open(&StoreSettings::default())?;
        for segment in 0..=HEAP_SEGMENT {
            let path = segment_path(place.path(), segment);
            let path = path.to_str().context("the directory's name is not UTF-8")?;
            let allocation = match random.once_in(3) {
                true => SegmentAllocation::Sparse,
                false => SegmentAllocation::Preallocated,
            };
            let bytes = match segment {
                HEAP_SEGMENT => threads * HEAP_BYTES,
                segment => plan.segment_bytes(segment),
            };
            opened.memory.create_segment(path, bytes as u64, allocation)?;
            let region = opened.memory.map(path, 0, 0)?;
            if segment == HEAP_SEGMENT {
                ThreadBlocks::build(&opened.memory, &Heap::format(&opened.memory, region)?, threads)?;
            }
        }
        drop(opened);
        if !addresses.is_empty() {
            let text = settings_text(&addresses, members, key_file.as_deref());
            fs::write(home.settings_file(), text)?;
        }
        Ok(StressRun {
            members,
            progress: Arc::new(Mutex::new(ThreadProgress::new(threads))),
            model: (0..threads).map(ThreadArea::new).collect(),
            report: StressReport::default(),
            recent_events: VecDeque::new(),
            began: Instant::now(),
            directory: place,
            program,
            plan,
            random,
            lenders,
            addresses,
            key_file,
            harm,
        })
    }
}

/// Text of the settings file beside a log, which `netram rvm grow` reads.
fn settings_text(lenders: &[String], members: usize, key_file: Option<&Path>) -> String {
    let key = match key_file {
        Some(path) => format!("key-file = {:?}", path.display().to_string()),
        None => "insecure = true".to_owned(),
    };
    format!(
        "[journal]\nlenders = {lenders:?}\nmembers = {members}\n{key}\none-domain = true\nwindow = {WINDOW_BYTES}\n"
    )
}
