//! The command line.

use clap::{Parser, Subcommand};

use crate::commands;
use crate::context::GlobalArgs;

/// GPUs on a cluster: from one command to a shell, or an editor, that holds them.
#[derive(Debug, Parser)]
#[command(
    name = "carrel",
    bin_name = "carrel",
    version,
    max_term_width = 100,
    propagate_version = false,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        carrel alloc --gpus 4 --nvlink            a shell with four NVLink-joined GPUs\n  \
        carrel alloc -N2 --gpus-per-node 8 -t 4h  two whole nodes for four hours\n  \
        carrel open dev --gpus 1 --editor cursor  an editor in the session \"dev\"\n  \
        carrel submit --gpus 4 train.sh           a batch job; `carrel logs -f JOB` shows what it writes\n  \
        carrel ps                                 what you hold and wait for"
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub globals: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs. Each says in its own file what it does, which is its help.
#[derive(Debug, Subcommand)]
pub enum Command {
    Alloc(commands::alloc::AllocArgs),
    Open(commands::open::OpenArgs),
    Submit(Box<commands::submit::SubmitArgs>),
    Run(Box<commands::run::RunArgs>),
    Logs(commands::logs::LogsArgs),
    Cancel(commands::cancel::CancelArgs),
    Requeue(commands::requeue::RequeueArgs),
    Signal(commands::signal::SignalArgs),
    Ssh(commands::ssh::SshArgs),
    Attach(commands::attach::AttachArgs),
    Ps(commands::ps::PsArgs),
    Queue(commands::queue::QueueArgs),
    History(commands::history::HistoryArgs),
    Usage(commands::usage::UsageArgs),
    Show(commands::show::ShowArgs),
    Nodes(commands::nodes::NodesArgs),
    Explain(commands::explain::ExplainArgs),
    Extend(commands::extend::ExtendArgs),
    Stop(commands::stop::StopArgs),
    Hold(commands::hold::HoldArgs),
    Release(commands::hold::ReleaseArgs),
    Top(commands::hold::TopArgs),
    Throttle(commands::throttle::ThrottleArgs),
    Rm(commands::rm::RmArgs),
    Share(commands::share::ShareArgs),
    Unshare(commands::share::UnshareArgs),
    Login(commands::login::LoginArgs),
    Slurm(crate::slurm::install::SlurmArgs),
    Up(commands::up::UpArgs),
    Node(commands::node::NodeArgs),
    Found(commands::found::FoundArgs),
    Token(commands::token::TokenArgs),
    Key(commands::key::KeyArgs),
    User(commands::user::UserArgs),
    Admin(commands::admin::AdminArgs),
    Proxy(commands::proxy::ProxyArgs),
    Completion(commands::completion::CompletionArgs),
    Version(commands::version::VersionArgs),
    /// What `carrel run` starts on each node
    #[command(hide = true)]
    StepNode(crate::step::node::NodeArgs),
}
