//! Pins of a running daemon: written when there is something new, and read again when others wrote.

use std::time::Duration;

use tokio::time::sleep;
use toolbus_core::policy::PolicyHandle;
use toolbus_trust::pins::Pins;

use crate::watch::FileWatch;

/// Time in which what comes together is written together.
const QUIET: Duration = Duration::from_millis(100);
/// Time between two tries to write what could not be written.
const RETRY: Duration = Duration::from_secs(30);

/// What is to be done with the file.
enum Due {
    Save,
    Reload,
}

/// Keeps the file up to date with what is seen, and `access` with the file; never ends.
pub(super) async fn keep(pins: Pins, access: PolicyHandle) {
    let mut file = pins.file().map(FileWatch::start);
    loop {
        let changed = async {
            match &mut file {
                Some(file) => file.changed().await,
                None => std::future::pending().await,
            }
        };
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
            () = changed => Due::Reload,
            () = retry => Due::Save,
        };
        let (pins, access) = (pins.clone(), access.clone());
        // Not on a thread that calls run on. What is wrong is logged, and told to operators.
        let done = tokio::task::spawn_blocking(move || {
            let needs_review = match due {
                Due::Save => pins.save(),
                Due::Reload => pins.reload(),
            };
            if needs_review.is_ok_and(|needs_review| needs_review) {
                access.refresh();
            }
        });
        if done.await.is_err() {
            return;
        }
    }
}
