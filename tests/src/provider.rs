//! An OpenID Connect provider for a cluster, and people who sign in there (`tests/oidc`).

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::process::{Cmd, Daemon};
use crate::programs::repository;
use crate::user::ROOT;

/// Its port on the sandbox's own loopback.
pub const PROVIDER_PORT: u16 = 7555;

/// A provider that runs in a cluster's sandbox, and ends with it.
#[derive(Debug)]
pub struct Provider(Daemon);

impl Provider {
    /// Starts one and waits until it answers. `settings` are those of `tests/oidc/provider.mjs`,
    /// less the port.
    ///
    /// # Panics
    /// It does not come up: with its log.
    pub fn start(cluster: &Cluster, mut settings: Value) -> Self {
        settings["port"] = json!(PROVIDER_PORT);
        let mut argv = cluster.sandbox().argv(ROOT, &[], "node".as_ref());
        argv.push(repository().join("tests/oidc/provider.mjs").into());
        argv.push(installed().into());
        argv.push(settings.to_string().into());
        let this = Self(Daemon::start("provider", argv, &cluster.root().join("logs")));
        let answers = || cluster.sandbox().connect(PROVIDER_PORT).is_ok();
        let up = crate::wait::poll(crate::wait::PATIENCE, || answers().then_some(()));
        assert!(
            up.is_some(),
            "the provider does not answer\n{}",
            this.0.last_log()
        );
        this
    }

    /// Its address, as its tokens name it.
    pub fn issuer(scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{PROVIDER_PORT}")
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill9(&mut self) {
        self.0.kill9();
    }
}

/// Somebody with a browser, who opens a page of the provider's, signs in under a name, and agrees to
/// everything. With "refuse" as one more argument they refuse.
pub fn person(cluster: &Cluster, env: &[(&str, &str)], page: &str, name: &str) -> Cmd {
    let program = repository().join("tests/oidc/person");
    cluster.cmd_with(ROOT, env, program).args([page, name])
}

/// Where npm's oidc-provider is; fetched at the first call on this machine.
fn installed() -> PathBuf {
    let output = Command::new(repository().join("tests/oidc/cached-provider"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("tests/oidc/cached-provider can be run");
    assert!(
        output.status.success(),
        "no OpenID Connect provider could be fetched"
    );
    let path = String::from_utf8(output.stdout).expect("a path in UTF-8");
    PathBuf::from(path.trim_end())
}
