//! A script's own options: lines that begin with `#SBATCH` or `#CARREL`, before its first command.

use super::SubmitOptions;
use crate::error::{CliError, Result};

/// What such lines begin with.
const MARKS: [&str; 2] = ["#SBATCH", "#CARREL"];

/// What stands alone in a line after which the next component's options are.
const NEXT: [&str; 2] = ["hetjob", "packjob"];

/// Takes over what a script's lines say. Gives what its user should know of them.
///
/// # Errors
/// A line that is not understood, by its number.
pub fn take(options: &mut SubmitOptions, script: &str, name: &str) -> Result<Vec<String>> {
    let mut first_command = None;
    let mut late = Vec::new();
    for (number, line) in (1..).zip(script.lines()) {
        let words = marked(line);
        match (words, first_command) {
            (Some(_), Some(_)) => late.push(number),
            (Some(rest), None) => {
                let words = split(rest).map_err(|why| wrong(name, number, &why))?;
                if matches!(&words[..], [word] if NEXT.contains(&word.as_str())) {
                    options.more.push(SubmitOptions::default());
                    continue;
                }
                let read = if let Some(component) = options.more.last_mut() {
                    component.read(&words)
                } else {
                    options.read(&words)
                };
                read.map_err(|why| wrong(name, number, &why))?;
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
    let note = first_command.zip(late.first()).map(|(command, first)| {
        let others = match late.len() {
            1 => String::new(),
            2 => ", and another one,".to_owned(),
            count => format!(", and {} others,", count - 1),
        };
        format!("{name}:{first}: this line{others} is ignored: options stand before the first command (line {command})")
    });
    Ok(note.into_iter().collect())
}

fn wrong(name: &str, line: usize, why: &str) -> CliError {
    CliError::usage(format!("{name}:{line}: {why}")).hint("`carrel submit --help` lists the options")
}

/// What follows the mark.
fn marked(line: &str) -> Option<&str> {
    let mut rests = MARKS.iter().filter_map(|mark| line.strip_prefix(mark));
    rests.find(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// Words as a shell has them: quotes hold blanks together, and what follows a '#' at the begin of a word is a comment.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
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
