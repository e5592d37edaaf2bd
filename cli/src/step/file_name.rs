//! Names of a step's output files (`man srun`, "IO Redirection").

/// Widest number that a pattern may ask for, as in Slurm.
const MAX_WIDTH: usize = 10;

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
        'j' => Some(number(job.id)),
        'A' => Some(number(job.array.map_or(job.id, |(array, _)| array))),
        'a' => Some(number(job.array.map_or(4_294_967_294, |(_, index)| index.into()))),
        'x' => Some(job.name.clone()),
        'u' => Some(job.user.clone()),
        'J' => Some(format!("{}.%s", number(job.id))),
        _ => None,
    })
}

/// Fills in the rest.
pub fn of_task(pattern: &str, rank: u32, step: u32, node_index: u32, node: &str) -> String {
    let filled = fill(pattern, |letter, number| match letter {
        't' => Some(number(rank.into())),
        's' => Some(number(step.into())),
        'n' => Some(number(node_index.into())),
        'N' => Some(node.split('.').next().unwrap_or(node).to_owned()),
        _ => None,
    });
    filled.replace("%%", "%")
}

/// Whether no two tasks share such a file.
pub fn is_one_tasks(pattern: &str) -> bool {
    let mut one = false;
    fill(pattern, |letter, _| {
        one |= letter == 't';
        None
    });
    one
}

/// Whether the name depends on where a task runs, so that the node has to open it.
pub fn is_the_nodes(pattern: &str) -> bool {
    let mut of_node = false;
    fill(pattern, |letter, _| {
        of_node |= matches!(letter, 't' | 'n' | 'N');
        None
    });
    of_node
}

fn fill(pattern: &str, mut with: impl FnMut(char, &dyn Fn(u64) -> String) -> Option<String>) -> String {
    let mut name = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        name.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(behind) = after.strip_prefix('%') {
            name.push_str("%%");
            rest = behind;
            continue;
        }
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let width = after[..digits].parse().unwrap_or(0_usize).min(MAX_WIDTH);
        let number = |value: u64| format!("{value:0width$}");
        let letter = after[digits..].chars().next();
        if let Some((letter, filled)) = letter.and_then(|letter| Some((letter, with(letter, &number)?))) {
            name.push_str(&filled);
            rest = &after[digits + letter.len_utf8()..];
        } else {
            name.push('%');
            rest = after;
        }
    }
    name + rest
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
