//! A server ends after a node is gone and before its members know: the next one tells them.

mod common;

use std::time::Duration;

use common::until;
use common::world::{Place, add};
use netram_shared::server::Store;

/// The longest life of a server that is to write down what it has told.
const LIVES_MAX: Duration = Duration::from_secs(1);

#[test]
fn the_next_server_tells_the_members_of_a_node_that_they_may_forget_it() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = Place {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve();
    let node = place.join("one");
    let id = node.id();
    add(&node, 1, 1).unwrap();
    let report = |serving: &netram_shared::server::Serving| serving.report().expect("it answers");
    until("the server knows the node's lender, durably", || {
        let nodes = report(&serving).nodes;
        nodes
            .iter()
            .any(|node| node.node == id.0 && node.lenders.len() == 1)
    });
    drop(serving);
    drop(node);
    assert!(lender.report().memory.used > 0, "it lends the node a window");
    // As the server does that has read it all, up to where it is killed.
    let (mut store, _) = Store::open(&place.region(), || ()).unwrap();
    store.fence(id).unwrap();
    let end = store.bury_untold(id).unwrap();
    store.wait(end).unwrap();
    store.close().unwrap();
    let (store, _) = Store::open(&place.region(), || ()).unwrap();
    let table = store.table();
    assert_eq!(
        (table.nodes.len(), table.buried.len(), table.gone.len()),
        (0, 1, 1)
    );
    assert_eq!(table.buried[0].view.members.len(), 1);
    assert_eq!(table.faults(), []);
    store.close().unwrap();
    let serving = place.serve();
    until("the lender has its memory back", || {
        lender.report().memory.used == 0
    });
    assert_eq!(report(&serving).nodes, []);
    drop(serving);
    let mut lives = Duration::from_millis(1);
    until("that is written down", || {
        let serving = place.serve();
        let told = report(&serving).nodes.is_empty();
        // One that ends at once may never come to it.
        std::thread::sleep(lives);
        lives = (lives * 2).min(LIVES_MAX);
        drop(serving);
        let (store, _) = Store::open(&place.region(), || ()).unwrap();
        told && store.table().buried.is_empty()
    });
    // Its place is another's now, and so is its lender.
    let _serving = place.serve();
    let next = place.join("two");
    assert_eq!(add(&next, 1, 1).unwrap(), 2);
    next.leave().expect("it leaves");
}
