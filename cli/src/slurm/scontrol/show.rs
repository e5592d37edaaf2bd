//! `scontrol show`: pairs of names and values.

use carrel_proto::v1;

use super::super::job::{self, NULL, Row};
use super::super::options::Given;
use super::super::{Called, json, sinfo, squeue, words};
use super::{USAGE, hosts};
use crate::context::request;
use crate::error::{CliError, Result};
use crate::units::ranges;
use crate::{grant, output, view};

/// Lines of pairs; a record on one line where wanted.
struct Record(Vec<Vec<(&'static str, String)>>);

impl Record {
    fn text(&self, one_line: bool) -> String {
        let line = |pairs: &Vec<(&str, String)>| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| format!("{name}={}", output::visible(value)));
            pairs.collect::<Vec<_>>().join(" ")
        };
        let lines: Vec<String> = self.0.iter().map(line).collect();
        if one_line {
            lines.join(" ") + "\n"
        } else {
            lines.join("\n   ") + "\n\n"
        }
    }
}

/// Runs `show WHAT [WHICH]`.
pub async fn run(called: &Called, given: &Given, words: &[&str]) -> Result<u8> {
    let what = words.first().copied().unwrap_or_default();
    // "job=12" and "job 12" are the same.
    let (what, glued) = what
        .split_once('=')
        .map_or((what, None), |(what, which)| (what, Some(which)));
    let what = what.to_ascii_lowercase();
    let which = glued.or_else(|| words.get(1).copied());
    match what.as_str() {
        "license" | "licenses" => output::text("No licenses configured in Slurm.\n").map(|()| 0),
        "hostnames" | "hostname" | "hostlist" | "hostlistsorted" => {
            let kind = if what == "hostname" {
                "hostnames"
            } else {
                what.as_str()
            };
            output::text(hosts(kind, words.get(1).copied())?).map(|()| 0)
        }
        "job" | "jobs" | "jobid" => jobs(called, given, which).await,
        "node" | "nodes" | "nodename" => nodes(called, given, which).await,
        "partition" | "partitions" | "partitionname" => partitions(called, given, which).await,
        "reservation" | "reservations" | "res" | "reservationname" => {
            reservations(called, given, which).await
        }
        "config" | "configuration" => config(called).await,
        "" => Err(USAGE.wrong("too few arguments: show what?")),
        other => Err(USAGE
            .wrong(&format!("invalid entity: {other} for keyword: show"))
            .hint("job, node, partition, reservation, hostnames, hostlist, config")),
    }
}

fn or_null(text: &str) -> String {
    if text.is_empty() {
        NULL.to_owned()
    } else {
        text.to_owned()
    }
}

async fn jobs(called: &Called, given: &Given, which: Option<&str>) -> Result<u8> {
    let mut client = called.context.client().await?;
    let mut details = Vec::new();
    let mut rows = match which {
        None => job::list(&mut client, true).await?,
        Some(text) => {
            let names = super::jobs_of(text)?;
            let mut found = Vec::new();
            for name in &names {
                let live = match client.get_job(request(name)).await {
                    Ok(job) => job.into_inner(),
                    Err(status) if status.code() == tonic::Code::NotFound => {
                        return Err(CliError::failed(super::super::NO_SUCH_JOB));
                    }
                    Err(status) => return Err(status.into()),
                };
                // Of an array each of its jobs has a record.
                if live.array.is_some() && name.tasks.is_none() {
                    let all = job::list(&mut client, true).await?;
                    found.extend(all.into_iter().filter(|row| row.is(name)));
                } else {
                    details.extend(live.nodes.clone());
                    found.push(Row::of(live));
                }
            }
            found
        }
    };
    rows.sort_by_key(|row| (row.array_id(), row.task().unwrap_or(u32::MAX)));
    job::add_queue(&mut client, &mut rows, false).await?;
    if given.has("json") {
        return output::json(&json::queue(&rows)).map(|()| 0);
    }
    if rows.is_empty() {
        return output::text("No jobs in the system\n").map(|()| 0);
    }
    let details = if given.has("details") { details } else { Vec::new() };
    let text = rows
        .iter()
        .map(|row| record_of(row, &details).text(given.has("oneliner")));
    output::text(text.collect::<String>()).map(|()| 0)
}

fn record_of(job: &Row, details: &[v1::NodeAllocation]) -> Record {
    let who = |name: &str, number: Option<u32>| match number {
        Some(number) => format!("{name}({number})"),
        None => format!("{name}(N/A)"),
    };
    let group = job::group(&job.user);
    let (code, signal) = words::exit_code(job.state, job.exit_code);
    let mut first = vec![("JobId", job.id.to_string())];
    if let Some(part) = &job.array {
        first.push(("ArrayJobId", part.array.to_string()));
        first.push(("ArrayTaskId", part.tasks.clone()));
        if part.throttle > 0 {
            first.push(("ArrayTaskThrottle", part.throttle.to_string()));
        }
    }
    first.push(("JobName", job.name.clone()));
    let request = &job.request;
    let constraints = request.constraints.clone().unwrap_or_default();
    let cpus = job.cpu_count();
    let end = squeue::end(job);
    let mut lines = vec![
        first,
        vec![
            ("UserId", who(&job.user, job.uid())),
            (
                "GroupId",
                group.map_or_else(|| "N/A".to_owned(), |(number, name)| who(&name, Some(number))),
            ),
            ("MCS_label", "N/A".to_owned()),
        ],
        vec![
            ("Priority", job.priority.unwrap_or(0).to_string()),
            ("Nice", job.terms.nice.to_string()),
            ("Account", job.terms.account.clone()),
            ("QOS", job.terms.qos.clone()),
        ],
        vec![
            ("JobState", view::job_state(job.state).to_owned()),
            ("Reason", job.reason()),
            ("Dependency", squeue::dependency(job)),
        ],
        vec![
            ("Requeue", u8::from(job.what.requeue).to_string()),
            ("Restarts", job.restarts.to_string()),
            ("BatchFlag", u8::from(job.batch).to_string()),
            ("Reboot", "0".to_owned()),
            ("ExitCode", format!("{code}:{signal}")),
        ],
        vec![
            ("RunTime", words::long_clock(job.elapsed_s)),
            ("TimeLimit", words::long_clock(job.limit_s)),
            ("TimeMin", "N/A".to_owned()),
        ],
        vec![
            ("SubmitTime", words::stamp(job.submitted_ms)),
            ("EligibleTime", words::stamp(job.submitted_ms)),
        ],
        vec![("AccrueTime", words::stamp(job.submitted_ms))],
        vec![
            ("StartTime", words::stamp_or(job.start_ms, "Unknown")),
            ("EndTime", words::stamp_or(end, "Unknown")),
            ("Deadline", "N/A".to_owned()),
        ],
        vec![
            ("Partition", job.terms.partition.clone()),
            ("AllocNode:Sid", format!("{}:0", or_null(&job.what.submit_host))),
        ],
        vec![
            ("ReqNodeList", or_null(&constraints.nodelist)),
            ("ExcNodeList", or_null(&constraints.exclude)),
        ],
        vec![("NodeList", or_null(&job.node_list()))],
    ];
    if let Some(first) = job.nodes.first() {
        lines.push(vec![("BatchHost", first.clone())]);
    }
    lines.extend([
        vec![
            ("NumNodes", job.node_count().to_string()),
            ("NumCPUs", cpus.to_string()),
            ("NumTasks", job.node_count().to_string()),
            ("CPUs/Task", "1".to_owned()),
            ("ReqB:S:C:T", "0:0:*:*".to_owned()),
        ],
        vec![("ReqTRES", job.requested_tres())],
        vec![("AllocTRES", or_null(&job.allocated_tres()))],
        vec![
            ("Socks/Node", "*".to_owned()),
            ("NtasksPerN:B:S:C", "0:0:*:*".to_owned()),
            ("CoreSpec", "*".to_owned()),
        ],
    ]);
    for held in details {
        let gpus = grant::indices(&held.gpus);
        let mut pairs = vec![
            ("Nodes", held.node.clone()),
            ("CPU_IDs", or_null(&held.cpuset)),
            ("Mem", (held.memory_bytes >> 20).to_string()),
        ];
        if !held.gpus.is_empty() {
            pairs.push(("GRES", format!("gpu:{}(IDX:{})", held.gpus.len(), ranges(&gpus))));
        }
        lines.push(pairs);
    }
    lines.extend([
        vec![
            ("MinCPUsNode", request.cpus_per_node.max(1).to_string()),
            ("MinMemoryNode", words::memory(job.memory_per_node())),
            ("MinTmpDiskNode", "0".to_owned()),
        ],
        vec![
            ("Features", or_null(&constraints.features)),
            ("DelayBoot", "00:00:00".to_owned()),
        ],
        vec![
            ("OverSubscribe", words::over_subscribe(request).to_owned()),
            ("Contiguous", u8::from(constraints.contiguous).to_string()),
            ("Licenses", NULL.to_owned()),
            ("Network", NULL.to_owned()),
        ],
        vec![("Command", job.command())],
        vec![("WorkDir", or_null(&job.what.workdir))],
    ]);
    if !job.what.comment.is_empty() {
        lines.push(vec![("Comment", job.what.comment.clone())]);
    }
    if !job.terms.reservation.is_empty() {
        lines.push(vec![("Reservation", job.terms.reservation.clone())]);
    }
    if job.batch {
        lines.push(vec![("StdErr", job.stderr())]);
        lines.push(vec![("StdIn", "/dev/null".to_owned())]);
        lines.push(vec![("StdOut", job.stdout())]);
    }
    if !job.tres_per_node().is_empty() {
        lines.push(vec![("TresPerNode", job.tres_per_node())]);
    }
    Record(lines)
}

async fn nodes(called: &Called, given: &Given, which: Option<&str>) -> Result<u8> {
    let world = sinfo::World::of(called).await?;
    let wanted = carrel_core::model::host_list::expanded(which.unwrap_or_default());
    let wanted = wanted.map_err(|error| CliError::usage(format!("Invalid hostlist: {error}")))?;
    let mut shown = Vec::new();
    for name in &wanted {
        let node = world.nodes.iter().find(|node| node.name == *name);
        shown.push(node.ok_or_else(|| CliError::failed(format!("Node {name} not found")))?);
    }
    if wanted.is_empty() {
        shown.extend(&world.nodes);
    }
    if given.has("json") {
        let values = shown
            .iter()
            .map(|node| json::node(node, &world.partitions_of(&node.name)));
        return output::json(&json::node_list(values.collect())).map(|()| 0);
    }
    let text = shown
        .iter()
        .map(|node| node_record(node, &world.partitions_of(&node.name)).text(given.has("oneliner")));
    output::text(text.collect::<String>()).map(|()| 0)
}

fn node_record(node: &v1::Node, partitions: &[String]) -> Record {
    let inventory = node.inventory.clone().unwrap_or_default();
    let mut lines = vec![
        vec![
            ("NodeName", node.name.clone()),
            ("Arch", std::env::consts::ARCH.to_owned()),
            ("CoresPerSocket", inventory.cpus.to_string()),
        ],
        vec![
            ("CPUAlloc", node.cpus_held.to_string()),
            ("CPUEfctv", inventory.cpus.to_string()),
            ("CPUTot", inventory.cpus.to_string()),
            ("CPULoad", "N/A".to_owned()),
        ],
        vec![("AvailableFeatures", or_null(&node.features.join(",")))],
        vec![("ActiveFeatures", or_null(&node.features.join(",")))],
        vec![("Gres", or_null(&sinfo::gres(node)))],
        vec![
            ("NodeAddr", node.name.clone()),
            ("NodeHostName", node.name.clone()),
            ("Version", node.version.clone()),
        ],
        vec![("OS", inventory.os.clone())],
        vec![
            ("RealMemory", (inventory.memory_bytes >> 20).to_string()),
            ("AllocMem", (node.memory_held >> 20).to_string()),
            (
                "FreeMem",
                (inventory.memory_bytes.saturating_sub(node.memory_held) >> 20).to_string(),
            ),
            ("Sockets", "1".to_owned()),
            ("Boards", "1".to_owned()),
        ],
        vec![
            ("State", sinfo::state(node)),
            ("ThreadsPerCore", "1".to_owned()),
            ("TmpDisk", "0".to_owned()),
            ("Weight", "1".to_owned()),
            ("Owner", "N/A".to_owned()),
            ("MCS_label", "N/A".to_owned()),
        ],
        vec![("Partitions", or_null(&partitions.join(",")))],
        vec![
            ("BootTime", "None".to_owned()),
            ("SlurmdStartTime", "None".to_owned()),
            ("LastBusyTime", words::stamp(node.last_contact_ms)),
        ],
        vec![("CfgTRES", words::node_tres(node))],
        vec![(
            "AllocTRES",
            if node.cpus_held > 0 {
                words::node_tres_held(node)
            } else {
                String::new()
            },
        )],
    ];
    if !node.reason.is_empty() {
        lines.push(vec![("Reason", node.reason.clone())]);
    }
    Record(lines)
}

async fn partitions(called: &Called, given: &Given, which: Option<&str>) -> Result<u8> {
    let world = sinfo::World::of(called).await?;
    let wanted: Vec<&str> = which.map(|text| text.split(',').collect()).unwrap_or_default();
    if let Some(missing) = wanted
        .iter()
        .find(|name| !world.partitions.iter().any(|partition| partition.name == **name))
    {
        return Err(CliError::failed(format!("Partition {missing} not found")));
    }
    let shown = world
        .partitions
        .iter()
        .filter(|partition| wanted.is_empty() || wanted.contains(&partition.name.as_str()));
    if given.has("json") {
        let values = shown.map(|one| {
            serde_json::json!({
                "name": one.name,
                "nodes": {"configured": one.nodes, "total": one.node_count},
                "partition": {"state": ["UP"]},
                "maximums": {"time": {"set": world.max_time_s(one) > 0, "infinite": false, "number": world.max_time_s(one) / 60}},
                "defaults": {"time": {"set": one.default_time_s > 0, "infinite": false, "number": one.default_time_s / 60}},
            })
        });
        return output::json(&json::partition_list(values.collect())).map(|()| 0);
    }
    let text = shown.map(|partition| partition_record(partition, &world).text(given.has("oneliner")));
    output::text(text.collect::<String>()).map(|()| 0)
}

fn partition_record(partition: &v1::Partition, world: &sinfo::World) -> Record {
    let members: Vec<&v1::Node> = world.members(partition);
    let cpus: u32 = members
        .iter()
        .filter_map(|node| node.inventory.as_ref())
        .map(|has| has.cpus)
        .sum();
    let time = |seconds: u64, none: &str| {
        if seconds > 0 {
            words::long_clock(seconds)
        } else {
            none.to_owned()
        }
    };
    let accounts = if partition.accounts.is_empty() {
        "ALL".to_owned()
    } else {
        partition.accounts.join(",")
    };
    let yes = if partition.default { "YES" } else { "NO" };
    let default_time = if partition.default_time_s > 0 {
        partition.default_time_s
    } else {
        world.default_time_s
    };
    Record(vec![
        vec![("PartitionName", partition.name.clone())],
        vec![
            ("AllowGroups", "ALL".to_owned()),
            ("AllowAccounts", accounts),
            ("AllowQos", "ALL".to_owned()),
        ],
        vec![
            ("AllocNodes", "ALL".to_owned()),
            ("Default", yes.to_owned()),
            (
                "QoS",
                if partition.qos.is_empty() {
                    "N/A".to_owned()
                } else {
                    partition.qos.clone()
                },
            ),
        ],
        vec![
            ("DefaultTime", time(default_time, "NONE")),
            ("DisableRootJobs", "NO".to_owned()),
            ("ExclusiveUser", "NO".to_owned()),
            ("GraceTime", "0".to_owned()),
            ("Hidden", "NO".to_owned()),
        ],
        vec![
            ("MaxNodes", "UNLIMITED".to_owned()),
            ("MaxTime", time(world.max_time_s(partition), "UNLIMITED")),
            ("MinNodes", "0".to_owned()),
            ("LLN", "NO".to_owned()),
            ("MaxCPUsPerNode", "UNLIMITED".to_owned()),
        ],
        vec![("Nodes", or_null(&partition.nodes))],
        vec![
            ("PriorityJobFactor", partition.priority.to_string()),
            ("PriorityTier", "1".to_owned()),
            ("RootOnly", "NO".to_owned()),
            ("ReqResv", "NO".to_owned()),
            ("OverSubscribe", "NO".to_owned()),
        ],
        vec![
            ("OverTimeLimit", "NONE".to_owned()),
            ("PreemptMode", "OFF".to_owned()),
        ],
        vec![
            ("State", "UP".to_owned()),
            ("TotalCPUs", cpus.to_string()),
            ("TotalNodes", partition.node_count.to_string()),
            ("SelectTypeParameters", "NONE".to_owned()),
        ],
        vec![("JobDefaults", NULL.to_owned())],
        vec![
            ("DefMemPerNode", "UNLIMITED".to_owned()),
            ("MaxMemPerNode", "UNLIMITED".to_owned()),
        ],
    ])
}

async fn reservations(called: &Called, given: &Given, which: Option<&str>) -> Result<u8> {
    let mut client = called.context.client().await?;
    let answer = client
        .list_reservations(v1::ListReservationsRequest::default())
        .await?;
    let mut all = answer.into_inner().reservations;
    all.retain(|one| which.is_none_or(|name| one.name == name));
    if all.is_empty() {
        return match which {
            Some(name) => Err(CliError::failed(format!("Reservation {name} not found"))),
            None => output::text("No reservations in the system\n").map(|()| 0),
        };
    }
    let text = all.iter().map(|one| {
        Record(vec![
            vec![
                ("ReservationName", one.name.clone()),
                ("StartTime", words::stamp(one.start_ms)),
                ("EndTime", words::stamp(one.end_ms)),
            ],
            vec![
                ("Nodes", or_null(&one.nodes)),
                ("NodeCnt", one.node_count.to_string()),
            ],
            vec![
                ("Users", or_null(&one.users.join(","))),
                ("Accounts", or_null(&one.accounts.join(","))),
            ],
        ])
        .text(given.has("oneliner"))
    });
    output::text(text.collect::<String>()).map(|()| 0)
}

async fn config(called: &Called) -> Result<u8> {
    let mut client = called.context.client().await?;
    let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.into_inner();
    let time = |seconds: u64| words::long_clock(seconds);
    let pairs = [
        (
            "AccountingStorageTRES",
            "cpu,mem,energy,node,billing,gres/gpu".to_owned(),
        ),
        ("AccountingStorageType", "accounting_storage/carrel".to_owned()),
        ("AccountingStoreFlags", "job_comment".to_owned()),
        ("ClusterName", cluster.name),
        ("DefaultTime", time(cluster.default_time_s)),
        ("GresTypes", "gpu".to_owned()),
        // Slurm's number is that behind the last index.
        (
            "MaxArraySize",
            (carrel_core::model::indices::MAX_INDEX + 1).to_string(),
        ),
        ("MaxTime", time(cluster.max_time_s)),
        // Jobs that are over stay in the broker's memory for so long.
        ("MinJobAge", "3600 sec".to_owned()),
        ("PriorityType", "priority/multifactor".to_owned()),
        ("SchedulerType", "sched/backfill".to_owned()),
        ("SelectType", "select/cons_tres".to_owned()),
        ("SelectTypeParameters", "CR_CPU_MEMORY".to_owned()),
        ("SlurmctldHost[0]", called.context.address()?.to_string()),
        ("SLURM_VERSION", super::super::LIKE.to_owned()),
        ("CARREL_VERSION", cluster.version),
    ];
    let now = words::stamp(crate::times::now_ms());
    let lines = pairs
        .iter()
        .map(|(name, value)| format!("{name:<23} = {value}\n"));
    output::text(format!(
        "Configuration data as of {now}\n{}",
        lines.collect::<String>()
    ))
    .map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::super::super::job::tests::{runs, waits};
    use super::*;

    #[test]
    fn a_job_is_pairs_as_tools_read_them() {
        let text = record_of(&waits(), &[]).text(true);
        for pair in [
            "JobId=12 ArrayJobId=12 ArrayTaskId=4-8 ArrayTaskThrottle=5 JobName=train ",
            " JobState=PENDING Reason=Resources Dependency=(null) ",
            " TimeLimit=01:00:00 ",
            " NodeList=(null) ",
            " WorkDir=/home/a ",
            " StdOut=/home/a/o.txt ",
        ] {
            assert!(text.contains(pair), "{pair}: {text}");
        }
        let text = record_of(&runs(), &[]).text(false);
        assert!(
            text.starts_with("JobId=14 ArrayJobId=12 ArrayTaskId=3 "),
            "{text}"
        );
        assert!(text.contains("\n   NodeList=n[1-2]\n   BatchHost=n1\n"), "{text}");
        assert!(text.ends_with("\n\n"));
    }
}
