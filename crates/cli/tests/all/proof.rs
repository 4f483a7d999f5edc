//! The commands that ask before they fence, and what they say to people and to scripts.

use rustix::process::Signal;
use serde_json::Value;

use crate::common::CommandOutput;
use crate::replica::{ReplicaFixture, ReplicaWriter};

/// Exit code of a check if the operation would be refused.
const WOULD_BE_REFUSED: i32 = 3;

fn json(ran: &CommandOutput) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}{}", ran.out, ran.err))
}

#[test]
fn a_check_names_the_lenders_needed_and_changes_nothing() {
    let place = ReplicaFixture::new("check");
    let id = place.id();
    let mut writer = ReplicaWriter::start(&place);
    place.await_service(&mut writer);
    let from = place.address();
    let restore = ["restore", "new", "--from", &from, "--volume", &id, "--insecure"];
    let with = |more: &[&str]| place.disk(&[&restore, more].concat());

    let (live, refused) = place.while_caught_up(|| (with(&["--check"]), with(&[])));
    assert_eq!(live.code, WOULD_BE_REFUSED, "{}{}", live.out, live.err);
    assert!(
        live.out.contains("may still be running") && live.out.contains("nothing was changed"),
        "{}",
        live.out
    );
    assert!(
        refused.code == 1 && refused.err.contains("--client-is-off"),
        "{}",
        refused.err
    );
    let held = place.disk(&["recover", "db", "--check"]);
    assert_eq!(held.code, WOULD_BE_REFUSED, "{}{}", held.out, held.err);
    assert!(held.out.contains("in use"), "{}", held.out);
    // It was neither fenced nor put out of service.
    writer.go_on(20);
    place.await_service(&mut writer);

    let done = place.kill(writer);
    let said = with(&["--check", "--client-is-off", "--json"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let said = json(&said);
    assert_eq!(said["would_succeed"], true, "{said}");
    assert_eq!(said["copy"]["claim_served"], true, "{said}");
    assert_eq!(said["journal"]["members_needed"], 1, "{said}");
    let epoch = said["journal"]["members"][0]["fenced_by_epoch"].as_u64();
    let opens = place.disk(&["recover", "db", "--check", "--json"]);
    assert_eq!(opens.code, 0, "{}{}", opens.out, opens.err);
    let journal = place.path("db").join("journal");
    let journal = journal.to_str().expect("a path of ours");
    let opens = place.run(&["journal", "recover", journal, "--check", "--insecure"]);
    assert!(
        opens.code == 0 && opens.out.contains("it would succeed"),
        "{}{}",
        opens.out,
        opens.err
    );

    asks_in_vain(&place, &with);
    place.pause_member(Signal::CONT);
    let again = json(&with(&["--check", "--client-is-off", "--json"]));
    assert_eq!(
        again["journal"]["members"][0]["fenced_by_epoch"].as_u64(),
        epoch,
        "{again}"
    );
    assert_eq!(
        again["copy"]["claimed_under_epoch"],
        said["copy"]["claimed_under_epoch"]
    );
    let nowhere = place.disk(&["recover", "nowhere", "--check"]);
    assert_eq!(nowhere.code, 1, "{}{}", nowhere.out, nowhere.err);
    place.check(&place.path("db"), done);
}

/// With the lender stopped, both the check and the restore are refused.
fn asks_in_vain(place: &ReplicaFixture, with: &dyn Fn(&[&str]) -> CommandOutput) {
    place.pause_member(Signal::STOP);
    let hasty = ["--client-is-off", "--patience", "300ms"];
    let missing = with(&[&hasty[..], &["--check"]].concat());
    assert_eq!(missing.code, WOULD_BE_REFUSED, "{}{}", missing.out, missing.err);
    // A stopped process may not even answer a handshake.
    let silent = ["did not answer", "unreachable"].map(|word| missing.out.contains(word));
    assert!(silent.contains(&true), "{}", missing.out);
    let refused = with(&hasty);
    assert!(
        refused.code == 1 && refused.err.contains("cannot prove"),
        "{}",
        refused.err
    );
}

#[test]
fn an_old_directory_is_refused_with_the_command_that_restored_the_volume() {
    let place = ReplicaFixture::new("word");
    let id = place.id();
    let mut writer = ReplicaWriter::start(&place);
    place.await_service(&mut writer);
    let done = place.kill(writer);
    let from = place.address();
    let restore = [
        "restore",
        "new",
        "--from",
        &from,
        "--volume",
        &id,
        "--insecure",
        "--client-is-off",
    ];
    let restored = place.disk(&restore);
    assert_eq!(restored.code, 0, "{}{}", restored.out, restored.err);
    // The restored volume has not been used, but it exists: the original is refused with the name of the
    // command that restored it, and --newest is not accepted.
    for (arguments, needle) in [
        (vec!["recover", "db"], "netram volume restore on"),
        (vec!["recover", "db", "--newest"], "not the newest"),
    ] {
        let refused = place.disk(&arguments);
        assert!(
            refused.code == 1 && refused.err.contains(needle),
            "{}{}",
            refused.out,
            refused.err
        );
    }
    std::fs::remove_dir_all(place.path("new")).unwrap();
    let again = place.disk(&restore);
    assert_eq!(again.code, 0, "{}{}", again.out, again.err);
    place.check(&place.path("new"), done);
}
