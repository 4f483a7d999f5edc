//! The lenders, their addresses, and which lender each address leads to. A machine inside knows addresses
//! only; the lender's memory identifies itself.

use std::ops::{Index, IndexMut};

use netram_proto::id::Incarnation;
use netram_proto::journal::ViewMember;
use netram_proto::time::{Nanos, Time};

use crate::kernel::SimKernel;
use crate::lender::SimLender;
use crate::named_clients::NamedClients;
use crate::profile::WorldProfile;

/// Time after which a lender's loss of its memory is no longer recent.
const LOSS_RECENT: Nanos = Nanos::from_ms(5000);

/// All lenders of a world, by number.
pub struct Lenders {
    lenders: Vec<SimLender>,
    /// Index of the lender that each address of the settings leads to now.
    at_address: Vec<Option<usize>>,
    /// Whether each address is in the settings.
    named: Vec<bool>,
    /// Whether an intruder has changed the journal's member, by lender.
    tampered: Vec<bool>,
    /// When each lender last lost its memory.
    lost_at: Vec<Time>,
    /// The newest incarnation that any memory has.
    newest: u64,
    hostile: Option<usize>,
    intruded: bool,
}

impl Lenders {
    /// Lenders as `profile` describes them, with empty memory.
    pub(crate) fn new(profile: &WorldProfile) -> Lenders {
        let lenders = (1..).zip(&profile.domains);
        let lenders = lenders.map(|(number, domain)| SimLender::new(domain.clone(), Incarnation(number)));
        let mut lenders: Vec<SimLender> = lenders.collect();
        for lender in lenders.iter_mut().filter(|_| profile.names_clients()) {
            lender.clients = Some(NamedClients::new(profile.window));
        }
        Lenders {
            named: vec![true; profile.address_lenders.len()],
            at_address: profile.address_lenders.clone(),
            tampered: vec![false; lenders.len()],
            lost_at: vec![Time(0); lenders.len()],
            newest: lenders.len() as u64,
            hostile: profile.hostile,
            intruded: profile.intruded,
            lenders,
        }
    }

    /// Number of lenders.
    pub fn len(&self) -> usize {
        self.lenders.len()
    }

    /// Whether there are no lenders.
    pub fn is_empty(&self) -> bool {
        self.lenders.is_empty()
    }

    /// The lenders, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &SimLender> + Clone {
        self.lenders.iter()
    }

    /// Whether each address is in the settings.
    pub(crate) fn named(&self) -> &[bool] {
        &self.named
    }

    /// Changes which addresses are in the settings.
    pub(crate) fn set_named(&mut self, named: &[bool]) {
        self.named.copy_from_slice(named);
    }

    /// The addresses in the settings, by number.
    pub(crate) fn named_addresses(&self) -> impl Iterator<Item = usize> {
        (0..self.named.len()).filter(|&address| self.named[address])
    }

    /// Number of addresses, in the settings or not.
    pub(crate) fn address_count(&self) -> usize {
        self.at_address.len()
    }

    /// The lenders' addresses, as the settings have them.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.named_addresses().map(|index| format!("l{index}")).collect()
    }

    /// The lender to which an address leads now. `None`: no lender is there.
    pub(crate) fn at_address(&self, address: usize) -> Option<usize> {
        self.at_address.get(address).copied().flatten()
    }

    /// The first address that leads to a lender.
    pub(crate) fn address_of(&self, lender: usize) -> Option<usize> {
        self.at_address.iter().position(|there| *there == Some(lender))
    }

    /// Exchanges the lenders at two addresses. Returns those that moved; none if both addresses lead to the
    /// same.
    pub(crate) fn swap_addresses(&mut self, one: usize, other: usize) -> Option<Vec<usize>> {
        if self.at_address[one] == self.at_address[other] {
            return None;
        }
        let moved = [self.at_address[one], self.at_address[other]];
        self.at_address.swap(one, other);
        Some(moved.into_iter().flatten().collect())
    }

    /// The lender whose memory a view names. A lying lender may have given any incarnation, so it is known by
    /// its address.
    pub(crate) fn lender_of(&self, member: &ViewMember) -> usize {
        let life = member.incarnation;
        let is = |lender: &SimLender| {
            lender.incarnation == life || lender.lost_memories.iter().any(|(past, _)| *past == life)
        };
        self.lenders
            .iter()
            .position(is)
            .or_else(|| self.at_address(lender_at(&member.address)))
            .unwrap_or_default()
    }

    /// The lender whose memory a view names.
    pub(crate) fn member(&self, member: &ViewMember) -> &SimLender {
        &self.lenders[self.lender_of(member)]
    }

    /// Kills a lender's machine with its memory.
    pub(crate) fn lose(&mut self, lender: usize, now: Time) {
        let next = self.next_incarnation();
        self.lost_at[lender] = now;
        self.lenders[lender].lose(next);
    }

    /// Starts a lender's process. `false`: its memory did not match its saved state and was forgotten.
    pub(crate) fn start(&mut self, kernel: &SimKernel, lender: usize) -> bool {
        let next = self.next_incarnation();
        let proven = self.lenders[lender].start(kernel.journal(), next, kernel.planted());
        if !proven {
            self.lost_at[lender] = kernel.now();
        }
        proven
    }

    /// Incarnation for the next memory that begins.
    pub(crate) fn next_incarnation(&mut self) -> Incarnation {
        self.newest += 1;
        Incarnation(self.newest)
    }

    /// Whether a lender lost its memory a short time ago.
    pub(crate) fn has_lost_recently(&self, lender: usize, now: Time) -> bool {
        let lost_at = self.lost_at[lender];
        now.since(lost_at) < LOSS_RECENT && lost_at > Time(0)
    }

    /// Records that an intruder has changed the journal's member at a lender.
    pub(crate) fn mark_tampered(&mut self, lender: usize) {
        self.tampered[lender] = true;
    }

    /// Whether a lender's answers mean nothing: it lies, or an intruder has changed the journal's member
    /// there.
    pub(crate) fn is_untrusted(&self, lender: usize) -> bool {
        self.hostile == Some(lender) || self.tampered[lender]
    }

    /// Whether the world has a lying lender or an intruder.
    pub(crate) fn has_liars(&self) -> bool {
        self.hostile.is_some() || self.intruded
    }
}

impl Index<usize> for Lenders {
    type Output = SimLender;

    fn index(&self, lender: usize) -> &SimLender {
        &self.lenders[lender]
    }
}

impl IndexMut<usize> for Lenders {
    fn index_mut(&mut self, lender: usize) -> &mut SimLender {
        &mut self.lenders[lender]
    }
}

/// The number of an address: the lender's, if no address leads elsewhere.
pub(crate) fn lender_at(address: &str) -> usize {
    address
        .strip_prefix('l')
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}
