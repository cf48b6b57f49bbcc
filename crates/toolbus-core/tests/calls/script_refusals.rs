//! Requests for scripts that have no result: each has a reply of the one form that peers read, or is a dead letter.

use std::sync::Arc;

use insta::assert_snapshot;
use serde_json::json;
use toolbus_core::bus::Target;
use toolbus_core::caller::{AgentName, Identity};
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Policy};
use toolbus_core::rate::{Rate, RateRule, RateRules};

use crate::fixture::{Message, Settled, World, call, raw};
use crate::scripts::{TOOL, add_python, on_scripts, request, script, script_reply, world};
use toolbus_core::Clock;

/// The text with which a request is refused before its script is run.
async fn refusal(message: Message) -> String {
    refusal_in(&world(), message).await
}

async fn refusal_in(world: &World, message: Message) -> String {
    let before = world.runs();
    let sent = world.reply(message).await;
    script_reply(&sent);
    assert_eq!((&sent.body["exitCode"], &sent.body["isSuccess"]), (&json!(-1), &json!(false)));
    assert_eq!((&sent.body["output"], &sent.body["elapsedMs"]), (&json!(null), &json!(0)));
    assert_eq!(sent.target, Target::Topic("script.result.ana".to_owned()));
    assert_eq!(world.runs(), before);
    sent.body["stderr"].as_str().unwrap().to_owned()
}

/// The reason of the dead letter that a request becomes.
async fn dead_reason(world: &World, message: Message) -> String {
    let sent = world.reply(message).await;
    assert!(matches!(sent.target, Target::DeadLetter(_)), "{:?}", sent.target);
    assert_eq!(world.runs(), 0);
    sent.properties.header("rb-dead-reason").unwrap().to_owned()
}

/// A world in which these rules hold for `ana`.
fn world_for(ana: AgentPolicy) -> World {
    let world = world();
    let policy = Policy { agents: [(AgentName::parse("ana").unwrap(), ana)].into(), ..Policy::default() };
    let replaced = world.dispatcher.policy().replace(Identity::default(), policy, |_| Ok::<_, ()>(()));
    assert_eq!(replaced, Ok(()));
    world
}

#[tokio::test]
async fn a_script_that_takes_too_long_fails_in_the_words_that_peers_look_for() {
    let sent = world().reply(script("wait").header("rb-rb-timeout-ms", "500")).await;
    assert_snapshot!(script_reply(&sent), @r#"{"exitCode":-1,"isSuccess":false,"output":null,"stderr":"Script timed out: Tool 'execute_python_script' did not answer before the deadline of the call. Whether it had its effect is not known: find out before calling again.","toolCallId":"call_1"}"#);
}

#[tokio::test]
async fn a_script_whose_deadline_has_passed_is_not_run_and_timed_out() {
    let mut message = script("both").header("rb-rb-timeout-ms", "1000");
    let now = Clock::SYSTEM.since_epoch();
    message.properties.timestamp = Some(now.as_secs() - 5);
    assert_snapshot!(refusal(message).await, @"Script timed out: The deadline of the call had passed before the tool could begin. It was not run.");
}

#[tokio::test]
async fn a_caller_that_may_not_use_the_tool_runs_no_script() {
    let denied = AgentPolicy { denied: vec![Pattern::parse(TOOL).unwrap()], ..AgentPolicy::default() };
    assert_snapshot!(refusal_in(&world_for(denied), script("both")).await, @"Tool 'execute_python_script' is not registered.");
}

#[tokio::test]
async fn without_a_tool_for_scripts_a_script_is_refused() {
    let world = World::new();
    assert_snapshot!(refusal_in(&world, script("both")).await, @"Tool 'execute_python_script' is not registered.");
    add_python(&world);
    assert_eq!(world.reply(script("both")).await.body["exitCode"], 0);
}

#[tokio::test]
async fn a_caller_over_its_rate_gets_the_time_to_wait() {
    let rule = RateRule::new(Pattern::parse("execute_*").unwrap(), Rate::new(0.001, 1).unwrap());
    let rates = Arc::new(RateRules::new(vec![rule]).unwrap());
    let world = world_for(AgentPolicy { rates, ..AgentPolicy::default() });
    assert_eq!(world.reply(script("both")).await.body["exitCode"], 0);
    let text = refusal_in(&world, script("both")).await;
    let wait = text.strip_prefix("Tool 'execute_python_script' was called too often. Try again later. Wait at least ");
    let wait: u64 = wait.unwrap().strip_suffix(" minutes.").unwrap().parse().unwrap();
    assert!((15..=17).contains(&wait), "{text}");
}

#[tokio::test]
async fn arguments_that_the_tool_does_not_take_are_refused() {
    let body = json!({"toolCallId": "c", "script": "both", "pipPackages": ["a", "b", "c"]});
    assert_snapshot!(refusal(request(&body)).await, @"The arguments do not fit the tool's parameters: /pip_packages: value has more than 2 items");
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused_in_words() {
    assert_snapshot!(refusal(on_scripts(raw("{oops"))).await, @"The request is not usable: key must be a string at line 1 column 2.");
    assert_snapshot!(refusal(request(&json!([1]))).await, @"The request is not usable: expected a JSON object, found an array.");
    let wrong = request(&json!({"toolCallId": "c", "script": "both", "timeoutSeconds": "30"}));
    assert!(refusal(wrong).await.starts_with("The request is not usable: invalid type: string \"30\", expected i64"));
}

#[tokio::test]
async fn a_body_that_cannot_be_read_and_has_no_address_is_dead_lettered() {
    let message = on_scripts(raw("{oops")).reply_to(None);
    assert_eq!(dead_reason(&world(), message).await, "malformed_request");
}

#[tokio::test]
async fn a_request_without_a_script_is_refused_under_its_own_id() {
    for body in [json!({"toolCallId": "mine"}), json!({"toolCallId": "mine", "script": null})] {
        assert_eq!(refusal(request(&body)).await, "The request is not usable: missing member `script`.");
        assert_eq!(world().reply(request(&body)).await.body["toolCallId"], "mine");
    }
}

#[tokio::test]
async fn a_request_for_a_script_over_the_limit_is_refused_before_it_is_parsed() {
    let message = on_scripts(raw(vec![b'{'; 1024 * 1024 + 1]));
    assert_snapshot!(refusal(message).await, @"The request has 1048577 bytes; at most 1048576 are taken. Send less.");
}

#[tokio::test]
async fn an_id_that_is_too_long_is_refused_and_repeated_shortened() {
    let body = json!({"toolCallId": "x".repeat(1025), "script": "both"});
    assert_snapshot!(refusal(request(&body)).await, @"The toolCallId has 1025 bytes; at most 1024 are taken. Use a shorter one.");
    assert_eq!(world().reply(request(&body)).await.body["toolCallId"], "x".repeat(255));
}

#[tokio::test]
async fn more_output_than_a_message_holds_is_an_error() {
    let sent = world().reply(script("huge")).await;
    assert_snapshot!(script_reply(&sent), @r#"{"exitCode":-1,"isSuccess":false,"output":null,"stderr":"The result is too large to be sent: 104857600 bytes, and the limit is 16711680. Ask the tool for less at a time. Whether it had its effect is not known: find out before calling again.","toolCallId":"call_1"}"#);
}

#[tokio::test]
async fn a_panic_of_the_tool_is_a_script_without_a_result() {
    let text = script_reply(&world().reply(script("panic")).await);
    assert!(text.contains(r#""exitCode":-1"#) && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn the_fifth_delivery_of_a_script_is_answered_and_not_run() {
    let world = world();
    let mut message = script("both").redelivered();
    message.earlier_deliveries = 4;
    assert_snapshot!(refusal_in(&world, message).await, @"This request is not run again. It was delivered too often without an answer. Whether it had its effect is not known: find out before calling again.");
}

#[tokio::test]
async fn types_that_do_not_belong_on_the_topic_of_scripts_are_not_run() {
    let tool = |message_type| script("both").typed(Some(message_type));
    assert_eq!(dead_reason(&world(), tool("RockBot.Tools.ToolInvokeRequest")).await, "unknown_type");
    let world = world();
    assert_eq!(dead_reason(&world, script("both").on_tools()).await, "unknown_type");
    let settlement = world.deliver(tool("RockBot.Scripts.ScriptInvokeResponse")).await;
    assert_eq!((settlement.get(), world.runs()), (Some(Settled::Acknowledged), 0));
    assert_eq!(world.sent().len(), 1, "a reply has no reply");
}

#[tokio::test]
async fn requests_for_tools_are_not_read_as_scripts_nor_the_reverse() {
    let tool = on_scripts(call(TOOL, json!({"script": "both"})));
    assert_snapshot!(refusal(tool).await, @"The request is not usable: missing member `script`.");
    let sent = world().reply(script("both").on_tools().typed(None)).await;
    assert_eq!(sent.body["code"], "invalid_arguments");
}

#[tokio::test]
async fn a_reply_address_on_a_topic_for_requests_is_refused() {
    for address in ["script.invoke", "script.invoke.ana", "tool.invoke"] {
        for message in [script("both"), script("both").typed(None)] {
            assert_eq!(dead_reason(&world(), message.reply_to(Some(address))).await, "reply_to_refused");
        }
    }
}

#[tokio::test]
async fn with_own_topics_only_a_script_reply_goes_to_the_callers_own_topic() {
    let world = World::with(|settings| settings.replies.own_topics_only = true);
    add_python(&world);
    let others = script("both").reply_to(Some("script.result.bob"));
    assert_eq!(dead_reason(&world, others).await, "reply_to_refused");
    let default = script("both").reply_to(Some("script.result"));
    assert_eq!(dead_reason(&world, default).await, "reply_to_refused");
    assert_eq!(world.reply(script("both")).await.body["exitCode"], 0);
}
