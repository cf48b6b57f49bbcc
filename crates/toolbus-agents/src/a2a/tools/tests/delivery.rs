//! Results of calls that wait: they reach the call from any replica, and outlive the one where it waited.

use toolbus_testing::faulty_store::StoreFault;

use super::*;

/// Begins a call of ana that waits; returns it with the id of its task.
async fn begin(
    site: &Fixture,
    of_bob: &mut mpsc::Receiver<Delivery>,
) -> (JoinHandle<Result<ToolOutput, ToolFailure>>, String) {
    let waiting = site.call("ana", INVOKE, add(true));
    let id = next(of_bob).await.0.correlation_id;
    (waiting, id)
}

/// The envelope of the result of a task.
fn envelope(id: &str) -> Envelope {
    let (message_type, correlation_id) = (message_type::AGENT_TASK_RESULT.to_owned(), id.to_owned());
    Envelope { message_type, correlation_id, ..Envelope::default() }
}

/// Returns what a replica makes of Bob's result.
async fn hear(replica: &AgentService, id: &str, text: &str) -> &'static str {
    replica.hear(&envelope(id), &testing::agent("Bob"), result(id, text).to_string().as_bytes()).await
}

/// Has the replica that waits take the next message that was handed over to it.
async fn take(site: &Fixture, handed: &mut mpsc::Receiver<Delivery>) -> Option<&'static str> {
    let delivery = handed.recv().await.unwrap();
    let envelope = Envelope::read(&delivery.properties);
    let taken = site.service.take_over(&envelope, &delivery.body).await;
    delivery.settle.acknowledge().await;
    taken
}

#[tokio::test(start_paused = true)]
async fn a_result_that_another_replica_takes_reaches_the_call_that_waits_in_full_and_once() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let mut handed = site.queue(site.service.topics()[1].to_owned());
    let (waiting, id) = begin(&site, &mut of_bob).await;
    let long = "x".repeat(50_000);
    assert_eq!(hear(&site.replica(2), &id, &long).await, "result");
    let delivery = handed.recv().await.unwrap();
    let envelope = Envelope::read(&delivery.properties);
    let forged = String::from_utf8(delivery.body.to_vec()).unwrap().replacen("xx", "yy", 1);
    assert_eq!(site.service.take_over(&envelope, forged.as_bytes()).await, Some("not_asked"), "by what is kept");
    assert_eq!(site.service.take_over(&envelope, &delivery.body).await, None);
    assert_eq!(site.service.take_over(&envelope, &delivery.body).await, Some("repeated"));
    assert_eq!(waiting.await.unwrap().unwrap(), ToolOutput::text(long));
    assert!(of_ana.try_recv().is_err(), "the call has it");
    assert_eq!(site.task(&id).await["state"], "completed");
}

#[tokio::test(start_paused = true)]
async fn the_first_of_two_results_counts_even_before_it_is_kept() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let waiting = site.call("ana", INVOKE, add(false));
    let id = next(&mut of_bob).await.0.correlation_id;
    waiting.await.unwrap().unwrap();
    let task = site.service.tasks().get(&id).await.unwrap().unwrap();
    // Another replica has begun with it, and has not kept it.
    assert!(site.replica(2).is_first(&task, result(&id, "3").to_string().as_bytes()).await.unwrap());
    assert_eq!(hear(&site.service, &id, "4").await, "repeated");
    assert!(of_ana.try_recv().is_err());
    assert_eq!(hear(&site.service, &id, "3").await, "result", "it may come again, because that replica has ended");
    assert!(next(&mut of_ana).await.1.to_string().contains('3'));
}

#[tokio::test(start_paused = true)]
async fn a_result_for_a_call_whose_replica_has_died_is_a_message_and_is_shown_by_the_tasks_id() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let (waiting, id) = begin(&site, &mut of_bob).await;
    // The replica ends: its call ends with it, and its queue has no consumer.
    waiting.abort();
    let restarted = site.replica(2);
    assert_eq!(hear(&restarted, &id, "3").await, "result");
    let (envelope, body) = next(&mut of_ana).await;
    assert_eq!((&body["taskId"], envelope.header("rb-answering-agent")), (&json!(id), Some("Bob")));
    let shown = testing::run(&tools(&restarted), testing::agent("ana"), TASK, json!({"task_id": id}), site.clock).await;
    let shown: Value = serde_json::from_str(&shown.unwrap().content.unwrap()).unwrap();
    assert_eq!((&shown["state"], &shown["result"]), (&json!("completed"), &json!("3")));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_handover_gets_the_kept_result_at_its_end() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let mut handed = site.queue(site.service.topics()[1].to_owned());
    let (waiting, id) = begin(&site, &mut of_bob).await;
    let question = json!({"taskId": id, "contextId": "c7", "state": 2, "message": {"role": "agent", "parts": [{"kind": "text", "text": "Which?"}]}});
    let heard = site.replica(2).hear(&envelope(&id), &testing::agent("Bob"), question.to_string().as_bytes()).await;
    assert_eq!(heard, "result");
    // What was handed over comes late.
    let text = "Agent 'Bob' needs input: Which?\nAnswer by `invoke_agent` with context_id: c7.";
    assert_eq!(waiting.await.unwrap().unwrap(), ToolOutput::text(text));
    assert_eq!(site.task(&id).await["contextId"], "c7");
    assert_eq!(take(&site, &mut handed).await, Some("repeated"));
    assert!(of_ana.try_recv().is_err(), "the call has it");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_handed_over_after_the_call_has_ended_is_a_message() {
    let (site, mut of_bob, mut of_ana) = Fixture::with_queues();
    let mut handed = site.queue(site.service.topics()[1].to_owned());
    let (waiting, id) = begin(&site, &mut of_bob).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(hear(&site.replica(2), &id, "3").await, "result");
    assert_eq!(take(&site, &mut handed).await, None);
    assert_eq!(next(&mut of_ana).await.1["message"]["parts"][0]["text"], "3");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_as_its_call_is_cancelled_is_a_message() {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    let waiting = site.service.wait_for(&site.service.tasks().get(&id).await.unwrap().unwrap());
    assert_eq!(site.result("Bob", &id, "3").await, "result");
    assert!(of_ana.try_recv().is_err(), "the call has it");
    drop(waiting);
    let (_, body) = tokio::time::timeout(Duration::from_secs(60), next(&mut of_ana)).await.unwrap();
    assert_eq!(body["message"]["parts"][0]["text"], "3");
    assert!(of_ana.try_recv().is_err(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_was_not_kept_is_not_taken_over() {
    let site = Fixture::new();
    let mut of_bob = site.queue(topic::agent_task("Bob"));
    let (_waiting, id) = begin(&site, &mut of_bob).await;
    let taken = async |body: Value| site.service.take_over(&envelope(&id), body.to_string().as_bytes()).await;
    assert_eq!(taken(result(&id, "a lie")).await, Some("not_asked"));
    assert_eq!(taken(result("0123456789abcdef0123456789abcdef", "3")).await, Some("unknown_task"));
    for id in ["no id", &"x".repeat(1000)] {
        assert_eq!(taken(result(id, "3")).await, Some("unknown_task"));
    }
    assert_eq!(taken(json!([])).await, Some("malformed"));
    assert_eq!(site.task(&id).await["state"], "submitted");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_arrives_while_the_store_is_away_has_to_come_again_and_counts_then() {
    let (site, _of_bob, mut of_ana) = Fixture::with_queues();
    let id = site.dispatch("ana").await;
    let (bob, body) = (testing::agent("Bob"), result(&id, "3").to_string());
    let mut heard = Vec::new();
    for is_away in [true, false] {
        site.store.set(is_away.then_some(StoreFault::Away));
        heard.push(site.service.take_report(&envelope(&id), &bob, body.as_bytes()).await);
    }
    assert_eq!(heard, [Err(ControlError::StoreAway), Ok(())]);
    assert_eq!(next(&mut of_ana).await.1["message"]["parts"][0]["text"], "3");
    assert_eq!(site.counted(), ["answered store_unavailable", "ended completed", "answered result"]);
}
