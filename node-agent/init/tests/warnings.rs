//! Before the end everybody with a terminal is told of it, once, and nothing that they look at is spoilt.

mod support;

use std::time::{SystemTime, UNIX_EPOCH};

use carrel_proto::v1::{InitConfig, InitRequest};
use support::World;
use support::terminal::Terminal;

const TOLD: &str = "carrel: this session ends in 1 minute, at ";

fn now_ms() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after the epoch");
    now.as_millis() as i64
}

/// Moves the end to in 100 seconds, of which it is told in two.
fn move_the_end(world: &World) {
    let config = InitConfig {
        deadline_ms: now_ms() + 100_000,
        warn_before_s: vec![600, 98],
        ..world.config()
    };
    world.control().send(&InitRequest {
        config: Some(config),
        ..InitRequest::default()
    });
}

#[test]
fn everybody_with_a_terminal_is_told_and_full_screens_are_left_alone() {
    let world = World::start();
    let kept = |words: &str| Terminal::open(&world, &["-tt", "-s", "s", &format!("carrel-terminal {words}")]);
    let mut attached = kept("new name=work");
    attached.line("echo here=$((1 + 1))");
    attached.wait("here=2");
    let mut plain = Terminal::open(&world, &["-tt", "s"]);
    plain.line("echo here=$((1 + 2))");
    plain.wait("here=3");
    let mut full = kept("new name=full");
    full.line("printf '\\033[?1049h'; echo full=$((1 + 3))");
    full.wait("full=4");

    move_the_end(&world);
    attached.wait(&format!("\x07\r\n{TOLD}"));
    plain.wait(&format!("\x07\r\n{TOLD}"));
    full.wait(&format!("\x07\x1b]9;{TOLD}"));
    // The shells go on.
    attached.line("echo then=$((2 + 3))");
    attached.wait("then=5");
    plain.line("echo then=$((2 + 4))");
    plain.wait("then=6");
    // Who comes back sees it among the rest, and nobody was told twice.
    attached.cut();
    let again = kept("name=work");
    again.wait("then=5");
    assert_eq!(again.seen().matches(TOLD).count(), 1, "{}", again.seen());
}
