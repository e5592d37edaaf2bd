//! Variations of an input, from a seed: the same every time.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Longest variation; parsers of ours have their limits well below, or take text of any length.
const LONGEST: usize = 64 << 10;
/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// Makes variations of some inputs.
pub struct Mutator {
    random: SmallRng,
    inputs: Vec<Vec<u8>>,
}

impl Mutator {
    /// Of these inputs; without any, of nothing.
    pub fn new(seed: u64, mut inputs: Vec<Vec<u8>>) -> Self {
        if inputs.is_empty() {
            inputs.push(Vec::new());
        }
        Self {
            random: SmallRng::seed_from_u64(seed),
            inputs,
        }
    }

    fn input(&mut self) -> Vec<u8> {
        let index = self.random.random_range(0..self.inputs.len());
        self.inputs[index].clone()
    }

    /// The next variation.
    pub fn vary(&mut self) -> Vec<u8> {
        let mut bytes = self.input();
        for _ in 0..self.random.random_range(1..=6) {
            self.change(&mut bytes);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.random_range(0..=bytes.len());
        let length = self.random.random_range(0..=(bytes.len() - at).min(32));
        match self.random.random_range(0..7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + length)),
            2 => {
                let copy = bytes[at..at + length].to_vec();
                bytes.splice(at..at, copy);
            }
            3 => {
                let mut noise = vec![0; length.max(1)];
                self.random.fill_bytes(&mut noise);
                bytes.splice(at..at + length, noise);
            }
            4 => {
                let edge = EDGES[self.random.random_range(0..EDGES.len())].to_be_bytes();
                let width = [1, 2, 4, 8][self.random.random_range(0..4)];
                let end = bytes.len().min(at + width);
                bytes.splice(at..end, edge[8 - width..].iter().copied());
            }
            5 => {
                let other = self.input();
                let from = self.random.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << self.random.random_range(0..8);
                }
            }
        }
    }
}
