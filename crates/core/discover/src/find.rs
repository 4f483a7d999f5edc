//! Finding lenders: all sources are asked at once, then every lender that they name.

use std::fmt;
use std::time::Duration;

use netram_proto::limit::LENDERS_MAX;
use netram_transport::{NetAddress, Security};

use crate::choose::{ChoiceRules, LenderCandidate, choose};
use crate::cluster_file::ClusterFile;
use crate::dns::servers::{RESOLV_CONF, name_servers};
use crate::dns::{self, DnsError};
use crate::limit::{FOUND_MAX, PROBE_PATIENCE};
use crate::mdns::{MdnsError, browse};
use crate::probe::{LenderFacts, LenderReport, ProbeError, probe};

/// The source that named a lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundBy {
    /// The caller, who knew its address: from a journal's view, or the environment.
    Known,
    /// The cluster file.
    File,
    /// SRV records.
    Dns,
    /// An announcement on the local network.
    Mdns,
}

impl FoundBy {
    /// Whether an operator named the lender, so that it may be tried later if it does not answer now. An
    /// announcement is anybody's.
    pub fn is_trusted(self) -> bool {
        self != FoundBy::Mdns
    }
}

impl fmt::Display for FoundBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            FoundBy::Known => "known",
            FoundBy::File => "file",
            FoundBy::Dns => "DNS",
            FoundBy::Mdns => "mDNS",
        })
    }
}

/// A lender that sources name.
#[derive(Debug)]
pub struct FoundLender {
    /// Its address: the one that answered, or the first.
    pub address: NetAddress,
    /// The sources that name it.
    pub by: Vec<FoundBy>,
    /// Its name, as a source has it.
    pub name: Option<String>,
    /// The label of its power supply, as a source has it.
    pub domain: Option<String>,
    /// DNS's priority; zero for others.
    pub priority: u16,
    /// Its answer, or why there is none.
    pub answer: Result<(LenderReport, LenderFacts), ProbeError>,
    /// Other addresses at which the same lender answers.
    pub aliases: Vec<NetAddress>,
}

/// Why a source named no lender.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The SRV records could not be had.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// Announcements could not be listened for.
    #[error(transparent)]
    Mdns(#[from] MdnsError),
    /// The system started no thread.
    #[error("the system refused a thread: {0}")]
    Thread(std::io::Error),
}

/// Everything that was found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The lenders, in the order in which sources name them. A lender with several addresses is there once.
    pub lenders: Vec<FoundLender>,
    /// The sources that failed.
    pub failures: Vec<SourceError>,
}

/// A lender before it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lead {
    addresses: Vec<NetAddress>,
    by: Vec<FoundBy>,
    name: Option<String>,
    domain: Option<String>,
    priority: u16,
}

impl Lead {
    fn at(address: NetAddress, by: FoundBy) -> Lead {
        Lead {
            addresses: vec![address],
            by: vec![by],
            name: None,
            domain: None,
            priority: 0,
        }
    }
}

/// Asks all sources of `cluster` for lenders, and then these and those at `known` for their reports. Takes no
/// longer than the slowest source and [`PROBE_PATIENCE`] for each address of a lender.
pub fn find(cluster: &ClusterFile, known: &[NetAddress], security: &Security) -> Discovery {
    let mut failures = Vec::new();
    let leads = leads(cluster, known, &mut failures);
    Discovery {
        lenders: unique(ask(leads, security, PROBE_PATIENCE)),
        failures,
    }
}

fn leads(cluster: &ClusterFile, known: &[NetAddress], failures: &mut Vec<SourceError>) -> Vec<Lead> {
    let mut leads: Vec<Lead> = Vec::new();
    for address in known {
        add(&mut leads, Lead::at(address.clone(), FoundBy::Known));
    }
    for lender in &cluster.lenders {
        let lead = Lead {
            name: lender.name.clone(),
            domain: lender.domain.clone(),
            ..Lead::at(lender.address.clone(), FoundBy::File)
        };
        add(&mut leads, lead);
    }
    let (records, announced) = std::thread::scope(|scope| {
        let by_dns = cluster.dns.as_deref().map(|domain| {
            let builder = std::thread::Builder::new().name("netram-discover".into());
            builder.spawn_scoped(scope, move || dns::look_up(domain, &servers()))
        });
        let announced = cluster.mdns.then(|| browse(cluster.mdns_wait));
        let records = by_dns.map(|thread| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                .map_err(SourceError::Dns),
            Err(error) => Err(SourceError::Thread(error)),
        });
        (records, announced)
    });
    match records.transpose() {
        Ok(records) => records.into_iter().flatten().for_each(|record| {
            let lead = Lead {
                priority: record.priority,
                ..Lead::at(record.address, FoundBy::Dns)
            };
            add(&mut leads, lead);
        }),
        Err(error) => failures.push(error),
    }
    match announced.transpose() {
        Ok(announced) => announced.into_iter().flatten().for_each(|lender| {
            let lead = Lead {
                addresses: lender.addresses,
                by: vec![FoundBy::Mdns],
                name: lender.name,
                domain: lender.domain,
                priority: 0,
            };
            add(&mut leads, lead);
        }),
        Err(error) => failures.push(error.into()),
    }
    leads
}

/// Adds a lead, to the one with the same address if there is one.
fn add(leads: &mut Vec<Lead>, lead: Lead) {
    let same = |other: &&mut Lead| {
        lead.addresses
            .iter()
            .any(|address| other.addresses.contains(address))
    };
    let has_room = leads.len() < FOUND_MAX;
    match leads.iter_mut().find(same) {
        Some(known) => {
            known.by.extend(
                lead.by
                    .iter()
                    .filter(|by| !known.by.contains(by))
                    .collect::<Vec<_>>(),
            );
            known.name = known.name.take().or(lead.name);
            known.domain = known.domain.take().or(lead.domain);
            known.priority = known.priority.max(lead.priority);
        }
        // Announcements come last: they cannot take the place of what an operator names.
        None if has_room => leads.push(lead),
        None => (),
    }
}

/// Asks all at once, so that one that does not answer delays no other.
fn ask(leads: Vec<Lead>, security: &Security, timeout: Duration) -> Vec<FoundLender> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = leads
            .iter()
            .map(|lead| {
                let builder = std::thread::Builder::new().name("netram-discover".into());
                builder.spawn_scoped(scope, move || ask_one(&lead.addresses, security, timeout))
            })
            .collect();
        let answers = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => (0, Err(ProbeError::System(error))),
        });
        // All threads have been started: each is waited for in turn.
        let answers: Vec<_> = answers.collect();
        leads
            .iter()
            .zip(answers)
            .map(|(lead, (index, answer))| FoundLender {
                address: lead.addresses[index].clone(),
                by: lead.by.clone(),
                name: lead.name.clone(),
                domain: lead.domain.clone(),
                priority: lead.priority,
                answer,
                aliases: Vec::new(),
            })
            .collect()
    })
}

/// Asks at one address after the other. Returns the index of the one that answered, or of the first.
fn ask_one(
    addresses: &[NetAddress],
    security: &Security,
    timeout: Duration,
) -> (usize, Result<(LenderReport, LenderFacts), ProbeError>) {
    let mut first_failure = None;
    for (index, address) in addresses.iter().enumerate() {
        let answer = probe(address, security, timeout).and_then(|report| {
            let facts = LenderFacts::parse(&report.body)?;
            Ok((report, facts))
        });
        match answer {
            Ok(answer) => return (index, Ok(answer)),
            Err(error) => first_failure = first_failure.or(Some(error)),
        }
    }
    (0, Err(first_failure.unwrap_or(ProbeError::NoAnswer)))
}

/// Merges lenders that are the same memory, reached at several addresses: two copies there would be one.
fn unique(found: Vec<FoundLender>) -> Vec<FoundLender> {
    let mut unique: Vec<FoundLender> = Vec::new();
    for lender in found {
        let incarnation = lender.facts().map(|facts| facts.incarnation.as_str());
        let same = unique.iter_mut().find(|other| {
            let known = other.facts().map(|facts| facts.incarnation.as_str());
            known.is_some() && known == incarnation
        });
        match same {
            Some(known) => {
                known.by.extend(
                    lender
                        .by
                        .iter()
                        .filter(|by| !known.by.contains(by))
                        .collect::<Vec<_>>(),
                );
                known.aliases.push(lender.address);
            }
            None => unique.push(lender),
        }
    }
    unique
}

impl FoundLender {
    /// What the lender says of itself; `None` if it has not answered.
    pub fn facts(&self) -> Option<&LenderFacts> {
        self.answer.as_ref().ok().map(|(_, facts)| facts)
    }

    /// The lender as the choice sees it, for a journal with a window of `window_bytes`.
    pub fn candidate(&self, window_bytes: u64) -> LenderCandidate {
        let facts = self.facts();
        let domain = facts.map(|facts| &facts.domain).or(self.domain.as_ref());
        LenderCandidate {
            usable: facts.is_some_and(|facts| !facts.is_leaving() && facts.has_room(window_bytes)),
            domain: domain.cloned().unwrap_or_default(),
            priority: self.priority,
            round_trip: self.answer.as_ref().ok().map(|(report, _)| report.round_trip),
            free_bytes: facts.map_or(0, |facts| facts.memory.free),
        }
    }
}

impl Discovery {
    /// The addresses that a journal uses: of the lenders that answered, and of those that an operator or the
    /// journal itself names, the best first, and at most [`LENDERS_MAX`]. Those in `needed` are among them,
    /// whatever else was found.
    pub fn addresses(
        &self,
        needed: &[NetAddress],
        rules: &ChoiceRules,
        window_bytes: u64,
    ) -> Vec<NetAddress> {
        let is_usable =
            |lender: &&FoundLender| lender.answer.is_ok() || lender.by.iter().any(|by| by.is_trusted());
        let lenders: Vec<&FoundLender> = self.lenders.iter().filter(is_usable).collect();
        let candidates: Vec<LenderCandidate> =
            lenders.iter().map(|one| one.candidate(window_bytes)).collect();
        let order = choose(&candidates, rules);
        let is_needed = |index: &usize| needed.contains(&lenders[*index].address);
        let mut others = LENDERS_MAX
            - order
                .iter()
                .filter(|index| is_needed(index))
                .count()
                .min(LENDERS_MAX);
        let kept = order.into_iter().filter(|index| {
            let has_place = is_needed(index) || others > 0;
            others -= usize::from(has_place && !is_needed(index));
            has_place
        });
        kept.take(LENDERS_MAX)
            .map(|index| lenders[index].address.clone())
            .collect()
    }

    /// Names that several lenders have, each with their addresses. Names are for people; two lenders with
    /// one name cannot be told apart in tables and logs.
    pub fn shared_names(&self) -> Vec<(&str, Vec<&NetAddress>)> {
        let mut shared: Vec<(&str, Vec<&NetAddress>)> = Vec::new();
        for lender in &self.lenders {
            let Some(facts) = lender.facts() else { continue };
            match shared.iter_mut().find(|(name, _)| *name == facts.name) {
                Some((_, addresses)) => addresses.push(&lender.address),
                None => shared.push((&facts.name, vec![&lender.address])),
            }
        }
        shared.retain(|(_, addresses)| addresses.len() > 1);
        shared
    }
}

/// The name servers of this machine.
fn servers() -> Vec<std::net::SocketAddr> {
    // Without the file the machine's own server is asked, as the C library does.
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    name_servers(&text, &|name| {
        let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?;
        index.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> NetAddress {
        format!("tcp://10.0.0.1:{port}").parse().unwrap()
    }

    fn found(port: u16, name: &str, incarnation: &str) -> FoundLender {
        let facts = LenderFacts {
            name: name.to_owned(),
            incarnation: incarnation.to_owned(),
            ..LenderFacts::default()
        };
        let report = LenderReport {
            body: Vec::new(),
            round_trip: Duration::ZERO,
        };
        FoundLender {
            address: address(port),
            by: vec![FoundBy::Mdns],
            name: None,
            domain: None,
            priority: 0,
            answer: Ok((report, facts)),
            aliases: Vec::new(),
        }
    }

    #[test]
    fn an_address_that_several_sources_name_is_asked_once() {
        let mut leads = Vec::new();
        add(&mut leads, Lead::at(address(1), FoundBy::File));
        let dns = Lead {
            priority: 7,
            name: Some("a".to_owned()),
            ..Lead::at(address(1), FoundBy::Dns)
        };
        add(&mut leads, dns.clone());
        add(&mut leads, dns);
        add(&mut leads, Lead::at(address(2), FoundBy::Mdns));
        assert_eq!(leads.len(), 2);
        assert_eq!(leads[0].by, [FoundBy::File, FoundBy::Dns]);
        assert_eq!((leads[0].priority, leads[0].name.as_deref()), (7, Some("a")));
    }

    fn silent(port: u16, by: FoundBy) -> FoundLender {
        FoundLender {
            by: vec![by],
            answer: Err(ProbeError::NoAnswer),
            ..found(port, "", "")
        }
    }

    fn addresses(lenders: Vec<FoundLender>, needed: &[NetAddress]) -> Vec<NetAddress> {
        let discovery = Discovery {
            lenders,
            failures: Vec::new(),
        };
        let rules = ChoiceRules {
            domain: "home".to_owned(),
            one_domain: false,
        };
        discovery.addresses(needed, &rules, 0)
    }

    /// Recovery may need a member that nobody names any more, and that is down at this moment.
    #[test]
    fn a_member_of_the_view_has_its_place_whatever_else_is_found() {
        let mut lenders: Vec<FoundLender> = (1..=40).map(|port| found(port, "", &port.to_string())).collect();
        lenders.push(silent(100, FoundBy::Known));
        lenders.push(silent(101, FoundBy::Known));
        let chosen = addresses(lenders, &[address(100), address(101)]);
        assert_eq!(chosen.len(), LENDERS_MAX);
        assert_eq!(chosen[LENDERS_MAX - 2..], [address(100), address(101)]);
        assert_eq!(chosen[0], address(1));
    }

    #[test]
    fn an_operator_names_lenders_that_are_down_and_an_announcement_does_not() {
        let lenders = vec![
            silent(1, FoundBy::Mdns),
            silent(2, FoundBy::File),
            silent(3, FoundBy::Dns),
            silent(4, FoundBy::Known),
            found(5, "", "x"),
        ];
        assert_eq!(addresses(lenders, &[]), [5, 2, 3, 4].map(address));
        assert!(addresses(vec![silent(1, FoundBy::Mdns)], &[]).is_empty());
    }

    #[test]
    fn announcements_without_end_take_nobodys_place() {
        let mut leads = vec![Lead::at(address(1), FoundBy::File)];
        for port in 2..1000 {
            add(&mut leads, Lead::at(address(port), FoundBy::Mdns));
        }
        assert_eq!(leads.len(), FOUND_MAX);
        assert_eq!(leads[0].by, [FoundBy::File]);
    }

    #[test]
    fn one_memory_at_two_addresses_is_one_lender_and_two_with_one_name_are_two() {
        let lenders = unique(vec![found(1, "a", "x"), found(2, "a", "y"), found(3, "a", "x")]);
        let discovery = Discovery {
            lenders,
            failures: Vec::new(),
        };
        assert_eq!(discovery.lenders.len(), 2);
        assert_eq!(discovery.lenders[0].aliases, [address(3)]);
        assert_eq!(discovery.shared_names(), [("a", vec![&address(1), &address(2)])]);
    }
}
