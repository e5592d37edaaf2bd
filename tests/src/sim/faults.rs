//! What goes wrong.

use carrel_core::broker::Input;
use carrel_core::model::ids::ClusterId;
use carrel_core::model::time::Timestamp;

use super::mutant::Mutant;
use super::network::Cut;
use super::world::{World, fresh_store, settings};

/// Backups of the store that are kept.
const BACKUPS: usize = 4;
/// Longest cut, suspension or foreign store, milliseconds: several leases.
const LONG: u64 = 1_200_000;
/// The usual one, milliseconds.
const SHORT: u64 = 120_000;
/// Clocks are set by so much at most, milliseconds: more than a lease and its margin.
const CLOCK_STEP: u64 = 600_000;

impl World {
    /// A user acts, an operator acts, or something breaks.
    pub(super) fn happen(&mut self) {
        // While another cluster's store is in its place nobody can be told anything that lasts.
        let ours = self.store.aside.is_none();
        match self.rng.below(52) {
            0..=13 if ours => self.open(),
            14..=17 if ours => self.stop(),
            18 if ours => self.remove(),
            19 | 20 if ours => self.extend(),
            21 | 22 if ours => self.operate(),
            23 if ours => self.back_up(),
            24 => {
                self.counts.add("broker killed");
                self.kill_broker();
            }
            25 => self.cut_the_brokers_power(),
            26 if ours => self.restore_backup(),
            27 if ours && self.rng.one_in(2) => self.lose_store(),
            28 if ours => self.mistake_store(),
            29 => self.fill_disk(),
            30 => self.set_brokers_clock(),
            31 => self.set_nodes_clock(),
            32 | 33 => self.break_agent(),
            34 => self.lose_ledger(),
            35 => self.break_host(),
            36 => self.suspend_host(),
            37 => self.snapshot_host(),
            38 => self.restore_host(),
            39 | 40 => self.cut(),
            41 => self.part(),
            42..=45 if ours => self.submit(),
            46..=49 if ours => self.reserve(),
            _ => self.crash_container(),
        }
    }

    fn length(&mut self) -> u64 {
        let longest = if self.rng.one_in(3) { LONG } else { SHORT };
        self.rng.below(longest)
    }

    fn back_up(&mut self) {
        self.counts.add("store backed up");
        let backup = (self.store.changes.len(), self.told.clone());
        self.store.backups.push(backup);
        if self.store.backups.len() > BACKUPS {
            self.store.backups.remove(0);
        }
    }

    /// What was committed is on the disk.
    fn cut_the_brokers_power(&mut self) {
        self.counts.add("broker's host lost power");
        if self.mutant == Some(Mutant::UnsyncedCommit) {
            let length = self.store.changes.len();
            self.store.changes.truncate(length.saturating_sub(6));
        }
        self.kill_broker();
    }

    fn restore_backup(&mut self) {
        let count = self.store.backups.len() as u64;
        if count == 0 {
            return;
        }
        let which = self.rng.below(count) as usize;
        let (length, told) = self.store.backups[which].clone();
        self.store.backups.truncate(which + 1);
        self.note("the store is restored from a backup");
        self.counts.add("store restored from a backup");
        self.kill_broker();
        self.store.changes.truncate(length);
        self.forget_told(told);
    }

    fn lose_store(&mut self) {
        self.note("the store is lost");
        self.counts.add("store lost");
        self.kill_broker();
        self.store.changes.clear();
        self.store.backups.clear();
        self.forget_told(super::promises::Told::default());
    }

    /// Nobody was promised anything since.
    fn forget_told(&mut self, told: super::promises::Told) {
        self.told = told;
        self.unanswered = None;
        self.forget_records();
    }

    /// What was seen of the records is not of this store.
    fn forget_records(&mut self) {
        self.states.clear();
        self.deadlines.clear();
        self.other_store = true;
    }

    /// Another cluster's store is put in the place of ours.
    fn mistake_store(&mut self) {
        self.note("another cluster's store is put in its place");
        self.counts.add("store of another cluster");
        self.kill_broker();
        let wall = Timestamp(self.clock.now(self.now));
        let id = ClusterId("f0e1".into());
        let names = self.nodes.keys().map(String::as_str);
        let settings = settings(&self.wires, self.mutant, self.idle);
        let (_, theirs) = fresh_store(id, names, settings, self.rng.bits(), wall);
        let until = self.broker_back + self.length();
        let ours = std::mem::replace(&mut self.store.changes, theirs);
        self.store.aside = Some((ours, until));
        self.forget_records();
    }

    pub(super) fn put_own_store_back(&mut self) {
        if let Some((ours, _)) = self.store.aside.take() {
            self.note("the cluster's own store is put back");
            self.kill_broker();
            self.store.changes = ours;
            self.forget_records();
        }
    }

    fn fill_disk(&mut self) {
        let length = self.length();
        self.note(format!("the broker's disk is full for {length} ms"));
        self.counts.add("broker's disk full");
        self.store.full_until = self.now + length;
    }

    fn some_skew(&mut self) -> i64 {
        self.rng.below(2 * CLOCK_STEP) as i64 - CLOCK_STEP as i64
    }

    fn set_brokers_clock(&mut self) {
        let skew = self.some_skew();
        self.note(format!("the broker's clock is set to {skew} ms"));
        self.counts.add("broker's clock set");
        self.clock_was_set = true;
        // A sleeping process looks at it at once: its timers are the world's.
        self.clock.skew = skew;
    }

    fn set_nodes_clock(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        let skew = self.some_skew();
        self.note(format!("the clock of {name} is set to {skew} ms"));
        self.counts.add("node's clock set");
        if let Some(node) = self.nodes.get_mut(&name) {
            node.set_clock(self.now, skew);
        }
    }

    fn break_agent(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        self.note(format!("the agent of {name} is killed"));
        self.counts.add("agent killed");
        // Now and then a container ends by itself at the same time.
        let with_it = self.rng.one_in(2);
        if let Some(node) = self.nodes.get_mut(&name) {
            if with_it && node.crash_container(self.now, false, &mut self.rng) {
                self.counts.add("container crashed");
            }
            if self.rng.one_in(3) {
                node.doom_agent();
                return;
            }
            node.kill_agent(self.now, &mut self.rng);
            if self.rng.one_in(5) {
                node.down_until = Some(self.now + LONG);
            }
        }
    }

    fn lose_ledger(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        self.note(format!("{name} loses its agent's ledger"));
        self.counts.add("agent's ledger lost");
        if let Some(node) = self.nodes.get_mut(&name) {
            node.lose_ledger(self.now, &mut self.rng);
        }
    }

    fn break_host(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        self.note(format!("{name} loses power"));
        self.counts.add("host lost power");
        if let Some(node) = self.nodes.get_mut(&name) {
            node.power_off(self.now, &mut self.rng, &mut self.counts);
        }
    }

    fn suspend_host(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        let length = self.length();
        self.note(format!("{name} is suspended for {length} ms"));
        if let Some(node) = self.nodes.get_mut(&name)
            && node.asleep_until.is_none()
        {
            self.counts.add("host suspended");
            node.suspend(self.now, length);
        }
    }

    fn snapshot_host(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        if let Some(node) = self.nodes.get_mut(&name) {
            node.take_snapshot(self.now);
        }
    }

    fn restore_host(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let with_memory = self.rng.one_in(2);
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            if !node.restore(self.now, with_memory, &mut self.rng) {
                continue;
            }
            self.counts.add(if with_memory {
                "host restored from a snapshot with its memory"
            } else {
                "host restored from a snapshot of its disk"
            });
            self.note(format!(
                "{name} is restored from a snapshot, memory: {with_memory}"
            ));
            let node = self.nodes[&name].name.clone();
            self.network.drop_of(&node);
            self.input(Input::Disconnected(node));
            return;
        }
    }

    fn cut(&mut self) {
        let Some((name, node)) = self.pick_node() else {
            return;
        };
        let length = self.length();
        let how = match self.rng.below(4) {
            0 => Cut::ToBroker,
            1 => Cut::FromBroker,
            _ => Cut::Both,
        };
        self.note(format!("{name} is cut off for {length} ms: {how:?}"));
        self.counts.add(match how {
            Cut::Both => "node cut off",
            Cut::ToBroker => "node not heard",
            Cut::FromBroker => "node hears nothing",
        });
        // What was said last hangs, and a node that is not heard is often not heard for long.
        let length = match how {
            Cut::ToBroker => {
                self.network.hold_back(&node, &mut self.rng);
                length.max(self.rng.below(LONG))
            }
            Cut::FromBroker | Cut::Both => length,
        };
        self.network.cuts.push((node.clone(), how, self.now + length));
        if self.rng.one_in(2) {
            self.input(Input::Disconnected(node));
        }
    }

    /// Several nodes are on the other side of a broken switch.
    fn part(&mut self) {
        let length = self.length();
        self.counts.add("network parted");
        self.note(format!("the network parts for {length} ms"));
        let nodes: Vec<_> = self.nodes.values().map(|node| node.name.clone()).collect();
        for node in nodes.into_iter().skip(1) {
            self.network.cuts.push((node, Cut::Both, self.now + length));
        }
    }

    fn crash_container(&mut self) {
        let Some((name, _)) = self.pick_node() else { return };
        let out_of_memory = self.rng.one_in(3);
        if let Some(node) = self.nodes.get_mut(&name)
            && node.crash_container(self.now, out_of_memory, &mut self.rng)
        {
            self.counts.add(if out_of_memory {
                "container ran out of memory"
            } else {
                "container crashed"
            });
        }
    }
}
