//! Moves carried out on pages with content: each read returns the last write, and no memory exceeds its size.

use std::collections::BTreeMap;

use netram_far_machine::paging::{
    FirstTouch, Page, PageAccess, PageLocation, PageMove, PagingPolicy, PolicyConfig, PolicyKind,
    ReferenceOutcome, Replacement,
};
use proptest::prelude::*;

/// Content of pages in each place: the number of the write that made it, 0 before all.
#[derive(Default)]
struct PageContents {
    local: BTreeMap<Page, u64>,
    remote: BTreeMap<Page, u64>,
    disk: BTreeMap<Page, u64>,
}

impl PageContents {
    fn apply_moves(&mut self, moves: &[PageMove]) {
        for one in moves {
            match *one {
                PageMove::Read(page) => self.load(page, self.disk.get(&page).copied().unwrap_or(0)),
                PageMove::Zero(page) => self.load(page, 0),
                PageMove::Fetch(page) => {
                    let content = self.remote[&page];
                    self.load(page, content);
                }
                PageMove::ReadAway(page) => {
                    let content = self.disk.get(&page).copied().unwrap_or(0);
                    assert!(self.remote.insert(page, content).is_none());
                }
                PageMove::ZeroAway(page) => assert!(self.remote.insert(page, 0).is_none()),
                PageMove::Send(page) => {
                    let content = self.unload(page);
                    self.remote.insert(page, content);
                }
                PageMove::Write(page) => {
                    let content = self.unload(page);
                    self.disk.insert(page, content);
                }
                PageMove::Drop(page) => {
                    self.unload(page);
                }
                PageMove::Forget(page) => assert!(self.remote.remove(&page).is_some()),
            }
        }
    }

    fn load(&mut self, page: Page, content: u64) {
        assert!(self.local.insert(page, content).is_none(), "{page:?} was there");
    }

    fn unload(&mut self, page: Page) -> u64 {
        self.local
            .remove(&page)
            .expect("only a local page can leave local memory")
    }
}

struct PolicyRun {
    policy: PagingPolicy,
    memories: PageContents,
    written: BTreeMap<Page, u64>,
    writes: u64,
}

impl PolicyRun {
    fn reference(&mut self, page: Page, access: PageAccess) {
        let (moves, in_local) = match self.policy.reference(page, access) {
            ReferenceOutcome::Local => (vec![], true),
            ReferenceOutcome::Word => (vec![], false),
            ReferenceOutcome::Moved(moves) => (moves.to_vec(), true),
            ReferenceOutcome::WordAndMoved(moves) => (moves.to_vec(), false),
        };
        if in_local {
            self.memories.apply_moves(&moves);
            self.access(page, access, true);
        } else {
            // Placement moves come before the word, all others after it.
            let places = |one: &&PageMove| matches!(one, PageMove::ReadAway(_) | PageMove::ZeroAway(_));
            let split = moves
                .iter()
                .rposition(|one| places(&one))
                .map_or(0, |place| place + 1);
            self.memories.apply_moves(&moves[..split]);
            self.access(page, access, false);
            self.memories.apply_moves(&moves[split..]);
        }
        self.check();
    }

    fn access(&mut self, page: Page, access: PageAccess, local: bool) {
        let memory = match local {
            true => &mut self.memories.local,
            false => &mut self.memories.remote,
        };
        let content = memory
            .get_mut(&page)
            .expect("the page is where its reference is served");
        assert_eq!(
            *content,
            self.written.get(&page).copied().unwrap_or(0),
            "{page:?} is not what was written"
        );
        if access == PageAccess::Write {
            self.writes += 1;
            *content = self.writes;
            self.written.insert(page, self.writes);
        }
    }

    fn check(&mut self) {
        if !self.policy.config().keep_copies {
            // A fetched page gives up its place.
            let gone = |page: &Page| self.policy.location(*page) == PageLocation::Remote;
            self.memories.remote.retain(|page, _| gone(page));
        }
        let (local, remote) = (self.policy.local() as usize, self.policy.remote() as usize);
        assert_eq!(
            (self.memories.local.len(), self.memories.remote.len()),
            (local, remote)
        );
        let config = self.policy.config();
        assert!(local <= config.local_pages as usize);
        assert!(remote <= config.remote_pages as usize);
    }
}

fn kinds() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![
        Just(PolicyKind::Disk),
        Just(PolicyKind::RamDisk),
        Just(PolicyKind::RemoteMain),
        (1..6_u32).prop_map(|initial| PolicyKind::Counters { initial }),
    ]
}

fn replacements() -> impl Strategy<Value = Replacement> {
    prop_oneof![
        Just(Replacement::Lru),
        Just(Replacement::Clock),
        Just(Replacement::Random),
        Just(Replacement::Fifo),
        Just(Replacement::Dueling),
    ]
}

fn configs() -> impl Strategy<Value = PolicyConfig> {
    (
        kinds(),
        replacements(),
        1..6_u32,
        0..8_u32,
        any::<[bool; 2]>(),
        any::<u64>(),
    )
        .prop_map(
            |(kind, replacement, local_pages, remote_pages, [zeros, keep_copies], seed)| PolicyConfig {
                kind,
                replacement,
                local_pages,
                remote_pages,
                first_touch: if zeros {
                    FirstTouch::Zeros
                } else {
                    FirstTouch::Disk
                },
                keep_copies,
                seed,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_read_returns_the_last_write(
        config in configs(),
        references in prop::collection::vec((0..16_u32, any::<bool>()), 1..600),
    ) {
        let mut run = PolicyRun {
            policy: PagingPolicy::new(config),
            memories: PageContents::default(),
            written: BTreeMap::new(),
            writes: 0,
        };
        let count = references.len() as u64;
        for (page, writes) in references {
            let access = if writes { PageAccess::Write } else { PageAccess::Read };
            run.reference(Page(page), access);
        }
        let tally = run.policy.tally();
        prop_assert_eq!(tally.references(), count);
        if matches!(config.kind, PolicyKind::Disk | PolicyKind::RamDisk) {
            prop_assert_eq!(tally.words, 0);
        }
    }

    #[test]
    fn lru_matches_a_simple_list(
        local_pages in 1..8_u32,
        references in prop::collection::vec(0..16_u32, 1..600),
    ) {
        let mut policy = PagingPolicy::new(PolicyConfig {
            kind: PolicyKind::Disk,
            replacement: Replacement::Lru,
            local_pages,
            remote_pages: 0,
            first_touch: FirstTouch::Disk,
            keep_copies: false,
            seed: 0,
        });
        // Most recent last.
        let mut list: Vec<Page> = Vec::new();
        for page in references.into_iter().map(Page) {
            let served = policy.reference(page, PageAccess::Read);
            let expected = match list.iter().position(|one| *one == page) {
                Some(place) => {
                    list.remove(place);
                    vec![]
                }
                None if list.len() == local_pages as usize => vec![PageMove::Drop(list.remove(0)), PageMove::Read(page)],
                None => vec![PageMove::Read(page)],
            };
            list.push(page);
            match served {
                ReferenceOutcome::Moved(moves) => prop_assert_eq!(moves, &expected[..]),
                other => prop_assert_eq!((other, expected.len()), (ReferenceOutcome::Local, 0)),
            }
        }
    }
}
