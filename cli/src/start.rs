//! When a job may start: `--begin`, `--hold`, `--dependency`, in Slurm's spelling.

use carrel_core::model::array::{BadJobRef, JobRef};
use carrel_core::model::start::MAX_DEPENDENCIES;
use carrel_proto::v1;

use crate::times;

/// As in Slurm.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "When")]
pub struct StartArgs {
    /// Not before: now+2h, 16:00 (UTC), 2026-12-24T16:00
    #[arg(long, value_name = "TIME", value_parser = parse_begin)]
    pub begin: Option<i64>,
    /// Not until `carrel release`
    #[arg(long, short = 'H')]
    pub hold: bool,
    /// Not before other jobs: afterok:12:13,afterany:14_3 (all of them), with ? between them (any), singleton. An array
    /// is all its tasks; aftercorr:12 lets each task wait for its like
    #[arg(short = 'd', long, value_name = "KIND:JOB", value_parser = parse_dependencies)]
    pub dependency: Option<v1::Conditions>,
}

impl StartArgs {
    /// For the broker; none: whenever there is room.
    pub fn wish(&self) -> Option<v1::StartWish> {
        let wish = v1::StartWish {
            begin_ms: self.begin.unwrap_or(0),
            hold: self.hold,
            conditions: self.dependency.clone(),
            within_ms: None,
        };
        (wish != v1::StartWish::default()).then_some(wish)
    }
}

/// Unix milliseconds of a time as Slurm writes it.
pub fn parse_begin(text: &str) -> Result<i64, String> {
    times::to_come(text, times::now_ms())
}

/// What is to have become of other jobs, as `--dependency` says it.
pub fn parse_dependencies(text: &str) -> Result<v1::Conditions, String> {
    const RULE: &str = "write afterok:JOB[:JOB…], afterany:…, afternotok:…, after:…, aftercorr:…, or singleton; with ',' between \
                        them all are waited for, with '?' any";
    let (all, any) = (text.contains(','), text.contains('?'));
    if all && any {
        return Err("use ',' or '?' between them, not both".to_owned());
    }
    let mut conditions = v1::Conditions {
        any,
        ..Default::default()
    };
    for part in text.split([',', '?']) {
        if part == "singleton" {
            conditions.singleton = true;
            continue;
        }
        let (kind, jobs) = part.split_once(':').ok_or(RULE)?;
        let kind = match kind {
            "after" => v1::DependencyKind::After,
            "afterany" => v1::DependencyKind::AfterAny,
            "afterok" => v1::DependencyKind::AfterOk,
            "afternotok" => v1::DependencyKind::AfterNotOk,
            "aftercorr" => v1::DependencyKind::AfterCorr,
            _ => return Err(format!("{kind:?} is no kind of dependency: {RULE}")),
        };
        for job in jobs.split(':') {
            let name: JobRef = job.parse().map_err(|error: BadJobRef| error.to_string())?;
            let on = |task| v1::Dependency {
                kind: kind.into(),
                job: name.job.0,
                task,
            };
            match &name.tasks {
                None => conditions.dependencies.push(on(None)),
                Some(tasks) => {
                    if tasks.len() > MAX_DEPENDENCIES {
                        return Err(format!(
                            "{job} names more tasks than a job may wait for one by one"
                        ));
                    }
                    conditions
                        .dependencies
                        .extend(tasks.iter().map(|task| on(Some(task))));
                }
            }
        }
    }
    if conditions.any && conditions.singleton {
        return Err("singleton stands with ',' only".to_owned());
    }
    Ok(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_written_as_in_slurm() {
        let kinds = |text: &str| {
            let conditions = parse_dependencies(text).expect(text);
            let jobs: Vec<(i32, u64)> = conditions
                .dependencies
                .iter()
                .map(|one| (one.kind, one.job))
                .collect();
            (jobs, conditions.any, conditions.singleton)
        };
        assert_eq!(kinds("afterok:12:13"), (vec![(3, 12), (3, 13)], false, false));
        assert_eq!(kinds("afterany:1,singleton"), (vec![(2, 1)], false, true));
        assert_eq!(kinds("after:1?afternotok:2"), (vec![(1, 1), (4, 2)], true, false));
        let tasks = parse_dependencies("aftercorr:12,afterok:7_[3-4]").expect("tasks");
        let tasks: Vec<_> = tasks
            .dependencies
            .iter()
            .map(|one| (one.kind, one.job, one.task))
            .collect();
        assert_eq!(tasks, [(5, 12, None), (3, 7, Some(3)), (3, 7, Some(4))]);
        for text in [
            "",
            "12",
            "afterok",
            "afterok:",
            "afterok:x",
            "before:1",
            "after:1,after:2?after:3",
            "singleton?after:1",
        ] {
            assert!(parse_dependencies(text).is_err(), "{text}");
        }
    }
}
