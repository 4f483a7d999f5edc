//! An application of today: a PostgreSQL server with all its data on the device under pgbench's TPC-B-like
//! load, from one client and from several. Each commit is flushed.

use std::path::Path;

use serde::Serialize;

use super::LndPlan;
use crate::databases::postgres::{PgbenchLoad, PgbenchResult, PostgresSetup, PostgresTemplate};
use crate::error::BenchError;
use crate::histogram::median;
use crate::testbed::Testbed;

const CLIENTS: usize = 8;

/// Transactions per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PgbenchRates {
    /// Rate with one client.
    pub one: f64,
    /// Average latency with one client, in milliseconds.
    pub one_ms: f64,
    /// Rate with eight clients.
    pub eight: f64,
    /// Average latency with eight clients, in milliseconds.
    pub eight_ms: f64,
}

/// Copies the database to `directory`, starts a server there, and measures.
pub(super) fn measure(
    postgres: &PostgresTemplate,
    site: &Testbed,
    directory: &Path,
    plan: &LndPlan,
) -> Result<PgbenchRates, BenchError> {
    let data = directory.join("postgres");
    postgres.copy_to(&data)?;
    let server = postgres.start(site, &data, &PostgresSetup::default())?;
    let (mut one, mut eight) = (vec![], vec![]);
    let time = (plan.cap * 6).max(std::time::Duration::from_secs(2));
    for _ in 0..plan.rounds {
        one.push(server.bench(PgbenchLoad::TpcB, 1, time, "")?);
        eight.push(server.bench(PgbenchLoad::TpcB, CLIENTS, time, "")?);
    }
    let told = one.iter().chain(&eight).map(|run| run.transactions).sum();
    server.must_have("pgbench_history", told)?;
    server.stop()?;
    let of =
        |runs: &[PgbenchResult], field: fn(&PgbenchResult) -> f64| median(runs.iter().map(field).collect());
    Ok(PgbenchRates {
        one: of(&one, |run| run.per_second),
        one_ms: of(&one, |run| run.average_ms),
        eight: of(&eight, |run| run.per_second),
        eight_ms: of(&eight, |run| run.average_ms),
    })
}
