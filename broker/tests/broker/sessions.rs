//! A session's life, from the request to the ticket and the end.

use carrel_proto::stream::{parse_ticket, ticket_secret};
use carrel_proto::v1::{self, ObservedPhase, SessionState};
use tonic::Code;

use crate::agent::{Agent, join, request};
use crate::daemon::{Daemon, PATIENCE, by_name, hint, open};

const HOST_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

async fn enroll(broker: &Daemon, name: &str) {
    let (_, csr_der) = request();
    let request = v1::EnrollRequest {
        name: name.into(),
        csr_der,
        ssh_host_public_key: HOST_KEY.into(),
        link: "https://127.0.0.1:1".into(),
        streams: "127.0.0.1:2".into(),
        ssh: "127.0.0.1:3".into(),
        client_streams: vec!["unix:/nowhere/s.sock".into(), "127.0.0.1:2".into()],
    };
    let answer = broker
        .control()
        .await
        .enroll(request)
        .await
        .expect("enrolled")
        .into_inner();
    assert_eq!(answer.stream_key.len(), 32);
    assert!(answer.certificate_pem.contains("BEGIN CERTIFICATE"));
    assert!(
        answer
            .ssh_host_certificate
            .starts_with("ssh-ed25519-cert-v01@openssh.com ")
    );
    assert_eq!(answer.user_cas.len(), 1);
}

/// Brings the one job that the agent is to hold to READY.
async fn make_ready(agent: &mut Agent) -> v1::DesiredJob {
    let desired = agent
        .hear_until("a job", |desired| !desired.jobs.is_empty())
        .await;
    let job = desired.jobs[0].clone();
    agent.hold(&job, ObservedPhase::Ready, "");
    agent.observed.jobs[0].host_public_key = HOST_KEY.into();
    agent.say().await;
    agent
        .hear_until("go, and a host certificate", |desired| {
            desired.jobs.iter().any(|job| {
                job.go
                    && job
                        .ssh
                        .as_ref()
                        .is_some_and(|ssh| ssh.host_certificate.contains("-cert-v01@"))
            })
        })
        .await
        .jobs
        .remove(0)
}

#[tokio::test]
async fn a_session_opens_runs_gives_tickets_and_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut client = broker.client().await;
    let mut agent = join(&broker, "n1").await.link(&broker).await.expect("linked");
    let first = agent.exchange().await;
    assert!(first.jobs.is_empty() && first.lease_ms == 600_000);

    let opened = client
        .open_session(open("dev", 4))
        .await
        .expect("opened")
        .into_inner();
    assert!(opened.started);
    let session = opened.session.expect("a session");
    assert_eq!(
        (session.name.as_str(), session.host_principal.as_str()),
        ("dev", "dev.root.carrel")
    );
    let mut watch = client
        .watch_session(by_name("dev"))
        .await
        .expect("watched")
        .into_inner();

    // Not ready: no ticket, and its progress is to be seen.
    let desired = agent
        .hear_until("a job", |desired| !desired.jobs.is_empty())
        .await;
    let job = desired.jobs[0].clone();
    let identity = job.identity.clone().expect("an identity");
    assert_eq!(
        (identity.name.as_str(), identity.uid, job.gpus.len()),
        ("root", 0, 4)
    );
    let stream = v1::OpenStreamRequest {
        name: "dev".into(),
        rank: 0,
        job: 0,
    };
    let refused = client.open_stream(stream.clone()).await.expect_err("not ready");
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::FailedPrecondition, "session dev is not ready yet")
    );
    agent.hold(&job, ObservedPhase::Preparing, "pulling image, 34 %");
    agent.say().await;
    let mut seen = Vec::new();
    loop {
        let next = tokio::time::timeout(PATIENCE, watch.message())
            .await
            .expect("a change");
        let next = next.expect("no error").expect("not the end");
        seen.push(next.state());
        if next
            .job
            .is_some_and(|job| job.nodes.iter().any(|node| node.progress.contains("34 %")))
        {
            break;
        }
    }
    assert_eq!(seen.last(), Some(&SessionState::Starting), "{seen:?}");

    let ready = make_ready(&mut agent).await;
    let ssh = ready.ssh.expect("access rules");
    // The user, and the job's own steps.
    let [user, own] = &ssh.principals[..] else {
        panic!("{:?}", ssh.principals)
    };
    assert_eq!((user.as_str(), ssh.user_cas.len()), ("root", 1));
    assert!(own.starts_with("job/1@"), "{own}");
    loop {
        let next = tokio::time::timeout(PATIENCE, watch.message())
            .await
            .expect("a change");
        if next.expect("no error").expect("not the end").state() == SessionState::Running {
            break;
        }
    }

    // Tickets need a gateway; then they say where the session is, and prove themselves.
    let refused = client.open_stream(stream.clone()).await.expect_err("no gateway");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(hint(&refused).contains("gateway"));
    enroll(&broker, "gw").await;
    let desired = agent
        .hear_until("the gateway", |desired| !desired.gateways.is_empty())
        .await;
    assert_eq!(desired.gateways[0].streams, "127.0.0.1:2");
    let answer = client.open_stream(stream).await.expect("a ticket").into_inner();
    assert_eq!(answer.endpoints, ["unix:/nowhere/s.sock", "127.0.0.1:2"]);
    assert_eq!(answer.host_principal, "dev.root.carrel");
    let key = std::fs::read(broker.state.join("stream.key")).expect("a key");
    assert_eq!(ticket_secret(&key, &answer.ticket).to_vec(), answer.secret);
    let (_, ticket) = parse_ticket(&answer.ticket).expect("a ticket");
    assert_eq!(
        (ticket.node.as_str(), ticket.job, ticket.generation),
        ("n1", job.job, job.generation)
    );
    let beyond = v1::OpenStreamRequest {
        name: "dev".into(),
        rank: 1,
        job: 0,
    };
    assert_eq!(
        client.open_stream(beyond).await.expect_err("one rank").code(),
        Code::InvalidArgument
    );

    // Removed: the watch tells the last, and ends.
    client
        .remove_session(v1::RemoveSessionRequest { name: "dev".into() })
        .await
        .expect("wished");
    agent
        .hear_until("a tombstone", |desired| !desired.tombstones.is_empty())
        .await;
    agent.observed.jobs[0].phase = ObservedPhase::Released.into();
    agent.observed.jobs[0].cause = v1::EndCause::Tombstone.into();
    agent.say().await;
    let mut last = None;
    while let Some(next) = tokio::time::timeout(PATIENCE, watch.message())
        .await
        .expect("a change")
        .expect("no error")
    {
        last = Some(next);
    }
    let last = last.expect("a last state");
    assert_eq!(last.state(), SessionState::Stopped);
    assert!(last.job.expect("its job").ended_ms.is_some());
    let gone = client.get_session(by_name("dev")).await.expect_err("gone");
    assert_eq!(gone.code(), Code::NotFound);
    agent
        .hear_until("the kept changes' removal", |desired| {
            !desired.removed_sessions.is_empty()
        })
        .await;
}

/// A name that was made up is used once: stopping it removes it, and still says what became of it.
#[tokio::test]
async fn an_unnamed_session_goes_with_its_job() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut client = broker.client().await;
    let mut agent = join(&broker, "n1").await.link(&broker).await.expect("linked");
    agent.exchange().await;
    let mut all = open("", 8);
    all.request_key = "key".into();
    let first = client
        .open_session(all.clone())
        .await
        .expect("opened")
        .into_inner();
    let again = client.open_session(all).await.expect("opened").into_inner();
    let (first, again) = (first.session.expect("one"), again.session.expect("one"));
    assert!(first.ephemeral && first.name.starts_with("alloc-"));
    assert_eq!(first.id, again.id, "one key has one effect");

    // Every GPU is held: the next waits, says why and where it stands.
    let waiting = client
        .open_session(open("", 1))
        .await
        .expect("accepted")
        .into_inner();
    let waiting = waiting.session.expect("one");
    let job = waiting.job.clone().expect("a job");
    assert_eq!((waiting.state(), job.queue_position), (SessionState::Pending, 1));
    assert!(waiting.reason.starts_with("Resources"), "{}", waiting.reason);
    let why = client
        .explain_job(v1::GetJobRequest {
            id: job.id,
            ..Default::default()
        })
        .await
        .expect("explained")
        .into_inner();
    assert!(!why.refusals.is_empty(), "{why:?}");
    let jobs = client
        .list_jobs(v1::ListJobsRequest {
            all_users: true,
            ended: false,
        })
        .await;
    assert_eq!(jobs.expect("listed").into_inner().jobs.len(), 2);

    let stopped = client
        .stop_session(v1::StopSessionRequest {
            name: waiting.name.clone(),
            job: 0,
            exit_code: None,
        })
        .await;
    let stopped = stopped.expect("stopped").into_inner();
    assert_eq!(stopped.job.expect("a job").state(), v1::JobState::Cancelled);
    let gone = client
        .get_session(by_name(&waiting.name))
        .await
        .expect_err("gone");
    assert_eq!(gone.code(), Code::NotFound);
}

/// A restart of the broker disturbs nothing: the session runs on, and is known.
#[tokio::test]
async fn a_running_session_survives_the_brokers_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("s");
    let broker = Daemon::start(&state, &[]).await;
    let host = join(&broker, "n1").await;
    let mut agent = host.link(&broker).await.expect("linked");
    agent.exchange().await;
    enroll(&broker, "gw").await;
    broker
        .client()
        .await
        .open_session(open("dev", 2))
        .await
        .expect("opened");
    let job = make_ready(&mut agent).await;
    let before = agent.observed.clone();
    broker.kill();

    let broker = Daemon::start(&state, &[]).await;
    let mut agent = host.link(&broker).await.expect("linked again");
    agent.observed = before;
    let desired = agent.exchange().await;
    assert!(desired.tombstones.is_empty(), "{desired:?}");
    assert_eq!(
        (desired.jobs[0].job, desired.jobs[0].generation),
        (job.job, job.generation)
    );
    assert_eq!(desired.gateways.len(), 1, "gateways are remembered");
    let session = broker
        .client()
        .await
        .get_session(by_name("dev"))
        .await
        .expect("there")
        .into_inner();
    assert_eq!(session.state(), SessionState::Running);
}
