//! Describes the tool for a model.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::tool::{Effect, ToolDescriptor, Validation, time_text};

use super::arguments::{
    INPUT_DATA, INPUT_FILES, INPUT_KEYS, OUTPUT_KEYS, PIP_PACKAGES, SCRIPT, SESSION, TIMEOUT_SECONDS,
};
use super::{Rights, ScriptMemory, Settings};
use crate::text::size;

/// Source and kind of the tool.
pub const SOURCE: &str = "script";
/// Guide to the use of the tools, for models.
pub const GUIDE: &str = include_str!("../guide.md");
/// Time that a call has beyond its script's, to start it and to bring its files back.
const AROUND: Duration = Duration::from_secs(10);

/// Descriptor of the tool. Its arguments are checked by the tool itself: it takes numbers in strings, and brings them
/// within bounds, which a schema cannot express.
pub(super) fn descriptor(settings: &Settings, rights: Rights, has_sessions: bool) -> ToolDescriptor {
    let installing = if settings.packages.is_empty() { Duration::ZERO } else { settings.package_timeout };
    ToolDescriptor {
        description: description(settings, rights, has_sessions),
        parameters: Some(Arc::new(parameters(settings, has_sessions))),
        effect: Effect::Effectful,
        timeout: Some(settings.max_timeout + installing + AROUND),
        validation: Validation::Off,
        ..ToolDescriptor::new(settings.tool_name(), SOURCE, SOURCE)
    }
}

fn description(settings: &Settings, rights: Rights, has_sessions: bool) -> String {
    let limits = &settings.limits;
    let network = if rights.network { "" } else { " There is no network." };
    let unless = if has_sessions { " unless `session` is true" } else { "" };
    let keys = if settings.memory.is_some() { " and those of input_keys" } else { "" };
    let programs = if rights.processes { "" } else { " It has threads, and cannot start other programs or processes." };
    let (language, value, figures) = match settings.language.as_deref() {
        None => (
            "Python",
            " If it prints nothing, the value of its last expression is returned.",
            "; so do figures of matplotlib that are open at the end",
        ),
        Some(language) => (language, "", ""),
    };
    format!(
        "Runs a {language} script and returns what it prints to standard output.{value} Each script runs by itself, in a folder of its own that is gone afterwards{unless}, with no \
         files but input_files{keys}.{network}{programs} Files that it writes to the folder named by the environment variable \
         TOOLBUS_OUTPUT come back with the answer, at most {artifacts} together{figures}. A script fails when it exits with another code than 0; its standard error is shown then. It \
         may use {memory} of memory, {disk} of disk and {processes} processes and threads, and print {output}.",
        artifacts = size(limits.artifacts),
        memory = size(limits.memory),
        disk = size(limits.disk),
        processes = limits.processes,
        output = size(limits.output),
    )
}

fn parameters(settings: &Settings, has_sessions: bool) -> Value {
    let [default, most] =
        [settings.timeout.min(settings.max_timeout), settings.max_timeout].map(|time| time.as_secs_f64());
    let language = settings.language.as_deref().unwrap_or("Python");
    let mut schema = json!({
        "type": "object",
        "properties": {
            SCRIPT: {
                "type": "string",
                "description": format!("The text of the {language} program. Print the answer to standard output."),
            },
            INPUT_DATA: {
                "type": "string",
                "description": "Data for the script, for example JSON. The script finds it on standard input, in the \
                    file that the environment variable TOOLBUS_INPUT_FILE names, and, up to 128 KiB, in the variable \
                    ROCKBOT_INPUT.",
            },
            INPUT_FILES: {
                "type": "object",
                "description": "Files that the script finds in its current folder, by name: each a text, or bytes as \
                    {\"base64\": \"…\"}.",
            },
            TIMEOUT_SECONDS: {
                "type": "integer",
                "description": format!("Seconds that the script may run; default {default}, at most {most}"),
            },
        },
        "required": [SCRIPT],
        "additionalProperties": false,
    });
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        if settings.language.is_none() {
            let packages = json!({ "type": "array", "items": { "type": "string" }, "description": packages(settings) });
            properties.insert(PIP_PACKAGES.to_owned(), packages);
        }
        if has_sessions {
            properties.insert(SESSION.to_owned(), json!({ "type": "boolean", "description": session(settings) }));
        }
        if let Some(memory) = &settings.memory {
            let keys =
                |description| json!({ "type": "array", "items": { "type": "string" }, "description": description });
            properties.insert(INPUT_KEYS.to_owned(), keys(input_keys()));
            properties.insert(OUTPUT_KEYS.to_owned(), keys(output_keys(memory)));
        }
    }
    schema
}

fn input_keys() -> String {
    "Keys of working memory, such as those of the parts of a long result, which need not be read before. The script finds \
     each entry in its current folder, in a file named as the last part of the key: `session/a/plan` in `plan`."
        .to_owned()
}

fn output_keys(memory: &ScriptMemory) -> String {
    format!(
        "Keys under which text files are kept in working memory for {}, instead of being returned: what the script writes \
         to `report.csv` in the folder TOOLBUS_OUTPUT under the key `report.csv`.",
        time_text(memory.ttl)
    )
}

fn session(settings: &Settings) -> String {
    let limits = settings.sessions.map(|limits| {
        let idle = time_text(limits.idle_timeout);
        let longest = limits.max_lifetime.map(|life| format!(", and after {} at the latest", time_text(life)));
        format!(", after {idle} without a script{}", longest.unwrap_or_default())
    });
    format!(
        "Whether the script runs in the interpreter of this session, to work step by step: it finds the variables, \
         imports and files of earlier scripts with `session`. Processes that a script starts end with it. The session \
         ends when a script exceeds its time or a limit{}. pip_packages are those of its first script.",
        limits.unwrap_or_default()
    )
}

fn packages(settings: &Settings) -> String {
    if settings.packages.is_empty() {
        return "Leave it out: no packages can be installed. The standard library is there.".to_owned();
    }
    format!(
        "Packages that the script imports beyond the standard library, such as [\"name\", \"name==1.2\"]; {}. They are \
         installed from wheels alone.",
        settings.packages.listed()
    )
}
