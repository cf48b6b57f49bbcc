//! Puts the parts of a dispatcher together.

use std::collections::hash_map::RandomState;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::completing::Completer;
use super::duplicates::Duplicates;
use super::earlier::EarlierRuns;
use super::finding::ToolFinder;
use super::log::Log;
use super::replying::ReplyBuilder;
use super::shaping::Shaper;
use super::{DispatcherSettings, Parts};
use crate::audit::Audit;
use crate::bus::Bus;
use crate::gates::Gates;
use crate::gates::permit::Permits;
use crate::idempotency::{LocalKeys, Recorder, Replay};
use crate::notify::RecentCallers;
use crate::pending_tools::PendingTools;
use crate::reply::{Replier, Replies};
use crate::request::Decoder;
use crate::running::RunningCalls;
use crate::telemetry::{Load, Telemetry};
use crate::throttle::Throttle;

/// One in so many calls in hand may wait for a queue that rejects its reply.
const WAIT_FOR_ROOM: usize = 8;
/// Memory of kept replies, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

impl Parts {
    pub(super) fn new(
        settings: DispatcherSettings,
        gates: Arc<Gates>,
        bus: Arc<dyn Bus>,
        telemetry: Arc<dyn Telemetry>,
        audit: Arc<dyn Audit>,
        load: Arc<Load>,
        arrivals: Arc<dyn PendingTools>,
    ) -> Self {
        // Whatever can be unsettled at once can be redelivered at once.
        let unsettled = settings.max_in_flight.saturating_add(settings.max_waiting);
        let kept = NonZeroUsize::new(unsettled.saturating_mul(2)).unwrap_or(NonZeroUsize::MIN);
        let (clock, random, policy) = (settings.clock, settings.random, gates.policy().clone());
        let shutdown = CancellationToken::new();
        let permits = Permits::new(settings.max_in_flight, settings.max_waiting, Arc::clone(&load), clock);
        let permits = Arc::new(permits);
        let recorder = Recorder::new(settings.ledger.clone(), Arc::clone(&telemetry), clock, random);
        let recorder = Arc::new(recorder);
        let replay = Arc::new(Replay::new(kept, MAX_KEPT_BYTES));
        let callers = RecentCallers::new(clock);
        let replies = Arc::new(ReplyBuilder {
            source: settings.name.as_str().into(),
            clock,
            policy: policy.clone(),
            shutdown: shutdown.clone(),
            log: Log::default(),
        });
        let earlier = Arc::new(EarlierRuns {
            recorder: Arc::clone(&recorder),
            policy: policy.clone(),
            permits: Arc::clone(&permits),
            replies: Arc::clone(&replies),
            telemetry: Arc::clone(&telemetry),
            clock,
            budgets: settings.budgets,
            shutdown: shutdown.clone(),
        });
        let duplicates = Duplicates {
            replay: Arc::clone(&replay),
            recorder: Arc::clone(&recorder),
            earlier: Arc::clone(&earlier),
            replies: Arc::clone(&replies),
            telemetry: Arc::clone(&telemetry),
        };
        let finder = ToolFinder {
            gates: Arc::clone(&gates),
            pending: arrivals,
            permits: Arc::clone(&permits),
            callers: callers.clone(),
            clock,
            shutdown: shutdown.clone(),
            ignores_unknown_servers: settings.ignores_unknown_servers,
        };
        let shaper = Shaper {
            redactor: settings.redactor.clone(),
            results: settings.results.clone(),
            random,
            turns: policy.turns().clone(),
            not_split: Throttle::default(),
        };
        let published = Replies::new(bus, settings.replies.clone(), unsettled / WAIT_FOR_ROOM);
        let replier = Arc::new(Replier::new(published, Arc::clone(&telemetry), clock, shutdown.clone()));
        let completer = Completer {
            replier: Arc::clone(&replier),
            replies: Arc::clone(&replies),
            replay,
            recorder: Arc::clone(&recorder),
            earlier: Arc::clone(&earlier),
            audit,
            telemetry: Arc::clone(&telemetry),
            clock,
        };
        Self {
            gates,
            telemetry,
            permits,
            duplicates,
            earlier,
            finder,
            recorder,
            shaper,
            replies,
            replier,
            completer,
            local_keys: LocalKeys::default(),
            reply_digests: RandomState::new(),
            running: Arc::new(RunningCalls::new(clock)),
            load,
            callers,
            direct: TaskTracker::new(),
            tasks: TaskTracker::new(),
            shutdown,
            settings,
        }
    }

    pub(super) fn decoder(&self) -> Decoder<'_> {
        let DispatcherSettings { max_body, clock, random, .. } = self.settings;
        Decoder { rules: self.replier.rules(), max_body, clock, random }
    }
}
