//! `netram lend`: the daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_lender::{DataListener, DataService, Lender, LenderConfig, MemoryWatch};
use netram_transport::{MulticastGroup, NetAddress, Security, WaitPolicy};
#[cfg(feature = "products")]
use netram_volume::replica::{ReplicaHost, ReplicaHostLimits};
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::options::{DurationArg, SizeArg, UsageError, from_text, list_from_text, security};
use crate::output;

/// How long a lender that was asked to stop waits for its clients to move away.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// Lend this machine's memory to journals on other machines
///
/// The lender reserves its memory at start, in a file on a memory file system,
/// and never takes more. What journals keep here survives a restart of the
/// process, not one of the machine. When the machine is short of memory, pages of
/// other machines' far memory are asked to leave, and the memory is given back
/// until it is not short any more; journals' windows stay. SIGTERM and SIGINT stop it gracefully:
/// clients are told to move away first; a second signal ends it at once.
///
/// Settings come from flags, then from NETRAM_* variables, then from the
/// configuration file. On standard output it says `listening ADDRESS` for each
/// address, then `ready`; logs go to standard error.
///
///   netram lend --listen tcp://0.0.0.0:7420 --key-file /etc/netram/key --memory 4GiB
///   netram lend --listen unix:/run/netram.sock --insecure --memory 256MiB
///   netram lend --listen tcp://0.0.0.0:7420 --key-file /etc/netram/key --data /var/lib/netram/kept \
///       --data-listen tcp://0.0.0.0:7430 --data-key-file /etc/netram/data.key
///   netram lend --config /etc/netram/lend.toml
///
/// A configuration file has the long flags as its keys:
///
///   listen = ["tcp://0.0.0.0:7420"]
///   key-file = "/etc/netram/key"
///   memory = "4GiB"
///   domain = "ups-1"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct LendMemory {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a TOML file; flags and variables override it
    #[arg(long, value_name = "FILE", env = "NETRAM_CONFIG")]
    config: Option<PathBuf>,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

/// What can be set by flag, variable and file alike.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Settings {
    /// Where to listen: tcp://host:port or unix:/path; may be given several times. [::] is IPv6 only, 0.0.0.0
    /// is IPv4 only; a link-local address names its interface: [fe80::1%eth0]
    #[arg(long, value_name = "ADDR", env = "NETRAM_LISTEN", value_delimiter = ',')]
    #[serde(deserialize_with = "list_from_text")]
    listen: Vec<NetAddress>,
    /// The multicast group on which appends may come, for journals that ask for it: 239.1.2.3:7421, or
    /// 239.1.2.3:7421%eth1
    #[arg(long, value_name = "GROUP", env = "NETRAM_MULTICAST")]
    #[serde(deserialize_with = "from_text")]
    multicast: Option<MulticastGroup>,
    /// The cluster key's file, made with `netram key new`
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// No key and no encryption; only for addresses on this machine
    #[arg(long)]
    insecure: bool,
    /// How much to lend, in all [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "NETRAM_MEMORY")]
    memory: Option<SizeArg>,
    /// The most that one journal may have [default: no bound but the memory]
    #[arg(long, value_name = "SIZE", env = "NETRAM_QUOTA")]
    quota: Option<SizeArg>,
    /// How many journals can be remembered at once that are neither closed nor deleted [default: 1024]
    #[arg(long, value_name = "N", env = "NETRAM_JOURNALS_MAX")]
    journals_max: Option<u32>,
    /// Of the memory, the most that pages of other machines' far memory may take in all; 0: none are taken
    /// [default: half]
    #[arg(long, value_name = "SIZE", env = "NETRAM_DEPOSITS")]
    deposits: Option<SizeArg>,
    /// Of this machine's memory, what is to stay available: if less is, far memory has to leave, and what it
    /// leaves is given back to the machine; 0: never [default: a twentieth]
    #[arg(long, value_name = "SIZE", env = "NETRAM_KEEP_FREE")]
    keep_free: Option<SizeArg>,
    /// The percentage of the time for which some program here may wait for memory, before far memory has to
    /// leave; counts while less than twice --keep-free is available; 0: it is not looked at [default: 10]
    #[arg(long, value_name = "PERCENT", env = "NETRAM_PRESSURE")]
    pressure: Option<f64>,
    /// Where the kernel says how much memory there is [default: /proc]
    #[arg(long, value_name = "DIR", hide = true)]
    proc: Option<PathBuf>,
    /// What feeds this machine with power; copies under one label are lost together [default: default]
    #[arg(long, value_name = "LABEL", env = "NETRAM_DOMAIN")]
    domain: Option<String>,
    /// The lender's name in logs and status, and in the name of its memory [default: lender]
    #[arg(long, env = "NETRAM_NAME")]
    name: Option<String>,
    /// Threads that serve journals [default: one for every two cores]
    #[arg(long, value_name = "N", env = "NETRAM_SHARDS")]
    shards: Option<usize>,
    /// What a thread does while nothing arrives: spin (dedicated cores only), yield:MICROSECONDS, block
    /// [default: yield:50]
    #[arg(long, value_name = "POLICY", env = "NETRAM_WAIT")]
    #[serde(deserialize_with = "from_text")]
    wait: Option<WaitPolicy>,
    /// The file that holds the lent memory, on a memory file system [default: one in /dev/shm, after user and
    /// name]
    #[arg(long, value_name = "PATH", env = "NETRAM_STORE")]
    store: Option<PathBuf>,
    /// Also keep copies of volumes in this directory, for clients that name this lender as their data lender
    #[arg(long, value_name = "DIR", env = "NETRAM_DATA")]
    data: Option<PathBuf>,
    /// Where data sessions come in, and only they, with --data-key-file's key: whoever has only the cluster
    /// key then gets at no copy [default: where all others do, with the cluster key]
    #[arg(long, value_name = "ADDR", env = "NETRAM_DATA_LISTEN", value_delimiter = ',')]
    #[serde(deserialize_with = "list_from_text")]
    data_listen: Vec<NetAddress>,
    /// The key of data sessions, another one than the cluster key
    #[arg(long, value_name = "FILE", env = "NETRAM_DATA_KEY_FILE")]
    data_key_file: Option<PathBuf>,
    /// What all copies may take once their volumes are written in full; a new one beyond that is refused
    /// [default: no bound but the disk]
    #[arg(long, value_name = "SIZE", env = "NETRAM_DATA_QUOTA")]
    data_quota: Option<SizeArg>,
    /// How often each copy is compared with its checksums, while its client is connected; 0s: never [default:
    /// 7days]
    #[arg(long, value_name = "TIME", env = "NETRAM_DATA_SCRUB_INTERVAL")]
    data_scrub_interval: Option<DurationArg>,
    /// Keep the serving threads on these processors, in order
    #[arg(long, value_name = "CPU", env = "NETRAM_PIN", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Lock the memory, so that it is never swapped out
    #[arg(long)]
    mlock: bool,
    /// Ask for huge pages
    #[arg(long)]
    huge_pages: bool,
    /// How long to wait for clients to move away when asked to stop [default: 5s]
    #[arg(long, value_name = "TIME", env = "NETRAM_GRACE")]
    grace: Option<DurationArg>,
    /// When stopped, give the memory back to the machine instead of keeping it for the next process, unless
    /// it holds bytes that clients may still need
    #[arg(long)]
    forget: bool,
    /// Throw away what an earlier process holds for clients, where this one cannot take it up, or is to give
    /// its memory back
    #[arg(long)]
    discard_windows: bool,
}

impl Settings {
    /// What `self` leaves open is taken from `file`.
    fn or(self, file: Settings) -> Settings {
        fn list<T>(own: Vec<T>, file: Vec<T>) -> Vec<T> {
            if own.is_empty() { file } else { own }
        }
        // A flag for one way of protection overrides the file's other one.
        let chosen = self.key_file.is_some() || self.insecure;
        Settings {
            listen: list(self.listen, file.listen),
            multicast: self.multicast.or(file.multicast),
            key_file: if chosen { self.key_file } else { file.key_file },
            insecure: if chosen { self.insecure } else { file.insecure },
            memory: self.memory.or(file.memory),
            quota: self.quota.or(file.quota),
            journals_max: self.journals_max.or(file.journals_max),
            deposits: self.deposits.or(file.deposits),
            keep_free: self.keep_free.or(file.keep_free),
            pressure: self.pressure.or(file.pressure),
            proc: self.proc.or(file.proc),
            domain: self.domain.or(file.domain),
            name: self.name.or(file.name),
            shards: self.shards.or(file.shards),
            wait: self.wait.or(file.wait),
            store: self.store.or(file.store),
            data: self.data.or(file.data),
            data_listen: list(self.data_listen, file.data_listen),
            data_key_file: self.data_key_file.or(file.data_key_file),
            data_quota: self.data_quota.or(file.data_quota),
            data_scrub_interval: self.data_scrub_interval.or(file.data_scrub_interval),
            pin: list(self.pin, file.pin),
            mlock: self.mlock || file.mlock,
            huge_pages: self.huge_pages || file.huge_pages,
            grace: self.grace.or(file.grace),
            forget: self.forget || file.forget,
            discard_windows: self.discard_windows || file.discard_windows,
        }
    }

    fn config(self) -> Result<LenderConfig> {
        if self.listen.is_empty() {
            let sentence = "no address to listen on: give --listen tcp://HOST:PORT or --listen unix:/PATH";
            return Err(UsageError(sentence.to_owned()).into());
        }
        let security = security(self.key_file.as_ref(), self.insecure)?;
        let data_door = self.data_door(&security)?;
        let watch = self.watch()?;
        let default = LenderConfig::default();
        Ok(LenderConfig {
            listen: self.listen,
            multicast: self.multicast,
            security,
            data_listener: data_door,
            memory: self.memory.map_or(default.memory, |size| size.0),
            quota: self.quota.map(|size| size.0),
            journals_max: self.journals_max.unwrap_or(default.journals_max),
            discard_windows: self.discard_windows,
            deposits: self.deposits.map(|size| size.0),
            watch,
            domain: self.domain.unwrap_or(default.domain),
            name: self.name.unwrap_or(default.name),
            shards: self.shards.unwrap_or(default.shards),
            wait: self.wait.unwrap_or(default.wait),
            store: self.store,
            pin: self.pin,
            mlock: self.mlock,
            huge_pages: self.huge_pages,
            ..default
        })
    }
}

impl Settings {
    /// When this machine is short of memory.
    fn watch(&self) -> Result<MemoryWatch> {
        let usual = MemoryWatch::usual(self.proc.clone().unwrap_or_else(|| PathBuf::from("/proc")));
        let waits = match self.pressure {
            None => usual.waits,
            Some(percent) if (0.0..=100.0).contains(&percent) => (percent * 100.0).round() as u32,
            Some(percent) => {
                let sentence =
                    format!("--pressure is a percentage of the time, from 0 to 100, not {percent}");
                return Err(UsageError(sentence).into());
            }
        };
        Ok(MemoryWatch {
            keep_free: self.keep_free.map_or(usual.keep_free, |size| size.0),
            waits,
            ..usual
        })
    }

    /// What copies are granted.
    #[cfg(feature = "products")]
    fn keeper_limits(&self) -> Result<ReplicaHostLimits> {
        if self.data.is_none() && (self.data_quota.is_some() || self.data_scrub_interval.is_some()) {
            let sentence = "--data-quota and --data-scrub-interval are for keeping copies of volumes: name their directory with --data";
            return Err(UsageError(sentence.to_owned()).into());
        }
        let usual = ReplicaHostLimits::default();
        Ok(ReplicaHostLimits {
            quota: self.data_quota.map(|size| size.0),
            scrub_interval: self
                .data_scrub_interval
                .map_or(usual.scrub_interval, |span| Some(span.0)),
            ..usual
        })
    }

    /// The listeners for data sessions alone, if there are to be any.
    fn data_door(&self, cluster: &Security) -> Result<Option<DataListener>> {
        let usage = |sentence: &str| Err(UsageError(sentence.to_owned()).into());
        match (&self.data, self.data_listen.is_empty(), &self.data_key_file) {
            (_, true, None) => Ok(None),
            (None, ..) => usage(
                "--data-listen and --data-key-file are for keeping copies of volumes: name their directory with --data",
            ),
            (_, true, Some(_)) => {
                usage("--data-key-file is for listeners of its own: name one with --data-listen")
            }
            (_, false, None) => usage(
                "--data-listen takes a key of its own: make one with `netram key new FILE`, and give it with --data-key-file FILE",
            ),
            (Some(_), false, Some(_)) => {
                let own = security(self.data_key_file.as_ref(), false)?;
                if let (Security::Key(own), Security::Key(cluster)) = (&own, cluster)
                    && own == cluster
                {
                    return usage(
                        "--data-key-file is the cluster key, which all members have: make another with `netram key new FILE`",
                    );
                }
                Ok(Some(DataListener {
                    listen: self.data_listen.clone(),
                    security: own,
                }))
            }
        }
    }
}

impl LendMemory {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        let file = self.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let settings = self.settings.or(file);
        let grace = settings.grace.map_or(GRACE_DEFAULT, |span| span.0);
        let forget = settings.forget;
        #[cfg(feature = "products")]
        let (data, limits) = (settings.data.clone(), settings.keeper_limits()?);
        #[cfg(not(feature = "products"))]
        if settings.data.is_some() {
            let sentence = "this program was built for the demo and keeps no copies of volumes: build it with `make build`";
            return Err(UsageError(sentence.to_owned()).into());
        }
        let config = settings.config()?;
        // Before the lender starts: a signal in between must not end it without grace.
        let signals = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
        #[cfg(feature = "products")]
        let keeper = data
            .map(|directory| ReplicaHost::start_with(&directory, limits).map(Arc::new))
            .transpose()?;
        #[cfg(feature = "products")]
        let service = keeper.clone().map(|keeper| keeper as Arc<dyn DataService>);
        #[cfg(not(feature = "products"))]
        let service: Option<Arc<dyn DataService>> = None;
        let lender = Arc::new(Lender::start_with(config, service).context("starting the lender")?);
        for address in lender.addresses() {
            output::announce(format_args!("listening {address}"));
        }
        for address in lender.data_addresses() {
            output::announce(format_args!("data sessions {address}"));
        }
        output::announce("ready");
        let served = serve(&lender, signals, grace, forget);
        #[cfg(feature = "products")]
        if let Some(keeper) = keeper {
            keeper.stop();
        }
        served
    }
}

/// Waits for signals until the lender has stopped.
fn serve(lender: &Arc<Lender>, mut signals: Signals, grace: Duration, forget: bool) -> Result<ExitCode> {
    let handle = signals.handle();
    let waiting = {
        let lender = Arc::clone(lender);
        let wait = move || {
            let stopped = lender.wait();
            handle.close();
            stopped
        };
        let thread = std::thread::Builder::new().name("netram-wait".into());
        thread.spawn(wait).context("starting a thread")?
    };
    let mut stopping = None;
    for signal in signals.forever() {
        if stopping.is_some() {
            tracing::warn!(
                signal,
                "a second signal: stopping at once; the lent memory stays for the next process"
            );
            return Ok(ExitCode::FAILURE);
        }
        let lender = Arc::clone(lender);
        let stop = move || {
            if forget {
                lender.stop_and_give_back(grace)
            } else {
                lender.stop(grace)
            }
        };
        match std::thread::Builder::new().spawn(stop.clone()) {
            Ok(thread) => stopping = Some(thread),
            // Without room for a thread nobody hears a second signal.
            Err(_) => drop(stop()),
        }
    }
    if let Some(stopping) = stopping {
        stopping
            .join()
            .map_err(|_| anyhow::anyhow!("stopping the lender panicked"))?;
    }
    let stopped = waiting
        .join()
        .map_err(|_| anyhow::anyhow!("waiting for the lender panicked"))?;
    if stopped.failed {
        anyhow::bail!("a thread of the lender panicked; what it logged above says where");
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Settings> {
    let what = || format!("reading the configuration file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(what)?;
    toml::from_str(&text).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Settings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let settings =
            file("listen = ['tcp://[::1]:1']\nmemory = '1GiB'\nwait = 'spin'\ninsecure = true").unwrap();
        let flags = Settings {
            memory: Some(SizeArg(1 << 20)),
            ..Settings::default()
        };
        let config = flags.or(settings).config().unwrap();
        assert_eq!(config.memory, 1 << 20);
        assert_eq!(config.wait, WaitPolicy::Spin);
        assert_eq!(config.listen[0].to_string(), "tcp://[::1]:1");
        assert_eq!(config.domain, LenderConfig::default().domain);
    }

    #[test]
    fn a_flag_for_one_protection_overrides_the_files_other() {
        let settings = file("listen = ['unix:/a']\nkey-file = '/nowhere'").unwrap();
        let flags = Settings {
            insecure: true,
            ..Settings::default()
        };
        assert!(flags.or(settings).config().is_ok());
    }

    #[test]
    fn a_file_with_a_key_that_means_nothing_is_refused() {
        assert!(
            file("memroy = '1GiB'")
                .unwrap_err()
                .to_string()
                .contains("memroy")
        );
        assert!(file("memory = 'much'").unwrap_err().to_string().contains("64MiB"));
        assert!(
            file("listen = ['7420']")
                .unwrap_err()
                .to_string()
                .contains("tcp://")
        );
    }

    #[test]
    fn how_short_of_memory_the_machine_may_be_is_set_and_has_defaults() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("meminfo"), "MemTotal:  2000 kB\n").unwrap();
        let watched = |text: &str| {
            let mut settings = file(text).unwrap();
            settings.proc = Some(dir.path().to_owned());
            settings.watch().map(|watch| (watch.keep_free, watch.waits))
        };
        assert_eq!(watched("").unwrap(), (100 * 1024, 1000));
        assert_eq!(
            watched("keep-free = '1MiB'\npressure = 2.5").unwrap(),
            (1 << 20, 250)
        );
        assert_eq!(watched("pressure = 5").unwrap(), (100 * 1024, 500));
        assert_eq!(watched("keep-free = '0'\npressure = 0.0").unwrap(), (0, 0));
        for bad in ["pressure = 100.5", "pressure = -1.0", "pressure = nan"] {
            assert!(watched(bad).unwrap_err().is::<UsageError>(), "{bad}");
        }
    }

    #[test]
    fn nowhere_to_listen_is_a_usage_error() {
        assert!(Settings::default().config().unwrap_err().is::<UsageError>());
    }
}
