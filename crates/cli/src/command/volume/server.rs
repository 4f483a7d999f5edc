//! The process that has an attached volume open; only `netram volume attach` starts it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::opener::start_control;
use super::serve::{STOPPING, notify};
use crate::notify::StopPatience;
use crate::options::DurationArg;
use crate::ups::UpsArgs;
use anyhow::{Result, anyhow};
use netram_attach::{AttachMethod, AttachServeError, serve, serve_nbd, serve_ublk};
use netram_volume::{BlockDevice, Volume, VolumeOpenError, VolumePaths};
use serde::{Deserialize, Serialize};

/// The part that this process plays, as JSON on its command line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeServerPart {
    serve_volume: PathBuf,
    way: AttachMethod,
    read_only: bool,
    /// How long opening waits for lenders; `None`: as in the settings.
    patience: Option<Duration>,
    #[serde(default)]
    ups: UpsArgs,
}

impl VolumeServerPart {
    pub(super) fn of(
        volume: PathBuf,
        way: AttachMethod,
        read_only: bool,
        patience: Option<DurationArg>,
        ups: UpsArgs,
    ) -> VolumeServerPart {
        VolumeServerPart {
            serve_volume: volume,
            way,
            read_only,
            patience: patience.map(|time| time.0),
            ups,
        }
    }

    pub(super) fn role(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// Serves the volume until its device is gone, and closes it.
    pub(crate) fn run(&self) -> Result<()> {
        serve_volume(
            &self.serve_volume,
            (self.patience, &self.ups),
            Notices::None,
            |open| match self.way {
                AttachMethod::Nbd => serve_nbd(self.read_only, open),
                AttachMethod::Fuse => serve(open),
                AttachMethod::Ublk => serve_ublk(open),
            },
        )
    }
}

/// Opening of a volume's device, at the moment that the supervisor chooses.
pub(super) type DeviceOpener<'a> = Box<dyn FnOnce() -> Result<Arc<dyn BlockDevice>, VolumeOpenError> + 'a>;

/// Whether a server tells the service manager of itself: if it is a service, and no supervisor's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notices {
    None,
    Send,
}

/// Lets `serve` serve the volume until its device is gone, and closes it.
pub(super) fn serve_volume(
    volume: &Path,
    (patience, ups): (Option<Duration>, &UpsArgs),
    notices: Notices,
    serve: impl FnOnce(DeviceOpener<'_>) -> Result<(), AttachServeError>,
) -> Result<()> {
    let ups = ups.source()?;
    let mut opened = None;
    let open = || {
        if let Err(error) = netram_process::hide_memory() {
            tracing::warn!(%error, "cannot leave this process, which gets the volume's key, out of core dumps");
        }
        let mut settings = VolumePaths::at(volume).settings()?;
        settings.journal.patience = patience.or(settings.journal.patience);
        let (volume, _) = Volume::open_with(volume, &settings)?;
        let volume = Arc::new(volume);
        let control = start_control(&volume, || None);
        if let Some(ups) = &ups
            && let Err(error) = volume.journal().watch_ups(ups)
        {
            tracing::error!(%error, "no UPS is watched");
        }
        let notifier = (notices == Notices::Send).then(|| notify(&volume));
        opened = Some((Arc::clone(&volume), control, notifier));
        Ok::<Arc<dyn BlockDevice>, VolumeOpenError>(volume)
    };
    let served = serve(Box::new(open));
    // Even if the device failed, what was written is brought to the disk.
    let closed = opened.map_or(Ok(()), |(volume, control, notifier)| {
        if let Some(notifier) = &notifier {
            notifier.stopping(STOPPING, StopPatience::Extend);
        }
        drop(control);
        match Arc::into_inner(volume) {
            Some(volume) => volume.close().map_err(anyhow::Error::new),
            None => Err(anyhow!(
                "a thread still has the volume; the next opening recovers it"
            )),
        }
    });
    served?;
    closed
}
