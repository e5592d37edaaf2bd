//! All that SSH needs to reach sessions of one cluster: key, certificate, host CAs, routes.

use std::path::PathBuf;

use carrel_proto::v1;

use super::client::Route;
use super::{ClusterDir, SshDir, alias, keys};
use crate::connect::{Address, Client};
use crate::context;
use crate::error::Result;

/// Access to one cluster's sessions.
#[derive(Debug)]
pub struct Access {
    /// The cluster, and who the user is on it.
    pub cluster: v1::Cluster,
    dir: SshDir,
    cluster_dir: ClusterDir,
    carrel: PathBuf,
    broker: String,
    ssh_user: String,
}

impl Access {
    /// Sees that key, certificate and host CAs are in place.
    pub async fn prepare(client: &mut Client, address: &Address) -> Result<Self> {
        let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.into_inner();
        let dir = SshDir::open()?;
        let cluster_dir = dir.cluster(&cluster.id)?;
        cluster_dir.trust(&cluster)?;
        let user = cluster.user.as_ref().map_or("", |user| &user.name);
        let ssh_user = keys::ensure(client, &cluster_dir, user).await?;
        let broker = address.to_string();
        Ok(Self {
            cluster,
            dir,
            cluster_dir,
            carrel: context::carrel()?,
            broker,
            ssh_user,
        })
    }

    /// The way to a rank of a session.
    pub fn route(&self, session: &v1::Session, rank: u32) -> Route {
        Route {
            carrel: self.carrel.clone(),
            broker: self.broker.clone(),
            session: self.name_for(session),
            rank,
            user: self.user_in(session),
            host_principal: session.host_principal.clone(),
            cluster: self.cluster_dir.clone(),
            start: true,
        }
    }

    /// Writes a session's alias. Returns the alias.
    pub fn write_alias(&self, session: &v1::Session) -> Result<String> {
        let name = self.name_for(session);
        let request = session.job.as_ref().and_then(|job| job.request.as_ref());
        let entry = alias::Entry {
            cluster: self.cluster.id.clone(),
            broker: self.broker.clone(),
            user: self.user_in(session),
            host_principal: session.host_principal.clone(),
            nodes: request.map_or(1, |request| request.nodes.max(1)),
        };
        alias::add(&self.dir, &self.carrel, &name, entry)?;
        Ok(alias::name_of(&name))
    }

    /// Whom one is inside a session: oneself in one's own, its owner in one that is shared.
    fn user_in(&self, session: &v1::Session) -> String {
        if self.is_own(session) {
            self.ssh_user.clone()
        } else {
            session.user.clone()
        }
    }

    /// Our SSH config, for the user's to include.
    pub fn config_path(&self) -> PathBuf {
        self.dir.config()
    }

    /// Another user's session is named with its owner.
    fn name_for(&self, session: &v1::Session) -> String {
        if self.is_own(session) {
            session.name.clone()
        } else {
            format!("{}.{}", session.name, session.user)
        }
    }

    fn is_own(&self, session: &v1::Session) -> bool {
        let user = self.cluster.user.as_ref();
        user.is_none_or(|user| user.name == session.user)
    }
}
