//! Tests of claims, records and links while their owners come and go.

use std::os::unix::fs::symlink;

use super::*;
use netram_supervise::ProcessIdentity;
use netram_supervise::children::none_starts;

fn registry() -> (tempfile::TempDir, Registry) {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::new(&directory.path().join("run"), &directory.path().join("dev"));
    (directory, registry)
}

fn record(registry: &Registry, name: &str, volume: &str) -> AttachRecord {
    AttachRecord {
        name: name.into(),
        volume: volume.into(),
        device: "/dev/loop77".into(),
        link: registry.links.join(name),
        way: "fuse+loop".into(),
        block_bytes: 4096,
        read_only: false,
        file: "/proc/1/fd/1000".into(),
        supervisor: ProcessIdentity::of(std::process::id()).unwrap(),
        server: ProcessIdentity::of(std::process::id()).unwrap(),
        restarts: 0,
    }
}

#[test]
fn volume_and_name_are_claimed_only_once_and_a_dead_owners_record_is_stale() {
    let _released_at_once = none_starts();
    let (_directory, registry) = registry();
    assert_eq!(registry.entries().unwrap(), []);
    let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
    let busy = registry.claim("db", Path::new("/v/db"));
    assert!(matches!(busy, Err(ClaimError::Busy(_))));
    let made = record(&registry, "db", "/v/db");
    claim.announce(&made).unwrap();
    assert_eq!(fs::read_link(claim.link()).unwrap(), made.device);
    for name in ["db", "other"] {
        let twice = registry.claim(name, Path::new("/v/db"));
        assert!(matches!(twice, Err(ClaimError::Attached(_))), "{name}");
    }
    let taken = registry.claim("db", Path::new("/w/db"));
    assert!(matches!(taken, Err(ClaimError::Taken(_))));
    assert!(!registry.forget("db").unwrap());
    for what in ["db", "/v/db", "/dev/loop77"] {
        assert!(registry.find(Path::new(what)).unwrap().unwrap().alive, "{what}");
    }
    // The owner is killed.
    drop(claim);
    assert!(!registry.find(Path::new("db")).unwrap().unwrap().alive);
    let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
    assert_eq!(claim.stale, Some(made.clone()));
    claim.announce(&made).unwrap();
    claim.withdraw().unwrap();
    assert_eq!(registry.entries().unwrap(), []);
    assert!(claim.link().symlink_metadata().is_err());
}

#[test]
fn a_stale_record_is_removed_but_not_a_link_that_leads_elsewhere() {
    let _released_at_once = none_starts();
    let (_directory, registry) = registry();
    let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
    claim.announce(&record(&registry, "db", "/v/db")).unwrap();
    let link = claim.link();
    drop(claim);
    fs::remove_file(&link).unwrap();
    symlink("/dev/loop78", &link).unwrap();
    assert!(registry.forget("db").unwrap());
    assert_eq!(registry.entries().unwrap(), []);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/loop78"));
}

#[test]
fn a_dead_supervisors_record_stays_stale_while_its_name_is_claimed_again() {
    // It had seemed alive, and `detach` signalled another process that had its id by then.
    let _released_at_once = none_starts();
    let (_directory, registry) = registry();
    let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
    let mut dead = record(&registry, "db", "/v/db");
    // A process that had our id before us.
    dead.supervisor.start -= 1;
    claim.announce(&dead).unwrap();
    drop(claim);
    let claim = registry.claim("db", Path::new("/v/db")).unwrap();
    assert_eq!(claim.stale, Some(dead));
    assert!(!registry.find(Path::new("db")).unwrap().unwrap().alive);
    for volume in ["/v/db", "/w/db"] {
        let busy = registry.claim("db", Path::new(volume));
        assert!(matches!(busy, Err(ClaimError::Busy(_))), "{volume}");
    }
    assert!(!registry.forget("db").unwrap());
    drop(claim);
    assert!(registry.forget("db").unwrap());
    assert_eq!(registry.entries().unwrap(), []);
}

#[test]
fn a_failed_announcement_leaves_neither_record_nor_link() {
    let (_directory, registry) = registry();
    let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
    let made = record(&registry, "db", "/v/db");
    let link = claim.link();
    fs::create_dir_all(&registry.links).unwrap();
    fs::write(&link, "somebody's").unwrap();
    let refused = claim.announce(&made).unwrap_err().to_string();
    assert!(refused.contains(link.to_str().unwrap()), "{refused}");
    assert_eq!(fs::read_to_string(&link).unwrap(), "somebody's");
    assert_eq!(registry.entries().unwrap(), []);
    fs::remove_file(&link).unwrap();
    let obstacle = registry.directory.join("db/record.json");
    fs::create_dir(&obstacle).unwrap();
    claim.announce(&made).unwrap_err();
    assert!(link.symlink_metadata().is_err(), "the link was not removed");
    fs::remove_dir(&obstacle).unwrap();
    claim.announce(&made).unwrap();
    assert_eq!(fs::read_link(&link).unwrap(), made.device);
    assert_eq!(fs::read_dir(&registry.links).unwrap().count(), 1);
}

#[test]
fn a_path_that_matches_two_attachments_is_refused() {
    let (directory, registry) = registry();
    let path = directory.path().join("db");
    let mut claims = Vec::new();
    for (name, volume) in [("db", Path::new("/v/db")), ("other", &path)] {
        let mut claim = registry.claim(name, volume).unwrap();
        let mut made = record(&registry, name, "");
        made.volume = volume.to_path_buf();
        made.device = Path::new("/dev").join(name);
        claim.announce(&made).unwrap();
        claims.push(claim);
    }
    let name = registry.find(Path::new("db")).unwrap().unwrap();
    assert_eq!(name.record.volume, Path::new("/v/db"));
    assert_eq!(registry.find(&path).unwrap().unwrap().record.name, "other");
    // Two records of one device: the attachment that is ending, and the one that has got its device.
    let mut made = record(&registry, "other", "/v/other");
    made.device = "/dev/db".into();
    claims[1].announce(&made).unwrap();
    let both = registry.find(Path::new("/dev/db"));
    assert!(matches!(both, Err(FindError::Ambiguous { .. })), "{both:?}");
    let link = registry.find(&made.link).unwrap().unwrap();
    assert_eq!(link.record, made);
}

#[test]
fn an_invalid_file_name_is_refused_as_a_name() {
    let (_directory, registry) = registry();
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    for name in ["", ".", "..", "-a", "a/b", "a b", "ä", long.as_str()] {
        let refused = registry.claim(name, Path::new("/v"));
        assert!(matches!(refused, Err(ClaimError::Name(_))), "{name}");
    }
    assert_eq!(name_of(Path::new("/var/lib/db/")), "db");
}
