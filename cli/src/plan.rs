//! What would come of a request, for people; and the choice between waiting and having less.

use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;

use crate::connect::Client;
use crate::error::{CliError, Context as _, Kind, Result};
use crate::output::{self, visible};
use crate::request::{Cpus, Memory};
use crate::signals::{Signal, Signals};
use crate::terminal::say;
use crate::{grant, units};

/// What to do when what is asked for is not free, and something near to it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choose {
    /// Show the choices and ask, at a terminal; elsewhere wait
    #[default]
    Ask,
    /// Take the first of the choices that starts now; give up if none does
    Now,
    /// Wait for what was asked for
    Wait,
}

/// What would come of a request.
pub async fn of(client: &mut Client, spec: &v1::SessionSpec) -> Result<v1::Plan> {
    let request = v1::PlanSessionRequest {
        spec: Some(spec.clone()),
    };
    Ok(client.plan_session(request).await?.into_inner())
}

/// Where several partitions are named, the one is taken in which it would start first as things stand, of equals the
/// first that is named. What is to be said of it.
///
/// # Errors
/// It could be in none of them: what is wrong in the first.
pub async fn settle_partition(client: &mut Client, spec: &mut v1::SessionSpec) -> Result<Option<String>> {
    let named = spec.terms.as_ref().map(|terms| terms.partition.clone());
    let Some(named) = named.filter(|named| named.contains(',')) else {
        return Ok(None);
    };
    let set = |spec: &mut v1::SessionSpec, partition: &str| {
        partition.clone_into(&mut spec.terms.get_or_insert_default().partition);
    };
    let mut best: Option<(i64, &str)> = None;
    let mut wrong: Option<CliError> = None;
    for partition in named.split(',') {
        set(spec, partition);
        match of(client, spec).await {
            Ok(plan) => {
                let start = start(&plan);
                if best.is_none_or(|(other, _)| start < other) {
                    best = Some((start, partition));
                }
            }
            Err(error) if error.kind == Kind::Unreachable => return Err(error),
            Err(error) => {
                wrong.get_or_insert(error);
            }
        }
    }
    match (best, wrong) {
        (Some((_, partition)), _) => {
            set(spec, partition);
            Ok(Some(format!(
                "of {named} it is in {partition}, where it would start first"
            )))
        }
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

/// The same inside of a job, which submits to no other partition than its own: that one, where it is named.
pub fn settle_partition_inside(spec: &mut v1::SessionSpec, own: Option<&str>) {
    let Some(terms) = spec.terms.as_mut().filter(|terms| terms.partition.contains(',')) else {
        return;
    };
    let mut named = terms.partition.split(',');
    let taken = own.filter(|own| named.clone().any(|one| one == *own));
    terms.partition = taken.or_else(|| named.next()).unwrap_or_default().to_owned();
}

/// When what is asked for would start, Unix milliseconds: the least is now, the greatest is that nobody can say.
fn start(plan: &v1::Plan) -> i64 {
    match plan.choices.first() {
        Some(asked) if asked.now => i64::MIN,
        Some(asked) => asked.start_ms.unwrap_or(i64::MAX),
        None => i64::MAX,
    }
}

/// A person's answer.
pub enum Answer {
    /// To ask for this.
    Request(Box<v1::ResourceRequest>),
    /// To ask for nothing.
    Left(Signal),
}

/// What is to be asked for: as it was, or what is chosen from the plan.
///
/// # Errors
/// Nothing starts now, and only that was to be taken.
pub async fn choose(plan: &v1::Plan, how: Choose, signals: &mut Signals) -> Result<Option<Answer>> {
    let Some((asked, others)) = plan.choices.split_first() else {
        return Ok(None);
    };
    match how {
        _ if asked.now => Ok(None),
        Choose::Wait => Ok(None),
        Choose::Now => match others.iter().find(|choice| choice.now) {
            Some(choice) => {
                say(format_args!("carrel: taken now: {}", describe(choice)));
                Ok(choice
                    .request
                    .clone()
                    .map(|request| Answer::Request(Box::new(request))))
            }
            None => Err(CliError::failed("nothing like it is free now")
                .hint("without --choose=now it waits in the queue")),
        },
        Choose::Ask if others.is_empty() => Ok(None),
        Choose::Ask => ask(&plan.choices, signals).await,
    }
}

async fn ask(choices: &[v1::Choice], signals: &mut Signals) -> Result<Option<Answer>> {
    say("carrel: what you ask for is not free now. You can have");
    for (number, choice) in (1..).zip(choices) {
        say(format_args!("  {number}  {}", describe(choice)));
    }
    let most = choices.len();
    loop {
        say(format_args!(
            "Which? 1 to {most} and Enter; Enter alone waits for what was asked for, Ctrl-C leaves"
        ));
        let line = tokio::select! {
            // A line that was begun is lost with this program.
            signal = signals.next() => return Ok(Some(Answer::Left(signal))),
            line = typed_line() => line?,
        };
        match line.trim() {
            "" | "1" => return Ok(None),
            number => match number
                .parse::<usize>()
                .ok()
                .and_then(|number| choices.get(number.checked_sub(1)?))
            {
                Some(choice) => {
                    return Ok(choice
                        .request
                        .clone()
                        .map(|request| Answer::Request(Box::new(request))));
                }
                None => say(format_args!("carrel: {} is none of them", visible(number))),
            },
        }
    }
}

/// A line of standard input, and nothing of what follows: that is the shell's.
async fn typed_line() -> Result<String> {
    let (send, line) = tokio::sync::oneshot::channel();
    // A thread of its own: one of the runtime's would keep the program from ending.
    std::thread::spawn(move || {
        let mut line = Vec::new();
        let mut byte = [0_u8];
        let read = loop {
            match nix::unistd::read(std::io::stdin(), &mut byte) {
                Ok(0) => break Ok(()),
                Ok(_) if byte[0] == b'\n' => break Ok(()),
                Ok(_) => line.push(byte[0]),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => break Err(std::io::Error::from(error)),
            }
        };
        // Nobody waits for it any more when the person has left.
        drop(send.send(read.map(|()| String::from_utf8_lossy(&line).into_owned())));
    });
    let line = line
        .await
        .map_err(|_| CliError::failed("standard input was not read"))?;
    line.context("cannot read what is typed")
}

/// "4 GPUs joined by NVLink on h100-01: now", "… by 14:32 at the latest".
pub fn describe(choice: &v1::Choice) -> String {
    let request = choice.request.clone().unwrap_or_default();
    let mut text = units_of(&request);
    let nodes: Vec<String> = choice.seats.iter().map(|seat| visible(&seat.node)).collect();
    let worst: Vec<&str> = choice
        .seats
        .iter()
        .map(|seat| seat.worst_link.as_str())
        .filter(|link| !link.is_empty())
        .collect();
    if let Some(link) = worst
        .iter()
        .min_by_key(|link| carrel_core::model::topology::Link::from_name(link))
    {
        text += &format!(", slowest link {}", visible(link));
    }
    if !nodes.is_empty() && choice.now {
        text += &format!(", on {}", nodes.join(", "));
    }
    text + ": " + &when(choice)
}

/// "now", "by 2026-11-21T14:32:00Z at the latest (12 min)".
fn when(choice: &v1::Choice) -> String {
    match choice.start_ms {
        _ if choice.now => "now".to_owned(),
        Some(start) => {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |now| now.as_millis() as i64);
            let minutes = u64::try_from(start - now).unwrap_or(0).div_ceil(60_000);
            let left = match (minutes / 60, minutes % 60) {
                (0, minutes) => format!("{minutes} min"),
                (hours, minutes) => format!("{hours} h {minutes} min"),
            };
            format!("in about {left}, by {} at the latest", units::rfc3339(start))
        }
        None => "when cannot be said".to_owned(),
    }
}

/// "4 GPUs joined by NVLink", "2 slices 1g.10gb", "4 CPUs, 8 GiB".
pub fn units_of(request: &v1::ResourceRequest) -> String {
    let count = request.gpus_per_node;
    let s = if count == 1 { "" } else { "s" };
    let model = match request.gpu_model.as_str() {
        "" => String::new(),
        model => format!("{} ", visible(model)),
    };
    let what = match request.unit.as_ref().and_then(|unit| unit.unit.as_ref()) {
        _ if count == 0 => format!("{}, {}", Cpus(request), Memory(request)),
        None | Some(Unit::Least(false)) => {
            let joined = if request.nvlink && count > 1 {
                " joined by NVLink"
            } else {
                ""
            };
            format!("{count} {model}GPU{s}{joined}")
        }
        Some(Unit::Least(true)) => {
            let memory = units::gpu_bytes(request.gpu_memory_bytes);
            format!("{count} {model}GPU{s} or slice{s} with {memory}")
        }
        Some(Unit::MigProfile(profile)) => format!("{count} {model}slice{s} {}", visible(profile)),
        Some(Unit::Share(share)) => format!("{} of a {model}GPU", f64::from(share.milli) / 1000.0),
    };
    match (request.nodes, request.exclusive) {
        (0 | 1, false) => what,
        (0 | 1, true) => format!("a whole node with {what}"),
        (nodes, false) => format!("{nodes} nodes with {what} each"),
        (nodes, true) => format!("{nodes} whole nodes with {what} each"),
    }
}

/// A plan, for `--test-only`.
pub fn text(plan: &v1::Plan) -> String {
    let mut text = String::new();
    let mut choices = plan.choices.iter();
    if let Some(asked) = choices.next() {
        text += &format!("{}\n", describe(asked));
        text += &seats(&asked.seats);
    }
    text += &refusals(&plan.refusals);
    for choice in choices {
        text += &format!("Or {}\n", describe(choice));
    }
    text
}

/// "  2 nodes: fewer than 4 free GPUs".
pub fn refusals(refusals: &[v1::Refusal]) -> String {
    let line = |refusal: &v1::Refusal| {
        let s = if refusal.hosts == 1 { "" } else { "s" };
        format!("  {} node{s}: {}\n", refusal.hosts, visible(&refusal.reason))
    };
    refusals.iter().map(line).collect()
}

/// What each node of an allocation gives, its links drawn.
pub fn seats(seats: &[v1::Seat]) -> String {
    seats.iter().map(seat).collect()
}

fn seat(seat: &v1::Seat) -> String {
    let mut facts = vec![format!("{} CPUs", seat.cpus), units::bytes(seat.memory_bytes)];
    if !seat.numa_nodes.is_empty() {
        facts.push(format!("NUMA {}", units::ranges(&seat.numa_nodes)));
    }
    if !seat.nics.is_empty() {
        facts.push(format!("NICs {}", visible(&seat.nics.join(", "))));
    }
    let gpus: Vec<String> = grant::each_gpu(&seat.gpus)
        .map(
            |(gpu, slices)| match (grant::gpu_name(gpu, "GPU"), slices.as_str()) {
                (name, "") => name,
                (name, slices) => format!("{name} {slices}"),
            },
        )
        .collect();
    let mut classes: Vec<&str> = seat.gpus.iter().map(|gpu| gpu.isolation.as_str()).collect();
    classes.sort_unstable();
    classes.dedup();
    let held = match (gpus.is_empty(), classes.concat().is_empty()) {
        (true, _) => String::new(),
        (false, true) => format!("{}; ", gpus.join(", ")),
        (false, false) => format!("{} ({}); ", gpus.join(", "), visible(&classes.join(", "))),
    };
    let mut text = format!("  {}: {held}{}\n", visible(&seat.node), facts.join(", "));
    let count = gpus.len();
    if count > 1 && seat.links.len() == count * count {
        let mut header = vec![String::new()];
        header.extend(gpus.iter().cloned());
        let rows = seat.links.chunks(count).zip(&gpus).map(|(links, gpu)| {
            let cells = links.iter().map(|link| match link.as_str() {
                "" => "·".to_owned(),
                link => visible(link),
            });
            std::iter::once(gpu.clone()).chain(cells).collect()
        });
        for line in output::grid(header, rows).lines() {
            text += &format!("    {line}\n");
        }
        text += &format!(
            "    slowest: {} between GPU{} and GPU{}\n",
            visible(&seat.worst_link),
            seat.worst_a,
            seat.worst_b
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(nvlink: bool, now: bool, link: &str) -> v1::Choice {
        let gpu = |index| v1::Gpu {
            index,
            ..Default::default()
        };
        let links = ["", link, link, ""].map(str::to_owned).to_vec();
        v1::Choice {
            request: Some(v1::ResourceRequest {
                nodes: 1,
                gpus_per_node: 2,
                nvlink,
                ..Default::default()
            }),
            start_ms: Some(0),
            now,
            seats: vec![v1::Seat {
                node: "n1".into(),
                gpus: vec![gpu(0), gpu(4)],
                links,
                worst_link: link.into(),
                worst_a: 0,
                worst_b: 4,
                numa_nodes: vec![0, 1],
                nics: vec!["mlx5_0".into()],
                cpus: 24,
                memory_bytes: 256 << 30,
            }],
        }
    }

    #[test]
    fn a_plan_in_full() {
        let plan = v1::Plan {
            choices: vec![choice(true, false, "NV12"), choice(false, true, "SYS")],
            refusals: vec![v1::Refusal {
                reason: "no 2 free GPUs joined by NVLink".into(),
                hosts: 1,
            }],
            nearest: String::new(),
        };
        insta::assert_snapshot!(text(&plan), @r"
        2 GPUs joined by NVLink, slowest link NV12: in about 0 min, by 1970-01-01T00:00:00Z at the latest
          n1: GPU0, GPU4; 24 CPUs, 256G, NUMA 0-1, NICs mlx5_0
                  GPU0  GPU4
            GPU0  ·     NV12
            GPU4  NV12  ·
            slowest: NV12 between GPU0 and GPU4
          1 node: no 2 free GPUs joined by NVLink
        Or 2 GPUs, slowest link SYS, on n1: now
        ");
    }

    #[tokio::test]
    async fn what_starts_now_is_taken_when_that_is_wanted() {
        let mut signals = Signals::catch().expect("signals");
        let mut plan = v1::Plan {
            choices: vec![choice(true, false, "NV12"), choice(false, true, "SYS")],
            ..Default::default()
        };
        let taken = choose(&plan, Choose::Now, &mut signals).await.expect("a choice");
        assert!(matches!(taken, Some(Answer::Request(request)) if !request.nvlink));
        assert!(
            choose(&plan, Choose::Wait, &mut signals)
                .await
                .expect("no choice")
                .is_none()
        );
        plan.choices.truncate(1);
        assert!(choose(&plan, Choose::Now, &mut signals).await.is_err());
        plan.choices[0].now = true;
        assert!(
            choose(&plan, Choose::Now, &mut signals)
                .await
                .expect("as asked")
                .is_none()
        );
    }
}
