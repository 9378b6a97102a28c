//! A store that does not answer when the server of a call is looked up: that is no fact about the call.

use std::sync::Arc;

use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::PutServer;
use countersign::config::Config;
use countersign::run::binding::{ServedCatalog, ServedTool, merge};
use countersign::run::spec::McpEntry;
use countersign::store::Store;
use serde_json::json;

use crate::support::database::Database;
use crate::support::flaky_store::{Fails, FlakyStore};
use crate::support::world::asker;

#[tokio::test]
async fn a_call_whose_server_cannot_be_looked_up_is_bound_once_the_store_answers_and_never_to_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::dev(folder.path(), "127.0.0.1:0".parse().unwrap(), &|_| None).unwrap();
    let database = Database::sqlite().await;
    let store = FlakyStore::new(database.open().await, Some(("server_fetch", 1, Fails::ForAWhile)));
    let app = App::start_on(&config, Arc::clone(&store) as Arc<dyn Store>, Arc::new(SystemClock)).await.unwrap();
    let put: PutServer = serde_json::from_value(json!({ "url": "http://127.0.0.1:9/mcp" })).unwrap();
    app.commands.server_put(&asker(), "till", put).await.unwrap();
    let entry: McpEntry = serde_json::from_value(json!({ "server": "till" })).unwrap();
    let charge = ServedTool { name: "charge".to_owned(), input_schema: json!({}), ..ServedTool::default() };
    let catalog = ServedCatalog { tools: vec![charge], unnamed: Vec::new() };
    let (binding, _) = merge(vec![entry], &[Some(Arc::new(catalog))]);
    let place = async || app.commands.dispatch.place(&asker().tenant, &binding, "charge").await;
    let mut faults = 0;
    let found = loop {
        match place().await {
            Ok(found) => break found,
            Err(why) => assert!(!why.is_empty()),
        }
        faults += 1;
        assert!(faults < 50, "the store answers again");
    };
    assert!(store.has_failed() && faults > 0, "the fault came");
    assert_eq!(found.map(|place| place.len()), Some(64), "the digest of an address");
    app.stop().await;
}
