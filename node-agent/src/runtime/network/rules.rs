//! The host's rules: what may go from and to containers, and under whose address it leaves.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use carrel_core::model::gang_network::Subnet;

use super::METADATA_NETWORKS;
use super::gang::Gang;

/// What rules are made of.
pub(super) struct Rules<'a> {
    /// Our chain in the tables `filter` and `nat`.
    pub chain: &'a str,
    /// Of jobs on one node, and of those without a network of their gang's.
    pub subnet: &'a str,
    pub allow_metadata: bool,
    /// Those with a container here.
    pub gangs: Vec<&'a Gang>,
}

impl Rules<'_> {
    /// As `iptables-restore` takes it: both chains become what they are to be at one stroke.
    pub fn text(&self) -> String {
        let chain = self.chain;
        let mut text = format!("*filter\n:{chain} - [0:0]\n");
        for rule in self.filter() {
            let _ = writeln!(text, "-A {chain} {rule}");
        }
        let _ = write!(text, "COMMIT\n*nat\n:{chain} - [0:0]\n");
        for rule in self.nat() {
            let _ = writeln!(text, "-A {chain} {rule}");
        }
        text += "COMMIT\n";
        text
    }

    /// Rules of forwarding, in order: the first that fits counts.
    fn filter(&self) -> Vec<String> {
        let subnet = self.subnet;
        // A gang's container is named by its own address, not by the range: other nodes' agents on this host have theirs.
        let own = || self.gangs.iter().map(|gang| gang.own.to_string());
        let sources = || [subnet.to_owned()].into_iter().chain(own());
        let mut rules: Vec<String> = sources()
            .map(|own| format!("-d {own} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"))
            .collect();
        for gang in &self.gangs {
            for peer in &gang.peers {
                let (own, peer) = (gang.own, peer.address);
                rules.push(format!("-s {own} -d {peer} -j ACCEPT"));
                rules.push(format!("-s {peer} -d {own} -j ACCEPT"));
            }
        }
        // Refused and not dropped: who tries, the fence's trial above all, knows at once.
        let refused =
            |from: &str, to: &str| format!("-s {from} -d {to} -j REJECT --reject-with icmp-admin-prohibited");
        let ranges: BTreeSet<Subnet> = self.gangs.iter().map(|gang| gang.subnet).collect();
        for from in sources() {
            rules.push(refused(&from, subnet));
            rules.extend(ranges.iter().map(|range| refused(&from, &range.to_string())));
        }
        for network in METADATA_NETWORKS.into_iter().filter(|_| !self.allow_metadata) {
            for from in sources() {
                // Some clouds' name servers have these addresses.
                rules.extend(
                    ["udp", "tcp"]
                        .map(|kind| format!("-s {from} -d {network} -p {kind} --dport 53 -j ACCEPT")),
                );
                rules.push(refused(&from, network));
            }
        }
        rules.extend(sources().map(|from| format!("-s {from} -j ACCEPT")));
        rules.extend(sources().map(|to| format!("-d {to} -j DROP")));
        rules
    }

    /// Members of gangs leave for elsewhere under the host's address, and for their peers under their own.
    fn nat(&self) -> Vec<String> {
        let gangs = self.gangs.iter();
        gangs
            .map(|gang| format!("-s {} ! -d {} -j MASQUERADE", gang.own, gang.subnet))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::gang::GangPeer;
    use super::*;

    fn gang() -> Gang {
        Gang {
            subnet: Subnet::GANGS,
            own: [10, 214, 0, 5].into(),
            peers: vec![GangPeer {
                address: [10, 214, 0, 6].into(),
                node: "n1".parse().expect("a name"),
                via: Some([192, 0, 2, 1].into()),
            }],
        }
    }

    fn rules(allow_metadata: bool, gangs: Vec<&Gang>) -> Vec<String> {
        Rules {
            chain: "CARREL",
            subnet: "10.0.0.0/20",
            allow_metadata,
            gangs,
        }
        .filter()
    }

    /// The first rule that fits counts: what is refused comes before what is let out.
    #[test]
    fn what_is_refused_comes_before_what_is_let_out() {
        let rules = rules(false, Vec::new());
        let at = |part: &str| rules.iter().position(|rule| rule.contains(part)).expect(part);
        let out = at("-s 10.0.0.0/20 -j ACCEPT");
        assert!(at("-d 10.0.0.0/20 -j REJECT") < out);
        for network in METADATA_NETWORKS {
            assert!(
                at(&format!("-d {network} -p udp --dport 53 -j ACCEPT"))
                    < at(&format!("-d {network} -j REJECT"))
            );
            assert!(at(&format!("-d {network} -j REJECT")) < out);
        }
        assert_eq!(rules.last().map(String::as_str), Some("-d 10.0.0.0/20 -j DROP"));
    }

    #[test]
    fn operators_may_open_the_metadata_service() {
        assert!(
            !rules(true, Vec::new())
                .iter()
                .any(|rule| rule.contains("169.254"))
        );
        assert!(
            rules(true, Vec::new())
                .iter()
                .any(|rule| rule.contains("-d 10.0.0.0/20 -j REJECT"))
        );
    }

    /// A peer is let through before its range is refused, and nobody else is.
    #[test]
    fn peers_come_before_what_is_refused_to_all_others() {
        let gang = gang();
        let rules = rules(false, vec![&gang]);
        let at = |text: &str| rules.iter().position(|rule| rule.starts_with(text)).expect(text);
        let refused = at("-s 10.214.0.5 -d 10.214.0.0/16 -j REJECT");
        assert!(at("-s 10.214.0.5 -d 10.214.0.6 -j ACCEPT") < refused);
        assert!(at("-s 10.214.0.6 -d 10.214.0.5 -j ACCEPT") < refused);
        assert!(refused < at("-s 10.214.0.5 -j ACCEPT"));
        assert!(at("-s 10.0.0.0/20 -d 10.214.0.0/16 -j REJECT") < at("-s 10.0.0.0/20 -j ACCEPT"));
        assert!(at("-s 10.214.0.5 -d 10.0.0.0/20 -j REJECT") < at("-s 10.214.0.5 -j ACCEPT"));
        assert!(at("-s 10.214.0.5 -d 169.254.0.0/16 -j REJECT") < at("-s 10.214.0.5 -j ACCEPT"));
        at("-d 10.214.0.5 -j DROP");
        assert!(!rules.iter().any(|rule| rule.contains("-d 10.214.0.6 -j DROP")));
    }

    #[test]
    fn nothing_is_masked_between_peers() {
        let gang = gang();
        let rules = Rules {
            chain: "C",
            subnet: "10.0.0.0/20",
            allow_metadata: false,
            gangs: vec![&gang],
        };
        assert_eq!(rules.nat(), ["-s 10.214.0.5 ! -d 10.214.0.0/16 -j MASQUERADE"]);
        let text = rules.text();
        assert!(
            text.starts_with("*filter\n:C - [0:0]\n-A C ") && text.ends_with("COMMIT\n"),
            "{text}"
        );
        assert_eq!(text.matches("COMMIT").count(), 2);
    }
}
