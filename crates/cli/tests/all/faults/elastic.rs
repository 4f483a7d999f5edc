//! Lenders join an open journal and leave it under load, by command; its rule changes; and its process is
//! killed in the midst.

use crate::faults::drain::{MEMBERS, check, until_member};
use crate::faults::harness::process::netram;
use crate::faults::harness::{FaultsClient, FaultsFixture, FaultsLender};

impl FaultsClient {
    /// Gives an order to the process that has the journal open. The tests' clients have no settings file.
    fn order(&self, verb: &str, more: &[&str]) -> (i32, String) {
        let journal = self.work.journal.display().to_string();
        netram(&[&["journal", verb, &journal, "--until-closed"], more].concat())
    }

    /// Gives an order, waits until it is carried out, and has later processes begin with its settings.
    fn change(&mut self, verb: &str, more: &[&str], lenders: &[&FaultsLender]) {
        let (code, said) = self.order(verb, &[more, &["--wait", "120s"]].concat());
        assert_eq!(code, 0, "{verb} {more:?}: {said}");
        assert!(said.ends_with("complete\n"), "{said}");
        self.work.lenders = lenders.iter().map(|lender| lender.address.clone()).collect();
    }
}

#[test]
fn lenders_join_and_leave_under_load_and_no_copy_is_missing() {
    let mut place = FaultsFixture::new();
    let mut lenders: Vec<FaultsLender> = ["a", "b", "c"].map(|name| place.lender(name)).into();
    let mut client = place.journal(&[&lenders[0], &lenders[1]], MEMBERS);
    let running = client.start();
    until_member(&running, &lenders[0], true);
    for _ in 0..3 * place.rounds(1) {
        running.until_acks_by_rule(50 + place.random.below(100));
        let [old, stays, new] = &lenders[..] else {
            unreachable!("there are three lenders")
        };
        client.change("add-lender", &[&new.address], &[old, stays, new]);
        client.change("remove-lender", &[&old.address], &[stays, new]);
        until_member(&running, new, true);
        // Its machine is switched off: nothing needs it any more.
        let mut old = lenders.remove(0);
        old.lose();
        old.restart();
        lenders.push(old);
        client.change("set", &["--rule", "any"], &[&lenders[0], &lenders[1]]);
        client.change("set", &["--rule", "all"], &[&lenders[0], &lenders[1]]);
    }
    running.until_acks_by_rule(50);
    let heard = running.heard();
    let longest = check(running);
    eprintln!("{} commits, the longest took {longest:?}", heard.acks);
    client.learn(&heard);
    client.recover();
}

#[test]
fn a_client_killed_in_the_midst_of_a_change_misses_nothing() {
    let mut place = FaultsFixture::new();
    let lenders = ["a", "b", "c"].map(|name| place.lender(name));
    let [a, b, c] = &lenders;
    let mut client = place.journal(&[a, b], MEMBERS);
    for turn in 0..4 * place.rounds(1) {
        let running = client.start();
        running.until_acks_by_rule(20 + place.random.below(50));
        let verb: (&str, Vec<&str>) = match turn % 4 {
            0 => ("add-lender", vec![&c.address, "--members", "3"]),
            1 => ("remove-lender", vec![&a.address, "--members", "1"]),
            2 => ("set", vec!["--rule", "any"]),
            _ => ("add-lender", vec![&c.address, "--members", "3", "--rule", "2"]),
        };
        let (code, said) = client.order(verb.0, &verb.1);
        assert_eq!(code, 0, "{said}");
        std::thread::sleep(std::time::Duration::from_millis(place.random.below(60)));
        let heard = client.kill(running);
        assert_eq!(heard.failure(), None, "a commit failed");
        // The next process knows nothing of the order, and the view tells it what it must find where.
        client.recover();
    }
}

#[test]
fn impossible_orders_are_refused_and_change_nothing() {
    let place = FaultsFixture::new();
    let lenders = ["a", "b"].map(|name| place.lender(name));
    let [a, b] = &lenders;
    let client = place.journal(&[a, b], MEMBERS);
    let (code, said) = client.order("add-lender", &["unix:/nowhere"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no process has it open"), "{said}");
    let running = client.start();
    until_member(&running, a, true);
    for (verb, more, why) in [
        ("add-lender", vec![a.address.as_str()], "already"),
        ("remove-lender", vec!["unix:/nowhere"], "not among"),
        (
            "remove-lender",
            vec![&a.address],
            "2 members are asked for, of 1 lenders",
        ),
        (
            "remove-lender",
            vec![&a.address, &b.address],
            "no lender would be left",
        ),
        ("set", vec!["--rule", "3"], "cannot be met by 2 members"),
        ("set", vec!["--members", "0"], "no lender would be left"),
        ("set", vec![], "nothing is to be set"),
    ] {
        let (code, said) = client.order(verb, &more);
        assert_eq!(code, 1, "{verb} {more:?}: {said}");
        assert!(said.contains(why), "{verb} {more:?}: {said}");
    }
    // The settings file, which there is not, says otherwise.
    let journal = client.work.journal.display().to_string();
    let (code, said) = netram(&["journal", "set", &journal, "--rule", "any"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("--until-closed") && said.contains("reload"),
        "{said}"
    );
    assert!(!client.work.journal.join("netram.toml").exists());
    // A lender that is not there is taken, and never joins.
    let (code, said) = client.order("add-lender", &["unix:/nowhere", "--members", "3", "--wait", "1s"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("nothing listens there"), "{said}");
    running.until_acks_by_rule(50);
    let heard = running.kill();
    assert_eq!(heard.failure(), None, "a commit failed");
}
