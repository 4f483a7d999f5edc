//! What the program does next, drawn from the seed.

use super::{DEPTH_MAX, PAGES_MAX, Program, UNPAGED_BYTES_MAX, WRITE_PAGES_MAX};
use crate::check::files::{NameChange, PAGE, name, page};

impl Program {
    pub(super) fn draw_name_change(&self) -> Option<NameChange> {
        let rng = &mut self.world.borrow_mut().kernel.rng;
        let names = self.model.names();
        let mut directories = vec![Vec::new()];
        directories.extend({ names.iter() }.filter_map(|(path, thing)| {
            let shallow = path.split(|byte| *byte == b'/').count() < DEPTH_MAX;
            (shallow && self.model.is_directory(*thing)).then(|| [path, &b"/"[..]].concat())
        }));
        let letter = rng.pick(b"pppld");
        let new = [
            &directories[rng.index(directories.len())][..],
            &[letter, b'0' + rng.below(3) as u8],
        ]
        .concat();
        let alike: Vec<&Vec<u8>> = { names.keys() }
            .filter(|path| name(path).starts_with(&[letter]))
            .collect();
        let draw = rng.below(12);
        if alike.is_empty() || draw < 4 {
            return Some(NameChange::Make(new, letter == b'd'));
        }
        let (one, other) = (alike[rng.index(alike.len())], alike[rng.index(alike.len())]);
        match draw {
            4..6 => Some(NameChange::Remove(one.clone())),
            6 if letter != b'd' => Some(NameChange::Link(one.clone(), new)),
            6 => None,
            7 => Some(NameChange::Rename(one.clone(), other.clone(), true)),
            8 => Some(NameChange::Rename(one.clone(), other.clone(), false)),
            _ => Some(NameChange::Rename(one.clone(), new, false)),
        }
    }

    pub(super) fn draw_pages(&mut self) -> (usize, Vec<u8>) {
        let (first, count) = {
            let rng = &mut self.world.borrow_mut().kernel.rng;
            let most = rng.pick(&[1, 2, WRITE_PAGES_MAX]);
            let count = rng.between(1, most);
            (rng.below(PAGES_MAX - count + 1), count)
        };
        let pages: Vec<Vec<u8>> = (0..count).map(|_| page(self.model.next_number())).collect();
        (first as usize * PAGE, pages.concat())
    }

    pub(super) fn draw_bytes(&self) -> (usize, Vec<u8>) {
        let rng = &mut self.world.borrow_mut().kernel.rng;
        let longest = rng.pick(&[8, 700, 9000]);
        let mut bytes = vec![0; rng.between(1, longest) as usize];
        rng.fill(&mut bytes);
        (rng.below(UNPAGED_BYTES_MAX - bytes.len() as u64) as usize, bytes)
    }
}
