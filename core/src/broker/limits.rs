//! On what terms jobs wait and run, and what limits keep them from it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::reject::{Reject, RejectKind};
use super::state::State;
use crate::model::account::Limits;
use crate::model::gpu_unit::WHOLE_MILLI;
use crate::model::ids::{AccountName, PartitionName, QosName, UserName};
use crate::model::job::Job;
use crate::model::partition::{NodeSet, Partition};
use crate::model::qos::Qos;
use crate::model::resources::{Allocation, ResourceRequest};
use crate::model::terms::{MAX_NICE, Terms, TermsRequest};
use crate::model::time::Timestamp;
use crate::model::user::Role;
use crate::placement::HostKind;
use crate::queue::tally::{above, is_counted};
use crate::queue::{Holder, Limit, Reached, Tally};

/// People that a reason names: more would say less.
const MAX_NAMED: usize = 4;

impl State {
    /// The terms of a user's job, with everything chosen that was not asked for.
    ///
    /// # Errors
    /// There is no such account, QOS or partition, or it is not the user's to use.
    pub(super) fn terms(&self, user: &UserName, role: Role, asked: &TermsRequest) -> Result<Terms, Reject> {
        let account = self.account_for(user, asked.account.as_ref())?;
        let partition = self.partition_for(&account, asked.partition.as_ref())?;
        let own = self
            .partitions
            .get(&partition)
            .and_then(|partition| partition.qos.as_ref());
        let qos = self.qos_for(&account, asked.qos.as_ref().or(own))?;
        if asked.nice.abs() > MAX_NICE {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!("a nice value of {} is beyond {MAX_NICE}", asked.nice),
            ));
        }
        if asked.nice < 0 && role < Role::Operator {
            return Err(Reject::new(
                RejectKind::Denied,
                "a negative nice value takes the role operator",
            )
            .hint("a positive one lets others pass"));
        }
        let reservation = self.reservation_for(user, &account, asked.reservation.as_ref())?;
        Ok(Terms {
            account,
            qos,
            partition,
            reservation,
            nice: asked.nice,
            top: None,
        })
    }

    fn account_for(&self, user: &UserName, asked: Option<&AccountName>) -> Result<AccountName, Reject> {
        let is_in = |account: &AccountName| {
            let known = self.accounts.get(account);
            known.is_some_and(|known| known.members.contains_key(user))
        };
        let theirs = || {
            let all = self
                .accounts
                .values()
                .filter(|account| account.members.contains_key(user));
            all.map(|account| account.name.clone())
        };
        let hint = || {
            let names: Vec<String> = theirs().map(|name| name.to_string()).collect();
            if names.is_empty() {
                format!("{user} is in no account; an administrator adds users to accounts")
            } else {
                format!("{user} is in {}", names.join(", "))
            }
        };
        if let Some(account) = asked {
            let nobody = *account == AccountName::default_account() && !self.settings.queue.accounts_required;
            if is_in(account) || (nobody && theirs().next().is_none()) {
                return Ok(account.clone());
            }
            let there = self.accounts.contains_key(account);
            let message = if there {
                format!("{user} is not in account {account}")
            } else {
                format!("there is no account {account}")
            };
            let kind = if there {
                RejectKind::Denied
            } else {
                RejectKind::NotFound
            };
            return Err(Reject::new(kind, message).hint(hint()));
        }
        let set = self
            .people
            .get(user)
            .and_then(|person| person.default_account.clone());
        if let Some(account) = set.filter(is_in).or_else(|| theirs().next()) {
            return Ok(account);
        }
        if self.settings.queue.accounts_required {
            return Err(Reject::new(RejectKind::Denied, "jobs run on accounts here").hint(hint()));
        }
        Ok(AccountName::default_account())
    }

    fn partition_for(
        &self,
        account: &AccountName,
        asked: Option<&PartitionName>,
    ) -> Result<PartitionName, Reject> {
        let open = |partition: &Partition| self.is_for(&partition.accounts, account);
        let names = || {
            let open: Vec<String> = self
                .partitions
                .values()
                .filter(|partition| open(partition))
                .map(|partition| partition.name.to_string())
                .collect();
            if open.is_empty() {
                "this cluster is not divided: leave --partition out".to_owned()
            } else {
                format!("open to account {account}: {}", open.join(", "))
            }
        };
        if let Some(asked) = asked {
            return match self.partitions.get(asked) {
                Some(partition) if open(partition) => Ok(asked.clone()),
                Some(_) => Err(Reject::new(
                    RejectKind::Denied,
                    format!("partition {asked} is not open to account {account}"),
                )
                .hint(names())),
                None if self.partitions.is_empty() && *asked == PartitionName::all() => Ok(asked.clone()),
                None => Err(
                    Reject::new(RejectKind::NotFound, format!("there is no partition {asked}")).hint(names()),
                ),
            };
        }
        if self.partitions.is_empty() {
            return Ok(PartitionName::all());
        }
        let all = || self.partitions.values().filter(|partition| open(partition));
        let chosen = all().find(|partition| partition.default).or_else(|| all().next());
        chosen.map(|partition| partition.name.clone()).ok_or_else(|| {
            Reject::new(
                RejectKind::Denied,
                format!("no partition is open to account {account}"),
            )
        })
    }

    fn qos_for(&self, account: &AccountName, asked: Option<&QosName>) -> Result<QosName, Reject> {
        let open = |qos: &Qos| self.is_for(&qos.accounts, account);
        let name = asked.cloned().unwrap_or_else(QosName::normal);
        match self.qos.get(&name) {
            Some(qos) if open(qos) => Ok(name),
            None if name == QosName::normal() => Ok(name),
            known => {
                let names: Vec<String> = self
                    .qos
                    .values()
                    .filter(|qos| open(qos))
                    .map(|qos| qos.name.to_string())
                    .collect();
                let (kind, message) = match known {
                    Some(_) => (
                        RejectKind::Denied,
                        format!("QOS {name} is not open to account {account}"),
                    ),
                    None => (RejectKind::NotFound, format!("there is no QOS {name}")),
                };
                Err(Reject::new(kind, message).hint(if names.is_empty() {
                    "leave --qos out".to_owned()
                } else {
                    format!("open to account {account}: {}", names.join(", "))
                }))
            }
        }
    }

    /// An account, or one above it, is among those that something is for.
    fn is_for(&self, accounts: &std::collections::BTreeSet<AccountName>, account: &AccountName) -> bool {
        accounts.is_empty()
            || accounts.contains(account)
            || above(&self.accounts, account)
                .iter()
                .any(|above| accounts.contains(above))
    }

    /// The nodes that jobs on these terms may have: in a reservation those that it holds, whatever the partition.
    pub(super) fn within(&self, terms: &Terms) -> Option<&NodeSet> {
        let name = terms.reservation.as_ref();
        if let Some(reservation) = name.and_then(|name| self.reservations.get(name)) {
            return Some(&reservation.nodes);
        }
        self.partitions
            .get(&terms.partition)
            .map(|partition| &partition.nodes)
    }

    /// The time limit of a job that asks for none.
    pub(super) fn default_time(&self, terms: &Terms) -> Duration {
        let partition = self.partitions.get(&terms.partition);
        let own = partition.and_then(|partition| partition.default_time);
        own.unwrap_or(self.settings.default_time)
            .min(self.settings.max_time)
    }

    /// Goes through all limits of a user's jobs on these terms, until one of them says something. Whose they are is
    /// put together for those that limit something.
    fn first_limit<T>(
        &self,
        user: &UserName,
        terms: &Terms,
        says: impl Fn(Holder, &Limits) -> Option<T>,
    ) -> Option<T> {
        let (account, qos, partition) = (&terms.account, &terms.qos, &terms.partition);
        let look = |limits: &Limits, holder: &dyn Fn() -> Holder| {
            if limits.is_empty() {
                None
            } else {
                says(holder(), limits)
            }
        };
        let person = self.people.get(user).map(|person| &person.limits);
        let person = person.and_then(|limits| look(limits, &|| Holder::User(user.clone())));
        if person.is_some() {
            return person;
        }
        let own = self.accounts.get(account);
        if let Some(own) = own {
            let member = || Holder::Member(account.clone(), user.clone());
            let of_user = own.members.get(user).map(|member| &member.limits);
            let found = look(&own.per_user, &member)
                .or_else(|| look(of_user?, &member))
                .or_else(|| look(&own.limits, &|| Holder::Account(account.clone())));
            if found.is_some() {
                return found;
            }
        }
        if own.is_some_and(|own| own.parent.is_some()) {
            let above = above(&self.accounts, account);
            let found = above.iter().find_map(|above| {
                let record = self.accounts.get(above)?;
                look(&record.limits, &|| Holder::Account(above.clone()))
            });
            if found.is_some() {
                return found;
            }
        }
        let of_qos = || {
            let record = self.qos.get(qos)?;
            look(&record.per_user, &|| Holder::QosUser(qos.clone(), user.clone()))
                .or_else(|| look(&record.limits, &|| Holder::Qos(qos.clone())))
        };
        let of_partition = || {
            let record = self.partitions.get(partition)?;
            let own = || Holder::PartitionUser(partition.clone(), user.clone());
            look(&record.per_user, &own)
                .or_else(|| look(&record.limits, &|| Holder::Partition(partition.clone())))
        };
        of_qos().or_else(of_partition)
    }

    /// Refuses a job that a limit will never let start, or that is one too many.
    pub(super) fn must_keep_limits(
        &self,
        user: &UserName,
        terms: &Terms,
        gpu_milli: u64,
        time: Duration,
    ) -> Result<(), Reject> {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let refused = self.first_limit(user, terms, |holder, limits| {
            limits.refuses(&holder, self.tallies.of(&holder), gpu_milli, time_ms)
        });
        refused.map_or(Ok(()), |reached| Err(refusal(&reached)))
    }

    /// Refuses a time limit that is longer than a limit lets it be.
    pub(super) fn must_keep_longest(
        &self,
        user: &UserName,
        terms: &Terms,
        time: Duration,
    ) -> Result<(), Reject> {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let refused = self.first_limit(user, terms, |holder, limits| {
            let longest = Limits {
                time: limits.time,
                ..Limits::default()
            };
            longest.refuses(&holder, Tally::default(), 0, time_ms)
        });
        refused.map_or(Ok(()), |reached| Err(refusal(&reached)))
    }

    /// Refuses so many jobs at once, if a limit of those that wait or run does not leave room for them.
    pub(super) fn must_have_room_for(&self, user: &UserName, terms: &Terms, jobs: u32) -> Result<(), Reject> {
        let refused = self.first_limit(user, terms, |holder, limits| {
            let held = self.tallies.of(&holder).submitted;
            let most = limits.submitted?;
            (held.saturating_add(jobs) > most).then(|| Reached {
                holder,
                limit: Limit::Submitted,
                held: held.into(),
                most: most.into(),
                wanted: jobs.into(),
            })
        });
        refused.map_or(Ok(()), |reached| Err(refusal(&reached)))
    }

    /// Which limit keeps a pending job from starting now.
    pub(super) fn kept_by_limit(&self, job: &Job, now: Timestamp) -> Option<Reached> {
        let decay = self.settings.queue.decay();
        let gpu_milli = self.least_gpu_milli(&job.request);
        self.first_limit(&job.owner, &job.terms, |holder, limits| {
            limits.keeps_waiting(&holder, self.tallies.of(&holder), gpu_milli, now, decay)
        })
    }

    /// Which limit keeps a job from what it would get, where that is more than it asked for: whole nodes.
    pub(super) fn kept_from(&self, job: &Job, allocation: &Allocation, now: Timestamp) -> Option<Reached> {
        if job.request.components().all(|one| !one.exclusive) {
            return None;
        }
        let decay = self.settings.queue.decay();
        self.first_limit(&job.owner, &job.terms, |holder, limits| {
            let held = self.tallies.of(&holder);
            limits.keeps_waiting(&holder, held, allocation.gpu_milli(), now, decay)
        })
    }

    /// The fewest GPUs, in thousandths, that a request gets: of whole nodes what the smallest has that could be meant.
    pub(super) fn least_gpu_milli(&self, request: &ResourceRequest) -> u64 {
        let of = |one: &ResourceRequest| {
            let asked = u64::from(one.gpus_per_node) * u64::from(one.unit.milli());
            if !one.exclusive {
                return u64::from(one.nodes) * asked;
            }
            let could = |host: &&HostKind| {
                host.cpus >= one.cpus_per_node
                    && host.memory_bytes >= one.memory_bytes_per_node
                    && (one.gpus_per_node == 0 || host.of_model(&one.gpu_model) > 0)
            };
            let kinds = self.hosts.kinds().filter(could);
            let whole = kinds.map(|host| u64::from(host.placeable.count_ones()) * u64::from(WHOLE_MILLI));
            u64::from(one.nodes) * whole.min().unwrap_or(0).max(asked)
        };
        request.components().map(of).sum()
    }

    /// Why a job waits for a limit, Slurm's word first: which one, and who holds what under it.
    pub(super) fn say_limit(&self, reached: &Reached, now: Timestamp) -> String {
        let Reached {
            holder,
            limit,
            held,
            most,
            wanted,
        } = reached;
        let word = word(holder, *limit);
        match limit {
            Limit::Gpus => {
                let by_user = self.held_by_user(holder, |job| {
                    job.placed().map_or(0, |placed| placed.allocation.gpu_milli())
                });
                let who = names(by_user, gpus);
                format!(
                    "{word}: {holder} holds {} of the {} GPUs that it may{who}; this job wants {}",
                    gpus(*held),
                    gpus(*most),
                    gpus(*wanted)
                )
            }
            Limit::Running => {
                let by_user = self.held_by_user(holder, |job| u64::from(job.placed().is_some()));
                let who = names(by_user, |jobs| jobs.to_string());
                format!("{word}: {holder} runs {held} of the {most} jobs that it may{who}")
            }
            Limit::GpuMinutes => {
                let decay = self.settings.queue.decay();
                let next = decay
                    .next_period(now)
                    .map(|next| next.since(now).as_secs() / 3_600);
                let next = next.map_or(String::new(), |hours| {
                    format!("; the next period begins in {} h", hours + 1)
                });
                format!("{word}: {holder} has used {held} of the {most} GPU-minutes of this period{next}")
            }
            Limit::Submitted | Limit::Time => refusal(reached).message,
        }
    }

    fn held_by_user(&self, holder: &Holder, amount: impl Fn(&Job) -> u64) -> BTreeMap<UserName, u64> {
        let mut by_user = BTreeMap::new();
        let running = self.deadlines.iter().filter_map(|(_, id)| self.jobs.get(id));
        for job in running.filter(|job| is_counted(&self.accounts, job, holder)) {
            *by_user.entry(job.owner.clone()).or_default() += amount(job);
        }
        by_user.retain(|_, amount| *amount > 0);
        by_user
    }
}

/// " (alice 2, bob 1)"; empty: nobody.
pub(super) fn names(by_user: BTreeMap<UserName, u64>, show: impl Fn(u64) -> String) -> String {
    let mut by_user: Vec<(UserName, u64)> = by_user.into_iter().collect();
    by_user.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let others = by_user.len().saturating_sub(MAX_NAMED);
    let first = by_user.iter().take(MAX_NAMED);
    let mut parts: Vec<String> = first
        .map(|(user, amount)| format!("{user} {}", show(*amount)))
        .collect();
    if others > 0 {
        parts.push(format!("{others} others"));
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!(" ({})", parts.join(", "))
    }
}

/// "4", "0.5"
pub(super) fn gpus(milli: u64) -> String {
    if milli.is_multiple_of(1_000) {
        (milli / 1_000).to_string()
    } else {
        format!("{:.2}", milli as f64 / 1_000.0)
    }
}

/// Slurm's word for waiting for a limit (<https://slurm.schedmd.com/job_reason_codes.html>).
fn word(holder: &Holder, limit: Limit) -> &'static str {
    match (holder, limit) {
        (Holder::User(_) | Holder::Member(..) | Holder::Account(_), Limit::Gpus) => "AssocGrpGRES",
        (Holder::User(_) | Holder::Member(..) | Holder::Account(_), Limit::Running) => "AssocGrpJobsLimit",
        (Holder::User(_) | Holder::Member(..) | Holder::Account(_), Limit::Submitted) => {
            "AssocGrpSubmitJobsLimit"
        }
        (Holder::User(_) | Holder::Member(..) | Holder::Account(_), Limit::Time) => {
            "AssocMaxWallDurationPerJobLimit"
        }
        (Holder::User(_) | Holder::Member(..) | Holder::Account(_), Limit::GpuMinutes) => {
            "AssocGrpGRESMinutes"
        }
        (Holder::Qos(_) | Holder::Partition(_), Limit::Gpus) => "QOSGrpGRES",
        (Holder::Qos(_) | Holder::Partition(_), Limit::Running) => "QOSGrpJobsLimit",
        (Holder::Qos(_) | Holder::Partition(_), Limit::Submitted) => "QOSGrpSubmitJobsLimit",
        (Holder::Qos(_) | Holder::Partition(_), Limit::GpuMinutes) => "QOSGrpGRESMinutes",
        (Holder::QosUser(..) | Holder::PartitionUser(..), Limit::Gpus) => "QOSMaxGRESPerUser",
        (Holder::QosUser(..) | Holder::PartitionUser(..), Limit::Running) => "QOSMaxJobsPerUserLimit",
        (Holder::QosUser(..) | Holder::PartitionUser(..), Limit::Submitted) => "QOSMaxSubmitJobPerUserLimit",
        (Holder::QosUser(..) | Holder::PartitionUser(..), Limit::GpuMinutes) => "QOSMaxGRESMinutesPerUser",
        (
            Holder::Qos(_) | Holder::Partition(_) | Holder::QosUser(..) | Holder::PartitionUser(..),
            Limit::Time,
        ) => "QOSMaxWallDurationPerJobLimit",
    }
}

fn refusal(reached: &Reached) -> Reject {
    let Reached {
        holder,
        limit,
        held,
        most,
        wanted,
    } = reached;
    let minutes = |ms: u64| format!("{} min", ms / 60_000);
    match limit {
        Limit::Gpus => Reject::new(
            RejectKind::Invalid,
            format!(
                "{holder} may hold {} GPUs at once, and this asks for {}",
                gpus(*most),
                gpus(*wanted)
            ),
        )
        .hint("ask for fewer; administrators set limits"),
        Limit::Time => Reject::new(
            RejectKind::Invalid,
            format!(
                "{holder} may run jobs of {} at most, and this asks for {}",
                minutes(*most),
                minutes(*wanted)
            ),
        )
        .hint("ask for less time (--time)"),
        Limit::Submitted => {
            let more = if *wanted > 1 {
                format!("; each of these {wanted} tasks counts as one")
            } else {
                String::new()
            };
            Reject::new(
                RejectKind::Exhausted,
                format!("{holder} has {held} jobs that wait or run, and may have {most}{more}"),
            )
            .hint("try again when some have ended")
        }
        Limit::Running | Limit::GpuMinutes => {
            Reject::new(RejectKind::Denied, format!("{holder} may run no jobs here"))
                .hint("administrators set limits")
        }
    }
}
