//! A holder of every key of the cluster gets a volume's copy, and not the key of its records.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_block_machine::{ReplicaDescription, ReplicaMessage};
use netram_lender::{DataService, Lender, LenderConfig};
use netram_proto::wire::Frame;
use netram_transport::{ClusterKey, Link, NetAddress, Security, connect};
use netram_volume::replica::ReplicaHost;
use netram_volume::replica::restore::{DataLenderEndpoint, RestoreError, RestoreRequest, restore};
use netram_volume::{BlockDevice, RecoveryKey, UnwrapError, Volume, VolumePaths, VolumeSettings};

const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// A data lender with a cluster key, and a volume that uses it.
struct KeyedCluster {
    directory: tempfile::TempDir,
    security: Security,
    lender: Lender,
    keeper: Arc<ReplicaHost>,
}

impl KeyedCluster {
    fn new() -> KeyedCluster {
        let directory = tempfile::tempdir().unwrap();
        let key = ClusterKey::generate();
        key.save_new(&directory.path().join("cluster.key")).unwrap();
        let security = Security::Key(key);
        let keeper = Arc::new(ReplicaHost::start(&directory.path().join("kept")).unwrap());
        let config = LenderConfig {
            listen: vec![NetAddress::Unix(directory.path().join("socket"))],
            security: security.clone(),
            memory: 1 << 20,
            store: Some(directory.path().join("store")),
            allow_disk: true,
            ..LenderConfig::default()
        };
        let lender = Lender::start_with(config, Some(keeper.clone())).unwrap();
        let place = KeyedCluster {
            directory,
            security,
            lender,
            keeper,
        };
        Volume::create(&place.path("volume"), 1 << 20, 1 << 20).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn settings(&self) -> VolumeSettings {
        let mut settings = VolumeSettings {
            data_lender: Some(self.lender.addresses()[0].clone()),
            ..VolumeSettings::default()
        };
        settings.journal.key_file = Some(self.path("cluster.key"));
        settings
    }

    /// Opens the volume and waits until the copy has everything.
    fn open(&self) -> Volume {
        let (volume, _) = Volume::open_with(&self.path("volume"), &self.settings()).unwrap();
        let pending = volume.write(0, &[7; BLOCK]).unwrap();
        volume.wait(pending).unwrap();
        let began = Instant::now();
        while !volume.wait_for_data_lender(PATIENCE) {
            assert!(began.elapsed() < PATIENCE, "the copy never follows");
        }
        volume
    }

    fn volume_id(&self) -> u128 {
        u128::from_str_radix(&self.keeper.replicas()[0].volume, 16).unwrap()
    }

    /// The data lender's whole answer about the copy, to a client that has the cluster key.
    fn answer(&self) -> Vec<u8> {
        let mut link = connect(&self.lender.addresses()[0], &self.security, PATIENCE).unwrap();
        let ask = ReplicaMessage::inquire(Some(self.volume_id()));
        link.send(&[&ask.header.encode(ask.body.len()), &ask.body])
            .unwrap();
        receive(&mut link)
    }

    fn restore(&self, name: &str, key: Option<&RecoveryKey>) -> Result<Volume, RestoreError> {
        let from = DataLenderEndpoint {
            address: self.lender.addresses()[0].clone(),
            security: self.security.clone(),
        };
        let config = self.settings().journal_config().unwrap();
        let id = netram_block::VolumeId(self.volume_id());
        let request = RestoreRequest {
            from: &from,
            volume: id,
            config: &config,
            recovery: key,
            client_is_off: true,
        };
        restore(&self.path(name), &request, |_| Ok(()))?;
        let (volume, _) = Volume::open_with(&self.path(name), &self.settings()).unwrap();
        Ok(volume)
    }
}

fn receive(link: &mut Link) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(packet) = link.receive().expect("the link stands") {
            return packet.to_vec();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no answer");
}

fn data_key(volume: &Path) -> Vec<u8> {
    std::fs::read(volume.join("journal/data.key")).unwrap()
}

fn first_byte(volume: &Volume) -> u8 {
    let mut block = [0; BLOCK];
    volume.read(0, &mut block).unwrap();
    block[0]
}

fn refusal<T>(outcome: Result<T, RestoreError>) -> UnwrapError {
    match outcome {
        Err(RestoreError::Key(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the volume was restored"),
    }
}

/// The data lender answered any inquiry with the 32 bytes of `data.key`. Whoever had the cluster key, as each
/// lender has, could read every window of the volume and its copy.
#[test]
fn a_data_lender_hands_no_data_key_on_and_a_restore_needs_the_recovery_key() {
    let place = KeyedCluster::new();
    let recovery = VolumePaths::at(&place.path("volume")).rekey().unwrap();
    let volume = place.open();
    let secret = data_key(&place.path("volume"));
    let kept = place.path("kept").join(&place.keeper.replicas()[0].volume);
    assert_eq!(data_key(&kept), secret, "it reads the records");
    let answer = place.answer();
    let description = ReplicaDescription::decode(&Frame::parse(&answer).unwrap()).unwrap();
    assert_eq!(description.follow.wrapped_key.len(), 61);
    assert!(answer.windows(secret.len()).all(|bytes| bytes != secret));

    let other = RecoveryKey::generate();
    let tries = [(None, UnwrapError::Locked), (Some(&other), UnwrapError::OtherKey)];
    for (key, why) in tries {
        assert_eq!(refusal(place.restore("stolen", key)), why);
        assert!(!place.path("stolen").exists());
    }
    // Nothing was claimed: the volume goes on, with its data lender.
    assert!(volume.wait_for_data_lender(PATIENCE));
    volume.close().unwrap();
    std::fs::remove_dir_all(place.path("volume")).unwrap();
    let restored = place.restore("restored", Some(&recovery)).unwrap();
    assert_eq!(first_byte(&restored), 7);
    restored.close().unwrap();
    // The restored volume has the same recovery key.
    std::fs::remove_dir_all(place.path("restored")).unwrap();
    let again = place.restore("again", Some(&recovery)).unwrap();
    assert_eq!(first_byte(&again), 7);
}

#[test]
fn a_new_recovery_key_replaces_the_former_while_the_volume_is_open() {
    let place = KeyedCluster::new();
    let paths = VolumePaths::at(&place.path("volume"));
    let former = paths.rekey().unwrap();
    let volume = place.open();
    let before = place.answer();
    let new = paths.rekey().unwrap();
    assert!(volume.rekeyed());
    let began = Instant::now();
    while place.answer() == before {
        assert!(began.elapsed() < PATIENCE, "the data lender is not told");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(volume.wait_for_data_lender(PATIENCE));
    volume.close().unwrap();
    assert_eq!(
        refusal(place.restore("old", Some(&former))),
        UnwrapError::OtherKey
    );
    let restored = place.restore("new", Some(&new)).unwrap();
    assert_eq!(first_byte(&restored), 7);
}

/// A volume of an earlier release, or one that got its data lender later, has no recovery key.
#[test]
fn a_volume_without_a_recovery_key_says_so_and_its_copy_can_be_given_one() {
    let place = KeyedCluster::new();
    let volume = place.open();
    assert!(volume.data_lender().unwrap().no_recovery_key);
    volume.close().unwrap();
    std::fs::remove_dir_all(place.path("volume")).unwrap();
    let why = refusal(place.restore("volume", Some(&RecoveryKey::generate())));
    assert_eq!(why, UnwrapError::Nothing);
    assert!(why.to_string().contains("netram volume rekey"));
    // Whoever runs the data lender's machine has the copy, and may decide.
    let kept = place.path("kept").join(&place.keeper.replicas()[0].volume);
    let key = VolumePaths::at(&kept).rekey().unwrap();
    let restored = place.restore("volume", Some(&key)).unwrap();
    assert_eq!(first_byte(&restored), 7);
    assert!(!restored.status().data_lender.unwrap_or_default().no_recovery_key);
}
