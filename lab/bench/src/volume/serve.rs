//! The serving process: an NBD server over a volume, over plain memory (the floor of every write), or over a
//! plain file (the floor of reads, and a slow disk when its syncs are delayed).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netram_block::{BlockDevice, DeviceError, DeviceGeometry, PendingWrite};
use netram_nbd::{MemoryDevice, NbdExport, NbdServer, NbdServerConfig, TlsMode};
use netram_proto::port::IoError;
use netram_transport::NetAddress;
use netram_volume::{ModelledDisk, Volume, VolumePaths};
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, ChildProcess, listening_addresses};
use crate::error::{BenchError, ErrorContext};
use crate::machine;
use crate::testbed::{JOIN_TIMEOUT, SocketKind, Testbed};
use crate::volume::nbd::NbdClient;

const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Time without progress after which copying a new volume to a data lender counts as failed.
const COPY_TIMEOUT: Duration = Duration::from_secs(60);

/// Device that is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DeviceSource {
    /// Memory of this size in bytes.
    Memory(u64),
    /// A file, with this many microseconds added to every sync.
    File(PathBuf, u32),
    /// A file, with this many microseconds added to every read, write and sync.
    SlowFile(PathBuf, u32),
    /// A volume, possibly on a modelled slower disk.
    Volume(PathBuf, SyncDelays),
}

/// Microseconds added to each sync of a volume's disk.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SyncDelays {
    /// Delay of the journal's log.
    pub journal_us: u32,
    /// Delay of the image and the files beside it.
    pub files_us: u32,
}

/// Job of a serving process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NbdServeJob {
    /// Address to listen on.
    pub listen: String,
    /// The device.
    pub what: DeviceSource,
    /// Core that connections are served on; a volume's own threads run anywhere.
    pub core: Option<usize>,
}

impl ChildJob for NbdServeJob {
    const ROLE: &'static str = "Serve";

    // Serves until killed.
    fn run(&self) -> Result<(), BenchError> {
        let device = self.what.open()?;
        if let Some(core) = self.core {
            machine::pin(&[core])?;
        }
        let server = NbdServer::start(NbdServerConfig {
            listen: vec![self.listen.parse().context("read where to listen")?],
            exports: vec![NbdExport {
                name: "bench".to_owned(),
                description: String::new(),
                device,
                read_only: false,
            }],
            tls: TlsMode::Off,
            insecure: false,
            other_users: false,
        })
        .context("serve a device")?;
        for address in server.addresses() {
            crate::say(&format!("listening {address}"))?;
        }
        crate::say("ready")?;
        loop {
            std::thread::park();
        }
    }
}

impl DeviceSource {
    /// Opens the device.
    pub(crate) fn open(&self) -> Result<Arc<dyn BlockDevice>, BenchError> {
        Ok(match self {
            DeviceSource::Memory(bytes) => Arc::new(MemoryDevice::new(*bytes)),
            DeviceSource::File(path, sync_us) => {
                Arc::new(PlainFile::open(path, Duration::from_micros((*sync_us).into()))?)
            }
            DeviceSource::SlowFile(path, us) => {
                let delay = Duration::from_micros((*us).into());
                let mut file = PlainFile::open(path, delay)?;
                file.request_delay = delay;
                Arc::new(file)
            }
            DeviceSource::Volume(path, slow) => Arc::new(open_volume(path, *slow)?),
        })
    }

    /// A volume without delays.
    pub fn volume(path: &Path) -> DeviceSource {
        DeviceSource::Volume(path.to_owned(), SyncDelays::default())
    }
}

/// Opens a volume and waits for its members, and for its replica.
pub(crate) fn open_volume(path: &Path, slow: SyncDelays) -> Result<Volume, BenchError> {
    let mut settings = VolumePaths::at(path)
        .settings()
        .context("read a volume's settings")?;
    settings.modelled = ModelledDisk {
        journal: Duration::from_micros(slow.journal_us.into()),
        files: Duration::from_micros(slow.files_us.into()),
    };
    let (volume, _) = Volume::open_with(path, &settings).context("open a volume")?;
    if !settings.journal.lenders.is_empty() {
        volume
            .journal()
            .wait_for_members(JOIN_TIMEOUT)
            .map_err(|blocked| {
                BenchError::InvalidRequest(format!("the lenders did not join the volume: {blocked:?}"))
            })?;
    }
    if settings.data_lender.is_some() && !volume.wait_for_data_lender(COPY_TIMEOUT) {
        return Err(BenchError::InvalidRequest(
            "the data lender's copy did not come into service".to_owned(),
        ));
    }
    Ok(volume)
}

/// A running serving process, and a connection to it.
pub struct NbdServerProcess {
    /// The process.
    pub child: ChildProcess,
    /// The connection.
    pub client: NbdClient,
}

impl NbdServerProcess {
    /// Starts one. It ends with the calling thread.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started or reached.
    pub fn start(
        site: &Testbed,
        what: DeviceSource,
        core: Option<usize>,
    ) -> Result<NbdServerProcess, BenchError> {
        let serve = NbdServeJob {
            listen: site.listen(SocketKind::Unix).to_string(),
            what,
            core,
        };
        let mut child = ChildProcess::play(site.program(), &serve, "serve", site.directory())?;
        let addresses = listening_addresses(&child.ready("ready")?)?;
        match addresses.first() {
            Some(NetAddress::Unix(path)) => Ok(NbdServerProcess {
                client: NbdClient::connect(path)?,
                child,
            }),
            _ => Err(child.log_error("it named no Unix socket")),
        }
    }
}

/// A file as a device, without journal, checksums and replicas.
pub(crate) struct PlainFile {
    file: File,
    bytes: u64,
    sync_delay: Duration,
    /// Delay of each read and write.
    request_delay: Duration,
}

impl PlainFile {
    pub(crate) fn open(path: &Path, sync_delay: Duration) -> Result<PlainFile, BenchError> {
        let what = format_args!("open {}", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .context(what)?;
        let bytes = file.metadata().context(what)?.len() / 4096 * 4096;
        Ok(PlainFile {
            file,
            bytes,
            sync_delay,
            request_delay: Duration::ZERO,
        })
    }
}

fn failed(error: &std::io::Error) -> DeviceError {
    DeviceError::Io(
        error
            .raw_os_error()
            .map_or(IoError::EIO, |errno| IoError { errno }),
    )
}

/// Sleeps for `by`. A zero delay makes no system call, because that would cost a turn of the scheduler.
fn delay(by: Duration) {
    if !by.is_zero() {
        std::thread::sleep(by);
    }
}

impl BlockDevice for PlainFile {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            bytes: self.bytes,
            request_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        delay(self.request_delay);
        self.file
            .read_exact_at(into, offset)
            .map_err(|error| failed(&error))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        delay(self.request_delay);
        let written = self.file.write_all_at(bytes, offset);
        written
            .map(|()| PendingWrite::default())
            .map_err(|error| failed(&error))
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        let zeros = vec![0; 64 << 10];
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(zeros.len() as u64);
            self.write(offset + done, &zeros[..piece as usize])?;
            done += piece;
        }
        Ok(PendingWrite::default())
    }

    /// Ignores the discard, because a disk may keep its old contents.
    fn discard(&self, _: u64, _: u64) -> Result<PendingWrite, DeviceError> {
        Ok(PendingWrite::default())
    }

    fn wait(&self, _: PendingWrite) -> Result<(), DeviceError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        delay(self.sync_delay);
        self.file.sync_data().map_err(|error| failed(&error))
    }

    fn extents(
        &self,
        _: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        each(length, false);
        Ok(())
    }
}
