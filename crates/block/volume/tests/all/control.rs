//! An open volume is operated over its control socket by permitted users, and other peers cannot disturb it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_journal::forget::WindowRelease;
use netram_volume::control::{ControlError, VolumeFrontend, VolumeReply, VolumeReport, VolumeRequest};
use netram_volume::{BlockDevice, Volume, VolumeControl, VolumePaths, VolumeSettings, ask};

const MIB: u64 = 1 << 20;
/// Timeout of everything that is not itself under test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A volume of `bytes`, open and listening.
struct ServedVolume {
    directory: tempfile::TempDir,
    path: PathBuf,
    volume: Arc<Volume>,
    control: Option<VolumeControl>,
}

impl ServedVolume {
    fn new(bytes: u64, inside: &str) -> ServedVolume {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(inside).join("volume");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Volume::create(&path, bytes, MIB).unwrap();
        let (volume, _) = Volume::open_with(&path, &VolumeSettings::default()).unwrap();
        let mut served = ServedVolume {
            directory,
            path,
            volume: Arc::new(volume),
            control: None,
        };
        served.listen();
        served
    }

    fn listen(&mut self) {
        let front = VolumeFrontend {
            kind: "test".into(),
            connections: Some(3),
            counters: [("errors".to_owned(), 5)].into(),
        };
        let control = VolumeControl::start(Arc::clone(&self.volume), move || Some(front.clone()));
        self.control = Some(control.unwrap());
    }

    fn ask(&self, what: &VolumeRequest) -> Result<Option<VolumeReply>, ControlError> {
        ask(&VolumePaths::at(&self.path), what, &mut |_| ())
    }

    fn status(&self) -> VolumeReport {
        match self.ask(&VolumeRequest::Status).unwrap() {
            Some(VolumeReply::Status(report)) => *report,
            told => panic!("{told:?}"),
        }
    }

    /// Connects by path, which must be short enough for a socket address.
    fn stranger(&self) -> UnixStream {
        UnixStream::connect(self.path.join("control")).unwrap()
    }

    fn close(self) {
        drop(self.control);
        assert!(!self.path.join("control").exists(), "the socket was not removed");
        Arc::into_inner(self.volume)
            .expect("no other reference to the volume")
            .close()
            .unwrap();
        self.directory.close().unwrap();
    }
}

fn write(volume: &Volume, offset: u64, bytes: &[u8]) {
    volume.wait(volume.write(offset, bytes).unwrap()).unwrap();
}

#[test]
fn an_open_volume_reports_its_status_grows_and_is_scrubbed() {
    // A path longer than a socket address may be.
    let served = ServedVolume::new(8 * MIB, &"deep/".repeat(30));
    write(&served.volume, 0, &[7; 3 * 4096]);
    let report = served.status();
    assert_eq!((report.bytes, report.pid), (8 * MIB, std::process::id()));
    assert_eq!(report.counters["writes"], 1);
    assert!(report.journal.acked > 0 && report.stages.blocks == 3);
    let front = report.front.expect("the volume has a front end");
    assert_eq!((front.connections, front.counters["errors"]), (Some(3), 5));

    let grown = served.ask(&VolumeRequest::Grow { bytes: 16 * MIB }).unwrap();
    let expected = VolumeReply::Grown {
        before: 8 * MIB,
        after: 16 * MIB,
    };
    assert_eq!(grown, Some(expected));
    write(&served.volume, 15 * MIB, &[9; 4096]);
    let smaller = served.ask(&VolumeRequest::Grow { bytes: 8 * MIB });
    assert!(
        matches!(&smaller, Err(ControlError::Refused(why)) if why.contains("cannot shrink")),
        "{smaller:?}"
    );

    served.volume.drain().unwrap();
    let mut last = None;
    let told = ask(
        &VolumePaths::at(&served.path),
        &VolumeRequest::Scrub,
        &mut |progress| {
            assert!(progress.done <= progress.total, "{progress:?}");
            last = Some(progress);
        },
    );
    let Ok(Some(VolumeReply::Scrubbed(findings))) = told else {
        panic!("{told:?}")
    };
    assert!(
        (4 * 4096..=2 * MIB).contains(&findings.read_bytes),
        "{findings:?}"
    );
    assert_eq!(findings.bad_blocks, 0);
    assert_eq!(last.expect("at least one step reports progress").total, 16 * MIB);
    served.close();
}

#[test]
fn the_socket_is_private_and_one_left_by_a_dead_process_is_replaced() {
    let mut served = ServedVolume::new(MIB, "");
    let socket = served.path.join("control");
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    served.control = None;
    assert!(
        served.ask(&VolumeRequest::Status).unwrap().is_none(),
        "no process listens"
    );
    // As left by a killed process.
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    assert!(
        served.ask(&VolumeRequest::Status).unwrap().is_none(),
        "no process listens"
    );
    served.listen();
    assert_eq!(served.status().bytes, MIB);
    // A symbolic link is not followed.
    served.control = None;
    let stranger = served.directory.path().join("strangers");
    fs::write(&stranger, "content").unwrap();
    fs::set_permissions(&stranger, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&stranger, &socket).unwrap();
    served.listen();
    assert_eq!(served.status().bytes, MIB);
    assert_eq!(
        (fs::read_to_string(&stranger).unwrap(), mode(&stranger)),
        ("content".to_owned(), 0o644)
    );
    served.close();
}

#[test]
fn a_socket_left_by_a_killed_process_does_not_prevent_deletion() {
    let served = ServedVolume::new(MIB, "");
    let ServedVolume {
        directory,
        path,
        volume,
        control,
    } = served;
    drop(control);
    drop(volume);
    drop(UnixListener::bind(path.join("control")).unwrap());
    Volume::delete(&path, WindowRelease::Logged).unwrap();
    assert!(!path.exists());
    directory.close().unwrap();
}

#[test]
fn invalid_silent_or_too_many_clients_neither_stop_the_server_nor_delay_its_end() {
    let served = ServedVolume::new(MIB, "");
    for nonsense in [
        &b"{\"ask\":\"erase\"}\n"[..],
        b"\n",
        b"\xff\xfe\n",
        b"[[[[[[[[[[[[[[[[\n",
        b"{\"ask\":\"grow\",\"bytes\":18446744073709551616}\n",
    ] {
        let mut stream = served.stranger();
        stream.write_all(nonsense).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("{\"refused\":"), "{answer}");
    }
    let odd = served.ask(&VolumeRequest::Grow { bytes: u64::MAX });
    assert!(matches!(odd, Err(ControlError::Refused(_))), "{odd:?}");
    // No line end: disconnected without an answer, and without using memory for it.
    let mut endless = served.stranger();
    endless.set_write_timeout(Some(PATIENCE)).unwrap();
    while endless.write_all(&[b'x'; 4096]).is_ok() {}
    // Many silent clients occupy all sessions, but only for some seconds.
    let crowd: Vec<UnixStream> = (0..20).map(|_| served.stranger()).collect();
    let deadline = Instant::now() + PATIENCE;
    while served.ask(&VolumeRequest::Status).unwrap().is_none() {
        assert!(Instant::now() < deadline, "silent clients keep all others out");
        std::thread::sleep(Duration::from_millis(20));
    }
    let silent = served.stranger();
    served.close();
    drop((crowd, silent));
}

#[test]
fn only_one_scrub_runs_and_it_ends_with_its_client_or_with_the_volume() {
    // All holes: there is no data to read, but it takes long enough.
    let mut served = ServedVolume::new(1 << 40, "");
    let begin = |served: &ServedVolume| {
        let mut asker = served.stranger();
        asker.write_all(b"{\"ask\":\"scrub\"}\n").unwrap();
        let mut first = [0; 12];
        asker.read_exact(&mut first).unwrap();
        (asker, first)
    };
    let (asker, first) = begin(&served);
    assert_eq!(&first, b"{\"progress\":");
    let second = served.ask(&VolumeRequest::Scrub);
    assert!(
        matches!(&second, Err(ControlError::Refused(why)) if why.contains("already running")),
        "{second:?}"
    );
    drop(asker);
    let deadline = Instant::now() + PATIENCE;
    let mut asker = loop {
        let (asker, first) = begin(&served);
        if &first == b"{\"progress\":" {
            break asker;
        }
        assert!(Instant::now() < deadline, "the scrub outlives its client");
        std::thread::sleep(Duration::from_millis(20));
    };
    served.control = None;
    let mut rest = String::new();
    // Disconnected, or refused.
    let _ = asker.read_to_string(&mut rest);
    assert!(!rest.contains("scrubbed"), "{rest}");
    served.close();
}
