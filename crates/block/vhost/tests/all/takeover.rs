//! A server that ends with requests in its queue, and another that takes over.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use netram_block::{BlockDevice, DeviceError, DeviceGeometry, PendingWrite};
use netram_nbd::MemoryDevice;
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{DATA, GuestMachine, WRITABLE};
use crate::{MIB, serve};

/// A device whose writes become durable only once they are released.
struct HeldDevice {
    inner: Arc<MemoryDevice>,
    hold: Mutex<DeviceHold>,
    changed: Condvar,
}

/// Whether writes wait, and whether one does.
struct DeviceHold {
    held: bool,
    waiting: bool,
}

impl HeldDevice {
    fn new(inner: &Arc<MemoryDevice>, held: bool) -> Arc<HeldDevice> {
        Arc::new(HeldDevice {
            inner: Arc::clone(inner),
            hold: Mutex::new(DeviceHold { held, waiting: false }),
            changed: Condvar::new(),
        })
    }

    fn wait_until_asked(&self) {
        let hold = self.hold.lock().unwrap();
        drop(self.changed.wait_while(hold, |hold| !hold.waiting).unwrap());
    }

    fn release(&self) {
        self.hold.lock().unwrap().held = false;
        self.changed.notify_all();
    }
}

impl BlockDevice for HeldDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        self.inner.write(offset, bytes)
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.inner.zero(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.inner.discard(offset, length)
    }

    fn wait(&self, _: PendingWrite) -> Result<(), DeviceError> {
        let mut hold = self.hold.lock().unwrap();
        hold.waiting = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(hold, |hold| hold.held).unwrap());
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        self.inner.extents(offset, length, each)
    }
}

/// Offers to write block `number`.
fn write(machine: &mut GuestMachine, number: u64) {
    let at = DATA + 0x2000 * number;
    machine.header(at, 1, 8 * number);
    machine.memory.write_obj(0xee_u8, GuestAddress(at + 64)).unwrap();
    machine
        .memory
        .write_slice(&[number as u8 + 1; 4096], GuestAddress(at + 0x1000))
        .unwrap();
    machine.offer(&[(at, 16, 0), (at + 0x1000, 4096, 0), (at + 64, 1, WRITABLE)]);
}

#[test]
fn requests_that_a_dead_server_had_begun_are_carried_out_by_the_next() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let inner = Arc::new(MemoryDevice::new(MIB));
    let [dead, next] = [true, false].map(|held| HeldDevice::new(&inner, held));
    let mut machine = GuestMachine::new();
    // Its thread waits for ever, and so would its end.
    let _dead = ManuallyDrop::new(serve(directories[0].path(), &dead, false));
    let connection = machine.connect(&directories[0].path().join("disk"));
    for number in 0..3 {
        write(&mut machine, number);
    }
    connection.kick();
    dead.wait_until_asked();
    // These wait in the queue.
    for number in 3..5 {
        write(&mut machine, number);
    }
    assert_eq!(machine.answered(), 0);
    let _gone = ManuallyDrop::new(connection);
    let _server = serve(directories[1].path(), &next, false);
    let connection = machine.connect(&directories[1].path().join("disk"));
    connection.wait(&machine, 5);
    let mut block = vec![0; 4096];
    for number in 0..5 {
        assert_eq!(machine.byte(DATA + 0x2000 * number + 64), 0, "{number}");
        next.read(4096 * number, &mut block).unwrap();
        assert!(block.iter().all(|byte| *byte == number as u8 + 1), "{number}");
    }
}

/// The virtual machine counts the answers when the connection ends. A later one would be given twice.
#[test]
fn a_server_that_stops_answers_what_it_has_begun_before_the_connection_ends() {
    let directory = tempfile::tempdir().unwrap();
    let device = HeldDevice::new(&Arc::new(MemoryDevice::new(MIB)), true);
    let server = serve(directory.path(), &device, false);
    let mut machine = GuestMachine::new();
    let connection = machine.connect(&directory.path().join("disk"));
    write(&mut machine, 0);
    connection.kick();
    device.wait_until_asked();
    // This one is left in the queue for the next server.
    write(&mut machine, 1);
    let stopping = std::thread::spawn(move || drop(server));
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(connection.is_alive() && machine.answered() == 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    device.release();
    stopping.join().unwrap();
    assert!(!connection.is_alive());
    assert_eq!(machine.answered(), 1);
    let _server = serve(directory.path(), &device, false);
    machine.connect(&directory.path().join("disk")).wait(&machine, 2);
}

#[test]
fn a_virtual_machine_that_comes_again_is_told_of_answers_it_has_not_heard() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let _server = serve(directory.path(), &device, false);
    let mut machine = GuestMachine::new();
    let connection = machine.connect(&directory.path().join("disk"));
    machine.header(DATA, 4, 0);
    machine.offer(&[(DATA, 16, 0), (DATA + 64, 1, WRITABLE)]);
    connection.kick();
    connection.wait(&machine, 1);
    drop(connection);
    // Nothing is left to do, and yet the guest hears of it.
    machine.connect(&directory.path().join("disk")).wait(&machine, 1);
}
