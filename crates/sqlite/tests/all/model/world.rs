//! A disk, journals, and a power line that may fail.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use netram_proto::id::{Epoch, Lsn};
use netram_proto::port::{
    AppendError, Durability, IoError, Kind, Log, LogError, LogState, Record, Ticket, Votes, WaitError,
};
use netram_sqlite::{Beneath, Role};

/// Bytes of a file, at most.
pub(super) const SIZE: usize = 48;
pub(super) const PROCESSES: usize = 3;
pub(super) const SEATS: usize = 2;
pub(super) const RECORD_BYTES: u64 = 8;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// A file: which one, for a name may be of another one later, and its bytes.
pub(super) type File = Option<(u64, Vec<u8>)>;

/// What a byte of a file is; `None`: the file ends before.
pub(super) fn byte(file: &File, at: usize) -> Option<u8> {
    file.as_ref().and_then(|(_, bytes)| bytes.get(at)).copied()
}

pub(super) type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct World {
    /// What processes see.
    pub(super) cache: [File; 3],
    pub(super) platter: [File; 3],
    pub(super) start: u64,
    pub(super) files: u64,
    pub(super) alone: bool,
    pub(super) alive: [bool; PROCESSES],
    /// Steps until the process is killed.
    pub(super) left: [Option<u32>; PROCESSES],
    /// What another one does in the middle of what is done, after so many steps.
    pub(super) hook: Option<(u32, Hook)>,
    /// What another thread of this process does while a record is waited for.
    pub(super) waiting: Option<(usize, Hook)>,
    /// Each file as it was after each thing that was done to it.
    pub(super) story: [Vec<File>; 3],
    /// Which of them must be there, or a later one.
    pub(super) synced: [usize; 3],
    pub(super) logs: [Inside; SEATS],
    pub(super) recovers: bool,
    pub(super) sync_fails: bool,
    /// The ledger's words.
    pub(super) words: Option<Arc<[AtomicU64]>>,
}

#[derive(Clone, Default)]
pub(super) struct Inside {
    pub(super) records: Vec<(Lsn, Kind, Vec<u8>)>,
    pub(super) head: Lsn,
    pub(super) tail: Lsn,
    pub(super) waited: Lsn,
}

pub(super) type Shared = Arc<Mutex<World>>;

pub(super) const KILLED: IoError = IoError::EIO;

/// A step of a process: whether it is still alive for it.
pub(super) fn step(world: &Shared, process: usize) -> Result<(), IoError> {
    let hook = {
        let mut world = world.lock().unwrap();
        if let Some(left) = &mut world.left[process] {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => {
                    world.alive[process] = false;
                    return Err(KILLED);
                }
            }
        }
        match &mut world.hook {
            Some((0, _)) => world.hook.take(),
            Some((steps, _)) => {
                *steps -= 1;
                None
            }
            None => None,
        }
    };
    if let Some((_, hook)) = hook {
        hook();
    }
    Ok(())
}

impl World {
    pub(super) fn tell(&mut self, role: Role) {
        // What recovery does is no part of it.
        if !self.recovers {
            let now = self.cache[role as usize].clone();
            self.story[role as usize].push(now);
        }
    }

    /// Whoever is killed in a sync does not say that it failed.
    pub(super) fn the_dead_are_silent(&self) {
        if !self.sync_fails
            && let Some(words) = &self.words
        {
            words[2].store(0, Ordering::SeqCst);
        }
    }

    pub(super) fn write(&mut self, role: Role, offset: usize, bytes: &[u8]) {
        self.files += 1;
        let new = self.files;
        let (_, there) = self.cache[role as usize].get_or_insert((new, Vec::new()));
        there.resize(there.len().max(offset + bytes.len()), 0);
        there[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.tell(role);
    }

    pub(super) fn resize(&mut self, role: Role, size: usize) {
        self.files += 1;
        let new = self.files;
        let (_, there) = self.cache[role as usize].get_or_insert((new, Vec::new()));
        there.resize(size, 0);
        self.tell(role);
    }

    pub(super) fn remove(&mut self, role: Role) {
        self.cache[role as usize] = None;
        self.tell(role);
    }

    /// The platter after a loss of power: what was synced, and any part of the rest.
    pub(super) fn lose_power(&mut self, random: &mut Random) {
        for role in Role::ALL {
            let (new, old) = (&self.cache[role as usize], &self.platter[role as usize]);
            let left = match (old, new) {
                (Some((was, old)), Some((is, new))) if was == is => {
                    let size = [old.len(), new.len()][random.below(2)];
                    let bytes = (0..size).map(|at| {
                        let either = [old.get(at), new.get(at)];
                        either[random.below(2)]
                            .or(either[0])
                            .or(either[1])
                            .copied()
                            .unwrap()
                    });
                    Some((*is, bytes.collect()))
                }
                (old, None) => [old.clone(), None][random.below(2)].clone(),
                (old, Some((is, new))) => {
                    let bytes = new.iter().map(|byte| [0, *byte][random.below(2)]);
                    let partly = Some((*is, bytes.collect::<Vec<u8>>()));
                    [old.clone(), partly][random.below(2)].clone()
                }
            };
            self.cache[role as usize].clone_from(&left);
            self.platter[role as usize] = left;
        }
        for log in &mut self.logs {
            let held = { log.records.iter() }
                .filter(|(lsn, ..)| *lsn < log.waited)
                .count();
            let rest = log.records.len() - held;
            log.records.truncate(held + random.below(rest + 1));
            log.end();
        }
    }
}

impl Inside {
    /// As it is after its recovery.
    pub(super) fn end(&mut self) {
        let end = |(lsn, _, payload): &(Lsn, Kind, Vec<u8>)| Lsn(lsn.0 + RECORD_BYTES + payload.len() as u64);
        self.tail = self.records.last().map_or(self.head, end).max(self.head);
        self.waited = self.tail;
    }
}

pub(super) struct Disk {
    pub(super) world: Shared,
    pub(super) process: usize,
}

pub(super) struct Alone(pub(super) Shared);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.lock().unwrap().alone = false;
    }
}

impl Beneath for Disk {
    type Alone = Alone;
    type Held = ();

    fn alone(&self) -> Result<Alone, IoError> {
        let mut world = self.world.lock().unwrap();
        // Another one settles, in the middle of which this is: whoever would wait for it here would wait forever.
        if world.alone {
            return Err(KILLED);
        }
        world.alone = true;
        Ok(Alone(Arc::clone(&self.world)))
    }

    fn dead(&self, slot: usize) -> Option<()> {
        let world = self.world.lock().unwrap();
        (!world.alive[slot]).then_some(())
    }

    fn sync(&self) -> Result<(), IoError> {
        step(&self.world, self.process)?;
        if self.world.lock().unwrap().sync_fails {
            return Err(IoError::EIO);
        }
        {
            let mut world = self.world.lock().unwrap();
            world.platter = world.cache.clone();
        }
        step(&self.world, self.process)
    }

    fn start(&self) -> Result<u64, IoError> {
        Ok(self.world.lock().unwrap().start)
    }

    fn set_start(&self, start: u64) -> Result<(), IoError> {
        step(&self.world, self.process)?;
        self.world.lock().unwrap().start = start;
        step(&self.world, self.process)
    }

    fn exists(&self, role: Role) -> Result<bool, IoError> {
        Ok(self.world.lock().unwrap().cache[role as usize].is_some())
    }

    fn write(&self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.world.lock().unwrap().write(role, offset as usize, bytes);
        Ok(())
    }

    fn resize(&self, role: Role, size: u64) -> Result<(), IoError> {
        self.world.lock().unwrap().resize(role, size as usize);
        Ok(())
    }

    fn remove(&self, role: Role) -> Result<(), IoError> {
        self.world.lock().unwrap().remove(role);
        Ok(())
    }
}

pub(super) struct Journal {
    pub(super) world: Shared,
    pub(super) process: usize,
    pub(super) seat: usize,
}

impl Log for Journal {
    fn append(
        &self,
        kind: Kind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Ticket, AppendError> {
        step(&self.world, self.process).map_err(|_| AppendError::Closed)?;
        let mut payload = vec![0; length];
        fill(&mut payload);
        let mut world = self.world.lock().unwrap();
        let log = &mut world.logs[self.seat];
        let (used, capacity) = (log.tail.0 - log.head.0, self.capacity());
        if used + RECORD_BYTES + length as u64 > capacity {
            return Err(AppendError::Full { used, capacity });
        }
        let lsn = log.tail;
        log.tail = Lsn(lsn.0 + RECORD_BYTES + length as u64);
        log.records.push((lsn, kind, payload));
        Ok(Ticket { lsn, end: log.tail })
    }

    fn wait(&self, ticket: Ticket, _: Durability) -> Result<Votes, WaitError> {
        step(&self.world, self.process).map_err(|_| WaitError::Closed)?;
        {
            let mut world = self.world.lock().unwrap();
            let log = &mut world.logs[self.seat];
            assert!(ticket.end <= log.tail);
            log.waited = log.waited.max(ticket.end);
        }
        let of_this = |(process, _): &mut (usize, Hook)| *process == self.process;
        let waiting = self.world.lock().unwrap().waiting.take_if(of_this);
        if let Some((_, hook)) = waiting {
            hook();
        }
        step(&self.world, self.process).map_err(|_| WaitError::Closed)?;
        Ok(Votes::default())
    }

    fn state(&self) -> LogState {
        let world = self.world.lock().unwrap();
        let log = &world.logs[self.seat];
        LogState {
            head: log.head,
            stable: log.waited,
            acked: log.waited,
            tail: log.tail,
            capacity: self.capacity(),
            payload_max: 17 + 10,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let log = self.world.lock().unwrap().logs[self.seat].clone();
        for (lsn, kind, payload) in log.records.iter().filter(|(lsn, ..)| *lsn >= from) {
            let record = Record {
                lsn: *lsn,
                next: Lsn(lsn.0 + RECORD_BYTES + payload.len() as u64),
                epoch: Epoch(1),
                kind: *kind,
                payload,
            };
            if !each(record) {
                return Ok(*lsn);
            }
        }
        Ok(log.tail)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        step(&self.world, self.process).map_err(|_| LogError::Closed)?;
        let mut world = self.world.lock().unwrap();
        let log = &mut world.logs[self.seat];
        assert!(log.head <= head && head <= log.waited);
        log.head = head;
        log.records.retain(|(lsn, ..)| *lsn >= head);
        Ok(())
    }
}

impl Journal {
    pub(super) fn capacity(&self) -> u64 {
        400
    }
}
