//! A daemon under mixed load for a long time: memory, descriptors, threads and processes stay as they are after the start.
//!
//! `TOOLBUS_SOAK` is the time in seconds; `tests/soak` runs half an hour.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Holdings;

use crate::fixture::Fixture;

/// Time of the load in seconds, unless the environment overrides it.
const SECONDS: u64 = 30;
/// Time in which caches fill and interpreters start, which does not count; at most a third of the whole.
const START: Duration = Duration::from_secs(60);
/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Calls of one client, which looks for a reply among all that it has received.
const CALLS_OF_A_CLIENT: usize = 200;
/// Increase that the last third of the samples may have over the first: of memory a part and KiB, of others a number.
/// Allocators take and give back pages; connections and threads come and go.
const MORE_MEMORY: (f64, f64) = (0.05, 8.0 * 1024.0);
const MORE_OF_OTHERS: f64 = 4.0;

/// A kind of load: a tool, its arguments, a text of its result, and the shortest time between two calls.
struct LoadKind(&'static str, Value, &'static str, Duration);

fn kinds() -> [LoadKind; 4] {
    [
        LoadKind("echo", json!({"text": "well"}), "well", Duration::from_millis(20)),
        LoadKind("work", json!({"id": "soak"}), "worked for soak", Duration::from_millis(40)),
        LoadKind("neighbour", json!({}), "well", Duration::from_millis(40)),
        LoadKind("execute_python_script", json!({"script": "print('we' + 'll')"}), "well", Duration::from_millis(500)),
    ]
}

/// Prints the row of a quantity; whether the median of its last third is no more than `most` above that of its first.
fn is_flat(what: &str, samples: &[(f64, Holdings)], of: fn(&Holdings) -> f64, most: impl Fn(f64) -> f64) -> bool {
    let values: Vec<(f64, f64)> = samples.iter().map(|(time, usage)| (*time, of(usage))).collect();
    let median = |part: &[(f64, f64)]| {
        let mut values: Vec<f64> = part.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let third = values.len() / 3;
    let (first, last) = (median(&values[..third]), median(&values[values.len() - third..]));
    let per_hour = slope(&values) * 3600.0;
    println!("| {what} | {first:.0} | {last:.0} | {per_hour:+.1} | {:.0} |", first + most(first));
    last <= first + most(first)
}

/// The slope of the line that fits best, in units per second.
fn slope(values: &[(f64, f64)]) -> f64 {
    let count = values.len() as f64;
    let (x, y) = values.iter().fold((0.0, 0.0), |sum, value| (sum.0 + value.0 / count, sum.1 + value.1 / count));
    let (above, below) = values
        .iter()
        .fold((0.0, 0.0), |sum, value| (sum.0 + (value.0 - x) * (value.1 - y), sum.1 + (value.0 - x).powi(2)));
    above / below
}

#[tokio::test]
async fn a_long_load_of_every_kind_leaves_memory_descriptors_threads_and_processes_as_they_are() {
    let seconds = std::env::var("TOOLBUS_SOAK").map_or(SECONDS, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let backend = Backend::start().await;
    let work = backend.tool("work", "/work?id={id}", "");
    // A ledger in memory would grow with each call, until entries are as old as `ledger.ttl`.
    let tools = "[tools]\necho = true\n[script]\npython = \"/usr/bin/python3\"\n[store]\nurl = \"sqlite:store.db\"\n";
    let fixture = Fixture::quiet(&format!("{tools}{work}")).await;
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let done = [const { AtomicUsize::new(0) }; 4];

    let load = kinds().into_iter().zip(&done).map(async |(LoadKind(tool, arguments, expected, pace), done)| {
        let (mut client, mut pace) = (Client::connect(&fixture.site).await, interval(pace));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_over.load(Ordering::Relaxed) {
            pace.tick().await;
            let reply = client.exchange(&client.request(tool, &arguments).by("friend")).await;
            assert!(reply.content().contains(expected), "{tool}: {:?}", reply.body());
            if done.fetch_add(1, Ordering::Relaxed) % CALLS_OF_A_CLIENT == CALLS_OF_A_CLIENT - 1 {
                client = Client::connect(&fixture.site).await;
            }
        }
    });
    let watch = async {
        let (mut samples, mut period) = (Vec::new(), interval(PERIOD));
        while began.elapsed() < time {
            period.tick().await;
            if began.elapsed() >= START.min(time / 3) {
                samples.push((began.elapsed().as_secs_f64(), fixture.daemon.usage()));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        samples
    };
    let (_, samples) = tokio::join!(join_all(load), watch);
    for (LoadKind(tool, ..), done) in kinds().iter().zip(&done) {
        println!("{tool}: {} calls", done.load(Ordering::Relaxed));
    }
    println!("{} samples within {:?}", samples.len(), began.elapsed());
    println!("| | First third | Last third | In an hour | At most |\n|---|---|---|---|---|");
    let are_flat = [
        is_flat("memory, KiB", &samples, |usage| usage.memory as f64, |first| first * MORE_MEMORY.0 + MORE_MEMORY.1),
        is_flat("descriptors", &samples, |usage| usage.descriptors as f64, |_| MORE_OF_OTHERS),
        is_flat("threads", &samples, |usage| usage.threads as f64, |_| MORE_OF_OTHERS),
        is_flat("processes", &samples, |usage| usage.processes as f64, |_| MORE_OF_OTHERS),
    ];
    assert_eq!(are_flat, [true; 4], "what grows has more in the last third than at most");
    fixture.end().await;
}
