//! The table of ways: each way a call can end, over real sockets and through the real pool, with the class that it is
//! given, how many requests of the call the server read (each may have had its effect), and how many sessions it
//! opened. Whatever the way, every request of the call carries one key, in its header and in its `_meta`.

use std::sync::Arc;
use std::time::Duration;

use countersign::mcp::{Endpoint, McpTarget, ToolRequest};
use countersign::run::outcome::Outcome;
use countersign::run::spec::Timeouts;
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::deaf::{full_port, untrusted_tls};
use super::{acme, call, call_as, charge, class, pool, settings, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen, Step};

/// What the server does.
enum Script {
    /// It answers calls so, in this order, and with the last for ever.
    Replies(Vec<Reply>),
    /// It is set up so before anybody comes.
    Set(fn(&FakeMcp)),
    /// It answers one call, and is then changed so.
    Changes(fn(&FakeMcp)),
    /// It answers one call and ends.
    Ends,
    /// It ends while the call is out.
    Killed,
    /// Somebody else listens there, if anybody does.
    Elsewhere(String),
    /// Its own address, with another scheme.
    Https,
}

struct Way {
    name: &'static str,
    script: Script,
    /// Milliseconds without a sign of life, and in all.
    limits: (u64, u64),
    /// The tool promises `{"n": integer}`.
    has_schema: bool,
    want: &'static str,
    calls: usize,
    sessions: usize,
}

/// Ways that are gone at once.
const AT_ONCE: usize = 12;
const LOST: &str = "unknown lost-response";
const TIME_OUT: &str = "unknown time-out";
const UNREACHABLE: &str = "not sent mcp-unreachable";
const REFUSED: &str = "not sent mcp-refused";
const UNAUTHORIZED: &str = "not sent mcp-unauthorized";
const LIMITED: &str = "not sent mcp-rate-limited";
const TOO_LARGE: &str = "failed result-too-large";

fn way(name: &'static str, script: Script, want: &'static str, calls: usize, sessions: usize) -> Way {
    Way { name, script, limits: (5_000, 10_000), has_schema: false, want, calls, sessions }
}

fn reply(name: &'static str, reply: Reply, want: &'static str) -> Way {
    way(name, Script::Replies(vec![reply]), want, 1, 1)
}

fn status(name: &'static str, status: u16, want: &'static str) -> Way {
    reply(name, Reply::Http(status, vec![], "no".to_owned()), want)
}

fn events(name: &'static str, steps: Vec<Step>, want: &'static str) -> Way {
    reply(name, Reply::Sse(steps), want)
}

fn slow(limits: (u64, u64), way: Way) -> Way {
    Way { limits, ..way }
}

/// The last two columns: requests of the call that the server read, and sessions that it opened.
fn never_connected() -> Vec<Way> {
    let elsewhere = Script::Elsewhere;
    vec![
        way("nobody listens there any more", Script::Ends, UNREACHABLE, 0, 1),
        way("the name has no address", elsewhere("https://no-such-host.invalid/mcp".to_owned()), UNREACHABLE, 0, 0),
        way("the address is forbidden", elsewhere("https://169.254.169.254/mcp".to_owned()), UNREACHABLE, 0, 0),
        way("the port speaks no TLS", Script::Https, UNREACHABLE, 0, 0),
        way("the certificate is not trusted", elsewhere(untrusted_tls()), UNREACHABLE, 0, 0),
        way("no connection in time", elsewhere(full_port()), UNREACHABLE, 0, 0),
    ]
}

fn turned_away() -> Vec<Way> {
    let again = |seconds: &str| Reply::Http(429, vec![("retry-after", seconds.to_owned())], String::new());
    let dated = |date: &str| {
        let headers = [("date", "Mon, 30 Nov 2026 10:00:00 GMT"), ("retry-after", date)];
        Reply::Http(429, headers.map(|(name, value)| (name, value.to_owned())).to_vec(), String::new())
    };
    let in_turn = |first: Reply| Script::Replies(vec![first, Reply::text("charged")]);
    let elsewhere = Reply::Http(307, vec![("location", "http://127.0.0.1:1/".to_owned())], String::new());
    vec![
        status("301", 301, REFUSED),
        reply("307 with a place to go", elsewhere, REFUSED),
        status("400", 400, REFUSED),
        status("401", 401, UNAUTHORIZED),
        status("403", 403, UNAUTHORIZED),
        way("404 where a session was lost", Script::Changes(lose_sessions), "done", 2, 2),
        way("404 in every session", Script::Set(|fake| fake.on_call(|_| not_found())), REFUSED, 2, 2),
        way("404 without a session", Script::Set(without_sessions), REFUSED, 1, 1),
        status("405", 405, REFUSED),
        status("406", 406, REFUSED),
        status("413", 413, REFUSED),
        status("422", 422, REFUSED),
        status("429", 429, LIMITED),
        way("429, again in a second", in_turn(again("1")), "done", 2, 1),
        way("429, again by a near date", in_turn(dated("Mon, 30 Nov 2026 10:00:01 GMT")), "done", 2, 1),
        way("429, again at once, and again", Script::Replies(vec![again("0")]), LIMITED, 2, 1),
        reply("429, again in eleven seconds", again("11"), LIMITED),
        reply("429, again by a far date", dated("Mon, 30 Nov 2026 10:00:11 GMT"), LIMITED),
        reply("400 with a JSON-RPC error", Reply::status(400, rpc_error()), REFUSED),
    ]
}

fn unanswered() -> Vec<Way> {
    let body = |kind: &str, body: &str| Reply::Http(200, vec![("content-type", kind.to_owned())], body.to_owned());
    let result = |id: Value| Reply::status(200, json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    vec![
        way("reset before the request was read", Script::Changes(reset_unread), LOST, 0, 1),
        reply("reset after the request was read", Reply::Reset, LOST),
        reply("half a response", Reply::HalfBody, LOST),
        way("killed in the call", Script::Killed, LOST, 1, 1),
        slow((200, 10_000), reply("no first byte in time", Reply::Silence, TIME_OUT)),
        slow((200, 10_000), events("progress that stops", vec![Step::Progress(1), Step::Hang], TIME_OUT)),
        slow((1_000, 2_500), events("progress without an end", beats(200), TIME_OUT)),
        status("408", 408, LOST),
        status("500", 500, LOST),
        status("502", 502, LOST),
        status("503", 503, LOST),
        status("504", 504, LOST),
        status("599", 599, LOST),
        reply("503 with a JSON-RPC error", Reply::status(503, rpc_error()), LOST),
        reply("408 with a JSON-RPC error", Reply::status(408, rpc_error()), LOST),
        status("202", 202, LOST),
        status("204", 204, LOST),
        reply("no JSON", body("application/json", "{\"jso"), LOST),
        reply("no JSON-RPC", Reply::status(200, json!({ "jsonrpc": "2.0", "id": 1 })), LOST),
        reply("HTML", body("text/html", "<p>hi"), LOST),
        reply("nothing", Reply::Http(200, vec![], String::new()), LOST),
        reply("the answer to another id", result(json!(999)), LOST),
        reply("a large body that is no answer", Reply::status(200, json!({ "a": large() })), LOST),
        reply("a large answer to another id", Reply::status(200, answer_to(json!(999))), LOST),
    ]
}

fn streams() -> Vec<Way> {
    let raw = |text: &str| Step::Raw(text.to_owned());
    let done = || Step::Result(json!({ "content": [] }));
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "data": large() } });
    let notice = || raw(&format!("data: {notice}\n\n"));
    let result_first = format!("data: {{\"result\":{{\"content\":[{}]}},\"jsonrpc\":\"2.0\"}}\n\n", large());
    vec![
        events("a stream with the answer", vec![Step::Progress(1), done()], "done"),
        events("an empty stream", vec![], LOST),
        events("a stream that is cut", vec![Step::Progress(1), Step::Cut], LOST),
        events("a stream that is cut in an event", vec![raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,"), Step::Cut], LOST),
        way("cut, and resumed by the event's id", Script::Set(cut_and_resumed), "done", 1, 1),
        way("cut, and not to be resumed", Script::Set(cut_and_refused), LOST, 1, 1),
        way("resumed for nothing, again and again", Script::Set(cut_again_and_again), LOST, 1, 1),
        events("an event that is no JSON", vec![raw("data: not json\n\n")], LOST),
        events("the answer to another id", vec![raw("data: {\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{}}\n\n")], LOST),
        events("a stray event before the answer", vec![raw("event: ping\ndata: {\"result\":{}}\n\n"), done()], "done"),
        events(
            "empty events before the answer",
            vec![raw("data: \n\n"), raw("data:\n\n"), raw(": hi\n\n"), done()],
            "done",
        ),
        events("a large event before the answer", vec![notice(), done()], "done"),
        events("a large event and no answer", vec![notice()], LOST),
        events("a large answer", vec![Step::Result(json!({ "content": [large()] })), Step::Hang], TOO_LARGE),
        events("a large answer, its id last", vec![raw(&result_first), Step::Hang], TOO_LARGE),
        slow((500, 10_000), events("progress, then the answer", [beats(15), vec![done()]].concat(), "done")),
    ]
}

fn answered() -> Vec<Way> {
    let nameless = json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "what?" } });
    let error = Reply::Error(json!({ "code": -32602, "message": "no" }));
    let broken = Reply::Result(json!({ "content": [], "structuredContent": { "n": "1" } }));
    vec![
        reply("a result", Reply::text("charged"), "done"),
        reply("isError", Reply::Result(json!({ "content": [], "isError": true })), "failed tool-error"),
        reply("a JSON-RPC error", error, "failed mcp-error"),
        reply("a JSON-RPC error without an id", Reply::status(200, nameless), "failed mcp-error"),
        Way { has_schema: true, ..reply("a result that breaks its schema", broken, "failed invalid-output") },
        reply("a large result", Reply::Result(json!({ "content": [large()] })), TOO_LARGE),
    ]
}

#[tokio::test]
async fn b210_b211_b212_b213_every_way_a_call_can_end_has_its_class_its_count_and_one_key() {
    let ways = [never_connected(), turned_away(), unanswered(), streams(), answered()];
    let taken = futures::stream::iter(ways.into_iter().flatten()).map(take).buffer_unordered(AT_ONCE);
    let faults: Vec<String> = taken.filter_map(std::future::ready).collect().await;
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Goes one way; says what was not as the table has it.
async fn take(way: Way) -> Option<String> {
    let (outcome, seen, before) = go(&way).await;
    let calls: Vec<&Seen> = seen.iter().filter(|seen| seen.rpc() == "tools/call").skip(before).collect();
    let sessions = seen.iter().filter(|seen| seen.rpc() == "initialize").count();
    let got = (class(&outcome), calls.len(), sessions);
    let has_key = |seen: &&Seen| {
        let meta = &seen.body["params"]["_meta"]["countersign/idempotency-key"];
        seen.headers.get("idempotency-key").map(String::as_str) == Some("key-1") && meta == "key-1"
    };
    let name = way.name;
    if got != (way.want.to_owned(), way.calls, way.sessions) {
        return Some(format!("{name}: {got:?} and not {:?}: {outcome:?}", (way.want, way.calls, way.sessions)));
    }
    (!calls.iter().all(has_key)).then(|| format!("{name}: another key: {calls:?}"))
}

/// The outcome, all that the server saw, and how many calls of it are none of this way's.
async fn go(way: &Way) -> (Outcome, Vec<Seen>, usize) {
    let fake = FakeMcp::start().await;
    let pool = pool();
    let mut target = target(&fake.url());
    let mut request = charge(5);
    prepare(way, &fake, &mut target, &mut request);
    let before = usize::from(matches!(way.script, Script::Changes(_) | Script::Ends));
    if before > 0 {
        fake.close_after_each_answer();
        assert_eq!(class(&call(&pool, &target).await), "done");
    }
    let seen = match way.script {
        Script::Changes(change) => {
            change(&fake);
            None
        }
        Script::Ends => Some(fake.seen()),
        _ => None,
    };
    let tenant = acme();
    let calling = call_as(&pool, &tenant, &target, request);
    if let Some(seen) = seen {
        fake.stop().await;
        return (calling.await, seen, before);
    }
    if matches!(way.script, Script::Killed) {
        let killing = async {
            fake.wait_until(|fake| fake.count("tools/call") == 1).await;
            let seen = fake.seen();
            fake.stop().await;
            seen
        };
        let (outcome, seen) = tokio::join!(calling, killing);
        return (outcome, seen, before);
    }
    let outcome = calling.await;
    (outcome, fake.seen(), before)
}

fn prepare(way: &Way, fake: &FakeMcp, target: &mut McpTarget, request: &mut ToolRequest) {
    let (call_ms, call_total_ms) = way.limits;
    target.timeouts = Timeouts { connect_ms: 5_000, call_ms, call_total_ms };
    if way.has_schema {
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        request.output_schema = Some(schema);
    }
    match &way.script {
        Script::Replies(replies) => {
            let rest = Mutex::new(replies.clone());
            fake.on_call(move |_| {
                let mut rest = rest.lock();
                if rest.len() > 1 { rest.remove(0) } else { rest[0].clone() }
            });
        }
        Script::Set(set) => set(fake),
        Script::Killed => fake.on_call(|_| Reply::Silence),
        Script::Elsewhere(url) => {
            target.endpoint = Endpoint::Http(url.parse().unwrap());
            target.timeouts.connect_ms = 1_000;
        }
        Script::Https => {
            target.endpoint = Endpoint::Http(fake.url().replace("http:", "https:").parse().unwrap());
        }
        Script::Changes(_) | Script::Ends => {}
    }
}

fn rpc_error() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32603, "message": "upstream" } })
}

fn large() -> Value {
    "x".repeat(settings().max_result_bytes).into()
}

fn answer_to(id: Value) -> Value {
    // Members stand in the order of their names: the id comes before the result.
    json!({ "id": id, "jsonrpc": "2.0", "result": { "content": [large()] } })
}

fn not_found() -> Reply {
    Reply::status(404, json!({}))
}

/// Progress, twenty times a second.
fn beats(count: usize) -> Vec<Step> {
    (0..count).flat_map(|_| [Step::Progress(1), Step::Pause(Duration::from_millis(50))]).collect()
}

fn lose_sessions(fake: &FakeMcp) {
    fake.lose_sessions(not_found());
}

fn reset_unread(fake: &FakeMcp) {
    fake.reset_unread();
}

fn without_sessions(fake: &FakeMcp) {
    fake.forgo_sessions();
    fake.on_call(|_| not_found());
}

const CUT: &str = "id: e1\nretry: 1\ndata: \n\n";

fn cut_and_resumed(fake: &FakeMcp) {
    let id = Arc::new(Mutex::new(Value::Null));
    let asked = Arc::clone(&id);
    fake.on_call(move |seen| {
        *asked.lock() = seen.body["id"].clone();
        Reply::Sse(vec![Step::Raw(CUT.to_owned()), Step::Cut])
    });
    fake.on_get(move |seen| match seen.headers.get("last-event-id").map(String::as_str) {
        Some("e1") => {
            let answer = json!({ "jsonrpc": "2.0", "id": *id.lock(), "result": { "content": [] } });
            Reply::Sse(vec![Step::Raw(format!("id: e2\ndata: {answer}\n\n"))])
        }
        _ => Reply::status(405, json!({})),
    });
}

fn cut_and_refused(fake: &FakeMcp) {
    fake.on_call(|_| Reply::Sse(vec![Step::Raw(CUT.to_owned()), Step::Cut]));
}

fn cut_again_and_again(fake: &FakeMcp) {
    cut_and_refused(fake);
    fake.on_get(|seen| {
        let is_resume = seen.headers.contains_key("last-event-id");
        if is_resume { Reply::Sse(vec![]) } else { Reply::status(405, json!({})) }
    });
}
