//! `netram volume restore`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use netram_block::VolumeId;
use netram_journal::JournalConfig;
use netram_journal::settings::LenderName;
use netram_transport::{NetAddress, Security};
use netram_volume::replica::restore::{
    DataLenderEndpoint, RestoreCheck, RestoreReport, RestoreRequest, check_restore, restore,
};
use netram_volume::{RecoveryKey, VolumePaths};
use serde_json::json;

use super::create::write_settings;
use crate::command::open_check;
use crate::options::{DurationArg, LENDERS_VARIABLE, SecurityArgs, UsageError, security};
use crate::output;
use crate::settings::{key_path, owned, put, written};

/// Restore a volume from its data lender's copy, after its own disk was lost
///
/// BE SURE THAT THE OLD MACHINE IS OFF. A machine that is only cut off goes on acknowledging
/// writes from its own disk, and these are lost.
///
/// The data lender and the lenders that held the newest writes are asked first. If they do not
/// suffice, or the old machine was heard within the last 10 s, it is refused and nothing has
/// changed. Only then the old machine is fenced. --check stops after the question: the exit code
/// is 0 if it would succeed, 3 if it would be refused.
///
/// The new volume can be attached or served at once: blocks come from the data lender when they
/// are read, and all others in the background.
///
///   netram volume replicas tcp://10.0.0.4:7420
///   netram volume restore /var/lib/netram/db --from tcp://10.0.0.4:7420 \
///       --volume 0123456789abcdef0123456789abcdef \
///       --recovery-key-file db.recovery --lender tcp://10.0.0.2:7420
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RestoreVolume {
    /// The new directory
    volume: PathBuf,
    /// Data lender that keeps the copy
    #[arg(long, value_name = "ADDRESS")]
    from: NetAddress,
    /// The volume's id, as `netram volume replicas` lists it
    #[arg(long = "volume", value_name = "ID")]
    id: String,
    #[command(flatten)]
    security: SecurityArgs,
    /// File with the key for copies, if the data lender was started with --data-key-file
    /// [default: the cluster key]
    #[arg(long, value_name = "FILE", env = "NETRAM_DATA_LENDER_KEY_FILE")]
    data_lender_key_file: Option<PathBuf>,
    /// File with the volume's recovery key, or - for standard input; a copy kept without a cluster key
    /// needs none
    #[arg(long, value_name = "FILE", env = "NETRAM_RECOVERY_KEY_FILE")]
    recovery_key_file: Option<PathBuf>,
    /// Lender that may hold the new volume's newest writes, in order of preference; repeat it for
    /// several. `auto`: those that each opening finds
    #[arg(long, value_name = "ADDRESS", env = LENDERS_VARIABLE, value_delimiter = ',')]
    lender: Vec<LenderName>,
    /// Count lenders with this machine's own power label too, as for a trial on one machine
    #[arg(long)]
    one_domain: bool,
    /// Only ask whether it would succeed; change nothing
    #[arg(long)]
    check: bool,
    /// State that the old machine is off, although the data lender heard it a moment ago
    #[arg(long)]
    client_is_off: bool,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m [default: 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// Go on even if acknowledged writes may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RestoreVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let parsed = u128::from_str_radix(&self.id, 16)
            .ok()
            .filter(|_| self.id.len() == 32);
        let id = parsed.map(VolumeId).ok_or_else(|| {
            UsageError(format!(
                "`{}` is not a volume's id, which is 32 hexadecimal digits, as `netram volume replicas` lists it",
                self.id
            ))
        })?;
        let defaults = JournalConfig::default();
        let config = JournalConfig {
            patience: self.patience.map_or(defaults.patience, |time| time.0),
            accept_loss: self.accept_loss,
            security: self.security.security()?,
            ..defaults
        };
        let from = DataLenderEndpoint {
            address: self.from.clone(),
            security: self.data_security(&config.security)?,
        };
        let what = || format!("restoring {}", self.volume.display());
        let recovery = self
            .recovery_key_file
            .as_deref()
            .map(RecoveryKey::load)
            .transpose()?;
        let request = RestoreRequest {
            from: &from,
            volume: id,
            config: &config,
            recovery: recovery.as_ref(),
            client_is_off: self.client_is_off,
        };
        if self.check {
            let found = check_restore(&self.volume, &request).with_context(what)?;
            return self.tell_check(&found);
        }
        let settings = self.settings()?;
        let write = |root: &Path| {
            let written = write_settings(&VolumePaths::at(root).settings_file(), &settings);
            written.map_err(|error| io::Error::other(format!("{error:#}")))
        };
        let restored = restore(&self.volume, &request, write).with_context(what)?;
        match self.json {
            true => output::json(&json!({
                "volume": self.volume,
                "id": id.to_string(),
                "bytes": restored.bytes,
                "copy_end": restored.copy_end.0,
                "records_from_members": restored.records_from_members,
                "last_contact_s": restored.contact,
                "closed": restored.closed,
                "loss_accepted": restored.loss_accepted,
            }))?,
            false => self.tell(&restored)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tell_check(&self, found: &RestoreCheck) -> Result<ExitCode> {
        let refusal = found
            .refusal
            .as_ref()
            .map(|refusal| refusal as &dyn std::error::Error);
        let (copy, claim) = (&found.copy, found.copy.claim.as_ref());
        if self.json {
            output::json(&json!({
                "would_succeed": refusal.is_none(),
                "refusal": refusal.map(ToString::to_string),
                "copy": {
                    "bytes": copy.bytes,
                    "condition": copy.condition.to_string(),
                    "closed": copy.closed,
                    "client_heard_ms_ago": copy.heard.as_millis() as u64,
                    "claimed_by": claim.map(|claim| &claim.by),
                    "claimed_under_epoch": claim.map(|claim| claim.epoch),
                    "claimed_s_ago": claim.and_then(|claim| claim.ago).map(|ago| ago.as_secs()),
                    "claim_served": claim.map(|claim| claim.served),
                },
                "journal": found.journal.as_ref().map(open_check::as_json),
            }))?;
            return open_check::end_check(refusal, true);
        }
        output::line(format_args!(
            "the copy, {}, is {}; its client was last heard {} ago{}",
            output::bytes(copy.bytes),
            copy.condition,
            output::age(copy.heard),
            if copy.closed {
                ", and had closed the volume"
            } else {
                ""
            }
        ))?;
        if let Some(claim) = claim {
            output::line(format_args!("of the copy, {claim}"))?;
        }
        if let Some(journal) = &found.journal {
            open_check::print_check(journal)?;
        }
        open_check::end_check(refusal, false)
    }

    fn tell(&self, restored: &RestoreReport) -> Result<()> {
        output::line(format_args!(
            "volume {}, {}, {} from lenders beyond the copy",
            self.volume.display(),
            output::bytes(restored.bytes),
            output::count(restored.records_from_members, "write"),
        ))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ago = since.saturating_sub(Duration::from_secs(restored.contact));
        match restored.closed {
            true => output::line(format_args!(
                "the volume had been closed, and the data lender has all of it; its client was last heard {} ago. Writes of a later \
                 opening without the data lender are not here",
                output::age(ago)
            ))?,
            false => output::line(format_args!(
                "the data lender last heard its client {} ago; writes after the client lost the data lender and all lenders \
                 at once are not here",
                output::age(ago)
            ))?,
        }
        if self.lender.is_empty() {
            output::line(format_args!(
                "no --lender was given: writes wait for this disk until {} or NETRAM_LENDERS names lenders",
                VolumePaths::at(&self.volume).settings_file().display()
            ))?;
        }
        output::line("attach or serve it now; blocks come from the data lender until all are here")
    }

    fn data_security(&self, lenders: &Security) -> Result<Security> {
        match &self.data_lender_key_file {
            Some(_) => security(self.data_lender_key_file.as_ref(), false),
            None => Ok(lenders.clone()),
        }
    }

    /// Returns the settings of the new volume, whose data lender is the one that it came from.
    fn settings(&self) -> Result<toml::Table> {
        let (mut journal, mut own) = (toml::Table::new(), toml::Table::new());
        put(&mut journal, "lenders", written(&self.lender)?);
        let key = self.security.key_file.as_deref().map(key_path).transpose()?;
        put(&mut journal, "key-file", key);
        put(&mut journal, "insecure", self.security.insecure.then_some(true));
        put(&mut journal, "one-domain", self.one_domain.then_some(true));
        put(&mut own, "data-lender", Some(self.from.to_string()));
        let key = self.data_lender_key_file.as_deref().map(key_path).transpose()?;
        put(&mut own, "data-lender-key-file", key);
        Ok(owned([("journal", journal), ("volume", own)]))
    }
}
