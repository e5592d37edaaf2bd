//! `carrel logs`: what a batch job writes, and has written.

use std::io::Write as _;
use std::time::Duration;

use carrel_core::model::array::JobRef;
use carrel_core::stream::StreamId;
use carrel_proto::socket::{self, OpenError, Socket};
use carrel_proto::stream::{Endpoint, Ticket, frame};
use carrel_proto::v1::{self, LogAsk, LogPart, StreamRefusal};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel logs 17\n  carrel logs -f 17          until its end; Ctrl-C leaves it alone\n  \
    carrel logs -n 20 17       its last 20 lines"
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
}

/// Longest part that is taken from a node, bytes.
const MAX_PART: usize = 4 << 20;
/// What is broken on the way (a gateway, a node's link, a broker) is mended within this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between attempts.
const RETRY: Duration = Duration::from_millis(250);
/// A gateway that has not answered by now does not.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the verb.
pub async fn run(context: &Context, args: LogsArgs) -> Result<u8> {
    let mut reader = Reader {
        client: patiently_connect(&context.address()?).await?,
        job: args.job,
        ask: LogAsk {
            from: 0,
            follow: args.follow,
            tail: args.tail,
        },
        run: None,
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
}

/// Why there is nothing to read now.
enum Not {
    /// The job has not begun to run.
    Begun(CliError),
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
                Err(Not::Begun(error) | Not::There(error)) => return Err(error),
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
        let way = match self.client.open_log(request(&self.job)).await {
            Ok(way) => way.into_inner(),
            Err(status) if status.code() == Code::FailedPrecondition => {
                return Err(Not::Begun(status.into()));
            }
            Err(status) if wait::is_passing(status.code()) => return Err(Not::Reached(status.into())),
            Err(status) => return Err(Not::There(status.into())),
        };
        let job = self.job().await.map_err(Not::There)?;
        let mut socket = self.dial(way, &job).await?;
        if self.run != Some(job.restarts) {
            self.run = Some(job.restarts);
            self.ask.from = 0;
        }
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

    async fn dial(&self, way: v1::OpenStreamResponse, job: &v1::Job) -> Result<Socket, Not> {
        let wrong = |_| {
            Not::There(CliError::failed(
                "the broker's ticket has a secret of the wrong length",
            ))
        };
        let ticket = Ticket {
            content: way.ticket,
            secret: way.secret.try_into().map_err(wrong)?,
        };
        let mut why = "no gateway is up".to_owned();
        for endpoint in way.endpoints {
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
                    let error = CliError::failed(text).hint(hint(job));
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
        Err(Not::Reached(CliError::failed(why).hint(hint(job))))
    }

    fn print(&mut self, part: &LogPart) -> Result<(), Not> {
        if self.ask.tail.take().is_none() && part.at > self.ask.from {
            let gap = part.at - self.ask.from;
            say(format_args!(
                "carrel: {gap} bytes are no longer kept here; the job's own file has them"
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

/// Where else the output is.
fn hint(job: &v1::Job) -> String {
    let file = job
        .batch
        .as_ref()
        .map(|batch| batch.stdout.clone())
        .unwrap_or_default();
    format!("its file is {file}, in its working directory")
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
