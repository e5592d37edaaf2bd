//! Components of a batch job after the first: each with options of its own, on the command line behind a ':', and in a
//! script behind a line `#SBATCH hetjob`.

use clap::ArgMatches;

use super::SubmitOptions;
use crate::error::{CliError, Result};
use crate::request::RequestArgs;

impl SubmitOptions {
    /// Takes over what the command line says of the components after the first.
    ///
    /// # Errors
    /// What was given contradicts itself.
    pub fn take_more(&mut self, given: &[ArgMatches]) -> Result<()> {
        for (at, given) in given.iter().enumerate() {
            if self.more.len() <= at {
                self.more.push(Self::default());
            }
            self.more[at]
                .take(given)
                .map_err(|error| CliError::usage(error.to_string()))?;
        }
        Ok(())
    }

    /// What is asked for, component by component.
    ///
    /// # Errors
    /// A component says of the whole job something else than the first.
    pub fn request(&self) -> Result<RequestArgs> {
        let mut request = self.own_request()?;
        for (one, number) in self.more.iter().zip(1_u32..) {
            if let Some(flag) = self.of_the_whole(one) {
                return Err(CliError::usage(format!(
                    "{flag} is said of the whole job, and component {number} says something else than the first"
                ))
                .hint(format!(
                    "say {flag} in the first component alone: a job has one time limit, image, output, partition and account"
                )));
            }
            let mut one = one.own_request()?;
            one.drop_what_is_of_the_whole();
            request.more.push(one);
        }
        Ok(request)
    }

    /// Names of components, where they are others than the job's: Slurm's tools give each its own.
    pub fn unused_names(&self) -> Vec<String> {
        let names = self.more.iter().filter_map(|one| one.name.as_ref());
        let unused = names.filter(|name| Some(*name) != self.name.as_ref());
        unused
            .map(|name| {
                format!("--job-name {name} is ignored: a job has one name, which the first component says")
            })
            .collect()
    }

    /// An option that a component says otherwise than this, the first, though it is of the whole job.
    fn of_the_whole(&self, one: &Self) -> Option<&'static str> {
        fn other<T: PartialEq>(own: Option<&T>, said: Option<&T>) -> bool {
            said.is_some() && own != said
        }
        let given = [
            ("--array", other(self.array.as_ref(), one.array.as_ref())),
            ("--output", other(self.stdout.as_ref(), one.stdout.as_ref())),
            ("--error", other(self.stderr.as_ref(), one.stderr.as_ref())),
            (
                "--open-mode",
                other(self.open_mode.as_ref(), one.open_mode.as_ref()),
            ),
            ("--notebook-output", one.notebook_output.is_some()),
            ("--export", other(self.export.as_ref(), one.export.as_ref())),
            ("--requeue", one.requeue && !self.requeue),
            ("--no-requeue", one.no_requeue && !self.no_requeue),
            (
                "--mail-type",
                other(self.mail_types().as_ref(), one.mail_types().as_ref()),
            ),
            (
                "--mail-user",
                other(self.mail_user.as_ref(), one.mail_user.as_ref()),
            ),
            ("--comment", other(self.comment.as_ref(), one.comment.as_ref())),
            ("--wait", one.wait && !self.wait),
            ("--parsable", one.parsable && !self.parsable),
            ("--test-only", one.test_only && !self.test_only),
            (
                "--begin",
                other(self.start.begin.as_ref(), one.start.begin.as_ref()),
            ),
            ("--hold", one.start.hold && !self.start.hold),
            (
                "--dependency",
                other(self.start.dependency.as_ref(), one.start.dependency.as_ref()),
            ),
        ];
        let given = given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag);
        given.or_else(|| self.request.said_otherwise(&one.request))
    }
}

#[cfg(test)]
mod tests {
    use carrel_proto::v1;

    use super::*;
    use crate::batch::directives;

    fn of_script(script: &str) -> SubmitOptions {
        let mut options = SubmitOptions::default();
        let notes = directives::take(&mut options, script, "job.sh").expect("understood");
        assert!(notes.is_empty(), "{notes:?}");
        options
    }

    fn resources(options: &SubmitOptions) -> Result<v1::ResourceRequest> {
        let spec = options.request()?.over(v1::SessionSpec::default())?;
        Ok(spec.resources.expect("resources"))
    }

    #[test]
    fn a_script_says_what_each_component_is() {
        let mut options = of_script(
            "#!/bin/sh\n#SBATCH -J coupled -n 4 -p batch\n#SBATCH hetjob\n#SBATCH -N2 --gres=gpu:2 -p batch\n\
             #SBATCH packjob\n#SBATCH --exclusive\ntrue\n",
        );
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = [crate::components::component(&words("--gpus 8")).expect("options")];
        options.take_more(&given).expect("taken");
        let request = resources(&options).expect("a request");
        assert_eq!(
            (request.nodes, request.cpus_per_node, request.more.len()),
            (1, 4, 2)
        );
        assert_eq!((request.more[0].nodes, request.more[0].gpus_per_node), (2, 4));
        assert!(request.more[1].exclusive && !request.exclusive);
    }

    #[test]
    fn a_component_s_name_is_noted() {
        let named = of_script(
            "#SBATCH -J a -c 2\n#SBATCH hetjob\n#SBATCH -J b\n#SBATCH hetjob\n#SBATCH -J a\ntrue\n",
        );
        assert!(resources(&named).is_ok());
        let notes = named.unused_names();
        assert!(
            notes.len() == 1 && notes[0].starts_with("--job-name b is ignored"),
            "{notes:?}"
        );
    }

    #[test]
    fn what_is_of_the_whole_job_is_one() {
        for (line, flag) in [
            ("--time=5", "--time"),
            ("--array 0-3", "--array"),
            ("-o x", "--output"),
            ("--image other", "--image"),
        ] {
            let options = of_script(&format!(
                "#SBATCH -t 4 -J one --image a\n#SBATCH hetjob\n#SBATCH {line}\n"
            ));
            let error = options.request().expect_err(line);
            assert!(error.message.starts_with(flag), "{error}");
        }
        let same = of_script("#SBATCH -t 4 -J one\n#SBATCH hetjob\n#SBATCH -t 4 -J one -c2\n");
        assert_eq!(resources(&same).expect("the same").more[0].cpus_per_node, 2);
    }
}
