//! Stored secrets over the API.

use http::Method;
use serde_json::{Value, json};

use super::{Site, pointers};
use crate::support::database::{Database, both_stores};

both_stores! {
    a_secret_is_put_listed_and_deleted_and_its_value_never_comes_out => kept,
    lists_by_name_go_on_where_they_stopped => pages,
    a_secret_that_a_server_is_told_is_not_deleted => in_use,
}

async fn kept(database: Database) {
    let site = Site::on(database).await;
    site.put_secret("orders_token", "s3cret-value-1", &["Orders.Example.com", "orders.example.com", "10.0.0.1:8080"])
        .await;
    site.put_secret("orders_token", "s3cret-value-2", &["orders.example.com"]).await;
    site.put_secret("other", "s3cret-value-3", &["other.example.com"]).await;
    let listed = site.get("/v1/secrets").await;
    let [first, _] = listed["data"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    let names: Vec<&str> = first.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["name", "version", "hosts", "key_id", "created_at", "updated_at"]);
    assert_eq!(
        (&first["name"], &first["version"], &first["hosts"], &first["key_id"]),
        (&json!("orders_token"), &json!(2), &json!(["orders.example.com"]), &listed["data"][1]["key_id"])
    );
    let gone = site.send(Method::DELETE, "/v1/secrets/orders_token", &Value::Null).await;
    assert_eq!((gone.status.as_u16(), gone.body.len()), (204, 0));
    site.send(Method::DELETE, "/v1/secrets/orders_token", &Value::Null).await.problem(404, "not-found");
    let audit = site.get("/v1/admin/audit").await;
    let rows: Vec<(&str, &str)> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["action"].as_str().unwrap(), row["subject"].as_str().unwrap()))
        .collect();
    let put = ("secret.put", "orders_token");
    assert_eq!(rows, [("secret.delete", "orders_token"), ("secret.put", "other"), put, put]);
    assert_eq!(audit["data"][2]["detail"], json!({ "version": 2, "hosts": ["orders.example.com"] }));
    let dump = site.server.dump().await;
    assert!(!dump.contains("s3cret") && !dump.contains(&hex::encode("s3cret")), "values are sealed");
    assert!(!format!("{listed}{audit}").contains("s3cret"));
}

async fn pages(database: Database) {
    let site = Site::on(database).await;
    for name in ["c", "a", "b"] {
        site.put_secret(name, "value-of-it", &["a.example"]).await;
        site.put_server(name, json!({ "url": "https://a.example/mcp" })).await;
    }
    for list in ["/v1/secrets", "/v1/mcp-servers"] {
        let (mut names, mut path) = (Vec::new(), format!("{list}?limit=2"));
        loop {
            let page = site.get(&path).await;
            names.extend(page["data"].as_array().unwrap().iter().map(|row| row["name"].clone()));
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("{list}?limit=2&cursor={cursor}");
        }
        assert_eq!(names, ["a", "b", "c"], "{list}");
        let stranger = site.server.token("umbrella", "eve", "admin");
        assert_eq!(site.server.get(list, &stranger).await.json()["data"], json!([]), "{list}");
    }
    let cursor = site.get("/v1/secrets?limit=1").await["next_cursor"].as_str().unwrap().to_owned();
    let other_list = site.server.get(&format!("/v1/mcp-servers?cursor={cursor}"), &site.admin).await;
    other_list.problem(400, "invalid-cursor");
}

async fn in_use(database: Database) {
    let site = Site::on(database).await;
    site.put_secret("token", "s3cret-value", &["a.example"]).await;
    for name in ["orders", "billing"] {
        let auth = json!({ "scheme": "bearer", "secret": "token" });
        site.put_server(name, json!({ "url": "https://a.example/mcp", "auth": auth })).await;
    }
    let refused = site.send(Method::DELETE, "/v1/secrets/token", &Value::Null).await;
    assert_eq!(refused.problem(409, "secret-in-use")["servers"], json!(["billing", "orders"]));
    site.put_server("billing", json!({ "url": "https://a.example/mcp" })).await;
    assert_eq!(site.send(Method::DELETE, "/v1/mcp-servers/orders", &Value::Null).await.status, 204);
    assert_eq!(site.send(Method::DELETE, "/v1/secrets/token", &Value::Null).await.status, 204);
}

#[tokio::test]
async fn what_cannot_be_sent_or_goes_to_no_exact_host_is_refused_with_every_pointer() {
    let site = Site::start().await;
    let put = async |name: &str, body: Value| site.send(Method::PUT, &format!("/v1/secrets/{name}"), &body).await;
    for (name, body, at) in [
        ("t", json!({}), vec!["/hosts", "/value"]),
        ("t", json!({ "value": "v", "hosts": [] }), vec!["/hosts"]),
        ("t", json!({ "value": "", "hosts": ["a.example"] }), vec!["/value"]),
        ("t", json!({ "value": "s3cret\r\nX: y", "hosts": ["a.example"] }), vec!["/value"]),
        ("t", json!({ "value": "s3cret\n", "hosts": ["a.example"] }), vec!["/value"]),
        ("t", json!({ "value": "s3crét", "hosts": ["a.example"] }), vec!["/value"]),
        ("t", json!({ "value": "v".repeat(16 * 1024 + 1), "hosts": ["a.example"] }), vec!["/value"]),
        (
            "t",
            json!({ "value": "v", "hosts": ["*.example", "a.example", "https://a.example"] }),
            vec!["/hosts/0", "/hosts/2"],
        ),
        ("t", json!({ "value": 5, "hosts": ["a.example"], "host": "a" }), vec!["/host", "/value"]),
        ("-t", json!({ "value": "v", "hosts": ["*"] }), vec!["", "/hosts/0"]),
        ("a%2Fb", json!({ "value": "v", "hosts": ["a.example"] }), vec![""]),
    ] {
        let answer = put(name, body.clone()).await;
        assert_eq!(pointers(&answer), at, "{body}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("s3c"), "no value in {:?}", answer.body);
    }
    assert_eq!(site.get("/v1/secrets").await["data"], json!([]));
    put("t", json!({ "value": "v", "hosts": ["a.example"] })).await;
    assert_eq!(site.send(Method::DELETE, "/v1/secrets/a%00b", &Value::Null).await.status, 404);
}
