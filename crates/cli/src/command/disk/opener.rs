//! A volume that another process has open is asked of that process; any other is opened here.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use netram_volume::control::{Ask, Front, Told};
use netram_volume::{Control, Place, Progress, Volume, ask};

use super::refuse_attached;
use crate::output;

/// What whoever has `volume` open answers. `None`: nobody listens, and it can be opened here.
pub(super) fn ask_opener(volume: &Path, what: &Ask) -> Result<Option<Told>> {
    let bar = Bar::default();
    let told = ask(&Place::at(volume), what, &mut |progress| bar.show(progress))?;
    bar.end();
    if told.is_none() {
        // Of an attached one somebody is told how to get it.
        refuse_attached(volume)?;
    }
    Ok(told)
}

/// A bar for whoever watches, once there is progress.
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Default for Bar {
    fn default() -> Bar {
        let bar = match output::is_watched() {
            true => ProgressBar::no_length(),
            false => ProgressBar::hidden(),
        };
        let style =
            ProgressStyle::with_template("{bar:40.green} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}");
        Bar {
            bar: match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            },
        }
    }
}

impl Bar {
    pub(super) fn show(&self, progress: Progress) {
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.done);
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// An answer to another question: the process there is of another release.
pub(super) fn odd(told: &Told) -> anyhow::Error {
    anyhow::anyhow!("the process that has the volume open answered something else: {told:?}")
}

/// Lets other processes operate an open volume. Where that cannot be it is open all the same.
pub(super) fn start_control(
    volume: &Arc<Volume>,
    front: impl Fn() -> Option<Front> + Send + Sync + 'static,
) -> Option<Control> {
    let started = Control::start(Arc::clone(volume), front);
    let failed = |error: &std::io::Error| {
        tracing::warn!(%error, "other commands cannot look into the open volume or change it");
    };
    started.inspect_err(failed).ok()
}
