//! `carrel logs`: what a batch job writes, and has written.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use carrel_core::model::array::JobRef;
use carrel_core::stream::StreamId;
use carrel_proto::socket::{self, OpenError, Socket};
use carrel_proto::stream::{Endpoint, Ticket, frame};
use carrel_proto::v1::{self, LogAsk, LogPart, StreamRefusal};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use crate::connect::Client;
use crate::context::{Context, request};
use crate::error::{CliError, Result, innermost};
use crate::signals::Signals;
use crate::terminal::say;
use crate::wait;
use crate::way::patiently_connect;

/// Show what a batch job writes.
///
/// Standard output and error as they came, from wherever this runs: the job's first node keeps the newest 16 to 32 MiB,
/// while it runs and for two weeks after its end. The files that the job was asked to write have all of it. Of a job that
/// was queued again this is its newest run.
///
/// With --rank it is what one task of the job's steps (`carrel run`, `srun`) writes, wherever else its output goes; a
/// terminal's is not kept. The node that the task runs on keeps the newest 1 to 2 MiB. Where there were several steps, each
/// after the first begins with a line that names it.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel logs 17\n  carrel logs -f 17          until its end; Ctrl-C leaves it alone\n  \
    carrel logs -n 20 17       its last 20 lines\n  \
    carrel logs --rank 37 17   task 37 of its steps"
)]
pub struct LogsArgs {
    /// Job id; of an array a task of it: 17_3
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// Go on with what comes, until the job's end; of one that waits, wait with it
    #[arg(short, long)]
    pub follow: bool,
    /// The last lines only
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<u32>,
    /// What this task of the job's steps writes, in place of its script
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
}

/// Longest part that is taken from a node, bytes.
const MAX_PART: usize = 4 << 20;
/// What is broken on the way (a gateway, a node's link, a broker) is mended within this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between attempts.
const RETRY: Duration = Duration::from_millis(250);
/// A gateway that has not answered by now does not.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(20);
/// A node that has not said by now what it keeps does not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Nodes that are asked at the same time for a task.
const ASKED_AT_ONCE: usize = 16;
/// Between two looks for a task that has not begun.
const LOOK_FOR_TASK: Duration = Duration::from_secs(1);

/// Runs the verb.
pub async fn run(context: &Context, args: LogsArgs) -> Result<u8> {
    let mut reader = Reader {
        client: patiently_connect(&context.address()?).await?,
        job: args.job,
        ask: LogAsk {
            from: 0,
            follow: args.follow,
            tail: args.tail,
            rank: args.rank,
            list: false,
        },
        run: None,
        node: None,
    };
    let mut signals = Signals::catch()?;
    // What is lost by leaving is read again by whoever comes back.
    tokio::select! {
        read = reader.read() => read.map(|()| 0),
        signal = signals.next() => Ok(signal.exit_code()),
    }
}

/// Reads one job's output.
struct Reader {
    client: Client,
    job: JobRef,
    /// What is still to be read.
    ask: LogAsk,
    /// Which of the job's runs is read, by how often it had been queued again.
    run: Option<u32>,
    /// The node that keeps what the task wrote, in that run; none: it is still to be found.
    node: Option<String>,
}

/// Why there is nothing to read now.
enum Not {
    /// The job has not begun to run.
    Begun(CliError),
    /// The task has not begun; the job may still have it begin.
    Task(CliError),
    /// Something on the way is broken.
    Reached(CliError),
    /// There will be nothing.
    There(CliError),
    /// Nobody reads what is printed.
    Wanted,
}

impl Reader {
    async fn read(&mut self) -> Result<()> {
        let mut since = Instant::now();
        loop {
            let from = self.ask.from;
            match self.read_once().await {
                Ok(()) if self.ask.follow && self.runs_again().await? => {}
                Ok(()) | Err(Not::Wanted) => return Ok(()),
                Err(Not::Begun(error)) if self.ask.follow => self.wait_for_begin(error).await?,
                Err(Not::Reached(error)) => {
                    if self.ask.from != from {
                        since = Instant::now();
                    }
                    if since.elapsed() >= PATIENCE {
                        return Err(error);
                    }
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(Not::Task(_)) if self.ask.follow => tokio::time::sleep(LOOK_FOR_TASK).await,
                Err(Not::Begun(error) | Not::Task(error) | Not::There(error)) => return Err(error),
            }
            since = Instant::now();
        }
    }

    /// Whether the job waits, or runs, once more after the run that was read to its end.
    async fn runs_again(&mut self) -> Result<bool> {
        let job = self.job().await?;
        let again = self.run.is_some_and(|run| job.restarts > run);
        if again {
            say(format_args!("carrel: job {} was queued again", self.job));
            self.ask.from = 0;
        }
        // Its end is on its way from the node to the broker: what it becomes is known then.
        if !again && job.ended_ms.is_none() {
            tokio::time::sleep(RETRY).await;
            return Ok(true);
        }
        Ok(again)
    }

    async fn job(&mut self) -> Result<v1::Job> {
        wait::patiently(&mut self.client, &self.job).await
    }

    /// Waits until a job that waits has begun; the error of one that is over.
    async fn wait_for_begin(&mut self, error: CliError) -> Result<()> {
        let job = self.job().await?;
        if job.ended_ms.is_some() {
            return Err(error);
        }
        wait::until_changed(&mut self.client, &self.job, &job).await
    }

    /// Reads over one connection, to the end or until it is cut.
    async fn read_once(&mut self) -> Result<(), Not> {
        let way = self.open().await?;
        let job = self.job().await.map_err(Not::There)?;
        if self.run != Some(job.restarts) {
            self.run = Some(job.restarts);
            self.ask.from = 0;
            self.node = None;
        }
        let (endpoints, ticket) = match self.ask.rank {
            None => {
                let ticket = ticket(way.ticket, way.secret)?;
                (way.endpoints, ticket)
            }
            Some(rank) => self.way_to_task(rank, way, &job).await?,
        };
        let mut socket = dial(endpoints, ticket, &job).await?;
        let cut = |error: std::io::Error| {
            Not::Reached(CliError::failed(format!("the connection was cut: {error}")))
        };
        socket.write_all(&frame(&self.ask)).await.map_err(cut)?;
        loop {
            let part = read_part(&mut socket).await.map_err(cut)?;
            self.print(&part)?;
            if part.end {
                return Ok(());
            }
        }
    }

    /// Permission for one look.
    async fn open(&mut self) -> Result<v1::OpenStreamResponse, Not> {
        let name = request(&self.job);
        let asked = v1::OpenLogRequest {
            id: name.id,
            tasks: name.tasks,
            all_nodes: self.ask.rank.is_some(),
        };
        match self.client.open_log(asked).await {
            Ok(way) => Ok(way.into_inner()),
            Err(status) if status.code() == Code::FailedPrecondition => Err(Not::Begun(status.into())),
            Err(status) if wait::is_passing(status.code()) => Err(Not::Reached(status.into())),
            Err(status) => Err(Not::There(status.into())),
        }
    }

    /// The way to the node that keeps what a task wrote.
    async fn way_to_task(
        &mut self,
        rank: u32,
        mut way: v1::OpenStreamResponse,
        job: &v1::Job,
    ) -> Result<(Vec<String>, Ticket), Not> {
        if way.nodes.is_empty() {
            let error = CliError::failed("the broker is of a version that knows nothing of ranks' output");
            return Err(Not::There(error.hint("an operator can bring it up to date")));
        }
        let node = if let Some(node) = &self.node {
            node.clone()
        } else {
            let found = find(rank, way, job, self.job.to_string()).await?;
            // Each permission serves once.
            way = self.open().await?;
            found
        };
        let Some(permission) = way.nodes.into_iter().find(|one| one.node == node) else {
            self.node = None;
            let error = CliError::failed(format!("job {} runs on other nodes by now", self.job));
            return Err(Not::Reached(error));
        };
        self.node = Some(node);
        Ok((way.endpoints, ticket(permission.ticket, permission.secret)?))
    }

    fn print(&mut self, part: &LogPart) -> Result<(), Not> {
        if self.ask.tail.take().is_none() && part.at > self.ask.from {
            let gap = part.at - self.ask.from;
            let elsewhere = match self.ask.rank {
                None => "; the job's own file has them",
                Some(_) => "",
            };
            say(format_args!(
                "carrel: {gap} bytes are no longer kept here{elsewhere}"
            ));
        }
        self.ask.from = part.at + part.data.len() as u64;
        let mut out = std::io::stdout().lock();
        match out.write_all(&part.data).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Not::Wanted),
            Err(error) => Err(Not::There(CliError::failed(format!(
                "cannot write to stdout: {error}"
            )))),
        }
    }
}

/// The node that keeps what a task wrote: where it wrote last, if several do.
async fn find(rank: u32, way: v1::OpenStreamResponse, job: &v1::Job, name: String) -> Result<String, Not> {
    let mut waiting = way.nodes.into_iter();
    let mut asked = JoinSet::new();
    let (mut found, mut ranks, mut unheard): (Option<(u64, String)>, _, _) = (None, BTreeSet::new(), None);
    loop {
        while asked.len() < ASKED_AT_ONCE
            && let Some(node) = waiting.next()
        {
            let (endpoints, job) = (way.endpoints.clone(), job.clone());
            asked.spawn(async move {
                let told = list(rank, endpoints, &node, &job);
                let told = tokio::time::timeout(ANSWER_TIMEOUT, told).await;
                (node.node, told)
            });
        }
        let Some(one) = asked.join_next().await else { break };
        let Ok((node, told)) = one else { continue };
        match told {
            Ok(Ok(part)) => {
                ranks.extend(part.ranks.iter().map(|part| (part.first, part.last)));
                if let Some(age) = part.rank_age_ms
                    && found.as_ref().is_none_or(|(least, _)| age < *least)
                {
                    found = Some((age, node));
                }
            }
            // A node that is about to make the container keeps nothing yet.
            Ok(Err(Not::Reached(_))) if job.state() == v1::JobState::Configuring => {}
            Ok(Err(Not::Reached(error))) => unheard = Some((node, error.message)),
            Err(_) => unheard = Some((node, "it does not answer".to_owned())),
            // It keeps nothing of the job.
            Ok(Err(_)) => {}
        }
    }
    if let Some((_, node)) = found {
        return Ok(node);
    }
    if let Some((node, why)) = unheard {
        let error = format!("what node {node} keeps of job {name} is not known: {why}");
        return Err(Not::Reached(CliError::failed(error)));
    }
    let error = if ranks.is_empty() {
        let hint =
            format!("`carrel logs {name}` shows what its script writes; steps are what `carrel run` starts");
        CliError::failed(format!(
            "of job {name} no task's output is kept: none of a step has begun"
        ))
        .hint(hint)
    } else {
        let error = format!("job {name} has kept no rank {rank}, but ranks {}", ranges(&ranks));
        CliError::failed(error).hint("ranks are those of its steps' tasks, from 0 on")
    };
    Err(if job.ended_ms.is_some() {
        Not::There(error)
    } else {
        Not::Task(error)
    })
}

/// What a node says that it keeps.
async fn list(
    rank: u32,
    endpoints: Vec<String>,
    node: &v1::NodeTicket,
    job: &v1::Job,
) -> Result<LogPart, Not> {
    let ticket = ticket(node.ticket.clone(), node.secret.clone())?;
    let mut socket = dial(endpoints, ticket, job).await?;
    let ask = LogAsk {
        rank: Some(rank),
        list: true,
        ..LogAsk::default()
    };
    let told = async {
        socket.write_all(&frame(&ask)).await?;
        read_part(&mut socket).await
    };
    told.await
        .map_err(|error| Not::Reached(CliError::failed(format!("the connection was cut: {error}"))))
}

/// Ranges as people read them: "0-63,70".
fn ranges(parts: &BTreeSet<(u32, u32)>) -> String {
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (first, last) in parts.iter().copied() {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    let one = |(first, last): (u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    joined.into_iter().map(one).collect::<Vec<_>>().join(",")
}

fn ticket(content: Vec<u8>, secret: Vec<u8>) -> Result<Ticket, Not> {
    let wrong = |_| {
        Not::There(CliError::failed(
            "the broker's ticket has a secret of the wrong length",
        ))
    };
    Ok(Ticket {
        content,
        secret: secret.try_into().map_err(wrong)?,
    })
}

async fn dial(endpoints: Vec<String>, ticket: Ticket, job: &v1::Job) -> Result<Socket, Not> {
    let hinted = |error: CliError| match hint(job) {
        Some(hint) => error.hint(hint),
        None => error,
    };
    let mut why = "no gateway is up".to_owned();
    for endpoint in endpoints {
        let Ok(endpoint) = endpoint.parse::<Endpoint>() else {
            continue;
        };
        if matches!(&endpoint, Endpoint::Unix(path) if !path.exists()) {
            continue;
        }
        let opened = socket::open_with_ticket(&endpoint, &ticket, StreamId(rand::random()));
        match tokio::time::timeout(GATEWAY_TIMEOUT, opened).await {
            Ok(Ok((socket, _))) => return Ok(socket),
            Ok(Err(OpenError::Refused(StreamRefusal::Gone, text))) => {
                let error = hinted(CliError::failed(text));
                // A node that is about to make the container keeps nothing yet.
                let begins = job.state() == v1::JobState::Configuring;
                return Err(if begins {
                    Not::Reached(error)
                } else {
                    Not::There(error)
                });
            }
            Ok(Err(error)) => why = format!("{error}: {}", innermost(&error)),
            Err(_) => why = format!("the gateway at {endpoint} does not answer"),
        }
    }
    Err(Not::Reached(hinted(CliError::failed(why))))
}

/// Where else the output is; none: of a session nowhere.
fn hint(job: &v1::Job) -> Option<String> {
    let file = &job.batch.as_ref()?.stdout;
    Some(format!("its file is {file}, in its working directory"))
}

async fn read_part(socket: &mut Socket) -> std::io::Result<LogPart> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_PART {
        return Err(std::io::Error::other(format!(
            "a part of {length} bytes is too long"
        )));
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes).await?;
    LogPart::decode(&bytes[..]).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_all_nodes_are_one_list() {
        for (parts, text) in [
            (&[(0, 3), (4, 7), (9, 9)][..], "0-7,9"),
            (&[(0, 0)], "0"),
            (&[(2, 5), (0, 9), (3, 4), (12, 13)], "0-9,12-13"),
            (&[(5, u32::MAX), (u32::MAX, u32::MAX)], "5-4294967295"),
        ] {
            assert_eq!(ranges(&parts.iter().copied().collect()), text);
        }
    }
}
