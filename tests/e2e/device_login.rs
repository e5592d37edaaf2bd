//! `carrel login` at a real OpenID Connect provider, by people who go there with their code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::process::{Output, Running};
use carrel_tests::provider::{self, Provider};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, BOB, ROOT, User};
use carrel_tests::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::shared;
use crate::sign_in::{elsewhere, fingerprint};

/// Sign-ins that one address may have under way.
const MOST: usize = 32;
const SECRET: &str = "the-secret-that-only-broker-and-provider-know";

/// A cluster without nodes, whose users sign in at a provider.
fn cluster(oidc: &str, files: &[(&'static str, String)]) -> Cluster {
    let scheme = if oidc.contains("ca_file") { "https" } else { "http" };
    let issuer = Provider::issuer(scheme);
    Cluster::start(&Options {
        hosts: Vec::new(),
        images: Vec::new(),
        broker_config: format!("[oidc]\nissuer = \"{issuer}\"\nclient_id = \"carrel\"\n{oidc}"),
        files: files.to_vec(),
        ..Options::default()
    })
}

fn confidential(more: &str) -> Cluster {
    let secret = ("provider-secret", format!("{SECRET}\n"));
    cluster(
        &format!("client_secret_file = \"provider-secret\"\n{more}"),
        &[secret],
    )
}

/// The one that most of these tests share, with groups that let in and groups that give roles.
fn lab() -> &'static Cluster {
    static LAB: OnceLock<(Cluster, Provider)> = OnceLock::new();
    let (cluster, _) = LAB.get_or_init(|| {
        let cluster = confidential("groups = [\"gpu\"]\noperator_groups = [\"ops\"]");
        let provider = Provider::start(&cluster, json!({"secret": SECRET}));
        (cluster, provider)
    });
    cluster
}

/// `carrel login` under way, by somebody whose terminal is a file.
struct Login {
    running: Running,
    said: PathBuf,
}

impl Login {
    fn start(cluster: &Cluster, user: User, config: &str, args: &[&str]) -> Self {
        let said = cluster.sandbox().home(user).join(format!("{config}.said"));
        let url = cluster.tls_address();
        let env = [("CARREL_CONFIG_DIR", config), ("CARREL_BROKER", url.as_str())];
        let running = cluster
            .cmd_with(user, &env, "sh")
            .args(["-c", r#"exec "$@" 2>"$0""#])
            .arg(&said)
            .arg(cluster.sandbox().program("carrel"))
            .args(["login", &url, "--fingerprint", &fingerprint(cluster)])
            .args(args)
            .spawn();
        Self { running, said }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// The address that it shows; none: it has shown none.
    fn shown(&self) -> Option<String> {
        let said = self.said();
        let line = said.lines().find_map(|line| line.strip_prefix("  http"))?;
        // The code comes after it: by then the whole line is there.
        said.contains("waiting for you").then(|| format!("http{line}"))
    }

    /// The address, once it is shown.
    fn page(&mut self) -> String {
        let shown = wait::poll(wait::PATIENCE, || {
            self.shown()
                .map(Some)
                .or_else(|| (!self.running.is_running()).then_some(None))
        });
        shown
            .flatten()
            .unwrap_or_else(|| panic!("no address is shown: {}", self.said()))
    }

    fn wait(self) -> Output {
        let mut output = self.running.wait();
        output.stderr = fs::read_to_string(&self.said).unwrap_or_default();
        output
    }
}

fn ps(cluster: &Cluster, user: User, config: &str) -> i32 {
    elsewhere(cluster, user, config, &[]).arg("ps").run().code
}

fn audit(cluster: &Cluster) -> String {
    cluster
        .carrel(ROOT, ["admin", "audit", "--action", "sign-in"])
        .ok()
}

/// At a terminal: the browser opens, the person agrees there, and the token is what was asked for.
#[test]
fn a_person_signs_in_with_a_browser() {
    let cluster = lab();
    let home = cluster.sandbox().home(ALICE);
    let browser = home.join("browser");
    fs::write(
        &browser,
        "#!/bin/sh\necho \"$1\" >opened.part\nmv opened.part opened\n",
    )
    .expect("written");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("own file");
    let (url, fingerprint) = (cluster.tls_address(), fingerprint(cluster));
    let login = elsewhere(
        cluster,
        ALICE,
        "by-browser",
        &[("BROWSER", browser.to_str().expect("text"))],
    )
    .args(["login", &url, "--fingerprint", &fingerprint]);
    let mut terminal = Terminal::start(&login);
    terminal.expect("Your browser opens this page");
    terminal.expect("waiting for you");
    let opened = home.join("opened");
    wait::until("the browser is opened", || opened.exists());
    let page = fs::read_to_string(opened).expect("a page");
    assert!(terminal.screen().contains(page.trim()), "{terminal}");
    let there = provider::person(cluster, &[], page.trim(), "alice").ok();
    assert!(there.contains("successful"), "{there}");
    terminal.expect("signed in to carrel as alice");
    assert_eq!(terminal.wait(), 0, "{terminal}");
    assert_eq!(ps(cluster, ALICE, "by-browser"), 0);

    // Without a terminal, by name, and for less.
    let args = ["--device", "--scope", "read", "--ttl", "1h"];
    let mut login = Login::start(cluster, ALICE, "by-device", &args);
    provider::person(cluster, &[], &login.page(), "alice").ok();
    login.wait().ok();
    assert_eq!(ps(cluster, ALICE, "by-device"), 0);
    let tokens = cluster.json(ALICE, ["token", "list"]);
    let tokens = tokens.as_array().expect("a list");
    assert!(tokens.iter().any(|token| token["scope"] == "read"), "{tokens:?}");

    let audit = audit(cluster);
    assert!(audit.contains("OpenID Connect, 127.0.0.1 \"alice\""), "{audit}");
    // No secret is in any log, nor in what the broker prints of its configuration.
    let kept = fs::read_to_string(home.join("by-browser/credentials.toml")).expect("kept");
    let start = kept.find("carrel_").expect("a token");
    let printed = cluster
        .cmd(ROOT, cluster.sandbox().program("carrel-broker"))
        .args(["serve", "--print-config", "--config", "broker.toml"])
        .ok();
    assert!(printed.contains("provider-secret"), "{printed}");
    let logs = cluster.logs();
    assert!(logs.contains("signed in"), "{logs}");
    for secret in [&kept[start..start + 50], SECRET] {
        assert!(![&logs, &audit, &printed].iter().any(|text| text.contains(secret)));
    }
}

/// Each refusal says why, to the person and in the audit log, and leaves nothing behind.
#[test]
fn who_may_not_come_is_told_why() {
    let cluster = lab();
    let people: [(&str, &[&str], &[&str]); 4] = [
        ("bob", &["refuse"], &["refused at 127.0.0.1"]),
        ("eve", &[], &["none of the groups"]),
        ("nina", &[], &["nina is not known", "carrel user add nina"]),
        ("root", &[], &["root is an account of the system"]),
    ];
    let logins = people.map(|(name, with, words)| {
        let mut login = Login::start(cluster, ALICE, &format!("as-{name}"), &[]);
        provider::person(cluster, &[], &login.page(), name)
            .args(with)
            .ok();
        (name, words, login)
    });
    for (name, words, login) in logins {
        login.wait().fails(5, words);
        let config = cluster.sandbox().home(ALICE).join(format!("as-{name}"));
        assert!(!config.join("credentials.toml").exists(), "{name}");
    }
    let audit = audit(cluster);
    for words in [
        ["REFUSED", "refused at 127.0.0.1"],
        ["user eve", "\"eve\": you are in none of the groups"],
        ["user nina", "is not known"],
        ["user root", "account of the system"],
    ] {
        let told = |line: &&str| words.iter().all(|word| line.contains(word));
        assert!(audit.lines().any(|line| told(&line)), "{words:?}: {audit}");
    }
    let users = cluster.json(ROOT, ["user", "list"]).to_string();
    assert!(!users.contains("nina") && !users.contains("eve"), "{users}");
}

/// An ID token counts only as the provider signed it, for this cluster, and in its time.
#[test]
fn forged_tokens_open_nothing() {
    // Its own: the log keeps ten failures a minute of one address.
    let cluster = confidential("");
    let _provider = Provider::start(&cluster, json!({"secret": SECRET}));
    let logins = ["key", "payload", "unsigned", "audience", "issuer", "expiry"].map(|what| {
        let name = format!("forger-{what}");
        let mut login = Login::start(&cluster, ALICE, &name, &[]);
        provider::person(&cluster, &[], &login.page(), &name).ok();
        login
    });
    for login in logins {
        login.wait().fails(1, &["its ID token does not hold"]);
    }
    // As itself it would have come as far as the directory.
    let mut login = Login::start(&cluster, ALICE, "honest", &[]);
    provider::person(&cluster, &[], &login.page(), "nina").ok();
    login.wait().fails(5, &["nina is not known"]);
}

/// The provider's groups give a role, which holds at once.
#[test]
fn groups_give_roles() {
    let cluster = lab();
    let mut login = Login::start(cluster, BOB, "operator", &[]);
    provider::person(cluster, &[], &login.page(), "bob").ok();
    login.wait().ok();
    elsewhere(cluster, BOB, "operator", &[])
        .args(["admin", "audit"])
        .ok();
    let users = cluster.json(ROOT, ["user", "list"]);
    let bob = users
        .as_array()
        .expect("a list")
        .iter()
        .find(|user| user["name"] == "bob");
    assert_eq!(bob.expect("bob")["role"], "operator");
}

/// There is a limit for one address; who leaves, leaves their place.
#[test]
fn sign_ins_under_way_are_limited() {
    let cluster = confidential("");
    let _provider = Provider::start(&cluster, json!({"secret": SECRET}));
    let start = |number: usize| Login::start(&cluster, ALICE, &format!("waiting-{number}"), &[]);
    let mut logins: Vec<Login> = (0..MOST).map(start).collect();
    for login in &mut logins {
        login.page();
    }
    start(MOST)
        .wait()
        .fails(1, &["signing in from your address", "try again"]);
    let left = logins.pop().expect("many");
    left.running.signal(Signal::SIGINT);
    left.wait().fails(130, &["not signed in"]);
    let next = wait::poll(wait::PATIENCE, || {
        let mut next = start(MOST);
        wait::poll(wait::PATIENCE, || {
            (next.shown().is_some() || !next.running.is_running()).then_some(())
        });
        next.shown().is_some().then_some(next)
    });
    let mut next = next.expect("the place is free again");
    provider::person(&cluster, &[], &next.page(), "alice").ok();
    next.wait().ok();
    for login in logins {
        login.running.signal(Signal::SIGTERM);
        assert_eq!(login.wait().code, 143);
    }
}

/// A provider that is not there, that goes away, and a code that nobody uses.
#[test]
fn a_provider_that_does_not_answer_is_named() {
    let cluster = confidential("");
    let absent = Login::start(&cluster, ALICE, "absent", &[]).wait();
    absent.fails(1, &["provider 127.0.0.1 does not answer", "--ssh-key"]);
    let settings = |ttl: u32| json!({"secret": SECRET, "device_ttl_s": ttl});
    let mut provider = Provider::start(&cluster, settings(6));
    let mut unused = Login::start(&cluster, ALICE, "unused", &[]);
    unused.page();
    unused
        .wait()
        .fails(1, &["the code was not used in time", "sign in again"]);
    provider.kill9();
    // Longer than it takes to end the provider, on any machine.
    let mut provider = Provider::start(&cluster, settings(20));
    let mut cut = Login::start(&cluster, ALICE, "cut", &[]);
    cut.page();
    provider.kill9();
    cut.wait().fails(1, &["provider 127.0.0.1 does not answer"]);

    // The wrong secret is the administrators' affair, and theirs to find in the log.
    let _other = Provider::start(&cluster, json!({"secret": "another"}));
    let refused = Login::start(&cluster, ALICE, "wrong-secret", &[]).wait();
    refused.fails(1, &["does not sign people in for this cluster", "invalid_client"]);
    assert!(audit(&cluster).contains("invalid_client"));
}

/// Over TLS, with a public client, names that are addresses, claims that only the userinfo endpoint
/// tells, a provider that wants to be asked less often, and users who are made when they come.
#[test]
fn new_users_come_from_a_provider_with_its_own_authority() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let authority = ("provider-ca.pem", made.cert.pem());
    let cluster = cluster(
        "ca_file = \"provider-ca.pem\"\nuser_claim = \"email\"\ndomains = [\"lab.example\"]\n\
         create_users = true\nfirst_uid = 3000000000\nadmin_groups = [\"root\"]",
        &[authority],
    );
    let tls = json!({"key": made.signing_key.serialize_pem(), "cert": made.cert.pem()});
    let settings = json!({"tls": tls, "userinfo": true, "slow_down": true});
    let _provider = Provider::start(&cluster, settings);
    let trusted = cluster.root().join("provider-ca.pem");
    let env = [("SSL_CERT_FILE", trusted.to_str().expect("text"))];

    let mut unverified = Login::start(&cluster, ALICE, "mallory", &[]);
    let mut login = Login::start(&cluster, ALICE, "nina", &[]);
    provider::person(&cluster, &env, &unverified.page(), "mallory").ok();
    provider::person(&cluster, &env, &login.page(), "nina").ok();
    unverified.wait().fails(5, &["not verified your e-mail address"]);
    login.wait().ok();
    let users = elsewhere(&cluster, ALICE, "nina", &[])
        .args(["user", "list", "--output", "json"])
        .ok();
    let users: serde_json::Value = serde_json::from_str(&users).expect("JSON");
    let nina = users
        .as_array()
        .expect("a list")
        .iter()
        .find(|user| user["name"] == "nina");
    let nina = nina.expect("nina");
    assert_eq!(
        (&nina["uid"], &nina["gid"], &nina["role"], &nina["home"]),
        (
            &json!(3_000_000_000_u32),
            &json!(3_000_000_000_u32),
            &json!("admin"),
            &json!("/home/nina")
        )
    );
    let audit = cluster.carrel(ROOT, ["admin", "audit", "--user", "nina"]).ok();
    assert!(audit.contains("at their first sign-in"), "{audit}");
    // The next time she is known.
    let mut again = Login::start(&cluster, ALICE, "nina-again", &[]);
    provider::person(&cluster, &env, &again.page(), "nina").ok();
    again.wait().ok();
}

/// Where there is no provider, nothing changes, and who asks for one is told.
#[test]
fn without_a_provider_there_are_other_ways() {
    let cluster = shared::cluster();
    let asked = Login::start(cluster, ALICE, "no-provider", &["--device"]).wait();
    asked.fails(1, &["no OpenID Connect provider", "--ssh-key", "--token"]);
    // A token that is there for other commands is no reason to refuse the question.
    let (url, known) = (cluster.tls_address(), fingerprint(cluster));
    let with_token = elsewhere(cluster, ALICE, "no-provider", &[("CARREL_TOKEN", "t")])
        .args(["login", &url, "--fingerprint", &known, "--device"])
        .run();
    with_token.fails(1, &["no OpenID Connect provider"]);
    let plain = Login::start(cluster, ALICE, "no-provider", &[]).wait();
    plain.fails(2, &["a token is needed"]);
}
