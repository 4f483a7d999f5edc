//! The part of a virtual machine and of its guest's driver that the server talks to.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const MEMORY_BYTES: usize = 8 << 20;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
/// Place of data.
pub(crate) const DATA: u64 = 0x10000;
pub(crate) const QUEUE_SIZE: u16 = 128;
/// Fails a test in place of hanging it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flag of a descriptor that the device writes to.
pub(crate) const WRITABLE: u16 = 2;
const NEXT: u16 = 1;

/// A part of a request: address, bytes, flags.
pub(crate) type Part = (u64, u32, u16);

/// A guest's memory with a queue in it.
pub(crate) struct GuestMachine {
    file: File,
    pub(crate) memory: GuestMemoryMmap,
    /// Number of requests that were offered.
    offered: u16,
    next_descriptor: u16,
}

/// The connection of a virtual machine.
pub(crate) struct DiskConnection {
    frontend: Frontend,
    kick: EventFd,
    call: EventFd,
}

impl GuestMachine {
    pub(crate) fn new() -> GuestMachine {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY_BYTES as u64).unwrap();
        let backing = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), MEMORY_BYTES, Some(backing));
        GuestMachine {
            file,
            memory: GuestMemoryMmap::from_ranges_with_files([range]).unwrap(),
            offered: 0,
            next_descriptor: 0,
        }
    }

    /// Connects and starts the queue, behind the requests that are answered already, as QEMU does.
    pub(crate) fn connect(&self, socket: &Path) -> DiskConnection {
        let mut frontend = Frontend::connect(socket, 1).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let known = frontend.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ;
        assert!(known.contains(wanted));
        frontend.set_protocol_features(wanted).unwrap();
        // Without events at an index: every answer is told.
        frontend.set_features(features & !(1 << 29)).unwrap();
        let host = |at: u64| self.memory.get_host_address(GuestAddress(at)).unwrap() as u64;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES as u64,
            userspace_addr: host(0),
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        let queue = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: host(DESCRIPTORS),
            used_ring_addr: host(USED),
            avail_ring_addr: host(AVAILABLE),
            log_addr: None,
        };
        frontend.set_vring_num(0, QUEUE_SIZE).unwrap();
        frontend.set_vring_base(0, self.answered()).unwrap();
        frontend.set_vring_addr(0, &queue).unwrap();
        let (kick, call) = (
            EventFd::new(EFD_NONBLOCK).unwrap(),
            EventFd::new(EFD_NONBLOCK).unwrap(),
        );
        frontend.set_vring_call(0, &call).unwrap();
        frontend.set_vring_kick(0, &kick).unwrap();
        frontend.set_vring_enable(0, true).unwrap();
        kick.write(1).unwrap();
        DiskConnection { frontend, kick, call }
    }

    /// Puts a request in the queue without telling anybody.
    pub(crate) fn offer(&mut self, parts: &[Part]) {
        let first = self.next_descriptor;
        for (index, &(address, bytes, flags)) in parts.iter().enumerate() {
            let (at, next) = (self.next_descriptor, (self.next_descriptor + 1) % QUEUE_SIZE);
            let last = index + 1 == parts.len();
            let flags = if last { flags } else { flags | NEXT };
            let entry = GuestAddress(DESCRIPTORS + 16 * u64::from(at));
            let words = [u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48];
            self.memory.write_obj(address, entry).unwrap();
            self.memory
                .write_obj(words[0], GuestAddress(entry.0 + 8))
                .unwrap();
            self.next_descriptor = next;
        }
        let slot = GuestAddress(AVAILABLE + 4 + 2 * u64::from(self.offered % QUEUE_SIZE));
        self.memory.write_obj(first, slot).unwrap();
        self.offered = self.offered.wrapping_add(1);
        self.memory
            .write_obj(self.offered, GuestAddress(AVAILABLE + 2))
            .unwrap();
    }

    /// First descriptor of the next request.
    pub(crate) fn next_head(&self) -> u16 {
        self.next_descriptor
    }

    /// Number of requests that are answered, which the server counts in the guest's memory.
    pub(crate) fn answered(&self) -> u16 {
        self.memory.read_obj(GuestAddress(USED + 2)).unwrap()
    }

    /// First descriptor and bytes written of an answer.
    pub(crate) fn answer(&self, index: u16) -> (u32, u32) {
        let at = GuestAddress(USED + 4 + 8 * u64::from(index % QUEUE_SIZE));
        let word: u64 = self.memory.read_obj(at).unwrap();
        (word as u32, (word >> 32) as u32)
    }

    /// Header of a request at `at`.
    pub(crate) fn header(&self, at: u64, kind: u32, sector: u64) {
        self.memory.write_obj(u64::from(kind), GuestAddress(at)).unwrap();
        self.memory.write_obj(sector, GuestAddress(at + 8)).unwrap();
    }

    pub(crate) fn byte(&self, at: u64) -> u8 {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }
}

impl DiskConnection {
    /// Tells the server of requests.
    pub(crate) fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// Waits until `count` requests are answered in all, and the server has told so.
    pub(crate) fn wait(&self, machine: &GuestMachine, count: u16) {
        let deadline = Instant::now() + PATIENCE;
        // The event comes after the answer.
        while self.call.read().is_err() || machine.answered() != count {
            assert!(
                Instant::now() < deadline,
                "{} of {count} requests are answered",
                machine.answered()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The first bytes of the disk's fields.
    pub(crate) fn fields(&mut self, bytes: u32) -> Vec<u8> {
        let space = vec![0; bytes as usize];
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend.get_config(0, bytes, flags, &space).unwrap().1
    }

    /// Whether the server still answers the virtual machine's messages.
    pub(crate) fn is_alive(&self) -> bool {
        self.frontend.get_features().is_ok()
    }

    /// Stops the queue. The position behind the requests that the server has taken.
    pub(crate) fn stop(&self) -> u32 {
        self.frontend.get_vring_base(0).unwrap()
    }
}
