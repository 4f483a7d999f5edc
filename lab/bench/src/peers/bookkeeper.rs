//! BookKeeper: two bookies and their ZooKeeper in one process, a client in another. Debian has no package of
//! it, so its jars are found by an environment variable.

use std::fs;
use std::time::Duration;

use super::embedded::{ANSWER_TIMEOUT, EngineServer, parse_summary};
use super::{PeerKind, PeerSubject, free_ports, must_have, server};
use crate::child::ChildProcess;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::LatencySummary;
use crate::testbed::Testbed;

/// Environment variable that names the directory of the jars.
const VARIABLE: &str = "NETRAM_BOOKKEEPER";
const SOURCE: &str = include_str!("programs/BookKeeperPeer.java");

struct BookkeeperSubject {
    peer: PeerKind,
    client: EngineServer,
    acknowledged: u64,
    _servers: ChildProcess,
    site: Testbed,
}

/// The missing part, beside Java.
pub(super) fn missing() -> Option<String> {
    std::env::var_os(VARIABLE).is_none().then(|| {
        format!(
            "no Debian package has it: set {VARIABLE} to a directory with the jars of bookkeeper-server 4.17"
        )
    })
}

/// Starts the servers, whose journals are synced if `sync`, and the client.
pub(super) fn start(site: &Testbed, sync: bool) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let directory = site.directory();
    let source = directory.join("BookKeeperPeer.java");
    fs::write(&source, SOURCE).context("write a program")?;
    let [port] = free_ports()?;
    let jars = std::env::var(VARIABLE).context(format_args!("read {VARIABLE}"))?;
    let java = |role: &str, more: &[&str]| {
        let mut words = vec![
            "java".to_owned(),
            format!("-Djava.io.tmpdir={}", directory.display()),
        ];
        words.extend([
            "--class-path".to_owned(),
            format!("{jars}/*"),
            source.display().to_string(),
        ]);
        words.extend([role.to_owned(), port.to_string()]);
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    };
    let durability = if sync { "sync" } else { "nosync" };
    let mut servers = server(&site, "bookies", &[], &java("servers", &[durability]))?;
    servers.ready_within("ready", ANSWER_TIMEOUT)?;
    Ok(Box::new(BookkeeperSubject {
        peer: if sync {
            PeerKind::BookkeeperSync
        } else {
            PeerKind::BookkeeperNoSync
        },
        client: EngineServer::start(&site, "client", &[], &java("client", &[]))?,
        site,
        acknowledged: 0,
        _servers: servers,
    }))
}

impl PeerSubject for BookkeeperSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let asked = format!("put {}", time.as_secs_f64());
        let summary = parse_summary(&self.client.ask(&asked, time)?)?;
        self.acknowledged += summary.count;
        Ok(summary)
    }

    fn end(mut self: Box<Self>) -> Result<(), BenchError> {
        let said = self.client.ask("count", Duration::ZERO)?;
        let found = said.parse().context(format_args!("read the count {said}"))?;
        must_have(self.peer, &self.site, found, self.acknowledged)
    }
}
