//! The jobs of this node: for each one a task that does what the core says, in order.

mod config;
mod cut;
mod gang;
mod slices;
mod usage;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use carrel_core::agent::ContainerEvent;
use carrel_core::model::cpus::Binding;
use carrel_core::model::gpu::Inventory;
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::{ClusterId, JobKey, NodeName};
use carrel_core::model::node::DesiredJob;
use carrel_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::gpu::NvmlSource;
use crate::inside::Upstream;
use crate::mps::Mps;
use crate::runtime::Runtime;

pub(crate) use slices::NotGiven;
pub use slices::{Held, Slices};

/// Commands that wait for one job's task. The core waits for an answer to each before it repeats
/// one, and a removal may overtake a start: two at most.
const MAX_COMMANDS: usize = 4;

/// What all jobs' tasks share.
pub struct Shared {
    /// This node.
    pub node: NodeName,
    /// The cluster that it has joined.
    pub cluster: ClusterId,
    /// Where containers live.
    pub runtime: Runtime,
    /// Whom to ask which processes use GPUs.
    pub nvml: NvmlSource,
    /// Cuts GPUs into what jobs are given.
    pub slices: Slices,
    /// Has the daemons there of GPUs that jobs share by MPS.
    pub mps: Mps,
    /// What the host has, as last discovered.
    pub inventory: watch::Receiver<Inventory>,
    /// The way to the broker for what jobs say to it.
    pub upstream: Arc<Upstream>,
    /// The gateways that the broker names.
    pub gateways: watch::Receiver<Vec<v1::GatewayEndpoint>>,
    /// Jobs of user 0 may run.
    pub allow_root: bool,
    /// What happens to containers.
    pub events: mpsc::Sender<(JobKey, ContainerEvent)>,
}

/// A job as the broker wants it: what the core decides on, and the message that it came in.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// The core's part.
    pub job: DesiredJob,
    /// With identity and SSH access.
    pub message: v1::DesiredJob,
}

/// What one job's task is to bring about in its container; the newest counts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted {
    /// None: not heard of since this agent was started.
    wish: Option<Arc<Wish>>,
    /// CPUs and memory nodes that its container is bound to. Only that its memory is bound no longer
    /// changes while it runs.
    binding: Binding,
    /// End of the lease, milliseconds of `CLOCK_BOOTTIME`.
    lease_end_ms: Option<u64>,
    /// End everything, with this grace.
    stop_grace_ms: Option<u64>,
    /// Processes of it that the kernel has ended for want of memory.
    oom_kills: u32,
    /// What befell something that it uses, in words; empty: nothing did.
    trouble: String,
}

#[derive(Debug)]
enum Command {
    Start,
    Adopt,
    Remove(Vec<GpuUnit>),
}

struct Handle {
    wanted: watch::Sender<Wanted>,
    commands: mpsc::Sender<Command>,
    /// A removal waits: whatever is under way is to be dropped.
    ending: CancellationToken,
}

/// The jobs of this node. Dropping it drops their tasks; the containers go on.
pub struct Jobs {
    shared: Arc<Shared>,
    handles: BTreeMap<JobKey, Handle>,
    tasks: JoinSet<JobKey>,
}

impl Jobs {
    /// None yet.
    pub fn new(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
            handles: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Makes and starts a job's container.
    pub fn start(&mut self, wish: Arc<Wish>, binding: Binding, lease_end_ms: Option<u64>) {
        let key = wish.job.key;
        self.configure(key, Some(wish), binding, lease_end_ms);
        self.command(key, Command::Start);
    }

    /// Watches over a container that runs already.
    pub fn adopt(&mut self, key: JobKey, binding: Binding, lease_end_ms: Option<u64>) {
        self.configure(key, None, binding, lease_end_ms);
        self.command(key, Command::Adopt);
    }

    /// Passes on a new wish, or none, a binding, and a new lease.
    pub fn configure(
        &mut self,
        key: JobKey,
        wish: Option<Arc<Wish>>,
        binding: Binding,
        lease_end_ms: Option<u64>,
    ) {
        self.handle(key).wanted.send_if_modified(|wanted| {
            let before = wanted.clone();
            if wish.is_some() {
                wanted.wish = wish;
            }
            wanted.binding = binding;
            wanted.lease_end_ms = lease_end_ms;
            *wanted != before
        });
    }

    /// Has those who come in told that the kernel ended processes.
    pub fn out_of_memory(&mut self, key: JobKey, kills: u32) {
        self.handle(key).wanted.send_if_modified(|wanted| {
            let more = kills > wanted.oom_kills;
            wanted.oom_kills = kills.max(wanted.oom_kills);
            more
        });
    }

    /// Has those who come in told what befell something that the job uses.
    pub fn trouble(&mut self, key: JobKey, text: &str) {
        let wanted = &self.handle(key).wanted;
        wanted.send_modify(|wanted| text.clone_into(&mut wanted.trouble));
    }

    /// Asks a container to end.
    pub fn stop(&mut self, key: JobKey, grace_ms: u64) {
        self.handle(key)
            .wanted
            .send_modify(|wanted| wanted.stop_grace_ms = Some(grace_ms));
    }

    /// Ends what is left of a job, and verifies it.
    pub fn remove(&mut self, key: JobKey, gpus: Vec<GpuUnit>) {
        self.handle(key).ending.cancel();
        self.command(key, Command::Remove(gpus));
    }

    /// The next task that has ended; waits for ever when there is none. Safe to cancel.
    pub async fn ended(&mut self) {
        let ended: Result<JobKey, JoinError> = match self.tasks.join_next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        };
        match ended {
            Ok(key) => {
                // Unless there is another one for the job already.
                if self
                    .handles
                    .get(&key)
                    .is_some_and(|handle| handle.commands.is_closed())
                {
                    self.handles.remove(&key);
                }
            }
            Err(error) => tracing::error!(%error, "a job's task broke"),
        }
    }

    fn command(&mut self, key: JobKey, command: Command) {
        if let Err(error) = self.handle(key).commands.try_send(command) {
            tracing::error!(job = %key, %error, "a job's task takes no command");
        }
    }

    fn handle(&mut self, key: JobKey) -> &Handle {
        let gone = self
            .handles
            .get(&key)
            .is_none_or(|handle| handle.commands.is_closed());
        if gone {
            let (wanted, wanted_of_task) = watch::channel(Wanted::default());
            let (commands, commands_of_task) = mpsc::channel(MAX_COMMANDS);
            let ending = CancellationToken::new();
            let worker = worker::Worker {
                shared: Arc::clone(&self.shared),
                key,
                wanted: wanted_of_task,
                commands: commands_of_task,
                ending: ending.clone(),
            };
            let span = tracing::info_span!("job", job = %key);
            self.tasks.spawn(worker.run().instrument(span));
            self.handles.insert(
                key,
                Handle {
                    wanted,
                    commands,
                    ending,
                },
            );
        }
        &self.handles[&key]
    }
}
