//! Recovered memory against what it must be: inside, as a player's successor finds it, and from outside.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::model::{AREAS, Area, Plan};
use super::player::segment_path;
use crate::command::rvm::check::damage_of;
use crate::command::rvm::look::Look;

/// One thread's part of each segment.
pub(super) type Images<'b> = [&'b [u8]; AREAS.len()];

/// Whether every byte of `found` is what the model's transactions left; `what` names it when one is not.
pub(super) fn with_model(what: &str, model: &[Area], found: &[Images<'_>]) -> Result<()> {
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

/// Whether what `netram rvm dump` and `netram rvm check` see in `folder` is the same, and sound.
pub(super) fn from_outside(folder: &Path, plan: &Plan, model: &[Area]) -> Result<()> {
    let look = Look::at(&folder.join("log"))?;
    let damage = damage_of(&look);
    ensure!(damage.is_empty(), "after a recovery: {}", damage.join("; "));
    let mut segments = Vec::new();
    for segment in 0..AREAS.len() {
        let path = segment_path(folder, segment);
        let known = look.segment(path.to_str().context("the folder's name is not UTF-8")?)?;
        let mut bytes = vec![0; plan.segment_bytes(segment)];
        known.open()?.read_at(0, &mut bytes)?;
        look.overlay(&known)?.apply(0, &mut bytes);
        segments.push(bytes);
    }
    let area =
        |segment: usize, thread: usize| &segments[segment][thread * AREAS[segment]..][..AREAS[segment]];
    let found: Vec<Images<'_>> = (0..plan.threads)
        .map(|thread| [area(0, thread), area(1, thread), area(2, thread)])
        .collect();
    with_model("the files from outside", model, &found)
}

/// A judge's image as each thread's part of each segment.
pub(super) fn split<'b>(plan: &Plan, bytes: &'b [u8]) -> Result<Vec<Images<'b>>> {
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
