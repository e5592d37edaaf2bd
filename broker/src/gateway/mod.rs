//! The gateway: the way of bytes between users and nodes, a process of its own
//! (`carrel-broker gateway`), so that a broker's restart disturbs nobody.
//!
//! It has three doors. At the **stream endpoints** clients show tickets, and
//! the agents' connections arrive. At the **link** agents keep a connection
//! open, over which they are asked for streams. At the **jump host** any SSH
//! client reaches a session with `-J`. What passes through is encrypted from
//! the user to carrel-init; the gateway sees none of it.

mod control;
mod enrolment;
mod jump;
pub mod limits;
mod link;
mod links;
mod net;
mod options;
mod quota;
mod streams;
mod tickets;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_core::model::ids::NodeName;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use self::options::{Endpoints, Options};

use self::control::Control;
use self::enrolment::{Enrolment, Keys, Material};
use self::jump::Jump;
use self::links::Links;
use self::net::Listener;
use self::quota::Quota;
use self::streams::Streams;
use crate::ca::tls::CurrentTls;
use crate::handshakes::Handshakes;

/// A gateway whose sockets are bound. [`run`](Self::run) serves them.
pub struct Gateway {
    ssh: TcpListener,
    link: TcpListener,
    streams: Vec<Listener>,
    keys: Arc<Keys>,
    enrolment: Enrolment,
    handle: Handle,
    /// From before anybody could show one.
    tickets: tickets::Tickets,
    resumption_validity: Duration,
}

/// What others may know of a running gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    endpoints: Arc<Endpoints>,
    links: Links,
    quota: Quota,
    material: watch::Receiver<Option<Arc<Material>>>,
}

impl Handle {
    /// Where it is to be dialled, with the ports that were bound.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Nodes whose agents are connected.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.links.nodes()
    }

    /// Streams that are open, or being opened for a client.
    pub fn streams(&self) -> usize {
        self.quota.held()
    }

    /// Waits until it serves, with the broker's answer or the one kept from
    /// before. Does not return when the gateway has ended before that.
    pub async fn ready(&self) {
        if self.material.clone().wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Gateway {
    /// Reads or makes the keys, and binds the sockets.
    pub async fn bind(options: Options) -> Result<Self> {
        // Before its sockets are there, so that no ticket that is shown here is older.
        let tickets = tickets::Tickets::new();
        let most = net::streams_by_open_files();
        let keys = Arc::new(Keys::open(&options.state)?);
        let control = Control::new(&options.broker)?;
        let ssh = net::bind_tcp(&options.listen_ssh.to_string()).await?;
        let link = net::bind_tcp(&options.listen_link.to_string()).await?;
        let mut streams = Vec::new();
        for endpoint in &options.listen_streams {
            streams.push(Listener::bind(endpoint).await?);
        }
        let bound = streams.iter().map(Listener::bound).collect::<Result<Vec<_>>>()?;
        let endpoints = Endpoints::new(&options, ssh.local_addr()?, link.local_addr()?, &bound)?;

        let links = Links::new(&endpoints.streams, options.link_wait);
        let (material, watched) = watch::channel(None);
        let enrolment = Enrolment {
            request: Enrolment::request(&options.name, &keys, &endpoints)?,
            keys: Arc::clone(&keys),
            control,
            state: options.state,
            material,
        };
        let handle = Handle {
            endpoints: Arc::new(endpoints),
            links,
            quota: Quota::new(most),
            material: watched,
        };
        Ok(Self {
            ssh,
            link,
            streams,
            keys,
            enrolment,
            handle,
            tickets,
            resumption_validity: options.resumption_validity.unwrap_or(limits::RESUMPTION_VALIDITY),
        })
    }

    /// What others may know of it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until cancelled; then closes the sockets, ends the links and cuts the streams.
    pub async fn run(self, cancel: CancellationToken) -> Result<()> {
        let Self {
            ssh,
            link,
            streams,
            keys,
            enrolment,
            handle,
            tickets,
            resumption_validity,
        } = self;
        info!(ssh = %handle.endpoints.ssh, link = %handle.endpoints.link, streams = %handle.endpoints.streams,
              "the gateway listens");
        enrolment.use_cache();
        let control = enrolment.control.clone();
        // Everything ends with this gateway, also when a part of it fails.
        let cancel = cancel.child_token();
        let tasks = TaskTracker::new();
        let mut services = JoinSet::new();
        {
            let cancel = cancel.clone();
            services.spawn(async move {
                enrolment.run(cancel).await;
                Ok(())
            });
        }
        // Safe to cancel: connections wait in the sockets' queues meanwhile.
        let first = tokio::select! {
            () = cancel.cancelled() => None,
            () = handle.ready() => handle.material.borrow().clone(),
        };
        if let Some(first) = first {
            let tls = CurrentTls::new(Arc::clone(&first.tls));
            services.spawn(follow(handle.clone(), tls.clone(), cancel.clone()));
            services.spawn(link::serve(
                link,
                tls,
                handle.links.clone(),
                tasks.clone(),
                cancel.clone(),
            ));
            let stream_service = Streams {
                material: handle.material.clone(),
                links: handle.links.clone(),
                tickets,
                resumption_validity,
                quota: handle.quota.clone(),
                handshakes: Handshakes::new(limits::HANDSHAKES),
                tasks: tasks.clone(),
                cancel: cancel.clone(),
            };
            for listener in streams {
                services.spawn(stream_service.clone().serve(listener));
            }
            let jump = Jump {
                keys,
                material: handle.material.clone(),
                control,
                links: handle.links.clone(),
                quota: handle.quota.clone(),
                tasks: tasks.clone(),
                cancel: cancel.clone(),
            };
            services.spawn(jump.serve(ssh));
        }
        let outcome = until_one_ends(&mut services, &cancel).await;
        cancel.cancel();
        let ended = async {
            while services.join_next().await.is_some() {}
            tasks.close();
            tasks.wait().await;
        };
        if tokio::time::timeout(limits::SHUTDOWN, ended).await.is_err() {
            warn!(tasks = tasks.len(), "not everything ended in time");
        }
        outcome
    }
}

/// Waits for the end that was asked for, or for a service that ends without it.
async fn until_one_ends(services: &mut JoinSet<Result<()>>, cancel: &CancellationToken) -> Result<()> {
    // Safe to cancel: results stay in the set.
    tokio::select! {
        () = cancel.cancelled() => Ok(()),
        ended = services.join_next() => match ended {
            _ if cancel.is_cancelled() => Ok(()),
            Some(Ok(Ok(()))) | None => bail!("a service of the gateway ended by itself"),
            Some(Ok(Err(error))) => Err(error.context("a service of the gateway failed")),
            Some(Err(error)) => Err(anyhow::Error::new(error).context("a service of the gateway failed")),
        },
    }
}

/// Passes on what each enrolment brings: certificate and revocations.
async fn follow(handle: Handle, tls: CurrentTls, cancel: CancellationToken) -> Result<()> {
    let mut material = handle.material.clone();
    loop {
        if let Some(material) = material.borrow_and_update().clone() {
            tls.replace(Arc::clone(&material.tls));
            handle.links.revoke(&material.revoked);
        }
        // Both arms only wait.
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            changed = material.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}

/// `carrel-broker gateway`: serves until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
    let gateway = Gateway::bind(options).await?;
    let cancel = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(gateway.run(cancel.clone()));
    // Waiting for a signal, or for the gateway's own end.
    tokio::select! {
        _ = terminate.recv() => info!("ending: SIGTERM"),
        _ = interrupt.recv() => info!("ending: SIGINT"),
        Some(ended) = running.join_next() => return ended?,
    }
    cancel.cancel();
    match running.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}
