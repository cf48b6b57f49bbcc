//! Many idle servers.

use std::fmt;
use std::time::{Duration, Instant};

use crate::usage::Usage;
use serde::Serialize;

use super::processes::{proportional_memory, server_of};
use super::sides;
use crate::error::MeasureError;
use toolbus::config::Config;
use toolbus::local_daemon::LocalDaemon;

/// Number of servers.
pub(super) const SERVERS: usize = 50;
/// Time for which the servers are left alone.
const IDLE: Duration = Duration::from_secs(10);

/// Cost of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Crowd {
    servers: usize,
    idle_seconds: u64,
    /// From the start of the daemon until each took calls.
    ready_ms: f64,
    /// CPU time of the daemon, all supervisors and all servers together while no call ran.
    idle_cpu_ms: f64,
    /// Mean memory of a supervisor, with its part of what is shared.
    supervisor_mib: f64,
    /// Mean memory of a server, with its part of what is shared.
    server_mib: f64,
}

pub(super) async fn measure(config: &Config) -> Result<Crowd, MeasureError> {
    let begun = Instant::now();
    let session = LocalDaemon::with_daemon(config, None).await.map_err(|error| MeasureError::Mcp(error.to_string()))?;
    sides::all_ready(&*session.servers()).await?;
    let ready = begun.elapsed();
    let supervisors: Vec<u32> = session.servers().status().iter().filter_map(|server| server.pid).collect();
    let servers = supervisors.iter().map(|supervisor| server_of(*supervisor)).collect::<Result<Vec<_>, _>>()?;

    let before = cpu_time(&supervisors, &servers)?;
    tokio::time::sleep(IDLE).await;
    let idle_cpu = cpu_time(&supervisors, &servers)?.saturating_sub(before);
    let figures = Crowd {
        servers: servers.len(),
        idle_seconds: IDLE.as_secs(),
        ready_ms: ready.as_secs_f64() * 1e3,
        idle_cpu_ms: idle_cpu.as_secs_f64() * 1e3,
        supervisor_mib: mean_memory(&supervisors)?,
        server_mib: mean_memory(&servers)?,
    };
    session.close().await;
    Ok(figures)
}

fn cpu_time(supervisors: &[u32], servers: &[u32]) -> Result<Duration, MeasureError> {
    let all = supervisors.iter().chain(servers).copied().chain([std::process::id()]);
    all.map(|process| Ok(Usage::read(process)?.cpu)).sum()
}

/// In MiB.
fn mean_memory(processes: &[u32]) -> Result<f64, MeasureError> {
    let bytes: u64 = processes.iter().map(|process| proportional_memory(*process)).sum::<Result<_, _>>()?;
    Ok(bytes as f64 / f64::from(1 << 20) / processes.len().max(1) as f64)
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, idle_seconds, ready_ms, idle_cpu_ms, supervisor_mib, server_mib } = self;
        write!(
            f,
            "{servers} servers: all serve after {ready_ms:.0} ms; {idle_cpu_ms:.0} ms of CPU time in {idle_seconds} s \
             without calls; {supervisor_mib:.2} MiB for each supervisor, {server_mib:.2} MiB for each server"
        )
    }
}
