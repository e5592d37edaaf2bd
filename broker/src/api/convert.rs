//! What users see of the state, as messages.

use std::sync::Arc;

use carrel_core::broker::{
    JobUse, State, node_state, node_view, output_files, queue_position, rank_detail, session_state,
    state_reason,
};
use carrel_core::model::activity::{HostUse, Used};
use carrel_core::model::batch::{Batch, DEFAULT_ARRAY_OUTPUT, DEFAULT_OUTPUT, OutputOf};
use carrel_core::model::cpus::Binding;
use carrel_core::model::gpu_unit::{GpuUnit, Isolation, Slice};
use carrel_core::model::ids::{JobId, NodeName, UserName};
use carrel_core::model::job::{Job, JobState, Phase, Placed};
use carrel_core::model::node::ObservedJob;
use carrel_core::model::reservation::{Reservation, Span};
use carrel_core::model::resources::{NodeAllocation, UnitRequest};
use carrel_core::model::session::{Session, Share};
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::Link;
use carrel_core::model::user::{ApiToken, Role, User};
use carrel_core::placement::Seat;
use carrel_proto::convert::rank_network;
use carrel_proto::v1;

use crate::store::AuditRow;

/// A session with its live or last job, for a user.
pub fn session(state: &State, session: &Session, to: &UserName) -> v1::Session {
    let position = session.job.and_then(|id| queue_position(state, id));
    session_at(state, session, to, position)
}

/// The same, with the place in the queue as it is known.
pub fn session_at(state: &State, session: &Session, to: &UserName, position: Option<usize>) -> v1::Session {
    let record = session.job.and_then(|id| state.jobs.get(&id));
    v1::Session {
        id: session.id.0,
        name: session.name.to_string(),
        user: session.owner.to_string(),
        state: v1::SessionState::from(session_state(state, session)).into(),
        reason: record.map(|job| state_reason(state, job)).unwrap_or_default(),
        image: session.spec.image.clone(),
        job: record.map(|record| v1::Job {
            image: session.spec.image.clone(),
            ..job(state, record, position)
        }),
        created_ms: session.created.millis(),
        ephemeral: session.ephemeral,
        host_principal: host_principal(state, session),
        spec: Some((&session.spec).into()),
        shares: session.shares.iter().map(share).collect(),
        called: if session.owner == *to {
            session.name.to_string()
        } else {
            format!("{}.{}", session.name, session.owner)
        },
    }
}

fn share((user, share): (&UserName, &Share)) -> v1::Share {
    v1::Share {
        user: user.to_string(),
        mode: v1::ShareMode::from(*share).into(),
    }
}

/// Principal of a session's host certificates, without rank.
pub fn host_principal(state: &State, session: &Session) -> String {
    format!("{}.{}.{}", session.name, session.owner, state.settings.domain)
}

/// A job; `position` is its place in the queue.
pub fn job(state: &State, job: &Job, position: Option<usize>) -> v1::Job {
    job_because(state, job, position, state_reason(state, job))
}

/// The same, with why it is in its state as it is known.
pub fn job_because(state: &State, job: &Job, position: Option<usize>, reason: String) -> v1::Job {
    let placed = job.last_placed();
    let (ended, exit_code) = match &job.phase {
        Phase::Ended { ending, at, .. } => (Some(*at), ending.exit_code),
        Phase::Placed(placed) if placed.ending.is_some() => {
            (None, placed.ending.as_ref().and_then(|ending| ending.exit_code))
        }
        Phase::Placed(_) | Phase::Pending => (None, None),
    };
    let session = job.session.and_then(|id| state.sessions.get(&id));
    let host_use = state.host_use(job);
    v1::Job {
        id: job.id.0,
        name: job.name.clone(),
        kind: v1::JobKind::from(job.kind).into(),
        state: v1::JobState::from(job.state()).into(),
        user: job.owner.to_string(),
        reason,
        submitted_ms: job.submitted.millis(),
        started_ms: placed.map(|placed| placed.started.millis()),
        deadline_ms: placed.map(|placed| placed.deadline.millis()),
        ended_ms: ended.map(Timestamp::millis),
        nodes: placed
            .map(|placed| allocation(state, job, placed, &host_use))
            .unwrap_or_default(),
        exit_code,
        session: job.session.map_or(0, |id| id.0),
        queue_position: position
            .and_then(|position| u32::try_from(position).ok())
            .unwrap_or(0),
        request: Some((&*job.request).into()),
        time_limit_s: job.time_limit.as_secs(),
        image: match &job.batch {
            Some(batch) => batch.image.clone(),
            None => session
                .map(|session| session.spec.image.clone())
                .unwrap_or_default(),
        },
        isolation: isolation(job)
            .map(|class| class.name().to_owned())
            .unwrap_or_default(),
        terms: Some((&job.terms).into()),
        batch: job.batch.as_deref().map(|batch| batch_message(state, job, batch)),
        restarts: u32::try_from(job.past_runs.len()).unwrap_or(u32::MAX),
        activity: state.job_use(job).map(activity),
        measured: measured_use(job.last_placed().map(Placed::used).unwrap_or_default().values()),
        array: array_with_counts(state, job),
        keeps_off: keeps_off(state, job),
        host_use: host_use_in_all(job, &host_use),
        latest_start_ms: promised_start(state, job.id),
    }
}

/// When a job that waits starts at the latest; none: nothing is promised.
pub fn promised_start(state: &State, job: JobId) -> Option<i64> {
    state.promises.get(&job).map(|promise| promise.start.millis())
}

fn keeps_off(state: &State, job: &Job) -> Vec<v1::KeptOff> {
    let nodes = state.nodes_kept_off(job).into_iter();
    let kept_off = nodes.map(|(node, until)| v1::KeptOff {
        node: node.to_string(),
        until_ms: until.millis(),
    });
    kept_off.collect()
}

/// Thousandths times milliseconds of a GPU-hour.
const GPU_HOUR: f64 = 1_000.0 * 3_600_000.0;

/// Use of GPUs that was measured; absent: none was.
pub fn measured_use<'a>(used: impl Iterator<Item = &'a Used>) -> Option<v1::MeasuredUse> {
    let mut sum = Used::default();
    used.for_each(|one| sum.add(*one));
    (sum.measured > 0).then(|| v1::MeasuredUse {
        used_gpu_hours: sum.busy as f64 / GPU_HOUR,
        measured_gpu_hours: sum.measured as f64 / GPU_HOUR,
    })
}

/// What a job has used of CPUs and memory over its nodes; absent: nothing was measured.
fn host_use_in_all(job: &Job, host_use: &[HostUse]) -> Option<v1::HostUseInAll> {
    let placed = job.last_placed()?;
    let measured = || {
        let all = host_use.iter().enumerate().zip(&placed.allocation.nodes);
        all.filter(|((_, host), _)| !host.is_nothing())
    };
    // Of several that are alike the first.
    let ((most_rank, most), most_on) = measured().rev().max_by_key(|((_, host), _)| host.peak_bytes)?;
    let ((least_rank, least), least_on) = measured().min_by_key(|((_, host), _)| host.cpu_us())?;
    let mut sum = v1::HostUse::default();
    for ((_, host), _) in measured() {
        sum.cpu_user_us = sum.cpu_user_us.saturating_add(host.user_us);
        sum.cpu_system_us = sum.cpu_system_us.saturating_add(host.system_us);
        sum.memory_bytes = sum.memory_bytes.saturating_add(host.memory_bytes);
        sum.memory_peak_bytes = sum.memory_peak_bytes.saturating_add(host.peak_bytes);
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Some(v1::HostUseInAll {
        sum: Some(sum),
        nodes: count(measured().count()),
        memory_peak_bytes: most.peak_bytes,
        memory_peak_node: most_on.node.to_string(),
        memory_peak_rank: count(most_rank),
        cpu_least_us: least.cpu_us().unwrap_or(0),
        cpu_least_node: least_on.node.to_string(),
        cpu_least_rank: count(least_rank),
    })
}

fn activity(used: JobUse) -> v1::Activity {
    v1::Activity {
        gpu_percent: used.gpu_percent,
        cpu_percent: used.cpu_percent,
        connections: used.connections,
        idle_since_ms: used.idle_since.map(Timestamp::millis),
        idle_ends_ms: used.ends.map(Timestamp::millis),
        warned: used.warned,
        idle_after_s: used.after.map_or(0, |after| after.as_secs()),
        held_by: used.held_by,
    }
}

/// A job's part in an array.
pub fn array(job: &Job) -> Option<v1::ArrayPart> {
    job.array.as_ref().map(|part| v1::ArrayPart {
        array: part.array.0,
        tasks: part.tasks.to_string(),
        throttle: part.throttle.unwrap_or(0),
        count: part.shape.count,
        now: None,
    })
}

fn array_with_counts(state: &State, job: &Job) -> Option<v1::ArrayPart> {
    let part = array(job)?;
    let array = state.arrays.get(&JobId(part.array));
    let now = array.map(|array| {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (completed, failed) = (
            count(array.known.completed.len()),
            count(array.known.failed.len()),
        );
        v1::ArrayCounts {
            waiting: part.count.saturating_sub(array.running + completed + failed),
            running: array.running,
            completed,
            failed,
        }
    });
    Some(v1::ArrayPart { now, ..part })
}

/// What is said of an array that is over as a whole, in the place of the job that stands for it: whether all its tasks
/// ended well, and the highest of their exit codes. Other jobs as they are.
pub fn whole_array(state: &State, job: &Job, message: v1::Job) -> v1::Job {
    let number = job.array.as_ref().map(|part| part.array);
    let array = number.and_then(|number| state.arrays.get(&number));
    let Some((known, outcome)) = array.and_then(|array| Some((&array.known, array.known.outcome()?))) else {
        return message;
    };
    let reason = match known.failed.len() {
        0 => String::new(),
        1 => format!("1 of its {} tasks did not end well", known.tasks.len()),
        failed => format!("{failed} of its {} tasks did not end well", known.tasks.len()),
    };
    v1::Job {
        id: known.id.0,
        array: message.array.map(|part| v1::ArrayPart {
            tasks: known.tasks.to_string(),
            ..part
        }),
        state: v1::JobState::from(outcome).into(),
        exit_code: Some(known.exit_code),
        reason,
        ..message
    }
}

/// What a batch job runs. Its files' names are as asked for while it waits: its node is among what they may name.
fn batch_message(state: &State, job: &Job, batch: &Batch) -> v1::Batch {
    let first = job
        .last_placed()
        .and_then(|placed| placed.allocation.nodes.first());
    let (stdout, stderr) = match first {
        Some(part) => output_files(
            batch,
            OutputOf {
                job: job.id,
                task: job.task(),
                name: &job.name,
                user: &job.owner,
                node: &part.node,
            },
        ),
        None if batch.output.stdout.is_empty() => {
            let usual = if job.array.is_some() {
                DEFAULT_ARRAY_OUTPUT
            } else {
                DEFAULT_OUTPUT
            };
            (usual.to_owned(), batch.output.stderr.clone())
        }
        None => (batch.output.stdout.clone(), batch.output.stderr.clone()),
    };
    let mail = batch.mail.as_ref();
    v1::Batch {
        command: batch.command.clone(),
        script: batch.script.is_some(),
        workdir: batch.workdir.clone(),
        stdout,
        stderr,
        requeue: job.requeue,
        submit_host: batch.submitted_from.host.clone(),
        submit_dir: batch.submitted_from.directory.clone(),
        mail_type: mail.map(|wish| wish.types.to_string()).unwrap_or_default(),
        mail_user: mail.map(|wish| wish.to.clone()).unwrap_or_default(),
        mail_sent: state.settings.mail,
        comment: batch.comment.clone(),
    }
}

fn allocation(state: &State, job: &Job, placed: &Placed, host_use: &[HostUse]) -> Vec<v1::NodeAllocation> {
    let configuring = job.state() == JobState::Configuring;
    let part = |(rank, part): (usize, &NodeAllocation)| {
        let status = placed.ranks.get(rank).cloned().unwrap_or_default();
        v1::NodeAllocation {
            node: part.node.to_string(),
            switch_path: state.settings.fabric.path(&part.node),
            block: block(state, &part.node),
            gpus: gpus(state, part),
            cpus: part.cpus,
            memory_bytes: part.memory_bytes,
            fence: status.containment.fence.map(Into::into),
            oom_kills: status.containment.oom_kills,
            cpuset: status.binding.cpus.to_string(),
            mems: status.binding.mems.to_string(),
            network: rank_network(status.network),
            host_use: host_use
                .get(rank)
                .filter(|host| !host.is_nothing())
                .map(|host| (*host).into()),
            progress: if configuring {
                rank_detail(state, job, rank).unwrap_or_default()
            } else {
                String::new()
            },
        }
    };
    placed.allocation.nodes.iter().enumerate().map(part).collect()
}

/// The weakest isolation class of what a job holds; of what it asks for, as far as that says, until it does.
fn isolation(job: &Job) -> Option<Isolation> {
    let held = job.last_placed().map(|placed| {
        let units = placed.allocation.nodes.iter().flat_map(|part| &part.gpus);
        units.map(|unit| unit.slice.isolation()).min()
    });
    let asked = || match &job.request.unit {
        _ if job.request.gpus_per_node == 0 => None,
        UnitRequest::Whole => Some(Isolation::Exclusive),
        UnitRequest::Mig(_) => Some(Isolation::Mig),
        UnitRequest::Least => None,
        UnitRequest::Share { sharing, .. } => sharing.map(Into::into),
    };
    held.unwrap_or_else(asked)
}

/// What a part of an allocation has.
pub fn seat(state: &State, part: &NodeAllocation, seat: &Seat) -> v1::Seat {
    let inventory = state.nodes.get(&part.node).map(|node| &node.inventory);
    let index = |position: usize| {
        let gpu = inventory.and_then(|inventory| inventory.gpus.get(position));
        gpu.map_or(0, |gpu| gpu.index)
    };
    let name = |link: &Option<Link>| link.map(|link| link.to_string()).unwrap_or_default();
    v1::Seat {
        node: part.node.to_string(),
        gpus: gpus(state, part),
        links: seat.links.iter().flatten().map(name).collect(),
        worst_link: name(&seat.worst.map(|(.., link)| link)),
        worst_a: seat.worst.map_or(0, |(a, ..)| index(a)),
        worst_b: seat.worst.map_or(0, |(_, b, _)| index(b)),
        numa_nodes: seat.numa_nodes.clone(),
        nics: seat.nics.clone(),
        cpus: part.cpus,
        memory_bytes: part.memory_bytes,
        switch_path: state.settings.fabric.path(&part.node),
        block: block(state, &part.node),
    }
}

/// Index and model are those of the node's inventory as it is now.
fn gpus(state: &State, part: &NodeAllocation) -> Vec<v1::Gpu> {
    let inventory = state.nodes.get(&part.node).map(|node| &node.inventory);
    let gpu = |unit: &GpuUnit| {
        let info = inventory.and_then(|inventory| inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu));
        v1::Gpu {
            uuid: unit.gpu.to_string(),
            index: info.map_or(0, |info| info.index),
            model: info.map(|info| info.model.clone()).unwrap_or_default(),
            slice: unit.slice.to_string(),
            isolation: unit.slice.isolation().name().to_owned(),
            // Of a job that is over nobody looks for its GPUs any more.
            gone: info.is_none(),
        }
    };
    part.gpus.iter().map(gpu).collect()
}

fn cpu_holder((job, binding): &(JobId, Binding)) -> v1::CpuHolder {
    v1::CpuHolder {
        job: job.0,
        cpuset: binding.cpus.to_string(),
        mems: binding.mems.to_string(),
    }
}

/// A node; an empty message with its name for one that is not there.
pub fn node(state: &State, name: &NodeName) -> v1::Node {
    let (word, reason) = node_state(state, name);
    let view = node_view(state, name);
    let record = state.nodes.get(name);
    let link = state.links.get(name);
    v1::Node {
        name: name.to_string(),
        state: word.to_owned(),
        reason,
        inventory: record.map(|record| (&record.inventory).into()),
        gpu_holders: view.gpu_jobs.into_iter().map(holders).collect(),
        cpus_held: u32::try_from(view.cpus).unwrap_or(u32::MAX),
        memory_held: view.memory,
        last_contact_ms: link.map_or(0, |link| link.last_contact.millis()),
        version: record.map(|record| record.version.clone()).unwrap_or_default(),
        unknown: view.unknown.iter().map(unknown).collect(),
        cpu_holders: view.bound.iter().map(cpu_holder).collect(),
        images: record.map(|record| record.images.clone()).unwrap_or_default(),
        switch_path: state.settings.fabric.path(name),
        block: block(state, name),
        features: record
            .map(|record| record.offer().features.iter().cloned().collect())
            .unwrap_or_default(),
        reservations: reservations(state, name),
    }
}

fn reservations(state: &State, name: &NodeName) -> Vec<v1::NodeReservation> {
    let all = state.reservations_on(name, state.ticked).into_iter();
    let message = |(span, one): (Span, Arc<Reservation>)| v1::NodeReservation {
        name: one.name.to_string(),
        start_ms: span.start.millis(),
        end_ms: span.end.millis(),
        maintenance: one.maintenance,
        partial: one.parts.is_some(),
    };
    all.map(message).collect()
}

fn holders(jobs: Vec<(JobId, Slice)>) -> v1::GpuHolders {
    let holder = |(job, slice): (JobId, Slice)| v1::GpuHolder {
        job: job.0,
        isolation: slice.isolation().name().to_owned(),
        slice: slice.to_string(),
        ..v1::GpuHolder::default()
    };
    v1::GpuHolders {
        holders: jobs.into_iter().map(holder).collect(),
    }
}

/// The block that a node is in; empty: none.
fn block(state: &State, name: &NodeName) -> String {
    let block = state
        .nodes
        .get(name)
        .and_then(|node| state.settings.fabric.block_of(name, &node.inventory));
    block.unwrap_or_default().to_owned()
}

/// A container that this broker does not know, for people.
fn unknown(job: &ObservedJob) -> String {
    let user = job.user.as_ref().map_or("an unknown user", |user| user.as_str());
    format!(
        "job {} ({}) of {user}, cluster {}",
        job.key, job.name, job.cluster
    )
}

/// A user; `role` as the broker's configuration has it.
pub fn user(user: &User, role: Role) -> v1::User {
    v1::User {
        name: user.name.to_string(),
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        home: user.home.clone(),
        shell: user.shell.clone(),
        role: v1::Role::from(role).into(),
        group_names: user.group_names.clone(),
    }
}

/// What may be shown of a token.
pub fn token(token: &ApiToken) -> v1::TokenInfo {
    let used = token.last_used.as_ref();
    v1::TokenInfo {
        id: token.id.to_string(),
        user: token.user.to_string(),
        label: token.label.clone(),
        expires_ms: token.expires.millis(),
        scope: v1::TokenScope::from(token.scope).into(),
        created_ms: token.created.millis(),
        last_used_ms: used.map(|(at, _)| at.millis()),
        last_used_from: used.map(|(_, from)| from.to_string()).unwrap_or_default(),
        by_sign_in: token.by_sign_in,
    }
}

/// A record of the audit log.
pub fn audit(row: AuditRow) -> v1::AuditRecord {
    v1::AuditRecord {
        number: row.number,
        at_ms: row.at_ms,
        user: row.user,
        origin: row.origin,
        action: row.action,
        subject: row.subject,
        outcome: row.outcome,
        detail: row.detail,
    }
}
