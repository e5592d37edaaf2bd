//! An agent that is played: it joins, links, and says what a test wants.

use carrel_proto::v1;
use carrel_proto::v1::agent_link_client::AgentLinkClient;
use carrel_proto::v1::node_join_client::NodeJoinClient;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Identity;
use tonic::{Status, Streaming};

use crate::daemon::{Daemon, PATIENCE};

/// A host that has joined: key and certificate.
#[derive(Clone)]
pub struct Host {
    pub name: String,
    pub key_pem: String,
    pub certificate_pem: String,
}

/// A key, and a certificate request for it.
pub fn request() -> (KeyPair, Vec<u8>) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let params = CertificateParams::new(vec![]).expect("parameters");
    let csr = params.serialize_request(&key).expect("a request").der().to_vec();
    (key, csr)
}

/// A one-time token.
pub async fn token(broker: &Daemon, node: &str) -> String {
    let request = v1::CreateNodeTokenRequest {
        node: node.into(),
        ttl_s: 0,
    };
    let made = broker
        .client()
        .await
        .create_node_token(request)
        .await
        .expect("a token")
        .into_inner();
    assert_eq!(made.broker, format!("https://{}", broker.address()));
    assert!(made.ca_fingerprint.starts_with("sha256:"));
    made.token
}

pub async fn join_with(broker: &Daemon, name: &str, token: &str) -> Result<Host, Status> {
    let (key, csr_der) = request();
    let mut client = NodeJoinClient::new(broker.tls(None).await.expect("connected"));
    let request = v1::JoinRequest {
        token: token.into(),
        node: name.into(),
        csr_der,
    };
    let joined = client.join(request).await?.into_inner();
    assert_eq!(joined.node, name);
    Ok(Host {
        name: name.into(),
        key_pem: key.serialize_pem(),
        certificate_pem: joined.certificate_pem,
    })
}

/// A host joins with a token of its own.
pub async fn join(broker: &Daemon, name: &str) -> Host {
    let token = token(broker, name).await;
    join_with(broker, name, &token).await.expect("joined")
}

impl Host {
    pub fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate_pem, &self.key_pem)
    }

    /// Opens the link; nothing is said yet.
    pub async fn link(&self, broker: &Daemon) -> Result<Agent, Status> {
        let channel = broker.tls(Some(self.identity())).await.expect("connected");
        let mut client = AgentLinkClient::new(channel).max_encoding_message_size(usize::MAX);
        let (sender, receiver) = mpsc::channel(16);
        let inbound = client.connect(ReceiverStream::new(receiver)).await?.into_inner();
        let observed = v1::Observed {
            node: self.name.clone(),
            boot_id: "boot".into(),
            inventory: Some(inventory(&self.name)),
            version: "test".into(),
            ..v1::Observed::default()
        };
        Ok(Agent {
            sender,
            inbound,
            observed,
        })
    }
}

/// A host with eight GPUs, all joined by NVLink.
pub fn inventory(name: &str) -> v1::Inventory {
    let gpu = |index| v1::GpuInfo {
        uuid: format!("GPU-{name}-{index}"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        ..v1::GpuInfo::default()
    };
    let link = v1::Link {
        kind: v1::LinkKind::Nvlink.into(),
        nvlinks: 18,
    };
    v1::Inventory {
        cpus: 96,
        memory_bytes: 1 << 40,
        gpus: (0..8).map(gpu).collect(),
        gpu_links: vec![link; 28],
        ..v1::Inventory::default()
    }
}

/// An agent's live link.
pub struct Agent {
    sender: mpsc::Sender<v1::Observed>,
    inbound: Streaming<v1::Desired>,
    /// What is said next.
    pub observed: v1::Observed,
}

impl Agent {
    /// Says what it is; the number of what was said.
    pub async fn say(&mut self) -> u64 {
        self.observed.seq += 1;
        self.sender
            .send(self.observed.clone())
            .await
            .expect("the link takes it");
        self.observed.seq
    }

    /// The next desired state, taken over as an agent does; or how the link ended.
    pub async fn hear(&mut self) -> Result<v1::Desired, Status> {
        let next = tokio::time::timeout(PATIENCE, self.inbound.message())
            .await
            .expect("the broker speaks");
        let desired = next?.ok_or_else(|| Status::cancelled("the broker closed the link"))?;
        self.observed.cluster.clone_from(&desired.cluster);
        self.observed.incarnation = desired.incarnation;
        self.observed.generation = desired.generation;
        Ok(desired)
    }

    /// Hears until a desired state is as it should be.
    pub async fn hear_until(&mut self, what: &str, wanted: impl Fn(&v1::Desired) -> bool) -> v1::Desired {
        loop {
            let desired = self
                .hear()
                .await
                .unwrap_or_else(|status| panic!("waiting for {what}: {status}"));
            if wanted(&desired) {
                return desired;
            }
        }
    }

    /// Says what it is and hears the answer to it.
    pub async fn exchange(&mut self) -> v1::Desired {
        let seq = self.say().await;
        self.hear_until("the answer", |desired| desired.renews == seq)
            .await
    }

    /// How the link ends.
    pub async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.hear().await {
                return status;
            }
        }
    }

    /// Takes a desired job up, as an agent would report it.
    pub fn hold(&mut self, job: &v1::DesiredJob, phase: v1::ObservedPhase, detail: &str) {
        self.observed.jobs = vec![v1::ObservedJob {
            job: job.job,
            generation: job.generation,
            session: job.session,
            phase: phase.into(),
            detail: detail.into(),
            gpus: job.gpus.clone(),
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            name: job.name.clone(),
            deadline_ms: job.deadline_ms,
            cluster: self.observed.cluster.clone(),
            ..v1::ObservedJob::default()
        }];
    }
}
