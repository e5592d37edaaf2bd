//! The gateways that the broker last named: `STATE/gateways.pb`, replaced whole.
//!
//! An agent that starts while its broker is away links up with them at once, so that streams go on.
//! What is lost with the file, the broker says again.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use carrel_proto::v1::{Desired, GatewayEndpoint};
use prost::Message;
use tokio::sync::watch;

/// The file of one state directory.
#[derive(Debug)]
pub struct GatewaysFile {
    path: PathBuf,
    written: Vec<GatewayEndpoint>,
    told: watch::Sender<Vec<GatewayEndpoint>>,
}

impl GatewaysFile {
    /// Of a state directory. One that cannot be read counts as empty.
    pub fn open(state: &Path) -> Self {
        let path = state.join("gateways.pb");
        let written = match fs::read(&path) {
            Ok(bytes) => Desired::decode(&*bytes).map_or_else(
                |error| {
                    tracing::warn!(%error, path = %path.display(), "no list of gateways: the broker will say them");
                    Vec::new()
                },
                |kept| kept.gateways,
            ),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, path = %path.display(), "cannot be read: the broker will say the gateways");
                }
                Vec::new()
            }
        };
        let told = watch::Sender::new(written.clone());
        Self { path, written, told }
    }

    /// What was written last.
    pub fn known(&self) -> &[GatewayEndpoint] {
        &self.written
    }

    /// What the broker named last, now and from now on.
    pub fn watch(&self) -> watch::Receiver<Vec<GatewayEndpoint>> {
        self.told.subscribe()
    }

    /// Keeps these, if they are others than before. Blocks for a moment; a failure is tried again with the
    /// next word of the broker.
    pub fn keep(&mut self, gateways: &[GatewayEndpoint]) {
        if gateways == self.written {
            return;
        }
        self.told.send_replace(gateways.to_vec());
        let message = Desired {
            gateways: gateways.to_vec(),
            ..Desired::default()
        };
        let next = self.path.with_extension("pb.next");
        let replaced = fs::write(&next, message.encode_to_vec()).and_then(|()| fs::rename(&next, &self.path));
        match replaced {
            Ok(()) => self.written = gateways.to_vec(),
            Err(error) => tracing::warn!(%error, path = %self.path.display(), "the gateways are not kept"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_come_back_and_damage_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let gateway = |name: &str| GatewayEndpoint {
            name: name.into(),
            link: "10.0.0.1:7701".into(),
            streams: "10.0.0.1:7702".into(),
        };
        let mut file = GatewaysFile::open(dir.path());
        assert_eq!(file.known(), []);
        file.keep(&[gateway("a"), gateway("b")]);
        assert_eq!(
            GatewaysFile::open(dir.path()).known(),
            [gateway("a"), gateway("b")]
        );
        file.keep(&[gateway("b")]);
        assert_eq!(GatewaysFile::open(dir.path()).known(), [gateway("b")]);
        fs::write(dir.path().join("gateways.pb"), b"\xff\xff\xff").unwrap();
        assert_eq!(GatewaysFile::open(dir.path()).known(), []);
    }
}
