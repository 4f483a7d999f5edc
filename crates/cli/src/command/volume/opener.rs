//! A volume that another process has open is asked of that process; any other is opened here.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use netram_volume::control::{VolumeFrontend, VolumeReply, VolumeRequest};
use netram_volume::{TaskProgress, Volume, VolumeControl, VolumePaths, ask};

use super::refuse_attached;
use crate::output;

/// What whoever has `volume` open answers. `None`: nobody listens, and it can be opened here.
pub(super) fn ask_opener(volume: &Path, what: &VolumeRequest) -> Result<Option<VolumeReply>> {
    let bar = VolumeProgress::default();
    let told = ask(&VolumePaths::at(volume), what, &mut |progress| bar.show(progress))?;
    bar.end();
    if told.is_none() {
        // Of an attached one somebody is told how to get it.
        refuse_attached(volume)?;
    }
    Ok(told)
}

/// A bar for whoever watches, once there is progress.
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

/// An answer to another question: the process there is of another release.
pub(super) fn unexpected_reply(told: &VolumeReply) -> anyhow::Error {
    anyhow::anyhow!("the process that has the volume open answered something else: {told:?}")
}

/// Lets other processes operate an open volume. Where that cannot be it is open all the same.
pub(super) fn start_control(
    volume: &Arc<Volume>,
    front: impl Fn() -> Option<VolumeFrontend> + Send + Sync + 'static,
) -> Option<VolumeControl> {
    let started = VolumeControl::start(Arc::clone(volume), front);
    let failed = |error: &std::io::Error| {
        tracing::warn!(%error, "other commands cannot look into the open volume or change it");
    };
    started.inspect_err(failed).ok()
}
