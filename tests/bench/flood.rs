//! Strangers: connections that never say who they are, or say it badly.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How long a stranger stays when nobody sends it away.
const STAY: Duration = Duration::from_secs(3);
/// Between two bytes of one that talks slowly.
const DRIP: Duration = Duration::from_millis(200);
/// Bytes of one that talks much.
const NOISE: usize = 1 << 20;

/// Whom to disturb, and how much.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Listeners; each gets its share.
    #[arg(required = true)]
    to: Vec<SocketAddr>,
    /// Address to come from.
    #[arg(long, default_value = "127.0.0.1")]
    from: IpAddr,
    /// Connections in all.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Connections at once.
    #[arg(long, default_value_t = 2000)]
    at_once: usize,
}

/// What a stranger does.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Nothing.
    Silent,
    /// A byte of a likely beginning now and then.
    Slow,
    /// Many random bytes.
    Noise,
    /// The longest length there is, and zeros.
    Oversized,
}

const MANNERS: [Manner; 4] = [Manner::Silent, Manner::Slow, Manner::Noise, Manner::Oversized];

/// Connects until it has done so often enough; prints how many came about and how they ended.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(flood(options))
}

async fn flood(options: &Options) -> anyhow::Result<()> {
    let places = Arc::new(Semaphore::new(options.at_once));
    let [connected, sent_away] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let mut strangers = JoinSet::new();
    for n in 0..options.connections {
        let place = Arc::clone(&places).acquire_owned().await?;
        let (to, from) = (options.to[n % options.to.len()], options.from);
        let manner = MANNERS[n / options.to.len() % MANNERS.len()];
        let (connected, sent_away) = (Arc::clone(&connected), Arc::clone(&sent_away));
        strangers.spawn(async move {
            let _place = place;
            let Ok(stream) = connect(from, to).await else {
                return;
            };
            connected.fetch_add(1, Ordering::Relaxed);
            if tokio::time::timeout(STAY, disturb(stream, manner)).await.is_ok() {
                sent_away.fetch_add(1, Ordering::Relaxed);
            }
        });
        while strangers.try_join_next().is_some() {}
    }
    while strangers.join_next().await.is_some() {}
    println!(
        "{}",
        serde_json::json!({
            "connected": connected.load(Ordering::Relaxed),
            "sent_away": sent_away.load(Ordering::Relaxed),
        })
    );
    Ok(())
}

async fn connect(from: IpAddr, to: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    tokio::time::timeout(STAY, socket.connect(to))
        .await?
        .context("connecting")
}

/// Until the other side ends it.
async fn disturb(stream: TcpStream, manner: Manner) {
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        // What is no longer wanted meets an error, which is the end as well.
        let written = match manner {
            Manner::Silent => Ok(()),
            Manner::Slow => loop {
                if let Err(error) = writer.write_all(&[0x16]).await {
                    break Err(error);
                }
                tokio::time::sleep(DRIP).await;
            },
            Manner::Noise => {
                let noise: Vec<u8> = (0..NOISE).map(|_| rand::random()).collect();
                writer.write_all(&noise).await
            }
            Manner::Oversized => {
                let sent = writer.write_all(&[0xff; 4]).await;
                match sent {
                    Ok(()) => writer.write_all(&vec![0; NOISE]).await,
                    Err(error) => Err(error),
                }
            }
        };
        if written.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let read = async {
        let mut buffer = [0; 4096];
        while reader.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
    };
    // Either end of it is the end; nothing is kept of the other.
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}
