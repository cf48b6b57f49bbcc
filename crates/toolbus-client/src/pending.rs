use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use toolbus_core::bus::Delivery;
use toolbus_core::progress::{Progress, ProgressSink};
use toolbus_protocol::ToolProgress;

use crate::client::{ClientError, Received};

/// Who waits for which answer, by correlation id.
#[derive(Default)]
pub(crate) struct Pending(Mutex<HashMap<String, Waiting>>);

struct Waiting {
    answer: oneshot::Sender<Delivery>,
    progress: Option<ProgressSink>,
}

/// An answer that is waited for, as long as this is held.
pub struct Expected {
    correlation: String,
    pending: Arc<Pending>,
    answer: oneshot::Receiver<Delivery>,
}

impl Pending {
    pub(crate) fn expect(self: &Arc<Self>, correlation: String, progress: Option<ProgressSink>) -> Expected {
        let (sender, answer) = oneshot::channel();
        self.lock().insert(correlation.clone(), Waiting { answer: sender, progress });
        Expected { correlation, pending: Arc::clone(self), answer }
    }

    /// Hands an answer to whoever waits for it; gives it back if nobody does.
    pub(crate) fn answer(&self, delivery: Delivery) -> Option<Delivery> {
        let correlation = delivery.properties.correlation_id.as_deref().unwrap_or_default();
        let waiting = self.lock().remove(correlation);
        match waiting {
            Some(waiting) => waiting.answer.send(delivery).err(),
            None => Some(delivery),
        }
    }

    /// Tells whoever waits how far the call is.
    pub(crate) fn report(&self, delivery: &Delivery) {
        let correlation = delivery.properties.correlation_id.as_deref().unwrap_or_default();
        let sink = self.lock().get(correlation).and_then(|waiting| waiting.progress.clone());
        let report = sink.and_then(|sink| Some((sink, serde_json::from_slice::<ToolProgress>(&delivery.body).ok()?)));
        if let Some((sink, ToolProgress { progress, total, message, .. })) = report {
            sink.report(Progress { progress, total, message });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expected {
    /// Waits for the answer, without limit.
    ///
    /// # Errors
    ///
    /// When the bus has been closed.
    pub async fn received(&mut self) -> Result<Received, ClientError> {
        let Delivery { properties, body, settle, .. } = (&mut self.answer).await.map_err(|_| ClientError::Closed)?;
        settle.acknowledge().await;
        Ok(Received { properties, body })
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.correlation);
    }
}
