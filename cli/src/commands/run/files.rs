//! Where what tasks write goes, and what they read comes from.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::RunArgs;
use super::ground::Ground;
use super::parts::Programs;
use crate::batch::OpenMode;
use crate::error::{CliError, Context as _, Result};
use crate::step::file_name;
use crate::step::layout::Part;
use crate::step::master::Input;
use crate::step::output::{OfTasks, Place};

/// A file that each node, or each task, has its own of; empty: there is none such.
pub(super) fn by_nodes(pattern: Option<&str>, place: &Ground) -> String {
    let pattern = pattern.filter(|pattern| file_name::is_the_nodes(pattern));
    pattern
        .map(|pattern| file_name::of_job(pattern, &place.about))
        .unwrap_or_default()
}

/// Where what nodes do not write themselves goes, and which of these places each task has for its output and for what it
/// writes to standard error: a program's own, unless it says the same as the first.
pub(super) fn places(programs: &Programs<'_>, place: &Ground, here: &Path) -> Result<(Vec<Place>, OfTasks)> {
    let said = |args: &RunArgs| (args.stdout.clone(), args.stderr.clone(), args.open_mode);
    let (mut places, mut of_tasks) = (Vec::new(), OfTasks::new());
    let mut known = Vec::new();
    for (args, _, parts) in programs {
        let own = if let Some((_, own)) = known.iter().find(|(other, _)| *other == said(args)) {
            *own
        } else {
            let (stdout, stderr) = files(args, place, here)?;
            let own = (places.len(), places.len() + 1);
            places.extend([stdout, stderr]);
            known.push((said(args), own));
            own
        };
        let ranks = parts.iter().flat_map(|part| &part.ranks);
        of_tasks.extend(ranks.map(|rank| (*rank, own)));
    }
    Ok((places, of_tasks))
}

/// The files that all tasks of a program share: this program writes them.
fn files(args: &RunArgs, place: &Ground, here: &Path) -> Result<(Place, Place)> {
    let open = |pattern: &Option<String>| {
        let Some(pattern) = pattern
            .as_deref()
            .filter(|pattern| !file_name::is_the_nodes(pattern) && *pattern != "none")
        else {
            return Ok(None);
        };
        let name = file_name::of_task(&file_name::of_job(pattern, &place.about), 0, 0, 0, "");
        let path: PathBuf = here.join(name);
        let append = args.open_mode == Some(OpenMode::Append);
        let mut options = File::options();
        options.create(true).append(true);
        if !append {
            File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        }
        options
            .open(&path)
            .map(Some)
            .map_err(|error| cannot_write(&path, &error))
    };
    let stdout = open(&args.stdout)?;
    let stderr = match &args.stderr {
        Some(_) => open(&args.stderr)?,
        None => stdout
            .as_ref()
            .map(File::try_clone)
            .transpose()
            .context("--output")?,
    };
    let place = |file: Option<File>| file.map_or(Place::Own, Place::File);
    Ok((place(stdout), place(stderr)))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot write {}: {error}", path.display()))
}

/// Ranks of the tasks that read something.
pub(super) fn readers(args: &RunArgs, parts: &[Part]) -> Result<Vec<u32>> {
    let all = || parts.iter().flat_map(|part| part.ranks.iter().copied()).collect();
    if args.pty {
        return Ok(parts
            .first()
            .and_then(|part| part.ranks.first())
            .copied()
            .into_iter()
            .collect());
    }
    Ok(match input(args, parts)? {
        Input::None => Vec::new(),
        Input::Rank(rank) => vec![rank],
        Input::All | Input::File(_) => all(),
    })
}

pub(super) fn input(args: &RunArgs, parts: &[Part]) -> Result<Input> {
    let tasks: usize = parts.iter().map(|part| part.ranks.len()).sum();
    Ok(match args.input.as_str() {
        _ if args.pty => Input::All,
        "all" => Input::All,
        "none" => Input::None,
        other => match other.parse::<u32>() {
            Ok(rank) if (rank as usize) < tasks => Input::Rank(rank),
            Ok(rank) => {
                return Err(CliError::usage(format!(
                    "--input: there is no task {rank}: the step has {tasks}"
                )));
            }
            Err(_) => Input::File(other.into()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use super::*;
    use crate::step::groups::Groups;
    use crate::step::layout::{Asked, Node};

    #[test]
    fn programs_with_the_same_words_write_to_the_same_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node {
            name: "n1".into(),
            rank: 0,
            cpus: 4,
            gpus: 0,
            memory: None,
        };
        let ground = Ground {
            job: 12,
            own: None,
            nodes: vec![node.clone()],
            groups: Groups::of(std::slice::from_ref(&node), &[1]),
            about: file_name::Job {
                id: 12,
                array: None,
                name: "x".into(),
                user: "alice".into(),
            },
        };
        let step = parsed("carrel run -o a.%j a : b : -o b.%j c");
        let all = std::iter::once(&step).chain(&step.others);
        let programs: Programs<'_> = all
            .zip(0_u32..)
            .map(|(args, rank)| {
                let part = Part {
                    node: node.clone(),
                    ranks: vec![rank],
                };
                (args, Asked::default(), vec![part])
            })
            .collect();
        let (places, of_tasks) = places(&programs, &ground, dir.path()).expect("files");
        assert_eq!(places.len(), 4);
        assert_eq!(
            of_tasks.into_values().collect::<Vec<_>>(),
            [(0, 1), (0, 1), (2, 3)]
        );
        for file in ["a.12", "b.12"] {
            assert!(dir.path().join(file).exists(), "{file}");
        }
    }
}
