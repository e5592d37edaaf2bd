//! What users are told of their jobs by mail: each thing once, in Slurm's words, and only what they asked for.

use super::*;
use crate::model::batch::{Output as Files, Place};
use crate::model::mail::MailWish;

/// A world that sends mail, and what it has sent: "12 BEGIN", and so on.
struct Post {
    world: World,
    sent: Vec<Mail>,
}

impl Post {
    fn new(nodes: &[&str]) -> Self {
        let settings = Settings {
            mail: true,
            ..settings()
        };
        Self {
            world: World::with(settings, nodes),
            sent: Vec::new(),
        }
    }

    fn must(&mut self, input: Input) -> Reply {
        let output = self.world.must(input);
        self.sent.extend(output.mails);
        output.reply
    }

    fn submit(&mut self, types: &str, array: Option<&str>) -> JobId {
        let mut spec = gpus(8);
        spec.request.nvlink = false;
        spec.request.cpus_per_node = 1;
        spec.time_limit = Duration::from_mins(100);
        let request = SubmitJob {
            name: "train".to_owned(),
            spec,
            command: vec!["python".into()],
            script: None,
            output: Files::default(),
            submitted_from: Place::default(),
            comment: String::new(),
            request_key: String::new(),
            array: array.map(|text| text.parse().expect("tasks")),
            requeue: true,
            mail: Some(MailWish {
                types: types.parse().expect("types"),
                to: "alice@example.org".to_owned(),
            }),
            start: StartWish::default(),
        };
        match self.must(Input::SubmitJob(caller("alice"), Box::new(request))) {
            Reply::Job(id) => id,
            other => panic!("no job: {other:?}"),
        }
    }

    /// What the node n1 says of a job.
    fn see(&mut self, id: JobId, phase: ObservedPhase, exit_code: Option<i32>) {
        let mut seen = self.world.seen(id, "n1", phase);
        if phase == ObservedPhase::Released && exit_code.is_some() {
            (seen.cause, seen.exit_code) = (Some(EndCause::Exited), exit_code);
        }
        self.world.seq += 1;
        let state = self.world.broker.state();
        let observed = Observed {
            node: node("n1"),
            boot_id: "boot".into(),
            seq: self.world.seq,
            accepted: Some((state.cluster.id.clone(), state.cluster.incarnation)),
            generation: state.links.get(&node("n1")).map_or(0, |link| link.generation),
            inventory: inventory("n1"),
            jobs: vec![seen],
            version: "0.1.0".into(),
            images: vec![],
            activity: BTreeMap::new(),
        };
        self.must(Input::Observed(Arc::new(observed)));
    }

    fn run(&mut self, id: JobId, minutes: u64, exit_code: i32) {
        self.see(id, ObservedPhase::Ready, None);
        self.world.wait(Duration::from_mins(minutes));
        self.see(id, ObservedPhase::Released, Some(exit_code));
    }

    fn subjects(&mut self) -> Vec<String> {
        std::mem::take(&mut self.sent)
            .into_iter()
            .map(|mail| mail.subject)
            .collect()
    }

    /// The task that holds something.
    fn running(&self) -> JobId {
        let held = &self.world.broker.state().placed_on[&node("n1")];
        *held.iter().next().expect("one runs")
    }
}

#[test]
fn a_job_is_told_of_in_slurms_words() {
    let mut post = Post::new(&["n1"]);
    let id = post.submit("ALL", None);
    assert!(post.sent.is_empty(), "nothing has happened yet");
    post.run(id, 61, 0);
    let begin = post.sent[0].clone();
    assert_eq!((begin.to.as_str(), begin.job), ("alice@example.org", id));
    for prefix in ["SLURM", "CARREL"] {
        let value = |name: &str| begin.env.get(&format!("{prefix}_{name}")).map(String::as_str);
        assert_eq!(value("JOB_ID"), Some(id.to_string().as_str()));
        assert_eq!(
            (value("JOB_MAIL_TYPE"), value("JOB_USER")),
            (Some("BEGIN"), Some("alice"))
        );
        assert_eq!(
            (value("JOB_NODELIST"), value("JOB_EXIT_CODE")),
            (Some("n1"), None)
        );
    }
    assert_eq!(
        post.subjects(),
        [
            format!("Slurm Job_id={id} Name=train Began, Queued time 00:00:00"),
            format!("Slurm Job_id={id} Name=train Ended, Run time 01:01:00, COMPLETED, ExitCode 0"),
        ]
    );
    post.must(Input::RequeueJob(caller("alice"), id.into()));
    post.run(id, 2, 3);
    assert_eq!(
        post.subjects(),
        [
            format!("Slurm Job_id={id} Name=train Requeued, Run time 01:01:00"),
            format!("Slurm Job_id={id} Name=train Began, Queued time 01:01:00"),
            format!("Slurm Job_id={id} Name=train Failed, Run time 00:02:00, FAILED, ExitCode 3"),
        ]
    );
}

#[test]
fn only_what_is_asked_for_is_sent_and_only_where_it_can_be() {
    let mut post = Post::new(&["n1"]);
    let only_end = post.submit("END", None);
    post.run(only_end, 1, 1);
    assert_eq!(post.subjects().len(), 1, "who asks for ends hears of failures");
    let only_fail = post.submit("FAIL", None);
    post.run(only_fail, 1, 0);
    let none = post.submit("NONE", None);
    post.run(none, 1, 1);
    assert!(post.subjects().is_empty());
    post.world.broker.state.settings.mail = false;
    let all = post.submit("ALL", None);
    post.run(all, 1, 0);
    assert!(post.subjects().is_empty(), "there is no program");
}

/// Time that runs out is told of as it does, once, over a restart of the broker as well.
#[test]
fn time_that_runs_out_is_told_of() {
    let mut post = Post::new(&["n1"]);
    let id = post.submit("TIME_LIMIT,TIME_LIMIT_90,TIME_LIMIT_80,TIME_LIMIT_50", None);
    post.see(id, ObservedPhase::Ready, None);
    let (mut told, mut restarted) = (Vec::new(), false);
    let start = post.world.now;
    while let Some(at) = post
        .world
        .broker
        .next_deadline()
        .filter(|at| *at <= start.after(Duration::from_mins(101)))
    {
        post.world.now = at.max(post.world.now);
        post.must(Input::Tick);
        post.see(id, ObservedPhase::Ready, None);
        let minutes = post.world.now.since(start).as_secs() / 60;
        told.extend(post.subjects().into_iter().map(|subject| (minutes, subject)));
        if post.world.state(id) == JobState::Completing {
            break;
        }
        if told.len() == 2 && !restarted {
            restarted = true;
            // A broker that starts anew does not tell of it again.
            let settings = Settings {
                mail: true,
                ..settings()
            };
            post.world.restart_with(settings, 11);
            post.see(id, ObservedPhase::Ready, None);
        }
        post.world.now = post.world.now.after(Duration::from_secs(1));
    }
    let told: Vec<(u64, &str)> = told
        .iter()
        .map(|(at, subject)| {
            let (_, what) = subject.split_once("Name=train ").expect("its name");
            (*at, what.split(',').next().expect("words"))
        })
        .collect();
    assert_eq!(
        told,
        [
            (50, "Reached 50% of time limit"),
            (80, "Reached 80% of time limit"),
            (90, "Reached 90% of time limit"),
            (100, "Reached time limit"),
        ]
    );
}

/// An array is told of as a whole, unless each of its tasks is asked for.
#[test]
fn an_array_begins_once_and_ends_once() {
    let mut post = Post::new(&["n1"]);
    let array = post.submit("BEGIN,END,FAIL", Some("0-2"));
    for code in [0, 4, 0] {
        let task = post.running();
        post.run(task, 1, code);
    }
    let told = post.subjects();
    let whole = format!("Slurm Array Summary Job_id={array}_* (");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|subject| subject.starts_with(&whole)), "{told:?}");
    assert!(told[0].contains(" Began"), "{told:?}");
    assert!(
        told[1].contains(" Failed, Run time 00:01:00, Mixed, ExitCode [0-4]"),
        "{told:?}"
    );
    let array = post.submit("END,ARRAY_TASKS", Some("0-1"));
    for _ in 0..2 {
        let task = post.running();
        post.run(task, 1, 0);
    }
    let told = post.subjects();
    for (index, subject) in told.iter().enumerate() {
        assert!(
            subject.starts_with(&format!("Slurm Array Task Job_id={array}_{index} (")),
            "{told:?}"
        );
    }
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn what_mail_is_sent_can_be_changed_while_a_job_waits_or_runs() {
    let mut told = Post::new(&["n1"]);
    let id = told.submit("BEGIN,TIME_LIMIT_50", None);
    let change = |types: Option<&str>, to: Option<&str>| {
        let mail = MailEdit {
            types: types.map(|text| text.parse().expect("types")),
            to: to.map(str::to_owned),
        };
        let update = JobUpdate {
            mail: Some(mail),
            ..JobUpdate::default()
        };
        Input::UpdateJob(caller("alice"), id.into(), update)
    };
    told.must(change(None, Some("bob@example.org")));
    told.see(id, ObservedPhase::Ready, None);
    let sent: Vec<&str> = told.sent.iter().map(|mail| mail.to.as_str()).collect();
    assert_eq!(sent, ["bob@example.org"]);
    // Of what is over of its time nobody hears who has taken it back; of its end, who has asked for it.
    told.must(change(Some("END"), None));
    assert_eq!(told.world.broker.state().time_parts.len(), 0);
    told.must(change(Some("TIME_LIMIT_80"), Some("")));
    assert_eq!(told.world.broker.state().time_parts.len(), 1);
    told.must(change(Some("NONE"), None));
    assert_eq!(told.world.broker.state().time_parts.len(), 0);
    assert!(
        told.world
            .job(id)
            .batch
            .as_ref()
            .is_some_and(|batch| batch.mail.is_none())
    );
    let wrong = told
        .world
        .handle(change(None, Some("two words")))
        .expect_err("nobody");
    assert!(wrong.message.contains("two words"), "{}", wrong.message);
    let mut small = gpus(0);
    small.request.nvlink = false;
    let (_, session) = told.world.open("alice", open("dev", small));
    let update = JobUpdate {
        mail: Some(MailEdit::default()),
        ..JobUpdate::default()
    };
    let wrong = told
        .world
        .handle(Input::UpdateJob(caller("alice"), session.into(), update));
    assert!(wrong.expect_err("no batch job").message.contains("no batch job"));
}
