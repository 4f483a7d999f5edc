//! `netram status`: the cluster, as clients with `lenders = "auto"` find it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_discover::cluster_file::CLUSTER_VARIABLE;
use netram_discover::{ChoiceRules, ClusterFile, Discovery, FoundBy, FoundLender, choose, find};
use netram_journal::JournalSettings;
use netram_journal::config::{DOMAIN_DEFAULT, WINDOW_BYTES_DEFAULT};
use netram_lender::StatusReport;
use serde::Serialize;

use super::lender::status::explained;
use super::lender::status_tables::{journals_used, state};
use crate::options::{LENDERS_VARIABLE, SecurityArgs, lenders_in_environment, named_addresses};
use crate::output;

/// Show the cluster: the lenders that are found, and how each is
///
/// Lenders are looked for as journals with lenders = "auto" do: by the cluster file, by the DNS
/// domain that it names, and by what lenders announce on the local networks (netram lender serve
/// --announce). Those in NETRAM_LENDERS are shown too. The best come first: an opening with
/// "auto" prefers them in this order.
///
///   domain      label of the lender's power supply
///   round trip  time of a small exchange with the lender, from this machine
///   found by    the sources that name it: file, DNS, mDNS, or NETRAM_LENDERS
///
/// A lender that does not answer, or has another cluster key, has a line with the reason and makes
/// the exit code 1, as does a source that fails. Anybody on the network can announce a lender;
/// only one that holds the cluster key is used.
///
/// The cluster file is ~/.config/netram/cluster.toml if there is one and you are not root, or else
/// /etc/netram/cluster.toml:
///
///   dns = "example.org"     # SRV records of _netram._tcp.example.org
///   mdns = true             # announcements; the default without a file
///
///   [[lender]]
///   address = "tcp://10.0.0.2:7420"
///
///   netram status
///   netram status --cluster ./cluster.toml --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowCluster {
    /// Cluster file to use in place of the usual one
    #[arg(long, value_name = "FILE", env = CLUSTER_VARIABLE)]
    cluster: Option<PathBuf>,
    /// Label of this machine's power supply: lenders that share it come last [default: default]
    #[arg(long, value_name = "LABEL", env = "NETRAM_DOMAIN")]
    domain: Option<String>,
    #[command(flatten)]
    security: SecurityArgs,
    /// Print JSON: an object with `lenders`, each with `report` or `error`, and `remarks`
    #[arg(long)]
    json: bool,
}

/// One lender of the table.
#[derive(Debug, Serialize)]
struct ClusterRow {
    address: String,
    found_by: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_at: Vec<String>,
    /// The name and domain that the lender says, or that a source says of it.
    name: Option<String>,
    domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<StatusReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The contents of the table and of the JSON.
#[derive(Debug, Serialize)]
struct ClusterView {
    sources: String,
    lenders: Vec<ClusterRow>,
    /// Remarks for the operator, a sentence each.
    remarks: Vec<String>,
    #[serde(skip)]
    failed: bool,
}

impl ShowCluster {
    pub(super) fn run(self) -> Result<ExitCode> {
        let security = self.security.security()?;
        let cluster = match &self.cluster {
            Some(path) => ClusterFile::read(path)?,
            None => ClusterFile::load()?,
        };
        let (_, known) = named_addresses(&lenders_in_environment()?)?;
        let rules = ChoiceRules {
            domain: self.domain.unwrap_or_else(|| DOMAIN_DEFAULT.to_owned()),
            one_domain: JournalSettings::from_environment()?.one_domain,
        };
        let discovery = find(&cluster, &known, &security);
        let view = ClusterView::of(&discovery, &cluster, &rules);
        match self.json {
            true => output::json(&view)?,
            false => view.print()?,
        }
        let is_well = !view.failed && view.lenders.iter().all(|row| row.error.is_none());
        Ok(match is_well && !view.lenders.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

impl ClusterView {
    fn of(discovery: &Discovery, cluster: &ClusterFile, rules: &ChoiceRules) -> ClusterView {
        let candidates: Vec<_> = discovery
            .lenders
            .iter()
            .map(|lender| lender.candidate(WINDOW_BYTES_DEFAULT))
            .collect();
        let ordered = choose(&candidates, rules);
        let rows = ordered
            .into_iter()
            .map(|index| ClusterRow::of(&discovery.lenders[index]));
        ClusterView {
            sources: cluster.ways(),
            lenders: rows.collect(),
            remarks: remarks(discovery, cluster, rules),
            failed: !discovery.failures.is_empty(),
        }
    }

    fn print(&self) -> Result<()> {
        if !self.lenders.is_empty() {
            output::line(self.table())?;
        }
        for remark in &self.remarks {
            output::line(remark)?;
        }
        Ok(())
    }

    fn table(&self) -> String {
        let heads = [
            "lender",
            "address",
            "domain",
            "found by",
            "state",
            "round trip",
            "lent",
            "free",
            "journals",
        ];
        let mut table = output::table(&heads, 5);
        for row in &self.lenders {
            let (name, domain) = (row.name.as_deref(), row.domain.as_deref());
            let [state, round_trip, lent, free, journals] = row.cells();
            table.add_row([
                output::plain(name.unwrap_or("-")),
                row.address.clone(),
                output::plain(domain.unwrap_or("-")),
                row.found_by.join(", "),
                state,
                round_trip,
                lent,
                free,
                journals,
            ]);
        }
        table.to_string()
    }
}

impl ClusterRow {
    fn of(lender: &FoundLender) -> ClusterRow {
        let report = lender.answer.as_ref().map(|(report, _)| report);
        let read = report.map(|report| StatusReport::from_frame_body(&report.body));
        let (read, error) = match read {
            Ok(Ok(read)) => (Some(read), None),
            Ok(Err(error)) => (
                None,
                Some(format!("it sent a report that cannot be read: {error}")),
            ),
            Err(error) => (None, Some(output::sentence(&explained(error)))),
        };
        let said = |own: fn(&StatusReport) -> &String, other: &Option<String>| {
            read.as_ref().map(own).or(other.as_ref()).cloned()
        };
        ClusterRow {
            address: lender.address.to_string(),
            found_by: lender.by.iter().map(|by| source(*by)).collect(),
            also_at: lender.aliases.iter().map(ToString::to_string).collect(),
            name: said(|report| &report.name, &lender.name),
            domain: said(|report| &report.domain, &lender.domain),
            round_trip_us: report.ok().map(|report| report.round_trip.as_micros() as u64),
            report: read,
            error,
        }
    }

    /// The cells from the state on.
    fn cells(&self) -> [String; 5] {
        let none = || "-".to_owned();
        let Some(report) = &self.report else {
            let error = self.error.clone().unwrap_or_default();
            return [error, none(), none(), none(), none()];
        };
        let power = report.power.as_ref().map(|power| power.state.as_str());
        let power = match power {
            Some("mains") | None => String::new(),
            Some(state) => format!(", power {}", state.replace('-', " ")),
        };
        [
            format!("{}{power}", state(report)),
            self.round_trip_us.map_or_else(none, round_trip),
            output::bytes(report.memory.reserved),
            output::bytes(report.memory.free),
            journals_used(report),
        ]
    }
}

fn source(by: FoundBy) -> String {
    match by {
        FoundBy::Known => LENDERS_VARIABLE.to_owned(),
        by => by.to_string(),
    }
}

/// A time with two significant digits, which is more than a busy machine measures exactly.
fn round_trip(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..10_000 => format!("{:.1} ms", us as f64 / 1000.0),
        _ => format!("{} ms", us / 1000),
    }
}

/// Returns remarks for the operator beside the table, a sentence each.
fn remarks(discovery: &Discovery, cluster: &ClusterFile, rules: &ChoiceRules) -> Vec<String> {
    let mut remarks: Vec<String> = discovery.failures.iter().map(ToString::to_string).collect();
    if discovery.lenders.is_empty() {
        remarks.push(format!(
            "no lender was found by {}. Name lenders in a cluster file (/etc/netram/cluster.toml), or let them announce \
             themselves: `netram lender serve --announce`",
            cluster.ways()
        ));
    }
    for (name, addresses) in discovery.shared_names() {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        remarks.push(format!(
            "lenders at {} all have the name `{}`: give each its own with `netram lender serve --name`",
            addresses.join(" and "),
            output::plain(name)
        ));
    }
    for lender in &discovery.lenders {
        let Some(facts) = lender.facts() else { continue };
        let [name, domain] = [&facts.name, &facts.domain].map(|text| output::plain(text));
        // A source's word is nothing, but one that an operator wrote may be what was meant.
        let contradicts = |said: &Option<String>, own: &str| said.as_deref().is_some_and(|said| said != own);
        if lender.by.contains(&FoundBy::File)
            && (contradicts(&lender.name, &facts.name) || contradicts(&lender.domain, &facts.domain))
        {
            remarks.push(format!(
                "the cluster file says that lender {} has the name `{}` and the domain `{}`; it has `{name}` and `{domain}`, \
                 which count",
                lender.address,
                lender.name.as_deref().unwrap_or(&name),
                lender.domain.as_deref().unwrap_or(&domain),
            ));
        }
        if facts.domain == rules.domain && !rules.one_domain {
            remarks.push(format!(
                "lender {name} has this machine's power label `{domain}`: it counts only beside a lender with another one, or \
                 with one-domain. Label power supplies with `netram lender serve --domain`, and NETRAM_DOMAIN here"
            ));
        }
        if !lender.aliases.is_empty() {
            let aliases: Vec<String> = lender.aliases.iter().map(ToString::to_string).collect();
            remarks.push(format!("lender {name} is also at {}", aliases.join(", ")));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_has_the_digits_that_mean_something() {
        assert_eq!(round_trip(86), "86 µs");
        assert_eq!(round_trip(1234), "1.2 ms");
        assert_eq!(round_trip(40_900), "40 ms");
    }
}
