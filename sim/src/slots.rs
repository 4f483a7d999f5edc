//! The slots of processes: addresses as the machines inside number them, each perhaps with a connection.

use crate::lenders::Lenders;

/// One slot of a process's machine.
#[derive(Clone, Copy, Debug)]
struct ProcessSlot {
    /// The address that the machine means by the slot.
    address: usize,
    conn: Option<usize>,
}

/// The slots of all processes.
#[derive(Debug, Default)]
pub(crate) struct ProcessSlots(Vec<Vec<ProcessSlot>>);

impl ProcessSlots {
    /// Adds a process without slots.
    pub(crate) fn add_process(&mut self) {
        self.0.push(Vec::new());
    }

    /// Gives a process new slots, without connections, for these addresses.
    pub(crate) fn set(&mut self, process: usize, addresses: impl Iterator<Item = usize>) {
        let slots = addresses.map(|address| ProcessSlot { address, conn: None });
        self.0[process] = slots.collect();
    }

    /// Lets a slot of a process, which may be a new one, lead to `address`.
    pub(crate) fn lead(&mut self, process: usize, slot: usize, address: usize) {
        let slots = &mut self.0[process];
        if slot == slots.len() {
            slots.push(ProcessSlot { address, conn: None });
        }
        if slots[slot].address != address {
            slots[slot] = ProcessSlot { address, conn: None };
        }
    }

    /// Number of slots of a process.
    pub(crate) fn count(&self, process: usize) -> usize {
        self.0[process].len()
    }

    /// The address that a process's machine means by a slot.
    pub(crate) fn address(&self, process: usize, slot: usize) -> usize {
        self.0[process][slot].address
    }

    /// The connection in a slot of a process.
    pub(crate) fn conn(&self, process: usize, slot: usize) -> Option<usize> {
        self.0[process][slot].conn
    }

    /// Puts a connection into a slot.
    pub(crate) fn put(&mut self, process: usize, slot: usize, conn: usize) {
        self.0[process][slot].conn = Some(conn);
    }

    /// Takes a connection out of a slot, if it is there.
    pub(crate) fn remove(&mut self, process: usize, slot: usize, conn: usize) {
        if let Some(slot) = self.0[process].get_mut(slot)
            && slot.conn == Some(conn)
        {
            slot.conn = None;
        }
    }

    /// All connections in slots, by process and slot.
    pub(crate) fn conns(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flatten().filter_map(|slot| slot.conn)
    }

    /// The connections in the slots of a process.
    pub(crate) fn conns_of(&self, process: usize) -> Vec<usize> {
        self.0[process].iter().filter_map(|slot| slot.conn).collect()
    }

    /// Slot under which a process's machine knows a lender.
    pub(crate) fn of_lender(&self, lenders: &Lenders, process: usize, lender: usize) -> Option<usize> {
        let mut slots = self.0[process].iter();
        slots.position(|slot| lenders.at_address(slot.address) == Some(lender))
    }
}
