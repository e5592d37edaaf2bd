//! `sstat`: what jobs that run use.

use carrel_proto::v1::{self, JobState};

use super::format::{self, Field};
use super::job::{self, Row};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, Usage, refused, taken, used};
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
        taken('a', "allsteps", Nothing, "a job has one step that is measured"),
        used(NONE, "delimiter", Value, "between fields, with -p and -P"),
        used('o', "format", Value, "what is shown: JobID,AveCPU,MaxRSS"),
        used('h', "help", Nothing, "this text"),
        used('e', "helpformat", Nothing, "what there is to show"),
        refused('i', "pidformat", Nothing, "processes are not listed"),
        used('j', "jobs", Value, "these jobs"),
        refused(NONE, "json", Perhaps, "`carrel show --output json` is there"),
        used(NONE, "noconvert", Nothing, "measured memory in bytes"),
        used('n', "noheader", Nothing, "no header"),
        used('p', "parsable", Nothing, "'|' behind each field"),
        used('P', "parsable2", Nothing, "'|' between fields"),
        used(NONE, "usage", Nothing, "how it is called"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
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

const FIELDS: &[Field<Line>] = &[
    field("JobID", |line| line.job.label()),
    field("NTasks", |line| line.job.node_count().to_string()),
    field("Nodelist", |line| line.job.node_list()),
    field("AveCPU", |line| line.job.average_cpu()),
    field("MinCPU", |line| line.job.min_cpu()),
    field("AveCPUFreq", |_| String::new()),
    field("AveDiskRead", |_| String::new()),
    field("AveDiskWrite", |_| String::new()),
    field("AvePages", |_| String::new()),
    field("AveRSS", |line| line.job.average_rss()),
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
    field("MaxRSS", |line| line.job.max_rss()),
    field("MaxRSSNode", |line| line.job.max_rss_node()),
    field("MaxRSSTask", |line| line.job.max_rss_task()),
    field("MaxVMSize", |_| String::new()),
    field("MaxVMSizeNode", |_| String::new()),
    field("MaxVMSizeTask", |_| String::new()),
    field("MinCPUNode", |line| line.job.min_cpu_node()),
    field("MinCPUTask", |line| line.job.min_cpu_task()),
    field("Pids", |_| String::new()),
    field("ReqCPUFreqGov", |_| String::new()),
    field("ReqCPUFreqMax", |_| String::new()),
    field("ReqCPUFreqMin", |_| String::new()),
    field("TRESUsageInAve", |line| {
        let gpu = line
            .activity
            .gpu_percent
            .map(|percent| format!("gres/gpuutil={percent}"));
        let mut parts = vec![line.job.average_tres()];
        parts.extend(gpu);
        parts.retain(|part| !part.is_empty());
        parts.join(",")
    }),
    field("TRESUsageInMax", |line| line.job.max_tres()),
    field("TRESUsageInMaxNode", |line| line.job.max_tres_node()),
    field("TRESUsageInMaxTask", |line| line.job.max_tres_task()),
    field("TRESUsageInMin", |line| line.job.min_tres()),
    field("TRESUsageInMinNode", |line| line.job.min_tres_node()),
    field("TRESUsageInMinTask", |line| line.job.min_tres_task()),
    field("TRESUsageInTot", |line| line.job.total_tres()),
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
    let units = if given.has("noconvert") {
        words::Units::Bytes
    } else {
        words::Units::Whole
    };
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
        let job = Row {
            units,
            ..Row::of(job)
        };
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
        let line = Line {
            job: runs().batch_step().expect("it runs"),
            activity: v1::Activity {
                gpu_percent: Some(97),
                ..v1::Activity::default()
            },
        };
        let words = [
            "JobID",
            "AveCPU",
            "MinCPU",
            "AveRSS",
            "MaxRSS",
            "MaxRSSNode",
            "TRESUsageInAve",
        ];
        let words = words.map(str::to_owned);
        let columns = format::names(&words, FIELDS).expect("fields");
        let style = format::Style::Parsable {
            delimiter: "|".into(),
            trailing: false,
        };
        assert_eq!(
            format::table(&columns, &[line], &style, false),
            "12_3.batch|00:00:50|00:00:40|3M|4100K|n2|cpu=00:00:50,mem=3M,gres/gpuutil=97\n"
        );
    }
}
