//! The text of `nvidia-smi topo -m`: read and written.
//!
//! The text is made for people, and reaches us through drivers of ten years,
//! terminals and bug reports. So cells are taken by white space, be it tabs or
//! spaces; the header may have lost its leading tab or carry colour codes; NIC
//! rows and legends may be there or not; and an affinity may be empty.

use std::fmt::{self, Write as _};

use thiserror::Error;

use super::{Link, LinkMatrix};

/// What `nvidia-smi topo -m` says of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Links between the GPUs, in the order of the header.
    pub links: LinkMatrix,
    /// CPUs near to each GPU, as a kernel cpulist; empty: unknown.
    pub cpu_affinity: Vec<String>,
    /// NUMA node of each GPU; none where the text says none or several.
    pub numa_affinity: Vec<Option<u32>>,
    /// NICs, in the order of the header.
    pub nics: Vec<TopologyNic>,
}

/// A NIC of a [`Topology`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyNic {
    /// Device name, from the NIC legend where there is one.
    pub name: String,
    /// Link to each GPU.
    pub gpu_links: Vec<Link>,
}

/// What is wrong with a topology text, and where. Lines and columns count from
/// 1, in characters, colour codes left out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct TopologyError {
    /// Line.
    pub line: usize,
    /// Column in it.
    pub column: usize,
    /// What is wrong there.
    pub problem: String,
}

impl Topology {
    /// Reads the text that `nvidia-smi topo -m` prints.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let lines: Vec<Line> = text
            .lines()
            .enumerate()
            .map(|(n, raw)| Line::new(n + 1, raw))
            .collect();
        let Some(at) = lines.iter().position(is_header) else {
            let (line, column) = lines.iter().find_map(Line::start).unwrap_or((1, 1));
            let problem =
                "no header line: expected \"GPU0 GPU1 … CPU Affinity …\" as `nvidia-smi topo -m` prints it";
            return Err(TopologyError {
                line,
                column,
                problem: problem.into(),
            });
        };
        let header = Header::new(&lines[at])?;
        let mut grid = Grid::new(&header);
        let below = &lines[at + 1..];
        for line in below {
            match line.tokens.first() {
                None if !grid.has_every_gpu(&header) => {}
                None => break,
                Some(_) if is_legend(line) => break,
                // A prompt, a mark of the text around it, or the same once more.
                Some(word) if grid.has_every_gpu(&header) && !header.may_have_row(&word.text) => break,
                Some(_) if grid.has_every_gpu(&header) && is_header(line) => break,
                Some(_) => grid.read_row(&header, line)?,
            }
        }
        grid.check(&header, lines[at].number)?;
        Ok(grid.into_topology(&header, &nic_legend(below)))
    }
}

impl fmt::Display for Topology {
    /// The same text again, without its legend: what [`Topology::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus = self.links.len();
        let mut header = String::new();
        for gpu in 0..gpus {
            write!(header, "\tGPU{gpu}")?;
        }
        for nic in 0..self.nics.len() {
            write!(header, "\tNIC{nic}")?;
        }
        writeln!(f, "{header}\tCPU Affinity\tNUMA Affinity")?;
        for a in 0..gpus {
            write!(f, "GPU{a}")?;
            for b in 0..gpus {
                if a == b {
                    f.write_str("\t X ")?;
                } else {
                    write!(f, "\t{}", self.links.link(a, b))?;
                }
            }
            for nic in &self.nics {
                write!(f, "\t{}", nic.gpu_links[a])?;
            }
            let cpus = if self.cpu_affinity[a].is_empty() {
                "N/A"
            } else {
                &self.cpu_affinity[a]
            };
            write!(f, "\t{cpus}\t{}", if cpus.len() < 8 { "\t" } else { "" })?;
            match self.numa_affinity[a] {
                Some(node) => writeln!(f, "{node}")?,
                None => writeln!(f, "N/A")?,
            }
        }
        if !self.nics.is_empty() {
            writeln!(f, "\nNIC Legend:\n")?;
            for (number, nic) in self.nics.iter().enumerate() {
                writeln!(f, "  NIC{number}: {}", nic.name)?;
            }
        }
        Ok(())
    }
}

/// A word of a line.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    /// 1-based, in characters.
    column: usize,
    /// 0-based, with tabs expanded to every eighth column.
    visual: usize,
    /// Tabs between it and the word before.
    tabs_before: usize,
}

/// A line, in words.
#[derive(Clone, Debug)]
struct Line {
    number: usize,
    tokens: Vec<Token>,
}

impl Line {
    fn new(number: usize, raw: &str) -> Self {
        const TAB: usize = 8;
        let mut tokens: Vec<Token> = Vec::new();
        let (mut visual, mut tabs, mut in_word) = (0, 0, false);
        for (n, c) in without_escapes(raw).chars().enumerate() {
            if c.is_whitespace() {
                in_word = false;
                tabs += usize::from(c == '\t');
                visual = if c == '\t' {
                    (visual / TAB + 1) * TAB
                } else {
                    visual + 1
                };
                continue;
            }
            // A list of CPUs may have spaces after its commas.
            let goes_on = || tokens.last().is_some_and(|word| word.text.ends_with(','));
            if !in_word && tabs == 0 && goes_on() {
                in_word = true;
            }
            if !in_word {
                let tabs_before = std::mem::take(&mut tabs);
                tokens.push(Token {
                    text: String::new(),
                    column: n + 1,
                    visual,
                    tabs_before,
                });
                in_word = true;
            }
            if let Some(word) = tokens.last_mut() {
                word.text.push(c);
            }
            visual += 1;
        }
        Self { number, tokens }
    }

    fn error(&self, column: usize, problem: String) -> TopologyError {
        TopologyError {
            line: self.number,
            column,
            problem,
        }
    }

    /// Line and column of the first word.
    fn start(&self) -> Option<(usize, usize)> {
        self.tokens.first().map(|t| (self.number, t.column))
    }

    /// Column just after the last word.
    fn end(&self) -> usize {
        self.tokens
            .last()
            .map_or(1, |t| t.column + t.text.chars().count())
    }
}

/// The text without byte order mark and terminal escape sequences (ECMA-48, ISO 2022): control sequences, which end
/// with a byte from '@' to '~', commands to the terminal, which end with BEL or ST, and choices of a character set.
/// Colours count as such even where their ESC was lost, as in what is copied from a terminal.
fn without_escapes(raw: &str) -> String {
    let mut plain = String::with_capacity(raw.len());
    let mut rest = raw.trim_start_matches('\u{feff}');
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '['
            && let Some(after) = after_colour(rest)
        {
            rest = after;
        } else if c != '\u{1b}' {
            plain.push(c);
        } else if let Some(sequence) = rest.strip_prefix('[') {
            let end = sequence.find(|c| ('@'..='~').contains(&c));
            rest = end.map_or("", |end| &sequence[end + 1..]);
        } else if let Some(command) = rest.strip_prefix(']') {
            let end = command.find(['\u{7}', '\u{1b}']).unwrap_or(command.len());
            let after = command[end..].strip_prefix('\u{7}');
            rest = after.unwrap_or_else(|| command[end..].trim_start_matches("\u{1b}\\"));
        } else if let Some(set) = rest.strip_prefix(['(', ')', '*', '+']) {
            rest = set.strip_prefix(|set: char| set.is_ascii()).unwrap_or(set);
        }
    }
    plain
}

/// What follows the parameters of a colour code and its final "m"; none: it is no such code.
fn after_colour(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    text[end..].strip_prefix('m')
}

fn is_gpu_name(text: &str) -> bool {
    text.strip_prefix("GPU")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The devices that a word of the header names: of two digits and more their numbers leave no room between them.
fn names_in(word: &str) -> Vec<&str> {
    let starts: Vec<usize> = word
        .match_indices("GPU")
        .chain(word.match_indices("NIC"))
        .map(|(at, _)| at)
        .collect();
    let mut ends: Vec<usize> = starts
        .iter()
        .copied()
        .filter(|at| *at > 0)
        .chain([word.len()])
        .collect();
    ends.sort_unstable();
    let mut from = 0;
    let names: Vec<&str> = ends
        .iter()
        .map(|end| &word[std::mem::replace(&mut from, *end)..*end])
        .collect();
    let numbered = |name: &&str| {
        let number = name.strip_prefix("GPU").or_else(|| name.strip_prefix("NIC"));
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if names.iter().all(numbered) {
        names
    } else {
        vec![word]
    }
}

/// A header starts with a GPU's name; a GPU's row does too, but goes on with a cell.
fn is_header(line: &Line) -> bool {
    let [first, rest @ ..] = line.tokens.as_slice() else {
        return false;
    };
    let first_name = names_in(&first.text)[0];
    let cell = rest
        .first()
        .is_some_and(|t| t.text == "X" || Link::from_name(&t.text).is_some());
    is_gpu_name(first_name) && !cell
}

/// Devices of a host: more is no such text.
const MAX_DEVICES: usize = 1_024;

/// The columns after the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Affinity {
    Cpu,
    Numa,
    /// NUMA node that the GPU's own memory forms (Grace Hopper); not where the GPU is attached.
    GpuNumaId,
}

struct Header {
    /// Device names: GPUs, then NICs.
    devices: Vec<String>,
    gpus: usize,
    affinities: Vec<Affinity>,
    /// Visual column at which the first affinity starts.
    affinity_start: usize,
}

impl Header {
    fn new(line: &Line) -> Result<Self, TopologyError> {
        let is = |n: usize, word: &str| line.tokens.get(n).is_some_and(|t: &Token| t.text == word);
        let mut header = Self {
            devices: Vec::new(),
            gpus: 0,
            affinities: Vec::new(),
            affinity_start: 0,
        };
        let mut n = 0;
        while let Some(token) = line.tokens.get(n) {
            let column = if is(n, "CPU") && is(n + 1, "Affinity") {
                Some((Affinity::Cpu, 2))
            } else if is(n, "NUMA") && is(n + 1, "Affinity") {
                Some((Affinity::Numa, 2))
            } else if is(n, "GPU") && is(n + 1, "NUMA") && is(n + 2, "ID") {
                Some((Affinity::GpuNumaId, 3))
            } else {
                None
            };
            if let Some((affinity, words)) = column {
                if header.affinities.is_empty() {
                    header.affinity_start = token.visual;
                }
                header.affinities.push(affinity);
                n += words;
                continue;
            }
            if !header.affinities.is_empty() {
                let problem = format!("unknown column {:?} after the affinities", token.text);
                return Err(line.error(token.column, problem));
            }
            for name in names_in(&token.text) {
                header.add(line, token, name)?;
            }
            n += 1;
        }
        Ok(header)
    }

    fn add(&mut self, line: &Line, token: &Token, name: &str) -> Result<(), TopologyError> {
        if self.devices.iter().any(|known| known == name) {
            return Err(line.error(token.column, format!("{name} stands twice in the header")));
        }
        if self.devices.len() == MAX_DEVICES {
            let problem = format!("more than {MAX_DEVICES} devices in the header");
            return Err(line.error(token.column, problem));
        }
        if is_gpu_name(name) {
            if self.gpus < self.devices.len() {
                return Err(line.error(token.column, format!("{name} stands after a NIC")));
            }
            self.gpus += 1;
        }
        self.devices.push(name.to_owned());
        Ok(())
    }

    /// A line that begins with this word is a row, or was meant to be.
    fn may_have_row(&self, word: &str) -> bool {
        is_gpu_name(word) || self.devices.iter().any(|device| device == word)
    }
}

/// A cell: none on the diagonal, and where it was read.
#[derive(Clone, Copy)]
struct Cell {
    link: Option<Link>,
    line: usize,
    column: usize,
}

struct Grid {
    /// One row a device; none: not seen (yet).
    rows: Vec<Option<Vec<Cell>>>,
    cpu_affinity: Vec<String>,
    numa_affinity: Vec<Option<u32>>,
}

impl Grid {
    fn new(header: &Header) -> Self {
        Self {
            rows: vec![None; header.devices.len()],
            cpu_affinity: vec![String::new(); header.gpus],
            numa_affinity: vec![None; header.gpus],
        }
    }

    fn has_every_gpu(&self, header: &Header) -> bool {
        self.rows.iter().take(header.gpus).all(Option::is_some)
    }

    fn read_row(&mut self, header: &Header, line: &Line) -> Result<(), TopologyError> {
        let first = &line.tokens[0];
        let Some(device) = header.devices.iter().position(|d| *d == first.text) else {
            return Err(line.error(
                first.column,
                format!("row {:?} has no column in the header", first.text),
            ));
        };
        if self.rows[device].is_some() {
            return Err(line.error(first.column, format!("a second row {}", first.text)));
        }
        let mut cells = Vec::with_capacity(header.devices.len());
        let mut used = 1;
        while cells.len() < header.devices.len() {
            let Some(token) = line.tokens.get(used) else {
                let (had, want) = (cells.len(), header.devices.len());
                let problem = format!("row {} ends after {had} of {want} cells", first.text);
                return Err(line.error(line.end(), problem));
            };
            read_cells(line, token, &mut cells)?;
            used += 1;
        }
        if let Some(extra) = cells.get(header.devices.len()) {
            let problem = format!("row {} has more cells than the header has devices", first.text);
            return Err(line.error(extra.column, problem));
        }
        for (n, cell) in cells.iter().enumerate() {
            if (n == device) != cell.link.is_none() {
                let problem = if n == device {
                    format!("{} must be X to itself", first.text)
                } else {
                    format!(
                        "X between {} and {}: only a device itself is X",
                        first.text, header.devices[n]
                    )
                };
                return Err(line.error(cell.column, problem));
            }
        }
        self.rows[device] = Some(cells);
        if device < header.gpus {
            self.read_affinities(header, device, line, &line.tokens[used..])?;
        }
        Ok(())
    }

    fn read_affinities(
        &mut self,
        header: &Header,
        gpu: usize,
        line: &Line,
        tokens: &[Token],
    ) -> Result<(), TopologyError> {
        let columns = &header.affinities;
        if let Some(extra) = tokens.get(columns.len()) {
            let problem = format!("{:?} has no column in the header", extra.text);
            return Err(line.error(extra.column, problem));
        }
        // With a cell empty, only its place tells whether the first word is the
        // first column's: a cell starts where its column does.
        let first_is_empty = tokens.len() < columns.len()
            && tokens.first().is_some_and(|t| {
                const SLACK: usize = 4;
                let range = t.text.contains(['-', ',']);
                let in_place = if t.tabs_before > 0 {
                    t.tabs_before == 1
                } else {
                    t.visual.abs_diff(header.affinity_start) <= SLACK
                };
                !range && !in_place
            });
        for (column, token) in columns.iter().skip(usize::from(first_is_empty)).zip(tokens) {
            let known = !token.text.eq_ignore_ascii_case("N/A");
            match column {
                Affinity::Cpu if known => {
                    if !is_cpu_list(&token.text) {
                        let problem = format!(
                            "CPU affinity {:?} is not a list like \"0-51,104-155\"",
                            token.text
                        );
                        return Err(line.error(token.column, problem));
                    }
                    self.cpu_affinity[gpu].clone_from(&token.text);
                }
                Affinity::Numa if known => {
                    if !is_cpu_list(&token.text) {
                        let problem = format!("NUMA affinity {:?} is neither a number nor N/A", token.text);
                        return Err(line.error(token.column, problem));
                    }
                    self.numa_affinity[gpu] = token.text.parse().ok();
                }
                Affinity::Cpu | Affinity::Numa | Affinity::GpuNumaId => {}
            }
        }
        Ok(())
    }

    /// Every GPU has its row, and both halves say the same.
    fn check(&self, header: &Header, header_line: usize) -> Result<(), TopologyError> {
        for (row, name) in self.rows.iter().zip(&header.devices).take(header.gpus) {
            if row.is_none() {
                let problem = format!("no row for {name}, which stands in the header");
                return Err(TopologyError {
                    line: header_line,
                    column: 1,
                    problem,
                });
            }
        }
        for (a, row) in self.rows.iter().enumerate() {
            for (b, other) in self.rows.iter().enumerate().take(a) {
                let (Some(row), Some(other)) = (row, other) else {
                    continue;
                };
                let (here, there) = (row[b], other[a]);
                if here.link != there.link {
                    let shown = |cell: Cell| cell.link.map_or("X".into(), |l| l.to_string());
                    let problem = format!(
                        "the matrix is not symmetric: {} to {} is {} here and {} in line {}, column {}",
                        header.devices[a],
                        header.devices[b],
                        shown(here),
                        shown(there),
                        there.line,
                        there.column
                    );
                    return Err(TopologyError {
                        line: here.line,
                        column: here.column,
                        problem,
                    });
                }
            }
        }
        Ok(())
    }

    fn into_topology(self, header: &Header, legend: &[(String, String)]) -> Topology {
        let link = |a: usize, b: usize| {
            let cell = self.rows[a].as_ref().and_then(|row| row[b].link);
            // Checked: every GPU has a row, and only its own cell is X.
            cell.unwrap_or(Link::Sys)
        };
        let nics = (header.gpus..header.devices.len()).map(|n| {
            let column = &header.devices[n];
            let name = legend
                .iter()
                .find(|(short, _)| short == column)
                .map_or(column, |(_, name)| name);
            TopologyNic {
                name: name.clone(),
                gpu_links: (0..header.gpus).map(|gpu| link(gpu, n)).collect(),
            }
        });
        Topology {
            links: LinkMatrix::from_fn(header.gpus, link),
            nics: nics.collect(),
            cpu_affinity: self.cpu_affinity,
            numa_affinity: self.numa_affinity,
        }
    }
}

/// One word is one cell, but for words that a wrapped terminal line glued together ("NODENODE").
fn read_cells(line: &Line, token: &Token, cells: &mut Vec<Cell>) -> Result<(), TopologyError> {
    let mut rest = token.text.as_str();
    while !rest.is_empty() {
        let length = match rest.strip_prefix("NV") {
            Some(count) => 2 + count.bytes().take_while(u8::is_ascii_digit).count(),
            None => ["X", "SYS", "SOC", "NODE", "PHB", "PXB", "PIX"]
                .iter()
                .find(|n| rest.starts_with(**n))
                .map_or(0, |n| n.len()),
        };
        let (name, after) = rest.split_at(length);
        let link = Link::from_name(name);
        if name != "X" && link.is_none() {
            let problem = format!(
                "{:?} is no link: expected X, SYS, NODE, PHB, PXB, PIX or NV#",
                token.text
            );
            return Err(line.error(token.column, problem));
        }
        let column = token.column + (token.text.len() - rest.len());
        cells.push(Cell {
            link,
            line: line.number,
            column,
        });
        rest = after;
    }
    Ok(())
}

/// Numbers and ranges, as the kernel prints sets of CPUs.
fn is_cpu_list(text: &str) -> bool {
    text.split(',').all(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if first <= last)
    })
}

/// "Legend:" or "NIC Legend:".
fn is_legend(line: &Line) -> bool {
    line.tokens.iter().take(2).any(|t| t.text == "Legend:")
}

/// The lines "NIC0: mlx5_0" under "NIC Legend:".
fn nic_legend(lines: &[Line]) -> Vec<(String, String)> {
    let is_title = |line: &&Line| is_legend(line) && line.tokens[0].text == "NIC";
    let entries = lines.iter().skip_while(|line| !is_title(line)).skip(1);
    let pair = |line: &Line| match line.tokens.as_slice() {
        [short, name] => Some((short.text.strip_suffix(':')?.to_owned(), name.text.clone())),
        _ => None,
    };
    entries.filter_map(pair).collect()
}

#[cfg(test)]
mod tests;
