//! Scripts over parts of long results, whose text does not pass through the model.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::message::Message;

use super::setup::{SCRIPT, with_client};

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.ana]
[agents.bruno]
[tools]
echo = true
[invoke]
max_body = "2MiB"
[memory]
[results]
threshold = 8000
"#;

/// A call of an agent in its session.
async fn call(client: &Client, agent: &str, tool: &str, arguments: Value) -> Message {
    let body = json!({"toolName": tool, "arguments": arguments, "sessionId": "s1"});
    client.exchange(&client.raw(body.to_string()).by(agent)).await
}

/// The content of the reply to a call that succeeds.
async fn content(client: &Client, agent: &str, tool: &str, arguments: Value) -> String {
    call(client, agent, tool, arguments).await.success()
}

/// A manual with a price in each of its sections, of which one fills a chunk.
fn manual() -> String {
    let section = |number: usize| {
        format!("## Section {number}\n\n{}price = {}\n\n", "Some words of it.\n\n".repeat(350), number * 100 + 7)
    };
    (0..6).map(section).collect()
}

/// The keys that a text names.
fn keys(text: &str) -> Vec<String> {
    let named = text.split('`').filter(|part| part.starts_with("session/s1/tool-echo-"));
    named.map(str::to_owned).collect()
}

#[tokio::test]
async fn an_agent_reads_the_outline_and_two_chunks_and_runs_a_script_over_a_third() {
    let (site, daemon, client) = with_client(&format!("{SCRIPT}{RULES}")).await;
    let manual = manual();
    let table = content(&client, "ana", "echo", json!({"text": manual})).await;
    let [index, chunks @ ..] = &keys(&table)[..] else { panic!("{table}") };
    assert!(index.ends_with("-index") && chunks.len() >= 6, "{table}");

    let get = async |key: &str| content(&client, "ana", "get_from_working_memory", json!({"key": key})).await;
    let outline = get(index).await;
    assert!((0..6).all(|number| outline.contains(&format!("**Section {number}**"))), "{outline}");
    for (number, key) in chunks.iter().take(2).enumerate() {
        let chunk = get(key).await;
        assert!(chunk.starts_with(&format!("## Section {number}\n")) && manual.contains(&chunk), "{chunk}");
    }

    let third = chunks.get(2).unwrap();
    let name = third.rsplit('/').next().unwrap();
    let script = format!(
        "import os, re\n\
         text = open('{name}').read()\n\
         found = re.findall(r'price = (\\d+)', text)\n\
         open(os.path.join(os.environ['TOOLBUS_OUTPUT'], 'prices.txt'), 'w').write('\\n'.join(found))\n\
         print(len(text), found)\n"
    );
    let arguments = json!({"script": script, "input_keys": [third], "output_keys": ["prices.txt"]});
    let printed = content(&client, "ana", "execute_python_script", arguments.clone()).await;
    let length = get(third).await.chars().count();
    assert_eq!(
        printed,
        format!(
            "{length} ['207']\n[Saved in working memory for 20 minutes, and not returned: `session/s1/prices.txt`.]"
        )
    );
    assert_eq!(get("prices.txt").await, "207");

    let of_another = call(&client, "bruno", "execute_python_script", arguments).await;
    assert_eq!(of_another.code(), "invalid_arguments", "{of_another:?}");
    daemon.stop(&site).await;
}
