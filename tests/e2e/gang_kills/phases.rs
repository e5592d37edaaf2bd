//! Somebody is killed in each phase of a gang's life, and started again: the gang notices nothing of it.

use carrel_tests::cluster::Cluster;
use carrel_tests::gates::Verb;
use carrel_tests::user::{ALICE, ROOT};
use serde_json::{Value, json};

use super::{answers, first, hosts, left, read, submit, touch, until};
use crate::processes::ssh_servers;

const NODES: usize = 3;
/// The node that is held up where one is.
const HELD: usize = 1;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The agent of the node that runs the script.
    First,
    /// The agent of another one: the one that is held up.
    Other,
    Broker,
    /// All agents and the broker.
    All,
}

impl Victim {
    fn agents(self) -> &'static [usize] {
        match self {
            Self::First => &[0],
            Self::Other => &[HELD],
            Self::Broker => &[],
            Self::All => &[0, 1, 2],
        }
    }

    fn is_broker(self) -> bool {
        matches!(self, Self::Broker | Self::All)
    }
}

/// How far a gang is when somebody dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has its nodes, and these have not heard of it.
    Granted,
    /// A node has just noted that it holds what it is given.
    Noted,
    /// One of its containers is being made; the others wait for it.
    Making,
    /// One of its containers is made, and about to begin.
    Starting,
    /// All of its containers are ready, and the broker has not heard of the last one.
    Barrier,
    /// Its script runs.
    Running,
    /// A step over all nodes begins, and one of these does not answer.
    Launching,
    /// Tasks run on all nodes.
    Stepping,
    /// Its script is over; the first node and another are being cleared.
    Ending,
    /// Its script is over, its first node is being cleared, and no broker hears of it before that is done.
    Unheard,
    /// It is to run again, and one node is still being cleared.
    Requeued,
    /// It is cancelled while one of its containers is being made.
    Unwound,
}

impl Phase {
    const EVERY: [Self; 12] = [
        Self::Granted,
        Self::Noted,
        Self::Making,
        Self::Starting,
        Self::Barrier,
        Self::Running,
        Self::Launching,
        Self::Stepping,
        Self::Ending,
        Self::Unheard,
        Self::Requeued,
        Self::Unwound,
    ];

    fn has_step(self) -> bool {
        matches!(self, Self::Launching | Self::Stepping)
    }

    /// The script's own exit code, of those that mean something else elsewhere: carrel-init's for the end of a lease, none.
    fn code(self) -> i32 {
        match self {
            Self::Unheard => 75,
            Self::Ending => 0,
            _ => 3,
        }
    }

    /// What the job is in the end: its state, its exit code, and how often it ran again.
    fn outcome(self) -> (&'static str, Value, u64) {
        match self {
            Self::Unwound => ("CANCELLED", Value::Null, 0),
            Self::Requeued => ("FAILED", json!(self.code()), 1),
            Self::Ending => ("COMPLETED", json!(0), 0),
            _ => ("FAILED", json!(self.code()), 0),
        }
    }
}

/// One gang, and who dies.
struct Round<'a> {
    cluster: &'a mut Cluster,
    victim: Victim,
    phase: Phase,
    /// Of its files.
    name: String,
    id: String,
}

impl Round<'_> {
    fn said(&self, file: &str) -> String {
        read(self.cluster, &format!("{}.{file}", self.name))
    }

    fn tell(&self, file: &str) {
        touch(self.cluster, &format!("{}.{file}", self.name));
    }

    fn ready(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let label = format!("{:?}, {:?}: {what}", self.victim, self.phase);
        self.cluster.ready(&label, |_| condition(self));
    }

    fn submit(&mut self) {
        let name = &self.name;
        let step = "carrel run -N3 -n3 sh -c 'echo $SLURM_PROCID >> NAME.tasks; until [ -e NAME.over ]; do sleep 0.1; done'\n\
            echo step $? >> NAME.runs\n"
            .replace("NAME", name);
        let step = if self.phase.has_step() { step.as_str() } else { "" };
        let script = format!(
            "echo run $SLURM_RESTART_COUNT >> {name}.runs\nuntil [ -e {name}.go ]; do sleep 0.1; done\n{step}exit {}",
            self.phase.code()
        );
        let output = format!("{name}.out");
        let args = [
            "-N3",
            "--ntasks-per-node=1",
            "--gpus-per-node=8",
            "-J",
            name,
            "-o",
            &output,
        ];
        self.id = submit(self.cluster, &args, &script);
    }

    fn runs(&self) {
        self.ready("the script runs", |this| this.said("runs") == "run 0\n");
    }

    /// What a node's agent has noted of the job.
    fn noted(&self, node: usize) -> Value {
        let file = self.cluster.node_state(node).join("ledger.json");
        let ledger: Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap_or_default()).unwrap_or_default();
        let mut entries = ledger["entries"].as_array().into_iter().flatten();
        let own = |entry: &&Value| entry["key"]["job"] == self.id.parse::<u64>().expect("an id");
        entries.rfind(own).cloned().unwrap_or_default()
    }

    fn others_are_up(&self) {
        self.ready("the others are up", |this| {
            ssh_servers(this.cluster).len() == NODES - 1
        });
    }

    /// Brings the gang so far, and holds it there.
    fn hold(&mut self) {
        let gates = self.cluster.gates();
        match self.phase {
            Phase::Granted => {
                for agent in &self.cluster.agents {
                    agent.stand_still();
                }
                self.submit();
                until(self.cluster, &self.id, "CONFIGURING");
            }
            Phase::Noted => {
                self.submit();
                self.ready("it is noted", |this| !this.noted(HELD).is_null());
            }
            Phase::Making | Phase::Starting | Phase::Unwound => {
                let verb = if self.phase == Phase::Starting {
                    Verb::Start
                } else {
                    Verb::Create
                };
                gates.shut(HELD, verb);
                self.submit();
                gates.reached(HELD, verb);
                self.others_are_up();
                if self.phase == Phase::Unwound {
                    self.cluster.carrel(ALICE, ["cancel", &self.id]).ok();
                    self.ready("the others are gone", |this| ssh_servers(this.cluster).is_empty());
                    until(self.cluster, &self.id, "COMPLETING");
                }
            }
            Phase::Barrier => {
                gates.shut(HELD, Verb::Start);
                self.submit();
                gates.reached(HELD, Verb::Start);
                self.others_are_up();
                self.cluster.broker.stand_still();
                gates.open(HELD, Verb::Start);
                self.ready("all are ready", |this| this.noted(HELD)["stage"] == "Ready");
            }
            Phase::Running => {
                self.submit();
                self.runs();
            }
            Phase::Launching => {
                self.submit();
                self.runs();
                self.cluster.agents[HELD].stand_still();
                self.tell("go");
                self.ready("its first node is ready for the step", Round::launches);
            }
            Phase::Stepping => {
                self.submit();
                self.runs();
                self.tell("go");
                self.ready("all tasks run", |this| {
                    this.said("tasks").lines().count() == NODES
                });
            }
            Phase::Ending => {
                self.submit();
                self.runs();
                gates.shut(0, Verb::Delete);
                gates.shut(HELD, Verb::Delete);
                self.tell("go");
                gates.reached(0, Verb::Delete);
                gates.reached(HELD, Verb::Delete);
            }
            Phase::Unheard => {
                self.submit();
                self.runs();
                gates.shut(0, Verb::Delete);
                self.cluster.broker.kill9();
                self.tell("go");
                gates.reached(0, Verb::Delete);
            }
            Phase::Requeued => {
                self.submit();
                self.runs();
                gates.shut(HELD, Verb::Delete);
                self.cluster.carrel(ALICE, ["requeue", &self.id]).ok();
                gates.reached(HELD, Verb::Delete);
                until(self.cluster, &self.id, "COMPLETING");
            }
        }
    }

    /// Whether the step's own programs run.
    fn launches(&self) -> bool {
        let look = "grep -lz '^step-node$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
        self.cluster.cmd(ROOT, "sh").args(["-c", look]).ok() != "0"
    }

    fn links(&self, node: usize) -> usize {
        self.cluster.agents[node]
            .log()
            .matches("linked to the broker")
            .count()
    }

    fn kill(&mut self) {
        let links: Vec<usize> = (0..NODES).map(|node| self.links(node)).collect();
        for node in self.victim.agents() {
            self.cluster.agents[*node].kill9();
        }
        let broker_dies = self.victim.is_broker() || self.phase == Phase::Unheard;
        if broker_dies {
            self.cluster.broker.kill9();
        }
        for node in self.victim.agents() {
            self.cluster.agents[*node].restart();
        }
        if self.phase == Phase::Unheard {
            self.cluster.gates().open(0, Verb::Delete);
            self.ready("its first node is cleared", |this| {
                this.noted(0)["stage"] == "Released"
            });
        }
        if broker_dies {
            self.cluster.broker.restart();
            answers(self.cluster);
        }
        // Who stands still hears of nobody; and what watches over a container answers nobody while it starts or ends it.
        let unheard = self.phase == Phase::Barrier && !broker_dies;
        let busy = matches!(self.phase, Phase::Starting | Phase::Ending | Phase::Requeued);
        if !unheard && !busy {
            self.ready("the new ones work", |this| {
                let mut agents = this.victim.agents().iter();
                agents.all(|node| this.links(*node) > links[*node])
            });
        }
    }

    /// Lets the gang go on to its end.
    fn release(&self) {
        let early = matches!(
            self.phase,
            Phase::Granted | Phase::Making | Phase::Starting | Phase::Barrier | Phase::Unwound
        );
        if early && self.phase != Phase::Barrier {
            assert_eq!(
                self.said("runs"),
                "",
                "{:?}, {:?}: it runs before all are ready",
                self.victim,
                self.phase
            );
        }
        self.cluster.broker.go_on();
        for agent in &self.cluster.agents {
            agent.go_on();
        }
        let gates = self.cluster.gates();
        for node in 0..NODES {
            for verb in [Verb::Create, Verb::Start, Verb::Delete] {
                gates.open(node, verb);
            }
        }
        self.tell("go");
        self.tell("over");
    }

    fn look_at_the_end(&self) {
        let label = format!("{:?}, {:?}", self.victim, self.phase);
        let (state, code, restarts) = self.phase.outcome();
        let job = until(self.cluster, &self.id, state);
        assert_eq!(
            (&job["exit_code"], &job["restarts"]),
            (&code, &json!(restarts)),
            "{label}: {job}"
        );
        let mut runs: String = match self.phase {
            Phase::Unwound => String::new(),
            _ => (0..=restarts).map(|run| format!("run {run}\n")).collect(),
        };
        if self.phase.has_step() {
            runs += "step 0\n";
            let mut tasks: Vec<_> = self.said("tasks").lines().map(str::to_owned).collect();
            tasks.sort_unstable();
            assert_eq!(tasks, ["0", "1", "2"], "{label}");
        }
        assert_eq!(self.said("runs"), runs, "{label}: {job}");
        let reason = job["reason"].as_str().unwrap_or_default();
        match state {
            "FAILED" => assert_eq!(
                reason,
                format!("its command ended with exit code {code} (node n0)"),
                "{label}"
            ),
            "COMPLETED" => assert!(reason.contains("its command ended (node n0)"), "{label}: {job}"),
            _ => assert!(reason.contains("alice"), "{label}: {job}"),
        }
        self.agree(&label, state, &code);
    }

    /// History and sacct say the same.
    fn agree(&self, label: &str, state: &str, code: &Value) {
        let history = self.cluster.json(ROOT, ["history", "-a", &self.id]);
        assert_eq!(
            (&history[0]["state"], &history[0]["exit_code"]),
            (&json!(state), code),
            "{label}: {history}"
        );
        let sacct = "exec -a sacct carrel -nPX -j $0 -o state,exitcode,nnodes";
        let said = self.cluster.cmd(ALICE, "bash").args(["-c", sacct, &self.id]).ok();
        let exit = code.as_i64().unwrap_or(0);
        let shown = match state {
            // By whom, too.
            "CANCELLED" => said.starts_with("CANCELLED by"),
            _ => said == format!("{state}|{exit}:0|{NODES}"),
        };
        assert!(shown, "{label}: {said}");
    }
}

fn in_each_phase(victim: Victim) {
    let mut cluster = hosts(NODES, &[]);
    let before = first(&cluster, NODES);
    for phase in Phase::EVERY {
        let mut round = Round {
            cluster: &mut cluster,
            victim,
            phase,
            name: format!("{phase:?}"),
            id: String::new(),
        };
        round.hold();
        round.kill();
        round.release();
        round.look_at_the_end();
        // The next one gets all GPUs of all nodes, and this one holds nothing twice.
        left::nothing(&cluster, &format!("{victim:?}, {phase:?}"), &before);
    }
}

#[test]
fn the_first_nodes_agent_is_killed() {
    in_each_phase(Victim::First);
}

#[test]
fn another_nodes_agent_is_killed() {
    in_each_phase(Victim::Other);
}

#[test]
fn the_broker_is_killed() {
    in_each_phase(Victim::Broker);
}

#[test]
fn all_are_killed() {
    in_each_phase(Victim::All);
}
