//! `carrel-node image`: the images of this node.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::config::{Config, NodeArgs};
use crate::runtime::Runtime;

/// The images of this node.
#[derive(Args, Debug)]
pub struct ImageArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Loads an image archive: an OCI layout, what `docker save` writes, or a root file system; gzipped or not
    Import(ImportArgs),
    /// Lists the images
    List(ListArgs),
}

#[derive(Args, Debug)]
struct ImportArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Name to give it [default: the archive's own]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// The archive
    #[arg(value_name = "FILE")]
    archive: PathBuf,
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    node: NodeArgs,
}

/// Runs the verb. May be run beside the agent.
pub async fn run(args: ImageArgs) -> Result<()> {
    match args.verb {
        Verb::Import(args) => import(args).await,
        Verb::List(args) => list(args).await,
    }
}

async fn import(args: ImportArgs) -> Result<()> {
    let runtime = Runtime::open(Config::load(&args.node)?.runtime).await?;
    let watched = std::io::stderr().is_terminal();
    let progress = move |text: String| {
        if watched {
            eprint!("\r\x1b[K{text}");
        }
    };
    let imported = runtime.import_image(&args.archive, &args.name, &progress).await;
    if watched {
        eprint!("\r\x1b[K");
    }
    let image = imported?;
    writeln!(std::io::stdout(), "{}\t{}", image.name, image.digest)
        .context("cannot write to the standard output")
}

async fn list(args: ListArgs) -> Result<()> {
    let runtime = Runtime::open(Config::load(&args.node)?.runtime).await?;
    let mut out = std::io::stdout().lock();
    for image in runtime.images().await? {
        writeln!(out, "{image}").context("cannot write to the standard output")?;
    }
    Ok(())
}
