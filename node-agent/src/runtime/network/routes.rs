//! Routes to the containers of gangs on other hosts, through these hosts: as flannel's "host-gw" has them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::gang::{Gang, GangFiles};

/// Makes and removes them.
pub(super) struct Routes {
    /// iproute2's program.
    pub ip: PathBuf,
    pub files: GangFiles,
}

impl Routes {
    /// Makes the host's routes what these gangs need; what was made for others goes. Those to `anew` are made in any case,
    /// the others where they are new. Gives what could not be made, by destination, and why.
    pub async fn set(
        &self,
        gangs: impl Iterator<Item = &Gang>,
        anew: impl Fn(Ipv4Addr) -> bool,
    ) -> Result<BTreeMap<Ipv4Addr, String>> {
        let mut wanted: BTreeMap<Ipv4Addr, Ipv4Addr> = BTreeMap::new();
        for peer in gangs.flat_map(|gang| &gang.peers) {
            wanted.extend(peer.via.map(|via| (peer.address, via)));
        }
        let known = self.files.routes()?;
        if known.is_empty() && wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        // Noted before they are made: whoever comes after a death in between knows what to remove.
        let both: BTreeMap<_, _> = known.iter().chain(&wanted).map(|(to, via)| (*to, *via)).collect();
        if both != known {
            self.files.put_routes(&both)?;
        }
        for (to, via) in known.iter().filter(|(to, _)| !wanted.contains_key(to)) {
            self.remove(*to, *via).await?;
        }
        let mut failed = BTreeMap::new();
        for (to, via) in &wanted {
            if known.get(to) == Some(via) && !anew(*to) {
                continue;
            }
            if let Err(error) = self.replace(*to, *via).await {
                failed.insert(*to, format!("{error:#}"));
            }
        }
        if both != wanted {
            self.files.put_routes(&wanted)?;
        }
        Ok(failed)
    }

    async fn replace(&self, to: Ipv4Addr, via: Ipv4Addr) -> Result<()> {
        let (to, via) = (format!("{to}/32"), via.to_string());
        run(
            &self.ip,
            &["route", "replace", &to, "via", &via, "proto", "static"],
        )
        .await
    }

    /// Absent is fine, and so is one that leads elsewhere: it is not ours.
    async fn remove(&self, to: Ipv4Addr, via: Ipv4Addr) -> Result<()> {
        let (to, via) = (format!("{to}/32"), via.to_string());
        match run(&self.ip, &["route", "del", &to, "via", &via]).await {
            Err(error) if error.to_string().contains("No such process") => Ok(()),
            other => other,
        }
    }
}

async fn run(program: &Path, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("running {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`ip {}`: {}", args.join(" "), said.trim());
    }
    Ok(())
}
