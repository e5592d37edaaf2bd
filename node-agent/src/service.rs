//! The agent: one task that owns the core's [`Agent`], tells it what happens, and has done what it says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::agent::{Action, Agent, ContainerEvent, Found, FoundState, Holding, Input, Myself};
use carrel_core::model::cpus::{Binding, CpuSet};
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::{ClusterId, JobKey, SessionId};
use carrel_core::model::node::{Desired, DesiredJob};
use carrel_proto::v1;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::activity::{self, Looks};
use crate::clock::now;
use crate::config::Config;
use crate::cpus::Kernel;
use crate::discovery::{Changes, Through};
use crate::gateways::GatewaysFile;
use crate::identity::Membership;
use crate::inside::Upstream;
use crate::jobs::{Held, Jobs, Shared, Slices, Wish};
use crate::ledger::LedgerFile;
use crate::link::{Link, LinkEvent};
use crate::logs::Logs;
use crate::mps::Mps;
use crate::runtime::{Container, ContainerState, Events, Runtime, RuntimeEvent};
use crate::streams::Streams;
use crate::{discovery, renewal};

/// Events of containers that wait for the agent's task; jobs' tasks wait when it is full.
const MAX_EVENTS: usize = 1024;
/// What the broker said that waits; the link waits when it is full.
const MAX_LINK_EVENTS: usize = 4;
/// Findings that wait.
const MAX_INPUTS: usize = 16;
/// Longest wait for containerd's list of containers.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);
/// After a failed look at the containers.
const LIST_RETRY: Duration = Duration::from_secs(1);
/// Longest sleep of the timer: time set by hand is noticed then at the latest.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);
/// How long streams and links may take to end.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long cuts of GPUs may take to end: well within the time that service managers give.
const CUTS: Duration = Duration::from_secs(20);
/// Lines of a container's last words in a message.
const LAST_WORDS: usize = 5;

/// The running agent.
struct Service {
    agent: Agent,
    ledger: LedgerFile,
    /// The ledger could not be written, for this reason: nothing is started until it can.
    unwritten: Option<String>,
    runtime: Runtime,
    jobs: Jobs,
    wishes: BTreeMap<JobKey, Arc<Wish>>,
    streams: Streams,
    gateways: GatewaysFile,
    inventory: watch::Sender<Inventory>,
    reports: watch::Sender<Option<v1::Observed>>,
    /// What each job holds.
    held: watch::Sender<Held>,
    slices: Slices,
    images_changed: Arc<Notify>,
    host_changed: Arc<Notify>,
    /// Deletions of sessions' kept changes.
    removals: JoinSet<(SessionId, Result<(), String>)>,
    /// The containers are to be looked at, at this time.
    look_at: Option<Instant>,
    /// The broker spoke for this other cluster when it last spoke.
    foreign: Option<ClusterId>,
}

/// What the service listens to.
struct Inboxes {
    events: mpsc::Receiver<(JobKey, ContainerEvent)>,
    link: mpsc::Receiver<LinkEvent>,
    inputs: mpsc::Receiver<Input>,
    runtime: Events,
}

/// Runs the agent of a host that has joined, until cancelled. Containers go on when it ends.
pub async fn run(config: Config, membership: Membership, cancel: CancellationToken) -> Result<()> {
    let ledger = LedgerFile::new(&config.state);
    let kept = ledger.load()?;
    let runtime = Runtime::open(config.runtime.clone()).await?;
    tracing::info!(runtime = runtime.describe(), "containers");
    if let Err(error) = runtime.resume_network().await {
        tracing::warn!(
            error = format!("{error:#}"),
            "rules and routes of gangs are as the last agent left them"
        );
    }
    // Subscribed before the first look, so that nothing falls between.
    let runtime_events = runtime.events();
    let (held, held_of_slices) = watch::channel(Held::new());
    let host_changed = Arc::new(Notify::new());
    let slices = Slices::new(config.nvml.clone(), held_of_slices, Arc::clone(&host_changed));
    let mps = Mps::new(
        config.nvml.clone(),
        runtime.clone(),
        &config.state,
        held.subscribe(),
        Arc::clone(&host_changed),
    );
    let through = Through {
        nvml: config.nvml.clone(),
        runtime: runtime.clone(),
        slices: slices.clone(),
        mps: mps.clone(),
    };
    let found = discovery::look(&through).await?;
    discovery::announce(&found.inventory);

    let myself = Myself {
        cluster: ClusterId(membership.cluster.as_str().into()),
        node: membership.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: boot_id()?,
    };
    let (events, events_in) = mpsc::channel(MAX_EVENTS);
    let (link_events, link_in) = mpsc::channel(MAX_LINK_EVENTS);
    let (inputs, inputs_in) = mpsc::channel(MAX_INPUTS);
    let (reports, reports_of_link) = watch::channel(None);
    let (tls, tls_in) = watch::channel(membership.tls());
    let (inventory, inventory_of_jobs) = watch::channel(found.inventory.clone());
    let run_dirs = runtime.clone();
    let allow_root = config.allow_root.unwrap_or_else(|| is_here(&membership.broker));
    let gateways = GatewaysFile::open(&config.state);
    let mut service = Service {
        agent: Agent::new(myself, kept, now()),
        ledger,
        unwritten: None,
        jobs: Jobs::new(Shared {
            node: membership.node.clone(),
            cluster: ClusterId(membership.cluster.as_str().into()),
            runtime: runtime.clone(),
            nvml: config.nvml.clone(),
            slices: slices.clone(),
            mps: mps.clone(),
            inventory: inventory_of_jobs,
            upstream: Arc::new(Upstream::new(membership.broker.clone(), tls_in.clone())),
            gateways: gateways.watch(),
            allow_root,
            events: events.clone(),
        }),
        wishes: BTreeMap::new(),
        streams: Streams::new(
            membership.node.clone(),
            tls_in.clone(),
            move |key| run_dirs.run_dir(key),
            Logs::new(runtime.clone(), held.subscribe()),
            cancel.clone(),
        ),
        gateways,
        inventory,
        reports,
        held,
        slices,
        images_changed: Arc::new(Notify::new()),
        host_changed,
        removals: JoinSet::new(),
        look_at: None,
        foreign: None,
        runtime,
    };
    let link = Link {
        broker: membership.broker.clone(),
        tls: tls_in,
        reports: reports_of_link,
        events: link_events,
    };
    let mut tasks = JoinSet::new();

    service.clear_leftovers().await;
    service
        .handle(Input::Inventory(Box::new(found.inventory.clone())))
        .await;
    service.handle(Input::Cpus(Box::new(found.cpus))).await;
    let world = service
        .world()
        .await
        .context("looking at the containers of this node")?;
    service.handle(Input::World(world)).await;
    service.streams.set(service.gateways.known());
    let looks = Looks {
        runtime: service.runtime.clone(),
        nvml: config.nvml.clone(),
        held: service.held.subscribe(),
        inputs: inputs.clone(),
        every: config.measure_every,
    };
    tasks.spawn(activity::run_host_use(
        looks.runtime.clone(),
        looks.held.clone(),
        looks.inputs.clone(),
        cancel.clone(),
    ));
    tasks.spawn(activity::run(looks, cancel.clone()));
    tasks.spawn(discovery::run(
        through,
        found.inventory,
        Changes {
            images: Arc::clone(&service.images_changed),
            host: Arc::clone(&service.host_changed),
        },
        inputs,
        cancel.clone(),
    ));
    // What jobs hold is known now.
    tasks.spawn(mps.clone().watch(events, cancel.clone()));
    tasks.spawn(link.run(cancel.clone()));
    tasks.spawn(renewal::run(
        membership,
        config.state.clone(),
        tls,
        cancel.clone(),
    ));
    let inboxes = Inboxes {
        events: events_in,
        link: link_in,
        inputs: inputs_in,
        runtime: runtime_events,
    };
    service.serve(inboxes, config.heartbeat, &cancel).await;
    tracing::info!("the agent ends; containers go on");
    if tokio::time::timeout(CUTS, service.slices.finish()).await.is_err() {
        tracing::warn!("a GPU is still being cut; the next agent goes on from what NVML says");
    }
    if tokio::time::timeout(CUTS, mps.finish()).await.is_err() {
        tracing::warn!("an MPS daemon is still being started; the next agent goes on from what is there");
    }
    let farewell = async {
        while tasks.join_next().await.is_some() {}
        service.streams.finish().await;
    };
    if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
        tracing::debug!("some links did not end in time");
    }
    Ok(())
}

impl Service {
    async fn serve(&mut self, mut inboxes: Inboxes, heartbeat: Duration, cancel: &CancellationToken) {
        let mut beat = tokio::time::interval(heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = now();
            let sleep = self
                .agent
                .next_tick(now)
                .unwrap_or(LONGEST_SLEEP)
                .min(LONGEST_SLEEP);
            let look_at = self.look_at;
            tokio::select! {
                // What each arm waits for stays where it is when another arm is taken: channels and
                // streams keep their messages, timers are made anew, an interval keeps its ticks.
                () = cancel.cancelled() => return,
                Some((key, event)) = inboxes.events.recv() => {
                    if matches!(event, ContainerEvent::Ready { .. }) {
                        self.images_changed.notify_one();
                    }
                    if let ContainerEvent::OutOfMemory { kills } = event {
                        self.jobs.out_of_memory(key, kills);
                    }
                    if let ContainerEvent::Trouble(text) = &event {
                        self.jobs.trouble(key, text);
                    }
                    self.handle(Input::Container(key, event)).await;
                }
                Some(event) = inboxes.link.recv() => self.on_link(event).await,
                Some(input) = inboxes.inputs.recv() => {
                    if let Input::Inventory(found) = &input {
                        self.inventory.send_replace((**found).clone());
                    }
                    self.handle(input).await;
                }
                event = inboxes.runtime.next() => self.on_runtime(event).await,
                Some(removed) = self.removals.join_next(), if !self.removals.is_empty() => match removed {
                    Ok((session, result)) => self.handle(Input::SessionRemoved(session, result)).await,
                    Err(error) => tracing::error!(%error, "the deletion of a session's changes broke"),
                },
                () = self.jobs.ended() => {}
                () = sleep_until(look_at), if look_at.is_some() => self.look().await,
                () = tokio::time::sleep(sleep) => self.handle(Input::Tick).await,
                _ = beat.tick() => {
                    self.handle(Input::Tick).await;
                    self.report();
                }
            }
        }
    }

    async fn on_link(&mut self, event: LinkEvent) {
        let message = match event {
            LinkEvent::Up => {
                self.report();
                return;
            }
            LinkEvent::Desired(message) => *message,
        };
        let desired = match Desired::try_from(message.clone()) {
            Ok(desired) => desired,
            Err(error) => {
                tracing::error!(%error, "the broker's message is not understood; nothing in it is acted on");
                return;
            }
        };
        tracing::debug!(
            generation = desired.generation,
            renews = desired.renews,
            jobs = desired.jobs.len(),
            "desired"
        );
        if desired.cluster == *self.agent.cluster() {
            self.streams.set(&message.gateways);
            self.gateways.keep(&message.gateways);
            self.foreign = None;
        } else if self.foreign.as_ref() != Some(&desired.cluster) {
            tracing::warn!(
                theirs = %desired.cluster,
                ours = %self.agent.cluster(),
                "the broker's store is another cluster's: nothing is started or ended by it, running jobs go on"
            );
            self.foreign = Some(desired.cluster.clone());
        }
        let jobs = desired.jobs.clone();
        let actions = self.agent.handle(now(), Input::Desired(Box::new(desired)));
        self.note_wishes(&jobs, message.jobs);
        self.act(actions).await;
    }

    /// Keeps the messages of those jobs that the core has taken over.
    fn note_wishes(&mut self, jobs: &[DesiredJob], messages: Vec<v1::DesiredJob>) {
        for (job, message) in jobs.iter().zip(messages) {
            if self.agent.job(job.key) == Some(job) {
                self.wishes.insert(
                    job.key,
                    Arc::new(Wish {
                        job: job.clone(),
                        message,
                    }),
                );
            }
        }
        let agent = &self.agent;
        self.wishes.retain(|key, _| agent.job(*key).is_some());
    }

    async fn on_runtime(&mut self, event: RuntimeEvent) {
        match event {
            RuntimeEvent::Resync => self.look().await,
            RuntimeEvent::OutOfMemory { key } => {
                let kills = self.runtime.out_of_memory_kills(key).max(1);
                if self.agent.is_ready(key) {
                    self.jobs.out_of_memory(key, kills);
                }
                self.handle(Input::Container(key, ContainerEvent::OutOfMemory { kills }))
                    .await;
            }
            RuntimeEvent::Exited { key, code } => {
                let exit = self.runtime.exit(key, Some(code));
                // Before its end: the report of that has it.
                self.handle(Input::Container(key, ContainerEvent::Used(exit.host)))
                    .await;
                let event = ContainerEvent::Exited {
                    code: exit.code,
                    out_of_memory: exit.out_of_memory,
                    command: exit.command,
                    detail: match self.runtime.end_of_command(key) {
                        Some(end) => end.detail,
                        None if code == 0 => String::new(),
                        None => self.runtime.init_log(key, LAST_WORDS),
                    },
                };
                self.handle(Input::Container(key, event)).await;
            }
        }
    }

    /// Looks at all containers. Nothing else is handled meanwhile, so that what is found is newer
    /// than everything that the core knows.
    async fn look(&mut self) {
        self.look_at = None;
        match self.world().await {
            Ok(found) => self.handle(Input::World(found)).await,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the containers cannot be looked at; trying again"
                );
                self.look_at = Some(Instant::now() + LIST_RETRY);
            }
        }
    }

    async fn world(&self) -> Result<Vec<Found>> {
        let listed = tokio::time::timeout(LIST_TIMEOUT, self.runtime.list()).await;
        let containers = listed.context("containerd does not answer")??;
        Ok(containers.into_iter().map(found).collect())
    }

    /// Removes what starts and ends that were cut off left behind, unless the core knows of it.
    async fn clear_leftovers(&self) {
        let leftovers = match self.runtime.leftovers().await {
            Ok(leftovers) => leftovers,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "what was left behind is not known");
                return;
            }
        };
        for key in leftovers {
            if self.agent.holding(key).is_some() {
                continue;
            }
            tracing::info!(job = %key, "clearing what was left behind");
            if let Err(error) = self.runtime.remove(key).await {
                tracing::warn!(job = %key, error = format!("{error:#}"), "something is left behind");
            }
        }
    }

    async fn handle(&mut self, input: Input) {
        let actions = self.agent.handle(now(), input);
        self.act(actions).await;
    }

    /// Tells those who cut GPUs what jobs hold. Before anything is done about it: what is about to be started
    /// may not lose its slice to another.
    fn tell_held(&self) {
        let held: Held = self
            .agent
            .holders()
            .map(|(key, holding)| (key, holding.gpus.clone()))
            .collect();
        self.held.send_if_modified(|known| {
            let other = *known != held;
            *known = held;
            other
        });
    }

    /// Has done what the core says. Answers that are known at once are handled at once.
    async fn act(&mut self, actions: Vec<Action>) {
        let mut answers = self.act_once(actions).await;
        while let Some(answer) = answers.pop_front() {
            let actions = self.agent.handle(now(), answer);
            answers.extend(self.act_once(actions).await);
        }
    }

    async fn act_once(&mut self, actions: Vec<Action>) -> VecDeque<Input> {
        let mut answers = VecDeque::new();
        self.tell_held();
        for action in actions {
            match action {
                Action::Persist { synced } => self.persist(synced).await,
                Action::Start(job) => {
                    answers.extend(self.start(*job).await);
                }
                Action::Adopt(key) => self.jobs.adopt(key, self.binding(key), self.agent.lease_end_ms()),
                Action::Configure(key) => {
                    let wish = self.wishes.get(&key).cloned();
                    self.jobs
                        .configure(key, wish, self.binding(key), self.agent.lease_end_ms());
                }
                Action::Stop { key, grace_ms } => {
                    tracing::info!(job = %key, grace_ms, "stopping");
                    self.jobs.stop(key, grace_ms);
                }
                Action::Remove(key) => {
                    self.jobs.remove(key, self.agent.units_to_verify(key));
                }
                Action::RemoveSession(session) => {
                    let runtime = self.runtime.clone();
                    self.removals.spawn(async move {
                        let removed = runtime.remove_session(session).await;
                        if let Err(error) = &removed {
                            tracing::warn!(%session, error = format!("{error:#}"), "kept changes are not deleted yet");
                        }
                        (session, removed.map_err(|error| format!("{error:#}")))
                    });
                }
                Action::Report => self.report(),
            }
        }
        answers
    }

    /// Starts a job, unless the ledger does not hold it, or its CPUs have gone: then it is tried again.
    async fn start(&mut self, job: DesiredJob) -> Option<Input> {
        let key = job.key;
        if self.unwritten.is_some() {
            self.persist(true).await;
        }
        let blocked = |why: String| Some(Input::Container(key, ContainerEvent::Blocked(why)));
        if let Some(why) = &self.unwritten {
            return blocked(format!("the node's ledger cannot be written: {why}"));
        }
        let Some(wish) = self.wishes.get(&key).cloned() else {
            return blocked("waits for the broker".to_owned());
        };
        let binding = self.binding(key);
        let gone = binding.cpus.without(&self.usable_cpus().await);
        if !gone.is_empty() {
            // The core chooses others once it knows.
            self.host_changed.notify_one();
            return blocked(format!("CPUs {gone} of this node can no longer be used"));
        }
        tracing::info!(job = %key, name = job.name, image = job.image, gpus = job.gpus.len(), "starting");
        self.jobs.start(wish, binding, self.agent.lease_end_ms());
        None
    }

    /// What the core has chosen for a job.
    fn binding(&self, key: JobKey) -> Binding {
        let holding = self.agent.holding(key);
        holding.map(|holding| holding.binding.clone()).unwrap_or_default()
    }

    /// CPUs that containers can be bound to now.
    async fn usable_cpus(&self) -> CpuSet {
        let runtime = self.runtime.clone();
        let usable = move || Kernel::default().usable(&runtime.limits().unwrap_or_default());
        tokio::task::spawn_blocking(usable).await.unwrap_or_default()
    }

    async fn persist(&mut self, synced: bool) {
        let ledger = self.agent.ledger();
        let (file, synced) = (self.ledger.clone(), synced || self.unwritten.is_some());
        let written = tokio::task::spawn_blocking(move || file.save(&ledger, synced)).await;
        let written = written.unwrap_or_else(|error| Err(error.into()));
        self.unwritten = match written {
            Ok(()) => None,
            Err(error) => {
                let why = format!("{error:#}");
                tracing::error!(
                    error = why,
                    "the ledger is not written: nothing is started until it can be"
                );
                Some(why)
            }
        };
    }

    fn report(&mut self) {
        let observed = self.agent.observed(now());
        self.reports.send_replace(Some(v1::Observed::from(&observed)));
    }
}

fn found(container: Container) -> Found {
    let Container { record, state } = container;
    Found {
        key: record.key,
        holding: Holding {
            session: record.session,
            name: record.name,
            user: record.user.parse().ok(),
            cluster: ClusterId(record.cluster.into()),
            gpus: record.gpus,
            cpus: record.cpus,
            memory_bytes: record.memory_bytes,
            deadline: record.deadline,
            rank: record.rank,
            nodes: record.nodes,
            started: record.started,
            image: record.image,
            binding: record.binding,
            network: record.network,
            // The ledger has them; where it has not, they are as they are found now.
            places: BTreeMap::new(),
        },
        state: match state {
            ContainerState::Unstarted => FoundState::Unstarted,
            ContainerState::Running { .. } => FoundState::Running,
            ContainerState::Ended(exit) => FoundState::Ended {
                code: exit.code,
                out_of_memory: exit.out_of_memory,
                command: exit.command,
            },
            ContainerState::Lost => FoundState::Lost,
        },
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether the broker runs on this machine, by its address.
fn is_here(broker: &str) -> bool {
    let uri: Option<tonic::transport::Uri> = broker.parse().ok();
    let host = uri
        .as_ref()
        .and_then(tonic::transport::Uri::host)
        .unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// The kernel's boot id.
fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_on_this_machine_is_known_by_its_address() {
        for here in [
            "https://127.0.0.1:7070",
            "https://localhost:7070",
            "https://[::1]:7070",
        ] {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in [
            "https://head:7070",
            "https://10.0.0.1:7070",
            "",
            "localhost.example:1",
        ] {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }
}
