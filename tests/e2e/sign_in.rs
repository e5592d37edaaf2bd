//! Users elsewhere: TLS, tokens, `carrel login`.

use carrel_tests::user::{ALICE, BOB, ROOT};

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
    let id = cluster.json(ALICE, ["token", "list"]);
    let id = id[0]["id"].as_str().expect("an id").to_owned();
    cluster.carrel(ALICE, ["token", "revoke", &id]).ok();
    elsewhere(&[]).arg("ps").run().fails(5, &["token"]);
}
