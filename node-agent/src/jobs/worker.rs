//! One job's task.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_core::agent::ContainerEvent;
use carrel_core::model::cpus::CpuSet;
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::JobKey;
use carrel_proto::v1::InitStatus;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::slices::NotGiven;
use super::{Command, Shared, Wanted, Wish, config, usage};
use crate::init_client::{Told, keep_told};
use crate::runtime::{ContainerRecord, Exit, Gang, LeaseEnd};
use crate::{cdi, inside, job_streams, mps};

/// Longest wait for carrel-init to say that it is up: it takes some milliseconds, on a host that swaps seconds.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// Between two tries to learn what a container that was taken over is made of.
const RETRY: Duration = Duration::from_secs(5);
/// Lines of carrel-init's last words in a message.
const LAST_WORDS: usize = 5;

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) key: JobKey,
    pub(super) wanted: watch::Receiver<Wanted>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) ending: CancellationToken,
}

/// Why a start did not come about.
enum NotStarted {
    /// Something outside of Carrel uses what it needs.
    Blocked(String),
    Failed(anyhow::Error),
}

impl From<NotGiven> for NotStarted {
    fn from(not: NotGiven) -> Self {
        match not {
            NotGiven::Blocked(why) => Self::Blocked(why),
            NotGiven::Failed(error) => Self::Failed(error),
        }
    }
}

impl From<anyhow::Error> for NotStarted {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl Worker {
    /// Until the job is released.
    pub(super) async fn run(mut self) -> JobKey {
        // The tasks of a running container; dropping the set ends them.
        let mut watching = JoinSet::new();
        while let Some(command) = self.commands.recv().await {
            match command {
                Command::Start => {
                    let ending = self.ending.clone();
                    let outcome = tokio::select! {
                        biased;
                        // What was made so far is cleared by the removal that follows.
                        () = ending.cancelled() => continue,
                        outcome = self.start(&mut watching) => outcome,
                    };
                    match outcome {
                        Ok(()) => {}
                        Err(NotStarted::Blocked(why)) => self.tell(ContainerEvent::Blocked(why)).await,
                        Err(NotStarted::Failed(error)) => {
                            let why = format!("{error:#}");
                            tracing::warn!(error = %why, "the start failed");
                            self.tell(ContainerEvent::StartFailed(why)).await;
                        }
                    }
                }
                Command::Adopt => {
                    tracing::info!("taking a running container over");
                    let kills = self.shared.runtime.out_of_memory_kills(self.key);
                    if kills > 0 {
                        self.tell(ContainerEvent::OutOfMemory { kills }).await;
                    }
                    self.watch(&mut watching, None);
                }
                Command::Remove(gpus) => {
                    watching.abort_all();
                    match self.remove(&gpus).await {
                        Ok(exit) => {
                            tracing::info!(exit_code = exit.code, "released");
                            // Commands that come from now on are for a new task.
                            self.commands.close();
                            let Exit {
                                code,
                                out_of_memory,
                                command,
                                host,
                            } = exit;
                            self.tell(ContainerEvent::Used(host)).await;
                            let released = ContainerEvent::Released {
                                code,
                                out_of_memory,
                                command,
                            };
                            self.tell(released).await;
                        }
                        Err(error) => {
                            let why = format!("{error:#}");
                            tracing::warn!(error = %why, "not released yet");
                            self.tell(ContainerEvent::NotReleased(why)).await;
                        }
                    }
                }
            }
        }
        self.key
    }

    async fn tell(&self, event: ContainerEvent) {
        tell(&self.shared, self.key, event).await;
    }

    async fn start(&mut self, watching: &mut JoinSet<()>) -> Result<(), NotStarted> {
        let shared = Arc::clone(&self.shared);
        let Wanted { wish, binding, .. } = self.wanted.borrow().clone();
        let wish = wish.context("the job to start is not known")?;
        let inventory = shared.inventory.borrow().clone();
        match usage::used_by(&shared.nvml, &inventory, &wish.job.gpus).await {
            Ok(None) => {}
            Ok(Some(why)) => return Err(NotStarted::Blocked(why)),
            // Not known to be free.
            Err(error) => return Err(NotStarted::Blocked(format!("{error:#}"))),
        }
        let (key, events) = (self.key, shared.events.clone());
        let progress = move |text: String| {
            // Progress is not worth waiting for: there is more of it.
            events.try_send((key, ContainerEvent::Progress(text))).ok();
        };
        let giving = shared.slices.give(key, &inventory, &wish.job.gpus, &progress);
        let gpus = config::Gpus {
            own: giving.await?,
            others: config::others(&inventory, &wish.job.gpus),
        };
        let uid = wish.message.identity.as_ref().map(|identity| identity.uid);
        let uid = uid.context("the broker does not say who the user is")?;
        let shm = shared.mps.let_in(key, uid, &inventory, &wish.job.gpus).await?;
        let mut gpu_env = shared.runtime.gpu_environment(&gpus.own).await?;
        gpu_env.extend(mps::environment(&inventory, &wish.job.gpus));
        let config = config::init(&shared.node, &shared.runtime, &wish, &inventory, &gpu_env);
        let wanted = self.wanted.clone();
        let lease = LeaseEnd(Arc::new(move || wanted.borrow().lease_end_ms));
        let spec = config::container(&shared, &wish, binding, gpus, &config, lease, shm)?;
        let making: BoxFuture<'_, Result<()>> = Box::pin(shared.runtime.create(&spec, &progress));
        making.await?;
        let mut status = self.watch(
            watching,
            Some(Made {
                record: spec.record,
                gpu_env,
            }),
        );
        let ready = tokio::time::timeout(READY_TIMEOUT, status.wait_for(is_ready)).await;
        match ready {
            Ok(Ok(_)) => {
                tracing::info!("ready");
                Ok(())
            }
            // The task that holds the sender ended, which it does only with this one.
            Ok(Err(_)) => Ok(()),
            Err(_) => {
                let last_words = shared.runtime.init_log(key, LAST_WORDS);
                let seconds = READY_TIMEOUT.as_secs();
                let error =
                    anyhow::anyhow!("carrel-init is not up after {seconds} s; it said: {last_words:?}");
                Err(NotStarted::Failed(error))
            }
        }
    }

    /// Keeps carrel-init told, and passes on what it says.
    fn watch(&mut self, watching: &mut JoinSet<()>, made: Option<Made>) -> watch::Receiver<InitStatus> {
        let (told, told_of_client) = watch::channel(Told::default());
        let (status, status_of_caller) = watch::channel(InitStatus::default());
        let socket = self.shared.runtime.run_dir(self.key).join("ctl.sock");
        let heard = move |heard: InitStatus| {
            status.send_replace(heard);
        };
        watching.spawn(tell_init(
            Arc::clone(&self.shared),
            self.key,
            self.wanted.clone(),
            made,
            told,
        ));
        watching.spawn(keep_told(socket, told_of_client, heard, CancellationToken::new()));
        watching.spawn(hear_inside(
            Arc::clone(&self.shared),
            self.key,
            self.wanted.clone(),
        ));
        watching.spawn(pass_on(
            Arc::clone(&self.shared),
            self.key,
            status_of_caller.clone(),
        ));
        status_of_caller
    }

    /// Ends what is left, and makes sure that nothing is.
    async fn remove(&self, gpus: &[GpuUnit]) -> Result<Exit> {
        let Shared {
            runtime,
            nvml,
            mps,
            inventory,
            ..
        } = &*self.shared;
        mps.farewell(self.key, gpus).await;
        let exit = runtime.remove(self.key).await?;
        if !runtime.cgroup_empty(self.key).await? {
            let left = runtime.processes(self.key).await?;
            bail!("processes {left:?} are still there");
        }
        let inventory = inventory.borrow().clone();
        mps.release(self.key, &inventory, gpus).await?;
        // A GPU that is no longer there is not in use either; whether it is offered is the inventory's matter.
        let there: Vec<GpuUnit> = gpus
            .iter()
            .filter(|unit| inventory.gpus.iter().any(|gpu| gpu.uuid == unit.gpu))
            .cloned()
            .collect();
        if let Some(why) = usage::used_by(nvml, &inventory, &there).await? {
            bail!("{why}");
        }
        Ok(exit)
    }
}

async fn tell(shared: &Shared, key: JobKey, event: ContainerEvent) {
    if shared.events.send((key, event)).await.is_err() {
        tracing::debug!("the agent is ending");
    }
}

/// Up, and behind a fence that held.
fn is_ready(status: &InitStatus) -> bool {
    status.ready && status.fence.is_some() && !status.host_public_key.is_empty()
}

/// What a container is made of.
struct Made {
    record: ContainerRecord,
    gpu_env: Vec<(String, String)>,
}

/// Turns what is wanted into what carrel-init is told, and keeps the container's record.
async fn tell_init(
    shared: Arc<Shared>,
    key: JobKey,
    mut wanted: watch::Receiver<Wanted>,
    mut made: Option<Made>,
    told: watch::Sender<Told>,
) {
    // What the job's programs read of its end.
    let mut written = String::new();
    // How its gang was reached when that was last brought about.
    let mut followed = None;
    loop {
        let now = wanted.borrow_and_update().clone();
        let mut bound = false;
        let mut astray = false;
        if made.is_none() && now.wish.is_some() {
            made = match look_up(&shared, key).await {
                Ok(found) => Some(found),
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "what the container is made of is not known yet"
                    );
                    None
                }
            };
        }
        let mut next = Told {
            config: None,
            lease_end_ms: now.lease_end_ms,
            stop_grace_ms: now.stop_grace_ms,
        };
        if let (Some(wish), Some(made)) = (&now.wish, &mut made) {
            next.config = Some(config::init(
                &shared.node,
                &shared.runtime,
                wish,
                &shared.inventory.borrow(),
                &made.gpu_env,
            ));
            if let Some(config) = &mut next.config {
                config.banner += &config::out_of_memory(&wish.job, now.oom_kills);
                config.banner += &config::trouble(&now.trouble);
                let text = config::deadline(&wish.job, config);
                if text != written {
                    match inside::write_deadline(&shared.runtime.api_dir(key), &text) {
                        Ok(()) => written = text,
                        Err(error) => tracing::warn!(
                            error = format!("{error:#}"),
                            "the job's programs cannot read its deadline"
                        ),
                    }
                }
            }
            match follow_gang(&shared, wish, &mut followed).await {
                Ok(()) => {}
                Err(error) => {
                    astray = true;
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "its gang may not be reached any more; trying again"
                    );
                }
            }
            let mut record = made.record.clone();
            record.deadline = wish.job.deadline;
            if now.binding.mems.is_empty() && !record.binding.mems.is_empty() {
                match free_memory(&shared, key).await {
                    Ok(()) => record.binding.mems = CpuSet::default(),
                    Err(error) => {
                        bound = true;
                        tracing::warn!(
                            error = format!("{error:#}"),
                            "its memory is still bound to its nodes; trying again"
                        );
                    }
                }
            }
            if made.record != record {
                made.record = record;
                if let Err(error) = shared.runtime.update_record(&made.record).await {
                    // The ledger has it.
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "what changed is not in the container's labels"
                    );
                }
            }
        }
        told.send_if_modified(|told| {
            let changed = *told != next;
            *told = next;
            changed
        });
        let missing = made.is_none() && now.wish.is_some();
        tokio::select! {
            // Both arms only wait.
            changed = wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if missing || bound || astray => {}
        }
    }
}

/// Peers' nodes may have got other addresses.
async fn follow_gang(shared: &Shared, wish: &Wish, followed: &mut Option<Gang>) -> Result<()> {
    let gang = Gang::of(&wish.job, shared.runtime.reach())?;
    if let Some(wanted) = &gang
        && gang != *followed
    {
        shared.runtime.follow_gang(wish.job.key, wanted).await?;
    }
    *followed = gang;
    Ok(())
}

/// Others need the room that its memory relied on.
async fn free_memory(shared: &Shared, key: JobKey) -> Result<()> {
    let runtime = shared.runtime.clone();
    tokio::task::spawn_blocking(move || runtime.free_memory(key)).await?
}

/// Serves the job's own way to the broker, once it is known whose job it is.
async fn hear_inside(shared: Arc<Shared>, key: JobKey, mut wanted: watch::Receiver<Wanted>) {
    let uid = |wanted: &Wanted| Some(wanted.wish.as_ref()?.message.identity.as_ref()?.uid);
    let Some(uid) = wanted
        .wait_for(|wanted| uid(wanted).is_some())
        .await
        .ok()
        .and_then(|wanted| uid(&wanted))
    else {
        return;
    };
    let dir = shared.runtime.api_dir(key);
    let calls = inside::serve(&dir, key, uid, Arc::clone(&shared.upstream));
    let streams = job_streams::serve(&dir, key, uid, shared.gateways.clone());
    let Err(error) = tokio::try_join!(calls, streams);
    tracing::warn!(
        error = format!("{error:#}"),
        "`carrel` does not work inside this job"
    );
}

/// What a container that was taken over is made of.
async fn look_up(shared: &Shared, key: JobKey) -> Result<Made> {
    let container = shared.runtime.get(key).await?.context("it has no container")?;
    let record = container.record;
    let inventory = shared.inventory.borrow().clone();
    let found = async {
        let given = shared.slices.given(&inventory, &record.gpus).await?;
        shared.runtime.gpu_environment(&given).await
    };
    let mut gpu_env = match found.await {
        Ok(env) => env,
        Err(error) => {
            tracing::warn!(
                error = format!("{error:#}"),
                "its GPUs are not what they were when it was started; it goes on with what it was given"
            );
            cdi::visible(&record.visible)
        }
    };
    gpu_env.extend(mps::environment(&inventory, &record.gpus));
    Ok(Made { record, gpu_env })
}

/// Passes carrel-init's states on as events.
async fn pass_on(shared: Arc<Shared>, key: JobKey, mut status: watch::Receiver<InitStatus>) {
    let mut last = InitStatus::default();
    loop {
        let now = status.borrow_and_update().clone();
        if let Some(fence) = now.fence
            && is_ready(&now)
            && (!is_ready(&last) || now.host_public_key != last.host_public_key)
        {
            tell(
                &shared,
                key,
                ContainerEvent::Ready {
                    host_key: now.host_public_key.clone(),
                    fence: fence.into(),
                },
            )
            .await;
        }
        if now.connections != last.connections {
            tell(&shared, key, ContainerEvent::Connections(now.connections)).await;
        }
        if now.restarts > last.restarts {
            tracing::warn!(
                restarts = now.restarts,
                "carrel-init has restarted its SSH server"
            );
        }
        last = now;
        if status.changed().await.is_err() {
            return;
        }
    }
}
