//! Which walls of the sandbox stand. Facts are read from the kernel once; judging them is pure.

use std::fs;

use agentrun_crds::conditions::Reason;
use agentrun_protocol::exchange::Wall;
use rustix::{
    fs::StatVfsMountFlags,
    process::{DumpableBehavior, Resource, Rlimit},
};

use crate::termination::Failed;

/// What the kernel says about this process. A fact that cannot be read is empty, and its wall counts as missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcFacts {
    /// /proc/self/status
    pub status: String,
    /// /proc/self/uid_map
    pub uid_map: String,
    pub root_read_only: bool,
    /// This process's id, and those of all that /proc shows.
    pub pid: u32,
    pub visible: Vec<u32>,
}

impl ProcFacts {
    /// Read them.
    pub fn read() -> Self {
        let visible = fs::read_dir("/proc").into_iter().flatten().flatten();
        ProcFacts {
            status: fs::read_to_string("/proc/self/status").unwrap_or_default(),
            uid_map: fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
            root_read_only: rustix::fs::statvfs("/").is_ok_and(|root| root.f_flag.contains(StatVfsMountFlags::RDONLY)),
            pid: std::process::id(),
            visible: visible.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect(),
        }
    }

    /// The walls that stand.
    pub fn walls(&self) -> Vec<Wall> {
        let capabilities = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
        let no_capabilities = capabilities.iter().all(|set| self.field(set).is_some_and(|mask| u64::from_str_radix(mask, 16) == Ok(0)));
        let uids: Vec<&str> = self.field("Uid").map(|uids| uids.split_ascii_whitespace().collect()).unwrap_or_default();
        let own_processes = self.pid == 1 && self.visible == [1];
        [
            (Wall::NonRoot, uids.len() == 4 && uids.iter().all(|uid| uid.parse::<u32>().is_ok_and(|uid| uid != 0))),
            (Wall::NoCapabilities, no_capabilities),
            (Wall::NoNewPrivileges, self.field("NoNewPrivs") == Some("1")),
            (Wall::Seccomp, self.field("Seccomp") == Some("2")),
            (Wall::ReadOnlyRoot, self.root_read_only),
            (Wall::UserNamespace, self.shifted()),
            (Wall::OwnProcessNamespace, own_processes),
        ]
        .into_iter()
        .filter_map(|(wall, stands)| stands.then_some(wall))
        .collect()
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Every range of the map leads to another id outside.
    fn shifted(&self) -> bool {
        let mut ranges = self.uid_map.lines().map(|line| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
            matches!((numbers.next(), numbers.next()), (Some(Ok(inside)), Some(Ok(outside))) if inside != outside)
        });
        ranges.next() == Some(true) && ranges.all(|shifted| shifted)
    }
}

/// The walls that stand, or which required ones are missing.
pub fn attest(facts: &ProcFacts) -> Result<Vec<Wall>, Failed> {
    let walls = facts.walls();
    let missing: Vec<&str> = Wall::REQUIRED.iter().filter(|wall| !walls.contains(wall)).map(|wall| wall.as_str()).collect();
    if missing.is_empty() {
        return Ok(walls);
    }
    let message = format!("the sandbox lacks {} on this node; nothing was started, and no token was asked for", missing.join(", "));
    Err(Failed::new(Reason::ConfinementFailed, message))
}

/// Keep this process's memory to itself: no core dumps, no debugger of the same user.
pub fn harden() -> Result<(), Failed> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .and_then(|()| rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }))
        .map_err(|error| Failed::new(Reason::ConfinementFailed, format!("memory dumps could not be switched off: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confined() -> ProcFacts {
        let status = "Name:\trunner\nUid:\t65532\t65532\t65532\t65532\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
            CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n\
            Seccomp_filters:\t1\n";
        ProcFacts {
            status: status.into(),
            uid_map: "         0     524288      65536\n".into(),
            root_read_only: true,
            pid: 1,
            visible: vec![1],
        }
    }

    #[test]
    fn each_missing_wall_is_named() {
        let with = |change: &dyn Fn(&mut ProcFacts)| {
            let mut facts = confined();
            change(&mut facts);
            facts
        };
        let status = |from: &'static str, to: &'static str| {
            with(&move |facts| {
                assert!(facts.status.contains(from));
                facts.status = facts.status.replace(from, to);
            })
        };
        let rows = [
            (confined(), None),
            (status("65532\t65532\nCap", "65532\t0\nCap"), Some("nonRoot")),
            (status("Uid:", "Gid:"), Some("nonRoot")),
            (status("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb"), Some("noCapabilities")),
            (status("CapAmb:\t0000000000000000", "CapAmb:\tzz"), Some("noCapabilities")),
            (status("CapInh", "Other"), Some("noCapabilities")),
            (status("NoNewPrivs:\t1", "NoNewPrivs:\t0"), Some("noNewPrivileges")),
            (status("Seccomp:\t2", "Seccomp:\t0"), Some("seccomp")),
            (status("Seccomp:\t2\n", ""), Some("seccomp")),
            (with(&|facts| facts.root_read_only = false), Some("readOnlyRoot")),
            (with(&|facts| facts.pid = 7), Some("ownProcessNamespace")),
            (with(&|facts| facts.visible = vec![1, 12]), Some("ownProcessNamespace")),
            (with(&|facts| facts.visible.clear()), Some("ownProcessNamespace")),
        ];
        for (facts, missing) in rows {
            match (attest(&facts), missing) {
                (Ok(walls), None) => assert_eq!(walls.len(), 7),
                (Err(failed), Some(wall)) => assert!(failed.message.contains(&format!("lacks {wall} on")), "{}", failed.message),
                (outcome, missing) => panic!("{outcome:?} where {missing:?} is missing"),
            }
        }
        assert!(attest(&ProcFacts::default()).unwrap_err().message.contains("nonRoot, noCapabilities, noNewPrivileges, seccomp"));
    }

    #[test]
    fn a_user_namespace_counts_only_when_it_shifts() {
        for (map, stands) in [
            ("0 524288 65536", true),
            ("0 524288 100\n100 700000 5", true),
            ("0 0 4294967295", false),
            ("0 524288 100\n100 100 5", false),
            ("", false),
            ("x y z", false),
        ] {
            let facts = ProcFacts { uid_map: map.into(), ..confined() };
            assert_eq!(facts.walls().contains(&Wall::UserNamespace), stands, "{map}");
            assert!(attest(&facts).is_ok());
        }
    }

    #[test]
    fn this_test_runs_outside_a_sandbox_and_is_refused() {
        let failed = attest(&ProcFacts::read()).unwrap_err();
        assert!(failed.reason == Reason::ConfinementFailed && failed.message.contains("ownProcessNamespace"), "{}", failed.message);
    }
}
