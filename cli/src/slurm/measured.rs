//! What sacct and sstat show of the CPU time and memory that a job has used.
//!
//! Slurm measures each step. Here a job is measured as a whole, on each of its nodes: its batch step stands for all of it,
//! with as many tasks as nodes, and where there is no such step, as in sessions, the job itself does.

use carrel_proto::v1;

use super::job::Row;
use super::words;

impl Row {
    /// What is shown on this line; none: another one shows it, or it was not measured.
    fn measured(&self) -> Option<&v1::HostUseInAll> {
        self.host_use.as_ref().filter(|_| self.step || !self.batch)
    }

    fn show(&self, value: impl Fn(&v1::HostUseInAll) -> String) -> String {
        self.measured().map(value).unwrap_or_default()
    }

    /// The most memory on one node: "1234K".
    pub fn max_rss(&self) -> String {
        self.show(|used| self.units.write(used.memory_peak_bytes))
    }

    /// On which node.
    pub fn max_rss_node(&self) -> String {
        self.show(|used| used.memory_peak_node.clone())
    }

    /// Which one that is, counted from 0.
    pub fn max_rss_task(&self) -> String {
        self.show(|used| used.memory_peak_rank.to_string())
    }

    /// The peaks of its nodes, as if each had the same.
    pub fn average_rss(&self) -> String {
        self.show(|used| self.units.write(average(used, sum(used).memory_peak_bytes)))
    }

    /// CPU time, as if each of its nodes had the same.
    pub fn average_cpu(&self) -> String {
        self.show(|used| words::long_clock(average(used, cpu_us(used)) / MICROS))
    }

    /// The least CPU time on one node.
    pub fn min_cpu(&self) -> String {
        self.show(|used| words::long_clock(used.cpu_least_us / MICROS))
    }

    /// On which node.
    pub fn min_cpu_node(&self) -> String {
        self.show(|used| used.cpu_least_node.clone())
    }

    /// Which one that is, counted from 0.
    pub fn min_cpu_task(&self) -> String {
        self.show(|used| used.cpu_least_rank.to_string())
    }

    /// "cpu=00:01:40,mem=6M", as if each of its nodes had the same.
    pub fn average_tres(&self) -> String {
        self.show(|used| {
            let memory = average(used, sum(used).memory_peak_bytes);
            self.tres_of(average(used, cpu_us(used)), memory)
        })
    }

    /// The same of all its nodes together.
    pub fn total_tres(&self) -> String {
        self.show(|used| self.tres_of(cpu_us(used), sum(used).memory_peak_bytes))
    }

    fn tres_of(&self, micros: u64, memory: u64) -> String {
        let cpu = words::long_clock(micros / MICROS);
        format!("cpu={cpu},mem={}", self.units.write(memory))
    }

    /// "mem=4M", on the node with the most.
    pub fn max_tres(&self) -> String {
        self.show(|used| format!("mem={}", self.units.write(used.memory_peak_bytes)))
    }

    /// "mem=n2".
    pub fn max_tres_node(&self) -> String {
        self.show(|used| format!("mem={}", used.memory_peak_node))
    }

    /// "mem=1".
    pub fn max_tres_task(&self) -> String {
        self.show(|used| format!("mem={}", used.memory_peak_rank))
    }

    /// "cpu=00:00:40", on the node with the least.
    pub fn min_tres(&self) -> String {
        self.show(|used| format!("cpu={}", words::long_clock(used.cpu_least_us / MICROS)))
    }

    /// "cpu=n1".
    pub fn min_tres_node(&self) -> String {
        self.show(|used| format!("cpu={}", used.cpu_least_node))
    }

    /// "cpu=0".
    pub fn min_tres_task(&self) -> String {
        self.show(|used| format!("cpu={}", used.cpu_least_rank))
    }

    /// CPU time of the user and of the system, microseconds: that of a job is its steps'. 0 where it was not measured.
    pub fn cpu_times(&self) -> (u64, u64) {
        let used = self.host_use.as_ref().map(sum).unwrap_or_default();
        (used.cpu_user_us, used.cpu_system_us)
    }

    /// All CPU time: "01:40.041".
    pub fn total_cpu(&self) -> String {
        let (user, system) = self.cpu_times();
        words::cpu_clock(user.saturating_add(system))
    }

    /// That outside of the kernel.
    pub fn user_cpu(&self) -> String {
        words::cpu_clock(self.cpu_times().0)
    }

    /// That in the kernel.
    pub fn system_cpu(&self) -> String {
        words::cpu_clock(self.cpu_times().1)
    }
}

const MICROS: u64 = 1_000_000;

fn sum(used: &v1::HostUseInAll) -> v1::HostUse {
    used.sum.unwrap_or_default()
}

fn cpu_us(used: &v1::HostUseInAll) -> u64 {
    let sum = sum(used);
    sum.cpu_user_us.saturating_add(sum.cpu_system_us)
}

fn average(used: &v1::HostUseInAll, sum: u64) -> u64 {
    sum / u64::from(used.nodes.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::runs;
    use super::*;

    #[test]
    fn the_batch_step_shows_what_was_measured_and_its_job_the_cpu_time_alone() {
        let (job, step) = (runs(), runs().batch_step().expect("it runs"));
        let shown = |row: &Row| {
            [
                row.max_rss(),
                row.max_rss_node(),
                row.max_rss_task(),
                row.average_rss(),
                row.average_cpu(),
                row.min_cpu(),
                row.min_cpu_node(),
                row.total_cpu(),
                row.user_cpu(),
                row.system_cpu(),
                row.average_tres(),
                row.total_tres(),
                row.max_tres_node(),
                row.min_tres(),
            ]
            .join("|")
        };
        assert_eq!(
            shown(&step),
            "4100K|n2|1|3M|00:00:50|00:00:40|n1|01:40.041|01:30.500|00:09.541|cpu=00:00:50,mem=3M|\
             cpu=00:01:40,mem=6M|mem=n2|cpu=00:00:40"
        );
        assert_eq!(shown(&job), "|||||||01:40.041|01:30.500|00:09.541||||");
        // A session has no step: it shows it itself.
        let session = Row { batch: false, ..job };
        assert_eq!(session.max_rss(), "4100K");
        let raw = Row {
            units: words::Units::Bytes,
            ..session
        };
        assert_eq!(raw.max_rss(), "4198400");
        let nothing = Row {
            host_use: None,
            ..step
        };
        assert_eq!(shown(&nothing), "|||||||00:00:00|00:00:00|00:00:00||||");
    }
}
