//! `sstat`: what jobs that run use.

use carrel_proto::v1::{self, JobState};

use super::format::{self, Field};
use super::job::{self, Row};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, Usage, noted, refused, used};
use super::{Called, sacct, words};
use crate::context::request;
use crate::error::{CliError, Result};
use crate::output;

/// The command.
pub const USAGE: Usage = Usage {
    name: "sstat",
    line: "[OPTIONS] -j JOB[,JOB…]",
    about: "Lists what jobs that run use, as far as their nodes measure it.",
    options: &[
        noted('a', "allsteps", Nothing, "a job has one step that is measured"),
        used(NONE, "delimiter", Value, "between fields, with -p and -P"),
        used('o', "format", Value, "what is shown: JobID,AveCPU"),
        used('h', "help", Nothing, "this text"),
        used('e', "helpformat", Nothing, "what there is to show"),
        refused('i', "pidformat", Nothing, "processes are not listed"),
        used('j', "jobs", Value, "these jobs"),
        refused(NONE, "json", Perhaps, "`carrel show --output json` is there"),
        noted(NONE, "noconvert", Nothing, "units are as they are"),
        used('n', "noheader", Nothing, "no header"),
        used('p', "parsable", Nothing, "'|' behind each field"),
        used('P', "parsable2", Nothing, "'|' between fields"),
        used(NONE, "usage", Nothing, "how it is called"),
        noted('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
    ],
};

const USUAL: &str = "JobID,NTasks,AveCPU,MinCPU,AveRSS,MaxRSS,AveVMSize,MaxVMSize,TRESUsageInAve";

/// A job that runs, and its use.
struct Line {
    job: Row,
    activity: v1::Activity,
}

const fn field(name: &'static str, value: fn(&Line) -> String) -> Field<Line> {
    Field {
        letter: None,
        name,
        header: name,
        width: 10,
        value,
    }
}

/// CPU time, as if it had always been what it is now.
fn cpu_time(line: &Line) -> String {
    let percent = line.activity.cpu_percent.map(u64::from);
    percent.map_or_else(String::new, |percent| {
        words::long_clock(line.job.elapsed_s * percent / 100)
    })
}

const FIELDS: &[Field<Line>] = &[
    field("JobID", |line| line.job.label()),
    field("NTasks", |line| line.job.node_count().to_string()),
    field("Nodelist", |line| line.job.node_list()),
    field("AveCPU", cpu_time),
    field("MinCPU", cpu_time),
    field("AveCPUFreq", |_| String::new()),
    field("AveDiskRead", |_| String::new()),
    field("AveDiskWrite", |_| String::new()),
    field("AvePages", |_| String::new()),
    field("AveRSS", |_| String::new()),
    field("AveVMSize", |_| String::new()),
    field("ConsumedEnergy", |_| String::new()),
    field("ConsumedEnergyRaw", |_| String::new()),
    field("MaxDiskRead", |_| String::new()),
    field("MaxDiskReadNode", |_| String::new()),
    field("MaxDiskReadTask", |_| String::new()),
    field("MaxDiskWrite", |_| String::new()),
    field("MaxDiskWriteNode", |_| String::new()),
    field("MaxDiskWriteTask", |_| String::new()),
    field("MaxPages", |_| String::new()),
    field("MaxPagesNode", |_| String::new()),
    field("MaxPagesTask", |_| String::new()),
    field("MaxRSS", |_| String::new()),
    field("MaxRSSNode", |_| String::new()),
    field("MaxRSSTask", |_| String::new()),
    field("MaxVMSize", |_| String::new()),
    field("MaxVMSizeNode", |_| String::new()),
    field("MaxVMSizeTask", |_| String::new()),
    field("MinCPUNode", |_| String::new()),
    field("MinCPUTask", |_| String::new()),
    field("Pids", |_| String::new()),
    field("ReqCPUFreqGov", |_| String::new()),
    field("ReqCPUFreqMax", |_| String::new()),
    field("ReqCPUFreqMin", |_| String::new()),
    field("TRESUsageInAve", |line| {
        let gpu = line
            .activity
            .gpu_percent
            .map(|percent| format!("gres/gpuutil={percent}"));
        gpu.unwrap_or_default()
    }),
    field("TRESUsageInMax", |_| String::new()),
    field("TRESUsageInMaxNode", |_| String::new()),
    field("TRESUsageInMaxTask", |_| String::new()),
    field("TRESUsageInMin", |_| String::new()),
    field("TRESUsageInMinNode", |_| String::new()),
    field("TRESUsageInMinTask", |_| String::new()),
    field("TRESUsageInTot", |_| String::new()),
    field("TRESUsageOutAve", |_| String::new()),
    field("TRESUsageOutMax", |_| String::new()),
    field("TRESUsageOutMaxNode", |_| String::new()),
    field("TRESUsageOutMaxTask", |_| String::new()),
    field("TRESUsageOutMin", |_| String::new()),
    field("TRESUsageOutMinNode", |_| String::new()),
    field("TRESUsageOutMinTask", |_| String::new()),
    field("TRESUsageOutTot", |_| String::new()),
];

/// Runs it.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    if given.has("helpformat") {
        let names: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
        return output::text(names.join("\n") + "\n").map(|()| 0);
    }
    let words = match given.value("format") {
        Some(_) => given.list("format"),
        None => USUAL.split(',').map(str::to_owned).collect(),
    };
    let columns = format::names(&words, FIELDS)?;
    let mut named = given.all("jobs");
    for word in &given.words {
        named = format!("{named},{word}");
    }
    let names = job::names(&named).map_err(|error| USAGE.wrong(&format!("Invalid job id: {error}")))?;
    if names.is_empty() {
        return Err(USAGE.wrong("You didn't give me any jobs to stat."));
    }
    let mut client = called.context.client().await?;
    let mut lines = Vec::new();
    for name in names {
        let job = match client.get_job(request(&name)).await {
            Ok(job) => job.into_inner(),
            Err(status) if status.code() == tonic::Code::NotFound => {
                return Err(CliError::failed(format!("couldn't get steps for job {name}")));
            }
            Err(status) => return Err(status.into()),
        };
        let activity = job.activity.clone().unwrap_or_default();
        let job = Row::of(job);
        if job.state == JobState::Running {
            let job = job.batch_step().unwrap_or(job);
            lines.push(Line { job, activity });
        }
    }
    output::text(format::table(
        &columns,
        &lines,
        &sacct::style(&given),
        !given.has("noheader"),
    ))
    .map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::runs;
    use super::*;

    #[test]
    fn what_is_measured_is_said() {
        let job = Row {
            elapsed_s: 100,
            ..runs()
        };
        let line = Line {
            job: job.batch_step().expect("it runs"),
            activity: v1::Activity {
                cpu_percent: Some(250),
                gpu_percent: Some(97),
                ..v1::Activity::default()
            },
        };
        let words = ["JobID", "AveCPU", "MaxRSS", "TRESUsageInAve"].map(str::to_owned);
        let columns = format::names(&words, FIELDS).expect("fields");
        let style = format::Style::Parsable {
            delimiter: "|".into(),
            trailing: false,
        };
        assert_eq!(
            format::table(&columns, &[line], &style, false),
            "12_3.batch|00:04:10||gres/gpuutil=97\n"
        );
    }
}
