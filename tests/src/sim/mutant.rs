//! Bugs, planted one at a time where the simulated shell meets the core: what the core is told or says
//! is changed as a core with that bug would have it. A simulation that does not catch one is blind to it.

use std::fmt;

use carrel_core::broker::State;
use carrel_core::model::activity::Signals;
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::JobKey;
use carrel_core::model::node::{Desired, Observed, ObservedPhase, Tombstone};
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::{Link, LinkMatrix};

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// The broker answers, and then commits.
    ReplyBeforeCommit,
    /// The broker's host forgets the last commits when it loses power.
    UnsyncedCommit,
    /// The broker takes any report for one of a node that has acted on everything.
    IgnoredGeneration,
    /// The broker takes a generation of a former start for one of its own.
    IgnoredIncarnation,
    /// Neither agent nor carrel-init end anything at the lease's end.
    SkippedLease,
    /// The agent counts the lease from the answer's arrival, and not from its report.
    LeaseFromArrival,
    /// The lease is counted on a clock that stands still while the host sleeps.
    LeaseStopsInSleep,
    /// The broker that starts gives nodes no time.
    RestartForgetsLeases,
    /// A wall clock that is set forward ends leases.
    ClockStepIgnored,
    /// The agent reports what is ending as released.
    FreedBeforeAcknowledged,
    /// The agent takes a job for released whose processes are still there.
    ReleaseUnverified,
    /// The agent ends what the broker does not mention.
    AbsenceKills,
    /// The agent lets its ranks go before the gang is complete.
    GangByHalves,
    /// The agent forgets what it was told to end.
    TombstoneForgotten,
    /// A restarted agent forgets which GPUs its containers have.
    AdoptionForgetsGpus,
    /// The agent waits for the broker to end what is past its deadline.
    DeadlineIgnored,
    /// The agent acts on what its ledger does not hold.
    LedgerNotWritten,
    /// The agent starts anew what it has lost.
    LostStartsAnew,
    /// The broker takes all nodes for beside each other.
    FabricIgnored,
    /// The broker takes all links for NVLink.
    LinksMisread,
    /// The broker takes no link for NVLink.
    LinksUnread,
    /// The broker takes every session for one that nobody has used since its start.
    UseIgnored,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::ReplyBeforeCommit,
        Self::UnsyncedCommit,
        Self::IgnoredGeneration,
        Self::IgnoredIncarnation,
        Self::SkippedLease,
        Self::LeaseFromArrival,
        Self::LeaseStopsInSleep,
        Self::RestartForgetsLeases,
        Self::ClockStepIgnored,
        Self::FreedBeforeAcknowledged,
        Self::ReleaseUnverified,
        Self::AbsenceKills,
        Self::GangByHalves,
        Self::TombstoneForgotten,
        Self::AdoptionForgetsGpus,
        Self::DeadlineIgnored,
        Self::LedgerNotWritten,
        Self::LostStartsAnew,
        Self::FabricIgnored,
        Self::LinksMisread,
        Self::LinksUnread,
        Self::UseIgnored,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReplyBeforeCommit => "reply-before-commit",
            Self::UnsyncedCommit => "unsynced-commit",
            Self::IgnoredGeneration => "ignored-generation",
            Self::IgnoredIncarnation => "ignored-incarnation",
            Self::SkippedLease => "skipped-lease",
            Self::LeaseFromArrival => "lease-from-arrival",
            Self::LeaseStopsInSleep => "lease-stops-in-sleep",
            Self::RestartForgetsLeases => "restart-forgets-leases",
            Self::ClockStepIgnored => "clock-step-ignored",
            Self::FreedBeforeAcknowledged => "freed-before-acknowledged",
            Self::ReleaseUnverified => "release-unverified",
            Self::AbsenceKills => "absence-kills",
            Self::GangByHalves => "gang-by-halves",
            Self::TombstoneForgotten => "tombstone-forgotten",
            Self::AdoptionForgetsGpus => "adoption-forgets-gpus",
            Self::DeadlineIgnored => "deadline-ignored",
            Self::LedgerNotWritten => "ledger-not-written",
            Self::LostStartsAnew => "lost-starts-anew",
            Self::FabricIgnored => "fabric-ignored",
            Self::LinksMisread => "links-misread",
            Self::LinksUnread => "links-unread",
            Self::UseIgnored => "use-ignored",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the agent takes the broker's message for. `runs` are its containers, `waited_ms` is how long the
/// answer to its report took.
pub fn desired(mutant: Option<Mutant>, desired: &mut Desired, runs: &[JobKey], waited_ms: u64) {
    let Some(mutant) = mutant else { return };
    match mutant {
        Mutant::SkippedLease => desired.lease_ms = u64::from(u32::MAX),
        Mutant::LeaseFromArrival => desired.lease_ms += waited_ms,
        Mutant::AbsenceKills => {
            let mentioned = |key: &JobKey| {
                desired.jobs.iter().any(|job| job.key == *key)
                    || desired.tombstones.iter().any(|stone| stone.key == *key)
            };
            let absent: Vec<JobKey> = runs.iter().filter(|key| !mentioned(key)).copied().collect();
            desired
                .tombstones
                .extend(absent.into_iter().map(|key| Tombstone { key, grace_ms: 1_000 }));
        }
        Mutant::GangByHalves => desired.jobs.iter_mut().for_each(|job| job.go = true),
        Mutant::TombstoneForgotten => desired.tombstones.clear(),
        Mutant::DeadlineIgnored => {
            for job in &mut desired.jobs {
                job.deadline = Timestamp::MAX;
            }
        }
        Mutant::LostStartsAnew => desired.jobs.iter_mut().for_each(|job| job.ready = false),
        Mutant::ReplyBeforeCommit
        | Mutant::UnsyncedCommit
        | Mutant::IgnoredGeneration
        | Mutant::IgnoredIncarnation
        | Mutant::LeaseStopsInSleep
        | Mutant::RestartForgetsLeases
        | Mutant::ClockStepIgnored
        | Mutant::FreedBeforeAcknowledged
        | Mutant::ReleaseUnverified
        | Mutant::AdoptionForgetsGpus
        | Mutant::LedgerNotWritten
        | Mutant::FabricIgnored
        | Mutant::LinksMisread
        | Mutant::LinksUnread
        | Mutant::UseIgnored => {}
    }
}

/// What the broker takes a node's report for.
pub fn observed(mutant: Option<Mutant>, observed: &mut Observed, state: &State) {
    let Some(mutant) = mutant else { return };
    let ours = state.cluster.id.clone();
    match mutant {
        Mutant::IgnoredGeneration => observed.generation = u64::MAX,
        Mutant::IgnoredIncarnation => {
            if observed.accepted.is_some() {
                observed.accepted = Some((ours, state.cluster.incarnation));
            }
        }
        Mutant::FreedBeforeAcknowledged => {
            for seen in &mut observed.jobs {
                if seen.phase == ObservedPhase::Stopping {
                    seen.phase = ObservedPhase::Released;
                }
            }
        }
        Mutant::UseIgnored => {
            let seen = observed.activity.values_mut();
            for seen in seen.filter_map(|activity| activity.seen.as_mut()) {
                seen.ago_ms = Signals::default();
                seen.for_ms = u64::from(u32::MAX);
            }
        }
        Mutant::ReplyBeforeCommit
        | Mutant::UnsyncedCommit
        | Mutant::SkippedLease
        | Mutant::LeaseFromArrival
        | Mutant::LeaseStopsInSleep
        | Mutant::RestartForgetsLeases
        | Mutant::ClockStepIgnored
        | Mutant::ReleaseUnverified
        | Mutant::AbsenceKills
        | Mutant::GangByHalves
        | Mutant::TombstoneForgotten
        | Mutant::AdoptionForgetsGpus
        | Mutant::DeadlineIgnored
        | Mutant::LedgerNotWritten
        | Mutant::LostStartsAnew
        | Mutant::FabricIgnored
        | Mutant::LinksMisread
        | Mutant::LinksUnread => {}
    }
}

/// What the broker takes a node's inventory for.
pub fn inventory(mutant: Option<Mutant>, inventory: &mut Inventory) {
    let link = match mutant {
        Some(Mutant::LinksMisread) => Link::NvLink(12),
        Some(Mutant::LinksUnread) => Link::Sys,
        _ => return,
    };
    inventory.links = LinkMatrix::from_fn(inventory.gpus.len(), |_, _| link);
}
