//! `nvidia-smi mig` for a described host: the part of it that makes, removes and lists GPU instances.
//!
//! It obeys the hardware's rules, speaks as the real one does, and changes the file that the fake library
//! reads. What fails though the rules allow it stands in the file that the description names (`mig_faults`),
//! a line each: `cgi 9:0 In use by another client`, `dgi * Unknown Error`. A message `wait PATH` writes its
//! process id to `PATH.reached`, and waits until PATH is there.
//!
//! `carrel-fake-nvidia-smi cdi-spec` prints a CDI specification for the host.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nvidia_ml::host::{Gpu, Host};
use nvidia_ml::mig::{Geometry, Instance, free_place};

/// NVML's words, and its codes, which are the exit codes.
const CODES: [(&str, u8); 6] = [
    ("Invalid Argument", 2),
    ("Not Supported", 3),
    ("Insufficient Permissions", 4),
    ("Not Found", 6),
    ("In use by another client", 19),
    ("Insufficient Resources", 23),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            println!("{text}");
            let code = CODES.iter().find(|(words, _)| text.ends_with(words));
            ExitCode::from(code.map_or(255, |(_, code)| *code))
        }
    }
}

/// What is asked for.
#[derive(Default)]
struct Asked<'a> {
    gpu: Option<&'a str>,
    create: Option<&'a str>,
    with_compute: bool,
    create_compute: bool,
    destroy_compute: bool,
    destroy: bool,
    instance: Option<u32>,
    list: Option<&'a str>,
}

fn run(arguments: &[String]) -> Result<String, String> {
    let mut words = arguments.iter().map(String::as_str);
    match words.next() {
        Some("mig") => {}
        Some("cdi-spec") => return Ok(nvidia_ml::cdi::specification(&Host::from_environment()?)),
        _ => return Err("only `nvidia-smi mig` is known here".into()),
    }
    let mut asked = Asked::default();
    while let Some(word) = words.next() {
        match word {
            "-i" => asked.gpu = words.next(),
            "-cgi" => asked.create = words.next(),
            "-C" => asked.with_compute = true,
            "-cci" => asked.create_compute = true,
            "-dci" => asked.destroy_compute = true,
            "-dgi" => asked.destroy = true,
            "-gi" => asked.instance = words.next().and_then(|id| id.parse().ok()),
            "-lgi" | "-lgip" | "-lgipp" => asked.list = Some(word),
            other => return Err(format!("Option {other} is not recognized.")),
        }
    }
    let host = Host::from_environment()?;
    let is_asked = |gpu: &&Gpu| {
        asked
            .gpu
            .is_none_or(|name| name == gpu.uuid || name == gpu.bus_id() || name.parse() == Ok(gpu.index))
    };
    let gpus: Vec<&Gpu> = host
        .gpus
        .iter()
        .filter(is_asked)
        .filter(|gpu| host.mig(gpu).on)
        .collect();
    if gpus.is_empty() {
        return Err("No MIG-enabled devices found.".into());
    }
    let mut text = String::new();
    for gpu in gpus {
        let smi = Smi { host: &host, gpu };
        match &asked {
            Asked { list: Some(what), .. } => text += &smi.list(what),
            Asked {
                create: Some(tuples), ..
            } => smi.create(tuples, asked.with_compute)?,
            Asked {
                create_compute: true, ..
            } => smi.create_compute(asked.instance)?,
            Asked {
                destroy_compute: true,
                ..
            } => smi.destroy(asked.instance, false)?,
            Asked { destroy: true, .. } => smi.destroy(asked.instance, true)?,
            Asked { .. } => return Err("No action is given.".into()),
        }
    }
    Ok(text)
}

struct Smi<'a> {
    host: &'a Host,
    gpu: &'a Gpu,
}

impl Smi<'_> {
    fn geometry(&self) -> &'static Geometry {
        self.host.geometry(self.gpu)
    }

    fn name(&self, profile: u32) -> String {
        let of = |profile| self.geometry().name(profile, self.host.memory_mib());
        self.geometry().by_id(profile).map_or_else(String::new, of)
    }

    fn create(&self, tuples: &str, with_compute: bool) -> Result<(), String> {
        let index = self.gpu.index;
        for tuple in tuples.split(',') {
            let (name, start) = tuple
                .split_once(':')
                .map_or((tuple, None), |(name, start)| (name, Some(start)));
            let by_name = || {
                self.geometry()
                    .profiles
                    .iter()
                    .find(|profile| self.name(profile.id) == name)
            };
            let profile = name.parse().ok().or_else(|| by_name().map(|profile| profile.id));
            let made = self.fault("cgi", tuple).and_then(|()| {
                let profile = profile.ok_or("Invalid Argument")?;
                self.host.change_mig(self.gpu, |state| {
                    let start = match start {
                        Some(start) => start.parse().map_err(|_| "Invalid Argument")?,
                        None => {
                            free_place(state, self.geometry(), profile).ok_or("Insufficient Resources")?
                        }
                    };
                    let compute = self
                        .geometry()
                        .by_id(profile)
                        .map_or(0, |profile| profile.compute);
                    let instance = state.create(self.geometry(), profile, start)?;
                    if with_compute {
                        instance.parts.push(compute);
                    }
                    Ok((instance.id(self.geometry()), profile, compute))
                })
            });
            let (id, profile, compute) = made.map_err(|why| {
                format!(
                    "Unable to create a GPU instance on GPU {index:2} using profile {name}: {why}\n\
                     Failed to create GPU instances: {why}"
                )
            })?;
            let name = self.name(profile);
            println!(
                "Successfully created GPU instance ID {id:2} on GPU {index:2} using profile MIG {name} (ID {profile:2})"
            );
            if with_compute {
                let kind = if compute == 7 {
                    4
                } else {
                    compute.saturating_sub(1)
                };
                println!(
                    "Successfully created compute instance ID  0 on GPU {index:2} GPU instance ID {id:2} \
                     using profile MIG {name} (ID {kind:2})"
                );
            }
        }
        Ok(())
    }

    /// Makes the default compute instance, over all of it, of GPU instances that have none.
    fn create_compute(&self, of: Option<u32>) -> Result<(), String> {
        let (index, geometry) = (self.gpu.index, self.geometry());
        let argument = of.map_or_else(|| "*".to_owned(), |id| id.to_string());
        let made = self.fault("cci", &argument).and_then(|()| {
            self.host.change_mig(self.gpu, |state| {
                let empty = state
                    .instances
                    .iter_mut()
                    .filter(|instance| instance.parts.is_empty());
                let mut made = Vec::new();
                for instance in empty.filter(|instance| of.is_none_or(|of| of == instance.id(geometry))) {
                    let compute = geometry
                        .by_id(instance.profile)
                        .map_or(0, |profile| profile.compute);
                    instance.parts.push(compute);
                    made.push((instance.id(geometry), instance.profile));
                }
                if made.is_empty() {
                    Err("Insufficient Resources")
                } else {
                    Ok(made)
                }
            })
        });
        let made = made.map_err(|why| format!("Failed to create compute instances: {why}"))?;
        for (id, profile) in made {
            let name = self.name(profile);
            println!(
                "Successfully created compute instance ID  0 on GPU {index:2} GPU instance ID {id:2} using profile MIG {name}"
            );
        }
        Ok(())
    }

    /// Removes compute instances, or GPU instances, of all GPU instances or of one.
    fn destroy(&self, of: Option<u32>, whole: bool) -> Result<(), String> {
        let index = self.gpu.index;
        let (verb, what) = if whole { ("dgi", "GPU") } else { ("dci", "compute") };
        let geometry = self.geometry();
        let id = |instance: &Instance| instance.id(geometry);
        let all = self.host.mig(self.gpu).instances;
        let chosen: Vec<u32> = all
            .iter()
            .map(id)
            .filter(|id| of.is_none_or(|of| of == *id))
            .collect();
        if chosen.is_empty() {
            return Err("No GPU instances found: Not Found".into());
        }
        for chosen in chosen {
            let removed = self.fault(verb, &chosen.to_string()).and_then(|()| {
                let used = !self.host.processes_in(self.gpu, Some(chosen)).is_empty();
                self.host.change_mig(self.gpu, |state| {
                    let at = state.instances.iter().position(|instance| id(instance) == chosen);
                    let at = at.ok_or("Not Found")?;
                    if used || whole && !state.instances[at].parts.is_empty() {
                        return Err("In use by another client");
                    }
                    if whole {
                        state.instances.remove(at);
                        return Ok(0);
                    }
                    Ok(std::mem::take(&mut state.instances[at].parts).len())
                })
            });
            let parts = removed.map_err(|why| {
                let from = if whole {
                    format!("GPU instance ID {chosen:2} from GPU {index:2}")
                } else {
                    format!("compute instance ID  0 from GPU {index:2} GPU instance ID {chosen:2}")
                };
                format!("Unable to destroy {from}: {why}\nFailed to destroy {what} instances: {why}")
            })?;
            if whole {
                println!("Successfully destroyed GPU instance ID {chosen:2} from GPU {index:2}");
            }
            for part in 0..parts {
                println!(
                    "Successfully destroyed compute instance ID {part:2} from GPU {index:2} GPU instance ID {chosen:2}"
                );
            }
        }
        Ok(())
    }

    fn list(&self, what: &str) -> String {
        let (index, geometry) = (self.gpu.index, self.geometry());
        match what {
            "-lgi" => {
                let line = "+----------------------------------------------------+\n";
                let mut text = format!(
                    "{line}| GPU instances:                                     |\n\
                     | GPU   Name          Profile  Instance   Placement  |\n\
                     |                       ID       ID       Start:Size |\n\
                     |====================================================|\n"
                );
                for instance in self.host.mig(self.gpu).instances {
                    let width = geometry
                        .by_id(instance.profile)
                        .map_or(0, |profile| profile.width);
                    text += &format!(
                        "|{index:4}  MIG {:12}{:3}{:9}{:11}:{width}     |\n{line}",
                        self.name(instance.profile),
                        instance.profile,
                        instance.id(geometry),
                        instance.start
                    );
                }
                text
            }
            "-lgipp" => {
                let line = |profile: &nvidia_ml::mig::Profile| {
                    let starts: Vec<String> = profile.starts.iter().map(u32::to_string).collect();
                    let word = if starts.len() > 1 {
                        "Placements:"
                    } else {
                        "Placement :"
                    };
                    format!(
                        "GPU {index:2} Profile ID {:2} {word} {{{}}}:{}\n",
                        profile.id,
                        starts.join(","),
                        profile.width
                    )
                };
                geometry.profiles.iter().map(line).collect()
            }
            _ => {
                let line = |profile: &nvidia_ml::mig::Profile| {
                    let memory = geometry.memory_mib(profile, self.host.memory_mib()) as f64 / 1024.0;
                    format!(
                        "|{index:4}  MIG {:14}{:5}{:6}/{}{memory:12.2} |\n",
                        self.name(profile.id),
                        profile.id,
                        profile.most,
                        profile.most
                    )
                };
                geometry.profiles.iter().map(line).collect()
            }
        }
    }

    /// Fails where the description's list of faults says so.
    fn fault(&self, verb: &str, argument: &str) -> Result<(), String> {
        let dir = self.host.path.parent().unwrap_or(Path::new(""));
        let file = self
            .host
            .description
            .mig_faults
            .as_ref()
            .map(|file| dir.join(file));
        let faults = file
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        for line in faults.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(of), Some(with), Some(message)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            if of != verb || with != "*" && with != argument {
                continue;
            }
            let Some(gate) = message.strip_prefix("wait ") else {
                return Err(message.to_owned());
            };
            let reached = PathBuf::from(format!("{gate}.reached"));
            std::fs::write(reached, std::process::id().to_string()).map_err(|error| error.to_string())?;
            while !Path::new(gate).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}
