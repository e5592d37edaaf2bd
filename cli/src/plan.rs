//! What would come of a request, for people; and the choice between waiting and having less.

mod words;

use carrel_proto::v1;

pub use self::words::{describe, units_of};

use crate::connect::Client;
use crate::error::{CliError, Context as _, Kind, Result};
use crate::output::{self, visible};
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
        let nodes = units::counted(refusal.hosts, "node");
        format!("  {nodes}: {}\n", visible(&refusal.reason))
    };
    refusals.iter().map(line).collect()
}

/// What each node of an allocation gives, its links drawn.
pub fn seats(seats: &[v1::Seat]) -> String {
    seats.iter().map(seat).collect()
}

fn seat(seat: &v1::Seat) -> String {
    let mut facts = vec![units::counted(seat.cpus, "CPU"), units::bytes(seat.memory_bytes)];
    if !seat.numa_nodes.is_empty() {
        facts.push(format!("NUMA {}", units::ranges(&seat.numa_nodes)));
    }
    if !seat.nics.is_empty() {
        facts.push(format!("NICs {}", visible(&seat.nics.join(", "))));
    }
    let spot = crate::commands::show::spot(&seat.switch_path, &seat.block);
    facts.extend((!spot.is_empty()).then(|| visible(&spot)));
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
        let drawn = output::grid(header, rows);
        let drawn = drawn
            .lines()
            .map(|line| format!("    {line}\n"))
            .collect::<String>();
        // Rows that a terminal breaks say nothing; the slowest link is named below.
        if output::fits(&drawn, crate::terminal::stdout_columns().unwrap_or(usize::MAX)) {
            text += &drawn;
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
                switch_path: "leaf1 < spine".into(),
                block: String::new(),
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
        2 GPUs joined by NVLink, slowest link NV12: in about 0 s, by 1970-01-01T00:00:00Z at the latest
          n1: GPU0, GPU4; 24 CPUs, 256G, NUMA 0-1, NICs mlx5_0, leaf1 < spine
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
