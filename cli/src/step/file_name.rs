//! Names of a step's output files (`man srun`, "IO Redirection").

use carrel_core::model::batch::{NO_INDEX, fill};

/// What is known where a step is begun: the job's part of the patterns.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// `%j`, `%A` of what is in no array.
    pub id: u64,
    /// `%A` and `%a`.
    pub array: Option<(u64, u32)>,
    /// `%x`
    pub name: String,
    /// `%u`
    pub user: String,
}

/// Fills in what the job says; what a task says (`%t %n %N %s %J`) stays for its node.
pub fn of_job(pattern: &str, job: &Job) -> String {
    fill(pattern, |letter, number| match letter {
        // For the second time.
        '%' => Some("%%".to_owned()),
        'j' => Some(number(job.id)),
        'A' => Some(number(job.array.map_or(job.id, |(array, _)| array))),
        'a' => Some(number(
            job.array.map_or(NO_INDEX.into(), |(_, index)| index.into()),
        )),
        'x' => Some(job.name.clone()),
        'u' => Some(job.user.clone()),
        'J' => Some(format!("{}.%s", number(job.id))),
        _ => None,
    })
}

/// Fills in the rest.
pub fn of_task(pattern: &str, rank: u32, step: u32, node_index: u32, node: &str) -> String {
    fill(pattern, |letter, number| match letter {
        '%' => Some("%".to_owned()),
        't' => Some(number(rank.into())),
        's' => Some(number(step.into())),
        'n' => Some(number(node_index.into())),
        'N' => Some(node.split('.').next().unwrap_or(node).to_owned()),
        _ => None,
    })
}

/// Whether no two tasks share such a file.
pub fn is_one_tasks(pattern: &str) -> bool {
    let mut one = false;
    fill(pattern, |letter, _| {
        one |= letter == 't';
        (letter == '%').then(String::new)
    });
    one
}

/// Whether the name depends on where a task runs, so that the node has to open it.
pub fn is_the_nodes(pattern: &str) -> bool {
    let mut of_node = false;
    fill(pattern, |letter, _| {
        of_node |= matches!(letter, 't' | 'n' | 'N');
        (letter == '%').then(String::new)
    });
    of_node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_filled_in_where_they_are_known() {
        let job = Job {
            id: 12,
            array: None,
            name: "train".into(),
            user: "alice".into(),
        };
        let first = of_job("%x-%j_%t-%3s.%u%%%N", &job);
        assert_eq!(first, "train-12_%t-%3s.alice%%%N");
        assert_eq!(of_task(&first, 7, 2, 0, "n1.example"), "train-12_7-002.alice%n1");
        assert_eq!(of_task(&of_job("%J.out", &job), 0, 3, 0, "n1"), "12.3.out");
        let task = Job {
            array: Some((10, 4)),
            ..job
        };
        assert_eq!(of_job("%A_%a", &task), "10_4");
        assert!(is_one_tasks("%2t.out") && !is_one_tasks("%N.out") && !is_one_tasks("%%t"));
        assert!(is_the_nodes("%N") && !is_the_nodes("%j.%s"));
    }
}
