// An OpenID provider (oidc-provider) with one client that may use the client credentials grant: JWT access tokens, signed
// with ES256, for whatever resource is asked for. Arguments: FOLDER PORT, the folder of node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, port] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(`${folder}/`).resolve(name)).href);
const { Provider } = await load("oidc-provider");
const { exportJWK, generateKeyPair } = await load("jose");

const pair = await generateKeyPair("ES256", { extractable: true });
const key = { ...(await exportJWK(pair.privateKey)), alg: "ES256", kid: "signing", use: "sig" };
const client = {
  client_id: "svc",
  client_secret: "svc-s3cret-canary",
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
  id_token_signed_response_alg: "ES256",
};
const resource = (_context, indicator) => ({
  scope: "runs:read runs:write",
  audience: indicator,
  accessTokenTTL: 300,
  accessTokenFormat: "jwt",
  jwt: { sign: { alg: "ES256" } },
});

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [client],
  jwks: { keys: [key] },
  scopes: ["runs:read", "runs:write"],
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: { enabled: true, getResourceServerInfo: resource },
  },
});
provider.listen(Number(port), "127.0.0.1");
