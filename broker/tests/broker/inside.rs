//! What comes from inside a job, as its node's agent relays it; and who else tries to speak so.

use carrel_core::broker::{Call, Inside};
use carrel_proto::inside::HEADER;
use carrel_proto::v1::{self, ObservedPhase};
use tonic::Code;

use crate::agent::{Agent, Host, join};
use crate::daemon::{Daemon, TokenClient, by_name, hint, open, with_headers};
use crate::rights::make;

/// A cluster of two nodes; alice's "dev" runs on the first, and her "other" waits.
struct World {
    broker: Daemon,
    hosts: [Host; 2],
    agents: [Agent; 2],
    job: v1::DesiredJob,
    /// As the header names it.
    key: String,
}

impl World {
    async fn start(state: &std::path::Path) -> Self {
        let broker = Daemon::start(state, &[]).await;
        let hosts = [join(&broker, "n1").await, join(&broker, "n2").await];
        let mut agents = [
            hosts[0].link(&broker).await.expect("linked"),
            hosts[1].link(&broker).await.expect("linked"),
        ];
        let mut alice = broker.user("alice", 70_001).await;
        // Only n1 is there yet: that is where the first goes.
        agents[0].exchange().await;
        alice.open_session(open("dev", 8)).await.expect("opened");
        let told = agents[0]
            .hear_until("a job", |desired| !desired.jobs.is_empty())
            .await;
        let job = told.jobs[0].clone();
        agents[0].hold(&job, ObservedPhase::Ready, "");
        agents[0].exchange().await;
        agents[1].exchange().await;
        alice.open_session(open("other", 8)).await.expect("opened");
        let key = key(job.job, job.generation);
        Self {
            broker,
            hosts,
            agents,
            job,
            key,
        }
    }

    /// The users' API, as a node's agent relays it.
    async fn relayed(&self, host: &Host, key: &str) -> TokenClient {
        let channel = self.broker.tls(Some(host.identity())).await.expect("connected");
        with_headers(channel, &[(HEADER, key)])
    }
}

fn key(job: u64, generation: u64) -> String {
    use carrel_core::model::ids::{Generation, JobId, JobKey};
    JobKey {
        job: JobId(job),
        generation: Generation(generation),
    }
    .to_string()
}

#[tokio::test]
async fn a_job_sees_extends_and_stops_itself_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = World::start(&dir.path().join("s")).await;
    let mut inside = world.relayed(&world.hosts[0], &world.key).await;

    let me = inside.get_cluster(v1::GetClusterRequest {}).await.expect("known");
    assert_eq!(me.into_inner().user.expect("somebody").name, "alice");
    let sessions = inside
        .list_sessions(v1::ListSessionsRequest { all_users: true })
        .await
        .expect("listed")
        .into_inner()
        .sessions;
    let names: Vec<_> = sessions.iter().map(|session| session.name.as_str()).collect();
    assert_eq!(names, ["dev"]);
    let everything = v1::ListJobsRequest {
        all_users: true,
        ended: true,
    };
    let jobs = inside
        .list_jobs(everything)
        .await
        .expect("listed")
        .into_inner()
        .jobs;
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [world.job.job]);
    let before = jobs[0].deadline_ms.expect("a deadline");
    let extend = |name: &str| v1::ExtendSessionRequest {
        name: name.into(),
        add_s: 3600,
    };
    let extended = inside.extend_session(extend("dev")).await.expect("extended");
    let after = extended.into_inner().job.expect("a job").deadline_ms;
    assert_eq!(after, Some(before + 3_600_000));

    for other in ["other", "#2", "other.alice", "none"] {
        let refusals = [
            inside.get_session(by_name(other)).await.expect_err("refused"),
            inside.extend_session(extend(other)).await.expect_err("refused"),
            inside
                .stop_session(v1::StopSessionRequest {
                    name: other.into(),
                    job: 0,
                    exit_code: None,
                })
                .await
                .expect_err("refused"),
        ];
        for refused in refusals {
            assert_eq!(refused.code(), Code::PermissionDenied, "{other}: {refused}");
            assert!(refused.message().contains("only that session"), "{refused}");
        }
    }
    for id in [2, 99] {
        let refused = inside
            .get_job(v1::GetJobRequest {
                id,
                ..Default::default()
            })
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    for call in Call::ALL {
        let refused = make(&mut inside, call).await;
        if call.needs().inside != Inside::No {
            continue;
        }
        let refused = refused.unwrap_or_else(|| panic!("{call:?} was possible"));
        assert_eq!(refused.code(), Code::PermissionDenied, "{call:?}: {refused}");
        assert!(
            refused.message().contains("inside a session"),
            "{call:?}: {refused}"
        );
        assert!(hint(&refused).contains("from outside"), "{call:?}: {refused:?}");
    }

    let stop = v1::StopSessionRequest {
        name: "dev".into(),
        job: world.job.job,
        exit_code: None,
    };
    inside.stop_session(stop).await.expect("stopped");
    world.agents[0]
        .hear_until("a tombstone", |desired| !desired.tombstones.is_empty())
        .await;
    // Its last moments.
    inside.get_session(by_name("dev")).await.expect("still there");
    world.agents[0].hold(&world.job, ObservedPhase::Released, "");
    world.agents[0].exchange().await;
    let gone = inside.get_session(by_name("dev")).await.expect_err("over");
    assert_eq!(gone.code(), Code::PermissionDenied);
    assert!(gone.message().contains("does not run on node n1"), "{gone}");

    let mut records = world
        .broker
        .client()
        .await
        .read_audit(v1::ReadAuditRequest::default())
        .await
        .expect("read")
        .into_inner();
    let mut origins = Vec::new();
    while let Some(record) = records.message().await.expect("a record") {
        if record.action == "denied" {
            origins.push((record.user, record.origin));
        }
    }
    let expected = format!("job {} on node n1", world.key);
    assert!(!origins.is_empty());
    assert!(
        origins
            .iter()
            .all(|(user, origin)| user == "alice" && *origin == expected),
        "{origins:?}"
    );
}

/// What a job may have for its steps opens its own containers and nothing else.
#[tokio::test]
async fn a_key_from_inside_opens_that_allocation_alone() {
    use russh::keys::{Algorithm, Certificate, PrivateKey};
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::start(&dir.path().join("s")).await;
    let mut inside = world.relayed(&world.hosts[0], &world.key).await;
    let key = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).expect("a key");
    let public_key = key.public_key().to_openssh().expect("text");
    let signed = inside
        .sign_ssh_key(v1::SignSshKeyRequest { public_key })
        .await
        .expect("signed")
        .into_inner();
    assert_eq!(signed.user, "alice");
    let certificate = Certificate::from_openssh(signed.certificate.trim()).expect("a certificate");
    let own = format!("job/{}", world.key);
    assert_eq!(certificate.valid_principals(), std::slice::from_ref(&own));
    // Her other session does not know it, and neither would this job's next allocation.
    let told = world.job.ssh.as_ref().expect("rules");
    assert!(told.principals.contains(&own), "{told:?}");
    let stream = |name: &str, job| v1::OpenStreamRequest {
        name: name.into(),
        rank: 0,
        job,
    };
    for (name, job) in [("other", 0), ("", 2), ("", 99)] {
        let refused = inside.open_stream(stream(name, job)).await.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{name} {job}: {refused}");
    }
    // Of its own it is told that no gateway is there.
    let own = inside
        .open_stream(stream("", world.job.job))
        .await
        .expect_err("no gateway");
    assert_eq!(own.code(), Code::Unavailable, "{own}");
    // Another user's token does not enter by the job's number either.
    let mut bob = world.broker.user("bob", 70_002).await;
    let refused = bob
        .open_stream(stream("", world.job.job))
        .await
        .expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}

#[tokio::test]
async fn only_the_node_of_an_allocation_speaks_for_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::start(&dir.path().join("s")).await;
    let own = by_name("dev");
    world
        .relayed(&world.hosts[0], &world.key)
        .await
        .get_session(own.clone())
        .await
        .expect("its own");

    let (job, generation) = (world.job.job, world.job.generation);
    for (host, key) in [
        (&world.hosts[1], world.key.clone()),
        (&world.hosts[0], key(job, generation - 1)),
        (&world.hosts[0], key(job, generation + 1)),
        (&world.hosts[0], key(job + 1, generation)),
        (&world.hosts[0], key(99, generation)),
    ] {
        let refused = world.relayed(host, &key).await.get_session(own.clone()).await;
        let refused = refused.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{} {key}", host.name);
        assert!(refused.message().contains("does not run on node"), "{refused}");
    }
    let senseless = world
        .relayed(&world.hosts[0], "dev")
        .await
        .get_session(own.clone())
        .await;
    assert_eq!(senseless.expect_err("refused").code(), Code::InvalidArgument);

    // Whoever is no node: without a token, with alice's own, and on the Unix socket.
    let token = world.broker.token("alice", v1::TokenScope::Full).await;
    let bearer = format!("Bearer {token}");
    let tls = world.broker.tls(None).await.expect("connected");
    let forgers = [
        with_headers(tls.clone(), &[(HEADER, &world.key)]),
        with_headers(tls, &[(HEADER, &world.key), ("authorization", &bearer)]),
        with_headers(world.broker.channel().await, &[(HEADER, &world.key)]),
    ];
    for mut forger in forgers {
        let refused = forger.get_session(own.clone()).await.expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        assert!(refused.message().contains("only the agent"), "{refused}");
    }
    // A node is nobody by itself.
    let channel = world
        .broker
        .tls(Some(world.hosts[0].identity()))
        .await
        .expect("connected");
    let refused = with_headers(channel, &[]).get_session(own.clone()).await;
    assert_eq!(refused.expect_err("refused").code(), Code::Unauthenticated);
}
