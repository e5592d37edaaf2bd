//! What a relay costs: moves bytes over loopback through [`carrel_proto::relay`]
//! and through plain copies with buffers of several sizes, and prints the CPU
//! time (user and system, of the whole process) and wall time of each, and
//! their ratio to the first.
//!
//! `cargo run --release -p carrel-proto --features relay --example relay_throughput -- [MiB] [relays in a row]`

use std::time::{Duration, Instant};

use carrel_proto::relay::relay;
use carrel_proto::socket::Socket;
use nix::sys::resource::{UsageWho, getrusage};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy)]
enum Way {
    Relay,
    Copy(usize),
}

async fn pair(unix: bool) -> Result<(Socket, Socket), Failure> {
    if unix {
        let (near, far) = UnixStream::pair()?;
        return Ok((near.into(), far.into()));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    Ok((near.into(), listener.accept().await?.0.into()))
}

fn cpu() -> Result<Duration, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    Ok(Duration::from_micros(
        (micros(usage.user_time()) + micros(usage.system_time())) as u64,
    ))
}

/// Moves `bytes` through `relays` relays, Unix and TCP sockets in turn.
async fn run(way: Way, bytes: usize, relays: usize) -> Result<(Duration, Duration), Failure> {
    let (mut source, mut end) = pair(true).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for hop in 0..relays {
        let (near, far) = pair(hop % 2 == 1).await?;
        let (mut from, mut to) = (std::mem::replace(&mut end, far), near);
        tasks.spawn(async move {
            match way {
                Way::Relay => relay(&from, &to).await.map(|_| ()),
                Way::Copy(size) => copy_bidirectional_with_sizes(&mut from, &mut to, size, size)
                    .await
                    .map(|_| ()),
            }
        });
    }
    let (begin, begin_cpu) = (Instant::now(), cpu()?);
    tasks.spawn(async move {
        let chunk = vec![1; 32 * 1024];
        for _ in 0..bytes / chunk.len() {
            source.write_all(&chunk).await?;
        }
        source.shutdown().await?;
        source.read(&mut [0]).await.map(|_| ())
    });
    let mut sink = vec![0; 256 * 1024];
    while end.read(&mut sink).await? > 0 {}
    let taken = (begin.elapsed(), cpu()?.saturating_sub(begin_cpu));
    drop(end);
    while tasks.join_next().await.is_some() {}
    Ok(taken)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mib = args.next().transpose()?.unwrap_or(2048);
    let relays = args.next().transpose()?.unwrap_or(2);
    println!("{mib} MiB through {relays} relays");
    let mut first = None;
    let ways = [
        ("relay", Way::Relay),
        ("copy, 8 KiB", Way::Copy(8 << 10)),
        ("copy, 64 KiB", Way::Copy(64 << 10)),
        ("copy, 256 KiB", Way::Copy(256 << 10)),
    ];
    for (name, way) in ways {
        let (wall, cpu) = run(way, mib << 20, relays).await?;
        let first = *first.get_or_insert(cpu.as_secs_f64());
        println!(
            "{name:14} cpu {:6.0} ms  wall {:6.0} ms  cpu ratio {:.2}",
            cpu.as_secs_f64() * 1e3,
            wall.as_secs_f64() * 1e3,
            cpu.as_secs_f64() / first,
        );
    }
    Ok(())
}
