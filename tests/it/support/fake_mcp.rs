//! An MCP server written by hand over raw TCP, so that it can misbehave in every way a real one might: it resets
//! connections, sends half an answer, forgets sessions, answers the wrong question. It counts what it saw.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// How the server answers one request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A JSON-RPC result in a 200.
    Result(Value),
    /// A JSON-RPC error in a 200.
    Error(Value),
    /// Exactly this response, with these headers besides the length.
    Http(u16, Vec<(&'static str, String)>, String),
    /// A 200 event stream of these steps; it ends with a proper end unless cut.
    Sse(Vec<Step>),
    /// A 200 of this type with exactly these bytes; `@ID@` stands for the request's id.
    Raw(&'static str, Vec<u8>),
    /// The connection is reset after the request was read.
    Reset,
    /// A 200 with JSON whose body stops in the middle.
    HalfBody,
    /// A 200 with a JSON text of that many mebibytes, written piece by piece.
    Flood(usize),
    /// Nothing, until the client goes away.
    Silence,
    /// The reply, once the test says so.
    When(Arc<Notify>, Box<Reply>),
}

/// One step of an event stream.
#[derive(Clone)]
pub(crate) enum Step {
    /// Raw text, e.g. `id: 1\ndata: \n\n`.
    Raw(String),
    /// The JSON-RPC result of the request, as an event.
    Result(Value),
    /// A progress notification for the request.
    Progress(u32),
    /// A request of the server's own, of that id, method and parameters; the stream goes on once it is answered.
    Ask(u64, &'static str, Value),
    /// The result of the request: a text block with the answers to what was asked, by id.
    Told(Vec<u64>),
    /// The news that there is another list of tools.
    ListChanged,
    /// The same each time the test says so; the stream stays open.
    Announcements(watch::Receiver<u32>),
    /// A pause.
    Pause(Duration),
    /// The connection breaks here.
    Cut,
    /// Nothing more comes, and the stream stays open.
    Hang,
}

impl Reply {
    /// A status with a JSON body.
    pub(crate) fn status(status: u16, body: Value) -> Self {
        Self::Http(status, vec![("content-type", "application/json".to_owned())], body.to_string())
    }

    /// A result with one text block.
    pub(crate) fn text(text: &str) -> Self {
        Self::Result(json!({ "content": [{ "type": "text", "text": text }] }))
    }
}

/// One request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) http_method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Value,
}

impl Seen {
    /// The JSON-RPC method, or nothing.
    pub(crate) fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }
}

type Script = Box<dyn Fn(&Seen) -> Reply + Send + Sync>;
type Guard = Box<dyn Fn(&Seen) -> Option<Reply> + Send + Sync>;

struct State {
    seen: Mutex<Vec<Seen>>,
    arrived: Notify,
    sessions: Mutex<HashSet<String>>,
    keeps_alive: AtomicBool,
    has_sessions: AtomicBool,
    is_modern: AtomicBool,
    resets_unread: AtomicBool,
    lost: Mutex<Reply>,
    version: Mutex<&'static str>,
    handshake: Mutex<Option<Reply>>,
    calls: Mutex<Script>,
    lists: Mutex<Script>,
    resumes: Mutex<Script>,
    guard: Mutex<Guard>,
    others: Mutex<HashMap<&'static str, Script>>,
    announced: watch::Sender<u32>,
}

/// The running server; it ends when it is dropped.
pub(crate) struct FakeMcp {
    addr: SocketAddr,
    state: Arc<State>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl FakeMcp {
    /// A server of the older era with the tool `charge`, which answers `charged`.
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// The same on a certain port.
    pub(crate) async fn start_at(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let lost = Reply::status(
            404,
            json!({ "jsonrpc": "2.0", "error": { "code": -32600, "message": "Session not found" } }),
        );
        let state = Arc::new(State {
            seen: Mutex::default(),
            arrived: Notify::new(),
            sessions: Mutex::default(),
            keeps_alive: AtomicBool::new(true),
            has_sessions: AtomicBool::new(true),
            is_modern: AtomicBool::new(false),
            resets_unread: AtomicBool::new(false),
            lost: Mutex::new(lost),
            version: Mutex::new("2025-06-18"),
            handshake: Mutex::default(),
            calls: Mutex::new(Box::new(|_| Reply::text("charged"))),
            lists: Mutex::new(Box::new(|_| Reply::Result(json!({ "tools": [tool("charge")] })))),
            resumes: Mutex::new(Box::new(|_| Reply::status(405, json!({})))),
            guard: Mutex::new(Box::new(|_| None)),
            others: Mutex::default(),
            announced: watch::Sender::new(0),
        });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let accepting = accept(listener, Arc::clone(&state), tasks.clone(), stop.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(accepting));
        Self { addr, state, tasks, stop: stop.drop_guard() }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// Closes every connection after one answer, so that nothing can be written into one that is just going away.
    pub(crate) fn close_after_each_answer(&self) {
        self.state.keeps_alive.store(false, Ordering::SeqCst);
    }

    /// Gives no session to whoever comes from now on, and asks nobody for one.
    pub(crate) fn forgo_sessions(&self) {
        self.state.has_sessions.store(false, Ordering::SeqCst);
    }

    /// Resets every connection that comes from now on, before anything is read.
    pub(crate) fn reset_unread(&self) {
        self.state.resets_unread.store(true, Ordering::SeqCst);
    }

    /// Ends the server; the port is free afterwards.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// How `tools/call` is answered from now on.
    pub(crate) fn on_call(&self, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        *self.state.calls.lock() = Box::new(script);
    }

    /// How `tools/list` is answered from now on.
    pub(crate) fn on_list(&self, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        *self.state.lists.lock() = Box::new(script);
    }

    /// How a stream request (GET) is answered from now on.
    pub(crate) fn on_get(&self, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        *self.state.resumes.lock() = Box::new(script);
    }

    /// What is looked at before anything else from now on, whatever the request is; a reply turns it away.
    pub(crate) fn guard(&self, guard: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static) {
        *self.state.guard.lock() = Box::new(guard);
    }

    /// How any other method is answered from now on, whatever the era.
    pub(crate) fn on(&self, method: &'static str, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        self.state.others.lock().insert(method, Box::new(script));
    }

    /// Speaks the era without sessions from now on, and no other; or the older one again.
    pub(crate) fn be_modern(&self, is_modern: bool) {
        self.state.is_modern.store(is_modern, Ordering::SeqCst);
    }

    /// Serves these tools from now on.
    pub(crate) fn serve(&self, tools: Vec<Value>) {
        self.on_list(move |_| Reply::Result(json!({ "tools": tools })));
    }

    /// A handle by which a script changes what is served.
    pub(crate) fn lists(&self) -> Lists {
        Lists(Arc::downgrade(&self.state))
    }

    /// Answers stream requests (GET) with a stream on which `announce` can be heard.
    pub(crate) fn let_listen(&self) {
        let announced = self.state.announced.subscribe();
        self.on_get(move |_| Reply::Sse(vec![Step::Announcements(announced.clone())]));
    }

    /// Tells every listener that there is another list of tools.
    pub(crate) fn announce(&self) {
        self.state.announced.send_modify(|count| *count += 1);
    }

    /// The protocol revision that the handshake agrees on from now on.
    pub(crate) fn speak(&self, version: &'static str) {
        *self.state.version.lock() = version;
    }

    /// Every request without a session is answered with this from now on, the handshake too.
    pub(crate) fn refuse_handshakes(&self, reply: Reply) {
        *self.state.handshake.lock() = Some(reply);
    }

    /// Forgets all sessions, as a restart does; requests of them are answered with `reply`.
    pub(crate) fn lose_sessions(&self, reply: Reply) {
        *self.state.lost.lock() = reply;
        self.state.sessions.lock().clear();
    }

    /// Everything seen so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().clone()
    }

    /// The requests with this JSON-RPC method.
    pub(crate) fn seen_rpc(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.rpc() == method).collect()
    }

    /// How many requests with this JSON-RPC method came.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.seen_rpc(method).len()
    }

    /// How many requests with this HTTP method came.
    pub(crate) fn count_http(&self, method: &str) -> usize {
        self.seen().iter().filter(|seen| seen.http_method == method).count()
    }

    /// Waits until `wanted` holds for what was seen; at most 10 s.
    #[track_caller]
    pub(crate) fn wait_until<'a>(&'a self, wanted: impl Fn(&Self) -> bool + 'a) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let waiting = async {
                loop {
                    let arrived = self.state.arrived.notified();
                    if wanted(self) {
                        return;
                    }
                    arrived.await;
                }
            };
            let outcome = tokio::time::timeout(Duration::from_secs(10), waiting).await;
            assert!(outcome.is_ok(), "{place}: not seen within 10 s; seen: {:#?}", self.seen());
        }
    }
}

/// What a server serves, for its own scripts.
pub(crate) struct Lists(Weak<State>);

impl Lists {
    /// Serves these tools from now on.
    pub(crate) fn serve(&self, tools: Vec<Value>) {
        if let Some(state) = self.0.upgrade() {
            *state.lists.lock() = Box::new(move |_| Reply::Result(json!({ "tools": tools })));
        }
    }
}

/// A tool as `tools/list` gives it.
pub(crate) fn tool(name: &str) -> Value {
    json!({ "name": name, "description": "Charge the card on file.", "inputSchema": { "type": "object" } })
}

async fn accept(listener: TcpListener, state: Arc<State>, tasks: TaskTracker, stop: CancellationToken) {
    while let Ok((stream, _)) = listener.accept().await {
        tasks.spawn(stop.clone().run_until_cancelled_owned(serve(stream, Arc::clone(&state))));
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    if state.resets_unread.load(Ordering::SeqCst) {
        stream.set_zero_linger().unwrap();
        return;
    }
    let mut stream = BufReader::new(stream);
    while let Some(seen) = read_request(&mut stream).await {
        state.seen.lock().push(seen.clone());
        let (reply, session) = answer(&state, &seen);
        state.arrived.notify_waiters();
        let keeps_alive = state.keeps_alive.load(Ordering::SeqCst);
        if !write_reply(&mut stream, &state, &seen, reply, session, keeps_alive).await || !keeps_alive {
            return;
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    if stream.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let mut words = line.split(' ');
    let (http_method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { http_method, path, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// The reply to a request, and the session that an `initialize` opens.
fn answer(state: &State, seen: &Seen) -> (Reply, Option<String>) {
    if let Some(reply) = (state.guard.lock())(seen) {
        return (reply, None);
    }
    if let Some(script) = state.others.lock().get(seen.rpc()) {
        return (script(seen), None);
    }
    if state.is_modern.load(Ordering::SeqCst) {
        return (modern(state, seen), None);
    }
    let session = seen.headers.get("mcp-session-id");
    let has_sessions = state.has_sessions.load(Ordering::SeqCst);
    let is_known = !has_sessions || session.is_some_and(|session| state.sessions.lock().contains(session));
    if session.is_none()
        && let Some(reply) = state.handshake.lock().clone()
    {
        return (reply, None);
    }
    match (seen.http_method.as_str(), seen.rpc()) {
        ("POST", "initialize") => {
            let mut sessions = state.sessions.lock();
            let session = format!("session-{}-{}", sessions.len(), uuid::Uuid::new_v4());
            sessions.insert(session.clone());
            let result = json!({
                "protocolVersion": *state.version.lock(),
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "fake", "version": "1" },
            });
            (Reply::Result(result), has_sessions.then_some(session))
        }
        ("POST", method) if session.is_none() && (has_sessions || method == "server/discover") => {
            let error = json!({ "code": -32000, "message": "Bad Request: Server not initialized" });
            (Reply::status(400, json!({ "jsonrpc": "2.0", "error": error, "id": null })), None)
        }
        ("POST" | "GET", _) if !is_known => (state.lost.lock().clone(), None),
        ("POST", "tools/list") => ((state.lists.lock())(seen), None),
        ("POST", "tools/call") => ((state.calls.lock())(seen), None),
        ("GET", _) => ((state.resumes.lock())(seen), None),
        _ => (Reply::Http(202, vec![], String::new()), None),
    }
}

/// The reply of a server of the era without sessions.
fn modern(state: &State, seen: &Seen) -> Reply {
    let meta = &seen.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    let refused = |status: u16, code: i32, message: &str, data: Value| {
        let error = json!({ "code": code, "message": message, "data": data });
        Reply::status(status, json!({ "jsonrpc": "2.0", "error": error, "id": seen.body["id"] }))
    };
    match (seen.http_method.as_str(), seen.rpc()) {
        ("GET" | "DELETE", _) => Reply::status(405, json!({})),
        (_, method) if method.starts_with("notifications/") => Reply::Http(202, vec![], String::new()),
        (_, "initialize") => {
            refused(400, -32022, "Unsupported protocol version", json!({ "supported": ["2026-07-28"] }))
        }
        _ if meta != "2026-07-28" => refused(400, -32602, "_meta lacks the protocol version", json!({})),
        (_, method) if seen.headers.get("mcp-method").is_none_or(|header| header != method) => {
            refused(400, -32020, "Mcp-Method does not match", json!({}))
        }
        (_, "server/discover") => Reply::Result(json!({
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": { "tools": { "listChanged": true } },
            "serverInfo": { "name": "fake", "version": "1" },
            "ttlMs": 0,
            "cacheScope": "private",
        })),
        (_, "tools/list") => (state.lists.lock())(seen),
        (_, "tools/call") => (state.calls.lock())(seen),
        _ => refused(404, -32601, "Method not found", json!({})),
    }
}

/// Writes the reply; `false` when the connection is over.
async fn write_reply(
    stream: &mut BufReader<TcpStream>,
    state: &State,
    seen: &Seen,
    reply: Reply,
    session: Option<String>,
    keeps_alive: bool,
) -> bool {
    let answer = |member: &str, value: Value| {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(session.clone().map(|session| ("mcp-session-id", session)));
        let mut body = json!({ "jsonrpc": "2.0", "id": seen.body["id"] });
        body[member] = value;
        (200, headers, body.to_string())
    };
    let (status, mut headers, body) = match reply {
        Reply::Result(result) => answer("result", result),
        Reply::Error(error) => answer("error", error),
        Reply::Http(status, headers, body) => (status, headers, body),
        Reply::Raw(kind, body) => return write_bytes(stream, kind, &body, &seen.body["id"].to_string()).await,
        Reply::Sse(steps) => return write_events(stream, state, seen, steps).await,
        Reply::Reset => {
            stream.get_ref().set_zero_linger().unwrap();
            return false;
        }
        Reply::HalfBody => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"jsonrpc\":";
            write(stream, head).await;
            return false;
        }
        Reply::Flood(mebibytes) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
            let mut goes_on = write(stream, &format!("{head}{{\"jsonrpc\":\"2.0\",\"result\":\"")).await;
            let piece = "x".repeat(1 << 20);
            for _ in 0..mebibytes {
                goes_on = goes_on && write(stream, &piece).await;
            }
            return false;
        }
        Reply::Silence => {
            drain(stream).await;
            return false;
        }
        Reply::When(gate, reply) => {
            gate.notified().await;
            return Box::pin(write_reply(stream, state, seen, *reply, session, keeps_alive)).await;
        }
    };
    if !keeps_alive {
        headers.push(("connection", "close".to_owned()));
    }
    let mut lines = vec![format!("HTTP/1.1 {status} Whatever"), format!("content-length: {}", body.len())];
    lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
    write(stream, &format!("{}\r\n\r\n{body}", lines.join("\r\n"))).await
}

/// Writes a body that no text can hold.
async fn write_bytes(stream: &mut BufReader<TcpStream>, kind: &str, body: &[u8], id: &str) -> bool {
    let mark = body.windows(4).position(|signs| signs == b"@ID@").expect("a place for the id");
    let body = [&body[..mark], id.as_bytes(), &body[mark + 4..]].concat();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), &body].concat()).await.is_ok() && stream.flush().await.is_ok()
}

const LIST_CHANGED: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";

async fn write_events(stream: &mut BufReader<TcpStream>, state: &State, seen: &Seen, steps: Vec<Step>) -> bool {
    write(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for step in steps {
        let text = match step {
            Step::Raw(text) => text,
            Step::Result(result) => {
                format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result }))
            }
            Step::Progress(progress) => {
                let params =
                    json!({ "progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": progress });
                format!(
                    "data: {}\n\n",
                    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
                )
            }
            Step::Ask(id, method, params) => {
                let asked = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
                let text = format!("data: {asked}\n\n");
                if !write(stream, &format!("{:x}\r\n{text}\r\n", text.len())).await {
                    return false;
                }
                answered(state, id).await;
                continue;
            }
            Step::Told(ids) => {
                let mut told = serde_json::Map::new();
                for id in ids {
                    let answer = answered(state, id).await;
                    let told_of = if answer["error"].is_null() { &answer["result"] } else { &answer["error"] };
                    told.insert(id.to_string(), told_of.clone());
                }
                let result = json!({ "content": [{ "type": "text", "text": Value::Object(told).to_string() }] });
                format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result }))
            }
            Step::ListChanged => LIST_CHANGED.to_owned(),
            Step::Announcements(mut announced) => {
                while announced.changed().await.is_ok() {
                    if !write(stream, &format!("{:x}\r\n{LIST_CHANGED}\r\n", LIST_CHANGED.len())).await {
                        return false;
                    }
                }
                return false;
            }
            Step::Pause(pause) => {
                tokio::time::sleep(pause).await;
                continue;
            }
            Step::Cut => return false,
            Step::Hang => {
                drain(stream).await;
                return false;
            }
        };
        if !write(stream, &format!("{:x}\r\n{text}\r\n", text.len())).await {
            return false;
        }
    }
    write(stream, "0\r\n\r\n").await
}

/// Waits for the client's answer to a request of the server's own.
async fn answered(state: &State, id: u64) -> Value {
    loop {
        let arrived = state.arrived.notified();
        let answers = |seen: &&Seen| seen.body["id"] == id && seen.body["method"].is_null();
        if let Some(seen) = state.seen.lock().iter().find(answers) {
            return seen.body.clone();
        }
        arrived.await;
    }
}

async fn write(stream: &mut BufReader<TcpStream>, text: &str) -> bool {
    stream.write_all(text.as_bytes()).await.is_ok() && stream.flush().await.is_ok()
}

/// Waits for the client to go away.
async fn drain(stream: &mut BufReader<TcpStream>) {
    let mut rest = [0; 256];
    while matches!(stream.read(&mut rest).await, Ok(read) if read > 0) {}
}
