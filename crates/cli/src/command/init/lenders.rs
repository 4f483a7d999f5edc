//! The lenders that `netram init` made: their settings, and whether they run.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use netram_lender::{LenderConfig, StatusReport};
use netram_transport::security::KEY_VARIABLE;
use netram_transport::{NetAddress, NetHost, Security};

use super::LenderLine;
use super::service::InitService;
use crate::command::lender::{configured, status};
use crate::output;

/// How long a lender may take to answer; loopback is near, but a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where stores of lent memory are.
const STORES: &str = "/dev/shm";

/// A lender of this machine, as its settings say.
pub(super) struct OwnLender {
    pub(super) name: String,
    pub(super) address: NetAddress,
    pub(super) settings: PathBuf,
    memory: u64,
    store: PathBuf,
    security: Security,
}

/// State of a lender's address.
pub(super) enum LenderState {
    /// The lender answers.
    Running(Box<StatusReport>),
    /// No process listens there.
    Down,
    /// Another process listens there, or the lender does not answer; why.
    Taken(String),
}

impl LenderState {
    pub(super) fn is_down(&self) -> bool {
        matches!(self, LenderState::Down)
    }
}

impl OwnLender {
    pub(super) fn read(settings: &Path, service: &InitService) -> Result<OwnLender> {
        let config = configured(settings)?;
        let LenderConfig {
            name,
            listen,
            memory,
            store,
            security,
            ..
        } = config;
        let address = listen.into_iter().next();
        Ok(OwnLender {
            store: store.unwrap_or_else(|| store_of(service.user(), &name)),
            address: address.with_context(|| format!("{} names no address", settings.display()))?,
            settings: settings.to_owned(),
            name,
            memory,
            security,
        })
    }

    pub(super) fn state(&self) -> LenderState {
        if socket_of(&self.address).is_some_and(|at| TcpListener::bind(at).is_ok()) {
            return LenderState::Down;
        }
        match status::ask(&self.address, &self.security, PATIENCE) {
            Ok(report) if report.name == self.name => LenderState::Running(Box::new(report)),
            Ok(report) => {
                LenderState::Taken(format!("lender `{}` listens there", output::plain(&report.name)))
            }
            Err(error) if matches!(self.address, NetAddress::Tcp { .. }) => LenderState::Taken(format!(
                "the port is in use ({}); end that process, or change {}",
                output::sentence(&error),
                self.settings.display()
            )),
            Err(_) => LenderState::Down,
        }
    }

    /// Asserts that the lender has the key that clients will find.
    pub(super) fn check_key(&self, security: &Security, key: &Path) -> Result<()> {
        let is_same = match (&self.security, security) {
            (Security::Key(own), Security::Key(found)) => own == found,
            _ => false,
        };
        ensure!(
            is_same,
            "lender {} has another key than {}, which clients find here: unset {KEY_VARIABLE}, or correct key-file in {}",
            self.name,
            key.display(),
            self.settings.display()
        );
        Ok(())
    }

    /// Asserts that no journal needs this lender's memory.
    pub(super) fn check_unneeded(&self) -> Result<()> {
        match self.state() {
            LenderState::Running(report) if report.left.windows > 0 || report.left.pages > 0 => bail!(
                "lender {} holds {} windows and {} pages that programs may still need: close these programs, or delete their \
                 journals (`netram lender list` names them)",
                self.name,
                report.left.windows,
                report.left.pages
            ),
            LenderState::Running(_) | LenderState::Taken(_) => Ok(()),
            LenderState::Down => self.check_forgotten(),
        }
    }

    /// Asserts that the lender, which has ended, kept no memory for its next start.
    pub(super) fn check_forgotten(&self) -> Result<()> {
        ensure!(
            !self.store.exists(),
            "lender {} does not run, and {} may have what programs still need: start it with `netram init`, close the programs \
             or delete their journals, then try again",
            self.name,
            self.store.display()
        );
        Ok(())
    }

    pub(super) fn line(&self, state: &'static str) -> LenderLine {
        LenderLine {
            name: self.name.clone(),
            address: self.address.to_string(),
            memory: self.memory,
            settings: self.settings.clone(),
            state,
        }
    }
}

/// Asserts, before anything is made, that two lenders can be started at these ports.
pub(super) fn check_new(ports: &[u16], memory: u64, service: &InitService) -> Result<()> {
    for port in ports {
        if let Err(error) = TcpListener::bind(("127.0.0.1", *port)) {
            bail!(
                "port {port} of this machine cannot be used ({error}): choose others with --ports, as --ports 7520,7521"
            );
        }
        let store = store_of(service.user(), &format!("local-{port}"));
        ensure!(
            !store.exists(),
            "{} is left of another cluster's lender, and may have what its programs need: choose other ports with --ports, or \
             remove that file",
            store.display()
        );
    }
    check_free(memory.saturating_mul(ports.len() as u64))
}

/// Asserts that memory file systems have room for lenders that are to be started.
pub(super) fn check_room<'a>(lenders: impl Iterator<Item = &'a OwnLender>) -> Result<()> {
    // A store that exists has its room.
    check_free(
        lenders
            .filter(|lender| !lender.store.exists())
            .map(|lender| lender.memory)
            .sum(),
    )
}

fn check_free(needed: u64) -> Result<()> {
    let found = rustix::fs::statvfs(STORES).with_context(|| format!("looking at {STORES}"))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    ensure!(
        needed <= free,
        "the lenders need {} in {STORES}, which has {} left: lend less with --memory, or enlarge it (mount -o \
         remount,size=SIZE {STORES})",
        output::bytes(needed),
        output::bytes(free)
    );
    Ok(())
}

fn store_of(user: u32, name: &str) -> PathBuf {
    Path::new(STORES).join(format!("netram-{user}-{name}.mem"))
}

fn socket_of(address: &NetAddress) -> Option<SocketAddr> {
    match address {
        NetAddress::Tcp {
            host: NetHost::Ip(ip),
            port,
        } => Some(SocketAddr::new(*ip, *port)),
        _ => None,
    }
}
