//! The sweep with counterparts that nobody here wrote: effects are counted in the ledger of a real MCP server, requests
//! to the model at an independent model server.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::failpoints::{Passed, points, sweep_points};
use super::judge::SeenKeys;
use super::site::Site;
use crate::support::counterparts::{aimock, ledger_lines, ledger_server};
use crate::support::database::Database;
use crate::support::process::Process;

/// The counterparts of all deaths: each run has words of its own by which they are told apart.
struct Counterparts {
    mcp: Process,
    models: Process,
    ledger: std::path::PathBuf,
}

impl Counterparts {
    /// The effects that the server wrote down, by key.
    fn effects(&self) -> SeenKeys {
        let mut seen = SeenKeys::new();
        for line in ledger_lines(&self.ledger) {
            *seen.entry(line["idempotency_key"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        seen
    }

    /// How often the model was asked for each turn of the run whose input that is.
    async fn requests(&self, input: &str) -> [i64; 2] {
        let journal = reqwest::get(self.models.url("/__aimock/journal?limit=100000")).await.unwrap();
        let journal: Vec<Value> = serde_json::from_str(&journal.text().await.unwrap()).unwrap();
        let mut asked = [0, 0];
        for request in journal {
            let messages = request["body"]["messages"].as_array().unwrap();
            let said = |message: &Value, role: &str| message["role"] == role;
            let is_ours = messages.iter().any(|message| said(message, "user") && message.to_string().contains(input));
            if is_ours {
                asked[usize::from(messages.iter().any(|message| said(message, "tool")))] += 1;
            }
        }
        asked
    }

    async fn pass_through(&self, at: &str, log: &Path, kill: Option<&str>) -> Passed {
        let input = format!("Charge 5. This is run {at}.");
        let body = json!({
            "model": {"provider": "openai", "name": "a-model", "base_url": self.models.url("/v1")},
            "input": input,
            "mcp": [{"url": self.mcp.url("/mcp"), "tools": ["charge"]}],
        });
        let mut site = Site::start(Arc::new(Database::sqlite().await), log, kill, false).await;
        let id = site.create(&body).await;
        site.settle(&id).await;
        let evidence = site.evidence(&id).await;
        let faults = evidence.faults(&self.effects(), |_| false);
        assert!(faults.is_empty(), "{faults:#?}\n{:#?}\n{}", evidence.events, site.log());
        assert_eq!(
            (&evidence.run["status"], &evidence.run["output"]["text"]),
            (&json!("completed"), &json!("Charged 5."))
        );
        // What was committed is never asked for again; what was not is, once.
        for (turn, asked) in (1..).zip(self.requests(&input).await) {
            let lost = site.turns_at_death.is_some_and(|committed| committed < turn);
            assert!((1..=1 + i64::from(lost)).contains(&asked), "turn {turn} was asked for {asked} times ({lost})");
        }
        Passed { died: site.has_died(), word_after: site.word_after }
    }
}

#[tokio::test]
async fn b020_b219_no_death_makes_a_real_server_charge_twice_or_a_model_answer_a_kept_turn_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let (Some(mcp), Some(models)) = (ledger_server(&ledger).await, aimock("runs.json").await) else { return };
    let counterparts = Counterparts { mcp, models, ledger };
    let unarmed = folder.path().join("unarmed");
    counterparts.pass_through("unarmed", &unarmed, None).await;
    let points = points(&unarmed).into_iter().filter(|point| !point.starts_with("node.")).collect();
    let log = |at: usize| folder.path().join(at.to_string());
    sweep_points("a charge with real counterparts", points, |at, point| {
        let (log, counterparts) = (log(at), &counterparts);
        async move { counterparts.pass_through(&format!("{at:03}"), &log, Some(&point)).await }
    })
    .await;
}
