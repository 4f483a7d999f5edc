//! `netram key list`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_clients::file::shown;
use netram_clients::{ClientEntry, ClientResource, ClientsFile};
use netram_transport::KeyId;
use serde_json::{Map, Value, json};

use super::clients::ClientsPath;
use super::fingerprint;
use crate::output;

/// List the clients of a file, their keys' ids and their limits
///
/// Keys are never shown. `-` is the default: half of the lender if there are several clients,
/// no copies of volumes, and the rights to ask for the status and to join regions.
///
///   netram key list --clients /etc/netram/clients
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ListClients {
    #[command(flatten)]
    clients: ClientsPath,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListClients {
    pub(super) fn run(self) -> Result<ExitCode> {
        let file = ClientsFile::load(&self.clients.clients)?;
        if self.json {
            let clients: Vec<Value> = file.clients().iter().map(as_json).collect();
            output::json(&json!({ "clients": clients }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let words = ClientResource::ALL.map(ClientResource::word);
        let heads = [&["client", "keys"][..], &words].concat();
        let mut table = output::table(&heads, 2);
        for client in file.clients() {
            let keys: Vec<String> = { client.keys.iter() }
                .map(|key| KeyId::of(key).to_string())
                .collect();
            let limits = ClientResource::ALL.map(|resource| {
                let limit = client.limits.get(resource);
                limit.map_or_else(|| "-".to_owned(), |limit| shown(resource, limit))
            });
            let row = [vec![client.name.to_string(), keys.join(", ")], limits.to_vec()];
            table.add_row(row.concat());
        }
        output::line(table)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn as_json(client: &ClientEntry) -> Value {
    let said = ClientResource::ALL
        .into_iter()
        .filter_map(|resource| Some((resource, client.limits.get(resource)?)));
    let limits: Map<String, Value> = said
        .map(|(resource, limit)| (resource.word().to_owned(), Value::from(shown(resource, limit))))
        .collect();
    let fingerprints: Vec<String> = { client.keys.iter() }
        .map(|key| fingerprint(key).trim_start_matches("key id ").to_owned())
        .collect();
    json!({ "name": client.name, "fingerprints": fingerprints, "limits": limits })
}
