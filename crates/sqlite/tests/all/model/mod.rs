//! Several processes write the files of one database, sync them, are killed in the middle of it; now and then the machine loses its power. Whatever was
//! synced is there afterwards.
//!
//! The disk keeps what was synced, and of the rest any part. The processes' journals keep what was waited for, and of the rest as much as chance wants. A
//! process may be killed at any step of disk or journal, and while it is in the middle of one, others do something.
//!
//! `NETRAM_SEEDS=200000 cargo test --release -p netram-sqlite --test all model::` for a long look.

mod world;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use netram_proto::port::{Durability, IoError, Log};
use netram_sqlite::{Contents, Ledger, Party, Role, WORDS, recover};

use crate::model::world::{Disk, Hook, Journal, PROCESSES, Random, SEATS, SIZE, Shared, World, byte, step};

type Member = Arc<Party<Journal, Disk>>;

struct Model {
    world: Shared,
    words: Arc<[AtomicU64]>,
    members: [Option<Member>; PROCESSES],
    seats: [Option<usize>; SEATS],
    random: Random,
    crashes: u32,
    replayed: u64,
}

/// Something that a process does to a file.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Write(Role, usize, usize, u8),
    Resize(Role, usize),
    Remove(Role),
    Sync(Role),
    Checkpoint,
}

fn act(world: &Shared, process: usize, act: impl FnOnce(&mut World)) -> Result<(), IoError> {
    step(world, process)?;
    act(&mut world.lock().unwrap());
    step(world, process)
}

/// An error of the model's own, in the place of SQLite's.
#[derive(Debug)]
struct Failed;

impl From<netram_sqlite::PartyError> for Failed {
    fn from(_: netram_sqlite::PartyError) -> Failed {
        Failed
    }
}

/// A file as it is now.
struct Now {
    world: Shared,
    process: usize,
    role: Role,
}

impl Now {
    fn bytes(&self) -> Result<Vec<u8>, IoError> {
        step(&self.world, self.process)?;
        let file = self.world.lock().unwrap().cache[self.role as usize].clone();
        step(&self.world, self.process)?;
        Ok(file.map_or(Vec::new(), |(_, bytes)| bytes))
    }
}

impl Contents for Now {
    fn size(&mut self) -> Result<u64, IoError> {
        Ok(self.bytes()?.len() as u64)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let bytes = self.bytes()?;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

fn do_it(world: &Shared, member: &Member, process: usize, doing: Doing) {
    let now = |role: Role| world.lock().unwrap().story[role as usize].len() - 1;
    let synced = |role: Role, at: usize| {
        let mut world = world.lock().unwrap();
        // Who was killed in the last step has said nothing.
        if world.alive[process] {
            let synced = &mut world.synced[role as usize];
            *synced = (*synced).max(at);
        }
    };
    match doing {
        Doing::Write(role, offset, length, value) => {
            let _ = member.write(role, offset as u64, length as u64, || {
                act(world, process, |world| {
                    world.write(role, offset, &vec![value; length])
                })
            });
        }
        Doing::Resize(role, size) => {
            let _ = member.resize(role, size as u64, || {
                act(world, process, |world| world.resize(role, size))
            });
        }
        Doing::Remove(role) => {
            let mut at = 0;
            let removed = member.remove(role, || {
                step(world, process).map_err(|_| Failed)?;
                world.lock().unwrap().remove(role);
                at = now(role);
                step(world, process).map_err(|_| Failed)
            });
            if removed.is_ok() {
                synced(role, at);
            }
        }
        Doing::Sync(role) => {
            let at = now(role);
            let mut now = Now {
                world: Arc::clone(world),
                process,
                role,
            };
            if member.sync(role, &mut now).is_ok() {
                synced(role, at);
            }
        }
        Doing::Checkpoint => {
            let _ = member.checkpoint();
        }
    }
    if !world.lock().unwrap().alive[process] {
        world.lock().unwrap().the_dead_are_silent();
    }
}

impl Model {
    fn new(seed: u64) -> Model {
        let words: Arc<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let mut world = World::default();
        world.cache[Role::Main as usize] = Some((0, vec![1; 20]));
        world.platter = world.cache.clone();
        world.words = Some(Arc::clone(&words));
        let mut model = Model {
            world: Arc::new(Mutex::new(world)),
            words,
            members: [None, None, None],
            seats: [None; SEATS],
            random: Random(seed),
            crashes: 0,
            replayed: 0,
        };
        model.begin(0);
        model
    }

    fn ledger(&self) -> Ledger {
        Ledger::new(Box::new(Arc::clone(&self.words)))
    }

    /// All is on the disk, and nobody is there.
    fn begin(&mut self, next: u64) {
        self.ledger().begin(1, next);
        let mut world = self.world.lock().unwrap();
        for role in Role::ALL {
            world.story[role as usize] = vec![world.cache[role as usize].clone()];
        }
        world.synced = [0; 3];
    }

    fn disk(&self, process: usize) -> Disk {
        Disk {
            world: Arc::clone(&self.world),
            process,
        }
    }

    fn journal(&self, process: usize, seat: usize) -> Journal {
        Journal {
            world: Arc::clone(&self.world),
            process,
            seat,
        }
    }

    fn join(&mut self, process: usize) {
        {
            let mut world = self.world.lock().unwrap();
            world.alive[process] = true;
            world.left[process] = None;
        }
        let party = Party::join(self.disk(process), self.ledger(), process, Durability::Remote);
        self.members[process] = Some(Arc::new(party.unwrap()));
    }

    /// Takes a journal that nobody has.
    fn sit(&mut self, process: usize) {
        let Some(seat) = self.seats.iter().position(Option::is_none) else {
            return;
        };
        let member = self.members[process].as_ref().unwrap();
        if member.log().is_some() || member.settle().is_err() {
            let world = self.world.lock().unwrap();
            if !world.alive[process] {
                world.the_dead_are_silent();
            }
            return;
        }
        let journal = self.journal(process, seat);
        {
            let mut world = self.world.lock().unwrap();
            // Its recovery found what was waited for, and some more.
            let log = &mut world.logs[seat];
            let held = log.records.iter().filter(|(lsn, ..)| *lsn < log.waited).count();
            log.records
                .truncate(held + self.random.below(log.records.len() - held + 1));
            log.end();
        }
        if journal.trim(journal.state().tail).is_ok() {
            member.adopt(journal);
            self.seats[seat] = Some(process);
        }
    }

    fn bury(&mut self) {
        for process in 0..PROCESSES {
            let alive = self.world.lock().unwrap().alive[process];
            if !alive && self.members[process].take().is_some() {
                for seat in &mut self.seats {
                    *seat = seat.filter(|owner| *owner != process);
                }
            }
        }
    }

    fn doing(&mut self) -> Doing {
        let random = &mut self.random;
        let role = Role::ALL[random.below(3)];
        let offset = random.below(SIZE - 8);
        match random.below(12) {
            0..5 => Doing::Write(role, offset, 1 + random.below(8), 1 + random.below(255) as u8),
            5 => Doing::Resize(role, random.below(SIZE)),
            // The database itself is never removed.
            6 if role != Role::Main => Doing::Remove(role),
            7 => Doing::Checkpoint,
            _ => Doing::Sync(role),
        }
    }

    fn turn(&mut self) {
        let process = self.random.below(PROCESSES);
        let Some(member) = self.members[process].clone() else {
            if self.random.one_in(2) {
                self.join(process);
            }
            return;
        };
        if member.log().is_none() && self.random.one_in(3) {
            self.sit(process);
            return;
        }
        if self.random.one_in(30) {
            let steps = self.random.below(8) as u32;
            self.world.lock().unwrap().left[process] = Some(steps);
        }
        let doing = self.doing();
        // Whoever removes a file has it to himself, by SQLite's locks.
        if !matches!(doing, Doing::Remove(_)) && self.random.one_in(3) {
            let other = (process + 1 + self.random.below(PROCESSES - 1)) % PROCESSES;
            if let Some(member) = self.members[other].clone() {
                let (between, world) = (self.doing(), Arc::clone(&self.world));
                let hook: Hook = Box::new(move || do_it(&world, &member, other, between));
                let steps = self.random.below(6) as u32;
                self.world.lock().unwrap().hook = Some((steps, hook));
            }
        }
        self.have_another_thread_write(process, &member, doing);
        do_it(&self.world, &member, process, doing);
        {
            let mut world = self.world.lock().unwrap();
            (world.hook, world.waiting) = (None, None);
        }
        self.bury();
    }

    /// In the middle of a sync or a checkpoint.
    fn have_another_thread_write(&mut self, process: usize, member: &Member, doing: Doing) {
        let (role, offset) = (Role::ALL[self.random.below(3)], self.random.below(SIZE - 8));
        let role = if let Doing::Sync(role) = doing { role } else { role };
        let between = Doing::Write(
            role,
            offset,
            1 + self.random.below(8),
            1 + self.random.below(255) as u8,
        );
        if !self.random.one_in(3) {
            return;
        }
        let (member, world) = (Arc::clone(member), Arc::clone(&self.world));
        let hook: Hook = Box::new(move || do_it(&world, &member, process, between));
        let steps = self.random.below(4) as u32;
        let mut world = self.world.lock().unwrap();
        match doing {
            Doing::Sync(_) => world.waiting = Some((process, hook)),
            Doing::Checkpoint => world.hook = Some((steps, hook)),
            _ => (),
        }
    }

    fn lose_power(&mut self, seed: u64) {
        self.members = [None, None, None];
        self.seats = [None; SEATS];
        {
            let mut world = self.world.lock().unwrap();
            world.lose_power(&mut self.random);
            world.alive = [false; PROCESSES];
            world.left = [None; PROCESSES];
            world.recovers = true;
        }
        // Cut off in the middle, recovery is done again.
        for attempt in 0.. {
            let steps = (attempt == 0 && self.random.one_in(3)).then(|| self.random.below(4) as u32);
            self.world.lock().unwrap().left[0] = steps;
            let logs: Vec<Journal> = (0..SEATS).map(|seat| self.journal(0, seat)).collect();
            match recover(&logs, &self.disk(0)) {
                Ok(recovered) => {
                    self.replayed += recovered.records;
                    self.check(seed);
                    self.begin(recovered.next);
                    break;
                }
                Err(error) => {
                    assert!(attempt == 0, "seed {seed}: {error}");
                    self.world.lock().unwrap().lose_power(&mut self.random);
                }
            }
        }
        self.crashes += 1;
        self.world.lock().unwrap().recovers = false;
    }

    fn check(&self, seed: u64) {
        let world = self.world.lock().unwrap();
        for role in Role::ALL {
            let story = &world.story[role as usize];
            let synced = world.synced[role as usize];
            let may = |at: usize, found: Option<u8>| {
                let later = &story[synced..];
                later.iter().any(|file| byte(file, at) == found) || (later.len() > 1 && found == Some(0))
            };
            for at in 0..SIZE + 8 {
                let found = byte(&world.cache[role as usize], at);
                assert!(
                    may(at, found),
                    "seed {seed}: byte {at} of {role:?} is {found:?}, synced was {:?}",
                    byte(&story[synced], at)
                );
            }
        }
    }
}

#[test]
fn what_any_process_has_synced_is_there_after_a_loss_of_power() {
    let seeds = std::env::var("NETRAM_SEEDS").map_or(4000, |text| text.parse().unwrap());
    let (mut crashes, mut replayed, mut recorded) = (0, 0, 0);
    for seed in 0..seeds {
        let mut model = Model::new(seed);
        for _ in 0..3 {
            for _ in 0..10 + model.random.below(150) {
                model.turn();
            }
            let members = model.members.iter().flatten();
            recorded += members.map(|member| member.counts().recorded).sum::<u64>();
            model.lose_power(seed);
        }
        crashes += model.crashes;
        replayed += model.replayed;
    }
    eprintln!("{crashes} crashes, {recorded} syncs by journals, {replayed} records done again");
    assert!(u64::from(crashes) == 3 * seeds && replayed > seeds && recorded > seeds);
}

/// The system takes what it could not write for written: a later good sync says nothing, whoever does it.
#[test]
fn after_a_sync_that_failed_nobody_settles_until_the_journals_were_brought_in_anew() {
    let mut model = Model::new(1);
    for process in 0..2 {
        model.join(process);
        model.sit(process);
    }
    let members = [0, 1].map(|process| model.members[process].clone().unwrap());
    model.world.lock().unwrap().sync_fails = true;
    assert!(members[0].settle().is_err());
    model.world.lock().unwrap().sync_fails = false;
    for (process, member) in members.iter().enumerate() {
        assert!(member.settle().is_err());
        do_it(&model.world, member, process, Doing::Write(Role::Wal, 0, 4, 9));
        do_it(&model.world, member, process, Doing::Sync(Role::Wal));
    }
    // Lenders hold what is synced: of the first one; the second one's write is not told from the first one's until that is safe.
    assert!(members[0].counts().recorded > 0);
    assert!(!model.ledger().is_of(1));
    drop(members);
    model.lose_power(1);
    assert!(model.ledger().is_of(1));
}
