//! Names of meters of which one measures a part of what another does: the domains of RAPL, and the sides of a power distribution
//! unit.

use crate::units::lowercase_words;

/// Parts of a meter's name: what it measures, and of which whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MeterName {
    /// The words before those of the domain or side, such as a host.
    scope: Vec<String>,
    role: Role,
    /// The number of the package, where the name has it.
    package: Option<String>,
}

/// A domain of RAPL, or a side of a power distribution unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// All of the platform: `psys`.
    Platform,
    /// A socket: `package-0`.
    Package,
    /// A part of a package: `core`, `uncore`.
    Core,
    /// Memory, which is none of a package.
    Memory,
    Inlet,
    /// One of the phases, or lines, of an inlet.
    Phase,
    Outlet,
}

/// The words of each role, beside `pp0` and `L1`. The last that a name has counts.
const ROLE_WORDS: [(Role, &[&str]); 7] = [
    (Role::Platform, &["psys"]),
    (Role::Package, &["package", "pkg"]),
    (Role::Core, &["core", "cores", "uncore"]),
    (Role::Memory, &["dram"]),
    (Role::Inlet, &["infeed", "inlet", "inlets", "mains"]),
    (Role::Phase, &["line", "phase"]),
    (Role::Outlet, &["outlet", "outlets"]),
];
/// Words beside those of a role that say nothing about what is measured.
const WORDS_BESIDE_ROLES: [&str; 28] = [
    "a",
    "active",
    "b",
    "c",
    "consumed",
    "consumption",
    "domain",
    "draw",
    "energy",
    "intel",
    "j",
    "joules",
    "kwh",
    "l",
    "mw",
    "n",
    "power",
    "pwr",
    "rapl",
    "real",
    "total",
    "uj",
    "usage",
    "uw",
    "w",
    "watt",
    "watts",
    "zone",
];

fn role_of(word: &str) -> Option<Role> {
    ROLE_WORDS.iter().find(|(_, words)| words.contains(&word)).map(|(role, _)| *role)
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

impl MeterName {
    /// Returns `None` if a name is of no such meter.
    pub(super) fn new(name: &str) -> Option<Self> {
        // `pp0` and `L1` are two words.
        let words = lowercase_words(name);
        let is_silent = |word: &String| is_number(word) || WORDS_BESIDE_ROLES.contains(&word.as_str());
        let role_at = |at: usize| match (words[at].as_str(), words.get(at + 1).map(String::as_str)) {
            ("pp", Some("0" | "1")) => Some(Role::Core),
            // `L1` and no more, as lines of a supply are called.
            ("l", Some("1" | "2" | "3")) if at + 2 == words.len() || is_silent(&words[at + 2]) => Some(Role::Phase),
            (word, _) => role_of(word),
        };
        let at = (0..words.len()).find(|at| role_at(*at).is_some())?;
        let roles: Vec<Role> = (at..words.len()).filter_map(role_at).collect();
        let is_known = |index: usize| role_at(index).is_some() || is_silent(&words[index]);
        if !(at..words.len()).all(is_known) {
            return None;
        }
        // `package-0-core` is the core, `inlet L1` the phase.
        let role = roles.last().copied()?;
        let package = words.get(at + 1).filter(|word| roles[0] == Role::Package && is_number(word)).cloned();
        // A single letter may be a host.
        let is_of_scope = |word: &&String| word.len() == 1 || !WORDS_BESIDE_ROLES.contains(&word.as_str());
        let scope = words[..at].iter().filter(is_of_scope).cloned().collect();
        Some(Self { scope, role, package })
    }

    /// Returns whether this measures a part of what another does.
    pub(super) fn is_part_of(&self, whole: &Self) -> bool {
        let is_of_package = self.package.is_none() || whole.package.is_none() || self.package == whole.package;
        let is_nested = match (self.role, whole.role) {
            (Role::Package | Role::Core | Role::Memory, Role::Platform)
            | (Role::Phase | Role::Outlet, Role::Inlet)
            | (Role::Outlet, Role::Phase) => true,
            (Role::Core, Role::Package) => is_of_package,
            _ => false,
        };
        is_nested && self.scope == whole.scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_and_sides_are_parts_of_their_whole() {
        for (part, whole, is_part) in [
            ("core", "package-0", true),
            ("uncore", "package-0", true),
            ("package-0", "psys", true),
            ("dram", "psys", true),
            ("dram", "package-0", false),
            ("package-1", "package-0", false),
            ("package-1-core", "package-0", false),
            ("package-0-core", "package-0", true),
            ("n1 package-0 core", "n2 package-0", false),
            ("n1/core", "n1/package-0", true),
            ("energy-cores", "energy-pkg", true),
            ("pp0 power", "pkg power", true),
            ("rapl_core_uj", "rapl_package_uj", true),
            ("core_power_w", "package-0 power (W)", true),
            ("outlet 3", "inlet", true),
            ("pdu1 outlet 3", "pdu1 inlet", true),
            ("pdu2 outlet 3", "pdu1 inlet", false),
            ("phase A", "inlet", true),
            ("L1", "Inlet Power", true),
            ("Outlet1 Active Power", "phase L2", true),
            ("inlet", "outlet 3", false),
            // No meters of this kind.
            ("core-switch", "package-0", false),
            ("core", "gpu0", false),
            ("l4", "inlet", false),
            ("NVIDIA L4", "inlet", false),
            ("phase", "gpu0", false),
            ("online", "inlet", false),
        ] {
            let [part_name, whole_name] = [part, whole].map(MeterName::new);
            let found = part_name.zip(whole_name).is_some_and(|(part, whole)| part.is_part_of(&whole));
            assert_eq!(found, is_part, "{part} in {whole}");
        }
    }
}
