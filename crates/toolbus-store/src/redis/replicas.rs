//! Knowledge that replicas have of each other by one server: what has changed in the store, and which of them there
//! are.

use std::time::Duration;

use toolbus_core::milliseconds;
use toolbus_core::store::StoreError;
use toolbus_protocol::new_message_id;

use super::Redis;

/// Most announcements that are read.
const MAX_ANNOUNCEMENTS: usize = 256;

/// The state of the store's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// Name of the data: another one after they were lost as a whole.
    data: String,
    /// Number of changes of each namespace.
    counts: Vec<u64>,
}

impl Versions {
    /// Whether something was lost since `earlier`: the server began anew, or with older data.
    #[must_use]
    pub fn have_lost(&self, earlier: &Self) -> bool {
        self.data != earlier.data || self.counts.iter().zip(&earlier.counts).any(|(now, before)| now < before)
    }
}

impl Redis {
    /// The versions of these namespaces: each differs from an earlier one if a key was put or deleted between.
    ///
    /// # Errors
    ///
    /// If the server cannot be used.
    pub async fn versions(&self, namespaces: &[&str]) -> Result<Versions, StoreError> {
        let mut script = self.scripts.versions.prepare_invoke();
        script.key(self.key("versions")).arg(new_message_id());
        for namespace in namespaces {
            script.arg(Self::version(namespace));
        }
        let mut found: Vec<Option<String>> = self.connection.run(&script).await?;
        let data = if found.is_empty() { None } else { found.remove(0) };
        let counts = found.into_iter().map(|count| count.and_then(|count| count.parse().ok()).unwrap_or_default());
        Ok(Versions { data: data.unwrap_or_default(), counts: counts.collect() })
    }

    /// Announces a replica for `time`; returns the server's time since 1970, and what all replicas have announced, at
    /// most 256, its own among them.
    ///
    /// # Errors
    ///
    /// If the server cannot be used.
    pub async fn announce(
        &self,
        id: &str,
        about: &[u8],
        time: Duration,
    ) -> Result<(Duration, Vec<Vec<u8>>), StoreError> {
        let mut script = self.scripts.announce.prepare_invoke();
        script.key(self.key("replica-times")).key(self.key("replicas"));
        script.arg(id).arg(about).arg(milliseconds(time)).arg(MAX_ANNOUNCEMENTS);
        let (now, found): (u64, Vec<Option<Vec<u8>>>) = self.connection.run(&script).await?;
        Ok((Duration::from_millis(now), found.into_iter().flatten().collect()))
    }

    /// Takes an announcement back.
    ///
    /// # Errors
    ///
    /// If the server cannot be used; the announcement then ends with its time.
    pub async fn leave(&self, id: &str) -> Result<(), StoreError> {
        let mut script = self.scripts.leave.prepare_invoke();
        script.key(self.key("replica-times")).key(self.key("replicas")).arg(id);
        self.connection.run(&script).await
    }
}
