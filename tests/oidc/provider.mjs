// A local OpenID Connect provider with the device flow, for tests: npm's oidc-provider.
// Usage: node provider.mjs DIR SETTINGS, with the directory that cached-provider prints and JSON:
//   port; device_ttl_s of codes; secret of the client "carrel" (none: a public client);
//   tls: {key, cert} as PEM; userinfo: claims are told by the userinfo endpoint alone;
//   slow_down: each code's first poll is answered with "slow_down".
import { createServer as plain } from 'node:http';
import { createServer as tls } from 'node:https';
import { pathToFileURL } from 'node:url';

const [dir, text] = process.argv.slice(2);
const settings = JSON.parse(text);
const { Provider } = await import(pathToFileURL(`${dir}/node_modules/oidc-provider/lib/index.js`));

const lab = (name, groups) => ({ groups, email: `${name}@lab.example`, email_verified: true });
const people = {
  alice: lab('alice', ['gpu']),
  bob: lab('bob', ['gpu', 'ops']),
  nina: lab('Nina', ['gpu', 'root']),
  root: lab('root', ['gpu']),
  eve: lab('eve', ['guests']),
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
  cookies: { keys: ['of no use elsewhere'] },
  ttl: { DeviceCode: settings.device_ttl_s ?? 600, AccessToken: 600, IdToken: 600, Grant: 600, Interaction: 600, Session: 600 },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, ...people[id] }) }),
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
