//! What users ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use carrel_core::broker::{Caller, OpenSession};
use carrel_core::model::constraints::{Constraints, Patience};
use carrel_core::model::ids::NodeName;
use carrel_core::model::resources::{ResourceRequest, UnitRequest};
use carrel_core::model::session::{ContainerOptions, SessionSpec};
use carrel_core::model::start::StartWish;
use carrel_core::model::terms::TermsRequest;

use super::outfit::{FEATURES, GPUS};
use super::rng::Rng;
use super::world::{GIVES_WAY, USERS, World, caller};

const NAMES: [&str; 4] = ["dev", "exp", "big", "notebook"];

impl World {
    pub(super) fn new_request(&mut self) -> (Caller, OpenSession) {
        let user = USERS[self.rng.below(USERS.len() as u64) as usize];
        let named = !self.rng.one_in(3);
        let name = NAMES[self.rng.below(NAMES.len() as u64) as usize];
        self.requests += 1;
        let nodes: Vec<NodeName> = self.nodes.values().map(|node| node.name.clone()).collect();
        let components = match self.rng.below(10) {
            0 | 1 => 2,
            2 => 3,
            _ => 1,
        };
        let mut all = (0..components).map(|_| component(&mut self.rng, &nodes));
        let mut request = all.next().unwrap_or_default();
        request.more = all.collect();
        let spec = SessionSpec {
            request: request.into(),
            image: String::new(),
            time_limit: Duration::from_mins(2 + self.rng.below(30)),
            env: BTreeMap::new(),
            workdir: String::new(),
            terms: TermsRequest {
                qos: self.rng.one_in(3).then(|| {
                    let low = GIVES_WAY[self.rng.below(GIVES_WAY.len() as u64) as usize];
                    low.parse().expect("a name")
                }),
                ..TermsRequest::default()
            },
            container: ContainerOptions::default(),
        };
        let request = OpenSession {
            name: named.then(|| name.parse().expect("a session name")),
            spec: Some(spec),
            must_start: self.rng.one_in(4),
            ephemeral: !named,
            request_key: format!("r{}", self.requests),
            start: StartWish::default(),
        };
        (caller(user), request)
    }
}

fn component(rng: &mut Rng, known: &[NodeName]) -> ResourceRequest {
    let exclusive = rng.one_in(8);
    let unit = match rng.below(12) {
        // Whole nodes come with whole GPUs.
        0..=3 if exclusive => UnitRequest::Whole,
        0 | 1 => UnitRequest::Mig("1g.10gb".into()),
        2 => UnitRequest::Mig("3g.40gb".into()),
        3 => UnitRequest::Share {
            milli: 1 + rng.below(900) as u16,
            sharing: None,
        },
        4 => UnitRequest::Least,
        _ => UnitRequest::Whole,
    };
    let nodes = match rng.below(12) {
        0..=5 => 1,
        6..=9 => 2,
        10 => 3,
        _ => 4,
    };
    let nvlink = unit == UnitRequest::Whole && rng.one_in(3);
    let patience = |rng: &mut Rng| rng.one_in(2).then(|| Duration::from_secs(30 + rng.below(300)));
    ResourceRequest {
        nodes,
        // Sometimes more than there is.
        gpus_per_node: match rng.below(20) {
            0 => GPUS + 1,
            other => (other % u64::from(GPUS)) as u32 + rng.below(2) as u32,
        },
        gpu_memory_bytes: match unit {
            UnitRequest::Least => (5 + rng.below(75)) << 30,
            UnitRequest::Whole | UnitRequest::Mig(_) | UnitRequest::Share { .. } => 0,
        },
        gpu_model: String::new(),
        nvlink,
        unit,
        cpus_per_node: rng.below(9) as u32,
        memory_bytes_per_node: rng.below(64) << 30,
        exclusive,
        all_memory: rng.one_in(10),
        constraints: constraints(rng, nodes, known),
        patience: Patience {
            nvlink: patience(rng),
            switches: patience(rng),
        },
        more: Vec::new(),
    }
}

fn constraints(rng: &mut Rng, nodes: u32, known: &[NodeName]) -> Constraints {
    let mut constraints = Constraints::default();
    if nodes > 1 {
        if rng.one_in(3) {
            constraints.switches = 1 + rng.below(2) as u32;
        }
        if rng.one_in(4) {
            // Not always one that divides them.
            constraints.segment = 1 + rng.below(3) as u32;
        }
        constraints.contiguous = rng.one_in(6);
    }
    for _ in 0..nodes {
        if rng.one_in(8) {
            constraints.nodelist.extend(rng.pick(known).cloned());
        }
    }
    if rng.one_in(8) {
        constraints.exclude.extend(rng.pick(known).cloned());
    }
    if rng.one_in(5) {
        let [a, b, c] = FEATURES;
        let texts = [
            a.to_owned(),
            format!("{a}|{b}"),
            format!("{a}&{b}"),
            format!("({b}&{c})|{a}"),
        ];
        constraints.features = rng.pick(&texts).map(|text| text.parse().expect("an expression"));
    }
    constraints
}
