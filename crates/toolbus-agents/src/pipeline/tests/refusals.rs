//! Refusals by pipelines, and refusals that their steps get.

use std::time::Duration;

use serde_json::json;
use toolbus_core::failure::Cause;

use super::fixture::{Fixture, outcomes};
use super::running::echo;
use crate::pipeline::{PipelinesConfig, definition};

#[tokio::test]
async fn arguments_that_are_missing_or_of_another_kind_are_refused() {
    let fixture = Fixture::new();
    let mut texts = Vec::new();
    for arguments in [
        json!({}),
        json!({"definitions": "x"}),
        json!({"definitions": []}),
        json!({"definitions": [1]}),
        json!({"definitions": [{"description": "x"}]}),
        json!({"definitions": [{"description": "x", "steps": []}]}),
        json!({"definitions": [{"description": "x", "steps": [{}]}]}),
        json!({"definitions": [{"description": 1, "steps": [{"id": "a", "tool": "echo"}]}]}),
        json!({"definitions": [{"description": "x", "steps": [{"id": "a", "tool": "echo"}], "timeout_seconds": 0}]}),
        json!({"definitions": [{"description": "x", "steps": [{"id": "a", "tool": "echo"}], "timeout_seconds": 1e300}]}),
    ] {
        let failure = fixture.call_as("ana", arguments, Duration::from_secs(60), None).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        texts.push(failure.message);
    }
    assert!(fixture.runs().is_empty());
    insta::assert_snapshot!(texts.join("\n"), @r#"
    The arguments do not fit the tool's parameters: /: "definitions" is a required property
    The arguments do not fit the tool's parameters: /definitions: value is not of type "array"
    The arguments do not fit the tool's parameters: /definitions: value has less than 1 item
    The arguments do not fit the tool's parameters: /definitions/0: value is not of type "object"
    The arguments do not fit the tool's parameters: /definitions/0: "steps" is a required property
    The arguments do not fit the tool's parameters: /definitions/0/steps: value has less than 1 item
    The arguments do not fit the tool's parameters: /definitions/0/steps/0: "id" is a required property
    The arguments do not fit the tool's parameters: /definitions/0/description: value is not of type "string"
    The arguments do not fit the tool's parameters: /definitions/0/timeout_seconds: value is less than the minimum of 1
    The arguments do not fit the tool's parameters: /definitions/0/timeout_seconds: value is greater than the maximum of 86400
    "#);
}

#[tokio::test]
async fn every_invalid_step_is_named_with_its_path() {
    let fixture = Fixture::new();
    let refused = fixture.refused(json!([
        {"id": "a b", "tool": "echo"},
        {"id": "input", "tool": "echo"},
        {"id": "b"},
        {"id": "b", "tool": "echo"},
        {"id": "c", "tool": "echo", "on_fail": "stop"},
        {"id": "d", "tool": "echo", "on_failure": "retry 6"},
        {"id": "e", "tool": "echo", "gateway": "Ftp"},
        {"id": "f", "tool": "echo", "mode": "Shell"},
        {"id": "h", "tool": "echo", "params": {"text": "{{nobody/x}}"}},
        {"id": "i", "tool": "echo", "params": {"text": "{{b.x}}"}},
        {"id": "j", "tool": "echo", "params": {"text": "{{b"}},
        {"id": "k", "tool": "echo", "params": {"text": "{{input}}{{item}}"}},
        {"id": "l", "tool": "echo", "params": {"text": "{{item}}"}},
        {"id": "m", "tool": "echo", "input_from": "b"},
        {"id": "n", "tool": "echo", "when": [{"value": "b", "matches": "("}]},
        {"id": "o", "tool": "echo", "for_each": "item"},
        {"id": "p", "tool": "echo", "output_to": "b"},
        {"id": "q", "tool": "\u{202e}".repeat(100), "server": "", "gateway": "\u{0}".repeat(100)},
    ]));
    insta::assert_snapshot!(refused.await.replace("; ", "\n"), @r"
    Nothing was run. definitions/0/steps/0 (`a b`): `a b` is no name: expected 1 to 64 ASCII letters, digits, `_` or `-`
    definitions/0/steps/1 (`input`): `input` means something else in references: choose another name
    definitions/0/steps/2 (`b`): it has no `tool`
    definitions/0/steps/3 (`b`): an earlier step has the name `b` already
    definitions/0/steps/4 (`c`): unknown field `on_fail`, expected one of `id`, `mode`, `gateway`, `server`, `tool`, `params`, `prompt`, `agent`, `skill`, `message`, `input_from`, `output_to`, `for_each`, `when`, `on_failure`
    definitions/0/steps/5 (`d`): `retry 6` is no `on_failure`: expected `stop`, `continue` or `retry 1` to `retry 5`
    definitions/0/steps/6 (`e`): `ftp` is no `gateway`: leave it out, and name the tool
    definitions/0/steps/7 (`f`): `Shell` is no `mode`: leave it out
    definitions/0/steps/8 (`h`): there is no step `nobody`
    definitions/0/steps/9 (`i`): `b.x` is no reference: expected `STEP` or `STEP/POINTER`, such as `find/items/0`
    definitions/0/steps/10 (`j`): `{{b` has no `}}`: write `{{{{` for the braces
    definitions/0/steps/11 (`k`): `input` has no value, because the step has no `input_from`
    definitions/0/steps/12 (`l`): `item` has no value here, because it is for steps with `for_each`
    definitions/0/steps/13 (`m`): nothing uses `input_from`: put `{{input}}` where its value belongs in `params`
    definitions/0/steps/14 (`n`): a condition of `when` is an object with `value`, a reference, and one of `equals`, `not_equals`, `contains`, `above`, `below` and `exists`
    definitions/0/steps/15 (`o`): `item` has no value here, because it is for steps with `for_each`
    definitions/0/steps/16 (`p`): an earlier step has the name `b` already
    definitions/0/steps/17 (`q`): `\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0…` is no `gateway`: leave it out, and name the tool.
    ");
}

#[tokio::test]
async fn a_step_for_a_model_is_refused_with_advice() {
    let fixture = Fixture::new();
    let step = json!([echo("a", "x"), {"id": "b", "mode": "Llm", "prompt": "Summarise", "input_from": "a"}]);
    insta::assert_snapshot!(fixture.refused(step).await, @"Nothing was run. definitions/0/steps/1 (`b`): a pipeline calls tools, and no model: do what `prompt` says yourself, between two pipelines.");
}

#[tokio::test]
async fn a_step_that_begins_pipelines_is_refused() {
    let fixture = Fixture::new();
    let inner = json!({"definitions": [{"description": "x", "steps": [echo("a", "x")]}]});
    let steps = json!([echo("a", "x"), {"id": "b", "tool": "spawn_wisps", "params": inner}]);
    insta::assert_snapshot!(fixture.refused(steps).await, @"Nothing was run. definitions/0/steps/1 (`b`): a pipeline cannot begin others: `spawn_wisps`.");
}

#[tokio::test]
async fn steps_that_need_each_others_values_are_refused() {
    let fixture = Fixture::new();
    insta::assert_snapshot!(fixture.refused(json!([echo("a", "{{b}}"), echo("b", "{{a}}")])).await, @"Nothing was run. definitions/0/steps/0 (`a`): the value of `b` is not there yet: a step uses values of steps before it.");
    insta::assert_snapshot!(fixture.refused(json!([echo("a", "{{a/x}}")])).await, @"Nothing was run. definitions/0/steps/0 (`a`): the value of `a` is not there yet: a step uses values of steps before it.");
}

#[tokio::test]
async fn a_tool_that_is_not_among_those_of_its_pipeline_is_refused() {
    let fixture = Fixture::new();
    let definition = json!({"description": "x", "tools": ["give"], "steps": [echo("a", "x")]});
    let refused = fixture.call(json!([definition])).await.unwrap_err();
    assert_eq!(
        refused.message,
        "Nothing was run. definitions/0/steps/0 (`a`): `echo` is none of the `tools` of its pipeline."
    );
}

#[tokio::test]
async fn a_pipeline_of_a_million_steps_and_a_thousand_pipelines_are_refused_at_once() {
    let step = echo("a", "x");
    let long = json!({"definitions": [{"description": "x", "steps": vec![step.clone(); 1_000_000]}]});
    let refused = definition::read(long.as_object().unwrap(), &PipelinesConfig::default()).unwrap_err();
    assert_eq!(refused.message, "Nothing was run. definitions/0: it has 1000000 `steps`; give 1 to 50.");
    let many = json!({"definitions": vec![json!({"description": "x", "steps": [step]}); 1000]});
    let refused = definition::read(many.as_object().unwrap(), &PipelinesConfig::default()).unwrap_err();
    assert_eq!(refused.message, "There are 1000 pipelines in `definitions`; give 1 to 8.");
    // The gate that validates arguments refuses as much as fits into a request.
    let fixture = Fixture::new();
    let long = json!({"definitions": [{"description": "x", "steps": vec![echo("a", "x"); 10_000]}]});
    let failure = fixture.call_as("ana", long, Duration::from_secs(60), None).await.unwrap_err();
    assert_eq!((failure.cause, failure.message.len() < 4000), (Cause::InvalidArguments, true), "{}", failure.message);
}

#[tokio::test]
async fn an_unknown_or_refused_tool_fails_its_step_as_the_callers_own_call_would() {
    let fixture = Fixture::new();
    for (tool, server) in [("ecko", ""), ("secret", ""), ("echo", "files")] {
        let steps = json!([echo("a", "x"), {"id": "b", "tool": tool, "server": server, "on_failure": "retry 3"}]);
        let report = fixture.report(steps).await;
        assert_eq!((&report["outcome"], &report["steps"][1]["code"]), (&json!("failed"), &json!("tool_not_found")));
    }
    let report = fixture.report(json!([{"id": "a", "tool": "secret"}])).await;
    insta::assert_snapshot!(outcomes(&report), @r#"a failed code="tool_not_found" text="Tool 'secret' is not registered.""#);
    assert!(fixture.runs().is_empty());
    let definitions = json!({"definitions": [{"description": "x", "steps": [{"id": "a", "tool": "secret"}]}]});
    let of_bob = fixture.call_as("bob", definitions, Duration::from_secs(60), None).await.unwrap();
    assert!(!of_bob.is_error && fixture.runs() == ["secret {}"]);
}

#[tokio::test]
async fn arguments_that_do_not_fit_the_tool_fail_their_step() {
    let report = Fixture::new().report(json!([{"id": "a", "tool": "echo", "params": {"text": 1}}])).await;
    insta::assert_snapshot!(outcomes(&report), @r#"a failed code="invalid_arguments" text="The arguments do not fit the tool's parameters: /text: value is not of type \"string\"""#);
}

#[tokio::test]
async fn a_pointer_that_finds_nothing_fails_its_step() {
    let fixture = Fixture::new();
    let steps = json!([echo("a", "plain text"), echo("b", "{{a/items/0}}"), echo("c", "x")]);
    insta::assert_snapshot!(outcomes(&fixture.report(steps).await), @r#"
    a ok
    b failed code="invalid_arguments" effects="not_started" text="`a/items/0` finds nothing in the value."
    c not_run text="Step `b` failed."
    "#);
}

#[tokio::test]
async fn steps_of_the_peers_gateways_call_the_tools_that_do_the_same() {
    let fixture = Fixture::new();
    let report = fixture.report(json!([
        {"id": "a", "mode": "Direct", "gateway": "Web", "tool": "echo", "params": {"text": "x"}, "on_failure": "Continue"},
        {"id": "b", "gateway": "A2A", "agent": "bob", "skill": "s", "message": "{{a}}", "on_failure": "continue"},
        {"id": "c", "gateway": "Script", "params": {"script": "1"}, "on_failure": "continue"},
    ]));
    insta::assert_snapshot!(outcomes(&report.await), @r#"
    a ok
    b failed code="tool_not_found" text="Tool 'invoke_agent' is not registered."
    c failed code="tool_not_found" text="Tool 'execute_python_script' is not registered."
    "#);
}
