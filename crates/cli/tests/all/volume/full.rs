//! The directory where attachments are recorded is full: what is attached is served on, whatever becomes of
//! its lenders.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::LenderProcess;
use crate::volume::{VolumeFixture, can_attach, skipped, tool, until};

/// A tiny disk in the place's directory of attachments.
struct Tiny<'a>(&'a VolumeFixture);

impl Tiny<'_> {
    fn new(place: &VolumeFixture) -> Tiny<'_> {
        let at = place.path("run");
        fs::create_dir(&at).unwrap();
        let at = at.display().to_string();
        tool("mount", &["-t", "tmpfs", "-o", "size=256k", "netram-test", &at]).unwrap();
        Tiny(place)
    }

    /// Until not a byte more finds room.
    fn fill(&self) {
        let mut filler = File::create(self.0.path("run/filler")).unwrap();
        while filler.write(&[1; 512]).is_ok_and(|written| written > 0) {}
        let refused = fs::write(self.0.path("run/more"), [1; 4096]).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for Tiny<'_> {
    fn drop(&mut self) {
        self.0.end_all();
        let _ = tool("umount", &["--lazy", &self.0.path("run").display().to_string()]);
    }
}

#[test]
fn an_attached_volume_is_served_although_its_runtime_directory_is_full() {
    const NAME: &str = "an_attached_volume_is_served_although_its_runtime_directory_is_full";
    if let Err(missing) = can_attach() {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    let tiny = Tiny::new(&place);
    let lender = LenderProcess::start("full", &["--listen", "tcp://127.0.0.1:0", "--insecure"]);
    place.attach_with(&lender, &["--one-domain"]);
    tiny.fill();
    let device = File::options()
        .read(true)
        .write(true)
        .open(place.path("run/dev/db"))
        .unwrap();
    let write = |number: u8| {
        device
            .write_all_at(&[number; 4096], u64::from(number) * 4096)
            .unwrap();
        device.sync_all().unwrap();
    };
    write(1);
    drop(lender);
    // Its server notices and reports it if there is no room for its log.
    let shown = || place.json(&["status", "db"]);
    until("it knows that its lender is gone", || {
        write(2);
        std::thread::sleep(Duration::from_millis(20));
        shown()["live"]["state"]["lenders"][0]["reason"].is_string()
            || shown().to_string().contains("nothing listens")
    });
    for number in 3..10 {
        write(number);
    }
    let mut found = [0; 4096];
    device.read_exact_at(&mut found, 9 * 4096).unwrap();
    assert_eq!(found, [9; 4096]);
    drop(device);
    place.json(&["detach", "db"]);
    drop(tiny);
}
