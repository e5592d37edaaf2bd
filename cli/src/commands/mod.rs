//! The verbs, one a file.

pub mod admin;
pub mod alloc;
pub mod attach;
pub mod cancel;
pub mod completion;
pub mod explain;
pub mod extend;
pub mod found;
pub mod history;
pub mod hold;
pub mod key;
pub mod login;
pub mod logs;
pub mod node;
pub mod nodes;
pub mod open;
pub mod proxy;
pub mod ps;
pub mod queue;
pub mod requeue;
pub mod rm;
pub mod run;
pub mod share;
pub mod show;
pub mod signal;
pub mod ssh;
pub mod stop;
pub mod submit;
pub mod throttle;
pub mod token;
pub mod up;
pub mod usage;
pub mod user;
pub mod version;

use crate::cli::Command;
use crate::context::Context;
use crate::error::{CliError, Kind, Result};

/// Whether a verb makes sense from inside a session; the broker decides what is allowed.
fn works_inside(command: &Command) -> bool {
    match command {
        Command::Ps(_)
        | Command::Show(_)
        | Command::Explain(_)
        | Command::Extend(_)
        | Command::Stop(_)
        | Command::Run(_)
        | Command::StepNode(_)
        | Command::Submit(_)
        | Command::Cancel(_)
        | Command::Signal(_)
        | Command::Requeue(_)
        | Command::Queue(_)
        | Command::History(_)
        | Command::Hold(_)
        | Command::Release(_)
        | Command::Throttle(_)
        | Command::Nodes(_)
        | Command::Slurm(_)
        | Command::Completion(_)
        | Command::Version(_) => true,
        Command::Alloc(_)
        | Command::Open(_)
        | Command::Logs(_)
        | Command::Ssh(_)
        | Command::Attach(_)
        | Command::Usage(_)
        | Command::Top(_)
        | Command::Rm(_)
        | Command::Share(_)
        | Command::Unshare(_)
        | Command::Login(_)
        | Command::Up(_)
        | Command::Node(_)
        | Command::Found(_)
        | Command::Token(_)
        | Command::Key(_)
        | Command::User(_)
        | Command::Admin(_)
        | Command::Proxy(_) => false,
    }
}

/// Runs a verb. Returns the program's exit code.
pub async fn run(context: &Context, command: Command) -> Result<u8> {
    // Before anything is prepared: no SSH configuration is written, nobody is asked anything.
    if !works_inside(&command) && context.is_inside() {
        return Err(
            CliError::new(Kind::Denied, "this is not possible from inside a session").hint(
                "inside, `carrel` shows, extends and stops what it runs in, submits and ends batch jobs of its own, and \
                 lists the cluster's nodes; everything else is done from outside",
            ),
        );
    }
    match command {
        Command::Alloc(args) => Box::pin(alloc::run(context, args)).await,
        Command::Open(args) => open::run(context, args).await,
        Command::Submit(args) => Box::pin(submit::run(context, *args)).await,
        Command::Run(args) => Box::pin(run::run(context, *args)).await,
        Command::StepNode(args) => crate::step::node::run(&args).await,
        Command::Logs(args) => logs::run(context, args).await,
        Command::Cancel(args) => cancel::run(context, args).await,
        Command::Requeue(args) => requeue::run(context, args).await,
        Command::Signal(args) => signal::run(context, args).await,
        Command::Throttle(args) => throttle::run(context, args).await,
        Command::Slurm(args) => crate::slurm::install::run(args).await,
        Command::Ssh(args) => ssh::run(context, args).await,
        Command::Attach(args) => attach::run(context, args).await,
        Command::Ps(args) => ps::run(context, args).await,
        Command::Queue(args) => queue::run(context, args).await,
        Command::History(args) => history::run(context, args).await,
        Command::Usage(args) => usage::run(context, args).await,
        Command::Show(args) => show::run(context, args).await,
        Command::Nodes(args) => nodes::run(context, args).await,
        Command::Explain(args) => explain::run(context, args).await,
        Command::Extend(args) => extend::run(context, args).await,
        Command::Stop(args) => stop::run(context, args).await,
        Command::Hold(args) => hold::hold(context, args).await,
        Command::Release(args) => hold::release(context, args).await,
        Command::Top(args) => hold::top(context, args).await,
        Command::Rm(args) => rm::run(context, args).await,
        Command::Share(args) => share::run(context, args).await,
        Command::Unshare(args) => share::unshare(context, args).await,
        Command::Login(args) => login::run(context, args).await,
        Command::Up(args) => up::run(context, args).await,
        Command::Node(args) => node::run(context, args).await,
        Command::Found(args) => found::run(context, args).await,
        Command::Token(args) => token::run(context, args).await,
        Command::Key(args) => key::run(context, args).await,
        Command::User(args) => user::run(context, args).await,
        Command::Admin(args) => admin::run(context, args).await,
        Command::Proxy(args) => proxy::run(context, args).await,
        Command::Completion(args) => completion::run(args),
        Command::Version(args) => version::run(context, args).await,
    }
}
