//! Swap for the time of a measurement: to a file, to a file on a modelled slower disk, or to compressed
//! memory. Existing swap of the machine stays and is used after this.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cleanup::{CleanupItem, ZRAM, ZRAM_NAME, end_swap, register, unregister};
use crate::device::BlockDevice;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::tool;

/// Higher than the priority of any swap that an administrator has set up.
const PRIORITY: &str = "32000";
/// The compression algorithm of far memory, so that both compress alike.
const ALGORITHM: &str = "lz4";

/// Swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwapTarget {
    File,
    /// A file whose requests take this many microseconds more.
    SlowDisk(u32),
    Compressed,
}

/// Swap that is in use until this is dropped. Processes that use it must have ended by then.
#[derive(Debug)]
pub(super) struct SwapArea {
    path: PathBuf,
    /// Backs `path`, and is removed after it.
    _backing: SwapBacking,
}

#[derive(Debug)]
enum SwapBacking {
    File(PathBuf),
    Device(#[expect(dead_code, reason = "held until the swap is dropped")] BlockDevice),
    /// The kernel's own device, which is removed when it is no longer swapped to.
    Zram,
}

impl SwapArea {
    pub(super) fn on(site: &Testbed, to: SwapTarget, bytes: u64) -> Result<SwapArea, BenchError> {
        let (path, below) = match to {
            SwapTarget::File => {
                let path = file(site, bytes)?;
                (path.clone(), SwapBacking::File(path))
            }
            SwapTarget::SlowDisk(us) => {
                let device = BlockDevice::of_slow_disk(site, bytes, us)?;
                (device.path().to_owned(), SwapBacking::Device(device))
            }
            SwapTarget::Compressed => (zram(bytes)?, SwapBacking::Zram),
        };
        let text = path.to_string_lossy().into_owned();
        tool("mkswap", &[&text])?;
        register(CleanupItem::Swap(path.clone()));
        let swap = SwapArea {
            path,
            _backing: below,
        };
        tool("swapon", &["--priority", PRIORITY, &text])?;
        Ok(swap)
    }
}

impl Drop for SwapArea {
    fn drop(&mut self) {
        // Fails if swap was never on. Another failure cannot be reported from here.
        let _ = end_swap(&self.path);
        unregister(&CleanupItem::Swap(self.path.clone()));
    }
}

impl Drop for SwapBacking {
    fn drop(&mut self) {
        // As above.
        let _ = match self {
            SwapBacking::File(path) => fs::remove_file(path),
            SwapBacking::Device(_) | SwapBacking::Zram => Ok(()),
        };
    }
}

fn file(site: &Testbed, bytes: u64) -> Result<PathBuf, BenchError> {
    let path = site.directory().join(format!("swap-{}", site.number()));
    let what = format_args!("make a file of {bytes} bytes to swap to");
    let file = File::create_new(&path).context(what)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .context(what)?;
    // The kernel refuses to swap to a file with holes.
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).context(what)?;
    Ok(path)
}

fn zram(bytes: u64) -> Result<PathBuf, BenchError> {
    let what = "make a device of compressed memory (zram)";
    let number = fs::read_to_string(Path::new(ZRAM).join("hot_add")).context(what)?;
    let number = number.trim();
    let path = PathBuf::from(format!("/dev/{ZRAM_NAME}{number}"));
    let set = |name: &str, value: &str| {
        let file = format!("/sys/block/{ZRAM_NAME}{number}/{name}");
        fs::write(file, value).context(what)
    };
    // A kernel built without this algorithm uses its default.
    let _ = set("comp_algorithm", ALGORITHM);
    if let Err(error) = set("disksize", &bytes.to_string()) {
        // It was never on; the first error is the one to report.
        let _ = end_swap(&path);
        return Err(error);
    }
    Ok(path)
}
