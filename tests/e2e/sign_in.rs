//! Users elsewhere: TLS, tokens, `carrel login`.

use std::fs;

use carrel_tests::cluster::Cluster;
use carrel_tests::process::Cmd;
use carrel_tests::user::{ALICE, BOB, ROOT, User};

use crate::shared::{self, SMALL};

/// A token signs its owner in over TLS, with the broker's CA checked; without one nothing is answered.
#[test]
fn a_token_over_tls() {
    let cluster = shared::cluster();
    let url = cluster.tls_address();
    let fingerprint = cluster.json(ROOT, ["node", "token"])["ca_fingerprint"]
        .as_str()
        .expect("a text")
        .to_owned();
    let created = cluster.json(ALICE, ["token", "create"]);
    let token = created["token"].as_str().expect("a token").to_owned();
    let elsewhere = |env: &[(&str, &str)]| {
        let env = [
            &[
                ("CARREL_CONFIG_DIR", "elsewhere"),
                ("CARREL_BROKER", url.as_str()),
            ][..],
            env,
        ]
        .concat();
        cluster.cmd_with(BOB, &env, cluster.sandbox().program("carrel"))
    };
    elsewhere(&[]).arg("ps").run().fails(5, &["login"]);
    elsewhere(&[])
        .args([
            "login",
            &url,
            "--fingerprint",
            &fingerprint,
            "--token",
            "wrong-token",
        ])
        .run()
        .fails(5, &["token"]);
    let wrong = format!("sha256:{}", "0".repeat(64));
    let other = elsewhere(&[])
        .args(["login", &url, "--fingerprint", &wrong, "--token", &token])
        .run();
    assert_ne!(other.code, 0, "{other}");
    elsewhere(&[])
        .args(["login", &url, "--fingerprint", &fingerprint, "--token", &token])
        .ok();
    let name = "over-tls";
    elsewhere(&[])
        .args(["alloc", "--name", name])
        .args(SMALL)
        .args(["--", "true"])
        .ok();
    let users = cluster.json(ROOT, ["user", "list"]);
    assert!(!users.to_string().contains(&token), "{users}");

    // Revoked: nothing more.
    let id = created["info"]["id"].as_str().expect("an id").to_owned();
    let listed = cluster.json(ALICE, ["token", "list"]);
    let listed = listed
        .as_array()
        .expect("a list")
        .iter()
        .find(|token| token["id"] == *id);
    assert_eq!(listed.expect("listed")["last_used_from"], "127.0.0.1");
    cluster.carrel(ALICE, ["token", "revoke", &id]).ok();
    elsewhere(&[]).arg("ps").run().fails(5, &["token"]);
}

/// `carrel` with a configuration of its own, which knows the broker by its TLS address only.
pub fn elsewhere(cluster: &Cluster, user: User, config: &str, more: &[(&str, &str)]) -> Cmd {
    let url = cluster.tls_address();
    let env = [
        &[("CARREL_CONFIG_DIR", config), ("CARREL_BROKER", &url)][..],
        more,
    ]
    .concat();
    cluster.cmd_with(user, &env, cluster.sandbox().program("carrel"))
}

/// The broker's, as its administrator tells it.
pub fn fingerprint(cluster: &Cluster) -> String {
    let token = cluster.json(ROOT, ["node", "token"]);
    token["ca_fingerprint"].as_str().expect("a text").to_owned()
}

/// A registered key signs its owner in: from a file, and from a real ssh-agent, which alone has it.
#[test]
fn an_ssh_key_over_tls() {
    let cluster = shared::cluster();
    let (url, fingerprint) = (cluster.tls_address(), fingerprint(cluster));
    let home = cluster.sandbox().home(ALICE);
    let key = home.join("sign-in-key");
    let key = key.to_str().expect("text");
    cluster
        .cmd(ALICE, "ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f", key])
        .ok();
    let login = |config: &str, more: &[(&str, &str)], with: &[&str]| {
        let known = ["login", &url, "--fingerprint", &fingerprint];
        elsewhere(cluster, ALICE, config, more)
            .args(known)
            .args(with)
            .run()
    };
    // Not registered: refused, and as for a user who does not exist.
    let unknown = login("by-file", &[], &["--ssh-key", key]);
    unknown.clone().fails(5, &["key"]);
    let nobody = login("by-file", &[], &["--ssh-key", key, "--user", "nobody-here"]);
    assert_eq!(unknown.stderr, nobody.stderr);

    cluster.carrel(ALICE, ["key", "add", &format!("{key}.pub")]).ok();
    login("by-file", &[], &["--ssh-key", key]).ok();
    let token = |config: &str| fs::read_to_string(home.join(config).join("credentials.toml")).expect("kept");
    elsewhere(cluster, ALICE, "by-file", &[]).arg("ps").ok();
    // Nobody else signs in with it.
    let other = login("other", &[], &["--ssh-key", key, "--user", "bob"]);
    other.fails(5, &["key"]);

    let socket = home.join("agent.sock");
    let socket = socket.to_str().expect("text");
    let agent = cluster.cmd(ALICE, "ssh-agent").args(["-D", "-a", socket]).spawn();
    let env = [("SSH_AUTH_SOCK", socket)];
    carrel_tests::wait::until("the agent answers", || {
        let listed = cluster.cmd_with(ALICE, &env, "ssh-add").arg("-l").run();
        listed.code == 1 && listed.stdout.contains("no identities")
    });
    cluster.cmd_with(ALICE, &env, "ssh-add").arg(key).ok();
    fs::remove_file(key).expect("there");
    login("by-agent", &env, &["--ssh-key", "--scope", "read"]).ok();
    elsewhere(cluster, ALICE, "by-agent", &[]).arg("ps").ok();
    elsewhere(cluster, ALICE, "by-agent", &[])
        .args(["alloc", "-c", "1", "--mem", "64M", "--", "true"])
        .run()
        .fails(5, &["sessions"]);
    let sign_ins = cluster
        .carrel(ROOT, ["admin", "audit", "--action", "sign-in", "--user", "alice"])
        .ok();
    assert!(
        sign_ins.contains("by SSH key SHA256:") && sign_ins.contains("127.0.0.1"),
        "{sign_ins}"
    );
    assert!(sign_ins.contains("REFUSED"), "{sign_ins}");

    // No secret is in any log.
    let logs = cluster.logs();
    for config in ["by-file", "by-agent"] {
        let kept = token(config);
        let start = kept.find("carrel_").expect("a token");
        let secret = &kept[start..start + 50];
        assert!(logs.len() > 1000 && !logs.contains(secret) && !sign_ins.contains(secret));
    }
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    agent.wait();
}
