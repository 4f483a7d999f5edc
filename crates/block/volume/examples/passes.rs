//! Cost of the passes over a volume's bytes: processor time of one thread, the minimum of many short runs, so
//! that it can be measured beside other work.
//!
//! ```text
//! cargo run --release -p netram-volume --example passes            # works in a directory below the current one
//! ```

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use netram_block::BlockDevice;
use netram_journal::seal::DataKey;
use netram_proto::id::{Epoch, EpochSalt, Lsn};
use netram_proto::limit::SEAL_TAG_BYTES;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, RecordHeader, crc32c, record_bytes};
use netram_volume::{Volume, VolumePaths};
use rustix::time::{ClockId, clock_gettime};

const LARGE: usize = 64 << 10;
const VOLUME_BYTES: u64 = 128 << 20;
const JOURNAL_BYTES: u64 = 256 << 20;
/// Bytes that are read and written repeatedly.
const SPAN_BYTES: u64 = 64 << 20;
const RUNS: usize = 400;
const TOGETHER: u64 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir_in(".")?;
    bytes();
    let path = directory.path().join("volume");
    Volume::create(&path, VOLUME_BYTES, JOURNAL_BYTES)?;
    let settings = VolumePaths::at(&path).settings()?;
    let (volume, _) = Volume::open_with(&path, &settings)?;
    let data = vec![0xa5; 1 << 20];
    for at in (0..SPAN_BYTES).step_by(data.len()) {
        volume.wait(volume.write(at, &data)?)?;
    }
    volume.close()?;
    // Reopened, so that everything is in the image.
    let (volume, _) = Volume::open_with(&path, &settings)?;
    let image = File::open(path.join("image"))?;
    let mut into = vec![0; LARGE];
    for length in [4 << 10, LARGE] {
        let into = &mut into[..length];
        let plain = least(length, |at| image.read_exact_at(into, 4096 + at).is_ok());
        let read = least(length, |at| volume.read(at, into).is_ok());
        println!("read of {length} B: {read:.2} us; of the image file alone {plain:.2} us");
    }
    let written = least(LARGE, |at| volume.write(at, &data[..LARGE]).is_ok());
    println!("write of {LARGE} B into the journal's ring: {written:.2} us");
    volume.close()?;
    Ok(())
}

/// The passes alone, over bytes in the processor's cache.
fn bytes() {
    let header = RecordHeader::new(
        ChainPoint::default(),
        Epoch(1),
        Lsn(0),
        RecordKind(32),
        true,
        LARGE,
    );
    let mut record = vec![0; record_bytes(LARGE, true)];
    header.write(&mut record);
    let sealer = DataKey::generate().sealer().for_epoch(EpochSalt([7; 16]));
    let source = vec![7; LARGE];
    let mut target = vec![0; LARGE];
    let mut plain = Vec::with_capacity(LARGE + SEAL_TAG_BYTES);
    let copied = least(LARGE, |_| {
        black_box(&mut target).copy_from_slice(black_box(&source));
        true
    });
    let checked = least(LARGE, |_| crc32c(black_box(&source)) != 1);
    let blocks = least(LARGE, |_| {
        source
            .chunks_exact(4096)
            .all(|block| crc32c(black_box(block)) != 1)
    });
    let sealed = least(LARGE, |_| {
        sealer.seal(&header, black_box(&mut record));
        true
    });
    let opened = least(LARGE, |_| {
        sealer.seal(&header, &mut record);
        sealer.open(&header, black_box(&record), &mut plain).is_some()
    });
    println!("64 KiB copied: {copied:.2} us");
    println!("64 KiB CRC32C: {checked:.2} us, in blocks of 4 KiB {blocks:.2}");
    println!(
        "64 KiB sealed in place: {sealed:.2} us; copied and opened {:.2}",
        opened - sealed
    );
}

/// Microseconds of this thread for one call of `work`, which gets an offset.
fn least(length: usize, mut work: impl FnMut(u64) -> bool) -> f64 {
    let mut least = f64::MAX;
    let mut at = 0;
    for _ in 0..RUNS {
        let began = thread_time();
        for _ in 0..TOGETHER {
            assert!(work(at), "the operation failed");
            at = (at + 4099 * length as u64) % SPAN_BYTES;
        }
        let took = thread_time() - began;
        least = least.min(took.as_secs_f64() * 1e6 / TOGETHER as f64);
    }
    least
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
