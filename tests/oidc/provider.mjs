// A local OpenID Connect provider with the device flow, for tests: npm's oidc-provider.
// Usage: node provider.mjs DIR SETTINGS, with the directory that cached-provider prints and JSON:
//   port; device_ttl_s of codes; secret of the client "carrel" (none: a public client);
//   tls: {key, cert} as PEM; userinfo: claims are told by the userinfo endpoint alone;
//   slow_down: each code's first poll is answered with "slow_down".
// The tokens of those who are called "forger-…" are what the broker must not believe.
import { createServer as plain } from 'node:http';
import { createServer as tls } from 'node:https';
import { pathToFileURL } from 'node:url';

const [dir, text] = process.argv.slice(2);
const settings = JSON.parse(text);
const load = (file) => import(pathToFileURL(`${dir}/node_modules/${file}`));
const { Provider } = await load('oidc-provider/lib/index.js');
const { SignJWT, exportJWK, generateKeyPair } = await load('jose/dist/node/esm/index.js');

const keyOf = async () => (await generateKeyPair('RS256', { extractable: true })).privateKey;
const [key, anotherKey] = [await keyOf(), await keyOf()];

const lab = (name, groups) => ({ groups, email: `${name}@lab.example`, email_verified: true });
const people = {
  alice: lab('alice', ['gpu']),
  bob: lab('bob', ['gpu', 'ops']),
  nina: lab('Nina', ['gpu', 'root']),
  root: lab('root', ['gpu']),
  eve: lab('eve', ['guests']),
  ...Object.fromEntries(['key', 'payload', 'unsigned', 'audience', 'issuer', 'expiry']
    .map((what) => [`forger-${what}`, lab('forger', ['gpu'])])),
  mallory: { ...lab('alice', ['gpu']), email_verified: false },
};

const provider = new Provider(`${settings.tls ? 'https' : 'http'}://127.0.0.1:${settings.port}`, {
  clients: [{
    client_id: 'carrel',
    ...(settings.secret ? { client_secret: settings.secret } : { token_endpoint_auth_method: 'none' }),
    grant_types: ['urn:ietf:params:oauth:grant-type:device_code'],
    response_types: [],
    redirect_uris: [],
  }],
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'], email: ['email', 'email_verified'] },
  conformIdTokenClaims: Boolean(settings.userinfo),
  jwks: { keys: [{ ...await exportJWK(key), alg: 'RS256', use: 'sig' }] },
  cookies: { keys: ['of no use elsewhere'] },
  ttl: { DeviceCode: settings.device_ttl_s ?? 600, AccessToken: 600, IdToken: 600, Grant: 600, Interaction: 600, Session: 600 },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, ...people[id] }) }),
});

const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
const parse = (text) => JSON.parse(Buffer.from(text, 'base64url'));

async function forged(what, token) {
  const [header, payload, signature] = token.split('.');
  const claims = parse(payload);
  const signed = (changed, by) => new SignJWT({ ...claims, ...changed }).setProtectedHeader(parse(header)).sign(by);
  switch (what) {
    case 'key': return signed({}, anotherKey);
    case 'payload': return [header, part({ ...claims, preferred_username: 'alice' }), signature].join('.');
    case 'unsigned': return [part({ alg: 'none' }), payload, ''].join('.');
    case 'audience': return signed({ aud: 'another' }, key);
    case 'issuer': return signed({ iss: 'https://sso.example' }, key);
    case 'expiry': return signed({ iat: claims.iat - 7200, exp: claims.iat - 3600 }, key);
    default: throw new Error(what);
  }
}

provider.use(async (ctx, next) => {
  await next();
  const token = ctx.body?.id_token;
  const who = token && parse(token.split('.')[1]).sub;
  if (who?.startsWith('forger-')) ctx.body = { ...ctx.body, id_token: await forged(who.slice('forger-'.length), token) };
});

const slowed = new Set();
provider.use(async (ctx, next) => {
  await next();
  const code = ctx.oidc?.params?.device_code;
  if (settings.slow_down && ctx.body?.error === 'authorization_pending' && !slowed.has(code)) {
    slowed.add(code);
    ctx.body = { error: 'slow_down', error_description: 'you are polling too quickly' };
  }
});

const server = settings.tls ? tls(settings.tls) : plain();
server.on('request', provider.callback());
server.listen(settings.port, '127.0.0.1');
