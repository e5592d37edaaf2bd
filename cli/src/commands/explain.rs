//! `carrel explain`: why a job waits.

use carrel_proto::v1;

use crate::context::{self, Context, JobOrSession};
use crate::error::Result;
use crate::output::visible;
use crate::{grant, output, plan, units, view};

/// Say why a job waits, or why it is where it is.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel explain dev\n  carrel explain 17\n  carrel explain --priority 17"
)]
pub struct ExplainArgs {
    /// Session name, or job id; inside a session, none: that one
    #[arg(value_name = "NAME|JOB", add = super::completion::sessions())]
    pub what: Option<JobOrSession>,
    /// Say how its place in the queue came to be, factor by factor
    #[arg(short, long)]
    pub priority: bool,
}

/// Runs the verb.
pub async fn run(context: &Context, args: ExplainArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let named = args.what.as_ref();
    let job = context::find(context, &mut client, named).await?.job(named)?;
    let why = client.explain_job(context::request(&job)).await?.into_inner();
    if context.json() {
        output::json(&view::Explanation::from(why))?;
    } else {
        output::text(text(&why))?;
        if args.priority {
            output::text(priority(why.priority.as_ref()))?;
        }
    }
    Ok(0)
}

fn text(why: &v1::Explanation) -> String {
    let mut text = visible(&why.summary) + "\n";
    text += &plan::refusals(&why.refusals);
    if !why.ahead.is_empty() {
        const SHOWN: usize = 20;
        let ids: Vec<_> = why.ahead.iter().take(SHOWN).map(u64::to_string).collect();
        let more = if why.ahead.len() > SHOWN {
            format!(" and {} more", why.ahead.len() - SHOWN)
        } else {
            String::new()
        };
        text += &format!("In front: {}{more}\n", ids.join(", "));
    }
    if let Some(start) = why.latest_start_ms {
        text += &format!("Starts by {} at the latest\n", units::rfc3339(start));
    }
    if !why.nearest.is_empty() {
        text += &format!("Would fit now: {}\n", visible(&why.nearest));
    }
    text += &plan::seats(&why.seats);
    // The seats say it, where there are any.
    let job = why.job.as_ref().filter(|_| why.seats.is_empty());
    for held in job.iter().flat_map(|job| &job.nodes) {
        let spot = super::show::spot(&held.switch_path, &held.block);
        if !spot.is_empty() {
            text += &visible(&format!("  {}: {spot}", held.node));
            text.push('\n');
        }
    }
    let cpus = why.job.as_ref().map(grant::own_cpus).unwrap_or_default();
    if !cpus.is_empty() {
        text += &format!("CPU ids: {}\n", visible(&cpus));
    }
    text
}

/// The lines of a priority, and their sum.
fn priority(priority: Option<&v1::Priority>) -> String {
    let Some(priority) = priority else {
        return "It does not wait: it has no priority.\n".to_owned();
    };
    let rows = priority.factors.iter().map(|line| {
        [
            line.name.clone(),
            format!("{:.4}", line.factor),
            line.weight.to_string(),
            line.points.to_string(),
        ]
    });
    let sum = [
        "sum".to_owned(),
        String::new(),
        String::new(),
        priority.total.to_string(),
    ];
    let mut text = output::table(["FACTOR", "VALUE", "WEIGHT", "POINTS"], rows.chain([sum]));
    if priority.top {
        text = format!("An operator has put it before all others.\n{text}");
    }
    let level = match priority.level_fair_share {
        Some(level) => format!("{level:.3}"),
        None => "all of the share is left".to_owned(),
    };
    text + &format!(
        "Level fair-share of its user in its account: {level}; used: {:.1} GPU-hours\n",
        priority.used_gpu_hours
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_in_full() {
        let why = v1::Explanation {
            job: Some(v1::Job {
                nodes: vec![v1::NodeAllocation {
                    cpuset: "0-3,48-51".into(),
                    mems: "0".into(),
                    ..v1::NodeAllocation::default()
                }],
                ..v1::Job::default()
            }),
            summary: "It waits for 4 NVLink-joined GPUs.".into(),
            refusals: vec![v1::Refusal {
                reason: "fewer than 4 free GPUs".into(),
                hosts: 1,
            }],
            ahead: vec![3, 5],
            latest_start_ms: Some(0),
            nearest: "2 GPUs on h100-01".into(),
            seats: vec![],
            priority: None,
        };
        insta::assert_snapshot!(text(&why), @r"
        It waits for 4 NVLink-joined GPUs.
          1 node: fewer than 4 free GPUs
        In front: 3, 5
        Starts by 1970-01-01T00:00:00Z at the latest
        Would fit now: 2 GPUs on h100-01
        CPU ids: 0-3,48-51 (its own), memory of NUMA node 0
        ");
    }

    #[test]
    fn a_priority_line_by_line() {
        let line = |name: &str, factor, weight, points| v1::PriorityFactor {
            name: name.into(),
            factor,
            weight,
            points,
        };
        let of = v1::Priority {
            top: false,
            factors: vec![
                line("fair-share", 0.5, 100_000, 50_000),
                line("age", 0.01, 70_000, 700),
                line("nice", 100.0, 1, -100),
            ],
            total: 50_600,
            level_fair_share: Some(1.5),
            used_gpu_hours: 12.25,
        };
        insta::assert_snapshot!(priority(Some(&of)), @r"
        FACTOR      VALUE     WEIGHT  POINTS
        fair-share  0.5000    100000  50000
        age         0.0100    70000   700
        nice        100.0000  1       -100
        sum                           50600
        Level fair-share of its user in its account: 1.500; used: 12.2 GPU-hours
        ");
    }
}
