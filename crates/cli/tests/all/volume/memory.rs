//! Memory of the server of an attached volume, which has the volume's key.

use crate::common::{clean, finish, program};
use crate::key_hygiene::{WITHOUT_PTRACE, cannot_read_memory, is_readable};
use crate::volume::{VolumeFixture, can_attach, skipped};

/// A process that its user cannot read leaves no core dump either: one setting of the kernel's does both.
#[test]
fn the_user_of_an_attached_volume_reads_no_memory_of_its_server() {
    const NAME: &str = "the_user_of_an_attached_volume_reads_no_memory_of_its_server";
    if let Err(missing) = can_attach() {
        return skipped(NAME, &missing);
    }
    if cannot_read_memory() {
        return;
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "16MiB", "--journal-size", "4MiB"]);
    let words = [program(), "volume", "attach", "db", "--way", "fuse"];
    let mut attach = clean(std::process::Command::new(WITHOUT_PTRACE[0]));
    attach
        .args(&WITHOUT_PTRACE[1..])
        .args(words)
        .current_dir(place.directory.path())
        .env("NETRAM_VOLUME_RUN", place.path("run"));
    let ran = finish(&mut attach);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let server = place.server();
    let server = server.as_u64().and_then(|id| u32::try_from(id).ok()).unwrap();
    assert!(!is_readable(server), "its memory can be read");
    place.json(&["detach", "db"]);
}
