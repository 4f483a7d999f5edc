//! Where the files of `netram init` are, and making and removing them.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use netram_discover::cluster_file::{CLUSTER_VARIABLE, new_cluster_file};
use netram_journal::forget::state_directory;
use netram_journal::{ClusterFile, durable};
use netram_process::files::{PRIVATE, open_or_create};
use netram_transport::ClusterKey;
use netram_transport::security::{default_key_file, new_key_file};

use super::lenders::OwnLender;
use super::service::InitService;
use super::{InitReport, LenderLine, security_of};
use crate::options::SizeArg;

/// Mode of files that the lender's own user reads.
const READABLE: u32 = 0o644;

/// The files of a cluster on one machine.
pub(super) struct InitPlace {
    pub(super) key: PathBuf,
    pub(super) cluster: PathBuf,
    /// Directory of logs and of the lock.
    pub(super) state: PathBuf,
}

impl InitPlace {
    pub(super) fn usual() -> Result<InitPlace> {
        let state = state_directory().context(
            "no directory for logs is known: set HOME, XDG_STATE_HOME or NETRAM_STATE_DIR to an absolute path",
        )?;
        let cluster = std::path::absolute(new_cluster_file())?;
        // One of the whole machine, which this user's own would hide. One that a variable names is ours.
        let is_named = std::env::var_os(CLUSTER_VARIABLE).is_some_and(|named| !named.is_empty());
        let used = (!is_named).then(ClusterFile::load).transpose()?;
        let other = used.and_then(|used| used.path).filter(|path| *path != cluster);
        if let Some(other) = other {
            bail!(
                "this machine is in a cluster already: {} (`netram status` shows it). To make another for this user only, name \
                 its file in {CLUSTER_VARIABLE}",
                other.display()
            );
        }
        Ok(InitPlace {
            key: std::path::absolute(default_key_file().unwrap_or_else(new_key_file))?,
            cluster,
            state: std::path::absolute(state)?,
        })
    }

    /// The settings of the lender with this name.
    fn settings(&self, name: &str) -> PathBuf {
        durable::directory_of(&self.cluster).join(format!("{name}.toml"))
    }

    /// The lenders of this machine that the cluster file names and that have settings beside it; none if
    /// there is no such file yet.
    ///
    /// # Errors
    ///
    /// The cluster file is another's, or a file cannot be read.
    pub(super) fn lenders(&self, service: &InitService) -> Result<Vec<OwnLender>> {
        if !self
            .cluster
            .try_exists()
            .with_context(|| format!("looking for {}", self.cluster.display()))?
        {
            return Ok(Vec::new());
        }
        let file = ClusterFile::read(&self.cluster)?;
        let named = file.lenders.iter().filter_map(|lender| lender.name.as_deref());
        let settings = named.map(|name| self.settings(name)).filter(|path| path.exists());
        let own: Vec<OwnLender> = settings
            .map(|path| OwnLender::read(&path, service))
            .collect::<Result<_>>()?;
        if own.is_empty() {
            bail!(
                "this machine is in a cluster already: {} (`netram status` shows it). To lend this machine's memory to it, start \
                 `netram lender serve`; to make another cluster, name its file in {CLUSTER_VARIABLE}",
                self.cluster.display()
            );
        }
        Ok(own)
    }

    /// Keeps other processes of `netram init` away while the result lives.
    pub(super) fn lock(&self) -> Result<File> {
        for directory in [durable::directory_of(&self.cluster), &self.state] {
            fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        }
        let path = self.state.join("init.lock");
        let file = open_or_create(&path, PRIVATE).with_context(|| format!("opening {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => bail!("another `netram init` runs now: wait for its end"),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }

    /// Makes the key, if there is none, then settings, and at last the cluster file, by which all of it
    /// counts. Returns the files that are new.
    pub(super) fn make(&self, service: &InitService, ports: &[u16], memory: SizeArg) -> Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        if !self.key.try_exists().unwrap_or(true) {
            let directory = durable::directory_of(&self.key);
            fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
            ClusterKey::generate().save_new(&self.key)?;
            service.give_key(&self.key)?;
            made.push(self.key.clone());
        }
        security_of(&self.key)?;
        service.check_key(&self.key)?;
        let mut cluster =
            String::from("# Made by `netram init`. A machine more: a [[lender]] with its address.\n");
        for port in ports {
            let name = format!("local-{port}");
            let address = format!("tcp://127.0.0.1:{port}");
            let path = self.settings(&name);
            let key = crate::settings::key_path(&self.key)?;
            let text = format!(
                "# A lender of `netram init`. After a change: netram init --stop && netram init\n\
                 name = {}\nlisten = [{}]\nkey-file = {}\nmemory = {}\n\
                 # Its end frees the memory, unless a journal may still need it.\nforget = true\n",
                quoted(&name),
                quoted(&address),
                quoted(&key),
                quoted(&memory.0.to_string()),
            );
            make_file(&path, &text, &mut made)?;
            service.make_environment(&name, &path, &mut made)?;
            cluster += &format!(
                "\n[[lender]]\naddress = {}\nname = {}\n",
                quoted(&address),
                quoted(&name)
            );
        }
        make_file(&self.cluster, &cluster, &mut made)?;
        Ok(made)
    }

    /// Removes the cluster file and the settings. A cluster file with other lenders stays, without these.
    pub(super) fn remove(&self, own: &[OwnLender], service: &InitService) -> Result<Vec<PathBuf>> {
        let all = ClusterFile::read(&self.cluster)?;
        let is_own = |name: &Option<String>| own.iter().any(|one| Some(&one.name) == name.as_ref());
        let mut paths: Vec<PathBuf> = own.iter().map(|lender| lender.settings.clone()).collect();
        match all.lenders.iter().all(|lender| is_own(&lender.name)) && all.dns.is_none() && !all.mdns {
            // First: without it the rest counts for nothing.
            true => paths.insert(0, self.cluster.clone()),
            false => crate::output::remark(format_args!(
                "{} names other lenders, too: it stays; remove {} from it",
                self.cluster.display(),
                own.iter()
                    .map(|one| one.name.as_str())
                    .collect::<Vec<_>>()
                    .join(" and ")
            )),
        }
        paths.extend(own.iter().flat_map(|lender| service.files_of(&lender.name)));
        paths.retain(|path| path.exists());
        for path in &paths {
            fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        }
        Ok(paths)
    }

    pub(super) fn report(
        &self,
        service: &InitService,
        lenders: Vec<LenderLine>,
        made: Vec<PathBuf>,
        removed: Vec<PathBuf>,
        next: Vec<String>,
    ) -> InitReport {
        InitReport {
            key: self.key.clone(),
            cluster: self.cluster.clone(),
            service: service.name(),
            lenders,
            made,
            removed,
            next,
        }
    }
}

/// Makes a file that everybody may read. An existing one, which an interrupted run may have left, is kept.
pub(super) fn make_file(path: &Path, text: &str, made: &mut Vec<PathBuf>) -> Result<()> {
    match durable::create(path, text.as_bytes()) {
        Ok(()) => {
            made.push(path.to_owned());
            let readable = fs::Permissions::from_mode(READABLE);
            fs::set_permissions(path, readable).with_context(|| format!("making {} readable", path.display()))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).with_context(|| format!("writing {}", path.display())),
    }
}

/// A text as TOML writes it.
fn quoted(text: &str) -> toml::Value {
    text.into()
}
