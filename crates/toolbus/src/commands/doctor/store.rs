//! The store: whether it takes and gives back a value, and the permissions of its files.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::Access;
use tokio::task::spawn_blocking;
use toolbus_core::store::{Store, StoreError};
use toolbus_protocol::new_message_id;
use toolbus_store::{Sqlite, StoreUrl};

use super::daemon::RunningDaemon;
use super::{Finding, PATIENCE, STORE, mode};
use crate::app::is_of_another;
use crate::commands::shell_word;
use crate::config::{Config, Sources};

/// Namespace and value of the entry that is written and deleted again.
const NAMESPACE: &str = "doctor";
const VALUE: &[u8] = b"written by toolbus doctor";
/// Advice for state that is in memory.
const NAME_A_FILE: &str = "set store.url, such as \"sqlite:/var/lib/toolbus/toolbus.db\"";
/// Rights of all but the owner.
const OTHERS: u32 = 0o077;

/// Writes to the store, and reads it back, unless the running daemon reports a problem of it.
pub(super) async fn examine(config: &Config, sources: &Sources, running: &RunningDaemon) -> Vec<Finding> {
    if running.has_finding(STORE) {
        return Vec::new();
    }
    if running.has_state_in_memory && config.store.url != Some(StoreUrl::Memory) {
        let text = "state of the running daemon is in memory, and lost when it ends; its log says why";
        return vec![Finding::warning(STORE, text).mended_by(format!("{NAME_A_FILE}, and restart the daemon"))];
    }
    match config.store.url() {
        StoreUrl::Memory if config.store.url.is_some() => {
            vec![Finding::ok(STORE, "state is in memory, and lost when the daemon ends, as store.url says")]
        }
        StoreUrl::Memory => {
            let text = "state is in memory, and lost when the daemon ends: no folder for state can be written";
            vec![Finding::warning(STORE, text).mended_by(NAME_A_FILE)]
        }
        StoreUrl::Sqlite(file) => of_file(config, &file).await,
        StoreUrl::Redis(url) => match config.store.open(&config.queue_prefix(), &sources.holder()) {
            Ok(open) => {
                let mend = "start the server, or correct store.url and its login";
                vec![judged(&url.to_string(), within(try_out(&*open.store)).await, mend)]
            }
            Err(error) => vec![Finding::problem(STORE, error.to_string()).mended_by("correct store.tls")],
        },
    }
}

async fn of_file(config: &Config, file: &Path) -> Vec<Finding> {
    // A mistake of the configuration.
    if config.store.url.is_some() && Sqlite::check(file).is_err() {
        return Vec::new();
    }
    let is_in_state_folder = config.store.url.is_none();
    let Some(existing) = file.ancestors().map(or_here).find(|path| path.exists()) else { return Vec::new() };
    if is_of_another(existing, Access::READ_OK | Access::WRITE_OK) {
        let text = format!("this user may not use `{}`", existing.display());
        return vec![Finding::warning(STORE, text).mended_by("run this command as the user of the daemon")];
    }
    if existing == file && Sqlite::is_older(file) {
        // Another daemon may use it.
        let text = format!("`{}` is of an earlier version: the daemon changes it at its start", file.display());
        return vec![Finding::ok(STORE, text)];
    }
    let mend = "give the daemon's user the right to write there, and the disk room; or set store.url";
    let tried = if existing == file { within(of_sqlite(file)).await } else { within(in_scratch(existing)).await };
    let mut findings = vec![judged(&format!("`{}`", file.display()), tried, mend)];
    let folder = file.parent().filter(|_| is_in_state_folder);
    for path in folder.into_iter().chain([file]) {
        if mode(path).is_some_and(|mode| mode & OTHERS != 0) {
            let text = format!("others than its owner may use `{}`", path.display());
            let mend = format!("chmod go-rwx {}", shell_word(&path.display().to_string()));
            findings.push(Finding::warning(STORE, text).mended_by(mend));
        }
    }
    findings
}

/// The working directory has no name in a relative path.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn judged(name: &str, tried: Result<(), String>, mend: &str) -> Finding {
    match tried {
        Ok(()) => Finding::ok(STORE, format!("{name} is written and read")),
        Err(why) => Finding::problem(STORE, format!("{name} cannot be used: {why}")).mended_by(mend),
    }
}

/// Tries a missing file in a folder that is removed again: a file that stayed would be owned by the user of the
/// command.
async fn in_scratch(folder: &Path) -> Result<(), String> {
    let scratch = folder.join(format!(".toolbus-doctor-{}", new_message_id()));
    DirBuilder::new().mode(0o700).create(&scratch).map_err(|error| error.to_string())?;
    let tried = of_sqlite(&scratch.join("toolbus.db")).await;
    // The thread of the store may still be removing its files.
    let removed = fs::remove_dir_all(&scratch).or_else(|_| fs::remove_dir_all(&scratch));
    tried.and(removed.map_err(|error| format!("`{}` cannot be removed: {error}", scratch.display())))
}

async fn of_sqlite(file: &Path) -> Result<(), String> {
    let path = file.to_owned();
    let opened = spawn_blocking(move || Sqlite::open(&path)).await.map_err(|error| error.to_string())?;
    try_out(&opened.map_err(|error| error.to_string())?).await
}

/// Writes a value, reads it, and deletes it.
async fn try_out(store: &dyn Store) -> Result<(), String> {
    let key = new_message_id();
    let read = async {
        store.put(NAMESPACE, &key, VALUE.to_vec()).await?;
        let read = store.get(NAMESPACE, &key).await?;
        store.delete(NAMESPACE, &key).await?;
        Ok::<_, StoreError>(read)
    };
    match read.await {
        Ok(Some(read)) if read == VALUE => Ok(()),
        Ok(_) => Err("it does not give back what was written".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives up after some time.
async fn within(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let late = |_| format!("no answer within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use toolbus_testing::patience::eventually;

    use super::*;
    use crate::commands::doctor::Verdict;
    use crate::config::StoreConfig;

    async fn found(store: StoreConfig) -> Vec<(Verdict, String)> {
        found_beside(RunningDaemon::default(), store).await
    }

    async fn found_beside(running: RunningDaemon, store: StoreConfig) -> Vec<(Verdict, String)> {
        let findings = examine(&Config { store, ..Config::default() }, &Sources::default(), &running).await;
        findings.into_iter().map(|finding| (finding.verdict, finding.text)).collect()
    }

    fn named(file: &Path) -> StoreConfig {
        StoreConfig { url: Some(StoreUrl::Sqlite(file.to_owned())), ..StoreConfig::default() }
    }

    #[tokio::test]
    async fn a_file_is_tried_and_none_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("toolbus.db");
        let written = (Verdict::Ok, format!("`{}` is written and read", file.display()));
        assert_eq!(found(named(&file)).await, std::slice::from_ref(&written));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        drop(Sqlite::open(&file).unwrap());
        assert_eq!(found(named(&file)).await, std::slice::from_ref(&written));
        // As a file of the first version has it: the user version is the big-endian number at byte 60.
        let log = folder.path().join("toolbus.db-wal");
        eventually("the threads of the store to end", async || (!log.exists()).then_some(())).await;
        let current = fs::read(&file).unwrap();
        let older = [&current[..60], &[0, 0, 0, 1], &current[64..]].concat();
        fs::write(&file, &older).unwrap();
        assert!(found(named(&file)).await[0].1.contains("is of an earlier version"));
        assert_eq!(fs::read(&file).unwrap(), older, "it is left as it is");
        fs::write(&file, current).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let others = (Verdict::Warning, format!("others than its owner may use `{}`", file.display()));
        assert_eq!(found(named(&file)).await, [written, others]);
    }

    #[tokio::test]
    async fn a_missing_state_folder_is_tried_and_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("toolbus/name.prefix/toolbus.db");
        let state = |file: &Path| StoreConfig { state_file: Some(file.to_owned()), ..StoreConfig::default() };
        let written = (Verdict::Ok, format!("`{}` is written and read", file.display()));
        assert_eq!(found(state(&file)).await, [written]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        fs::write(folder.path().join("toolbus"), "a file").unwrap();
        let [(verdict, text)] = &*found(state(&file)).await else { panic!("one finding") };
        assert_eq!(*verdict, Verdict::Problem);
        assert!(text.starts_with(&format!("`{}` cannot be used: ", file.display())), "{text}");
    }

    #[tokio::test]
    async fn memory_is_right_where_it_is_configured() {
        let memory = StoreConfig { url: Some(StoreUrl::Memory), ..StoreConfig::default() };
        let verdicts = async |store| found(store).await.into_iter().map(|(verdict, _)| verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(memory).await, [Verdict::Ok]);
        assert_eq!(verdicts(StoreConfig::default()).await, [Verdict::Warning]);
    }

    #[tokio::test]
    async fn the_running_daemons_state_in_memory_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = RunningDaemon { has_state_in_memory: true, ..RunningDaemon::default() };
        let [(verdict, text)] = &*found_beside(daemon, named(&folder.path().join("a.db"))).await else { panic!("one") };
        assert_eq!((*verdict, text.contains("is in memory")), (Verdict::Warning, true), "{text}");
    }

    #[tokio::test]
    async fn a_silent_server_is_a_problem_that_shows_no_login() {
        let url = Some("redis://ana:hunter2@127.0.0.1:1".parse().unwrap());
        let [(verdict, text)] = &*found(StoreConfig { url, ..StoreConfig::default() }).await else { panic!("one") };
        assert_eq!(*verdict, Verdict::Problem);
        assert!(text.starts_with("redis://127.0.0.1:1 cannot be used: ") && !text.contains("hunter2"), "{text}");
    }
}
