//! Comparison of recovered memory with the model: from inside, as the next player finds it, and from outside.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::blocks::SLOTS;
use super::model::{AREAS, StressPlan, ThreadArea};
use super::player::{HEAP_SEGMENT, segment_path};
use netram_cli::command::rvm::check::damage_of;
use netram_cli::command::rvm::inspection::LogInspection;

/// One thread's area in each segment.
pub(super) type Images<'b> = [&'b [u8]; AREAS.len()];

/// Checks that every byte of `found` is what the model's transactions left. `what` names `found` in the
/// error.
pub(super) fn with_model(what: &str, model: &[ThreadArea], found: &[Images<'_>]) -> Result<()> {
    for (thread, (area, images)) in model.iter().zip(found).enumerate() {
        if let Some((segment, at)) = area.difference(images) {
            let byte = thread * AREAS[segment] + at;
            bail!(
                "{what}: byte {byte} of segment {segment} (thread {thread}'s byte {at}) is not what its {} transactions \
                     left",
                area.count
            );
        }
    }
    Ok(())
}

/// Checks that every block of the heap is what the model's transactions left.
pub(super) fn blocks_with_model(model: &[ThreadArea], found: &[Vec<Vec<u8>>]) -> Result<()> {
    for (thread, (area, slots)) in model.iter().zip(found).enumerate() {
        if let Some(slot) = (0..SLOTS).find(|&slot| area.blocks[slot] != slots[slot]) {
            let (has, must) = (slots[slot].len(), area.blocks[slot].len());
            bail!(
                "the heap: thread {thread}'s block {slot} of {has} bytes is not what its {} transactions left, which has \
                 {must}",
                area.count
            );
        }
    }
    Ok(())
}

/// Checks that the heap in `bytes` is consistent and has exactly the model's blocks and their directories.
fn heap_with_model(model: &[ThreadArea], bytes: &[u8]) -> Result<()> {
    let report = netram_heap::inspect(bytes).context("the heap, from outside")?;
    let blocks = model.iter().flat_map(|area| &area.blocks);
    let expected = model.len() + blocks.filter(|block| !block.is_empty()).count();
    ensure!(
        report.blocks.len() == expected,
        "the heap has {} blocks; {expected} were made and not freed",
        report.blocks.len()
    );
    ensure!(
        report.loose_roots.is_empty(),
        "roots of the heap name no block: {:?}",
        report.loose_roots
    );
    Ok(())
}

/// Checks that `netram rvm dump` and `netram rvm check` see the same memory in `directory`, and no error.
pub(super) fn from_outside(directory: &Path, plan: &StressPlan, model: &[ThreadArea]) -> Result<()> {
    let look = LogInspection::at(&directory.join("log"))?;
    let damage = damage_of(&look);
    ensure!(damage.is_empty(), "after a recovery: {}", damage.join("; "));
    let mut segments = Vec::new();
    for segment in 0..=HEAP_SEGMENT {
        let path = segment_path(directory, segment);
        let known = look.segment(path.to_str().context("the directory's name is not UTF-8")?)?;
        let file = known.open()?;
        let mut bytes = vec![0; usize::try_from(file.len())?];
        file.read_at(0, &mut bytes)?;
        look.overlay(&known)?.0.apply(0, &mut bytes);
        segments.push(bytes);
    }
    heap_with_model(model, &segments[HEAP_SEGMENT])?;
    let area =
        |segment: usize, thread: usize| &segments[segment][thread * AREAS[segment]..][..AREAS[segment]];
    let found: Vec<Images<'_>> = (0..plan.threads)
        .map(|thread| [area(0, thread), area(1, thread), area(2, thread)])
        .collect();
    with_model("the files from outside", model, &found)
}

/// Splits a judge's image into each thread's area in each segment.
pub(super) fn split<'b>(plan: &StressPlan, bytes: &'b [u8]) -> Result<Vec<Images<'b>>> {
    let whole: usize = AREAS.iter().sum();
    ensure!(
        bytes.len() == whole * plan.threads,
        "the recovered memory has {} bytes, not {}",
        bytes.len(),
        whole * plan.threads
    );
    let areas = bytes.chunks_exact(whole).map(|area| {
        let (first, rest) = area.split_at(AREAS[0]);
        let (second, third) = rest.split_at(AREAS[1]);
        [first, second, third]
    });
    Ok(areas.collect())
}
