//! From the core's desired state of a node to the message: adds who users are
//! in numbers, who may enter over SSH, and the gateways.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use carrel_core::broker::{Broker, State};
use carrel_core::model::ids::{JobId, NodeName, UserName};
use carrel_core::model::node::DesiredJob;
use carrel_core::model::session::Share;
use carrel_proto::v1;

use crate::ca::ssh::{HOST_VALIDITY, SignedSshCertificate, parse_public_key};
use crate::context::Context;

/// Host certificates of one node's jobs, by key and principals: signed once,
/// and again when half of their time is over.
#[derive(Debug, Default)]
pub(super) struct HostCertificates(BTreeMap<(String, Vec<String>), SignedSshCertificate>);

/// Everything that a node is to be; none before it has been heard of.
pub(super) fn message(
    context: &Context,
    core: &Broker,
    node: &NodeName,
    certificates: &mut HostCertificates,
) -> Option<v1::Desired> {
    let desired = core.desired(node)?;
    let extras = |job: &DesiredJob| {
        let identity = identity(core.state(), job);
        if identity.is_none() {
            // Users are never deleted while they have jobs; should one be, nothing ends for that.
            tracing::error!(%node, job = %job.key, owner = %job.owner, "a job's owner is not in the directory");
        }
        Some((identity?, access(context, core.state(), job, certificates)))
    };
    let mut message = carrel_proto::convert::desired(&desired, extras, context.gateways.for_agents());
    certificates.keep_only(&desired.jobs);
    for job in &mut message.jobs {
        job.warn_before_s = warnings(core.state(), JobId(job.job));
        if job.idle_ends_ms > 0 {
            let known = core.state().jobs.get(&JobId(job.job));
            let warnings = known.map(|known| core.state().idle_warnings(known));
            job.idle_warn_before_s = whole_seconds(&warnings.unwrap_or_default());
        }
    }
    Some(message)
}

/// How many seconds before its deadline a job's terminals are warned.
fn warnings(state: &State, job: JobId) -> Vec<u32> {
    let placed = state.jobs.get(&job).and_then(|job| job.placed());
    let length = placed.map(|placed| placed.deadline.since(placed.started));
    whole_seconds(&state.settings.warnings(length.unwrap_or_default()))
}

fn whole_seconds(times: &[Duration]) -> Vec<u32> {
    times
        .iter()
        .map(|before| u32::try_from(before.as_secs()).unwrap_or(u32::MAX))
        .collect()
}

fn identity(state: &State, job: &DesiredJob) -> Option<v1::Identity> {
    let user = state.users.get(&job.owner)?;
    Some(v1::Identity {
        name: user.name.to_string(),
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        home: user.home.clone(),
        shell: user.shell.clone(),
        group_name: user.group_names.get(&user.gid).cloned().unwrap_or_default(),
        group_names: user.group_names.clone(),
    })
}

fn access(
    context: &Context,
    state: &State,
    job: &DesiredJob,
    certificates: &mut HostCertificates,
) -> v1::SshAccess {
    let session = job.session.and_then(|id| state.sessions.get(&id));
    let shared_with = |how: Share| {
        let shares = session.into_iter().flat_map(|session| &session.shares);
        shares
            .filter(move |(_, share)| **share == how)
            .map(|(user, _)| user)
    };
    // Plain keys come without limits: they are for those who may do everything.
    let inside: Vec<&UserName> = [&job.owner].into_iter().chain(shared_with(Share::Full)).collect();
    let keys = inside
        .iter()
        .filter_map(|user| state.users.get(*user))
        .flat_map(|user| &user.ssh_keys);
    v1::SshAccess {
        user_cas: vec![context.ssh.user_ca()],
        keys: keys.map(ToString::to_string).collect(),
        // And its own steps, which reach nothing else.
        principals: (inside.iter().map(ToString::to_string))
            .chain([carrel_proto::inside::principal(job.key)])
            .collect(),
        read_only_principals: shared_with(Share::ReadOnly).map(ToString::to_string).collect(),
        host_certificate: certificates.get(context, job),
    }
}

impl HostCertificates {
    /// The certificate for a job's host key; empty while there is no key, or none that can be used.
    fn get(&mut self, context: &Context, job: &DesiredJob) -> String {
        if job.host_key.is_empty() {
            return String::new();
        }
        let now = SystemTime::now();
        let id = (job.host_key.clone(), job.host_principals.clone());
        if let Some(signed) = self
            .0
            .get(&id)
            .filter(|signed| signed.expires > now + HOST_VALIDITY / 2)
        {
            return signed.text.clone();
        }
        let signed = parse_public_key(&job.host_key)
            .map_err(anyhow::Error::from)
            .and_then(|key| {
                context
                    .ssh
                    .sign_host(&key, &job.host_principals, now, HOST_VALIDITY)
            });
        match signed {
            Ok(signed) => {
                let text = signed.text.clone();
                self.0.insert(id, signed);
                text
            }
            Err(error) => {
                tracing::warn!(job = %job.key, error = format!("{error:#}"), "a host key was not certified");
                String::new()
            }
        }
    }

    fn keep_only(&mut self, jobs: &[DesiredJob]) {
        self.0.retain(|(key, principals), _| {
            jobs.iter()
                .any(|job| job.host_key == *key && job.host_principals == *principals)
        });
    }
}
