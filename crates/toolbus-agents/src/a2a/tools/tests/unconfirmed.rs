//! Tasks that the broker has not confirmed: their outcome is unknown.

use toolbus_core::bus::PublishError;
use toolbus_core::failure::{Effect as CallEffect, verdict};
use toolbus_protocol::Outcome;
use toolbus_testing::recording_bus::Route;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_task_without_a_confirm_has_an_unknown_outcome_and_its_late_result_counts() {
    for doubt in [
        Route::Doubted(None),
        Route::Doubted(Some(PublishError::Unavailable("the channel was lost".to_owned()))),
        Route::Doubted(Some(PublishError::Rejected("another queue for it is full".to_owned()))),
        Route::Doubted(Some(PublishError::Closed)),
    ] {
        let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
        site.doubtful.route_all(doubt);
        let failure = site.call("ana", INVOKE, add(false)).await.unwrap().unwrap_err();
        let id = next(&mut of_bob).await.0.correlation_id;
        assert_eq!(failure.cause, Cause::OutcomeUnknown);
        assert_eq!(
            failure.message,
            format!(
                "It is not known whether agent 'Bob' has got the task with task_id: {id}. If it has, the result will \
                 arrive asynchronously, and `get_agent_task` shows it. Do not give the task again before you have looked \
                 there."
            )
        );
        let verdict = verdict(failure.cause, CallEffect::Effectful, true);
        assert_eq!((verdict.is_retryable, verdict.outcome), (false, Some(Outcome::Unknown)));
        assert_eq!((site.task(&id).await["state"].clone(), site.counted()), (json!("submitted"), Vec::new()));
        site.doubtful.route_all(Route::Routed);
        assert_eq!(site.result("Bob", &id, "3").await, "result");
        assert_eq!(next(&mut of_ana).await.1["message"]["parts"][0]["text"], "3");
        assert_eq!(site.task(&id).await["result"], "3");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_an_unconfirmed_task_gets_its_result_or_an_unknown_outcome() {
    let site = Fixture::new();
    let mut of_bob = site.queue(topic::agent_task("Bob"));
    site.doubtful.route_all(Route::Doubted(None));
    let waiting = site.call("ana", INVOKE, add(true));
    let id = next(&mut of_bob).await.0.correlation_id;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(site.result("Bob", &id, "3").await, "result");
    assert_eq!(waiting.await.unwrap().unwrap(), ToolOutput::text("3"));

    let failure = site.call("ana", INVOKE, add(true)).await.unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_the_broker_did_not_take_is_forgotten_and_may_be_given_again() {
    let site = Fixture::new();
    let _of_bob = site.queue(topic::agent_task("Bob"));
    site.doubtful.route_all(Route::Refused);
    let failure = site.call("ana", INVOKE, add(true)).await.unwrap().unwrap_err();
    let text = "The task for agent 'Bob' could not be sent. Try again later.";
    assert_eq!((failure.cause, &*failure.message), (Cause::ConnectFailed, text));
    let verdict = verdict(failure.cause, CallEffect::Effectful, true);
    assert_eq!((verdict.is_retryable, verdict.outcome), (true, Some(Outcome::NotStarted)));
    assert_eq!((site.kept().await.len(), site.counted()), (0, vec!["ended not_sent".to_owned()]));
}
