// A token issuer (oauth2-mock-server) whose keys can be changed, and tokens that a server must refuse. Arguments: FOLDER PORT,
// the folder of node_modules. Its own port takes orders:
//   GET /about            {issuer, asked}: asked is how often somebody followed a key address that a token named
//   POST /token           the claims of a token as JSON: one that the issuer's token endpoint gave
//   POST /hostile/KIND    (without KIND: all kinds) the same claims in a token that is wrong in one way
//   POST /rotate          a new key signs, the old ones still stand in the set
//   POST /withdraw        only a new key stands in the set
import { createHmac } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, port] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(`${folder}/`).resolve(name)).href);
const { OAuth2Server } = await load("oauth2-mock-server");
const { SignJWT, exportSPKI, generateKeyPair, importJWK } = await load("jose");

const FIVE_MINUTES = 300;
const now = () => Math.floor(Date.now() / 1000);
let issuer, signing, asked = 0, keys = 0, issuerPort;

async function open() {
  issuer = new OAuth2Server();
  issuer.service.on("beforeTokenSigning", (token, request) => {
    Object.assign(token.payload, JSON.parse(request.body.claims));
  });
  await rotate();
  await issuer.start(issuerPort, "127.0.0.1");
  issuerPort = issuer.address().port;
}

async function rotate() {
  signing = await issuer.issuer.keys.generate("RS256", { kid: `key-${++keys}` });
}

// The token endpoint takes keys in turns, so it is asked until the newest one signed.
async function genuine(claims) {
  const body = new URLSearchParams({ grant_type: "client_credentials", claims: JSON.stringify(claims) });
  for (;;) {
    const answer = await fetch(`${issuer.issuer.url}/token`, { method: "POST", body });
    const token = (await answer.json()).access_token;
    if (JSON.parse(Buffer.from(token.split(".")[0], "base64url")).kid === signing.kid) return token;
  }
}

const text = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

async function signed(claims, header, key) {
  return new SignJWT(claims).setProtectedHeader({ alg: "RS256", typ: "JWT", ...header }).sign(key);
}

const hostile = {
  none: (claims) => `${text({ alg: "none", typ: "JWT" })}.${text(claims)}.`,
  async "public-key-as-secret"(claims) {
    const { kty, n, e } = signing;
    const pem = await exportSPKI(await importJWK({ kty, n, e }, "RS256", { extractable: true }));
    const head = `${text({ alg: "HS256", typ: "JWT", kid: signing.kid })}.${text(claims)}`;
    return `${head}.${createHmac("sha256", pem).update(head).digest("base64url")}`;
  },
  "wrong-kid": async (claims) => signed(claims, { kid: "key-0" }, await importJWK(signing, "RS256")),
  "unknown-key": async (claims) => signed(claims, { kid: "mine" }, (await generateKeyPair("RS256")).privateKey),
  "strangers-key": async (claims) => signed(claims, { kid: signing.kid }, (await generateKeyPair("RS256")).privateKey),
  async "own-jku"(claims) {
    const { privateKey } = await generateKeyPair("RS256");
    return signed(claims, { kid: "mine", jku: `http://127.0.0.1:${port}/keys` }, privateKey);
  },
  expired: (claims) => genuine({ ...claims, exp: now() - FIVE_MINUTES }),
  "not-yet-valid": (claims) => genuine({ ...claims, nbf: now() + FIVE_MINUTES }),
  "wrong-issuer": (claims) => genuine({ ...claims, iss: "https://elsewhere.example" }),
  "wrong-audience": (claims) => genuine({ ...claims, aud: "another-service" }),
  async tampered(claims) {
    const [head, , signature] = (await genuine(claims)).split(".");
    return `${head}.${text({ ...claims, scope: "admin", tenant: "umbrella" })}.${signature}`;
  },
};

async function order(path, claims) {
  if (path === "/about") return { issuer: issuer.issuer.url, asked };
  if (path === "/token") return { token: await genuine(claims) };
  if (path === "/rotate") return { kid: (await rotate(), signing.kid) };
  if (path === "/withdraw") return { kid: (await issuer.stop(), await open(), signing.kid) };
  const kind = path.split("/hostile/")[1];
  return kind === "" ? Object.keys(hostile) : { token: await hostile[kind](claims) };
}

await open();
createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  if (request.url === "/keys") asked += 1;
  const claims = parts.length > 0 ? JSON.parse(Buffer.concat(parts)) : {};
  const full = { iss: issuer.issuer.url, exp: now() + FIVE_MINUTES, ...claims };
  const answer = await order(request.url, full).catch((fault) => ({ fault: String(fault) }));
  response.setHeader("content-type", "application/json").end(JSON.stringify(answer));
}).listen(Number(port), "127.0.0.1");
