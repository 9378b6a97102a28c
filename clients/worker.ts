// A worker: fetches calls of one tool, carries them out, and gives their results. No packages, and no types that a plain
// `node` would have to strip: from version 22 on `node worker.ts …` runs it, before that `node --input-type=module - … < worker.ts`.
//
//   COUNTERSIGN_URL=http://127.0.0.1:8080 COUNTERSIGN_TOKEN=… node worker.ts payments.process 1.0.0

const { COUNTERSIGN_URL: url, COUNTERSIGN_TOKEN: token, WORKER_ID, WORKER_BEAT_S } = process.env;
const [tool, version] = process.argv.slice(-2);
if (!url || !token || process.argv.length < 4) throw new Error("set COUNTERSIGN_URL and COUNTERSIGN_TOKEN, and name a tool and its version");
const name = WORKER_ID ?? `ts-${process.pid}`;

const post = async (path, body) => {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  for (;;) {
    const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    if (answer?.ok) return answer.json();
    if (answer && answer.status < 500) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    // A server that restarts; each of these requests may be repeated.
    await new Promise((later) => setTimeout(later, 1000));
  }
};

/** The work itself. `call.idempotency_key` is the same for every attempt of one call. */
const handle = async (call) => ({ paid: call.input, key: call.idempotency_key });

const work = async (call) => {
  const { id, lease } = call;
  const beat = () => post(`/v1/worker-calls/${id}/heartbeat`, { lease }).catch((fault) => console.error(fault.message));
  const beats = setInterval(beat, Number(WORKER_BEAT_S ?? 5) * 1000);
  let result;
  try {
    result = { output: await handle(call) };
  } catch (fault) {
    // What went wrong is the model's to read.
    result = { error: { code: "tool-error", message: String(fault) } };
  } finally {
    clearInterval(beats);
  }
  await post(`/v1/worker-calls/${id}/result`, { lease, ...result });
};

for (;;) {
  const tools = [{ tool, version, max_concurrency: 4 }];
  const { calls } = await post(`/v1/workers/${name}/claims`, { tools, max: 4, wait_ms: 20000 });
  for (const call of calls) work(call).catch((fault) => console.error(fault.message));
}
