//! The UPS that feeds this machine: on battery a journal's commits wait for the disk.

use std::io;
use std::sync::{Mutex, PoisonError};

use netram_ups::{PowerState, PowerStatus, UpsMonitor, UpsSource};

use crate::disk_demand::DiskDemand;
use crate::journal::Journal;

/// The UPS that an open journal watches, if it watches one.
#[derive(Debug, Default)]
pub(crate) struct JournalUps(Mutex<Option<(UpsSource, UpsMonitor)>>);

impl JournalUps {
    /// Watches `source` in place of another UPS. If it is watched already, it goes on.
    pub(crate) fn watch(&self, source: &UpsSource, demand: DiskDemand) -> io::Result<()> {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.as_ref().is_some_and(|(now, _)| now.is_same(source)) {
            return Ok(());
        }
        // Two logins of one machine would count twice.
        *watched = None;
        let name = source.name.to_string();
        let monitor = source
            .clone()
            .watch(move |status| on_power(&name, status, &demand))?;
        *watched = Some((source.clone(), monitor));
        Ok(())
    }

    /// Logs out and watches no more.
    pub(crate) fn stop(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Journal {
    /// Watches a UPS until the journal is closed, in place of the one in its settings: while this machine is
    /// on battery, commits wait for the disk whatever their durability (see [`DiskDemand`]). One that is
    /// watched already goes on.
    ///
    /// # Errors
    ///
    /// No thread or descriptor is left.
    pub fn watch_ups(&self, source: &UpsSource) -> io::Result<()> {
        self.ups.watch(source, self.disk_demand())
    }
}

fn on_power(ups: &str, status: &PowerStatus, demand: &DiskDemand) {
    let why = status.reason.as_ref().map(tracing::field::display);
    match status.state {
        PowerState::Mains => {
            tracing::info!(ups, why, "this machine is on the mains");
            demand.set(false);
        }
        PowerState::OnBattery | PowerState::LowBattery => {
            tracing::warn!(ups, why, state = %status.state, "this machine is on battery: what is acknowledged is on the disk");
            demand.set(true);
        }
        // What held before goes on.
        PowerState::Unknown => tracing::warn!(ups, why, "not known whether this machine is on battery"),
    }
}
