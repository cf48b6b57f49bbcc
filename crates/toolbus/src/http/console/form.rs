//! The form that calls a tool: a field for each argument that its schema has, or all of them as JSON.

use maud::{Markup, html};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use toolbus_core::redact::REDACTED;
use toolbus_core::tool::ToolDescriptor;
use toolbus_telemetry::RecentCall;

use super::PATH;
use super::access::Fields;
use super::page::{PageWriter, tool_path};
use crate::example::example_arguments;

/// Arguments that have a field of their own; the others are given as JSON.
const MAX_FIELDS: usize = 40;
/// Values among which a field lets choose.
const MAX_CHOICES: usize = 100;
/// Before the name of an argument, in the name of its field.
const PREFIX: &str = "argument.";

/// Fields of the caller: name, label and example of each.
const CALLER: [(&str, &str, &str); 4] = [
    ("agent", "As agent ", "a caller without a section"),
    ("binding", "Binding ", "channel:account"),
    ("profile", "Profile ", ""),
    ("session", "Session ", ""),
];

/// One argument.
struct Argument<'a> {
    name: &'a str,
    kind: FieldKind<'a>,
    is_required: bool,
    schema: &'a Value,
}

enum FieldKind<'a> {
    Text,
    Number,
    Boolean,
    Choice(&'a [Value]),
    Json,
}

/// The arguments that the schema of a tool names, those that it requires first.
fn arguments_of(tool: &ToolDescriptor) -> Vec<Argument<'_>> {
    let Some(schema) = tool.parameters.as_deref() else { return Vec::new() };
    let required: Vec<&str> = array(schema, "required").iter().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let argument = |(name, schema)| {
        let name = String::as_str(name);
        Argument { name, kind: kind(schema), is_required: required.contains(&name), schema }
    };
    let mut arguments: Vec<_> = properties.map(argument).collect();
    arguments.sort_by_key(|argument| !argument.is_required);
    arguments.truncate(MAX_FIELDS);
    arguments
}

fn array<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn kind(schema: &Value) -> FieldKind<'_> {
    let choices = array(schema, "enum");
    if (1..=MAX_CHOICES).contains(&choices.len()) {
        return FieldKind::Choice(choices);
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => FieldKind::Text,
        Some("integer" | "number") => FieldKind::Number,
        Some("boolean") => FieldKind::Boolean,
        _ => FieldKind::Json,
    }
}

/// The arguments of a form: its JSON where that is sent, else its fields. An empty field is left out.
pub(super) fn arguments(tool: &ToolDescriptor, form: &Fields) -> Result<Box<RawValue>, String> {
    if form.get("as") == "json" {
        let text = form.get("json").trim().to_owned();
        return RawValue::from_string(text).map_err(|error| format!("The arguments are not JSON: {error}."));
    }
    let mut given = Map::new();
    for Argument { name, kind, .. } in arguments_of(tool) {
        let text = form.get(&format!("{PREFIX}{name}"));
        if text.is_empty() {
            continue;
        }
        let value = match kind {
            // Browsers send the ends of lines as HTTP has them.
            FieldKind::Text => Value::String(text.replace("\r\n", "\n")),
            FieldKind::Number | FieldKind::Boolean | FieldKind::Choice(_) | FieldKind::Json => {
                serde_json::from_str(text).map_err(|error| format!("`{name}` is not JSON: {error}."))?
            }
        };
        given.insert(name.to_owned(), value);
    }
    to_raw_value(&given).map_err(|error| format!("The arguments cannot be written as JSON: {error}."))
}

/// Field of an address with the number of an earlier call, whose arguments fill in the form.
pub(super) const EARLIER: &str = "call";

/// The draft with the arguments of the earlier call that it names, and a note on them.
fn with_earlier(pages: &PageWriter, tool: &ToolDescriptor, draft: &Fields) -> (Fields, Option<&'static str>) {
    let Ok(number) = draft.get(EARLIER).parse::<u64>() else { return (draft.clone(), None) };
    let is_meant = |call: &RecentCall| call.number == number && call.tool == tool.name;
    let kept = pages.admin().recent.newest(1, is_meant).pop();
    match kept.map(|call| call.arguments) {
        _ if !pages.console.keeps_payloads => {
            (draft.clone(), Some("The arguments of that call were not kept: http.console_payloads is \"none\"."))
        }
        None => (draft.clone(), Some("That call is no longer kept, and neither are its arguments.")),
        Some(None) => {
            (draft.clone(), Some("No arguments of that call were kept: it had none, or ended before they were read."))
        }
        Some(Some(payload)) if payload.is_cut => {
            (draft.clone(), Some("The arguments of that call are too long: only their beginning was kept."))
        }
        Some(Some(payload)) => {
            let note = match payload.text.contains(REDACTED) {
                true => "The arguments are those of that call, but for secrets, which were removed.",
                false => "The arguments are those of that call.",
            };
            (draft.under([("json", &*payload.text), ("form", "json")]), Some(note))
        }
    }
}

/// The form, filled in as `draft` has it.
pub(super) fn call(pages: &PageWriter, tool: &ToolDescriptor, draft: &Fields) -> Markup {
    let (draft, note) = with_earlier(pages, tool, draft);
    let draft = &draft;
    let arguments = arguments_of(tool);
    let json = match draft.get("json") {
        "" => pages.clean(&format!("{:#}", Value::Object(example_arguments(tool.parameters.as_deref())))),
        json => json.to_owned(),
    };
    let is_json = arguments.is_empty() || draft.get("as") == "json" || draft.get("form") == "json";
    html! {
        @if pages.visitor.may_act {
            h2 #call { "Call it" }
            @if let Some(note) = note { p.hint { (note) } }
            form.call method="post" action=(format!("{PATH}{}/call", tool_path(&tool.name))) {
                (pages.proof())
                (pages.agent_names())
                div.row {
                    @for (name, label, hint) in CALLER {
                        @let list = (name == "agent").then_some("agents");
                        label { (label) input name=(name) list=[list] value=(draft.get(name)) placeholder=(hint); }
                    }
                }
                @for argument in &arguments { (field(pages, argument, draft)) }
                @if !arguments.is_empty() {
                    p {
                        button name="as" value="fields" { "Call" } " "
                        span.hint { "An empty field is left out. The call passes every gate, as the agent's own do." }
                    }
                }
                details open[is_json] {
                    summary { "The arguments as JSON" }
                    textarea name="json" rows="6" spellcheck="false" aria-label="Arguments as JSON" { "\n" (json) }
                    p { button name="as" value="json" formnovalidate { "Call with this JSON" } }
                }
            }
        }
    }
}

fn field(pages: &PageWriter, argument: &Argument<'_>, draft: &Fields) -> Markup {
    let Argument { name, kind, is_required, schema } = argument;
    let is_required = *is_required;
    let own = format!("{PREFIX}{name}");
    let value = draft.get(&own);
    let about = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let default =
        schema.get("default").map(|default| default.as_str().map_or_else(|| default.to_string(), str::to_owned));
    let default = default.map(|default| pages.clean(&default));
    html! {
        label {
            span {
                code { (pages.text(name)) } @if is_required { " required" } " " span.dim { (pages.text(about)) }
            }
            @match kind {
                // A browser leaves out the first end of line of a text area.
                FieldKind::Text => {
                    textarea name=(own) rows="1" required[is_required] placeholder=[default] { "\n" (value) }
                }
                FieldKind::Number => {
                    input name=(own) type="number" step="any" required[is_required] placeholder=[default] value=(value);
                }
                FieldKind::Boolean => { (choice(pages, &own, &[Value::Bool(true), Value::Bool(false)], value, is_required)) }
                FieldKind::Choice(choices) => { (choice(pages, &own, choices, value, is_required)) }
                FieldKind::Json => {
                    @let hint = default.as_deref().unwrap_or("JSON");
                    textarea name=(own) rows="3" required[is_required] spellcheck="false" placeholder=(hint) {
                        "\n" (value)
                    }
                }
            }
        }
    }
}

fn choice(pages: &PageWriter, name: &str, choices: &[Value], chosen: &str, is_required: bool) -> Markup {
    html! {
        select name=(name) required[is_required] {
            option value="" {}
            @for value in choices {
                @let json = pages.clean(&value.to_string());
                option value=(json) selected[json == chosen] { (pages.clean(value.as_str().unwrap_or(&json))) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn given(fields: &[(&str, &str)]) -> Result<Value, String> {
        let schema = json!({"properties": {
            "text": {"type": "string"}, "n": {"type": "integer"}, "on": {"type": "boolean"}, "mode": {"enum": ["a", 1]},
            "who": {"type": "object"}, "no": {"type": ["string", "null"]}
        }, "required": ["who"]});
        let parameters = Some(Arc::new(schema));
        let tool = ToolDescriptor { parameters, ..ToolDescriptor::new("x", "rest", "rest") };
        let form: Fields = serde_json::from_value(json!(fields)).unwrap();
        arguments(&tool, &form).map(|raw| serde_json::from_str(raw.get()).unwrap())
    }

    #[test]
    fn fields_become_arguments_of_their_types_and_empty_ones_are_left_out() {
        let fields = [
            ("argument.text", "1\r\n2"),
            ("argument.n", "12345678901234567"),
            ("argument.on", "true"),
            ("argument.mode", "\"a\""),
            ("argument.who", "{\"name\": \"ana\"}"),
            ("argument.no", ""),
            ("argument.unknown", "x"),
            ("json", "{}"),
        ];
        let wanted =
            json!({"text": "1\n2", "n": 12_345_678_901_234_567_i64, "on": true, "mode": "a", "who": {"name": "ana"}});
        assert_eq!(given(&fields), Ok(wanted));
    }

    #[test]
    fn json_replaces_the_fields_where_its_button_is_pressed() {
        let fields = [("as", "json"), ("json", " {\"a\": 1} "), ("argument.text", "x")];
        assert_eq!(given(&fields), Ok(json!({"a": 1})));
    }

    #[test]
    fn a_field_that_is_not_json_is_named() {
        assert!(given(&[("argument.who", "{")]).unwrap_err().starts_with("`who` is not JSON: "));
        assert!(given(&[("as", "json"), ("json", "")]).unwrap_err().starts_with("The arguments are not JSON: "));
    }
}
