//! `carrel alloc`: resources, and a shell or a command on them.

use carrel_core::terminal::{Attach, Which};
use carrel_proto::v1;

use super::attach::line_of;
use crate::attach::{self, Exit, Way};
use crate::batch::environment;
use crate::connect::{Address, Client};
use crate::context::{self, Context};
use crate::error::{CliError, Kind, Result};
use crate::plan::{self, Answer, Choose};
use crate::progress::Progress;
use crate::request::{self, IdleArgs, RequestArgs};
use crate::shell::{self, Left, SSH_FAILED};
use crate::signals::{Signal, Signals};
use crate::ssh::access::Access;
use crate::ssh::client::Route;
use crate::start::StartArgs;
use crate::terminal::{is_interactive, say, stderr_is_terminal};
use crate::wait::{self, End, Limit};
use crate::{output, view};

/// Get resources, and a shell or a command on them; leaving frees them.
///
/// Waits until the resources are free, saying why and in which place of the queue; Ctrl-C gives up
/// and cancels. Then opens a shell in a container on the first node, or runs CMD there. Leaving the
/// shell, or CMD's end, frees the resources; CMD's exit code is this program's.
///
/// The shell, or a CMD that is run at a terminal, goes on when nobody looks. When the connection
/// breaks, this program attaches to it again by itself, and still frees the resources when it ends.
/// When the window is closed, the person leaves by SSH's `~.`, or does not wait for a broken
/// connection (Ctrl-C), it goes on, and the allocation stays until its deadline: `carrel attach NAME`
/// returns to the shell, `carrel stop NAME` ends it all. SIGTERM ends this program and the allocation.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel alloc --gpus 4 --nvlink             a shell with four NVLink-joined GPUs\n  \
    carrel alloc --gpus h100:1 -t 4h --name dev\n  \
    carrel alloc -N2 --gpus-per-node=8 --no-shell\n  \
    carrel alloc -N1 -c8 : -N2 --gpus-per-node=8   components: unlike nodes, all or none\n  \
    carrel alloc --gpus 1 -- python train.py   run, free, and exit with its code\n  \
    carrel alloc --gpus 1 --immediate=30       give up after half a minute in the queue\n  \
    carrel alloc --gpus 1g.10gb                a MIG slice; --gpu-mem 20G: whatever has 20 GB\n  \
    carrel alloc --gpus 8 --test-only          when it would start, and on what")]
pub struct AllocArgs {
    /// Name of the session; without one it is made up, and forgotten at the end
    #[arg(short = 'J', long, visible_alias = "job-name", value_name = "NAME", value_parser = context::parse_new_session)]
    pub name: Option<String>,
    /// Print the allocation and leave it; `carrel stop` ends it
    #[arg(long, conflicts_with = "command")]
    pub no_shell: bool,
    /// Give up if it is not granted at once, or within so many seconds
    #[arg(short = 'I', long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub immediate: Option<u32>,
    /// Say when it would start, on what, and what keeps it; ask for nothing
    #[arg(long, conflicts_with_all = ["command", "no_shell", "immediate"])]
    pub test_only: bool,
    /// What to do when it is not free and something near to it is [default: ask]
    #[arg(long, value_name = "HOW", value_enum)]
    pub choose: Option<Choose>,
    /// Command to run instead of a shell, with its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// What is asked for.
    #[command(flatten)]
    pub request: RequestArgs,
    /// For how long when nobody uses it.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// When.
    #[command(flatten)]
    pub start: StartArgs,
}

/// "At once" is the time that the broker's scheduler takes, and some.
const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs the verb.
pub async fn run(context: &Context, args: AllocArgs) -> Result<u8> {
    let base = v1::SessionSpec {
        image: context.config.image.clone().unwrap_or_default(),
        ..Default::default()
    };
    for note in args.request.notes() {
        say(format_args!("carrel: {note}"));
    }
    let mut spec = args.request.over(base)?;
    environment::put_tasks(&mut spec, &args.request);
    if args.name.is_none() {
        environment::put_job_name(&mut spec, args.command.first().map_or("", String::as_str));
    }
    args.idle.over(&mut spec);
    let mut signals = Signals::catch()?;
    let address = context.address()?;
    let mut client = crate::connect::connect(&address).await?;
    if let Some(note) = plan::settle_partition(&mut client, &mut spec).await? {
        say(format_args!("carrel: {note}"));
    }
    if args.test_only {
        let plan = plan::of(&mut client, &spec).await?;
        let printed = if context.json() {
            output::json(&view::Plan::from(plan))
        } else {
            output::text(plan::text(&plan))
        };
        return printed.map(|()| 0);
    }
    // What could fail without the resources fails before they are asked for.
    let access = if args.no_shell {
        None
    } else {
        Some(Access::prepare(&mut client, &address).await?)
    };

    let how = args.choose.unwrap_or_default();
    let person = is_interactive() && stderr_is_terminal() && args.immediate.is_none();
    if how == Choose::Now || how == Choose::Ask && person {
        let plan = plan::of(&mut client, &spec).await?;
        match plan::choose(&plan, how, &mut signals).await? {
            None => {}
            Some(Answer::Request(request)) => spec.resources = Some(*request),
            Some(Answer::Left(signal)) => return Ok(signal.exit_code()),
        }
    }
    let opened = wait::open_session(
        &mut client,
        v1::OpenSessionRequest {
            name: args.name.clone().unwrap_or_default(),
            spec: Some(spec),
            must_start: true,
            request_key: request::new_key(),
            ephemeral: args.name.is_none(),
            start: args.start.wish(),
        },
    );
    let (session, _) = wait::session_of(opened.await?)?;
    let job = session.job.as_ref().map_or(0, |job| job.id);
    let mut allocation = Allocation {
        client,
        address,
        session,
        job,
    };

    let limit = Allocation::limit(args.immediate);
    if let Some(code) = allocation.wait(limit, &mut signals).await? {
        return Ok(code);
    }
    match access {
        None => {
            allocation.print(context.json())?;
            Ok(0)
        }
        Some(access) => allocation.shell(&access, &args, &mut signals).await,
    }
}

/// Resources that this program has asked for, and frees.
pub(super) struct Allocation {
    client: Client,
    address: Address,
    session: v1::Session,
    job: u64,
}

impl Allocation {
    /// Asks for resources for a command, without a shell on them. Without a name it is forgotten at its end.
    pub(super) async fn ask(
        context: &Context,
        request: &RequestArgs,
        idle: &IdleArgs,
        start: &StartArgs,
        name: Option<String>,
        command: &str,
    ) -> Result<Self> {
        let base = v1::SessionSpec {
            image: context.config.image.clone().unwrap_or_default(),
            ..Default::default()
        };
        for note in request.notes() {
            say(format_args!("carrel: {note}"));
        }
        let mut spec = request.over(base)?;
        idle.over(&mut spec);
        if name.is_none() {
            environment::put_job_name(&mut spec, command);
        }
        let address = context.address()?;
        let mut client = crate::connect::connect(&address).await?;
        if let Some(note) = plan::settle_partition(&mut client, &mut spec).await? {
            say(format_args!("carrel: {note}"));
        }
        let request = v1::OpenSessionRequest {
            ephemeral: name.is_none(),
            name: name.unwrap_or_default(),
            spec: Some(spec),
            must_start: true,
            request_key: request::new_key(),
            start: start.wish(),
        };
        let (session, _) = wait::session_of(wait::open_session(&mut client, request).await?)?;
        let job = session.job.as_ref().map_or(0, |job| job.id);
        Ok(Self {
            client,
            address,
            session,
            job,
        })
    }

    /// Until when it is waited for: `--immediate`.
    pub(super) fn limit(immediate: Option<u32>) -> Limit {
        immediate.map_or(Limit::None, |seconds| {
            Limit::Granted(AT_ONCE.max(std::time::Duration::from_secs(seconds.into())))
        })
    }

    /// What it holds.
    pub(super) fn job(&self) -> Result<&v1::Job> {
        let job = self.session.job.as_ref();
        job.ok_or_else(|| CliError::failed("the allocation has no job"))
    }

    /// Waits until it runs. Returns the exit code when the person left instead.
    pub(super) async fn wait(&mut self, limit: Limit, signals: &mut Signals) -> Result<Option<u8>> {
        let mut progress = Progress::begin();
        let waited = wait::until_running(
            &mut self.client,
            self.session.clone(),
            limit,
            &mut progress,
            signals,
        )
        .await;
        progress.end();
        let (session, end) = match waited {
            Ok(waited) => waited,
            Err(error) => {
                self.free(None, signals).await?;
                return Err(error);
            }
        };
        self.session = session;
        match end {
            End::Running => Ok(None),
            End::Over => Err(wait::over_error(&self.session)),
            End::Left(signal) => {
                self.free(None, signals).await?;
                say(format_args!(
                    "carrel: Job allocation {} has been cancelled",
                    self.job
                ));
                Ok(Some(signal.exit_code()))
            }
            End::TimedOut => {
                let reason = self
                    .session
                    .job
                    .as_ref()
                    .map(|job| job.reason.clone())
                    .unwrap_or_default();
                self.free(None, signals).await?;
                let why = if reason.is_empty() {
                    String::new()
                } else {
                    format!(": {reason}")
                };
                Err(
                    CliError::failed(format!("the resources were not granted in time{why}"))
                        .hint("without --immediate it waits in the queue"),
                )
            }
        }
    }

    fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(&self.session.job.clone().map(view::Job::from));
        }
        output::text(super::show::session_text(&self.session))?;
        let name = &self.session.name;
        say(format_args!(
            "carrel: `carrel ssh {name}` enters it, `carrel stop {name}` ends it"
        ));
        Ok(())
    }

    async fn shell(&mut self, access: &Access, args: &AllocArgs, signals: &mut Signals) -> Result<u8> {
        if !self.session.ephemeral {
            // The alias is a convenience: the allocation is worth more than a full disk.
            if let Err(error) = access.write_alias(&self.session) {
                say(format_args!("carrel: no SSH alias was written: {error}"));
            }
        }
        let mut route = access.route(&self.session, 0);
        route.start = false;
        if is_interactive() {
            return self.terminal(route, args, signals).await;
        }
        let left = match shell::run(&route, &args.command, signals).await {
            Ok(left) => left,
            Err(error) => {
                self.free(None, signals).await?;
                return Err(error);
            }
        };
        match left {
            Left::Signal(Signal::HangUp) => {
                self.say_it_stays("the terminal has gone");
                Ok(Signal::HangUp.exit_code())
            }
            Left::Broken(why) if self.ended_by_itself().await => {
                drop(why);
                Ok(SSH_FAILED)
            }
            Left::NoConnection(why) | Left::Broken(why) => self.no_connection(&why, signals).await,
            Left::Signal(signal @ (Signal::Interrupt | Signal::Terminate)) => {
                self.free(None, signals).await?;
                Ok(signal.exit_code())
            }
            Left::Exited(SSH_FAILED) if self.ended_by_itself().await => Ok(SSH_FAILED),
            Left::Exited(code) => self.relinquish(code, args, signals).await,
        }
    }

    /// The shell, or the command, in a terminal of the session that outlives this program.
    async fn terminal(&mut self, route: Route, args: &AllocArgs, signals: &mut Signals) -> Result<u8> {
        let which = Which::New {
            name: None,
            command: (!args.command.is_empty()).then(|| line_of(&args.command)),
        };
        let mut asked = Attach::new(which);
        asked.job = Some(self.job);
        let mut way = Way {
            client: &mut self.client,
            address: &self.address,
            route,
        };
        let left = match attach::run(&mut way, asked, signals).await {
            Ok(left) => left,
            Err(error) => {
                self.free(None, signals).await?;
                return Err(error);
            }
        };
        match left {
            attach::Left::Exited(Exit::Signal(_)) if self.ended_by_itself().await => Ok(SSH_FAILED),
            attach::Left::Exited(exit) => self.relinquish(super::attach::code(exit), args, signals).await,
            attach::Left::Over => {
                if !self.ended_by_itself().await {
                    say(format_args!("carrel: job {} is over", self.job));
                }
                Ok(SSH_FAILED)
            }
            attach::Left::Detached => {
                self.say_it_stays("left");
                Ok(0)
            }
            attach::Left::GivenUp => {
                self.say_it_stays("not reattached");
                Ok(Signal::Interrupt.exit_code())
            }
            attach::Left::Signal(Signal::HangUp) => {
                self.say_it_stays("the terminal has gone");
                Ok(Signal::HangUp.exit_code())
            }
            attach::Left::Signal(signal @ (Signal::Interrupt | Signal::Terminate)) => {
                self.free(None, signals).await?;
                Ok(signal.exit_code())
            }
            attach::Left::Refused(_) | attach::Left::NoConnection(_) if self.ended_by_itself().await => {
                Ok(SSH_FAILED)
            }
            attach::Left::Refused(why) | attach::Left::NoConnection(why) => {
                self.no_connection(&why, signals).await
            }
        }
    }

    /// A command's exit code is the job's. A shell's is that of whatever was last tried in it, and says nothing of the job.
    async fn relinquish(&mut self, code: u8, args: &AllocArgs, signals: &mut Signals) -> Result<u8> {
        say(format_args!("carrel: Relinquishing job allocation {}", self.job));
        let of_command = (!args.command.is_empty()).then_some(code);
        self.free(of_command, signals).await?;
        Ok(code)
    }

    async fn no_connection(&mut self, why: &str, signals: &mut Signals) -> Result<u8> {
        self.free(None, signals).await?;
        Err(CliError::new(
            Kind::Connection,
            format!("no connection to session {}: {why}", self.session.name),
        ))
    }

    /// Ends the job, with the exit code of its command if that has ended. A second Ctrl-C gives up on a broker that does
    /// not answer.
    pub(super) async fn free(&mut self, code: Option<u8>, signals: &mut Signals) -> Result<()> {
        tokio::select! {
            stopped = wait::stop_job(&mut self.client, &self.session, self.job, code) => stopped,
            signal = signals.next() => Err(CliError::new(
                if signal == Signal::Interrupt { Kind::Interrupted } else { Kind::Terminated },
                format!("job {} may still hold its resources", self.job),
            ).hint(format!("carrel stop {}", self.session.name))),
        }
    }

    /// Whether the job, and not the connection, is what ended; says why. The news of it may take a
    /// moment from the node to the broker.
    async fn ended_by_itself(&mut self) -> bool {
        const NEWS: std::time::Duration = std::time::Duration::from_secs(2);
        const STEP: std::time::Duration = std::time::Duration::from_millis(50);
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < NEWS {
            match self
                .client
                .get_job(crate::context::request(
                    &carrel_core::model::ids::JobId(self.job).into(),
                ))
                .await
            {
                Ok(job) if wait::is_over(job.get_ref().state()) => {
                    say(format_args!("carrel: {}", wait::ending(job.get_ref())));
                    return true;
                }
                Ok(_) => {}
                Err(status) => return status.code() == tonic::Code::NotFound,
            }
            tokio::time::sleep(STEP).await;
        }
        false
    }

    fn say_it_stays(&self, why: &str) {
        let name = &self.session.name;
        say(format_args!(
            "carrel: {why}; job {} goes on until its deadline: `carrel attach {name}` returns to it, `carrel stop {name}` ends it",
            self.job
        ));
    }
}
