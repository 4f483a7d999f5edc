//! Requests of the Linux kernel's client on a socket pair, without a handshake. The kernel itself is tested
//! in a guest by the tests of `netram-cli`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use netram_block::{BlockDevice, SECTOR_BYTES};
use netram_nbd::wire::export;
use netram_nbd::wire::request::{command, flag};
use netram_nbd::wire::{REQUEST_MAGIC, SIMPLE_REPLY_MAGIC};
use netram_nbd::{MemoryDevice, NbdStats, kernel_flags, serve_kernel};

const PATIENCE: Duration = Duration::from_secs(120);

/// The kernel's end.
struct Kernel {
    socket: UnixStream,
    cookie: u64,
}

impl Kernel {
    /// Sends a request, and returns the error of its reply.
    fn ask(&mut self, command: u16, flags: u16, offset: u64, payload: &[u8], into: &mut [u8]) -> u32 {
        self.cookie += 1;
        let length = payload.len().max(into.len()) as u32;
        let mut request = Vec::new();
        request.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        request.extend_from_slice(&flags.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&self.cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(payload);
        self.socket.write_all(&request).unwrap();
        if command == command::DISC {
            return 0;
        }
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
        let error = u32::from_be_bytes(*reply[4..].first_chunk().unwrap());
        if error == 0 {
            self.socket.read_exact(into).unwrap();
        }
        error
    }
}

fn serve(device: &Arc<MemoryDevice>, read_only: bool) -> (Kernel, JoinHandle<NbdStats>) {
    let (ours, kernels) = UnixStream::pair().unwrap();
    kernels.set_read_timeout(Some(PATIENCE)).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    let serving = std::thread::spawn(move || serve_kernel(&device, ours.into(), read_only));
    let kernel = Kernel {
        socket: kernels,
        cookie: 0,
    };
    (kernel, serving)
}

#[test]
fn requests_are_served_without_a_handshake_until_the_kernel_disconnects() {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let (mut kernel, serving) = serve(&device, false);
    let sector = [7; SECTOR_BYTES as usize];
    assert_eq!(kernel.ask(command::WRITE, 0, 4096, &sector, &mut []), 0);
    assert_eq!(device.flushes(), 0);
    assert_eq!(kernel.ask(command::WRITE, flag::FUA, 8192, &sector, &mut []), 0);
    assert_eq!(device.flushes(), 1);
    assert_eq!(kernel.ask(command::FLUSH, 0, 0, &[], &mut []), 0);
    assert_eq!(device.flushes(), 2);
    let mut found = [1; 2 * SECTOR_BYTES as usize];
    assert_eq!(kernel.ask(command::READ, 0, 4096, &[], &mut found), 0);
    assert_eq!(found[..sector.len()], sector);
    assert_eq!(found[sector.len()..], [0; SECTOR_BYTES as usize]);
    // Beyond the end: an error reply, and the connection continues.
    assert_ne!(kernel.ask(command::READ, 0, 1 << 20, &[], &mut found), 0);
    assert_eq!(kernel.ask(command::READ, 0, 8192, &[], &mut found), 0);
    assert_eq!(found[..sector.len()], sector);
    kernel.ask(command::DISC, 0, 0, &[], &mut []);
    let stats = serving.join().unwrap();
    assert_eq!((stats.writes, stats.reads, stats.flushes), (2, 2, 2));
}

#[test]
fn a_kernel_that_closes_its_end_ends_the_service() {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let (kernel, serving) = serve(&device, false);
    drop(kernel);
    serving.join().unwrap();
}

#[test]
fn a_read_only_device_says_so_and_refuses_writes() {
    assert_eq!(kernel_flags(false) & export::READ_ONLY, 0);
    let flags = kernel_flags(true);
    assert_eq!(flags & (export::READ_ONLY | export::SEND_TRIM), export::READ_ONLY);
    assert_eq!(flags & export::SEND_FLUSH, export::SEND_FLUSH);
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let (mut kernel, serving) = serve(&device, true);
    let sector = [7; SECTOR_BYTES as usize];
    assert_ne!(kernel.ask(command::WRITE, 0, 0, &sector, &mut []), 0);
    let mut found = [1; SECTOR_BYTES as usize];
    assert_eq!(kernel.ask(command::READ, 0, 0, &[], &mut found), 0);
    assert_eq!(found, [0; SECTOR_BYTES as usize]);
    kernel.ask(command::DISC, 0, 0, &[], &mut []);
    serving.join().unwrap();
}
