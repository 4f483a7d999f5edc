//! The settings of `netram lender serve`: flags, NETRAM_* variables, and the configuration file under both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_lender::{DataListener, LenderConfig, MemoryWatch};
use netram_telemetry::{MetricsAddress, MetricsServer};
use netram_transport::{MulticastGroup, NetAddress, Security, WaitPolicy};
use netram_ups::UpsSource;
#[cfg(feature = "products")]
use netram_volume::replica::ReplicaHostLimits;
use serde::Deserialize;

use crate::options::{
    DurationArg, LENDER_PORT, SizeArg, UsageError, default_address, from_text, list_from_text, protection,
    security,
};
use crate::ups::{self, ups_name};

/// How long a lender that was asked to stop waits for its clients to move away.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// The same once the battery is low. It has been draining since the mains failed; now the disk comes first.
const UPS_GRACE_DEFAULT: Duration = Duration::from_secs(1);

/// How long a client is away before its window is written to the disk.
const SPILL_AFTER: Duration = Duration::from_secs(600);

/// Settings that a flag, a variable and the configuration file can give alike.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct ServeSettings {
    /// Address to listen on: tcp://HOST:PORT or unix:/PATH; repeat it for several. [::] is IPv6
    /// only, 0.0.0.0 is IPv4 only; a link-local address names its interface: [fe80::1%eth0]
    /// [default: tcp://0.0.0.0:7420; with --insecure tcp://127.0.0.1:7420]
    #[arg(long, value_name = "ADDRESS", env = "NETRAM_LISTEN", value_delimiter = ',')]
    #[serde(deserialize_with = "list_from_text")]
    listen: Vec<NetAddress>,
    /// Announce this lender on the networks that it listens on (mDNS: name, domain, release and
    /// address, for everybody there), for clients with lenders = "auto"
    #[arg(long)]
    announce: bool,
    /// File with the cluster key, made by `netram key create`
    /// [default: ~/.config/netram/key if there is one and you are not root, /etc/netram/key]
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Use no key and no encryption; only for addresses on this machine
    #[arg(long)]
    insecure: bool,
    /// File of named clients, each with keys, limits and rights of its own, in place of the cluster
    /// key; made by `netram key add`, and read again on SIGHUP
    #[arg(long, value_name = "FILE", env = "NETRAM_CLIENTS")]
    clients: Option<PathBuf>,
    /// Most bytes to lend, in all [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "NETRAM_MEMORY")]
    memory: Option<SizeArg>,
    /// Bytes of --memory that are lent whatever this machine lacks, set aside at all times; the rest is
    /// returned to the machine while it is short of memory [default: 0]
    #[arg(long, value_name = "SIZE", env = "NETRAM_MEMORY_MIN")]
    memory_min: Option<SizeArg>,
    /// Label of this machine's power supply, such as its rack or UPS. A commit counts only with
    /// lenders whose label differs from the client's [default: default]
    #[arg(long, value_name = "LABEL", env = "NETRAM_DOMAIN")]
    domain: Option<String>,
    /// Name in logs, in status, and of the file with the lent memory; several lenders on one
    /// machine need different ones [default: lender; lender-PORT if the port is not 7420]
    #[arg(long, env = "NETRAM_NAME")]
    name: Option<String>,
    /// Most bytes that one journal may use [default: all of --memory]
    #[arg(long, value_name = "SIZE", env = "NETRAM_QUOTA")]
    quota: Option<SizeArg>,
    /// Most journals to remember at once; one that is closed or deleted makes room [default: 1024]
    #[arg(long, value_name = "COUNT", env = "NETRAM_JOURNALS_MAX")]
    journals_max: Option<u32>,
    /// Most bytes of --memory for pages of programs under `netram run`, in all; 0: none
    /// [default: half]
    #[arg(long, value_name = "SIZE", env = "NETRAM_DEPOSITS")]
    deposits: Option<SizeArg>,
    /// Bytes of this machine's memory that must stay available. With less, the lender returns
    /// memory to the machine: free memory first, then that of pages of programs under `netram run`,
    /// then that of windows, which clients move to other lenders; 0: never [default: a twentieth]
    #[arg(long, value_name = "SIZE", env = "NETRAM_KEEP_FREE")]
    keep_free: Option<SizeArg>,
    /// Percentage of time for which programs here may wait for memory, beyond which the same
    /// happens; counts while less than twice --keep-free is available; 0: never [default: 10]
    #[arg(long, value_name = "PERCENT", env = "NETRAM_PRESSURE")]
    pressure: Option<f64>,
    /// Where the kernel says how much memory there is [default: /proc]
    #[arg(long, value_name = "DIR", hide = true)]
    proc: Option<PathBuf>,
    /// Multicast group on which journals may send appends to all lenders at once: 239.1.2.3:7421,
    /// or 239.1.2.3:7421%eth1 [default: none]
    #[arg(long, value_name = "GROUP", env = "NETRAM_MULTICAST")]
    #[serde(deserialize_with = "from_text")]
    multicast: Option<MulticastGroup>,
    /// Threads that serve journals [default: one for every two cores]
    #[arg(long, value_name = "COUNT", env = "NETRAM_SHARDS")]
    shards: Option<usize>,
    /// How these threads wait for work: spin (for dedicated cores only), yield:MICROSECONDS, or
    /// block [default: yield:50]
    #[arg(long, value_name = "POLICY", env = "NETRAM_WAIT")]
    #[serde(deserialize_with = "from_text")]
    wait: Option<WaitPolicy>,
    /// Processors to run these threads on, in order, with commas between them [default: any]
    #[arg(long, value_name = "CPU", env = "NETRAM_PIN", value_delimiter = ',')]
    pin: Vec<usize>,
    /// File for the lent memory, on a memory file system [default: in /dev/shm, named after user
    /// and lender]
    #[arg(long, value_name = "FILE", env = "NETRAM_STORE")]
    store: Option<PathBuf>,
    /// Lock the lent memory, so that it is never swapped out
    #[arg(long)]
    mlock: bool,
    /// Ask the kernel for huge pages, which it gives where the store's file system is mounted with
    /// huge=advise
    #[arg(long)]
    huge_pages: bool,
    /// Directory for copies of volumes on this machine's disk, for volumes that name this lender
    /// as their data lender [default: keep none]
    #[arg(long, value_name = "DIR", env = "NETRAM_DATA")]
    data: Option<PathBuf>,
    /// Separate address for these copies, with the key of --data-key-file: then the cluster key
    /// alone gives no access to copies [default: the addresses and key of all others]
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "NETRAM_DATA_LISTEN",
        value_delimiter = ','
    )]
    #[serde(deserialize_with = "list_from_text")]
    data_listen: Vec<NetAddress>,
    /// File with the key for --data-listen, which must not be the cluster key
    #[arg(long, value_name = "FILE", env = "NETRAM_DATA_KEY_FILE")]
    data_key_file: Option<PathBuf>,
    /// Most bytes that all copies may use once every block of their volumes is written; a copy
    /// beyond it is refused [default: half of the disk]
    #[arg(long, value_name = "SIZE", env = "NETRAM_DATA_QUOTA")]
    data_quota: Option<SizeArg>,
    /// How often to compare each copy with its checksums, while its client is connected; 0s: never
    /// [default: 7days]
    #[arg(long, value_name = "TIME", env = "NETRAM_DATA_SCRUB_INTERVAL")]
    data_scrub_interval: Option<DurationArg>,
    /// Directory on a disk for windows that are left when the lender stops or the power fails; the
    /// next start takes them up. Room for all of --memory is set aside [default: none, memory only]
    #[arg(long, value_name = "DIR", env = "NETRAM_SPILL")]
    spill: Option<PathBuf>,
    /// How long a client may be away before its window is written to --spill, too; others may have
    /// its memory then. 0s: never [default: 10min]
    #[arg(long, value_name = "TIME", env = "NETRAM_SPILL_AFTER")]
    spill_after: Option<DurationArg>,
    /// How long a lender that was asked to stop waits for its clients to move away [default: 5s]
    #[arg(long, value_name = "TIME", env = "NETRAM_GRACE")]
    grace: Option<DurationArg>,
    /// UPS that feeds this machine, as NAME@HOST or NAME@HOST:PORT of its upsd (NUT). On battery
    /// clients are asked to move away; with a low battery, and on SIGPWR, the lender ends
    #[arg(long, value_name = "UPS", env = "NETRAM_UPS", value_parser = ups_name)]
    ups: Option<String>,
    /// User of upsd, for a UPS whose upsd waits for this machine before it turns power off
    #[arg(long, value_name = "USER", env = "NETRAM_UPS_USER")]
    ups_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE", env = "NETRAM_UPS_PASSWORD_FILE")]
    ups_password_file: Option<PathBuf>,
    /// How long it waits for clients to move away once the battery is low [default: 1s]
    #[arg(long, value_name = "TIME", env = "NETRAM_UPS_GRACE")]
    ups_grace: Option<DurationArg>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics: IP:PORT, or unix:/PATH. Anyone who
    /// reaches it may read them [default: none]
    #[arg(long, value_name = "ADDRESS", env = "NETRAM_METRICS")]
    #[serde(deserialize_with = "from_text")]
    metrics: Option<MetricsAddress>,
    /// At the end, return the memory to the machine instead of keeping it for the next start,
    /// unless it holds bytes that clients may still need
    #[arg(long)]
    forget: bool,
    /// Throw away what an earlier lender process holds for clients, if this one cannot take it
    /// over or is to return its memory
    #[arg(long)]
    discard_windows: bool,
}

impl ServeSettings {
    /// Reads a configuration file.
    pub(super) fn read(path: &Path) -> Result<ServeSettings> {
        let what = || format!("reading the configuration file {}", path.display());
        let text = std::fs::read_to_string(path).with_context(what)?;
        toml::from_str(&text).with_context(what)
    }

    /// Returns these settings, with those of `file` where these say nothing.
    pub(super) fn or(self, file: ServeSettings) -> ServeSettings {
        fn list<T>(own: Vec<T>, file: Vec<T>) -> Vec<T> {
            if own.is_empty() { file } else { own }
        }
        // A flag for one way of protection overrides the file's other one.
        let chosen = self.key_file.is_some() || self.insecure || self.clients.is_some();
        ServeSettings {
            listen: list(self.listen, file.listen),
            announce: self.announce || file.announce,
            multicast: self.multicast.or(file.multicast),
            key_file: if chosen { self.key_file } else { file.key_file },
            insecure: if chosen { self.insecure } else { file.insecure },
            clients: if chosen { self.clients } else { file.clients },
            memory: self.memory.or(file.memory),
            memory_min: self.memory_min.or(file.memory_min),
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
            spill: self.spill.or(file.spill),
            spill_after: self.spill_after.or(file.spill_after),
            grace: self.grace.or(file.grace),
            ups: self.ups.or(file.ups),
            ups_user: self.ups_user.or(file.ups_user),
            ups_password_file: self.ups_password_file.or(file.ups_password_file),
            ups_grace: self.ups_grace.or(file.ups_grace),
            metrics: self.metrics.or(file.metrics),
            forget: self.forget || file.forget,
            discard_windows: self.discard_windows || file.discard_windows,
        }
    }

    /// Returns how long a lender that was asked to stop waits for its clients.
    pub(super) fn grace(&self) -> Duration {
        self.grace.map_or(GRACE_DEFAULT, |span| span.0)
    }

    /// Returns the UPS to watch, if there is one.
    pub(super) fn ups(&self) -> Result<Option<UpsSource>> {
        ups::source(
            self.ups.as_deref(),
            self.ups_user.as_deref(),
            self.ups_password_file.as_deref(),
        )
    }

    /// Returns how long a lender whose battery is low waits for its clients.
    pub(super) fn ups_grace(&self) -> Duration {
        self.ups_grace.map_or(UPS_GRACE_DEFAULT, |span| span.0)
    }

    /// Serves metrics, if they are to be served.
    pub(super) fn serve_metrics(&self) -> Result<Option<Arc<MetricsServer>>> {
        Ok(self.metrics.as_ref().map(MetricsServer::shared).transpose()?)
    }

    /// Whether the lender announces itself.
    pub(super) fn announce(&self) -> bool {
        self.announce
    }

    /// Whether the memory is returned to the machine at the end.
    pub(super) fn forget(&self) -> bool {
        self.forget
    }

    /// Returns the directory for copies of volumes, if there are to be any.
    pub(super) fn data(&self) -> Option<&Path> {
        self.data.as_deref()
    }

    /// Returns what the lender is started with.
    pub(super) fn config(self) -> Result<LenderConfig> {
        let (security, clients) = protection(self.key_file.as_ref(), self.insecure, self.clients.as_ref())?;
        let data_listener = self.data_listener(&security)?;
        let watch = self.watch()?;
        let default = LenderConfig::default();
        let listen = match self.listen.is_empty() {
            true => vec![default_address(&security, clients.is_some(), LENDER_PORT)],
            false => self.listen,
        };
        Ok(LenderConfig {
            multicast: self.multicast,
            security,
            clients,
            data_listener,
            memory: self.memory.map_or(default.memory, |size| size.0),
            quota: self.quota.map(|size| size.0),
            journals_max: self.journals_max.unwrap_or(default.journals_max),
            discard_windows: self.discard_windows,
            deposits: self.deposits.map(|size| size.0),
            watch,
            domain: self.domain.unwrap_or(default.domain),
            name: self.name.unwrap_or_else(|| default_name(&listen)),
            listen,
            shards: self.shards.unwrap_or(default.shards),
            wait: self.wait.unwrap_or(default.wait),
            store: self.store,
            // An empty variable turns a service's directory off.
            spill: self.spill.filter(|directory| !directory.as_os_str().is_empty()),
            spill_after: Some(self.spill_after.map_or(SPILL_AFTER, |after| after.0))
                .filter(|after| !after.is_zero()),
            pin: self.pin,
            mlock: self.mlock,
            huge_pages: self.huge_pages,
            ..default
        })
    }
}

/// Returns the name of a lender that was not told: lenders at different ports of one machine have different
/// ones, and each has the same at every start.
fn default_name(listen: &[NetAddress]) -> String {
    let usual = LenderConfig::default().name;
    match listen.first() {
        Some(NetAddress::Tcp { port, .. }) if ![0, LENDER_PORT].contains(port) => format!("{usual}-{port}"),
        _ => usual,
    }
}

impl ServeSettings {
    /// Returns when this machine counts as short of memory.
    fn watch(&self) -> Result<MemoryWatch> {
        let usual = MemoryWatch::usual(self.proc.clone().unwrap_or_else(|| PathBuf::from("/proc")));
        let waits = match self.pressure {
            None => usual.waits,
            Some(percent) if (0.0..=100.0).contains(&percent) => (percent * 100.0).round() as u32,
            Some(percent) => {
                let sentence = format!("--pressure is a percentage of time, from 0 to 100, not {percent}");
                return Err(UsageError(sentence).into());
            }
        };
        Ok(MemoryWatch {
            least: self.memory_min.map_or(usual.least, |size| size.0),
            keep_free: self.keep_free.map_or(usual.keep_free, |size| size.0),
            waits,
            ..usual
        })
    }

    /// Returns the limits of copies.
    #[cfg(feature = "products")]
    pub(super) fn replica_limits(&self) -> Result<ReplicaHostLimits> {
        if self.data.is_none() && (self.data_quota.is_some() || self.data_scrub_interval.is_some()) {
            let sentence = "--data-quota and --data-scrub-interval concern copies of volumes: name the directory for these with --data";
            return Err(UsageError(sentence.to_owned()).into());
        }
        let usual = ReplicaHostLimits::default();
        Ok(ReplicaHostLimits {
            quota: self
                .data_quota
                .map(|size| size.0)
                .or_else(|| netram_volume::replica::usual_quota(self.data.as_deref()?)),
            scrub_interval: self
                .data_scrub_interval
                .map_or(usual.scrub_interval, |span| Some(span.0)),
            ..usual
        })
    }

    /// Returns the listeners for copies of volumes alone, if there are to be any.
    fn data_listener(&self, cluster: &Security) -> Result<Option<DataListener>> {
        let usage = |sentence: &str| Err(UsageError(sentence.to_owned()).into());
        match (&self.data, self.data_listen.is_empty(), &self.data_key_file) {
            (_, true, None) => Ok(None),
            (None, ..) => usage(
                "--data-listen and --data-key-file concern copies of volumes: name the directory for these with --data",
            ),
            (_, true, Some(_)) => {
                usage("--data-key-file is the key of a separate address: name that with --data-listen")
            }
            (Some(_), false, _) if self.clients.is_some() => usage(
                "--clients replaces --data-listen: give the clients that may have copies `data = SIZE` in their file",
            ),
            (_, false, None) => usage(
                "--data-listen needs a separate key: make one with `netram key create FILE`, and give it with --data-key-file FILE",
            ),
            (Some(_), false, Some(_)) => {
                let own = security(self.data_key_file.as_ref(), false)?;
                if let (Security::Key(own), Security::Key(cluster)) = (&own, cluster)
                    && own == cluster
                {
                    return usage(
                        "--data-key-file is the cluster key, which all machines have: make another with `netram key create FILE`",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<ServeSettings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let settings =
            file("listen = ['tcp://[::1]:1']\nmemory = '1GiB'\nwait = 'spin'\ninsecure = true").unwrap();
        let flags = ServeSettings {
            memory: Some(SizeArg(1 << 20)),
            ..ServeSettings::default()
        };
        let config = flags.or(settings).config().unwrap();
        assert_eq!(config.memory, 1 << 20);
        assert_eq!(config.wait, WaitPolicy::Spin);
        assert_eq!(config.listen[0].to_string(), "tcp://[::1]:1");
        assert_eq!(config.domain, LenderConfig::default().domain);
    }

    #[test]
    fn a_lender_that_was_told_nothing_has_an_address_and_a_name_of_its_own() {
        let config = |text: &str| file(text).unwrap().config().unwrap();
        let plain = config("insecure = true");
        assert_eq!(plain.listen[0].to_string(), "tcp://127.0.0.1:7420");
        assert_eq!(plain.name, "lender");
        let second = config("insecure = true\nlisten = ['tcp://127.0.0.1:7421']");
        assert_eq!(second.name, "lender-7421");
        let any = config("insecure = true\nlisten = ['tcp://127.0.0.1:0']");
        assert_eq!(any.name, "lender");
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key");
        netram_transport::ClusterKey::generate().save_new(&key).unwrap();
        let keyed = config(&format!("key-file = '{}'", key.display()));
        assert_eq!(keyed.listen[0].to_string(), "tcp://0.0.0.0:7420");
    }

    #[test]
    fn a_protection_flag_overrides_the_other_kind_in_the_file() {
        let settings = file("listen = ['unix:/a']\nkey-file = '/nowhere'").unwrap();
        let flags = ServeSettings {
            insecure: true,
            ..ServeSettings::default()
        };
        assert!(flags.or(settings).config().is_ok());
    }

    #[test]
    fn a_file_with_an_unknown_key_is_refused() {
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
    fn limits_of_available_memory_can_be_set_and_have_defaults() {
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
    fn a_lender_without_an_address_is_a_usage_error() {
        assert!(ServeSettings::default().config().unwrap_err().is::<UsageError>());
    }
}
