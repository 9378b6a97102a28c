//! The two small workers that come with the product.

use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::{payment, receipt, run, server};
use crate::support::database::{Database, both_stores};
use crate::support::process::skipped;
use crate::support::product::{Product, token};

both_stores! {
    b236_the_worker_in_python_and_the_one_in_typescript_carry_out_calls,
}

/// A worker, ended with the test.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start(server: &Product, command: &mut Command) -> Option<Worker> {
    let command = command.env("COUNTERSIGN_URL", server.url("")).env("COUNTERSIGN_TOKEN", token("acme", "workers"));
    let command = command.env("WORKER_BEAT_S", "0.5").args(["payments.process", "1.0.0"]).stderr(Stdio::inherit());
    match command.spawn() {
        Ok(child) => Some(Worker(child)),
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => None,
        Err(fault) => panic!("{command:?}: {fault}"),
    }
}

fn client(name: &str) -> String {
    format!("{}/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

async fn b236_the_worker_in_python_and_the_one_in_typescript_carry_out_calls(database: Database) {
    let server = server(&database).await;
    for id in ["python", "node"] {
        let mut command = Command::new(if id == "python" { "python3" } else { "node" });
        if id == "python" {
            command.arg(client("worker.py"));
        } else {
            // Older ones know no file of this name, and take the same text from standard input.
            let text = std::fs::File::open(client("worker.ts")).unwrap();
            command.args(["--input-type=module", "-"]).stdin(text);
        }
        let Some(_worker) = start(&server, &mut command) else {
            skipped(&format!("skipped: there is no {id} here"));
            continue;
        };
        let calls = vec![("process_payment", json!({ "amount": 5 })); 3];
        server.post("/v1/runs", &run(id, &calls, json!([payment(json!({}))])), 201).await;
        assert_eq!(server.rested(id).await["status"], "completed");
        let known = receipt(&server, id, "call_3").await;
        assert_eq!(known["output"]["paid"], json!({ "amount": 5 }), "{known}");
        assert_eq!(known["output"]["key"], known["idempotency_key"]);
    }
}
