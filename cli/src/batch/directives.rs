//! A script's own options: lines that begin with `#SBATCH` or `#CARREL`, before its first command.

use super::SubmitOptions;
use crate::error::{CliError, Result};

/// What such lines begin with.
const MARKS: [&str; 2] = ["#SBATCH", "#CARREL"];
/// What Slurm reads as well, and wants written otherwise.
const FORMER: &str = "#SLURM";

/// What begins a line after which the next component's options are.
const NEXT: [&str; 2] = ["hetjob", "packjob"];

/// Takes over what a script's lines say. Gives what its user should know of them.
///
/// All lines of a component are one place, as in Slurm: none of them counts over another that says otherwise.
///
/// # Errors
/// A line that is not understood, by its number.
pub fn take(options: &mut SubmitOptions, script: &str, name: &str) -> Result<Vec<String>> {
    let mut first_command = None;
    let (mut late, mut former) = (Vec::new(), None);
    let mut components = vec![Lines::default()];
    for (number, line) in (1..).zip(script.lines()) {
        match (marked(line), first_command) {
            (Some(_), Some(_)) => late.push(number),
            (Some((mark, rest)), None) => {
                if mark == FORMER {
                    former.get_or_insert(number);
                }
                let mut words = split(rest).map_err(|why| wrong(name, number, &why))?;
                let begins = |word: &String| NEXT.iter().any(|next| word.eq_ignore_ascii_case(next));
                if words.first().is_some_and(begins) {
                    words.remove(0);
                    components.push(Lines::default());
                }
                // Each is read alone first, so that what is wrong with it is said of it.
                SubmitOptions::default()
                    .read(&words)
                    .map_err(|why| wrong(name, number, &why))?;
                if let Some(component) = components.last_mut() {
                    component.add(number, words);
                }
            }
            (None, None) => {
                let line = line.trim_start();
                if !line.is_empty() && !line.starts_with('#') {
                    first_command = Some(number);
                }
            }
            (None, Some(_)) => {}
        }
    }
    let mut components = components.into_iter();
    if let Some(first) = components.next() {
        first.read(options, name)?;
    }
    for component in components {
        let mut own = SubmitOptions::default();
        component.read(&mut own, name)?;
        options.more.push(own);
    }
    let late = first_command.zip(late.first()).map(|(command, first)| {
        let others = match late.len() {
            1 => String::new(),
            2 => ", and another one,".to_owned(),
            count => format!(", and {} others,", count - 1),
        };
        format!("{name}:{first}: this line{others} is ignored: options stand before the first command (line {command})")
    });
    let former = former.map(|number| format!("{name}:{number}: {FORMER} is read as #SBATCH: write that"));
    Ok(former.into_iter().chain(late).collect())
}

/// What the lines of a component say.
#[derive(Debug, Default)]
struct Lines {
    words: Vec<String>,
    /// The number of each line, and how many words there are up to its end.
    ends: Vec<(usize, usize)>,
}

impl Lines {
    fn add(&mut self, number: usize, words: Vec<String>) {
        self.words.extend(words);
        self.ends.push((number, self.words.len()));
    }

    /// Takes all of them as one.
    fn read(&self, options: &mut SubmitOptions, name: &str) -> Result<()> {
        let Err(why) = options.read(&self.words) else {
            return Ok(());
        };
        // Each alone is right: so the line is named with which they begin to contradict each other.
        let agree = |end: usize| SubmitOptions::default().read(&self.words[..end]).is_ok();
        let first = self.ends.partition_point(|(_, end)| agree(*end));
        let number = self.ends.get(first).map_or(0, |(number, _)| *number);
        Err(wrong(name, number, &why))
    }
}

fn wrong(name: &str, line: usize, why: &str) -> CliError {
    CliError::usage(format!("{name}:{line}: {why}")).hint("`carrel submit --help` lists the options")
}

/// The mark and what follows it. As in Slurm an option may do so without a blank.
fn marked(line: &str) -> Option<(&'static str, &str)> {
    let rest = |mark: &'static str| Some((mark, line.strip_prefix(mark)?));
    let is_option = |rest: &str| rest.trim_start().starts_with('-');
    let blank = |rest: &str| rest.is_empty() || rest.starts_with(char::is_whitespace);
    let known = MARKS.into_iter().find_map(rest);
    let known = known.filter(|(_, rest)| blank(rest) || is_option(rest));
    // Behind this one, comments begin as well.
    known.or_else(|| rest(FORMER).filter(|(_, rest)| is_option(rest)))
}

/// Words as a shell has them: quotes hold blanks together, and what follows a '#' at the begin of a word is a comment.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            blank if blank.is_whitespace() => words.extend(word.take()),
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let into = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => into.extend(chars.next()),
                        Some(other) => into.push(other),
                        None => return Err(format!("a quotation mark {c} has no partner")),
                    }
                }
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_s_lines_are_options() {
        let script = "#!/bin/bash\n\
             #SBATCH --job-name=\"my job\" --ntasks=4 # four\n\
             \n\
             # a comment\n\
             #SBATCH -o out/%x-%j.log\n\
             #CARREL --image busybox\n\
             #SBATCHED --nothing\n\
             ##SBATCH --nor=this\n\
             #SBATCH\n\
             echo #SBATCH\n\
             #SBATCH --nonsense\n\
             #SBATCH -N 7\n";
        let mut options = SubmitOptions::default();
        let notes = take(&mut options, script, "job.sh").expect("understood");
        assert_eq!(options.name.as_deref(), Some("my job"));
        assert_eq!(options.request.tasks.ntasks, Some(4));
        assert_eq!(options.stdout.as_deref(), Some("out/%x-%j.log"));
        assert_eq!(options.request.image.as_deref(), Some("busybox"));
        assert_eq!(options.request.nodes, None);
        assert_eq!(
            notes,
            [
                "job.sh:11: this line, and another one, is ignored: options stand before the first command (line 10)"
            ]
        );
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        for (line, part) in [
            ("#SBATCH --nonsense=1", "job.sh:2: there is no option --nonsense"),
            ("#SBATCH --arrays=1-10", "job.sh:2: there is no option --arrays"),
            ("#CARREL --time=soon", "job.sh:2: "),
            (
                "#SBATCH --job-name=\"x",
                "job.sh:2: a quotation mark \" has no partner",
            ),
            ("#SBATCH other.sh", "job.sh:2: "),
        ] {
            let script = format!("#!/bin/sh\n{line}\n");
            let error = take(&mut SubmitOptions::default(), &script, "job.sh").expect_err(line);
            assert!(error.message.starts_with(part), "{error}");
        }
    }

    #[test]
    fn lines_are_one_place() {
        let read = |lines: &str| {
            let mut options = SubmitOptions::default();
            take(&mut options, &format!("#!/bin/sh\n{lines}"), "job.sh").map(|notes| (options, notes))
        };
        let (options, notes) = read(
            "#SBATCH--nodes=2\n#SBATCH\t--mail-type=BEGIN \n#SBATCH --mail-type=end\n#SBATCH -t 5\n#SBATCH -t 6\n",
        )
        .expect("understood");
        assert_eq!((options.request.nodes, notes.len()), (Some(2), 0));
        assert_eq!(
            options.mail_types().map(|types| types.to_string()).as_deref(),
            Some("BEGIN,END")
        );
        assert_eq!(options.request.time.map(|time| time.as_secs()), Some(360));
        for (lines, said) in [
            (
                "#SBATCH --mem=4G\n#SBATCH -J x\n#SBATCH --mem-per-cpu=1G\n#SBATCH -n 2\n",
                "job.sh:4: the argument '--mem <SIZE>' cannot be used with '--mem-per-cpu <SIZE>'",
            ),
            (
                "#SBATCH -c 2\n#SBATCH hetjob\n#SBATCH -c 2\n#SBATCH --cpus 3",
                "job.sh:5: ",
            ),
        ] {
            let error = read(lines).expect_err(lines);
            assert!(error.message.starts_with(said), "{error}");
        }
    }

    #[test]
    fn components_begin_and_former_marks_are_read_as_in_slurm() {
        let mut options = SubmitOptions::default();
        let script =
            "#!/bin/sh\n#SLURM -c 2\n#SLURM settings\n#SBATCH HetJob -c 3 # the second\n#SBATCH -N 2\n";
        let notes = take(&mut options, script, "job.sh").expect("understood");
        assert_eq!(notes, ["job.sh:2: #SLURM is read as #SBATCH: write that"]);
        let cpus = |options: &SubmitOptions| options.request.tasks.cpus_per_task;
        assert_eq!((cpus(&options), options.more.len()), (Some(2), 1));
        assert_eq!(
            (cpus(&options.more[0]), options.more[0].request.nodes),
            (Some(3), Some(2))
        );
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let words = |text| split(text).expect(text);
        assert_eq!(
            words(" a  b\t'c d' \"e\\\"f\" g\\ h i#j # k"),
            ["a", "b", "c d", "e\"f", "g h", "i#j"]
        );
        assert_eq!(words(" ''"), [""]);
        assert!(split("'").is_err());
    }
}
