//! How long a start takes, and how many fit into a second.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use carrel_tests::cluster::Cluster;
use carrel_tests::terminal::Terminal;
use carrel_tests::user::ALICE;

use crate::report::{figure, quantile};

/// A request of which many fit at once.
const REQUEST: [&str; 5] = ["alloc", "-c", "1", "--mem", "64M"];

/// From the start of `carrel alloc` with a GPU to the first prompt of its shell, in a terminal.
pub fn to_prompt(cluster: &Cluster, starts: usize) {
    let carrel = cluster.sandbox().program("carrel");
    // The shell says when it becomes `carrel`, so that entering the sandbox does not count.
    let script = format!("echo start=$EPOCHREALTIME; exec {} \"$@\"", carrel.display());
    let mut milliseconds = Vec::new();
    for n in 0..=starts {
        let command = cluster
            .cmd(ALICE, "bash")
            .args(["-c", &script, "bash"])
            .args(REQUEST)
            .args(["--gpus", "1"]);
        let mut terminal = Terminal::start(&command);
        terminal.expect("start=");
        terminal.expect("$ ");
        let prompt = terminal
            .last_found_at()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let taken = prompt.saturating_sub(started(&terminal));
        terminal.line("exit");
        terminal.wait();
        // The first fills caches.
        if n > 0 {
            milliseconds.push(taken.as_secs_f64() * 1000.0);
        }
    }
    figure(
        "session.alloc_to_prompt.median",
        quantile(&milliseconds, 0.5),
        "ms",
        "<= 150",
    );
    figure(
        "session.alloc_to_prompt.p95",
        quantile(&milliseconds, 0.95),
        "ms",
        "",
    );
}

/// The time that the terminal's first line gives, since the epoch.
fn started(terminal: &Terminal) -> Duration {
    let screen = terminal.screen();
    let text = screen
        .split("start=")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or_default();
    // bash writes the decimal point of the locale.
    let seconds: f64 = text.replace(',', ".").parse().unwrap_or(0.0);
    Duration::from_secs_f64(seconds)
}

/// Allocations that run one command and end, by so many clients at once.
pub fn per_second(cluster: &Cluster, clients: usize, allocations: usize) {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < allocations {
                    cluster.carrel(ALICE, REQUEST).args(["--", "true"]).ok();
                }
            });
        }
    });
    let rate = allocations as f64 / start.elapsed().as_secs_f64();
    let name = if clients == 1 {
        "session.allocs.1_client".into()
    } else {
        format!("session.allocs.{clients}_clients")
    };
    figure(&name, rate, "1/s", "");
}
