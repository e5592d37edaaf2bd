//! What sacctmgr knows, and its names for it (`man sacctmgr`, LIST/SHOW FORMAT OPTIONS).

use carrel_core::model::ids::{AccountName, QosName};
use carrel_proto::v1;

use super::super::Called;
use super::super::format::Field;
use super::super::words;
use super::is_begun;
use crate::error::Result;

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// People.
    User,
    /// What use is counted on.
    Account,
    /// A user in an account, or an account below another.
    Association,
    /// Qualities of service.
    Qos,
    /// The one that there is.
    Cluster,
}

impl Entity {
    /// By its name, or a beginning of it.
    pub fn named(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let all = [
            ("users", Self::User),
            ("accounts", Self::Account),
            ("acct", Self::Account),
            ("associations", Self::Association),
            ("qos", Self::Qos),
            ("clusters", Self::Cluster),
        ];
        all.into_iter()
            .find(|(name, _)| is_begun(&text, name))
            .map(|(_, entity)| entity)
    }

    /// Fields that are shown where none are named.
    pub fn usual(self, with_associations: bool) -> &'static str {
        match (self, with_associations) {
            (Self::User, false) => "User,DefaultAccount,AdminLevel",
            (Self::User, true) => {
                "User,DefaultAccount,AdminLevel,Cluster,Account,Partition,Fairshare,Priority,MaxJobs,MaxNodes,MaxCPUs,\
                 MaxSubmitJobs,MaxWall,MaxTRESMins,QOS,DefaultQOS"
            }
            (Self::Account, false) => "Account,Description,Organization",
            (Self::Account, true) => {
                "Account,Description,Organization,Cluster,ParentName,User,Fairshare,Priority,GrpJobs,GrpNodes,GrpCPUs,\
                 GrpMem,GrpSubmitJobs,GrpWall,GrpTRESMins,MaxJobs,MaxNodes,MaxCPUs,MaxSubmitJobs,MaxWall,MaxTRESMins,QOS,\
                 DefaultQOS"
            }
            (Self::Association, _) => {
                "Cluster,Account,User,Partition,Fairshare,Priority,GrpJobs,GrpTRES,GrpSubmitJobs,GrpWall,GrpTRESMins,MaxJobs,\
                 MaxTRES,MaxTRESPerNode,MaxSubmitJobs,MaxWall,MaxTRESMins,QOS,DefaultQOS,GrpTRESRunMin"
            }
            (Self::Qos, _) => {
                "Name,Priority,GraceTime,Preempt,PreemptExemptTime,PreemptMode,Flags,UsageThreshold,UsageFactor,GrpTRES,\
                 GrpTRESMins,GrpTRESRunMin,GrpJobs,GrpSubmitJobs,GrpWall,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,\
                 MaxTRESPU,MaxJobsPU,MaxSubmitJobsPU,MaxTRESPA,MaxJobsPA,MaxSubmitJobsPA,MinTRES"
            }
            (Self::Cluster, _) => {
                "Cluster,ControlHost,ControlPort,RPC,Fairshare,GrpJobs,GrpTRES,GrpSubmitJobs,MaxJobs,MaxTRES,MaxSubmitJobs,\
                 MaxWall,QOS,DefaultQOS"
            }
        }
    }

    /// The field that a word, or a beginning of three letters, stands for, by the name that it has in [`FIELDS`].
    pub fn field(self, word: &str) -> Option<&'static str> {
        let word = word.to_ascii_lowercase();
        let word = match (self, word.as_str()) {
            // A cluster's and a QOS's name is called so; that of others by what they are.
            (Self::User, "name") => "user",
            (Self::Account, "name") => "account",
            (Self::Cluster, "name") => "cluster",
            (Self::Qos, "qos") => "name",
            (_, other) => other,
        };
        let exact = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
        let begun = || {
            let is = |name: &str| is_begun(word, &name.to_ascii_lowercase());
            NAMES.iter().find(|(name, _)| is(name))
        };
        exact.or_else(begun).map(|(_, field)| *field)
    }
}

/// A line of what is listed; what does not belong to it is empty.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The cluster's name.
    pub cluster: String,
    /// Name of a QOS.
    pub name: String,
    /// Login name.
    pub user: String,
    /// The account, or the one that the user is in.
    pub account: String,
    /// The account above an account.
    pub parent: String,
    /// Of jobs that name none.
    pub default_account: String,
    /// QOS that may be asked for.
    pub qos: Vec<String>,
    admin: &'static str,
    description: String,
    shares: Option<u32>,
    /// Of all together: Slurm's "Grp".
    group: v1::Limits,
    /// Of each job, or of a user's jobs in an account.
    each: v1::Limits,
    /// Of each user: a QOS's "PU".
    per_user: v1::Limits,
    terms: Option<v1::Qos>,
    preempts: String,
}

const fn field(
    name: &'static str,
    header: &'static str,
    width: i32,
    value: fn(&Line) -> String,
) -> Field<Line> {
    Field {
        letter: None,
        name,
        header,
        width,
        value,
    }
}

const fn none(name: &'static str, header: &'static str, width: i32) -> Field<Line> {
    field(name, header, width, |_| String::new())
}

fn number<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn gpus(limits: &v1::Limits) -> String {
    limits.gpu_milli.map_or_else(String::new, |milli| {
        format!("gres/gpu={}", crate::units::thousandths(milli))
    })
}

fn gpu_minutes(limits: &v1::Limits) -> String {
    limits
        .gpu_minutes
        .map_or_else(String::new, |minutes| format!("gres/gpu={minutes}"))
}

fn wall(limits: &v1::Limits) -> String {
    limits.time_s.map_or_else(String::new, words::long_clock)
}

fn of_qos(line: &Line, value: fn(&v1::Qos) -> String) -> String {
    line.terms.as_ref().map_or_else(String::new, value)
}

/// What there is to show, of whatever is listed.
pub const FIELDS: &[Field<Line>] = &[
    field("Cluster", "Cluster", 10, |line| line.cluster.clone()),
    field("Account", "Account", 10, |line| line.account.clone()),
    field("User", "User", 10, |line| line.user.clone()),
    field("Name", "Name", 10, |line| line.name.clone()),
    none("Partition", "Partition", 10),
    field("DefaultAccount", "Def Acct", 10, |line| {
        line.default_account.clone()
    }),
    field("AdminLevel", "Admin", 9, |line| line.admin.to_owned()),
    none("Coordinators", "Coord Accounts", 20),
    none("DefaultWCKey", "Def WCKey", 10),
    field("Description", "Descr", 20, |line| line.description.clone()),
    field("Organization", "Org", 20, |line| line.account.clone()),
    field("ParentName", "Par Name", 10, |line| line.parent.clone()),
    none("ID", "ID", 6),
    field("Fairshare", "Share", 9, |line| number(line.shares)),
    field("Priority", "Priority", 10, |line| {
        of_qos(line, |qos| qos.priority.to_string())
    }),
    field("GrpJobs", "GrpJobs", 7, |line| number(line.group.running)),
    field("GrpSubmitJobs", "GrpSubmit", 9, |line| {
        number(line.group.submitted)
    }),
    field("GrpTRES", "GrpTRES", 13, |line| gpus(&line.group)),
    field("GrpTRESMins", "GrpTRESMins", 13, |line| gpu_minutes(&line.group)),
    none("GrpTRESRunMin", "GrpTRESRunMin", 13),
    none("GrpWall", "GrpWall", 11),
    none("GrpNodes", "GrpNodes", 8),
    none("GrpCPUs", "GrpCPUs", 8),
    none("GrpMem", "GrpMem", 7),
    field("MaxJobs", "MaxJobs", 7, |line| number(line.each.running)),
    field("MaxSubmitJobs", "MaxSubmit", 9, |line| {
        number(line.each.submitted)
    }),
    field("MaxTRES", "MaxTRES", 13, |line| gpus(&line.each)),
    field("MaxTRESMins", "MaxTRESMins", 13, |line| gpu_minutes(&line.each)),
    none("MaxTRESPerNode", "MaxTRESPerNode", 14),
    none("MaxNodes", "MaxNodes", 8),
    none("MaxCPUs", "MaxCPUs", 8),
    field("MaxWall", "MaxWall", 11, |line| wall(&line.each)),
    field("MaxTRESPU", "MaxTRESPU", 13, |line| gpus(&line.per_user)),
    field("MaxJobsPU", "MaxJobsPU", 9, |line| number(line.per_user.running)),
    field("MaxSubmitJobsPU", "MaxSubmitPU", 11, |line| {
        number(line.per_user.submitted)
    }),
    none("MaxTRESPA", "MaxTRESPA", 13),
    none("MaxJobsPA", "MaxJobsPA", 9),
    none("MaxSubmitJobsPA", "MaxSubmitPA", 11),
    none("MinTRES", "MinTRES", 13),
    field("QOS", "QOS", 20, |line| line.qos.join(",")),
    none("DefaultQOS", "Def QOS", 9),
    field("Preempt", "Preempt", 10, |line| line.preempts.clone()),
    field("PreemptMode", "PreemptMode", 11, |line| {
        of_qos(line, |qos| preempt_mode(qos).to_owned())
    }),
    none("PreemptExemptTime", "PreemptExemptTime", 19),
    field("GraceTime", "GraceTime", 10, |line| {
        of_qos(line, |qos| words::clock(qos.grace_s.unwrap_or(0)))
    }),
    none("Flags", "Flags", 50),
    none("UsageThreshold", "UsageThres", 10),
    field("UsageFactor", "UsageFactor", 11, |line| {
        of_qos(line, |qos| format!("{:.6}", f64::from(qos.usage_milli) / 1_000.0))
    }),
    none("ControlHost", "ControlHost", 15),
    none("ControlPort", "ControlPort", 12),
    none("RPC", "RPC", 5),
    none("Classification", "Classification", 14),
    none("NodeCount", "NodeCount", 9),
    none("TRES", "TRES", 20),
    none("LFT", "LFT", 6),
    none("RGT", "RGT", 6),
];

/// Words for fields, those that sacctmgr prefers among beginnings first, and their names above.
const NAMES: &[(&str, &str)] = &[
    ("Account", "Account"),
    ("Acct", "Account"),
    ("AdminLevel", "AdminLevel"),
    ("Classification", "Classification"),
    ("Cluster", "Cluster"),
    ("Coordinators", "Coordinators"),
    ("ControlHost", "ControlHost"),
    ("ControlPort", "ControlPort"),
    ("DefaultAccount", "DefaultAccount"),
    ("DefaultQOS", "DefaultQOS"),
    ("DefaultWCKey", "DefaultWCKey"),
    ("Description", "Description"),
    ("Fairshare", "Fairshare"),
    ("Shares", "Fairshare"),
    ("Flags", "Flags"),
    ("GraceTime", "GraceTime"),
    ("GrpCPUs", "GrpCPUs"),
    ("GrpJobs", "GrpJobs"),
    ("GrpMemory", "GrpMem"),
    ("GrpNodes", "GrpNodes"),
    ("GrpSubmitJobs", "GrpSubmitJobs"),
    ("GrpTRES", "GrpTRES"),
    ("GrpTRESMins", "GrpTRESMins"),
    ("GrpTRESRunMins", "GrpTRESRunMin"),
    ("GrpWall", "GrpWall"),
    ("ID", "ID"),
    ("LFT", "LFT"),
    ("MaxCPUs", "MaxCPUs"),
    ("MaxCPUsPerJob", "MaxCPUs"),
    ("MaxJobs", "MaxJobs"),
    ("MaxJobsPA", "MaxJobsPA"),
    ("MaxJobsPerAccount", "MaxJobsPA"),
    ("MaxJobsPU", "MaxJobsPU"),
    ("MaxJobsPerUser", "MaxJobsPU"),
    ("MaxNodes", "MaxNodes"),
    ("MaxNodesPerJob", "MaxNodes"),
    ("MaxSubmitJobs", "MaxSubmitJobs"),
    ("MaxSubmitJobsPA", "MaxSubmitJobsPA"),
    ("MaxSubmitPA", "MaxSubmitJobsPA"),
    ("MaxSubmitJobsPerAccount", "MaxSubmitJobsPA"),
    ("MaxSubmitJobsPU", "MaxSubmitJobsPU"),
    ("MaxSubmitPU", "MaxSubmitJobsPU"),
    ("MaxSubmitJobsPerUser", "MaxSubmitJobsPU"),
    ("MaxTRES", "MaxTRES"),
    ("MaxTRESPJ", "MaxTRES"),
    ("MaxTRESPerJob", "MaxTRES"),
    ("MaxTRESMins", "MaxTRESMins"),
    ("MaxTRESMinsPerJob", "MaxTRESMins"),
    ("MaxTRESPA", "MaxTRESPA"),
    ("MaxTRESPerAccount", "MaxTRESPA"),
    ("MaxTRESPN", "MaxTRESPerNode"),
    ("MaxTRESPerNode", "MaxTRESPerNode"),
    ("MaxTRESPU", "MaxTRESPU"),
    ("MaxTRESPerUser", "MaxTRESPU"),
    ("MaxWall", "MaxWall"),
    ("MaxWallDurationPerJob", "MaxWall"),
    ("MinTRES", "MinTRES"),
    ("MinTRESPerJob", "MinTRES"),
    ("Name", "Name"),
    ("NodeCount", "NodeCount"),
    ("Organization", "Organization"),
    ("ParentName", "ParentName"),
    ("Partition", "Partition"),
    ("Preempt", "Preempt"),
    ("PreemptMode", "PreemptMode"),
    ("PreemptExemptTime", "PreemptExemptTime"),
    ("Priority", "Priority"),
    ("QOSLevel", "QOS"),
    ("RGT", "RGT"),
    ("RPC", "RPC"),
    ("TRES", "TRES"),
    ("UsageFactor", "UsageFactor"),
    ("UsageThreshold", "UsageThreshold"),
    ("User", "User"),
];

fn preempt_mode(qos: &v1::Qos) -> &'static str {
    match qos.preemptible() {
        v1::Preemption::Requeue => "requeue",
        v1::Preemption::Cancel => "cancel",
        v1::Preemption::Unspecified | v1::Preemption::Never => "off",
    }
}

fn admin_level(role: v1::Role) -> &'static str {
    match role {
        v1::Role::Admin => "Administrator",
        v1::Role::Operator => "Operator",
        v1::Role::Unspecified | v1::Role::User => "None",
    }
}

/// What the broker knows of it all; of others as far as who asks may see them.
pub struct World {
    /// The cluster's name.
    pub cluster: String,
    /// Accounts with the users in them.
    pub accounts: Vec<v1::Account>,
    /// What is set for users.
    pub people: Vec<v1::Person>,
    /// Qualities of service.
    pub qos: Vec<v1::Qos>,
    /// Who has been here, and their roles.
    pub users: Vec<v1::User>,
}

impl World {
    /// As it is now.
    pub async fn of(called: &Called) -> Result<Self> {
        let mut client = called.context.client().await?;
        let accounts = client
            .list_accounts(v1::ListAccountsRequest {})
            .await?
            .into_inner();
        let said = Self {
            cluster: client
                .get_cluster(v1::GetClusterRequest {})
                .await?
                .into_inner()
                .name,
            accounts: accounts.accounts,
            people: accounts.people,
            qos: client.list_qos(v1::ListQosRequest {}).await?.into_inner().qos,
            users: client
                .list_users(v1::ListUsersRequest {})
                .await?
                .into_inner()
                .users,
        };
        Ok(said.whole())
    }

    /// With what there is where operators have set nothing: the QOS of whoever asks for none, and the account of whoever is
    /// in none.
    fn whole(mut self) -> Self {
        let normal = QosName::normal().to_string();
        if !self.qos.iter().any(|qos| qos.name == normal) {
            self.qos.push(v1::Qos {
                name: normal,
                usage_milli: 1_000,
                ..v1::Qos::default()
            });
            self.qos.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let is_in_one = |user: &v1::User| {
            let mut members = self.accounts.iter().flat_map(|account| &account.members);
            members.any(|member| member.user == user.name)
        };
        let others = self.users.iter().filter(|user| !is_in_one(user));
        let others: Vec<v1::Member> = others
            .map(|user| v1::Member {
                user: user.name.clone(),
                shares: 1,
                ..v1::Member::default()
            })
            .collect();
        if others.is_empty() {
            return self;
        }
        let default = AccountName::default_account().to_string();
        let known = self.accounts.iter_mut().find(|account| account.name == default);
        if let Some(account) = known {
            account.members.extend(others);
        } else {
            self.accounts.push(v1::Account {
                name: default,
                shares: 1,
                members: others,
                ..v1::Account::default()
            });
            self.accounts.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self
    }

    /// All of an entity, in the order of their names.
    pub fn lines(&self, entity: Entity, with_associations: bool) -> Vec<Line> {
        match (entity, with_associations) {
            (Entity::User, false) => self.names().iter().map(|user| self.user(user)).collect(),
            (Entity::User, true) => {
                let of = |user: &String| {
                    let own: Vec<Line> = self.places().filter(|line| line.user == *user).collect();
                    if own.is_empty() {
                        vec![self.user(user)]
                    } else {
                        own
                    }
                };
                self.names().iter().flat_map(of).collect()
            }
            (Entity::Account, false) => self.accounts.iter().map(|one| self.account(one)).collect(),
            (Entity::Account, true) | (Entity::Association, _) => self
                .accounts
                .iter()
                .flat_map(|one| std::iter::once(self.account(one)).chain(self.members(one)))
                .collect(),
            (Entity::Qos, _) => self.qos.iter().map(|one| self.quality(one)).collect(),
            (Entity::Cluster, _) => vec![Line {
                shares: Some(1),
                qos: self.qos.iter().map(|qos| qos.name.clone()).collect(),
                ..self.line()
            }],
        }
    }

    fn line(&self) -> Line {
        Line {
            cluster: self.cluster.clone(),
            ..Line::default()
        }
    }

    /// Users that are known, or in an account.
    fn names(&self) -> std::collections::BTreeSet<String> {
        let members = self.accounts.iter().flat_map(|account| &account.members);
        let users = self.users.iter().map(|user| user.name.clone());
        users.chain(members.map(|member| member.user.clone())).collect()
    }

    fn user(&self, name: &str) -> Line {
        let set = self.people.iter().find(|person| person.user == name);
        let set = set.map(|person| person.default_account.clone());
        let is_in = |account: &&v1::Account| account.members.iter().any(|member| member.user == name);
        let first = || {
            self.accounts
                .iter()
                .find(is_in)
                .map(|account| account.name.clone())
        };
        let role = self
            .users
            .iter()
            .find(|user| user.name == name)
            .map(v1::User::role);
        Line {
            user: name.to_owned(),
            default_account: set
                .filter(|name| !name.is_empty())
                .or_else(first)
                .unwrap_or_default(),
            admin: admin_level(role.unwrap_or_default()),
            ..self.line()
        }
    }

    fn account(&self, account: &v1::Account) -> Line {
        Line {
            account: account.name.clone(),
            parent: account.parent.clone(),
            description: account.description.clone(),
            shares: Some(account.shares),
            group: account.limits.unwrap_or_default(),
            each: account.per_user.unwrap_or_default(),
            qos: self.allowed(&account.name),
            ..self.line()
        }
    }

    /// An account's users.
    fn members<'a>(&'a self, account: &'a v1::Account) -> impl Iterator<Item = Line> + 'a {
        account.members.iter().map(|member| {
            let limits = member.limits.unwrap_or_default();
            Line {
                account: account.name.clone(),
                description: account.description.clone(),
                shares: Some(member.shares),
                group: v1::Limits {
                    gpu_milli: limits.gpu_milli,
                    gpu_minutes: limits.gpu_minutes,
                    ..v1::Limits::default()
                },
                each: v1::Limits {
                    gpu_milli: None,
                    gpu_minutes: None,
                    ..limits
                },
                qos: self.allowed(&account.name),
                ..self.user(&member.user)
            }
        })
    }

    /// Everybody's places in accounts.
    fn places(&self) -> impl Iterator<Item = Line> + '_ {
        self.accounts.iter().flat_map(|account| self.members(account))
    }

    fn quality(&self, qos: &v1::Qos) -> Line {
        let limits = qos.limits.unwrap_or_default();
        let gives_way = |other: &&v1::Qos| {
            other.name != qos.name
                && !matches!(
                    other.preemptible(),
                    v1::Preemption::Never | v1::Preemption::Unspecified
                )
        };
        let victims = self.qos.iter().filter(gives_way).map(|other| other.name.as_str());
        Line {
            name: qos.name.clone(),
            description: qos.description.clone(),
            group: v1::Limits {
                time_s: None,
                ..limits
            },
            each: v1::Limits {
                time_s: limits.time_s,
                ..v1::Limits::default()
            },
            per_user: qos.per_user.unwrap_or_default(),
            preempts: if qos.preempts {
                victims.collect::<Vec<_>>().join(",")
            } else {
                String::new()
            },
            terms: Some(qos.clone()),
            ..self.line()
        }
    }

    /// QOS that an account's jobs may ask for: those for all, for it, and for one above it.
    fn allowed(&self, account: &str) -> Vec<String> {
        let mut above = vec![account];
        while let Some(parent) = above
            .last()
            .and_then(|last| self.accounts.iter().find(|one| one.name == *last))
            .map(|one| one.parent.as_str())
            // A loop would be meant otherwise.
            .filter(|parent| !parent.is_empty() && !above.contains(parent))
        {
            above.push(parent);
        }
        let may = |qos: &&v1::Qos| {
            qos.accounts.is_empty() || qos.accounts.iter().any(|name| above.contains(&name.as_str()))
        };
        self.qos.iter().filter(may).map(|qos| qos.name.clone()).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two accounts, one below the other, with two users.
    pub fn world() -> World {
        let member = |user: &str, shares: u32, limits: Option<v1::Limits>| v1::Member {
            user: user.into(),
            shares,
            limits,
            ..v1::Member::default()
        };
        let user = |name: &str, role: v1::Role| v1::User {
            name: name.into(),
            role: role.into(),
            ..v1::User::default()
        };
        World {
            cluster: "carrel".into(),
            accounts: vec![
                v1::Account {
                    name: "physics".into(),
                    parent: "science".into(),
                    description: "who look".into(),
                    shares: 2,
                    members: vec![
                        member("alice", 1, None),
                        member(
                            "bob",
                            3,
                            Some(v1::Limits {
                                gpu_milli: Some(8_000),
                                running: Some(4),
                                ..v1::Limits::default()
                            }),
                        ),
                    ],
                    ..v1::Account::default()
                },
                v1::Account {
                    name: "science".into(),
                    shares: 1,
                    members: vec![member("alice", 1, None)],
                    ..v1::Account::default()
                },
            ],
            people: vec![v1::Person {
                user: "bob".into(),
                default_account: "physics".into(),
                ..v1::Person::default()
            }],
            qos: vec![
                v1::Qos {
                    name: "normal".into(),
                    usage_milli: 1_000,
                    per_user: Some(v1::Limits {
                        gpu_milli: Some(2_000),
                        ..v1::Limits::default()
                    }),
                    ..v1::Qos::default()
                },
                v1::Qos {
                    name: "urgent".into(),
                    priority: 800,
                    accounts: vec!["physics".into()],
                    limits: Some(v1::Limits {
                        time_s: Some(86_400),
                        ..v1::Limits::default()
                    }),
                    ..v1::Qos::default()
                },
            ],
            users: vec![user("alice", v1::Role::User), user("bob", v1::Role::Admin)],
        }
    }

    #[test]
    fn what_nobody_has_set_is_there_all_the_same() {
        let bare = World {
            accounts: Vec::new(),
            people: Vec::new(),
            qos: Vec::new(),
            ..world()
        };
        let bare = bare.whole();
        let lines = bare.lines(Entity::User, true);
        let seen: Vec<(&str, &str, &[String])> = lines
            .iter()
            .map(|line| (line.user.as_str(), line.account.as_str(), line.qos.as_slice()))
            .collect();
        let normal = ["normal".to_owned()];
        assert_eq!(
            seen,
            [("alice", "default", &normal[..]), ("bob", "default", &normal[..])]
        );
        // Who is in an account is in no other for that.
        let whole = world().whole();
        assert_eq!((whole.accounts.len(), whole.qos.len()), (2, 2));
    }

    #[test]
    fn each_word_stands_for_a_field() {
        let known = |name: &str| FIELDS.iter().any(|field| field.name == name);
        assert!(NAMES.iter().all(|(_, field)| known(field)));
        let entities = [
            Entity::User,
            Entity::Account,
            Entity::Association,
            Entity::Qos,
            Entity::Cluster,
        ];
        for entity in entities {
            for with in [false, true] {
                for name in entity.usual(with).split(',') {
                    assert!(entity.field(name).is_some_and(known), "{name}");
                }
            }
        }
        for (word, field) in [
            ("acc", "Account"),
            ("def", "DefaultAccount"),
            ("MaxSubmit", "MaxSubmitJobs"),
            ("share", "Fairshare"),
        ] {
            assert_eq!(Entity::User.field(word), Some(field), "{word}");
        }
        assert_eq!(Entity::Qos.field("qos"), Some("Name"));
        assert_eq!(Entity::User.field("ac"), None);
    }
}
