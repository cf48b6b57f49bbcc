//! The pins of an app: checked when it is built, written when there is something new, and read again when another process
//! wrote them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use toolbus_core::Clock;
use toolbus_core::policy::PolicyHandle;
use toolbus_trust::pins::Pins;

use super::AppError;
use super::watch::{FileWatch, changed};
use crate::config::Config;

/// Delay of a write, so that changes in quick succession are written together.
const QUIET: Duration = Duration::from_millis(100);
/// Interval of attempts to write after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// Pending work on the file.
enum Due {
    Save,
    Reload,
}

/// Opens the pins in `file`, and quarantines tools that differ from them before any call. Only a daemon writes the
/// file; a command without a file checks nothing.
///
/// # Errors
///
/// If the file exists and cannot be used; or if it cannot be written and its rules quarantine tools.
pub(super) async fn open(
    config: &Config,
    file: Option<PathBuf>,
    is_daemon: bool,
    policy: &PolicyHandle,
) -> Result<Pins, AppError> {
    let is_checked = is_daemon || file.is_some();
    let pins = Pins::open(file, config.pin_levels(), Clock::SYSTEM)?;
    if is_checked {
        policy.set_definition_check(Arc::new(pins.clone()));
    }
    if !is_daemon {
        return Ok(pins);
    }
    let saving = pins.clone();
    match spawn_blocking(move || saving.save()).await {
        Ok(Err(error)) if config.pin_levels().hold_anything() => return Err(error.into()),
        Ok(Ok(true)) => policy.refresh(),
        _ => {}
    }
    let held = policy.current().held();
    if held > 0 {
        tracing::warn!(held, "tools are quarantined; `toolbus pins` lists them");
    }
    Ok(pins)
}

/// Keeps the file up to date with the published definitions, and `policy` with the file. Never ends.
pub(super) async fn keep(pins: Pins, policy: PolicyHandle) {
    let mut file = pins.file().map(FileWatch::start);
    loop {
        let retry = async {
            match pins.problem() {
                Some(_) => sleep(RETRY).await,
                None => std::future::pending().await,
            }
        };
        let due = tokio::select! {
            () = pins.unsaved() => {
                sleep(QUIET).await;
                Due::Save
            }
            () = changed(&mut file) => Due::Reload,
            () = retry => Due::Save,
        };
        let (pins, policy) = (pins.clone(), policy.clone());
        // Off the threads that calls run on. `Pins` logs a problem, and the admin API shows it.
        let done = spawn_blocking(move || {
            let needs_review = match due {
                Due::Save => pins.save(),
                Due::Reload => pins.reload(),
            };
            if needs_review.is_ok_and(|needs_review| needs_review) {
                policy.refresh();
            }
        });
        if done.await.is_err() {
            return;
        }
    }
}
