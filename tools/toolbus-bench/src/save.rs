//! Measurements in a file, by name, for documents whose figures are compared with it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

/// Options that change nothing of what is measured; each has a value.
const ASIDE: [&str; 4] = ["--save", "--name", "--output", "--color"];

/// Puts a report into a file, replacing the entry of this name.
pub(crate) fn save(file: &Path, name: &str, report: &impl Serialize) -> io::Result<()> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let entry = json!({
        "command": command(words),
        "machine": machine(),
        "date": date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400),
        "commit": toolbus::VERSION.split(['(', ')']).nth(1).unwrap_or("unknown"),
        "figures": serde_json::to_value(report)?,
    });
    put(file, name, entry)
}

fn put(file: &Path, name: &str, entry: Value) -> io::Result<()> {
    let mut entries: BTreeMap<String, Value> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    entries.insert(name.to_owned(), entry);
    let temporary = file.with_extension("json.new");
    fs::write(&temporary, serde_json::to_string_pretty(&entries)? + "\n")?;
    fs::rename(temporary, file)
}

/// The command line, without what is after the scheme of URLs: it may be a password.
fn command(words: impl Iterator<Item = String>) -> String {
    let mut command = "toolbus bench".to_owned();
    let mut words = words;
    while let Some(word) = words.next() {
        if ASIDE.contains(&&*word) {
            words.next();
            continue;
        }
        if ASIDE.iter().any(|option| word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='))) {
            continue;
        }
        let word = word.split_once("://").map_or(word.clone(), |(scheme, _)| format!("{scheme}://…"));
        let quoted = if word.contains([' ', '"', '$', '{']) { format!("'{word}'") } else { word };
        command += &format!(" {quoted}");
    }
    command
}

/// Processors, memory and kernel of this machine.
fn machine() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim_start_matches([' ', '\t', ':']).to_owned()).unwrap_or_default()
    };
    let number = std::thread::available_parallelism().map_or(1, usize::from);
    let model = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{number} CPUs ({model}), {} GiB, Linux {}", kib.div_ceil(1 << 20), kernel.trim())
}

/// A day since 1970-01-01 as `YYYY-MM-DD`, in UTC.
///
/// Source: Howard Hinnant, `civil_from_days`.
fn date(day: u64) -> String {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + u64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(
            [0, 58, 59, 11_016, 19_782].map(date),
            ["1970-01-01", "1970-02-28", "1970-03-01", "2000-02-29", "2024-02-29"]
        );
    }

    #[test]
    fn a_command_shows_no_password_and_nothing_that_does_not_matter() {
        let words =
            ["--bus-url", "amqp://a:secret@b", "--set", "bus.url=amqp://a:secret@b", "--output=json", "--save", "f"];
        let more = ["--peer", "x=run $PORT", "--rounds", "2"];
        assert_eq!(
            command(words.iter().chain(&more).map(|word| (*word).to_owned())),
            "toolbus bench --bus-url amqp://… --set bus.url=amqp://… --peer 'x=run $PORT' --rounds 2"
        );
    }

    #[test]
    fn an_entry_replaces_the_one_with_its_name_and_leaves_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("measured.json");
        for (name, value) in [("b", 1), ("a", 2), ("b", 3)] {
            put(&file, name, json!({"figures": value})).unwrap();
        }
        let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(kept, json!({"a": {"figures": 2}, "b": {"figures": 3}}));
        fs::write(&file, "no JSON").unwrap();
        assert!(put(&file, "a", json!({})).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "no JSON");
    }
}
