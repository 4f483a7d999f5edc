//! Numbered writes to a volume: write n goes to block n modulo [`BLOCKS`] and fills it with n, so an opening
//! can check exactly which writes are there.

use netram_proto::port::CommitVotes;
use netram_volume::{BlockDevice, Volume, VolumeSettings};

use super::{WorkerEnd, WorkerMessage, WorkerRecovery, WorkerSettings, say, say_acked};

const BLOCK: usize = 4096;
/// Blocks that are written.
pub(crate) const BLOCKS: u64 = 64;
/// How often everything is asked to be brought into the image.
const DRAINS: u32 = 5;
/// Changes of a stage, so that stages go into the image all the time.
const STAGE_BYTES: u64 = 64 * 1024;

pub(super) fn run(work: &WorkerSettings) -> WorkerEnd {
    let mut settings = VolumeSettings::default();
    settings.policy.bytes = STAGE_BYTES;
    let (volume, recovered) = match Volume::open_with(&work.journal, &settings) {
        Ok(opened) => opened,
        Err(error) => return WorkerEnd::Refused(error.to_string()),
    };
    let newest = match check(&volume) {
        Ok(newest) => newest,
        Err(end) => return end,
    };
    let acked = work.acked.first().copied().unwrap_or(0);
    if newest < acked {
        return WorkerEnd::Wrong(format!(
            "write {acked} was acknowledged; the newest one found is {newest}"
        ));
    }
    say(&WorkerMessage::Recovered(WorkerRecovery {
        epoch: recovered.journal.epoch.0,
        last: vec![newest],
        ..WorkerRecovery::default()
    }));
    say(&WorkerMessage::Ready { members: false });
    for number in newest + 1..=newest + work.commits.unwrap_or(u64::MAX - newest) {
        let bytes = number.to_le_bytes().repeat(BLOCK / 8);
        let written = volume.write(number % BLOCKS * BLOCK as u64, &bytes);
        if let Err(error) = written.and_then(|pending| volume.wait(pending)) {
            say(&WorkerMessage::Failed {
                thread: 0,
                text: error.to_string(),
            });
            return WorkerEnd::Failed;
        }
        say_acked(0, number, CommitVotes::default());
    }
    // A refusal is its caller's to hear, and to ask again.
    let mut drained = volume.drain();
    for _ in 1..DRAINS {
        drained = drained.or_else(|_| volume.drain());
    }
    let ended = drained.map_err(|error| error.to_string());
    match ended.and_then(|()| volume.close().map_err(|error| error.to_string())) {
        Ok(()) => WorkerEnd::Done,
        Err(text) => {
            say(&WorkerMessage::Failed { thread: 0, text });
            WorkerEnd::Failed
        }
    }
}

/// The newest write; or why the blocks are not those of all writes up to one.
fn check(volume: &Volume) -> Result<u64, WorkerEnd> {
    let mut numbers = Vec::new();
    let mut bytes = [0; BLOCK];
    for block in 0..BLOCKS {
        if let Err(error) = volume.read(block * BLOCK as u64, &mut bytes) {
            return Err(WorkerEnd::Refused(error.to_string()));
        }
        let mut words = bytes.chunks_exact(8);
        let number = words.next().expect("a block has words").to_owned();
        if !words.all(|word| word == number) {
            return Err(WorkerEnd::Wrong(format!("block {block} is torn")));
        }
        numbers.push(u64::from_le_bytes(
            number.try_into().expect("a word has eight bytes"),
        ));
    }
    let newest = numbers.iter().copied().max().unwrap_or(0);
    for (block, found) in (0..BLOCKS).zip(numbers) {
        let behind = (newest + BLOCKS - block) % BLOCKS;
        let expected = newest.saturating_sub(behind);
        if found != expected {
            return Err(WorkerEnd::Wrong(format!(
                "block {block} has write {found} and not {expected}; the newest is {newest}"
            )));
        }
    }
    Ok(newest)
}
