//! Scripts in pods of a cluster: those that the daemon makes, and those of a warm pool.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::kubernetes::{ApiServer, Node, refusal};

use super::setup::{call, start, status};

/// Reads what it is given, writes to both streams, and leaves a file.
const SCRIPT: &str = "import os, sys\nprint(os.environ['ROCKBOT_INPUT'], open('a.csv').read())\n\
                      print('err', file=sys.stderr)\nopen(os.environ['TOOLBUS_OUTPUT'] + '/b.txt', 'w').write('left')";

#[tokio::test]
async fn a_script_runs_in_a_pod_and_in_a_sandbox_of_a_warm_pool_with_the_same_result() {
    let (site, cluster) = (BrokerNamespace::shared().await, ApiServer::start(Node::Runs).await);
    let kubeconfig = cluster.kubeconfig();
    let mut replies = Vec::new();
    for pool in ["", ", warm_pool = \"python\""] {
        // The node runs pods as the user of the tests, which has other processes.
        let kubernetes = format!("kubernetes = {{ kubeconfig = \"{}\"{pool} }}", kubeconfig.display());
        let daemon =
            start(&site, &format!("[script]\nrunner = \"kubernetes\"\nprocesses = 4096\n{kubernetes}\n")).await;
        assert_eq!(status(&daemon).await["runner"], "kubernetes");
        let client = Client::connect(&site).await;
        let more = json!({"input_data": "seven", "input_files": {"a.csv": "1,2"}});
        let body = client.exchange(&call(&client, SCRIPT, &more)).await.body();
        replies.push(json!({"isError": body["isError"], "contentBlocks": body["contentBlocks"]}));
        cluster.is_empty().await;

        // What is wrong is for the operator.
        let request = if pool.is_empty() { "create" } else { "create sandboxclaims" };
        cluster.refuse(request, [refusal(403, "Forbidden", "forbidden: User \"x\" cannot create")]);
        let body = client.exchange(&call(&client, "pass", &json!({}))).await.body();
        replies.push(json!({"code": body["code"], "message": body["message"], "retryable": body["isRetryable"]}));
        daemon.stop(&site).await;
    }
    assert_eq!(replies[..2], replies[2..]);
    let kinds: Vec<Value> = cluster.created().into_iter().map(|object| object["kind"].clone()).collect();
    assert_eq!(kinds, ["Pod", "SandboxClaim"]);
    insta::assert_json_snapshot!(replies[..2], @r#"
    [
      {
        "contentBlocks": [
          {
            "text": "seven 1,2\n",
            "type": "text"
          },
          {
            "mimeType": "text/plain",
            "text": "left",
            "type": "resource",
            "uri": "toolbus:output/b.txt"
          }
        ],
        "isError": false
      },
      {
        "code": "execution_failed",
        "message": "Scripts cannot be run until the operator has corrected how they are run. Trying again does not help.",
        "retryable": false
      }
    ]
    "#);
}
