//! Random operations on an index, beside an ordered map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Memory with blocks that are never merged. The index's own row is the first block.
struct Blocks {
    bytes: Vec<u8>,
    taken: Vec<u64>,
    free: Vec<u64>,
    /// Writes since the last check, with offset and length.
    writes: Vec<(u64, usize)>,
}

const NODE: usize = size_of::<NodeRow>();

impl BlockTransaction for Blocks {
    fn bytes(&mut self) -> &[u8] {
        &self.bytes
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Oo7Error> {
        let start = at as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.writes.push((at, bytes.len()));
        Ok(())
    }

    fn allocate(&mut self, _: BlockOwner, bytes: usize) -> Result<u64, Oo7Error> {
        assert_eq!(bytes, NODE);
        let at = self.free.pop().unwrap_or_else(|| {
            self.bytes.resize(self.bytes.len() + NODE, 0xee);
            (self.bytes.len() - NODE) as u64
        });
        self.taken.push(at);
        Ok(at)
    }

    fn free(&mut self, at: u64) -> Result<(), Oo7Error> {
        self.taken.retain(|taken| *taken != at);
        self.free.push(at);
        Ok(())
    }

    fn root(&mut self) -> Result<u64, Oo7Error> {
        Ok(INDEX)
    }

    fn set_root(&mut self, _: u64) -> Result<(), Oo7Error> {
        Ok(())
    }

    fn commit(self) -> Result<(), Oo7Error> {
        Ok(())
    }
}

const INDEX: u64 = 64;

fn blocks() -> Blocks {
    Blocks {
        bytes: vec![0; 128],
        taken: Vec::new(),
        free: Vec::new(),
        writes: Vec::new(),
    }
}

impl Blocks {
    /// Number of nodes of a subtree, and its height. Checks every balance and key order.
    fn check(&self, at: u64, low: u64, high: u64) -> (usize, i32) {
        if at == 0 {
            return (0, 0);
        }
        let node: &NodeRow = view(&self.bytes, at, "a node").unwrap();
        let key = node.key.get();
        assert!(low <= key && key <= high, "{key} is not between {low} and {high}");
        let (left, left_height) = self.check(node.left.get(), low, key.wrapping_sub(1));
        let (right, right_height) = self.check(node.right.get(), key + 1, high);
        assert_eq!(node.balance.get(), right_height - left_height, "at {key}");
        assert!(node.balance.get().abs() <= 1, "at {key}");
        (left + right + 1, 1 + left_height.max(right_height))
    }

    fn waiting(&self) -> usize {
        let row: &IndexRow = view(&self.bytes, INDEX, "an index").unwrap();
        let (mut at, mut count) = (row.spare.get(), 0);
        while at != 0 {
            count += 1;
            assert!(count <= self.taken.len(), "a ring of waiting nodes");
            at = view::<NodeRow>(&self.bytes, at, "a node").unwrap().left.get();
        }
        count
    }

    /// Checks the tree, that it has exactly the map's keys, and that no block is lost.
    fn agrees(&self, map: &BTreeMap<u64, u64>) {
        let top = root(&self.bytes, INDEX).unwrap();
        let (nodes, _) = self.check(top, 0, u64::MAX - 1);
        assert_eq!(nodes, map.len());
        assert_eq!(
            nodes + self.waiting(),
            self.taken.len(),
            "each block is a node or waits"
        );
        let mut values = Vec::new();
        range(&self.bytes, INDEX, (0, u64::MAX), &mut |value| values.push(value)).unwrap();
        assert!(values.iter().eq(map.values()));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    Remove(u64),
    Range(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0u64..60;
    let step = prop_oneof![
        5 => key.clone().prop_map(Step::Insert),
        4 => key.clone().prop_map(Step::Remove),
        1 => (key.clone(), key).prop_map(|(first, last)| Step::Range(first, last)),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn an_index_is_an_ordered_map(steps in steps()) {
        let (mut blocks, mut met, mut map) = (blocks(), VisitedNodes::default(), BTreeMap::new());
        for (number, step) in steps.into_iter().enumerate() {
            let value = number as u64 + 1000;
            match step {
                Step::Insert(key) => {
                    insert(&mut blocks, &mut met, INDEX, (IndexKey::Number(key), value)).unwrap();
                    map.entry(key).or_insert(value);
                }
                Step::Remove(key) => {
                    remove(&mut blocks, &mut met, INDEX, IndexKey::Number(key)).unwrap();
                    map.remove(&key);
                }
                Step::Range(first, last) => {
                    let mut values = Vec::new();
                    range(&blocks.bytes, INDEX, (first, last), &mut |value| values.push(value)).unwrap();
                    let expected = map.iter().filter(|(key, _)| (first..=last).contains(*key));
                    prop_assert!(values.iter().eq(expected.map(|(_, value)| value)));
                }
            }
            for key in 0..60 {
                prop_assert_eq!(find(&blocks.bytes, INDEX, IndexKey::Number(key)).unwrap(), map.get(&key).copied());
            }
            blocks.agrees(&map);
        }
    }
}

#[test]
fn an_operation_writes_each_node_once_and_only_changed_bytes() {
    let (mut blocks, mut met) = (blocks(), VisitedNodes::default());
    for key in 0..1000 {
        insert(
            &mut blocks,
            &mut met,
            INDEX,
            (IndexKey::Number(key * 7919 % 1000), key),
        )
        .unwrap();
    }
    for key in 0..1000 {
        let before = blocks.bytes.clone();
        blocks.writes.clear();
        remove(&mut blocks, &mut met, INDEX, IndexKey::Number(key)).unwrap();
        let mut nodes = Vec::new();
        for (at, length) in &blocks.writes {
            let (at, end) = (*at as usize, *at as usize + length);
            // The index's row and its unused node may be written for other reasons.
            if at >= 128 && *length < NODE {
                nodes.push((at - 128) / NODE);
                if *length != 8 {
                    assert_ne!(before[at], blocks.bytes[at]);
                    assert_ne!(before[end - 1], blocks.bytes[end - 1]);
                }
            }
        }
        nodes.sort_unstable();
        let count = nodes.len();
        nodes.dedup();
        assert_eq!(nodes.len(), count, "key {key}: {:?}", blocks.writes);
    }
    assert_eq!(root(&blocks.bytes, INDEX).unwrap(), 0);
}

#[test]
fn a_damaged_index_ends_a_walk() {
    let (mut blocks, mut met) = (blocks(), VisitedNodes::default());
    for key in 1..4 {
        insert(&mut blocks, &mut met, INDEX, (IndexKey::Number(key), key)).unwrap();
    }
    let top = root(&blocks.bytes, INDEX).unwrap();
    for target in [top, 1 << 40, u64::MAX] {
        // The largest node's right pointer leads back to the top, and then out of the memory.
        let last = view::<NodeRow>(&blocks.bytes, top, "a node").unwrap().right.get();
        blocks.write(last + 24, &target.to_le_bytes()).unwrap();
        assert!(
            find(&blocks.bytes, INDEX, IndexKey::Number(9)).is_err(),
            "{target:#x}"
        );
        let item = (IndexKey::Number(9), 9);
        assert!(insert(&mut blocks, &mut met, INDEX, item).is_err(), "{target:#x}");
        assert!(
            remove(&mut blocks, &mut met, INDEX, IndexKey::Number(9)).is_err(),
            "{target:#x}"
        );
    }
}
