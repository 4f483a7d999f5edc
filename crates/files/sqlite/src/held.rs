//! A database that netram holds, as somebody sees it who does not have it open: looking, recovering, giving
//! back.

use netram_journal::over::{Deleting, List, PATIENCE, Untold, Windows};
use netram_proto::failure::CallError;
use netram_sqlite_machine::{Beneath, Recovered, Role};

use crate::database::{OpenError, Shared, at, config, recover_all, settings};
use crate::disk::{Disk, Lock, try_lock};
use crate::place::{Place, PlaceError};

/// Whoever has the database open, and nobody else.
fn alone(place: &Place) -> Result<Lock, OpenError> {
    let path = place.open();
    let lock = try_lock(&path).map_err(at(path))?;
    lock.ok_or_else(|| OpenError::InUse {
        path: place.path().to_path_buf(),
    })
}

/// Brings what the journals have into a database that nobody has open, whatever the machine's memory has.
/// `accept_loss`: although it may not be all that was committed.
pub fn recover_database(place: &Place, accept_loss: bool) -> Result<Recovered, OpenError> {
    place.check_held()?;
    let _alone = alone(place)?;
    let config = config(place, accept_loss)?;
    let disk = Disk::at(place).map_err(at(place.file(Role::Main)))?;
    recover_all(place, &disk, &Shared::of(place)?, &config)
}

/// Gives a database back that nobody has open: all of it is in the file, where it was.
///
/// Its lenders are told; returns those that were away, and will be told later.
pub fn release(place: &Place, accept_loss: bool) -> Result<Vec<Untold>, OpenError> {
    let deleting = || {
        let settings = settings(place).unwrap_or_default();
        let seats = place.seats();
        let seats: Vec<_> = seats.iter().map(|seat| netram_journal::Place::at(seat)).collect();
        let key = settings.key_file.as_deref();
        // The database's file has everything by now.
        let windows = Windows::All;
        Deleting::begin(
            List::usual(),
            place.path(),
            &seats,
            windows,
            &settings.lenders,
            key,
        )
    };
    let done =
        |deleting: Option<Deleting>| deleting.map_or_else(Vec::new, |deleting| deleting.done(PATIENCE));
    match place.check_held() {
        Err(PlaceError::Free { .. }) if place.is_half_given_back() => {
            let deleting = deleting();
            place.give_back()?;
            return Ok(done(deleting));
        }
        held => held?,
    }
    let lock = alone(place)?;
    let disk = Disk::at(place).map_err(at(place.file(Role::Main)))?;
    let shared = Shared::of(place)?;
    if shared.counts() {
        // The machine's memory has all of it. What a sync that fails leaves there, whoever tries again must
        // not believe.
        let lost = |error: &CallError| {
            if error.is_final() {
                shared.ledger.fail();
            }
        };
        disk.sync().inspect_err(lost).map_err(|error| OpenError::Party {
            path: place.path().to_path_buf(),
            source: error.into(),
        })?;
    } else {
        recover_all(place, &disk, &shared, &config(place, accept_loss)?)?;
    }
    let deleting = deleting();
    place.give_back()?;
    drop(lock);
    Ok(done(deleting))
}

/// How a database stands that netram holds, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// A process has it open.
    pub open: bool,
    /// The machine's memory was lost since it was written: whoever opens it next recovers it.
    pub to_recover: bool,
    /// Journals that there are.
    pub seats: usize,
    /// Of them, those that processes have.
    pub taken: usize,
}

/// Looks at a database that netram holds, and changes nothing.
pub fn look(place: &Place) -> Result<Look, OpenError> {
    place.check_held()?;
    let open = try_lock(&place.open()).map_err(at(place.open()))?.is_none();
    let shared = Shared::of(place)?;
    let seats = place.seats();
    let taken = { seats.iter() }
        .map(|seat| netram_journal::Place::at(seat).is_locked())
        .filter(|locked| matches!(locked, Ok(true)))
        .count();
    Ok(Look {
        open,
        to_recover: !shared.counts(),
        seats: seats.len(),
        taken,
    })
}
