//! Deleting a run: whole, once it has ended and nothing of it waits for a person.

use http::Method;
use serde_json::json;

use super::harness::{Server, request, says, slow};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::run_on;

both_stores! { a_run_is_deleted_whole_when_it_has_ended_and_nothing_waits_for_a_person }

async fn a_run_is_deleted_whole_when_it_has_ended_and_nothing_waits_for_a_person(database: Database) {
    let server = Server::start_on(database).await;
    let (alice, root) = (server.alice(), server.token("acme", "root", "admin"));
    let delete = |id: &'static str, token: String| {
        let server = &server;
        async move { server.send(request(Method::DELETE, &format!("/v1/runs/{id}"), &token, &[], "".into())).await }
    };
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Reset);
    let mut busy = slow(60_000);
    busy["id"] = json!("busy");
    assert_eq!(server.post("/v1/runs", &alice, &busy).await.status.as_u16(), 201);
    server.settled(&run_on("held", &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url() }]))).await;
    delete("busy", alice.clone()).await.problem(409, "run-not-ended");
    delete("held", alice.clone()).await.problem(409, "run-not-ended");
    assert_eq!(server.post("/v1/runs/held/cancel", &alice, &json!({})).await.json()["status"], "cancelled");
    let undecided = delete("held", alice.clone()).await.problem(409, "calls-undecided");
    assert!(undecided["links"].as_array().unwrap().iter().any(|link| link["rel"] == "reconciliations"), "{undecided}");
    let path = "/v1/admin/runs/held/reconciliations/1/call_1";
    server.post(path, &root, &json!({ "resolution": "fail" })).await;
    delete("held", server.token("umbrella", "eve", "admin")).await.problem(404, "not-found");
    assert_eq!(delete("held", alice.clone()).await.status.as_u16(), 204);
    delete("held", alice.clone()).await.problem(404, "not-found");
    for gone in ["/v1/runs/held", "/v1/runs/held/receipts", "/v1/runs/held/events"] {
        server.get(gone, &alice).await.problem(404, "not-found");
    }
    let left = server.dump().await;
    let left: Vec<&str> = left.lines().filter(|row| row.contains("held")).collect();
    assert!(left.iter().all(|row| row.starts_with("audit ")), "{left:?}");
    let audit = server.get("/v1/admin/audit?action=run.delete", &root).await.json();
    assert_eq!((&audit["data"][0]["actor"], &audit["data"][0]["run_id"]), (&json!("alice"), &json!("held")));
    // A creation that is sent once more, with its key, does not do everything again.
    let key = [("idempotency-key", "once")];
    let mut kept = says("hi");
    kept["id"] = json!("kept");
    let created = server.post_with("/v1/runs", &alice, &[key[0], ("prefer", "wait=20")], &kept).await;
    assert_eq!((created.status.as_u16(), &created.json()["status"]), (201, &json!("completed")));
    assert_eq!(delete("kept", alice.clone()).await.status.as_u16(), 204);
    server.post_with("/v1/runs", &alice, &key, &kept).await.problem(404, "not-found");
    // The name is free again; the new run is another one.
    let mut again = says("hi");
    again["id"] = json!("held");
    assert_eq!(server.settled(&again).await["status"], "completed");
}
