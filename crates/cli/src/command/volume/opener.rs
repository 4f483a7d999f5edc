//! Working on a volume through the process that has it open, or else by opening it here.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use netram_volume::control::{VolumeFrontend, VolumeReply, VolumeRequest};
use netram_volume::{TaskProgress, Volume, VolumeControl, VolumePaths, ask};

use super::refuse_attached;
use crate::output;

/// Returns the answer of the process that has `volume` open; `None` if none has, and it can be opened here.
pub(super) fn ask_opener(volume: &Path, what: &VolumeRequest) -> Result<Option<VolumeReply>> {
    let bar = VolumeProgress::default();
    let told = ask(&VolumePaths::at(volume), what, &mut |progress| bar.show(progress))?;
    bar.end();
    if told.is_none() {
        // An attached volume is refused with the way to detach it.
        refuse_attached(volume)?;
    }
    Ok(told)
}

/// A progress bar on a terminal.
pub(crate) struct VolumeProgress {
    bar: ProgressBar,
}

impl Default for VolumeProgress {
    fn default() -> VolumeProgress {
        let bar = match output::is_watched() {
            true => ProgressBar::no_length(),
            false => ProgressBar::hidden(),
        };
        let style =
            ProgressStyle::with_template("{bar:40.green} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}");
        VolumeProgress {
            bar: match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            },
        }
    }
}

impl VolumeProgress {
    pub(super) fn show(&self, progress: TaskProgress) {
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.done);
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the error for an answer that does not fit the question, as from a process of another release.
pub(super) fn unexpected_reply(told: &VolumeReply) -> anyhow::Error {
    anyhow::anyhow!(
        "the process that has the volume open gave an unexpected answer; is it of this release? {told:?}"
    )
}

/// Lets other commands ask this process about an open volume. If that fails, the volume is open all the same.
pub(super) fn start_control(
    volume: &Arc<Volume>,
    front: impl Fn() -> Option<VolumeFrontend> + Send + Sync + 'static,
) -> Option<VolumeControl> {
    let started = VolumeControl::start(Arc::clone(volume), front);
    let failed = |error: &std::io::Error| {
        tracing::warn!(%error, "other commands cannot inspect or change the open volume");
    };
    started.inspect_err(failed).ok()
}
